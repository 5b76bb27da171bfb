"""Opens the logs of data directories, as the start of a broker does, and single logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log.log_manager import LogManager
from tidemill.model.system_interfaces import Files
from tidemill.model.types import TopicPartition

NOW = 1_700_000_000_000
CLUSTER_ID = "c" * 22


def start_logs(
    files: Files,
    directories: Iterable[str],
    config: LogConfig | None = None,
    *,
    now_ms: int = NOW,
    node: int = 1,
    cluster_id: str = CLUSTER_ID,
    recovery_threads: int = 1,
) -> LogManager:
    """Locks the directories, claims them and opens their logs, with the same settings for all topics."""
    settings = config or LogConfig()
    logs = LogManager(files, directories, recovery_threads=recovery_threads)
    logs.dirs.lock()
    logs.dirs.claim(cluster_id, node)
    logs.load(now_ms, lambda topic: settings)
    return logs


def open_log(
    files: Files,
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    removals: DelayedFileRemoval | None = None,
    now_ms: int = 0,
    **options: Any,
) -> Log:
    """Opens a single log, whatever its loader warns of."""
    removals = DelayedFileRemoval() if removals is None else removals
    opening = LogLoader(
        files, directory, topic_partition, config, removals=removals, now_ms=now_ms, **options
    )
    return opening.open()
