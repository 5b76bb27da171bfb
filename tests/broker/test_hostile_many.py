"""A hundred thousand frames through the whole way of a request, without sockets: none breaks a handler.

``TIDEMILL_SEED`` repeats a run, ``TIDEMILL_FRAMES`` makes it longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from hostile_frames import Stranger
from hostile_peers import seed_of

from tidemill.broker.context import Listener, Peer
from tidemill.controller.topics import NewTopic
from tidemill.model.configs import BrokerConfig
from tidemill.net.connection import Connection
from tidemill.server.app import BrokerServer

FRAMES = int(os.environ.get("TIDEMILL_FRAMES") or 100_000)
FRAMES_A_CONNECTION_MAX = 20
BLOCKS_MAX = 100_000
"""Allocated blocks more after half of the frames: 100 bytes each or so, what the frames made included."""


class NoLoop:
    """Readiness is nothing that these connections wait for."""

    def add_reader(self, *_: Any) -> None: ...

    def remove_reader(self, *_: Any) -> None: ...

    def add_writer(self, *_: Any) -> None: ...

    def remove_writer(self, *_: Any) -> None: ...


class Wire:
    """In the place of a socket: gives what is put in, and takes all that comes out."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.incoming: list[bytes] = []
        self.sent = 0

    def fileno(self) -> int:
        return self.descriptor

    def recv(self, _: int) -> bytes:
        return self.incoming.pop(0) if self.incoming else b""

    def send(self, data: bytes, _: int) -> int:
        self.sent += 1
        return len(data)

    def close(self) -> None: ...


class Inside:
    """A broker and the strangers at its door."""

    def __init__(self, server: BrokerServer, seed: int, null: int) -> None:
        self.server = server
        self.chance = random.Random(seed)
        self.null = null
        self.frames = 0
        self.answers = 0
        self.ends: Counter[str] = Counter()
        self.crashes: list[BaseException] = []
        self.open: list[Connection] = []
        server.dispatch.on_crash = lambda connection, problem: self.crashes.append(problem)  # type: ignore[method-assign]
        server.dispatch.on_closed = lambda connection, reason: self.ends.update([reason[:20]])
        self.peer = Peer(Listener("PLAINTEXT", "localhost", 1), "default", "User:ANONYMOUS", "127.0.0.1", 1)

    def visit(self, stranger: Stranger) -> None:
        """One connection: some frames, then it ends, unless it is left open for a while."""
        wire = Wire(self.null)
        peer = Peer(self.peer.listener, "default", "User:ANONYMOUS", "127.0.0.1", self.frames)
        connection = Connection(NoLoop(), wire, self.server.requests, 1 << 20, peer)
        for _ in range(self.chance.randrange(1, FRAMES_A_CONNECTION_MAX)):
            wire.incoming.append(stranger.frame())
            connection.readable()
            self.frames += 1
            if connection.closed:
                break
        self.answers += wire.sent
        if not connection.closed:
            self.open.append(connection)
        while len(self.open) > 50:
            self.open.pop(self.chance.randrange(len(self.open))).readable()


def test_a_hundred_thousand_frames_break_no_handler(tmp_path: Path) -> None:
    seed = seed_of()
    print(f"TIDEMILL_SEED={seed}")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "2",
        "group.max.session.timeout.ms": "10000",
    }
    config = BrokerConfig.from_sources(None, [f"{key}={value}" for key, value in settings.items()], {})

    async def story() -> None:
        server = BrokerServer(config)
        await server.start()
        null = os.open(os.devnull, os.O_WRONLY)
        inside = Inside(server, seed, null)
        try:
            stranger = await acquainted(server, seed)
            half = blocks = 0
            while inside.frames < FRAMES:
                inside.visit(stranger)
                if inside.chance.random() < 0.1:
                    await asyncio.sleep(0)
                if not half and inside.frames > FRAMES // 2:
                    half = inside.frames
                    await settle(inside)
                    blocks = sys.getallocatedblocks()
                if not await still_there(server, stranger):
                    stranger.topic_id = await make(server)
                if inside.crashes:
                    raise inside.crashes[0]
            await settle(inside)
            grown = sys.getallocatedblocks() - blocks
            print(grown, "blocks more")
            assert grown < BLOCKS_MAX, f"{grown} blocks more after {inside.frames - half} frames"
        finally:
            await server.stop()
            os.close(null)
        assert not inside.crashes
        assert server.fetches.waiting == 0
        print(inside.frames, "frames,", inside.answers, "answers;", inside.ends.most_common(5))

    asyncio.run(story(), debug=False)


async def settle(inside: Inside) -> None:
    """All connections end, and what they asked for."""
    for connection in inside.open:
        connection.readable()
    inside.open.clear()
    for _ in range(20):
        await asyncio.sleep(0.01)


async def make(server: BrokerServer) -> bytes:
    """The topic that the strangers know; its id."""
    while (topic := server.broker.metadata.topic("victim")) is None:  # A frame may have made it, too.
        await server.broker.controller.create_topics([NewTopic("victim", 2)])
    return topic.topic_id


async def acquainted(server: BrokerServer, seed: int) -> Stranger:
    """A stranger who knows that topic."""
    return Stranger(seed, "victim", await make(server))


async def still_there(server: BrokerServer, stranger: Stranger) -> bool:
    """Whether nobody has deleted the topic."""
    return server.broker.metadata.topic_by_id(stranger.topic_id) is not None
