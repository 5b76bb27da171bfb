"""The fetches of a consumer, and its reports of partitions that cannot be read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from default_limits import CompletedFetch
from record_builders import build_batch
from tidemill.client.cluster_metadata import Node, Partition, Topic
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import CONSUMER
from tidemill.client.errors import BrokerUnreachable
from tidemill.client.fetched_records import collect, collect_arrow
from tidemill.client.fetcher import Fetcher
from tidemill.client.network_client import NetworkClient
from tidemill.client.subscription_state import PartitionPosition, SubscriptionState
from tidemill.model.errors import CorruptMessage
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.fetch_layout import FetchedPartition, read_request

ITEM = TopicPartition("t", 0)
LEADER, NEARER = 1, 2


class Broker:
    """The fetcher's view of a connection: records the requests, and responds to none."""

    last_used_s = 0.0
    throttled_until_s = 0.0

    def __init__(self) -> None:
        self.bytes_max: list[int] = []
        self.racks: list[bytes] = []

    def version(self, key: ApiKey) -> int:
        return 11

    def send(self, key: ApiKey, message: bytes, **options: Any) -> None:
        request = read_request(options["version"], 0, message, 0, len(message))
        self.racks.append(request.rack)
        self.bytes_max += [requested.bytes_max for requested in request.partitions]


