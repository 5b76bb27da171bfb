"""Mirrored topics: batches of another cluster keep their offsets, and nothing else is accepted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from mirror_copy import EARLIEST, LATEST, PartitionPeer, copy

from tidemill.client import Admin, Consumer, NewTopic, Producer
from tidemill.client.admin_types import ConfigResource, ResourceType
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.records.mirrored_batch import as_mirrored, empty_batches, mirrored_batches
from tidemill.testing.broker import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

pytestmark = pytest.mark.timeout(180)

MIRROR = {"tidemill.mirror.state": "active"}
CLEANING = {
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 0,
}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
ISOLATIONS = ("read_uncommitted", "read_committed")
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker(CLEANING) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


@pytest.fixture(scope="module")
def target() -> Iterator[Broker]:
    """A broker with one listener for clients and brokers, which is the default."""
    with Broker(CLEANING) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


class Pair:
    """A topic of one partition at the source, and its mirror."""

    def __init__(self, source: Broker, target: Broker, **configs: str) -> None:
        self.topic = f"mirrored-{uuid.uuid4().hex[:8]}"
        self.source, self.target = source, target
        for broker, settings in ((source, {}), (target, MIRROR)):
            with Admin(broker.bootstrap) as admin:
                admin.create_topics([NewTopic(self.topic, 1, 1, configs={**configs, **settings})])
        self.at_source = PartitionPeer(source.bootstrap, self.topic)
        self.at_target = PartitionPeer(target.bootstrap, self.topic)

    def copy(self, bytes_max: int = 1 << 20) -> None:
        copy(self.at_source, self.at_target, bytes_max)

    def check_same(self) -> None:
        """Fails unless the mirror has the offsets, the batches and the readable messages of the source."""
        for timestamp in (EARLIEST, LATEST):
            assert self.at_target.offset(timestamp) == self.at_source.offset(timestamp)
        assert self.at_target.batches() == self.at_source.batches()
        for isolation in ISOLATIONS:
            assert read(self.target, self.topic, isolation) == read(self.source, self.topic, isolation)

    def alter(self, **configs: str) -> None:
        """Changes settings of the mirror; an empty value removes one."""
        with Admin(self.target.bootstrap) as admin:
            resource = ConfigResource(ResourceType.TOPIC, self.topic)
            names = {name.replace("_", "."): value for name, value in configs.items()}
            admin.alter_configs(
                resource,
                {name: value for name, value in names.items() if value},
                remove=[name for name, value in names.items() if not value],
            )

    def promote(self) -> None:
        """Promotes the mirror, as the command line does."""
        with Admin(self.target.bootstrap) as admin:
            topic_id = admin.describe_topic(self.topic).topic_id
        self.alter(tidemill_mirror_state="promoting")
        until(lambda: self.at_target.is_promoted(topic_id), "the mirror has its end")
        self.alter(tidemill_mirror_state="")


def until(probe: Callable[[], bool], text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not probe():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {text}"
        time.sleep(0.1)


def read(
    broker: Broker, topic: str, isolation: str, start: int = confluent_kafka.OFFSET_BEGINNING
) -> list[tuple[int, bytes]]:
    """Returns offset and value of each message, with librdkafka."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, start)])
    found = []
    while True:
        message = consumer.poll(20)
        assert message is not None, f"{topic}: no end within 20 s"
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            break
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


def write(broker: Broker, topic: str, values: list[bytes], key: bytes | None = None, **settings: str) -> None:
    """Writes one batch of messages."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    with Producer(broker.bootstrap, names) as producer:
        for value in values:
            producer.send(topic, value, key=key)
        producer.flush()


def transact(broker: Broker, topic: str, outcome: str, key: bytes | None = None) -> None:
    """Writes messages of a transaction that is then committed, aborted, or left open."""
    producer = Producer(broker.bootstrap, {"transactional.id": f"{topic}-{uuid.uuid4().hex}"})
    producer.begin()
    for number in range(2):
        producer.send(topic, f"{outcome} {number}".encode(), key=key).result(10)
    if outcome == "prepare":
        producer.prepare(may_time_out=True)
    else:
        getattr(producer, outcome)()
    producer.close()


def fill(broker: Broker, topic: str, *, is_open: bool = True) -> None:
    """Writes batches of all codecs, and transactions that are committed, aborted and open."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        write(
            broker,
            topic,
            [b"%s %d" % (codec.encode(), n) * 20 for n in range(5)],
            b"k",
            compression_type=codec,
        )
    for outcome in ("commit", "abort", "commit"):
        transact(broker, topic, outcome, b"t")
    if is_open:
        transact(broker, topic, "prepare", b"t")


