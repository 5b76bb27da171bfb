"""A separate network for each broker, whose connections can be cut: a namespace each, and a bridge.

A cut is silent, as that of a cable is: the hosts resolve each other to an unused link-layer address. Packets
to it are dropped; established connections stay open until their ends detect the cut.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator

NOBODY = "02:00:00:00:00:99"
STORE = 253
CLIENTS = 254

_numbers = itertools.count()


def run(*command: str) -> None:
    """Runs a command; raises RuntimeError with its output on failure."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


def unavailable() -> str:
    """Returns why networks cannot be cut here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    name = f"tmp{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", name, "type", "bridge")
    except RuntimeError as problem:
        return f"no network namespaces here: {problem}"
    finally:
        for command in (["ip", "link", "del", name], ["ip", "netns", "del", name]):
            with contextlib.suppress(RuntimeError):
                run(*command)
    return ""


class Network:
    """Hosts 1 to ``count``; the store at ``.253`` and the clients at ``.254`` are in this namespace."""

    def __init__(self, count: int) -> None:
        self.count = count
        # Devices exist for a moment longer than their namespace: names are used once.
        self._name = f"tmf{os.getpid()}n{next(_numbers)}"
        self._prefix = f"10.{64 + os.getpid() // 250 % 128}.{os.getpid() % 250}"

    def address(self, host: int) -> str:
        """Returns the address of a host."""
        return f"{self._prefix}.{host}"

    def inside(self, host: int) -> list[str]:
        """Returns the prefix of a command that runs on a host."""
        return ["ip", "netns", "exec", f"{self._name}-{host}"]

    def _make(self) -> None:
        run("ip", "link", "add", self._name, "type", "bridge")
        run("ip", "link", "set", self._name, "up")
        for host in (CLIENTS, STORE):
            run("ip", "addr", "add", f"{self.address(host)}/24", "dev", self._name)
        for host in range(1, self.count + 1):
            name, cable = f"{self._name}-{host}", f"{self._name}v{host}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", cable, "master", self._name, "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")

    def _remove(self) -> None:
        for host in range(1, self.count + 1):
            with contextlib.suppress(RuntimeError):
                run("ip", "netns", "del", f"{self._name}-{host}")
        with contextlib.suppress(RuntimeError):
            run("ip", "link", "del", self._name)

    def cut(self, one: int, other: int) -> None:
        """Cuts the connection between two brokers, or from a broker to the store."""
        for host, peer in ((one, other), (other, one)):
            if host <= self.count:
                self._neighbour(host, "replace", peer, "lladdr", NOBODY, "nud", "permanent")

    def join(self, one: int, other: int) -> None:
        """Ends a cut."""
        for host, peer in ((one, other), (other, one)):
            if host <= self.count:
                self._neighbour(host, "del", peer)

    def _neighbour(self, host: int, what: str, peer: int, *rest: str) -> None:
        place = f"{self._name}-{host}"
        run("ip", "-n", place, "neigh", what, self.address(peer), "dev", "eth0", *rest)


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    """Creates hosts for the duration of the context."""
    one = Network(count)
    try:
        one._make()
        yield one
    finally:
        one._remove()
