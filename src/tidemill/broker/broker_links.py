"""Connections from this broker to other brokers, over the inter-broker listener."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from tidemill.broker.metadata_cache import MetadataCache
from tidemill.coordination.cluster_image import BrokerImage
from tidemill.coordination.coordination_store import Store, StoreError
from tidemill.coordination.nodes import BrokerNode
from tidemill.model.configs import BrokerConfig
from tidemill.net.link import Link, LinkBroken, LinkError, LinkRefused

PLAINTEXT = "PLAINTEXT"


def inter_broker_listener(config: BrokerConfig) -> str:
    """Returns the name of the inter-broker listener.

    ``inter.broker.listener.name``, or the first listener of ``security.inter.broker.protocol``.
    """
    named = config.str("inter.broker.listener.name")
    if named:
        return named
    protocol = config.str("security.inter.broker.protocol")
    listeners = config.listeners()
    fitting = [one.name for one in listeners if one.protocol == protocol]
    return (fitting or [one.name for one in listeners])[0]


class BrokerConnectionListener(ABC):
    """Receives the changes of connections to other brokers."""

    @abstractmethod
    def disconnected(self, broker_id: int) -> None:
        """The broker has closed, reset or refused a connection: its process may have ended."""

    @abstractmethod
    def connected(self, broker_id: int) -> None:
        """The broker has accepted a connection."""


class BrokerLinks:
    """Opens connections to the other brokers of the cluster."""

    def __init__(
        self,
        node_id: int,
        config: Callable[[], BrokerConfig],
        store: Store,
        metadata_cache: MetadataCache,
        connection_listener: BrokerConnectionListener | None = None,
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._store = store
        self._metadata_cache = metadata_cache
        self._connection_listener = connection_listener

    @property
    def listener(self) -> str:
        """The name of the inter-broker listener."""
        return inter_broker_listener(self._config())

    async def open(self, broker_id: int) -> Link:
        """Connects to a broker by its id. Raises LinkError."""
        known = self._metadata_cache.brokers.get(broker_id)
        if known is None:
            return await self.open_to(await self._read_registration(broker_id))
        try:
            return await self.open_to(known)
        except LinkError:
            # The address may have changed, and this broker may not have the new one yet: the broker may be
            # the controller itself.
            try:
                now = await self._read_registration(broker_id)
            except LinkError:
                now = known
            if now.endpoints.get(self.listener) == known.endpoints.get(self.listener):
                raise
        return await self.open_to(now)

    async def _read_registration(self, broker_id: int) -> BrokerImage:
        """Reads the registration of a broker from the store. Raises LinkError."""
        try:
            node = await self._store.get(BrokerNode.path(broker_id))
            if node is None:
                raise LinkError(f"broker {broker_id} is not registered")
            return BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)
        except StoreError as problem:
            raise LinkError(f"broker {broker_id} cannot be looked up: {problem}") from None

    async def open_to(self, to: BrokerImage) -> Link:
        """Connects to a broker by its registration. Raises LinkError."""
        endpoint = to.endpoints.get(self.listener)
        if endpoint is None:
            raise LinkError(
                f"broker {to.broker_id} has no inter-broker listener {self.listener!r} (it has "
                f"{', '.join(to.endpoints)}): see inter.broker.listener.name"
            )
        if endpoint.security_protocol != PLAINTEXT:
            raise LinkError(
                f"broker {to.broker_id} accepts only {endpoint.security_protocol} at its listener "
                f"{self.listener!r}; brokers use {PLAINTEXT} between each other"
            )
        client_id = f"broker-{self._node_id}"
        setup_timeout_s = self._config().seconds("socket.connection.setup.timeout.ms")
        opening = Link.open(to.broker_id, endpoint.host, endpoint.port, client_id, setup_timeout_s)
        return await (
            opening
            if self._connection_listener is None
            else _open_with_listener(opening, to.broker_id, self._connection_listener)
        )


async def _open_with_listener(
    opening: Awaitable[Link], broker_id: int, connection_listener: BrokerConnectionListener
) -> Link:
    """Waits for a connection, and notifies ``connection_listener`` of its changes. Raises LinkError."""
    try:
        link = await opening
    except (LinkRefused, LinkBroken):
        connection_listener.disconnected(broker_id)
        raise
    connection_listener.connected(broker_id)
    link.on_broken = lambda: connection_listener.disconnected(broker_id)
    if link.is_broken:
        connection_listener.disconnected(broker_id)
    return link
