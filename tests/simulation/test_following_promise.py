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

from default_limits import RecordLimits
from partition_events import IgnoredEvents
from record_builders import build_batch
from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.log.log_config import LogConfig
from tidemill.records.batch import parse_batch
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchLimits, FollowedPartition, ReplicaFetcher
from tidemill.wire.fetch_layout import DivergingEpoch, FetchedPartition, RequestedPartition

LEADER, FOLLOWER = 1, 2
BOTH = (LEADER, FOLLOWER)
NOW = 1_700_000_000_000
EPOCH = 6
"""In which one leads; logs have the epochs 0, 0, 3, 3, 5."""


class Quiet(IgnoredEvents):
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
            node: Partition("t", 0, kept.log, RecordLimits(), node, Quiet())
            for node, kept in self.logs.items()
        }
        self.isr = isr
        with ExitStack() as stack:
            self.watch.watch(stack, lambda: lambda: False)
            self.stack = stack.pop_all()
        for partition in self.partitions.values():
            partition.apply_state(LEADER, EPOCH, BOTH, isr, partition_epoch=1, now_ms=0)

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
        self.leader.append(parse_batch(data, 0, len(data)), 1, NOW)

    @property
    def found(self) -> str:
        """Returns the broken promise."""
        return self.checked.broken[0].partition(":")[0] if self.checked.broken else ""


def lead_and_follow(pair: Pair) -> None:
    """The follower leads for one epoch."""
    pair.follower.apply_state(FOLLOWER, EPOCH + 1, BOTH, BOTH, partition_epoch=2, now_ms=0)
    pair.follower.apply_state(LEADER, EPOCH + 2, BOTH, BOTH, partition_epoch=3, now_ms=0)


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


def test_a_correct_leader_and_follower_break_no_promise(pair: Pair) -> None:
    pair.fetch(5)
    pair.write()
    pair.follower.append_from_leader(pair.batch(5, EPOCH), 5, 0, NOW)
    pair.fetch(6)
    pair.leader.apply_state(LEADER, EPOCH, BOTH, (LEADER,), partition_epoch=2, now_ms=3)
    pair.fetch(6)
    assert pair.found == ""


def test_a_position_from_a_fetch_of_a_former_process_is_found(pair: Pair) -> None:
    pair.fetch(5, epoch=3)
    pair.watch.fetched(pair.leader, FOLLOWER, 5, 0, 2, 2)
    assert pair.found == "follower-position"


def test_a_position_from_before_the_follower_left_the_isr_is_found(pair: Pair) -> None:
    pair.fetch(5)
    replication: Any = pair.leader.replication
    pair.leader.apply_state(LEADER, EPOCH, BOTH, (LEADER,), partition_epoch=2, now_ms=3)
    assert pair.found == ""
    replication.followers[FOLLOWER].end_offset = 5
    pair.leader.apply_state(LEADER, EPOCH, BOTH, (LEADER,), partition_epoch=3, now_ms=4)
    assert pair.found == "follower-position"


def test_a_position_beyond_the_log_of_the_follower_is_found(pair: Pair) -> None:
    pair.write()
    pair.fetch(6)
    assert pair.found == "follower-position"


def test_a_late_fetch_of_a_former_process_before_the_next_registration_is_excused(pair: Pair) -> None:
    pair.write()
    pair.leader.fetched_by(FOLLOWER, 6, 0, 1, 1)
    assert pair.found == ""
    assert pair.checked.counts["excuse late-fetch"] == 1


def test_a_late_fetch_with_a_correct_position_needs_no_excuse(pair: Pair) -> None:
    pair.leader.fetched_by(FOLLOWER, 5, 0, 1, 1)
    assert pair.found == ""
    assert pair.checked.counts["excuse late-fetch"] == 0


