"""Transforms without a broker; the jobs and their commands with one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill.model.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]


def messages(spark: Any, *rows: tuple[str | bytes | None, datetime | None]) -> Any:
    """Returns rows with the columns of the source."""
    values = [
        (None, value.encode() if isinstance(value, str) else value, "t", 0, offset, moment, 0)
        for offset, (value, moment) in enumerate(rows)
    ]
    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int"
    )
    return spark.createDataFrame(values, schema)


def test_values_are_parsed_and_invalid_json_is_kept(spark: Any) -> None:
    from tidemill.pipeline.jobs.transforms import parsed

    frame = messages(
        spark, ('{"a": 1, "b": "x"}', None), ('{"a": null, "b": "y"}', None), ("no json", None), (None, None)
    )
    rows = parsed(frame, "a int, b string").collect()
    assert [(row.a, row.b, row.raw_value, row.raw_reason) for row in rows] == [
        (1, "x", None, None),
        (None, "y", None, None),
        (None, None, b"no json", "not_json: character 1"),
        (None, None, None, None),
    ]
    assert [row.kafka_offset for row in rows] == [0, 1, 2, 3]


RAW = [
    (b"", "empty"),
    (b'{"n":1}garbage', "trailing_data"),
    (b'{"n":1}{"n":2}', "trailing_data"),
    (b'\xff{"n":1}', "not_utf8"),
    (b'{"N":1}', "unknown_field"),
    (b'{"n":1,"n":2}', "duplicate_key"),
    (b'{"n":3000000000}', "out_of_range"),
    (b'{"d":1e999}', "out_of_range"),
    (b'{"d":9007199254740993}', "not_exact"),
    (b'{"n":"5"}', "wrong_type"),
    (b'{"t":"no moment"}', "not_read"),
]
"""Values that Spark takes, and drops a part of, or makes unreadable for others."""


def test_incompletely_represented_values_are_kept_counted_and_readable(spark: Any, tmp_path: Path) -> None:
    from collections import Counter

    import loads
    import pandas
    from pyspark.sql import Observation

    from tidemill.pipeline.jobs.transforms import counted_by_reason, parsed, reasons_in

    good: list[tuple[bytes, Any]] = [
        (b'{"n":7,"t":"2013-01-01T00:00:00Z"}', None),
        ('{"s":"é"}'.encode(), None),
    ]
    frame = messages(spark, *[(value, None) for value, _ in (*good, *RAW)])
    seen = Observation("seen")
    rows = counted_by_reason(parsed(frame, "n int, d double, s string, t timestamp"), seen)
    rows.write.parquet(str(tmp_path / "out"))
    assert reasons_in(seen.get) == (len(RAW) + 2, dict(Counter(code for _, code in RAW)))
    read = pandas.read_parquet(tmp_path / "out").sort_values("kafka_offset")
    assert list(read.raw_value) == [None, None, *[value for value, _ in RAW]]
    assert [told and told.partition(":")[0] for told in read.raw_reason] == [
        None,
        None,
        *[code for _, code in RAW],
    ]
    assert list(read.n[:2].fillna(0)) == [7, 0]
    # Text that is not JSON has no fields: either of two objects could be meant.
    assert read.n[read.raw_reason.fillna("").str.startswith("trailing")].isna().all()
    assert list(read.n[read.raw_reason.fillna("").str.startswith("duplicate")]) == [2]
    for reader in (loads.read_with_arrow, loads.read_with_duckdb):
        assert reader(tmp_path / "out", "kafka_offset") == list(range(len(RAW) + 2))


def test_an_invalid_event_time_results_in_a_null_date(spark: Any) -> None:
    from tidemill.pipeline.jobs.transforms import parsed, with_event_date

    frame = messages(spark, ('{"at":"2013-01-01T12:00:00Z"}', None), ('{"at":"soon"}', None))
    dated = with_event_date(parsed(frame, "at string"), "at")
    assert [row.event_date for row in dated.collect()] == [date(2013, 1, 1), None]


@pytest.mark.parametrize("schema", ["carrier", "carrier strng", "a int,"])
def test_the_error_of_an_invalid_schema_has_the_expected_token(spark: Any, schema: str) -> None:
    from tidemill.pipeline.jobs.transforms import parsed

    with pytest.raises(ConfigError, match=f'schema {schema!r} cannot be read .* as "carrier'):
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


def test_the_error_of_a_missing_column_lists_the_columns(spark: Any) -> None:
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
    sink = {"kafka.bootstrap.servers": lab.cluster.bootstrap}
    publication = PublishJob(sink=sink, topic=topic, key="carrier", timestamp="at")
    frame = read_files(lab.spark, [str(source)], "csv", publication)
    assert publish(frame, publication).rows == 60

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
    with pytest.raises(ConfigError, match="have delay int, and this load writes delay bigint: set"):
        load(lab.spark, replace(job, schema="carrier string, delay bigint, at timestamp"))
    # Each date is one file of a micro-batch.
    assert len(list(lab.output.glob("event_date=*/*.parquet"))) <= 3 * 3


def test_a_flight_without_a_measurement_is_in_no_class_of_weather(spark: Any) -> None:
    from tidemill.pipeline.demo.analysis import delay_by_weather

    rows = [(40.0, 0.0, 10.0, 30.0), (31.0, None, None, 20.0), (None, 0.3, 0.5, 5.0), (None, None, None, 1.0)]
    joined = spark.createDataFrame(rows, "wind_speed double, precip double, visib double, dep_delay double")
    found = [(row.measure, row.class_from, row.flights) for row in delay_by_weather(joined).collect()]
    assert found == [
        ("precip", 0.0, 1),
        ("precip", 0.2, 1),
        ("visib", 0.0, 1),
        ("visib", 10.0, 1),
        ("wind_speed", 30.0, 2),
    ]


def test_a_load_of_sparks_file_sink_continues_with_each_message_once(
    lab: Any,
) -> None:
    import loads

    from tidemill.pipeline.jobs.load import LoadJob, load
    from tidemill.pipeline.jobs.transforms import parsed, with_event_date

    topic = lab.cluster.topic()
    for number in range(6):
        lab.cluster.send(topic, json.dumps({"n": number}).encode())
    reader = lab.spark.readStream.format("tidemill").options(**lab.options(topic, startingOffsets="earliest"))
    dated = with_event_date(parsed(reader.load(), "n bigint"))
    writer = dated.writeStream.format("parquet").partitionBy("event_date").option("path", str(lab.output))
    writer.option("checkpointLocation", str(lab.checkpoint)).trigger(
        availableNow=True
    ).start().awaitTermination()
    folder = next(lab.output.glob("event_date=*"))
    listed = next(folder.glob("*.parquet"))
    (folder / listed.name.replace("part-00000", "part-00007")).write_bytes(listed.read_bytes())
    assert loads.read_with_arrow(lab.output, "n") != list(range(6))
    for number in range(6, 9):
        lab.cluster.send(topic, json.dumps({"n": number}).encode())
    job = LoadJob(
        source=lab.options(topic), output=str(lab.output), checkpoint=str(lab.checkpoint), schema="n bigint"
    )
    assert load(lab.spark, job).rows == 3
    for read in loads.READERS.values():
        assert read(lab.output, "n") == list(range(9))
    assert sorted(row.n for row in lab.spark.read.parquet(str(lab.output)).collect()) == list(range(9))
    assert not (lab.output / "_spark_metadata").exists()


def csv_of(folder: Path, *lines: str, name: str = "rows.csv") -> str:
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def read_publication(spark: Any, path: str, **given: Any) -> Any:
    from tidemill.pipeline.jobs.publish import PublishJob, read_files

    return read_files(spark, [path], given.pop("form", "csv"), PublishJob(sink={}, topic="t", **given))


def test_numbers_of_csv_stay_numbers_and_names_that_look_like_numbers_stay_texts(
    spark: Any, tmp_path: Path
) -> None:
    from tidemill.pipeline.jobs.transforms import as_messages

    path = csv_of(
        tmp_path,
        "whole,mixed,id,phone,long,truth,date,none,text",
        "1,2.5,007,+49301,12345678901234567890,true,2013-01-01,NA,a",
        " 2,3,08,+49302,2,FALSE,2013-01-02,,5",
        "NA,NaN,9,+49303,3,true,2013-01-03,NA,b",
    )
    rows = [json.loads(row.value) for row in as_messages(read_publication(spark, path)).collect()]
    assert {name: [row[name] for row in rows] for name in rows[0]} == {
        "whole": [1, 2, None],
        "mixed": [2.5, 3.0, None],
        "id": ["007", "08", "9"],
        "phone": ["+49301", "+49302", "+49303"],
        "long": [12345678901234567890, 2, 3],
        "truth": [True, False, True],
        "date": ["2013-01-01", "2013-01-02", "2013-01-03"],
        "none": [None, None, None],
        "text": ["a", "5", "b"],
    }
    declared = read_publication(spark, path, schema="whole string, text string, mixed double")
    assert dict(declared.dtypes)["whole"] == "string"


def test_the_error_of_a_wrong_value_has_file_and_row(spark: Any, tmp_path: Path) -> None:
    from tidemill.pipeline.jobs.csv_types import BadValue

    lines = ["carrier,delay,at", *[f"c{n},{n},2013-01-01T00:00:{n:02d}Z" for n in range(20)]]
    for at, line, given, words in (
        (
            7,
            "x,n/a,2013-01-01T00:00:00Z",
            {},
            r"delay is 'n/a', and 19 of 20 values .* are numbers: correct it",
        ),
        (
            7,
            "x,3,soon",
            {"timestamp": "at"},
            r"at is 'soon', which is not a timestamp, but sets the record's",
        ),
        (
            7,
            "x,1.5,2013-01-01",
            {"schema": "delay int"},
            r"delay is '1\.5', which is not of type int: correct it",
        ),
        (7, "x,3", {}, r"has another number of fields than the header"),
    ):
        path = csv_of(tmp_path, *lines[:at], line, *lines[at + 1 :])
        with pytest.raises(BadValue, match=rf"^{path}, row {at} \(line {at + 1}\):? {words}"):
            read_publication(spark, path, **given)
        if "timestamp" not in given:
            assert (
                read_publication(spark, path, reader={"nullValue": "n/a", "mode": "PERMISSIVE"}).count() == 20
            )
    jsons = csv_of(tmp_path, '{"at": "2013-01-01"}', '{"at": "soon"}', name="rows.json")
    with pytest.raises(BadValue, match=rf"^{jsons}, line 2: at is 'soon', which is not a timestamp"):
        read_publication(spark, jsons, form="json", timestamp="at")


@pytest.mark.parametrize(
    ("told", "end"),
    [('{"version": 1}', {"version": 1}), ('"{\\"version\\": 1}"', {"version": 1}), ("null", None)],
)
def test_the_end_of_a_query_is_read_from_its_progress_as_json(told: str, end: Any) -> None:
    from types import SimpleNamespace

    from tidemill.pipeline.jobs.load import _end_offset

    class Progress(SimpleNamespace):
        """As in PySpark 4.0 and 4.1: an item is in Python's notation, the whole is JSON."""

        def __getitem__(self, name: str) -> Any:
            return [{"endOffset": str(json.loads(told))}]

    progress: Any = Progress(json=f'{{"sources": [{{"endOffset": {told}}}]}}')
    assert _end_offset(progress) == end


