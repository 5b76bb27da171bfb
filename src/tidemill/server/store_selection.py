"""Opens the configured coordination store."""

from __future__ import annotations

import logging
import os

from tidemill.coordination.coordination_store import Store
from tidemill.coordination.embedded_store import FILE_NAME, EmbeddedStore
from tidemill.log.log_manager import LogManager
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import StorageError
from tidemill.model.system_interfaces import Files

logger = logging.getLogger("tidemill.server")


async def open_store(config: BrokerConfig, logs: LogManager, files: Files) -> Store:
    """Opens the configured store. Raises TidemillError with one line for the operator."""
    if config.store() == "embedded":
        embedded = _open_embedded(logs, files)
        if embedded.is_blank:
            try:
                _refuse_unknown_partitions(logs, files, "has no nodes")
            except StorageError:
                await embedded.close()
                raise
        return embedded
    # Imported here because it imports kazoo, which only brokers on ZooKeeper need.
    from tidemill.coordination.zookeeper_settings import settings_of
    from tidemill.coordination.zookeeper_store import ZooKeeperStore

    settings = settings_of(config)
    store = await ZooKeeperStore.open(settings)
    logger.info("connected to ZooKeeper at %s, session 0x%x", settings.shown, store.session_id)
    return store


def _open_embedded(logs: LogManager, files: Files) -> EmbeddedStore:
    first = logs.dirs.all[0]
    if first.is_offline:
        raise StorageError(
            f"{first.offline_reason} (the first of log.dirs also contains the coordination store)"
        )
    path = os.path.join(first.path, FILE_NAME)
    if not os.path.exists(path):
        _refuse_unknown_partitions(logs, files, "does not exist")
    return EmbeddedStore.open(path)


def _refuse_unknown_partitions(logs: LogManager, files: Files, reason: str) -> None:
    """Refuses to start with an empty store and partitions, whose topics the store does not contain."""
    from tidemill.interchange.directories import partitions_in

    paths = [one.path for one in logs.dirs.online]
    found = [key for path in paths for key in partitions_in(files, path)]
    if found:
        raise StorageError(
            f"{logs.dirs.all[0].path}/{FILE_NAME} {reason}, and there are {len(found)} partitions "
            f"({found[0]}, ...): restore {FILE_NAME} and {FILE_NAME}-wal; or, without these, import data of "
            f"Apache Kafka with 'tidemill log import {' '.join(paths)}'"
        )
