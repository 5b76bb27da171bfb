"""The address that a client is told when nobody configured one: that by which it came.

A listener on every interface has no address of its own. Apache Kafka tells every client the canonical name
of its machine, which is often one that other machines cannot resolve, or that leads back to loopback. The
address that a connection came in on is known to work for this client, on each of several networks.

Clients of the same machine are told ``localhost``. So are those that come into a container through a
published port: they do not reach the container's address, or not on every system, and they look like the
container's gateway.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct

from tidemill.server.announce import is_loopback

LOCALHOST = "localhost"
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
DESKTOP_NETWORK = ipaddress.ip_network("192.168.65.0/24")
"""Where Docker Desktop's host is seen."""
ROUTES = "/proc/net/route"


class Addresses:
    """Decides what a client is told. ``gateways`` are those of a container; none outside of one."""

    def __init__(self, contained: bool, gateways: frozenset[str]) -> None:
        self.contained = contained
        self.gateways = gateways

    @classmethod
    def here(cls) -> Addresses:
        """For the machine that this runs on. In Kubernetes ports are not published that way."""
        contained = any(map(os.path.exists, CONTAINER_MARKS)) and "KUBERNETES_SERVICE_HOST" not in os.environ
        return cls(contained, default_gateways(ROUTES) if contained else frozenset())

    def told(self, client: str, own: str) -> str:
        """The host for a client at ``client`` that came in on ``own``, both numeric."""
        if is_loopback(client) or client == own or self._is_published(client):
            return LOCALHOST
        # An address that holds on one link only has the name of this machine's interface in it.
        return socket.gethostname() if own.lower().startswith("fe80:") else own

    def _is_published(self, client: str) -> bool:
        if not self.contained:
            return False
        return client in self.gateways or ipaddress.ip_address(client.partition("%")[0]) in DESKTOP_NETWORK


def default_gateways(path: str) -> frozenset[str]:
    """The gateways of the default routes (IPv4); none where the system does not tell."""
    found = set()
    try:
        with open(path, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[1] == "00000000" and fields[2] != "00000000":
                    # As the kernel holds it in memory: network byte order, printed as this machine's number.
                    found.add(socket.inet_ntoa(struct.pack("=I", int(fields[2], 16))))
    except (OSError, IndexError, ValueError):
        return frozenset()
    return frozenset(found)
