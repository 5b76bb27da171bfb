"""Which engine keeps the cluster's state."""

from __future__ import annotations

import logging
import os

from tidemill.coordination.embedded import FILE_NAME, EmbeddedStore
from tidemill.coordination.port import Store
from tidemill.log.manager import LogManager
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import StorageError
from tidemill.model.ports import Files

log = logging.getLogger("tidemill.server")


async def open_store(config: BrokerConfig, logs: LogManager, files: Files) -> Store:
    """The store that the configuration names. Raises TidemillError with one line when it cannot be had."""
    if config.store() == "embedded":
        return _open_embedded(logs, files)
    # Imported here: it brings kazoo, which only brokers on ZooKeeper need.
    from tidemill.coordination.zookeeper import ZooKeeperStore
    from tidemill.coordination.zookeeper_settings import settings_of

    settings = settings_of(config)
    store = await ZooKeeperStore.open(settings)
    log.info("connected to ZooKeeper at %s, session 0x%x", settings.shown, store.session_id)
    return store


def _open_embedded(logs: LogManager, files: Files) -> Store:
    first = logs.directories[0]
    if first.failure:
        raise StorageError(f"{first.failure} (the first of log.dirs also holds the cluster's state)")
    path = os.path.join(first.path, FILE_NAME)
    if not os.path.exists(path):
        _refuse_strange_partitions(logs, files, path)
    return EmbeddedStore.open(path)


def _refuse_strange_partitions(logs: LogManager, files: Files, store: str) -> None:
    """Without the store nobody knows the topics of the partitions that are there."""
    from tidemill.interchange.directories import partitions_in

    paths = [one.path for one in logs.working]
    found = [key for path in paths for key in partitions_in(files, path)]
    if found:
        raise StorageError(
            f"{os.path.dirname(store)} has no {FILE_NAME}, and there are {len(found)} partitions "
            f"({found[0]}, ...): bring in what Apache Kafka wrote with 'tidemill log import "
            f"{' '.join(paths)}', or put {FILE_NAME} back"
        )
