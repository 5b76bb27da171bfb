"""``min.insync.replicas`` changes while a cluster works: what the checkers count by, and what they excuse."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest
from deposed_leaders import NEVER
from event_log import EventLog
from min_insync_setting import DEFAULT_PATH
from promises import ALL, Message, Promises, Sent, TopicSettings

from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import ConfigNode
from tidemill.model.configs import MIN_INSYNC

ID = bytes(range(16))
TP = ("t", 0)
PATH = ConfigNode.path("topics", "t")


class Changed:
    """A partition of three replicas that broker 1 leads; the session timeout is two seconds."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self.now = 10.0
        events = SimpleNamespace(violate=self.broken.append, count=self._count, add=lambda *_: None)
        self.promises = Promises(cast(EventLog, events), lambda: self.now)
        self.promises.deposed.session_s = 2.0
        self.promises.started_s = lambda _: 0.0
        self.promises.replica_ends = lambda _: {1: 10, 2: 0, 3: 0}
        self.promises.settings["t"] = TopicSettings(min_isr=1)
        self.promises.min_insync.begin(1)
        self.write(1)
        self.promises.topic_written("t", ID, {0: [1, 2, 3]}, {}, {})
        self.written(1, 2, 3)

    def _count(self, what: str, times: int = 1) -> None:
        self.counts[what] += times

    def write(self, value: int | None, path: str = PATH) -> None:
        """Writes the setting of the topic, or the default, to the store."""
        self.promises.min_insync.written(path, self._data(value))

    def read(self, value: int | None, broker: int = 1, path: str = PATH) -> None:
        """A broker has read it."""
        self.promises.min_insync.read(broker, path, self._data(value))

    @staticmethod
    def _data(value: int | None) -> bytes:
        return ConfigNode.encode({} if value is None else {MIN_INSYNC: str(value)})

    def written(self, *isr: int, leader: int = 1) -> None:
        """The store has another state."""
        self.promises.state_written(TP, leader, 1, isr)

    def acknowledged_alone(self, at_s: float) -> None:
        """Broker 1 acknowledges a record with acks=all that no other replica has."""
        self.now = at_s
        message = Message("p", 9)
        self.promises.sending(message, Sent(tp=TP, acks=ALL, session=-1, sequence=0, topic_id=ID))
        self.promises.acknowledged(TP, ID, 9, [message], sent_s=at_s - 0.1, answered_s=at_s, broker=1)

    @property
    def min_isr(self) -> int:
        """By which value the checkers count."""
        return self.promises.partitions[TP].holders.min_isr

    @property
    def eligible(self) -> set[int]:
        """The replicas that left while too few were in sync."""
        return self.promises.partitions[TP].holders.eligible


def test_the_checkers_use_the_topic_value_in_the_store() -> None:
    changed = Changed()
    changed.write(2)
    assert changed.min_isr == 2
    changed.write(None)
    assert changed.min_isr == 1
    assert changed.counts["min.insync.replicas raised"] == changed.counts["min.insync.replicas lowered"] == 1


def test_the_default_applies_to_a_topic_without_a_value() -> None:
    changed = Changed()
    changed.write(2, DEFAULT_PATH)
    assert changed.min_isr == 1
    changed.write(None)
    assert changed.min_isr == 2
    changed.write(1, DEFAULT_PATH)
    assert changed.min_isr == 1
    assert changed.counts["min.insync.replicas changed by its default"] == 1


@pytest.mark.parametrize("leader", [1, -1])
def test_a_changed_value_removes_the_eligible_replicas_of_a_partition_with_a_leader(leader: int) -> None:
    changed = Changed()
    changed.write(2)
    changed.written(1)
    changed.written(*([1] if leader > 0 else []), leader=leader)
    assert changed.eligible >= {2, 3}
    changed.write(1)
    assert (changed.eligible == set()) == (leader > 0)


def test_a_recreated_topic_with_a_value_ignores_a_changed_default() -> None:
    changed = Changed()
    changed.promises.deletions.by_name("t")
    changed.promises.topic_removed("t")
    changed.write(2, DEFAULT_PATH)
    changed.write(1)
    changed.promises.topic_written("t", ID, {0: [1, 2, 3]}, {}, {})
    assert changed.min_isr == 1


def test_the_same_value_changes_nothing() -> None:
    changed = Changed()
    changed.write(2)
    changed.written(1)
    changed.write(2)
    assert changed.eligible == {2, 3}


def raised_while_alone() -> Changed:
    """The value is raised while broker 1 is alone in sync."""
    changed = Changed()
    changed.written(1)
    changed.now = 20.0
    changed.write(2)
    return changed


def test_a_leader_that_has_not_read_a_raised_value_is_excused() -> None:
    changed = raised_while_alone()
    changed.acknowledged_alone(21.0)
    assert changed.broken == []
    assert changed.counts["excuse minimum-not-read"] == 1


def test_a_leader_that_has_read_a_raised_value_must_use_it() -> None:
    changed = raised_while_alone()
    changed.read(2, broker=2)
    changed.read(2)
    changed.acknowledged_alone(21.9)
    assert changed.broken == []
    changed.acknowledged_alone(22.6)
    (broken,) = changed.broken
    assert broken.startswith("min-isr: ")


