"""The operations and observations of clients during faults, one JSON object per line.

| op | fields | meaning |
|---|---|---|
| send | by, p, n | a writer sent message ``n`` of partition ``p`` |
| ack | by, p, n, o, acks | it was acknowledged at offset ``o`` (-1: the broker had it already) |
| fail | by, p, n, error, sure | the message failed; ``sure``: it cannot have been written |
| poll | by, m | one poll of a reader returned the records ``[p, o, value]`` |
| place | by, p | a reader starts at another position in these partitions, by assignment or itself |
| commit | by, p, o | the commit of a group's offset was acknowledged |
| reset | by, p, error | the offset of a reader was out of range |
| deleting | p, o | DeleteRecords was requested for the records before ``o`` |
| deleted | p, o | DeleteRecords was successful: the partition begins at ``o`` |
| undecided | p, o, error | DeleteRecords was refused, or had no response |
| state | p, leader, epoch, isr, since | the store has another state, written after ``since`` |
| final | p, s, m | the final content of the partition, from offset ``s`` on: ``[o, value]`` |
| fault, healed, settled | kind, detail | a fault and its end; settled: all replicas are in sync |
| loss | brokers, what | brokers lose their unsynced data (``power``), or all (``disk``) |

``p`` numbers the partitions of all topics (:class:`Places`).

All have ``at``, the seconds since the start. A value is ``<writer> <n>``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]


class Places(NamedTuple):
    """The partitions of a topic, whose numbers in the history start at ``first``."""

    topic: str
    partitions: int
    first: int = 0

    @property
    def all(self) -> range:
        """Returns their numbers in the history."""
        return range(self.first, self.first + self.partitions)


class History:
    """Writes events, from any thread, and tracks how long each partition had no acknowledgement."""

    def __init__(self, path: Path, partitions: int) -> None:
        self.path = path
        self.acknowledged = 0
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._last = [0.0] * partitions
        self._acknowledged = [-1.0] * partitions
        self._gaps = [0.0] * partitions

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def add(self, op: str, **fields: Any) -> None:
        """Writes an event."""
        with self._lock:
            at = self.now
            if self._file.closed:
                return
            self._file.write(json.dumps({"op": op, "at": round(at, 4), **fields}) + "\n")
            if op == "ack":
                self.acknowledged += 1
            # With acks=1 the leader acknowledges alone.
            if op == "ack" and fields["acks"] != 1:
                place = fields["p"]
                self._gaps[place] = max(self._gaps[place], at - self._last[place])
                self._last[place] = self._acknowledged[place] = at

    def begin_gap(self) -> None:
        """Restarts the measurement of gaps."""
        with self._lock:
            self._gaps = [0.0] * len(self._gaps)
            self._last = [self.now] * len(self._last)

    def gap(self) -> float:
        """Returns the longest time that a partition had no write acknowledged with acks=all."""
        with self._lock:
            now = self.now
            return max(max(gap, now - last) for gap, last in zip(self._gaps, self._last, strict=True))

    def acknowledged_since(self, at: float) -> bool:
        """Whether every partition has had an acknowledgement with acks=all since then."""
        with self._lock:
            return min(self._acknowledged) > at

    def close(self) -> None:
        """Closes the file; later events are lost."""
        with self._lock:
            self._file.close()


def read(path: Path) -> Iterator[Event]:
    """Returns the events of a file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
