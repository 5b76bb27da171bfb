"""Connections from this broker to others, by the listener that brokers use among themselves."""

from __future__ import annotations

from collections.abc import Awaitable

from tidemill.broker.broker import Broker
from tidemill.coordination.image import BrokerImage
from tidemill.coordination.nodes import BrokerNode
from tidemill.coordination.port import StoreError
from tidemill.model.configs import BrokerConfig
from tidemill.net.link import Link, LinkBroken, LinkError, LinkRefused

PLAINTEXT = "PLAINTEXT"


def inter_broker_listener(config: BrokerConfig) -> str:
    """The name of the listener through which brokers reach each other.

    ``inter.broker.listener.name``, or the first listener of ``security.inter.broker.protocol``.
    """
    named = config.str("inter.broker.listener.name")
    if named:
        return named
    protocol = config.str("security.inter.broker.protocol")
    listeners = config.listeners()
    fitting = [one.name for one in listeners if one.protocol == protocol]
    return (fitting or [one.name for one in listeners])[0]


class LinkWatch:
    """Receives what connections tell about the brokers at their other end."""

    def broken(self, broker_id: int) -> None:
        """The broker closed or reset a connection, or refused one: its process may have ended."""

    def reached(self, broker_id: int) -> None:
        """The broker took a connection."""


class Links:
    """Opens connections to the other brokers of the cluster."""

    def __init__(self, broker: Broker, watch: LinkWatch | None = None) -> None:
        self._broker = broker
        self._watch = watch

    @property
    def listener(self) -> str:
        """The listener through which brokers reach each other."""
        return inter_broker_listener(self._broker.config)

    async def open(self, broker_id: int) -> Link:
        """A connection to a broker by its id. Raises LinkError."""
        known = self._broker.metadata.brokers.get(broker_id)
        if known is None:
            return await self.open_to(await self._registered(broker_id))
        try:
            return await self.open_to(known)
        except LinkError:
            # It may be elsewhere by now, and the controller, which tells of that, may be this very broker.
            try:
                now = await self._registered(broker_id)
            except LinkError:
                now = known
            if now.endpoints.get(self.listener) == known.endpoints.get(self.listener):
                raise
        return await self.open_to(now)

    async def _registered(self, broker_id: int) -> BrokerImage:
        """Where the store says that a broker is."""
        try:
            node = await self._broker.store.get(BrokerNode.path(broker_id))
            if node is None:
                raise LinkError(f"broker {broker_id} is not registered")
            return BrokerImage(BrokerNode.decode(broker_id, node.data), node.creation_id)
        except StoreError as problem:
            raise LinkError(f"broker {broker_id} cannot be looked up: {problem}") from None

    async def open_to(self, to: BrokerImage) -> Link:
        """A connection to the broker that registered so. Raises LinkError."""
        endpoint = to.endpoints.get(self.listener)
        if endpoint is None:
            raise LinkError(
                f"broker {to.broker_id} has no listener {self.listener!r}, through which brokers reach each "
                f"other (it has {', '.join(to.endpoints)}): see inter.broker.listener.name"
            )
        if endpoint.security_protocol != PLAINTEXT:
            raise LinkError(
                f"broker {to.broker_id} takes {endpoint.security_protocol} only at its listener "
                f"{self.listener!r}; brokers speak {PLAINTEXT} with each other"
            )
        client_id = f"broker-{self._broker.node_id}"
        patience_s = self._broker.config.int("socket.connection.setup.timeout.ms") / 1000
        opening = Link.open(to.broker_id, endpoint.host, endpoint.port, client_id, patience_s)
        return await (opening if self._watch is None else _watched(opening, to.broker_id, self._watch))


async def _watched(opening: Awaitable[Link], broker_id: int, watch: LinkWatch) -> Link:
    """The link that is being opened; ``watch`` is told of it. Raises LinkError."""
    try:
        link = await opening
    except (LinkRefused, LinkBroken):
        watch.broken(broker_id)
        raise
    watch.reached(broker_id)
    link.on_broken = lambda: watch.broken(broker_id)
    if link.is_broken:
        watch.broken(broker_id)
    return link
