"""AlterClientQuotas (key 49): set and remove quotas."""

from __future__ import annotations

from tidemill.wire.messages.describe_client_quotas import EntityData
from tidemill.wire.schema import BOOL, FLOAT64, INT16, INT32, STRING, Struct, field


class OpData(Struct):
    """A quota to set or to remove."""

    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


class AlterClientQuotasRequestEntryData(Struct):
    """An entity and the changes to its quotas."""

    entity: list[EntityData] = field([EntityData])
    ops: list[OpData] = field([OpData])


class AlterClientQuotasRequest(Struct, versions="0-1", flexible="1+"):
    """The entities to change."""

    entries: list[AlterClientQuotasRequestEntryData] = field([AlterClientQuotasRequestEntryData])
    validate_only: bool = field(BOOL)  # check, but change nothing


class AlterClientQuotasResponseEntryData(Struct):
    """Whether one entity was changed."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entity: list[EntityData] = field([EntityData])


class AlterClientQuotasResponse(Struct, versions="0-1", flexible="1+"):
    """The result of each entity."""

    throttle_time_ms: int = field(INT32)
    entries: list[AlterClientQuotasResponseEntryData] = field([AlterClientQuotasResponseEntryData])
