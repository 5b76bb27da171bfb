"""ControlledShutdown (key 7)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class ControlledShutdownRequest(Struct, versions="0-3", flexible="3+"):
    """Controlled Shutdown Request."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, "2+", default=-1, ignorable=True)


class RemainingPartition(Struct):
    """Remaining Partition."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


class ControlledShutdownResponse(Struct, versions="0-3", flexible="3+"):
    """Controlled Shutdown Response."""

    error_code: int = field(INT16)
    remaining_partitions: list[RemainingPartition] = field([RemainingPartition])
