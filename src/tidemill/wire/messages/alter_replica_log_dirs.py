"""AlterReplicaLogDirs (key 34): move replicas between a broker's data directories."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class AlterReplicaLogDirTopic(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partitions: list[int] = field([INT32])


class AlterReplicaLogDir(Struct):
    """A directory, and the replicas to move to it."""

    path: str = field(STRING)
    topics: list[AlterReplicaLogDirTopic] = field([AlterReplicaLogDirTopic])


class AlterReplicaLogDirsRequest(Struct, versions="0-2", flexible="2+"):
    """The target directories of replicas."""

    dirs: list[AlterReplicaLogDir] = field([AlterReplicaLogDir])


class AlterReplicaLogDirPartitionResult(Struct):
    """Whether one replica will be moved."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class AlterReplicaLogDirTopicResult(Struct):
    """One topic's results."""

    topic_name: str = field(STRING)
    partitions: list[AlterReplicaLogDirPartitionResult] = field([AlterReplicaLogDirPartitionResult])


class AlterReplicaLogDirsResponse(Struct, versions="0-2", flexible="2+"):
    """The result of each replica."""

    throttle_time_ms: int = field(INT32)
    results: list[AlterReplicaLogDirTopicResult] = field([AlterReplicaLogDirTopicResult])
