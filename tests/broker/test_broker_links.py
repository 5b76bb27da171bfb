"""Connections to other brokers at their known address and at their registered one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker import broker_links
from tidemill.broker.broker_links import BrokerConnectionListener, BrokerLinks
from tidemill.coordination.cluster_image import BrokerImage
from tidemill.coordination.coordination_store import Node, StoreUnavailable
from tidemill.coordination.nodes import BrokerNode, BrokerRegistration, Endpoint
from tidemill.model.configs import BrokerConfig
from tidemill.net.link import LinkRefused

OLD, NEW = 1111, 2222


def registration(port: int) -> BrokerRegistration:
    return BrokerRegistration(2, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", port),))


class Network:
    """A network in which one port accepts connections, and the store, which may be silent."""

    def __init__(self, known: int | None, stored: bytes | None) -> None:
        self.stored = stored
        self.tried: list[int] = []
        image = {2: BrokerImage(registration(known), 5)} if known is not None else {}
        self.broker: Any = SimpleNamespace(
            node_id=1, config=BrokerConfig.of(), metadata_cache=SimpleNamespace(brokers=image), store=self
        )

    async def get(self, path: str) -> Node | None:
        assert path == BrokerNode.path(2)
        if self.stored == b"silent":
            raise StoreUnavailable("the store does not answer")
        return Node(self.stored, 0, 6, 1) if self.stored is not None else None

    async def open(self, broker_id: int, host: str, port: int, client_id: str, patience_s: float) -> int:
        self.tried.append(port)
        if port != NEW:
            raise LinkRefused(f"{host}:{port} refuses")
        return port


def open_link(
    monkeypatch: pytest.MonkeyPatch, network: Network, listener: BrokerConnectionListener | None = None
) -> Any:
    monkeypatch.setattr(broker_links.Link, "open", network.open)
    broker = network.broker
    return asyncio.run(
        BrokerLinks(
            broker.node_id, lambda: broker.config, broker.store, broker.metadata_cache, listener
        ).open(2)
    )


class RecordingListener(BrokerConnectionListener):
    """Records the notifications."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def disconnected(self, broker_id: int) -> None:
        self.events.append(("disconnected", broker_id))

    def connected(self, broker_id: int) -> None:
        self.events.append(("connected", broker_id))


class LinkNetwork(Network):
    """A network whose open port returns a link."""

    async def open(self, *arguments: Any) -> Any:
        await super().open(*arguments)
        return SimpleNamespace(is_broken=False, on_broken=None)


def test_the_listener_is_notified_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = RecordingListener()
    link = open_link(monkeypatch, LinkNetwork(OLD, BrokerNode.encode(registration(NEW))), listener)
    assert listener.events == [("disconnected", 2), ("connected", 2)]
    link.on_broken()
    assert listener.events[2:] == [("disconnected", 2)]


def test_a_broker_with_a_new_address_is_found_in_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(OLD, BrokerNode.encode(registration(NEW)))
    assert open_link(monkeypatch, network) == NEW
    assert network.tried == [OLD, NEW]
    # The store is not read while the known address accepts connections.
    assert open_link(monkeypatch, Network(NEW, b"silent")) == NEW
    assert open_link(monkeypatch, Network(None, BrokerNode.encode(registration(NEW)))) == NEW


@pytest.mark.parametrize("stored", [None, b"{", b"silent", BrokerNode.encode(registration(OLD))])
def test_a_broker_without_a_new_address_raises_the_first_error(
    monkeypatch: pytest.MonkeyPatch, stored: bytes | None
) -> None:
    network = Network(OLD, stored)
    with pytest.raises(LinkRefused, match="1111"):
        open_link(monkeypatch, network)
    assert network.tried == [OLD]
