"""A start of a broker on its data directories."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.model.system_interfaces import Files

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
