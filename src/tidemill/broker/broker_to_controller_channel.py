"""The connection of a broker to the controller in another broker, which is kept open.

Leaders request ISR changes over it, and requests of clients for the controller are forwarded. The connection
also shows that the process of the controller has ended, so that another broker becomes the controller before
the session expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidemill.broker.api_declaration import HandledApi
from tidemill.broker.connect_retries import connect_with_retries
from tidemill.broker.handlers import envelope as envelope_handler
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import NO_BROKER
from tidemill.net.link import Link, LinkError
from tidemill.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidemill.wire.schema import Struct

logger = logging.getLogger("tidemill.broker")

ResponseT = TypeVar("ResponseT", bound=Struct)

CONNECTION_WAIT_S_MAX = 5.0
"""How long a request waits for a connection to the controller."""
CLOSED_LINK_POLL_S = 0.01
"""How often a request looks for the next connection after the last one was closed."""


class BrokerToControllerChannel:
    """Connects to the broker that is the controller, and sends requests to it."""

    def __init__(
        self,
        own_id: int,
        connect: Callable[[int], Awaitable[Link]],
        on_controller_ended: Callable[[int], None],
        request_timeout_s: float = 30.0,
    ) -> None:
        """``on_controller_ended`` is called with the controller's id when its process has ended.

        ``request_timeout_s``: ``request.timeout.ms``.
        """
        self._request_timeout_s = request_timeout_s
        self._own_id = own_id
        self._connect = connect
        self._on_controller_ended = on_controller_ended
        self._controller = NO_BROKER
        self._link: asyncio.Future[Link] | None = None
        self._task: asyncio.Task[None] | None = None

    def set_controller(self, broker_id: int) -> None:
        """Connects to another controller; -1: there is none."""
        if broker_id == self._controller and self._task is not None:
            return
        self._controller = broker_id
        self._disconnect()
        if broker_id not in (NO_BROKER, self._own_id):
            loop = asyncio.get_running_loop()
            self._link = loop.create_future()
            self._task = loop.create_task(self._keep_connected(broker_id))

    def stop(self) -> None:
        """Ends the connection."""
        self.set_controller(NO_BROKER)

    def _disconnect(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        link, self._link = self._link, None
        if link is not None:
            if not link.done():
                link.cancel()
            elif not link.cancelled():
                link.result().close("another broker is the controller")

    async def _keep_connected(self, controller: int) -> None:
        def on_ended() -> None:
            logger.warning("the controller, broker %d, has ended", controller)
            self._on_controller_ended(controller)

        while True:
            link = await connect_with_retries(
                lambda: self._connect(controller), on_ended, is_stopping=lambda: False
            )
            closed = asyncio.Event()
            link.on_close = lambda reason, closed=closed: closed.set()
            if link.is_closed:
                continue
            waiting = self._link
            if waiting is not None and not waiting.done():
                waiting.set_result(link)
            try:
                await closed.wait()
            finally:
                link.close("another broker is the controller")
            self._link = asyncio.get_running_loop().create_future()

    async def send_request(
        self, api: HandledApi, request: Struct, response_type: type[ResponseT]
    ) -> ResponseT:
        """Returns the controller's response. Raises KafkaError (NOT_CONTROLLER) without a response."""
        return await self.send_when_connected(api, lambda: request, response_type)

    async def send_when_connected(
        self, api: HandledApi, build: Callable[[], Struct], response_type: type[ResponseT]
    ) -> ResponseT:
        """Sends a request as :meth:`send_request`. ``build`` is called after the connection is open."""
        try:
            link = await self._connected_link()
            version = link.version_of(api.key, *api.versions)
            return await link.request(api.key, version, build(), response_type, self._request_timeout_s)
        except LinkError as problem:
            raise KafkaError(
                f"the controller does not respond: {problem}. Try again.", ErrorCode.NOT_CONTROLLER
            ) from None

    async def _connected_link(self) -> Link:
        """Waits for the connection, and returns it. Raises LinkError."""
        try:
            async with asyncio.timeout(CONNECTION_WAIT_S_MAX):
                while True:
                    if self._link is None:
                        raise LinkError("this broker knows no other broker as the controller")
                    link = await asyncio.shield(self._link)
                    if not link.is_closed:
                        return link
                    await asyncio.sleep(CLOSED_LINK_POLL_S)
        except TimeoutError:
            raise LinkError(
                f"broker {self._controller} has not accepted a connection within {CONNECTION_WAIT_S_MAX:g} s"
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkError("another broker has become the controller") from None

    async def forward(self, request: bytes, principal: str, address: str) -> bytes | None:
        """Forwards a client's request (header and body).

        Returns the controller's response, or None without one.
        """
        with contextlib.suppress(ValueError):
            address_bytes = ipaddress.ip_address(address).packed
            envelope = EnvelopeRequest(
                request_data=request,
                request_principal=principal.encode(),
                client_host_address=address_bytes,
            )
            try:
                response = await self.send_request(envelope_handler.API, envelope, EnvelopeResponse)
            except KafkaError as problem:
                logger.info("a request could not be forwarded: %s", problem)
                return None
            if response.error_code == 0 and response.response_data is not None:
                return response.response_data
        return None
