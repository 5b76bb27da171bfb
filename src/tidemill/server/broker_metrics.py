"""A broker's own metrics, read from its plain counters when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidemill.broker.requests import TIMED_EVERY
from tidemill.model.errors import ErrorCode
from tidemill.replication.topics import counters_of
from tidemill.server.metrics import HISTOGRAM, Family, counter, gauge
from tidemill.wire.apis import API, ApiKey

if TYPE_CHECKING:
    from tidemill.replication.partition import Partition
    from tidemill.server.app import BrokerServer

PARTITIONS_A_TURN: Final = 200
"""Walked in one turn of the loop: about a millisecond."""
METADATA_A_TURN: Final = 5_000
UNDER_MIN_ISR_NAMED_MAX: Final = 10_000
"""Partitions under their minimum that have a series of their own."""


class Held:
    """What all partitions here are together."""

    def __init__(self) -> None:
        self.partitions = 0
        self.leaders = 0
        self.under_replicated = 0
        self.under_min_isr: list[tuple[str, int]] = []
        self.at_min_isr = 0
        self.failed: set[tuple[str, int]] = set()
        self.offline = 0
        self.moving = 0
        self.led_elsewhere = 0
        self.waiting_appends = 0
        self.lag_max = 0

    def note(self, one: Partition) -> None:
        """Counts a partition."""
        self.partitions += 1
        self.leaders += one.is_leader
        self.under_replicated += one.is_under_replicated
        if one.is_leader and one.is_under_min_isr:
            self.under_min_isr.append((one.topic, int(one.index)))
        elif one.is_leader and len(one.isr) == one.min_insync:
            self.at_min_isr += 1
        self.waiting_appends += one.waiting_appends
        if one.failed:
            self.failed.add((one.topic, int(one.index)))
        else:
            self.lag_max = max(self.lag_max, int(one.lag_max))


def families(server: BrokerServer) -> Iterator[Family | None]:
    """Everything that the broker counts; None where others may have their turn before it goes on."""
    held = Held()
    yield from _connections(server)
    yield from _requests(server)
    yield from _topics(server, held)
    yield from _metadata(server, held)
    yield from _waiting(server, held)
    yield from _cluster(server, held)
    yield from _min_isr(held)
    yield from _store(server)
    yield from _directories(server)
    yield from _moves(server, held)
    yield from _compaction(server)


def _connections(server: BrokerServer) -> Iterator[Family]:
    acceptor = server.acceptor
    live = list(acceptor.connections)
    bytes_in = acceptor.bytes_in + sum(int(one.bytes_in) for one in live)
    bytes_out = acceptor.bytes_out + sum(int(one.bytes_out) for one in live)
    yield gauge("tidemill_connections", "Open connections of clients.", len(live))
    yield counter("tidemill_connections_accepted", "Connections accepted.", acceptor.accepted)
    yield counter(
        "tidemill_connections_refused", "Connections over a limit, closed at once.", acceptor.refused
    )
    yield counter("tidemill_network_received_bytes", "Bytes received from clients.", bytes_in)
    yield counter("tidemill_network_sent_bytes", "Bytes sent to clients.", bytes_out)


def _requests(server: BrokerServer) -> Iterator[Family]:
    requests = counter("tidemill_requests", "Requests by API.")
    for key, count in enumerate(server.requests.counts):
        if count:
            requests.add(count, api=_name(key))
    yield requests
    seconds = Family(
        "tidemill_request_seconds",
        HISTOGRAM,
        f"Seconds from a request to its answer, waiting included, by API; one Produce and Fetch of"
        f" {TIMED_EVERY}.",
    )
    for key, times in {**server.dispatch.durations, **server.requests.total_times}.items():
        seconds.add(times, api=_name(key))
    yield seconds
    local = Family(
        "tidemill_request_local_seconds",
        HISTOGRAM,
        f"Seconds that the loop was at a request, without waiting; one Produce and Fetch of {TIMED_EVERY}.",
    )
    for key, times in server.requests.local_times.items():
        local.add(times, api=_name(key))
    yield local
    errors = counter("tidemill_request_errors", "Partitions answered with an error, by API and error.")
    for key, counts in ((ApiKey.PRODUCE, server.produces.errors), (ApiKey.FETCH, server.fetches.errors)):
        for code, count in counts.items():
            errors.add(count, api=_name(key), error=ErrorCode(code).name)
    yield errors
    yield counter(
        "tidemill_produce_slow_lane",
        "Produce requests whose batches were checked beside the event loop.",
        server.slow_lane.taken,
    )
    conversions = Family(
        "tidemill_message_conversion_seconds",
        HISTOGRAM,
        "Seconds that the conversion of a request's records between formats took, by API; of a fetch, that"
        " of its first records, as the others are converted while they are sent.",
    )
    for api, one in server.conversions.times.items():
        conversions.add(one, api=api)
    yield conversions
    yield gauge(
        "tidemill_conversion_processes",
        "Processes that convert records, or wait for some.",
        len(server.conversions.processes),
    )


def _name(key: int) -> str:
    return API[ApiKey(key)].name if key in API else f"unknown-{key}"


def _topics(server: BrokerServer, held: Held) -> Iterator[Family | None]:
    messages = counter("tidemill_topic_messages_in", "Records appended, by topic.")
    bytes_in = counter("tidemill_topic_bytes_in", "Bytes of batches appended, by topic.")
    bytes_out = counter("tidemill_topic_bytes_out", "Bytes of batches sent to readers, by topic.")
    size = gauge("tidemill_topic_log_size_bytes", "Bytes of the topic's logs on this broker.")
    produced = counter(
        "tidemill_topic_produce_message_conversions", "Records converted on their way in, by topic."
    )
    fetched = counter(
        "tidemill_topic_fetch_message_conversions", "Records converted for readers of old formats, by topic."
    )
    counters = (messages, bytes_in, bytes_out, produced, fetched)
    for entry in list(server.broker.partitions.topics.by_name.values()):
        size_bytes = 0
        sums = entry.counted_before
        for one in list(entry.partitions):
            if one is None:
                continue
            held.note(one)
            size_bytes += one.log.size_bytes
            sums = tuple([before + more for before, more in zip(sums, counters_of(one), strict=True)])
            if held.partitions % PARTITIONS_A_TURN == 0:
                yield None
        size.add(size_bytes, topic=entry.name)
        for family, value in zip(counters, sums, strict=True):
            family.add(value, topic=entry.name)
    yield from (*counters, size)


def _metadata(server: BrokerServer, held: Held) -> Iterator[Family | None]:
    """Counts partitions that nobody leads or that failed here; as the controller, what moves or should."""
    decides = server.broker.controller.is_active
    seen = 0
    for topic in list(server.broker.metadata.topics.values()):
        for one in topic.partitions:
            held.offline += one.leader < 0 or (topic.name, one.partition) in held.failed
            if decides:
                held.moving += one.is_moving
                held.led_elsewhere += [one.leader] != one.replicas[:1]
            seen += 1
            if seen % METADATA_A_TURN == 0:
                yield None


def _waiting(server: BrokerServer, held: Held) -> Iterator[Family]:
    waiting = gauge(
        "tidemill_waiting_requests", "Requests that wait: produces for replicas, fetches for data."
    )
    waiting.add(held.waiting_appends, api="Produce")
    waiting.add(int(server.fetches.waiting), api="Fetch")
    yield waiting
    yield gauge(
        "tidemill_request_bytes_held",
        "Bytes that all connections hold of requests that are not complete or wait, and of replies that are"
        " not taken.",
        int(server.memory.total),
    )
    yield gauge(
        "tidemill_request_bytes_max",
        "The bound of tidemill_request_bytes_held.",
        int(server.memory.bytes_max),
    )
    yield counter(
        "tidemill_memory_pauses",
        "Times that a connection was not read because of that bound.",
        int(server.memory.pauses),
    )
    answers = server.broker.held_answers
    yield counter(
        "tidemill_held_answers",
        "Answers held because they named a broker whose connection had just broken.",
        answers.total if answers is not None else 0,
    )
    yield gauge("tidemill_deadlines", "Entries on the timer of waiting requests.", len(server.deadlines))
    yield gauge("tidemill_fetch_sessions", "Fetch sessions kept.", len(server.sessions.sessions))


def _cluster(server: BrokerServer, held: Held) -> Iterator[Family]:
    broker = server.broker
    yield gauge("tidemill_partitions", "Partitions with a replica here.", held.partitions)
    yield gauge("tidemill_leaders", "Partitions led here.", held.leaders)
    yield gauge(
        "tidemill_under_replicated_partitions",
        "Partitions led here with fewer in-sync replicas than replicas, without those that a move brings in.",
        held.under_replicated,
    )
    yield gauge(
        "tidemill_offline_partitions",
        "Partitions of the cluster without a leader, or with a replica on a failed disk here.",
        held.offline,
    )
    yield gauge(
        "tidemill_active_controller",
        "1 when this broker is the controller.",
        float(broker.controller.is_active),
    )
    yield gauge(
        "tidemill_unreadable_nodes",
        "Topics, brokers and their settings that the controller, this broker, cannot read in the store.",
        len(broker.controller.image.unreadable) if broker.controller.is_active else 0,
    )
    yield counter(
        "tidemill_leader_elections",
        "Leaders that this broker chose as the controller.",
        broker.controller.report.elections,
    )
    yield counter(
        "tidemill_unclean_leader_elections",
        "Those of them that were not in sync: records may have been lost.",
        broker.controller.report.unclean_elections,
    )
    yield counter(
        "tidemill_isr_shrinks",
        "Changes by which followers left in-sync sets of leaders here.",
        broker.partitions.isr_shrinks,
    )
    yield counter(
        "tidemill_isr_expands",
        "Changes by which followers joined in-sync sets of leaders here.",
        broker.partitions.isr_expands,
    )
    yield gauge(
        "tidemill_replica_lag_max_records",
        "Records that the follower lacks, or may lack, which is farthest behind a leader here.",
        held.lag_max,
    )
    flushes = Family("tidemill_log_flush_seconds", HISTOGRAM, "Seconds that syncs of logs took.")
    flushes.add(broker.partitions.flushing.times)
    yield flushes
    yield gauge("tidemill_groups", "Groups coordinated here.", broker.groups.group_count())
    yield counter("tidemill_group_rebalances", "Assignments handed out.", broker.groups.rebalances)
    yield counter("tidemill_group_commits", "Offsets committed.", broker.groups.commits)
    lags = gauge("tidemill_group_lag_records", "Records that groups coordinated here have not committed yet.")
    for group, topic, lag in server.group_lags.lags() if server.group_lags is not None else ():
        lags.add(lag, group=group, topic=topic)
    yield lags


def _min_isr(held: Held) -> Iterator[Family]:
    """Kafka's UnderMinIsrPartitionCount, AtMinIsrPartitionCount, and UnderMinIsr of partitions."""
    yield gauge(
        "tidemill_under_min_isr_partitions",
        "Partitions led here with fewer in-sync replicas than min.insync.replicas: acks=all is refused.",
        len(held.under_min_isr),
    )
    yield gauge(
        "tidemill_at_min_isr_partitions",
        "Partitions led here with as many in-sync replicas as min.insync.replicas: none may be lost.",
        held.at_min_isr,
    )
    each = gauge(
        "tidemill_partition_under_min_isr",
        "1 for each partition led here that is under min.insync.replicas; others have no series.",
    )
    for topic, index in held.under_min_isr[:UNDER_MIN_ISR_NAMED_MAX]:
        each.add(1, topic=topic, partition=str(index))
    yield each


