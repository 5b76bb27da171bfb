"""The advertised host without ``advertised.listeners``: the local address of the connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tidemill.model.configs import BrokerConfig
from tidemill.server.advertised_address import AdvertisedAddresses, default_gateways
from tidemill.server.broker_server import running
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import MetadataRequest

MACHINE = AdvertisedAddresses(False, frozenset())
CONTAINER = AdvertisedAddresses(True, frozenset({"172.17.0.1"}))


@pytest.mark.parametrize(
    ("where", "client", "own", "host_for"),
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
def test_advertises_a_host_that_the_client_can_reach(
    where: AdvertisedAddresses, client: str, own: str, host_for: str
) -> None:
    assert where.host_for(client, own) == host_for


def test_reads_the_gateways_of_the_routing_table(tmp_path: Path) -> None:
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


def advertised_hosts(port: int, host: str = "127.0.0.1") -> set[str]:
    """The hosts in all responses with a host, for a client that connects to ``host``."""
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


def test_a_listener_on_all_interfaces_advertises_the_local_address() -> None:
    with Broker({"listeners": "PLAINTEXT://0.0.0.0:0"}) as broker:
        assert advertised_hosts(broker.port) == {"localhost"}
        assert advertised_hosts(broker.port, socket.gethostname()) == {"localhost"}


def test_the_advertised_host_depends_on_both_ends_of_the_connection(tmp_path: Path) -> None:
    """Simulates a remote client, which a test on one machine does not have."""
    ends: list[tuple[str, str]] = []

    class RemoteClient(AdvertisedAddresses):
        def host_for(self, client: str, own: str) -> str:
            ends.append((client, own))
            return super().host_for("10.0.0.7", "10.0.0.5")

    async def run() -> None:
        sets = ["listeners=PLAINTEXT://0.0.0.0:0", f"log.dirs={tmp_path / 'data'}"]
        async with running(BrokerConfig.from_sources(None, sets, {})) as server:
            server.socket_server.addresses = RemoteClient(False, frozenset())
            port = server.listeners[0][2]
            assert await asyncio.to_thread(advertised_hosts, port) == {"10.0.0.5"}

    asyncio.run(asyncio.wait_for(run(), 60))
    assert set(ends) == {("127.0.0.1", "127.0.0.1")}


def test_all_clients_receive_a_configured_address() -> None:
    sets = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://broker.example.org:9092",
    }
    with Broker(sets) as broker:
        assert advertised_hosts(broker.port) == {"broker.example.org"}
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0"}) as broker:
        assert advertised_hosts(broker.port) == {"127.0.0.1"}
