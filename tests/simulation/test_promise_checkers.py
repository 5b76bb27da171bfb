"""Histories that break a promise, and others that do not: what the checkers say of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from compaction_promise import Raw
from event_log import EventLog
from keyed_messages import is_tombstone, key_of
from promises import ALL, GROUPS_LOG, LEADER, Message, Promises, Sent, TopicSettings
from restart_promise import RestartPromise, is_compared
from simulated_clients import LATEST, Consumer, Refused
from simulated_compaction import CleaningCheck
from simulated_disk import SimulatedFiles
from simulated_loop import SimulatedLoop, wall_ms_at

from record_builders import build_batch
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.log.file_names import LOG, SWAP, offset_name
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig

ID = bytes(range(16))
TP = ("t", 0)


class Checked:
    """A partition of three replicas whose records are acknowledged, and what its checker finds broken."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self.ends = {1: 10, 2: 10, 3: 10}
        self.now = 20.0
        events = SimpleNamespace(violate=self.broken.append, count=self._count, add=lambda *_: None)
        self.promises = Promises(cast(EventLog, events), lambda: self.now)
        self.promises.replica_ends = lambda _: self.ends
        self.promises.topic_written("t", ID, {0: [1, 2, 3]}, {}, {})
        self.written(1, 2, 3)

    def _count(self, what: str, times: int = 1) -> None:
        self.counts[what] += times

    @property
    def only_finding(self) -> str:
        """The only broken promise."""
        (broken,) = self.broken
        return broken

    def written(self, *isr: int, leader: int = 1, epoch: int = 1) -> None:
        """The store has another state."""
        self.promises.state_written(TP, leader, epoch, isr)

    def sent(self, offset: int) -> Message:
        """A record was sent with acks=all, and is stored at this offset."""
        message = Message("p", offset)
        self.promises.sending(message, Sent(tp=TP, acks=ALL, session=-1, sequence=0, topic_id=ID))
        return message

    def acknowledged(self, offset: int, answered_s: float = 20.0) -> None:
        """A record was acknowledged with acks=all."""
        self.promises.acknowledged(
            TP, ID, offset, [self.sent(offset)], sent_s=19.0, answered_s=answered_s, broker=1
        )

    def read(self, offset: int, answered_s: float) -> None:
        """A consumer was given a record, by an answer that was sent at this time."""
        self.promises.saw(TP, ID, offset, self.sent(offset), answered_s, answered_s, 1)

    def ends_empty(self) -> None:
        """Nothing is there in the end."""
        self.promises.check_log(TP, ID, 0, 0, [])

    def reported(self, broker: int, lost: LostReplicas) -> None:
        """A broker has registered, and the controller has read what it may have lost."""
        self.promises.registered(broker, lost)
        self.promises.loss_read(broker, lost)

    def waits_for_operator(self) -> bool:
        """Whether the partition has no leader, and waits for an operator."""
        return self.promises.partitions[TP].waits_for_operator

    def lose_all_and_recover(self) -> None:
        """All replicas lost their disks; the partition restarts ten seconds later."""
        for broker in (1, 2, 3):
            self.promises.replicas_lost(broker, everything=True)
            self.reported(broker, LostReplicas(missing=True))
        self.now += 10.0
        self.written(leader=-1, epoch=2)
        self.written(2, leader=2, epoch=3)


def test_a_replica_of_the_isr_without_an_acknowledged_record_is_found() -> None:
    checked = Checked()
    checked.acknowledged(9)
    assert checked.broken == []
    checked.ends[3] = 9
    checked.acknowledged(9)
    assert checked.only_finding.startswith(
        "in-sync: ('t', 0) offset 9 was acknowledged, and broker 3 of the ISR"
    )


def test_a_replica_that_joins_the_isr_without_an_acknowledged_record_is_found() -> None:
    checked = Checked()
    checked.written(1, 2)
    checked.ends[3] = 9
    checked.acknowledged(9)
    assert checked.broken == [], "it is not in sync"
    checked.written(1, 2, 3)
    assert checked.only_finding.startswith("in-sync: ")


def test_a_replica_with_a_lost_disk_may_lack_acknowledged_records() -> None:
    checked = Checked()
    checked.promises.replicas_lost(3, everything=True)
    checked.ends[3] = 0
    checked.acknowledged(9)
    assert checked.broken == []


# -- enough replicas for an answer


def three_that_stay(checked: Checked) -> None:
    """Three brokers that run since long, all of which a record needs."""
    checked.now = 18.0
    checked.promises.settings["t"] = TopicSettings(min_isr=3)
    checked.promises.topic_written("t", ID, {0: [1, 2, 3]}, {}, {})
    checked.written(1, 2, 3)
    checked.now = 20.0
    checked.promises.started_s = lambda _: 0.0


def test_an_acknowledgement_without_enough_replicas_is_found() -> None:
    checked = Checked()
    three_that_stay(checked)
    checked.acknowledged(9)
    assert checked.broken == []
    del checked.ends[3]
    checked.acknowledged(9)
    assert checked.only_finding.startswith(
        "min-isr: ('t', 0) offset 9 was acknowledged while 2 of (1, 2, 3) had it"
    )


@pytest.mark.parametrize("since", ["started", "stopped", "changed", ""])
def test_an_acknowledgement_with_replicas_changed_since_the_request_is_excused(since: str) -> None:
    checked = Checked()
    three_that_stay(checked)
    if since == "changed":
        checked.now = 19.0
        checked.written(1, 2, 3)
        checked.now = 20.0
    elif since == "started":
        checked.promises.started_s = lambda broker: 19.5 if broker == 3 else 0.0
    elif since == "stopped":
        checked.promises.started_s = lambda broker: None if broker == 3 else 0.0
        checked.promises.stopped_s = lambda broker: 19.5
    checked.acknowledged(9)
    assert not any(one.startswith("excuse") for one in checked.counts), "all have it"
    checked.ends[3] = 9
    checked.promises.partitions[TP].holders.isr = (1, 2)
    checked.acknowledged(9)
    counted = {one: count for one, count in checked.counts.items() if one.startswith("excuse")}
    if not since:
        assert [one.partition(":")[0] for one in checked.broken] == ["min-isr"]
    else:
        excuse = "changed-since" if since == "changed" else "restarted-since"
        assert (checked.broken, counted) == ([], {f"excuse {excuse}": 1})


