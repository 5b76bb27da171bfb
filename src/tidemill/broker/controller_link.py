"""The controller, as the brokers see it that are not: one connection to it, kept open.

Over it leaders ask for other in-sync sets, and what clients ask only of the controller is passed on. The
connection is a sign, too: where nobody listens any more, the controller's process has ended, and another
can take the office before its session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tidemill.broker.reaching import reach
from tidemill.coordination.image import NO_BROKER
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.net.link import Link, LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.envelope import EnvelopeRequest

log = logging.getLogger("tidemill.broker")

REACH_S = 5.0
"""How long a request waits for a connection to the controller."""
LOOK_S = 0.01
"""A connection that has just ended is found to have ended within this time."""


class ControllerLink:
    """The connection to whichever broker is the controller."""

    def __init__(
        self,
        own_id: int,
        connect: Callable[[int], Awaitable[Link]],
        dead: Callable[[int], None],
        patience_s: float = 30.0,
    ) -> None:
        """``dead`` is called with the controller's id when its process has ended.

        ``patience_s``: how long an answer may take (``request.timeout.ms``).
        """
        self._patience_s = patience_s
        self._own_id = own_id
        self._connect = connect
        self._dead = dead
        self._controller = NO_BROKER
        self._link: asyncio.Future[Link] | None = None
        self._task: asyncio.Task[None] | None = None

    def set_controller(self, broker_id: int) -> None:
        """Another broker is the controller now; -1: none is."""
        if broker_id == self._controller and self._task is not None:
            return
        self._controller = broker_id
        self._end()
        if broker_id not in (NO_BROKER, self._own_id):
            loop = asyncio.get_running_loop()
            self._link = loop.create_future()
            self._task = loop.create_task(self._keep(broker_id))

    def stop(self) -> None:
        """Ends the connection."""
        self._controller = NO_BROKER
        self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        link, self._link = self._link, None
        if link is not None:
            if not link.done():
                link.cancel()
            elif not link.cancelled():
                link.result().close("another broker is the controller")

    async def _keep(self, controller: int) -> None:
        def has_ended() -> None:
            log.warning("the controller, broker %d, has ended", controller)
            self._dead(controller)

        while True:
            link = await reach(lambda: self._connect(controller), has_ended)
            closed = asyncio.Event()
            link.on_close = lambda reason, closed=closed: closed.set()
            if link.closed:
                continue
            waiting = self._link
            if waiting is not None and not waiting.done():
                waiting.set_result(link)
            try:
                await closed.wait()
            finally:
                link.close("another broker is the controller")
            self._link = asyncio.get_running_loop().create_future()

    async def ask(self, key: int, versions: tuple[int, int], request: Any) -> Any:
        """The controller's answer. Raises KafkaError (NOT_CONTROLLER) when there is none to be had."""
        return await self.ask_when_reached(key, versions, lambda: request)

    async def ask_when_reached(self, key: int, versions: tuple[int, int], make: Callable[[], Any]) -> Any:
        """As :meth:`ask`, with a request that is made once there is a connection for it."""
        try:
            link = await self._reached()
            return await link.ask(key, link.version_of(key, *versions), make(), self._patience_s)
        except LinkError as problem:
            raise KafkaError(
                f"the controller cannot be asked: {problem}. Try again.", ErrorCode.NOT_CONTROLLER
            ) from None

    async def _reached(self) -> Link:
        """The connection, once there is one. Raises LinkError."""
        try:
            async with asyncio.timeout(REACH_S):
                while True:
                    if self._link is None:
                        raise LinkError("no other broker is known to be it")
                    link = await asyncio.shield(self._link)
                    if not link.closed:
                        return link
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise LinkError(
                f"broker {self._controller} has not taken a connection within {REACH_S:g} s"
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkError("another broker has become it") from None

    async def forward(self, request: bytes, principal: str, address: str) -> bytes | None:
        """The controller's answer to a client's request (header and body); None when there is none."""
        with contextlib.suppress(ValueError):
            address_bytes = ipaddress.ip_address(address).packed
            envelope = EnvelopeRequest(
                request_data=request,
                request_principal=principal.encode(),
                client_host_address=address_bytes,
            )
            try:
                answer = await self.ask(ApiKey.ENVELOPE, (0, 0), envelope)
            except KafkaError as problem:
                log.info("a request could not be passed on: %s", problem)
                return None
            if answer.error_code == 0 and answer.response_data is not None:
                data: bytes = answer.response_data
                return data
        return None
