"""AlterClientQuotas (key 49)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, FLOAT64, INT16, INT32, STRING, Struct, field


class EntityData(Struct):
    """Entity Data."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


class OpData(Struct):
    """Op Data."""

    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


class AlterClientQuotasRequestEntryData(Struct):
    """Alter Client Quotas Request Entry Data."""

    entity: list[EntityData] = field([EntityData])
    ops: list[OpData] = field([OpData])


class AlterClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    """Alter Client Quotas Request."""

    entries: list[AlterClientQuotasRequestEntryData] = field([AlterClientQuotasRequestEntryData])
    validate_only: bool = field(BOOL)


class AlterClientQuotasResponseEntryData(Struct):
    """Alter Client Quotas Response Entry Data."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entity: list[EntityData] = field([EntityData])


class AlterClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    """Alter Client Quotas Response."""

    throttle_time_ms: int = field(INT32)
    entries: list[AlterClientQuotasResponseEntryData] = field([AlterClientQuotasResponseEntryData])
