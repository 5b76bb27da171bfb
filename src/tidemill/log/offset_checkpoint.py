"""An offset checkpoint of a data directory: what the file says, and what has moved since it was written.

The format has no way to change a part of the file (:mod:`tidemill.log.checkpoints`): it is replaced whole.
The lines that were written last are kept, so that a change costs its own lines and no look at other logs, and
the file stays as it is where nothing changed.

The loop names the partitions that moved (:meth:`OffsetCheckpoint.note`) and takes their offsets
(:meth:`OffsetCheckpoint.take`); lines are rendered and written in a thread (:meth:`OffsetCheckpoint.write`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable

from tidemill.log.checkpoints import read_offsets, render_checkpoint
from tidemill.log.errors import storage_error
from tidemill.model.errors import StorageError
from tidemill.model.ports import Files
from tidemill.model.slices import ITEMS_A_PAUSE, in_one_go, slices_of
from tidemill.model.types import TopicPartition


class OffsetCheckpoint:
    """One file. ``offset_of`` gives the offset that it is to hold of a partition, None for no line."""

    def __init__(self, files: Files, path: str, offset_of: Callable[[TopicPartition], int | None]) -> None:
        self.files = files
        self.path = path
        self._offset_of = offset_of
        self._lines: dict[TopicPartition, str] = {}
        """The lines of the file as it was written last, or read at the start. Replaced, never changed."""
        self._is_known = False
        """Whether the file exists, and holds these lines. Not known after a write that failed."""
        self._changed: dict[TopicPartition, None] = {}
        self._pending: dict[TopicPartition, int | None] = {}
        """Offsets that were taken, until the file with them is on the disk."""
        self._attempted: dict[TopicPartition, int] = {}
        """The largest offsets in files that are being written, or could not be: a crash may leave those."""
        self._is_closed = False
        self._settling = threading.Lock()
        self._writing = threading.Lock()

    def load(self) -> dict[TopicPartition, int]:
        """Reads the file; its offsets. Raises CheckpointDamaged, OSError."""
        offsets = read_offsets(self.files, self.path)
        self._lines = {key: _line(key, offset) for key, offset in offsets.items()}
        self._is_known = bool(offsets)
        return offsets

    def compare(self) -> None:
        """Finds out what the file does not say as it is: once, after the start has opened all logs."""
        keys = self._lines | dict.fromkeys(self._changed, "")
        self._changed = {key: None for key in keys if self._differs(key, self._offset_of(key))}

    def note(self, key: TopicPartition) -> None:
        """The offset of ``key`` may be another than was written; in any thread."""
        self._changed[key] = None

    def holds(self, key: TopicPartition) -> bool:
        """Whether the file has a line for ``key``."""
        return key in self._lines

    def said(self, key: TopicPartition) -> int:
        """The largest offset that a start may find for ``key``; 0 for none."""
        # In this order: what a thread takes out of the former two meanwhile is among the lines.
        pending = self._pending.get(key) or 0
        attempted = self._attempted.get(key, 0)
        return max(pending, attempted, self.written(key))

    def written(self, key: TopicPartition) -> int:
        """The offset that the file has for ``key``; 0 for none."""
        line = self._lines.get(key)
        return int(line.rpartition(" ")[2]) if line else 0

    def take(self) -> bool:
        """Takes the offsets that changed, on the loop; whether the file is to be written."""
        return in_one_go(self.taking())

    def taking(self) -> Generator[None, None, bool]:
        """As :meth:`take`, with a pause after some offsets each. What changes meanwhile is for the next call.

        Offsets that were taken, and not written, are written with those of the next call.
        """
        for keys in slices_of(list(self._changed), ITEMS_A_PAUSE):
            if self._is_closed:
                break
            for key in keys:
                # Before its offset is read: what changes from here on, in a thread, is noted anew.
                self._changed.pop(key, None)
            offsets = {key: self._offset_of(key) for key in keys}
            with self._settling:
                self._pending |= offsets
            yield
        return not self._is_closed and (bool(self._pending) or not self._is_known)

    def close(self) -> None:
        """Nothing is taken any more: the logs are gone from here, and the file is to stay as it is."""
        self._is_closed = True

    def write(self) -> None:
        """Replaces the file by one with all that was taken, in any thread, and waits for the disk.

        Raises StorageError; the next call tries again then.
        """
        with self._writing:
            with self._settling:
                pending = dict(self._pending)
                for key, offset in pending.items():
                    if offset is not None:
                        self._attempted[key] = max(offset, self._attempted.get(key, 0))
            changed = {key: offset for key, offset in pending.items() if self._differs(key, offset)}
            if changed or not self._is_known:
                lines = dict(self._lines)
                for key, offset in changed.items():
                    if offset is None:
                        del lines[key]
                    else:
                        lines[key] = _line(key, offset)
                try:
                    self.files.replace(self.path, render_checkpoint(list(lines.values())))
                except OSError as problem:
                    # The file may be the new one all the same: where only the sync of the directory failed.
                    self._is_known = False
                    raise storage_error("write", self.path, problem) from problem
                self._lines = lines
                self._is_known = True
            with self._settling:
                self._attempted.clear()
                for key, offset in pending.items():
                    if self._pending[key] == offset:
                        del self._pending[key]

    def _differs(self, key: TopicPartition, offset: int | None) -> bool:
        """Whether the file has another line than that of ``offset``."""
        return self._lines.get(key) != (None if offset is None else _line(key, offset))


def _line(key: TopicPartition, offset: int) -> str:
    return f"{key.topic} {key.partition} {offset}"


def write_checkpoints(checkpoints: Iterable[OffsetCheckpoint]) -> list[StorageError]:
    """Writes each file; what is wrong with those that could not be. May run in a thread."""
    problems = []
    for one in checkpoints:
        try:
            one.write()
        except StorageError as problem:
            problems.append(problem)
    return problems
