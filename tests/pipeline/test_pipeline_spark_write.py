"""Writes with a real Spark to a real broker, verified with confluent-kafka."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]


def write(lab: Any, frame: Any, topic: str | None = None, mode: str = "append", **options: str) -> None:
    given = {"kafka.bootstrap.servers": lab.cluster.bootstrap, **options}
    if topic is not None:
        given["topic"] = topic
    frame.write.format("tidemill").options(**given).mode(mode).save()


def refusal(lab: Any, frame: Any, topic: str | None = None, **options: str) -> str:
    from tidemill.pipeline.spark_errors import explained

    with pytest.raises(Exception) as caught:
        write(lab, frame, topic, **options)
    return explained(caught.value)


def test_every_column_of_a_row_arrives(lab: Any) -> None:
    topic = lab.cluster.topic(3)
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    rows = [
        ("k", b"v\x00", 2, moment, [("a", b"1"), ("b", None)]),
        (None, b"", 0, moment, None),
        ("", None, 1, moment, []),
    ]
    schema = (
        "key string, value binary, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>"
    )
    write(lab, lab.spark.createDataFrame(rows, schema), topic)
    found = {message.partition(): message for message in lab.cluster.consume(topic, 3)}
    assert (found[2].key(), found[2].value(), found[2].headers()) == (
        b"k",
        b"v\x00",
        [("a", b"1"), ("b", None)],
    )
    assert (found[0].key(), found[0].value(), found[0].headers()) == (None, b"", None)
    assert (found[1].key(), found[1].value(), found[1].headers()) == (b"", None, None)
    assert {message.timestamp()[1] for message in found.values()} == {1_700_000_000_123}


def test_keys_choose_partitions_as_kafkas_clients_do(lab: Any) -> None:
    topic = lab.cluster.topic(6)
    write(lab, lab.spark.range(100).selectExpr("cast(id as string) key", "cast(id as string) value"), topic)
    for message in lab.cluster.consume(topic, 100):
        assert message.partition() == java_partition(message.key(), 6)


def java_partition(key: bytes, partitions: int) -> int:
    """Murmur2 as in the Java client, written from its description and not from Tidemill's code."""
    mask, m, h = 0xFFFFFFFF, 0x5BD1E995, 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = (k * m) & mask
        k ^= k >> 24
        h = ((h * m) & mask) ^ ((k * m) & mask)
    tail = key[whole:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    return ((h ^ (h >> 15)) & 0x7FFFFFFF) % partitions


def test_the_topic_option_overrides_the_topic_column(lab: Any) -> None:
    one, other = lab.cluster.topic(), lab.cluster.topic()
    frame = lab.spark.createDataFrame([(one, "a"), (other, "b"), (one, "c")], "topic string, value string")
    write(lab, frame)
    assert sorted(message.value() for message in lab.cluster.consume(one, 2)) == [b"a", b"c"]
    assert [message.value() for message in lab.cluster.consume(other, 1)] == [b"b"]
    third = lab.cluster.topic()
    write(lab, frame, third)
    assert sorted(message.value() for message in lab.cluster.consume(third, 3)) == [b"a", b"b", b"c"]


def test_rows_of_a_read_can_be_written(lab: Any) -> None:
    one, other = lab.cluster.topic(2), lab.cluster.topic(2)
    lab.cluster.send(one, b"v", key=b"k", partition=1, timestamp=1_600_000_000_000, headers=[("h", b"x")])
    write(lab, lab.batch(one, includeHeaders="true"), other)
    message = lab.cluster.consume(other, 1)[0]
    assert (message.key(), message.value(), message.headers()) == (b"k", b"v", [("h", b"x")])
    assert (message.partition(), message.timestamp()[1]) == (1, 1_600_000_000_000)


def test_many_rows_are_stored_in_the_order_of_their_partition(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    frame = lab.spark.range(0, 20_000, 1, 2).selectExpr(
        "cast(id as string) value", "cast(id >= 10000 as int) partition"
    )
    write(lab, frame, topic, **{"kafka.compression.type": "lz4"})
    found: dict[int, list[int]] = {0: [], 1: []}
    for message in lab.cluster.consume(topic, 20_000):
        found[message.partition()].append(int(message.value()))
    assert found == {0: list(range(10_000)), 1: list(range(10_000, 20_000))}


def test_a_stream_is_written(lab: Any) -> None:
    one, other = lab.cluster.topic(2), lab.cluster.topic()
    lab.cluster.produce(one, 50, 0)
    lab.cluster.produce(one, 50, 1, start=50)
    stream = (
        lab.spark.readStream.format("tidemill")
        .options(**lab.options(one, startingOffsets="earliest"))
        .load()
        .select("key", "value")
        .writeStream.format("tidemill")
        .option("kafka.bootstrap.servers", lab.cluster.bootstrap)
        .option("topic", other)
        .option("checkpointLocation", str(lab.checkpoint))
        .trigger(availableNow=True)
    )
    stream.start().awaitTermination()
    lab.cluster.produce(one, 20, 0, start=100)
    stream.start().awaitTermination()
    assert sorted(int(message.value()) for message in lab.cluster.consume(other, 120)) == list(range(120))


def test_rows_that_cannot_be_written_are_refused(lab: Any) -> None:
    topic = lab.cluster.topic()
    frame = lab.spark.createDataFrame([("a", 1)], "value string, n int")
    text = refusal(lab, frame, topic)
    assert "column n (int) is not part of a message" in text
    assert "to_json(struct(...))" in text
    assert "there is no column value" in refusal(lab, frame.select(frame.value.alias("key")), topic)
    assert "column value is int: binary or string is allowed" in refusal(
        lab, frame.selectExpr("n value"), topic
    )
    assert "set the option topic" in refusal(lab, frame.select("value"))
    assert 'use .mode("append")' in refusal(lab, frame.select("value"), topic, mode="overwrite")
    nameless = lab.spark.createDataFrame([("a", None)], "value string, topic string")
    assert "1 of 1 rows have no topic" in refusal(lab, nameless)


def test_a_misspelt_topic_is_not_created(lab: Any) -> None:
    topic = lab.cluster.topic()
    frame = lab.spark.range(5).selectExpr("cast(id as string) value")
    text = refusal(lab, frame, topic + "x")
    assert f"there is no topic {topic}x at {lab.cluster.bootstrap}; did you mean {topic}?" in text
    assert "createTopics=true" in text
    named = frame.selectExpr("value", f"'{topic}y' as topic")
    assert f"there is no topic {topic}y at" in refusal(lab, named)
    there = lab.cluster.admin.list_topics(timeout=10).topics
    assert not {topic + "x", topic + "y"} & there.keys()


def test_a_topic_is_created_on_request(lab: Any) -> None:
    topic = lab.cluster.topic()
    frame = lab.spark.range(5).selectExpr("cast(id as string) value")
    write(lab, frame, topic + "-new", createTopics="true")
    write(lab, frame.selectExpr("value", f"'{topic}-named' as topic"), createTopics="true")
    for name in (topic + "-new", topic + "-named"):
        assert sorted(message.value() for message in lab.cluster.consume(name, 5)) == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]


def counts(lab: Any, topic: str) -> Any:
    """Counts each value of the messages: a streaming aggregate."""
    return (
        lab.spark.readStream.format("tidemill")
        .options(**lab.options(topic, startingOffsets="earliest"))
        .load()
        .groupBy("value")
        .count()
        .selectExpr("value as key", "cast(count as string) as value")
    )


def test_a_complete_aggregate_is_appended_after_each_micro_batch(lab: Any) -> None:
    one, other = lab.cluster.topic(), lab.cluster.topic()
    for value in (b"a", b"b", b"a"):
        lab.cluster.send(one, value)

    def run() -> None:
        writer = counts(lab, one).writeStream.format("tidemill").outputMode("complete")
        options = {
            "kafka.bootstrap.servers": lab.cluster.bootstrap,
            "topic": other,
            "checkpointLocation": str(lab.checkpoint),
        }
        writer.options(**options).trigger(availableNow=True).start().awaitTermination()

    run()
    lab.cluster.send(one, b"b")
    run()
    found = [(message.key(), message.value()) for message in lab.cluster.consume(other, 4)]
    assert sorted(found[:2]) == [(b"a", b"2"), (b"b", b"1")]
    assert sorted(found[2:]) == [(b"a", b"2"), (b"b", b"2")]


def test_changes_of_an_aggregate_are_written_batch_by_batch(lab: Any) -> None:
    """Spark refuses outputMode("update") for every Python sink; the page describes this alternative."""
    one, other = lab.cluster.topic(), lab.cluster.topic()
    for value in (b"a", b"b", b"a"):
        lab.cluster.send(one, value)
    bootstrap = lab.cluster.bootstrap

    def put(batch: Any, _: int) -> None:
        options = {"kafka.bootstrap.servers": bootstrap, "topic": other}
        batch.write.format("tidemill").options(**options).mode("append").save()

    def run() -> None:
        writer = counts(lab, one).writeStream.outputMode("update").foreachBatch(put)
        writer.option("checkpointLocation", str(lab.checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    run()
    lab.cluster.send(one, b"b")
    run()
    found = [(message.key(), message.value()) for message in lab.cluster.consume(other, 3)]
    assert sorted(found[:2]) == [(b"a", b"2"), (b"b", b"1")]
    assert found[2] == (b"b", b"2")


def test_another_thread_writes_with_the_session(lab: Any) -> None:
    topic = lab.cluster.topic()
    frame = lab.spark.range(2).selectExpr("cast(id as string) value")

    def in_a_thread(work: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        in_a_thread(lambda: write(lab, frame, topic))

    def taken() -> None:
        lab.spark.createDataFrame([], "x int")
        write(lab, frame, topic)

    in_a_thread(taken)
    assert sorted(message.value() for message in lab.cluster.consume(topic, 2)) == [b"0", b"1"]


def test_a_message_that_is_too_large_fails_the_write(lab: Any) -> None:
    topic = lab.cluster.topic(max_message_bytes="2000")
    frame = lab.spark.range(1).selectExpr("repeat('x', 5000) value")
    assert "max.message.bytes" in refusal(lab, frame, topic)
