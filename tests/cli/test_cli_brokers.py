"""``tidemill broker``: the brokers of a cluster, and their settings at run time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tidemill.cli import name_completion
from tidemill.cli.main import run
from tidemill.client import Admin
from tidemill.testing import Broker

Run = Callable[..., str]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    """A broker for one test, which changes its settings."""
    with Broker({"log.cleaner.threads": "1"}, data_dir=tmp_path / "data") as running:
        yield running


@pytest.fixture
def to_own(own: Broker, cli: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", own.bootstrap)
    return cli


def described(cli: Run, *arguments: str) -> Any:
    return {
        one["broker"]: one["configs"] for one in json.loads(cli("broker", "describe", *arguments, "--json"))
    }


def test_a_description_without_settings_names_the_option_for_all_keys(cli: Run, capfdbinary: Any) -> None:
    assert run(["broker", "describe", "default"]) == 0
    out, err = capfdbinary.readouterr()
    assert out == b"broker\tsetting\tvalue\tset by\tchanges\n"
    assert err == b"nothing is set: every key has its default; --configs shows all keys\n"


def test_brokers_are_listed(cli: Run, broker: Broker) -> None:
    (only,) = json.loads(cli("broker", "list", "--json"))
    assert f"{only['host']}:{only['port']}" == broker.bootstrap
    assert (only["id"], only["controller"]) == (1, True)
    assert (
        cli("broker", "list")
        == f"id\thost\tport\track\tcontroller\n1\t{only['host']}\t{only['port']}\t\tyes\n"
    )


def test_a_setting_is_shown_with_its_exact_source(tmp_path: Path, cli: Run) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nlog.retention.hours=5\n")
    told = tmp_path / "ready"
    command = [
        *(sys.executable, "-m", "tidemill", "serve", "--until-eof", "--ready-file", str(told)),
        *("--config", str(file), "--port", "0", "--data", str(tmp_path / "data")),
        *("--set", "message.max.bytes=2000000"),
    ]
    environment = {**os.environ, "TIDEMILL_LOG_SEGMENT_BYTES": "20000000"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not told.exists() or not told.read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (listener,) = json.loads(told.read_text())["listeners"]
        where = ("-b", f"127.0.0.1:{listener['port']}")
        found = described(cli, "1", *where)[1]
        for key, message in (
            ("num.partitions", f"{file}:1"),
            ("log.retention.hours", f"{file}:2"),
            ("message.max.bytes", "--set message.max.bytes"),
            ("log.segment.bytes", "environment TIDEMILL_LOG_SEGMENT_BYTES"),
        ):
            assert found[key]["set_by"] == message
        assert found["listeners"]["set_by"].startswith(("--port", "-p"))
        assert "message.max.bytes\t2000000\t--set message.max.bytes\t" in cli(
            "broker", "describe", "1", *where
        )
        cli("topic", "create", "t", *where)
        (topic,) = json.loads(cli("topic", "describe", "t", "--json", *where))
        assert topic["configs"]["segment.bytes"]["set_by"] == "environment TIDEMILL_LOG_SEGMENT_BYTES"
        cli("broker", "alter", "1", "--set", "message.max.bytes=3000000", *where)
        assert described(cli, "1", *where)[1]["message.max.bytes"]["set_by"] == "broker"
        # A broker with the embedded store starts a group at once, unless it is configured otherwise.
        every = described(cli, "1", "--configs", *where)[1]["group.initial.rebalance.delay.ms"]
        assert (every["value"], every["source"]) == ("0", "default")
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def test_settings_change_while_a_broker_runs_and_stay(own: Broker, to_own: Run) -> None:
    assert to_own("broker", "alter", "default", "--set", "message.max.bytes=2000000") == (
        "all brokers: message.max.bytes=2000000\n"
    )
    to_own("broker", "alter", "1", "--set", "message.max.bytes=3000000", "-s", "log.retention.ms=-1")
    found = described(to_own, "1", "default")
    assert found[1]["message.max.bytes"]["value"] == "3000000"
    assert found[1]["message.max.bytes"]["source"] == "broker"
    assert found[1]["log.cleaner.threads"]["source"] == "configuration file"
    assert [(key, one["value"]) for key, one in found["default"].items()] == [
        ("message.max.bytes", "2000000")
    ]
    to_own("topic", "create", "sized")
    with Admin(own.bootstrap) as admin:
        assert admin.topic_configs("sized")["max.message.bytes"].value == "3000000"
    own.restart()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMILL_BOOTSTRAP", own.bootstrap)
        assert described(to_own, "1")[1]["message.max.bytes"]["value"] == "3000000"
        to_own("broker", "alter", "1", "--unset", "message.max.bytes")
        assert described(to_own, "1")[1]["message.max.bytes"]["value"] == "2000000"
        told = json.loads(to_own("broker", "alter", "default", "--unset", "message.max.bytes", "--json"))
        assert told == {"broker": "default", "set": {}, "unset": ["message.max.bytes"], "changed": True}
        assert "message.max.bytes" not in described(to_own, "1")[1]


def test_lines_for_programs_show_when_a_setting_changes(to_own: Run) -> None:
    to_own("broker", "alter", "1", "--set", "log.retention.ms=86400000")
    lines = to_own("broker", "describe", "1", "--configs").splitlines()
    assert lines[0] == "broker\tsetting\tvalue\tset by\tchanges"
    assert "1\tlog.retention.ms\t86400000\tbroker\twhile it runs" in lines
    assert "1\tnum.network.threads\t3\tdefault\twhile it runs" in lines
    assert any(line.startswith("1\tlog.dirs\t") and line.endswith("\tat a restart") for line in lines)


def test_a_dry_run_changes_nothing(cli: Run) -> None:
    assert cli("broker", "alter", "1", "--set", "log.retention.ms=5", "--dry-run") == (
        "broker 1: would have log.retention.ms=5\n"
    )
    assert "log.retention.ms" not in described(cli, "1")[1]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("alter 1", 2, "nothing to change: give --set or --unset"),
        ("alter one --set a=b", 2, "'one' is not a broker: give a broker id, or default for all brokers"),
        ("alter 99999999999 --set a=b", 2, "is not a broker"),
        ("alter 1 --set a", 2, "it must be KEY=VALUE"),
        ("alter 1 --set a=1 --unset a", 2, "--set and --unset both name a"),
        ("alter 1 --set node.id=4", 1, "node.id cannot be changed while the broker runs"),
        ("alter 1 --set log.retention.mss=4", 1, "did you mean log.retention.ms?"),
        ("alter default --set log.retention.ms=soon", 1, "allowed is a whole number"),
        ("alter 1 --unset log.retention.ms", 1, "broker 1 has no such setting made at run time"),
        ("alter 7 --set log.retention.ms=4", 1, "broker 7 is not in the metadata"),
        ("describe 7", 1, "broker 7 is not in the metadata, which has 1; start it, or name another"),
        ("describe", 2, "Missing argument"),
    ],
)
def test_unalterable_settings_are_refused_with_the_reason(
    cli: Run, line: str, code: int, message: str
) -> None:
    assert message in cli("broker", *line.split(), code=code)


def test_a_shell_completes_brokers_and_run_time_settings(broker: Broker) -> None:
    context = click.Context(click.Command("alter"))
    context.params = {"bootstrap": broker.bootstrap}
    parameter = click.Argument(["broker"])
    assert name_completion.brokers(context, parameter, "") == ["1", "default"]
    assert name_completion.brokers(context, parameter, "d") == ["default"]
    assert "log.retention.ms=" in name_completion.run_time_settings(context, parameter, "log.ret")
    assert name_completion.run_time_keys(context, parameter, "node.i") == []


def test_settings_of_a_topic_are_printed_for_programs(cli: Run) -> None:
    cli("topic", "create", "asked", "--set", "cleanup.policy=compact")
    plain = cli("topic", "describe", "asked").splitlines()
    assert plain[0].split("\t")[5:8] == ["start", "end", "offsets"]
    assert plain[2:5] == ["", "topic\tsetting\tvalue\tset by", "asked\tcleanup.policy\tcompact\ttopic"]
    assert not any("retention.ms" in line for line in plain)
    told = cli("topic", "describe", "asked", "--configs").splitlines()
    assert told[:4] == plain[:4]
    assert "asked\tcleanup.policy\tcompact\ttopic" in told
    assert "asked\tretention.ms\t604800000\tdefault" in told


def test_every_partition_of_a_new_topic_without_a_log_is_named(own: Broker, to_own: Run) -> None:
    for number in (1, 3):
        (Path(own.data_dir) / f"blocked-{number}").touch()
    message = to_own("topic", "create", "blocked", "-p", "5", code=1)
    assert (
        "the topic was created, but partitions 1, 3 of blocked have no log here; 1: cannot create" in message
    )
    assert "blocked-1: Not a directory; a file exists in place of a directory" in message
    assert "already exists" in to_own("topic", "create", "blocked", code=1)


def test_the_broker_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "--help"]) == 0
    assert "alter" in capsys.readouterr().out
