"""The advertised address of a listener on all interfaces without ``advertised.listeners``.

Apache Kafka advertises the canonical host name of the machine. Other machines often cannot resolve it, or
resolve it to a loopback address. Tidemill advertises to each client the local address of its connection,
which this client can reach, also if the machine is on several networks.

Clients on the same machine receive ``localhost``. So do clients that connect to a container through a
published port: they cannot reach the container's address on every system. Their address is that of the
container's gateway.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct

from tidemill.server.startup_report import is_loopback

LOCALHOST = "localhost"
CONTAINER_MARKER_FILES = ("/.dockerenv", "/run/.containerenv")
DESKTOP_NETWORK = ipaddress.ip_network("192.168.65.0/24")
"""The network of the host's address in Docker Desktop."""
ROUTES = "/proc/net/route"


class AdvertisedAddresses:
    """Determines the advertised host for each client.

    ``gateways`` are the default gateways of a container, and empty outside a container.
    """

    def __init__(self, in_container: bool, gateways: frozenset[str]) -> None:
        self.in_container = in_container
        self.gateways = gateways

    @classmethod
    def of_this_machine(cls) -> AdvertisedAddresses:
        """For this machine. A Kubernetes pod does not count as a container: it has no published ports."""
        in_container = (
            any(map(os.path.exists, CONTAINER_MARKER_FILES)) and "KUBERNETES_SERVICE_HOST" not in os.environ
        )
        return cls(in_container, default_gateways(ROUTES) if in_container else frozenset())

    def host_for(self, client: str, own: str) -> str:
        """The host for a client at ``client`` connected to the local address ``own``, both numeric."""
        if is_loopback(client) or client == own or self._is_published(client):
            return LOCALHOST
        # A link-local address contains the name of this machine's interface, which is invalid on the client.
        return socket.gethostname() if own.lower().startswith("fe80:") else own

    def _is_published(self, client: str) -> bool:
        if not self.in_container:
            return False
        return client in self.gateways or ipaddress.ip_address(client.partition("%")[0]) in DESKTOP_NETWORK


def default_gateways(path: str) -> frozenset[str]:
    """The IPv4 gateways of the default routes in the routing table ``path``; empty if it is unreadable."""
    found = set()
    try:
        with open(path, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[1] == "00000000" and fields[2] != "00000000":
                    # The kernel prints the address, which is in network byte order, as a native integer.
                    found.add(socket.inet_ntoa(struct.pack("=I", int(fields[2], 16))))
    except (OSError, IndexError, ValueError):
        return frozenset()
    return frozenset(found)
