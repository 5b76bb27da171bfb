"""Answers that leave a leader late: records go from the file to the network, and the file may change before.

A leader that lost its office cuts its log, and appends what the new leader has in that place. What was on its
way to a follower then holds the new records: also what the system took before, as it sends pages of the file
without a copy.
"""

from __future__ import annotations

import pytest
from message_fetcher import MessageFetcher
from replica_stage import FOLLOWER, LEADER, TOPIC, Broker

from tidemill.log.segment import Slice
from tidemill.model.errors import CorruptMessage
from tidemill.records.batch import LEADER_EPOCH
from tidemill.replication.fetcher import FetchLimits, LeaderFetcher, Trouble, divergence
from tidemill.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

THIRD = 3
BACKOFF_MS = 50


class Deposed:
    """A leader of epoch 5 and its follower, while an answer is on its way; a third broker leads next."""

    def __init__(self) -> None:
        self.leader, self.follower, self.third = Broker(LEADER), Broker(FOLLOWER), Broker(THIRD)
        for broker in (self.leader, self.follower, self.third):
            broker.become(broker.node, 0, (broker.node,))
            broker.write(0, b"both")
        self.fetcher = MessageFetcher(LeaderFetcher(FOLLOWER, 7, FetchLimits(backoff_ms=BACKOFF_MS)))
        self.leader.become(LEADER, 5, (LEADER,))
        self.follower.become(LEADER, 5)
        self.fetcher.follow(TOPIC, self.follower.partitions[0], 0)
        self.log = self.follower.partitions[0].log
        self.leader.write(0, b"old1")
        assert self.take(self.ask()) == []
        self.leader.write(0, b"old2", b"old3")

    def ask(self) -> Slice:
        """The follower asks: where the answer's records lie."""
        request = self.fetcher.request(BACKOFF_MS)
        assert request is not None
        found = self.leader.partitions[0].read(int(self.log.end_offset), 1 << 20, 1 << 20, True)
        assert found is not None
        return found

    def take(self, found: Slice) -> list[Trouble]:
        """The answer comes, with what the file holds by now."""
        part = PartitionData(partition_index=0, high_watermark=1, log_start_offset=0, records=found.read())
        topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=[part])]
        return self.fetcher.answer(FetchResponse(session_id=1, responses=topics), BACKOFF_MS).troubles

    def depose(self, *epochs: int) -> None:
        """The third broker wrote a record in each of ``epochs``: the leader cuts its own, and takes those."""
        for epoch in epochs:
            self.third.become(THIRD, epoch, (THIRD,))
            self.third.write(0, b"new%d" % (epoch % 10))
        self.third.become(THIRD, 6, (THIRD,))
        former = self.leader.partitions[0]
        former.become(THIRD, 6, (LEADER, FOLLOWER, THIRD), (THIRD,))
        former.truncate_to(1, 0)
        former.append_from_leader(content(self.third), 1, 0, 0)
        assert former.log.end_offset == 1 + len(epochs)


def content(broker: Broker) -> bytes:
    found = broker.partitions[0].read(1, 1 << 20, 1 << 20, True)
    return b"" if found is None else found.read()


@pytest.mark.parametrize("epochs", [(6, 6, 6), (4, 4, 4), (4, 4, 6)])
def test_records_of_the_next_leader_do_not_follow_those_of_the_one_before(epochs: tuple[int, ...]) -> None:
    stage = Deposed()
    found = stage.ask()
    stage.depose(*epochs)
    (trouble,) = stage.take(found)
    assert "it may be of the next leader" in trouble.text
    assert (stage.log.end_offset, stage.log.leader_epochs.latest) == (2, 5)


@pytest.mark.parametrize("epochs", [(6, 6, 6), (4, 4, 4), (4, 4, 6)])
def test_a_follower_of_a_deposed_leader_gets_what_the_next_leader_has(epochs: tuple[int, ...]) -> None:
    stage = Deposed()
    found = stage.ask()
    stage.depose(*epochs)
    stage.take(found)
    leader, follower = stage.third.partitions[0], stage.follower.partitions[0]
    epoch, end = leader.log.leader_epochs.end_offset(int(stage.log.leader_epochs.latest), 4)
    if (epoch, end) != (stage.log.leader_epochs.latest, stage.log.end_offset):
        follower.truncate_to(divergence(follower, epoch, end), 0)
    follower.become(THIRD, 6, (LEADER, FOLLOWER, THIRD), (THIRD,))
    rest = leader.read(int(stage.log.end_offset), 1 << 20, 1 << 20, True)
    follower.append_from_leader(b"" if rest is None else rest.read(), 1, 0, 0)
    assert content(stage.follower) == content(stage.third)


def test_an_earlier_epoch_that_a_leader_sends_again_is_taken() -> None:
    """No leader writes such a log: bits of the epoch, which no checksum covers, may have turned."""
    stage = Deposed()
    data = stage.ask().read()
    turned = data[:LEADER_EPOCH] + (3).to_bytes(4, "big") + data[LEADER_EPOCH + 4 :]
    follower = stage.follower.partitions[0]
    with pytest.raises(CorruptMessage, match="it may be of the next leader"):
        follower.append_from_leader(turned, 1, 0, 0)
    assert stage.log.end_offset == 2
    follower.append_from_leader(turned, 1, 0, 0)
    assert stage.log.end_offset == 4
