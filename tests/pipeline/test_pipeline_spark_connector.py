"""Spark's Kafka connector and Tidemill's source and sink, case by case: the table of docs/spark.md.

The cases are those of the connector's suites (KafkaRelationSuite, KafkaMicroBatchSourceSuite, KafkaSinkSuite,
KafkaDontFailOnDataLossSuite), rewritten. Each runs with ``tidemill`` and, where the connector's jars are
named by ``TIDEMILL_SPARK_CONNECTOR_JARS``, with ``kafka``: ``python tests/spark_matrix.py connector``. A case
that expects the same of both says so with one value; where they differ, it has one for each.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from test_pipeline_spark_write import java_partition

from tidemill.model.types import TopicPartition
from tidemill.pipeline.jobs.session import spark_version

pytestmark = [
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("spark"),
]

JARS = os.environ.get("TIDEMILL_SPARK_CONNECTOR_JARS")
OURS, THEIRS = "tidemill", "kafka"
PLANNED_ONCE_FROM = (4, 1)
MOMENT_MS = 1_700_000_000_000

needs_connector = pytest.mark.skipif(not JARS, reason="needs the jars of Spark's own connector")


@pytest.fixture(params=[OURS, THEIRS] if JARS else [OURS])
def source(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Both:
    """Reads, streams and writes of one of the two formats."""

    def __init__(self, lab: Any, source: str) -> None:
        self.lab = lab
        self.source = source
        self.cluster = lab.cluster

    def options(self, topic: str | None, given: dict[str, Any]) -> dict[str, str]:
        # Short, for the connector's errors after retries.
        options = {"kafka.bootstrap.servers": self.cluster.bootstrap, "fetchOffset.retryIntervalMs": "100"}
        if topic is not None:
            options["subscribe"] = topic
        return {**options, **{name: str(value) for name, value in given.items()}}

    def batch(self, topic: str | None, **options: Any) -> Any:
        return self.lab.spark.read.format(self.source).options(**self.options(topic, options)).load()

    def values(self, topic: str | None, **options: Any) -> list[str]:
        return values(self.batch(topic, **options))

    def refused(self, topic: str | None, **options: Any) -> str:
        return refusal(lambda: self.batch(topic, **options).count())

    def stream(self, topic: str | None, *, now: bool = False, once: bool = False, **options: Any) -> Any:
        """Starts a query into Parquet."""
        given = self.options(topic, {"startingOffsets": "earliest", **options})
        writer = (
            self.lab.spark.readStream.format(self.source)
            .options(**given)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self.lab.output))
            .option("checkpointLocation", str(self.lab.checkpoint))
        )
        if now or once:
            writer = writer.trigger(availableNow=True) if now else writer.trigger(once=True)
        return writer.start()

    def run(self, topic: str | None, **options: Any) -> list[int]:
        """Runs a query until it has read the existing records; returns the rows of its micro-batches."""
        query = self.stream(topic, **options)
        try:
            query.processAllAvailable()
            return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
        finally:
            query.stop()

    def write(
        self, frame: Any, topic: str | None = None, mode: str | None = "append", **options: Any
    ) -> None:
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap, "kafka.max.block.ms": "5000", **options}
        if topic is not None:
            given["topic"] = topic
        writer = frame.write.format(self.source).options(**given)
        (writer.mode(mode) if mode else writer).save()


@pytest.fixture
def both(lab: Any, source: str) -> Both:
    return Both(lab, source)


def values(frame: Any) -> list[str]:
    found = [row[0] for row in frame.selectExpr("cast(value as string)").collect()]
    return sorted(found, key=lambda text: (len(text), text))


def numbers(*parts: range) -> list[str]:
    return [str(number) for number in sorted(number for part in parts for number in part)]


def refusal(action: Callable[[], object]) -> str:
    from tidemill.pipeline.spark_errors import explained

    with pytest.raises(Exception) as caught:
        action()
    return f"{explained(caught.value)}\n{caught.value}"


@pytest.fixture
def three(both: Both) -> str:
    """Creates a topic of three partitions: 0 to 9, 10 to 19, and only 20."""
    topic = both.cluster.topic(3)
    both.cluster.produce(topic, 10, 0)
    both.cluster.produce(topic, 10, 1, start=10)
    both.cluster.produce(topic, 1, 2, start=20)
    return str(topic)


@pytest.fixture
def timed(both: Both) -> str:
    """Creates a topic of three partitions with three times: 0 to 9, 10 to 19 a second later, 20 to 29 two."""
    topic = both.cluster.topic(3)
    for number in range(30):
        time_ms = MOMENT_MS + 1000 * (number // 10)
        both.cluster.producer.produce(topic, str(number).encode(), partition=number % 3, timestamp=time_ms)
    assert both.cluster.producer.flush(20) == 0
    return str(topic)


def each(topic: str, *numbers_of: int) -> str:
    return json.dumps({topic: {str(partition): number for partition, number in enumerate(numbers_of)}})


# -- batches: KafkaRelationSuite ----------------------------------------


def test_a_batch_reads_all_by_default(both: Both, three: str) -> None:
    assert values(both.batch(three)) == numbers(range(21))
    frame = both.batch(three, startingOffsets="earliest", endingOffsets="latest")
    assert values(frame) == numbers(range(21))
    twice = values(frame.union(frame))
    assert twice == [number for number in numbers(range(21)) for _ in range(2)]


def test_different_a_frame_that_is_reused(both: Both, three: str) -> None:
    """From PLANNED_ONCE_FROM on Spark plans a Python source once for a frame; a new load() plans again."""
    frame = both.batch(three)
    assert values(frame) == numbers(range(21))
    both.cluster.produce(three, 9, 2, start=21)
    assert values(both.batch(three)) == numbers(range(30))
    planned_once = both.source == OURS and spark_version(both.lab.spark) >= PLANNED_ONCE_FROM
    assert values(frame) == numbers(range(21 if planned_once else 30))


def test_a_batch_reads_between_offsets(both: Both, three: str) -> None:
    start, end = each(three, -2, 4, 0), each(three, -1, -1, 1)
    assert both.values(three, startingOffsets=start, endingOffsets=end) == numbers(range(10), range(14, 21))
    both.cluster.produce(three, 5, 2, start=30)
    assert both.values(three, startingOffsets=start, endingOffsets=end) == numbers(range(10), range(14, 21))


def test_a_batch_reads_headers_and_null_for_none(both: Both) -> None:
    topic = both.cluster.topic()
    both.cluster.send(topic, b"1")
    both.cluster.send(topic, b"2", headers=[("a", b"b"), ("c", b"d")])
    both.cluster.send(topic, b"3", headers=[("e", b"f"), ("e", b"g")])
    rows = both.batch(topic, includeHeaders=True).orderBy("offset").collect()
    found = [
        None if row.headers is None else [(one.key, bytes(one.value)) for one in row.headers] for row in rows
    ]
    assert found == [None, [("a", b"b"), ("c", b"d")], [("e", b"f"), ("e", b"g")]]
    assert "headers" not in both.batch(topic).columns


def test_a_batch_reads_between_times(both: Both, timed: str) -> None:
    second, third = MOMENT_MS + 1000, MOMENT_MS + 2000
    by_partition = {
        "startingOffsetsByTimestamp": each(timed, second, second, second),
        "endingOffsetsByTimestamp": each(timed, third, third, third),
    }
    assert both.values(timed, **by_partition) == numbers(range(10, 20))
    assert both.values(timed, startingTimestamp=second, endingTimestamp=third) == numbers(range(10, 20))
    assert both.values(timed, startingTimestamp=second) == numbers(range(10, 30))
    assert both.values(timed, endingTimestamp=third) == numbers(range(20))
    first_of_2 = each(timed, -1, -1, 1)
    assert both.values(timed, startingTimestamp=MOMENT_MS, endingOffsets=first_of_2) == sorted(
        [str(n) for n in range(30) if n % 3 != 2] + ["2"], key=lambda text: (len(text), text)
    )


def test_a_time_that_no_record_reaches_is_refused_as_a_start_and_the_end_as_an_end(
    both: Both, timed: str
) -> None:
    late = MOMENT_MS + 9000
    words = {OURS: "has no record as late as", THEIRS: "No offset matched from request"}
    assert words[both.source] in both.refused(timed, startingTimestamp=late)
    mixed = each(timed, MOMENT_MS + 1000, MOMENT_MS + 1000, late)
    assert words[both.source] in both.refused(timed, startingOffsetsByTimestamp=mixed)
    latest = {"startingOffsetsByTimestamp": mixed, "startingOffsetsByTimestampStrategy": "latest"}
    assert both.values(timed, **latest) == [str(n) for n in range(10, 30) if n % 3 != 2]
    assert both.values(timed, endingTimestamp=late) == numbers(range(30))


def test_one_time_overrides_times_of_partitions_and_these_override_offsets(both: Both, timed: str) -> None:
    second, third = MOMENT_MS + 1000, MOMENT_MS + 2000
    options: dict[str, Any] = {
        "startingOffsetsByTimestamp": each(timed, second, second, second),
        "startingOffsets": "earliest",
    }
    assert both.values(timed, **options) == numbers(range(10, 30))
    assert both.values(timed, startingTimestamp=third, **options) == numbers(range(20, 30))


@pytest.mark.parametrize(
    ("options", "words", "theirs"),
    [
        ({"startingOffsets": "latest"}, "reads nothing", "starting offset can't be latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "start of t-0 would read nothing", "t-0 can't be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest'", "ending offset can't be earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "would read nothing", "t-0 can't be earliest"),
        ({"subscribePattern": "t.*"}, "found subscribe and subscribePattern", "Only one of the following"),
        ({"assign": '{"a": [0]}'}, "found assign and subscribe", "Only one of the following"),
        ({"subscribe": ""}, "topic names are expected", "No topics to subscribe"),
        ({"minPartitions": "0"}, "minPartitions='0'", "minPartitions must be positive"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets", "is not supported"),
        ({"kafka.key.deserializer": "X"}, "cast the column", "is not supported"),
        ({"kafka.enable.auto.commit": "true"}, "is not allowed", "is not supported"),
    ],
)
def test_invalid_options_of_a_batch_are_refused(
    both: Both, options: dict[str, str], words: str, theirs: str
) -> None:
    given = dict(options)
    topic = given.pop("subscribe", "t")
    text = both.refused(topic, **given)
    assert (words if both.source == OURS else theirs) in text


@pytest.mark.parametrize("way", ["assign", "subscribePattern"])
def test_an_empty_selection_is_refused(both: Both, way: str) -> None:
    text = both.refused(None, **{way: ""})
    theirs = {"assign": "No topicpartitions to assign", "subscribePattern": "Pattern to subscribe is empty"}
    ours = {"assign": "is not JSON", "subscribePattern": "subscribePattern is empty"}
    assert (ours if both.source == OURS else theirs)[way] in text


def test_a_start_after_its_end_and_ends_of_other_partitions_are_refused(both: Both, three: str) -> None:
    """Spark 4.0.0 detects a start after its end in the task."""
    text = both.refused(three, startingOffsets=each(three, 0, 5, 0), endingOffsets=each(three, 1, 4, 1))
    words = {
        OURS: f"starts {three}-1 at 5, after its end at 4",
        THEIRS: "Beginning offset 5 is after the ending offset 4",
    }
    assert words[both.source] in text
    text = both.refused(three, startingOffsets=each(three, 0, 0, 0), endingOffsets=each(three, 1, 1))
    words = {OURS: "must name the same partitions", THEIRS: "don't match what are assigned"}
    assert words[both.source] in text


def test_a_start_after_the_end_of_the_log_is_refused(both: Both) -> None:
    topic = both.cluster.topic(2)
    both.cluster.produce(topic, 2, 0)
    for end in ({}, {"endingOffsetsByTimestamp": each(topic, 1, 1)}):
        text = both.refused(topic, startingOffsets=each(topic, 3, 0), **end)
        words = {OURS: f"{topic}-0 would start at 3", THEIRS: "Beginning offset 3 is after the ending offset"}
        assert words[both.source] in text


def test_json_that_omits_a_partition_is_refused(both: Both, three: str) -> None:
    text = both.refused(three, startingOffsets=each(three, 0, 0))
    assert (f"omits {three}-2" if both.source == OURS else "don't match what are assigned") in text


def test_assign_selects_partitions_and_a_pattern_topics(both: Both, three: str) -> None:
    longer = both.cluster.topic(1, three + "-longer")
    both.cluster.produce(longer, 1, start=99)
    assert both.values(None, subscribePattern=three + ".*") == [*numbers(range(21)), "99"]
    assert both.values(None, subscribePattern="nothing-has-this-name") == []
    assert both.values(None, assign=json.dumps({three: [1, 2]})) == numbers(range(10, 21))


def test_different_a_pattern_matches_whole_names_where_the_connector_matches_parts(
    both: Both, three: str
) -> None:
    longer = both.cluster.topic(1, three + "-longer")
    both.cluster.produce(longer, 1, start=99)
    more = {OURS: [], THEIRS: ["99"]}[both.source]
    assert both.values(None, subscribePattern=three) == [*numbers(range(21)), *more]


def test_min_partitions_adds_tasks_and_loses_no_row(both: Both, three: str) -> None:
    frame = both.batch(three, minPartitions=6)
    assert frame.rdd.getNumPartitions() >= 6
    assert values(frame) == numbers(range(21))


def test_records_deleted_before_a_batch_are_reported_or_skipped(both: Both) -> None:
    topic = both.cluster.filled(10)
    both.cluster.delete_before(topic, 6)
    assert both.values(topic) == numbers(range(6, 10))
    lenient = {"startingOffsets": each(topic, 2), "failOnDataLoss": False}
    assert both.values(topic, **lenient, **{"kafkaConsumer.pollTimeoutMs": 2000}) == numbers(range(6, 10))
    text = both.refused(topic, startingOffsets=each(topic, 2), **{"kafkaConsumer.pollTimeoutMs": 2000})
    assert "failOnDataLoss" in text


def test_a_missing_topic_is_an_error(both: Both) -> None:
    topic = both.cluster.topic()
    text = both.refused(topic + "x")
    assert (f"did you mean {topic}?" if both.source == OURS else "UnknownTopicOrPartition") in text
    assert topic + "x" not in both.cluster.admin.list_topics(timeout=10).topics


def test_different_a_misspelt_option_is_refused_where_the_connector_ignores_it(
    both: Both, three: str
) -> None:
    if both.source == THEIRS:
        assert both.values(three, endingOffset="earliest", maxOffsetsPerTrigger=3) == numbers(range(21))
        return
    assert "did you mean endingOffsets?" in both.refused(three, endingOffset="earliest")
    assert "it is for spark.readStream" in both.refused(three, maxOffsetsPerTrigger=3)


def test_better_a_schema_selects_columns_where_the_connector_refuses_it(both: Both, three: str) -> None:
    def read() -> Any:
        options = both.options(three, {})
        return both.lab.spark.read.format(both.source).schema("value binary").options(**options).load()

    if both.source == THEIRS:
        assert "user-specified schema" in refusal(read)
        return
    assert read().columns == ["value"]
    assert values(read()) == numbers(range(21))


def test_better_a_time_out_of_range_is_refused_with_its_place(both: Both) -> None:
    topic = both.cluster.topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    both.cluster.send(topic, b"far", timestamp=2**63 - 1)
    text = refusal(lambda: both.batch(topic).collect())
    assert (f"at offset 0 of {topic}-0" if both.source == OURS else "overflow") in text


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions_are_read_by_the_isolation_level(both: Both, level: str) -> None:
    from confluent_kafka import Producer

    topic = both.cluster.topic()
    producer = Producer({"bootstrap.servers": both.cluster.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)

    def send(part: range, *, commit: bool) -> None:
        producer.begin_transaction()
        for number in part:
            producer.produce(topic, str(number).encode())
        producer.flush(20)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)

    send(range(1, 6), commit=True)
    send(range(6, 11), commit=False)
    send(range(11, 16), commit=True)
    aborted = range(6, 11) if level == "read_uncommitted" else range(0)
    options = {"kafka.isolation.level": level}
    assert both.values(topic, **options) == numbers(range(1, 6), aborted, range(11, 16))
    assert sum(both.run(topic, **options)) == 10 + len(aborted)


# -- streams: KafkaMicroBatchSourceSuite, KafkaDontFailOnDataLossSuite --------------------------------------


def test_a_limit_is_shared_in_proportion(both: Both) -> None:
    topic = both.cluster.topic(3)
    for partition, count in enumerate((60, 30, 10)):
        both.cluster.produce(topic, count, partition)
    assert both.run(topic, maxOffsetsPerTrigger=40) == [40, 40, 20]


def test_different_a_limit_is_used_up_where_the_connector_rounds_down(both: Both) -> None:
    topic = both.cluster.topic(3)
    for partition in range(3):
        both.cluster.produce(topic, 10, partition)
    assert both.run(topic, maxOffsetsPerTrigger=10)[0] == {OURS: 10, THEIRS: 9}[both.source]


def test_the_first_batch_of_a_start_is_not_held_back(both: Both) -> None:
    topic = both.cluster.filled(4)
    for total in (4, 6):
        query = both.stream(topic, minOffsetsPerTrigger=100, maxTriggerDelay="1h")
        try:
            deadline_s = time.monotonic() + 120
            while not any(one["numInputRows"] for one in query.recentProgress):
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline_s
                time.sleep(0.2)
        finally:
            query.stop()
        assert len(both.lab.places()) == total
        both.cluster.produce(topic, 2, start=total)


def test_latest_is_the_log_end_at_the_first_start(both: Both) -> None:
    topic = both.cluster.filled(5)
    assert both.run(topic, startingOffsets="latest") == []
    both.cluster.produce(topic, 3, start=5)
    assert sum(both.run(topic, startingOffsets="latest")) == 3
    assert both.lab.places() == [(topic, 0, offset) for offset in (5, 6, 7)]


def test_new_partitions_and_topics_are_read_from_their_first_record(both: Both) -> None:
    topic = both.cluster.filled(5)
    options = {"subscribePattern": topic + ".*"}
    both.run(None, **options)
    more = both.cluster.topic(1, topic + "-more")
    both.cluster.produce(more, 2)
    both.cluster.grow(topic, 2)
    both.cluster.produce(topic, 3, 1)
    assert sum(both.run(None, **options)) == 5
    places = (
        [(topic, 0, n) for n in range(5)] + [(topic, 1, n) for n in range(3)] + [(more, 0, n) for n in (0, 1)]
    )
    assert both.lab.places() == sorted(places)


@pytest.mark.parametrize("trigger", ["now", "once"])
def test_triggers_with_an_end_read_all_records_despite_the_limit(both: Both, trigger: str) -> None:
    """On PySpark 4.0 and 4.1 Tidemill's query applies the limit, with a warning at its start."""
    topic = both.cluster.filled(7)
    both.stream(topic, **{trigger: True}, maxOffsetsPerTrigger=3).awaitTermination()
    whole = both.source == THEIRS or both.lab.admission
    assert len(both.lab.places()) == (7 if whole else 3)


