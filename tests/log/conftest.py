"""Shared fixtures of the log's tests: batches, and logs in a temporary directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles
from log_stage import MakeBatch, MakeLog

from log_start import NOW, open_log
from record_builders import build_batch
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.system_files import SystemFiles
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch

PARTITION = TopicPartition("events", 0)


def make_batch(
    count: int = 1, *, value: bytes = b"v" * 20, timestamp: int = NOW, step_ms: int = 0, **options: Any
) -> Batch:
    """Returns a batch of ``count`` records."""
    records = [(timestamp + at * step_ms, b"k%d" % at, value, None) for at in range(count)]
    data = build_batch(records, **options)
    return parse_batch(data, 0, len(data))


@pytest.fixture
def batch() -> MakeBatch:
    return make_batch


@pytest.fixture
def files() -> FaultyFiles:
    """Files in memory, with the directory ``/d``."""
    made = FaultyFiles()
    made.make_directory("/d")
    return made


@pytest.fixture
def directory(tmp_path: Path) -> str:
    path = tmp_path / "events-0"
    path.mkdir()
    return str(path)


@pytest.fixture
def log_of(directory: str) -> MakeLog:
    """Opens the log in the test's directory. ``settings`` are for its LogConfig, the rest for the opening."""

    def make(settings: dict[str, Any] | None = None, **options: Any) -> Log:
        options.setdefault("now_ms", NOW)
        files = options.pop("files", None) or SystemFiles()
        return open_log(
            files, options.pop("directory", directory), PARTITION, LogConfig(**(settings or {})), **options
        )

    return make
