"""Batches behind one that was refused: what their producer is told, and that none is stored before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from paths_bench import Bench, Client, batch, bench_in, parts_of, values_of

from tidemill.broker.refusals import NOTED_MAX, NOTED_MS, Refusals
from tidemill.log.errors import DiskFull
from tidemill.log.producer_state import SEQUENCE_MAX, ProducerState
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import parse_batch
from tidemill.records.reader import iter_records

NOT_ENOUGH = (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
OUT_OF_ORDER = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
VERSION = 9


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two topics and what serves them."""
    with bench_in(tmp_path) as one:
        yield one


def write(client: Client, sequence: int, epoch: int = 0, version: int = VERSION) -> tuple[int, int]:
    """Sends one message of producer 7 with acks=all: the error and the offset of the answer."""
    data = batch(b"%d" % sequence, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    client.produce(version, {("t", 0): data})
    (part,) = client.produced(version)
    return part.error_code, part.base_offset


def stored(bench: Bench) -> list[bytes]:
    """The values in the log."""
    log = bench.partition().log
    found = log.read(log.start_offset, 1 << 20, log.end_offset, True)
    return [] if found is None else [one.value or b"" for one in iter_records(found.read(), 0)]


@pytest.mark.parametrize("known", [True, False])
def test_what_comes_behind_a_refused_batch_is_refused_alike(bench: Bench, known: bool) -> None:
    client = bench.client()
    first = 0
    if known:
        assert write(client, 0) == (0, 0)
        first = 1
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, first) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    assert write(client, first + 1) == NOT_ENOUGH
    assert write(client, first + 2) == NOT_ENOUGH
    for sequence in range(first, 5):
        assert write(client, sequence) == (0, sequence)
    assert stored(bench) == [b"%d" % sequence for sequence in range(5)]


def test_a_batch_behind_a_refused_one_is_refused_however_its_topic_is_named(bench: Bench) -> None:
    client = bench.client()
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 0, version=13) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    assert write(client, 1, version=9) == NOT_ENOUGH
    assert [write(client, sequence, version=9) for sequence in (0, 1)] == [(0, 0), (0, 1)]


def test_the_first_batches_of_an_epoch_keep_their_order_as_well(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 0, epoch=1) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    assert write(client, 1, epoch=1) == NOT_ENOUGH
    assert [write(client, sequence, epoch=1) for sequence in (0, 1)] == [(0, 1), (0, 2)]


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_broker_that_leads_only_now_refuses_what_came_behind(bench: Bench, version: int) -> None:
    client = bench.client()
    bench.partition().become(2, 5, (1, 2), (1, 2))
    assert write(client, 0, version=version) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    bench.partition().become(1, 6, (1,), (1,))
    assert write(client, 1, version=version) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert [write(client, sequence, version=version) for sequence in (0, 1)] == [(0, 0), (0, 1)]


def test_a_disk_with_room_again_refuses_what_came_behind(bench: Bench) -> None:
    client = bench.client()
    produces = bench.produces
    assert write(client, 0) == (0, 0)
    data = batch(b"1", producer_id=7, producer_epoch=0, base_sequence=1)
    refused = parse_batch(data, 0, len(data))
    produces.refusals.note(b"t", 0, refused, DiskFull("no room"), None, bench.clock.monotonic_ms())
    assert write(client, 2) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert [write(client, sequence) for sequence in (1, 2)] == [(0, 1), (0, 2)]


def test_a_wall_clock_that_is_set_forward_lets_nothing_be_stored_before_what_was_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = bench.client()
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 0) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    ahead_ms = bench.clock.now_ms + 30_000
    monkeypatch.setattr(bench.clock, "wall_ms", lambda: ahead_ms)
    assert write(client, 1) == NOT_ENOUGH
    assert [write(client, sequence) for sequence in (0, 1)] == [(0, 0), (0, 1)]


def test_a_gap_that_nobody_refused_is_out_of_order(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 1) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    # The log has got it from elsewhere: that it was refused here once says nothing any more.
    other = batch(b"1", producer_id=7, producer_epoch=0, base_sequence=1)
    bench.partition().append([parse_batch(other, 0, len(other))], 1, 0)
    assert write(client, 3) == OUT_OF_ORDER
    assert write(client, 2) == (0, 2)


def test_what_was_refused_before_and_stored_elsewhere_hides_no_other_refusal(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.partition().become(2, 5, (1, 2), (1, 2))
    assert write(client, 1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    bench.partition().become(1, 6, (1, 2), (1,))
    other = batch(b"1", producer_id=7, producer_epoch=0, base_sequence=1)
    bench.partition().append([parse_batch(other, 0, len(other))], 1, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 2) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    assert write(client, 3) == NOT_ENOUGH
    assert [write(client, sequence) for sequence in (2, 3)] == [(0, 2), (0, 3)]


def test_a_batch_that_was_given_up_is_not_waited_for_long(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 1) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    bench.clock.now_ms += int(NOTED_MS)
    assert write(client, 2) == OUT_OF_ORDER
    assert bench.produces.refusals.noted == {}


def test_other_producers_and_partitions_go_on(bench: Bench) -> None:
    client = bench.client()
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 0) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    other = batch(b"a", producer_id=8, producer_epoch=0, base_sequence=4)
    mine = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=4)
    for parts in ({("t", 0): other}, {("t", 1): mine}, {("t", 0): batch(b"c")}):
        client.produce(VERSION, parts)
        (part,) = client.produced(VERSION)
        assert part.error_code == 0


def test_sequences_that_go_round_are_told_apart() -> None:
    refusals = Refusals()
    last = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=SEQUENCE_MAX)
    after = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    refusals.note(b"t", 0, parse_batch(last, 0, len(last)), error, None, 0)
    refusals.note(b"t", 0, parse_batch(after, 0, len(after)), error, None, 0)
    with pytest.raises(KafkaError, match=f"with sequence {SEQUENCE_MAX}, was refused"):
        refusals.check(b"t", 0, parse_batch(after, 0, len(after)), ProducerState("t-0"), 1)


def test_what_is_noted_has_a_bound_and_only_what_will_come_again_is() -> None:
    refusals = Refusals()
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    for producer in range(NOTED_MAX + 5):
        data = batch(b"a", producer_id=producer, producer_epoch=0, base_sequence=0)
        refusals.note(b"t", 0, parse_batch(data, 0, len(data)), error, None, 0)
    assert 0 < len(refusals.noted) <= NOTED_MAX
    refusals = Refusals()
    data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    refusals.note(
        b"t", 0, parse_batch(data, 0, len(data)), KafkaError("x", ErrorCode.INVALID_RECORD), None, 0
    )
    refusals.note(b"t" * 250, 0, parse_batch(data, 0, len(data)), error, None, 0)
    plain = batch(b"a")
    refusals.note(b"t", 0, parse_batch(plain, 0, len(plain)), error, None, 0)
    assert refusals.noted == {}


def test_nothing_is_committed_while_fewer_replicas_are_in_sync_than_the_minimum(bench: Bench) -> None:
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    partition = bench.partition()
    partition.become(1, 1, (1, 2), (1, 2), 1)
    impatient, patient, leader_only, reader = (bench.client() for _ in range(4))
    impatient.produce(VERSION, {("t", 0): batch(b"a")}, timeout_ms=50)
    waits = patient.produce(VERSION, {("t", 0): batch(b"b")})
    bench.until(lambda: partition.log.end_offset == 2)
    partition.become(1, 1, (1, 2), (1,), 2)
    leader_only.produce(VERSION, {("t", 0): batch(b"c")}, acks=1)
    assert leader_only.produced(VERSION)[0].error_code == 0
    assert impatient.produced(VERSION)[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert patient.is_silent()
    # An eligible leader replica may lack all three: no consumer may see them.
    reader.fetch(11, {("t", 0): 0})
    part = parts_of(reader.fetched(11))["t", 0]
    assert (part.high_watermark, values_of(part)) == (0, [])
    # With one replica as the minimum, this broker commits alone.
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    (part,) = patient.produced(VERSION, waits)
    assert (part.error_code, part.base_offset) == (0, 1)
    reader.fetch(11, {("t", 0): 0})
    assert values_of(parts_of(reader.fetched(11))["t", 0]) == [b"a", b"b", b"c"]
