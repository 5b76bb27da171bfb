"""The commits of leaders, whether a client learns of them or not: the promise ``committed``.

The high watermarks of all brokers are checked every few steps. If a leader advances its high watermark, the
ISR has to hold the records below it, and with ``flush.messages=1`` the disks of the ISR. No other replica has
a higher high watermark than some leader had, and none has a high watermark above its log end offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from log_inspection import log_directory, whole_batches

from tidemill.log.file_names import LOG, offset_of
from tidemill.replication.partition import Partition

if TYPE_CHECKING:
    from promises import PartitionKey, Promises
    from simulated_disk import SimulatedFiles


DOUBT_S = 0.05
"""The maximum time for which a leader has a commit between two checks of the brokers."""


class ReplicaState(NamedTuple):
    """The state of a replica at the last check."""

    high_watermark: int
    start: int
    end: int
    epoch: int
    is_leader: bool


class CheckedBroker(NamedTuple):
    """A running broker and its replicas."""

    broker: int
    partitions: Sequence[Partition]


class Change(NamedTuple):
    """A replica with a changed state."""

    marks: ReplicaState
    led: bool
    """It leads, or led then."""
    has_heard: bool
    """Its high watermark has risen since."""


class UnexplainedHighWatermark(NamedTuple):
    """A replica has a high watermark that no leader had, since some time. ``leader``: broker and epoch."""

    high_watermark: int
    since_s: float
    leader: tuple[int, int]


class CommittedPromise:
    """Tracks the high watermarks of all replicas."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._seen: dict[tuple[int, PartitionKey, bytes], ReplicaState] = {}
        self._most: dict[tuple[PartitionKey, bytes], int] = {}
        """What leaders have committed."""
        self._leaders: dict[tuple[PartitionKey, bytes], tuple[int, int]] = {}
        """By partition the broker that leads it in the latest epoch, and the epoch."""
        self._doubts: dict[tuple[int, PartitionKey, bytes], UnexplainedHighWatermark] = {}
        self._looked_s = 0.0

    def look(self, brokers: Sequence[CheckedBroker]) -> None:
        """Checks the replicas of all running brokers."""
        replicas = [(one.broker, partition) for one in brokers for partition in one.partitions]
        leaders: dict[tuple[PartitionKey, bytes], tuple[int, int]] = {}
        for broker, partition in replicas:
            if partition.is_leader:
                key = (_partition_key(partition), partition.log.topic_id)
                epoch = int(partition.leader_epoch)
                if epoch > leaders.get(key, (0, -1))[1]:
                    leaders[key] = (broker, epoch)
        # A former leader may have committed records before the check.
        changed = [
            (broker, *of) for broker, partition in replicas if (of := self._changed(broker, partition))
        ]
        for broker, key, change in sorted(changed, key=lambda one: not one[2].led):
            self._look_at(broker, key, change)
        self._look_at_doubts(leaders)
        self._leaders = leaders
        self._looked_s = self._promises.now()

    def most(self, tp: PartitionKey, topic_id: bytes) -> int:
        """Returns the highest high watermark of the partition's leaders."""
        return self._most.get((tp, topic_id), 0)

    def _changed(self, broker: int, partition: Partition) -> tuple[tuple[PartitionKey, bytes], Change] | None:
        """Returns the state of a replica if it has changed."""
        log = partition.log
        tp, topic_id = _partition_key(partition), log.topic_id
        marks = ReplicaState(
            int(partition.high_watermark),
            int(log.start_offset),
            int(log.end_offset),
            int(partition.leader_epoch),
            bool(partition.is_leader),
        )
        before = self._seen.get((broker, tp, topic_id))
        if before == marks:
            return None
        self._seen[broker, tp, topic_id] = marks
        led = marks.is_leader or (before is not None and before.is_leader)
        has_heard = before is None or marks.high_watermark > before.high_watermark
        return (tp, topic_id), Change(marks, led, has_heard)

    def _look_at(self, broker: int, key: tuple[PartitionKey, bytes], change: Change) -> None:
        tp, topic_id = key
        marks = change.marks
        mark, most = marks.high_watermark, self.most(tp, topic_id)
        if mark > marks.end:
            self._broken(f"{broker} treats {tp} as committed up to {mark}, and its log ends at {marks.end}")
        elif marks.is_leader and marks.start > max(mark, most):
            self._broken(
                f"{tp} starts at {marks.start} on its leader {broker}, and is committed up to {mark}"
            )
        elif mark > most and change.led:
            self._most[key] = mark
            self._promises.committed(tp, topic_id, marks.epoch, broker, mark, self._looked_s)
        elif mark > max(most, marks.start) and change.has_heard and key in self._leaders:
            doubt = UnexplainedHighWatermark(mark, self._promises.now(), self._leaders[key])
            self._doubts.setdefault((broker, *key), doubt)

    def _look_at_doubts(self, leaders: Mapping[tuple[PartitionKey, bytes], tuple[int, int]]) -> None:
        for (broker, tp, topic_id), doubt in list(self._doubts.items()):
            most, mark = self.most(tp, topic_id), doubt.high_watermark
            if most >= mark or leaders.get((tp, topic_id)) != doubt.leader:
                # A leader that has ended may have reported it.
                del self._doubts[broker, tp, topic_id]
            elif self._promises.now() - doubt.since_s > DOUBT_S:
                self._broken(f"{broker} treats {tp} as committed up to {mark}, and {most} is committed")
                return

    def _broken(self, text: str) -> None:
        self._promises.broken("committed", text)


def _partition_key(partition: Partition) -> PartitionKey:
    return partition.topic, int(partition.index)


def synced_end(files: SimulatedFiles, partition: str) -> int:
    """Returns the end of the whole batches of a log that survive a power failure; -1 without any."""
    directory = log_directory(files.durable_names, partition)
    for name in reversed(files.durable_names(directory)):
        if offset_of(name, LOG) >= 0:
            lasts = [last for _, last, _ in whole_batches(files.durable(f"{directory}/{name}"))]
            if lasts:
                return max(lasts) + 1
    return -1
