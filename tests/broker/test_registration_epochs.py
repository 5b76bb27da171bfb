"""Fetches of followers with their broker epoch: those of a former process of the broker do not count."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer
from paths_bench import FETCH, IDS, NODE, Bench, Client, batch, bench_in, fetch_request, parts_of
from replica_stage import Broker

from tidemill.model.errors import ErrorCode
from tidemill.records.batch import parse_batch
from tidemill.replication.follower_replicas import Follower
from tidemill.replication.replica_fetcher import FetchLimits, ReplicaFetcher
from tidemill.wire.codec import encode
from tidemill.wire.header import encode_request
from tidemill.wire.messages.fetch import ReplicaState

FOLLOWER = 2
FORMER, NOW = 0x5_0000_0001, 0x5_0000_0009
FROM_VERSION = 15
KIO_VERSIONS = range(FROM_VERSION, 18)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A leader with a follower outside of the ISR."""
    with bench_in(tmp_path) as one:
        for index in range(3):
            one.partition("t", index).apply_state(
                NODE, 3, (NODE, FOLLOWER), (NODE,), partition_epoch=5, now_ms=one.clock.now_ms
            )
        one.manager.listener.alter_isr = lambda *change: None
        yield one


def write(bench: Bench, *values: bytes, index: int = 0) -> None:
    """Appends as the leader."""
    for value in values:
        data = batch(value)
        bench.partition("t", index).append(parse_batch(data, 0, len(data)), 1, bench.clock.now_ms)


def known(bench: Bench, index: int = 0) -> Follower:
    """The follower's state on the leader."""
    replication = bench.partition("t", index).replication
    assert replication is not None
    return replication.followers[FOLLOWER]


def who(version: int, epoch: int) -> dict[str, Any]:
    """The fields that identify the follower."""
    if version < FROM_VERSION:
        return {"replica_id": FOLLOWER}
    return {"replica_state": ReplicaState(replica_id=FOLLOWER, replica_epoch=epoch)}


def fetched(client: Client, version: int, epoch: int, parts: Any, **fields: Any) -> Any:
    """Fetches with a broker epoch, and returns the response."""
    client.fetch(version, parts, **who(version, epoch), **fields)
    return client.fetched(version)


@pytest.mark.parametrize("version", range(9, 19))
def test_a_leader_reads_the_broker_epoch_from_fetch_15(bench: Bench, version: int) -> None:
    client = bench.client()
    write(bench, b"a")
    assert parts_of(fetched(client, version, NOW, {("t", 0): 1}))["t", 0].error_code == 0
    assert known(bench).end_offset == 1
    assert known(bench).epoch == (NOW if version >= FROM_VERSION else -1)


