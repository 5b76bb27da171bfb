"""InitProducerId (key 22): an id and epoch for an idempotent or transactional producer."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class InitProducerIdRequest(Struct, versions="0-6", flexible="2+"):
    """Requests a producer id; with a transactional id it also fences older producers."""

    # null for a producer that is only idempotent
    transactional_id: str | None = field(STRING, nullable="0+")
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, "3+", default=-1)  # the current one, to have its epoch raised; else -1
    producer_epoch: int = field(INT16, "3+", default=-1)
    enable2_pc: bool = field(BOOL, "6+")  # two-phase commit (KIP-939)
    keep_prepared_txn: bool = field(BOOL, "6+")  # two-phase commit (KIP-939)


class InitProducerIdResponse(Struct, versions="0-6", flexible="2+"):
    """The id and epoch to write with."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16)
    producer_id: int = field(INT64, default=-1)
    producer_epoch: int = field(INT16)
    ongoing_txn_producer_id: int = field(INT64, "6+", default=-1)
    ongoing_txn_producer_epoch: int = field(INT16, "6+", default=-1)
