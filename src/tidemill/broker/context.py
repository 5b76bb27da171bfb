"""Who asks: what every handler is told of a request beside its fields."""

from __future__ import annotations

from typing import Any

from mypy_extensions import i16, i32, i64

from tidemill.broker.request_slices import Turns

DEFAULT_TENANT = "default"
ANONYMOUS = "User:ANONYMOUS"


class Listener:
    """A listener's name and the address that clients are told."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        security: str = "PLAINTEXT",
        node_id: int = -1,
        follows_client: bool = False,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.security = security
        self.node_id = node_id
        """The broker whose listener this is."""
        self.follows_client = follows_client
        """Nobody configured an address: each client is told the one by which it came."""


class Peer:
    """What is known of a connection: it stays the same for all of its requests."""

    def __init__(
        self, listener: Listener, tenant: str, principal: str, address: str, port: int, told_host: str = ""
    ) -> None:
        self.listener = listener
        self.tenant = tenant
        self.principal = principal
        self.address = address
        self.port = port
        self.told_host = told_host
        """The host of this broker for this client, when it follows the client."""
        self.software_name = ""
        self.software_version = ""
        self.busy = False
        """A request is in the slow lane: nothing of this connection overtakes it."""
        self.session_id: i32 = 0
        self.number: i64 = 0
        """Of the connection, in the order in which this broker accepted them; 0: unknown."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class RequestContext:
    """One request's: listener, tenant, principal, client, API version, connection.

    Names of topics, groups and transactional ids go through :meth:`internal_name` on their way in and
    :meth:`external_name` on their way out: the one place where tenants' names are told apart.
    """

    def __init__(
        self,
        peer: Peer,
        client_id: str | None,
        api_key: i16,
        api_version: i16,
        correlation_id: i32,
        connection: Any,
    ) -> None:
        self.peer = peer
        self.client_id = client_id
        self.api_key: i16 = api_key
        self.api_version: i16 = api_version
        self.correlation_id: i32 = correlation_id
        self.connection = connection
        self.lane: Any = None
        """The :class:`~tidemill.broker.request_slices.Lane` of requests that take longer than a slice."""
        self._turns: Any = None

    @property
    def turns(self) -> Turns:
        """The turns in which its handler works through lists."""
        if self._turns is None:
            self._turns = Turns(self.lane)
        turns: Turns = self._turns
        return turns

    @property
    def listener(self) -> Listener:
        """The listener on which the request came."""
        return self.peer.listener

    @property
    def tenant(self) -> str:
        """The instance that the request belongs to."""
        return self.peer.tenant

    @property
    def principal(self) -> str:
        """Who was authenticated."""
        return self.peer.principal

    @property
    def client_address(self) -> str:
        """The peer's address, without its port."""
        return self.peer.address

    def host_of(self, node_id: int, host: str) -> str:
        """The host that this client is told for a broker which is registered with ``host``."""
        peer = self.peer
        return peer.told_host if peer.told_host and node_id == peer.listener.node_id else host

    def internal_name(self, name: str) -> str:
        """The name inside the broker of what the client calls ``name``."""
        return name

    def external_name(self, name: str) -> str:
        """What the client calls the thing named ``name`` inside the broker."""
        return name
