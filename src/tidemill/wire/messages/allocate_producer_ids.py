"""AllocateProducerIds (key 67): a broker requests a block of producer ids."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, Struct, field


class AllocateProducerIdsRequest(Struct, versions="0", flexible="0+"):
    """Requests a block, fenced by the broker's epoch."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)  # of the broker's registration


class AllocateProducerIdsResponse(Struct, versions="0", flexible="0+"):
    """The block."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id_start: int = field(INT64)
    producer_id_len: int = field(INT32)
