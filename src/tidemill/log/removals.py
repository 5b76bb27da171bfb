"""Files and directories that have been renamed away and are removed after a while."""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from os.path import dirname

from tidemill.model.ports import Files


class Removals:
    """A queue of paths by the time at which they may go. The waiting keeps readers of the range served."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._directories: Counter[str] = Counter()
        """How many of them lie in each directory: most that go as a whole have none."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, path: str, due_ms: int) -> None:
        """Lets ``path`` go at ``due_ms`` or later."""
        heapq.heappush(self._heap, (due_ms, path))
        self._directories[dirname(path)] += 1

    def next_due_ms(self) -> int:
        """When the next path is due; -1 when nothing waits."""
        return self._heap[0][0] if self._heap else -1

    def take_due(self, now_ms: int) -> list[str]:
        """The paths that are due; they are the caller's to remove (:func:`remove_path`, in a thread)."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms:
            path = heapq.heappop(self._heap)[1]
            self._gone(path)
            due.append(path)
        return due

    def _gone(self, path: str) -> None:
        directory = dirname(path)
        self._directories[directory] -= 1
        if not self._directories[directory]:
            del self._directories[directory]

    def take_over(self, other: Removals) -> None:
        """Takes what waits in another queue."""
        for due_ms, path in other._heap:
            self.add(path, due_ms)

    def relocate(self, old: str, new: str) -> None:
        """Takes in that the directory ``old`` was renamed to ``new``."""
        if old not in self._directories:
            return
        self._heap = [
            (due_ms, new + path[len(old) :] if path.startswith(old + "/") else path)
            for due_ms, path in self._heap
        ]
        self._directories[new] += self._directories.pop(old)

    def forget_under(self, directory: str) -> None:
        """Drops what lies in a directory that goes as a whole."""
        if self._directories.pop(directory, 0):
            self._heap = [item for item in self._heap if dirname(item[1]) != directory]
            heapq.heapify(self._heap)


def remove_path(files: Files, path: str) -> None:
    """Removes a file, or a directory with what is in it. What is gone already is no error. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        try:
            names = files.list(path)
        except NotADirectoryError:
            files.remove(path)
            return
        for name in names:
            remove_path(files, f"{path}/{name}")
        files.remove(path)
