"""Responses sent late by a leader: records go from the file to the network, and the file may change before.

A deposed leader truncates its log and appends the records of the new leader at the same offsets. A late
response to a follower then contains the new records. This also holds for data in the socket buffer, as the
system sends pages of the file without a copy.
"""

from __future__ import annotations

import pytest
from message_fetcher import MessageFetcher
from replica_stage import BACKOFF_MS, FOLLOWER, LEADER, TOPIC, Broker

from tidemill.log.log_segment import LogRange
from tidemill.model.errors import CorruptMessage
from tidemill.records.batch import LEADER_EPOCH
from tidemill.replication.replica_fetcher import (
    FetchLimits,
    PartitionFailure,
    ReplicaFetcher,
    truncation_offset,
)
from tidemill.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

THIRD = 3


class Deposed:
    """A leader of epoch 5 and its follower with a response in flight. A third broker leads next."""

    def __init__(self) -> None:
        self.leader, self.follower, self.third = Broker(LEADER), Broker(FOLLOWER), Broker(THIRD)
        for broker in (self.leader, self.follower, self.third):
            broker.become(broker.node, 0, (broker.node,))
            broker.write(0, b"both")
        self.fetcher = MessageFetcher(
            ReplicaFetcher(FOLLOWER, FetchLimits(backoff_ms=BACKOFF_MS), node_epoch=7)
        )
        self.leader.become(LEADER, 5, (LEADER,))
        self.follower.become(LEADER, 5)
        self.fetcher.add_partition(TOPIC, self.follower.partitions[0], 0)
        self.log = self.follower.partitions[0].log
        self.leader.write(0, b"old1")
        assert self.take(self.ask()) == []
        self.leader.write(0, b"old2", b"old3")

    def ask(self) -> LogRange:
        """The follower sends a fetch; returns the position of the records in the file."""
        request = self.fetcher.build_request(BACKOFF_MS)
        assert request is not None
        found = self.leader.partitions[0].read(int(self.log.end_offset), 1 << 20, 1 << 20, True)
        assert found is not None
        return found

    def take(self, found: LogRange) -> list[PartitionFailure]:
        """The response arrives with the current content of the file."""
        part = PartitionData(partition_index=0, high_watermark=1, log_start_offset=0, records=found.read())
        topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=[part])]
        return self.fetcher.handle_response(
            FetchResponse(session_id=1, responses=topics), BACKOFF_MS
        ).failures

    def depose(self, *epochs: int) -> None:
        """The third broker wrote a record in each of ``epochs``.

        The leader truncates its log and fetches them.
        """
        for epoch in epochs:
            self.third.become(THIRD, epoch, (THIRD,))
            self.third.write(0, b"new%d" % (epoch % 10))
        self.third.become(THIRD, 6, (THIRD,))
        former = self.leader.partitions[0]
        former.apply_state(THIRD, 6, (LEADER, FOLLOWER, THIRD), (THIRD,), partition_epoch=-1, now_ms=0)
        former.truncate_to(1, 0)
        former.append_from_leader(content(self.third), 1, 0, 0)
        assert former.log.end_offset == 1 + len(epochs)


def content(broker: Broker) -> bytes:
    found = broker.partitions[0].read(1, 1 << 20, 1 << 20, True)
    return b"" if found is None else found.read()


@pytest.mark.parametrize("epochs", [(6, 6, 6), (4, 4, 4), (4, 4, 6)])
def test_records_of_a_new_leader_are_not_appended_after_diverged_records(epochs: tuple[int, ...]) -> None:
    stage = Deposed()
    found = stage.ask()
    stage.depose(*epochs)
    (trouble,) = stage.take(found)
    assert "it may come from the next leader" in trouble.text
    assert (stage.log.end_offset, stage.log.leader_epochs.latest) == (2, 5)


@pytest.mark.parametrize("epochs", [(6, 6, 6), (4, 4, 4), (4, 4, 6)])
def test_a_follower_of_a_deposed_leader_gets_the_records_of_the_next_leader(epochs: tuple[int, ...]) -> None:
    stage = Deposed()
    found = stage.ask()
    stage.depose(*epochs)
    stage.take(found)
    leader, follower = stage.third.partitions[0], stage.follower.partitions[0]
    epoch, end = leader.log.leader_epochs.end_offset(int(stage.log.leader_epochs.latest), 4)
    if (epoch, end) != (stage.log.leader_epochs.latest, stage.log.end_offset):
        follower.truncate_to(truncation_offset(follower, epoch, end), 0)
    follower.apply_state(THIRD, 6, (LEADER, FOLLOWER, THIRD), (THIRD,), partition_epoch=-1, now_ms=0)
    rest = leader.read(int(stage.log.end_offset), 1 << 20, 1 << 20, True)
    follower.append_from_leader(b"" if rest is None else rest.read(), 1, 0, 0)
    assert content(stage.follower) == content(stage.third)


def test_records_of_an_earlier_epoch_sent_again_by_a_leader_are_appended() -> None:
    """No leader writes such a log. Bits of the epoch, which no checksum covers, may have changed."""
    stage = Deposed()
    data = stage.ask().read()
    turned = data[:LEADER_EPOCH] + (3).to_bytes(4, "big") + data[LEADER_EPOCH + 4 :]
    follower = stage.follower.partitions[0]
    with pytest.raises(CorruptMessage, match="it may come from the next leader"):
        follower.append_from_leader(turned, 1, 0, 0)
    assert stage.log.end_offset == 2
    follower.append_from_leader(turned, 1, 0, 0)
    assert stage.log.end_offset == 4
