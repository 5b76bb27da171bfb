"""AlterReplicaLogDirs (key 34)."""

from __future__ import annotations

from tidemill.wire.schema import INT16, INT32, STRING, Struct, field


class AlterReplicaLogDirTopic(Struct):
    """Alter Replica Log Dir Topic."""

    name: str = field(STRING)
    partitions: list[int] = field([INT32])


class AlterReplicaLogDir(Struct):
    """Alter Replica Log Dir."""

    path: str = field(STRING)
    topics: list[AlterReplicaLogDirTopic] = field([AlterReplicaLogDirTopic])


class AlterReplicaLogDirsRequest(Struct, versions="0-2", flexible="2+"):
    """Alter Replica Log Dirs Request."""

    dirs: list[AlterReplicaLogDir] = field([AlterReplicaLogDir])


class AlterReplicaLogDirPartitionResult(Struct):
    """Alter Replica Log Dir Partition Result."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class AlterReplicaLogDirTopicResult(Struct):
    """Alter Replica Log Dir Topic Result."""

    topic_name: str = field(STRING)
    partitions: list[AlterReplicaLogDirPartitionResult] = field([AlterReplicaLogDirPartitionResult])


class AlterReplicaLogDirsResponse(Struct, versions="0-2", flexible="2+"):
    """Alter Replica Log Dirs Response."""

    throttle_time_ms: int = field(INT32)
    results: list[AlterReplicaLogDirTopicResult] = field([AlterReplicaLogDirTopicResult])
