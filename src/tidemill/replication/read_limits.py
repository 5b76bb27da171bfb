"""The limits of offsets for the readers of a partition. Compiled.

The *log end offset* is the offset of the next record: followers read up to it. The *high watermark* is the
offset below which all in-sync replicas have the records: consumers read up to it. The *last stable offset* is
the offset below which no transaction is open: consumers with ``read_committed`` read up to it. It equals the
high watermark while no transaction is open and no marker lies above the high watermark.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64

from tidemill.log.log import Log
from tidemill.replication.delayed_operations import CONSUMER

READ_COMMITTED: Final[i32] = 1


class ReadLimits:
    """The limits of one partition."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.high_watermark: i64 = log.end_offset
        self.is_unsaved = False
        """Whether the high watermark differs from the checkpoint, and is registered for the next one."""

    @property
    def last_stable_offset(self) -> i64:
        """The offset below which no transaction is open."""
        return self.log.last_stable_offset(self.high_watermark)

    def limit_offset(self, replica_id: i32, isolation: i32) -> i64:
        """The offset up to which a reader may read."""
        if replica_id != CONSUMER:
            return self.log.end_offset
        if isolation == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark
