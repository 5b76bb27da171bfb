"""Batches behind a rejected one get its error, and are not stored before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from paths_bench import Bench, Client, batch, bench_in, parts_of, produce_request, values_of

from default_limits import iter_records
from tidemill.broker.add_partitions_to_txn_manager import AddPartitionsToTxnManager, PartitionErrors
from tidemill.broker.produce_codec import PartitionRecords
from tidemill.broker.rejected_batches import REJECTION_MS, REJECTIONS_MAX, RejectedBatches
from tidemill.log.errors import DiskFull
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.records.batch import SEQUENCE_MAX, Batch, parse_batch
from tidemill.wire.apis import ApiKey

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

NOT_ENOUGH = (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
OUT_OF_ORDER = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
VERSION = 9
RECORDS = PartitionRecords(b"t", 0, 0, 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two topics, and the handlers for them."""
    with bench_in(tmp_path) as one:
        yield one


def write(client: Client, sequence: int, epoch: int = 0, version: int = VERSION) -> tuple[int, int]:
    """Sends one message of producer 7 with acks=all. Returns error and offset of the response."""
    data = batch(b"%d" % sequence, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    client.produce(version, {("t", 0): data})
    (part,) = client.produced(version)
    return part.error_code, part.base_offset


def note(rejected: RejectedBatches, refused: Batch, error: KafkaError, now_ms: int = 0) -> None:
    """Records a rejected batch of an unknown partition."""
    rejected.record(RECORDS, None, refused, error, now_ms)


def stored(bench: Bench) -> list[bytes]:
    """Returns the values in the log."""
    log = bench.partition().log
    found = log.read(log.start_offset, 1 << 20, log.end_offset, True)
    return [] if found is None else [one.value or b"" for one in iter_records(found.read(), 0)]


@pytest.mark.parametrize("known", [True, False])
def test_batches_behind_a_rejected_one_get_the_same_error(bench: Bench, known: bool) -> None:
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


def test_a_batch_behind_a_rejected_one_is_rejected_by_topic_name_and_id(bench: Bench) -> None:
    client = bench.client()
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 0, version=13) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    assert write(client, 1, version=9) == NOT_ENOUGH
    assert [write(client, sequence, version=9) for sequence in (0, 1)] == [(0, 0), (0, 1)]


def test_the_first_batches_of_an_epoch_stay_in_order(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 0, epoch=1) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    assert write(client, 1, epoch=1) == NOT_ENOUGH
    assert [write(client, sequence, epoch=1) for sequence in (0, 1)] == [(0, 1), (0, 2)]


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_new_leader_rejects_batches_behind_a_rejected_one(bench: Bench, version: int) -> None:
    client = bench.client()
    bench.partition().apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    assert write(client, 0, version=version) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    bench.partition().apply_state(1, 6, (1,), (1,), partition_epoch=-1, now_ms=0)
    assert write(client, 1, version=version) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert [write(client, sequence, version=version) for sequence in (0, 1)] == [(0, 0), (0, 1)]