def test_a_duplicate_with_an_unknown_offset_is_excused() -> None:
    checked = Checked()
    checked.acknowledged(-1)
    assert (checked.broken, checked.counts["excuse duplicate"]) == ([], 1)


def test_an_acknowledgement_after_the_deletion_of_a_replica_is_excused() -> None:
    checked = Checked()
    three_that_stay(checked)
    checked.promises.deletions.by_id(ID)
    checked.promises.deletion_began("t")
    del checked.ends[3]
    checked.acknowledged(9)
    assert checked.broken == []
    assert checked.counts["excuse being-deleted"] == 1


def test_a_replica_of_a_topic_in_deletion_has_acknowledged_records_until_its_removal() -> None:
    checked = Checked()
    three_that_stay(checked)
    checked.promises.deletions.by_id(ID)
    checked.promises.deletion_began("t")
    checked.ends[2] = 9
    checked.acknowledged(9)
    assert [one.partition(":")[0] for one in checked.broken] == ["min-isr", "in-sync"]


# -- which topic is deleted


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_deletion_of_a_topic_created_after_the_request_is_found(is_marked: bool) -> None:
    checked = Checked()
    checked.promises.deletions.by_id(ID)
    checked.promises.deletion_began("t")
    checked.promises.topic_removed("t")
    anew = b"another".ljust(16, b".")
    checked.promises.topic_written("t", anew, {0: [1, 2, 3]}, {}, {})
    assert checked.broken == []
    if is_marked:
        checked.promises.deletion_began("t")
    else:
        checked.promises.topic_removed("t")
    assert checked.broken == [f"deletion: t is deleted with id {anew.hex()} without a request"]


def test_a_deletion_by_name_may_delete_any_topic_of_the_name() -> None:
    checked = Checked()
    checked.promises.deletions.by_name("t")
    checked.promises.deletion_began("t")
    assert checked.broken == []


# -- what waits for an operator


def test_a_partition_waits_for_an_operator_until_all_replicas_have_reported_a_loss() -> None:
    checked = Checked()
    checked.written(1)
    checked.reported(1, LostReplicas(missing=True))
    assert not checked.waits_for_operator(), "it is led"
    checked.written(leader=-1, epoch=2)
    assert checked.waits_for_operator()
    checked.reported(2, LostReplicas(unsynced=True))
    assert checked.waits_for_operator()
    checked.reported(3, LostReplicas(unsynced=True))
    assert not checked.waits_for_operator(), "the controller elects the best"


def test_a_partition_does_not_wait_for_an_operator_while_its_last_leader_has_a_log() -> None:
    checked = Checked()
    checked.written(1)
    checked.reported(1, LostReplicas(unsynced=True))
    checked.written(leader=-1, epoch=2)
    assert not checked.waits_for_operator()


# -- answers that are under way while everything is lost


def test_a_record_acknowledged_before_its_loss_on_all_replicas_is_excused() -> None:
    checked = Checked()
    checked.lose_all_and_recover()
    checked.read(8, answered_s=19.5)
    checked.acknowledged(9, answered_s=19.5)
    checked.ends_empty()
    assert checked.broken == []
    assert checked.counts["excuse lost"] == 2


def test_a_replica_that_recovered_during_the_acknowledgement_may_lack_the_record() -> None:
    checked = Checked()
    checked.lose_all_and_recover()
    checked.ends[2] = 0
    checked.acknowledged(9, answered_s=19.5)
    assert checked.broken == []
    checked.acknowledged(9, answered_s=30.5)
    assert checked.only_finding.startswith("in-sync: ")


def test_a_lost_replica_is_elected_wrongly_only_once_the_controller_has_read_of_its_loss() -> None:
    checked = Checked()
    lost = LostReplicas(missing=True)
    checked.promises.replicas_lost(3, everything=True)
    checked.promises.registered(3, lost)
    checked.written(3, leader=3, epoch=2)
    assert checked.broken == []
    checked.written(1, 2, 3, leader=1, epoch=3)
    checked.promises.loss_read(3, lost)
    checked.written(1, 2, 3, leader=3, epoch=4)
    assert checked.only_finding.startswith("election: ")


def test_a_former_read_loss_does_not_apply_to_the_next_loss() -> None:
    checked = Checked()
    lost = LostReplicas(missing=True)
    checked.promises.replicas_lost(3, everything=True)
    checked.promises.registered(3, lost)
    checked.now += 1.0
    checked.promises.replicas_lost(3, everything=True)
    checked.promises.loss_read(3, lost)
    checked.written(1, 2, 3, leader=3, epoch=2)
    assert checked.broken == []


@pytest.mark.parametrize(("is_since", "first_epoch"), [(True, 0), (True, 5), (False, 0)])
def test_a_loss_report_does_not_excuse_a_topic_created_later(is_since: bool, first_epoch: int) -> None:
    checked = Checked()
    lost = LostReplicas(missing=True)
    if is_since:
        checked.promises.registered(1, lost)
        checked.now += 1.0
    other = ID[::-1]
    checked.promises.topic_written("t", other, {0: [1, 2]}, {}, {})
    checked.written(1, 2)
    checked.written(1)
    if not is_since:
        checked.now += 1.0
        checked.promises.registered(1, lost)
    if first_epoch:
        checked.now += 1.0
        checked.promises.registered(1, lost._replace(first_epoch=first_epoch))
    checked.promises.loss_read(1, lost)
    checked.written(leader=-1, epoch=2)
    assert checked.waits_for_operator() != is_since


@pytest.mark.parametrize(("is_new", "has_opened"), [(True, True), (False, True), (True, False)])
def test_only_a_new_registration_reports_the_losses_of_a_start(is_new: bool, has_opened: bool) -> None:
    checked = Checked()
    checked.promises.has_opened = lambda broker, tp: has_opened
    checked.promises.replicas_lost(3, everything=True)
    checked.now += 1.0
    started_s = checked.now
    checked.promises.started_s = lambda _: started_s
    checked.promises.registered(3, LostReplicas(), is_new=is_new)
    checked.written(1, 2, 3, leader=3, epoch=2)
    expected = "election: 3 leads ('t', 0), and lacks records that [1, 2] have"
    assert checked.broken == [expected] * (is_new and has_opened)


