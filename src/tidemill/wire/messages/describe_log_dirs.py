"""DescribeLogDirs (key 35)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, STRING, Struct, field


class DescribableLogDirTopic(Struct):
    """Describable Log Dir Topic."""

    topic: str = field(STRING)
    partitions: list[int] = field([INT32])


class DescribeLogDirsRequest(Struct, versions="0-5", flexible="2+"):
    """Describe Log Dirs Request."""

    topics: list[DescribableLogDirTopic] | None = field([DescribableLogDirTopic], nullable="0+")


class DescribeLogDirsPartition(Struct):
    """Describe Log Dirs Partition."""

    partition_index: int = field(INT32)
    partition_size: int = field(INT64)
    offset_lag: int = field(INT64)
    is_future_key: bool = field(BOOL)


class DescribeLogDirsTopic(Struct):
    """Describe Log Dirs Topic."""

    name: str = field(STRING)
    partitions: list[DescribeLogDirsPartition] = field([DescribeLogDirsPartition])


class DescribeLogDirsResult(Struct):
    """Describe Log Dirs Result."""

    error_code: int = field(INT16)
    log_dir: str = field(STRING)
    topics: list[DescribeLogDirsTopic] = field([DescribeLogDirsTopic])
    total_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    usable_bytes: int = field(INT64, "4+", default=-1, ignorable=True)
    is_cordoned: bool = field(BOOL, "5+", ignorable=True)


class DescribeLogDirsResponse(Struct, versions="0-5", flexible="2+"):
    """Describe Log Dirs Response."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, "3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field([DescribeLogDirsResult])
