"""The checkers detect leaders that count too much, and followers with another history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from following_promise import FollowingPromise
from promises import TopicSettings
from simulated_disk import SimulatedFiles
from test_log_state_promise import Kept
from test_promise_checkers import Checked

from record_builders import build_batch
from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.log.log_config import LogConfig
from tidemill.records.batch import parse_batch
from tidemill.records.batch_validation import Limits
from tidemill.replication.partition import Partition, PartitionEvents
from tidemill.replication.replica_fetcher import FetchLimits, Followed, ReplicaFetcher
from tidemill.wire.fetch_layout import FetchedPartition, RequestedPartition

LEADER, FOLLOWER = 1, 2
BOTH = (LEADER, FOLLOWER)
NOW = 1_700_000_000_000
EPOCH = 6
"""In which one leads; logs have the epochs 0, 0, 3, 3, 5."""


class Quiet(PartitionEvents):
    """Records that a sync was requested."""

    def flush_requested(self, partition: Partition) -> None:
        pass

    def isr_requested(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        pass


class Pair:
    """A leader and its follower, both with the same five records, with a checker."""

    def __init__(self, isr: tuple[int, ...] = BOTH) -> None:
        self.checked = Checked()
        self.registered = -1
        """The registration of the follower that the leader knows of."""
        self.watch = FollowingPromise(self.checked.promises, self._find, lambda node, broker: self.registered)
        self.logs = {node: Kept() for node in BOTH}
        for kept in self.logs.values():
            kept.sync()
        self.partitions = {
            node: Partition("t", 0, kept.log, Limits(), node, Quiet()) for node, kept in self.logs.items()
        }
        self.isr = isr
        with ExitStack() as stack:
            self.watch.watch(stack, lambda: lambda: False)
            self.stack = stack.pop_all()
        for partition in self.partitions.values():
            partition.become(LEADER, EPOCH, BOTH, isr, 1, 0)

    def _find(self, node: int, topic: str, index: int) -> Partition | None:
        return self.partitions.get(node)

    @property
    def leader(self) -> Partition:
        return self.partitions[LEADER]

    @property
    def follower(self) -> Partition:
        return self.partitions[FOLLOWER]

    @property
    def files(self) -> SimulatedFiles:
        return self.logs[FOLLOWER].files

    def fetch(self, offset: int, epoch: int = 1, now_ms: int = 1) -> None:
        self.watch.has_asked(self.follower)
        self.leader.fetched_by(FOLLOWER, offset, 0, now_ms, epoch)

    def batch(self, offset: int, epoch: int) -> bytes:
        data = bytearray(build_batch([(NOW, b"k", b"v", None)], base_offset=offset))
        data[12:16] = epoch.to_bytes(4, "big")
        return bytes(data)

    def write(self) -> None:
        data = build_batch([(NOW, b"k", b"v", None)])
        self.leader.append([parse_batch(data, 0, len(data))], 1, NOW)

    @property
    def found(self) -> str:
        """Returns the broken promise."""
        return self.checked.broken[0].partition(":")[0] if self.checked.broken else ""


def lead_and_follow(pair: Pair) -> None:
    """The follower leads for one epoch."""
    pair.follower.become(FOLLOWER, EPOCH + 1, BOTH, BOTH, 2, 0)
    pair.follower.become(LEADER, EPOCH + 2, BOTH, BOTH, 3, 0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    with made.stack:
        yield made


@pytest.fixture
def alone() -> Iterator[Pair]:
    """The leader is the only in-sync replica."""
    made = Pair(isr=(LEADER,))
    with made.stack:
        yield made


def test_a_leader_and_its_follower_that_work_break_nothing(pair: Pair) -> None:
    pair.fetch(5)
    pair.write()
    pair.follower.append_from_leader(pair.batch(5, EPOCH), 5, 0, NOW)
    pair.fetch(6)
    pair.leader.become(LEADER, EPOCH, BOTH, (LEADER,), 2, 3)
    pair.fetch(6)
    assert pair.found == ""


def test_a_fetch_of_a_former_life_does_not_count(pair: Pair) -> None:
    pair.fetch(5, epoch=3)
    pair.watch.fetched(pair.leader, FOLLOWER, 5, 0, 2, 2)
    assert pair.found == "counted"


def test_nothing_counts_for_a_follower_that_has_not_fetched_since_it_left_the_set(pair: Pair) -> None:
    pair.fetch(5)
    replication: Any = pair.leader.replication
    pair.leader.become(LEADER, EPOCH, BOTH, (LEADER,), 2, 3)
    assert pair.found == ""
    replication.followers[FOLLOWER].end_offset = 5
    pair.leader.become(LEADER, EPOCH, BOTH, (LEADER,), 3, 4)
    assert pair.found == "counted"


def test_a_follower_has_what_counts_for_it(pair: Pair) -> None:
    pair.write()
    pair.fetch(6)
    assert pair.found == "counted"


def test_a_fetch_of_a_process_that_is_gone_may_come_before_the_first_of_the_next(pair: Pair) -> None:
    pair.write()
    pair.leader.fetched_by(FOLLOWER, 6, 0, 1, 1)
    assert pair.found == ""
    assert pair.checked.counts["excuse late-fetch"] == 1


def test_a_fetch_that_comes_late_and_tells_what_is_so_needs_no_excuse(pair: Pair) -> None:
    pair.leader.fetched_by(FOLLOWER, 5, 0, 1, 1)
    assert pair.found == ""
    assert pair.checked.counts["excuse late-fetch"] == 0


@pytest.mark.parametrize(("registered", "found"), [(1, ""), (2, "counted")])
def test_a_fetch_of_a_process_that_is_gone_does_not_count_for_a_leader_that_knows_the_next(
    pair: Pair, registered: int, found: str
) -> None:
    pair.write()
    pair.registered = registered
    pair.leader.fetched_by(FOLLOWER, 6, 0, 1, 1)
    assert pair.found == found
    assert pair.checked.counts["excuse late-fetch"] == (not found)


def test_a_follower_without_records_counts(pair: Pair) -> None:
    pair.follower.log.truncate_fully(0, NOW)
    pair.leader.log.truncate_fully(0, NOW)
    pair.fetch(0)
    assert pair.found == ""


def test_a_follower_that_counts_has_the_history_of_its_leader(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.follower.log.append_as_follower(pair.batch(4, 4), NOW)
    pair.fetch(5)
    assert pair.found == "counted"


def test_a_leader_that_asks_for_others_in_sync_does_not_commit_alone(alone: Pair) -> None:
    alone.fetch(3)
    assert alone.found == ""
    replication: Any = alone.leader.replication
    replication.pending = BOTH
    alone.watch.fetched(alone.leader, FOLLOWER, 3, 0, 2, 1)
    assert alone.found == "counted"


def test_a_leader_commits_what_those_have_that_it_has_asked_for_in_sync(alone: Pair) -> None:
    alone.fetch(3)
    replication: Any = alone.leader.replication
    replication.pending = BOTH
    alone.watch.committing(alone.leader, 3)
    assert alone.found == ""
    alone.watch.committing(alone.leader, 4)
    assert alone.found == "committed"


def test_a_leader_waits_for_a_follower_that_is_caught_up(alone: Pair) -> None:
    alone.fetch(5)
    assert alone.found == ""
    replication: Any = alone.leader.replication
    replication.pending = ()
    alone.leader._alone = True
    alone.watch.fetched(alone.leader, FOLLOWER, 5, 0, 2, 1)
    assert alone.found == "counted"


def test_with_flush_messages_a_leader_commits_what_is_on_its_disk(pair: Pair) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True)
    pair.checked.promises.synced_end = lambda place, broker: 5
    pair.watch.committing(pair.leader, 5)
    assert pair.found == ""
    pair.watch.committing(pair.leader, 6)
    assert pair.found == "committed"


def test_a_leader_commits_what_it_knows_to_be_synced(pair: Pair) -> None:
    pair.leader.log._flush_messages = 1
    pair.write()
    pair.watch.committing(pair.leader, 5)
    assert pair.found == ""
    pair.watch.committing(pair.leader, 6)
    assert pair.found == "committed"


def test_with_flush_messages_acks_1_means_the_disk_of_the_leader(pair: Pair) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True)
    pair.checked.promises.synced_end = lambda place, broker: 5
    pair.watch.answering(pair.leader, 6)
    assert pair.found == "flush"


@pytest.mark.parametrize(("synced_end", "is_broken"), [(5, True), (6, False)])
def test_of_a_compacted_log_the_last_batch_before_an_end_has_to_be_on_the_disk(
    pair: Pair, synced_end: int, is_broken: bool
) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True, compacts=True)
    pair.checked.promises.synced_end = lambda place, broker: synced_end
    for kept in pair.logs.values():
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
        kept.append(5, 5)
        kept.log.end_offset = 8
    pair.watch.committing(pair.leader, 8)
    pair.watch.answering(pair.leader, 8)
    followed = Followed(b"", pair.follower)
    followed.fetch_offset = 8
    pair.watch.asked(ReplicaFetcher(FOLLOWER, 1, FetchLimits()), [followed])
    found = [text.partition(":")[0] for text in pair.checked.broken]
    assert found == ["committed", "flush", "told"] * is_broken


@pytest.mark.parametrize("is_synced", [False, True])
def test_nothing_is_appended_to_a_compacted_log_before_a_cut_is_on_the_disk(
    pair: Pair, is_synced: bool
) -> None:
    pair.follower.log.set_config(LogConfig(cleanup_policy=("compact",)))
    pair.follower.log.truncate_to(4, NOW)
    if is_synced:
        pair.follower.log.flush(NOW)
    pair.watch.appends(pair.follower)
    assert pair.found == ("" if is_synced else "follows")


def test_what_compaction_may_have_taken_of_a_history_is_counted(pair: Pair) -> None:
    for kept in pair.logs.values():
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    pair.watch.appended(pair.follower)
    assert pair.checked.counts["excuse compacted"] == 0
    pair.follower.log.leader_epochs.starts[1] = 3
    pair.watch.appended(pair.follower)
    assert (pair.found, pair.checked.counts["excuse compacted"]) == ("", 1)


def test_a_follower_of_a_compacted_log_has_no_batch_of_another_epoch_than_its_leader(pair: Pair) -> None:
    for kept in pair.logs.values():
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    pair.follower.log.truncate_to(4, NOW)
    pair.logs[FOLLOWER].append(4, 6)
    pair.watch.appended(pair.follower)
    assert pair.found == "follows"


def test_a_follower_of_a_compacted_log_has_no_more_than_its_leader(pair: Pair) -> None:
    for kept in pair.logs.values():
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    pair.logs[FOLLOWER].append(5, 5)
    pair.watch.appended(pair.follower)
    assert pair.found == "follows"


def test_what_counts_as_synced_is_on_the_disk(pair: Pair) -> None:
    pair.write()
    found: list[str] = []
    pair.checked.promises.log_state._broken = lambda promise, text: found.append(promise)
    pair.watch.check_synced(pair.leader)
    assert found == []
    pair.leader._flushed_end = 6
    pair.watch.check_synced(pair.leader)
    assert found == ["recovery-point"]


def test_an_answer_is_taken_to_what_was_asked(pair: Pair) -> None:
    followed = Followed(b"", pair.follower)
    followed.fetch_offset = 5
    pair.watch.takes(pair.follower, followed)
    assert pair.found == ""
    followed.fetch_offset = 4
    pair.watch.takes(pair.follower, followed)
    assert pair.found == "follows"


def test_a_cut_leaves_nothing_that_the_leader_lacks(pair: Pair) -> None:
    found = FetchedPartition(b"", 0, b"")
    found.diverging_epoch, found.diverging_end = 5, 5
    pair.watch.cut(pair.follower, -1, found)
    assert pair.found == ""
    found.diverging_epoch = 4
    pair.watch.cut(pair.follower, -1, found)
    assert pair.found == "follows"


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_cut_takes_nothing_that_the_leader_has(pair: Pair, is_compacted: bool) -> None:
    if is_compacted:
        for kept in pair.logs.values():
            kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    common = pair.watch.common_end(pair.follower)
    assert common == 5
    pair.follower.log.truncate_to(3, NOW)
    pair.watch.cut(pair.follower, common, None)
    assert pair.found == ("" if is_compacted else "follows")
    assert pair.checked.counts["excuse compacted"] == is_compacted


def test_what_two_logs_have_in_common_ends_with_the_first_other_epoch(pair: Pair) -> None:
    pair.follower.log.truncate_to(3, NOW)
    assert pair.watch.common_end(pair.follower) == 3
    pair.follower.log.append_as_follower(pair.batch(3, 4), NOW)
    assert pair.watch.common_end(pair.follower) == 3


def test_where_a_leader_has_deleted_all_that_both_have_a_follower_may_cut_more(pair: Pair) -> None:
    pair.follower.log.truncate_to(3, NOW)
    for offset in (3, 4):
        pair.follower.log.append_as_follower(pair.batch(offset, 4), NOW)
    pair.leader.log.advance_start(4)
    assert pair.watch.common_end(pair.follower) == -1


def test_a_follower_begins_where_its_leader_starts(alone: Pair) -> None:
    alone.watch.begins(alone.follower, 0)
    assert alone.found == ""
    alone.watch.begins(alone.follower, 5)
    assert alone.found == "follows"


def test_a_follower_in_sync_keeps_what_is_committed(pair: Pair) -> None:
    pair.follower.high_watermark = 5
    pair.follower.restart_at(0, NOW)
    assert pair.found == "follows"


def test_what_is_appended_follows_what_the_leader_has(pair: Pair) -> None:
    pair.write()
    pair.follower.log.truncate_to(4, NOW)
    pair.follower.log.flush(NOW)
    pair.follower.append_from_leader(pair.batch(4, 4), 0, 0, NOW)
    assert pair.found == "follows"


def test_nothing_is_appended_before_a_cut_is_on_the_disk(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.appends(pair.follower)
    assert pair.found == "follows"


def test_what_a_killed_process_had_cut_may_be_on_the_disk_when_the_next_one_appends(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.opened(pair.follower.log)
    pair.watch.appends(pair.follower)
    assert pair.found == ""
    assert pair.checked.counts["excuse cut-before"] == 1


def test_the_name_of_a_segment_that_a_killed_process_had_cut_may_reach_the_disk_later(pair: Pair) -> None:
    pair.files.rename("/data/t-0", "/data/t-0-new")
    pair.files.sync_directory("/data")
    pair.files.rename("/data/t-0-new", "/data/t-0")
    assert not pair.files.durable_names("/data/t-0")
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.opened(pair.follower.log)
    pair.files.sync_directory("/data/t-0")
    pair.watch.appends(pair.follower)
    assert pair.found == ""
    assert pair.checked.counts["excuse cut-before"] == 1


def test_what_is_appended_after_a_cut_that_is_synced_breaks_nothing(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.follower.log.flush(NOW)
    pair.watch.appends(pair.follower)
    assert pair.found == ""


def test_a_follower_tells_what_is_on_its_disk(pair: Pair) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True)
    pair.checked.promises.synced_end = lambda place, broker: 5
    fetcher = ReplicaFetcher(FOLLOWER, 1, FetchLimits())
    followed = Followed(b"", pair.follower)
    followed.fetch_offset = 5
    pair.watch.asked(fetcher, [followed])
    assert pair.found == ""
    followed.fetch_offset = 6
    pair.watch.asked(fetcher, [followed])
    assert pair.found == "told"


def test_a_follower_tells_a_start_that_is_written_down(pair: Pair) -> None:
    followed = Followed(b"", pair.follower)
    followed.log_start_offset = 3
    pair.watch.asked(ReplicaFetcher(FOLLOWER, 1, FetchLimits()), [followed])
    assert pair.found == "told"


def test_nobody_waits_at_a_leader_that_was_demoted(pair: Pair) -> None:
    waiter: Any = None
    pair.watch.became(pair.follower, EPOCH, BOTH)
    assert pair.found == ""
    pair.follower.delayed.appends.append((6, waiter))
    pair.watch.became(pair.follower, EPOCH, BOTH)
    assert pair.found == "stops-leading"


def test_nothing_is_led_without_a_session(pair: Pair) -> None:
    class Everything:
        def all(self) -> list[Partition]:
            return [pair.follower]

    everything: Any = Everything()
    pair.watch.session_lost(everything)
    assert pair.found == ""
    everything.all = lambda: [pair.leader]
    pair.watch.session_lost(everything)
    assert pair.found == "stops-leading"


@pytest.mark.parametrize(("hears_s", "expected"), [(0.0, "stops-leading"), (9.5, "")])
def test_nobody_leads_who_is_cut_off(pair: Pair, hears_s: float, expected: str) -> None:
    class Cut:
        """A disconnected broker."""

    silence: Any = Cut()
    silence._broker = Cut()
    silence._broker.partitions = Cut()
    silence._broker.partitions.all = lambda: [pair.leader]
    silence._broker.clock = Cut()
    pair.checked.promises.deposed.session_s = 2.0
    pair.write()
    pair.checked.now = 0.0
    pair.watch.silence_begins(silence, lambda: False)
    for tenths in range(0, 120, 5):
        pair.checked.now = tenths / 10
        silence._broker.clock.monotonic_ms = lambda now=tenths: now * 100
        if pair.checked.now <= hears_s:
            pair.fetch(5, now_ms=tenths * 100)
        pair.watch.look()
    assert pair.found == expected


def test_a_fetch_in_another_leader_epoch_is_not_served(pair: Pair) -> None:
    for epoch, found in ((EPOCH, ""), (EPOCH - 1, "counted")):
        requested = RequestedPartition(key=b"t", index=0, leader_epoch=epoch)
        pair.watch.looked_up(FetchPartitionData(requested, pair.leader))
        assert pair.found == found


def test_a_replica_that_has_led_and_is_cut_as_after_a_power_cut_is_found(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.cut_doubtful(pair.follower, 5)
    assert pair.found == ""
    lead_and_follow(pair)
    pair.watch.cut_doubtful(pair.follower, 5)
    assert pair.found == "follows"
    assert "it is cut from 5 to 4 as after a power cut" in pair.checked.broken[0]