def asked_for_before_a_loss(checked: Checked) -> None:
    """Leader 1 asks for replica 2 and loses its disk; then the store has 2 in sync, and 1 comes back."""
    checked.written(1, 3)
    checked.promises.replicas_lost(1, everything=True)
    checked.now += 1.0
    checked.written(1, 3, 2)
    checked.reported(1, LostReplicas(missing=True))
    checked.now += 1.0
    checked.written(3, 2, leader=2, epoch=2)
    checked.written(3, 2, 1, leader=2, epoch=2)


def test_an_election_of_a_replica_that_copied_all_records_is_accepted() -> None:
    checked = Checked()
    asked_for_before_a_loss(checked)
    checked.written(3, 2, 1, leader=1, epoch=3)
    assert checked.broken == []


def test_a_replica_whose_isr_request_preceded_the_loss_of_the_leader_must_keep_records() -> None:
    checked = Checked()
    checked.acknowledged(9)
    asked_for_before_a_loss(checked)
    for broker in (1, 3):
        checked.promises.replicas_lost(broker, everything=True)
    checked.ends_empty()
    assert checked.only_finding.startswith("acks-all: ")


def test_an_election_of_a_follower_of_a_leader_with_a_read_loss_is_found() -> None:
    checked = Checked()
    checked.written(1, 3)
    checked.promises.replicas_lost(1, everything=True)
    checked.reported(1, LostReplicas(missing=True))
    checked.written(1, 3, 2)
    checked.written(1, 3, 2, leader=2, epoch=2)
    assert checked.broken == ["election: 2 leads ('t', 0), and lacks records that [3] have"]


def only_one_holds_what_was_acknowledged(checked: Checked) -> None:
    """Replica 1 is the last in sync, and its session ends; replica 3 has reported that its disk is lost."""
    checked.acknowledged(9)
    checked.written(1)
    checked.promises.replicas_lost(3, everything=True)
    checked.reported(3, LostReplicas(missing=True))
    checked.written(leader=-1, epoch=2)


def test_an_unclean_election_by_an_operator_without_a_complete_live_replica_is_excused() -> None:
    checked = Checked()
    only_one_holds_what_was_acknowledged(checked)
    checked.promises.elected_unclean(TP, 3, 3, able={3})
    checked.now += 1.0
    checked.written(3, leader=3, epoch=3)
    assert checked.broken == []
    assert checked.counts["excuse unclean"] == 1
    checked.ends_empty()
    assert checked.broken == []
    assert checked.counts["excuse lost"] == 1
    checked.ends = {3: 10}
    checked.acknowledged(9, answered_s=21.5)
    checked.ends_empty()
    assert checked.only_finding.startswith("acks-all: "), (
        "what was acknowledged after the election has to be kept"
    )


@pytest.mark.parametrize(
    ("asked_epoch", "able", "written_between"),
    [(None, {3}, False), (4, {3}, False), (3, {1, 3}, False), (3, {3}, True)],
    ids=["nobody asked", "another election", "the better one could lead", "the answer to an earlier one"],
)
def test_an_election_of_a_worse_replica_is_found_unless_an_operator_requested_it(
    asked_epoch: int | None, able: set[int], written_between: bool
) -> None:
    checked = Checked()
    only_one_holds_what_was_acknowledged(checked)
    if asked_epoch is not None:
        checked.promises.elected_unclean(TP, 3, asked_epoch, able)
    if written_between:
        checked.written(leader=-1, epoch=2)
    checked.written(3, leader=3, epoch=3)
    assert checked.broken == ["election: 3 leads ('t', 0), and lacks records that [1] have"]
    assert checked.counts["excuse unclean"] == 0


def test_a_requested_election_must_choose_the_better_eligible_replica() -> None:
    checked = Checked()
    checked.written(1, 3)
    checked.promises.replicas_lost(3, everything=True)
    checked.reported(3, LostReplicas(missing=True))
    checked.promises.elected_unclean(TP, 3, 2, able={3})
    checked.written(3, leader=3, epoch=2)
    assert checked.broken == ["election: 3 leads ('t', 0), and lacks records that [1] have"]


def test_a_follower_may_truncate_flushed_records_after_a_power_failure() -> None:
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(flush_each=True)
    checked.acknowledged(9)
    lost = LostReplicas(unsynced=True)
    for broker in (1, 2, 3):
        checked.promises.replicas_lost(broker, everything=False)
        checked.promises.registered(broker, lost)
        checked.promises.loss_read(broker, lost)
    checked.ends = {2: 5}
    checked.promises.replica_cut(TP, 2)
    assert checked.counts["excuse not-trusted"] == 1
    checked.written(leader=-1, epoch=2)
    checked.written(2, leader=2, epoch=3)
    assert checked.broken == []
    assert checked.counts["excuse not-trusted"] == 2


def test_a_record_read_or_acknowledged_after_the_recovery_must_be_kept() -> None:
    checked = Checked()
    checked.lose_all_and_recover()
    checked.read(8, answered_s=30.5)
    checked.ends_empty()
    assert checked.only_finding.startswith("read: p:8 was at ('t', 0) offset 8, which holds None now")
    checked = Checked()
    checked.lose_all_and_recover()
    checked.acknowledged(9, answered_s=30.5)
    checked.ends_empty()
    assert checked.only_finding.startswith("acks-all: p:9 was at ('t', 0) offset 9, which holds None now")


# -- retention


@pytest.mark.parametrize(("age_s", "is_broken"), [(2.9, True), (3.1, False)])
def test_a_record_that_retention_removed_too_early_is_found(age_s: float, is_broken: bool) -> None:
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(retention_ms=3000)
    checked.acknowledged(4)
    checked.now += age_s
    checked.promises.log_start_returned(TP, ID, 5, checked.now)
    assert [one.partition(":")[0] for one in checked.broken] == ["retention"] * is_broken


