"""The interface of partitions to the replica fetcher."""

from __future__ import annotations

from tidemill.replication.partition import Partition


class AbstractFetcherManager:
    """Fetches partitions from their leaders."""

    def add_partition(self, partition: Partition) -> None:
        """Fetches from the leader of ``partition``, in its current leader epoch.

        Raises StorageError, and then does not fetch.
        """
        raise NotImplementedError

    def remove_partition(self, partition: Partition) -> None:
        """Stops fetching ``partition``."""
        raise NotImplementedError
