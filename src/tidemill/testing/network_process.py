"""The proxy process of the links between clients, brokers and store.

Every link passes through a port of this process, which can cut it. Standard input has one command per line,
as JSON; each gets a line as its response. The process ends with its standard input.

=========  =====================================================================================
open       ``kind`` (clients, brokers or store), ``target``, ``source``: opens a port; its number
lead       ``port``, ``host``, ``to``: sets the destination; the port opens once it listens
listen     ``port``: the destination listens
refuse     ``port``: the destination listens no more
cut        ``ends`` (two names), ``how`` (silent or reset)
heal       ``ends``, or nothing for all
fail       ``target``, ``api``, ``code``, ``times``, ``client_id``, ``carried_out``: a rule's number
left       ``target``, ``rule``: number of responses still to be replaced
forget     ``target``, ``rule``: removes a rule; without a rule all of them
=========  =====================================================================================

A port refuses connections while its destination does not listen, as the system would: brokers detect the end
of a process that way. A silent cut holds data until it is healed, as TCP would retransmit it; a reset cut
ends the connections, and refuses new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from tidemill.model.errors import ErrorCode
from tidemill.model.task_set import TaskSet
from tidemill.net.framing import NEED_DATA, FrameReader, FrameSizeError
from tidemill.testing.commands import serve_commands
from tidemill.testing.frames import Exchange, Rule, Rules
from tidemill.wire.apis import ApiKey

HOST: Final = "127.0.0.1"
CLIENTS: Final = "clients"
BROKERS: Final = "brokers"
STORE: Final = "store"
ANY: Final = ""
"""Target of a rule for all brokers."""
SILENT: Final = "silent"
RESET: Final = "reset"
BACKLOG: Final = 256
LISTENS_AGAIN: Final[bool] = sys.platform == "linux"
POLL_S: Final = 0.05
FRAME_BYTES_MAX: Final = 0x7FFF_FFFE
WAITING_BYTES_MAX: Final = 1 << 20
"""Limit of the data that one side has sent and the other has not read; above it reading pauses."""
_SIZE: Final = struct.Struct(">i")
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: a close sends RST."""
_BROKER_CLIENT: Final = re.compile(r"broker-(\d+)\Z")
"""Matches the client id of brokers in their requests to other brokers."""

Ends = frozenset[str]


