"""Records through a broker: Tidemill and librdkafka read each other's records; ranges, tables."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from tidemill.client import Admin, Consumer, Producer, RangeReader, TopicPartition
from tidemill.client import connection as requests
from tidemill.client.errors import BrokerUnreachable, ClientError, DataLoss, NoOffset, TopicRecreated
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.list_offset_timestamps import LATEST
from tidemill.wire.messages.metadata import MetadataResponseBroker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

MESSAGES: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]] = [
    (b"key", b"value", 1_500_000_000_000, []),
    (None, b"no key", 1_500_000_000_001, [("h", b"1"), ("h", b"2"), ("null", None), ("\u00fc", b"")]),
    (b"tombstone", None, 1_500_000_000_002, []),
    (b"", b"", 1_500_000_000_003, [("", b"empty")]),
    (b"k" * 300, b"v" * 70_000, 1_500_000_000_004, []),
]


def read_all(consumer: Consumer, count: int) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += [(r.key, r.value, r.timestamp, r.headers) for r in consumer.poll(0.5)]
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_records_of_tidemill(
    broker_address: str, new_topic: Callable[..., str], codec: str, group: str
) -> None:
    topic = new_topic(1)
    with Producer(broker_address, compression_type=codec) as producer:
        sent = [
            producer.send(topic, value, key, timestamp_ms=stamp, headers=headers)
            for key, value, stamp, headers in MESSAGES
        ]
        assert [delivery.result(10).offset for delivery in sent] == list(range(len(MESSAGES)))
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": broker_address, "group.id": group, "auto.offset.reset": "earliest"}
    )
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = reader.consume(len(MESSAGES), 20)
    reader.close()
    assert [(m.key(), m.value(), m.timestamp()[1], m.headers() or []) for m in found] == MESSAGES


@pytest.mark.parametrize("codec", CODECS)
def test_tidemill_reads_records_of_librdkafka(
    broker_address: str, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(1)
    writer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "compression.type": codec})
    for key, value, stamp, headers in MESSAGES:
        writer.produce(topic, value, key, timestamp=stamp, headers=[*headers])
    assert writer.flush(20) == 0
    with Consumer(broker_address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert read_all(consumer, len(MESSAGES)) == MESSAGES
        consumer.seek_to_beginning()
        table = consumer.poll_arrow(10, include_headers=True)
    assert table is not None
    rows = table.to_pylist()
    assert [(r["key"], r["value"]) for r in rows] == [(k, v) for k, v, _, _ in MESSAGES]
    assert [r["offset"] for r in rows] == list(range(len(MESSAGES)))
    assert [int(r["timestamp"].timestamp() * 1000) for r in rows] == [m[2] for m in MESSAGES]
    assert {(r["topic"], r["partition"], r["timestamp_type"]) for r in rows} == {(topic, 0, 0)}
    assert [[(h["key"], h["value"]) for h in r["headers"] or []] for r in rows] == [m[3] for m in MESSAGES]


def test_keys_have_the_partition_of_librdkafkas_murmur2(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(5)
    keys = [b"key-%d" % i for i in range(50)]
    placed: dict[bytes | None, int | None] = {}
    writer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "partitioner": "murmur2"})
    for key in keys:
        writer.produce(topic, b"", key, on_delivery=lambda _, m: placed.__setitem__(m.key(), m.partition()))
    writer.flush(20)
    with Producer(broker_address) as producer:
        sent = {key: producer.send(topic, b"", key) for key in keys}
        assert {key: delivery.result(10).partition for key, delivery in sent.items()} == placed


def test_messages_over_the_limit_of_the_topic_are_refused_and_others_are_stored(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, max_message_bytes="2000")
    with Producer(broker_address, linger_ms=50) as producer:
        sent = [producer.send(topic, b"x" * size) for size in (500, 500, 500, 500, 500, 5000, 500, 500)]
        errors = [delivery.exception(20) for delivery in sent]
        assert [error is None for error in errors] == [True] * 5 + [False] + [True] * 2
        assert isinstance(errors[5], ClientError)
        assert errors[5].code == ErrorCode.MESSAGE_TOO_LARGE
        assert "max.message.bytes" in str(errors[5])
        offsets = [d.result().offset for d, error in zip(sent, errors, strict=True) if error is None]
        assert offsets == list(range(7))


@pytest.mark.parametrize("too_large", [0, 1, 2, 3, 5])
def test_many_messages_are_not_all_acknowledged_when_one_of_them_was_refused(
    broker_address: str, new_topic: Callable[..., str], too_large: int
) -> None:
    topic = new_topic(1, max_message_bytes="1000")
    values = [b"%d" % i for i in range(6)]
    values[too_large] = b"x" * 2000
    with Producer(broker_address, linger_ms=50) as producer:
        delivery = producer.send_batch(topic, values)
        with pytest.raises(ClientError, match=r"MESSAGE_TOO_LARGE"):
            delivery.result(20)
        producer.flush(20)
        assert delivery.done()
        assert producer.send_batch(topic, [b"%d" % i * 400 for i in range(6)]).result(20) == 6


def test_callbacks_get_the_position_of_their_message(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    heard: list[tuple[int, object]] = []
    with Producer(broker_address) as producer:
        for i in range(10):
            producer.send(
                topic,
                b"%d" % i,
                on_delivery=lambda m, e, i=i: heard.append((i - m.offset, e)),  # type: ignore[misc]
            )
        producer.flush(10)
    assert heard == [(0, None)] * 10


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_produced_record_is_stored_with_every_acks(
    broker_address: str, new_topic: Callable[..., str], acks: str, admin: Admin
) -> None:
    topic = new_topic(1)
    with Producer(broker_address, acks=acks) as producer:
        offset = producer.send(topic, b"v").result(10).offset
        assert offset == (-1 if acks == "0" else 0)
    deadline = time.monotonic() + 5
    while admin.list_offsets({TopicPartition(topic, 0): "latest"})[TopicPartition(topic, 0)].offset < 1:
        assert time.monotonic() < deadline


def test_a_missing_partition_is_an_error(broker_address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    with Producer(broker_address) as producer:
        with pytest.raises(ClientError, match=r"has no partition 2, it has 2"):
            producer.send(topic, b"v", partition=2)
        with pytest.raises(TypeError, match=r"is str; it must be bytes or None; encode it first"):
            producer.send(topic, "text")  # type: ignore[arg-type]


def test_arrow_columns_round_trip(broker_address: str, new_topic: Callable[..., str]) -> None:
    import pyarrow as pa

    topic = new_topic(4)
    table = pa.table(
        {
            "key": pa.array([b"a", None, b"c"], pa.binary()),
            "value": pa.array(["x", "y", None], pa.string()),
            "partition": pa.array([3, 1, 3], pa.int32()),
            "timestamp": pa.array([1_000_001, 2_000_000, 3_000_000], pa.timestamp("us", tz="UTC")),
        }
    )
    with Producer(broker_address) as producer:
        assert producer.send_arrow(topic, table).result(10) == 3
        with pytest.raises(ValueError, match=r"no column value to send"):
            producer.send_arrow(topic, table.select(["key"]))
        nowhere = table.set_column(2, "partition", pa.array([3, None, -1], pa.int32()))
        with pytest.raises(ValueError, match=r"column partition has -1: partitions begin at 0"):
            producer.send_arrow(topic, nowhere)
    with RangeReader(broker_address) as reader:
        rows = [row for batch in reader.read(topic, 3, 0, 2) for row in batch.to_pylist()]
    assert [(row["key"], row["value"], row["timestamp"].timestamp()) for row in rows] == [
        (b"a", b"x", 1.0),
        (b"c", None, 3.0),
    ]


def test_a_range_reader_is_picklable_and_reads_exactly_the_range(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    with Producer(broker_address, batch_size=1000, compression_type="lz4") as producer:
        producer.send_batch(topic, [b"%d" % i for i in range(5000)], partitions=[0] * 5000).result(20)
    with pickle.loads(pickle.dumps(RangeReader(broker_address))) as reader:
        ends = reader.list_offsets({TopicPartition(topic, number): LATEST for number in range(2)})
        assert ends == {TopicPartition(topic, 0): 5000, TopicPartition(topic, 1): 0}
        batches = list(reader.read(topic, 0, 17, 4801, rows_max=500, bytes_max=20_000))
        assert max(batch.num_rows for batch in batches) <= 500
        offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert offsets == list(range(17, 4801))
        assert list(reader.read(topic, 0, 5, 5)) == []


def test_deleted_ranges_are_data_loss(
    broker_address: str, new_topic: Callable[..., str], admin: Admin
) -> None:
    topic = new_topic(1)
    item = TopicPartition(topic, 0)
    with Producer(broker_address) as producer:
        producer.send_batch(topic, [b"v"] * 100).result(10)
    with RangeReader(broker_address) as reader:
        with pytest.raises(DataLoss, match=r"ends at 100, before the records 100 to 149"):
            list(reader.read(topic, 0, 90, 150))
        admin.delete_records({item: 40})
        with pytest.raises(DataLoss, match=r"records 10 to 39 .* were deleted: its log start offset is 40"):
            list(reader.read(topic, 0, 10, 100))
        topic_id = reader.describe([topic])[topic].topic_id
        assert sum(b.num_rows for b in reader.read(topic, 0, 40, 100, topic_id=topic_id)) == 60
        admin.delete_topic(topic)
        deadline = time.monotonic() + 10
        while reader.describe([topic]):
            assert time.monotonic() < deadline
        admin.create_topic(topic, 1, 1)
        with pytest.raises(TopicRecreated, match=r"deleted and recreated"):
            list(reader.read(topic, 0, 40, 100, topic_id=topic_id))


def test_offsets_are_found_by_time_and_at_the_end(broker_address: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    item = TopicPartition(topic, 0)
    with Producer(broker_address) as producer:
        for i in range(5):
            producer.send(topic, b"v", timestamp_ms=1_000_000 + i * 10).result(10)
    with Consumer(broker_address, auto_offset_reset="none") as consumer:
        found = consumer.offsets_for_times({item: 1_000_015})
        assert found[item] is not None
        assert found[item][:2] == (2, 1_000_020)  # type: ignore[index]
        assert consumer.offsets_for_times({item: 2_000_000}) == {item: None}
        assert consumer.beginning_offsets([item]) == {item: 0}
        assert consumer.end_offsets([item]) == {item: 5}
        consumer.assign([item])
        with pytest.raises(NoOffset, match=r"auto.offset.reset=none"):
            consumer.poll(5)
        consumer.seek(item, 3)
        assert [record.offset for record in consumer.poll(5)] == [3, 4]
        assert consumer.position(item) == 5
        assert consumer.lag(item) == 0
        consumer.seek_to_beginning(item)
        assert consumer.position(item) == 0
        consumer.pause(item)
        assert not consumer.poll(0.2)
        consumer.resume(item)
        assert len(consumer.poll(5)) == 5
        consumer.seek(item, 99)
        with pytest.raises(ClientError, match=r"OFFSET_OUT_OF_RANGE"):
            consumer.poll(5)


def test_a_new_assignment_replaces_the_former_and_keeps_positions() -> None:
    first, second, third = (TopicPartition("t", at) for at in range(3))
    with Consumer("unused:1") as consumer:
        consumer.assign([first, second])
        consumer.seek(first, 5)
        consumer.seek(second, 7)
        consumer.assign([second, third])
        assert consumer.assignment() == {second, third}
        assert consumer.position(second) == 7


def test_an_offset_out_of_range_is_reset_by_the_policy(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    with Producer(broker_address) as producer:
        producer.send_batch(topic, [b"v"] * 3).result(10)
    with Consumer(broker_address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 99)
        assert [record.offset for record in consumer.poll(10)] == [0, 1, 2]


def test_a_wakeup_ends_a_poll(broker_address: str, new_topic: Callable[..., str]) -> None:
    import threading

    topic = new_topic(1)
    with Consumer(broker_address) as consumer:
        consumer.assign([(topic, 0)])
        timer = threading.Timer(0.3, consumer.wakeup)
        timer.start()
        began = time.monotonic()
        assert not consumer.poll(20)
        assert time.monotonic() - began < 10
        timer.join()


def test_a_poll_ends_at_its_timeout(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    with Consumer(broker_address) as consumer:
        consumer.assign([(topic, 0)])
        consumer.position(TopicPartition(topic, 0))
        waits: list[float] = []
        plain = consumer._fetcher.wait

        def wait(seconds: float, others: Any) -> None:
            waits.append(seconds)
            plain(seconds, others)

        monkeypatch.setattr(consumer._fetcher, "wait", wait)
        for timeout in (0.0, 0.3):
            waits.clear()
            assert list(consumer.poll(timeout)) == []
            assert all(0 < seconds <= timeout for seconds in waits)
            assert bool(waits) == bool(timeout)


def test_a_consumer_lists_topics_that_it_has_never_named(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    first, second = new_topic(1), new_topic(3)
    with Consumer(broker_address) as consumer:
        assert consumer.partitions_for(first) == [TopicPartition(first, 0)]
        names = consumer.topics()
        assert names == sorted(names)
        assert {first, second} <= set(names)
        assert consumer.partitions_for(second) == [TopicPartition(second, at) for at in range(3)]


def test_concurrent_use_is_refused(broker_address: str, new_topic: Callable[..., str]) -> None:
    import threading

    topic = new_topic(1)
    with Consumer(broker_address) as consumer:
        consumer.assign([(topic, 0)])
        thread = threading.Thread(target=lambda: consumer.poll(5))
        thread.start()
        deadline = time.monotonic() + 5
        refused = ""
        while not refused and time.monotonic() < deadline:
            try:
                consumer.position(TopicPartition(topic, 0))
            except RuntimeError as problem:
                refused = str(problem)
        assert "used by another thread" in refused
        consumer.wakeup()
        thread.join()


def test_committed_readers_skip_aborted_transactions(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    writer = confluent_kafka.Producer(
        {"bootstrap.servers": broker_address, "transactional.id": group, "linger.ms": 0}
    )
    writer.init_transactions(10)
    expected: list[bytes] = []
    for i in range(6):
        writer.begin_transaction()
        for j in range(3):
            writer.produce(topic, b"%d-%d" % (i, j))
        writer.flush()
        if i % 2:
            writer.abort_transaction(10)
        else:
            writer.commit_transaction(10)
            expected += [b"%d-%d" % (i, j) for j in range(3)]
    settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer(broker_address, settings) as consumer:
        consumer.assign([(topic, 0)])
        assert [value for _, value, _, _ in read_all(consumer, 9)] == expected
        consumer.seek_to_beginning()
        values: list[bytes] = []
        while len(values) < 9 and (table := consumer.poll_arrow(5)) is not None:
            values += table.column("value").to_pylist()
        assert values == expected
        end = consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    with RangeReader(broker_address, isolation_level="read_committed") as reader:
        rows = [v for b in reader.read(topic, 0, 0, end) for v in b.column("value").to_pylist()]
    assert rows == expected
    with RangeReader(broker_address) as reader:
        assert sum(b.num_rows for b in reader.read(topic, 0, 0, end)) == 18


@pytest.mark.parametrize(("level", "end"), [("read_committed", 5), ("read_uncommitted", 6)])
def test_the_lag_of_a_committed_reader_counts_up_to_the_first_open_transaction(
    broker_address: str, new_topic: Callable[..., str], group: str, level: str, end: int
) -> None:
    topic = new_topic(1)
    place = TopicPartition(topic, 0)
    with Producer(broker_address) as producer:
        for at in range(5):
            producer.send(topic, b"%d" % at).result(10)
    writer = confluent_kafka.Producer({"bootstrap.servers": broker_address, "transactional.id": group})
    writer.init_transactions(10)
    writer.begin_transaction()
    writer.produce(topic, b"5")
    assert writer.flush(10) == 0
    settings = {"auto.offset.reset": "earliest", "isolation.level": level, "max.poll.records": 2}
    with Consumer(broker_address, settings) as consumer:
        consumer.assign([place])
        assert consumer.lag(place) is None
        assert [record.offset for record in consumer.poll(20)] == [0, 1]
        assert consumer.lag(place) == end - 2
        consumer.seek(place, 6)
        assert consumer.lag(place) == 0
    writer.abort_transaction(10)


def test_a_leaderless_partition_does_not_delay_others(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    with Producer(broker_address) as producer:
        for partition in range(2):
            producer.send(topic, b"v", partition=partition).result(10)
    lost = leaderless(monkeypatch, 1)
    with Consumer(broker_address, {"auto.offset.reset": "earliest", "metadata.max.age.ms": 200}) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        began = time.monotonic()
        assert [record.partition for record in consumer.poll(20)] == [0]
        assert time.monotonic() - began < 15
        assert consumer.partition_errors()[TopicPartition(topic, 1)][0] == "LEADER_NOT_AVAILABLE"
        lost.clear()
        assert [record.partition for record in consumer.poll(20)] == [1]


def test_a_silent_broker_does_not_delay_partitions_of_others(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    with Producer(broker_address) as producer:
        for partition in range(2):
            producer.send(topic, b"v", partition=partition).result(10)
    plain = requests.decode_response
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def led_by_silent(key: ApiKey, version: int, frame: bytes) -> Any:
            answer = plain(key, version, frame)
            if key == ApiKey.METADATA:
                one = MetadataResponseBroker(node_id=99, host="127.0.0.1", port=silent.getsockname()[1])
                answer[1].brokers.append(one)
                for entry in answer[1].topics:
                    for partition in entry.partitions:
                        if partition.partition_index == 1:
                            partition.leader_id = 99
            return answer

        monkeypatch.setattr(requests, "decode_response", led_by_silent)
        with Consumer(broker_address, {"auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            began = time.monotonic()
            assert [record.partition for record in consumer.poll(20)] == [0]
            assert list(consumer.poll(1)) == []
            with Producer(broker_address) as producer:
                producer.send(topic, b"w", partition=0).result(10)
            assert [record.value for record in consumer.poll(20)] == [b"w"]
            assert time.monotonic() - began < 15
            with pytest.raises(BrokerUnreachable, match="no connection to the leader, broker 99, yet"):
                consumer.position(TopicPartition(topic, 1), timeout=0.3)


def test_a_position_is_found_once_its_partition_has_a_leader(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = TopicPartition(new_topic(1), 0)
    lost = leaderless(monkeypatch, 0)
    with Consumer(broker_address, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([item])
        for _ in range(2):
            with pytest.raises(ClientError, match="LEADER_NOT_AVAILABLE"):
                consumer.position(item, timeout=0.3)
        threading.Timer(0.3, lost.clear).start()
        assert consumer.position(item, timeout=20) == 0


def test_a_partition_without_a_leader_has_the_metadata_read_a_few_times_a_second(
    broker_address: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = TopicPartition(new_topic(1), 0)
    reads: list[ApiKey] = []
    leaderless(monkeypatch, 0, asked=reads)
    with Consumer(broker_address, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([item])
        assert list(consumer.poll(1.0)) == []
        consumer.seek(item, 0)
        assert list(consumer.poll(1.0)) == []
    assert 4 <= reads.count(ApiKey.METADATA) <= 40


def leaderless(
    monkeypatch: pytest.MonkeyPatch, *partitions: int, asked: list[ApiKey] | None = None
) -> list[int]:
    """These partitions have no leader until they are removed from the returned set. ``asked`` gets the API
    key of each response.
    """
    plain = requests.decode_response
    lost = list(partitions)

    def without_leader(key: ApiKey, version: int, frame: bytes) -> Any:
        answer = plain(key, version, frame)
        if asked is not None:
            asked.append(key)
        if key == ApiKey.METADATA:
            for entry in answer[1].topics:
                for partition in entry.partitions:
                    if partition.partition_index in lost:
                        partition.leader_id, partition.error_code = -1, ErrorCode.LEADER_NOT_AVAILABLE
        return answer

    monkeypatch.setattr(requests, "decode_response", without_leader)
    return lost


def test_an_admin_stops_requesting_the_topics_that_it_created(
    broker_address: str, new_topic: Callable[..., str]
) -> None:
    name = f"{new_topic(1)}-more"
    with Admin(broker_address) as own:
        own.create_topic(name, 2)
        assert name not in own._network_client._requested_topics
        assert len(own.describe_topic(name).partitions) == 2
        own.delete_topic(name)
