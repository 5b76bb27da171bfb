"""Produce and Fetch over real connections and logs, without a whole broker."""

from __future__ import annotations

import ast
import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from broker_listeners import IgnoringReplicaManagerListener
from default_limits import iter_records
from tidemill.broker.conversion_workers import ConversionWorkers
from tidemill.broker.down_conversion import DownConversion
from tidemill.broker.fetch_handler import FetchHandler
from tidemill.broker.fetch_reader import FetchReader
from tidemill.broker.fetch_session import FetchSessions
from tidemill.broker.kafka_apis import ApiRequestHandler, KafkaApis
from tidemill.broker.large_fetches import LargeFetches
from tidemill.broker.large_requests import LargeRequestQueue
from tidemill.broker.produce_handler import ProduceHandler
from tidemill.broker.produce_validation import ProduceValidation, Verifier, no_verifier
from tidemill.log.aborted_transactions import AbortedTransactions
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.system_interfaces import Clock
from tidemill.model.task_set import TaskSet
from tidemill.net.connection import Connection
from tidemill.net.deadlines import Deadlines
from tidemill.net.memory_pool import MemoryPool
from tidemill.net.peer import Listener, Peer
from tidemill.records.builder import BatchBuilder
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE, FETCH = 0, 1
NOW = 1_700_000_000_000
NODE = 1
BY_ID = 13
"""The first version of both APIs with topic ids."""
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
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = NOW

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


class HeldExecutor(Executor):
    """An executor that runs jobs on request, as a slow disk."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        self.jobs.append((future, call, arguments))
        return future

    def run(self) -> None:
        """Runs the submitted jobs."""
        jobs, self.jobs = self.jobs, []
        for future, call, arguments in jobs:
            try:
                future.set_result(call(*arguments))
            except BaseException as problem:  # noqa: BLE001 - passed to the future
                future.set_exception(problem)


class AtOnceExecutor(HeldExecutor):
    """An executor that runs jobs at once, so that tests do not depend on the speed of a thread."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **others: Any) -> Future[Any]:  # type: ignore[override]
        future = super().submit(call, *arguments, **others)
        self.run()
        return future


class NoOthers(ApiRequestHandler):
    """The handler of all other APIs, which has none."""

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
    """Two topics, ``t`` with 3 partitions and ``u`` with 1, and the handlers for them."""

    def __init__(
        self,
        directory: Path,
        syncers: Executor | None = None,
        sessions_max: int = 10,
        in_slices: bool = False,
        converts: bool = False,
        verify: Verifier = no_verifier,
    ) -> None:
        self.directory = directory
        self.loop = asyncio.new_event_loop()
        self.clock = SetClock()
        self.pool = ThreadPoolExecutor(1)
        self.logs = LogManager(SystemFiles(), [str(directory)])
        self.logs.dirs.lock()
        self.logs.dirs.claim("c" * 22, NODE)
        self.logs.load(NOW, lambda topic: LogConfig())
        self.manager = ReplicaManager(
            NODE,
            self.logs,
            self.clock,
            self.loop,
            syncers or self.pool,
            self.pool,
            IgnoringReplicaManagerListener(),
        )
        self.deadlines = Deadlines(self.loop)
        self.memory = MemoryPool(self.loop, REQUEST_BYTES_MAX)
        self.preparation = ProduceValidation(self.loop, self.pool, self.memory, verify=verify)
        topics = self.manager.topics
        self.produces = ProduceHandler(topics, self.clock, self.deadlines, self.preparation, self.memory)
        self.manager.write_back.listeners.append(self.produces.set_congested)
        self.tasks = TaskSet(self.loop)
        large = LargeFetches(LargeRequestQueue(self.memory), self.tasks)
        self.sessions = FetchSessions(self.clock, sessions_max, large.end_session)
        aborted = AbortedTransactions(self.logs.files)
        reader = FetchReader(
            topics,
            self.clock,
            self.loop,
            FETCH_BYTES_MAX,
            aborted=aborted,
            broker_epoch=lambda broker: self.registered.get(broker, -1),
        )
        self.registered: dict[int, int] = {}
        """The broker epochs in the metadata."""
        self.conversions = ConversionWorkers(1)
        self.down = DownConversion(self.loop, self.conversions)
        down = self.down if converts else None
        self.fetches = FetchHandler(reader, self.loop, self.deadlines, self.sessions, down, large)
        if in_slices:
            # Every fetch is handled as a large one.
            self.fetches.large_bytes = -1
        self.others = NoOthers()
        self.requests = KafkaApis(self.produces, self.fetches, self.others)
        self.clients: list[Client] = []
        self.put("t", 3)
        self.put("u", 1)

    def put(
        self, topic: str, partitions: int, *, replicas: tuple[int, ...] = (NODE,), **settings: Any
    ) -> None:
        """Creates or alters a topic with this broker as the only in-sync replica."""
        states = [PartitionState(index, NODE, 0, replicas, (NODE,)) for index in range(partitions)]
        run_at_once(
            self.manager.put_topic_in_slices(
                topic, IDS[topic], topic == OFFSETS, states, LogConfig(**settings)
            )
        )

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        """Returns a partition."""
        found = self.manager.find(topic, index)
        assert found is not None
        return found

    def client(self) -> Client:
        """Opens a connection."""
        self.clients.append(Client(self))
        return self.clients[-1]

    def turn(self, seconds: float = 0.005) -> None:
        """Runs the events of the loop that are due."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def until(self, done: Callable[[], bool]) -> None:
        """Runs the loop until a condition is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, "it does not happen"
            self.turn(0.001)

    def close(self) -> None:
        """Closes everything."""
        for client in self.clients:
            client.close()
        self.until(lambda: all(client.connection.closed for client in self.clients))
        self.until(lambda: not self.tasks)
        self.loop.run_until_complete(self.preparation.stop())
        self.loop.run_until_complete(self.down.stop())
        self.conversions.close()
        self.deadlines.close()
        self.loop.run_until_complete(self.manager.stop())
        self.logs.close(NOW, self.manager.high_watermarks())
        self.pool.shutdown()
        self.loop.close()
        assert not self.others.crashes, self.others.crashes