@pytest.mark.parametrize(("registered", "found"), [(1, ""), (2, "follower-position")])
def test_a_fetch_of_a_former_process_after_the_next_registration_was_read_is_found(
    pair: Pair, registered: int, found: str
) -> None:
    pair.write()
    pair.registered = registered
    pair.leader.fetched_by(FOLLOWER, 6, 0, 1, 1)
    assert pair.found == found
    assert pair.checked.counts["excuse late-fetch"] == (not found)


def test_a_follower_without_records_has_a_position(pair: Pair) -> None:
    pair.follower.log.truncate_fully_and_start_at(0, NOW)
    pair.leader.log.truncate_fully_and_start_at(0, NOW)
    pair.fetch(0)
    assert pair.found == ""


def test_a_follower_with_another_history_than_its_leader_is_found(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.follower.log.append_copied(pair.batch(4, 4), NOW)
    pair.fetch(5)
    assert pair.found == "follower-position"


def test_a_leader_that_requests_a_larger_isr_does_not_commit_alone(alone: Pair) -> None:
    alone.fetch(3)
    assert alone.found == ""
    alone.leader.isr_state.request(BOTH)
    alone.watch.fetched(alone.leader, FOLLOWER, 3, 0, 2, 1)
    assert alone.found == "follower-position"


def test_a_commit_waits_for_the_replicas_of_a_requested_isr(alone: Pair) -> None:
    alone.fetch(3)
    alone.leader.isr_state.request(BOTH)
    alone.watch.committing(alone.leader, 3)
    assert alone.found == ""
    alone.watch.committing(alone.leader, 4)
    assert alone.found == "committed"


def test_a_leader_waits_for_a_follower_that_is_caught_up(alone: Pair) -> None:
    alone.fetch(5)
    assert alone.found == ""
    alone.leader.isr_state.withdraw()
    alone.leader._alone = True
    alone.watch.fetched(alone.leader, FOLLOWER, 5, 0, 2, 1)
    assert alone.found == "follower-position"


def test_with_flush_messages_a_leader_commits_only_flushed_records(pair: Pair) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True)
    pair.checked.promises.synced_end = lambda tp, broker: 5
    pair.watch.committing(pair.leader, 5)
    assert pair.found == ""
    pair.watch.committing(pair.leader, 6)
    assert pair.found == "committed"


def test_a_leader_commits_only_records_with_a_known_flush(pair: Pair) -> None:
    pair.leader.log._flush_messages = 1
    pair.write()
    pair.watch.committing(pair.leader, 5)
    assert pair.found == ""
    pair.watch.committing(pair.leader, 6)
    assert pair.found == "committed"


def test_with_flush_messages_acks_1_waits_for_the_disk_of_the_leader(pair: Pair) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True)
    pair.checked.promises.synced_end = lambda tp, broker: 5
    pair.watch.answering(pair.leader, 6)
    assert pair.found == "flush"


@pytest.mark.parametrize(("synced_end", "is_broken"), [(5, True), (6, False)])
def test_the_last_batch_of_a_compacted_log_before_an_offset_must_be_on_the_disk(
    pair: Pair, synced_end: int, is_broken: bool
) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True, compacts=True)
    pair.checked.promises.synced_end = lambda tp, broker: synced_end
    for kept in pair.logs.values():
        kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
        kept.append(5, 5)
        kept.log.end_offset = 8
    pair.watch.committing(pair.leader, 8)
    pair.watch.answering(pair.leader, 8)
    followed = FollowedPartition(b"", pair.follower)
    followed.fetch_offset = 8
    pair.watch.asked(ReplicaFetcher(FOLLOWER, FetchLimits(), node_epoch=1), [followed])
    found = [text.partition(":")[0] for text in pair.checked.broken]
    assert found == ["committed", "flush", "reported-position"] * is_broken


@pytest.mark.parametrize("is_synced", [False, True])
def test_an_append_to_a_compacted_log_before_its_truncation_is_flushed_is_found(
    pair: Pair, is_synced: bool
) -> None:
    pair.follower.log.set_config(LogConfig(cleanup_policy=("compact",)))
    pair.follower.log.truncate_to(4, NOW)
    if is_synced:
        pair.follower.log.flush(NOW)
    pair.watch.appends(pair.follower)
    assert pair.found == ("" if is_synced else "follows")


