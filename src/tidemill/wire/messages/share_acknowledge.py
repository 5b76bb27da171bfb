"""ShareAcknowledge (key 79): a member of a share group acknowledges records (KIP-932)."""

from __future__ import annotations

from tidemill.wire.messages.share_fetch import AcknowledgementBatch, LeaderIdAndEpoch, NodeEndpoint
from tidemill.wire.schema import BOOL, INT16, INT32, STRING, UUID, Struct, field


class AcknowledgePartition(Struct):
    """One partition's acknowledgements."""

    partition_index: int = field(INT32)
    acknowledgement_batches: list[AcknowledgementBatch] = field([AcknowledgementBatch])


class AcknowledgeTopic(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[AcknowledgePartition] = field([AcknowledgePartition])


class ShareAcknowledgeRequest(Struct, versions="1-2", flexible="0+"):
    """The acknowledgements."""

    group_id: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+")
    share_session_epoch: int = field(INT32)
    is_renew_ack: bool = field(BOOL, "2+")
    topics: list[AcknowledgeTopic] = field([AcknowledgeTopic])


class PartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[PartitionData] = field([PartitionData])


class ShareAcknowledgeResponse(Struct, versions="1-2", flexible="0+"):
    """The result of the acknowledgements."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = field(INT32, "2+", ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = field([ShareAcknowledgeTopicResponse])
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint])
