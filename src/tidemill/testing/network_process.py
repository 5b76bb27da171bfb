"""The process of the links between clients, brokers and store.

Every link leads through a port of this process, so that it can be cut. What comes on standard input is one
command a line, as JSON, and is answered with a line. The process ends with its standard input.

=========  =====================================================================================
open       ``kind`` (clients, brokers or store), ``target``, ``source``: another port; its number
lead       ``port``, ``host``, ``to``: where it leads from now on, once somebody listens there
listen     ``port``: somebody listens there
refuse     ``port``: nobody listens there any more
cut        ``ends`` (two names), ``how`` (silent or reset)
heal       ``ends``, or nothing for all
fail       ``target``, ``api``, ``code``, ``times``, ``client_id``, ``carried_out``: a rule's number
left       ``target``, ``rule``: answers that are to be replaced yet
forget     ``target``, ``rule``: ends a rule; without a rule all
=========  =====================================================================================

A port refuses connections while nobody listens where it leads, as the system would: brokers take that as the
sign of a process that has ended. A silent cut holds what is sent until it is healed, as TCP would send it
again; a reset one ends the connections, and begins none.
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
from tidemill.testing.commands import carry_out
from tidemill.testing.frames import Exchange, Rule, Rules
from tidemill.wire.apis import ApiKey

HOST: Final = "127.0.0.1"
CLIENTS: Final = "clients"
BROKERS: Final = "brokers"
STORE: Final = "store"
ANY: Final = ""
"""As the target of a rule: whichever broker is asked."""
SILENT: Final = "silent"
RESET: Final = "reset"
BACKLOG: Final = 256
LISTENS_AGAIN: Final[bool] = sys.platform == "linux"
LOOK_S: Final = 0.05
FRAME_BYTES_MAX: Final = 0x7FFF_FFFE
WAITING_BYTES_MAX: Final = 1 << 20
"""What one side may have sent that the other has not taken; then it is not read."""
_SIZE: Final = struct.Struct(">i")
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: a close sends RST."""
_BROKER_CLIENT: Final = re.compile(r"broker-(\d+)\Z")
"""How brokers call themselves in their requests to others."""

Ends = frozenset[str]


