"""Which engine keeps the cluster's state, and this broker's place in it: taken at the start, and again after
the session with the store was lost."""

from __future__ import annotations

import asyncio
import logging
import os

from tidemill.controller.shell import Controller
from tidemill.coordination.embedded import FILE_NAME, EmbeddedStore
from tidemill.coordination.nodes import CONTROLLER, BrokerNode, BrokerRegistration
from tidemill.coordination.port import SessionState, Store, StoreUnavailable
from tidemill.log.manager import LogManager
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError, StorageError, TidemillError
from tidemill.model.ports import Files

log = logging.getLogger("tidemill.server")

SESSIONS_WAITED = 1.5
"""How many lives of a session a former one's nodes are waited for: its end may be told a little late."""
LOOK_AGAIN_S = 0.2
RETRY_S = 1.0


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


class Membership:
    """This broker's registration and its office of controller, for as long as it runs."""

    def __init__(self, store: Store, controller: Controller) -> None:
        self._store = store
        self._controller = controller
        self._registration: BrokerRegistration | None = None
        self._returning: asyncio.Task[None] | None = None
        self._has_expired = False
        store.on_session(self._session_changed)

    async def join(self, registration: BrokerRegistration, *, lost_unsynced: bool = False) -> None:
        """Registers. Where a broker that was just killed has left its nodes, it waits for their end.

        ``lost_unsynced``: the machine went down since the last stop, and records may be gone.

        Raises KafkaError (DUPLICATE_BROKER_REGISTRATION) when they are there for longer than a session lives.
        """
        self._registration = registration
        loop = asyncio.get_running_loop()
        patience_s = self._store.session_timeout_s * SESSIONS_WAITED
        deadline = loop.time() + patience_s
        waits = False
        while True:
            try:
                await self._controller.activate(registration, lost_unsynced=lost_unsynced)
                return
            except KafkaError as error:
                if error.code != ErrorCode.DUPLICATE_BROKER_REGISTRATION or not patience_s:
                    raise
                if loop.time() > deadline:
                    raise self._refusal(error) from None
                if not waits:
                    found = str(error).partition(":")[0]
                    log.warning("%s: up to %g s are left to its session to end", found, patience_s)
                waits = True
            await self._wait_gone(registration.broker_id, deadline)

    def _refusal(self, error: KafkaError) -> KafkaError:
        return KafkaError(
            f"{error} This version runs one broker on a ZooKeeper path: give a second one a path of its own "
            "(zookeeper.connect=host:2181/other).",
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )

    async def _wait_gone(self, broker_id: int, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() <= deadline:
            await asyncio.sleep(LOOK_AGAIN_S)
            if await self._store.get_many([BrokerNode.path(broker_id), CONTROLLER]) == [None, None]:
                return

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            log.warning("the coordination store does not answer")
        elif state is SessionState.EXPIRED:
            self._has_expired = True
            log.warning("the session with the coordination store has expired")
        else:
            log.info("the coordination store answers again")
            if self._has_expired and self._registration is not None:
                self._cancel()
                self._returning = asyncio.get_running_loop().create_task(self._return(self._registration))

    async def _return(self, registration: BrokerRegistration) -> None:
        """After a session's end: takes the place again that went with it."""
        while True:
            try:
                await self._controller.load()
                await self.join(registration)
            except StoreUnavailable:
                return  # The next CONNECTED begins anew.
            except TidemillError as error:
                log.error("registering again failed, it is tried again in %g s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
            except Exception:
                # A fault of this program; without its registration a broker leads nothing.
                log.exception("registering again failed, it is tried again in %g s", RETRY_S)
                await asyncio.sleep(RETRY_S)
            else:
                self._has_expired = False
                log.info("registered again")
                return

    def _cancel(self) -> None:
        if self._returning is not None:
            self._returning.cancel()

    async def leave(self) -> None:
        """Ends what is under way; the nodes go with the session."""
        self._cancel()
        if self._returning is not None:
            await asyncio.gather(self._returning, return_exceptions=True)
