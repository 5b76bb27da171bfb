"""What partitions ask of whatever follows their leaders."""

from __future__ import annotations

from tidemill.replication.partition import Partition


class Follows:
    """What follows the leaders of partitions."""

    def follow(self, partition: Partition) -> None:
        """Fetches from the leader of ``partition``, in the epoch that it is in now.

        Raises StorageError, and does not follow it then.
        """
        raise NotImplementedError

    def leave(self, partition: Partition) -> None:
        """Fetches it no longer, if it was."""
        raise NotImplementedError