class Side(asyncio.Protocol):
    """One of the two connections of a pair."""

    def __init__(self, take: Callable[[Side, bytes], None], pair: Pair) -> None:
        self._take = take
        self._pair = pair
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self.has_ended = False
        """Whether its peer sends nothing any more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport
            transport.set_write_buffer_limits(WAITING_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Hands on what was received."""
        self._take(self, data)

    def eof_received(self) -> bool:
        """Tells the other side; this one may still be written to, until both have ended."""
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
        """The other side is not read while this one takes nothing."""
        if self.other is not None:
            self._pair.set_reading(self.other, False)

    def resume_writing(self) -> None:
        """It is read again."""
        if self.other is not None:
            self._pair.set_reading(self.other, True)

    def write(self, data: bytes) -> None:
        """Sends."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def end(self, *, is_reset: bool) -> None:
        """Closes; a reset drops what was not sent."""
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


class Pair:
    """A connection of a client and the one that carries it on. It may be cut."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.source = port.source
        """Who has connected; empty for a broker whose first request has not come."""
        self.client = Side(self._from_client, self)
        self.server = Side(self._from_server, self)
        self.client.other, self.server.other = self.server, self.client
        self._exchange = Exchange(port.rules) if port.kind != STORE else None
        self._requests = bytearray()
        self._answers = bytearray()
        self._held: list[tuple[Side, bytes]] = []
        """What a silent cut holds, by the side that gets it."""
        self._pauses: dict[Side, int] = {}
        self.is_cut = False

    # Reading stops for two reasons: a cut, and a side that takes nothing

    def set_reading(self, side: Side, reads: bool) -> None:
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
        """Nothing passes any more."""
        if how == RESET:
            self.client.end(is_reset=True)
            self.server.end(is_reset=True)
        elif not self.is_cut:
            self.is_cut = True
            for side in (self.client, self.server):
                self.set_reading(side, False)

    def heal(self) -> None:
        """What was held passes, and all that comes."""
        if not self.is_cut:
            return
        self.is_cut = False
        held, self._held = self._held, []
        for side, data in held:
            side.write(data)
        for side in (self.client, self.server):
            self.set_reading(side, True)

    def ended(self, side: Side, *, is_reset: bool) -> None:
        """One connection has ended."""
        if side.other is not None:
            side.other.end(is_reset=is_reset)
        if self.client.transport is None and self.server.transport is None:
            self.port.pairs.discard(self)

    # What passes

    def _pass(self, side: Side, data: bytes) -> None:
        if self.is_cut:
            self._held.append((side, data))
        else:
            side.write(data)

    def _from_client(self, _: Side, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self._pass(self.server, _drained(self._requests) + data)
            return
        for whole in self._frames(self._requests, data):
            goes_on = exchange.request(whole[_SIZE.size :])
            if not self.source:
                self._identify(exchange.client_id)
            if goes_on:
                self._pass(self.server, whole)
        self._send_ready(exchange)

    def _from_server(self, _: Side, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self._pass(self.client, _drained(self._answers) + data)
            return
        for whole in self._frames(self._answers, data):
            changed = exchange.answer(whole[_SIZE.size :])
            self._pass(self.client, whole if changed is None else changed)
            self._send_ready(exchange)

    def _send_ready(self, exchange: Exchange) -> None:
        for answer in exchange.ready():
            self._pass(self.client, answer)

    def _frames(self, buffer: bytearray, data: bytes) -> list[bytes]:
        """The whole frames that have come, with their sizes."""
        buffer += data
        found = []
        while len(buffer) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(buffer)
            if not 0 <= size <= FRAME_BYTES_MAX:
                # Not Kafka's protocol: it passes as it is, and the broker says what it thinks of it.
                found.append(_drained(buffer))
                self._exchange = None
                break
            end = _SIZE.size + size
            if len(buffer) < end:
                break
            found.append(bytes(buffer[:end]))
            del buffer[:end]
        return found

    def _identify(self, client_id: str | None) -> None:
        """A broker's first request says who it is; only then a cut between two brokers can hold it."""
        found = _BROKER_CLIENT.match(client_id or "")
        self.source = found.group(1) if found else CLIENTS
        how = self.port.network.cuts.get(self.ends)
        if how is not None:
            self.cut(how)

    @property
    def ends(self) -> Ends:
        """Who is connected by it."""
        return frozenset((self.source, self.port.target))


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, port))
    sock.setblocking(False)
    return sock


def _drained(buffer: bytearray) -> bytes:
    data = bytes(buffer)
    buffer.clear()
    return data