class ProxiedSide(asyncio.Protocol):
    """One of the two connections of a pair."""

    def __init__(self, receive: Callable[[ProxiedSide, bytes], None], pair: ProxiedConnection) -> None:
        self._receive = receive
        self._pair = pair
        self.transport: asyncio.Transport | None = None
        self.other: ProxiedSide | None = None
        self.has_ended = False
        """Whether its peer has closed its sending direction."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport
            transport.set_write_buffer_limits(WAITING_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Forwards received data."""
        self._receive(self, data)

    def eof_received(self) -> bool:
        """Closes the sending direction of the other side; this side stays writable until both have ended."""
        self.has_ended = True
        other = self.other
        if other is not None and other.has_ended:
            other.end(is_reset=False)
            return False
        if other is not None and other.transport is not None and not other.transport.is_closing():
            with contextlib.suppress(OSError, RuntimeError):
                other.transport.write_eof()
        return True

    def connection_lost(self, problem: Exception | None) -> None:
        """Ends the other side in the same way."""
        self.transport = None
        self._pair.ended(self, is_reset=isinstance(problem, ConnectionResetError))

    def pause_writing(self) -> None:
        """Pauses reading from the other side while this side does not drain."""
        if self.other is not None:
            self._pair.set_reading(self.other, False)

    def resume_writing(self) -> None:
        """Resumes reading from the other side."""
        if self.other is not None:
            self._pair.set_reading(self.other, True)

    def write(self, data: bytes) -> None:
        """Sends data."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def end(self, *, is_reset: bool) -> None:
        """Closes the connection; a reset drops unsent data."""
        transport = self.transport
        if transport is None:
            return
        if is_reset:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            transport.abort()
        else:
            transport.close()


class ProxiedConnection:
    """A client's connection, and the connection that forwards it. The pair can be cut."""

    def __init__(self, port: ProxyPort) -> None:
        self.port = port
        self.source = port.source
        """The end that has connected; empty for a broker before its first request."""
        self.client = ProxiedSide(self._from_client, self)
        self.server = ProxiedSide(self._from_server, self)
        self.client.other, self.server.other = self.server, self.client
        self._exchange = Exchange(port.rules) if port.kind != STORE else None
        self._requests: FrameReader | None = FrameReader(0, FRAME_BYTES_MAX, "a request")
        self._answers: FrameReader | None = FrameReader(0, FRAME_BYTES_MAX, "a response")
        """Both: None after bytes that are not Kafka's protocol. They are forwarded unchanged, and the broker
        handles them."""
        self._held: list[tuple[ProxiedSide, bytes]] = []
        """Data held by a silent cut, with the side that receives it."""
        self._pauses: dict[ProxiedSide, int] = {}
        self.is_cut = False

    # Reading pauses for two reasons: a cut, and a side that does not drain

    def set_reading(self, side: ProxiedSide, reads: bool) -> None:
        """Pauses reading from one side, or resumes once no reason to pause is left."""
        pauses = self._pauses.get(side, 0) + (-1 if reads else 1)
        self._pauses[side] = max(0, pauses)
        transport = side.transport
        if transport is None or transport.is_closing():
            return
        if self._pauses[side] and transport.is_reading():
            transport.pause_reading()
        elif not self._pauses[side] and not transport.is_reading():
            transport.resume_reading()

    def cut(self, how: str) -> None:
        """Stops all traffic of the pair."""
        if how == RESET:
            self.client.end(is_reset=True)
            self.server.end(is_reset=True)
        elif not self.is_cut:
            self.is_cut = True
            for side in (self.client, self.server):
                self.set_reading(side, False)

    def heal(self) -> None:
        """Forwards the held data, and resumes traffic."""
        if not self.is_cut:
            return
        self.is_cut = False
        held, self._held = self._held, []
        for side, data in held:
            side.write(data)
        for side in (self.client, self.server):
            self.set_reading(side, True)

    def ended(self, side: ProxiedSide, *, is_reset: bool) -> None:
        """Handles the end of one connection."""
        if side.other is not None:
            side.other.end(is_reset=is_reset)
        if self.client.transport is None and self.server.transport is None:
            self.port.pairs.discard(self)

    # Traffic

    def _pass(self, side: ProxiedSide, data: bytes) -> None:
        if self.is_cut:
            self._held.append((side, data))
        else:
            side.write(data)

    def _from_client(self, _: ProxiedSide, data: bytes) -> None:
        exchange, reader = self._exchange, self._requests
        if exchange is None or reader is None:
            self._pass(self.server, data)
            return
        frames, rest = _received_frames(reader, data)
        for frame in frames:
            is_forwarded = exchange.request(frame)
            if not self.source:
                self._identify(exchange.client_id)
            if is_forwarded:
                self._pass(self.server, _with_size(frame))
        self._send_ready(exchange)
        if rest:
            self._requests = None
            self._pass(self.server, rest)

    def _from_server(self, _: ProxiedSide, data: bytes) -> None:
        exchange, reader = self._exchange, self._answers
        if exchange is None or reader is None:
            self._pass(self.client, data)
            return
        frames, rest = _received_frames(reader, data)
        for frame in frames:
            changed = exchange.replace_response(frame)
            self._pass(self.client, _with_size(frame) if changed is None else changed)
            self._send_ready(exchange)
        if rest:
            self._answers = None
            self._pass(self.client, rest)

    def _send_ready(self, exchange: Exchange) -> None:
        for response in exchange.ready():
            self._pass(self.client, response)

    def _identify(self, client_id: str | None) -> None:
        """Identifies a broker by its first request; before it a cut between two brokers cannot apply."""
        found = _BROKER_CLIENT.match(client_id or "")
        self.source = found.group(1) if found else CLIENTS
        how = self.port.network.cuts.get(self.ends)
        if how is not None:
            self.cut(how)

    @property
    def ends(self) -> Ends:
        """The two ends that the pair connects."""
        return frozenset((self.source, self.port.target))


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, port))
    sock.setblocking(False)
    return sock


def _with_size(frame: bytes) -> bytes:
    return _SIZE.pack(len(frame)) + frame


def _received_frames(reader: FrameReader, data: bytes) -> tuple[list[bytes], bytes]:
    """Returns the complete frames without their sizes, and the received bytes that are no frame."""
    reader.receive(data)
    frames: list[bytes] = []
    try:
        while (start := reader.next_frame()) != NEED_DATA:
            frames.append(reader.data[start : reader.end])
            reader.consume()
    except FrameSizeError:
        return frames, reader.data[reader.position :]
    return frames, b""


