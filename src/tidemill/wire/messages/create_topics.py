"""CreateTopics (key 19): create topics."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, STRING, UUID, Struct, field


class CreatableReplicaAssignment(Struct):
    """The brokers of one partition, when the client assigns them."""

    partition_index: int = field(INT32)
    broker_ids: list[int] = field([INT32])


class CreatableTopicConfig(Struct):
    """A configuration value of a new topic."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class CreatableTopic(Struct):
    """A topic to create."""

    name: str = field(STRING)
    num_partitions: int = field(INT32)  # -1 for the broker's default, or with assignments
    replication_factor: int = field(INT16)  # -1 for the broker's default, or with assignments
    assignments: list[CreatableReplicaAssignment] = field([CreatableReplicaAssignment])
    configs: list[CreatableTopicConfig] = field([CreatableTopicConfig])


class CreateTopicsRequest(Struct, versions="0-7", flexible="5+"):
    """The topics to create."""

    topics: list[CreatableTopic] = field([CreatableTopic])
    timeout_ms: int = field(INT32, default=60000)
    validate_only: bool = field(BOOL, "1+")  # check, but change nothing


class CreatableTopicConfigs(Struct):
    """A configuration value that a new topic has."""

    name: str = field(STRING, "5+")
    value: str | None = field(STRING, "5+", nullable="5+")
    read_only: bool = field(BOOL, "5+")
    config_source: int = field(INT8, "5+", default=-1, ignorable=True)  # the code of Kafka's ConfigSource
    is_sensitive: bool = field(BOOL, "5+")  # then the value is null


class CreatableTopicResult(Struct):
    """A topic that was created, or the error."""

    name: str = field(STRING)
    topic_id: bytes = field(UUID, "7+", ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "1+", nullable="1+", ignorable=True)
    # set where the configuration may not be shown
    topic_config_error_code: int = field(INT16, "5+", tag=0, ignorable=True)
    num_partitions: int = field(INT32, "5+", default=-1, ignorable=True)  # -1 after an error
    replication_factor: int = field(INT16, "5+", default=-1, ignorable=True)  # -1 after an error
    # null where it may not be shown
    configs: list[CreatableTopicConfigs] | None = field(
        [CreatableTopicConfigs], "5+", nullable="5+", ignorable=True
    )


class CreateTopicsResponse(Struct, versions="0-7", flexible="5+"):
    """The result of each topic."""

    throttle_time_ms: int = field(INT32, "2+", ignorable=True)
    topics: list[CreatableTopicResult] = field([CreatableTopicResult])