def _store(server: BrokerServer) -> Iterator[Family]:
    contact = server.broker.store_connectivity
    yield gauge(
        "tidemill_store_silent_seconds",
        "Seconds since the coordination store last answered; 0 while it answers.",
        contact.silent_ms / 1000,
    )
    yield counter(
        "tidemill_store_interruptions",
        "Times that the coordination store stopped to answer.",
        contact.interruptions,
    )
    yield counter(
        "tidemill_store_session_expirations",
        "Sessions with the coordination store that ended: the broker registered again.",
        contact.expirations,
    )


def _directories(server: BrokerServer) -> Iterator[Family]:
    broker = server.broker
    failed = sum(bool(one.failure) for one in broker.logs.directories)
    yield gauge("tidemill_offline_log_directories", "Data directories that failed.", failed)
    full = gauge(
        "tidemill_full_log_directories",
        "Data directories that refuse writes for want of room.",
        len(broker.partitions.full),
    )
    yield full
    free = gauge("tidemill_log_directory_free_bytes", "Bytes left on the file system of a data directory.")
    total = gauge("tidemill_log_directory_total_bytes", "Bytes of the file system of a data directory.")
    for path, space in (server.free_space.by_directory if server.free_space is not None else {}).items():
        free.add(space.free_bytes, directory=path)
        total.add(space.total_bytes, directory=path)
    yield free
    yield total


