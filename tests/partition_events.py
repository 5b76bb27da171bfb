"""Partition events without effect, for partitions without a broker."""

from __future__ import annotations

from tidemill.model.errors import KafkaError
from tidemill.replication.partition import Partition, PartitionEvents


class IgnoredEvents(PartitionEvents):
    """Ignores the events of a partition, except requests for a flush and for another ISR.

    A log start offset counts as stored at once, and every broker as live.
    """

    def write_back_requested(self, partition: Partition) -> None:
        pass

    def on_storage_error(self, partition: Partition, error: KafkaError) -> None:
        pass

    def high_watermark_moved(self, partition: Partition) -> None:
        pass

    def log_start_offset_moved(self, partition: Partition) -> None:
        partition.log_start_offset_saved(partition.log.start_offset)

    def is_alive(self, broker: int) -> bool:
        return True

    def records_truncated(self, partition: Partition, first: int, last: int, reason: str) -> None:
        pass
