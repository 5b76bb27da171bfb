"""The part of a flush that waits for the disk, and can run in any thread."""

from __future__ import annotations

import os
from typing import Any

from tidemill.log.errors import storage_error
from tidemill.model.interfaces import File, Files


class FlushJob:
    """The files to sync so that everything before :attr:`offset` is on disk."""

    def __init__(self, files: Files, directory: str, offset: int, truncations: int) -> None:
        self.offset = offset
        self.truncations = truncations
        """The number of truncations of the log when the job was created."""
        self.names_changed = 0
        self.epochs_changed = 0
        self.id_changed = 0
        """The counts of changed names, leader epochs and topic ids when the job was created."""
        self.base_offset = 0
        self.position = 0
        """The active segment, and the position up to which this job syncs it."""
        self.is_safe_point = False
        """Whether the recovery point advances so far that it is checkpointed at once."""
        self.sync_directory = False
        self.is_cut = False
        """Whether segments were removed from the end since the last flush."""
        self.sync_parent = False
        self.ended = False
        self._files = files
        self._directory = directory
        self._open: list[File] = []
        self._paths: list[str] = []

    def add(self, file: File) -> None:
        """Adds an open file."""
        self._open.append(file)

    def add_path(self, path: str) -> None:
        """Adds a file by its path; it is skipped if it has been removed."""
        self._paths.append(path)

    def run(self) -> None:
        """Syncs the files, in any thread. Raises StorageError."""
        try:
            if self.is_cut:
                # Before the truncated file: a power failure in between would restore the removed segments.
                self._files.sync_directory(self._directory)
            for file in self._open:
                file.sync()
            for path in self._paths:
                self._sync_path(path)
            if self.sync_directory:
                self._files.sync_directory(self._directory)
            if self.sync_parent:
                self._files.sync_directory(os.path.dirname(self._directory))
        except OSError as problem:
            raise storage_error("sync", problem.filename or self._directory, problem) from problem
        finally:
            self.ended = True
            self._open = []  # A finished job holds no file descriptors.

    def _sync_path(self, path: str) -> None:
        file: Any
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()