def test_the_commands_print_results_and_errors(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tidemill.pipeline.jobs.session as session
    from tidemill.cli.pipeline import command

    class Kept:
        """The session of the tests, which a command must not stop."""

        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "stop" else getattr(lab.spark, name)

    monkeypatch.setattr(session, "local_session", lambda *_, **__: Kept())
    topic = lab.cluster.filled(4)
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
    refused = CliRunner().invoke(command, [*load, "-t", "nowhere"])
    assert refused.exit_code == 2
    assert f"was loaded from {topic}, and this load reads nowhere" in refused.output
    refused = CliRunner().invoke(command, [*load, "-t", topic, "--schema", "n int"])
    assert refused.exit_code == 2
    assert "have value binary, and this load writes n int, raw_value binary" in refused.output
    assert CliRunner().invoke(command, load).exit_code == 2
    bad = CliRunner().invoke(command, ["load", *common, "-o", str(tmp_path / "x"), "-t", "nowhere"])
    assert bad.exit_code == 1
    assert "there is no topic nowhere" in bad.output + str(bad.exception)
    rows = tmp_path / "rows.json"
    rows.write_text('{"a": 1}\n{"a": 2}\n')
    done = CliRunner().invoke(command, ["publish", *common, str(rows), "--format", "json", "-t", topic])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 2