def test_epochs_that_compaction_may_have_removed_are_excused(pair: Pair) -> None:
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


def test_a_flushed_offset_beyond_the_disk_is_found(pair: Pair) -> None:
    pair.write()
    found: list[str] = []
    pair.checked.promises.log_state._broken = lambda promise, text: found.append(promise)
    pair.watch.check_synced(pair.leader)
    assert found == []
    pair.leader._flushed_end = 6
    pair.watch.check_synced(pair.leader)
    assert found == ["recovery-point"]


def test_a_response_for_another_fetch_offset_is_found(pair: Pair) -> None:
    followed = FollowedPartition(b"", pair.follower)
    followed.fetch_offset = 5
    pair.watch.takes(pair.follower, followed)
    assert pair.found == ""
    followed.fetch_offset = 4
    pair.watch.takes(pair.follower, followed)
    assert pair.found == "follows"


def test_a_truncation_that_leaves_diverging_records_is_found(pair: Pair) -> None:
    found = FetchedPartition(b"", 0, b"")
    found.diverging_epoch = DivergingEpoch(5, 5)
    pair.watch.cut(pair.follower, -1, found)
    assert pair.found == ""
    found.diverging_epoch = DivergingEpoch(4, 5)
    pair.watch.cut(pair.follower, -1, found)
    assert pair.found == "follows"


@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_truncation_of_common_records_is_found(pair: Pair, is_compacted: bool) -> None:
    if is_compacted:
        for kept in pair.logs.values():
            kept.log.set_config(LogConfig(cleanup_policy=("compact",)))
    common = pair.watch.common_end(pair.follower)
    assert common == 5
    pair.follower.log.truncate_to(3, NOW)
    pair.watch.cut(pair.follower, common, None)
    assert pair.found == ("" if is_compacted else "follows")
    assert pair.checked.counts["excuse compacted"] == is_compacted


def test_the_common_part_of_two_logs_ends_at_the_first_different_epoch(pair: Pair) -> None:
    pair.follower.log.truncate_to(3, NOW)
    assert pair.watch.common_end(pair.follower) == 3
    pair.follower.log.append_copied(pair.batch(3, 4), NOW)
    assert pair.watch.common_end(pair.follower) == 3


def test_a_follower_may_truncate_more_if_the_leader_has_deleted_the_common_part(pair: Pair) -> None:
    pair.follower.log.truncate_to(3, NOW)
    for offset in (3, 4):
        pair.follower.log.append_copied(pair.batch(offset, 4), NOW)
    pair.leader.log.advance_start(4)
    assert pair.watch.common_end(pair.follower) == -1


def test_a_follower_restarts_its_log_at_the_log_start_offset_of_the_leader(alone: Pair) -> None:
    alone.watch.begins(alone.follower, 0)
    assert alone.found == ""
    alone.watch.begins(alone.follower, 5)
    assert alone.found == "follows"


def test_a_truncation_of_committed_records_in_sync_is_found(pair: Pair) -> None:
    pair.follower.high_watermark = 5
    pair.follower.restart_at(0, NOW)
    assert pair.found == "follows"


def test_an_append_that_differs_from_the_log_of_the_leader_is_found(pair: Pair) -> None:
    pair.write()
    pair.follower.log.truncate_to(4, NOW)
    pair.follower.log.flush(NOW)
    pair.follower.append_from_leader(pair.batch(4, 4), 0, 0, NOW)
    assert pair.found == "follows"