def test_a_young_record_removed_by_deletion_or_clock_skew_is_excused() -> None:
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(retention_ms=3000)
    checked.acknowledged(4)
    checked.promises.delete_tried(TP, ID, 5)
    checked.promises.log_start_returned(TP, ID, 5, checked.now)
    checked.acknowledged(6)
    checked.promises.clock_ahead_ms = 30_000
    checked.promises.log_start_returned(TP, ID, 7, checked.now)
    assert checked.broken == []
    assert checked.counts["excuse clock-skew"] == 1


def test_a_young_record_that_compaction_removed_before_retention_is_excused() -> None:
    def other(is_same_key: bool) -> int:
        same = (
            number for number in range(5, 500) if (key_of(("p", number)) == key_of(("p", 4))) is is_same_key
        )
        return next(same)

    for is_same_key in (True, False):
        checked = Checked()
        checked.promises.settings["t"] = TopicSettings(retention_ms=3000, compacts=True)
        checked.ends = {1: 500, 2: 500, 3: 500}
        assert not is_tombstone(("p", 4))
        checked.acknowledged(4)
        checked.acknowledged(other(is_same_key))
        checked.promises.log_start_returned(TP, ID, 5, checked.now)
        assert [one.partition(":")[0] for one in checked.broken] == ["retention"] * (not is_same_key)
        assert checked.counts["excuse compacted"] == is_same_key


@pytest.mark.parametrize("is_same_key", [True, False])
def test_an_unacknowledged_tombstone_explains_the_removal_of_its_key(is_same_key: bool) -> None:
    key = key_of(("p", 4))
    later = (
        number
        for number in range(5, 5000)
        if is_tombstone(("p", number)) and (key_of(("p", number)) == key) is is_same_key
    )
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(compacts=True, delete_retention_ms=1000)
    checked.ends = {1: 5000, 2: 5000, 3: 5000}
    checked.acknowledged(4)
    checked.sent(next(later))
    checked.now += 2.0
    checked.ends_empty()
    assert [one.partition(":")[0] for one in checked.broken] == ["acks-all"] * (not is_same_key)
    assert checked.counts["excuse tombstone-expired"] == is_same_key


@pytest.mark.parametrize("is_newer_there", [True, False])
def test_a_tombstone_replaced_by_an_unacknowledged_record_is_not_missed(
    is_newer_there: bool,
) -> None:
    key = key_of(("p", 4))
    of_key = [number for number in range(5, 5000) if key_of(("p", number)) == key]
    tombstone = next(number for number in of_key if is_tombstone(("p", number)))
    newer = next(number for number in of_key if number > tombstone)
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(compacts=True, delete_retention_ms=1000)
    checked.ends = {1: 5000, 2: 5000, 3: 5000}
    checked.acknowledged(tombstone)
    log = {4: Message("p", 4)} | ({newer: Message("p", newer)} if is_newer_there else {})
    checked.promises.compaction.check_replica(TP, ID, 1, 0, log)
    assert [one.partition(":")[0] for one in checked.broken] == ["compaction"] * (not is_newer_there)
    assert checked.counts["excuse compacted"] == is_newer_there


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_replica_that_truncated_a_tombstone_after_its_removal_elsewhere_may_miss_it(
    is_cut: bool,
) -> None:
    key = key_of(("p", 4))
    tombstone = next(
        number for number in range(5, 5000) if key_of(("p", number)) == key and is_tombstone(("p", number))
    )
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(compacts=True, delete_retention_ms=1000)
    checked.ends = {1: 5000, 2: 5000, 3: 5000}
    checked.acknowledged(tombstone)
    compaction = checked.promises.compaction
    compaction.tombstones_removed(TP, {tombstone: key}, checked.ends)
    compaction.replica_lost(TP, tombstone + 1 - is_cut)
    compaction.check_replica(TP, ID, 1, 0, {4: Message("p", 4)})
    assert [one.partition(":")[0] for one in checked.broken] == ["compaction"] * (not is_cut)
    assert checked.counts["excuse tombstone-missed"] == is_cut


@pytest.mark.parametrize("is_forgotten", [True, False])
@pytest.mark.parametrize("is_same_key", [True, False])
def test_a_record_replaced_by_a_lost_record_may_be_missing_only_after_a_loss(
    is_forgotten: bool, is_same_key: bool
) -> None:
    checked = Checked()
    old = Message("p", 4)
    newer = next(n for n in range(5, 500) if (key_of(("p", n)) == key_of(old)) is is_same_key)
    checked.ends = {1: 500, 2: 500, 3: 500}
    checked.acknowledged(4)
    checked.acknowledged(newer)
    if is_forgotten:
        checked.lose_all_and_recover()
    difference = checked.promises.compaction.difference(TP, [[Raw(4, 0, key_of(old), b"", ())], []])
    assert (not difference) is (is_forgotten and is_same_key)


@pytest.mark.parametrize(("age_s", "skews_ms"), [(0.9, ()), (1.1, ()), (0.9, (50, -60)), (0.5, (50, -60))])
def test_the_age_of_a_removed_tombstone_allows_the_largest_clock_skew(
    age_s: float, skews_ms: tuple[int, ...]
) -> None:
    number = next(number for number in range(5, 5000) if is_tombstone(("p", number)))
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(compacts=True, delete_retention_ms=1000)
    checked.ends = {1: 5000, 2: 5000, 3: 5000}
    for skew_ms in skews_ms:
        checked.promises.clock_turned(skew_ms)
    checked.acknowledged(number)
    written_ms = wall_ms_at(checked.now)
    checked.now += age_s
    is_over = (age_s, skews_ms) in ((1.1, ()), (0.9, (50, -60)))
    key = key_of(("p", number))
    older, tombstone = Raw(4, written_ms, key, b"", ()), Raw(number, written_ms, key, None, ())
    for held in ([older, tombstone], [tombstone]):
        difference = checked.promises.compaction.difference(TP, [held, []])
        assert (difference == "") is is_over
    checked.ends_empty()
    assert [one.partition(":")[0] for one in checked.broken] == ["acks-all"] * (not is_over)
    assert (checked.counts["excuse clock-skew"] > 0) is (is_over and bool(skews_ms))


