"""The implementation of the file port on the operating system.

Only this module of the log uses functions that only Linux has (``RWF_NOWAIT``, ``posix_fadvise``,
``fdatasync``), each with a portable alternative. A file's descriptor is closed when its last user drops the
object: a response that still sends a range of a deleted segment keeps the bytes of that segment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import sys
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from tidemill.model.system_interfaces import Buffer, File, Files

CACHE_PROBE_STRIDE: Final = 64 * 1024
"""Bytes between two probed bytes of :meth:`SystemFile.is_cached`: half of the kernel's usual read-ahead, so
pages are cached and evicted in longer runs.
"""

COPY_BYTES: Final = 256 * 1024
"""The maximum number of bytes that one call of the portable send reads."""

_WRITE_AND_WAIT: Final = 1 | 2 | 4
"""SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER."""

_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_NO_WRITE_BACK: Final = frozenset(
    {0, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP, errno.ESPIPE}
)
"""Results of ``sync_file_range`` for success, or for file systems and sandboxes without support."""
_HAS_SENDFILE: Final = hasattr(os, "sendfile")
_NO_SENDFILE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTSOCK})
_F_FULLFSYNC: Final[int] = getattr(fcntl, "F_FULLFSYNC", 0)


def _sync_descriptor(descriptor: int) -> None:
    """The strongest sync of data that the system has: macOS' fsync stops at the cache of the drive."""
    if _F_FULLFSYNC:
        try:
            fcntl.fcntl(descriptor, _F_FULLFSYNC)
            return
        except OSError as problem:
            if problem.errno not in (errno.ENOTSUP, errno.EINVAL):
                raise
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The C library's ``sync_file_range``, which only Linux has. Looked up on first use.

    It returns the error number, 0 for success.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    def number_of(descriptor: int, position: int, count: int, flags: int) -> int:
        return ctypes.get_errno() if function(descriptor, position, count, flags) else 0

    return number_of


def _drop_cached(path: str, *, sync_first: bool) -> None:
    """Drops the written pages of a file from the page cache, where the system can."""
    if sys.platform != "linux":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if sync_first:
            _sync_descriptor(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, rest: memoryview) -> None:
    """Writes all bytes at the position of the descriptor."""
    while len(rest):
        # A variable for the count: mypyc evaluates a call within a slice twice.
        count = os.write(descriptor, rest)
        rest = rest[count:]


def _replace(path: str, data: bytes, *, sync: bool) -> None:
    """Writes a file under a temporary name, and renames it to ``path``. ``sync``: syncs its bytes before."""
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        _write_all(descriptor, memoryview(data))
        if sync:
            _sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


