"""This broker's place in its cluster: its registration, and who is the controller.

Taken at the start, and again after the session with the store was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tidemill.controller.shell import Controller
from tidemill.coordination.image import NO_BROKER
from tidemill.coordination.lost_replicas import NOTHING_LOST
from tidemill.coordination.nodes import CONTROLLER, BrokerNode, BrokerRegistration, ControllerNode
from tidemill.coordination.port import Event, SessionState, SetData, Store, StoreError
from tidemill.model.errors import ErrorCode, KafkaError, TidemillError

log = logging.getLogger("tidemill.server")

SESSIONS_WAITED = 1.5
"""How many lives of a session a former one's nodes are waited for: its end may be told a little late."""
LOOK_AGAIN_S = 0.2
RETRY_S = 1.0


class Events:
    """Who is told of this broker's place."""

    def registered(self, epoch: int) -> None:
        """This broker is registered, in that epoch."""

    def controller_is(self, broker_id: int) -> None:
        """This broker (-1: none) holds the office of controller."""

    async def loss_cleared(self) -> None:
        """The registration reports no losses any more: leaders may be elected that waited for it.

        Raises StoreError.
        """

    def session_lost(self) -> None:
        """Others may take for dead what is registered here."""

    def store_silent(self) -> None:
        """Whether the session lives is not known."""

    def store_back(self) -> None:
        """The store answers again. :meth:`session_lost` was called before if the session has ended."""