def _moves(server: BrokerServer, held: Held) -> Iterator[Family]:
    yield gauge(
        "tidemill_moving_partitions",
        "Partitions that move to other brokers, where this one is the controller.",
        held.moving,
    )
    yield gauge(
        "tidemill_preferred_leader_imbalance",
        "Partitions that another than their first replica leads, or none, where this one is the controller.",
        held.led_elsewhere,
    )
    sent = counter(
        "tidemill_throttled_replication_bytes",
        "Bytes of throttled replicas that leaders here sent, and followers here took, by side.",
    )
    throttling = server.broker.throttling
    for side, throttle in (throttling.sides if throttling is not None else {}).items():
        sent.add(throttle.bytes, side=side)
    yield sent


def _compaction(server: BrokerServer) -> Iterator[Family]:
    compaction = server.compaction
    totals = compaction.totals
    yield gauge(
        "tidemill_compaction_max_dirty_percent",
        "Share of the dirtiest compacted log that is not compacted yet.",
        100 * compaction.max_dirty_ratio,
    )
    yield gauge(
        "tidemill_compaction_map_percent",
        "How full the map of latest offsets was in the last compaction.",
        100 * compaction.map_utilization,
    )
    yield counter("tidemill_compaction_logs", "Compactions of a log that were done.", totals.logs)
    yield counter("tidemill_compaction_read_bytes", "Bytes that compaction read.", totals.read_bytes)
    yield counter("tidemill_compaction_written_bytes", "Bytes that compaction wrote.", totals.written_bytes)
    yield counter(
        "tidemill_compaction_records_removed", "Records that compaction removed.", totals.records_removed
    )
    yield gauge(
        "tidemill_compaction_uncleanable_partitions",
        "Partitions that cannot be compacted, until the broker starts again; the log says why.",
        len(compaction.set_aside),
    )
