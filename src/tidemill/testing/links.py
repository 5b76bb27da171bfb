"""The links of one broker: where its clients, the other brokers and it itself connect to."""

from __future__ import annotations

import sys
from typing import Final

from tidemill.testing.network import BROKERS, CLIENTS, HOST, STORE, InjectedError, Network
from tidemill.testing.zookeeper import free_ports

BEHIND: Final = "127.64.0.1" if sys.platform == "linux" else HOST
"""Where brokers listen behind their links. On Linux every address of 127/8 is there without being made, and a
broker takes the number of its link on another one: nobody else can have taken it."""
INTERNAL: Final = "BROKERS"


class BrokerLinks:
    """Ports of a network that lead to a broker, and in a cluster from it to the store."""

    def __init__(self, network: Network, name: str, *, with_brokers: bool = False) -> None:
        self.network = network
        self.name = name
        self.port = network.open(CLIENTS, name, CLIENTS)
        """Where clients connect."""
        self._fronts = {CLIENTS: self.port}
        if with_brokers:
            self._fronts[BROKERS] = network.open(BROKERS, name)
        self._behind = dict(self._fronts)
        self._store_port = 0
        self._chroot = ""

    def join_store(self, host: str, port: int, chroot: str) -> None:
        """Has the broker reach the store by a link of its own."""
        self._store_port = self.network.open(STORE, STORE, self.name)
        self._chroot = chroot
        self.network.lead(self._store_port, host, port)
        self.network.listen(self._store_port)

    def settings(self) -> dict[str, str]:
        """The broker's keys for all that."""
        names = {CLIENTS: "PLAINTEXT", BROKERS: INTERNAL}
        settings = {
            "listeners": ",".join(f"{names[kind]}://{BEHIND}:{port}" for kind, port in self._behind.items()),
            "advertised.listeners": ",".join(
                f"{names[kind]}://{HOST}:{port}" for kind, port in self._fronts.items()
            ),
        }
        if BROKERS in self._fronts:
            settings["listener.security.protocol.map"] = f"PLAINTEXT:PLAINTEXT,{INTERNAL}:PLAINTEXT"
            settings["inter.broker.listener.name"] = INTERNAL
        if self._store_port:
            settings["zookeeper.connect"] = f"{HOST}:{self._store_port}{self._chroot}"
        return settings

    # The broker's life

    def starting(self) -> None:
        """The broker is about to start: its links lead to it once it listens."""
        if BEHIND == HOST:
            self._behind = dict(zip(self._fronts, free_ports(len(self._fronts)), strict=True))
        for kind, front in self._fronts.items():
            self.network.lead(front, BEHIND, self._behind[kind])

    def up(self) -> None:
        """The broker listens."""
        for front in self._fronts.values():
            self.network.listen(front)

    def down(self) -> None:
        """The broker has ended: connections to it are refused."""
        for front in self._fronts.values():
            self.network.refuse(front)

    # Faults

    def cut(self, how: str) -> None:
        """Cuts the link to its clients."""
        self.network.cut(CLIENTS, self.name, how)

    def heal(self) -> None:
        """Ends that."""
        self.network.heal(CLIENTS, self.name)

    def fail_next(
        self, api: str | int, error: str | int, times: int, client_id: str | None, *, carried_out: bool
    ) -> InjectedError:
        """Answers clients with an error."""
        return self.network.fail_next(self.name, api, error, times, client_id, carried_out=carried_out)

    def mend(self) -> None:
        """Heals the link to its clients, and forgets errors."""
        self.heal()
        self.network.forget(self.name)