def test_options_of_batches_are_refused_by_streams(both: Both) -> None:
    """The connector refuses them in load(), Tidemill when the query starts."""
    text = refusal(lambda: both.stream("t", endingOffsets="latest").awaitTermination())
    assert ("it is for spark.read" if both.source == OURS else "ending offset not valid in streaming") in text


@pytest.mark.parametrize("lenient", [False, True])
def test_records_deleted_during_a_query_end_it_or_are_skipped(both: Both, lenient: bool) -> None:
    topic = both.cluster.filled(5)
    both.run(topic)
    both.cluster.produce(topic, 5, start=5)
    both.cluster.delete_before(topic, 8)
    options = {"failOnDataLoss": not lenient, "kafkaConsumer.pollTimeoutMs": 2000}
    if lenient:
        assert sum(both.run(topic, **options)) == 2
        assert both.lab.places() == [(topic, 0, n) for n in (0, 1, 2, 3, 4, 8, 9)]
        return
    assert "failOnDataLoss" in refusal(lambda: both.run(topic, **options))


def test_a_topic_deleted_during_a_query_does_not_end_it_if_losses_are_allowed(both: Both) -> None:
    topic, other = both.cluster.topic(), both.cluster.topic()
    both.cluster.produce(topic, 5)
    options = {"subscribePattern": f"{topic}|{other}", "failOnDataLoss": False}
    query = both.stream(None, **options)
    try:
        query.processAllAvailable()
        both.cluster.delete(topic)
        both.cluster.produce(other, 4)
        while sum(one["numInputRows"] for one in query.recentProgress) < 9:
            assert query.isActive, query.exception()
            query.processAllAvailable()
    finally:
        query.stop()
    assert len(both.lab.places()) == 9


