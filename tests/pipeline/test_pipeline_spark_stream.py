"""Streams with a real Spark: each message once in Parquet, despite interruptions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]


def expected(topic: str, *counts: int) -> list[tuple[str, int, int]]:
    """Returns every position of a topic with ``counts`` messages in its partitions."""
    return [(topic, partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


def failure(query: Any) -> str:
    from tidemill.pipeline.spark_errors import explained

    with pytest.raises(Exception) as caught:
        query.awaitTermination()
    return explained(caught.value)


def newest(folder: Any) -> Any:
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def forget(path: Any) -> None:
    """Removes a file of a log and its checksum file."""
    path.unlink()
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def test_restarts_at_any_point_load_each_message_once(lab: Any) -> None:
    """A crash leaves the checkpoint in one of these states; the query continues in each."""
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 30, 0)
    lab.cluster.produce(topic, 20, 1)
    assert sum(lab.run(topic, maxOffsetsPerTrigger=20)) == 50
    # The sink has the batch, the commit log does not.
    forget(newest(lab.checkpoint / "commits"))
    lab.cluster.produce(topic, 10, 1, start=20)
    lab.run(topic)
    assert lab.places() == expected(topic, 30, 30)
    # The batch was planned and its files were written, but neither sink nor commit log has it.
    lab.cluster.produce(topic, 5, 0, start=30)
    lab.run(topic)
    forget(newest(lab.checkpoint / "commits"))
    forget(newest(lab.output / "_spark_metadata"))
    lab.cluster.produce(topic, 5, 0, start=35)
    lab.run(topic)
    assert lab.places() == expected(topic, 40, 30)
    # No new records, twice.
    assert lab.run(topic) == []
    assert lab.run(topic) == []
    assert lab.places() == expected(topic, 40, 30)


def test_a_query_stopped_during_a_batch_continues_at_its_offsets(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 2000, 0)
    lab.cluster.produce(topic, 1000, 1)
    for _ in range(2):
        query = lab.start(topic, now=False, maxOffsetsPerTrigger=100)
        while not query.recentProgress:
            assert query.isActive
        query.stop()
    lab.run(topic)
    assert lab.places() == expected(topic, 2000, 1000)


def test_no_batch_is_larger_than_the_limit(lab: Any) -> None:
    topic = lab.cluster.topic(3)
    for partition, count in enumerate((60, 30, 10)):
        lab.cluster.produce(topic, count, partition)
    assert lab.run(topic, maxOffsetsPerTrigger=40) == [40, 40, 20]
    lab.cluster.produce(topic, 30, 2, start=10)
    assert lab.run(topic, maxOffsetsPerTrigger=25) == [25, 5]
    assert lab.places() == expected(topic, 60, 30, 40)


def test_a_running_query_reads_new_topics_of_its_pattern_and_new_partitions(lab: Any) -> None:
    first = lab.cluster.filled(5)
    second = f"{first}-more"
    query = lab.start(first, now=False, subscribePattern=f"{first}.*")
    try:
        query.processAllAvailable()
        lab.cluster.topic(1, second)
        lab.cluster.produce(second, 7)
        lab.cluster.grow(first, 2)
        lab.cluster.produce(first, 3, 1)
        while sum(one["numInputRows"] for one in query.recentProgress) < 15:
            assert query.isActive, query.exception()
            query.processAllAvailable()
    finally:
        query.stop()
    assert lab.places() == sorted(expected(first, 5, 3) + expected(second, 7))


def test_a_stream_begins_at_the_latest_offset_of_its_first_start(lab: Any) -> None:
    topic = lab.cluster.filled(5)
    assert lab.run(topic, startingOffsets="latest") == []
    lab.cluster.produce(topic, 3, start=5)
    lab.run(topic, startingOffsets="latest")
    assert lab.places() == [(topic, 0, 5), (topic, 0, 6), (topic, 0, 7)]


def test_data_deleted_before_the_first_batch_is_repeated_is_a_loss(lab: Any) -> None:
    topic = lab.cluster.filled(50)
    lab.run(topic)
    # The batch was planned, and neither sink nor commit log has it.
    forget(newest(lab.checkpoint / "commits"))
    shutil.rmtree(lab.output)
    lab.cluster.delete_before(topic, 20)
    assert f"offsets 0 to 19 of {topic}-0 were deleted" in failure(lab.start(topic))
    assert lab.run(topic, failOnDataLoss="false") == [30]


def test_data_deleted_during_a_query_ends_it_or_is_skipped(lab: Any) -> None:
    topic = lab.cluster.filled(5)
    lab.run(topic)
    lab.cluster.produce(topic, 10, start=5)
    lab.cluster.delete_before(topic, 9)
    text = failure(lab.start(topic))
    assert f"offsets 5 to 8 of {topic}-0 were deleted before they were read" in text
    assert "set failOnDataLoss=false" in text
    lab.run(topic, failOnDataLoss="false")
    assert lab.places() == [(topic, 0, offset) for offset in (0, 1, 2, 3, 4, 9, 10, 11, 12, 13, 14)]


def test_a_recreated_topic_ends_the_query_or_is_read_from_its_first_record(lab: Any) -> None:
    topic = lab.cluster.filled(5)
    lab.run(topic)
    lab.cluster.delete(topic)
    lab.cluster.topic(1, topic)
    lab.cluster.produce(topic, 8)
    text = failure(lab.start(topic))
    assert f"topic {topic} was deleted and recreated" in text
    assert "a new checkpoint and a new output" in text
    lab.run(topic, failOnDataLoss="false")
    assert lab.places() == sorted(expected(topic, 5) + expected(topic, 8))


def test_a_deleted_topic_ends_the_query(lab: Any) -> None:
    topic, other = lab.cluster.topic(), lab.cluster.topic()
    lab.cluster.produce(topic, 5)
    both = f"{topic}|{other}"
    lab.run(topic, subscribePattern=both)
    lab.cluster.delete(topic)
    lab.cluster.produce(other, 2)
    assert f"the cluster no longer has {topic}-0" in failure(lab.start(other, subscribePattern=both))
    lab.run(other, subscribePattern=both, failOnDataLoss="false")
    assert lab.places() == sorted(expected(topic, 5) + expected(other, 2))
    # A recreated topic is read from its first record.
    lab.cluster.topic(1, topic)
    lab.cluster.produce(topic, 3, start=20)
    lab.run(other, subscribePattern=both, failOnDataLoss="false")
    assert lab.places() == sorted(expected(topic, 5) + expected(topic, 3) + expected(other, 2))


@pytest.mark.parametrize("way", ["subscribe", "subscribePattern"])
def test_a_topic_deleted_during_a_query_does_not_end_it_if_losses_are_allowed(lab: Any, way: str) -> None:
    topic, other = lab.cluster.topic(), lab.cluster.topic()
    lab.cluster.produce(topic, 5)
    selected = f"{topic}|{other}" if way == "subscribePattern" else f"{topic},{other}"
    query = lab.start(topic, now=False, failOnDataLoss="false", **{way: selected})
    try:
        query.processAllAvailable()
        lab.cluster.delete(topic)
        lab.cluster.produce(other, 4)
        while sum(one["numInputRows"] for one in query.recentProgress) < 9:
            assert query.isActive, query.exception()
            query.processAllAvailable()
        assert query.isActive, query.exception()
    finally:
        query.stop()
    assert lab.places() == sorted(expected(topic, 5) + expected(other, 4))


def test_available_now_with_a_minimum_size_reads_all_records(lab: Any) -> None:
    topic = lab.cluster.filled(7)
    query = lab.start(topic, minOffsetsPerTrigger=500)
    query.awaitTermination()
    assert lab.places() == expected(topic, 7)


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_a_trigger_with_an_end_reads_all_or_warns_at_its_start(lab: Any, trigger: str) -> None:
    """In a separate process: the line is for the terminal, where Python workers write through Java."""
    topic = lab.cluster.filled(7)
    options = lab.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=3)
    program = f"""
