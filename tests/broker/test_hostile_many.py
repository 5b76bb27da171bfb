"""A hundred thousand random frames through all request handling, without sockets.

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

from hostile_frames import FrameGenerator
from hostile_peers import seed_of

from tidemill.controller.topics import NewTopic
from tidemill.model.configs import BrokerConfig
from tidemill.net.connection import Connection
from tidemill.net.peer import Listener, Peer
from tidemill.server.broker_server import BrokerServer

FRAMES = int(os.environ.get("TIDEMILL_FRAMES") or 100_000)
FRAMES_A_CONNECTION_MAX = 20
BLOCKS_MAX = 100_000
"""The limit for new memory blocks, of about 100 bytes, after half of the frames."""


class NoLoop:
    """An event loop without readiness events."""

    def add_reader(self, *_: Any) -> None: ...

    def remove_reader(self, *_: Any) -> None: ...

    def add_writer(self, *_: Any) -> None: ...

    def remove_writer(self, *_: Any) -> None: ...

    def time(self) -> float:
        return 0.0


class Wire:
    """A socket replacement: returns the given bytes, and accepts all output."""

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
    """A broker and its attackers."""

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
        self.peer = Peer(Listener("PLAINTEXT", "localhost", 1), "User:ANONYMOUS", "127.0.0.1", 1)

    def visit(self, generator: FrameGenerator) -> None:
        """Opens a connection, sends some frames, and closes it, at once or later."""
        wire = Wire(self.null)
        peer = Peer(self.peer.listener, "User:ANONYMOUS", "127.0.0.1", self.frames)
        connection = Connection(NoLoop(), wire, self.server.kafka_apis, 1 << 20, peer)
        for _ in range(self.chance.randrange(1, FRAMES_A_CONNECTION_MAX)):
            wire.incoming.append(generator.frame())
            connection.readable()
            self.frames += 1
            if connection.closed:
                break
        self.answers += wire.sent
        if not connection.closed:
            self.open.append(connection)
        while len(self.open) > 50:
            self.open.pop(self.chance.randrange(len(self.open))).readable()


def test_random_frames_cause_no_unexpected_error(tmp_path: Path) -> None:
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
            generator = await frame_generator(server, seed)
            half = blocks = 0
            while inside.frames < FRAMES:
                inside.visit(generator)
                if inside.chance.random() < 0.1:
                    await asyncio.sleep(0)
                if not half and inside.frames > FRAMES // 2:
                    half = inside.frames
                    await settle(inside)
                    blocks = sys.getallocatedblocks()
                if not await topic_exists(server, generator):
                    generator.topic_id = await make(server)
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
        assert server.fetch_handler.waiting == 0
        print(inside.frames, "frames,", inside.answers, "answers;", inside.ends.most_common(5))

    asyncio.run(story(), debug=False)


async def settle(inside: Inside) -> None:
    """Closes all connections, and waits for their requests."""
    for connection in inside.open:
        connection.readable()
    inside.open.clear()
    for _ in range(20):
        await asyncio.sleep(0.01)


async def make(server: BrokerServer) -> bytes:
    """Creates the topic for the attackers. Returns its id."""
    while (
        topic := server.broker.metadata_cache.topic("victim")
    ) is None:  # A frame may have created it, too.
        await server.broker.controller.admin_manager.create_topics([NewTopic("victim", 2)])
    return topic.topic_id


async def frame_generator(server: BrokerServer, seed: int) -> FrameGenerator:
    """Returns an attacker that knows the topic."""
    return FrameGenerator(seed, "victim", await make(server))


async def topic_exists(server: BrokerServer, generator: FrameGenerator) -> bool:
    """Whether the topic exists."""
    return server.broker.metadata_cache.topic_by_id(generator.topic_id) is not None