def test_better_a_recreated_topic_is_detected_where_the_connector_skips_its_records(both: Both) -> None:
    topic = both.cluster.filled(5)
    both.run(topic)
    both.cluster.delete(topic)
    both.cluster.topic(1, topic)
    both.cluster.produce(topic, 8)
    if both.source == THEIRS:
        assert sum(both.run(topic)) == 3
        return
    assert "was deleted and recreated" in refusal(lambda: both.run(topic))
    assert sum(both.run(topic, failOnDataLoss=False)) == 8


def test_different_a_query_keeps_the_position_of_a_deleted_topic(both: Both) -> None:
    """The connector drops the position of a missing topic, and reads it from its first record when it
    returns.
    """
    topic, other = both.cluster.topic(), both.cluster.topic()
    both.cluster.produce(topic, 5)
    both.run(None, subscribe=f"{topic},{other}")
    both.cluster.produce(other, 1)
    both.run(other, failOnDataLoss=False)  # the topic is missing
    both.cluster.produce(topic, 2, start=5)
    again = sum(both.run(None, subscribe=f"{topic},{other}", failOnDataLoss=False))
    assert again == {OURS: 2, THEIRS: 7}[both.source]


def test_the_lag_has_the_figures_of_the_connector(both: Both) -> None:
    from tidemill.pipeline import Lag, LagListener

    topic = both.cluster.topic(2)
    both.cluster.produce(topic, 30, 0)
    both.cluster.produce(topic, 10, 1)
    seen: list[Lag] = []
    listener = LagListener({"kafka.bootstrap.servers": both.cluster.bootstrap}, on_lag=seen.append)
    both.lab.spark.streams.addListener(listener)
    try:
        query = both.stream(topic, maxOffsetsPerTrigger=16)
        try:
            query.processAllAvailable()
            deadline_s = time.monotonic() + 60
            while not seen or seen[-1].total:
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
            told = {one["batchId"]: one["sources"][0].get("metrics") for one in query.recentProgress}
        finally:
            query.stop()
    finally:
        both.lab.spark.streams.removeListener(listener)
        listener.close()
    behind = {TopicPartition(topic, 0): 18, TopicPartition(topic, 1): 6}
    first = next(lag for lag in seen if lag.batch_id == 0)
    assert first.behind == behind
    if both.source == THEIRS:
        names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
        assert {name: told[0][name] for name in names} == first.metrics
    else:
        assert not told[0]