class Port:
    """A port that leads to a broker or to the store."""

    def __init__(self, network: Network, kind: str, target: str, source: str) -> None:
        self.network = network
        self.kind = kind
        self.target = target
        self.source = source
        self.rules = network.rules_of(target) if kind == CLIENTS else Rules()
        self.pairs: set[Pair] = set()
        self.upstream: tuple[str, int] | None = None
        self._loop = asyncio.get_running_loop()
        # Bound by its number: the system takes one that it chose back when the socket stops to listen.
        with _bound(0) as probe:
            self.number = int(probe.getsockname()[1])
            self._socket = _bound(self.number)
        self._listens = False
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def lead(self, host: str, port: int) -> None:
        """Leads there from now on, once somebody listens."""
        self.upstream = (host, port)
        self.refuse()

    def refuse(self) -> None:
        """Refuses connections, until somebody listens where it leads."""
        self._stop_listening()
        if self.upstream is not None and self._looking is None:
            self._looking = self._loop.create_task(self._look())

    def listen(self) -> None:
        """Takes connections."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._listens:
            return
        self._socket.listen(BACKLOG)
        self._listens = True
        self._loop.add_reader(self._socket, self._accept)

    def _stop_listening(self) -> None:
        """Keeps the port: on Linux a socket that was shut down can listen again, elsewhere a new one does."""
        if not self._listens:
            return
        self._listens = False
        self._loop.remove_reader(self._socket)
        if LISTENS_AGAIN:
            self._socket.shutdown(socket.SHUT_RDWR)
            return
        self._socket.close()
        self._socket = _bound(self.number)

    async def _look(self) -> None:
        """Listens again once somebody does where the port leads."""
        while self.upstream is not None:
            await asyncio.sleep(LOOK_S)
            try:
                _, writer = await asyncio.open_connection(*self.upstream)
            except OSError:
                continue
            writer.close()
            self._looking = None
            self.listen()
            return

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._begin(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _begin(self, sock: socket.socket) -> None:
        pair = Pair(self)
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
        # Only now: a cut that began or was healed while the connection was opened did not find the pair.
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

    def _cut_of(self, pair: Pair) -> str | None:
        """How the link of a pair is cut now; None where it is not, or its source is not known yet."""
        return self.network.cuts.get(pair.ends) if pair.source else None


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    sock.close()


class Network:
    """All ports, and what is cut."""

    def __init__(self) -> None:
        self.ports: dict[int, Port] = {}
        self.cuts: dict[Ends, str] = {}
        self.rules: dict[str, Rules] = {}

    def rules_of(self, target: str) -> Rules:
        """The rules of a broker, or of all."""
        found = self.rules.get(target)
        if found is None:
            found = self.rules[target] = Rules(None if target == ANY else self.rules_of(ANY))
        return found

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out a command; its answer."""
        found: dict[str, Any] = getattr(self, f"do_{command['do']}")(command)
        return found

    def do_open(self, command: dict[str, Any]) -> dict[str, Any]:
        """Opens a port."""
        port = Port(self, command["kind"], command["target"], command["source"])
        self.ports[port.number] = port
        return {"port": port.number}

    def do_lead(self, command: dict[str, Any]) -> dict[str, Any]:
        """Tells where a port leads."""
        self.ports[command["port"]].lead(command["host"], command["to"])
        return {}

    def do_listen(self, command: dict[str, Any]) -> dict[str, Any]:
        """Has a port take connections."""
        self.ports[command["port"]].listen()
        return {}

    def do_refuse(self, command: dict[str, Any]) -> dict[str, Any]:
        """Has a port refuse connections."""
        self.ports[command["port"]].refuse()
        return {}

    def do_cut(self, command: dict[str, Any]) -> dict[str, Any]:
        """Cuts the links between two."""
        ends = frozenset(command["ends"])
        self.cuts[ends] = command["how"]
        for pair in self._between(ends):
            pair.cut(command["how"])
        return {}

    def do_heal(self, command: dict[str, Any]) -> dict[str, Any]:
        """Ends a cut, or all."""
        healed = [frozenset(command["ends"])] if command.get("ends") else list(self.cuts)
        for ends in healed:
            self.cuts.pop(ends, None)
            for pair in self._between(ends):
                pair.heal()
        return {}

    def _between(self, ends: Ends) -> list[Pair]:
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
        """Says how many answers a rule has yet."""
        rule = self.rules_of(command["target"]).rules.get(command["rule"])
        return {"left": rule.left if rule is not None else 0}

    def do_forget(self, command: dict[str, Any]) -> dict[str, Any]:
        """Ends a rule, or all of a broker."""
        rules = self.rules_of(command["target"]).rules
        if command.get("rule") is None:
            rules.clear()
        else:
            rules.pop(command["rule"], None)
        return {}


async def serve() -> None:
    """Carries out commands until standard input ends."""
    await carry_out({"pid": os.getpid()}, Network().do)


if __name__ == "__main__":
    asyncio.run(serve())
