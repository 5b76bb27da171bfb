"""One client's load on one broker, in a separate process; prints its figures as JSON.

load.py throughput BOOTSTRAP COUNT BYTES        produce COUNT messages, then consume them
load.py replicated BOOTSTRAP COUNT BYTES        produce COUNT messages to three replicas, with acks=all
load.py latency BOOTSTRAP COUNT [REPLICAS]      one message at a time, each waited for; acks=all if replicated
load.py requests BOOTSTRAP CONNECTIONS DEPTH SECONDS [IDLE]
                                                small produces over raw sockets, IDLE consumers waiting
load.py spread BOOTSTRAP TOPIC PARTITIONS CONNECTIONS DEPTH SECONDS [ACKS]
                                                the same, each to another partition of an existing topic
"""

from __future__ import annotations

import itertools
import json
import random
import selectors
import socket
import struct
import sys
import time
from typing import Any

PARTITIONS = 3
Figures = dict[str, float]


def topic(bootstrap: str, name: str, replicas: int = 1) -> str:
    """Creates a topic of three partitions."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, replicas)]).values():
        made.result()
    return name


def produce(bootstrap: str, name: str, count: int, size: int, acks: int) -> float:
    """Returns produced messages per second."""
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "acks": acks,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failed.append(error),
        }
    )
    value = b"x" * size
    begin = time.perf_counter()
    for number in range(count):
        producer.produce(name, value, partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush()
    produced_s = time.perf_counter() - begin
    if failed or left:
        raise SystemExit(f"bench: {len(failed)} messages failed, {left} were left: {failed[:1]}")
    return count / produced_s


def replicated(bootstrap: str, count: int, size: int) -> Figures:
    """Returns messages per second that three replicas acknowledge."""
    name = topic(bootstrap, f"replicated-{time.time_ns()}", 3)
    produce(bootstrap, name, 300, size, -1)
    return {"produce": produce(bootstrap, name, count, size, -1)}


def throughput(bootstrap: str, count: int, size: int) -> Figures:
    """Returns messages per second, produced and then consumed."""
    from confluent_kafka import Consumer, TopicPartition

    name = topic(bootstrap, f"throughput-{time.time_ns()}")
    produced = produce(bootstrap, name, count, size, 1)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 4_000_000,
            "queued.min.messages": 1_000_000,
            # Its default, a second, would be measured instead of the broker whenever the queue is full.
            "fetch.queue.backoff.ms": 5,
            "fetch.max.bytes": 50_000_000,
        }
    )
    consumer.assign([TopicPartition(name, index, 0) for index in range(PARTITIONS)])
    begin = time.perf_counter()
    got = 0
    while got < count:
        got += len(consumer.consume(10_000, 1.0))
    consumed_s = time.perf_counter() - begin
    consumer.close()
    return {"produce": produced, "consume": count / consumed_s}


def latency(bootstrap: str, count: int, replicas: int = 1) -> Figures:
    """Returns the microseconds until a single message is acknowledged."""
    from confluent_kafka import Producer

    name = topic(bootstrap, f"latency-{time.time_ns()}", replicas)
    acks = -1 if replicas > 1 else 1
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": acks})
    times = []
    for number in range(count + 200):
        begin = time.perf_counter()
        producer.produce(name, b"x" * 100, partition=0)
        producer.flush()
        if number >= 200:
            times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    return {"p50": times[count // 2], "p99": times[int(count * 0.99)]}


def small_produce(name: str, partition: int, acks: int = 1) -> bytes:
    """Returns a framed Produce v7 with one message of 100 bytes."""
    from tidemill.records.builder import BatchBuilder

    builder = BatchBuilder()
    builder.append(int(time.time() * 1000), None, b"x" * 100, None)
    batch = builder.build()
    encoded = name.encode()
    body = struct.pack(">hhih", 0, 7, 1, 4) + b"load" + struct.pack(">hhii", -1, acks, 30_000, 1)
    body += struct.pack(">h", len(encoded)) + encoded + struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(body)) + body


def idle_fetch(name: str) -> bytes:
    """Returns a framed Fetch v4 that waits for records that never arrive."""
    encoded = name.encode()
    body = struct.pack(">hhih", 1, 4, 2, 4) + b"idle"
    body += struct.pack(">iiiibi", -1, 600_000, 1, 1 << 20, 0, 1)
    body += struct.pack(">h", len(encoded)) + encoded + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
    return struct.pack(">i", len(body)) + body


def connect(bootstrap: str) -> socket.socket:
    host, port = bootstrap.rsplit(":", 1)
    made = socket.create_connection((host, int(port)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def requests(bootstrap: str, connections: int, depth: int, seconds: float, idle: int) -> Figures:
    """Returns small produces per second, ``depth`` of them in flight on each connection."""
    name = topic(bootstrap, f"requests-{time.time_ns()}")
    waiting_on = topic(bootstrap, f"idle-{time.time_ns()}")
    idlers = [connect(bootstrap) for _ in range(idle)]
    for one in idlers:
        one.sendall(idle_fetch(waiting_on))
    frames = [[small_produce(name, number % PARTITIONS)] for number in range(connections)]
    figures = drive(bootstrap, name, frames, depth, seconds)
    for one in idlers:
        one.close()
    return figures


def spread(
    bootstrap: str, name: str, partitions: int, connections: int, depth: int, seconds: float, acks: int = 1
) -> Figures:
    """As :func:`requests`, to an existing topic, each produce to another partition."""
    order = random.Random(1).sample(range(partitions), partitions)
    frames = [small_produce(name, partition, acks) for partition in order]
    begins = [number * partitions // connections for number in range(connections)]
    return drive(bootstrap, name, [frames[begin:] + frames[:begin] for begin in begins], depth, seconds)


def drive(bootstrap: str, name: str, frames: list[list[bytes]], depth: int, seconds: float) -> Figures:
    """Keeps ``depth`` produces in flight on a connection for each list of ``frames``, which it repeats."""
    reply_bytes = 4 + 4 + 4 + 2 + len(name) + 4 + 4 + 2 + 8 + 8 + 8 + 4
    selector = selectors.DefaultSelector()
    opened: list[list[Any]] = []
    for turns in frames:
        state: list[Any] = [connect(bootstrap), itertools.cycle(turns), b""]
        selector.register(state[0], selectors.EVENT_READ, state)
        opened.append(state)
    error_at = reply_bytes - 4 - 8 - 8 - 8 - 2
    done = failed = error = 0
    begin = time.perf_counter()
    for state in opened:
        state[0].sendall(b"".join(itertools.islice(state[1], depth)))
    while (now := time.perf_counter()) - begin < seconds:
        for key, _ in selector.select(0.1):
            state = key.data
            data = state[2] + state[0].recv(1 << 16)
            count = len(data) // reply_bytes
            for index in range(count):
                at = index * reply_bytes + error_at
                if data[at : at + 2] != b"\x00\x00":
                    failed, error = failed + 1, int.from_bytes(data[at : at + 2], "big", signed=True)
            state[2] = data[count * reply_bytes :]
            done += count
            if count:
                state[0].sendall(b"".join(itertools.islice(state[1], count)))
    if failed:
        raise SystemExit(f"bench: {failed} of {done} requests failed, the last with error {error}")
    return {"requests": done / (now - begin)}


def main(arguments: list[str]) -> None:
    what, bootstrap, *numbers = arguments
    if what == "throughput":
        figures = throughput(bootstrap, int(numbers[0]), int(numbers[1]))
    elif what == "replicated":
        figures = replicated(bootstrap, int(numbers[0]), int(numbers[1]))
    elif what == "latency":
        figures = latency(bootstrap, *map(int, numbers))
    elif what == "requests":
        idle = int(numbers[3]) if len(numbers) > 3 else 0
        figures = requests(bootstrap, int(numbers[0]), int(numbers[1]), float(numbers[2]), idle)
    elif what == "spread":
        partitions, connections, depth = map(int, numbers[1:4])
        acks = int(numbers[5]) if len(numbers) > 5 else 1
        figures = spread(bootstrap, numbers[0], partitions, connections, depth, float(numbers[4]), acks)
    else:
        raise SystemExit(__doc__)
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
