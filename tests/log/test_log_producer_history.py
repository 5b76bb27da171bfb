"""The producer state of a log after any history: appends, rolls, truncations, shutdowns, kills.

The reference is the batches in the log. A producer without remaining batches may still be known, but its
state is never wrong.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
from log_stage import NOW, MakeBatch, MakeLog

from tidemill.log.producer_state_manager import BATCHES_KEPT
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import Batch

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
    """A log and its batches, written as a leader or fetched as a follower."""

    def __init__(self, random: Random, make_log: MakeLog, batch: MakeBatch) -> None:
        self.random = random
        self.make_log = make_log
        self.batch = batch
        self.log = make_log(SETTINGS)
        self.held: list[Held] = []
        self.epochs = dict.fromkeys(range(4), 0)

    def last_of(self, producer: int) -> Held | None:
        """Returns the last batch of a producer in its epoch."""
        return next((one for one in reversed(self.held) if one.producer == producer), None)

    def append(self) -> None:
        """Returns the next batch of some producer."""
        producer = self.random.randrange(4)
        epoch = self.epochs[producer]
        before = self.last_of(producer)
        sequence = 0 if before is None or before.epoch != epoch else before.sequence + before.count
        count = self.random.randint(1, 4)
        made = self.made(Held(producer, epoch, sequence, count, 0))
        result = self.log.append(made, 1, NOW)
        assert not result.duplicate
        self.held.append(Held(producer, epoch, sequence, count, int(result.base_offset)))

    def made(self, one: Held) -> Batch:
        """Returns the batch as its producer sends it."""
        return self.batch(
            one.count, producer_id=one.producer, producer_epoch=one.epoch, base_sequence=one.sequence
        )

    def bump(self) -> None:
        """Increments a producer epoch."""
        self.epochs[self.random.randrange(4)] += 1

    def cut(self) -> None:
        """Truncates as a follower with a shorter leader log, possibly within a batch."""
        low, high = int(self.log.start_offset), int(self.log.end_offset)
        self.log.truncate_to(self.random.randint(max(low, high - 25), high), NOW)
        self.held = [one for one in self.held if one.offset < self.log.end_offset]
        for producer in self.epochs:
            before = self.last_of(producer)
            known = self.log.producer_state.entries.get(producer)
            # State of an epoch older than the producer's next one is harmless.
            self.epochs[producer] = max(before.epoch if before else 0, int(known.epoch) if known else 0)

    def move_start(self) -> None:
        """Deletes the oldest segments."""
        if len(self.log.segments) > 2:
            self.log.delete_old_segments(1, NOW)

    def stop(self) -> None:
        """A clean shutdown and a start."""
        self.log.close(NOW)
        self.log = self.make_log(SETTINGS, clean=True, recovery_point=int(self.log.end_offset))

    def kill(self) -> None:
        """Kills the process; its writes remain."""
        recovery_point, start = int(self.log.recovery_point), int(self.log.start_offset)
        self.log.close_handlers()
        self.log = self.make_log(SETTINGS, clean=False, recovery_point=recovery_point, start_offset=start)

    def flush(self) -> None:
        """Advances the recovery point."""
        self.log.flush(NOW)

    def step(self) -> str:
        """Runs a random operation; returns its name."""
        deeds = [self.append] * 8 + [self.bump, self.cut, self.move_start, self.stop, self.kill, self.flush]
        deed = self.random.choice(deeds)
        deed()
        return deed.__name__

    def check(self) -> None:
        """Checks that no batch is stored twice, and that no next batch is rejected."""
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
                    result = self.log.append(self.made(one), 1, NOW)
                    assert (result.duplicate, result.base_offset) == (True, one.offset)
            with pytest.raises(KafkaError) as caught:
                self.log.append(self.made(last._replace(sequence=last.sequence + last.count + 1)), 1, NOW)
            assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("seed", range(30))
def test_a_log_tracks_the_last_batches_of_its_producers(log_of: MakeLog, batch: MakeBatch, seed: int) -> None:
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
