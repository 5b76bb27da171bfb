"""Transforms without a broker; the jobs and their commands with one."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill.model.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]


def messages(spark: Any, *rows: tuple[str | None, datetime | None]) -> Any:
    """Rows in the shape of the source."""
    values = [
        (None, None if value is None else value.encode(), "t", 0, offset, moment, 0)
        for offset, (value, moment) in enumerate(rows)
    ]
    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int"
    )
    return spark.createDataFrame(values, schema)


def test_values_are_taken_apart_and_what_is_no_json_is_kept(spark: Any) -> None:
    from tidemill.pipeline.jobs.transforms import parsed

    frame = messages(
        spark, ('{"a": 1, "b": "x"}', None), ('{"a": null, "b": "y"}', None), ("no json", None), (None, None)
    )
    rows = parsed(frame, "a int, b string").collect()
    assert [(row.a, row.b, row.corrupt_record) for row in rows] == [
        (1, "x", None),
        (None, "y", None),
        (None, None, "no json"),
        (None, None, None),
    ]
    assert [row.kafka_offset for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("schema", ["carrier", "carrier strng", "a int,"])
def test_a_schema_that_cannot_be_read_is_named_with_what_is_wanted(spark: Any, schema: str) -> None:
    from tidemill.pipeline.jobs.transforms import parsed

    with pytest.raises(ConfigError, match=f'schema {schema!r} cannot be read .*Syntax error.* as "carrier'):
        parsed(messages(spark, ("{}", None)), schema)


def test_the_event_date_is_the_local_date_of_the_sessions_zone(spark: Any) -> None:
    from tidemill.pipeline.jobs.session import time_zone
    from tidemill.pipeline.jobs.transforms import parsed, with_event_date

    late = datetime(2013, 1, 2, 3, 30, tzinfo=UTC)
    frame = parsed(messages(spark, ("{}", late), ("{}", None)), None)
    with time_zone(spark, "America/New_York"):
        assert [row.event_date for row in with_event_date(frame).collect()] == [date(2013, 1, 1), None]
    with time_zone(spark, "UTC"):
        assert with_event_date(frame).collect()[0].event_date == date(2013, 1, 2)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_missing_column_is_named_with_those_that_are_there(spark: Any) -> None:
    from tidemill.pipeline.jobs.transforms import as_messages, with_event_date

    frame = spark.createDataFrame([(1, 2)], "a int, b int")
    with pytest.raises(ConfigError, match="no column when for the event date; there are a, b"):
        with_event_date(frame, "when")
    with pytest.raises(ConfigError, match="no column c; there are a, b"):
        as_messages(frame, key="c")


def test_rows_become_json_with_null_for_nan_and_for_null(spark: Any) -> None:
    from tidemill.pipeline.jobs.transforms import as_messages

    moment = datetime(2013, 1, 1, 12, tzinfo=UTC)
    rows = [("k", float("nan"), None, 1.5, moment)]
    frame = spark.createDataFrame(rows, "name string, x double, y int, `a.b` float, at timestamp")
    row = as_messages(frame, key="name", timestamp="at", fields=("x", "y", "a.b")).collect()[0]
    assert row.key == "k"
    assert json.loads(row.value) == {"x": None, "y": None, "a.b": 1.5}
    assert row.timestamp.astimezone(UTC) == moment


def test_files_are_published_and_loaded_again_by_date(lab: Any, tmp_path: Path) -> None:
    from tidemill.pipeline.jobs.load import LoadJob, load
    from tidemill.pipeline.jobs.publish import PublishJob, publish, read_files

    topic = lab.cluster.topic(3)
    source = tmp_path / "rows.csv"
    lines = [f"c{n % 5},{'NA' if n % 7 == 0 else n},2013-01-0{n % 3 + 1}T12:00:00Z" for n in range(60)]
    source.write_text("\n".join(["carrier,delay,at", *lines]) + "\n")
    frame = read_files(lab.spark, [str(source)], "csv", {})
    sink = {"kafka.bootstrap.servers": lab.cluster.bootstrap}
    assert publish(frame, PublishJob(sink=sink, topic=topic, key="carrier", timestamp="at")).rows == 60

    seen: list[int] = []
    job = LoadJob(
        source={**lab.options(topic), "maxOffsetsPerTrigger": "25"},
        output=str(lab.output),
        checkpoint=str(lab.checkpoint),
        schema="carrier string, delay int, at timestamp",
        time_zone="UTC",
        tasks=2,
    )
    result = load(lab.spark, job, lambda progress: seen.append(progress.rows))
    assert result.rows == 60
    assert [rows for _, rows, _ in result.batches] == [25, 25, 10]
    assert seen[-1] == 60
    loaded = lab.spark.read.parquet(str(lab.output))
    assert loaded.groupBy("event_date").count().count() == 3
    assert loaded.where("event_date = to_date(at)").count() == 60
    assert loaded.where("delay is null").count() == 9
    assert load(lab.spark, job).rows == 0
    # A date is one file of a micro-batch.
    assert len(list(lab.output.glob("event_date=*/*.parquet"))) <= 3 * 3


@pytest.mark.parametrize(
    ("told", "end"),
    [('{"version": 1}', {"version": 1}), ('"{\\"version\\": 1}"', {"version": 1}), ("null", None)],
)
def test_the_end_of_a_query_is_read_from_its_progress_as_json(told: str, end: Any) -> None:
    from types import SimpleNamespace

    from tidemill.pipeline.jobs.load import _end_offset

    class Progress(SimpleNamespace):
        """As PySpark 4.0 and 4.1 have it: an item is Python's notation, the whole is JSON."""

        def __getitem__(self, name: str) -> Any:
            return [{"endOffset": str(json.loads(told))}]

    progress: Any = Progress(json=f'{{"sources": [{{"endOffset": {told}}}]}}')
    assert _end_offset(progress) == end


def test_the_commands_say_what_they_did_and_what_is_wrong(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tidemill.pipeline.jobs.session as session
    from tidemill.cli.pipeline import command

    class Kept:
        """The session of the tests, which a command must not stop."""

        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "stop" else getattr(lab.spark, name)

    monkeypatch.setattr(session, "local_session", lambda *_, **__: Kept())
    topic = lab.cluster.topic()
    lab.cluster.produce(topic, 4)
    common = ["-b", lab.cluster.bootstrap, "--json"]
    load = ["load", *common, "-o", str(lab.output), "--group", f"{topic}-g"]
    done = CliRunner().invoke(command, [*load, "-t", topic])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 4
    assert lab.cluster.committed(f"{topic}-g") == {(topic, 0): 4}
    other = [*load, "--checkpoint", str(tmp_path / "other"), "-t", topic]
    refused = CliRunner().invoke(command, other)
    assert refused.exit_code == 2
    assert "was loaded with another checkpoint" in refused.output
    assert CliRunner().invoke(command, load).exit_code == 2
    bad = CliRunner().invoke(command, ["load", *common, "-o", str(tmp_path / "x"), "-t", "nowhere"])
    assert bad.exit_code == 1
    assert "there is no topic nowhere" in bad.output + str(bad.exception)
    rows = tmp_path / "rows.json"
    rows.write_text('{"a": 1}\n{"a": 2}\n')
    done = CliRunner().invoke(command, ["publish", *common, str(rows), "--format", "json", "-t", topic])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 2