class Fetches:
    """The fetches of a consumer with one partition at offset 0, and two brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        cluster = NetworkClient(ClientConfig(CONSUMER, {"bootstrap.servers": "unused:1"}, **settings))
        cluster.topics["t"] = Topic("t", ZERO_ID, False, [Partition(0, LEADER, 0, [1, 2], [1, 2], [])])
        for node_id in (LEADER, NEARER):
            cluster.nodes[node_id] = Node(node_id, "unused", node_id)
        self.cluster = cluster
        self.brokers = {LEADER: Broker(), NEARER: Broker()}
        monkeypatch.setattr(cluster, "ready_connection", lambda node_id, purpose: self.brokers[node_id])
        subscriptions = SubscriptionState(cluster.config)
        self.position = subscriptions.positions[ITEM] = PartitionPosition()
        self.position.seek(0)
        self.fetcher = Fetcher(cluster, subscriptions)

    def ask(self) -> list[int]:
        """Sends the fetches; returns the brokers that received one."""
        self.fetcher._in_flight.clear()
        before = {node_id: len(broker.bytes_max) for node_id, broker in self.brokers.items()}
        self.fetcher.send_fetches()
        self.fetcher._in_flight.clear()
        return [
            node_id for node_id, broker in self.brokers.items() if len(broker.bytes_max) > before[node_id]
        ]

    def bring(self, data: bytes = b"", preferred: int = -1, version: int = 11) -> None:
        response = FetchedPartition(b"t", 0, data)
        response.end, response.preferred_replica = len(data), preferred
        self.fetcher._handle_partition(ITEM, self.position, 0, response, version)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fetches]:
    found = Fetches(monkeypatch)
    yield found
    found.fetcher.close()
    found.cluster.close()


def test_the_preferred_read_replica_is_used_while_it_is_known(fetches: Fetches) -> None:
    assert fetches.ask() == [LEADER]
    fetches.bring(preferred=NEARER)
    assert fetches.ask() == [NEARER]
    node = fetches.cluster.nodes.pop(NEARER)
    assert fetches.ask() == [LEADER]
    fetches.cluster.nodes[NEARER] = node
    assert fetches.ask() == [NEARER]
    fetches.position.read_replica_expires_at = 0.0
    assert fetches.ask() == [LEADER]


@pytest.mark.parametrize("reached", [False, True])
def test_a_failed_preferred_read_replica_is_replaced_by_the_leader_for_a_while(
    monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """A leader that received the rack would name the failed replica again."""
    fetches = Fetches(monkeypatch, client_rack="r")
    assert fetches.ask() == [LEADER]
    fetches.bring(preferred=NEARER)
    problem = BrokerUnreachable("it does not answer")
    if reached:
        assert fetches.ask() == [NEARER]
        fetches.fetcher._fetch_failed(NEARER, {ITEM: 0}, problem)
    else:
        monkeypatch.setattr(fetches.cluster, "ready_connection", lambda *_: None)
        monkeypatch.setattr(fetches.cluster, "open_in_background", lambda *_: None)
        fetches.cluster.record_failure(NEARER, problem)
        assert fetches.ask() == []
        monkeypatch.setattr(fetches.cluster, "ready_connection", lambda node_id, _: fetches.brokers[node_id])
    assert fetches.position.error_name == "NETWORK_EXCEPTION"
    assert fetches.ask() == [LEADER]
    fetches.position.read_from_leader_until = 0.0
    assert fetches.ask() == [LEADER]
    assert fetches.brokers[LEADER].racks == [b"r", b"", b"r"]
    fetches.bring(preferred=NEARER)
    assert fetches.ask() == [NEARER]
    fetches.fetcher._fetch_failed(LEADER, {ITEM: 0}, problem)
    assert fetches.ask() == [NEARER]
    fetches.fetcher.close()
    fetches.cluster.close()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (1000, [1000, 2000, 4000]),
        (2**30 - 1, [2**30 - 1, 2**31 - 2, 2**31 - 1]),
        (2**30, [2**30, 2**31 - 1, 2**31 - 1]),
    ],
)
def test_a_partial_batch_of_an_old_broker_doubles_the_requested_bytes(
    monkeypatch: pytest.MonkeyPatch, first: int, then: list[int]
) -> None:
    fetches = Fetches(monkeypatch, max_partition_fetch_bytes=first)
    part = build_batch([(1, b"k", b"v", None)])[:-1]
    for _ in then:
        fetches.ask()
        if fetches.fetcher._partition_bytes < 2**31 - 1:
            fetches.bring(part, version=2)
    assert not fetches.fetcher.completed_fetches
    assert fetches.brokers[LEADER].bytes_max == then
    fetches.fetcher.close()
    fetches.cluster.close()


@pytest.mark.parametrize(("version", "limit"), [(3, 1 << 20), (11, 1 << 20), (2, 2**31 - 1)])
@pytest.mark.parametrize("length", [2**31 - 100, 40, -5])
@pytest.mark.parametrize("as_arrow", [False, True])
def test_a_first_batch_with_a_damaged_length_is_an_error(
    monkeypatch: pytest.MonkeyPatch, version: int, limit: int, length: int, as_arrow: bool
) -> None:
    """From version 3 on, brokers send whole first batches, even if these exceed the limits."""
    fetches = Fetches(monkeypatch, max_partition_fetch_bytes=limit)
    batch = build_batch([(1, b"k", b"v", None)])
    fetches.bring(batch[:8] + struct.pack(">i", length) + batch[12:], version=version)
    read: Callable[[Fetcher, SubscriptionState], Any] = partial(collect, count=9)
    if as_arrow:
        read = partial(collect_arrow, include_headers=False, bytes_max=1000)
    for _ in range(2):
        with pytest.raises(CorruptMessage, match=r"t-0 cannot be read from offset 0 on: .*damaged"):
            read(fetches.fetcher, fetches.fetcher._subscriptions)
        assert not fetches.fetcher.completed_fetches
        fetches.bring(batch[:8] + struct.pack(">i", length) + batch[12:], version=version)
    assert (fetches.position.offset, fetches.fetcher._partition_bytes) == (0, limit)
    fetches.fetcher.close()
    fetches.cluster.close()


@pytest.mark.parametrize(("version", "brokers"), [(7, [LEADER]), (8, []), (11, [])])
def test_a_throttled_consumer_waits_before_the_next_fetch(
    fetches: Fetches, version: int, brokers: list[int]
) -> None:
    broker = fetches.brokers[LEADER]
    empty = struct.pack(">iihii", 1, 60_000, 0, 0, 0)  # correlation, throttle, error, session, no topics
    request = SimpleNamespace(error=None, frame=empty, version=version, connection=broker)
    fetches.fetcher._handle_response(LEADER, request, {ITEM: 0})  # type: ignore[arg-type]
    assert fetches.ask() == brokers
    broker.throttled_until_s = 0.0
    assert fetches.ask() == [LEADER]


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("trouble", ["", "LEADER_NOT_AVAILABLE"])
def test_a_partition_with_an_error_waits_unless_it_is_paused(
    fetches: Fetches, paused: bool, trouble: str
) -> None:
    fetches.position.paused = paused
    if trouble:
        fetches.position.record_error(trouble, "no leader; wait for an election", 5.0)
    expected = [("t-0", "no leader; wait for an election", 5.0)] if trouble and not paused else []
    assert [(wait.subject, wait.reason, wait.since) for wait in fetches.fetcher.waits()] == expected


def test_records_before_a_damaged_batch_are_returned_and_later_records_are_not() -> None:
    batches = [build_batch([(1, None, b"%d" % at, None)], base_offset=at) for at in range(3)]
    batches[1] = batches[1][:-2] + b"?" + batches[1][-1:]
    data = b"".join(batches)
    response = FetchedPartition(b"t", 0, data)
    response.end = len(data)
    chunk = CompletedFetch(ITEM, response, 0, committed_only=False, check_crcs=True)
    assert [record.value for record in chunk.fetch_records(100)] == [b"0"]
    assert (chunk.is_consumed, chunk.next_offset) == (True, 1)
    behind = CompletedFetch(ITEM, response, 1, committed_only=False, check_crcs=True)
    for _ in range(2):
        with pytest.raises(CorruptMessage, match=r"t-0 cannot be read at offsets 1 to 1"):
            behind.fetch_records(100)
    beyond = CompletedFetch(ITEM, response, 2, committed_only=False, check_crcs=True)
    assert [record.value for record in beyond.fetch_records(100)] == [b"2"]