# -- Checkpoints of the connector ----------------------------------------


@needs_connector
@pytest.mark.parametrize("state", ["between batches", "planned", "written"])
def test_tidemill_continues_from_a_checkpoint_of_the_connector(lab: Any, state: str) -> None:
    """Also in the middle of a batch: planned and not read, or written and not committed."""
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 30, 0)
    lab.cluster.produce(topic, 20, 1)
    theirs, ours = Both(lab, THEIRS), Both(lab, OURS)
    assert theirs.run(topic, maxOffsetsPerTrigger=20) == [20, 20, 10]
    if state != "between batches":
        forget(newest(lab.checkpoint / "commits"))
    if state == "planned":
        forget(newest(lab.output / "_spark_metadata"))
    lab.cluster.produce(topic, 5, 1, start=20)
    ours.run(topic, maxOffsetsPerTrigger=20)
    lab.cluster.grow(topic, 3)
    lab.cluster.produce(topic, 4, 2)
    ours.run(topic, maxOffsetsPerTrigger=20)
    counts = (30, 25, 4)
    assert lab.places() == [(topic, number, n) for number, count in enumerate(counts) for n in range(count)]
    offsets = json.loads(newest(lab.checkpoint / "offsets").read_text().splitlines()[2])
    assert offsets["topics"][topic]["id"], "the ids come with the first micro-batch of ours"


