"""A broker under attack: its process is monitored, and a normal client measures response times."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

LATENCY_S_MAX = 3.0
"""The limit for a round of a normal client, without the time in which no processor is free for it."""
NORMAL_CLIENT_PROCESS = os.path.join(os.path.dirname(__file__), "normal_client_process.py")
FAULTS = ("Traceback", "the handler of a request of", "never retrieved", "Exception in callback")


class Peer:
    """A client that sends one request after the other, in any version."""

    def __init__(self, broker: Broker | tuple[str, int], timeout_s: float = 20.0) -> None:
        address = (broker.host, broker.port) if isinstance(broker, Broker) else broker
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.correlation_id = 0

    def ask(self, key: int, version: int, request: Any) -> Any:
        """Sends a request. Returns its response."""
        self.correlation_id += 1
        self.socket.sendall(encode_request(key, version, self.correlation_id, "honest", request))
        return self.answer(key, version)

    def answer(self, key: int, version: int) -> Any:
        """Returns the next response."""
        correlation_id, response = decode_response(key, version, self.frame())
        if correlation_id != self.correlation_id:
            raise AssertionError(f"reply to {correlation_id}, asked was {self.correlation_id}")
        return response

    def frame(self) -> bytes:
        """Returns the next frame. Raises ConnectionError at the end."""
        (size,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(size)

    def receive_exactly(self, size: int) -> bytes:
        """Receives exactly ``count`` bytes."""
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += piece
        return bytes(data)

    def is_closed(self, within_s: float = 5.0) -> bool:
        """Whether the broker closes the connection within some time. Ignores received bytes."""
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
        """Closes the connection."""
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def make_topic(broker: Broker, name: str, partitions: int = 1, **config: str) -> bytes:
    """Creates a topic. Returns its id."""
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
    """Returns a fetch of one partition by id, without a session."""
    part = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
    values: dict[str, Any] = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 50 << 20, **fields}
    return FetchRequest(session_epoch=-1, topics=[FetchTopic(topic_id=topic_id, partitions=[part])], **values)


class NormalClient:
    """A normal client of its own topic, which checks each response and its time, in another process."""

    def __init__(self, broker: Broker, topic: str) -> None:
        topic_id = make_topic(broker, topic)
        arguments = [broker.host, str(broker.port), str(broker.pid), topic, topic_id.hex()]
        self._process = subprocess.Popen(
            [sys.executable, NORMAL_CLIENT_PROCESS, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._read()

    @property
    def rounds(self) -> int:
        """The number of rounds until now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        rounds: int = self._read()["rounds"]
        return rounds

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process of the normal client has ended"
        found: dict[str, Any] = json.loads(line)
        assert found["problem"] is None, found["problem"]
        return found

    def end(self) -> tuple[int, float]:
        """Stops. Returns the number of rounds, and how long the broker took for the slowest, in seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        found = self._read()
        return found["rounds"], found["slowest_s"]

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def normal_client(broker: Broker, latency_s_max: float = LATENCY_S_MAX) -> Iterator[NormalClient]:
    """Runs a normal client meanwhile. Fails after a wrong or late response."""
    with contextlib.closing(NormalClient(broker, f"honest-{time.monotonic_ns()}")) as client:
        yield client
        rounds, slowest_s = client.end()
    assert rounds > 0
    assert slowest_s < latency_s_max, f"the broker made a normal client wait {slowest_s:.2f} s"


@contextmanager
def under_attack(
    broker: Broker, growth_mb_max: float, latency_s_max: float = LATENCY_S_MAX
) -> Iterator[NormalClient]:
    """Monitors memory, log and the responses of a normal client during an attack."""
    with Peer(broker) as peer:
        peer.ask(
            ApiKey.API_VERSIONS, 3, ApiVersionsRequest(client_software_name="t", client_software_version="1")
        )
    before = len(broker.log)
    pid = broker.pid
    with normal_client(broker, latency_s_max) as client:
        time.sleep(0.2)
        resident = resident_mb(pid)
        yield client
    grown = resident_mb(pid) - resident
    check_log(broker, before)
    assert grown < growth_mb_max, f"resident memory grew by {grown:.0f} MB from {resident:.0f} MB"
    assert broker.running
    assert broker.pid == pid


def check_log(broker: Broker, start: int = 0) -> None:
    """Fails if the broker logged an unexpected error."""
    log = broker.log[start:]
    for fault in FAULTS:
        at = log.find(fault)
        assert at < 0, f"{fault} in the broker's log:\n{log[max(0, at - 1500) : at + 4000]}"


def resident_mb(pid: int) -> float:
    """Returns the resident memory of a process."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} tells no VmRSS")


def peak_mb(pid: int) -> float:
    """Returns the peak memory of a process."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise OSError(f"process {pid} tells no VmHWM")


def reset_peak(pid: int) -> None:
    """Resets :func:`peak_mb`, where the system allows it."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def burst(broker: Broker, data: bytes, patience_s: float = 0.02) -> int:
    """Sends ``data`` on a new connection, and reads until the broker closes it or sends nothing more.

    Returns the number of responses.
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
    """Returns the seed of a random test: from the environment, or a new one, which a failure prints."""
    return int(os.environ.get(environment) or time.time_ns() % 1_000_000)
