"""The checker finds each anomaly that is planted in a correct history, and none in the correct history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fault_checker import Clients, check
from fault_excuses import DEPOSED_S
from fault_history import Event, History, read
from fault_kinds import LOSSES, together
from fault_results import Results, source_digest

CLIENTS = Clients(idempotent=frozenset("ab"), to_end=frozenset({"reader"}), group=frozenset({"m1", "m2"}))
LOOSE = 0
"""The partition of the histories, for those in which it is not synced."""


def event(op: str, **fields: Any) -> Event:
    """Creates an event; the time is not relevant."""
    return {"op": op, "at": 0.0, **fields}


def correct_history() -> list[Event]:
    """Six messages of two writers in one partition, read by a reader and by a group that rebalances."""
    values = ["a 0", "b 0", "a 1", "b 1", "a 2", "b 2"]
    records = [[0, offset, value] for offset, value in enumerate(values)]
    events = []
    for offset, value in enumerate(values):
        writer, number = value.split()
        events.append(event("send", by=writer, p=0, n=int(number)))
        events.append(event("ack", by=writer, p=0, n=int(number), o=offset, acks=-1))
    return [
        *events,
        event("send", by="a", p=0, n=3),
        event("fail", by="a", p=0, n=3, error="refused", sure=True),
        event("poll", by="reader", m=records[:2]),
        event("poll", by="reader", m=records[2:]),
        event("place", by="m1", p=[0]),
        event("poll", by="m1", m=records[:4]),
        event("commit", by="m1", p=0, o=3),
        event("place", by="m2", p=[0]),
        event("poll", by="m2", m=records[3:]),
        event("final", p=0, s=0, m=[[offset, value] for _, offset, value in records]),
    ]


def kinds(events: list[Event], clients: Clients = CLIENTS, *loose: int) -> set[str]:
    """Returns the kinds of the found anomalies."""
    found, _ = check(events, clients, loose)
    return {one.kind for one in found}


def test_a_correct_history_has_no_anomalies() -> None:
    found, counts = check(correct_history(), CLIENTS)
    assert found == []
    assert (counts["ack"], counts["records"]) == (6, 13)


def final(change: Callable[[list[list[Any]]], None]) -> Callable[[list[Event]], None]:
    """Changes the final content."""
    return lambda events: change(events[-1]["m"])


def polls(by: str) -> Callable[[list[Event]], list[list[list[Any]]]]:
    """Returns the records of a reader's polls."""
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
def test_planted_anomalies_are_found(kind: str, plant: Callable[[list[Event]], None]) -> None:
    events = correct_history()
    plant(events)
    assert kind in kinds(events)


def test_only_idempotent_writers_write_once() -> None:
    events = correct_history()
    events[-1]["m"].append([6, "b 2"])
    assert "duplicate" not in kinds(events, CLIENTS._replace(idempotent=frozenset("a")))


def deleted_to(events: list[Event], begin: int, asked: int, answered: int) -> None:
    """Sets the final log start offset; DeleteRecords was requested for one offset, and returned another."""
    events[-1]["s"] = begin
    events[-1]["m"] = events[-1]["m"][begin:]
    events.insert(-1, event("deleting", p=0, o=asked))
    events.insert(-1, event("deleted", p=0, o=answered))


def test_only_deleted_records_may_be_missing() -> None:
    events = correct_history()
    deleted_to(events, 3, 3, 3)
    assert kinds(events) == set()
    events = correct_history()
    deleted_to(events, 4, 3, 3)
    assert "overdeleted" in kinds(events)
    events = correct_history()
    deleted_to(events, 2, 3, 3)
    assert kinds(events) == {"undeleted"}


def test_deleted_records_were_read_before() -> None:
    events = correct_history()
    polls("reader")(events)[0][1][2] = "a 3"
    deleted_to(events, 3, 3, 3)
    assert "lost" in kinds(events)


def test_an_acknowledgement_without_an_offset_is_kept_after_a_kept_one() -> None:
    events = correct_history()
    next(one for one in events if one["op"] == "ack" and one["by"] == "b" and one["n"] == 1)["o"] = -1
    deleted_to(events, 4, 4, 4)
    assert kinds(events) == set()
    # All earlier and later messages exist: this message must exist as well.
    events = correct_history()
    next(one for one in events if one["op"] == "ack" and one["by"] == "b" and one["n"] == 1)["o"] = -1
    events[-1]["m"][3][1] = "a 3"
    assert "lost" in kinds(events)


def with_acks_1(events: list[Event]) -> list[Event]:
    """The last message of a correct history was acknowledged by its leader alone, and is missing."""
    _lose_the_last(events)
    acks = [one for one in events if one["op"] == "ack"]
    acks[-1]["acks"] = 1
    return events


def led(events: list[Event], epoch: int, at: float) -> None:
    """The store has an epoch at that time, written just before."""
    events.insert(-1, event("state", p=0, epoch=epoch, leader=1, isr=[1], since=at - 0.5) | {"at": at})


