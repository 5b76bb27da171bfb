"""Errors of a job are reported before Spark starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import click
import pytest
from click.testing import CliRunner, Result

from tidemill.cli.pipeline import _kafka_options, command
from tidemill.client import Admin
from tidemill.model.errors import ConfigError
from tidemill.pipeline.jobs.load_manifest import Manifest, encode_manifest
from tidemill.pipeline.jobs.preflight_checks import (
    check_event_time,
    check_master,
    check_pair,
    check_time_zone,
    check_trigger,
    is_local,
)
from tidemill.pipeline.jobs.publish_files import check_files, malformed_row_of, row_of
from tidemill.pipeline.jobs.schema import parse_schema
from tidemill.pipeline.jobs.session import interruptible, java_output_kept
from tidemill.pipeline.spark_errors import explained, start_failure
from tidemill.testing import Broker


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import tidemill.pipeline.jobs.session as session

    def started(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "local_session", started)


def blamed(words: str) -> int:
    """Returns the exit code: an unreachable cluster is not an error of the command line."""
    return 1 if "no broker" in words else 2


def failed_output(*arguments: str, code: int = 2) -> str:
    """Runs a failing command, with wrong usage unless ``code`` differs; returns its output."""
    done: Result = CliRunner().invoke(command, list(arguments))
    assert done.exit_code == code
    assert "Spark was started" not in done.output
    return done.output + str(done.exception)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--option", "foo=bar"], "option foo='bar' is unknown. Allowed for reading are"),
        (["--trigger", "10s"], "trigger '10s': available-now is allowed"),
        (["--time-zone", "Europe/Berlim"], "'Europe/Berlim' is unknown; did you mean Europe/Berlin?"),
        (["--checkpoint", "{file}"], "the checkpoint {file} is a file"),
        (["--output", "{file}/out"], "the output {file}/out cannot be created: {file} is a file"),
        (["--output", "/proc/x"], "the output /proc/x cannot be written: /proc: No such file or directory"),
        (["--output", ""], "the output is empty: set a folder"),
        (["--option", "SUBSCRIBE=u"], "--option subscribe: name topics with --topic or --pattern"),
        (["--output", "s3a://b/out"], "the output s3a://b/out is on s3a: load writes to file systems of"),
        (["--checkpoint", "hdfs://h/c"], "write a table format, Delta Lake or Apache Iceberg"),
        (["--checkpoint", "{folder}/out/c"], "the checkpoint {folder}/out/c is in the output {folder}/out"),
        (
            ["--schema", "a strng"],
            "schema 'a strng' cannot be read (strng is not a type; did you mean string?)",
        ),
        (
            ["--schema", "Raw_Value int"],
            "the schema has a field Raw_Value, and the load adds a column of that",
        ),
        (["--event-time", "at"], "the event time at is not a column, and without a schema there are no"),
        (
            ["--schema", "when string", "--event-time", "wen"],
            "wen is not a column; did you mean when? It can be",
        ),
        (
            ["--schema", "at bigint", "--event-time", "at"],
            "the event time at is not a timestamp, date or text",
        ),
        (["--event-time", "kafka_key"], "the event time kafka_key is not a timestamp, date or text"),
        (["--master", "locl"], "master 'locl' is unknown: local[*], local[4], spark://HOST:PORT, yarn"),
        (["--master", "local[x]"], "master 'local[x]' is unknown"),
        (
            ["--master", "spark://localhost:1"],
            "the master cannot be reached (localhost:1: Connection refused)",
        ),
        (["--master", "spark://a..b:1"], "the master cannot be reached (a..b:1: it is not a host name)"),
        (["--master", "yarn"], "master yarn needs HADOOP_CONF_DIR"),
        ([], "no broker can be reached (localhost:1: "),
    ],
)
def test_invalid_options_of_load_are_refused_before_it_starts(
    tmp_path: Path, more: list[str], words: str
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    given = [text.replace("{file}", str(file)).replace("{folder}", str(tmp_path)) for text in more]
    told = failed_output(
        "load", "-b", "localhost:1", "-t", "t", "-o", str(tmp_path / "out"), *given, code=blamed(words)
    )
    assert words.replace("{file}", str(file)).replace("{folder}", str(tmp_path)) in told
    assert not (tmp_path / "out").exists()


def refusal(check: Callable[..., object], *given: Any) -> str:
    """Returns the error of a check; empty if it accepts the arguments."""
    try:
        check(*given)
    except ConfigError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize(
    "schema", ["at timestamp", "at date", "at string", "at timestamp_ntz", "x int, at string not null"]
)
def test_an_event_time_with_a_date_is_accepted(schema: str) -> None:
    assert refusal(check_event_time, "at", parse_schema(schema)) == ""
    assert refusal(check_event_time, "kafka_timestamp", None) == ""


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[2, 3]", "local-cluster[1,1,1024]", "k8s://https://h:1"]
)
def test_masters_of_spark_are_accepted(master: str) -> None:
    assert refusal(check_master, master) == ""


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(ConfigError, match="SPARK_REMOTE is set, but jobs need their own Spark session"):
        check_master("local")


def pair(folder: Path, *, query: str = "q", manifest: str | None = None, batches: int = 0) -> tuple[str, str]:
    """Creates an output and a checkpoint with the files of a load."""
    output, checkpoint = folder / "out", folder / "checkpoint"
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
        for number in range(batches):
            (checkpoint / log / str(number)).write_text("{}")
    (checkpoint / "metadata").write_text(f'{{"id":"{query}"}}')
    if manifest is not None:
        (output / "_tidemill").mkdir(parents=True)
        data = encode_manifest(Manifest(query=manifest, batch=0))
        (output / "_tidemill" / "manifest.json").write_bytes(data)
    return str(output), str(checkpoint)


def test_a_matching_output_and_checkpoint_are_accepted(tmp_path: Path) -> None:
    assert refusal(check_pair, *pair(tmp_path, manifest="q", batches=1)) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"manifest": "other", "batches": 1}, "was loaded with another checkpoint than"),
        ({"batches": 1}, "has loaded messages into another output than"),
    ],
)
def test_a_mismatching_output_and_checkpoint_are_refused(tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_pair(*pair(tmp_path, **given))


@pytest.mark.parametrize("name", ["deep/mine.parquet", ".deep/mine.parquet", "deep/mine.csv", "mine"])
def test_foreign_files_in_the_output_are_named(tmp_path: Path, name: str) -> None:
    output, checkpoint = pair(tmp_path)
    (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "out" / name).write_text("x")
    with pytest.raises(ConfigError, match=rf"has files that no load has written \(.*{re.escape(name)}\)"):
        check_pair(output, checkpoint)


def test_files_that_readers_ignore_may_be_in_the_output(tmp_path: Path) -> None:
    output, checkpoint = pair(tmp_path)
    for name in (".DS_Store", "_SUCCESS", "_notes/read.me"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("x")
    (tmp_path / "out" / "event_date=2026-01-01").mkdir()
    check_pair(output, checkpoint)
    (tmp_path / "out" / "read.me").write_text("x")
    with pytest.raises(ConfigError, match=r"\(.*/out/read\.me\)"):
        check_pair(output, checkpoint)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--option", "acks=1"], "option acks='1' is unknown. Allowed for writing are"),
        (["nowhere.csv"], "there is no file nowhere.csv: set files"),
        (["--key", "b"], "there is no column b for the key in {folder}/rows.csv; there are a"),
        (["--timestamp", "at"], "there is no column at for the timestamp in {folder}/rows.csv"),
        (["--field", "c"], "there is no column c for the field in {folder}/rows.csv"),
        (["--schema", "c int"], "there is no column c for the schema in {folder}/rows.csv"),
        (["--schema", "a inte"], "inte is not a type; did you mean int?"),
        (
            ["--schema", "a array<int>"],
            "the schema has a composed type for a, which a CSV column cannot have",
        ),
        (["--format", "json", "--key", "b"], "there is no column b for the key in {folder}/rows.csv"),
        (["--format", "json", "--schema", "a int"], "a schema is for CSV: files of the format json contain"),
        (["--format", "parquet"], "{folder}/rows.csv is not in the format parquet"),
        (["--format", "orc"], "{folder}/rows.csv is not in the format orc"),
        (["--master", "locl"], "master 'locl' is unknown"),
        ([], "no broker can be reached (localhost:1: "),
    ],
)
def test_invalid_options_of_publish_are_refused_before_it_starts(
    tmp_path: Path, more: list[str], words: str
) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    told = failed_output(
        "publish", "-b", "localhost:1", "-t", "t", str(tmp_path / "*.csv"), *more, code=blamed(words)
    )
    assert words.replace("{folder}", str(tmp_path)) in told


@pytest.mark.parametrize("form", ["csv", "json"])
def test_empty_files_are_refused_before_spark_starts(tmp_path: Path, form: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.{form}").touch()
    arguments = ["publish", "-b", "localhost:1", "-t", "t", "--format", form, str(tmp_path / f"*.{form}")]
    told = failed_output(*arguments, code=2)
    assert f"{tmp_path}/a.{form} and 1 more: empty, without columns and rows to publish" in told
    (tmp_path / f"b.{form}").write_text("a\n1\n" if form == "csv" else '{"a": 1}\n')
    assert "no broker can be reached" in failed_output(*arguments, code=1)


def test_columns_are_found_where_spark_finds_them(tmp_path: Path) -> None:
    table = tmp_path / "table"
    (table / "year=2013").mkdir(parents=True)
    (table / "year=2013" / "rows.csv").write_text("\ufeffa;b\n1;2\n")
    given: list[tuple[str, str, dict[str, str], dict[str, str]]] = [
        (str(table), "csv", {"sep": ";"}, {"key": "a", "timestamp": "year"}),
        (str(table), "csv", {"header": "false", "SEP": ";"}, {"key": "_c1"}),
    ]
    late = tmp_path / "late.json"
    late.write_text('{"a": 1}\n' * 1500 + '{"late": 1}\n')
    given.append((str(late), "json", {}, {"key": "late"}))
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(b"x")
    given.append((str(packed), "csv", {}, {"key": "anything"}))
    for path, form, reader, wanted in given:
        assert refusal(check_files, [path], form, reader, wanted, None) == ""


def test_a_value_is_found_in_its_row(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text('a,b\n1,"two\nlines"\n\n2,x\n3\n')
    assert row_of(str(rows), "csv", {}, "b", "x") == f"{rows}, row 2 (line 5)"
    assert row_of(str(rows), "csv", {}, "b", "gone") == str(rows)
    assert row_of("s3a://b/rows.csv", "csv", {}, "b", "x") == "s3a://b/rows.csv"
    assert malformed_row_of(str(rows), {}) == f"{rows}, row 3 (line 6)"
    lines = tmp_path / "rows.json"
    lines.write_text('{"a": 1}\n{"a": "x"}\n')
    assert row_of(str(lines), "json", {}, "a", "x") == f"{lines}, line 2"


def test_the_environment_names_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", "localhost:2")
    assert "(localhost:2: " in failed_output("load", "-t", "t", "-o", str(tmp_path / "out"), code=1)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    assert "(localhost:2: " in failed_output("publish", "-t", "t", str(tmp_path / "rows.csv"), code=1)


def test_the_file_of_client_keys_names_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP", raising=False)
    (tmp_path / "client.properties").write_text("bootstrap.servers=localhost:2\n")
    (tmp_path / "rows.csv").write_text("a\n1\n")
    keys = ("--command-config", str(tmp_path / "client.properties"))
    assert "(localhost:2: " in failed_output("load", *keys, "-t", "t", "-o", str(tmp_path / "out"), code=1)
    assert "(localhost:2: " in failed_output("publish", *keys, "-t", "t", str(tmp_path / "rows.csv"), code=1)
    assert "(localhost:3: " in failed_output(
        "publish", *keys, "-b", "localhost:3", "-t", "t", str(tmp_path / "rows.csv"), code=1
    )


def test_missing_topics_are_reported_before_a_job_starts(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with Broker({"auto.create.topics.enable": "true"}) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("flights", 1, 1)
        load = ("load", "-b", broker.bootstrap, "-o", str(tmp_path / "out"))
        assert "there is no topic flight at" in failed_output(*load, "-t", "flight", code=1)
        assert "did you mean flights?" in failed_output(*load, "-t", "flight", code=1)
        publish = ("publish", "-b", broker.bootstrap, str(tmp_path / "rows.csv"))
        assert "Create it with tidemill topic create nowhere" in failed_output(
            *publish, "-t", "nowhere", code=1
        )
        created = (*publish, "-t", "nowhere", "--option", "createTopics=true")
        assert "Error: Spark was started" in CliRunner().invoke(command, list(created)).output
        with Admin(broker.bootstrap) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["flights"]
        # Valid jobs proceed to the start of Spark.
        for given in ((*load, "-t", "flights"), (*publish, "-t", "flights")):
            assert "Error: Spark was started" in CliRunner().invoke(command, list(given)).output
        # A load that continues reports the state of its topics itself.
        (tmp_path / "out.checkpoint" / "offsets").mkdir(parents=True)
        going_on = CliRunner().invoke(command, [*load, "-t", "gone"])
        assert "Error: Spark was started" in going_on.output


def is_taken(zone: str | None) -> bool:
    try:
        check_time_zone(zone)
    except ConfigError:
        return False
    return True


def test_time_zones_of_the_database_and_offsets_are_accepted() -> None:
    offsets = ["UTC", "Z", "+1", "+01:00", "-08:00:00", "GMT+2", "PST"]
    assert [zone for zone in (*zoneinfo.available_timezones(), *offsets, None) if not is_taken(zone)] == []


@pytest.mark.parametrize("zone", ["", "america/new_york", "+25:00", "gmt+1", "EST5", "New York"])
def test_other_time_zones_are_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        check_time_zone(zone)


def test_intervals_of_a_trigger_are_validated() -> None:
    for text in ("available-now", "10 seconds", "1 minute 30 seconds", "interval 1 HOUR", "1.5 seconds"):
        check_trigger(text)
    for text in ("availableNow", "10s", "10", "1 month", "-1 seconds", "10 ms", "", "seconds"):
        with pytest.raises(ConfigError, match="in words"):
            check_trigger(text)


class Session:
    """A session with the methods that an interrupt calls."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.createDataFrame = lambda *_: None
        self.sparkContext = SimpleNamespace(setLogLevel=lambda _: None, cancelAllJobs=lambda: None)
        self.streams = SimpleNamespace(active=[SimpleNamespace(stop=self.ended.set)])