class Client:
    """A client: sends encoded requests, and decodes the responses."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        ours, self.socket = socket.socketpair()
        ours.setblocking(False)
        self.socket.setblocking(False)
        peer = Peer(Listener("PLAINTEXT", "localhost", 9092), "User:ANONYMOUS", "127.0.0.1", 1)
        self.connection = Connection(bench.loop, ours, bench.requests, 100 << 20, peer)
        self.connection.start()
        self.correlation_id = 0
        self.received = bytearray()

    def send(self, key: int, version: int, request: Any) -> int:
        """Sends a request. Returns its number."""
        self.correlation_id += 1
        self.send_bytes(encode_request(key, version, self.correlation_id, "client", request))
        return self.correlation_id

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                self.bench.turn(0.001)

    def has_answer(self) -> bool:
        """Whether a complete response has arrived."""
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
        """Returns the next response without its size."""
        self.bench.until(self.has_answer)
        (size,) = struct.unpack_from(">i", self.received)
        frame = bytes(self.received[4 : 4 + size])
        del self.received[: 4 + size]
        return frame

    def answer(self, key: int, version: int, number: int | None = None) -> Any:
        """Returns the next response, decoded: the one to request ``number``, by default the last."""
        correlation_id, response = decode_response(key, version, self.frame())
        assert correlation_id == (self.correlation_id if number is None else number)
        return response

    def ask(self, key: int, version: int, request: Any) -> Any:
        """Sends a request. Returns its response."""
        number = self.send(key, version, request)
        return self.answer(key, version, number)

    def is_silent(self) -> bool:
        """Whether no response arrives within a while."""
        self.bench.turn(0.03)
        return not self.has_answer()

    def is_closed(self) -> bool:
        """Whether the peer has closed the connection."""
        self.bench.turn(0.02)
        return bool(self.connection.closed)

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    # Produce

    def produce(self, version: int, parts: Any, acks: int = -1, timeout_ms: int = 5000) -> int:
        """Sends a Produce request for {(topic, index): batch}. Returns its number."""
        return self.send(PRODUCE, version, produce_request(version, parts, acks, timeout_ms))

    def produced(self, version: int, number: int | None = None) -> list[Any]:
        """Returns the partitions of the next Produce response, in its order."""
        response = self.answer(PRODUCE, version, number)
        return [part for topic in response.responses for part in topic.partition_responses]

    def append(self, *values: bytes, topic: str = "t", index: int = 0) -> int:
        """Writes one batch. Returns its base offset."""
        self.produce(9, {(topic, index): batch(*values)})
        (part,) = self.produced(9)
        assert part.error_code == 0
        offset: int = part.base_offset
        return offset

    # Fetch

    def fetch(self, version: int, parts: Any, **fields: Any) -> int:
        """Sends a Fetch request for {(topic, index): offset or FetchPartition}. Returns its number."""
        return self.send(FETCH, version, fetch_request(version, parts, **fields))

    def fetched(self, version: int, number: int | None = None) -> Any:
        """Returns the next Fetch response."""
        return self.answer(FETCH, version, number)


def batch(*values: bytes, codec: int = 0, timestamp: int = NOW, **built: int) -> bytes:
    """Returns a batch of records without keys."""
    builder = BatchBuilder(codec)
    for value in values:
        builder.append(timestamp, None, value)
    return builder.build(**built)


def produce_request(version: int, parts: Any, acks: int = -1, timeout_ms: int = 5000) -> ProduceRequest:
    """Groups the partitions by topic."""
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
    """Builds a Fetch request. ``forgotten`` has pairs (topic, index)."""
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
    """Returns the topic field of the version: name or id."""
    if version >= BY_ID:
        item.topic_id = IDS[name]
    else:
        item.topic = name
    return item


def topic_name(item: Any) -> str:
    """Returns the name of a topic in a response, which may have its id."""
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    name: str = (
        item.topic if hasattr(item, "topic") and item.topic else item.name if hasattr(item, "name") else ""
    )
    return name or by_id[item.topic_id]


def parts_of(response: Any) -> dict[tuple[str, int], Any]:
    """Returns the partitions of a Fetch response."""
    found = {}
    for topic in response.responses:
        for part in topic.partitions:
            found[topic_name(topic), part.partition_index] = part
    return found


def values_of(part: Any, start: int = 0) -> list[bytes]:
    """Returns the values of the records of a partition."""
    return [one.value or b"" for one in iter_records(part.records or b"", start)]


@contextmanager
def bench_in(directory: Path, **options: Any) -> Iterator[Bench]:
    """A context manager with a bench."""
    bench = Bench(directory, **options)
    try:
        yield bench
    finally:
        bench.close()


def checks_of(module: ModuleType) -> list[str]:
    """Returns the names of the checks that the functions ``refusal_of_...`` of ``module`` call, in order.

    A check is a function ``<name>_error``.
    """
    tree = ast.parse(Path(str(module.__file__)).with_suffix("").with_suffix(".py").read_text())
    return [
        called.func.id.removesuffix("_error").replace("_", " ")
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name.startswith("refusal_of_")
        for called in sorted(
            (node for node in ast.walk(function) if isinstance(node, ast.Call)), key=lambda node: node.lineno
        )
        if isinstance(called.func, ast.Name)
    ]
