"""InitProducerId (key 22)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class InitProducerIdRequest(Struct, versions="0-6", flexible="2+"):
    """Init Producer Id Request."""

    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, "3+", default=-1)
    producer_epoch: int = field(INT16, "3+", default=-1)
    enable2_pc: bool = field(BOOL, "6+")
    keep_prepared_txn: bool = field(BOOL, "6+")


class InitProducerIdResponse(Struct, versions="0-6", flexible="2+"):
    """Init Producer Id Response."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)
    ongoing_txn_producer_id: int = field(INT64, "6+", default=-1)
    ongoing_txn_producer_epoch: int = field(INT16, "6+", default=-1)
