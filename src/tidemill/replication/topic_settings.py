"""Hands changed settings of a topic to its partitions."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.log.config import LogConfig
from tidemill.replication.partition import Partition
from tidemill.replication.storage import limits_of, storage_of


def configure(partitions: Iterable[Partition | None], config: LogConfig, now_ms: int) -> None:
    """Has ``partitions`` go on with ``config``; None stands for one that is not here."""
    limits = limits_of(config)
    storage = storage_of(config)
    for partition in partitions:
        if partition is not None:
            partition.limits = limits
            partition.storage = storage
            partition.set_min_insync(config.min_insync_replicas, now_ms)
            partition.log.set_config(config)
            partition.flush_if_due()