def test_an_interrupt_ends_the_work_and_not_a_call_within_it() -> None:
    session: Any = Session()
    steps: list[str] = []
    handler = signal.getsignal(signal.SIGINT)

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert session.ended.wait(30)
        steps.append("ended in order")

    with pytest.raises(KeyboardInterrupt):
        interruptible(session, work, lambda: steps.append("told"))
    assert steps == ["told", "ended in order"]
    assert signal.getsignal(signal.SIGINT) == handler


def test_the_result_and_the_exception_of_the_work_are_passed_on() -> None:
    session: Any = Session()
    assert interruptible(session, lambda: 5) == 5
    with pytest.raises(ConfigError, match="wrong"):
        interruptible(session, lambda: raised(ConfigError("wrong")))


def raised(problem: Exception) -> NoReturn:
    raise problem


def test_paths_of_other_systems_are_left_to_spark() -> None:
    assert [path for path in ("a/b", "/a", "s3a://b/c", "hdfs:/x", "file:///x") if is_local(path)] == [
        "a/b",
        "/a",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[PATH_NOT_FOUND] Path does not exist: /x. SQLSTATE: 42K03\n\tat org", "Path does not exist: /x"),
        ("[A.B] Near 'x'. SQLSTATE: 42601 (line 1, pos 3)", "Near 'x'. (line 1, pos 3)"),
        ("an error of its own", "an error of its own"),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'x'\n\tat org.apache",
            "Could not parse Master URL: 'x'",
        ),
        (
            "Job aborted due to stage failure: Task 0 failed\n\tat a.B\nCaused by: java.io.IOException: a\n"
            "Caused by: java.lang.OutOfMemoryError: Java heap space\n\t... 5 more",
            "Java heap space",
        ),
        ("", "ValueError"),
    ],
)
def test_an_error_of_spark_becomes_one_line(text: str, line: str) -> None:
    assert explained(ValueError(text)) == line


