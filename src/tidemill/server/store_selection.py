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
        return _open_embedded(logs, files)
    # Imported here because it imports kazoo, which only brokers on ZooKeeper need.
    from tidemill.coordination.zookeeper_settings import settings_of
    from tidemill.coordination.zookeeper_store import ZooKeeperStore

    settings = settings_of(config)
    store = await ZooKeeperStore.open(settings)
    logger.info("connected to ZooKeeper at %s, session 0x%x", settings.shown, store.session_id)
    return store


def _open_embedded(logs: LogManager, files: Files) -> Store:
    first = logs.dirs.all[0]
    if first.is_offline:
        raise StorageError(
            f"{first.offline_reason} (the first of log.dirs also contains the coordination store)"
        )
    path = os.path.join(first.path, FILE_NAME)
    if not os.path.exists(path):
        _refuse_unknown_partitions(logs, files, path)
    return EmbeddedStore.open(path)


def _refuse_unknown_partitions(logs: LogManager, files: Files, store: str) -> None:
    """Refuses to create a store in directories with partitions, whose topics it would not contain."""
    from tidemill.interchange.directories import partitions_in

    paths = [one.path for one in logs.dirs.online]
    found = [key for path in paths for key in partitions_in(files, path)]
    if found:
        raise StorageError(
            f"{os.path.dirname(store)} has no {FILE_NAME}, and there are {len(found)} partitions "
            f"({found[0]}, ...): import data of Apache Kafka with 'tidemill log import "
            f"{' '.join(paths)}', or restore {FILE_NAME}"
        )