class Membership:
    """Registers this broker and contests the office, for as long as it runs."""

    def __init__(self, store: Store, controller: Controller, events: Events) -> None:
        self._store = store
        self._controller = controller
        self._events = events
        self._registration: BrokerRegistration | None = None
        self._renewing = asyncio.Lock()
        """Held while the registration is written, so that none comes back that was replaced meanwhile."""
        self._is_clearing = False
        """The controller has heeded the reported losses, and the node may still name them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._returning: asyncio.Task[None] | None = None
        self._has_expired = False
        self._look = asyncio.Event()
        self._dead_controller = NO_BROKER
        store.on_session(self._session_changed)

    async def join(self, registration: BrokerRegistration) -> None:
        """Registers, and takes the office of controller when nobody has it. To be called once.

        Where a broker of this id that was just killed has left its nodes, it waits for their end. Raises
        KafkaError (DUPLICATE_BROKER_REGISTRATION) when they are there for longer than a session lives.
        """
        self._registration = registration
        await self._register(registration)
        await self._store.watch(CONTROLLER, self._controller_changed)
        await self._contest()
        self._begin(self._follow_office())

    async def _register(self, registration: BrokerRegistration) -> None:
        loop = asyncio.get_running_loop()
        patience_s = self._store.session_timeout_s * SESSIONS_WAITED
        deadline = loop.time() + patience_s
        waits = False
        while True:
            try:
                epoch = await self._controller.register(registration)
                self._note_first(registration, epoch)
                self._events.registered(epoch)
                return
            except KafkaError as error:
                if error.code != ErrorCode.DUPLICATE_BROKER_REGISTRATION or not patience_s:
                    raise
                if loop.time() > deadline:
                    raise
                if not waits:
                    found = str(error).partition(":")[0]
                    log.warning("%s: up to %g s are left to its session to end", found, patience_s)
                waits = True
            while loop.time() <= deadline:
                await asyncio.sleep(LOOK_AGAIN_S)
                if not await self._store.exists(BrokerNode.path(registration.broker_id)):
                    break

    def _note_first(self, registered: BrokerRegistration, epoch: int) -> None:
        """Keeps the epoch of the first registration with a report of losses.

        A later registration repeats the report, which does not count for topics created since the first.
        """
        lost = registered.lost
        if self._registration is registered and not lost.is_none and not lost.first_epoch:
            self._registration = registered._replace(lost=lost._replace(first_epoch=epoch))

    # The office

    def _controller_changed(self, event: Event) -> None:
        self._look.set()

    def controller_dead(self, broker_id: int) -> None:
        """The process of the controller has ended, though its node may live on."""
        self._dead_controller = broker_id
        self._look.set()

    def office_doubted(self) -> None:
        """A broker knows a later controller than this one. Who it is, the store tells.

        Should there be none (the store was put back to a former state, say), the next epoch is a later one.
        """
        self._controller.resign()
        self._begin(self._look_later())

    async def _look_later(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._look.set()

    async def _contest(self) -> None:
        """Takes the office if it is free, and finds out who has it."""
        while True:
            node = await self._store.get(CONTROLLER)
            holder = ControllerNode.decode(node.data) if node is not None else NO_BROKER
            is_ours = node is not None and node.owner == self._store.session_id
            if is_ours and self._controller.is_active:
                self._events.controller_is(holder)
                return
            if self._controller.is_active:
                self._controller.resign()
            is_dead = holder == self._dead_controller != NO_BROKER
            if node is None or is_dead or is_ours:
                if await self._controller.activate(dead=holder if is_dead else None):
                    log.info("broker %d is the controller now", self._controller.broker_id)
                    self._dead_controller = NO_BROKER
                    self._events.controller_is(self._controller.broker_id)
                    return
                continue
            self._dead_controller = NO_BROKER
            self._events.controller_is(holder)
            return

    async def _follow_office(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            if self._has_expired:
                continue  # It is contested once this broker is registered again.
            try:
                await self._contest()
            except (StoreError, KafkaError) as problem:
                log.warning("who is the controller is looked up again: %s", problem)
                await asyncio.sleep(LOOK_AGAIN_S)
                self._look.set()
            except Exception:
                log.exception("who is the controller could not be settled; it is tried again")
                await asyncio.sleep(RETRY_S)
                self._look.set()

    # The registration

    async def clear_loss(self) -> None:
        """Removes the reported losses from the registration: the controller has heeded them.

        Until then these replicas do not get in sync. Raises StoreError.
        """
        async with self._renewing:
            registration = self._registration
            if registration is None or (registration.lost.is_none and not self._is_clearing):
                return
            # Before the write, whose answer may be lost: the next registration must not repeat the report. By
            # then the reported replicas may be the only ones in sync.
            self._registration = cleared = registration._replace(lost=NOTHING_LOST)
            self._is_clearing = True
            path = BrokerNode.path(cleared.broker_id)
            await self._store.transact([SetData(path, BrokerNode.encode(cleared))])
            await self._events.loss_cleared()
            self._is_clearing = False

    async def clear_loss_later(self) -> None:
        """As :meth:`clear_loss`, until the store takes it."""
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                await self.clear_loss()
            except StoreError as problem:
                log.warning("the registration could not be renewed, it is tried again: %s", problem)
            else:
                return

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.SUSPENDED:
            log.warning("the coordination store does not answer")
            self._events.store_silent()
        elif state is SessionState.EXPIRED:
            # Before the broker has joined the session held no registration that has to be made again.
            self._has_expired = self._registration is not None
            log.warning("the session with the coordination store has expired")
            self._controller.resign()
            self._events.session_lost()
        else:
            log.info("the coordination store answers again")
            self._events.store_back()
            if self._has_expired and self._registration is not None:
                if self._returning is not None:
                    self._returning.cancel()
                self._returning = self._begin(self._return())

    async def _return(self) -> None:
        """After a session's end: takes the place again that went with it."""
        while True:
            try:
                await self._controller.load()
                async with self._renewing:
                    if self._registration is None:
                        return
                    await self._register(self._registration)
                self._has_expired = False
                await self._contest()
            except TidemillError as error:
                if self._returning is not asyncio.current_task():
                    return
                log.error("registering again failed, it is tried again in %g s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
            except Exception:
                # A fault of this program; without its registration a broker leads nothing.
                log.exception("registering again failed, it is tried again in %g s", RETRY_S)
                await asyncio.sleep(RETRY_S)
            else:
                log.info("registered again")
                return

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def leave(self) -> None:
        """Ends what is under way; the nodes go with the session, and none is made in a later one."""
        self._registration = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
