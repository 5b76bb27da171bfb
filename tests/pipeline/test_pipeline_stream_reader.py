"""The stream reader, called as each version of Spark calls it; a real broker, no JVM."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from typing import Any

import pyspark
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from tidemill.client import network_client as client_cluster
from tidemill.client.errors import DataLoss, error_for
from tidemill.client.range_reader import RangeReader
from tidemill.model.errors import ConfigError, ErrorCode, InvalidRecord
from tidemill.pipeline import stream_reader
from tidemill.pipeline.batch_reader import plan_batch, read_range
from tidemill.pipeline.options import parse_source_options
from tidemill.pipeline.stream_reader import TidemillStreamReader

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
        if "subscribePattern" in options:
            del given["subscribe"]
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
    topic = cluster.filled(10)
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
    topic = cluster.filled(10)
    reader = readers(topic, maxOffsetsPerTrigger=4)
    end = reader.latestOffset()
    reader.partitions(reader.initialOffset(), end)
    again = readers(topic, maxOffsetsPerTrigger=4)
    assert again.partitions(end, end) == []
    assert next_of(again.latestOffset()) == {"0": 8}


def test_latest_is_resolved_once(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(3)
    reader = readers(topic, startingOffsets="latest")
    assert next_of(reader.latestOffset()) == {"0": 3}
    cluster.produce(topic, 2)
    assert next_of(reader.initialOffset()) == {"0": 3}
    assert next_of(reader.latestOffset()) == {"0": 5}


@pytest.mark.parametrize("has_arguments", [True, False])
def test_a_repeated_first_batch_begins_where_it_was_planned(
    cluster: Any, readers: Any, has_arguments: bool
) -> None:
    topic = cluster.filled(10)
    reader = readers(topic, startingOffsets="latest")
    start = reader.initialOffset()
    cluster.produce(topic, 5)
    end = reader.latestOffset(start) if has_arguments else reader.latestOffset()
    assert [(one.start, one.end) for one in reader.partitions(start, end)] == [(10, 15)]
    assert reader.latestOffset(end) == end
    # The first batch is not in the commit log: Spark asks for the start of the query again.
    cluster.produce(topic, 3)
    again = readers(topic, startingOffsets="latest")
    there = again.initialOffset()
    assert next_of(there) == {"0": 18}
    assert [(one.start, one.end) for one in again.partitions(there, end)] == [(10, 15)]
    third = again.latestOffset(end) if has_arguments else again.latestOffset()
    assert [(one.start, one.end) for one in again.partitions(end, third)] == [(15, 18)]


def test_no_progress_is_the_same_text(cluster: Any, readers: Any) -> None:
    topic = cluster.topic(3)
    reader = readers(topic)
    start = reader.initialOffset()
    assert json.dumps(reader.latestOffset(json.loads(json.dumps(start)))) == json.dumps(start)


@needs_limits
def test_available_now_has_a_fixed_end(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(10)
    reader = readers(topic, maxOffsetsPerTrigger=6)
    reader.prepareForTriggerAvailableNow()
    cluster.produce(topic, 5)
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    second = reader.latestOffset(first, limit)
    assert (next_of(first), next_of(second)) == ({"0": 6}, {"0": 10})
    assert reader.latestOffset(second, limit) == second


@needs_limits
def test_limits_have_the_types_of_spark(cluster: Any, readers: Any) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

    topic = cluster.filled(10)
    assert readers(topic).getDefaultReadLimit() == ReadAllAvailable()
    assert readers(topic, minOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMinRows(5)
    reader = readers(topic, maxOffsetsPerTrigger=5)
    assert reader.getDefaultReadLimit() == ReadMaxRows(5)
    # Trigger.Once reads all records, regardless of the options.
    assert next_of(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == {"0": 10}


class Clock:
    """Replaces the module ``time`` of the stream reader: sleep advances it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stream_reader, "time", made)
    return made


