"""The checker finds each anomaly that is planted in an innocent history, and nothing in that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fault_checker import Readers, check
from fault_history import Event, History, read
from fault_kinds import together

READERS = Readers(to_end=frozenset({"reader"}), group=frozenset({"m1", "m2"}))


def event(op: str, **fields: Any) -> Event:
    """One event; the time does not matter."""
    return {"op": op, "at": 0.0, **fields}


def innocent() -> list[Event]:
    """Six messages of two writers in one partition, read by a reader and by a group that rebalances."""
    values = ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2"]
    records = [[0, offset, value] for offset, value in enumerate(values)]
    events = []
    for offset, value in enumerate(values):
        writer, number = value.split()
        events.append(event("send", by=writer, p=0, n=int(number)))
        events.append(event("ack", by=writer, p=0, n=int(number), o=offset))
    events.append(event("send", by="a", p=0, n=3))
    events.append(event("fail", by="a", p=0, n=3, error="refused", sure=True))
    events.append(event("poll", by="reader", m=records[:2]))
    events.append(event("poll", by="reader", m=records[2:]))
    events.append(event("place", by="m1", p=[0]))
    events.append(event("poll", by="m1", m=records[:4]))
    events.append(event("commit", by="m1", p=0, o=3))
    events.append(event("place", by="m2", p=[0]))
    events.append(event("poll", by="m2", m=records[3:]))
    events.append(event("final", p=0, m=[[offset, value] for _, offset, value in records]))
    return events


def kinds(events: list[Event], idempotent: str = "ab") -> set[str]:
    """What is found."""
    found, _ = check(events, idempotent, READERS)
    return {one.kind for one in found}


def test_an_innocent_history_has_no_anomalies() -> None:
    found, counts = check(innocent(), "ab", READERS)
    assert found == []
    assert (counts["ack"], counts["records"]) == (6, 13)


def final(change: Callable[[list[list[Any]]], None]) -> Callable[[list[Event]], None]:
    """Changes what is there at the end."""
    return lambda events: change(events[-1]["m"])


def polls(by: str) -> Callable[[list[Event]], list[list[list[Any]]]]:
    """The records of a reader's polls."""
    return lambda events: [one["m"] for one in events if one["op"] == "poll" and one["by"] == by]


def _lose_the_last(events: list[Event]) -> None:
    del events[-1]["m"][-1]
    for one in events:
        if one["op"] == "poll":
            one["m"] = [record for record in one["m"] if record[2] != "b 2"]


def _read_internally_skipping(events: list[Event]) -> None:
    del polls("reader")(events)[1][1]


def _read_externally_skipping(events: list[Event]) -> None:
    del polls("reader")(events)[1][0]


def _read_again(events: list[Event]) -> None:
    found = polls("reader")(events)
    found[1][0:0] = [found[0][1]]


def _stop_early(events: list[Event]) -> None:
    del polls("reader")(events)[1][-1]


def _forget_the_commit(events: list[Event]) -> None:
    found = polls("m2")(events)
    found[0][0:0] = [polls("m1")(events)[0][2]]


def _skip_in_the_group(events: list[Event]) -> None:
    del polls("m2")(events)[0][:2]


def _see_another(events: list[Event]) -> None:
    polls("reader")(events)[0][1][2] = "a 3"


def _acknowledge_elsewhere(events: list[Event]) -> None:
    next(one for one in events if one["op"] == "ack" and one["n"] == 1)["o"] = 5


def _write_what_was_refused(events: list[Event]) -> None:
    events[-1]["m"].append([6, "a 3"])


def _leave_a_hole(events: list[Event]) -> None:
    events[-1]["m"][-1][0] = 7


def _swap(values: list[list[Any]]) -> None:
    values[2][1], values[4][1] = values[4][1], values[2][1]


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        ("lost", _lose_the_last),
        ("vanished", _see_another),
        ("inconsistent-offset", _acknowledge_elsewhere),
        ("duplicate", final(lambda values: values.append([6, "b 2"]))),
        ("reordered", final(_swap)),
        ("phantom", final(lambda values: values.append([6, "c 0"]))),
        ("refused-but-there", _write_what_was_refused),
        ("hole", _leave_a_hole),
        ("nonmonotonic-poll", _read_again),
        ("internal-skip", _read_internally_skipping),
        ("external-skip", _read_externally_skipping),
        ("group-back", _forget_the_commit),
        ("group-skip", _skip_in_the_group),
        ("unread", _stop_early),
        ("reset", lambda events: events.insert(-1, event("reset", by="reader", p=0, error="gone"))),
    ],
)
def test_what_is_planted_is_found(kind: str, plant: Callable[[list[Event]], None]) -> None:
    events = innocent()
    plant(events)
    assert kind in kinds(events)


def test_only_writers_that_are_idempotent_write_once() -> None:
    events = innocent()
    events[-1]["m"].append([6, "b 2"])
    assert "duplicate" not in kinds(events, "a")


def test_a_history_is_read_as_it_was_written_and_knows_its_gaps(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl", 2)
    history.begin_gap()
    history.add("send", by="a", p=0, n=1)
    history.add("ack", by="a", p=0, n=1, o=0)
    assert not history.acknowledged_since(0)
    history.add("ack", by="a", p=1, n=1, o=0)
    assert history.acknowledged_since(0)
    assert 0 < history.gap() < 60
    history.close()
    assert [one["op"] for one in read(history.path)] == ["send", "ack", "ack"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("other", ["cut-pair", "kill-zookeeper", "full-disk-leader"])
def test_of_two_faults_at_once_brokers_start_last(other: str, seed: int) -> None:
    ended: list[str] = []

    class Target:
        random = Random(seed)

        def hold(self, low_s: float, high_s: float) -> None:
            pass

    def kind(name: str) -> Any:
        def fault(target: Any) -> Iterator[str]:
            yield ""
            ended.append(name)

        return fault

    target: Any = Target()
    for _ in together(target, {name: kind(name) for name in (other, "kill-all")}):
        assert ended == []
    assert ended == [other, "kill-all"]
