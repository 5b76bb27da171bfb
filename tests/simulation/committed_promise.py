"""What leaders commit, whether a client is told of it or not: the promise ``committed``.

The high watermarks of all brokers are looked at every few steps. One that a leader moves has to be covered by
the in-sync set, and with ``flush.messages=1`` by its disks. No other replica takes more for committed than
some leader has committed, and none takes for committed what it does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from log_inspection import whole_batches

from tidemill.log.names import LOG, offset_of
from tidemill.replication.partition import Partition

if TYPE_CHECKING:
    from promises import Place, Promises
    from simulated_disk import SimulatedFiles


DOUBT_S = 0.05
"""A leader may end before it was looked at, that has told a follower what it had committed."""


class Marks(NamedTuple):
    """What a broker took for committed when it was looked at last, and what for the ends of its log."""

    high_watermark: int
    start: int
    end: int


class Looked(NamedTuple):
    """A running broker, its disk and its replicas."""

    broker: int
    files: SimulatedFiles
    partitions: Sequence[Partition]


class CommittedPromise:
    """Follows the high watermarks of all replicas."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._seen: dict[tuple[int, Place, bytes, int, bool], Marks] = {}
        """By broker, partition and leader epoch, and whether it led."""
        self._most: dict[tuple[Place, bytes], int] = {}
        """What leaders have committed."""
        self._doubts: dict[tuple[int, Place, bytes], tuple[int, float]] = {}
        """What a follower takes for committed, and nobody has committed, and since when."""
        self._looked_s = 0.0

    def look(self, brokers: Sequence[Looked]) -> None:
        """Looks at the replicas of all running brokers."""
        changed = [
            (one, partition, marks)
            for one in brokers
            for partition in one.partitions
            if (marks := self._changed(one.broker, partition)) is not None
        ]
        for one, partition, marks in changed:
            if partition.is_leader:
                self._look_at_leader(one.broker, partition, marks)
        for one, partition, marks in changed:
            self._look_at_replica(one.broker, partition, marks)
        self._look_at_doubts()
        self._looked_s = self._promises.now()

    def most(self, place: Place, topic_id: bytes) -> int:
        """Up to where some leader has committed a partition."""
        return self._most.get((place, topic_id), 0)

    def _changed(self, broker: int, partition: Partition) -> Marks | None:
        log = partition.log
        marks = Marks(int(partition.high_watermark), int(log.start_offset), int(log.end_offset))
        epoch, is_leader = int(partition.leader_epoch), bool(partition.is_leader)
        key = (broker, _place(partition), log.topic_id, epoch, is_leader)
        if self._seen.get(key) == marks:
            return None
        self._seen[key] = marks
        return marks

    def _look_at_leader(self, broker: int, partition: Partition, marks: Marks) -> None:
        place, topic_id = _place(partition), partition.log.topic_id
        most = self.most(place, topic_id)
        if marks.start > max(marks.high_watermark, most):
            self._broken(
                f"the log of {place} starts at {marks.start} on its leader {broker}, and is committed up to"
                f" {marks.high_watermark}"
            )
        elif marks.high_watermark > most:
            self._most[place, topic_id] = marks.high_watermark
            epoch = int(partition.leader_epoch)
            self._promises.committed(place, topic_id, epoch, broker, marks.high_watermark, self._looked_s)

    def _look_at_replica(self, broker: int, partition: Partition, marks: Marks) -> None:
        place, topic_id = _place(partition), partition.log.topic_id
        if (broker, place, topic_id, int(partition.leader_epoch), True) in self._seen:
            # It led until a moment ago, or leads.
            most = self.most(place, topic_id)
            self._most[place, topic_id] = max(most, marks.high_watermark)
        if marks.high_watermark > marks.end:
            mark = marks.high_watermark
            self._broken(f"{broker} takes {place} up to {mark} for committed, and has it up to {marks.end}")
        elif marks.high_watermark > max(self.most(place, topic_id), marks.start):
            self._doubts.setdefault((broker, place, topic_id), (marks.high_watermark, self._promises.now()))

    def _look_at_doubts(self) -> None:
        for (broker, place, topic_id), (mark, since_s) in list(self._doubts.items()):
            most = self.most(place, topic_id)
            if most >= mark:
                del self._doubts[broker, place, topic_id]
            elif self._promises.now() - since_s > DOUBT_S:
                self._broken(f"{broker} takes {place} up to {mark} for committed, and {most} is")
                return

    def _broken(self, text: str) -> None:
        self._promises.broken("committed", text)


def _place(partition: Partition) -> Place:
    return partition.topic, int(partition.index)


def synced_end(files: SimulatedFiles, directory: str) -> int:
    """Where the whole batches end that are on the disk for sure; -1 without any."""
    end = -1
    for name in files.durable_names(directory):
        if offset_of(name, LOG) >= 0:
            for _, last, _ in whole_batches(files.durable(f"{directory}/{name}")):
                end = max(end, last + 1)
    return end
