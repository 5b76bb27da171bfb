"""Simulates a start's changes to files, without changing any: for ``tidemill log recover --dry-run``.

Reads use the real files. Writes go to a scratch directory: a file is copied there when its bytes change,
while truncations, renames and removals are only recorded. So the real code of a start runs, and the data
directory stays untouched, including its lock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Final, TypeAlias

from tidemill.log.file_names import LOG
from tidemill.log.system_files import SystemFile, SystemFiles
from tidemill.model.system_interfaces import Buffer, File, FileMap, Files

COPIED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Only small files are changed in place; a start appends to no log."""


Changes: TypeAlias = tuple[list[str], list[tuple[str, int]], list[str]]


class _Entry:
    """The current bytes of a path: a real file (truncated to ``limit``, -1: whole), or a scratch file."""

    __slots__ = ("changed", "limit", "real")

    def __init__(self, real: str, limit: int = -1, changed: bool = False) -> None:
        self.real = real
        self.limit = limit
        self.changed = changed


class _ScratchFile(File):
    """A file of :class:`ScratchFiles`."""

    def __init__(self, owner: ScratchFiles, path: str, entry: _Entry) -> None:
        self.owner = owner
        self.path = path
        self.entry = entry
        self._file: SystemFile | None = None
        self._changed = entry.changed

    def _open(self) -> SystemFile:
        if self._file is None or self._changed != self.entry.changed:
            self._file = SystemFile(self.entry.real, False, not self.entry.changed)
            self._changed = self.entry.changed
        return self._file

    def _scratch_copy(self) -> SystemFile:
        """Opens the scratch file, which is copied from the real file if it does not exist yet."""
        self.owner.copy(self.entry)
        return self._open()

    def append(self, buffers: list[Buffer]) -> int:
        return int(self._scratch_copy().append(buffers))

    def write_at(self, position: int, data: bytes) -> None:
        self._scratch_copy().write_at(position, data)

    def read_at(self, position: int, count: int) -> bytes:
        return bytes(self._open().read_at(position, max(min(count, self.size() - position), 0)))

    def size(self) -> int:
        limit = self.entry.limit
        return limit if limit >= 0 else int(self._open().size())

    def truncate(self, size: int) -> None:
        if not self.entry.changed and 0 < size <= self.size():
            self.entry.limit = size
        elif size == 0:
            self.owner.replace_bytes(self.entry, b"")
        else:
            self._scratch_copy().truncate(size)

    def sync(self) -> None:
        return

    def map(self, writable: bool) -> FileMap:
        if writable or self.entry.limit >= 0:
            self.owner.copy(self.entry)
        return self._open().map(writable)

    def is_cached(self, position: int, count: int) -> bool:
        return True

    def close(self) -> None:
        """Closes the open file, if any."""
        if self._file is not None:
            self._file.close()
            self._file = None


class _NoLock:
    def close(self) -> None:
        return


class ScratchFiles(Files):
    """The file port of a dry run; :meth:`changes` returns the changes that a real run would make."""

    def __init__(self) -> None:
        self._system = SystemFiles()
        self._directory = tempfile.mkdtemp(prefix="tidemill-dry-run-")
        self._count = 0
        self._entries: dict[str, _Entry | None] = {}
        """Paths that differ from the disk; None: removed."""

    def close(self) -> None:
        """Removes the scratch directory."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._directory)

    def _find(self, path: str) -> _Entry | None:
        if path in self._entries:
            return self._entries[path]
        return _Entry(path) if os.path.isfile(path) else None

    def replace_bytes(self, entry: _Entry, data: bytes) -> None:
        """Gives ``entry`` its own bytes in the scratch directory."""
        self._count += 1
        path = f"{self._directory}/{self._count}"
        with open(path, "wb") as file:
            file.write(data)
        entry.real, entry.limit, entry.changed = path, -1, True

    def copy(self, entry: _Entry) -> None:
        """Copies the bytes of ``entry`` to the scratch directory, so that it can be written to."""
        if entry.changed:
            return
        size = entry.limit if entry.limit >= 0 else os.stat(entry.real).st_size
        if size > COPIED_BYTES_MAX:
            raise OSError(0, f"{size} bytes would change, which is more than a dry run copies", entry.real)
        with open(entry.real, "rb") as file:
            data = file.read(size)
        self.replace_bytes(entry, data.rstrip(b"\0"))
        # An index that is not closed has 10 MB, mostly a hole: this keeps the hole.
        os.truncate(entry.real, size)

    def open(self, path: str, create: bool = False, read_only: bool = False) -> _ScratchFile:
        entry = self._find(path)
        if entry is None:
            if not create:
                raise FileNotFoundError(2, os.strerror(2), path)
            entry = _Entry("")
            self.replace_bytes(entry, b"")
        self._entries[path] = entry
        return _ScratchFile(self, path, entry)

    def read(self, path: str) -> bytes:
        with self.open(path, read_only=True) as file:
            return file.read_at(0, file.size())

    def replace(self, path: str, data: bytes) -> None:
        entry = _Entry("")
        self.replace_bytes(entry, data)
        self._entries[path] = entry

    def exists(self, path: str) -> bool:
        return self._find(path) is not None or (path not in self._entries and os.path.isdir(path))

    def size(self, path: str) -> int:
        with self.open(path, read_only=True) as file:
            return file.size()

    def modified_ms(self, path: str) -> int:
        entry = self._find(path)
        return int(self._system.modified_ms(entry.real if entry is not None else path))

    def list(self, directory: str) -> list[str]:
        names = set(os.listdir(directory))
        for path, entry in self._entries.items():
            if os.path.dirname(path) == directory:
                names.discard(os.path.basename(path))
                if entry is not None:
                    names.add(os.path.basename(path))
        return sorted(names)

    def make_directory(self, path: str) -> None:
        return

    def rename(self, old: str, new: str) -> None:
        entry = self._find(old)
        if entry is None:
            raise FileNotFoundError(2, os.strerror(2), old)
        self._entries[old] = None
        self._entries[new] = entry

    def remove(self, path: str) -> None:
        if self._find(path) is None:
            raise FileNotFoundError(2, os.strerror(2), path)
        self._entries[path] = None

    def sync_directory(self, path: str) -> None:
        return

    def free_bytes(self, path: str) -> int:
        return int(self._system.free_bytes(path))

    def total_bytes(self, path: str) -> int:
        return int(self._system.total_bytes(path))

    def lock(self, path: str) -> _NoLock:
        return _NoLock()

    def changes(self) -> Changes:
        """Returns the removed paths, the truncated files (with their new size), and the written files."""
        removed, cut, written = [], [], []
        for path, entry in sorted(self._entries.items()):
            exists = os.path.isfile(path)
            if entry is None:
                if exists:
                    removed.append(path)
            elif entry.changed and exists and path.endswith(LOG) and not os.path.getsize(entry.real):
                cut += [(path, 0)] if os.path.getsize(path) else []
            elif entry.changed:
                written.append(path)
            elif entry.real == path and entry.limit >= 0 and entry.limit < os.stat(path).st_size:
                cut.append((path, entry.limit))
        return removed, cut, written
