"""Listening sockets, accepted connections and the connection limits.

| limit | key |
|---|---|
| connections of the broker | ``max.connections`` |
| connections of a listener | ``listener.name.NAME.max.connections`` |
| connections from an address | ``max.connections.per.ip``, ``max.connections.per.ip.overrides`` |
| idle time | ``connections.max.idle.ms`` |

A connection over a limit is closed at once and counted. As in KIP-402, the inter-broker listener accepts
connections beyond ``max.connections``, and closes the least recently used connection of another listener
instead.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.broker.request_context import ANONYMOUS
from tidemill.model.errors import ConfigError, TidemillError
from tidemill.model.os_error_texts import fault_of
from tidemill.net.connection import Connection, FrameHandler
from tidemill.net.memory_pool import MemoryPool
from tidemill.net.peer import Listener, Peer
from tidemill.server.advertised_address import AdvertisedAddresses
from tidemill.server.startup_report import loopback_warning

logger = logging.getLogger("tidemill.server")

ACCEPTS_A_TURN = 64
PAUSE_WITHOUT_DESCRIPTORS_S = 0.2
PAUSE_LOG_INTERVAL_S = 10.0


class PortInUse(TidemillError):
    """Another process listens on the port."""


class ConnectionQuotas(NamedTuple):
    """The limits on the number of connections."""

    connections_max: int
    per_address_max: int
    overrides: Mapping[str, int]
    """The limits of addresses that differ from ``per_address_max``."""
    by_listener: Mapping[str, int] = {}
    protected: str = ""
    """The listener that accepts beyond ``connections_max``; empty if brokers and clients share one."""


class ConnectionLimits(NamedTuple):
    """The limits of each connection, in bytes."""

    frame_bytes_max: int
    """``socket.request.max.bytes``"""
    send_buffer_bytes: int = -1
    """``socket.send.buffer.bytes``; -1: the operating system chooses the size."""
    receive_buffer_bytes: int = -1
    """``socket.receive.buffer.bytes``; -1: the operating system chooses the size."""


def addresses_of(counts: Mapping[str, int]) -> dict[str, int]:
    """``counts`` by address: host names are resolved, IPv6 addresses shortened. Blocks on DNS."""
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
            logger.warning(
                "max.connections.per.ip.overrides: %s cannot be resolved (%s), and its limit of %d "
                "connections has no effect; correct the name, or use addresses",
                name,
                problem,
                count,
            )
            continue
        found.update((str(answer[4][0]), count) for answer in answers)
    return found


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """The addresses of ``host``; all interfaces if it is empty. Raises ConfigError."""
    # The tables that encode other names take half a megabyte. A `str` always loads them.
    name = host.encode() if host.isascii() else host
    try:
        found = socket.getaddrinfo(name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as problem:
        raise ConfigError(
            f"listeners: the host {host!r} cannot be resolved: {fault_of(problem)}; set listeners to a name "
            "or an address of this machine, or without a host (PLAINTEXT://:9092) to all of its addresses"
        ) from None
    return [(socket.AddressFamily(family), address) for family, _, _, _, address in found]


def bind(name: str, host: str, port: int, backlog: int = 1024) -> list[socket.socket]:
    """Listens on every address of ``host``, with ``port`` 0 on one free port. Raises TidemillError."""
    sockets: list[socket.socket] = []
    try:
        for family, address in resolve(host, port):
            if port == 0 and sockets:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            created = _bind_one(name, family, address, backlog)
            if created is not None:
                sockets.append(created)
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
        created = socket.socket(family, socket.SOCK_STREAM)
    except OSError as problem:
        if problem.errno == errno.EAFNOSUPPORT:
            return None
        raise
    created.setblocking(False)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        created.bind(address)
        created.listen(backlog)
    except OSError as problem:
        created.close()
        where = f"{address[0]}:{address[1]}"
        if problem.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"listener {name}: {where} is in use by another process; stop it, or use another port with"
                f" --port PORT (--set listeners={name}://HOST:PORT)"
            ) from None
        if problem.errno == errno.EADDRNOTAVAIL:
            if family == socket.AF_INET6:
                return None
            raise ConfigError(
                f"listener {name}: this machine has no address {address[0]}; set listeners to one of its "
                "addresses, and advertised.listeners to the address that clients use"
            ) from None
        if problem.errno == errno.EACCES:
            raise ConfigError(
                f"listener {name}: no permission to listen on {where}; use a port of 1024 or more, such as "
                "--port 9092, or give the process CAP_NET_BIND_SERVICE"
            ) from None
        raise
    return created


class SocketServer:
    """Accepts the connections of all listeners, and closes them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: FrameHandler,
        limits: ConnectionQuotas,
        connection_limits: ConnectionLimits,
        memory: MemoryPool,
    ) -> None:
        self.loop = loop
        self.handler = handler
        self.limits = limits
        self.connection_limits = connection_limits
        self.memory = memory
        self.addresses = AdvertisedAddresses.of_this_machine()
        self.connections: set[Connection] = set()
        self.by_address: Counter[str] = Counter()
        self.by_listener: Counter[str] = Counter()
        self.accepted = 0
        self.refused = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._listening: list[socket.socket] = []
        self._last_idle_check = 0
        """The value of ``memory.uses`` at the last search for idle connections."""
        self._warned: set[str] = set()
        self._pause_logged = -PAUSE_LOG_INTERVAL_S
        """The time of the last line about missing file descriptors."""

    def listen(self, listener: Listener, sockets: list[socket.socket]) -> None:
        """Starts to accept connections on ``sockets``."""
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
                    # The peer or a packet filter closed the connection before it was accepted.
                    logger.debug("a connection was closed before it was accepted: %s", problem)
                return
            try:
                self._admit(listener, accepted, address)
            except OSError as problem:
                accepted.close()
                logger.debug("a connection from %s was closed while it was accepted: %s", address[0], problem)

    def _pause(self, listener: Listener, listening: socket.socket, problem: OSError) -> None:
        now = self.loop.time()
        if now - self._pause_logged >= PAUSE_LOG_INTERVAL_S:
            self._pause_logged = now
            logger.error(
                "no connection can be accepted: %s; raise the limit of open files (ulimit -n) or lower"
                " max.connections",
                problem.strerror,
            )
        self.loop.remove_reader(listening.fileno())

        def resume() -> None:
            if listening in self._listening:
                self.loop.add_reader(listening.fileno(), self._accept, listener, listening)

        self.loop.call_later(PAUSE_WITHOUT_DESCRIPTORS_S, resume)

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
        limits = self.connection_limits
        if limits.send_buffer_bytes > 0:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        if limits.receive_buffer_bytes > 0:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        advertised_host = ""
        if listener.follows_client:
            advertised_host = self.addresses.host_for(host, accepted.getsockname()[0])
        elif listener.name not in self._warned:
            self._warn_of_loopback(listener, accepted, host)
        peer = Peer(listener, ANONYMOUS, host, address[1], advertised_host)
        peer.number = self.accepted + 1
        connection = Connection(self.loop, accepted, self.handler, limits.frame_bytes_max, peer, self.memory)
        self.connections.add(connection)
        self.by_address[host] += 1
        self.by_listener[listener.name] += 1
        self.accepted += 1
        connection.start()

    def _over_limit(self, listener: str, host: str) -> str:
        """The limit that another connection would exceed; empty if there is none."""
        limits = self.limits
        own = limits.by_listener.get(listener)
        if own is not None and self.by_listener[listener] >= own:
            return f"listener.name.{listener.lower()}.max.connections={own} are open"
        if len(self.connections) >= limits.connections_max and listener != limits.protected:
            return f"max.connections={limits.connections_max} are open"
        allowed = limits.overrides.get(host, limits.per_address_max)
        if self.by_address[host] >= allowed:
            return f"{allowed} connections of this address are open"
        return ""

    def _make_room(self, listener: str) -> None:
        """Closes the least recently used connection of another listener.

        Connections without a delayed request are preferred. If all connections are of ``listener``, none is
        closed.
        """
        others = [one for one in self.connections if one.peer.listener.name != listener]
        if others:
            oldest = min(others, key=lambda one: (one.has_pending_responses, one.last_use, one.peer.number))
            oldest.close(f"max.connections={self.limits.connections_max} are open, and a broker connected")

    def _warn_of_loopback(self, listener: Listener, accepted: socket.socket, host: str) -> None:
        """Warns once for each listener that remote clients receive a loopback address."""
        own = accepted.getsockname()[0]
        warning = loopback_warning(listener.name, listener.host, listener.port, host, own)
        if warning is not None:
            self._warned.add(listener.name)
            logger.warning("%s", warning)

    def _refuse(self, accepted: socket.socket, reason: str, host: str) -> None:
        self.refused += 1
        accepted.close()
        logger.warning("a connection from %s was refused: %s", host, reason)

    def closed(self, connection: Connection, reason: str) -> None:
        """Removes a closed connection from the counts."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.bytes_in += connection.bytes_in
        self.bytes_out += connection.bytes_out
        host = connection.peer.address
        self.by_address[host] -= 1
        if self.by_address[host] <= 0:
            del self.by_address[host]
        self.by_listener[connection.peer.listener.name] -= 1
        level = logging.DEBUG if reason == "closed by the peer" else logging.INFO
        logger.log(level, "the connection of %s was closed: %s", connection.peer, reason)

    def close_idle(self) -> int:
        """Closes the connections that were idle since the last call. Returns their number.

        A connection with a delayed request is not idle, unless its peer has closed its side and does not read
        the responses.
        """
        idle = [
            one
            for one in self.connections
            if one.last_use < self._last_idle_check and (one.ended or not one.has_pending_responses)
        ]
        for one in idle:
            one.close("idle for connections.max.idle.ms")
        self.memory.uses += 1
        self._last_idle_check = self.memory.uses
        return len(idle)

    def close(self) -> None:
        """Closes the listening sockets and all connections."""
        for listening in self._listening:
            self.loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()
        for one in list(self.connections):
            one.close("the broker stops")