@pytest.mark.parametrize(
    ("age_s", "horizon_ms", "skew_ms", "is_broken"),
    [(1.1, 0, 0, False), (0.9, 0, 0, True), (0.9, 0, 700, False), (0.2, 0, 700, True), (1.1, 1, 0, True)],
)
def test_a_tombstone_removed_too_early_is_found(
    age_s: float, horizon_ms: int, skew_ms: int, is_broken: bool
) -> None:
    checked = Checked()
    checked.promises.clock_turned(skew_ms)
    now_ms = wall_ms_at(checked.now)
    header = SimpleNamespace(base=4, last=6, horizon_ms=now_ms + horizon_ms)
    check = SimpleNamespace(
        promises=checked.promises,
        headers={4: header},
        job=SimpleNamespace(now_ms=now_ms, delete_retention_ms=1000),
        node=SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: now_ms)),
        removed={},
        simulation=SimpleNamespace(events=checked.promises.events),
        _broken=checked.broken.append,
    )
    record = Raw(5, now_ms - int(age_s * 1000), b"k", None, ())
    CleaningCheck._check_tombstone(cast(CleaningCheck, check), record)
    assert bool(checked.broken) is is_broken
    assert check.removed == {5: b"k"}


# -- the controller, groups and producer ids


def test_a_replica_that_joins_after_a_loss_has_records_acknowledged_since() -> None:
    checked = Checked()
    checked.acknowledged(9)
    checked.lose_all_and_recover()
    assert checked.counts["excuse records-lost-before"] == 0, "broker 2 has it all the same"
    checked.ends = {2: 6, 3: 6}
    checked.now += 1.0
    checked.acknowledged(5, answered_s=checked.now)
    checked.now += 1.0
    checked.written(2, 3, leader=2, epoch=3)
    assert (checked.broken, checked.counts["excuse records-lost-before"]) == ([], 1)
    checked.written(2, leader=2, epoch=3)
    checked.ends[3] = 5
    checked.written(2, 3, leader=2, epoch=3)
    assert checked.only_finding.startswith("in-sync: ('t', 0) offset 5 was acknowledged")


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_deviations_of_a_partition_that_lost_records_are_excused(is_forgotten: bool) -> None:
    checked = Checked()
    promises = checked.promises
    promises.delete_tried(TP, ID, 5)
    promises.delete_answered(TP, ID, 5, 1)
    if is_forgotten:
        checked.lose_all_and_recover()
        promises.logs[*TP, ID].deleted_to = 5
    checked.now += 1.0
    promises.log_start_returned(TP, ID, 5, checked.now)
    assert (checked.broken, checked.counts["excuse records-lost-before"]) == ([], 0)
    promises.log_start_returned(TP, ID, 3, checked.now)
    promises.log_start_returned(TP, ID, 6, checked.now)
    found = [text.partition(":")[0] for text in checked.broken]
    assert found == ["delete-records", "log-start"] * (not is_forgotten)
    assert checked.counts["excuse records-lost-before"] == 2 * is_forgotten


@pytest.mark.parametrize("is_forgotten", [True, False])
@pytest.mark.parametrize("second", [1, 2])
def test_a_gap_of_an_idempotent_producer_after_a_loss_is_excused(is_forgotten: bool, second: int) -> None:
    checked = Checked()
    if is_forgotten:
        checked.lose_all_and_recover()
    log = []
    for offset, sequence in enumerate((0, second)):
        message = Message("p", sequence)
        sent = Sent(tp=TP, acks=ALL, session=1, sequence=sequence, topic_id=ID)
        checked.promises.sending(message, sent)
        log.append((offset, message))
    checked.promises.check_log(TP, ID, 0, 2, log)
    is_gap = second == 2
    found = [text.partition(":")[0] for text in checked.broken]
    assert found == ["order"] * (is_gap and not is_forgotten)
    assert checked.counts["excuse records-lost-before"] == (is_gap and is_forgotten)


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_missing_young_record_after_a_loss_is_excused(
    is_forgotten: bool,
) -> None:
    checked = Checked()
    checked.promises.settings["t"] = TopicSettings(retention_ms=60_000)
    checked.acknowledged(0)
    if is_forgotten:
        checked.lose_all_and_recover()
    checked.promises.log_start_returned(TP, ID, 1, checked.now)
    found = [text.partition(":")[0] for text in checked.broken]
    assert found == ["retention"] * (not is_forgotten)
    assert checked.counts["excuse records-lost-before"] == is_forgotten


def test_a_repeated_controller_epoch_is_found() -> None:
    checked = Checked()
    checked.promises.controller_begins(1)
    checked.promises.controller_begins(2)
    assert checked.broken == []
    checked.promises.controller_begins(2)
    assert checked.broken == ["one-controller: epoch 2 comes after epoch 2"]


def test_a_deposed_controller_that_writes_a_state_is_found() -> None:
    checked = Checked()
    checked.promises.controller_begins(1)
    checked.promises.controller_wrote(TP, 1)
    checked.promises.controller_begins(2)
    checked.promises.controller_wrote(TP, 2)
    assert checked.broken == []
    checked.promises.controller_wrote(TP, 1)
    assert checked.only_finding.startswith(
        "one-controller: the controller of epoch 1 wrote a state of ('t', 0) in epoch 2"
    )


def test_two_owners_of_a_partition_in_one_generation_are_found() -> None:
    checked = Checked()
    checked.promises.topic_written(GROUPS_LOG[0], bytes(16), {GROUPS_LOG[1]: [1]}, {}, {})
    checked.promises.state_written(GROUPS_LOG, 1, 0, [1])
    first = checked.promises.joined("g", 1, "member-a")
    checked.promises.assigned("g", first, "member-a", [0, 1])
    checked.promises.assigned("g", first, "member-b", [2])
    second = checked.promises.joined("g", 2, "member-a")
    checked.promises.assigned("g", second, "member-b", [0, 1])
    checked.promises.assigned("h", second, "member-c", [0, 1])
    assert checked.broken == [], "another generation, and another group, have other owners"
    checked.promises.assigned("g", second, "member-a", [2, 1])
    assert checked.broken == ["owner: member-a and member-b of g own partition 1 in generation 1"]


