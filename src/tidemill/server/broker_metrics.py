"""The metrics of a broker, read from its counters at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidemill.broker.kafka_apis import TIMED_EVERY
from tidemill.model.errors import ErrorCode
from tidemill.replication.hosted_topics import counters_of
from tidemill.server.metrics import HISTOGRAM, Family, counter, gauge
from tidemill.wire.apis import API, ApiKey

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.model.time_histogram import TimeHistogram
    from tidemill.replication.partition import Partition
    from tidemill.server.broker_server import BrokerServer

PARTITIONS_A_TURN: Final = 200
"""Partitions read in one turn of the event loop, which takes about a millisecond."""
METADATA_A_TURN: Final = 5_000
UNDER_MIN_ISR_NAMED_MAX: Final = 10_000
"""The maximum number of series of ``tidemill_partition_under_min_isr``."""


class PartitionTotals:
    """Totals over all partitions with a replica on this broker."""

    def __init__(self) -> None:
        self.partitions = 0
        self.leaders = 0
        self.under_replicated = 0
        self.under_min_isr: list[tuple[str, int]] = []
        self.at_min_isr = 0
        self.offline_replicas: set[tuple[str, int]] = set()
        self.offline = 0
        self.reassigning = 0
        self.preferred_replica_imbalance = 0
        self.delayed_produces = 0
        self.lag_max = 0
        self.producer_ids = 0

    def add(self, partition: Partition) -> None:
        """Adds a partition to the totals."""
        self.partitions += 1
        self.leaders += partition.is_leader
        self.under_replicated += partition.is_under_replicated
        if partition.is_leader and partition.is_under_min_isr:
            self.under_min_isr.append((partition.topic, int(partition.index)))
        elif partition.is_leader and len(partition.isr) == partition.effective_min_isr:
            self.at_min_isr += 1
        self.delayed_produces += partition.delayed.append_count
        self.producer_ids += len(partition.log.producer_state.entries)
        if partition.is_offline:
            self.offline_replicas.add((partition.topic, int(partition.index)))
        else:
            self.lag_max = max(self.lag_max, int(partition.lag_max))


def families(server: BrokerServer) -> Iterator[Family | None]:
    """The metric families of the broker. None asks the caller to yield to the event loop."""
    totals = PartitionTotals()
    yield from _connections(server)
    yield from _requests(server)
    yield from _topics(server, totals)
    yield from _metadata(server, totals)
    yield from _delayed_operations(server, totals)
    yield from _cluster(server, totals)
    yield from _min_isr(totals)
    yield from _store(server)
    yield from _directories(server)
    yield from _reassignments(server, totals)
    yield from _log_cleaner(server)


def _connections(server: BrokerServer) -> Iterator[Family]:
    acceptor = server.socket_server
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
    for key, count in enumerate(server.kafka_apis.counts):
        if count:
            requests.add(count, api=_name(key))
    yield requests
    durations = {**server.dispatch.durations, **server.kafka_apis.total_times}
    yield _times_by_api(
        "tidemill_request_seconds",
        f"Seconds from a request to its response, including waits, by API; one in {TIMED_EVERY} Produce and"
        " Fetch requests is measured.",
        {_name(key): times for key, times in durations.items()},
    )
    yield _times_by_api(
        "tidemill_request_local_seconds",
        f"Seconds of the event loop for a request, without waits, by API; one in {TIMED_EVERY} Produce and"
        " Fetch requests is measured.",
        {_name(key): times for key, times in server.kafka_apis.local_times.items()},
    )
    errors = counter("tidemill_request_errors", "Errors of partitions in responses, by API and error.")
    for key, counts in (
        (ApiKey.PRODUCE, server.produce_handler.errors),
        (ApiKey.FETCH, server.fetch_handler.errors),
    ):
        for code, count in counts.items():
            errors.add(count, api=_name(key), error=ErrorCode(code).name)
    yield errors
    yield counter(
        "tidemill_produce_background_requests",
        "Produce requests with records that were validated or converted outside of the event loop.",
        server.produce_validation.submitted,
    )
    yield _times_by_api(
        "tidemill_message_conversion_seconds",
        "Seconds for the conversion of a request's records between message formats, by API. For a fetch, only"
        " the first records count: the others are converted while the response is sent.",
        server.conversions.times,
    )
    yield gauge(
        "tidemill_conversion_processes",
        "Processes that convert records, busy or idle.",
        len(server.conversions.processes),
    )


def _times_by_api(name: str, help: str, times: Mapping[str, TimeHistogram]) -> Family:
    family = Family(name, HISTOGRAM, help)
    for api, histogram in times.items():
        family.add(histogram, api=api)
    return family


def _name(key: int) -> str:
    return API[ApiKey(key)].name if key in API else f"unknown-{key}"


def _topics(server: BrokerServer, totals: PartitionTotals) -> Iterator[Family | None]:
    messages = counter("tidemill_topic_messages_in", "Records appended, by topic.")
    bytes_in = counter("tidemill_topic_bytes_in", "Bytes of batches appended, by topic.")
    bytes_out = counter(
        "tidemill_topic_bytes_out", "Bytes of batches sent to consumers and followers, by topic."
    )
    size = gauge("tidemill_topic_log_size_bytes", "Bytes of the topic's logs on this broker.")
    produced = counter(
        "tidemill_topic_produce_message_conversions", "Records converted in Produce requests, by topic."
    )
    fetched = counter(
        "tidemill_topic_fetch_message_conversions",
        "Records converted for consumers of old message formats, by topic.",
    )
    counters = (messages, bytes_in, bytes_out, produced, fetched)
    for entry in list(server.broker.replica_manager.topics.by_name.values()):
        size_bytes = 0
        sums = entry.counted_before
        for one in list(entry.partitions):
            if one is None:
                continue
            totals.add(one)
            size_bytes += one.log.size_bytes
            sums = tuple([before + more for before, more in zip(sums, counters_of(one), strict=True)])
            if totals.partitions % PARTITIONS_A_TURN == 0:
                yield None
        size.add(size_bytes, topic=entry.name)
        for family, value in zip(counters, sums, strict=True):
            family.add(value, topic=entry.name)
    yield from (*counters, size)


def _metadata(server: BrokerServer, totals: PartitionTotals) -> Iterator[Family | None]:
    """Counts offline partitions; on the controller also reassigned and imbalanced partitions."""
    is_controller = server.broker.controller.is_active
    seen = 0
    for topic in list(server.broker.metadata_cache.topics.values()):
        for one in topic.partitions:
            totals.offline += one.leader < 0 or (topic.name, one.partition) in totals.offline_replicas
            if is_controller:
                totals.reassigning += one.is_reassigning
                totals.preferred_replica_imbalance += [one.leader] != one.replicas[:1]
            seen += 1
            if seen % METADATA_A_TURN == 0:
                yield None


def _delayed_operations(server: BrokerServer, totals: PartitionTotals) -> Iterator[Family]:
    delayed = gauge(
        "tidemill_delayed_operations", "Delayed requests: Produce waits for replicas, Fetch for data."
    )
    delayed.add(totals.delayed_produces, api="Produce")
    delayed.add(int(server.fetch_handler.waiting), api="Fetch")
    yield delayed
    yield gauge(
        "tidemill_request_bytes_held",
        "Bytes of incomplete requests, delayed requests and unsent responses of all connections.",
        int(server.memory.total),
    )
    yield gauge(
        "tidemill_request_bytes_max",
        "The limit of tidemill_request_bytes_held.",
        int(server.memory.bytes_max),
    )
    yield counter(
        "tidemill_memory_pool_pauses",
        "Number of times that a connection was not read because of this limit.",
        int(server.memory.pauses),
    )
    cluster = server.broker.cluster
    yield counter(
        "tidemill_delayed_metadata_responses",
        "Metadata and FindCoordinator responses that were delayed because the connection to a broker that"
        " they name had just broken.",
        cluster.delayed_metadata.total if cluster is not None else 0,
    )
    yield gauge("tidemill_delayed_operation_timers", "Timers of delayed requests.", len(server.deadlines))
    yield gauge("tidemill_fetch_sessions", "Cached fetch sessions.", len(server.sessions.sessions))


def _cluster(server: BrokerServer, totals: PartitionTotals) -> Iterator[Family]:
    broker = server.broker
    yield gauge("tidemill_partition_count", "Partitions with a replica on this broker.", totals.partitions)
    yield gauge("tidemill_leader_count", "Partitions with this broker as leader.", totals.leaders)
    yield gauge("tidemill_producer_id_count", "Producer ids that the partitions keep.", totals.producer_ids)
    yield gauge(
        "tidemill_under_replicated_partitions",
        "Partitions with this broker as leader and fewer in-sync replicas than replicas, without the replicas"
        " that a reassignment adds.",
        totals.under_replicated,
    )
    yield gauge(
        "tidemill_offline_partitions",
        "Partitions of the cluster without a leader, or with a replica on a failed disk of this broker.",
        totals.offline,
    )
    yield gauge(
        "tidemill_active_controller",
        "1 if this broker is the active controller.",
        float(broker.controller.is_active),
    )
    yield gauge(
        "tidemill_unreadable_nodes",
        "Nodes of topics, brokers and configurations in the store that this controller cannot read.",
        len(broker.controller.image.unreadable) if broker.controller.is_active else 0,
    )
    yield counter(
        "tidemill_leader_elections",
        "Leaders that this broker elected as the controller.",
        broker.controller.context.election_report.elections,
    )
    yield counter(
        "tidemill_unclean_leader_elections",
        "Elected leaders that were not in sync: records may have been lost.",
        broker.controller.context.election_report.unclean_elections,
    )
    yield counter(
        "tidemill_isr_shrinks",
        "Changes that removed followers from the ISR of leaders on this broker.",
        broker.replica_manager.isr_shrinks,
    )
    yield counter(
        "tidemill_isr_expands",
        "Changes that added followers to the ISR of leaders on this broker.",
        broker.replica_manager.isr_expands,
    )
    yield gauge(
        "tidemill_max_lag_records",
        "Lag in records of the slowest follower of the leaders on this broker.",
        totals.lag_max,
    )
    flushes = Family("tidemill_log_flush_seconds", HISTOGRAM, "Seconds of log flushes.")
    yield flushes.add(broker.replica_manager.log_flusher.times)
    yield gauge(
        "tidemill_groups", "Groups with this broker as coordinator.", broker.group_coordinator.group_count()
    )
    yield counter("tidemill_group_rebalances", "Completed rebalances.", broker.group_coordinator.rebalances)
    yield counter("tidemill_group_commits", "Offsets committed.", broker.group_coordinator.commits)
    yield from _transactions(broker)
    lags = gauge(
        "tidemill_group_lag_records",
        "Records not committed yet by groups with this broker as coordinator, by group and topic.",
    )
    for group, topic, lag in server.group_lags.lags() if server.group_lags is not None else ():
        lags.add(lag, group=group, topic=topic)
    yield lags


def _transactions(broker: Broker) -> Iterator[Family]:
    transactions = broker.transaction_coordinator
    yield gauge(
        "tidemill_transactional_ids",
        "Transactional ids with this broker as coordinator.",
        transactions.id_count(),
    )
    yield counter("tidemill_transactions_committed", "Committed transactions.", transactions.commits)
    yield counter("tidemill_transactions_aborted", "Aborted transactions.", transactions.aborts)
    yield gauge(
        "tidemill_transaction_markers_pending",
        "Markers of decided transactions that are not written yet.",
        transactions.markers.unfinished,
    )
    yield gauge(
        "tidemill_transaction_oldest_seconds",
        "Age of the oldest open transaction; two-phase commits have no timeout.",
        transactions.oldest_ms() / 1000,
    )


def _min_isr(totals: PartitionTotals) -> Iterator[Family]:
    """Kafka's UnderMinIsrPartitionCount, AtMinIsrPartitionCount, and UnderMinIsr of each partition."""
    yield gauge(
        "tidemill_under_min_isr_partitions",
        "Partitions with this broker as leader and fewer in-sync replicas than min.insync.replicas: they"
        " reject acks=all.",
        len(totals.under_min_isr),
    )
    yield gauge(
        "tidemill_at_min_isr_partitions",
        "Partitions with this broker as leader and as many in-sync replicas as min.insync.replicas.",
        totals.at_min_isr,
    )
    each = gauge(
        "tidemill_partition_under_min_isr",
        "1 for each partition with this broker as leader that is under min.insync.replicas; others have no"
        " series.",
    )
    for topic, index in totals.under_min_isr[:UNDER_MIN_ISR_NAMED_MAX]:
        each.add(1, topic=topic, partition=str(index))
    yield each


