"""``tidemill broker dirs`` and ``move``: data directories, and replicas that move between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tidemill.cli.log_dirs import _await_moves
from tidemill.client import Producer
from tidemill.client.admin_types import LogDirectory, ReplicaSize
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker

ITEM = TopicPartition("t", 0)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Broker, str, str]]:
    """A broker with two data directories; returns both."""
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    with Broker({"log.dirs": f"{first},{second}", "num.partitions": 2}, data_dir=first) as running:
        monkeypatch.setenv("TIDEMILL_BOOTSTRAP", running.bootstrap)
        yield running, first, second


def test_a_partition_moves_to_another_directory(
    cli: Callable[..., str], two: tuple[Broker, str, str]
) -> None:
    broker, first, second = two
    with Producer(broker.bootstrap) as producer:
        for at in range(20):
            producer.send("t", b"v" * 500, partition=at % 2)
    listed = json.loads(cli("broker", "dirs", "--json"))
    assert [(one["broker"], one["directory"]) for one in listed] == [(1, first), (1, second)]
    assert sum(one["partitions"] for one in listed) == 2
    assert all(one["free_bytes"] > 0 and one["error"] is None for one in listed)
    for target in (first, second):
        # At least one of the two moves data, whichever directory has the replica; the other ends at once.
        assert (
            cli("broker", "move", "t-0", "t-1", "--to", target)
            == f"moved 2 partitions to {target} of broker 1\n"
        )
        assert {path.name for path in Path(target).glob("t-?")} == {"t-0", "t-1"}
    head, *rows = cli("broker", "dirs", "1").splitlines()
    assert head.split("\t") == [
        "broker",
        "directory",
        "partitions",
        "size",
        "free",
        "total",
        "arriving",
        "state",
    ]
    assert [row.split("\t")[2] for row in rows] == ["0", "2"]
    told = json.loads(cli("broker", "move", "t-0", "--to", first, "--broker", "1", "--json"))
    assert told == {"broker": 1, "directory": first, "moved": ["t-0"], "on_the_way": []}
    assert len(cli("consume", "t", "--from-beginning", "-e").splitlines()) == 20

    for words, reason in (
        (["move", "t-7", "--to", first], "broker 1 has no replica of t-7"),
        (
            ["move", "t-0", "--to", "/nowhere"],
            f"--to /nowhere is not a data directory; there are (with broker) {first} (1)",
        ),
        (["move", "t", "--to", first], "'t' is not a partition: write TOPIC-PARTITION"),
        (["dirs", "9"], "there is no broker 9; there are 1"),
    ):
        code = 2 if "is not a partition" in reason else 1
        assert reason in " ".join(cli("broker", *words, code=code).split())


class ScriptedAdmin:
    """An admin client whose broker reports one state after the other."""

    def __init__(self, *states: list[LogDirectory]) -> None:
        self.states = list(states)

    def describe_log_dirs(self, brokers: list[int]) -> dict[int, list[LogDirectory]]:
        return {brokers[0]: self.states.pop(0) if len(self.states) > 1 else self.states[0]}


def state(at: str, copied: int = -1) -> list[LogDirectory]:
    """The replica is in ``at``, and a copy of that size is in /b."""
    return [
        LogDirectory(
            path,
            None,
            -1,
            -1,
            ([ReplicaSize("t", 0, 100, 0, False)] if path == at else [])
            + ([ReplicaSize("t", 0, copied, 0, True)] if path == "/b" and copied >= 0 else []),
        )
        for path in ("/a", "/b")
    ]


def test_a_move_is_awaited_until_its_end_or_the_timeout() -> None:
    there: Any = ScriptedAdmin(state("/a", 0), state("/a", 60), state("/b"))
    assert _await_moves(there, 1, [ITEM], "/b", None) == []
    slow: Any = ScriptedAdmin(state("/a", 10))
    assert _await_moves(slow, 1, [ITEM], "/b", 0.0) == [ITEM]
    # The copy replaces the partition between two requests.
    quick: Any = ScriptedAdmin(state("/a"), state("/b"))
    assert _await_moves(quick, 1, [ITEM], "/b", 5.0) == []
    given_up: Any = ScriptedAdmin(state("/a", 10), state("/a"))
    with pytest.raises(click.ClickException, match="the move of t-0 was abandoned"):
        _await_moves(given_up, 1, [ITEM], "/b", None)
