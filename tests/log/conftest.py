"""What the tests of the log share: batches, logs in a temporary directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.log import Log
from tidemill.log.recovery import open_log
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.builder import build_batch

NOW = 1_700_000_000_000
PARTITION = TopicPartition("events", 0)


def make_batch(
    count: int = 1, *, value: bytes = b"v" * 20, timestamp: int = NOW, step_ms: int = 0, **options: Any
) -> Batch:
    """A batch of ``count`` records."""
    records = [(timestamp + at * step_ms, b"k%d" % at, value, None) for at in range(count)]
    data = build_batch(records, **options)
    return parse_batch(data, 0, len(data))


@pytest.fixture
def batch() -> Callable[..., Batch]:
    return make_batch


@pytest.fixture
def directory(tmp_path: Path) -> str:
    path = tmp_path / "events-0"
    path.mkdir()
    return str(path)


@pytest.fixture
def log_of(directory: str) -> Callable[..., Log]:
    """Opens the log in the test's directory: options of the opening, and ``settings`` for its LogConfig."""

    def make(settings: dict[str, Any] | None = None, **options: Any) -> Log:
        options.setdefault("now_ms", NOW)
        files = options.pop("files", None) or SystemFiles()
        return open_log(
            files, options.pop("directory", directory), PARTITION, LogConfig(**(settings or {})), **options
        )

    return make
