"""Files and directories that have been renamed away and are removed after a while."""

from __future__ import annotations

import contextlib
import heapq

from tidemill.model.ports import Files


class Removals:
    """A queue of paths by the time at which they may go. The waiting keeps readers of the range served."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, path: str, due_ms: int) -> None:
        """Lets ``path`` go at ``due_ms`` or later."""
        heapq.heappush(self._heap, (due_ms, path))

    def next_due_ms(self) -> int:
        """When the next path is due; -1 when nothing waits."""
        return self._heap[0][0] if self._heap else -1

    def take_due(self, now_ms: int) -> list[str]:
        """The paths that are due; they are the caller's to remove (:func:`remove_path`, in a thread)."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap)[1])
        return due

    def take_over(self, other: Removals) -> None:
        """Takes what waits in another queue."""
        for due_ms, path in other._heap:
            self.add(path, due_ms)

    def relocate(self, old: str, new: str) -> None:
        """Takes in that the directory ``old`` was renamed to ``new``."""
        self._heap = [
            (due_ms, new + path[len(old) :] if path.startswith(old + "/") else path)
            for due_ms, path in self._heap
        ]

    def forget_under(self, directory: str) -> None:
        """Drops what lies in a directory that goes as a whole."""
        prefix = directory + "/"
        self._heap = [item for item in self._heap if not item[1].startswith(prefix)]
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