class SystemFile(File):
    """An open file of the operating system."""

    __slots__ = ("_append_position", "_descriptor", "_probes", "_truncate_to")

    def __init__(self, path: str, create: bool, read_only: bool) -> None:
        self._descriptor = -1
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        if create:
            flags |= os.O_CREAT
        self.path = path
        self._probes = _NOWAIT != 0
        self._descriptor = os.open(path, flags, 0o644)
        self._append_position = -1
        self._truncate_to = -1

    def append(self, buffers: list[Buffer]) -> i64:
        position = self._append_position
        if position < 0:
            if self._truncate_to >= 0:
                os.ftruncate(self._descriptor, self._truncate_to)
                self._truncate_to = -1
            position = self._append_position = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            expected = 0
            for buffer in buffers:
                expected += len(buffer)
            if len(buffers) == 1:
                written = os.write(self._descriptor, buffers[0])
            else:
                written = os.writev(self._descriptor, buffers)
            if written != expected:
                self._append_rest(buffers, written)
        except OSError:
            self._truncate_back(position)
            raise
        self._append_position = position + expected
        return expected

    def _append_rest(self, buffers: list[Buffer], written: int) -> None:
        """Continues after a short write. The next call reports the reason, if there is one."""
        _write_all(self._descriptor, memoryview(b"".join([bytes(buffer) for buffer in buffers]))[written:])

    def _truncate_back(self, position: i64) -> None:
        """Removes the bytes of a failed append: the next append begins at the same position."""
        self._append_position = -1
        # If it cannot be truncated now, it is before the next append.
        self._truncate_to = position
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, position)
            self._truncate_to = -1

    def write_at(self, position: i64, data: bytes) -> None:
        rest = memoryview(data)
        while len(rest):
            written = os.pwrite(self._descriptor, rest, position)
            position += written
            rest = rest[written:]

    def read_at(self, position: i64, count: i64) -> bytes:
        data = os.pread(self._descriptor, count, position)
        if len(data) == count or not data:
            return data
        return self._read_rest(data, position, count)

    def _read_rest(self, data: bytes, position: i64, count: i64) -> bytes:
        pieces = [data]
        have = len(data)
        while have < count:
            piece = os.pread(self._descriptor, count - have, position + have)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)

    def size(self) -> i64:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: i64) -> None:
        os.ftruncate(self._descriptor, size)
        self._append_position = -1
        self._truncate_to = -1

    def sync(self) -> None:
        _sync_descriptor(self._descriptor)

    def write_back(self, position: i64, count: i64) -> None:
        call = _sync_file_range()
        if call is None:
            return
        # Linux reports a failed write once per open file: fdatasync of this file has to report it too.
        try:
            descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            number = call(descriptor, position, count, _WRITE_AND_WAIT)
        finally:
            os.close(descriptor)
        if number not in _NO_WRITE_BACK:
            raise OSError(number, os.strerror(number), self.path)

    def map(self, writable: bool) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(self._descriptor, 0, access=access)

    def is_cached(self, position: i64, count: i64) -> bool:
        if not self._probes or count <= 0:
            return True
        target = [bytearray(1)]
        last = position + count - 1
        try:
            while True:
                os.preadv(self._descriptor, target, position, _NOWAIT)
                if position == last:
                    return True
                position = min(position + CACHE_PROBE_STRIDE, last)
        except BlockingIOError:
            return False
        except OSError:
            # The file system has no page cache (tmpfs): reads do not wait for a disk.
            self._probes = False
            return True

    def send_to(self, descriptor: int, position: i64, count: i64) -> i64:
        if _HAS_SENDFILE:
            try:
                return os.sendfile(descriptor, self._descriptor, position, count)
            except OSError as problem:
                if problem.errno not in _NO_SENDFILE:
                    raise
        data = os.pread(self._descriptor, min(count, COPY_BYTES), position)
        return os.write(descriptor, data) if data else 0

    def fileno(self) -> int:
        """The descriptor, for calls that the port lacks."""
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # At interpreter exit, modules are removed before files that were not closed.
        if self._descriptor >= 0 and os is not None:
            os.close(self._descriptor)


class _Lock:
    """A held lock file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Releases the lock. The file stays, like Kafka's."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


class SystemFiles(Files):
    """The file system of the machine."""

    def boot_id(self) -> str:
        try:
            return self.read(BOOT_ID_PATH).decode("ascii", "replace").strip()
        except OSError:
            return ""

    def open(self, path: str, create: bool = False, read_only: bool = False) -> SystemFile:
        return SystemFile(path, create, read_only)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.readall()

    def replace(self, path: str, data: bytes) -> None:
        _replace(path, data, sync=True)
        self.sync_directory(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> i64:
        return os.stat(path).st_size

    def forget_cached(self, path: str) -> None:
        _drop_cached(path, sync_first=True)

    def forget_written(self, path: str) -> None:
        _drop_cached(path, sync_first=False)

    def modified_ms(self, path: str) -> i64:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified(self, path: str, modified_ms: i64) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def make_new_directory(self, path: str) -> bool:
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)
        return True

    def make_file(self, path: str) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def write_unsynced(self, path: str, data: bytes) -> None:
        _replace(path, data, sync=False)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except (IsADirectoryError, PermissionError):
            # macOS returns EPERM for a directory.
            if not os.path.isdir(path):
                raise
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as problem:
            # Some file systems do not support the sync of directories, and keep names in order themselves.
            if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> i64:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> i64:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def lock(self, path: str) -> _Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # flock excludes a second broker, also in this process. The record lock excludes Kafka's JVM.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(descriptor)
            if problem.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(problem.errno, "locked by another process", path) from None
            raise
        return _Lock(descriptor)