def _store(server: BrokerServer) -> Iterator[Family]:
    connectivity = server.broker.store_connectivity
    yield gauge(
        "tidemill_store_silent_seconds",
        "Seconds since the last response of the coordination store; 0 while it responds.",
        connectivity.disconnected_ms / 1000,
    )
    yield counter(
        "tidemill_store_interruptions",
        "Number of times that the coordination store stopped responding.",
        connectivity.disconnections,
    )
    yield counter(
        "tidemill_store_session_expirations",
        "Expired sessions with the coordination store; after each the broker registers again.",
        connectivity.expirations,
    )


def _directories(server: BrokerServer) -> Iterator[Family]:
    broker = server.broker
    failed = sum(one.is_offline for one in broker.log_manager.dirs.all)
    yield gauge("tidemill_offline_log_directories", "Data directories that failed.", failed)
    yield gauge(
        "tidemill_full_log_directories",
        "Data directories that reject writes because the disk is full.",
        len(broker.replica_manager.full_directories),
    )
    free = gauge("tidemill_log_directory_free_bytes", "Free bytes of the file system of a data directory.")
    total = gauge("tidemill_log_directory_total_bytes", "Total bytes of the file system of a data directory.")
    for path, space in (server.free_space.by_directory if server.free_space is not None else {}).items():
        free.add(space.free_bytes, directory=path)
        total.add(space.total_bytes, directory=path)
    yield free
    yield total


