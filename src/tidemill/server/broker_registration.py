"""The registration of this broker and the controller election.

Both take place at the start, and again after the session with the store has expired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tidemill.controller.controller import KafkaController
from tidemill.coordination.coordination_store import Event, SessionState, SetData, Store, StoreError
from tidemill.coordination.lost_replicas import NOTHING_LOST
from tidemill.coordination.nodes import CONTROLLER, BrokerNode, BrokerRegistration, ControllerNode
from tidemill.coordination.registration_listener import RegistrationListener
from tidemill.model.errors import ErrorCode, KafkaError, TidemillError
from tidemill.model.task_set import TaskSet
from tidemill.model.types import NO_BROKER
from tidemill.server.store_retries import retry_until_written

logger = logging.getLogger("tidemill.server")

SESSION_TIMEOUTS_WAITED = 1.5
"""The maximum wait for the nodes of a former session to disappear, in session timeouts. The store may report
the end of a session late."""
POLL_S = 0.2
RETRY_S = 1.0


class BrokerRegistrationManager:
    """Keeps this broker registered, and takes part in controller elections."""

    def __init__(
        self, store: Store, controller: KafkaController, listeners: Sequence[RegistrationListener]
    ) -> None:
        """The ``listeners`` are called in their order."""
        self._store = store
        self._controller = controller
        self._listeners = listeners
        self._registration: BrokerRegistration | None = None
        self._registration_lock = asyncio.Lock()
        """Held while the registration is written, so that no write restores a replaced registration."""
        self._is_clearing = False
        """The controller has processed the lost replicas, and the node may still contain them."""
        self._tasks = TaskSet()
        self._reregistration: asyncio.Task[None] | None = None
        self._has_expired = False
        self._election_due = asyncio.Event()
        self._failed_controller = NO_BROKER
        store.on_session(self._session_changed)

    async def join(self, registration: BrokerRegistration) -> None:
        """Registers, and becomes the controller if there is none. Called once.

        If a killed process of this broker has left its nodes, it waits for their end. Raises KafkaError
        (DUPLICATE_BROKER_REGISTRATION) if they exist for longer than a session timeout allows.
        """
        self._registration = registration
        await self._register(registration)
        await self._store.watch(CONTROLLER, self._controller_changed)
        await self._elect()
        self._tasks.start(self._watch_controller())

    async def _register(self, registration: BrokerRegistration) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._store.session_timeout_s * SESSION_TIMEOUTS_WAITED
        deadline = loop.time() + wait_s
        is_logged = False
        while True:
            try:
                epoch = await self._controller.election.register(registration)
                self._keep_first_epoch(registration, epoch)
                for listener in self._listeners:
                    listener.registered(epoch)
                return
            except KafkaError as error:
                may_end = error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION and wait_s > 0
                if not may_end or loop.time() > deadline:
                    raise
                if not is_logged:
                    found = str(error).partition(":")[0]
                    logger.warning("%s: waiting up to %g s for its session to expire", found, wait_s)
                is_logged = True
            while loop.time() <= deadline:
                await asyncio.sleep(POLL_S)
                if not await self._store.exists(BrokerNode.path(registration.broker_id)):
                    break

    def _keep_first_epoch(self, registered: BrokerRegistration, epoch: int) -> None:
        """Keeps the broker epoch of the first registration with lost replicas.

        A later registration repeats the report, which does not apply to topics created after the first.
        """
        lost = registered.lost
        if self._registration is registered and not lost.is_none and not lost.first_epoch:
            self._registration = registered._replace(lost=lost._replace(first_epoch=epoch))

    # Controller election

    def _controller_changed(self, event: Event) -> None:
        self._election_due.set()

    def controller_failed(self, broker_id: int) -> None:
        """The process of the controller has ended; its node may still exist."""
        self._failed_controller = broker_id
        self._election_due.set()

    def controller_moved(self) -> None:
        """Resigns and reads ``/controller``: a broker knows a higher controller epoch.

        If there is no other controller (the store was restored from a backup, for example), this broker
        becomes the controller again, with a higher epoch.
        """
        self._controller.election.resign()
        self._tasks.start(self._elect_later())

    async def _elect_later(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._election_due.set()

    async def _elect(self) -> None:
        """Becomes the controller if there is none, and announces the controller to the listener."""
        while True:
            node = await self._store.get(CONTROLLER)
            holder = ControllerNode.decode(node.data) if node is not None else NO_BROKER
            is_ours = node is not None and node.owner == self._store.session_id
            if is_ours and self._controller.is_active:
                self._announce_controller(holder)
                return
            if self._controller.is_active:
                self._controller.election.resign()
            is_dead = holder == self._failed_controller != NO_BROKER
            if node is None or is_dead or is_ours:
                if await self._controller.context.activate(dead=holder if is_dead else None):
                    logger.info("broker %d is the controller now", self._controller.election.broker_id)
                    self._failed_controller = NO_BROKER
                    self._announce_controller(self._controller.election.broker_id)
                    return
                continue
            self._failed_controller = NO_BROKER
            self._announce_controller(holder)
            return

    def _announce_controller(self, broker_id: int) -> None:
        for listener in self._listeners:
            listener.controller_changed(broker_id)

    async def _watch_controller(self) -> None:
        while True:
            await self._election_due.wait()
            self._election_due.clear()
            if self._has_expired:
                continue  # The election follows when this broker is registered again.
            try:
                await self._elect()
            except (StoreError, KafkaError) as problem:
                logger.warning("the controller election failed, and is retried: %s", problem)
                await asyncio.sleep(POLL_S)
                self._election_due.set()
            except Exception:
                logger.exception("the controller election failed, and is retried")
                await asyncio.sleep(RETRY_S)
                self._election_due.set()

    # Registration

    async def clear_lost_replicas(self) -> None:
        """Removes the lost replicas from the registration, because the controller has processed them.

        Until then these replicas do not join the ISR. Raises StoreError.
        """
        async with self._registration_lock:
            registration = self._registration
            if registration is None or (registration.lost.is_none and not self._is_clearing):
                return
            # Set before the write, whose response may be lost: the next registration must not repeat the
            # report, because by then the reported replicas may be the only ones in sync.
            self._registration = cleared = registration._replace(lost=NOTHING_LOST)
            self._is_clearing = True
            path = BrokerNode.path(cleared.broker_id)
            await self._store.transact([SetData(path, BrokerNode.encode(cleared))])
            for listener in self._listeners:
                await listener.lost_replicas_cleared()
            self._is_clearing = False

    async def clear_lost_replicas_with_retries(self) -> None:
        """Repeats :meth:`clear_lost_replicas`, which has failed once, until the store accepts it."""
        await asyncio.sleep(RETRY_S)
        await retry_until_written(self.clear_lost_replicas, "the registration without lost replicas")

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            logger.warning("the coordination store does not respond")
            for listener in self._listeners:
                listener.store_disconnected()
        elif state is SessionState.EXPIRED:
            # Before the first registration there is nothing to register again.
            self._has_expired = self._registration is not None
            logger.warning("the session with the coordination store has expired")
            self._controller.election.resign()
            for listener in self._listeners:
                listener.session_expired()
        else:
            logger.info("the coordination store responds again")
            for listener in self._listeners:
                listener.store_reconnected()
            if self._has_expired and self._registration is not None:
                if self._reregistration is not None:
                    self._reregistration.cancel()
                self._reregistration = self._tasks.start(self._register_again())

    async def _register_again(self) -> None:
        """Registers again after an expired session, and takes part in the controller election."""
        while True:
            try:
                await self._controller.context.load()
                async with self._registration_lock:
                    if self._registration is None:
                        return
                    await self._register(self._registration)
                self._has_expired = False
                await self._elect()
            except TidemillError as error:
                if self._reregistration is not asyncio.current_task():
                    return
                logger.error("the registration failed, and is retried in %g s: %s", RETRY_S, error)
            except Exception:
                # A bug of this program is retried too: without registration the broker leads nothing.
                logger.exception("the registration failed, and is retried in %g s", RETRY_S)
            else:
                logger.info("the broker is registered again")
                return
            await asyncio.sleep(RETRY_S)

    async def leave(self) -> None:
        """Cancels all tasks. The nodes disappear with the session, and are not created again."""
        self._registration = None
        await self._tasks.cancel()
