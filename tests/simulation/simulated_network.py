"""A network of simulated machines: streams of bytes that are delayed, stuck, cut off or half open.

The bytes of a stream arrive in order, as with TCP, and at any time: streams overtake each other. Between two
machines the network may be cut, in both directions or in one; packets sent meanwhile arrive after the repair.
After the end of a process its machine responds with resets; a machine without power responds with nothing
until it is back, and then with resets to peers that write to it. The sockets have the methods that
connections and links of the broker use, and no others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from math import log
from random import Random
from typing import Any, NamedTuple, Protocol

from simulated_loop import PROCESS, Process, SimulatedLoop

UNREAD_BYTES_MAX = 256 * 1024
"""What a stream holds before its writer has to wait."""
AGAIN_S = 0.2
"""After so long a packet that was lost is sent again."""


class NetworkDelays(NamedTuple):
    """The delays of packets, in seconds."""

    delay_s_mean: float = 0.0005
    slow: float = 0.02
    """The share of packets that take long."""
    slow_s_mean: float = 0.05

    @property
    def mean_s(self) -> float:
        """The mean delay of a packet."""
        return self.slow * self.slow_s_mean + (1 - self.slow) * self.delay_s_mean


class StreamEnd(NamedTuple):
    """Marks the end of a stream."""

    problem: OSError | None


class Pages(Protocol):
    """Bytes of a file in a stream, which are read on arrival."""

    def __len__(self) -> int: ...

    def first(self, count: int) -> Pages:
        """Returns its first ``count`` bytes."""

    def read(self) -> bytes:
        """Returns the bytes that arrive now."""


class Machine:
    """A computer, and the one process on it that the network reaches."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.process: Process | None = None
        self.listening: dict[int, Listening] = {}
        self.sockets: set[Socket] = set()