def _reassignments(server: BrokerServer, totals: PartitionTotals) -> Iterator[Family]:
    yield gauge(
        "tidemill_reassigning_partitions",
        "On the controller: partitions in reassignment; 0 on other brokers.",
        totals.reassigning,
    )
    yield gauge(
        "tidemill_preferred_replica_imbalance",
        "On the controller: partitions whose preferred replica does not lead; 0 on other brokers.",
        totals.preferred_replica_imbalance,
    )
    sent = counter(
        "tidemill_throttled_replication_bytes",
        "Bytes of throttled replicas that leaders on this broker sent and followers received, by side.",
    )
    cluster = server.broker.cluster
    for side, throttle in (cluster.replication_quotas.sides if cluster is not None else {}).items():
        sent.add(throttle.bytes, side=side)
    yield sent


def _log_cleaner(server: BrokerServer) -> Iterator[Family]:
    cleaner = server.log_cleaner
    totals = cleaner.totals
    yield gauge(
        "tidemill_log_cleaner_max_dirty_percent",
        "Dirty share of the dirtiest compacted log, in percent.",
        100 * cleaner.max_dirty_ratio,
    )
    yield gauge(
        "tidemill_log_cleaner_buffer_utilization_percent",
        "Fill level of the offset map in the last compaction, in percent.",
        100 * cleaner.map_utilization,
    )
    yield counter("tidemill_log_cleaner_logs", "Completed compactions of a log.", totals.logs)
    yield counter("tidemill_log_cleaner_read_bytes", "Bytes that compaction read.", totals.read_bytes)
    yield counter("tidemill_log_cleaner_written_bytes", "Bytes that compaction wrote.", totals.written_bytes)
    yield counter(
        "tidemill_log_cleaner_records_removed", "Records that compaction removed.", totals.records_removed
    )
    yield gauge(
        "tidemill_log_cleaner_uncleanable_partitions",
        "Partitions that are not compacted until the broker restarts or a log.cleaner setting changes; the"
        " log has the reasons.",
        len(cleaner.uncleanable),
    )
