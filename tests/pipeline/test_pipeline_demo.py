"""The demo's parts that need no Spark, against the real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemill.client import Admin, ClientError
from tidemill.client.partitioners import murmur2_partition
from tidemill.model.errors import ConfigError
from tidemill.pipeline.demo.checks import flights_without_weather, months_of_file
from tidemill.pipeline.demo.flights import FLIGHTS, ROWS, WEATHER, messages, value_of
from tidemill.pipeline.demo.publish import publish_topic
from tidemill.pipeline.demo.run import MARKER, clean_directory, files_of
from tidemill.testing import Broker


def test_the_files_have_as_many_rows_as_the_demo_expects() -> None:
    for topic, count in ROWS.items():
        assert sum(month.rows for month in months_of_file(topic).values()) == count


def test_a_flight_is_a_message() -> None:
    first = next(messages(FLIGHTS))
    assert first.key == b"UA"
    assert first.timestamp_ms == 1_357_035_300_000  # 05:15 in New York is 10:15 UTC
    assert first.date == "2013-01-01"
    value = json.loads(first.value)
    assert (value["flight"], value["dep_delay"], value["tailnum"]) == (1545, 2, "N14228")
    assert value["time_hour"] == "2013-01-01T10:00:00Z"


def test_dates_are_local_and_what_is_missing_is_null() -> None:
    other_in_utc = missing = 0
    for message in messages(FLIGHTS):
        assert b"NaN" not in message.value
        missing += b'"dep_delay":null' in message.value
        value = message.value[:40]
        year, month, day = message.date.split("-")
        assert value.startswith(f'{{"year":{year},"month":{int(month)},"day":{int(day)},'.encode())
        other_in_utc += message.timestamp_ms // 86_400_000 != _day(message.date)
    assert missing == 8255
    assert other_in_utc == 38_444


def _day(date: str) -> int:
    from datetime import UTC, datetime

    return int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) // 86_400


def test_keys_fill_partitions_unevenly() -> None:
    from collections import Counter

    flights = Counter(murmur2_partition(message.key, 6) for message in messages(FLIGHTS))
    assert flights[1] == 0
    assert 0.34 < flights[3] / ROWS[FLIGHTS] < 0.36
    assert len({murmur2_partition(message.key, 6) for message in messages(WEATHER)}) == 2


def test_flights_without_weather_are_counted_from_the_files() -> None:
    assert flights_without_weather() == 1556


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("carrier", "NA", None), ("carrier", "12", "12"), ("flight", "12", 12), ("temp", "39.02", 39.02)],
)
def test_fields_have_the_types_of_json(name: str, text: str, value: object) -> None:
    found = value_of(name, text)
    assert found == value
    assert type(found) is type(value)


def test_a_publication_that_is_refused_fails() -> None:
    with Broker() as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("small", 1, 1, configs={"max.message.bytes": "200"})
        with pytest.raises(ClientError, match="MESSAGE_TOO_LARGE"):
            publish_topic(broker.bootstrap, FLIGHTS, "small", lambda count: None, 10)


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("words")
    with pytest.raises(ConfigError, match="will not remove"):
        clean_directory(mine)
    assert (mine / "thesis.txt").exists()


def test_an_earlier_run_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    clean_directory(folder)
    assert (folder / MARKER).exists()
    (folder / "old").write_text("x")
    clean_directory(folder)
    assert not (folder / "old").exists()


def test_files_that_the_sink_does_not_list_are_left_over(tmp_path: Path) -> None:
    """The list is compacted: 1.compact holds what 0 and 1 had."""
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    folder = tmp_path / "event_date=2013-01-01"
    folder.mkdir()

    def entry(name: str) -> str:
        (folder / name).write_text("x")
        return json.dumps({"path": f"file://{folder}/{name}", "size": 10, "action": "add"})

    (log / "0").write_text("v1\n" + entry("a.parquet"))
    (log / "1.compact").write_text("\n".join(["v1", entry("a.parquet"), entry("b.parquet")]))
    (log / "2").write_text("v1\n" + entry("c.parquet"))
    (log / ".2.crc").write_text("crc")
    (folder / "killed.parquet").write_text("x")
    files = files_of(tmp_path)
    assert (files.folders, files.listed, files.listed_bytes, files.left_over) == (1, 3, 30, 1)
