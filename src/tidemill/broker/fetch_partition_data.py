"""The results of looking up the partitions of a fetch. Compiled.

The types of a fetch are::

    FetchRequest         decoded, immutable; one RequestedPartition for each partition that it names
                         (tidemill.wire.fetch_layout)
    DelayedFetch         the connection, the session and the state (tidemill.broker.delayed_fetch)
    LogReadResults       the result of one look-up: one FetchPartitionData for each partition

The session keeps the state that was last sent to a client
(:class:`tidemill.broker.fetch_session.SessionPartition`).
"""

from __future__ import annotations

from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.log.log_segment import LogRange
from tidemill.model.errors import ErrorCode
from tidemill.replication.partition import Partition
from tidemill.wire.fetch_layout import DivergingEpoch, RequestedPartition


@mypyc_attr(free_list_len=1)
class FetchPartitionData:
    """The response for one partition."""

    def __init__(self, requested: RequestedPartition, partition: Partition | None) -> None:
        self.requested = requested
        self.partition = partition
        """None: this broker has no replica."""
        self.error: i16 = 0
        self.high_watermark: i64 = -1
        self.last_stable_offset: i64 = -1
        self.log_start_offset: i64 = -1
        self.log_range: LogRange | None = None
        self.diverging_epoch: DivergingEpoch | None = None
        """None: the log of the follower does not diverge from this one."""
        self.aborted: list[tuple[int, int]] | None = None
        """Producer id and first offset of the aborted transactions of the records, if requested."""
        self.preferred_replica: i32 = -1
        """The replica from which the consumer should fetch instead (KIP-392); -1: this one."""

    def fail(self, code: ErrorCode) -> None:
        """Replaces the result by an error."""
        self.error = i16(int(code))
        self.log_range = None
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    @property
    def completes_fetch(self) -> bool:
        """Whether the response is sent at once, with fewer bytes than ``fetch.min.bytes``."""
        return self.error != 0 or self.diverging_epoch is not None or self.preferred_replica >= 0


@mypyc_attr(free_list_len=1)
class LogReadResults:
    """The results of the partitions of a fetch, in their order, and their sums."""

    def __init__(self, bytes_left: i64, bytes_min: i64) -> None:
        self.partitions: list[FetchPartitionData] = []
        self.bytes_min: i64 = bytes_min
        """``fetch.min.bytes``: the response is sent once it has that many."""
        self.bytes_left: i64 = bytes_left
        """The bytes of records that may still be added to the response."""
        self.bytes_found: i64 = 0
        self.bytes_added: i64 = 0
        """The bytes that became readable in these partitions since the look-up."""
        self.ranges: i64 = 0
        self.completes_fetch = False
        """The response is sent at once, whatever :attr:`bytes_found` is."""
        self.is_limited_by_transaction = False
        """An open transaction hides records from a ``read_committed`` consumer."""
        self.is_throttled = False
        """The replication quota withheld records from a follower."""

    @property
    def has_room(self) -> bool:
        """Whether the response may have records of the next partition: its first records are always sent."""
        return self.bytes_left > 0 or self.bytes_found == 0

    @property
    def bytes_readable(self) -> i64:
        """The bytes that a look-up would find now."""
        return self.bytes_found + self.bytes_added

    @property
    def has_enough(self) -> bool:
        """Whether the fetch is complete."""
        return self.completes_fetch or self.bytes_readable >= self.bytes_min

    @property
    def has_found_enough(self) -> bool:
        """Whether the fetch is complete without the bytes that were added since the look-up."""
        return self.completes_fetch or self.bytes_found >= self.bytes_min
