"""A broker under attack: its process is watched, and an honest client beside the attackers times answers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hostile_frames import produce_frame

from tidemill.records.builder import BatchBuilder
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

LATENCY_S_MAX = 3.0
"""What an honest client waits at most, on a machine that is busy with the attack as well."""
FAULTS = ("Traceback", "broke its handler", "never retrieved", "Exception in callback")


class Peer:
    """A connection that asks one thing after the other, in any version."""

    def __init__(self, broker: Broker, timeout_s: float = 20.0) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), timeout=timeout_s)
        self.correlation_id = 0

    def ask(self, key: int, version: int, request: Any) -> Any:
        """Sends a request; its response."""
        self.correlation_id += 1
        self.socket.sendall(encode_request(key, version, self.correlation_id, "honest", request))
        return self.answer(key, version)

    def answer(self, key: int, version: int) -> Any:
        """The next response."""
        correlation_id, response = decode_response(key, version, self.frame())
        if correlation_id != self.correlation_id:
            raise AssertionError(f"reply to {correlation_id}, asked was {self.correlation_id}")
        return response

    def frame(self) -> bytes:
        """The next frame; ConnectionError when there is none any more."""
        (size,) = struct.unpack(">i", self.exactly(4))
        return self.exactly(size)

    def exactly(self, size: int) -> bytes:
        """So many bytes."""
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)

    def is_closed(self, within_s: float = 5.0) -> bool:
        """Whether the broker ends the connection within some time; what it still sends is passed over."""
        deadline = time.monotonic() + within_s
        try:
            while time.monotonic() < deadline:
                self.socket.settimeout(max(0.01, deadline - time.monotonic()))
                if not self.socket.recv(1 << 16):
                    return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return False

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def make_topic(broker: Broker, name: str, partitions: int = 1, **config: str) -> bytes:
    """A new topic; its id."""
    with Peer(broker) as peer:
        configs = [
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs
        )
        (made,) = peer.ask(
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest(topics=[topic], timeout_ms=20_000, validate_only=False),
        ).topics
        assert made.error_code == 0, made
        topic_id: bytes = made.topic_id
        return topic_id


def fetch_request(
    topic_id: bytes, offset: int, wait_ms: int = 1000, index: int = 0, **fields: Any
) -> FetchRequest:
    """A fetch of one partition by id, without a session."""
    part = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
    values: dict[str, Any] = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 50 << 20, **fields}
    return FetchRequest(session_epoch=-1, topics=[FetchTopic(topic_id=topic_id, partitions=[part])], **values)


class Witness(threading.Thread):
    """Works with a topic of its own in the usual way, and checks each answer and how long it took."""

    def __init__(self, broker: Broker, topic: str = "honest") -> None:
        super().__init__(name="witness", daemon=True)
        self.broker = broker
        self.topic = topic
        self.topic_id = make_topic(broker, topic)
        self.peer = Peer(broker)
        self.rounds = 0
        self.slowest_s = 0.0
        self.problem: BaseException | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                began = time.monotonic()
                self.round()
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                time.sleep(0.002)
        except BaseException as problem:  # noqa: BLE001 - told by the test
            self.problem = problem

    def round(self) -> None:
        """Asks for the topic, writes a message, reads it."""
        peer = self.peer
        wanted = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False
        )
        (found,) = peer.ask(ApiKey.METADATA, 12, wanted).topics
        assert (found.error_code, found.topic_id, len(found.partitions)) == (0, self.topic_id, 1)
        value = b"message %d" % self.rounds
        builder = BatchBuilder()
        builder.append(1_700_000_000_000, None, value)
        peer.correlation_id += 1
        peer.socket.sendall(
            produce_frame(13, self.topic, self.topic_id, builder.build(), 1, peer.correlation_id)
        )
        (part,) = peer.answer(ApiKey.PRODUCE, 13).responses[0].partition_responses
        assert (part.error_code, part.base_offset) == (0, self.rounds)
        (topic,) = peer.ask(ApiKey.FETCH, 17, fetch_request(self.topic_id, self.rounds)).responses
        assert topic.partitions[0].records.endswith(value + b"\0")
        self.rounds += 1

    def end(self) -> None:
        """Stops, and raises what went wrong."""
        self.ending.set()
        self.join(30)
        self.peer.close()
        if self.problem is not None:
            raise self.problem
        assert not self.is_alive(), "the honest client waits for an answer"


@contextmanager
def honest_client(broker: Broker, latency_s_max: float = LATENCY_S_MAX) -> Iterator[Witness]:
    """Lets an honest client work meanwhile; fails when it got a wrong answer, or a late one."""
    witness = Witness(broker, f"honest-{time.monotonic_ns()}")
    witness.start()
    try:
        yield witness
    finally:
        witness.end()
    assert witness.rounds > 0
    assert witness.slowest_s < latency_s_max, f"an honest client waited {witness.slowest_s:.2f} s"


@contextmanager
def under_attack(
    broker: Broker, growth_mb_max: float, latency_s_max: float = LATENCY_S_MAX
) -> Iterator[Witness]:
    """For the time of an attack: memory, log and an honest client's answers are watched."""
    with Peer(broker) as peer:
        peer.ask(
            ApiKey.API_VERSIONS, 3, ApiVersionsRequest(client_software_name="t", client_software_version="1")
        )
    before = len(broker.log)
    pid = broker.pid
    with honest_client(broker, latency_s_max) as witness:
        time.sleep(0.2)
        resident = resident_mb(pid)
        yield witness
    grown = resident_mb(pid) - resident
    check_log(broker, before)
    assert grown < growth_mb_max, f"resident memory grew by {grown:.0f} MB from {resident:.0f} MB"
    assert broker.running
    assert broker.pid == pid


def check_log(broker: Broker, start: int = 0) -> None:
    """Fails when the broker logged a fault of its own."""
    log = broker.log[start:]
    for fault in FAULTS:
        at = log.find(fault)
        assert at < 0, f"{fault} in the broker's log:\n{log[max(0, at - 1500) : at + 4000]}"


def resident_mb(pid: int) -> float:
    """Memory of a process, without what it mapped and did not touch."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} tells no VmRSS")


def peak_mb(pid: int) -> float:
    """The most memory that a process ever had."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} tells no VmHWM")


def forget_peak(pid: int) -> None:
    """Lets :func:`peak_mb` begin anew, where the system allows it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def burst(broker: Broker, data: bytes, patience_s: float = 0.02) -> int:
    """Sends ``data`` on a connection of its own and reads until the broker ends it, or goes silent.

    How many answers came.
    """
    received = bytearray()
    with contextlib.closing(socket.create_connection((broker.host, broker.port), timeout=10)) as peer:
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            peer.settimeout(patience_s)
            while True:
                piece = peer.recv(1 << 16)
                if not piece:
                    break
                received += piece
        except (TimeoutError, ConnectionError, BrokenPipeError, OSError):
            pass
    answers = 0
    position = 0
    while position + 4 <= len(received):
        position += 4 + int.from_bytes(received[position : position + 4], "big")
        answers += 1
    return answers


def seed_of(environment: str = "TIDEMILL_SEED") -> int:
    """The seed of a test that draws: the environment's, or a new one, which a failure prints."""
    return int(os.environ.get(environment) or time.time_ns() % 1_000_000)
