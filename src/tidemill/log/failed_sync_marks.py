"""Marks data directories in which a sync failed: the next start does not trust their page cache.

After a failed sync the system may have dropped unwritten pages, while it still serves reads from the cached
ones. A start within the same boot would find every record although the disk lacks some. The directory is
therefore marked, and the next start treats it like one after a power failure: it reads from the disk and
reports possible losses.

The failed disk may reject the mark. It is left in several places, each of which is sufficient:

- in the directory itself: ``.tidemill-boot`` is removed or names no boot;
- in the broker's other directories: ``.tidemill-distrusted`` has the ids of the marked directories
  (``directory.id`` of ``meta.properties``), one per line;
- in the coordination store (:mod:`tidemill.server.failed_sync_store`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from tidemill.log.checkpoint_files import read_existing
from tidemill.log.errors import storage_error
from tidemill.log.file_names import BOOT
from tidemill.model.errors import StorageError
from tidemill.model.system_interfaces import Files

DISTRUSTED: Final = ".tidemill-distrusted"
NO_BOOT: Final = b"a sync failed"
"""Replaces the id of a boot."""


def mark_directory(files: Files, path: str) -> StorageError | None:
    """Leaves the mark in the directory at ``path`` itself. Returns the error, or None."""
    boot = f"{path}/{BOOT}"
    try:
        files.replace(boot, NO_BOOT)
    except OSError as problem:
        # Without space for a file, one can still be removed.
        with contextlib.suppress(OSError):
            files.remove(boot)
            return None
        return storage_error("write", boot, problem)
    return None


def write_ids(files: Files, path: str, ids: Iterable[str]) -> StorageError | None:
    """Leaves the marks for directories with these ``ids`` in the directory at ``path``. Returns the error or
    None.
    """
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
    """The ids of the directories that the directory at ``path`` marks. Raises OSError."""
    return set(read_existing(files, f"{path}/{DISTRUSTED}").decode(errors="replace").split())
