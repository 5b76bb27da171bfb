"""The links of one broker: ports for its clients and other brokers, and for its own way to the store."""

from __future__ import annotations

import sys
from typing import Final

from tidemill.testing.network import BROKERS, CLIENTS, HOST, STORE, InjectedError, Network
from tidemill.testing.zookeeper import free_ports

BROKER_HOST: Final = "127.64.0.1" if sys.platform == "linux" else HOST
"""Address of brokers behind their links.

On Linux every address of 127/8 exists, and a broker uses the port of its link on another address: no other
process can have taken that port.
"""
INTERNAL: Final = "BROKERS"


class BrokerLinks:
    """Ports of a network that lead to a broker, and in a cluster from the broker to the store."""

    def __init__(self, network: Network, name: str, *, with_brokers: bool = False) -> None:
        self.network = network
        self.name = name
        self.port = network.open(CLIENTS, name, CLIENTS)
        """The port for clients."""
        self._link_ports = {CLIENTS: self.port}
        if with_brokers:
            self._link_ports[BROKERS] = network.open(BROKERS, name)
        self.broker_port = self._link_ports.get(BROKERS, self.port)
        """The port for brokers."""
        self._broker_ports = dict(self._link_ports)
        self._store_port = 0
        self._chroot = ""

    def join_store(self, host: str, port: int, chroot: str) -> None:
        """Creates the link from the broker to the store."""
        self._store_port = self.network.open(STORE, STORE, self.name)
        self._chroot = chroot
        self.network.lead(self._store_port, host, port)
        self.network.listen(self._store_port)

    def settings(self) -> dict[str, str]:
        """Returns the broker's keys for these links."""
        names = {CLIENTS: "PLAINTEXT", BROKERS: INTERNAL}
        settings = {
            "listeners": ",".join(
                f"{names[kind]}://{BROKER_HOST}:{port}" for kind, port in self._broker_ports.items()
            ),
            "advertised.listeners": ",".join(
                f"{names[kind]}://{HOST}:{port}" for kind, port in self._link_ports.items()
            ),
        }
        if BROKERS in self._link_ports:
            settings["listener.security.protocol.map"] = f"PLAINTEXT:PLAINTEXT,{INTERNAL}:PLAINTEXT"
            settings["inter.broker.listener.name"] = INTERNAL
        if self._store_port:
            settings["zookeeper.connect"] = f"{HOST}:{self._store_port}{self._chroot}"
        return settings

    # Lifecycle of the broker

    def starting(self) -> None:
        """Prepares for the start of the broker: its links lead to it once it listens."""
        if BROKER_HOST == HOST:
            self._broker_ports = dict(zip(self._link_ports, free_ports(len(self._link_ports)), strict=True))
        for kind, front in self._link_ports.items():
            self.network.lead(front, BROKER_HOST, self._broker_ports[kind])

    def up(self) -> None:
        """Opens the links: the broker listens."""
        for front in self._link_ports.values():
            self.network.listen(front)

    def down(self) -> None:
        """Closes the links: the broker has ended, and connections to it are refused."""
        for front in self._link_ports.values():
            self.network.refuse(front)

    # Faults

    def cut(self, how: str) -> None:
        """Cuts the link to its clients."""
        self.network.cut(CLIENTS, self.name, how)

    def heal(self) -> None:
        """Heals the link to its clients."""
        self.network.heal(CLIENTS, self.name)

    def fail_next(
        self, api: str | int, error: str | int, times: int, client_id: str | None, *, carried_out: bool
    ) -> InjectedError:
        """Replaces responses to its clients by an error."""
        return self.network.fail_next(self.name, api, error, times, client_id, carried_out=carried_out)

    def mend(self) -> None:
        """Heals the link to its clients, and drops errors."""
        self.heal()
        self.network.forget(self.name)
