"""ControlledShutdown (key 7): a broker requests to hand over its leaderships."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class ControlledShutdownRequest(Struct, versions="0-3", flexible="3+"):
    """Requests that the controller moves the leaderships of a broker."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, "2+", default=-1, ignorable=True)  # of the broker's registration


class RemainingPartition(Struct):
    """A partition that the broker still leads."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


class ControlledShutdownResponse(Struct, versions="0-3", flexible="3+"):
    """The leaderships that the controller could not move."""

    error_code: int = field(INT16)
    remaining_partitions: list[RemainingPartition] = field([RemainingPartition])