@pytest.mark.parametrize(("generation", "sent_s"), [(0, 22.0), (1, 22.0), (0, 20.5)])
def test_an_accepted_request_of_an_old_generation_is_found(generation: int, sent_s: float) -> None:
    checked = Checked()
    checked.promises.topic_written(GROUPS_LOG[0], bytes(16), {GROUPS_LOG[1]: [1]}, {}, {})
    checked.promises.state_written(GROUPS_LOG, 1, 0, [1])
    for number in (1, 2):
        checked.now += 0.5
        order = checked.promises.joined("g", number, "member-a")
        checked.promises.assigned("g", order, "member-a", [0])
    checked.promises.accepted_in_generation("g", "sent a heartbeat", sent_s=sent_s, generation=generation)
    expected = (
        "generation: a member of g sent a heartbeat in generation 0, and was not rejected; the members"
        " of generation 1 had their assignment before the request"
    )
    assert checked.broken == ([expected] if generation == 0 and sent_s > checked.now else [])


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_reassignment_that_removes_a_replica_too_early_is_found(is_deleted: bool) -> None:
    checked = Checked()
    checked.written(1)
    if is_deleted:
        checked.promises.deletions.by_name("t")
        checked.promises.deletion_began("t")
    checked.promises.reassignments.requested(TP, [1, 2])
    checked.promises.topic_written("t", ID, {0: [1, 2]}, {}, {})
    expected = "redundancy: ('t', 0) drops [3] of (1, 2, 3) while [2] are not in the ISR (1,)"
    assert checked.broken == ([] if is_deleted else [expected])


@pytest.mark.parametrize(("start", "is_found"), [(-1, False), (6, True), (7, False)])
@pytest.mark.parametrize("is_late", [False, True])
def test_an_in_sync_replica_with_deleted_records_is_found(start: int, is_late: bool, is_found: bool) -> None:
    checked = Checked()
    checked.promises.live_start = lambda tp, broker: start if broker == 3 else 7
    checked.promises.delete_tried(TP, ID, 7)
    if is_late:
        checked.written(1, 2)
    checked.promises.delete_answered(TP, ID, 7, broker=1)
    if is_late:
        checked.written(1, 2, 3)
    expected = (
        f"delete-records: 3 {'gets' if is_late else 'is'} in sync for ('t', 0), whose records below 7 were"
        f" deleted, and its log starts at {start}"
    )
    assert checked.broken == ([expected] if is_found else [])


@pytest.mark.parametrize(
    ("isr", "min_isr", "is_found"), [((1, 4, 5), 2, True), ((1, 2, 4), 2, False), ((1, 4, 5), 1, False)]
)
def test_a_cancelled_reassignment_that_leaves_too_few_complete_replicas_is_found(
    isr: tuple[int, ...], min_isr: int, is_found: bool
) -> None:
    checked = Checked()
    checked.promises.min_isr_written("t", min_isr)
    for wish in ([1, 4, 5], None):
        checked.promises.reassignments.requested(TP, wish)
    checked.promises.topic_written("t", ID, {0: [1, 4, 5, 2, 3]}, {0: [4, 5]}, {0: [2, 3]})
    checked.written(*isr)
    checked.promises.topic_written("t", ID, {0: [1, 2, 3]}, {}, {})
    expected = (
        "redundancy: ('t', 0) cancels a reassignment, and of [1, 4, 5] with every committed record it"
        " keeps [1], fewer than 2"
    )
    assert checked.broken == ([expected] if is_found else [])


def test_a_generation_without_an_assignment_may_occur_again() -> None:
    """A coordinator that cannot write assignments forgets its generations with the next start."""
    promises = Checked().promises
    unwritten = [promises.joined("g", generation, "member-a") for generation in (1, 2)]
    assert unwritten == [0, 1]
    assert promises.joined("g", 2, "member-a") == 1, "another member comes into the same generation"
    first = promises.joined("g", 1, "member-b")
    promises.assigned("g", first, "member-b", [0])
    again = promises.joined("g", 2, "member-a")
    promises.assigned("g", again, "member-a", [0])
    assert (first, again) == (2, 3)
    newest = promises.joined("g", 3, "member-a")
    promises.assigned("g", newest, "member-a", [0])
    assert promises.joined("g", 2, "member-a") == again, "somebody was assigned partitions in it"


def test_a_producer_id_of_two_producers_is_found() -> None:
    checked = Checked()
    checked.promises.producer_id_given("producer-0, session 0", 1000)
    checked.promises.producer_id_given("producer-1, session 0", 1001)
    assert checked.broken == []
    checked.promises.producer_id_given("producer-0, session 1", 1000)
    assert checked.broken == [
        "producer-id: producer-0, session 1 receives id 1000, which producer-0, session 0 has"
    ]


def test_a_response_without_a_producer_id_is_found() -> None:
    checked = Checked()
    checked.promises.producer_id_given("producer-0, session 0", -1)
    assert checked.only_finding.startswith("producer-id: ")


# Restarts


class Restarted:
    """A log on a simulated disk: a batch of one record at each offset, two to a segment."""

    def __init__(self, policy: str = "delete") -> None:
        self.found: list[str] = []
        self.counts: Counter[str] = Counter()
        clock = SimpleNamespace(time=lambda: 0.0, is_in_job=False)
        self.files = SimulatedFiles(cast(SimulatedLoop, clock))
        self.files.make_directory("/data")
        self.files.make_directory("/data/t-0")
        self.policy = policy
        self.are_tombstones_over = True
        self.promise = promise = RestartPromise(
            lambda name, text: self.found.append(name), self._excuse, lambda *of: self.are_tombstones_over
        )
        self.files.process_ends = lambda may_lose: promise.process_ends(self.files, may_lose=may_lose)
        self.files.power_lost = lambda: promise.power_lost(self.files)

    def _excuse(self, excuse: str) -> bool:
        self.counts[excuse] += 1
        return True

    def holds(self, keys: dict[int, bytes]) -> None:
        """What lies on the disk from now on: keys by offset. A key in capitals is of a tombstone."""
        for name in self.files.list("/data/t-0"):
            self.files.remove(f"/data/t-0/{name}")
        for offset, key in keys.items():
            path = f"/data/t-0/{offset_name(offset // 2 * 2, LOG)}"
            batch = build_batch([(0, key.lower(), None if key.isupper() else b"v", None)], base_offset=offset)
            self.files.open(path, create=True).append([batch])

    def exchanges(self, keys: dict[int, bytes]) -> None:
        """An exchange was begun: a cleaned segment with these batches takes the place of others."""
        batches = [build_batch([(0, key, b"v", None)], base_offset=offset) for offset, key in keys.items()]
        self.files.open(f"/data/t-0/{offset_name(0, LOG)}{SWAP}", create=True).append(batches)

    def opened(self, end: int, start: int = 0) -> list[str]:
        """What is broken when a process opens the log."""
        config = LogConfig(cleanup_policy=(self.policy,))
        log = SimpleNamespace(directory="/data/t-0", start_offset=start, end_offset=end, config=config)
        self.promise.opened(self.files, cast(Log, log))
        return self.found


