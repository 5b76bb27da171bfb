"""DescribeClientQuotas (key 48): quotas by user, client id and address."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, FLOAT64, INT8, INT16, INT32, STRING, Struct, field


class ComponentData(Struct):
    """What one part of an entity must be."""

    entity_type: str = field(STRING)
    match_type: int = field(INT8)  # 0: this name, 1: the default, 2: any
    match: str | None = field(STRING, nullable="0+")


class DescribeClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    """A filter over entities."""

    components: list[ComponentData] = field([ComponentData])
    strict: bool = field(BOOL)  # no other parts than the ones named


class EntityData(Struct):
    """One part of an entity: a user, a client id or an address."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")  # null for the default


class ValueData(Struct):
    """A quota and its limit."""

    key: str = field(STRING)
    value: float = field(FLOAT64)


class EntryData(Struct):
    """An entity and its quotas."""

    entity: list[EntityData] = field([EntityData])
    values: list[ValueData] = field([ValueData])


class DescribeClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    """The quotas that the filter matched."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entries: list[EntryData] | None = field([EntryData], nullable="0+")
