"""The peer of an accepted connection, and the listener that accepted it. Compiled."""

from __future__ import annotations

from mypy_extensions import i64


class Listener:
    """A listener: its name, and the address that this broker advertises for it."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        node_id: int = -1,
        follows_client: bool = False,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.node_id = node_id
        """The broker whose listener this is."""
        self.follows_client = follows_client
        """No address is configured: each client gets the address to which it connected."""


class Peer:
    """The client of one connection, with the listener and principal of all its requests."""

    def __init__(
        self, listener: Listener, principal: str, address: str, port: int, advertised_host: str = ""
    ) -> None:
        self.listener = listener
        self.principal = principal
        self.address = address
        self.port = port
        self.advertised_host = advertised_host
        """This broker's host in responses to this client, if the listener follows the client; else empty."""
        self.software_name = ""
        self.software_version = ""
        self.number: i64 = 0
        """The number of the connection, in the order in which this broker accepted them; 0: unknown."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"
