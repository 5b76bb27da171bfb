"""The context of a request: the client and the API version."""

from __future__ import annotations

from mypy_extensions import i16, i32

from tidemill.broker.large_requests import LargeRequestQueue, RequestSlices
from tidemill.net.peer import Listener, Peer

ANONYMOUS = "User:ANONYMOUS"


class RequestContext:
    """Listener, principal, client and API version of one request."""

    def __init__(
        self,
        peer: Peer,
        client_id: str | None,
        api_key: i16,
        api_version: i16,
        correlation_id: i32,
    ) -> None:
        self.peer = peer
        self.client_id = client_id
        self.api_key: i16 = api_key
        self.api_version: i16 = api_version
        self.correlation_id: i32 = correlation_id
        self.queue: LargeRequestQueue | None = None
        """The queue of requests that take longer than a slice."""
        self._slices: RequestSlices | None = None

    @property
    def slices(self) -> RequestSlices:
        """The slices in which the handler iterates over lists."""
        slices = self._slices
        if slices is None:
            slices = self._slices = RequestSlices(self.queue)
        return slices

    @property
    def listener(self) -> Listener:
        """The listener that received the request."""
        return self.peer.listener

    @property
    def principal(self) -> str:
        """The authenticated principal."""
        return self.peer.principal

    @property
    def client_address(self) -> str:
        """The address of the client, without its port."""
        return self.peer.address

    def advertised_host(self, node_id: int, host: str) -> str:
        """Returns the host to send to this client for a broker that is registered with ``host``."""
        peer = self.peer
        return peer.advertised_host if peer.advertised_host and node_id == peer.listener.node_id else host
