"""Idempotent producers during leader changes: retried batches are stored once after any truncation."""

from __future__ import annotations

from random import Random

import pytest
from message_fetcher import MessageFetcher
from replica_stage import FOLLOWER, LEADER, TOPIC, Broker, Leader, batch_of, content

from default_limits import iter_records
from tidemill.log.log_config import LogConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchLimits, ReplicaFetcher

UNDER_WAY_MAX = 5
STEPS = 150


class Writer:
    """A producer that retries all in-flight batches from the first unacknowledged one."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.acknowledged = 0
        self.sent = 0

    def send(self, partition: Partition, number: int) -> int:
        """Sends message ``number``; returns its offset."""
        value = b"%d %d" % (self.producer_id, number)
        batch = batch_of(value, producer_id=self.producer_id, producer_epoch=0, base_sequence=number)
        return int(partition.append(batch, -1, 0).last_offset)


class Two:
    """Two replicas that alternate as leader."""

    def __init__(self, random: Random) -> None:
        self.random = random
        config = LogConfig(segment_bytes=700, index_interval_bytes=1)
        self.brokers = {number: Broker(number, 1, config) for number in (LEADER, FOLLOWER)}
        self.writers = [Writer(producer) for producer in (1, 2, 3)]
        self.waiting: list[tuple[int, Writer, int]] = []
        self.epoch = 0
        self.leader = FOLLOWER
        self.failover()

    def partition(self, number: int) -> Partition:
        """A replica."""
        return self.brokers[number].partitions[0]

    @property
    def led(self) -> Partition:
        """Returns the leader."""
        return self.partition(self.leader)

    def failover(self) -> None:
        """The other replica becomes leader.

        The old leader follows, and unacknowledged batches are retried.
        """
        before, self.leader = self.leader, LEADER + FOLLOWER - self.leader
        self.epoch += 1
        self.led.apply_state(
            self.leader, self.epoch, (LEADER, FOLLOWER), (LEADER, FOLLOWER), partition_epoch=-1, now_ms=0
        )
        self.follower = before
        follower = self.partition(before)
        follower.apply_state(
            self.leader, self.epoch, (LEADER, FOLLOWER), (LEADER, FOLLOWER), partition_epoch=-1, now_ms=0
        )
        self.answers = Leader(self.brokers[self.leader])
        self.fetcher = MessageFetcher(ReplicaFetcher(before, FetchLimits(backoff_ms=0), node_epoch=7))
        self.fetcher.add_partition(TOPIC, follower, 0)
        self.waiting = []
        for writer in self.writers:
            for number in range(writer.acknowledged, writer.sent):
                self.wait(writer, number)

    def wait(self, writer: Writer, number: int) -> None:
        """Sends a message and waits for its commit."""
        self.waiting.append((writer.send(self.led, number), writer, number))

    def write(self) -> None:
        """Some producer sends its next message."""
        writer = self.random.choice(self.writers)
        if writer.sent - writer.acknowledged < UNDER_WAY_MAX:
            writer.sent += 1
            self.wait(writer, writer.sent - 1)

    def repeat(self) -> None:
        """Some producer has lost its connection."""
        writer = self.random.choice(self.writers)
        for number in range(writer.acknowledged, writer.sent):
            known = [offset for offset, of, at in self.waiting if of is writer and at == number]
            assert writer.send(self.led, number) in known

    def fetch(self) -> None:
        """The follower sends one fetch and handles the response."""
        request = self.fetcher.build_request(0)
        assert request is not None
        end = int(self.partition(self.follower).log.end_offset)
        answer = self.answers.answer(request)
        if not any(
            one.diverging_epoch.end_offset >= 0 for topic in answer.responses for one in topic.partitions
        ):
            self.led.fetched_by(self.follower, end, 0, 0)
        failures, out_of_range, _ = self.fetcher.handle_response(answer, 0)
        assert not failures
        assert not out_of_range
        for offset, writer, number in sorted(self.waiting, key=lambda one: one[0]):
            if offset < self.led.high_watermark:
                writer.acknowledged = max(writer.acknowledged, number + 1)
        self.waiting = [one for one in self.waiting if one[0] >= self.led.high_watermark]

    def held(self) -> list[bytes]:
        """Returns the values in the leader's log."""
        return [one.value or b"" for one in iter_records(content(self.led.log))]


@pytest.mark.parametrize("seed", range(25))
def test_retried_batches_are_stored_once_and_in_order_after_any_leader_changes(seed: int) -> None:
    random = Random(seed)
    two = Two(random)
    for _ in range(STEPS):
        deed = random.choice([two.write] * 6 + [two.fetch] * 5 + [two.repeat, two.failover])
        deed()
    while two.waiting:
        two.fetch()
    held = two.held()
    for writer in two.writers:
        assert writer.acknowledged == writer.sent
        mine = [value for value in held if value.startswith(b"%d " % writer.producer_id)]
        assert mine == [b"%d %d" % (writer.producer_id, number) for number in range(writer.sent)]
    assert len(held) == sum(writer.sent for writer in two.writers) > 20
    for number in (LEADER, FOLLOWER):
        state = two.partition(number).log.producer_state
        assert {int(one.producer_id): int(one.last_sequence) for one in state.entries.values()} == {
            writer.producer_id: writer.sent - 1 for writer in two.writers if writer.sent
        }


def test_a_new_leader_rejects_a_sequence_gap_after_a_lost_batch() -> None:
    two = Two(Random(0))
    (writer, *_) = two.writers
    for number in range(2):
        writer.send(two.led, number)
    two.fetch()
    two.fetch()
    writer.send(two.led, 2)
    two.failover()
    with pytest.raises(KafkaError) as caught:
        writer.send(two.led, 3)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [writer.send(two.led, number) for number in (1, 2, 3)] == [1, 2, 3]
