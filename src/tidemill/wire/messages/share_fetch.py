"""ShareFetch (key 78): a member of a share group fetches, and acknowledges (KIP-932)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, INT64, RECORDS, STRING, UUID, Struct, field


class AcknowledgementBatch(Struct):
    """The acknowledgement of a range of records."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    acknowledge_types: list[int] = field([INT8])


class FetchPartition(Struct):
    """One partition to fetch from."""

    partition_index: int = field(INT32)
    partition_max_bytes: int = field(INT32, "0")
    acknowledgement_batches: list[AcknowledgementBatch] = field([AcknowledgementBatch])


class FetchTopic(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[FetchPartition] = field([FetchPartition])


class ForgottenTopic(Struct):
    """Partitions that leave the session."""

    topic_id: bytes = field(UUID)
    partitions: list[int] = field([INT32])


class ShareFetchRequest(Struct, versions="1-2", flexible="0+"):
    """The partitions to fetch from, and their acknowledgements."""

    group_id: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+")
    share_session_epoch: int = field(INT32)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=2147483647)
    max_records: int = field(INT32)
    batch_size: int = field(INT32)
    share_acquire_mode: int = field(INT8, "2+", ignorable=True)
    is_renew_ack: bool = field(BOOL, "2+")
    topics: list[FetchTopic] = field([FetchTopic])
    forgotten_topics_data: list[ForgottenTopic] = field([ForgottenTopic])


class LeaderIdAndEpoch(Struct):
    """The leader and its epoch."""

    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class AcquiredRecords(Struct):
    """A range of records that the member acquired."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    delivery_count: int = field(INT16)


class PartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    acknowledge_error_code: int = field(INT16)
    acknowledge_error_message: str | None = field(STRING, nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch)
    records: bytes | None = field(RECORDS)
    acquired_records: list[AcquiredRecords] = field([AcquiredRecords])


class ShareFetchableTopicResponse(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionData] = field([PartitionData])


class NodeEndpoint(Struct):
    """The address of a node."""

    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)


class ShareFetchResponse(Struct, versions="1-2", flexible="0+"):
    """Records, and the leaders of other partitions."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field(INT32)
    responses: list[ShareFetchableTopicResponse] = field([ShareFetchableTopicResponse])
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint])
