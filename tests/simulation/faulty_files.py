"""A file system in memory that fails in all ways that a real one may: for crash tests and the simulator.

It keeps the promises of POSIX, and nothing more:

- bytes that were not synced are lost, kept in part, or torn by :meth:`FaultyFiles.power_cut`;
- a sync that fails drops the data it should have written: reads return them until the cache forgets them, a
  later sync succeeds, and they never reach the disk;
- a file that was created, renamed or removed is durable only after a sync of its directory;
- space is counted in pages, and a full disk refuses appends and writes, while a store into a mapped page
  without space ends the process, as SIGBUS does (:class:`Killed`);
- any operation on any path can be made to fail (:meth:`FaultyFiles.fail`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from tidemill.model.system_interfaces import File, Files

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512


class Killed(BaseException):
    """The process would have ended. Not an Exception: no code may catch it and continue."""


class _Content:
    """Bytes whose end may be a hole: indexes are large and nearly empty."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes | bytearray = b"", size: int = 0) -> None:
        self.data = bytearray(data)
        self.size = max(size, len(data))

    def __len__(self) -> int:
        return self.size

    def read(self, begin: int, end: int) -> bytes:
        """Returns the bytes in this range, up to the end of the file."""
        end = min(end, self.size)
        found = bytes(self.data[begin:end])
        return found + bytes(max(0, end - begin) - len(found))

    def write(self, position: int, data: bytes) -> None:
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        self.size = max(self.size, len(self.data))

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def copy(self) -> _Content:
        return _Content(self.data, self.size)


