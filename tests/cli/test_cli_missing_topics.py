"""Missing topics: suggestions, creation on request, and confirmations on a terminal."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.client import Consumer
from tidemill.client.errors import ClientError
from tidemill.testing import Broker

Run = Callable[..., str]


def test_the_error_of_a_missing_topic_suggests_a_similar_topic(cli: Run) -> None:
    cli("topic", "create", "departures")
    assert "; did you mean departures?" in cli("topic", "describe", "departure", code=1)


def test_a_missing_topic_is_created_only_on_request(broker: Broker, cli: Run, tmp_path: Path) -> None:
    cli("topic", "create", "orders")
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    message = cli("produce", "ordres", "-f", str(lines), code=1)
    assert message == (
        "tidemill: topic 'ordres' does not exist: 'tidemill topic create ordres' creates it, or --create of "
        "this command; did you mean orders?\n"
    )
    assert "ordres" not in cli("topic", "list")
    cli("produce", "returns", "-f", str(lines), "--create")
    cli("produce", "returns", "-f", str(lines), "--create")
    assert cli("consume", "returns", "--from-beginning", "-n", "4", "--timeout", "20s").count("one\n") == 2
    with Consumer(broker.bootstrap) as consumer, pytest.raises(ClientError, match="UNKNOWN_TOPIC"):
        consumer.partitions_for("ordres")


@pytest.mark.parametrize("group", [(), ("-g", "fleet-readers")])
def test_a_missing_topic_cannot_be_read_and_is_not_created(cli: Run, group: tuple[str, ...]) -> None:
    cli("topic", "create", "fleets", "--if-not-exists")
    message = cli("consume", "fleet", "-e", *group, code=1)
    assert message == (
        "tidemill: topic 'fleet' does not exist: 'tidemill topic create fleet' creates it, 'tidemill topic "
        "list' shows the topics; did you mean fleets?\n"
    )
    assert "fleet " not in cli("topic", "list").replace("\t", " ")


def on_a_terminal(broker: Broker, answer: str, topic: str) -> tuple[int, str]:
    """``echo line | tidemill produce TOPIC`` on a terminal with the typed ``answer``; returns exit code and
    screen.
    """
    return typed(answer, f"echo a line | {sys.executable} -m tidemill produce {topic} -b {broker.bootstrap}")


def typed(answer: str, command: str) -> tuple[int, str]:
    """A shell line on a terminal with the typed ``answer``; returns exit code and screen."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    screen = b""
    try:
        while piece := os.read(descriptor, 4096):
            screen += piece
            if answer and b"[y/N]" in screen:
                os.write(descriptor, answer.encode())
                answer = ""
    except OSError:
        pass
    finally:
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, screen.decode()


def test_produce_on_a_terminal_asks_whether_to_create_a_topic(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "flights")
    code, screen = on_a_terminal(broker, "n\n", "fligths")
    assert code == 1
    assert "topic 'fligths' does not exist; did you mean flights? Create 'fligths'? [y/N]" in screen
    assert "fligths" not in cli("topic", "list")
    code, screen = on_a_terminal(broker, "y\n", "landings")
    assert "topic 'landings' does not exist. Create 'landings'? [y/N]" in screen
    assert code == 0, screen
    assert cli("consume", "landings", "--from-beginning", "-n", "1", "--timeout", "20s") == "a line\n"


def test_a_refused_confirmation_is_a_failure_without_changes(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "kept")
    delete = f"{sys.executable} -m tidemill topic delete kept -b {broker.bootstrap}"
    code, screen = typed("n\n", delete)
    assert (code, "tidemill: nothing was done: not confirmed" in screen) == (1, True)
    assert "kept\t" in cli("topic", "list")
    assert typed("y\n", delete)[0] == 0
    assert "kept\t" not in cli("topic", "list")
