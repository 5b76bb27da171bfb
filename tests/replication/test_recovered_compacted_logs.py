"""Followers of a compacted log that has lost committed records: what compaction removed comes back."""

from __future__ import annotations

import pytest
from message_fetcher import MessageFetcher
from replica_stage import FOLLOWER, LEADER, TOPIC, Broker, Leader, content

from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.records.builder import build_batch
from tidemill.records.message_set import build_message_set
from tidemill.replication.fetcher import FetchLimits, LeaderFetcher

NOW = 1_700_000_000_000
COMPACTED = LogConfig(cleanup_policy=("compact",))
KEYS = [b"a", b"b", b"c", b"a", b"d"]
"""Of the records that were committed. The newer value of key a, at offset 3, gets lost."""
LEFT = 3


def receive(log: Log, offsets: list[int], epoch: int = 0) -> None:
    """Appends the records of these offsets, as a leader sends them that has no others."""
    for offset in offsets:
        row = (NOW, KEYS[offset], b"%d" % offset, None)
        log.append_as_follower(build_batch([row], base_offset=offset, leader_epoch=epoch), NOW)


class Recovered:
    """A leader that was elected with the records before ``LEFT``, and a follower that had them all.

    The follower's log is compacted: it has no record of offset 0.
    """

    def __init__(self, config: LogConfig, offsets: list[int], isr: tuple[int, ...] = (LEADER,)) -> None:
        self.one, self.two = Broker(LEADER, 1, config), Broker(FOLLOWER, 1, config)
        (self.leading,), (self.following,) = self.one.partitions, self.two.partitions
        receive(self.leading.log, list(range(LEFT)))
        receive(self.following.log, offsets)
        self.leader = Leader(self.one)
        self.fetcher = MessageFetcher(LeaderFetcher(FOLLOWER, 7, FetchLimits()))
        self.isr = isr

    def follow(self) -> None:
        """Fetches until the follower has what the leader has."""
        self.one.become(LEADER, 1, self.isr)
        self.two.become(LEADER, 1, self.isr)
        self.one.write(0, b"after the loss")
        self.fetcher.follow(TOPIC, self.following, 0)
        for _ in range(4):
            request = self.fetcher.request(0)
            assert request is not None
            troubles, out_of_range, _ = self.fetcher.answer(self.leader.answer(request), 0)
            assert not troubles
            assert not out_of_range


def test_a_record_that_was_compacted_because_of_a_lost_one_is_fetched_again() -> None:
    recovered = Recovered(COMPACTED, [1, 2, 3, 4])
    recovered.following.log.clean_end = 4
    recovered.follow()
    assert content(recovered.following.log) == content(recovered.leading.log)
    ((first, last, reason),) = recovered.two.events.cuts
    assert (first, last) == (0, 4)
    assert "leader epoch 0 ends at offset 3; older ones that it has may have been compacted" in reason


def test_a_record_that_the_former_leader_had_compacted_is_fetched_again() -> None:
    """The follower has compacted nothing itself: it fetched what its leader had left."""
    recovered = Recovered(COMPACTED, [1, 2, 3, 4])
    recovered.following.high_watermark = 4
    recovered.follow()
    assert content(recovered.following.log) == content(recovered.leading.log)


def test_a_record_that_retention_removed_before_the_loss_is_fetched_again() -> None:
    recovered = Recovered(LogConfig(), [0, 1, 2, 3, 4])
    recovered.following.log.advance_start(4)
    recovered.follow()
    assert recovered.following.log.start_offset == 0
    assert content(recovered.following.log) == content(recovered.leading.log)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_records_that_were_not_committed_are_cut_alone(policy: str) -> None:
    recovered = Recovered(LogConfig(cleanup_policy=(policy,)), [0, 1, 2, 3, 4])
    recovered.following.high_watermark = LEFT
    recovered.following.log.clean_end = LEFT
    recovered.follow()
    assert content(recovered.following.log) == content(recovered.leading.log)
    assert [(first, last) for first, last, _ in recovered.two.events.cuts] == [(3, 4)]


def test_messages_without_leader_epochs_are_kept_as_far_as_they_are_compacted() -> None:
    """The high watermark that was written down last may lie before that."""
    recovered = Recovered(COMPACTED, [])
    log = recovered.following.log
    log.append_as_follower(
        build_message_set(1, [(NOW, KEYS[at], b"v") for at in range(5)], 0, base_offset=0), NOW
    )
    recovered.following.high_watermark, log.clean_end = 1, 3
    recovered.two.become(LEADER, 1, (LEADER,))
    recovered.fetcher.follow(TOPIC, recovered.following, 0)
    assert (log.end_offset, log.clean_end) == (3, 3)


def test_a_replica_in_sync_keeps_the_committed_records_that_it_has() -> None:
    """Nobody can have been elected then who lacks some; emptied, it could be elected with none."""
    recovered = Recovered(COMPACTED, [1, 2, 3, 4], (LEADER, FOLLOWER))
    recovered.following.high_watermark = recovered.following.log.clean_end = 4
    recovered.follow()
    assert [(first, last) for first, last, _ in recovered.two.events.cuts] == [(3, 4)]
