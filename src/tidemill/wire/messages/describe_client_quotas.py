"""DescribeClientQuotas (key 48)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, FLOAT64, INT16, INT32, INT8, STRING, Struct, field


class ComponentData(Struct):
    """Component Data."""

    entity_type: str = field(STRING)
    match_type: int = field(INT8)
    match: str | None = field(STRING, nullable="0+")


class DescribeClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    """Describe Client Quotas Request."""

    components: list[ComponentData] = field([ComponentData])
    strict: bool = field(BOOL)


class EntityData(Struct):
    """Entity Data."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


class ValueData(Struct):
    """Value Data."""

    key: str = field(STRING)
    value: float = field(FLOAT64)


class EntryData(Struct):
    """Entry Data."""

    entity: list[EntityData] = field([EntityData])
    values: list[ValueData] = field([ValueData])


class DescribeClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    """Describe Client Quotas Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entries: list[EntryData] | None = field([EntryData], nullable="0+")