@pytest.mark.parametrize(
    ("changed_s", "is_excused"),
    [(None, False), (1.0, True), (50.0, True), (-50.0, False)],
)
def test_a_message_with_acks_1_may_be_lost_with_its_leader(changed_s: float | None, is_excused: bool) -> None:
    events = with_acks_1(correct_history())
    led(events, 5, -100.0)
    if changed_s is not None:
        led(events, 6, changed_s)
    found, counts = check(events, CLIENTS)
    assert {one.kind for one in found} == (set() if is_excused else {"lost"})
    assert counts["excused by a new leader"] == is_excused


def test_a_message_with_acks_1_is_committed_with_a_later_one_of_all_replicas() -> None:
    events = correct_history()
    next(one for one in events if one["op"] == "ack" and one["by"] == "a" and one["n"] == 1)["acks"] = 1
    for one in events:
        if one["op"] == "ack" and one["n"] == 2:
            one["at"] = 1.0
    events[-1]["m"][2][1] = "a 3"
    led(events, 5, -100.0)
    led(events, 6, 50.0)
    assert "lost" in kinds(events)
    # If the leader had changed between the two, the later one would prove nothing about the earlier.
    led(events, 7, 0.5)
    assert "lost" not in kinds(events)


def test_a_leader_may_receive_the_state_of_its_successor_late() -> None:
    events = with_acks_1(correct_history())
    led(events, 5, -100.0)
    led(events, 6, 10.0)
    sent = [one for one in events if one["op"] == "send" and one["by"] == "b"]
    sent[-1]["at"] = 10.0 + DEPOSED_S - 1
    next(one for one in reversed(events) if one["op"] == "ack")["at"] = 50.0
    assert kinds(events) == set()
    sent[-1]["at"] = 10.0 + DEPOSED_S + 1
    assert kinds(events) == {"lost"}


def power_cut(events: list[Event], brokers: list[int], at: float) -> None:
    """Brokers lose their unsynced data."""
    events.insert(-1, event("loss", brokers=brokers, what="power") | {"at": at})


@pytest.mark.parametrize(
    ("losers", "settled_s", "is_excused"),
    [
        ([1, 2, 3], None, True),
        ([1, 2], None, True),
        ([1], None, False),
        # Once all replicas were in sync, all had the message.
        ([1, 2, 3], 5.0, True),
        ([1, 2], 5.0, False),
    ],
)
def test_unsynced_records_may_be_lost_by_all_their_replicas(
    losers: list[int], settled_s: float | None, is_excused: bool
) -> None:
    events = correct_history()
    _lose_the_last(events)
    if settled_s is not None:
        events.insert(-1, event("settled") | {"at": settled_s})
    power_cut(events, losers, 10.0)
    assert kinds(events, CLIENTS, LOOSE) == (set() if is_excused else {"lost"})
    assert kinds(events) == {"lost"}, "of a partition that is synced nothing is lost"


def test_an_interrupted_run_continues_for_the_same_source(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.py").write_text("1")
    digest = source_digest(tmp_path, ["src"])
    results = Results(tmp_path / digest)
    results.add({"seed": 1}, {"wrong": []})
    again = Results(tmp_path / digest)
    assert (again.first_seed, again.find({"seed": 1}), again.find({"seed": 2})) == (
        results.first_seed,
        {"wrong": []},
        None,
    )
    assert Results(tmp_path / digest, anew=True).find({"seed": 1}) is None
    (tmp_path / "src" / "one.py").write_text("2")
    assert source_digest(tmp_path, ["src"]) != digest


def test_a_history_round_trips_and_measures_its_gaps(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl", 2)
    history.begin_gap()
    history.add("send", by="a", p=0, n=1)
    history.add("ack", by="a", p=0, n=1, o=0, acks=-1)
    history.add("ack", by="a", p=1, n=1, o=0, acks=1)
    assert not history.acknowledged_since(0)
    history.add("ack", by="a", p=1, n=2, o=1, acks=-1)
    assert history.acknowledged_since(0)
    assert 0 < history.gap() < 60
    history.close()
    assert [one["op"] for one in read(history.path)] == ["send", "ack", "ack", "ack"]


def test_at_most_one_of_two_concurrent_faults_destroys_data() -> None:
    said: list[str] = []

    class Target:
        def hold(self, low_s: float, high_s: float) -> None:
            pass

    def kind(name: str) -> Any:
        def fault(target: Any) -> Iterator[str]:
            yield ""

        return fault

    target: Any = Target()
    for seed in range(200):
        target.random = Random(seed)
        said += together(target, {name: kind(name) for name in (*LOSSES, "kill-all", "cut-pair")})
    pairs = [text.split(" and ") for text in said]
    assert all(len(LOSSES.keys() & pair) <= 1 for pair in pairs)
    assert {"power-cut-leader", "empty-disk-leader"} <= {name for pair in pairs for name in pair}
    assert "power-cut-all" not in {name for pair in pairs for name in pair}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("other", ["cut-pair", "kill-zookeeper", "full-disk-leader"])
def test_brokers_start_last_after_two_concurrent_faults(other: str, seed: int) -> None:
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