def compact(pair: Pair, broker: Broker, peer: PartitionPeer, batches_max: int = 60) -> None:
    """Writes updates of a key, and waits until there are fewer batches: offsets are missing then."""
    with Producer(broker.bootstrap) as producer:
        for number in range(80):
            producer.send(pair.topic, b"%03d" % number * 300, key=b"k").result(10)
    until(lambda: len(peer.batches()) < batches_max, "the log is compacted")


# Copies


@pytest.mark.parametrize("bytes_max", [1 << 20, 1])
def test_a_mirror_has_the_batches_at_their_offsets(source: Broker, target: Broker, bytes_max: int) -> None:
    pair = Pair(source, target)
    fill(source, pair.topic)
    pair.copy(bytes_max)
    pair.check_same()
    committed = [value for _, value in read(target, pair.topic, "read_committed")]
    assert len(committed) == 5 * 5 + 2 * 2
    fill(source, pair.topic)
    pair.copy(bytes_max)
    pair.check_same()


@pytest.mark.parametrize("magic", ["0.9.0", "0.10.2"])
def test_a_mirror_of_a_topic_with_an_old_message_format(source: Broker, target: Broker, magic: str) -> None:
    pair = Pair(source, target, **{"message.format.version": magic})
    for codec in ("none", "gzip", "snappy", "lz4"):
        write(
            source,
            pair.topic,
            [codec.encode() * 20] * 5,
            compression_type=codec,
            enable_idempotence="false",
        )
        pair.copy(1)
    pair.check_same()
    with Admin(source.bootstrap) as admin:
        resource = ConfigResource(ResourceType.TOPIC, pair.topic)
        admin.alter_configs(resource, remove=["message.format.version"])
    fill(source, pair.topic)
    pair.copy()
    pair.check_same()
    pair.alter(message_format_version="")
    pair.promote()
    write(target, pair.topic, [b"ours"])
    assert read(target, pair.topic, "read_committed")[-1][1] == b"ours"


