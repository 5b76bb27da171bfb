"""Produce and Fetch as a client sees them: real connections, real logs, no broker around them."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.broker.context import Listener, Peer
from tidemill.broker.fetch import FetchPath
from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.broker.large_fetches import LargeFetches
from tidemill.broker.produce import ProducePath
from tidemill.broker.request_slices import Lane
from tidemill.broker.requests import Requests
from tidemill.broker.slow_lane import SlowLane
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.manager import LogManager
from tidemill.model.ports import Clock
from tidemill.net.connection import Connection
from tidemill.net.deadlines import Deadlines
from tidemill.net.memory import Memory
from tidemill.records.builder import BatchBuilder
from tidemill.records.reader import iter_records
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE, FETCH = 0, 1
NOW = 1_700_000_000_000
NODE = 1
BY_ID = 13
"""From this version of both APIs on topics are named by id."""
OFFSETS = "__consumer_offsets"
IDS = {
    "t": bytes(range(16)),
    "u": bytes(range(100, 116)),
    "nowhere": bytes(range(50, 66)),
    OFFSETS: bytes(range(200, 216)),
}
FETCH_BYTES_MAX = 1 << 20
REQUEST_BYTES_MAX = 1 << 30
PATIENCE_S = 10.0


class SetClock(Clock):
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_ms = NOW

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


class HeldExecutor(Executor):
    """Runs jobs when it is told to: a disk that takes its time."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        self.jobs.append((future, call, arguments))
        return future

    def run(self) -> None:
        """Does what was asked so far."""
        jobs, self.jobs = self.jobs, []
        for future, call, arguments in jobs:
            try:
                future.set_result(call(*arguments))
            except BaseException as problem:  # noqa: BLE001 - whoever waits is told
                future.set_exception(problem)


class AtOnceExecutor(HeldExecutor):
    """Runs jobs when they are asked for: what follows does not depend on how fast a thread is."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **others: Any) -> Future[Any]:  # type: ignore[override]
        future = super().submit(call, *arguments, **others)
        self.run()
        return future


class NoOthers:
    """All other APIs; here they are none."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.crashes: list[BaseException] = []

    def on_close(self, connection: Connection, reason: str) -> None:
        self.closed.append(reason)

    def on_crash(self, connection: Connection, problem: BaseException) -> None:
        self.crashes.append(problem)

    def read_ahead(self, connection: Connection, part: Any, count: int) -> None:
        connection.loop.call_soon(connection.resume_send)


class Bench:
    """Two topics, ``t`` with 3 partitions and ``u`` with 1, and what serves them."""

    def __init__(
        self,
        directory: Path,
        syncers: Executor | None = None,
        sessions_max: int = 10,
        in_slices: bool = False,
    ) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.clock = SetClock()
        self.pool = ThreadPoolExecutor(1)
        self.logs = LogManager(SystemFiles(), [str(directory)])
        self.logs.lock()
        self.logs.claim("c" * 22, NODE)
        self.logs.load(NOW, lambda topic: LogConfig())
        self.manager = ReplicaManager(NODE, self.logs, self.clock, self.loop, syncers or self.pool, self.pool)
        self.deadlines = Deadlines(self.loop)
        self.memory = Memory(self.loop, REQUEST_BYTES_MAX)
        self.slow_lane = SlowLane(self.loop, self.pool, self.memory)
        topics = self.manager.topics
        self.produces = ProducePath(topics, self.clock, self.deadlines, self.slow_lane, self.memory)
        self.slow_lane.path = self.produces
        self.manager.write_back.listeners.append(self.produces.set_congested)
        self.sessions = FetchSessions(self.clock, sessions_max)
        self.fetches = FetchPath(topics, self.loop, self.deadlines, self.sessions, FETCH_BYTES_MAX)
        self.tasks: set[asyncio.Task[None]] = set()
        if in_slices:
            # Every fetch is handled as if it had many partitions.
            self.fetches.large = LargeFetches(self.fetches, self.loop, Lane(self.memory), self.tasks)
            self.sessions.end_in_slices = self.fetches.large.end
            self.fetches.large_bytes = -1
        self.others = NoOthers()
        self.requests = Requests(self.produces, self.fetches, self.others)
        self.clients: list[Client] = []
        self.put("t", 3)
        self.put("u", 1)

    def put(
        self, topic: str, partitions: int, *, replicas: tuple[int, ...] = (NODE,), **settings: Any
    ) -> None:
        """Creates or alters a topic, of which only this broker is in sync."""
        states = [PartitionState(index, NODE, 0, replicas, (NODE,)) for index in range(partitions)]
        self.manager.put_topic(topic, IDS[topic], topic == OFFSETS, states, LogConfig(**settings))

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        """A partition."""
        found = self.manager.find(topic, index)
        assert found is not None
        return found

    def client(self) -> Client:
        """A new connection."""
        self.clients.append(Client(self))
        return self.clients[-1]

    def turn(self, seconds: float = 0.005) -> None:
        """Lets the loop do what is due."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def until(self, done: Callable[[], bool]) -> None:
        """Lets the loop go on until something is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, "it does not happen"
            self.turn(0.001)

    def close(self) -> None:
        """Takes everything away."""
        for client in self.clients:
            client.close()
        self.turn(0.02)
        self.until(lambda: not self.tasks)
        self.loop.run_until_complete(self.slow_lane.stop())
        self.deadlines.close()
        self.loop.run_until_complete(self.manager.stop())
        self.logs.close(NOW, self.manager.high_watermarks())
        self.pool.shutdown()
        self.loop.close()
        assert not self.others.crashes, self.others.crashes


