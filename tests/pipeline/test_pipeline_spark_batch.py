"""Batch reads with a real Spark and a real broker."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]

MOMENT_MS = 1_700_000_000_123


def refusal(action: Any) -> str:
    """Returns the text of a failure in Spark."""
    from tidemill.pipeline.spark_errors import explained

    with pytest.raises(Exception) as caught:
        action()
    return explained(caught.value)


def values(frame: Any) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect())


def test_the_format_is_found_without_registration_in_new_sessions_and_sql(lab: Any) -> None:
    topic = lab.cluster.filled(3)
    session = lab.spark.newSession()
    assert session.read.format("tidemill").options(**lab.options(topic)).load().count() == 3
    listed = ", ".join(f"`{name}` '{value}'" for name, value in lab.options(topic).items())
    session.sql(f"create temporary view messages using tidemill options ({listed})")
    assert session.sql("select count(1) from messages").collect()[0][0] == 3


def test_columns_and_types_are_those_of_sparks_connector(lab: Any) -> None:
    topic = lab.cluster.topic()
    plain = [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert lab.batch(topic).dtypes == plain
    headers = ("headers", "array<struct<key:string,value:binary>>")
    assert lab.batch(topic, includeHeaders="true").dtypes == [*plain, headers]
    assert all(field.nullable for field in lab.batch(topic, includeHeaders="true").schema.fields)


def test_the_arrow_schema_equals_the_schema_that_spark_expects(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from tidemill.pipeline.source_columns import arrow_schema, requested_columns, schema_text

    asked = StructType.fromDDL(schema_text(True))
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    assert to_arrow_schema(asked, **zone).equals(arrow_schema(requested_columns(asked, True)))


def test_every_column_of_a_message_arrives(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    headers = [("a", b"\x00\xff"), ("b", None), ("a", b"")]
    lab.cluster.send(topic, b"v\x00", key=b"k\xff", partition=1, timestamp=MOMENT_MS, headers=headers)
    lab.cluster.send(topic, None, key=b"", partition=1, timestamp=MOMENT_MS + 1)
    lab.cluster.send(topic, b"", partition=1, timestamp=MOMENT_MS + 2)
    rows = lab.batch(topic, includeHeaders="true").orderBy("offset").collect()
    assert [bytes(row.key) if row.key is not None else None for row in rows] == [b"k\xff", b"", None]
    assert [bytes(row.value) if row.value is not None else None for row in rows] == [b"v\x00", None, b""]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {(topic, 1, 0)}
    assert [row.offset for row in rows] == [0, 1, 2]
    assert rows[0].timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    found = [(one.key, None if one.value is None else bytes(one.value)) for one in rows[0].headers]
    assert found == headers
    assert rows[1].headers is None


def test_append_time_has_its_timestamp_type(lab: Any) -> None:
    topic = lab.cluster.topic(message_timestamp_type="LogAppendTime")
    lab.cluster.send(topic, b"v", timestamp=MOMENT_MS)
    row = lab.batch(topic).collect()[0]
    assert row.timestampType == 1
    assert row.timestamp.year >= 2024


def test_a_user_schema_selects_columns_in_any_order(lab: Any) -> None:
    topic = lab.cluster.filled(2)
    frame = lab.batch(topic, schema="offset bigint, value binary")
    assert frame.columns == ["offset", "value"]
    assert [(row.offset, bytes(row.value)) for row in frame.collect()] == [(0, b"0"), (1, b"1")]


def test_a_schema_that_the_source_does_not_have_is_refused(lab: Any) -> None:
    topic = lab.cluster.topic()
    text = refusal(lambda: lab.batch(topic, schema="value string").collect())
    assert "value string" in text
    assert "cast them afterwards" in text
    assert "includeHeaders=true" in refusal(
        lambda: lab.batch(topic, schema="headers array<struct<key:string,value:binary>>").collect()
    )


def test_offsets_bound_a_read(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 10, 0)
    lab.cluster.produce(topic, 10, 1, start=10)
    start = json.dumps({topic: {"0": 4, "1": -2}})
    end = json.dumps({topic: {"0": -1, "1": 3}})
    frame = lab.batch(topic, startingOffsets=start, endingOffsets=end)
    assert values(frame) == sorted(str(n) for n in [*range(4, 10), *range(10, 13)])
    assert lab.batch(topic, endingOffsets=json.dumps({topic: {"0": 0, "1": 0}})).count() == 0
    assert lab.batch(topic, assign=json.dumps({topic: [1]})).count() == 10
    assert lab.batch(topic, subscribePattern=f"{topic[:-1]}.").count() == 20
    assert lab.batch(topic, subscribePattern="no-such-topic-.*").count() == 0


def test_a_read_that_would_silently_be_empty_or_partial_is_refused(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 10, 0)
    lab.cluster.produce(topic, 10, 1, start=10)

    def refused(**options: Any) -> str:
        return refusal(lambda: lab.batch(topic, **options).count())

    assert "a batch that starts at the latest offset reads nothing" in refused(startingOffsets="latest")
    text = refused(startingOffsets=json.dumps({topic: {"0": -1, "1": 0}}))
    assert f"-1 (latest) as the start of {topic}-0 would read nothing" in text
    text = refused(startingOffsets=json.dumps({topic: {"0": 5, "1": 11}}))
    assert f"{topic}-1 would start at 11 (startingOffsets), after its end at 10 (latest)" in text
    assert "has 0 to 10" in text
    given = json.dumps({topic: {"0": 5, "1": 8}})
    text = refused(startingOffsets=given, endingOffsets=json.dumps({topic: {"0": 9, "1": 7}}))
    assert f"starts {topic}-1 at 8, after its end at 7" in text
    at_its_end = json.dumps({topic: {"0": 10, "1": 7}})
    assert values(lab.batch(topic, startingOffsets=at_its_end)) == ["17", "18", "19"]


def test_a_start_after_an_end_by_time_is_refused(lab: Any) -> None:
    topic = lab.cluster.topic()
    for number in range(5):
        lab.cluster.send(topic, str(number).encode(), timestamp=MOMENT_MS + 1000 * number)
    start, end = json.dumps({topic: {"0": 3}}), json.dumps({topic: {"0": MOMENT_MS + 1000}})
    text = refusal(lambda: lab.batch(topic, startingOffsets=start, endingOffsetsByTimestamp=end).count())
    assert f"{topic}-0 would start at 3 (startingOffsets), after its end at 1" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"maxOffsetsPerTrigger": "none"}, "maxOffsetsPerTrigger='none': a whole number"),
        ({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 5}, "is above maxOffsetsPerTrigger=5"),
        ({"includeHeaders": "yes"}, "option includeHeaders='yes': true or false"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets sets the start"),
        ({"subscribePattern": "a"}, "found subscribe and subscribePattern"),
    ],
)
def test_an_unusable_option_fails_load(lab: Any, options: dict[str, Any], words: str) -> None:
    """Neither a query nor a read has started, and no broker receives a request."""
    given = {"kafka.bootstrap.servers": "nowhere.invalid:1", "subscribe": "t", **options}
    reader = lab.spark.readStream.format("tidemill").options(
        **{name: str(value) for name, value in given.items()}
    )
    assert words in refusal(reader.load)


def test_times_bound_a_read(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    for number in range(5):
        lab.cluster.send(topic, str(number).encode(), partition=0, timestamp=MOMENT_MS + 1000 * number)
    lab.cluster.send(topic, b"late", partition=1, timestamp=MOMENT_MS + 9000)
    third = MOMENT_MS + 2000
    assert values(lab.batch(topic, startingTimestamp=third)) == ["2", "3", "4", "late"]
    assert values(lab.batch(topic, endingTimestamp=third)) == ["0", "1"]
    each = json.dumps({topic: {"0": third, "1": MOMENT_MS}})
    assert values(lab.batch(topic, startingOffsetsByTimestamp=each)) == ["2", "3", "4", "late"]
    assert values(lab.batch(topic, endingOffsetsByTimestamp=each)) == ["0", "1"]
    after = MOMENT_MS + 5000
    text = refusal(lambda: lab.batch(topic, startingTimestamp=after).count())
    assert f"{topic}-0 has no record as late as {after}" in text
    assert "startingOffsetsByTimestampStrategy=latest" in text
    latest = lab.batch(topic, startingTimestamp=after, startingOffsetsByTimestampStrategy="latest")
    assert values(latest) == ["late"]


def test_min_partitions_splits_the_same_rows_into_more_tasks(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 900, 0)
    lab.cluster.produce(topic, 100, 1, start=900)
    frame = lab.batch(topic, minPartitions=10)
    assert frame.rdd.getNumPartitions() == 10
    assert values(frame) == sorted(str(n) for n in range(1000))
    assert lab.batch(topic, maxRecordsPerPartition=300).rdd.getNumPartitions() == 4


def test_small_arrow_batches_lose_no_row(lab: Any) -> None:
    topic = lab.cluster.filled(1000)
    assert values(lab.batch(topic, batchRows=7)) == sorted(str(n) for n in range(1000))
    assert values(lab.batch(topic, batchBytes=100)) == sorted(str(n) for n in range(1000))


def test_deleted_records_fail_a_read_or_are_skipped(lab: Any) -> None:
    topic = lab.cluster.filled(10)
    lab.cluster.delete_before(topic, 6)
    start = json.dumps({topic: {"0": 2}})
    text = refusal(lambda: lab.batch(topic, startingOffsets=start).count())
    assert f"startingOffsets has offset 2 of {topic}-0, which has 6 to 10" in text
    assert "failOnDataLoss=false" in text
    assert values(lab.batch(topic, startingOffsets=start, failOnDataLoss="false")) == ["6", "7", "8", "9"]
    assert values(lab.batch(topic)) == ["6", "7", "8", "9"]


def test_records_deleted_between_plan_and_read_are_a_loss(lab: Any) -> None:
    from tidemill.client.errors import DataLoss
    from tidemill.pipeline.batch_reader import plan_batch, read_range
    from tidemill.pipeline.client_pool import open_cluster
    from tidemill.pipeline.options import parse_source_options

    topic = lab.cluster.filled(10)
    options = parse_source_options(lab.options(topic), streaming=False)
    with open_cluster(options.client) as cluster:
        task = plan_batch(cluster, options)[0]
    lab.cluster.delete_before(topic, 6)
    columns = (("value", True),)
    with pytest.raises(DataLoss, match=rf"offsets 0 to 5 of {topic}-0 were deleted"):
        list(read_range(options, columns, task))
    rows = [value for batch in read_range(options._replace(fail_on_data_loss=False), columns, task)
            for value in batch.column("value").to_pylist()]  # fmt: skip
    assert rows == [b"6", b"7", b"8", b"9"]


def test_missing_topics_and_partitions_are_reported(lab: Any) -> None:
    topic = lab.cluster.topic()
    assert "there is no topic nowhere at" in refusal(lambda: lab.batch("nowhere").count())
    assert f"did you mean {topic}?" in refusal(lambda: lab.batch(topic + "x").count())
    text = refusal(lambda: lab.batch(topic, assign=json.dumps({topic: [0, 7]})).count())
    assert f"{topic}-7" in text
    partial = json.dumps({topic: {"1": 0}})
    text = refusal(lambda: lab.batch(topic, startingOffsets=partial).count())
    assert f"omits {topic}-0 and names {topic}-1" in text
    assert "did you mean subscribe?" in refusal(lambda: lab.batch(topic, subscribed="x").count())


def test_a_read_commits_no_offset_and_creates_no_topic(lab: Any) -> None:
    refusal(lambda: lab.batch("only-looked-for").count())
    assert "only-looked-for" not in lab.cluster.admin.list_topics(timeout=10).topics
