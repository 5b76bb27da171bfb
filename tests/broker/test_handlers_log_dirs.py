"""DescribeLogDirs when a directory does not answer: an error for that one, and the others all the same."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

from tidemill.broker.handlers.describe_log_dirs import handle
from tidemill.log.directories import DataDirectory
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.describe_log_dirs import DescribeLogDirsRequest


class GoneFiles:
    """A file system of which one mount is gone."""

    def total_bytes(self, path: str) -> int:
        if path == "/gone":
            raise OSError(errno.EIO, "Input/output error", path)
        return 1000

    def free_bytes(self, path: str) -> int:
        return 400


def test_a_directory_whose_disk_is_gone_costs_the_others_nothing() -> None:
    failed = DataDirectory("/failed")
    failed.failure = "the disk broke"
    directories = [DataDirectory("/gone"), failed, DataDirectory("/there")]
    broker: Any = SimpleNamespace(
        files=GoneFiles(),
        partitions=SimpleNamespace(all=list),
        logs=SimpleNamespace(directories=directories, working=[directories[0], directories[2]]),
    )
    context: Any = SimpleNamespace(internal_name=str, external_name=str)
    gone, broken, there = handle(broker, context, DescribeLogDirsRequest(topics=None)).results
    assert (gone.log_dir, gone.error_code) == ("/gone", ErrorCode.KAFKA_STORAGE_ERROR)
    assert (broken.log_dir, broken.error_code) == ("/failed", ErrorCode.KAFKA_STORAGE_ERROR)
    assert (there.error_code, there.total_bytes, there.usable_bytes) == (ErrorCode.NONE, 1000, 400)
