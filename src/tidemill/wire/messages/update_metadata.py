"""UpdateMetadata (key 6): a controller distributes the cluster's metadata."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, UUID, Struct, field


class UpdateMetadataPartitionState(Struct):
    """Leader, epochs and replicas of one partition."""

    topic_name: str = field(STRING, "0-4", ignorable=True)
    partition_index: int = field(INT32)
    controller_epoch: int = field(INT32)
    leader: int = field(INT32)  # -1 for none, -2 while the topic is being deleted
    leader_epoch: int = field(INT32)
    isr: list[int] = field([INT32])
    zk_version: int = field(INT32)  # of the partition's state node
    replicas: list[int] = field([INT32])
    # replicas whose broker or directory is offline
    offline_replicas: list[int] = field([INT32], "4+", ignorable=True)


class UpdateMetadataTopicState(Struct):
    """One topic's partitions."""

    topic_name: str = field(STRING, "5+")
    topic_id: bytes = field(UUID, "7+", ignorable=True)
    partition_states: list[UpdateMetadataPartitionState] = field([UpdateMetadataPartitionState], "5+")


class UpdateMetadataEndpoint(Struct):
    """A listener of a broker."""

    port: int = field(INT32, "1+")
    host: str = field(STRING, "1+")
    listener: str = field(STRING, "3+", ignorable=True)
    security_protocol: int = field(INT16, "1+")  # 0: PLAINTEXT, 1: SSL, 2: SASL_PLAINTEXT, 3: SASL_SSL


class UpdateMetadataBroker(Struct):
    """A live broker."""

    id: int = field(INT32)
    v0_host: str = field(STRING, "0", ignorable=True)
    v0_port: int = field(INT32, "0", ignorable=True)
    endpoints: list[UpdateMetadataEndpoint] = field([UpdateMetadataEndpoint], "1+", ignorable=True)
    rack: str | None = field(STRING, "2+", nullable="2+", ignorable=True)  # null where the broker has none


class UpdateMetadataRequest(Struct, versions="0-8", flexible="6+"):
    """A controller's update, fenced by its epoch."""

    controller_id: int = field(INT32)
    is_kraft_controller: bool = field(BOOL, "8+")  # false from a controller over the coordination store
    type: int = field(INT8, "8+", tag=0)  # 0: changes, 1: the whole image
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, "5+", default=-1, ignorable=True)  # of the broker's registration
    # old versions list partitions without topics
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = field(
        [UpdateMetadataPartitionState], "0-4"
    )
    topic_states: list[UpdateMetadataTopicState] = field([UpdateMetadataTopicState], "5+")
    live_brokers: list[UpdateMetadataBroker] = field([UpdateMetadataBroker])


class UpdateMetadataResponse(Struct, versions="0-8", flexible="6+"):
    """The result of the update."""

    error_code: int = field(INT16)
