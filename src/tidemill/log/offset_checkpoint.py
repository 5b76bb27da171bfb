"""An offset checkpoint of a data directory: the content of its file, and the changes since the last write.

The format allows no partial update (:mod:`tidemill.log.checkpoint_files`): the file is replaced whole. The
last written lines are cached, so a change costs only its own lines, and an unchanged file is not written.

The event loop marks changed partitions (:meth:`OffsetCheckpoint.mark_changed`) and collects their offsets
(:meth:`OffsetCheckpoint.collect`). A thread renders and writes the lines (:meth:`OffsetCheckpoint.write`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable

from tidemill.log.checkpoint_files import read_offsets, render_checkpoint
from tidemill.log.errors import storage_error
from tidemill.model.errors import StorageError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, run_at_once, slices_of
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition


class OffsetCheckpoint:
    """A checkpoint file. ``offset_of`` returns the offset of a partition, or None for no line."""

    def __init__(self, files: Files, path: str, offset_of: Callable[[TopicPartition], int | None]) -> None:
        self.files = files
        self.path = path
        self._offset_of = offset_of
        self._lines: dict[TopicPartition, str] = {}
        """The lines of the file as last written, or as read at the start. Replaced, never changed."""
        self._is_known = False
        """Whether the file has these lines. Unknown after a failed write."""
        self._changed: dict[TopicPartition, None] = {}
        self._collected: dict[TopicPartition, int | None] = {}
        """Collected offsets, until they are on disk."""
        self._attempted: dict[TopicPartition, int] = {}
        """The largest offsets in files whose write is in progress or has failed: a crash may leave them."""
        self._is_closed = False
        self._state_lock = threading.Lock()
        self._write_lock = threading.Lock()

    def load(self) -> dict[TopicPartition, int]:
        """Reads the file. Returns its offsets. Raises CheckpointDamaged, OSError."""
        offsets = read_offsets(self.files, self.path)
        self._lines = {key: _line(key, offset) for key, offset in offsets.items()}
        self._is_known = bool(offsets)
        return offsets

    def compare(self) -> None:
        """Marks all partitions whose lines are outdated. Called once, after all logs are open."""
        keys = self._lines | dict.fromkeys(self._changed, "")
        self._changed = {key: None for key in keys if self._differs(key, self._offset_of(key))}

    def mark_changed(self, key: TopicPartition) -> None:
        """Marks the offset of ``key`` as changed, in any thread."""
        self._changed[key] = None

    def holds(self, key: TopicPartition) -> bool:
        """Whether the file has a line for ``key``."""
        return key in self._lines

    def max_offset(self, key: TopicPartition) -> int:
        """The largest offset that a start may find for ``key``; 0 if there is none."""
        # In this order: an entry that a thread removes from the former two is already among the lines.
        pending = self._collected.get(key) or 0
        attempted = self._attempted.get(key, 0)
        return max(pending, attempted, self.written(key))

    def written(self, key: TopicPartition) -> int:
        """The offset in the file for ``key``; 0 if there is none."""
        line = self._lines.get(key)
        return int(line.rpartition(" ")[2]) if line else 0

    def collect(self) -> bool:
        """Collects the changed offsets, on the event loop. Returns whether the file has to be written."""
        return run_at_once(self.collect_in_slices())

    def collect_in_slices(self) -> Generator[None, None, bool]:
        """Same as :meth:`collect`, with pauses between many offsets.

        Offsets that change meanwhile are left for the next call. Offsets that were collected but not written
        are written with those of the next call.
        """
        for keys in slices_of(list(self._changed), ITEMS_PER_SLICE):
            if self._is_closed:
                break
            for key in keys:
                # Before the offset is read: a later change, in a thread, marks it again.
                self._changed.pop(key, None)
            offsets = {key: self._offset_of(key) for key in keys}
            with self._state_lock:
                self._collected |= offsets
            yield
        return not self._is_closed and (bool(self._collected) or not self._is_known)

    def close(self) -> None:
        """Stops collecting: the logs are removed from here, and the file must not change."""
        self._is_closed = True

    def write(self) -> None:
        """Replaces the file with all collected offsets, in any thread, and waits for the disk.

        Raises StorageError; the next call tries again.
        """
        with self._write_lock:
            with self._state_lock:
                pending = dict(self._collected)
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
                    # The file may still be the new one, if only the sync of the directory failed.
                    self._is_known = False
                    raise storage_error("write", self.path, problem) from problem
                self._lines = lines
                self._is_known = True
            with self._state_lock:
                self._attempted.clear()
                for key, offset in pending.items():
                    if self._collected[key] == offset:
                        del self._collected[key]

    def _differs(self, key: TopicPartition, offset: int | None) -> bool:
        """Whether the line of ``key`` differs from ``offset``."""
        return self._lines.get(key) != (None if offset is None else _line(key, offset))


def _line(key: TopicPartition, offset: int) -> str:
    return f"{key.topic} {key.partition} {offset}"


def write_checkpoints(checkpoints: Iterable[OffsetCheckpoint]) -> list[StorageError]:
    """Writes each file. Returns the errors. May run in a thread."""
    problems = []
    for one in checkpoints:
        try:
            one.write()
        except StorageError as problem:
            problems.append(problem)
    return problems