@pytest.mark.parametrize(
    ("may_lose", "left", "end", "found"),
    [
        (False, {0: b"a", 1: b"b", 2: b"c", 3: b"d"}, 4, []),
        (False, {0: b"a", 1: b"b", 2: b"c"}, 3, ["restart"]),
        (True, {0: b"a", 1: b"b", 2: b"c"}, 3, []),
        (True, {0: b"a", 1: b"b"}, 4, ["restart"]),
        (True, {0: b"a", 2: b"c"}, 3, ["restart"]),
        (True, {}, 0, []),
    ],
)
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_power_failure_may_remove_the_log_end_and_a_kill_nothing(
    may_lose: bool, left: dict[int, bytes], end: int, found: list[str], policy: str
) -> None:
    one = Restarted(policy)
    one.holds({0: b"a", 1: b"b", 2: b"c", 3: b"d"})
    one.promise.process_ends(one.files, may_lose=may_lose)
    one.holds(left)
    assert one.opened(end) == found


@pytest.mark.parametrize(("may_lose", "found"), [(True, []), (False, ["restart"])])
def test_a_power_failure_may_restore_truncated_records_and_a_kill_may_not(
    may_lose: bool, found: list[str]
) -> None:
    one = Restarted()
    one.holds({0: b"a", 1: b"b", 2: b"c"})
    one.promise.process_ends(one.files, may_lose=may_lose)
    one.holds({0: b"a"})
    both = [(0, b"k", b"former", None), (0, b"k", b"former", None)]
    batch = build_batch(both, base_offset=1)
    one.files.open(f"/data/t-0/{offset_name(0, LOG)}", create=True).append([batch])
    assert one.opened(3) == found


def test_a_log_is_compared_with_the_last_process_that_opened_it() -> None:
    one = Restarted()
    one.holds({0: b"a", 1: b"b", 2: b"c"})
    one.promise.process_ends(one.files, may_lose=False)
    one.holds({0: b"a", 2: b"c"})
    one.promise.process_ends(one.files, may_lose=True)
    assert one.opened(3) == ["restart"]


def test_a_log_after_a_power_failure_may_be_truncated_after_a_kill_before_its_open() -> None:
    one = Restarted()
    one.holds({0: b"a", 2: b"c", 4: b"d"})
    one.files.replace("/data/t-0/partition.metadata", b"version: 0")
    one.promise.process_ends(one.files, may_lose=True)
    one.holds({0: b"a", 4: b"d"})
    one.files.replace("/data/t-0/partition.metadata", b"")
    one.promise.process_ends(one.files, may_lose=False)
    one.holds({0: b"a"})
    one.files.replace("/data/t-0/partition.metadata", b"")
    assert one.opened(1) == []


def test_a_log_that_a_power_failure_removed_restarts() -> None:
    one = Restarted()
    one.holds({0: b"a", 1: b"b"})
    one.files.power_cut()
    assert one.files.directories("/data") == []
    one.files.make_directory("/data")
    one.files.make_directory("/data/t-0")
    one.holds({1: b"c"})
    assert one.opened(2) == []


def test_a_log_is_compared_without_its_indexes() -> None:
    """They are large: a run of many restarts would do little else than copy them."""
    one = Restarted()
    one.holds({0: b"a", 2: b"b"})
    one.files.open("/data/t-0/00000000000000000000.index", create=True).append([bytes(1000)])
    one.files.replace("/data/t-0/partition.metadata", b"version: 0")
    names = sorted(one.files.stored("/data/t-0", is_compared))
    assert names == ["00000000000000000000.log", "00000000000000000002.log", "partition.metadata"]


def test_records_that_were_deleted_are_not_missed_after_a_restart() -> None:
    one = Restarted()
    one.holds({0: b"a", 1: b"b", 2: b"c"})
    one.promise.process_ends(one.files, may_lose=False)
    one.holds({2: b"c"})
    assert one.opened(3, start=2) == []


@pytest.mark.parametrize(
    ("before", "after", "found", "excuse"),
    [
        ({0: b"a", 1: b"b", 2: b"a"}, {1: b"b", 2: b"a"}, [], "compacted"),
        ({0: b"a", 1: b"A", 2: b"c"}, {2: b"c"}, [], "tombstone-expired"),
        ({0: b"a", 1: b"b", 2: b"a", 3: b"d"}, {1: b"b", 3: b"d"}, ["restart"], ""),
    ],
)
def test_a_start_may_complete_an_interrupted_swap(
    before: dict[int, bytes], after: dict[int, bytes], found: list[str], excuse: str
) -> None:
    one = Restarted("compact")
    one.holds(before)
    one.exchanges(after)
    one.promise.process_ends(one.files, may_lose=True)
    one.holds(after)
    assert one.opened(4)[:1] == found
    assert not excuse or one.counts[excuse] > 0


@pytest.mark.parametrize("are_over", [True, False])
@pytest.mark.parametrize("before", [{0: b"a", 1: b"A", 2: b"c"}, {0: b"A", 2: b"c"}])
def test_a_start_that_completes_a_swap_keeps_young_tombstones(
    before: dict[int, bytes], are_over: bool
) -> None:
    one = Restarted("compact")
    one.are_tombstones_over = are_over
    one.holds(before)
    one.exchanges({2: b"c"})
    one.promise.process_ends(one.files, may_lose=True)
    one.holds({2: b"c"})
    assert one.opened(4) == ([] if are_over else ["restart"])


# -- leaders whose session has ended


def deposed() -> Checked:
    """Broker 1 led until its session ended at 10 s; broker 2 leads, and no replica follows broker 1."""
    checked = Checked()
    checked.promises.started_s = lambda _: 0.0
    checked.promises.deposed.session_s = 2.0
    checked.now = 10.0
    checked.promises.deposed.session_ended(1, 10.0)
    checked.written(2, 3, leader=2, epoch=2)
    return checked


def acknowledged_by_former_leader(checked: Checked, offset: int, answered_s: float) -> None:
    """Broker 1 acknowledges a record with acks=1."""
    message = Message("p", offset)
    checked.promises.sending(message, Sent(tp=TP, acks=LEADER, session=-1, sequence=0, topic_id=ID))
    checked.promises.acknowledged(
        TP, ID, offset, [message], sent_s=answered_s, answered_s=answered_s, broker=1
    )


def test_a_leader_may_accept_writes_for_a_session_timeout_after_its_session() -> None:
    checked = deposed()
    for offset, answered_s in enumerate((10.5, 11.9, 12.7, 13.0, 13.5)):
        acknowledged_by_former_leader(checked, offset, answered_s)
    assert checked.broken == []
    assert checked.counts["acks=1 of former leaders"] == 5


def test_a_leader_that_accepts_writes_long_after_its_session_is_found() -> None:
    checked = deposed()
    acknowledged_by_former_leader(checked, 0, 13.0)
    acknowledged_by_former_leader(checked, 1, 14.0)
    assert checked.only_finding.startswith("session: 1 acknowledges writes to ('t', 0)")


@pytest.mark.parametrize("reason", ["followed", "woken", "registered", "started"])
def test_a_leader_with_fetching_replicas_may_accept_writes(reason: str) -> None:
    checked = deposed()
    deposed_leaders = checked.promises.deposed
    if reason == "followed":
        deposed_leaders.followed(TP, 1, 12.0)
    elif reason == "woken":
        deposed_leaders.woken(1, 12.0)
    elif reason == "registered":
        deposed_leaders.registered(1, 12.0)
    else:
        checked.promises.started_s = lambda _: 12.0
    for offset in range(2):
        acknowledged_by_former_leader(checked, offset, 13.5 + offset)
    assert checked.broken == []


def test_only_a_former_leader_may_return_deleted_records() -> None:
    for broker, expected in ((1, []), (2, ["delete-records"])):
        checked = Checked()
        checked.promises.delete_tried(TP, ID, 7)
        checked.promises.delete_answered(TP, ID, 7, broker=1)
        checked.written(2, 3, leader=2, epoch=2)
        checked.now += 1
        checked.promises.log_start_returned(TP, ID, 0, checked.now, broker)
        assert [problem.partition(":")[0] for problem in checked.broken] == expected
        assert checked.counts["excuse former-leader"] == (broker == 1)


@pytest.mark.parametrize("is_leader", [True, False])
def test_records_deleted_by_a_former_leader_may_remain_elsewhere(is_leader: bool) -> None:
    checked = Checked()
    checked.written(2, 3, leader=2, epoch=2)
    checked.promises.delete_answered(TP, ID, 7, broker=2 if is_leader else 1)
    checked.now += 1
    checked.promises.log_start_returned(TP, ID, 0, checked.now, 2)
    assert [problem.partition(":")[0] for problem in checked.broken] == ["delete-records"] * is_leader
    assert checked.counts["excuse former-leader"] == (not is_leader)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_replica_without_a_deletion_leads_only_after_a_loss_of_all_that_have_it(
    is_lost: bool,
) -> None:
    checked = Checked()
    checked.written(1, leader=1)
    checked.promises.delete_answered(TP, ID, 7, broker=1)
    checked.now += 1
    if is_lost:
        checked.promises.replica_lost(TP, 1)
    checked.written(2, leader=2, epoch=2)
    assert [problem.partition(":")[0] for problem in checked.broken if "deleted" in problem] == (
        [] if is_lost else ["delete-records"]
    )
    assert checked.counts["excuse deleted-without"] == 1


@pytest.mark.parametrize("min_isr", [1, 2])
def test_an_eligible_replica_has_a_deletion_confirmed_as_it_left_the_isr(min_isr: int) -> None:
    """The answer is given while enough are in sync, and comes after one of them has left."""
    checked = Checked()
    checked.promises.partitions[TP].holders.min_isr = min_isr
    checked.written(1, 2)
    checked.written(1)
    checked.promises.delete_answered(TP, ID, 7, broker=1)
    checked.now += 1
    checked.written(2, leader=2, epoch=2)
    found = [problem.partition(":")[0] for problem in checked.broken if "deleted" in problem]
    assert found == ([] if min_isr == 2 else ["delete-records"])
    checked.promises.log_start_returned(TP, ID, 0, checked.now, 2)
    assert any("starts at 0" in problem or "reported" in problem for problem in checked.broken) == (
        min_isr == 2
    )


# -- answers that name no topic id


@pytest.mark.parametrize("is_anew", [False, True])
def test_the_log_end_of_a_recreated_topic_is_not_compared_with_the_former_topic(is_anew: bool) -> None:
    checked = Checked()
    consumer = Consumer("consumer", [], "t", checked.promises, Random(1), partition=0, again=0.0)
    consumer.topic_id = ID
    answer = SimpleNamespace(partitions=[SimpleNamespace(error_code=0, offset=7)])

    async def ask(*_: Any) -> Any:
        return SimpleNamespace(topics=[answer])

    cast(Any, consumer).ask = ask
    if is_anew:
        checked.promises.topic_written("t", bytes(16), {0: [1, 2, 3]}, {}, {})
        with pytest.raises(Refused, match="UNKNOWN_TOPIC_ID"):
            asyncio.run(consumer._ask_offset("broker-1", LATEST))
    else:
        assert asyncio.run(consumer._ask_offset("broker-1", LATEST)) == 7
