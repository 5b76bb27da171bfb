"""AddOffsetsToTxn (key 25): make a group's offsets part of a transaction."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, STRING, Struct, field


class AddOffsetsToTxnRequest(Struct, versions="0-4", flexible="3+"):
    """The group whose offsets the transaction will commit."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    group_id: str = field(STRING)


class AddOffsetsToTxnResponse(Struct, versions="0-4", flexible="3+"):
    """Whether the group's offsets are part of the transaction."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
