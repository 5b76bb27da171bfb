"""What clients did and saw while faults went on, one JSON object a line.

| op | fields | meaning |
|---|---|---|
| send | by, p, n | a writer handed message ``n`` of partition ``p`` over |
| ack | by, p, n, o, acks | it was acknowledged at offset ``o`` (-1: the broker had it already) |
| fail | by, p, n, error, sure | it failed; ``sure``: it cannot have been written |
| poll | by, m | one poll of a reader brought the records ``[p, o, value]`` |
| place | by, p | a reader starts at another place in these partitions, as its group or it itself chose |
| commit | by, p, o | a group's offset was acknowledged |
| reset | by, p, error | a reader was told that its offset is out of range |
| deleting | p, o | DeleteRecords was asked for: what is before ``o`` |
| deleted | p, o | it was answered: the partition begins at ``o`` |
| undecided | p, o, error | it was refused, or not answered |
| state | p, leader, epoch, isr, since | the store has another state, which it got after ``since`` |
| final | p, s, m | all that the partition holds at the end, from offset ``s`` on: ``[o, value]`` |
| fault, healed, settled | kind, detail | what was done to the cluster; settled: all replicas are in sync |
| loss | brokers, what | just now brokers lose what they had not synced (``power``), or all (``disk``) |

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
    """The partitions of a topic, which are numbered from ``first`` on in the history."""

    topic: str
    partitions: int
    first: int = 0

    @property
    def all(self) -> range:
        """Their numbers in the history."""
        return range(self.first, self.first + self.partitions)


class History:
    """Writes events, from any thread, and knows how long each partition went without an acknowledgement."""

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
        """Notes an event."""
        with self._lock:
            at = self.now
            if self._file.closed:
                return
            self._file.write(json.dumps({"op": op, "at": round(at, 4), **fields}) + "\n")
            if op == "ack":
                self.acknowledged += 1
            # A leader alone acknowledges with acks=1.
            if op == "ack" and fields["acks"] != 1:
                place = fields["p"]
                self._gaps[place] = max(self._gaps[place], at - self._last[place])
                self._last[place] = self._acknowledged[place] = at

    def begin_gap(self) -> None:
        """From now on gaps are measured anew."""
        with self._lock:
            self._gaps = [0.0] * len(self._gaps)
            self._last = [self.now] * len(self._last)

    def gap(self) -> float:
        """The longest time that some partition went without a write acknowledged with acks=all."""
        with self._lock:
            now = self.now
            return max(max(gap, now - last) for gap, last in zip(self._gaps, self._last, strict=True))

    def acknowledged_since(self, at: float) -> bool:
        """Whether every partition has acknowledged something with acks=all since then."""
        with self._lock:
            return min(self._acknowledged) > at

    def close(self) -> None:
        """Ends the file; what is added later is lost."""
        with self._lock:
            self._file.close()


def read(path: Path) -> Iterator[Event]:
    """The events of a file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