def test_batches_behind_a_rejected_one_are_rejected_after_a_full_disk(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    data = batch(b"1", producer_id=7, producer_epoch=0, base_sequence=1)
    refused = parse_batch(data, 0, len(data))
    note(bench.produces.rejected, refused, DiskFull("no room"), bench.clock.monotonic_ms())
    assert write(client, 2) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert [write(client, sequence) for sequence in (1, 2)] == [(0, 1), (0, 2)]


def test_setting_the_wall_clock_forward_does_not_end_a_rejection(
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


def test_a_gap_without_a_rejection_is_out_of_order(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 1) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    # Another leader has stored it: its former rejection does not apply any more.
    other = batch(b"1", producer_id=7, producer_epoch=0, base_sequence=1)
    bench.partition().append(parse_batch(other, 0, len(other)), 1, 0)
    assert write(client, 3) == OUT_OF_ORDER
    assert write(client, 2) == (0, 2)


def test_a_rejected_batch_that_another_leader_stored_is_ignored(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.partition().apply_state(2, 5, (1, 2), (1, 2), partition_epoch=-1, now_ms=0)
    assert write(client, 1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    bench.partition().apply_state(1, 6, (1, 2), (1,), partition_epoch=-1, now_ms=0)
    other = batch(b"1", producer_id=7, producer_epoch=0, base_sequence=1)
    bench.partition().append(parse_batch(other, 0, len(other)), 1, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 2) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    assert write(client, 3) == NOT_ENOUGH
    assert [write(client, sequence) for sequence in (2, 3)] == [(0, 2), (0, 3)]


def test_a_rejection_expires(bench: Bench) -> None:
    client = bench.client()
    assert write(client, 0) == (0, 0)
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    assert write(client, 1) == NOT_ENOUGH
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    bench.clock.now_ms += int(REJECTION_MS)
    assert write(client, 2) == OUT_OF_ORDER
    assert bench.produces.rejected.rejections == {}


def test_a_rejection_does_not_affect_other_producers_and_partitions(bench: Bench) -> None:
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


class Coordinator(AddPartitionsToTxnManager):
    """A coordinator that answers a question about a transaction with ``error``."""

    def __init__(self) -> None:
        config = SimpleNamespace(bool=lambda key: True)
        super().__init__(cast("Broker", SimpleNamespace(config=config)), None)
        self.error = ErrorCode.NONE

    async def add_or_verify(
        self, name: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition], adds: bool
    ) -> PartitionErrors:
        return dict.fromkeys(partitions, self.error)


@pytest.mark.parametrize(
    ("version", "error", "refusal"),
    [
        (11, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (12, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        # The coordinator does not know the topic of another batch of the request yet.
        (12, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_batches_behind_an_unverified_one_are_not_stored_before_it(
    tmp_path: Path, version: int, error: ErrorCode, refusal: ErrorCode
) -> None:
    """The coordinator may answer for the second batch of a transaction, and not for the first."""
    coordinator = Coordinator()
    with bench_in(tmp_path, verify=coordinator.verify) as bench:
        client = bench.client()

        def write(sequence: int) -> int:
            data = batch(
                b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
            )
            request = produce_request(version, {("t", 0): data})
            request.transactional_id = "x"
            client.send(ApiKey.PRODUCE, version, request)
            return int(client.produced(version)[0].error_code)

        coordinator.error = error
        assert write(0) == refusal
        coordinator.error = ErrorCode.NONE
        assert write(1) == refusal
        assert [write(0), write(1)] == [0, 0]
        assert stored(bench) == [b"0", b"1"]


def of_epoch(epoch: int, sequence: int) -> Batch:
    data = batch(b"a", producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    return parse_batch(data, 0, len(data))


def test_a_fenced_producer_does_not_replace_the_rejection_of_its_successor(bench: Bench) -> None:
    rejected = RejectedBatches()
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    note(rejected, of_epoch(1, 0), error)
    note(rejected, of_epoch(0, 5), error)
    with pytest.raises(KafkaError, match="with sequence 0, was rejected"):
        rejected.check(RECORDS, bench.partition(), of_epoch(1, 1), 1)
    rejected.check(RECORDS, bench.partition(), of_epoch(0, 6), 1)
    with pytest.raises(KafkaError, match="with sequence 0, was rejected"):
        rejected.check(RECORDS, bench.partition(), of_epoch(1, 1), 1)


def test_a_later_epoch_replaces_the_rejection_of_the_epoch_before(bench: Bench) -> None:
    rejected = RejectedBatches()
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    note(rejected, of_epoch(0, 5), error)
    note(rejected, of_epoch(1, 0), error)
    with pytest.raises(KafkaError, match="with sequence 0, was rejected"):
        rejected.check(RECORDS, bench.partition(), of_epoch(1, 1), 1)


def test_an_expired_rejection_of_a_later_epoch_is_replaced(bench: Bench) -> None:
    rejected = RejectedBatches()
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    note(rejected, of_epoch(1, 0), error)
    note(rejected, of_epoch(0, 5), error, int(REJECTION_MS))
    with pytest.raises(KafkaError, match="with sequence 5, was rejected"):
        rejected.check(RECORDS, bench.partition(), of_epoch(0, 6), int(REJECTION_MS))


def test_sequences_wrap_around(bench: Bench) -> None:
    rejected = RejectedBatches()
    last = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=SEQUENCE_MAX)
    after = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    note(rejected, parse_batch(last, 0, len(last)), error)
    note(rejected, parse_batch(after, 0, len(after)), error)
    with pytest.raises(KafkaError, match=f"with sequence {SEQUENCE_MAX}, was rejected"):
        rejected.check(RECORDS, bench.partition(), parse_batch(after, 0, len(after)), 1)


def test_a_batch_before_a_rejected_one_is_accepted(bench: Bench) -> None:
    rejected = RejectedBatches()
    later = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=5)
    earlier = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=3)
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    note(rejected, parse_batch(later, 0, len(later)), error)
    rejected.check(RECORDS, bench.partition(), parse_batch(earlier, 0, len(earlier)), 1)


def test_recorded_rejections_are_limited_to_retriable_errors() -> None:
    rejected = RejectedBatches()
    error = KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS)
    for producer in range(REJECTIONS_MAX + 5):
        data = batch(b"a", producer_id=producer, producer_epoch=0, base_sequence=0)
        note(rejected, parse_batch(data, 0, len(data)), error)
    assert 0 < len(rejected.rejections) <= REJECTIONS_MAX
    rejected = RejectedBatches()
    data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    note(rejected, parse_batch(data, 0, len(data)), KafkaError("x", ErrorCode.INVALID_RECORD))
    long_name = PartitionRecords(b"t" * 250, 0, 0, 0)
    rejected.record(long_name, None, parse_batch(data, 0, len(data)), error, 0)
    plain = batch(b"a")
    note(rejected, parse_batch(plain, 0, len(plain)), error)
    assert rejected.rejections == {}


def test_nothing_is_committed_below_min_insync_replicas(bench: Bench) -> None:
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=2)
    partition = bench.partition()
    partition.apply_state(1, 1, (1, 2), (1, 2), partition_epoch=1, now_ms=0)
    timed_out, waiting, leader_only, reader = (bench.client() for _ in range(4))
    timed_out.produce(VERSION, {("t", 0): batch(b"a")}, timeout_ms=50)
    waits = waiting.produce(VERSION, {("t", 0): batch(b"b")})
    bench.until(lambda: partition.log.end_offset == 2)
    partition.apply_state(1, 1, (1, 2), (1,), partition_epoch=2, now_ms=0)
    leader_only.produce(VERSION, {("t", 0): batch(b"c")}, acks=1)
    assert leader_only.produced(VERSION)[0].error_code == 0
    assert timed_out.produced(VERSION)[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert waiting.is_silent()
    # An eligible leader replica may lack all three, so consumers must not read them.
    reader.fetch(11, {("t", 0): 0})
    part = parts_of(reader.fetched(11))["t", 0]
    assert (part.high_watermark, values_of(part)) == (0, [])
    # With min.insync.replicas=1 this broker commits alone.
    bench.put("t", 3, replicas=(1, 2), min_insync_replicas=1)
    (part,) = waiting.produced(VERSION, waits)
    assert (part.error_code, part.base_offset) == (0, 1)
    reader.fetch(11, {("t", 0): 0})
    assert values_of(parts_of(reader.fetched(11))["t", 0]) == [b"a", b"b", b"c"]
