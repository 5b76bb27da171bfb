"""Measures the cost of a produce besides 1 and 2,000 idle partitions that the same client fetches.

    python bench/idle.py [--partitions 1,2000] [--produces 10000] [--turns 7]

One leader in this process, driven without a loop: a turn is a readiness callback of a connection, called
directly. Its partitions are one log with traffic and that many without. Each produce of 1 KB to the first is
appended, sent to the waiting client, and acknowledged by its next fetch, in one fetch session with all idle
partitions. Microseconds are processor time of the leader and of the few lines that act as its clients; the
result is the median turn, and the last column is the ratio to the first case: 1.00 is flat.

follower   acks=all: the fetch after the append commits it, a third one waits again
consumer   acks=1, on a partition without other replicas
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NODE, FOLLOWER = 1, 2
NOW_MS = 1_700_000_000_000
BUSY, IDLE = b"b" * 16, b"i" * 16
PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 13, 17
EPOCH, OFFSET, SESSION = 0x71727374, 0x6162636465666768, 0x51525354
"""Stand in a request for what each turn puts there."""
WAIT_MS = 500


class Turns:
    """The part of an event loop that the paths of Produce and Fetch need."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.due.append(call)

    def run(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()

    def time(self) -> float:
        return time.monotonic()

    def call_at(self, when: float, call: Callable[[], None]) -> Turns:
        return self

    call_later = call_at

    def cancel(self) -> None:
        pass

    def add_reader(self, descriptor: int, call: Callable[[], None]) -> None:
        pass

    add_writer = add_reader

    def remove_reader(self, descriptor: int) -> None:
        pass

    remove_writer = remove_reader


class NoOthers:
    def on_close(self, connection: Any, reason: str) -> None:
        raise SystemExit(f"bench: the leader closed a connection: {reason}")

    def on_crash(self, connection: Any, problem: BaseException) -> None:
        raise problem

    def read_ahead(self, connection: Any, part: Any, count: int) -> None:
        connection.resume_send()


class Peer:
    """A client: its end of the connection, and the leader's."""

    def __init__(self, loop: Turns, requests: Any) -> None:
        from tidemill.broker import request_context
        from tidemill.net.connection import Connection

        ours, self.socket = socket.socketpair()
        for one in (ours, self.socket):
            one.setblocking(False)
        listener = request_context.Listener("PLAINTEXT", "localhost", 9092)
        peer = request_context.Peer(listener, "User:ANONYMOUS", "127.0.0.1", 1)
        self.connection = Connection(loop, ours, requests, 100 << 20, peer)

    def ask(self, frame: bytes) -> None:
        self.socket.sendall(frame)
        self.connection.readable()

    def answer(self) -> bytes:
        return self.socket.recv(1 << 20)

    def large_answer(self) -> bytes:
        """Fails for a request or response that does not pass a socket in one piece."""
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            self.connection.readable()
            self.connection.writable()
            with contextlib.suppress(BlockingIOError):
                data += self.answer()
        return data


class Leader:
    """A broker that leads a partition with traffic, and that many without."""

    def __init__(self, directory: str, idle: int, replicas: tuple[int, ...]) -> None:
        from tidemill.broker.fetch_handler import FetchHandler
        from tidemill.broker.fetch_reader import FetchReader
        from tidemill.broker.fetch_session import FetchSessions
        from tidemill.broker.kafka_apis import KafkaApis
        from tidemill.broker.produce_handler import ProduceHandler
        from tidemill.broker.produce_validation import ProduceValidation
        from tidemill.log.log_config import LogConfig
        from tidemill.log.log_manager import LogManager
        from tidemill.log.system_files import SystemFiles
        from tidemill.model.clock import SystemClock
        from tidemill.model.types import TopicPartition
        from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
        from tidemill.net.deadlines import Deadlines
        from tidemill.net.memory_pool import UNBOUNDED, MemoryPool
        from tidemill.records.batch_validation import RecordLimits
        from tidemill.replication.hosted_topics import TopicEntry, TopicTable
        from tidemill.replication.partition import Partition, PartitionEvents

        class IgnoredEvents(PartitionEvents):
            def high_watermark_moved(self, partition: Partition) -> None:
                pass

            def write_back_requested(self, partition: Partition) -> None:
                pass

        self.loop = Turns()
        self.logs = LogManager(SystemFiles(), [directory])
        topics = TopicTable()
        for name, topic_id, count in (("busy", BUSY, 1), ("idle", IDLE, idle)):
            entry = TopicEntry(name, topic_id, False)
            for index in range(count):
                log = self.logs.create(TopicPartition(name, index), topic_id, LogConfig(), NOW_MS)
                partition = Partition(
                    name, index, log, RecordLimits(UNPACKED_BYTES_MAX), NODE, IgnoredEvents()
                )
                partition.apply_state(NODE, 0, replicas, replicas, partition_epoch=0, now_ms=NOW_MS)
                entry.partitions.append(partition)
            topics.put(entry)
        clock = SystemClock()
        memory = MemoryPool(self.loop, UNBOUNDED)
        deadlines = Deadlines(self.loop)
        lane = ProduceValidation(self.loop, None, memory)  # type: ignore[arg-type]
        produces = ProduceHandler(topics, clock, deadlines, lane, memory)
        reader = FetchReader(topics, clock, self.loop, 1 << 20, broker_epoch=lambda broker: -1)
        fetches = FetchHandler(reader, self.loop, deadlines, FetchSessions(clock, 10))
        self.requests = KafkaApis(produces, fetches, NoOthers())

    def peer(self) -> Peer:
        return Peer(self.loop, self.requests)


def produce_frame(acks: int) -> bytes:
    from tidemill.records.builder import BatchBuilder
    from tidemill.wire.header import encode_request
    from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    builder = BatchBuilder()
    builder.append(NOW_MS, None, os.urandom(900), None)
    data = [PartitionProduceData(index=0, records=builder.build())]
    topics = [TopicProduceData(topic_id=BUSY, partition_data=data)]
    request = ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=topics)
    return encode_request(PRODUCE, PRODUCE_VERSION, 1, "bench", request)


