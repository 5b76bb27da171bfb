"""The interface of partitions to the replica fetcher."""

from __future__ import annotations

from tidemill.replication.partition import Partition


class ReplicaFetcherPort:
    """Fetches partitions from their leaders."""

    def follow(self, partition: Partition) -> None:
        """Fetches from the leader of ``partition``, in its current leader epoch.

        Raises StorageError, and then does not fetch.
        """
        raise NotImplementedError

    def leave(self, partition: Partition) -> None:
        """Stops fetching ``partition``."""
        raise NotImplementedError