from tidemill.pipeline.jobs.session import local_session
spark = local_session("warned", master="local[1]")
stream = spark.readStream.format("tidemill").options(**{options!r}).load()
writer = stream.writeStream.format("parquet").option("path", {str(lab.output)!r})
writer = writer.option("checkpointLocation", {str(lab.checkpoint)!r})
writer.trigger({trigger}=True).start().awaitTermination()
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "maxOffsetsPerTrigger=3" in line]
    if lab.admission:
        assert told == []
        assert lab.places() == expected(topic, 7)
        return
    assert lab.places() == expected(topic, 3)
    (line,) = told
    assert "Trigger.AvailableNow ends after one micro-batch of this size" in line
    assert "Trigger.Once keeps the limit" in line
    assert "start the query again until it reads nothing, or use PySpark 4.2 or later" in line


def test_the_group_shows_each_micro_batch(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 30, 0)
    group = f"{topic}-group"
    options = {"commitOffsets": "true", "kafka.group.id": group, "maxOffsetsPerTrigger": 20}
    lab.run(topic, **options)
    assert lab.cluster.committed(group) == {(topic, 0): 30, (topic, 1): 0}
    lab.cluster.produce(topic, 4, 1)
    lab.run(topic, **options)
    assert lab.cluster.committed(group) == {(topic, 0): 30, (topic, 1): 4}


def test_output_without_its_checkpoint_is_refused(lab: Any) -> None:
    from tidemill.model.errors import ConfigError
    from tidemill.pipeline.jobs.preflight_checks import check_pair

    topic = lab.cluster.filled(1)
    lab.run(topic)
    check_pair(str(lab.output), str(lab.checkpoint))
    with pytest.raises(ConfigError, match="remove the output as well"):
        check_pair(str(lab.output), str(lab.checkpoint) + "-new")
    with pytest.raises(ConfigError, match="remove the checkpoint as well"):
        check_pair(str(lab.output) + "-new", str(lab.checkpoint))
    shutil.rmtree(lab.output)
    shutil.rmtree(lab.checkpoint)
    check_pair(str(lab.output), str(lab.checkpoint))


def test_the_checkpoint_holds_ids_and_offsets(lab: Any) -> None:
    topic = lab.cluster.filled(3)
    lab.run(topic)
    offsets = json.loads((lab.checkpoint / "offsets" / "0").read_text().splitlines()[2])
    assert offsets["version"] == 1
    assert offsets["topics"][topic]["next"] == {"0": 3}
    assert len(offsets["topics"][topic]["id"]) == 22