def fetch_frame(replica_id: int, epoch: int, busy: bool, idle: int) -> bytes:
    """Returns a fetch with the partition with traffic, and that many of the others."""
    from tidemill.wire.header import encode_request
    from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState

    topics = []
    if busy:
        part = FetchPartition(partition=0, fetch_offset=OFFSET, partition_max_bytes=1 << 20)
        topics.append(FetchTopic(topic_id=BUSY, partitions=[part]))
    if idle:
        parts = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(idle)]
        topics.append(FetchTopic(topic_id=IDLE, partitions=parts))
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=1),
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=SESSION if epoch else 0,
        session_epoch=epoch,
        topics=topics,
    )
    return encode_request(FETCH, FETCH_VERSION, 1, "bench", request)


class Frame:
    """A fetch request whose session, epoch and offset are set each time."""

    def __init__(self, replica_id: int, busy: bool, session: int) -> None:
        data = fetch_frame(replica_id, EPOCH, busy, 0)
        self.epoch_at = data.index(struct.pack(">i", EPOCH))
        self.offset_at = data.index(struct.pack(">q", OFFSET)) if busy else -1
        self.data = bytearray(data.replace(struct.pack(">i", SESSION), struct.pack(">i", session)))

    def at(self, epoch: int, offset: int) -> bytes:
        struct.pack_into(">i", self.data, self.epoch_at, epoch)
        if self.offset_at >= 0:
            struct.pack_into(">q", self.data, self.offset_at, offset)
        return bytes(self.data)


class Case:
    """A leader with its clients, whose state continues from turn to turn."""

    def __init__(self, directory: str, idle: int, follows: bool) -> None:
        self.follows = follows
        leader = Leader(directory, idle, (NODE, FOLLOWER) if follows else (NODE,))
        self.loop = leader.loop
        self.logs = leader.logs
        self.writer, self.reader = leader.peer(), leader.peer()
        replica = FOLLOWER if follows else -1
        self.produce = produce_frame(-1 if follows else 1)
        first = fetch_frame(replica, 0, True, idle).replace(struct.pack(">q", OFFSET), bytes(8))
        self.reader.ask(first.replace(struct.pack(">i", WAIT_MS), bytes(4)))
        answer = self.reader.large_answer()
        session = struct.unpack_from(">i", answer, 4 + 4 + 1 + 4 + 2)[0]
        self.named, self.unnamed = Frame(replica, True, session), Frame(replica, False, session)
        self.epoch, self.offset = 1, 0
        self.reader.ask(self.unnamed.at(1, 0))

    def go_round(self, produces: int) -> float:
        """Returns the microseconds of a produce."""
        writer, reader, run = self.writer, self.reader, self.loop.run
        epoch, offset = self.epoch, self.offset
        began = time.process_time()
        for _ in range(produces):
            writer.ask(self.produce)
            run()
            reader.answer()
            offset, epoch = offset + 1, epoch + 1
            reader.ask(self.named.at(epoch, offset))
            if self.follows:
                # It has the records, and learns that they are committed.
                run()
                reader.answer()
                epoch += 1
                reader.ask(self.unnamed.at(epoch, offset))
            writer.answer()
        used = time.process_time() - began
        self.epoch, self.offset = epoch, offset
        return used / produces * 1e6

    def close(self) -> None:
        self.logs.close(NOW_MS, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--partitions", default="1,2000")
    parser.add_argument("--produces", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    memory = Path("/dev/shm")
    data = tempfile.mkdtemp(prefix="tidemill-idle", dir=memory if memory.is_dir() else None)
    print("| who fetches | idle partitions | CPU µs a produce | ratio |")
    print("|---|---|---|---|")
    try:
        for name in ("follower", "consumer"):
            counts = [int(count) for count in options.partitions.split(",")]
            cases = []
            for count in counts:
                directory = Path(data) / f"{name}-{count}"
                directory.mkdir()
                cases.append(Case(str(directory), count, name == "follower"))
            # In turn, so that disturbances of the machine affect all cases; the first turn warms up.
            figures = [[case.go_round(options.produces) for case in cases] for _ in range(options.turns + 1)]
            medians = [statistics.median(column) for column in zip(*figures[1:], strict=True)]
            for count, cpu in zip(counts, medians, strict=True):
                print(f"| {name} | {count} | {cpu:.2f} | {cpu / medians[0]:.2f} |", flush=True)
            for case in cases:
                case.close()
    finally:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    main()
