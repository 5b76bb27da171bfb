"""One client's transactions on one broker, in a separate process; prints its figures as JSON.

transaction_load.py rate BOOTSTRAP PRODUCERS RECORDS BYTES SECONDS
                                                transactions of RECORDS messages, one after the other
transaction_load.py latency BOOTSTRAP COUNT     from the send of a message to its consumer, after the commit
transaction_load.py throughput BOOTSTRAP COUNT BYTES
                                                produce without and with transactions of 100 ms, then consume
                                                the second topic, uncommitted and committed
transaction_load.py ids BOOTSTRAP COUNT         COUNT transactional ids get their producer id
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from typing import Any

from load import PARTITIONS, Figures, topic

TIMEOUT_S = 60
TRANSACTION_S = 0.1
IDS_IN_FLIGHT = 100


def transactional(bootstrap: str, name: str, **config: Any) -> Any:
    """Returns a producer of librdkafka that is ready to begin transactions."""
    from confluent_kafka import Producer

    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            **config,
        }
    )
    made.init_transactions(TIMEOUT_S)
    return made


def rate(bootstrap: str, producers: int, records: int, size: int, seconds: float) -> Figures:
    """Returns committed transactions a second of all producers together."""
    name = topic(bootstrap, f"transactions-{time.time_ns()}")
    messages = [{"value": b"x" * size, "partition": index % PARTITIONS} for index in range(records)]
    made = [transactional(bootstrap, f"{name}-{number}", **{"linger.ms": 0}) for number in range(producers)]
    counts = [0] * producers
    until = [0.0]

    def run(number: int) -> None:
        producer = made[number]
        while time.perf_counter() < until[0]:
            producer.begin_transaction()
            if producer.produce_batch(name, messages) != records:
                raise SystemExit("bench: a message was not queued")
            producer.commit_transaction(TIMEOUT_S)
            counts[number] += 1

    for warm in (True, False):
        counts[:] = [0] * producers
        begin = time.perf_counter()
        until[0] = begin + (1.0 if warm else seconds)
        threads = [threading.Thread(target=run, args=(number,)) for number in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent_s = time.perf_counter() - begin
    return {"transactions": sum(counts) / spent_s}


def reader(bootstrap: str, name: str, isolation_level: str) -> Any:
    """Returns a consumer of all partitions from their start."""
    from confluent_kafka import Consumer, TopicPartition

    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            "fetch.message.max.bytes": 4_000_000,
            "queued.min.messages": 1_000_000,
            # Its default, a second, would be measured instead of the broker whenever the queue is full.
            "fetch.queue.backoff.ms": 5,
            "fetch.max.bytes": 50_000_000,
        }
    )
    made.assign([TopicPartition(name, index, 0) for index in range(PARTITIONS)])
    return made


def latency(bootstrap: str, count: int) -> Figures:
    """Returns the microseconds from the send of a message to its consumer, after its commit."""
    name = topic(bootstrap, f"committed-{time.time_ns()}")
    producer = transactional(bootstrap, name, **{"linger.ms": 0})
    consumer = reader(bootstrap, name, "read_committed")
    times = []
    warm = 100
    for number in range(count + warm):
        begin = time.perf_counter()
        producer.begin_transaction()
        producer.produce(name, b"x" * 100, partition=0)
        producer.commit_transaction(TIMEOUT_S)
        message = consumer.poll(TIMEOUT_S)
        if message is None or message.error() is not None:
            raise SystemExit(f"bench: message {number} was not read: {message and message.error()}")
        if number >= warm:
            times.append((time.perf_counter() - begin) * 1e6)
    consumer.close()
    times.sort()
    return {"p50": times[count // 2], "p99": times[int(count * 0.99)]}


def produced(producer: Any, name: str, count: int, size: int, *, commits: bool) -> float:
    """Returns messages a second; with ``commits``, in transactions of 100 ms."""
    value = b"x" * size
    begin = time.perf_counter()
    due = begin + TRANSACTION_S
    if commits:
        producer.begin_transaction()
    for number in range(count):
        producer.produce(name, value, partition=number % PARTITIONS)
        if number % 1_000 == 0:
            producer.poll(0)
            if commits and time.perf_counter() > due:
                producer.commit_transaction(TIMEOUT_S)
                producer.begin_transaction()
                due = time.perf_counter() + TRANSACTION_S
    if commits:
        producer.commit_transaction(TIMEOUT_S)
    elif producer.flush(TIMEOUT_S):
        raise SystemExit("bench: messages were left")
    return count / (time.perf_counter() - begin)


def consumed(bootstrap: str, name: str, count: int, isolation_level: str) -> float:
    """Returns messages a second of a consumer."""
    consumer = reader(bootstrap, name, isolation_level)
    begin = time.perf_counter()
    got = 0
    while got < count:
        got += len(consumer.consume(10_000, 1.0))
    spent_s = time.perf_counter() - begin
    consumer.close()
    return count / spent_s


def throughput(bootstrap: str, count: int, size: int) -> Figures:
    """Returns messages a second, without and with transactions."""
    from confluent_kafka import Producer

    config = {"linger.ms": 5, "batch.size": 1_000_000, "acks": -1, "enable.idempotence": True}
    queue = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1_048_576}
    plain = topic(bootstrap, f"plain-{time.time_ns()}")
    name = topic(bootstrap, f"transactional-{time.time_ns()}")
    without = Producer({"bootstrap.servers": bootstrap, **queue, **config})
    figures = {"plain": produced(without, plain, count, size, commits=False)}
    within = transactional(bootstrap, name, **config)
    figures["transactional"] = produced(within, name, count, size, commits=True)
    for level in ("read_uncommitted", "read_committed"):
        figures[level] = consumed(bootstrap, name, count, level)
    return figures


def ids(bootstrap: str, count: int) -> Figures:
    """Returns transactional ids a second that get their first producer id."""
    from confluent_kafka import Producer

    Producer({"bootstrap.servers": bootstrap, "transactional.id": "first"}).init_transactions(TIMEOUT_S)
    host, port = bootstrap.rsplit(":", 1)
    begin = time.perf_counter()
    left = list(range(count))
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        answers = connection.makefile("rb")
        while left:
            some, left = left[:IDS_IN_FLIGHT], left[IDS_IN_FLIGHT:]
            connection.sendall(b"".join(init_producer_id(number) for number in some))
            for number in some:
                (size,) = struct.unpack(">i", answers.read(4))
                # Correlation id, throttle time, error code.
                if struct.unpack_from(">iih", answers.read(size))[2]:
                    left.append(number)
    return {"ids": count / (time.perf_counter() - begin)}


def init_producer_id(number: int) -> bytes:
    """Returns a framed InitProducerId v0."""
    name = b"bench-%06d" % number
    body = struct.pack(">hhih", 22, 0, number, 4) + b"load" + struct.pack(">h", len(name)) + name
    body += struct.pack(">i", 60_000)
    return struct.pack(">i", len(body)) + body


KINDS = {"rate": rate, "latency": latency, "throughput": throughput, "ids": ids}


def main() -> None:
    kind, bootstrap, *arguments = sys.argv[1:]
    numbers = [float(one) if "." in one else int(one) for one in arguments]
    print(json.dumps(KINDS[kind](bootstrap, *numbers)))  # type: ignore[operator]


if __name__ == "__main__":
    main()
