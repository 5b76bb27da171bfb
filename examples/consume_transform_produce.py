"""Reads messages of one topic, transforms them, and writes each result to another topic exactly once.

    python examples/consume_transform_produce.py localhost:9092 lines words --name worker-1

The results and the positions in the input belong to one transaction. A process that ends before the commit
leaves nothing: the next process with the same name aborts its transaction, and reads the same input again.
Consumers of the output need ``isolation.level=read_committed``.

Several processes share the partitions of the input; each has a name of its own, and keeps it when it
restarts. The name is the transactional id, and the id of a static group member: a process that replaces
another one continues at once.
"""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Iterable
from types import FrameType

from tidemill.client import (
    AbortableTransactionError,
    Consumer,
    ConsumerRecord,
    Producer,
    TopicPartition,
)

logger = logging.getLogger("consume_transform_produce")


def transform(value: bytes | None) -> list[bytes]:
    """Returns the words of a line."""
    return (value or b"").split()


def run(address: str, source: str, destination: str, name: str, group: str) -> None:
    """Processes messages until the process is stopped.

    Raises ClientError if another one has its name: ProducerFenced, or FENCED_INSTANCE_ID of the group.
    """
    producer_config = {"transactional.id": name, "transaction.timeout.ms": 30_000}
    consumer_config = {
        "group.id": group,
        "group.instance.id": name,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    with Producer(address, producer_config) as producer, Consumer(address, consumer_config) as consumer:
        consumer.subscribe([source])
        while True:
            messages = consumer.poll(1.0)
            if not messages:
                continue
            try:
                with producer.transaction():
                    for message in messages:
                        for word in transform(message.value):
                            producer.send(destination, word, key=message.key)
                    producer.send_offsets(next_offsets(messages), consumer.group_metadata())
            except AbortableTransactionError as problem:
                logger.warning("the transaction was aborted, and is repeated: %s", problem)
                rewind(consumer, messages)


def next_offsets(messages: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Returns the positions after the messages: the group continues there."""
    return {TopicPartition(one.topic, one.partition): one.offset + 1 for one in messages}


def rewind(consumer: Consumer, messages: Iterable[ConsumerRecord]) -> None:
    """Moves the positions back to before the messages, in the partitions that this member still has."""
    first: dict[TopicPartition, int] = {}
    for one in messages:
        first.setdefault(TopicPartition(one.topic, one.partition), one.offset)
    for partition in consumer.assignment() & first.keys():
        consumer.seek(partition, first[partition])


def stop(number: int, frame: FrameType | None) -> None:
    """Ends the loop: the open transaction is aborted, and the consumer closed."""
    raise SystemExit(128 + number)


def main() -> None:
    """Runs with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("address", help="HOST:PORT of a broker")
    parser.add_argument("source", help="topic of the input")
    parser.add_argument("destination", help="topic of the results")
    parser.add_argument("--name", default="worker-1", help="name of this process, kept over restarts")
    parser.add_argument("--group", default="words", help="group of the processes that share the input")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    run(arguments.address, arguments.source, arguments.destination, arguments.name, arguments.group)


if __name__ == "__main__":
    main()
