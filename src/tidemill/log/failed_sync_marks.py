"""Marks of data directories in which a sync failed: the next start does not trust the page cache of these.

After a sync that failed the system may have dropped pages that were not written, and it goes on answering
reads from those that it kept. A start within the same boot of the system would find every record, although
the disk has not got them. So the directory is marked, and such a start takes it for one that lived through a
power cut: it reads from the disk, and reports what may be lost.

The disk that failed may refuse the mark. It is left in several places, and any of them is enough:

- in the directory itself, where ``.tidemill-boot`` then names no boot, or is gone;
- in each of the broker's other directories: ``.tidemill-distrusted`` has the ids of the directories that are
  not to be trusted (``directory.id`` of ``meta.properties``), one a line;
- in the coordination store (:mod:`tidemill.server.failed_sync_store`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from tidemill.log.errors import storage_error
from tidemill.log.names import BOOT
from tidemill.model.errors import StorageError
from tidemill.model.ports import Files

DISTRUSTED: Final = ".tidemill-distrusted"
NO_BOOT: Final = b"a sync failed"
"""In the place of a boot's id."""


def mark_itself(files: Files, path: str) -> StorageError | None:
    """Marks the directory at ``path`` in itself; what is wrong where it takes no mark."""
    boot = f"{path}/{BOOT}"
    try:
        files.replace(boot, NO_BOOT)
    except OSError as problem:
        # Where there is no room for a file, one can still go.
        with contextlib.suppress(OSError):
            files.remove(boot)
            return None
        return storage_error("write", boot, problem)
    return None


def write_ids(files: Files, path: str, ids: Iterable[str]) -> StorageError | None:
    """Notes in the directory at ``path`` that those of ``ids`` are not to be trusted; what is wrong."""
    marks = f"{path}/{DISTRUSTED}"
    lines = sorted(ids)
    try:
        if lines:
            files.replace(marks, "\n".join([*lines, ""]).encode())
        else:
            with contextlib.suppress(FileNotFoundError):
                files.remove(marks)
                files.sync_directory(path)
    except OSError as problem:
        return storage_error("write", marks, problem)
    return None


def read_ids(files: Files, path: str) -> set[str]:
    """The ids that the directory at ``path`` says are not to be trusted. Raises OSError."""
    try:
        data = files.read(f"{path}/{DISTRUSTED}")
    except FileNotFoundError:
        return set()
    return set(data.decode(errors="replace").split())
