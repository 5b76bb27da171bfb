"""The preferred replica of consumers, and reads from followers (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from paths_bench import NODE, NOW, Bench, Client, batch, bench_in, parts_of, values_of

from tidemill.broker.metadata_cache import BrokerImage
from tidemill.broker.replica_selector import (
    ClientView,
    ReplicaSelector,
    ReplicaView,
    Selector,
    rack_aware,
)
from tidemill.coordination.nodes import BrokerRegistration, Endpoint
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import parse_batch
from tidemill.wire.messages.fetch import FetchPartition, ReplicaState

REPLICAS = (NODE, 2, 3)
LONG_MS = 60_000
RACKS = {NODE: "near-leader", 2: "two", 3: "two"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """The leader of three replicas with the rack-aware selector."""
    with bench_in(tmp_path) as one:
        one.partition().apply_state(NODE, 0, REPLICAS, REPLICAS, partition_epoch=0, now_ms=NOW)
        select(one, rack_aware)
        yield one


def image(broker: int, listener: str = "PLAINTEXT") -> BrokerImage:
    endpoint = Endpoint(listener, "PLAINTEXT", "localhost", 9092)
    return BrokerImage(BrokerRegistration(broker, (endpoint,), rack=RACKS[broker]), 0)


def select(bench: Bench, selector: Selector) -> None:
    brokers = {broker: image(broker) for broker in RACKS}
    bench.fetches.reader.selector = ReplicaSelector("a test's", selector, lambda: brokers, bench.clock)


def write(bench: Bench, count: int = 1) -> None:
    for _ in range(count):
        data = batch(b"a")
        bench.partition().append(parse_batch(data, 0, len(data)), 1, bench.clock.now_ms)


def followed(bench: Bench, **ends: int) -> None:
    """Sets the followers, by id."""
    for broker, end in ((2, ends.get("two")), (3, ends.get("three"))):
        if end is not None:
            bench.partition().fetched_by(broker, end, 0, bench.clock.now_ms)


def read(client: Client, rack: str, offset: int = 0, version: int = 11, **fields: Any) -> Any:
    client.fetch(version, {("t", 0): offset}, rack_id=rack, **fields)
    return parts_of(client.fetched(version))["t", 0]


@pytest.mark.parametrize("version", range(11, 19))
def test_the_preferred_replica_is_in_the_rack_of_the_consumer(bench: Bench, version: int) -> None:
    client = bench.client()
    write(bench)
    followed(bench, two=1, three=1)
    found = read(client, "two", version=version, max_wait_ms=LONG_MS, min_bytes=1 << 20)
    assert (found.error_code, found.preferred_read_replica, found.records) == (0, 3, b"")
    assert (found.high_watermark, found.log_start_offset) == (1, 0)
    for rack in ("near-leader", "elsewhere", ""):
        found = read(client, rack, version=version)
        assert (found.preferred_read_replica, values_of(found)) == (-1, [b"a"])


def test_old_clients_read_from_the_leader(bench: Bench) -> None:
    client = bench.client()
    write(bench)
    followed(bench, two=1, three=1)
    client.fetch(10, {("t", 0): 0})
    assert values_of(parts_of(client.fetched(10))["t", 0]) == [b"a"]


def test_the_in_sync_replica_with_the_highest_log_end_is_selected(bench: Bench) -> None:
    client = bench.client()
    write(bench, 2)
    followed(bench, two=2, three=1)
    assert read(client, "two").preferred_read_replica == 2
    # The replica must have the fetch offset.
    assert read(client, "two", 2).preferred_read_replica == 2
    bench.partition().apply_state(NODE, 0, REPLICAS, (NODE, 3), partition_epoch=1, now_ms=NOW)
    assert read(client, "two").preferred_read_replica == 3
    assert read(client, "two", 2).preferred_read_replica == -1
    bench.partition().apply_state(NODE, 0, REPLICAS, (NODE,), partition_epoch=2, now_ms=NOW)
    assert read(client, "two").preferred_read_replica == -1


def test_only_live_replicas_with_the_listener_of_the_client_are_selected(bench: Bench) -> None:
    client = bench.client()
    write(bench)
    followed(bench, two=1, three=1)
    for brokers in ({NODE: image(NODE), 2: image(2)}, {2: image(2), 3: image(3, "OTHER")}):
        selector = ReplicaSelector("a test's", rack_aware, brokers.copy, bench.clock)
        bench.fetches.reader.selector = selector
        assert read(client, "two").preferred_read_replica == 2
    bench.fetches.reader.selector = ReplicaSelector("a test's", rack_aware, dict, bench.clock)
    assert read(client, "two").preferred_read_replica == -1


def test_a_selector_function_gets_the_client_and_the_replicas(bench: Bench) -> None:
    seen: list[tuple[str, int, ClientView, Sequence[ReplicaView]]] = []

    def own(topic: str, partition: int, client: ClientView, replicas: Sequence[ReplicaView]) -> int | None:
        seen.append((topic, partition, client, replicas))
        return 2

    select(bench, own)
    write(bench)
    followed(bench, two=1, three=0)
    bench.clock.now_ms += 70
    assert read(bench.client(), "").preferred_read_replica == 2
    ((topic, partition, client, replicas),) = seen
    assert (topic, partition) == ("t", 0)
    assert client == ClientView("", "127.0.0.1", "User:ANONYMOUS", "PLAINTEXT")
    assert replicas == [
        ReplicaView(NODE, "near-leader", 1, 0, True),
        ReplicaView(2, "two", 1, 0, False),
        ReplicaView(3, "two", 0, 70, False),
    ]


@pytest.mark.parametrize("answer", [None, NODE, 9, "two", KeyError("x"), SystemExit(3)])
def test_consumers_read_from_the_leader_if_a_function_selects_no_replica(
    bench: Bench, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def own(*_: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    select(bench, own)
    write(bench)
    followed(bench, two=1, three=1)
    client = bench.client()
    for _ in range(2):
        found = read(client, "two")
        assert (found.preferred_read_replica, values_of(found)) == (-1, [b"a"])
    assert len(caplog.records) == (0 if answer in (None, NODE) else 1)


def test_every_response_of_a_session_has_the_preferred_replica(bench: Bench) -> None:
    client = bench.client()
    write(bench)
    followed(bench, two=1, three=1)
    client.fetch(11, {("t", 0): 0, ("u", 0): 0}, rack_id="two", session_epoch=0)
    session = client.fetched(11).session_id
    client.fetch(11, {}, rack_id="two", session_id=session, session_epoch=1, max_wait_ms=LONG_MS)
    found = parts_of(client.fetched(11))
    assert list(found) == [("t", 0)]
    assert found["t", 0].preferred_read_replica == 3
    client.fetch(11, {}, forgotten=[("t", 0)], rack_id="two", session_id=session, session_epoch=2)
    assert parts_of(client.fetched(11)) == {}


@pytest.mark.parametrize("selects", [False, True])
def test_delayed_follower_fetches_complete_with_each_high_watermark(bench: Bench, selects: bool) -> None:
    if not selects:
        bench.fetches.reader.selector = None
    write(bench)
    follower = bench.client()
    who = {"replica_state": ReplicaState(replica_id=2, replica_epoch=1)}
    follower.fetch(15, {("t", 0): 1}, session_epoch=0, **who)
    session = follower.fetched(15).session_id
    follower.fetch(15, {}, session_id=session, session_epoch=1, max_wait_ms=LONG_MS, **who)
    bench.until(lambda: bench.fetches.waiting == 1)
    followed(bench, three=1)
    assert bench.partition().high_watermark == 1
    if selects:
        assert parts_of(follower.fetched(15))["t", 0].high_watermark == 1
    else:
        assert follower.is_silent()


def test_a_follower_serves_consumers_up_to_its_high_watermark(bench: Bench) -> None:
    partition = bench.partition()
    partition.apply_state(2, 1, REPLICAS, REPLICAS, partition_epoch=1, now_ms=NOW)
    one, two = (batch(value, base_offset=at, leader_epoch=1) for at, value in enumerate((b"a", b"b")))
    partition.append_from_leader(one, 0, 0, NOW)
    consumer = bench.client()
    consumer.fetch(11, {("t", 0): 0}, session_epoch=0, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    partition.append_from_leader(two, 1, 0, NOW)
    response = consumer.fetched(11)
    found = parts_of(response)["t", 0]
    assert (found.high_watermark, values_of(found)) == (1, [b"a"])
    consumer.fetch(11, {("t", 0): 1}, session_id=response.session_id, session_epoch=1, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    partition.append_from_leader(b"", 2, 0, NOW)
    assert values_of(parts_of(consumer.fetched(11))["t", 0], 1) == [b"b"]
    # Only the new leader knows whether it has the records that this log loses.
    partition.truncate_to(1, NOW)
    consumer.fetch(11, {("t", 0): 2}, session_id=response.session_id, session_epoch=2)
    assert parts_of(consumer.fetched(11))["t", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("known_epoch", [-1, 1])
def test_a_consumer_keeps_its_offset_at_a_former_leader_with_an_empty_disk(
    bench: Bench, known_epoch: int
) -> None:
    """The consumer may have old metadata, and librdkafka would reset its offset to the log start."""
    partition = bench.partition()
    partition.apply_state(2, 1, REPLICAS, REPLICAS, partition_epoch=1, now_ms=NOW)
    partition.restart_at(300, NOW)
    consumer = bench.client()
    for position in (7, 3242):
        requested = FetchPartition(
            partition=0, current_leader_epoch=known_epoch, fetch_offset=position, partition_max_bytes=1 << 20
        )
        consumer.fetch(11, {("t", 0): requested})
        assert parts_of(consumer.fetched(11))["t", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.apply_state(NODE, 2, REPLICAS, REPLICAS, partition_epoch=2, now_ms=NOW)
    consumer.fetch(11, {("t", 0): 3242})
    assert parts_of(consumer.fetched(11))["t", 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
