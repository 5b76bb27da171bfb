"""The interface to the owner of the data directories, for the classes that write to logs."""

from __future__ import annotations

from tidemill.log.log import Log
from tidemill.model.errors import StorageError


class LogFailureHandler:
    """Handles the failures of logs."""

    def sync_failed(self, one: Log, problem: StorageError) -> None:
        """A log could not be synced: the system may have dropped unwritten data."""
        raise NotImplementedError

    def storage_failed(self, one: Log, problem: StorageError) -> None:
        """The files of a log could not be changed, which leaves them unusable."""
        raise NotImplementedError