def newest(folder: Any) -> Any:
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def forget(path: Any) -> None:
    path.unlink()
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


# -- sinks: KafkaSinkSuite ----------------------------------------


def test_rows_are_written_with_keys_partitions_headers_and_topics(both: Both) -> None:
    one, other = both.cluster.topic(3), both.cluster.topic()
    rows = [
        (one, "k", b"1", 2, [("a", b"b"), ("a", None)]),
        (one, None, b"2", 0, None),
        (other, "k", None, 0, None),
    ]
    schema = (
        "topic string, key string, value binary, partition int, "
        "headers array<struct<key:string,value:binary>>"
    )
    frame = both.lab.spark.createDataFrame(rows, schema)
    both.write(frame)
    found = {message.partition(): message for message in both.cluster.consume(one, 2)}
    assert (found[2].key(), found[2].value(), found[2].headers()) == (b"k", b"1", [("a", b"b"), ("a", None)])
    assert (found[0].key(), found[0].value(), found[0].headers()) == (None, b"2", None)
    (tombstone,) = both.cluster.consume(other, 1)
    assert (tombstone.key(), tombstone.value()) == (b"k", None)
    third = both.cluster.topic(3)
    both.write(frame, third)  # the option takes precedence
    assert len(both.cluster.consume(third, 3)) == 3


