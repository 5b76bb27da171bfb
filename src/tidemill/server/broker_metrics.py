"""The broker's own metrics: families made of the counters that its parts keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.model.errors import ErrorCode
from tidemill.server.metrics import HISTOGRAM, Family, counter, gauge, labelled
from tidemill.wire.apis import ApiKey

if TYPE_CHECKING:
    from tidemill.server.app import BrokerServer


def families(server: BrokerServer) -> Iterable[Family]:
    """Every family, as it is now. Cheap: sums over connections, partitions and groups."""
    yield from _connections(server)
    yield from _requests(server)
    yield from _partitions(server)
    yield from _groups(server)


def _connections(server: BrokerServer) -> Iterable[Family]:
    acceptor = server.acceptor
    living = list(acceptor.connections)
    yield gauge("tidemill_connections", "Connections that are open.", len(living))
    yield counter("tidemill_connections_accepted", "Connections that were let in.", acceptor.accepted)
    yield counter("tidemill_connections_refused", "Connections over a limit.", acceptor.refused)
    received = acceptor.bytes_in + sum(one.bytes_in for one in living)
    sent = acceptor.bytes_out + sum(one.bytes_out for one in living)
    yield counter("tidemill_bytes_in", "Bytes received from clients.", received)
    yield counter("tidemill_bytes_out", "Bytes sent to clients.", sent)


def _requests(server: BrokerServer) -> Iterable[Family]:
    counts = {api_name(key): float(count) for key, count in enumerate(server.requests.counts) if count}
    yield labelled(counter("tidemill_requests", "Requests, by API."), "api", counts)
    errors = counter("tidemill_request_errors", "Errors in replies, by API and code.")
    for api, found in (("Produce", server.produces.errors), ("Fetch", server.fetches.errors)):
        for code, count in dict(found).items():
            errors.add(count, api=api, code=error_name(code))
    yield errors
    times = Family("tidemill_request_seconds", HISTOGRAM, "How long requests took, waiting included.")
    for key, histogram in dict(server.dispatch.durations).items():
        times.add(histogram, api=api_name(key))
    yield times
    yield gauge(
        "tidemill_fetch_sessions", "Fetch sessions that are remembered.", len(server.sessions.sessions)
    )


def _partitions(server: BrokerServer) -> Iterable[Family]:
    partitions = list(server.broker.partitions.all())
    messages: Counter[str] = Counter()
    received: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    size: Counter[str] = Counter()
    waiting: Counter[str] = Counter({"produce": 0, "fetch": 0})
    leaders = under_replicated = failed = 0
    for one in partitions:
        messages[one.topic] += one.messages_in
        received[one.topic] += one.bytes_in
        sent[one.topic] += one.bytes_out
        size[one.topic] += one.log.size_bytes
        waiting["produce"] += one.waiting_appends
        waiting["fetch"] += one.waiting_fetches
        failed += bool(one.failed)
        if one.is_leader:
            leaders += 1
            under_replicated += len(one.isr) < len(one.replicas)
    yield gauge("tidemill_partitions", "Partitions with a replica here.", len(partitions))
    yield gauge("tidemill_leader_partitions", "Partitions that this broker leads.", leaders)
    yield gauge(
        "tidemill_under_replicated_partitions", "Led partitions with replicas out of sync.", under_replicated
    )
    yield gauge("tidemill_failed_partitions", "Partitions whose directory failed.", failed)
    is_controller = server.broker.metadata.controller_id == server.broker.node_id
    yield gauge("tidemill_active_controller", "1 when this broker is the controller.", float(is_controller))
    waits = gauge("tidemill_waiting_requests", "Requests that wait, by kind.")
    yield labelled(waits, "kind", waiting)
    yield counter("tidemill_messages_in", "Messages appended.", sum(messages.values()))
    for family, values in (
        (counter("tidemill_topic_messages_in", "Messages appended, by topic."), messages),
        (counter("tidemill_topic_bytes_in", "Bytes appended, by topic."), received),
        (counter("tidemill_topic_bytes_out", "Bytes handed out, by topic."), sent),
        (gauge("tidemill_topic_size_bytes", "Bytes of logs, by topic."), size),
    ):
        yield labelled(family, "topic", {topic: value for topic, value in values.items() if value})


def _groups(server: BrokerServer) -> Iterable[Family]:
    groups = server.broker.groups
    _, listed = groups.list_groups()
    states = Counter(one.state for one in listed)
    yield labelled(gauge("tidemill_groups", "Consumer groups, by state."), "state", states)
    yield counter("tidemill_group_rebalances", "Assignments handed out.", groups.rebalances)
    yield counter("tidemill_offset_commits", "Offsets committed.", groups.commits)


def api_name(key: int) -> str:
    """``OffsetCommit`` for 8; the number for one that is not known."""
    try:
        return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
    except ValueError:
        return str(key)


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
