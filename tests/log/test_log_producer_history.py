"""What a log knows of its producers after any history: appends, new segments, cuts, stops, kills.

The truth is the batches that the log holds. A producer whose last batch is gone from the start of the log may
be known still; what is known of it is never wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from tidemill.log.log import Log
from tidemill.log.producer_state import BATCHES_KEPT
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import Batch

NOW = 1_700_000_000_000
MakeBatch = Callable[..., Batch]
MakeLog = Callable[..., Log]
SETTINGS = {"segment_bytes": 1000, "index_interval_bytes": 1}
STEPS = 60


class Held(NamedTuple):
    """A batch that was appended."""

    producer: int
    epoch: int
    sequence: int
    count: int
    offset: int


class History:
    """A log, and the batches that it holds: as a leader wrote them, or as a follower took them over."""

    def __init__(self, random: Random, make_log: MakeLog, batch: MakeBatch) -> None:
        self.random = random
        self.make_log = make_log
        self.batch = batch
        self.log = make_log(SETTINGS)
        self.held: list[Held] = []
        self.epochs = dict.fromkeys(range(4), 0)

    def last_of(self, producer: int) -> Held | None:
        """The last batch of a producer in its epoch."""
        return next((one for one in reversed(self.held) if one.producer == producer), None)

    def append(self) -> None:
        """The next batch of some producer."""
        producer = self.random.randrange(4)
        epoch = self.epochs[producer]
        before = self.last_of(producer)
        sequence = 0 if before is None or before.epoch != epoch else before.sequence + before.count
        count = self.random.randint(1, 4)
        made = self.made(Held(producer, epoch, sequence, count, 0))
        result = self.log.append([made], 1, NOW)
        assert not result.duplicate
        self.held.append(Held(producer, epoch, sequence, count, int(result.base_offset)))

    def made(self, one: Held) -> Batch:
        """The batch as its producer sends it."""
        return self.batch(
            one.count, producer_id=one.producer, producer_epoch=one.epoch, base_sequence=one.sequence
        )

    def bump(self) -> None:
        """A producer counts its epoch up."""
        self.epochs[self.random.randrange(4)] += 1

    def cut(self) -> None:
        """As a follower does whose leader has less; in the middle of a batch, too."""
        low, high = int(self.log.start_offset), int(self.log.end_offset)
        self.log.truncate_to(self.random.randint(max(low, high - 25), high), NOW)
        self.held = [one for one in self.held if one.offset < self.log.end_offset]
        for producer in self.epochs:
            before = self.last_of(producer)
            known = self.log.producer_state.entries.get(producer)
            # What it knows of an older epoch than the producer's next one does no harm.
            self.epochs[producer] = max(before.epoch if before else 0, int(known.epoch) if known else 0)

    def move_start(self) -> None:
        """The oldest segments go."""
        if len(self.log.segments) > 2:
            self.log.remove_segments(1, NOW)

    def stop(self) -> None:
        """A stop in order, and a start."""
        self.log.close(NOW)
        self.log = self.make_log(SETTINGS, clean=True, recovery_point=int(self.log.end_offset))

    def kill(self) -> None:
        """The process ends, what it wrote stays."""
        recovery_point, start = int(self.log.recovery_point), int(self.log.start_offset)
        self.log.release()
        self.log = self.make_log(SETTINGS, clean=False, recovery_point=recovery_point, start_offset=start)

    def flush(self) -> None:
        """What a recovery need not read any more."""
        self.log.flush(NOW)

    def step(self) -> str:
        """Does something; what."""
        deeds = [self.append] * 8 + [self.bump, self.cut, self.move_start, self.stop, self.kill, self.flush]
        deed = self.random.choice(deeds)
        deed()
        return deed.__name__

    def check(self) -> None:
        """Nothing is stored twice, nothing that follows is refused."""
        state: Any = self.log.producer_state
        for producer in self.epochs:
            mine = [one for one in self.held if one.producer == producer]
            entry = state.entries.get(producer)
            if not mine:
                continue
            last = mine[-1]
            if entry is None:
                assert last.offset < self.log.start_offset, f"{last} is forgotten"
                continue
            assert entry.epoch == last.epoch
            assert entry.last_sequence == last.sequence + last.count - 1
            assert entry.last_offset == last.offset + last.count - 1
            recent = [one for one in mine if one.epoch == last.epoch][-BATCHES_KEPT:]
            for one in recent:
                if one.offset >= self.log.start_offset:
                    result = self.log.append([self.made(one)], 1, NOW)
                    assert (result.duplicate, result.base_offset) == (True, one.offset)
            with pytest.raises(KafkaError) as caught:
                self.log.append([self.made(last._replace(sequence=last.sequence + last.count + 1))], 1, NOW)
            assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("seed", range(30))
def test_a_log_knows_the_last_batches_of_its_producers(log_of: MakeLog, batch: MakeBatch, seed: int) -> None:
    history = History(Random(seed), log_of, batch)
    deeds = []
    for _ in range(STEPS):
        deeds.append(history.step())
        try:
            if history.random.random() < 0.5:
                history.check()
        except BaseException:
            print(f"seed {seed}: {deeds}")
            raise
    history.check()
