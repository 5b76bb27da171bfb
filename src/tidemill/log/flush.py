"""The part of a flush that waits for the disk, so that a thread can do it."""

from __future__ import annotations

import os
from typing import Any

from tidemill.log.errors import storage_error
from tidemill.model.ports import File, Files


class FlushJob:
    """What must reach the disk until everything before :attr:`offset` is safe."""

    def __init__(self, files: Files, directory: str, offset: int, truncations: int) -> None:
        self.offset = offset
        self.truncations = truncations
        """How often the log had been truncated when the job began."""
        self.names_changed = 0
        self.epochs_changed = 0
        self.id_changed = 0
        """How often names in the directory, leader epochs and the topic id had changed when the job began."""
        self.base_offset = 0
        self.position = 0
        """Up to where the active segment is synced by this job, and which one that is."""
        self.is_safe_point = False
        """Whether it spares a recovery so much that the new recovery point is worth writing down at once."""
        self.sync_directory = False
        self.is_cut = False
        """Whether segments have gone from the end since the last flush."""
        self.sync_parent = False
        self.ended = False
        self._files = files
        self._directory = directory
        self._open: list[File] = []
        self._paths: list[str] = []

    def add(self, file: File) -> None:
        """Syncs this open file."""
        self._open.append(file)

    def add_path(self, path: str) -> None:
        """Syncs this file, unless it is gone when its turn comes."""
        self._paths.append(path)

    def run(self) -> None:
        """Syncs, in any thread. Raises StorageError."""
        try:
            if self.is_cut:
                # Before the file that was cut: a power cut in between would bring back what lay behind it.
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