class _Node:
    """The content of a file: as processes see it, as it is on the disk, and the writes in between."""

    def __init__(self) -> None:
        self.current = _Content()
        self.durable = _Content()
        self.pending: list[tuple[int, bytes]] = []
        self.dropped: list[tuple[int, int]] = []
        """Ranges that a failed sync left in the cache, and that no sync will write."""
        self.pages: set[int] = set()
        self.cuts: list[int] = []
        """The sizes that truncations set, in order."""
        self.modified_ms = 0

    def write(self, position: int, data: bytes) -> None:
        self.current.write(position, data)
        self.pending.append((position, data))
        self.dropped = [
            part for span in self.dropped for part in _outside(span, position, position + len(data))
        ]

    def resize(self, size: int) -> None:
        self.current.resize(size)
        self.cuts.append(size)
        self.dropped = [(begin, min(end, size)) for begin, end in self.dropped if begin < size]
        self.pages = {page for page in self.pages if page * PAGE_BYTES < size}

    def sync(self) -> None:
        written = self.current.copy()
        for begin, end in self.dropped:
            written.write(begin, self.durable.read(begin, end).ljust(end - begin, b"\0"))
        self.durable = written
        self.pending.clear()

    def drop(self) -> None:
        """Handles a failed sync: pending writes count as written, except ranges truncated since."""
        size = len(self.current)
        self.dropped += [
            (position, min(position + len(data), size)) for position, data in self.pending if position < size
        ]
        self.pending.clear()

    def forget_cached(self) -> None:
        """Makes reads return the disk's content, after writing the data that can still be written."""
        self.sync()
        self.current = self.durable.copy()
        self.dropped.clear()

    def forget_written(self) -> None:
        """Makes reads of ranges that no sync will write return the disk's content."""
        for begin, end in self.dropped:
            self.current.write(begin, self.durable.read(begin, end).ljust(end - begin, b"\0"))
        self.dropped.clear()

    def after_power_cut(self, random: Random | None) -> _Content:
        """Returns the disk's content: the synced data, and a random part of the other writes."""
        content = self.durable.copy()
        if random is None:
            return content
        for position, data in self.pending:
            luck = random.random()
            if luck < 0.4 or position > len(self.current):
                continue
            kept = (
                data if luck < 0.8 else data[: random.randrange(len(data) // SECTOR_BYTES + 1) * SECTOR_BYTES]
            )
            content.size = max(content.size, position + len(data))
            content.write(position, kept)
        return content


def _outside(span: tuple[int, int], begin: int, end: int) -> list[tuple[int, int]]:
    """Returns the parts of ``span`` outside of ``begin`` to ``end``."""
    parts = [(span[0], min(span[1], begin)), (max(span[0], end), span[1])]
    return [part for part in parts if part[0] < part[1]]


class _Map:
    """A memory map of a node."""

    def __init__(self, files: FaultyFiles, node: _Node, writable: bool) -> None:
        self._files = files
        self._node = node
        self._size = len(node.current)
        self._writable = writable

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        if span.stop > len(self._node.current) > self._size:
            raise Killed("a mapped page beyond the end of its file was read: SIGBUS")
        return self._node.current.read(span.start, span.stop)

    def __setitem__(self, span: slice, data: bytes) -> None:
        if not self._writable:
            raise TypeError("the map is read-only")
        if span.stop > len(self._node.current):
            raise Killed("a mapped page beyond the end of its file was written: SIGBUS")
        if not self._files.take_pages(self._node, span.start, len(data)):
            raise Killed("a mapped page without space on the disk was written: SIGBUS")
        self._node.write(span.start, bytes(data))


class FaultyFile(File):
    """An open file of :class:`FaultyFiles`."""

    def __init__(self, files: FaultyFiles, path: str, node: _Node) -> None:
        self._files = files
        self.path = path
        self._node = node
        self._life = files.life
        self._closed = False

    def _check(self, operation: str) -> None:
        if self._life != self._files.life:
            raise OSError(errno.EIO, "the machine lost its power", self.path)
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        self._files.check(operation, self.path)

    def append(self, buffers: list[Any]) -> int:
        self._check("append")
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._grow(len(self._node.current), len(data))
        self._node.write(len(self._node.current), data)
        self._node.modified_ms = self._files.now_ms
        return len(data)

    def write_at(self, position: int, data: bytes) -> None:
        self._check("write_at")
        self._grow(position, len(data))
        self._node.write(position, bytes(data))
        self._node.modified_ms = self._files.now_ms

    def _grow(self, position: int, count: int) -> None:
        if not self._files.take_pages(self._node, position, count):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def read_at(self, position: int, count: int) -> bytes:
        self._check("read_at")
        return self._node.current.read(position, position + count)

    def size(self) -> int:
        return len(self._node.current)

    def truncate(self, size: int) -> None:
        self._check("truncate")
        self._node.resize(size)

    def sync(self) -> None:
        try:
            self._check("sync")
        except OSError:
            if self._life == self._files.life and not self._closed:
                self._node.drop()
            raise
        self._node.sync()

    def map(self, writable: bool) -> _Map:
        self._check("map")
        if not len(self._node.current):
            raise ValueError("cannot mmap an empty file")
        return _Map(self._files, self._node, writable)

    def is_cached(self, position: int, count: int) -> bool:
        return True

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        return os.write(descriptor, self.read_at(position, count))

    def close(self) -> None:
        self._closed = True


class _Lock:
    def __init__(self, files: FaultyFiles, path: str) -> None:
        self._files = files
        self._path = path

    def close(self) -> None:
        self._files.locks.discard(self._path)


class _Names(dict[str, "_Node | None"]):
    """Maps paths to nodes (None for a directory), and knows the contents of each directory."""

    def __init__(self, names: Mapping[str, _Node | None]) -> None:
        super().__init__()
        self._in: dict[str, dict[str, None]] = {}
        for path, node in names.items():
            self[path] = node

    def __setitem__(self, path: str, node: _Node | None) -> None:
        super().__setitem__(path, node)
        if path != "/":
            parent, _, name = path.rpartition("/")
            self._in.setdefault(parent, {})[name] = None

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        parent, _, name = path.rpartition("/")
        del self._in[parent][name]

    def take(self, path: str) -> _Node | None:
        """Removes a path. Returns its node."""
        node = self[path]
        del self[path]
        return node

    def names_in(self, directory: str) -> list[str]:
        """Returns the names in a directory, in the order of their creation."""
        return list(self._in.get(directory.rstrip("/"), ()))

    def with_all_below(self, path: str) -> list[str]:
        """Returns a path and, for a directory, all paths below it."""
        if self[path] is not None:
            return [path]
        prefix = path + "/"
        return [name for name in list(self) if name == path or name.startswith(prefix)]


class FaultyFiles(Files):
    """The file system. ``space_bytes`` is its capacity; None: no limit. :attr:`now_ms` is its clock."""

    _file_type = FaultyFile

    def __init__(self, space_bytes: int | None = None) -> None:
        self.space_bytes = space_bytes
        self.now_ms = 0
        self.life = 0
        self.boots = 0
        self.locks: set[str] = set()
        self.operations: list[tuple[str, str]] = []
        self._names = _Names({"/": None})
        self._durable_names = _Names({"/": None})
        self._faults: list[list[Any]] = []

    # -- faults

    def fail(
        self, operation: str, path_part: str, number: int = errno.EIO, times: int = 1, after: int = 0
    ) -> None:
        """Makes ``operation`` (a method's name) fail on paths that contain ``path_part``.

        The first ``after`` calls succeed, the next ``times`` raise OSError with ``number``.
        """
        self._faults.append([operation, path_part, number, times, after])

    def heal(self) -> None:
        """Removes all faults."""
        self._faults.clear()

    def check(self, operation: str, path: str) -> None:
        """Raises the fault that :meth:`fail` set for the operation."""
        self.operations.append((operation, path))
        for fault in self._faults:
            if fault[0] != operation or fault[1] not in path or fault[3] <= 0:
                continue
            if fault[4] > 0:
                fault[4] -= 1
                continue
            fault[3] -= 1
            raise OSError(fault[2], os.strerror(fault[2]), path)

    def take_pages(self, node: _Node, position: int, count: int) -> bool:
        """Allocates the pages of a write for a node; False when the disk is full."""
        if count <= 0:
            return True
        needed = set(range(position // PAGE_BYTES, (position + count - 1) // PAGE_BYTES + 1)) - node.pages
        if self.space_bytes is not None and len(needed) * PAGE_BYTES > self.free_bytes("/"):
            return False
        node.pages |= needed
        return True

    def boot_id(self) -> str:
        """Returns a new id after each power failure."""
        return f"boot-{self.boots}"

    def power_cut(self, random: Random | None = None) -> None:
        """Simulates a power failure of the machine: only synced data is certain to survive.

        With ``random``, parts of the rest survive, too: whole writes, their first sectors, or zeros where the
        file had grown. Open files become unusable, locks are released.
        """
        self.life += 1
        self.boots += 1
        self.locks.clear()
        names: dict[str, _Node | None] = {}
        for path, node in sorted(self._durable_names.items()):
            if path != "/" and os.path.dirname(path) not in names:
                continue
            if node is None:
                names[path] = None
                continue
            fresh = _Node()
            content = node.after_power_cut(random)
            fresh.current = content
            fresh.durable = content.copy()
            fresh.modified_ms = node.modified_ms
            fresh.pages = set(range((len(content) + PAGE_BYTES - 1) // PAGE_BYTES))
            names[path] = fresh
        self._names = _Names(names)
        self._durable_names = _Names(names)

    def kill(self) -> None:
        """Simulates a kill of the process: all written data survives. Open files become unusable."""
        self.life += 1
        self.locks.clear()

    # -- the port

    def open(self, path: str, create: bool = False, read_only: bool = False) -> FaultyFile:
        self.check("open", path)
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._need_directory(os.path.dirname(path))
            self._names[path] = _Node()
        return self._file_type(self, path, self._file_node(path))

    def read(self, path: str) -> bytes:
        self.check("read", path)
        current = self._file_node(path).current
        return current.read(0, len(current))

    def replace(self, path: str, data: bytes) -> None:
        self.check("replace", path)
        self._need_directory(os.path.dirname(path))
        node = _Node()
        if not self.take_pages(node, 0, len(data)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        node.write(0, data)
        node.sync()
        self._names[path] = node
        self.sync_directory(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return path in self._names

    def size(self, path: str) -> int:
        return len(self._file_node(path).current)

    def forget_cached(self, path: str) -> None:
        self.check("sync", path)
        self._file_node(path).forget_cached()

    def forget_written(self, path: str) -> None:
        self._file_node(path).forget_written()

    def modified_ms(self, path: str) -> int:
        return self._file_node(path).modified_ms

    def set_modified(self, path: str, modified_ms: int) -> None:
        self.check("set_modified", path)
        self._file_node(path).modified_ms = modified_ms

    def list(self, directory: str) -> list[str]:
        self.check("list", directory)
        self._need_directory(directory)
        return sorted(self._names.names_in(directory))

    def make_directory(self, path: str) -> None:
        self.check("make_directory", path)
        if path not in self._names:
            parent = os.path.dirname(path)
            if parent != path:
                self.make_directory(parent)
            self._names[path] = None

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        if old not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        for path in self._names.with_all_below(old):
            self._names[new + path[len(old) :]] = self._names.take(path)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._names[path] is None and self.list(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        del self._names[path]

    def sync_directory(self, path: str) -> None:
        self.check("sync_directory", path)
        directory = path.rstrip("/")
        before = self._durable_names.copy()
        in_it = dict.fromkeys([*self._durable_names.names_in(directory), *self._names.names_in(directory)])
        for name in [f"{directory}/{entry}" for entry in in_it]:
            if name not in self._names:
                if name in self._durable_names:
                    for gone in self._durable_names.with_all_below(name):
                        del self._durable_names[gone]
                continue
            if self._names[name] is None and name not in self._durable_names:
                # A renamed directory keeps its contents. The copy is made in one step, because other threads
                # change names.
                kept = {id(node) for node in before.values() if node is not None}
                for below, node in self._names.copy().items():
                    if below.startswith(name + "/") and id(node) in kept:
                        self._durable_names[below] = node
            if name not in before or before[name] is not self._names[name]:
                self._durable_names[name] = self._names[name]

    def free_bytes(self, path: str) -> int:
        if self.space_bytes is None:
            return 1 << 50
        nodes = {id(node): node for node in list(self._names.values()) if node is not None}
        return self.space_bytes - sum(len(node.pages) for node in nodes.values()) * PAGE_BYTES

    def total_bytes(self, path: str) -> int:
        return 1 << 50 if self.space_bytes is None else self.space_bytes

    def lock(self, path: str) -> _Lock:
        self.open(path, create=True)
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self.locks.add(path)
        return _Lock(self, path)

    def _need_directory(self, path: str) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._names[path] is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    def _file_node(self, path: str) -> _Node:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        node = self._names[path]
        if node is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node
