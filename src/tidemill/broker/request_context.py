"""The context of a request: the client, the API version, and the names of its tenant."""

from __future__ import annotations

from mypy_extensions import i16, i32

from tidemill.broker.large_requests import LargeRequestQueue, RequestSlices
from tidemill.net.peer import Listener, Peer

DEFAULT_TENANT = "default"
ANONYMOUS = "User:ANONYMOUS"


class RequestContext:
    """Listener, tenant, principal, client and API version of one request.

    Handlers pass all names of topics, groups and transactional ids in a request through
    :meth:`internal_name`, and those in a response through :meth:`external_name`. These methods separate the
    names of tenants.
    """

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
    def tenant(self) -> str:
        """The tenant of the connection."""
        return self.peer.tenant

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
        return peer.told_host if peer.told_host and node_id == peer.listener.node_id else host

    def internal_name(self, name: str) -> str:
        """Returns the internal name for ``name`` of the client."""
        return name

    def external_name(self, name: str) -> str:
        """Returns the name that the client uses for the internal ``name``."""
        return name