def test_a_repeated_produce_is_acknowledged_and_not_stored(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    fill(source, pair.topic)
    data = mirrored_batches(pair.at_source.fetched(0), 0)
    for _ in range(3):
        part = pair.at_target.send(data)
        assert (part.error_code, part.base_offset) == (0, 0)
    pair.check_same()


def test_a_mirror_of_a_compacted_topic_has_its_gaps(source: Broker, target: Broker) -> None:
    # The mirror is not compacted itself, so that the batches can be compared.
    pair = Pair(source, target, **COMPACTED)
    pair.alter(min_compaction_lag_ms="86400000", max_compaction_lag_ms="186400000")
    fill(source, pair.topic, is_open=False)
    compact(pair, source, pair.at_source)
    pair.copy(4096)
    pair.check_same()


def test_compaction_of_a_mirror_keeps_offsets_and_the_last_values_of_its_source(source: Broker) -> None:
    with Broker(CLEANING) as target:
        pair = Pair(source, target, **COMPACTED)
        with Admin(source.bootstrap) as admin:
            resource = ConfigResource(ResourceType.TOPIC, pair.topic)
            admin.alter_configs(resource, {"cleanup.policy": "delete"})
        for number in range(3):
            fill(source, pair.topic, is_open=False)
            pair.copy(3000)
            compact(pair, source, pair.at_source, 1000)
            transact(source, pair.topic, ("commit", "abort", "commit")[number], b"t")
            pair.copy(3000)
            until(lambda: len(pair.at_target.batches()) < 80, "the mirror is compacted")
            check_compacted(pair)
        ours = pair.at_source.offset(LATEST)
        pair.promote()
        target.kill()
        target.start()
        check_compacted(pair)
        with Producer(target.bootstrap) as producer:
            for number in range(100):
                producer.send(pair.topic, b"%03d" % number * 300, key=b"ours").result(10)
        until(lambda: len(pair.at_target.batches()) < 80, "the topic is compacted")
        target.kill()
        target.start()
        check_compacted(pair, ours)
        with Admin(target.bootstrap) as admin:
            partition = TopicPartition(pair.topic, 0)
            assert len(admin.describe_producers([partition])[partition]) == 1, "the one of this cluster"


def check_compacted(pair: Pair, end: int = 1 << 62) -> None:
    """Fails unless the mirror has the last message of each key, and no other than those of the source."""
    everything = read(pair.source, pair.topic, "read_committed")
    found = [row for row in read(pair.target, pair.topic, "read_committed") if row[0] < end]
    assert set(found) <= set(everything)
    last = {kind_of(value): (offset, value) for offset, value in everything}
    assert set(last.values()) <= set(found)
    if end > pair.at_source.offset(LATEST):
        assert pair.at_target.offset(LATEST) >= pair.at_source.offset(LATEST)


def kind_of(value: bytes) -> bytes:
    """The key with which :func:`fill`, :func:`compact` and :func:`transact` write a value."""
    return b"t" if value.startswith((b"commit", b"abort")) else b"k"


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_mirror_that_was_restarted_goes_on(source: Broker, stop: str) -> None:
    with Broker() as target:
        pair = Pair(source, target)
        fill(source, pair.topic)
        pair.copy()
        end = pair.at_target.offset(LATEST)
        gap = 3_000_000_000
        filled = empty_batches(end, end + gap)
        assert pair.at_target.send(filled).error_code == 0
        if stop == "clean":
            target.stop()
        else:
            target.kill()
        target.start()
        assert pair.at_target.offset(LATEST) == end + gap
        for isolation in ISOLATIONS:
            assert read(target, pair.topic, isolation) == read(source, pair.topic, isolation)
        assert pair.at_target.send(filled).base_offset == end
        (first, *_) = pair.at_source.batches()
        moved = (end + gap + 7).to_bytes(8, "big") + first[8:]
        assert pair.at_target.send(as_mirrored(moved, 7)).error_code == 0


def test_consumers_read_over_batches_without_records(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    write(source, pair.topic, [b"one"])
    data = pair.at_source.fetched(0)
    base = 6_000_000_000
    for records in (
        as_mirrored(data, 0) + empty_batches(1, base),
        as_mirrored(base.to_bytes(8, "big") + data[8:], 0) + empty_batches(base + 1, base + 10),
    ):
        assert pair.at_target.send(records).error_code == 0
    for isolation in ISOLATIONS:
        assert read(target, pair.topic, isolation) == [(0, b"one"), (base, b"one")]
        for start in (1, 1 << 31, 4_000_000_000, base - 1):
            assert read(target, pair.topic, isolation, start) == [(base, b"one")]
        assert read(target, pair.topic, isolation, base + 4) == []
    partition = TopicPartition(pair.topic, 0)
    for isolation in ISOLATIONS:
        with Consumer(target.bootstrap, {"isolation.level": isolation}) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            values = []
            until(
                lambda values=values, consumer=consumer: read_on(consumer, values) == base + 10, "it is read"
            )
            assert values == [b"one", b"one"]
    with Admin(target.bootstrap) as admin:
        assert admin.list_offsets({partition: "latest"})[partition].offset == base + 10


def read_on(consumer: Consumer, values: list[bytes | None]) -> int:
    """Reads further values with our client. Returns its position."""
    values += [message.value for message in consumer.poll(0.1)]
    (partition,) = consumer.assignment()
    return int(consumer.position(partition))


# Refusals


def test_a_mirror_accepts_no_batch_that_overlaps_its_end_or_leaves_a_hole(
    source: Broker, target: Broker
) -> None:
    pair = Pair(source, target)
    write(source, pair.topic, [b"one", b"two", b"three"])
    data = pair.at_source.fetched(0)
    assert pair.at_target.send(as_mirrored(data, 0)).error_code == 0
    for base, gap in ((1, 0), (4, 0), (9, 5)):
        moved = as_mirrored(base.to_bytes(8, "big") + data[8:], gap)
        part = pair.at_target.send(moved)
        assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert "read the log end offset again" in part.error_message
    pair.check_same()


@pytest.mark.parametrize("idempotence", ["true", "false"])
def test_ordinary_producers_are_refused_at_the_same_listener(
    source: Broker, target: Broker, idempotence: str
) -> None:
    pair = Pair(source, target)
    for is_empty in (True, False):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": target.bootstrap, "enable.idempotence": idempotence}
        )
        errors: list[confluent_kafka.KafkaError] = []
        producer.produce(pair.topic, b"x", callback=lambda error, _, errors=errors: errors.append(error))
        producer.flush(20)
        assert [error.name() for error in errors] == ["POLICY_VIOLATION"]
        with Producer(target.bootstrap) as ours, pytest.raises(ClientError, match="POLICY_VIOLATION"):
            ours.send(pair.topic, b"x").result(10)
        if is_empty:
            fill(source, pair.topic)
            pair.copy()
    pair.check_same()


def test_no_transaction_of_this_cluster_includes_a_mirror(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    with Admin(target.bootstrap) as admin:
        admin.create_topics([NewTopic(f"{pair.topic}-ordinary", 1, 1)])
    began = time.monotonic()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "transactional.id": pair.topic,
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(f"{pair.topic}-ordinary", b"x")
    producer.flush(20)
    producer.produce(pair.topic, b"x")
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.commit_transaction(20)
    assert caught.value.args[0].txn_requires_abort(), caught.value
    producer.abort_transaction(20)
    with Producer(target.bootstrap, {"transactional.id": f"{pair.topic}-ours"}) as ours:
        ours.begin()
        with pytest.raises(ClientError, match="POLICY_VIOLATION"):
            ours.send(pair.topic, b"x").result(10)
        ours.abort()
    assert time.monotonic() - began < 15, "they do not retry"
    assert pair.at_target.offset(LATEST) == 0


def initialized(peer: PartitionPeer, name: str) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    response: InitProducerIdResponse = peer.call(ApiKey.INIT_PRODUCER_ID, request, InitProducerIdResponse, 4)
    return response


def test_no_partition_of_a_mirror_is_added_to_a_transaction(source: Broker, target: Broker) -> None:
    pair, name = Pair(source, target), uuid.uuid4().hex
    with Admin(target.bootstrap) as admin:
        admin.create_topic(f"{pair.topic}-ordinary", 1, 1)
    transact(target, f"{pair.topic}-ordinary", "commit")
    peer = pair.at_target
    until(lambda: initialized(peer, name).error_code == 0, "the coordinator has loaded its log")
    producer = initialized(peer, name)

    def add(*topics: str) -> list[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0]) for topic in topics],
        )
        response = peer.call(ApiKey.ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, 3)
        return [
            ErrorCode(one.results_by_partition[0].partition_error_code)
            for one in response.results_by_topic_v3_and_below
        ]

    both = pair.topic, f"{pair.topic}-ordinary"
    assert add(*both) == [ErrorCode.POLICY_VIOLATION, ErrorCode.OPERATION_NOT_ATTEMPTED]
    assert add(both[1]) == [ErrorCode.NONE]
    pair.promote()
    until(lambda: add(*both) == [ErrorCode.NONE, ErrorCode.NONE], "it is no mirror any more")


