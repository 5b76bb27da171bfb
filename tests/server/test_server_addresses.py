"""What clients are told when nobody configured an address: where they came in."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tidemill.model.configs import BrokerConfig
from tidemill.server.addresses import Addresses, default_gateways
from tidemill.server.app import running
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import MetadataRequest

MACHINE = Addresses(False, frozenset())
CONTAINER = Addresses(True, frozenset({"172.17.0.1"}))


@pytest.mark.parametrize(
    ("where", "client", "own", "told"),
    [
        (MACHINE, "127.0.0.1", "127.0.0.1", "localhost"),
        (MACHINE, "::1", "::1", "localhost"),
        (MACHINE, "10.0.0.5", "10.0.0.5", "localhost"),
        (MACHINE, "10.0.0.7", "10.0.0.5", "10.0.0.5"),
        (MACHINE, "192.168.1.7", "192.168.1.5", "192.168.1.5"),
        (MACHINE, "2001:db8::7", "2001:db8::5", "2001:db8::5"),
        (MACHINE, "fe80::7%eth0", "fe80::5%eth0", socket.gethostname()),
        (MACHINE, "172.17.0.1", "172.17.0.2", "172.17.0.2"),
        (CONTAINER, "172.17.0.1", "172.17.0.2", "localhost"),
        (CONTAINER, "192.168.65.1", "172.17.0.2", "localhost"),
        (CONTAINER, "172.17.0.3", "172.17.0.2", "172.17.0.2"),
        (CONTAINER, "fd00::3%eth0", "fd00::2", "fd00::2"),
    ],
)
def test_a_client_is_told_what_it_can_reach(where: Addresses, client: str, own: str, told: str) -> None:
    assert where.told(client, own) == told


def test_gateways_are_read_as_the_kernel_tells_them(tmp_path: Path) -> None:
    number = struct.unpack("=I", socket.inet_aton("172.17.0.1"))[0]
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway\tFlags\n"
        f"eth0\t00000000\t{number:08X}\t0003\n"
        "eth0\t000011AC\t00000000\t0001\n"
    )
    assert default_gateways(str(routes)) == {"172.17.0.1"}
    assert default_gateways(str(tmp_path / "none")) == frozenset()
    routes.write_text("Iface\nrubbish\n")
    assert default_gateways(str(routes)) == frozenset()


def told_hosts(port: int, host: str = "127.0.0.1") -> set[str]:
    """The hosts of every answer that holds one, for a client that connects to ``host``."""
    found: set[str] = set()

    def ask(key: int, version: int, request: Any) -> Any:
        with socket.create_connection((host, port), 10) as peer:
            peer.sendall(encode_request(key, version, 1, "test", request))
            (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
            return decode_response(key, version, peer.recv(size, socket.MSG_WAITALL))[1]

    found |= {one.host for one in ask(ApiKey.METADATA, 12, MetadataRequest(topics=[])).brokers}
    found |= {one.host for one in ask(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest()).brokers}
    found.add(ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key="g", key_type=0)).host)
    return found


def test_a_listener_on_every_interface_tells_each_client_where_it_came_in() -> None:
    with Broker({"listeners": "PLAINTEXT://0.0.0.0:0"}) as broker:
        assert told_hosts(broker.port) == {"localhost"}
        assert told_hosts(broker.port, socket.gethostname()) == {"localhost"}


def test_both_ends_of_a_connection_decide(tmp_path: Path) -> None:
    """As for a client from elsewhere, which this machine alone cannot have."""
    ends: list[tuple[str, str]] = []

    class Elsewhere(Addresses):
        def told(self, client: str, own: str) -> str:
            ends.append((client, own))
            return super().told("10.0.0.7", "10.0.0.5")

    async def run() -> None:
        sets = ["listeners=PLAINTEXT://0.0.0.0:0", f"log.dirs={tmp_path / 'data'}"]
        async with running(BrokerConfig.from_sources(None, sets, {})) as server:
            server.acceptor.addresses = Elsewhere(False, frozenset())
            port = server.listeners[0][2]
            assert await asyncio.to_thread(told_hosts, port) == {"10.0.0.5"}

    asyncio.run(asyncio.wait_for(run(), 60))
    assert set(ends) == {("127.0.0.1", "127.0.0.1")}


def test_what_is_configured_is_told_to_all() -> None:
    sets = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://broker.example.org:9092",
    }
    with Broker(sets) as broker:
        assert told_hosts(broker.port) == {"broker.example.org"}
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0"}) as broker:
        assert told_hosts(broker.port) == {"127.0.0.1"}
