"""A load continues with the topics and the schema of its output. Another topic or schema is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.load import LoadJob, check_load
from tidemill.pipeline.jobs.load_manifest import LoadedFile, Manifest, encode_manifest

OFFSETS = (
    'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795862949879,"conf":{}}\n'
    '{"topics": {"t": {"id": "bgN6pCgUQ5G_tWTwSOEUyg", "next": {"0": 1, "1": 4}}}, "version": 1}'
)
"""``offsets/0`` of a checkpoint, as Spark 4.3 writes it."""
SCHEMA = (
    "carrier string, n int, l long, d decimal(5,2), a array<struct<b: map<string, timestamp_ntz>, c: byte>>"
)
FIELDS = (
    '{"name":"carrier","type":"string","nullable":true,"metadata":{}},'
    '{"name":"n","type":"integer","nullable":true,"metadata":{}},'
    '{"name":"l","type":"long","nullable":true,"metadata":{}},'
    '{"name":"d","type":"decimal(5,2)","nullable":true,"metadata":{}},'
    '{"name":"a","type":{"type":"array","elementType":{"type":"struct","fields":[{"name":"b","type":{"type":'
    '"map","keyType":"string","valueType":"timestamp_ntz","valueContainsNull":true},"nullable":true,'
    '"metadata":{}},{"name":"c","type":"byte","nullable":true,"metadata":{}}]},"containsNull":true},'
    '"nullable":true,"metadata":{}},'
    '{"name":"raw_value","type":"binary","nullable":true,"metadata":{}},'
    '{"name":"raw_reason","type":"string","nullable":true,"metadata":{}},'
)
"""Columns of :data:`SCHEMA` in the footer of a Parquet file, as Spark 4.3 writes them."""
WITHOUT_SCHEMA = '{"name":"value","type":"binary","nullable":true,"metadata":{}},'
PLACE = (
    '{"name":"kafka_topic","type":"string","nullable":true,"metadata":{}},'
    '{"name":"kafka_partition","type":"integer","nullable":true,"metadata":{}},'
    '{"name":"kafka_offset","type":"long","nullable":true,"metadata":{}},'
    '{"name":"kafka_timestamp","type":"timestamp","nullable":true,"metadata":{}},'
    '{"name":"kafka_key","type":"binary","nullable":true,"metadata":{}}'
)
NAME = "event_date=2013-01-01/batch-000000000-3f2a9c1e-00000.snappy.parquet"
STAGED = "event_date=2013-01-01/part-00000-8c1e.c000.snappy.parquet"


def write_parquet(path: Path, metadata: dict[str, str]) -> None:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"n": [1]}).replace_schema_metadata(metadata), path)


def write_file(path: Path, fields: str) -> None:
    """Writes a Parquet file with the footer of Spark."""
    row = f'{{"type":"struct","fields":[{fields}{PLACE}]}}'
    write_parquet(
        path, {"org.apache.spark.version": "4.3.0", "org.apache.spark.sql.parquet.row.metadata": row}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An output and a checkpoint with one loaded micro-batch, without its file."""
    for log, text in (("offsets", OFFSETS), ("commits", "{}")):
        (tmp_path / "out.checkpoint" / log).mkdir(parents=True)
        (tmp_path / "out.checkpoint" / log / "0").write_text(text)
    (tmp_path / "out.checkpoint" / "metadata").write_text('{"id":"q"}')
    (tmp_path / "out" / "_tidemill").mkdir(parents=True)
    files = (LoadedFile(name=NAME, staged=STAGED, size_bytes=1, rows=1),)
    manifest = Manifest(query="q", batch=0, staging="batch-0-5b1f09aa", files=files)
    (tmp_path / "out" / "_tidemill" / "manifest.json").write_bytes(encode_manifest(manifest))
    return tmp_path


