"""The stream reader by itself, called as each version of Spark calls it; a real broker, no JVM."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from tidemill.client.errors import DataLoss
from tidemill.pipeline import stream
from tidemill.pipeline.options import parse_source_options
from tidemill.pipeline.stream import TidemillStreamReader

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]

SCHEMA = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


needs_limits = pytest.mark.skipif(
    pyspark.__version__ < "4.2", reason="PySpark gives readers limits, and Trigger.AvailableNow, from 4.2 on"
)


@pytest.fixture
def readers(cluster: Any) -> Any:
    made: list[TidemillStreamReader] = []

    def make(topic: str, **options: Any) -> TidemillStreamReader:
        given = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        given |= {name.replace("__", "."): str(value) for name, value in options.items()}
        made.append(TidemillStreamReader(parse_source_options(given, streaming=True), SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def next_of(offset: dict[str, Any]) -> dict[str, int]:
    (part,) = offset["topics"].values()
    return dict(part["next"])


def test_without_arguments_the_position_is_the_last_planned_end(cluster: Any, readers: Any) -> None:
    """4.0 and 4.1: latestOffset() before initialOffset(), then partitions(start, end) for each batch."""
    topic = cluster.topic()
    cluster.produce(topic, 10)
    reader = readers(topic, maxOffsetsPerTrigger=4)
    first = reader.latestOffset()
    assert next_of(first) == {"0": 4}
    start = reader.initialOffset()
    assert [(one.start, one.end) for one in reader.partitions(start, first)] == [(0, 4)]
    second = reader.latestOffset()
    assert next_of(second) == {"0": 8}
    reader.partitions(first, second)
    assert next_of(reader.latestOffset()) == {"0": 10}


def test_a_restart_without_arguments_takes_its_position_from_partitions(cluster: Any, readers: Any) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 10)
    reader = readers(topic, maxOffsetsPerTrigger=4)
    end = reader.latestOffset()
    reader.partitions(reader.initialOffset(), end)
    again = readers(topic, maxOffsetsPerTrigger=4)
    assert again.partitions(end, end) == []
    assert next_of(again.latestOffset()) == {"0": 8}


def test_latest_is_resolved_once(cluster: Any, readers: Any) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 3)
    reader = readers(topic, startingOffsets="latest")
    assert next_of(reader.latestOffset()) == {"0": 3}
    cluster.produce(topic, 2)
    assert next_of(reader.initialOffset()) == {"0": 3}
    assert next_of(reader.latestOffset()) == {"0": 5}


def test_no_progress_is_the_same_text(cluster: Any, readers: Any) -> None:
    topic = cluster.topic(3)
    reader = readers(topic)
    start = reader.initialOffset()
    assert json.dumps(reader.latestOffset(json.loads(json.dumps(start)))) == json.dumps(start)


@needs_limits
def test_available_now_has_a_fixed_end(cluster: Any, readers: Any) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 10)
    reader = readers(topic, maxOffsetsPerTrigger=6)
    reader.prepareForTriggerAvailableNow()
    cluster.produce(topic, 5)
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    second = reader.latestOffset(first, limit)
    assert (next_of(first), next_of(second)) == ({"0": 6}, {"0": 10})
    assert reader.latestOffset(second, limit) == second


@needs_limits
def test_limits_are_told_to_spark_in_its_own_types(cluster: Any, readers: Any) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

    topic = cluster.topic()
    cluster.produce(topic, 10)
    assert readers(topic).getDefaultReadLimit() == ReadAllAvailable()
    assert readers(topic, minOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMinRows(5)
    reader = readers(topic, maxOffsetsPerTrigger=5)
    assert reader.getDefaultReadLimit() == ReadMaxRows(5)
    # Trigger.Once reads all, whatever the options say.
    assert next_of(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == {"0": 10}


@needs_limits
def test_a_batch_waits_for_enough_or_long_enough(cluster: Any, readers: Any) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 4)
    reader = readers(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start
    cluster.produce(topic, 1)
    assert next_of(reader.latestOffset(start, limit)) == {"0": 5}
    impatient = readers(topic, minOffsetsPerTrigger=50, maxTriggerDelay="0s")
    assert next_of(impatient.latestOffset(start, impatient.getDefaultReadLimit())) == {"0": 5}


@needs_limits
def test_available_now_takes_also_fewer_records_than_a_batch_should_have(cluster: Any, readers: Any) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 4)
    reader = readers(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start
    reader.prepareForTriggerAvailableNow()
    assert next_of(reader.latestOffset(start, limit)) == {"0": 4}


@needs_limits
def test_every_batch_waits_anew_for_enough_or_long_enough(
    cluster: Any, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 4)
    now = [1000.0]
    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reader = readers(topic, minOffsetsPerTrigger=5, maxTriggerDelay="60s")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    now[0] += 59.5
    assert reader.latestOffset(start, limit) == start
    now[0] += 0.5
    first = reader.latestOffset(start, limit)
    assert next_of(first) == {"0": 4}
    cluster.produce(topic, 1)
    now[0] += 59.5
    assert reader.latestOffset(first, limit) == first
    now[0] += 0.5
    second = reader.latestOffset(first, limit)
    assert next_of(second) == {"0": 5}
    # Enough ends the wait early, and the next one begins then.
    cluster.produce(topic, 5)
    now[0] += 30
    third = reader.latestOffset(second, limit)
    assert next_of(third) == {"0": 10}
    cluster.produce(topic, 1)
    now[0] += 59.5
    assert reader.latestOffset(third, limit) == third


@pytest.mark.parametrize("retries", [0, 2])
def test_a_task_asks_again_exactly_as_often_as_told_before_it_believes_a_loss(
    cluster: Any, readers: Any, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    from tidemill.client.ranges import RangeReader

    topic = cluster.topic()
    cluster.produce(topic, 3)
    reader = readers(topic, fetchOffset__numRetries=retries, fetchOffset__retryIntervalMs=1)
    (task,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
    asked: list[int] = []

    def lost(self: RangeReader, topic: str, partition: int, start: int, *_: Any, **__: Any) -> Any:
        asked.append(start)
        raise DataLoss("nothing is there")

    plain = RangeReader.read
    monkeypatch.setattr(RangeReader, "read", lost)
    with pytest.raises(DataLoss, match="nothing is there"):
        list(reader.read(task))
    assert asked == [0] * (retries + 1)

    def late(self: RangeReader, *arguments: Any, **keywords: Any) -> Any:
        asked.append(0)
        if len(asked) <= retries:
            raise DataLoss("nothing is there")
        return plain(self, *arguments, **keywords)

    asked.clear()
    monkeypatch.setattr(RangeReader, "read", late)
    assert [batch.num_rows for batch in reader.read(task)] == [3]


@pytest.mark.parametrize(("offset", "first"), [(2, 2), (3, 3), (4, None), (-1, 3), (-2, 0)])
def test_a_start_behind_the_end_of_the_log_is_a_loss_and_one_at_its_end_is_not(
    cluster: Any, readers: Any, offset: int, first: int | None
) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 3)
    starting = json.dumps({topic: {"0": offset}})
    if first is not None:
        assert next_of(readers(topic, startingOffsets=starting).initialOffset()) == {"0": first}
        return
    with pytest.raises(DataLoss, match=f"asks for offset 4 of {topic}-0, which has 0 to 3"):
        readers(topic, startingOffsets=starting).initialOffset()
    lenient = readers(topic, startingOffsets=starting, failOnDataLoss="false")
    assert next_of(lenient.initialOffset()) == {"0": 3}


def test_a_start_before_the_first_record_is_a_loss_and_one_at_it_is_not(cluster: Any, readers: Any) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 3)
    cluster.delete_before(topic, 2)
    assert next_of(readers(topic, startingOffsets=json.dumps({topic: {"0": 2}})).initialOffset()) == {"0": 2}
    early = json.dumps({topic: {"0": 1}})
    with pytest.raises(DataLoss, match=f"asks for offset 1 of {topic}-0, which has 2 to 3"):
        readers(topic, startingOffsets=early).initialOffset()
    lenient = readers(topic, startingOffsets=early, failOnDataLoss="false")
    assert next_of(lenient.initialOffset()) == {"0": 2}


def test_a_group_commit_that_fails_is_logged_and_nothing_else(
    cluster: Any, readers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemill.client.errors import ClientError
    from tidemill.client.ranges import RangeReader

    topic = cluster.topic()
    cluster.produce(topic, 2)
    reader = readers(topic, commitOffsets="true", kafka__group__id=f"{topic}-g")

    def refuse(*_: Any) -> None:
        raise ClientError("cannot commit: GROUP_AUTHORIZATION_FAILED")

    monkeypatch.setattr(RangeReader, "commit", refuse)
    with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
        assert next_of(reader.latestOffset(reader.initialOffset())) == {"0": 2}
    assert f"group {topic}-g does not show the stream's offsets" in caplog.text
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text
    monkeypatch.undo()
    reader.commit(reader.initialOffset())
    assert cluster.committed(f"{topic}-g") == {(topic, 0): 0}


def test_a_log_that_ends_before_the_position_is_a_loss(cluster: Any, readers: Any) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 3)
    reader = readers(topic, fetchOffset__retryIntervalMs=1)
    ahead = reader.initialOffset()
    ahead["topics"][topic]["next"]["0"] = 9
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at 3, before the position 9"):
        reader.latestOffset(ahead)
    lenient = readers(topic, failOnDataLoss="false", fetchOffset__retryIntervalMs=1)
    assert next_of(lenient.latestOffset(ahead)) == {"0": 3}


def test_a_reader_reads_what_it_planned(cluster: Any, readers: Any) -> None:
    topic = cluster.topic(2)
    cluster.produce(topic, 6, 0)
    cluster.produce(topic, 2, 1)
    reader = readers(topic, minPartitions=4)
    tasks = reader.partitions(reader.initialOffset(), reader.latestOffset())
    assert len(tasks) == 4
    found = [
        (one.partition, offset)
        for one in tasks
        for batch in reader.read(one)
        for offset in batch.column("offset").to_pylist()
    ]
    assert found == [(0, n) for n in range(6)] + [(1, n) for n in range(2)]


def test_a_worker_that_knew_the_topic_before_sees_what_became_of_it(cluster: Any, readers: Any) -> None:
    """Python workers keep their connections, and with them metadata of tasks before."""
    topic = cluster.topic()
    cluster.produce(topic, 2)

    def read_all() -> list[tuple[int, int]]:
        reader = readers(topic)
        tasks = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset()))
        return [(one.partition, batch.num_rows) for one in tasks for batch in reader.read(one)]

    assert read_all() == [(0, 2)]
    cluster.grow(topic, 2)
    cluster.produce(topic, 3, 1)
    assert read_all() == [(0, 2), (1, 3)]
    cluster.delete(topic)
    cluster.topic(1, topic)
    cluster.produce(topic, 5)
    assert read_all() == [(0, 5)]


def test_a_topic_made_anew_after_the_plan_is_not_read_for_the_old_one(cluster: Any, readers: Any) -> None:
    from tidemill.client.errors import TopicRecreated

    topic = cluster.topic()
    cluster.produce(topic, 2)
    reader = readers(topic, fetchOffset__retryIntervalMs=1)
    task = reader.partitions(reader.initialOffset(), reader.latestOffset())[0]
    cluster.delete(topic)
    cluster.topic(1, topic)
    cluster.produce(topic, 5)
    with pytest.raises(TopicRecreated, match=f"topic '{topic}' was deleted and made anew"):
        list(reader.read(task))
    lenient = readers(topic, failOnDataLoss="false", fetchOffset__retryIntervalMs=1)
    assert list(lenient.read(task)) == []
