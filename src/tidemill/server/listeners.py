"""Connections in: listening sockets, and the limits on who may connect.

Limits: connections in all (``max.connections``), of one listener (``listener.name.NAME.max.connections``),
from one address (``max.connections.per.ip`` and its overrides), and how long one may stay silent
(``connections.max.idle.ms``). A connection over a limit is closed at once and counted; nobody else notices.

Clients that use up ``max.connections`` do not shut out the other brokers (KIP-402): the inter-broker listener
accepts beyond it, and the connection of another listener that was used longest ago is closed instead.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Mapping

from tidemill.broker.context import ANONYMOUS, DEFAULT_TENANT, Listener, Peer
from tidemill.model.errors import ConfigError, TidemillError
from tidemill.model.faults import fault_of
from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory import Memory
from tidemill.server.addresses import Addresses
from tidemill.server.announce import loopback_warning

log = logging.getLogger("tidemill.server")

ACCEPTS_A_TURN = 64
PAUSE_WITHOUT_DESCRIPTORS_S = 0.2


class PortInUse(TidemillError):
    """Another process listens there."""


class Limits:
    """How many connections are let in."""

    def __init__(
        self,
        connections_max: int,
        per_address_max: int,
        overrides: Mapping[str, int],
        by_listener: Mapping[str, int] | None = None,
        protected: str = "",
    ) -> None:
        self.connections_max = connections_max
        self.per_address_max = per_address_max
        self.overrides = overrides
        self.by_listener = by_listener or {}
        self.protected = protected
        """The listener that ``connections_max`` does not shut; empty where brokers and clients share one."""

    def for_address(self, address: str) -> int:
        """How many connections one address may have."""
        return self.overrides.get(address, self.per_address_max)


def addresses_of(counts: Mapping[str, int]) -> dict[str, int]:
    """``counts`` by the addresses that connections come from: those of host names, IPv6 in its short form.

    Asks the name service, and may wait for it.
    """
    found: dict[str, int] = {}
    for name, count in counts.items():
        try:
            found[str(ipaddress.ip_address(name))] = count
            continue
        except ValueError:
            pass
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:
            log.warning(
                "max.connections.per.ip.overrides: %s cannot be resolved (%s), its %d connections hold for"
                " nobody; correct the name, or give addresses",
                name,
                problem,
                count,
            )
            continue
        found.update((str(answer[4][0]), count) for answer in answers)
    return found


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Where to bind for ``host``: all interfaces when it is empty. ConfigError when it names nothing."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as problem:
        raise ConfigError(f"listeners: the host {host!r} cannot be resolved: {fault_of(problem)}") from None
    return [(socket.AddressFamily(family), address) for family, _, _, _, address in found]


def bind(name: str, host: str, port: int, backlog: int = 1024) -> list[socket.socket]:
    """Listens on every address of ``host``; all on the same port when ``port`` is 0."""
    sockets: list[socket.socket] = []
    try:
        for family, address in resolve(host, port):
            if port == 0 and sockets:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            made = _bind_one(name, family, address, backlog)
            if made is not None:
                sockets.append(made)
    except BaseException:
        for one in sockets:
            one.close()
        raise
    if not sockets:
        raise ConfigError(f"listener {name}: no address of {host!r} can be bound")
    return sockets


def _bind_one(
    name: str, family: socket.AddressFamily, address: tuple[object, ...], backlog: int
) -> socket.socket | None:
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as problem:
        if problem.errno == errno.EAFNOSUPPORT:
            return None
        raise
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        made.bind(address)
        made.listen(backlog)
    except OSError as problem:
        made.close()
        where = f"{address[0]}:{address[1]}"
        if problem.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"listener {name}: {where} is in use by another process; stop it, or choose another port with"
                f" --port PORT (--set listeners={name}://HOST:PORT)"
            ) from None
        if problem.errno == errno.EADDRNOTAVAIL:
            if family == socket.AF_INET6:
                return None
            raise ConfigError(f"listener {name}: this machine has no address {address[0]}") from None
        if problem.errno == errno.EACCES:
            raise ConfigError(
                f"listener {name}: no right to listen on {where}; choose a port of 1024 or more, as --port "
                "9092, or give the process CAP_NET_BIND_SERVICE"
            ) from None
        raise
    return made


class Acceptor:
    """Takes connections of all listeners and lets them go again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: FrameHandler,
        limits: Limits,
        frame_bytes_max: int,
        send_buffer: int,
        receive_buffer: int,
        memory: Memory,
    ) -> None:
        self.loop = loop
        self.handler = handler
        self.limits = limits
        self.frame_bytes_max = frame_bytes_max
        self.send_buffer = send_buffer
        self.receive_buffer = receive_buffer
        self.memory = memory
        self.addresses = Addresses.here()
        self.connections: set[Connection] = set()
        self.by_address: Counter[str] = Counter()
        self.by_listener: Counter[str] = Counter()
        self.accepted = 0
        self.refused = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._listening: list[socket.socket] = []
        self._swept = 0
        """When idle connections were looked for last, as ``memory.uses`` counts time."""
        self._warned: set[str] = set()

    def listen(self, listener: Listener, sockets: list[socket.socket]) -> None:
        """Begins to accept on ``sockets``."""
        for one in sockets:
            self._listening.append(one)
            self.loop.add_reader(one.fileno(), self._accept, listener, one)

    def _accept(self, listener: Listener, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(listener, listening, problem)
                else:
                    # The peer, or a filter of the system, broke the connection before it was taken.
                    log.debug("a connection was lost before it was accepted: %s", problem)
                return
            try:
                self._admit(listener, accepted, address)
            except OSError as problem:
                accepted.close()
                log.debug("a connection of %s was lost while it was accepted: %s", address[0], problem)

    def _pause(self, listener: Listener, listening: socket.socket, problem: OSError) -> None:
        log.error(
            "no connection can be accepted: %s; raise the limit of open files (ulimit -n) or lower"
            " max.connections",
            problem.strerror,
        )
        self.loop.remove_reader(listening.fileno())

        def again() -> None:
            if listening in self._listening:
                self.loop.add_reader(listening.fileno(), self._accept, listener, listening)

        self.loop.call_later(PAUSE_WITHOUT_DESCRIPTORS_S, again)

    def _admit(self, listener: Listener, accepted: socket.socket, address: tuple[str, int]) -> None:
        host = address[0]
        reason = self._over_limit(listener.name, host)
        if reason:
            self._refuse(accepted, reason, host)
            return
        if len(self.connections) >= self.limits.connections_max:
            self._make_room(listener.name)
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.send_buffer > 0:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
        if self.receive_buffer > 0:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        told_host = ""
        if listener.follows_client:
            told_host = self.addresses.told(host, accepted.getsockname()[0])
        elif listener.name not in self._warned:
            self._warn_of_loopback(listener, accepted, host)
        peer = Peer(listener, DEFAULT_TENANT, ANONYMOUS, host, address[1], told_host)
        peer.number = self.accepted + 1
        connection = Connection(self.loop, accepted, self.handler, self.frame_bytes_max, peer, self.memory)
        self.connections.add(connection)
        self.by_address[host] += 1
        self.by_listener[listener.name] += 1
        self.accepted += 1
        connection.start()

    def _over_limit(self, listener: str, host: str) -> str:
        """The limit that one more connection would exceed; empty when there is room."""
        limits = self.limits
        own = limits.by_listener.get(listener)
        if own is not None and self.by_listener[listener] >= own:
            return f"listener.name.{listener.lower()}.max.connections={own} are open"
        if len(self.connections) >= limits.connections_max and listener != limits.protected:
            return f"max.connections={limits.connections_max} are open"
        allowed = limits.for_address(host)
        if self.by_address[host] >= allowed:
            return f"{allowed} connections of this address are open"
        return ""

    def _make_room(self, listener: str) -> None:
        """Closes a connection of another listener: of those that wait for nothing, or else of all, the one
        that was used longest ago. None is closed where all are of ``listener``."""
        others = [one for one in self.connections if one.context.listener.name != listener]
        if others:
            oldest = min(others, key=lambda one: (one.waiting, one.last_use, one.context.number))
            oldest.close(f"max.connections={self.limits.connections_max} are open, and a broker came")

    def _warn_of_loopback(self, listener: Listener, accepted: socket.socket, host: str) -> None:
        """Says once for each listener that clients from elsewhere are sent to themselves."""
        own = accepted.getsockname()[0]
        warning = loopback_warning(listener.name, listener.host, listener.port, host, own)
        if warning is not None:
            self._warned.add(listener.name)
            log.warning("%s", warning)

    def _refuse(self, accepted: socket.socket, reason: str, host: str) -> None:
        self.refused += 1
        accepted.close()
        log.warning("a connection from %s was refused: %s", host, reason)

    def closed(self, connection: Connection, reason: str) -> None:
        """A connection has ended."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.bytes_in += connection.bytes_in
        self.bytes_out += connection.bytes_out
        host = connection.context.address
        self.by_address[host] -= 1
        if self.by_address[host] <= 0:
            del self.by_address[host]
        self.by_listener[connection.context.listener.name] -= 1
        level = logging.DEBUG if reason == "closed by the peer" else logging.INFO
        log.log(level, "the connection of %s ended: %s", connection.context, reason)

    def sweep(self) -> int:
        """Closes the connections that were silent since the last sweep and wait for nothing, and those of
        peers that said their last and do not take their answers."""
        idle = [
            one for one in self.connections if one.last_use < self._swept and (one.ended or not one.waiting)
        ]
        for one in idle:
            one.close("idle for connections.max.idle.ms")
        self.memory.uses += 1
        self._swept = self.memory.uses
        return len(idle)

    def stop_listening(self) -> None:
        """Accepts nobody any more."""
        for one in self._listening:
            self.loop.remove_reader(one.fileno())
            one.close()
        self._listening.clear()

    def close(self) -> None:
        """Ends all connections."""
        self.stop_listening()
        for one in list(self.connections):
            one.close("the broker stops")
