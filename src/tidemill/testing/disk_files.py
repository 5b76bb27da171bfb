"""The broker's file port on a disk that a test fills or slows down (:mod:`tidemill.testing.disk`)."""

from __future__ import annotations

import errno
import os
import sqlite3
import time

from tidemill.coordination.embedded_store import Database, explain
from tidemill.coordination.embedded_store_tree import Row
from tidemill.log.system_files import SystemFiles
from tidemill.model.system_interfaces import Buffer, File, FileLock, FileMap, Files
from tidemill.testing.disk import UNLIMITED, DiskState


class DiskLimits:
    """Applies the free space and the delays of the disk."""

    def __init__(self, state: DiskState) -> None:
        self._state = state
        self._generation = -1
        self._used = 0
        """Bytes written since the free space was set."""

    def left(self) -> int:
        """Returns the free space in bytes; UNLIMITED for that of the real disk."""
        generation, free_space = self._state.free_space()
        if generation != self._generation:
            self._generation = generation
            self._used = 0
        return free_space if free_space == UNLIMITED else max(0, free_space - self._used)

    def write(self, size: int, path: str) -> None:
        """Delays a write, and counts its bytes. Raises OSError (ENOSPC) when they do not fit."""
        left = self.left()
        if left != UNLIMITED:
            if size > left or left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self._used += size
        _wait(self._state.delays()[1])

    def release(self, size: int) -> None:
        """Counts bytes of removed data as free."""
        if self.left() != UNLIMITED:
            self._used -= size

    def sync(self) -> None:
        """Delays a sync."""
        _wait(self._state.delays()[0])

    def read(self) -> None:
        """Delays a read."""
        _wait(self._state.delays()[2])

    @property
    def reads_slowly(self) -> bool:
        """Whether reads are delayed."""
        return self._state.delays()[2] > 0


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


class DiskFile(File):
    """A file on such a disk."""

    def __init__(self, file: File, path: str, limits: DiskLimits) -> None:
        self._file = file
        self._limits = limits
        self._was_read = False
        self.path = path

    def append(self, buffers: list[Buffer]) -> int:
        self._limits.write(sum(len(buffer) for buffer in buffers), self.path)
        return self._file.append(buffers)

    def write_at(self, position: int, data: bytes) -> None:
        self._limits.write(max(0, position + len(data) - int(self._file.size())), self.path)
        self._file.write_at(position, data)

    def read_at(self, position: int, count: int) -> bytes:
        self._limits.read()
        self._was_read = True
        return self._file.read_at(position, count)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._limits.release(max(0, int(self._file.size()) - size))
        self._file.truncate(size)

    def sync(self) -> None:
        self._limits.sync()
        self._file.sync()

    def write_back(self, position: int, count: int) -> None:
        self._limits.sync()
        self._file.write_back(position, count)

    def map(self, writable: bool) -> FileMap:
        return self._file.map(writable)

    def is_cached(self, position: int, count: int) -> bool:
        if self._limits.reads_slowly and not self._was_read:
            return False
        self._was_read = False  # The range read ahead is being sent; the next range is cold again.
        return self._file.is_cached(position, count)

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        return self._file.send_to(descriptor, position, count)

    def close(self) -> None:
        self._file.close()


class DiskFiles(Files):
    """The file system on such a disk."""

    def __init__(self, state: DiskState) -> None:
        self._files = SystemFiles()
        self._limits = DiskLimits(state)

    def boot_id(self) -> str:
        return self._files.boot_id()

    def open(self, path: str, create: bool = False, read_only: bool = False) -> File:
        return DiskFile(self._files.open(path, create, read_only), path, self._limits)

    def read(self, path: str) -> bytes:
        self._limits.read()
        return self._files.read(path)

    def replace(self, path: str, data: bytes) -> None:
        self._limits.write(len(data), path)
        self._limits.sync()
        self._files.replace(path, data)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def forget_cached(self, path: str) -> None:
        self._files.forget_cached(path)

    def forget_written(self, path: str) -> None:
        self._files.forget_written(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._files.set_modified(path, modified_ms)

    def list(self, directory: str) -> list[str]:
        return self._files.list(directory)

    def make_directory(self, path: str) -> None:
        if not self._files.exists(path):
            self._limits.write(0, path)
        self._files.make_directory(path)

    def make_new_directory(self, path: str) -> bool:
        if not self._files.exists(path):
            self._limits.write(0, path)
        return self._files.make_new_directory(path)

    def make_file(self, path: str) -> None:
        self._files.make_file(path)

    def write_unsynced(self, path: str, data: bytes) -> None:
        self._limits.write(len(data), path)
        self._files.write_unsynced(path, data)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def remove(self, path: str) -> None:
        size = 0 if os.path.isdir(path) else int(self._files.size(path))
        self._files.remove(path)
        self._limits.release(size)

    def sync_directory(self, path: str) -> None:
        self._limits.sync()
        self._files.sync_directory(path)

    def free_bytes(self, path: str) -> int:
        left = self._limits.left()
        free = self._files.free_bytes(path)
        return free if left == UNLIMITED else min(free, left)

    def total_bytes(self, path: str) -> int:
        return self._files.total_bytes(path)

    def lock(self, path: str) -> FileLock:
        return self._files.lock(path)


class DiskDatabase(Database):
    """The database of the embedded store on such a disk."""

    state: DiskState

    def commit(self, rows: dict[str, Row | None], last_id: int) -> None:
        """Commits as the base class does; fails where there is no free space, waits where syncs are slow."""
        limits = DiskLimits(self.state)
        if limits.left() == 0:
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise explain(self.path, full)
        limits.sync()
        super().commit(rows, last_id)