@pytest.mark.parametrize("version", range(FROM_VERSION, 19))
def test_a_fetch_with_a_former_broker_epoch_is_refused(bench: Bench, version: int) -> None:
    write(bench, b"a", b"b")
    before, now = bench.client(), bench.client()
    session = fetched(before, version, FORMER, {("t", 0): 1, ("t", 1): 0}, session_epoch=0).session_id
    # Its disk is empty after the restart.
    assert parts_of(fetched(now, version, NOW, {("t", 0): 0}))["t", 0].error_code == 0
    late = fetched(before, version, FORMER, {("t", 0): 2}, session_id=session, session_epoch=1)
    part = parts_of(late)["t", 0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (part.high_watermark, part.records or b"") == (-1, b"")
    assert (known(bench).end_offset, known(bench).epoch) == (0, NOW)
    # The new process has not fetched the other partition yet.
    assert (known(bench, 1).end_offset, known(bench, 1).epoch) == (0, FORMER)
    # A fetch without an epoch is not fenced, as in Apache Kafka.
    assert parts_of(fetched(now, 12, -1, {("t", 0): 1}))["t", 0].error_code == 0
    assert (known(bench).end_offset, known(bench).epoch) == (1, -1)


@pytest.mark.parametrize("version", range(FROM_VERSION, 19))
def test_a_fetch_with_an_epoch_before_the_known_registration_is_refused(bench: Bench, version: int) -> None:
    """The next process has not fetched yet, and its disk may be empty."""
    write(bench, b"a", b"b")
    client = bench.client()
    bench.registered[FOLLOWER] = NOW
    part = parts_of(fetched(client, version, FORMER, {("t", 0): 2}))["t", 0]
    assert (part.error_code, part.high_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert (known(bench).end_offset, known(bench).epoch) == (-1, -1)
    assert parts_of(fetched(client, version, NOW, {("t", 0): 0}))["t", 0].error_code == 0
    assert (known(bench).end_offset, known(bench).epoch) == (0, NOW)
    # This broker may read a registration after its first fetch.
    assert parts_of(fetched(client, version, NOW + 1, {("t", 0): 1}))["t", 0].error_code == 0
    assert known(bench).epoch == NOW + 1


def test_a_new_broker_epoch_applies_to_all_partitions_of_the_session(bench: Bench) -> None:
    for index in range(3):
        partition = bench.partition("t", index)
        partition.apply_state(
            NODE, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=6, now_ms=bench.clock.now_ms
        )
    client = bench.client()
    all_parts = {("t", index): 0 for index in range(3)}
    session = fetched(client, 18, FORMER, all_parts, session_epoch=0).session_id
    assert [known(bench, index).epoch for index in range(3)] == [FORMER] * 3
    # The request names no partition: the session has all of them.
    assert parts_of(fetched(client, 18, NOW, {}, session_id=session, session_epoch=1)) == {}
    assert [known(bench, index).epoch for index in range(3)] == [NOW] * 3


def test_the_end_of_a_former_session_changes_no_follower_state(bench: Bench) -> None:
    partition = bench.partition()
    partition.apply_state(
        NODE, 3, (NODE, FOLLOWER), (NODE, FOLLOWER), partition_epoch=6, now_ms=bench.clock.now_ms
    )
    before, now = bench.client(), bench.client()
    session = fetched(before, 18, FORMER, {("t", 0): 0}, session_epoch=0).session_id
    fetched(before, 18, FORMER, {}, session_id=session, session_epoch=1)
    assert parts_of(fetched(now, 18, NOW, {("t", 0): 0}))["t", 0].error_code == 0
    caught_up_ms = known(bench).caught_up_ms
    bench.clock.now_ms += 1000
    bench.sessions.sessions[session].used_ms = bench.clock.now_ms
    bench.sessions.remove(session)
    assert known(bench).caught_up_ms == caught_up_ms


@pytest.mark.parametrize("size", range(13))
def test_an_incomplete_replica_state_closes_the_connection(bench: Bench, size: int) -> None:
    whole = encode_request(FETCH, 15, 1, "client", fetch_request(15, {("t", 0): 0}, **who(15, NOW)))
    frame, tags = whole[4:-16], whole[-16:]
    assert tags[:3] == bytes([1, 1, 13])
    body = frame + bytes([1, 1, size]) + tags[3 : 3 + size]
    client = bench.client()
    client.send_bytes(len(body).to_bytes(4, "big") + body)
    assert client.is_closed()
    assert known(bench).end_offset == -1


# Against kio, an independent codec.


@pytest.mark.parametrize("version", KIO_VERSIONS)
def test_the_epoch_in_a_request_of_another_codec_is_read(bench: Bench, version: int) -> None:
    schema = load_request_schema(FETCH, version)
    ours = fetch_request(version, {("t", 0): 0}, **who(version, NOW))
    theirs = entity_reader(schema)(encode(ours, version), 0)[0]
    assert (theirs.replica_state.replica_id, theirs.replica_state.replica_epoch) == (FOLLOWER, NOW)
    written = io.BytesIO()
    entity_writer(schema)(written, theirs)
    header = encode_request(FETCH, version, 7, "client", ours)[4 : -len(encode(ours, version))]
    body = header + written.getvalue()
    client = bench.client()
    client.send_bytes(len(body).to_bytes(4, "big") + body)
    client.answer(FETCH, version, 7)
    assert (known(bench).end_offset, known(bench).epoch) == (0, NOW)


@pytest.mark.parametrize("version", KIO_VERSIONS)
def test_another_codec_reads_the_request_of_a_follower(version: int) -> None:
    fetcher = ReplicaFetcher(FOLLOWER, FetchLimits(), node_epoch=NOW)
    broker = Broker(FOLLOWER)
    broker.become(NODE, 3)
    fetcher.add_partition(IDS["t"], broker.partitions[0], 0, 0)
    body = fetcher.build_request(0, version)
    assert body is not None
    theirs, size = entity_reader(load_request_schema(FETCH, version))(body, 0)
    assert size == len(body)
    assert (theirs.replica_state.replica_id, theirs.replica_state.replica_epoch) == (FOLLOWER, NOW)
    ((partition,),) = [topic.partitions for topic in theirs.topics]
    assert theirs.topics[0].topic_id == uuid.UUID(bytes=IDS["t"])
    assert (partition.partition, partition.fetch_offset, partition.current_leader_epoch) == (0, 0, 3)