def test_a_login_is_read_from_a_file_of_javas_tools(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    line = 'a.PlainLoginModule required username="u" password="p4ssword";'
    file.write_text(f"security.protocol=SASL_SSL\nsasl.jaas.config={line}\nclient.id=mine\n")
    given: dict[str, Any] = {
        "client_file": str(file),
        "bootstrap": "h:1",
        "extra": ("kafka.client.id=other",),
    }
    with click.Context(command):  # as in a call of the work
        assert _kafka_options(given) == {
            "kafka.bootstrap.servers": "h:1",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.jaas.config": line,
            "kafka.client.id": "other",
        }
    load = ("load", "-b", "localhost:1", "-t", "t", "-o", str(tmp_path / "out"))
    assert "(localhost:1: " in failed_output(*load, "--command-config", str(file), code=1)
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.jaas.config=a.PlainLoginModule required password=p4ssword;\n"
    )
    told = failed_output(*load, "--command-config", str(file))
    assert "PLAIN needs a username: set sasl.username" in told
    assert "p4ssword" not in told


def test_the_error_of_a_failing_java_has_its_output() -> None:
    gateway = ValueError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    failed_output = (
        "NOTE: Picked up options\nInvalid maximum heap size: -Xmxabc\nError: Could not create the JVM."
    )
    assert start_failure(gateway, failed_output) == (
        "Java ended before Spark had started (Invalid maximum heap size: -Xmxabc): check --conf and JAVA_HOME"
    )
    for before in ("", "nothing of this\n", "nor of this\nor that\n"):
        assert "started (the last words): check" in start_failure(gateway, f"{before}the last words\n")
    assert start_failure(gateway, "") == "Java ended before Spark had started: check --conf and JAVA_HOME"
    assert start_failure(ValueError("other"), failed_output) == "other"


