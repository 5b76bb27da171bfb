"""Requests from this broker to any other broker, over one connection for each that is opened on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidemill.broker.broker_links import BrokerLinks
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.net.link import Link, LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.schema import Struct

ResponseT = TypeVar("ResponseT", bound=Struct)


class InterBrokerClient:
    """The connections to the other brokers."""

    def __init__(self, links: BrokerLinks, request_timeout_s: Callable[[], float]) -> None:
        self._links = links
        self._request_timeout_s = request_timeout_s
        self._open: dict[int, asyncio.Task[Link]] = {}

    async def request(
        self,
        broker_id: int,
        key: ApiKey,
        versions: tuple[int, int],
        request: Struct,
        response_type: type[ResponseT],
    ) -> ResponseT:
        """Returns the response of a broker. Raises KafkaError (NETWORK_EXCEPTION) without one."""
        try:
            link = await self._connect(broker_id)
            version = link.version_of(key, *versions)
            return await link.request(key, version, request, response_type, self._request_timeout_s())
        except LinkError as problem:
            raise KafkaError(str(problem), ErrorCode.NETWORK_EXCEPTION) from problem

    async def _connect(self, broker_id: int) -> Link:
        """Returns the connection to a broker; concurrent callers share the attempt."""
        opening = self._open.get(broker_id)
        if opening is None or (
            opening.done()
            and (opening.cancelled() or opening.exception() is not None or opening.result().is_closed)
        ):
            opening = self._open[broker_id] = asyncio.ensure_future(self._links.open(broker_id))
        return await asyncio.shield(opening)

    def stop(self) -> None:
        """Closes all connections."""
        for opening in self._open.values():
            if not opening.done():
                opening.cancel()
            elif not opening.cancelled() and opening.exception() is None:
                opening.result().close("this broker stops")
        self._open.clear()
