"""The part of a flush that waits for the disk, and can run in any thread."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from tidemill.log.errors import storage_error
from tidemill.model.system_interfaces import File, Files


class FlushJob:
    """The files to sync so that everything before :attr:`offset` is on disk."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        offset: int,
        base_offset: int,
        position: int,
        is_safe_point: bool,
        truncations: int,
        names_changed: int,
        epochs_changed: int,
        id_changed: int,
        is_truncated: bool,
        sync_directory: bool,
        sync_parent: bool,
    ) -> None:
        self.offset: Final = offset
        self.base_offset: Final = base_offset
        """The base offset of the active segment."""
        self.position: Final = position
        """The position in the active segment up to which this job syncs it."""
        self.truncations: Final = truncations
        """The number of truncations of the log when the job was created."""
        self.names_changed: Final = names_changed
        """The number of changed names when the job was created."""
        self.epochs_changed: Final = epochs_changed
        """The number of changes of the leader epochs when the job was created."""
        self.id_changed: Final = id_changed
        """The number of changes of the topic id when the job was created."""
        self.is_truncated: Final = is_truncated
        """Whether segments were removed from the end since the last flush."""
        self.sync_directory: Final = sync_directory
        self.sync_parent: Final = sync_parent
        self.is_safe_point: Final = is_safe_point
        """Whether the new recovery point spares recovery so much that it is checkpointed at once."""
        self.ended = False
        self._files: Final = files
        self._directory: Final = directory
        self._open: list[File] = []
        self._paths: list[str] = []

    def add(self, file: File) -> None:
        """Adds an open file."""
        self._open.append(file)

    def add_path(self, path: str) -> None:
        """Adds a file by its path; it is skipped if it has been removed."""
        self._paths.append(path)

    def run(self, *, with_parent: bool = True) -> None:
        """Syncs the files, in any thread. Raises StorageError.

        Without ``with_parent``, the caller syncs the parent of the directory.
        """
        try:
            if self.is_truncated:
                # Before the truncated file: a power failure in between would restore the removed segments.
                self._files.sync_directory(self._directory)
            for file in self._open:
                file.sync()
            for path in self._paths:
                self._sync_path(path)
            if self.sync_directory:
                self._files.sync_directory(self._directory)
            if self.sync_parent and with_parent:
                self._files.sync_directory(os.path.dirname(self._directory))
        except OSError as problem:
            raise storage_error("sync", problem.filename or self._directory, problem) from problem
        finally:
            self.ended = True
            self._open = []  # A finished job holds no file descriptors.

    def _sync_path(self, path: str) -> None:
        with suppress(FileNotFoundError), self._files.open(path) as file:
            file.sync()
