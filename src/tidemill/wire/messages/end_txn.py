"""EndTxn (key 26): commit or abort a transaction."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class EndTxnRequest(Struct, versions="0-5", flexible="3+"):
    """Requests that the coordinator ends a transaction."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    committed: bool = field(BOOL)  # false aborts


class EndTxnResponse(Struct, versions="0-5", flexible="3+"):
    """The result; from version 5 with the next producer epoch."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, "5+", default=-1, ignorable=True)
    producer_epoch: int = field(INT16, "5+", default=-1, ignorable=True)
