"""The exactly-once sink in Spark: streams, batches and foreachBatch; failed, retried and repeated work."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.client.partitioners import murmur2_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]

EXACTLY_ONCE = {"delivery": "exactly-once", "controlTopic": "_tidemill_sink_test"}


def sink_options(lab: Any, topic: str, **more: Any) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": lab.cluster.bootstrap, "topic": topic, **EXACTLY_ONCE, **more}
    return {name: str(value) for name, value in given.items()}


def write_stream(lab: Any, frame: DataFrame, topic: str, checkpoint: Path, **more: Any) -> None:
    """Writes what is there, and waits for the end."""
    query = (
        frame.writeStream.format("tidemill")
        .options(**sink_options(lab, topic, **more))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def stream_of(lab: Any, source: str, **options: Any) -> DataFrame:
    given = lab.options(source, startingOffsets="earliest", **options)
    frame: DataFrame = lab.spark.readStream.format("tidemill").options(**given).load()
    return frame.select("value")


def committed(lab: Any, topic: str) -> Counter[bytes]:
    """Returns how often librdkafka gets each value, as a reader of committed records."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": lab.cluster.bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: Counter[bytes] = Counter()
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    ended = 0
    try:
        while ended < len(partitions):
            message = consumer.poll(15)
            assert message is not None
            if message.error():
                ended += 1
            else:
                found[message.value()] += 1
    finally:
        consumer.close()
    return found


def numbers(count: int) -> Counter[bytes]:
    return Counter({str(number).encode(): 1 for number in range(count)})


def last_batch_again(checkpoint: Path) -> None:
    """Removes the last commit of a checkpoint, as a driver leaves it that ends after the sink's commit."""
    last = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_stream_is_written_and_its_last_batch_repeated(lab: Any) -> None:
    source, target = lab.cluster.filled(500), lab.cluster.topic(3)
    frame = stream_of(lab, source, minPartitions=4)
    write_stream(lab, frame, target, lab.checkpoint)
    assert committed(lab, target) == numbers(500)
    last_batch_again(lab.checkpoint)
    lab.cluster.produce(source, 100, start=500)
    write_stream(lab, frame, target, lab.checkpoint)
    write_stream(lab, frame, target, lab.checkpoint)
    assert committed(lab, target) == numbers(600)


def test_a_batch_with_the_same_ids_is_written_once(lab: Any) -> None:
    target = lab.cluster.topic(2)
    rows = lab.spark.range(100).selectExpr("cast(id as string) as value")
    write_id = uuid.uuid4().hex
    for _ in range(2):
        options = sink_options(lab, target, writeId=write_id, batchId=0)
        rows.write.format("tidemill").options(**options).mode("append").save()
    assert committed(lab, target) == numbers(100)
    more = lab.spark.range(100, 150).selectExpr("cast(id as string) as value")
    options = sink_options(lab, target, writeId=write_id, batchId=1)
    more.write.format("tidemill").options(**options).mode("append").save()
    assert committed(lab, target) == numbers(150)


def test_for_each_batch_writes_to_two_topics(lab: Any) -> None:
    source, targets = lab.cluster.filled(50), [lab.cluster.topic(), lab.cluster.topic()]
    name = uuid.uuid4().hex

    def write(frame: DataFrame, batch_id: int) -> None:
        for number, target in enumerate(targets):
            options = sink_options(lab, target, writeId=f"{name}-{number}", batchId=batch_id)
            frame.write.format("tidemill").options(**options).mode("append").save()

    writer = stream_of(lab, source).writeStream.foreachBatch(write).trigger(availableNow=True)
    writer.option("checkpointLocation", str(lab.checkpoint)).trigger(
        availableNow=True
    ).start().awaitTermination()
    last_batch_again(lab.checkpoint)
    writer.option("checkpointLocation", str(lab.checkpoint)).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert [committed(lab, target) for target in targets] == [numbers(50)] * 2


def test_an_attempt_that_fails_leaves_nothing(lab: Any) -> None:
    target = lab.cluster.topic(2)
    write_id = uuid.uuid4().hex
    options = sink_options(lab, target, writeId=write_id, batchId=0)
    failing = lab.spark.range(0, 100, 1, 4).selectExpr(
        "if(id = 90, raise_error('the last task fails'), cast(id as string)) as value"
    )
    with pytest.raises(Exception, match="the last task fails"):
        failing.write.format("tidemill").options(**options).mode("append").save()
    assert committed(lab, target) == Counter()
    rows = lab.spark.range(0, 100, 1, 4).selectExpr("cast(id as string) as value")
    rows.write.format("tidemill").options(**options).mode("append").save()
    assert committed(lab, target) == numbers(100)


def test_batches_without_rows_are_written(lab: Any) -> None:
    source, target = lab.cluster.filled(20), lab.cluster.topic()
    frame = stream_of(lab, source).where("value = '7'")
    write_stream(lab, frame, target, lab.checkpoint)
    lab.cluster.produce(source, 5, start=20)
    write_stream(lab, frame, target, lab.checkpoint)
    write_stream(lab, frame, target, lab.checkpoint)
    assert committed(lab, target) == Counter({b"7": 1})


def test_a_batch_without_ids_is_refused(lab: Any) -> None:
    target = lab.cluster.topic()
    rows = lab.spark.range(1).selectExpr("'x' as value")
    with pytest.raises(Exception, match="needs the options writeId and batchId"):
        rows.write.format("tidemill").options(**sink_options(lab, target)).mode("append").save()


def test_the_query_id_is_that_of_the_checkpoint(lab: Any) -> None:
    """The control records name the query, so that an operator finds its checkpoint."""
    source, target = lab.cluster.filled(5), lab.cluster.topic()
    write_stream(lab, stream_of(lab, source), target, lab.checkpoint)
    query = json.loads((lab.checkpoint / "metadata").read_text())["id"]
    keys = lab.batch(EXACTLY_ONCE["controlTopic"]).selectExpr("cast(key as string)").collect()
    assert query in {json.loads(row[0])["query"] for row in keys}


def test_rows_without_a_partition_are_placed_by_their_key(lab: Any) -> None:
    target = lab.cluster.topic(4)
    rows = lab.spark.range(60).selectExpr(
        "cast(id as string) as key",
        "cast(id as string) as value",
        "cast(if(id < 20, 3, null) as int) as partition",
    )
    options = sink_options(lab, target, writeId=uuid.uuid4().hex, batchId=0)
    rows.write.format("tidemill").options(**options).mode("append").save()
    assert committed(lab, target) == numbers(60)
    for message in lab.cluster.consume(target, 60):
        wanted = 3 if int(message.value()) < 20 else murmur2_partition(message.key(), 4)
        assert message.partition() == wanted, message.value()