def test_the_first_batch_of_a_start_does_not_wait(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(4)
    reader = readers(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    first = reader.latestOffset()
    assert next_of(first) == {"0": 4}
    reader.partitions(reader.initialOffset(), first)
    cluster.produce(topic, 4)
    assert next_of(reader.latestOffset()) == {"0": 4}
    again = readers(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    assert again.partitions(first, first) == []
    assert next_of(again.latestOffset()) == {"0": 8}


@needs_limits
def test_a_batch_waits_for_enough_records_or_the_delay(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(4)
    reader = readers(topic, minOffsetsPerTrigger=5, maxTriggerDelay="1h")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    first = reader.latestOffset(start, limit)
    cluster.produce(topic, 4)
    assert reader.latestOffset(first, limit) == first
    cluster.produce(topic, 1)
    assert next_of(reader.latestOffset(first, limit)) == {"0": 9}
    impatient = readers(topic, minOffsetsPerTrigger=50, maxTriggerDelay="0s")
    limit = impatient.getDefaultReadLimit()
    first = impatient.latestOffset(start, limit)
    cluster.produce(topic, 1)
    assert next_of(impatient.latestOffset(first, limit)) == {"0": 10}


@needs_limits
def test_available_now_reads_less_than_the_minimum_of_a_batch(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(4)
    reader = readers(topic, minOffsetsPerTrigger=3, maxOffsetsPerTrigger=3, maxTriggerDelay="1h")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(start, limit)
    assert next_of(first) == {"0": 3}
    assert next_of(reader.latestOffset(first, limit)) == {"0": 4}


@needs_limits
def test_every_batch_waits_again_for_enough_records_or_the_delay(
    cluster: Any, readers: Any, clock: Clock
) -> None:
    topic = cluster.filled(4)
    reader = readers(topic, minOffsetsPerTrigger=5, maxTriggerDelay="60s")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    first = reader.latestOffset(start, limit)
    assert next_of(first) == {"0": 4}
    cluster.produce(topic, 1)
    clock.now_s += 59.5
    assert reader.latestOffset(first, limit) == first
    clock.now_s += 0.5
    second = reader.latestOffset(first, limit)
    assert next_of(second) == {"0": 5}
    # Enough records end the wait early, and the next wait begins then.
    cluster.produce(topic, 5)
    clock.now_s += 30
    third = reader.latestOffset(second, limit)
    assert next_of(third) == {"0": 10}
    cluster.produce(topic, 1)
    clock.now_s += 59.5
    assert reader.latestOffset(third, limit) == third


def test_an_idle_reader_sends_at_most_ten_requests_a_second(cluster: Any, readers: Any, clock: Clock) -> None:
    topic = cluster.topic()
    reader = readers(topic)
    start = reader.initialOffset()
    for _ in range(50):
        assert reader.latestOffset(start) == start
    assert clock.slept_s[:5] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.1])
    assert clock.slept_s[5:] == pytest.approx([0.1] * 44)
    # New records are read at the next request, and the following requests are frequent again.
    cluster.produce(topic, 1)
    first = reader.latestOffset(start)
    assert next_of(first) == {"0": 1}
    clock.slept_s.clear()
    assert reader.latestOffset(first) == first
    assert clock.slept_s == []
    # A trigger interval longer than the pause needs no wait.
    for _ in range(5):
        clock.now_s += 10
        reader.latestOffset(first)
    assert clock.slept_s == []


def without(topic: str, monkeypatch: pytest.MonkeyPatch, looks: int) -> list[str]:
    """Omits the topic from the next ``looks`` metadata responses, as an outdated broker does."""
    hidden: list[str] = []
    plain = RangeReader.describe

    def describe(self: RangeReader, topics: Any) -> Any:
        found = plain(self, topics)
        if topic in found and len(hidden) < looks:
            hidden.append(topic)
            del found[topic]
        return found

    monkeypatch.setattr(RangeReader, "describe", describe)
    return hidden


@pytest.mark.parametrize("away", ["a moment", "a while"])
def test_a_topic_that_disappears_and_returns_continues_at_its_position(
    cluster: Any, readers: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, away: str
) -> None:
    topic, other = cluster.topic(), cluster.topic()
    cluster.produce(topic, 5)
    options = {"failOnDataLoss": "false", "fetchOffset__retryIntervalMs": 1, "subscribe": f"{topic},{other}"}
    reader = readers(topic, **options)
    first = reader.latestOffset(reader.initialOffset())
    assert first["topics"][topic]["next"] == {"0": 5}
    cluster.produce(topic, 2)
    cluster.produce(other, 1)
    # One request for each attempt, and three attempts more.
    hidden = without(topic, monkeypatch, 2 if away == "a moment" else 8)
    with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
        second = reader.latestOffset(first)
        if away == "a moment":
            assert second["topics"][topic] == {"id": first["topics"][topic]["id"], "next": {"0": 7}}
            assert not caplog.messages
            return
        assert second["topics"][topic] == first["topics"][topic]
        assert second["topics"][other]["next"] == {"0": 1}
        assert reader.partitions(first, second)[0].topic == other
        while len(hidden) < 8:
            assert reader.latestOffset(second) == second
    told = [text for text in caplog.messages if f"the cluster no longer has {topic}-0" in text]
    assert len(told) == 1
    # Another process of the query, which has only the checkpoint, continues too.
    third = readers(topic, **options).latestOffset(second)
    assert third["topics"][topic] == {"id": first["topics"][topic]["id"], "next": {"0": 7}}
    assert [(one.start, one.end) for one in reader.partitions(second, third)] == [(5, 7)]


def test_a_topic_missing_at_the_plan_is_requested_again(
    cluster: Any, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.filled(5)
    reader = readers(topic, fetchOffset__retryIntervalMs=1)
    start, end = reader.initialOffset(), reader.latestOffset()
    without(topic, monkeypatch, 3)
    assert [(one.start, one.end) for one in reader.partitions(start, end)] == [(0, 5)]
    without(topic, monkeypatch, 4)
    with pytest.raises(DataLoss, match=f"the cluster no longer has {topic}-0, offsets 0 to 4 are lost"):
        reader.partitions(start, end)


def delete_before_offsets_are_listed(cluster: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request for offsets finds the topic deleted, which the preceding request has listed."""
    plain = RangeReader.list_offsets

    def list_offsets(self: RangeReader, wanted: Any) -> Any:
        monkeypatch.setattr(RangeReader, "list_offsets", plain)
        cluster.delete(topic)
        return plain(self, wanted)

    monkeypatch.setattr(RangeReader, "list_offsets", list_offsets)


def test_a_topic_deleted_while_a_batch_is_planned_is_named_and_the_batch_is_not_read_in_part(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = cluster.topic(), cluster.topic()
    for one in (topic, other):
        cluster.produce(one, 3)
    delete_before_offsets_are_listed(cluster, topic, monkeypatch)
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": f"{topic},{other}"}
    options = parse_source_options(given, streaming=False)
    with RangeReader(cluster.bootstrap) as client, pytest.raises(ConfigError, match=f"no topic {topic} at"):
        plan_batch(client, options)


@pytest.mark.parametrize("way", ["subscribe", "subscribePattern"])
def test_a_topic_deleted_during_a_lookup_does_not_end_the_query(
    cluster: Any, readers: Any, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Between the request that lists the topics and the request for their offsets."""
    topic, other = cluster.topic(), cluster.topic()
    cluster.produce(topic, 5)
    cluster.produce(other, 3)
    selected = {"subscribe": f"{topic},{other}"}
    if way == "subscribePattern":
        selected = {"subscribePattern": f"{topic}|{other}"}
    reader = readers(topic, failOnDataLoss="false", fetchOffset__retryIntervalMs=1, **selected)
    first = reader.latestOffset(reader.initialOffset())
    cluster.produce(other, 1)
    delete_before_offsets_are_listed(cluster, topic, monkeypatch)
    second = reader.latestOffset(first)
    assert second["topics"][topic] == first["topics"][topic]
    assert second["topics"][other]["next"] == {"0": 4}
    assert [(one.topic, one.start, one.end) for one in reader.partitions(first, second)] == [(other, 3, 4)]
    # A recreated topic is read from its first record.
    cluster.topic(1, topic)
    cluster.produce(topic, 2)
    third = reader.latestOffset(second)
    assert third["topics"][topic]["id"] != first["topics"][topic]["id"]
    tasks = reader.partitions(second, third)
    assert [(one.topic, one.start, one.end) for one in tasks] == [(topic, 0, 2)]


@needs_limits
def test_available_now_continues_without_a_deleted_topic(cluster: Any, readers: Any) -> None:
    topic, other = cluster.topic(), cluster.topic()
    cluster.produce(topic, 5)
    options = {"subscribe": f"{topic},{other}", "fetchOffset__retryIntervalMs": 1}
    first = readers(topic, **options).initialOffset()
    cluster.delete(topic)
    cluster.produce(other, 3)
    reader = readers(topic, failOnDataLoss="false", **options)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert [(one.topic, one.start, one.end) for one in reader.partitions(first, end)] == [(other, 0, 3)]
    strict = readers(topic, **options)
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=f"the cluster no longer has {topic}-0"):
        strict.latestOffset(first, strict.getDefaultReadLimit())


def test_a_task_whose_topic_was_deleted_is_a_loss(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(2)
    reader = readers(topic, fetchOffset__retryIntervalMs=1)
    (task,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
    cluster.delete(topic)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        list(reader.read(task))
    assert list(readers(topic, failOnDataLoss="false", fetchOffset__retryIntervalMs=1).read(task)) == []


def test_a_limit_that_ends_triggers_early_is_logged_once_without_limits_of_spark(
    cluster: Any, readers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark before 4.2 calls latestOffset() without arguments."""
    topic = cluster.filled(9)
    with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
        reader = readers(topic, maxOffsetsPerTrigger=4)
        reader.partitions(reader.initialOffset(), reader.latestOffset())
        reader.latestOffset()
        later = readers(topic, maxOffsetsPerTrigger=4)
        later.latestOffset(later.initialOffset())
        readers(topic).latestOffset()
        readers(topic, minOffsetsPerTrigger=4).latestOffset()
    (told,) = caplog.messages
    assert told.startswith(f"maxOffsetsPerTrigger=4 with PySpark {pyspark.__version__}: ")
    assert "Trigger.AvailableNow ends after one micro-batch" in told
    assert "PySpark 4.2 or later" in told


def test_a_group_commits_existing_topics_only(
    cluster: Any, readers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = cluster.topic(), cluster.topic()
    cluster.produce(topic, 2)
    group = f"{topic}-g"
    reader = readers(
        topic,
        subscribe=f"{topic},{other}",
        failOnDataLoss="false",
        fetchOffset__retryIntervalMs=1,
        commitOffsets="true",
        kafka__group__id=group,
    )
    first = reader.latestOffset(reader.initialOffset())
    cluster.delete(topic)
    cluster.produce(other, 3)
    with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
        second = reader.latestOffset(first)
        reader.latestOffset(second)
    assert cluster.committed(group)[other, 0] == 3
    assert len([text for text in caplog.messages if "cannot commit the stream's offsets" in text]) <= 1


@pytest.mark.parametrize("retries", [0, 2])
def test_a_task_retries_exactly_as_configured_before_it_reports_a_loss(
    cluster: Any, readers: Any, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    topic = cluster.filled(3)
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
    topic = cluster.filled(3)
    starting = json.dumps({topic: {"0": offset}})
    if first is not None:
        assert next_of(readers(topic, startingOffsets=starting).initialOffset()) == {"0": first}
        return
    with pytest.raises(DataLoss, match=f"has offset 4 of {topic}-0, which has 0 to 3"):
        readers(topic, startingOffsets=starting).initialOffset()
    lenient = readers(topic, startingOffsets=starting, failOnDataLoss="false")
    assert next_of(lenient.initialOffset()) == {"0": 3}


def test_a_start_before_the_first_record_is_a_loss_and_one_at_it_is_not(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(3)
    cluster.delete_before(topic, 2)
    assert next_of(readers(topic, startingOffsets=json.dumps({topic: {"0": 2}})).initialOffset()) == {"0": 2}
    early = json.dumps({topic: {"0": 1}})
    with pytest.raises(DataLoss, match=f"has offset 1 of {topic}-0, which has 2 to 3"):
        readers(topic, startingOffsets=early).initialOffset()
    lenient = readers(topic, startingOffsets=early, failOnDataLoss="false")
    assert next_of(lenient.initialOffset()) == {"0": 2}


def test_a_failed_group_commit_is_only_logged(
    cluster: Any, readers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemill.client.errors import ClientError

    topic = cluster.filled(2)
    reader = readers(topic, commitOffsets="true", kafka__group__id=f"{topic}-g")

    def refuse(*_: Any) -> None:
        raise ClientError("cannot commit: GROUP_AUTHORIZATION_FAILED")

    monkeypatch.setattr(RangeReader, "commit", refuse)
    with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
        assert next_of(reader.latestOffset(reader.initialOffset())) == {"0": 2}
    assert f"cannot commit the stream's offsets for group {topic}-g" in caplog.text
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text
    monkeypatch.undo()
    reader.commit(reader.initialOffset())
    assert cluster.committed(f"{topic}-g") == {(topic, 0): 0}


def test_a_failed_group_commit_is_retried_and_logged_every_ten_seconds(
    cluster: Any,
    readers: Any,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tidemill.client.errors import ClientError

    topic = cluster.topic()
    reader = readers(topic, commitOffsets="true", kafka__group__id=f"{topic}-g")
    start = reader.initialOffset()

    def refuse(*_: Any) -> None:
        raise ClientError("cannot commit: GROUP_AUTHORIZATION_FAILED")

    monkeypatch.setattr(RangeReader, "commit", refuse)
    with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
        for _ in range(20):
            reader.latestOffset(start)
        assert caplog.text.count("cannot commit the stream's offsets") == 1
        clock.now_s += 10
        reader.latestOffset(start)
    assert caplog.text.count("cannot commit the stream's offsets") == 2
    monkeypatch.undo()


def test_an_unavailable_coordinator_delays_a_micro_batch_briefly(
    cluster: Any, readers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = cluster.filled(2)
    reader = readers(topic, commitOffsets="true", kafka__group__id=f"{topic}-g")
    start = reader.initialOffset()

    def away(*_: Any) -> int:
        raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "find the coordinator of a group")

    monkeypatch.setattr(client_cluster.NetworkClient, "find_coordinator", away)
    monkeypatch.setattr(stream_reader, "COMMIT_S", 0.5)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
        assert next_of(reader.latestOffset(start)) == {"0": 2}
    assert time.monotonic() - began < 20
    assert f"offsets for group {topic}-g: cannot find the coordinator" in caplog.text


def test_a_log_that_ends_before_the_position_is_a_loss(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(3)
    reader = readers(topic, fetchOffset__retryIntervalMs=1)
    ahead = reader.initialOffset()
    ahead["topics"][topic]["next"]["0"] = 9
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at 3, before the position 9"):
        reader.latestOffset(ahead)
    lenient = readers(topic, failOnDataLoss="false", fetchOffset__retryIntervalMs=1)
    assert next_of(lenient.latestOffset(ahead)) == {"0": 3}


def test_a_reader_reads_the_planned_range(cluster: Any, readers: Any) -> None:
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


def test_a_worker_with_outdated_metadata_sees_the_current_topic(cluster: Any, readers: Any) -> None:
    """Python workers keep their connections, and the metadata of earlier tasks."""
    topic = cluster.filled(2)

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


def test_a_recreated_topic_with_as_many_records_is_read_completely(cluster: Any, readers: Any) -> None:
    topic = cluster.filled(5)
    reader = readers(topic, failOnDataLoss="false", fetchOffset__retryIntervalMs=1)
    first = reader.latestOffset(reader.initialOffset())
    cluster.delete(topic)
    cluster.topic(1, topic)
    cluster.produce(topic, 5)
    second = reader.latestOffset(first)
    assert next_of(first) == next_of(second) == {"0": 5}
    assert [(one.start, one.end) for one in reader.partitions(first, second)] == [(0, 5)]
    assert reader.partitions(second, second) == []


def test_a_topic_recreated_after_the_plan_is_not_read_instead(cluster: Any, readers: Any) -> None:
    from tidemill.client.errors import TopicRecreated

    topic = cluster.filled(2)
    reader = readers(topic, fetchOffset__retryIntervalMs=1)
    task = reader.partitions(reader.initialOffset(), reader.latestOffset())[0]
    cluster.delete(topic)
    cluster.topic(1, topic)
    cluster.produce(topic, 5)
    with pytest.raises(TopicRecreated, match=f"topic '{topic}' was deleted and recreated"):
        list(reader.read(task))
    lenient = readers(topic, failOnDataLoss="false", fetchOffset__retryIntervalMs=1)
    assert list(lenient.read(task)) == []


@pytest.mark.parametrize("ms", [9_223_372_036_854_776, 2**63 - 1])
def test_a_time_beyond_sparks_timestamps_is_refused_with_its_offset(
    cluster: Any, readers: Any, ms: int
) -> None:
    topic = cluster.topic(2, message_timestamp_after_max_ms=str(2**63 - 1))
    cluster.produce(topic, 3, 1)
    cluster.send(topic, b"last", partition=1, timestamp=9_223_372_036_854_775)
    cluster.send(topic, b"far", partition=1, timestamp=ms)
    reader = readers(topic)
    (task,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
    # The columns of this reader have no timestamp.
    assert [value for batch in reader.read(task) for value in batch.column("value").to_pylist()][-1] == b"far"
    options = parse_source_options(
        {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}, streaming=False
    )
    with pytest.raises(InvalidRecord, match=rf"the record at offset 4 of {topic}-1 has a time .*\.schema"):
        list(read_range(options, (("timestamp", True), ("offset", True)), task))
    *_, upto = read_range(options, (("timestamp", True),), dataclasses.replace(task, end=4))
    assert upto.column("timestamp").cast("int64")[-1].as_py() == 9_223_372_036_854_775_000
