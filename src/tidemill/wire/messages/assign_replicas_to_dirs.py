"""AssignReplicasToDirs (key 73): a broker of a KRaft cluster reports the directories of its replicas."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, INT64, UUID, Struct, field


class AssignReplicasToDirsRequestPartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)


class AssignReplicasToDirsRequestTopicData(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[AssignReplicasToDirsRequestPartitionData] = field(
        [AssignReplicasToDirsRequestPartitionData]
    )


class AssignReplicasToDirsRequestDirectoryData(Struct):
    """One directory's replicas."""

    id: bytes = field(UUID)
    topics: list[AssignReplicasToDirsRequestTopicData] = field([AssignReplicasToDirsRequestTopicData])


class AssignReplicasToDirsRequest(Struct, versions="0", flexible="0+"):
    """The replicas by directory."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    directories: list[AssignReplicasToDirsRequestDirectoryData] = field(
        [AssignReplicasToDirsRequestDirectoryData]
    )


class AssignReplicasToDirsResponsePartitionData(Struct):
    """One partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class AssignReplicasToDirsResponseTopicData(Struct):
    """One topic's partitions."""

    topic_id: bytes = field(UUID)
    partitions: list[AssignReplicasToDirsResponsePartitionData] = field(
        [AssignReplicasToDirsResponsePartitionData]
    )


class AssignReplicasToDirsResponseDirectoryData(Struct):
    """One directory's replicas."""

    id: bytes = field(UUID)
    topics: list[AssignReplicasToDirsResponseTopicData] = field([AssignReplicasToDirsResponseTopicData])


class AssignReplicasToDirsResponse(Struct, versions="0", flexible="0+"):
    """The result of each report."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    directories: list[AssignReplicasToDirsResponseDirectoryData] = field(
        [AssignReplicasToDirsResponseDirectoryData]
    )
