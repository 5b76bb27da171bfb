"""The small ports through which the outside comes in: files, clock, randomness.

Cores and the log see these, never ``os`` or ``time``; the simulator and the crash tests bring their own.
The compiled data path calls them, and tests subclass them in plain Python.
"""

from __future__ import annotations

from typing import Any

from mypy_extensions import i64, mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """Wall time and steady time."""

    def wall_ms(self) -> i64:
        """Milliseconds since 1970-01-01 UTC."""
        raise NotImplementedError

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""
        raise NotImplementedError

    def monotonic_ms(self) -> i64:
        """:meth:`monotonic` in whole milliseconds, for durations: the wall clock may be set."""
        return i64(self.monotonic() * 1000.0)


@mypyc_attr(allow_interpreted_subclasses=True)
class File:
    """An open file. All positions and sizes are bytes.

    Every method raises :class:`OSError` as the system does; the log turns it into a storage error.
    """

    def append(self, buffers: list[Any]) -> i64:
        """Writes all of ``buffers`` at the end, whole or not at all; the number of bytes written.

        When the write fails half way (a full disk), the file is cut back to its former end first.
        """
        raise NotImplementedError

    def write_at(self, position: i64, data: bytes) -> None:
        """Writes all of ``data`` at ``position``."""
        raise NotImplementedError

    def read_at(self, position: i64, count: i64) -> bytes:
        """Up to ``count`` bytes from ``position``; fewer only at the end of the file."""
        raise NotImplementedError

    def size(self) -> i64:
        """Bytes in the file now."""
        raise NotImplementedError

    def truncate(self, size: i64) -> None:
        """Cuts the file, or grows it with zeros (sparse where the system can)."""
        raise NotImplementedError

    def sync(self) -> None:
        """Returns once what was written is on the disk."""
        raise NotImplementedError

    def write_back(self, position: i64, count: i64) -> None:
        """Writes the range to the disk and waits for it, without the promise that :meth:`sync` gives.

        It keeps what waits for the disk short, so that a later append is not held up by the kernel. Does
        nothing where the system has no such call. Raises OSError; that is as a :meth:`sync` that failed.
        """

    def map(self, writable: bool) -> Any:
        """The whole file as a memory map (``mmap.mmap`` or a buffer that acts like one)."""
        raise NotImplementedError

    def is_cached(self, position: i64, count: i64) -> bool:
        """Whether a read of the range is likely to be served from memory; True where nothing can tell."""
        raise NotImplementedError

    def send_to(self, descriptor: int, position: i64, count: i64) -> i64:
        """Sends up to ``count`` bytes from ``position`` to a non-blocking socket, by its descriptor.

        Raises BlockingIOError when the socket takes none; 0 at the end of the file.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Gives the descriptor back. Calling it again does nothing."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Files:
    """The file system, as far as the log uses it. Paths are absolute strings."""

    def boot_id(self) -> str:
        """Names the time since the system was last started; empty where it does not tell.

        As long as it is the same, what processes wrote is there, synced or not.
        """
        return ""

    def open(self, path: str, create: bool = False, read_only: bool = False) -> File:
        """Opens ``path`` for reading and appending."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """The whole content; FileNotFoundError when there is none."""
        raise NotImplementedError

    def replace(self, path: str, data: bytes) -> None:
        """Writes a new file beside ``path``, syncs it, renames it over ``path``, syncs the directory."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Whether something is at ``path``."""
        raise NotImplementedError

    def size(self, path: str) -> i64:
        """Bytes in the file at ``path``."""
        raise NotImplementedError

    def forget_cached(self, path: str) -> None:
        """Writes what the system holds of a file to the disk, and forgets it: reads come from the disk then.

        Does nothing where the system cannot be asked. Raises OSError when the disk does not take it.
        """

    def forget_written(self, path: str) -> None:
        """Forgets what the system holds of a file and takes for written; what it has yet to write stays.

        Does nothing where the system cannot be asked. Raises OSError.
        """

    def modified_ms(self, path: str) -> i64:
        """When the file was last written, in milliseconds since 1970."""
        raise NotImplementedError

    def set_modified(self, path: str, modified_ms: i64) -> None:
        """Sets what :meth:`modified_ms` tells."""
        raise NotImplementedError

    def list(self, directory: str) -> list[str]:
        """Names in ``directory``, sorted."""
        raise NotImplementedError

    def make_directory(self, path: str) -> None:
        """Makes ``path`` and its parents; no error when it is there."""
        raise NotImplementedError

    def make_new_directory(self, path: str) -> bool:
        """As :meth:`make_directory`; False when it was there."""
        if self.exists(path):
            return False
        self.make_directory(path)
        return True

    def make_file(self, path: str) -> None:
        """Makes an empty file where none is."""
        self.open(path, True).close()

    def write_unsynced(self, path: str, data: bytes) -> None:
        """Replaces a file whole, without waiting for the disk: a killed process leaves the old or the new."""
        temporary = f"{path}.tmp"
        file = self.open(temporary, True)
        try:
            if file.size():
                file.truncate(0)
            if data:
                file.append([data])
        finally:
            file.close()
        self.rename(temporary, path)

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory, over a file that is there."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Removes a file, or an empty directory."""
        raise NotImplementedError

    def sync_directory(self, path: str) -> None:
        """Returns once the names in ``path`` are on the disk."""
        raise NotImplementedError

    def free_bytes(self, path: str) -> i64:
        """What is left on the file system of ``path``."""
        raise NotImplementedError

    def total_bytes(self, path: str) -> i64:
        """The size of the file system of ``path``."""
        raise NotImplementedError

    def lock(self, path: str) -> Any:
        """Takes the exclusive lock file at ``path``; BlockingIOError when another process holds it.

        The object returned holds the lock until its ``close()``.
        """
        raise NotImplementedError
