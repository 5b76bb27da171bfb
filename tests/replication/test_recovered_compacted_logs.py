"""Followers of a compacted log that lost committed records: compacted records are fetched again."""

from __future__ import annotations

import pytest
from message_fetcher import MessageFetcher
from replica_stage import FOLLOWER, LEADER, TOPIC, Broker, Leader, content

from record_builders import build_batch, build_message_set
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.replication.replica_fetcher import FetchLimits, ReplicaFetcher

NOW = 1_700_000_000_000
COMPACTED = LogConfig(cleanup_policy=("compact",))
KEYS = [b"a", b"b", b"c", b"a", b"d"]
"""Of the records that were committed. The newer value of key a, at offset 3, gets lost."""
LEFT = 3


def receive(log: Log, offsets: list[int], epoch: int = 0) -> None:
    """Appends the records of these offsets, as a leader without other records sends them."""
    for offset in offsets:
        row = (NOW, KEYS[offset], b"%d" % offset, None)
        log.append_copied(build_batch([row], base_offset=offset, leader_epoch=epoch), NOW)


class Recovered:
    """An elected leader with the records before ``LEFT``, and a follower that had all records.

    The follower's log is compacted and has no record of offset 0.
    """

    def __init__(self, config: LogConfig, offsets: list[int], isr: tuple[int, ...] = (LEADER,)) -> None:
        self.one, self.two = Broker(LEADER, 1, config), Broker(FOLLOWER, 1, config)
        (self.leading,), (self.following,) = self.one.partitions, self.two.partitions
        receive(self.leading.log, list(range(LEFT)))
        receive(self.following.log, offsets)
        self.leader = Leader(self.one)
        self.fetcher = MessageFetcher(ReplicaFetcher(FOLLOWER, FetchLimits(), node_epoch=7))
        self.isr = isr

    def follow(self) -> None:
        """Fetches until the follower has the log of its leader."""
        self.one.become(LEADER, 1, self.isr)
        self.two.become(LEADER, 1, self.isr)
        self.one.write(0, b"after the loss")
        self.fetcher.add_partition(TOPIC, self.following, 0)
        for _ in range(4):
            request = self.fetcher.build_request(0)
            assert request is not None
            failures, out_of_range, _ = self.fetcher.handle_response(self.leader.answer(request), 0)
            assert not failures
            assert not out_of_range


def test_a_record_compacted_because_of_a_lost_record_is_fetched_again() -> None:
    recovered = Recovered(COMPACTED, [1, 2, 3, 4])
    recovered.following.log.clean_end = 4
    recovered.follow()
    assert content(recovered.following.log) == content(recovered.leading.log)
    ((first, last, reason),) = recovered.two.events.cuts
    assert (first, last) == (0, 4)
    assert "leader epoch 0 ends at offset 3; older records may have been compacted" in reason


def test_a_record_compacted_by_the_former_leader_is_fetched_again() -> None:
    """The follower has not compacted its log. It fetched the compacted records of its leader."""
    recovered = Recovered(COMPACTED, [1, 2, 3, 4])
    recovered.following.high_watermark = 4
    recovered.follow()
    assert content(recovered.following.log) == content(recovered.leading.log)


def test_a_record_removed_by_retention_before_the_loss_is_fetched_again() -> None:
    recovered = Recovered(LogConfig(), [0, 1, 2, 3, 4])
    recovered.following.log.advance_start(4)
    recovered.follow()
    assert recovered.following.log.start_offset == 0
    assert content(recovered.following.log) == content(recovered.leading.log)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_only_uncommitted_records_are_truncated(policy: str) -> None:
    recovered = Recovered(LogConfig(cleanup_policy=(policy,)), [0, 1, 2, 3, 4])
    recovered.following.high_watermark = LEFT
    recovered.following.log.clean_end = LEFT
    recovered.follow()
    assert content(recovered.following.log) == content(recovered.leading.log)
    assert [(first, last) for first, last, _ in recovered.two.events.cuts] == [(3, 4)]


def test_messages_without_leader_epochs_are_kept_up_to_the_cleaner_checkpoint() -> None:
    """The checkpointed high watermark may be lower."""
    recovered = Recovered(COMPACTED, [])
    log = recovered.following.log
    log.append_copied(build_message_set(1, [(NOW, KEYS[at], b"v") for at in range(5)], 0, base_offset=0), NOW)
    recovered.following.high_watermark, log.clean_end = 1, 3
    recovered.two.become(LEADER, 1, (LEADER,))
    recovered.fetcher.add_partition(TOPIC, recovered.following, 0)
    assert (log.end_offset, log.clean_end) == (3, 3)


def test_an_in_sync_replica_keeps_its_committed_records() -> None:
    """No replica that lacks some can have been elected. An emptied replica could be elected without any."""
    recovered = Recovered(COMPACTED, [1, 2, 3, 4], (LEADER, FOLLOWER))
    recovered.following.high_watermark = recovered.following.log.clean_end = 4
    recovered.follow()
    assert [(first, last) for first, last, _ in recovered.two.events.cuts] == [(3, 4)]
