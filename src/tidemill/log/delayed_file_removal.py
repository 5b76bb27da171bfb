"""Renamed files and directories that are removed after a delay."""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from os.path import dirname

from tidemill.log.file_names import DELETED
from tidemill.model.system_interfaces import Files


class DelayedFileRemoval:
    """Paths by their removal time. The delay allows readers to finish."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._directories: Counter[str] = Counter()
        """The number of paths in each directory: most directories that are removed as a whole have none."""

    def add(self, path: str, due_ms: int) -> None:
        """Removes ``path`` at ``due_ms`` or later."""
        heapq.heappush(self._heap, (due_ms, path))
        self._directories[dirname(path)] += 1

    def pop_due(self, now_ms: int) -> list[str]:
        """Returns the paths that are due. The caller removes them (:func:`remove_path`, in a thread)."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms:
            path = heapq.heappop(self._heap)[1]
            self._forget_directory(path)
            due.append(path)
        return due

    def _forget_directory(self, path: str) -> None:
        directory = dirname(path)
        self._directories[directory] -= 1
        if not self._directories[directory]:
            del self._directories[directory]

    def merge(self, other: DelayedFileRemoval) -> None:
        """Adds the paths of another queue."""
        for due_ms, path in other._heap:
            self.add(path, due_ms)

    def relocate(self, old: str, new: str) -> None:
        """Updates the paths after the directory ``old`` was renamed to ``new``."""
        if old not in self._directories:
            return
        self._heap = [
            (due_ms, new + path[len(old) :] if path.startswith(old + "/") else path)
            for due_ms, path in self._heap
        ]
        self._directories[new] += self._directories.pop(old)

    def drop_under(self, directory: str) -> None:
        """Drops the paths in a directory that is removed as a whole."""
        if self._directories.pop(directory, 0):
            self._heap = [item for item in self._heap if dirname(item[1]) != directory]
            heapq.heapify(self._heap)


def rename_deleted(files: Files, path: str) -> str:
    """Renames a file that is to be removed. Returns its new path, empty if it does not exist.

    Raises OSError.
    """
    if not files.exists(path):
        return ""
    renamed = path + DELETED
    files.rename(path, renamed)
    return renamed


def remove_path(files: Files, path: str) -> None:
    """Removes a file, or a directory with its content. Ignores missing files. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        try:
            names = files.list(path)
        except NotADirectoryError:
            files.remove(path)
            return
        for name in names:
            remove_path(files, f"{path}/{name}")
        files.remove(path)
