"""CreateTopics (key 19)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT8, STRING, UUID, Struct, field


class CreatableReplicaAssignment(Struct):
    """Creatable Replica Assignment."""

    partition_index: int = field(INT32)
    broker_ids: list[int] = field([INT32])


class CreatableTopicConfig(Struct):
    """Creatable Topic Config."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class CreatableTopic(Struct):
    """Creatable Topic."""

    name: str = field(STRING)
    num_partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: list[CreatableReplicaAssignment] = field([CreatableReplicaAssignment])
    configs: list[CreatableTopicConfig] = field([CreatableTopicConfig])


class CreateTopicsRequest(Struct, versions="0-7", flexible="5+"):
    """Create Topics Request."""

    topics: list[CreatableTopic] = field([CreatableTopic])
    timeout_ms: int = field(INT32, default=60000)
    validate_only: bool = field(BOOL, "1+")


class CreatableTopicConfigs(Struct):
    """Creatable Topic Configs."""

    name: str = field(STRING, "5+")
    value: str | None = field(STRING, "5+", nullable="5+")
    read_only: bool = field(BOOL, "5+")
    config_source: int = field(INT8, "5+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL, "5+")


class CreatableTopicResult(Struct):
    """Creatable Topic Result."""

    name: str = field(STRING)
    topic_id: bytes = field(UUID, "7+", ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "1+", nullable="1+", ignorable=True)
    topic_config_error_code: int = field(INT16, "5+", tag=0, ignorable=True)
    num_partitions: int = field(INT32, "5+", default=-1, ignorable=True)
    replication_factor: int = field(INT16, "5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = field(
        [CreatableTopicConfigs], "5+", nullable="5+", ignorable=True
    )


class CreateTopicsResponse(Struct, versions="0-7", flexible="5+"):
    """Create Topics Response."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[CreatableTopicResult] = field([CreatableTopicResult])
