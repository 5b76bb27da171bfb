"""DescribeLogDirs with a failed directory: its result is an error, the other results are complete."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

from faulty_files import FaultyFiles

from tidemill.broker.handlers.describe_log_dirs import handle
from tidemill.broker.large_requests import RequestSlices
from tidemill.log.log_directories import DataDirectory
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.describe_log_dirs import DescribeLogDirsRequest


def data_directory(path: str) -> DataDirectory:
    """A directory without logs, of which no file is used."""
    return DataDirectory(FaultyFiles(), path, {})


def described(broker: Any) -> list[Any]:
    """The results for all directories."""

    async def ask() -> list[Any]:
        context = SimpleNamespace(slices=RequestSlices())
        results: list[Any] = handle(broker, context, DescribeLogDirsRequest(topics=None)).results
        return results

    return asyncio.run(ask())


def test_a_partition_with_an_unavailable_log_is_in_no_directory() -> None:
    def partition(index: int, is_offline: bool) -> Any:
        log = SimpleNamespace(size_bytes=10, end_offset=5)
        return SimpleNamespace(topic="t", index=index, log=log, high_watermark=5, is_offline=is_offline)

    there = data_directory("/there")
    broker: Any = SimpleNamespace(
        files=GoneFiles(),
        replica_manager=SimpleNamespace(all=lambda: [partition(0, False), partition(1, True)]),
        log_manager=SimpleNamespace(
            dirs=SimpleNamespace(all=[there], online=[there], directory_of=lambda log: there)
        ),
    )
    (result,) = described(broker)
    (topic,) = result.topics
    assert [one.partition_index for one in topic.partitions] == [0]


class GoneFiles:
    """A file system with one missing mount."""

    def total_bytes(self, path: str) -> int:
        if path == "/gone":
            raise OSError(errno.EIO, "Input/output error", path)
        return 1000

    def free_bytes(self, path: str) -> int:
        return 400


def test_a_directory_on_a_missing_disk_does_not_hide_the_others() -> None:
    failed = data_directory("/failed")
    failed.offline_reason = "the disk broke"
    directories = [data_directory("/gone"), failed, data_directory("/there")]
    broker: Any = SimpleNamespace(
        files=GoneFiles(),
        replica_manager=SimpleNamespace(all=list),
        log_manager=SimpleNamespace(
            dirs=SimpleNamespace(all=directories, online=[directories[0], directories[2]])
        ),
    )
    gone, broken, there = described(broker)
    assert (gone.log_dir, gone.error_code) == ("/gone", ErrorCode.KAFKA_STORAGE_ERROR)
    assert (broken.log_dir, broken.error_code) == ("/failed", ErrorCode.KAFKA_STORAGE_ERROR)
    assert (there.error_code, there.total_bytes, there.usable_bytes) == (ErrorCode.NONE, 1000, 400)


def test_a_future_log_is_described_with_its_lag() -> None:
    moved, alone = TopicPartition("t", 0), TopicPartition("t", 1)
    source, target = data_directory("/source"), data_directory("/target")
    future: Any = {
        moved: SimpleNamespace(size_bytes=70, end_offset=7),
        # Its current log is in a failed directory.
        alone: SimpleNamespace(size_bytes=30, end_offset=3),
    }
    target.future_logs.update(future)
    current = SimpleNamespace(size_bytes=100, end_offset=10)
    partition = SimpleNamespace(topic="t", index=0, log=current, high_watermark=9, is_offline=False)
    broker: Any = SimpleNamespace(
        files=GoneFiles(),
        replica_manager=SimpleNamespace(all=lambda: [partition]),
        log_manager=SimpleNamespace(
            get={moved: current}.get,
            dirs=SimpleNamespace(
                all=[source, target], online=[source, target], directory_of=lambda log: source
            ),
        ),
    )

    def partitions(result: Any) -> list[tuple[int, int, int, bool]]:
        return [
            (one.partition_index, one.partition_size, one.offset_lag, one.is_future_key)
            for topic in result.topics
            for one in topic.partitions
        ]

    at_source, at_target = described(broker)
    assert partitions(at_source) == [(0, 100, 0, False)]
    assert partitions(at_target) == [(0, 70, 3, True), (1, 30, 0, True)]