class Client:
    """The peer of a connection: sends encoded requests, decodes what comes back."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        ours, self.socket = socket.socketpair()
        ours.setblocking(False)
        self.socket.setblocking(False)
        peer = Peer(Listener("PLAINTEXT", "localhost", 9092), "default", "User:ANONYMOUS", "127.0.0.1", 1)
        self.connection = Connection(bench.loop, ours, bench.requests, 100 << 20, peer)
        self.connection.start()
        self.correlation_id = 0
        self.received = bytearray()

    def send(self, key: int, version: int, request: Any) -> int:
        """Sends a request; its number."""
        self.correlation_id += 1
        self.send_bytes(encode_request(key, version, self.correlation_id, "client", request))
        return self.correlation_id

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes as they are."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                self.bench.turn(0.001)

    def has_answer(self) -> bool:
        """Whether a whole answer is there."""
        try:
            while True:
                piece = self.socket.recv(1 << 20)
                if not piece:
                    break
                self.received += piece
        except BlockingIOError:
            pass
        return (
            len(self.received) >= 4 and len(self.received) >= 4 + struct.unpack_from(">i", self.received)[0]
        )

    def frame(self) -> bytes:
        """The next answer, without its size."""
        self.bench.until(self.has_answer)
        (size,) = struct.unpack_from(">i", self.received)
        frame = bytes(self.received[4 : 4 + size])
        del self.received[: 4 + size]
        return frame

    def answer(self, key: int, version: int, number: int | None = None) -> Any:
        """The next answer, decoded: it must be that to request ``number`` (the last one)."""
        correlation_id, response = decode_response(key, version, self.frame())
        assert correlation_id == (self.correlation_id if number is None else number)
        return response

    def ask(self, key: int, version: int, request: Any) -> Any:
        """Sends a request; its answer."""
        number = self.send(key, version, request)
        return self.answer(key, version, number)

    def is_silent(self) -> bool:
        """Whether nothing has come after a while."""
        self.bench.turn(0.03)
        return not self.has_answer()

    def is_closed(self) -> bool:
        """Whether the other side has ended the connection."""
        self.bench.turn(0.02)
        return bool(self.connection.closed)

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    # Produce

    def produce(self, version: int, parts: Any, acks: int = -1, timeout_ms: int = 5000) -> int:
        """Sends a produce of {(topic, index): batch}; its number."""
        return self.send(PRODUCE, version, produce_request(version, parts, acks, timeout_ms))

    def produced(self, version: int, number: int | None = None) -> list[Any]:
        """The partitions of the next produce's answer, in its order."""
        response = self.answer(PRODUCE, version, number)
        return [part for topic in response.responses for part in topic.partition_responses]

    def append(self, *values: bytes, topic: str = "t", index: int = 0) -> int:
        """Writes one batch; its base offset."""
        self.produce(9, {(topic, index): batch(*values)})
        (part,) = self.produced(9)
        assert part.error_code == 0
        offset: int = part.base_offset
        return offset

    # Fetch

    def fetch(self, version: int, parts: Any, **fields: Any) -> int:
        """Sends a fetch of {(topic, index): offset or FetchPartition}; its number."""
        return self.send(FETCH, version, fetch_request(version, parts, **fields))

    def fetched(self, version: int, number: int | None = None) -> Any:
        """The next fetch's answer."""
        return self.answer(FETCH, version, number)


def batch(*values: bytes, codec: int = 0, timestamp: int = NOW, **built: int) -> bytes:
    """A batch of messages without keys."""
    builder = BatchBuilder(codec)
    for value in values:
        builder.append(timestamp, None, value)
    return builder.build(**built)


def produce_request(version: int, parts: Any, acks: int = -1, timeout_ms: int = 5000) -> ProduceRequest:
    """Partitions of one topic stand together."""
    topics: list[TopicProduceData] = []
    names: list[str] = []
    for (name, index), records in parts.items():
        if name not in names:
            names.append(name)
            topic = TopicProduceData(partition_data=[])
            if version >= BY_ID:
                topic.topic_id = IDS[name]
            else:
                topic.name = name
            topics.append(topic)
        topics[names.index(name)].partition_data.append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def fetch_request(version: int, parts: Any, forgotten: Any = (), **fields: Any) -> FetchRequest:
    """``forgotten`` holds (topic, index)."""
    topics = []
    for (name, index), wanted in parts.items():
        if not isinstance(wanted, FetchPartition):
            wanted = FetchPartition(fetch_offset=wanted, partition_max_bytes=1 << 20)
        wanted.partition = index
        topics.append(named(version, FetchTopic(partitions=[wanted]), name))
    gone = [named(version, ForgottenTopic(partitions=[index]), name) for name, index in forgotten]
    values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    return FetchRequest(topics=topics, forgotten_topics_data=gone, **values)


def named(version: int, item: Any, name: str) -> Any:
    """Names a topic as the version does."""
    if version >= BY_ID:
        item.topic_id = IDS[name]
    else:
        item.topic = name
    return item


def topic_name(item: Any) -> str:
    """The name of a topic in an answer, whichever way it is told."""
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    name: str = (
        item.topic if hasattr(item, "topic") and item.topic else item.name if hasattr(item, "name") else ""
    )
    return name or by_id[item.topic_id]


def parts_of(response: Any) -> dict[tuple[str, int], Any]:
    """The partitions of a fetch's answer."""
    found = {}
    for topic in response.responses:
        for part in topic.partitions:
            found[topic_name(topic), part.partition_index] = part
    return found


def values_of(part: Any, start: int = 0) -> list[bytes]:
    """The values of the records of a partition."""
    return [one.value or b"" for one in iter_records(part.records or b"", start)]


@contextmanager
def bench_in(directory: Path, **options: Any) -> Iterator[Bench]:
    """A bench for the time of a ``with``."""
    bench = Bench(directory, **options)
    try:
        yield bench
    finally:
        bench.close()