def test_a_leader_that_reads_a_raised_value_too_late_is_found() -> None:
    changed = raised_while_alone()
    changed.acknowledged_alone(24.5)
    assert changed.broken == []
    changed.promises.deposed.woken(1, 24.6)
    changed.acknowledged_alone(29.0)
    assert changed.broken == []
    changed.acknowledged_alone(29.6)
    assert len(changed.broken) == 1


def test_a_leader_without_a_session_cannot_read_a_higher_value() -> None:
    changed = Changed()
    changed.written(1)
    changed.now = 20.0
    changed.write(2)
    changed.promises.deposed.session_ended(1, 23.0)
    changed.acknowledged_alone(35.0)
    assert changed.broken == []
    changed.promises.deposed.registered(1, 36.0)
    changed.acknowledged_alone(41.0)
    assert len(changed.broken) == 1


def test_a_leader_that_has_not_read_a_raised_default_is_excused() -> None:
    changed = Changed()
    changed.write(None)
    changed.read(None)
    changed.written(1)
    changed.now = 20.0
    changed.write(2, DEFAULT_PATH)
    changed.acknowledged_alone(21.0)
    assert changed.broken == []
    changed.read(2, path=DEFAULT_PATH)
    changed.acknowledged_alone(23.6)
    assert len(changed.broken) == 1


def elected_after_a_raise(*, is_read: bool) -> Changed:
    """Broker 1 is left alone in sync after a raise, and then broker 2 is elected."""
    changed = Changed()
    changed.now = 20.0
    changed.write(2)
    if is_read:
        changed.read(2)
    changed.now = 23.0
    changed.written(1)
    changed.now = 24.0
    changed.written(1)
    changed.promises.state_written(TP, 2, 2, (2,))
    return changed


def test_a_replica_that_left_before_a_raised_value_was_read_may_lack_committed_records() -> None:
    changed = elected_after_a_raise(is_read=False)
    assert changed.broken == []
    assert changed.counts["excuse minimum-not-read"] == 1
    assert changed.promises.may_forget(TP)


def test_records_after_an_excused_election_are_held_by_the_replicas_eligible_at_the_election() -> None:
    changed = Changed()
    changed.now = 20.0
    changed.write(2)
    changed.read(2, broker=2)
    changed.now = 21.0
    changed.written(1)
    changed.promises.state_written(TP, 2, 2, (2,))
    assert changed.counts["excuse minimum-not-read"] == 1
    changed.now = 22.0
    changed.promises.state_written(TP, 1, 3, (1,))
    assert changed.broken == [], "broker 1 is eligible, and nothing was committed without it"


def test_a_replica_that_left_after_a_raised_value_was_read_holds_committed_records() -> None:
    changed = elected_after_a_raise(is_read=True)
    assert changed.broken == []
    assert changed.counts["excuse minimum-not-read"] == 0
    assert not changed.promises.may_forget(TP)


def test_all_eligible_replicas_may_lack_records_after_the_election_of_one_that_does() -> None:
    """The leader had not read a raise yet, and loses its disk; then each of the eligible leads alone."""
    changed = Changed()
    changed.now = 20.0
    changed.write(2)
    changed.now = 21.0
    changed.written(1)
    changed.promises.replicas_lost(1, everything=True)
    changed.promises.registered(1, LostReplicas(missing=True))
    changed.promises.loss_read(1, LostReplicas(missing=True))
    changed.now = 22.0
    changed.promises.state_written(TP, 2, 2, (2,))
    changed.now = 23.0
    changed.promises.state_written(TP, 3, 3, (3,))
    assert changed.broken == []
    assert changed.counts["excuse minimum-not-read"] == 1


def test_values_of_a_deleted_topic_are_no_excuse() -> None:
    changed = Changed()
    changed.write(2)
    changed.written(1)
    changed.promises.min_insync.topic_removed("t")
    changed.write(2)
    changed.acknowledged_alone(20.0)
    assert len(changed.broken) == 1


@pytest.mark.parametrize("has_ended", [True, False])
def test_an_eligible_replica_may_be_elected_if_the_leader_had_ended_before_the_value_was_lowered(
    has_ended: bool,
) -> None:
    changed = Changed()
    changed.write(2)
    changed.written(1, 2)
    changed.written(1)
    assert changed.eligible == {2}
    if has_ended:
        changed.promises.started_s = lambda broker: None if broker == 1 else 0.0
    changed.write(1)
    changed.promises.state_written(TP, 2, 2, [2])
    assert [one.partition(":")[0] for one in changed.broken] == ["election"] * (not has_ended)
    assert changed.counts["excuse minimum-not-read"] == has_ended


@pytest.mark.parametrize(("troubled_s", "is_excused"), [(17.0, True), (10.5, False), (NEVER, True)])
def test_a_leader_whose_connection_to_the_store_breaks_reads_a_higher_value_later(
    troubled_s: float, is_excused: bool
) -> None:
    changed = Changed()
    changed.write(2)
    changed.read(2)
    changed.written(1)
    changed.promises.deposed.store_troubled(1, troubled_s)
    changed.acknowledged_alone(18.0)
    assert bool(changed.broken) is not is_excused
