"""What is wrong with a job is told before Spark is started."""

from __future__ import annotations

import os
import signal
import threading
import zoneinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from tidemill.cli.pipeline import _kafka_options, command
from tidemill.client import Admin
from tidemill.model.errors import ConfigError
from tidemill.pipeline.failures import explained
from tidemill.pipeline.jobs.before import check_time_zone, check_trigger, is_local
from tidemill.pipeline.jobs.session import interruptible
from tidemill.testing import Broker


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import tidemill.pipeline.jobs.session as session

    def started(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "local_session", started)


def blamed(words: str) -> int:
    """Nobody is to blame on the command line for a cluster that is not there."""
    return 1 if "no broker" in words else 2


def said(*arguments: str, code: int = 2) -> str:
    """Runs a command that is to fail, for wrong usage unless ``code`` says otherwise; what it says."""
    done: Result = CliRunner().invoke(command, list(arguments))
    assert done.exit_code == code
    assert not isinstance(done.exception, AssertionError)
    return done.output + str(done.exception)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--option", "foo=bar"], "option foo='bar' is unknown. Allowed for reading are"),
        (["--trigger", "10s"], "trigger '10s': available-now is allowed"),
        (["--time-zone", "Europe/Berlim"], "'Europe/Berlim' is not known; did you mean Europe/Berlin?"),
        (["--checkpoint", "{file}"], "the checkpoint {file} is a file"),
        (["--output", "{file}/out"], "the output {file}/out cannot be made: {file} is a file"),
        ([], "no broker can be reached (localhost:1: "),
    ],
)
def test_a_load_that_cannot_be(tmp_path: Path, more: list[str], words: str) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    given = [text.replace("{file}", str(file)) for text in more]
    told = said(
        "load", "-b", "localhost:1", "-t", "t", "-o", str(tmp_path / "out"), *given, code=blamed(words)
    )
    assert words.replace("{file}", str(file)) in told


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--option", "acks=1"], "option acks='1' is unknown. Allowed for writing are"),
        (["nowhere.csv"], "there is no file nowhere.csv: give files"),
        ([], "no broker can be reached (localhost:1: "),
    ],
)
def test_a_publication_that_cannot_be(tmp_path: Path, more: list[str], words: str) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    assert words in said(
        "publish", "-b", "localhost:1", "-t", "t", str(tmp_path / "*.csv"), *more, code=blamed(words)
    )


def test_the_environment_names_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", "localhost:2")
    assert "(localhost:2: " in said("load", "-t", "t", "-o", str(tmp_path / "out"), code=1)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    assert "(localhost:2: " in said("publish", "-t", "t", str(tmp_path / "rows.csv"), code=1)


def test_topics_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with Broker({"auto.create.topics.enable": "true"}) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("flights", 1, 1)
        load = ("load", "-b", broker.bootstrap, "-o", str(tmp_path / "out"))
        assert "there is no topic flight at" in said(*load, "-t", "flight", code=1)
        assert "did you mean flights?" in said(*load, "-t", "flight", code=1)
        publish = ("publish", "-b", broker.bootstrap, str(tmp_path / "rows.csv"))
        assert "make it with tidemill topic create nowhere" in said(*publish, "-t", "nowhere", code=1)
        with Admin(broker.bootstrap) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["flights"]
        # What is right comes as far as Spark.
        for given in ((*load, "-t", "flights"), (*publish, "-t", "flights")):
            assert str(CliRunner().invoke(command, list(given)).exception) == "Spark was started"
        # A load that goes on tells of its topics itself.
        (tmp_path / "out.checkpoint" / "offsets").mkdir(parents=True)
        going_on = CliRunner().invoke(command, [*load, "-t", "gone"])
        assert str(going_on.exception) == "Spark was started"


def is_taken(zone: str | None) -> bool:
    try:
        check_time_zone(zone)
    except ConfigError:
        return False
    return True


def test_time_zones_of_the_database_and_offsets_are_taken() -> None:
    offsets = ["UTC", "Z", "+1", "+01:00", "-08:00:00", "GMT+2", "PST"]
    assert [zone for zone in (*zoneinfo.available_timezones(), *offsets, None) if not is_taken(zone)] == []


@pytest.mark.parametrize("zone", ["", "america/new_york", "+25:00", "gmt+1", "EST5", "New York"])
def test_other_time_zones_are_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match="is not known"):
        check_time_zone(zone)


def test_intervals_of_a_trigger() -> None:
    for text in ("available-now", "10 seconds", "1 minute 30 seconds", "interval 1 HOUR", "1.5 seconds"):
        check_trigger(text)
    for text in ("availableNow", "10s", "10", "1 month", "-1 seconds", "10 ms", "", "seconds"):
        with pytest.raises(ConfigError, match="in words"):
            check_trigger(text)


class Session:
    """What an interrupt asks of a session."""

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


def test_what_the_work_gives_and_raises_comes_back() -> None:
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
        ("", "ValueError"),
    ],
)
def test_what_spark_says_becomes_a_line(text: str, line: str) -> None:
    assert explained(ValueError(text)) == line


def test_a_login_comes_from_a_file_of_javas_tools(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    line = 'a.PlainLoginModule required username="u" password="p4ssword";'
    file.write_text(f"security.protocol=SASL_SSL\nsasl.jaas.config={line}\nclient.id=mine\n")
    given: dict[str, Any] = {
        "client_file": str(file),
        "bootstrap": "h:1",
        "extra": ("kafka.client.id=other",),
    }
    assert _kafka_options(given) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": line,
        "kafka.client.id": "other",
    }
    load = ("load", "-b", "localhost:1", "-t", "t", "-o", str(tmp_path / "out"))
    assert "(localhost:1: " in said(*load, "--command-config", str(file), code=1)
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.jaas.config=a.PlainLoginModule required password=p4ssword;\n"
    )
    told = said(*load, "--command-config", str(file))
    assert "PLAIN needs a username: set sasl.username" in told
    assert "p4ssword" not in told
