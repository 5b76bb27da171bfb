"""FetchSnapshot (key 59): a replica of the Raft quorum fetches a snapshot."""

from __future__ import annotations

from tidemill.wire.messages.vote import NodeEndpoint
from tidemill.wire.schema import INT16, INT32, INT64, RECORDS, STRING, UUID, Struct, field


class SnapshotId(Struct):
    """Identifies a snapshot by its end offset and epoch."""

    end_offset: int = field(INT64)
    epoch: int = field(INT32)


class FetchSnapshotRequestPartitionSnapshot(Struct):
    """One partition's snapshot."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32)
    snapshot_id: SnapshotId = field(SnapshotId)
    position: int = field(INT64)
    replica_directory_id: bytes = field(UUID, "1+", tag=0, ignorable=True)


class FetchSnapshotRequestTopicSnapshot(Struct):
    """One topic's snapshots."""

    name: str = field(STRING)
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = field([FetchSnapshotRequestPartitionSnapshot])


class FetchSnapshotRequest(Struct, versions="0-1", flexible="0+"):
    """The snapshots, and the first bytes to fetch."""

    cluster_id: str | None = field(STRING, nullable="0+", default=None, tag=0)
    replica_id: int = field(INT32, default=-1)
    max_bytes: int = field(INT32, default=2147483647)
    topics: list[FetchSnapshotRequestTopicSnapshot] = field([FetchSnapshotRequestTopicSnapshot])


class LeaderIdAndEpoch(Struct):
    """The leader and its epoch."""

    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class FetchSnapshotResponsePartitionSnapshot(Struct):
    """One partition's snapshot."""

    index: int = field(INT32)
    error_code: int = field(INT16)
    snapshot_id: SnapshotId = field(SnapshotId)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch, tag=0)
    size: int = field(INT64)
    position: int = field(INT64)
    unaligned_records: bytes | None = field(RECORDS)


class FetchSnapshotResponseTopicSnapshot(Struct):
    """One topic's snapshots."""

    name: str = field(STRING)
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = field([FetchSnapshotResponsePartitionSnapshot])


class FetchSnapshotResponse(Struct, versions="0-1", flexible="0+"):
    """Pieces of the snapshots."""

    throttle_time_ms: int = field(INT32, ignorable=True)
    error_code: int = field(INT16)
    topics: list[FetchSnapshotResponseTopicSnapshot] = field([FetchSnapshotResponseTopicSnapshot])
    node_endpoints: list[NodeEndpoint] = field([NodeEndpoint], "1+", tag=0)