def test_an_append_before_the_truncation_is_flushed_is_found(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.appends(pair.follower)
    assert pair.found == "follows"


def test_records_that_a_killed_process_had_truncated_may_be_on_the_disk_at_the_next_append(
    pair: Pair,
) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.opened(pair.follower.log)
    pair.watch.appends(pair.follower)
    assert pair.found == ""
    assert pair.checked.counts["excuse unflushed-truncation"] == 1


def test_the_directory_entry_of_a_truncated_segment_may_return_after_a_kill(pair: Pair) -> None:
    pair.files.rename("/data/t-0", "/data/t-0-new")
    pair.files.sync_directory("/data")
    pair.files.rename("/data/t-0-new", "/data/t-0")
    assert not pair.files.durable_names("/data/t-0")
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.opened(pair.follower.log)
    pair.files.sync_directory("/data/t-0")
    pair.watch.appends(pair.follower)
    assert pair.found == ""
    assert pair.checked.counts["excuse unflushed-truncation"] == 1


def test_an_append_after_a_flushed_truncation_breaks_no_promise(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.follower.log.flush(NOW)
    pair.watch.appends(pair.follower)
    assert pair.found == ""


def test_a_reported_position_beyond_the_disk_is_found(pair: Pair) -> None:
    pair.checked.promises.settings["t"] = TopicSettings(flush_each=True)
    pair.checked.promises.synced_end = lambda tp, broker: 5
    fetcher = ReplicaFetcher(FOLLOWER, FetchLimits(), node_epoch=1)
    followed = FollowedPartition(b"", pair.follower)
    followed.fetch_offset = 5
    pair.watch.asked(fetcher, [followed])
    assert pair.found == ""
    followed.fetch_offset = 6
    pair.watch.asked(fetcher, [followed])
    assert pair.found == "reported-position"


def test_a_reported_log_start_offset_beyond_the_disk_is_found(pair: Pair) -> None:
    followed = FollowedPartition(b"", pair.follower)
    followed.log_start_offset = 3
    pair.watch.asked(ReplicaFetcher(FOLLOWER, FetchLimits(), node_epoch=1), [followed])
    assert pair.found == "reported-position"


def test_a_request_that_waits_at_a_demoted_leader_is_found(pair: Pair) -> None:
    waiter: Any = None
    pair.watch.became(pair.follower, EPOCH, BOTH)
    assert pair.found == ""
    pair.follower.delayed.appends.append((6, waiter))
    pair.watch.became(pair.follower, EPOCH, BOTH)
    assert pair.found == "stops-leading"


def test_a_leader_without_a_session_is_found(pair: Pair) -> None:
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
def test_an_isolated_broker_leads_no_partition(pair: Pair, hears_s: float, expected: str) -> None:
    class Cut:
        """A disconnected broker."""

    silence: Any = Cut()
    silence._isolation = Cut()
    silence._isolation._partitions = Cut()
    silence._isolation._partitions.all = lambda: [pair.leader]
    silence._clock = Cut()
    pair.checked.promises.deposed.session_s = 2.0
    pair.write()
    pair.checked.now = 0.0
    pair.watch.silence_begins(silence, lambda: False)
    for tenths in range(0, 120, 5):
        pair.checked.now = tenths / 10
        silence._clock.monotonic_ms = lambda now=tenths: now * 100
        if pair.checked.now <= hears_s:
            pair.fetch(5, now_ms=tenths * 100)
        pair.watch.look()
    assert pair.found == expected


def test_a_served_fetch_in_another_leader_epoch_is_found(pair: Pair) -> None:
    for epoch, found in ((EPOCH, ""), (EPOCH - 1, "follower-position")):
        requested = RequestedPartition(key=b"t", index=0, leader_epoch=epoch)
        pair.watch.looked_up(FetchPartitionData(requested, pair.leader))
        assert pair.found == found


def test_a_recovery_truncation_of_a_replica_that_has_led_is_found(pair: Pair) -> None:
    pair.follower.log.truncate_to(4, NOW)
    pair.watch.cut_doubtful(pair.follower, 5)
    assert pair.found == ""
    lead_and_follow(pair)
    pair.watch.cut_doubtful(pair.follower, 5)
    assert pair.found == "follows"
    assert "it is truncated from 5 to 4 as after a power failure" in pair.checked.broken[0]
