"""The parts of the demo without Spark, with the real files."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tidemill.client import Admin, ClientError
from tidemill.client.partitioners import murmur2_partition
from tidemill.model.errors import ConfigError
from tidemill.pipeline.demo.broker import DemoBroker
from tidemill.pipeline.demo.checks import Check, flights_without_weather, months_of_file
from tidemill.pipeline.demo.directory import MARKER, UnderWay, locked_directory
from tidemill.pipeline.demo.flights import FLIGHTS, ROWS, WEATHER, expected_rows, messages, value_of
from tidemill.pipeline.demo.plots import delay_by_hour_and_carrier
from tidemill.pipeline.demo.publish import Published, publish_topic
from tidemill.pipeline.demo.report import write_report
from tidemill.pipeline.demo.results import Files, Loaded, Results, Step
from tidemill.pipeline.demo.run import files_of
from tidemill.pipeline.demo.show import Show
from tidemill.testing import Broker


def test_the_files_have_as_many_rows_as_the_demo_expects() -> None:
    for topic, count in ROWS.items():
        assert sum(month.rows for month in months_of_file(topic).values()) == count


def test_a_limit_beyond_a_file_expects_the_file() -> None:
    assert [expected_rows(topic, 30_000) for topic in (FLIGHTS, WEATHER)] == [30_000, 26_115]
    assert expected_rows(WEATHER, None) == 26_115


def test_a_flight_is_a_message() -> None:
    first = next(messages(FLIGHTS))
    assert first.key == b"UA"
    assert first.timestamp_ms == 1_357_035_300_000  # 05:15 in New York is 10:15 UTC
    assert first.date == "2013-01-01"
    value = json.loads(first.value)
    assert (value["flight"], value["dep_delay"], value["tailnum"]) == (1545, 2, "N14228")
    assert value["time_hour"] == "2013-01-01T10:00:00Z"


def test_dates_are_local_and_missing_values_are_null() -> None:
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


def test_a_folder_with_other_files_is_not_emptied(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("words")
    with pytest.raises(ConfigError, match="will not remove"):
        locked_directory(mine).__enter__()
    assert (mine / "thesis.txt").exists()


def test_an_earlier_run_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with locked_directory(folder):
        assert (folder / MARKER).exists()
        (folder / "old").write_text("x")
        (folder / "tree").mkdir()
    with locked_directory(folder):
        assert [path.name for path in folder.iterdir()] == [MARKER]


def test_a_second_run_does_not_affect_the_first(tmp_path: Path) -> None:
    """Broker and folder of a running demo look like those of a killed demo."""
    folder = tmp_path / "demo"
    with locked_directory(folder):
        broker = DemoBroker(folder)
        broker.start()
        try:
            again = subprocess.run(
                [sys.executable, "-m", "tidemill.pipeline.demo", "--directory", str(folder)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert again.returncode == 1
            said = f"tidemill: another make run (pid {os.getpid()}) is running in {folder}: wait"
            assert again.stderr.startswith(said)
            assert again.stderr.count("\n") == 1
            with pytest.raises(UnderWay):
                locked_directory(folder).__enter__()
        finally:
            assert broker.stop() == 0
    with locked_directory(folder):
        assert not broker.log_path.exists()


def test_a_folder_that_cannot_be_created_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"cannot write to .*: Not a directory\): set another folder"):
        locked_directory(tmp_path / "file" / "demo").__enter__()


def test_the_broker_of_a_demo_that_was_killed_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with locked_directory(folder):
        broker = DemoBroker(folder)
        broker.start()
    with locked_directory(folder):
        assert broker.stop() == 0  # The process has ended already; otherwise it would be killed by its id.


def start_demo(folder: Path) -> subprocess.Popen[str]:
    """Starts a demo process with a broker and an endless command; it prints their process ids."""
    program = (
        "import subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from tidemill.pipeline.demo import __main__ as demo, broker, directory\n"
        "def run(folder, bootstrap, limit):\n"
        "    with directory.locked_directory(folder):\n"
        "        server = broker.DemoBroker(folder)\n"
        "        server.start()\n"
        "        log = (folder / 'load.log').open('wb')\n"
        "        child = [sys.executable, '-m', 'tidemill.pipeline.demo.child']\n"
        "        load = subprocess.Popen([*child, 'serve', '--set', 'listeners=PLAINTEXT://127.0.0.1:0',\n"
        "            '--set', f'log.dirs={folder}/load'],\n"
        "            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)\n"
        "        print(server._process.pid, load.pid, flush=True)\n"
        "        try:\n"
        "            time.sleep(600)\n"
        "        finally:\n"
        "            server.stop()\n"
        "demo._run = run\n"
        "demo.main()\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, "--directory", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "demo"
    demo = start_demo(folder)
    assert demo.stdout is not None
    numbers = [int(text) for text in demo.stdout.readline().split()]
    assert len(numbers) == 2, demo.communicate()[1]
    demo.send_signal(number)
    _, said = demo.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert demo.returncode == 128 + number
        assert said == f"tidemill: {number.name}: stopping\n"
    deadline_s = time.monotonic() + 30
    while left := [pid for pid in numbers if alive(pid)]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.02)
    assert "stopped; all acknowledged records are on disk" in (folder / "broker.log").read_text()


def alive(pid: int) -> bool:
    """Whether the process runs; False for a zombie."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")


def test_without_a_terminal_a_step_is_a_line() -> None:
    out = io.StringIO()
    show = Show(Console(file=out, width=120))
    with show.step("publish"), show.progress("publish", 10) as tell:
        tell(10)
    show.done(Step("publish", 1.0))
    with show.step("load"), show.waiting() as say:
        say("waiting")
    show.done(Step("load", 2.0))
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["✓", "publish", "1.0", "s"],
        ["✓", "load", "2.0", "s"],
    ]


def test_page_and_terminal_have_the_same_figures(tmp_path: Path) -> None:
    published = Published("t", 10, 1000)
    results = Results(seconds=137.6, checks=[Check("one", "1", "1", True)])
    results.topics = {topic: Loaded(published, {0: (0, 10)}) for topic in (FLIGHTS, WEATHER)}
    results.steps = [Step("one", 99.0)]
    page, out = tmp_path / "report.html", io.StringIO()
    write_report(page, results, "")
    Show(Console(file=out, width=120)).summary(results, page)
    assert "<b>138 s</b>" in page.read_text()
    assert "All 1 checks passed in 138 s" in out.getvalue()


def test_a_delay_rounded_to_zero_has_no_sign() -> None:
    row = {"carrier": "UA", "hour": 5, "departed": 30, "dep_delay_mean": -0.3}
    svg = delay_by_hour_and_carrier([row])
    assert ">0</text>" in svg
    assert ">-0</text>" not in svg


def test_the_files_of_a_table_include_the_discarded_staged_files(tmp_path: Path) -> None:
    folder = tmp_path / "event_date=2013-01-01"
    folder.mkdir()
    (tmp_path / "_tidemill").mkdir()
    (tmp_path / "_tidemill" / "manifest.json").write_text("{}")
    for name in ("a.parquet", "b.parquet"):
        (folder / name).write_text("0123456789")
    assert files_of(tmp_path, 7) == Files(folders=1, count=2, size_bytes=20, discarded=7)