def error_of(folder: Path, schema: str | None = SCHEMA, **source: str) -> str:
    """Returns the error of a load into the folder; empty if there is none."""
    job = LoadJob(
        source={"kafka.bootstrap.servers": "localhost:1", **(source or {"subscribe": "t"})},
        output=str(folder / "out"),
        checkpoint=str(folder / "out.checkpoint"),
        schema=schema,
    )
    try:
        check_load(job)
    except ConfigError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize(
    "source",
    [
        {"subscribe": "t"},
        {"subscribe": "t,u"},
        {"subscribePattern": "t|u"},
        {"assign": '{"t": [0, 1]}'},
    ],
)
def test_a_load_of_the_topics_of_its_output_and_of_more_is_accepted(
    folder: Path, source: dict[str, str]
) -> None:
    assert error_of(folder, **source) == ""


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ({"subscribe": "u"}, "u"),
        ({"subscribe": "u,v", "failOnDataLoss": "false"}, "u, v"),
        ({"subscribePattern": "u|tt"}, "topics that match u|tt"),
        ({"assign": '{"t": [0]}'}, "t-0"),
    ],
)
def test_a_load_without_a_topic_of_its_output_is_refused(
    folder: Path, source: dict[str, str], read: str
) -> None:
    assert error_of(folder, **source) == (
        f"the output {folder}/out was loaded from t, and this load reads {read}: include t, or load into a "
        "new output with a new checkpoint"
    )


def test_offsets_of_sparks_connector_name_the_topics(folder: Path) -> None:
    offsets = folder / "out.checkpoint" / "offsets"
    (offsets / "9").write_text('v1\n{}\n{"old": {"0": 3}}')
    (offsets / "10").write_text('v1\n{}\n{"t": {"0": 3}}')
    (offsets / ".10.crc").write_text("x")
    assert error_of(folder) == ""
    (offsets / "10").write_text("v1\n{}\n-")  # Spark reports a plan that it cannot read
    assert error_of(folder, subscribe="u") == ""


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        (FIELDS, SCHEMA),
        (
            FIELDS,
            "n integer not null, carrier string collate utf8_lcase, l bigint comment 'x', d numeric(5,2), "
            "a array<struct<b map<string, timestamp_ntz>, c tinyint>>",
        ),
        (WITHOUT_SCHEMA, None),
    ],
)
def test_a_load_with_the_schema_of_its_output_is_accepted(
    folder: Path, fields: str, schema: str | None
) -> None:
    write_file(folder / "out" / NAME, fields)
    assert error_of(folder, schema) == ""


@pytest.mark.parametrize(
    ("fields", "schema", "stored", "wanted"),
    [
        (FIELDS, SCHEMA.replace("n int", "n long"), "n int", "n bigint"),
        (FIELDS, SCHEMA + ", more int", "no column more", "more int"),
        (FIELDS, SCHEMA.replace("n int, ", ""), "n int", "no column n"),
        (FIELDS, SCHEMA.replace("carrier", "Carrier"), "carrier string", "Carrier string"),
        (FIELDS, SCHEMA.replace("c: byte", "c: int"), "`c`: tinyint", "`c`: int"),
        (FIELDS, None, "raw_value binary", "value binary"),
        (WITHOUT_SCHEMA, SCHEMA, "value binary", "carrier string"),
        (WITHOUT_SCHEMA, "value binary", "no column raw_value", "raw_value"),
    ],
)
def test_a_load_with_another_schema_is_refused(
    folder: Path, fields: str, schema: str | None, stored: str, wanted: str
) -> None:
    write_file(folder / "out" / NAME, fields)
    error = error_of(folder, schema)
    assert error.startswith(f"the files of the output {folder}/out have ")
    assert error.endswith(": set the schema of the output, or load into a new output with a new checkpoint")
    have, _, write = error.partition(", and this load writes ")
    assert stored in have
    assert wanted in write


def test_the_schema_is_read_from_the_files_that_are_there(folder: Path) -> None:
    other = SCHEMA.replace("n int", "n long")
    assert error_of(folder, other) == ""  # no file, so that none contradicts the schema
    date = folder / "out" / "event_date=2013-01-02"
    write_parquet(date / "by_another_program.parquet", {})
    (date / "damaged.parquet").write_text("x")
    assert error_of(folder, other) == ""
    write_file(date / "part-1.parquet", FIELDS)
    assert "n bigint" in error_of(folder, other)
    assert error_of(folder) == ""


def test_staged_files_of_a_killed_load_have_its_schema(folder: Path) -> None:
    write_file(folder / "out.checkpoint" / "tidemill" / "batch-0-5b1f09aa" / STAGED, FIELDS)
    assert "n bigint" in error_of(folder, SCHEMA.replace("n int", "n long"))
    assert error_of(folder) == ""


def test_columns_of_a_transform_are_not_compared(folder: Path) -> None:
    write_file(folder / "out" / NAME, FIELDS)
    job = LoadJob(
        source={"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"},
        output=str(folder / "out"),
        checkpoint=str(folder / "out.checkpoint"),
        transform=lambda frame: frame,
    )
    assert check_load(job).topics == ("t",)
