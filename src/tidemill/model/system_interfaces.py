"""The small ports to the outside: files, clock, randomness.

Cores and the log use these, never ``os`` or ``time``; the simulator and the crash tests implement their own.
The compiled data path calls them, and tests subclass them in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from concurrent.futures import Executor


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """Wall time and monotonic time."""

    def wall_ms(self) -> i64:
        """Returns milliseconds since 1970-01-01 UTC."""
        raise NotImplementedError

    def monotonic(self) -> float:
        """Returns seconds that never decrease, since an arbitrary start."""
        raise NotImplementedError

    def monotonic_ms(self) -> i64:
        """Returns :meth:`monotonic` in whole milliseconds, for durations: the wall clock may be set."""
        return i64(self.monotonic() * 1000.0)


class EventLoop(Protocol):
    """The methods of asyncio's event loop that the compiled data path uses."""

    def time(self) -> float:
        """Returns the loop's monotonic time in seconds."""
        raise NotImplementedError

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Calls ``callback`` in the next turn of the loop."""
        raise NotImplementedError


Buffer: TypeAlias = bytes | memoryview
"""Bytes to write."""


class FileMap(Protocol):
    """The memory map of a file, as ``mmap.mmap``."""

    def __getitem__(self, span: slice, /) -> bytes:
        raise NotImplementedError

    def __setitem__(self, span: slice, data: bytes, /) -> None:
        raise NotImplementedError


class FileLock(Protocol):
    """A held lock file."""

    def close(self) -> None:
        """Releases the lock."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class File:
    """An open file. All positions and sizes are bytes.

    Every method raises :class:`OSError` as the system does; the log converts it to a storage error.
    """

    path: str
    """The absolute path of the file."""
    executor: Executor | None = None
    """The threads that read the file ahead; None for those of all log files."""

    def __enter__(self) -> File:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def append(self, buffers: list[Buffer]) -> i64:
        """Appends all of ``buffers``, completely or not at all. Returns the number of bytes written.

        When the write fails half way (a full disk), the file is first truncated to its former size.
        """
        raise NotImplementedError

    def write_at(self, position: i64, data: bytes) -> None:
        """Writes all of ``data`` at ``position``."""
        raise NotImplementedError

    def read_at(self, position: i64, count: i64) -> bytes:
        """Returns up to ``count`` bytes from ``position``; fewer only at the end of the file."""
        raise NotImplementedError

    def size(self) -> i64:
        """Returns the size of the file in bytes."""
        raise NotImplementedError

    def truncate(self, size: i64) -> None:
        """Truncates the file, or extends it with zeros (sparse where the system can)."""
        raise NotImplementedError

    def sync(self) -> None:
        """Waits until all written data is on the disk."""
        raise NotImplementedError

    def write_back(self, position: i64, count: i64) -> None:
        """Writes the range to the disk and waits for it, without the guarantee of :meth:`sync`.

        It keeps the amount of unwritten data small, so that the kernel does not block a later append. Does
        nothing where the system has no such call. Raises OSError, which counts as a failed :meth:`sync`.
        """

    def map(self, writable: bool) -> FileMap:
        """Returns the whole file as a memory map."""
        raise NotImplementedError

    def is_cached(self, position: i64, count: i64) -> bool:
        """Returns whether a read of the range is likely to hit the page cache; True where that is unknown."""
        raise NotImplementedError

    def send_to(self, descriptor: int, position: i64, count: i64) -> i64:
        """Sends up to ``count`` bytes from ``position`` to a non-blocking socket, by its descriptor.

        Raises BlockingIOError when the socket accepts none. Returns 0 at the end of the file.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Closes the descriptor. A second call does nothing."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Files:
    """The operations of the file system that the log uses. Paths are absolute strings."""

    def boot_id(self) -> str:
        """Returns an id of the current boot of the system; empty where the system has none.

        While the id is the same, all data that processes wrote is readable, synced or not.
        """
        return ""

    def open(self, path: str, create: bool = False, read_only: bool = False) -> File:
        """Opens ``path`` for reading and appending."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """Returns the whole content. Raises FileNotFoundError when there is no file."""
        raise NotImplementedError

    def replace(self, path: str, data: bytes) -> None:
        """Writes a new file beside ``path``, syncs it, renames it to ``path``, and syncs the directory."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Returns whether ``path`` exists."""
        raise NotImplementedError

    def size(self, path: str) -> i64:
        """Returns the size of the file at ``path`` in bytes."""
        raise NotImplementedError

    def forget_cached(self, path: str) -> None:
        """Writes cached data of a file to the disk, and drops it from the cache: reads come from the disk.

        Does nothing where the system has no such call. Raises OSError when the disk refuses the data.
        """

    def forget_written(self, path: str) -> None:
        """Drops the cached data of a file that counts as written; data still to be written is kept.

        Does nothing where the system has no such call. Raises OSError.
        """

    def modified_ms(self, path: str) -> i64:
        """Returns the time of the last write to the file, in milliseconds since 1970."""
        raise NotImplementedError

    def set_modified(self, path: str, modified_ms: i64) -> None:
        """Sets the time that :meth:`modified_ms` returns."""
        raise NotImplementedError

    def list(self, directory: str) -> list[str]:
        """Returns the names in ``directory``, sorted."""
        raise NotImplementedError

    def make_directory(self, path: str) -> None:
        """Creates ``path`` and its parents; does nothing when it exists."""
        raise NotImplementedError

    def make_new_directory(self, path: str) -> bool:
        """Creates ``path`` as :meth:`make_directory` does. Returns False when it existed."""
        if self.exists(path):
            return False
        self.make_directory(path)
        return True

    def make_file(self, path: str) -> None:
        """Creates an empty file if there is none."""
        self.open(path, True).close()

    def write_unsynced(self, path: str, data: bytes) -> None:
        """Replaces a file without waiting for the disk; a killed process leaves the old or the new file."""
        temporary = f"{path}.tmp"
        with self.open(temporary, True) as file:
            if file.size():
                file.truncate(0)
            if data:
                file.append([data])
        self.rename(temporary, path)

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory, replacing an existing file."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Removes a file, or an empty directory."""
        raise NotImplementedError

    def sync_directory(self, path: str) -> None:
        """Waits until the names in ``path`` are on the disk."""
        raise NotImplementedError

    def free_bytes(self, path: str) -> i64:
        """Returns the free space on the file system of ``path``, in bytes."""
        raise NotImplementedError

    def total_bytes(self, path: str) -> i64:
        """Returns the size of the file system of ``path``, in bytes."""
        raise NotImplementedError

    def lock(self, path: str) -> FileLock:
        """Takes the exclusive lock file at ``path``. Raises BlockingIOError when another process holds it.

        The returned object holds the lock until its ``close()``.
        """
        raise NotImplementedError