class ProxyPort:
    """A port that leads to a broker or to the store."""

    def __init__(self, network: Network, kind: str, target: str, source: str) -> None:
        self.network = network
        self.kind = kind
        self.target = target
        self.source = source
        self.rules = network.rules_of(target) if kind == CLIENTS else Rules()
        self.pairs: set[ProxiedConnection] = set()
        self.upstream: tuple[str, int] | None = None
        self._loop = asyncio.get_running_loop()
        # Bound by number: the system reclaims an automatically chosen port when the socket stops listening.
        with _bound(0) as probe:
            self.number = int(probe.getsockname()[1])
            self._socket = _bound(self.number)
        self._listens = False
        self._waiting: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    def lead(self, host: str, port: int) -> None:
        """Sets the destination, and refuses connections until it listens."""
        self.upstream = (host, port)
        self.refuse()

    def refuse(self) -> None:
        """Refuses connections until the destination listens."""
        self._stop_listening()
        if self.upstream is not None and self._waiting is None:
            self._waiting = self._loop.create_task(self._wait_for_destination())

    def listen(self) -> None:
        """Accepts connections."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._listens:
            return
        self._socket.listen(BACKLOG)
        self._listens = True
        self._loop.add_reader(self._socket, self._accept)

    def _stop_listening(self) -> None:
        """Stops listening, but keeps the port: on Linux the socket can listen again, elsewhere a new one."""
        if not self._listens:
            return
        self._listens = False
        self._loop.remove_reader(self._socket)
        if LISTENS_AGAIN:
            self._socket.shutdown(socket.SHUT_RDWR)
            return
        self._socket.close()
        self._socket = _bound(self.number)

    async def _wait_for_destination(self) -> None:
        """Waits until the destination listens, then listens."""
        while self.upstream is not None:
            await asyncio.sleep(POLL_S)
            try:
                _, writer = await asyncio.open_connection(*self.upstream)
            except OSError:
                continue
            writer.close()
            self._waiting = None
            self.listen()
            return

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:  # BlockingIOError: every connection is accepted.
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._tasks.start(self._connect(sock))

    async def _connect(self, sock: socket.socket) -> None:
        pair = ProxiedConnection(self)
        if self.upstream is None or self._cut_of(pair) == RESET:
            _reset(sock)
            return
        try:
            await self._loop.create_connection(lambda: pair.server, *self.upstream)
        except OSError:
            _reset(sock)
            self.refuse()
            return
        transport = pair.server.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Only now: a cut that started or ended while the connection was opened did not find the pair.
        how = self._cut_of(pair)
        if how == RESET:
            pair.server.end(is_reset=True)
            _reset(sock)
            return
        self.pairs.add(pair)
        if how is not None:
            pair.cut(how)
        await self._loop.connect_accepted_socket(lambda: pair.client, sock)
        if pair.is_cut and pair.client.transport is not None:
            pair.client.transport.pause_reading()
        if pair.server.transport is None or pair.server.transport.is_closing():
            pair.client.end(is_reset=True)

    def _cut_of(self, pair: ProxiedConnection) -> str | None:
        """Returns how the link of a pair is cut; None where it is not, or its source is not known yet."""
        return self.network.cuts.get(pair.ends) if pair.source else None


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    sock.close()


class Network:
    """All ports, cuts and rules."""

    def __init__(self) -> None:
        self.ports: dict[int, ProxyPort] = {}
        self.cuts: dict[Ends, str] = {}
        self.rules: dict[str, Rules] = {}

    def rules_of(self, target: str) -> Rules:
        """Returns the rules of a broker, or of all brokers."""
        found = self.rules.get(target)
        if found is None:
            found = self.rules[target] = Rules(None if target == ANY else self.rules_of(ANY))
        return found

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Executes a command. Returns its response, which most commands leave empty."""
        found: dict[str, Any] | None = getattr(self, f"do_{command['do']}")(command)
        return found or {}

    def do_open(self, command: dict[str, Any]) -> dict[str, Any]:
        """Opens a port."""
        port = ProxyPort(self, command["kind"], command["target"], command["source"])
        self.ports[port.number] = port
        return {"port": port.number}

    def do_lead(self, command: dict[str, Any]) -> None:
        """Sets the destination of a port."""
        self.ports[command["port"]].lead(command["host"], command["to"])

    def do_listen(self, command: dict[str, Any]) -> None:
        """Makes a port accept connections."""
        self.ports[command["port"]].listen()

    def do_refuse(self, command: dict[str, Any]) -> None:
        """Makes a port refuse connections."""
        self.ports[command["port"]].refuse()

    def do_cut(self, command: dict[str, Any]) -> None:
        """Cuts the links between two ends."""
        ends = frozenset(command["ends"])
        self.cuts[ends] = command["how"]
        for pair in self._between(ends):
            pair.cut(command["how"])

    def do_heal(self, command: dict[str, Any]) -> None:
        """Ends a cut, or all of them."""
        healed = [frozenset(command["ends"])] if command.get("ends") else list(self.cuts)
        for ends in healed:
            self.cuts.pop(ends, None)
            for pair in self._between(ends):
                pair.heal()

    def _between(self, ends: Ends) -> list[ProxiedConnection]:
        return [pair for port in self.ports.values() for pair in list(port.pairs) if pair.ends == ends]

    def do_fail(self, command: dict[str, Any]) -> dict[str, Any]:
        """Adds a rule."""
        rule = Rule(
            ApiKey(command["api"]),
            ErrorCode(command["code"]),
            command["times"],
            command["client_id"],
            carried_out=command["carried_out"],
        )
        return {"rule": self.rules_of(command["target"]).add(rule)}

    def do_left(self, command: dict[str, Any]) -> dict[str, Any]:
        """Returns the number of responses that a rule still replaces."""
        rule = self.rules_of(command["target"]).rules.get(command["rule"])
        return {"left": rule.left if rule is not None else 0}

    def do_forget(self, command: dict[str, Any]) -> None:
        """Removes a rule, or all rules of a broker."""
        rules = self.rules_of(command["target"]).rules
        if command.get("rule") is None:
            rules.clear()
        else:
            rules.pop(command["rule"], None)


async def serve() -> None:
    """Executes commands until standard input ends."""
    await serve_commands({"pid": os.getpid()}, Network().do)


if __name__ == "__main__":
    asyncio.run(serve())