class Stream:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Machine, target: Machine) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.reader: Socket
        self.writer: Socket
        self.sent: deque[tuple[float, float, bytes | Pages | StreamEnd]] = deque()
        """What is under way, with the times of its arrival and of its sending."""
        self.unread_bytes = 0
        self.held_until_s = 0.0
        """Nothing arrives before."""
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, item: bytes | Pages | StreamEnd) -> None:
        """Sends ``item``."""
        self._last_s = max(self._last_s, self.network.arrival_s())
        self.sent.append((self._last_s, self.network.loop.time(), item))
        if not isinstance(item, StreamEnd):
            self.unread_bytes += len(item)
        self.go_on()

    def go_on(self, delay_s: float = 0.0) -> None:
        """Schedules the arrival of the next item, unless it is stuck."""
        network = self.network
        if self._timer is not None or not self.sent or not network.is_open(self.source, self.target):
            return
        when = max(self.sent[0][0], network.loop.time() + delay_s, self.held_until_s)
        self._timer = network.world_timer(when, self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if not self.network.is_open(self.source, self.target):
            return
        if self.held_until_s > self.network.loop.time():
            self.go_on()
            return
        _, sent_s, item = self.sent.popleft()
        if not isinstance(item, StreamEnd):
            self.reader.received_sent_s = sent_s
        self.reader.take(item if isinstance(item, bytes | StreamEnd) else item.read())
        self.go_on()

    def drop(self) -> None:
        """Drops all items in flight."""
        self.sent.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Socket:
    """One end of a connection."""

    def __init__(self, network: Network, machine: Machine, port: int) -> None:
        self.network = network
        self.machine = machine
        self.port = port
        self.process = PROCESS.get()
        self.descriptor = network.next_descriptor()
        self.closed = False
        self.incoming: Stream
        self.outgoing: Stream
        self.received_sent_s = 0.0
        """When the bytes were sent that came last."""
        self._received = bytearray()
        self._ended: StreamEnd | None = None
        self._reader: asyncio.Handle | None = None
        self._writer: asyncio.Handle | None = None
        self._poked = False
        self._waiting: asyncio.Future[None] | None = None
        network.loop.sockets[self.descriptor] = self
        machine.sockets.add(self)

    # -- what a program calls

    def fileno(self) -> int:
        return self.descriptor

    def setblocking(self, flag: bool) -> None:
        pass

    def setsockopt(self, *option: Any) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return self.machine.name, self.port

    def recv(self, count: int) -> bytes:
        if self._received:
            data = bytes(self._received[:count])
            del self._received[:count]
            self.incoming.unread_bytes -= len(data)
            self.incoming.writer.poke()
            return data
        if self._ended is None:
            raise BlockingIOError
        if self._ended.problem is not None:
            raise self._ended.problem
        return b""

    def recv_into(self, buffer: memoryview) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        taken = bytes(memoryview(data)[: self._room()])
        self.outgoing.put(taken)
        return len(taken)

    def send_pages(self, pages: Pages) -> int:
        """Sends a part of a file."""
        taken = pages.first(self._room())
        self.outgoing.put(taken)
        return len(taken)

    def _room(self) -> int:
        if self._ended is not None and self._ended.problem is not None:
            raise self._ended.problem
        if self.closed:
            raise OSError("the socket is closed")
        room = UNREAD_BYTES_MAX - self.outgoing.unread_bytes
        if room <= 0:
            raise BlockingIOError
        return room

    def close(self) -> None:
        self.end(StreamEnd(None))

    # -- what the loop calls

    def set_reader(self, handle: asyncio.Handle | None) -> bool:
        before, self._reader = self._reader, handle
        self.poke()
        return before is not None

    def set_writer(self, handle: asyncio.Handle | None) -> bool:
        before, self._writer = self._writer, handle
        self.poke()
        return before is not None

    async def until_readable(self) -> None:
        self._waiting = self.network.loop.create_future()
        await self._waiting

    # -- what the network does

    def take(self, item: bytes | StreamEnd) -> None:
        """An item has arrived."""
        process = self.process
        if not self.machine.is_up:
            return
        if self.closed or (process is not None and not process.alive):
            if isinstance(item, bytes):
                self.outgoing.put(StreamEnd(ConnectionResetError("reset by the peer")))
            return
        if isinstance(item, bytes):
            if self._ended is None:
                self._received += item
        else:
            self._ended = item
            if item.problem is not None:
                self._received.clear()
                self.outgoing.drop()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        self.poke()

    def end(self, how: StreamEnd) -> None:
        """The program closes the socket, or the system does so for a killed process."""
        if self.closed:
            return
        self.closed = True
        self._reader = self._writer = None
        self.outgoing.put(how)
        self.forget()

    def forget(self) -> None:
        """Removes the socket from its machine."""
        self.machine.sockets.discard(self)

    @property
    def _is_readable(self) -> bool:
        return bool(self._received) or self._ended is not None

    @property
    def _is_writable(self) -> bool:
        return self.outgoing.unread_bytes < UNREAD_BYTES_MAX or self._ended is not None

    def poke(self) -> None:
        """Calls the program back, if it has registered and there is a reason."""
        if self._poked:
            return
        handle = self._reader
        if handle is None or not self._is_readable:
            handle = self._writer
            if handle is None or not self._is_writable:
                return
        self._poked = True
        self.network.loop.call_soon(self._call, context=context_of(handle))

    def _call(self) -> None:
        self._poked = False
        if self._reader is not None and self._is_readable:
            call(self._reader)
        if self._writer is not None and self._is_writable:
            call(self._writer)
        self.poke()


class Listening:
    """A listening socket."""

    def __init__(self, network: Network, machine: Machine, port: int) -> None:
        self.network = network
        self.machine = machine
        self.port = port
        self.descriptor = network.next_descriptor()
        self._backlog: list[Socket] = []
        self._reader: asyncio.Handle | None = None
        self._process = PROCESS.get()
        network.loop.sockets[self.descriptor] = self
        machine.listening[port] = self

    def fileno(self) -> int:
        return self.descriptor

    def getsockname(self) -> tuple[str, int]:
        return self.machine.name, self.port

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self._backlog:
            raise BlockingIOError
        accepted = self._backlog.pop(0)
        return accepted, (accepted.outgoing.target.name, accepted.descriptor)

    def close(self) -> None:
        self.machine.listening.pop(self.port, None)
        for one in self._backlog:
            one.end(StreamEnd(ConnectionResetError("reset by the peer")))
        self._backlog.clear()

    def set_reader(self, handle: asyncio.Handle | None) -> bool:
        before, self._reader = self._reader, handle
        self._poke()
        return before is not None

    def set_writer(self, handle: asyncio.Handle | None) -> bool:
        return False

    def add(self, accepted: Socket) -> None:
        """A peer has connected."""
        accepted.process = self._process
        self._backlog.append(accepted)
        self._poke()

    def _poke(self) -> None:
        if self._reader is not None and self._backlog:
            self.network.loop.call_soon(self._call, context=context_of(self._reader))

    def _call(self) -> None:
        if self._reader is not None and self._backlog:
            call(self._reader)


class Network:
    """All machines, and the connections between them."""

    def __init__(self, loop: SimulatedLoop, random: Random, weather: NetworkDelays) -> None:
        self.loop = loop
        self.random = random
        self.weather = weather
        self.machines: dict[str, Machine] = {}
        self.cut: set[tuple[str, str]] = set()
        """From where nothing arrives, and where it does not."""
        self._descriptors = 1000
        self._streams: list[Stream] = []

    def machine(self, name: str) -> Machine:
        """Returns a machine by its name; creates it on first use."""
        found = self.machines.get(name)
        if found is None:
            found = self.machines[name] = Machine(name)
        return found

    def next_descriptor(self) -> int:
        """Returns a number that no socket had before."""
        self._descriptors += 1
        return self._descriptors

    def world_timer(self, when: float, callback: Any) -> asyncio.TimerHandle:
        """Sets a timer that belongs to no process."""
        return self.loop.call_at(when, callback, context=WORLD)

    def delay_s(self) -> float:
        """Returns the delay of the next packet."""
        weather = self.weather
        is_slow = self.random.random() < weather.slow
        # As Random.expovariate() has it.
        return -log(1.0 - self.random.random()) / (
            1 / (weather.slow_s_mean if is_slow else weather.delay_s_mean)
        )

    def arrival_s(self) -> float:
        """Returns the arrival time of a packet that is sent now."""
        return self.loop.time() + self.delay_s()

    # -- connections

    async def connect(self, host: str, port: int) -> Socket:
        """Opens a connection from the machine of the calling process. Waits forever for a silent peer."""
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process of the world opens connections, not the world")
        source, target = self.machine(process.name), self.machine(host)
        await asyncio.sleep(self.delay_s())
        while not (self.is_open(source, target) and self.is_open(target, source)):  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)
        listening = target.listening.get(port)
        if listening is None:
            raise ConnectionRefusedError("connection refused")
        ours = Socket(self, source, self.next_descriptor())
        theirs = Socket(self, target, port)
        ours.outgoing = theirs.incoming = Stream(self, source, target)
        ours.incoming = theirs.outgoing = Stream(self, target, source)
        for one in (ours, theirs):
            one.outgoing.writer, one.incoming.reader = one, one
            self._streams.append(one.outgoing)
        listening.add(theirs)
        await asyncio.sleep(self.delay_s())
        return ours

    # -- faults

    def is_open(self, source: Machine, target: Machine) -> bool:
        """Whether packets of the first machine reach the other."""
        return (source.name, target.name) not in self.cut and target.is_up and source.is_up

    def cut_off(self, one: str, other: str) -> None:
        """Packets from ``one`` do not reach ``other`` from now on."""
        self.cut.add((one, other))

    def mend(self, pairs: list[tuple[str, str]] | None = None) -> None:
        """Restores the network between ``pairs``, or everywhere."""
        if pairs is None:
            self.cut.clear()
        else:
            self.cut.difference_update(pairs)
        self._go_on()

    def _go_on(self) -> None:
        self._streams = [one for one in self._streams if one.sent or not (one.writer.closed)]
        for stream in self._streams:
            stream.go_on(self.random.random() * AGAIN_S)

    def connections(self) -> list[Socket]:
        """Returns all open sockets, in the order of their creation."""
        found = [one for machine in self.machines.values() for one in machine.sockets]
        return sorted(found, key=lambda one: one.descriptor)

    def reset(self, one: Socket) -> None:
        """Breaks a connection: both ends get a reset, and bytes in flight are lost."""
        problem = StreamEnd(ConnectionResetError("reset by the network"))
        for stream in (one.incoming, one.outgoing):
            stream.drop()
            stream.put(problem)

    def process_ended(self, machine: Machine) -> None:
        """The system closes the sockets of a killed process."""
        for listening in list(machine.listening.values()):
            listening.close()
        for one in sorted(machine.sockets, key=lambda one: one.descriptor):
            one.end(StreamEnd(ConnectionResetError("reset by the peer")))

    def power_lost(self, machine: Machine) -> None:
        """The machine is silent; its peers are not notified."""
        machine.is_up = False
        machine.listening.clear()
        for one in list(machine.sockets):
            one.closed = True
            one.outgoing.drop()
            one.forget()

    def power_back(self, machine: Machine) -> None:
        """The machine responds again: with resets to peers that write to unknown connections."""
        machine.is_up = True
        self._go_on()


def context_of(handle: asyncio.Handle) -> Context:
    """Returns the context of the handle's creator."""
    context: Context = handle._context  # type: ignore[attr-defined]
    return context


def call(handle: asyncio.Handle) -> None:
    """Calls the handle's function, in its context, which is the current one."""
    handle._callback(*handle._args)  # type: ignore[attr-defined]


def _world() -> Context:
    context = Context()
    context.run(PROCESS.set, None)
    return context


WORLD = _world()
"""The context of callbacks that belong to no process."""
