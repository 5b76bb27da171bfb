"""Connections to other brokers: where they were known to be, and where they are now."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker import links
from tidemill.broker.links import Links, LinkWatch
from tidemill.coordination.image import BrokerImage
from tidemill.coordination.nodes import BrokerNode, BrokerRegistration, Endpoint
from tidemill.coordination.port import Node, StoreUnavailable
from tidemill.model.configs import BrokerConfig
from tidemill.net.link import LinkRefused

OLD, NEW = 1111, 2222


def registration(port: int) -> BrokerRegistration:
    return BrokerRegistration(2, (Endpoint("PLAINTEXT", "PLAINTEXT", "h", port),))


class Net:
    """Somebody listens at one port only; the store says where, unless it does not answer."""

    def __init__(self, known: int | None, stored: bytes | None) -> None:
        self.stored = stored
        self.tried: list[int] = []
        image = {2: BrokerImage(registration(known), 5)} if known is not None else {}
        self.broker: Any = SimpleNamespace(
            node_id=1, config=BrokerConfig.of(), metadata=SimpleNamespace(brokers=image), store=self
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


def opened(monkeypatch: pytest.MonkeyPatch, net: Net, watch: LinkWatch | None = None) -> Any:
    monkeypatch.setattr(links.Link, "open", net.open)
    return asyncio.run(Links(net.broker, watch).open(2))


class Watch(LinkWatch):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def broken(self, broker_id: int) -> None:
        self.told.append(("broken", broker_id))

    def reached(self, broker_id: int) -> None:
        self.told.append(("reached", broker_id))


class Opened(Net):
    """Whoever listens gives a link."""

    async def open(self, *arguments: Any) -> Any:
        await super().open(*arguments)
        return SimpleNamespace(is_broken=False, on_broken=None)


def test_what_connections_tell_of_a_broker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    link = opened(monkeypatch, Opened(OLD, BrokerNode.encode(registration(NEW))), watch)
    assert watch.told == [("broken", 2), ("reached", 2)]
    link.on_broken()
    assert watch.told[2:] == [("broken", 2)]


def test_a_broker_is_found_where_it_registered_since_this_one_heard_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Net(OLD, BrokerNode.encode(registration(NEW)))
    assert opened(monkeypatch, net) == NEW
    assert net.tried == [OLD, NEW]
    # Nothing is looked up as long as it is where it was.
    assert opened(monkeypatch, Net(NEW, b"silent")) == NEW
    assert opened(monkeypatch, Net(None, BrokerNode.encode(registration(NEW)))) == NEW


@pytest.mark.parametrize("stored", [None, b"{", b"silent", BrokerNode.encode(registration(OLD))])
def test_a_broker_that_is_nowhere_else_refuses_as_before(
    monkeypatch: pytest.MonkeyPatch, stored: bytes | None
) -> None:
    net = Net(OLD, stored)
    with pytest.raises(LinkRefused, match="1111"):
        opened(monkeypatch, net)
    assert net.tried == [OLD]
