"""DescribeLogDirs (key 35): the replicas in a broker's data directories."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class DescribableLogDirTopic(Struct):
    """One topic's partitions."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class DescribeLogDirsRequest(Struct, versions="0-5", flexible="2+"):
    """The replicas to describe."""

    # null for all
    topics: list[DescribableLogDirTopic] | None = field([DescribableLogDirTopic], nullable="0+")


class DescribeLogDirsPartition(Struct):
    """The size of one replica."""

    partition_index: int = field(INT32)
    partition_size: int = field(INT64)
    # what it lacks to the high watermark, or a future replica to the current one
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOL)  # on its way into this directory


class DescribeLogDirsTopic(Struct):
    """One topic's replicas."""

    name: str = field(STRING)
    partitions: list[DescribeLogDirsPartition] = field([DescribeLogDirsPartition])


class DescribeLogDirsResult(Struct):
    """One data directory."""

    error_code: int = field(INT16)
    log_dir: str = field(STRING)  # absolute path
    topics: list[DescribeLogDirsTopic] = field([DescribeLogDirsTopic])
    # of the file system; -1 where unknown
    total_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    # of the file system; -1 where unknown
    usable_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    is_cordoned: bool = field(BOOL, "5+", ignorable=True)


class DescribeLogDirsResponse(Struct, versions="0-5", flexible="2+"):
    """The broker's data directories."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field([DescribeLogDirsResult])