def test_transactions_of_the_source_are_not_hanging_ones(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    transact(source, pair.topic, "prepare")
    pair.copy()
    with Admin(target.bootstrap) as admin:
        (found,) = admin.open_transactions([TopicPartition(pair.topic, 0)])
        assert admin.find_hanging_transactions([TopicPartition(pair.topic, 0)], idle_for_ms=-1000) == []
        admin.abort_open_transaction(found)
    pair.check_same()


# The log start


def test_the_log_start_of_a_mirror_follows_that_of_its_source(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    write(source, pair.topic, [b"%d" % number for number in range(10)])
    assert pair.at_source.delete_below(4)[0] == 0
    pair.copy()
    pair.check_same()
    for number in range(10, 20):
        write(source, pair.topic, [b"%d" % number])
    assert pair.at_source.delete_below(15)[0] == 0
    pair.copy()
    pair.check_same()
    assert pair.at_source.delete_below(17)[0] == 0
    pair.copy()
    pair.check_same()
    assert pair.at_source.delete_below(-1)[0] == 0
    pair.copy()
    pair.check_same()


def test_a_mirror_of_an_old_topic_begins_at_its_log_start(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    start = 5_000_000_000
    assert pair.at_target.delete_below(start) == (ErrorCode.NONE, start)
    assert (pair.at_target.offset(EARLIEST), pair.at_target.offset(LATEST)) == (start, start)
    write(source, pair.topic, [b"one"])
    data = start.to_bytes(8, "big") + pair.at_source.fetched(0)[8:]
    assert pair.at_target.send(as_mirrored(data, 0)).error_code == 0
    assert read(target, pair.topic, "read_committed") == [(start, b"one")]
    code, _ = pair.at_source.delete_below(start)
    assert code is ErrorCode.OFFSET_OUT_OF_RANGE, "it is no mirror"


# Promotion


def test_a_promoted_mirror_goes_on_as_an_ordinary_topic(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    fill(source, pair.topic)
    pair.copy()
    committed = read(source, pair.topic, "read_committed")
    pair.promote()
    end = pair.at_target.offset(LATEST)
    with Admin(target.bootstrap) as admin:
        partition = TopicPartition(pair.topic, 0)
        assert admin.describe_producers([partition])[partition] == []
    assert read(target, pair.topic, "read_committed") == committed, "the open transaction was aborted"
    write(target, pair.topic, [b"ours"], enable_idempotence="false")
    write(target, pair.topic, [b"ours"], enable_idempotence="true")
    transact(target, pair.topic, "commit")
    transact(target, pair.topic, "abort")
    found = read(target, pair.topic, "read_committed")
    assert found[: len(committed)] == committed
    ours = found[len(committed) :]
    assert [value for _, value in ours] == [b"ours", b"ours", b"commit 0", b"commit 1"]
    assert ours[0][0] == end
    assert pair.at_target.offset(LATEST) == end + 4 + 1 + 2 + 1


def test_a_mirror_that_is_promoted_accepts_nothing(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    fill(source, pair.topic)
    pair.copy()
    data = mirrored_batches(pair.at_source.fetched(0), 0)
    assert pair.at_target.send(data).error_code == 0
    pair.alter(tidemill_mirror_state="promoting")
    refused = ErrorCode.POLICY_VIOLATION
    until(lambda: pair.at_target.send(data).error_code == refused, "batches of the source are refused")
    with Producer(target.bootstrap) as producer, pytest.raises(ClientError, match="POLICY_VIOLATION"):
        producer.send(pair.topic, b"x").result(10)


def test_a_mirror_of_a_promoted_mirror(source: Broker, target: Broker) -> None:
    first = Pair(source, target)
    fill(source, first.topic)
    first.copy()
    first.promote()
    fill(target, first.topic)
    back = Pair(target, source)
    back.at_source = first.at_target
    copy(first.at_target, back.at_target)
    assert back.at_target.batches() == first.at_target.batches()
    fill(target, first.topic, is_open=False)
    copy(first.at_target, back.at_target)
    assert back.at_target.batches() == first.at_target.batches()
    for isolation in ISOLATIONS:
        assert read(source, back.topic, isolation) == read(target, first.topic, isolation)
    committed = read(source, back.topic, "read_committed")
    back.promote()
    later = read(source, back.topic, "read_committed")
    assert later[: len(committed)] == committed
    assert len(later) == len(committed) + 5 * 5 + 2 * 2, "those behind the open transaction"


def test_an_empty_mirror_is_promoted(source: Broker, target: Broker) -> None:
    pair = Pair(source, target)
    pair.promote()
    write(target, pair.topic, [b"ours"])
    assert read(target, pair.topic, "read_committed") == [(1, b"ours")]


def test_a_new_topic_is_not_promoted(target: Broker) -> None:
    with Admin(target.bootstrap) as admin, pytest.raises(ClientError, match="not for new topics"):
        admin.create_topic("new", 1, 1, configs={"tidemill.mirror.state": "promoting"})