def test_keys_choose_the_same_partition(both: Both) -> None:
    topic = both.cluster.topic(5)
    both.write(both.lab.spark.range(40).selectExpr("concat('k', id) key", "cast(id as string) value"), topic)
    for message in both.cluster.consume(topic, 40):
        assert message.partition() == java_partition(message.key(), 5)


@pytest.mark.parametrize(
    ("columns", "ours", "theirs"),
    [
        (["value as key"], "there is no column value", "attribute 'value' not found"),
        (["cast(value as int) value"], "column value is int", "value attribute unsupported type"),
        (["value", "cast(value as int) key"], "column key is int", "key attribute unsupported type"),
        (
            ["value", "value as partition"],
            "column partition is string",
            "partition attribute unsupported type",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    both: Both, columns: list[str], ours: str, theirs: str
) -> None:
    topic = both.cluster.topic()
    frame = both.lab.spark.range(1).selectExpr("cast(id as string) value").selectExpr(*columns)
    text = refusal(lambda: both.write(frame, topic))
    assert (ours if both.source == OURS else theirs) in text


def test_a_row_without_a_topic_and_a_missing_partition_are_errors(both: Both) -> None:
    topic = both.cluster.topic(2)
    frame = both.lab.spark.range(1).selectExpr("cast(id as string) value")
    words = {OURS: "set the option topic", THEIRS: "topic option required"}
    assert words[both.source] in refusal(lambda: both.write(frame))
    nameless = frame.selectExpr("value", "cast(null as string) topic")
    words = {OURS: "1 of 1 rows have no topic", THEIRS: "null topic present in the data"}
    assert words[both.source] in refusal(lambda: both.write(nameless))
    refusal(lambda: both.write(frame.selectExpr("value", "7 as partition"), topic))
    assert "serializer" in refusal(lambda: both.write(frame, topic, **{"kafka.key.serializer": "X"}))


def test_different_other_columns_are_refused_where_the_connector_drops_them(both: Both) -> None:
    topic = both.cluster.topic()
    frame = both.lab.spark.range(2).selectExpr("cast(id as string) value", "id")
    if both.source == THEIRS:
        both.write(frame, topic)
        assert len(both.cluster.consume(topic, 2)) == 2
        return
    assert "column id (bigint) is not part of a message" in refusal(lambda: both.write(frame, topic))


def test_better_the_time_of_a_row_is_written_where_the_connector_omits_it(both: Both) -> None:
    topic = both.cluster.topic()
    frame = both.lab.spark.range(1).selectExpr("'v' as value", f"timestamp_millis({MOMENT_MS}) as timestamp")
    both.write(frame, topic)
    (message,) = both.cluster.consume(topic, 1)
    assert (message.timestamp()[1] == MOMENT_MS) == (both.source == OURS)


def test_different_the_modes_of_a_write(both: Both) -> None:
    """Spark requests only append and overwrite from a Python sink; Spark itself refuses the default mode."""
    topic = both.cluster.topic()
    frame = both.lab.spark.range(1).selectExpr("cast(id as string) value")
    for mode in ("overwrite", "ignore"):
        refusal(lambda mode=mode: both.write(frame, topic, mode=mode))
    if both.source == THEIRS:
        both.write(frame, topic, mode=None)
        return
    refusal(lambda: both.write(frame, topic, mode=None))


def test_better_a_misspelt_topic_is_refused_where_the_connector_creates_it(both: Both) -> None:
    topic = both.cluster.topic()
    frame = both.lab.spark.range(1).selectExpr("cast(id as string) value")
    if both.source == THEIRS:
        both.write(frame, topic + "x")
        assert topic + "x" in both.cluster.admin.list_topics(timeout=10).topics
        return
    assert f"did you mean {topic}?" in refusal(lambda: both.write(frame, topic + "x"))
    assert topic + "x" not in both.cluster.admin.list_topics(timeout=10).topics


@pytest.mark.parametrize("mode", ["complete", "update", "append"])
def test_the_output_modes_of_a_stream(both: Both, mode: str) -> None:
    """Spark refuses update for every Python sink: foreachBatch is the alternative."""
    one, other = both.cluster.topic(), both.cluster.topic()
    for value in (b"a", b"b", b"a"):
        both.cluster.send(one, value)
    stream = (
        both.lab.spark.readStream.format(both.source)
        .options(**both.options(one, {"startingOffsets": "earliest"}))
        .load()
    )
    if mode != "append":
        stream = stream.groupBy("value").count().selectExpr("value as key", "cast(count as string) value")
    else:
        stream = stream.selectExpr("value as key", "value")

    def run() -> None:
        options = {
            "kafka.bootstrap.servers": both.cluster.bootstrap,
            "topic": other,
            "checkpointLocation": str(both.lab.checkpoint),
        }
        writer = stream.writeStream.format(both.source).options(**options).outputMode(mode)
        writer.trigger(availableNow=True).start().awaitTermination()

    if mode == "update" and both.source == OURS:
        assert "update" in refusal(run).lower()
        return
    run()
    both.cluster.send(one, b"b")
    run()
    counts = {
        "complete": ["a2", "b1", "a2", "b2"],
        "update": ["a2", "b1", "b2"],
        "append": ["aa", "bb", "aa", "bb"],
    }
    found = both.cluster.consume(other, len(counts[mode]))
    assert sorted(f"{m.key().decode()}{m.value().decode()}" for m in found) == sorted(counts[mode])


def test_the_plain_output_folder_equals_that_of_the_connector(both: Both, three: str) -> None:
    """The rows of a stream, with all their columns."""
    both.run(three, includeHeaders=True)
    rows = both.lab.spark.read.parquet(str(both.lab.output)).orderBy("partition", "offset").collect()
    batch = both.batch(three, includeHeaders=True).orderBy("partition", "offset").collect()
    assert rows == batch
    assert len(rows) == 21
    shutil.rmtree(both.lab.output)