def test_output_of_a_child_is_kept_until_it_is_forwarded(capfd: pytest.CaptureFixture[str]) -> None:
    with java_output_kept() as output:
        child = subprocess.Popen(
            [sys.executable, "-c", "import os; os.write(2, b'noise'); input(); os.write(2, b'a warning')"],
            stdin=subprocess.PIPE,
        )
        while output.text != "noise":
            time.sleep(0.01)
    os.write(2, b"of this process. ")
    output.forward()
    child.communicate(b"\n")
    deadline_s = time.monotonic() + 20
    told = ""
    while "a warning" not in told and time.monotonic() < deadline_s:
        told += capfd.readouterr().err
        time.sleep(0.01)
    assert told == "of this process. a warning"


class Failing:
    """A session in which every call fails as in Java."""

    sparkContext = SimpleNamespace(setLogLevel=lambda _: None)  # noqa: N815 - Spark's name
    createDataFrame = staticmethod(lambda *_: None)  # noqa: N815 - Spark's name

    def stop(self) -> None:
        """No-op: there is no session to stop."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("An error occurred while calling o1.load.\n: java.lang.Error: broken\n\tat a.B.c")


def test_a_failure_in_spark_is_one_line_with_a_trace_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tidemill.pipeline.jobs.session as session

    monkeypatch.setattr(session, "local_session", lambda *_, **__: Failing())
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1)
        publish = ["publish", "-b", broker.bootstrap, "-t", "t", str(tmp_path / "rows.csv")]
        for more, trace in (([], False), (["--verbose"], True)):
            done = CliRunner().invoke(command, [*publish, *more])
            assert done.exit_code == 1
            lines = done.output.splitlines()
            assert ("Traceback (most recent call last):" in lines) == trace
            assert lines[-1].startswith("Error: broken")
            assert ("--verbose shows the output of Spark" in lines[-1]) != trace
