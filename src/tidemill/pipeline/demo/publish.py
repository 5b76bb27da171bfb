"""Publishes the rows, and computes the counts, sums and checksums that the checks need."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.client.producer import BulkDelivery, Producer
from tidemill.pipeline.demo.flights import messages

CHUNK_ROWS = 4096


@dataclass
class Published:
    """The messages published to one topic, counted by the sender.

    ``checksum`` is the sum of the CRC-32 of all values: it verifies that the bytes read are the bytes sent,
    in any order.
    """

    topic: str
    rows: int = 0
    value_bytes: int = 0
    checksum: int = 0
    by_date: Counter[str] = field(default_factory=Counter)
    by_key: Counter[str] = field(default_factory=Counter)


def publish_topic(
    bootstrap: str, topic: str, name: str, on_progress: Callable[[int], None], limit: int | None = None
) -> Published:
    """Sends the rows of the file of ``topic`` to the topic ``name``; returns when all are acknowledged.

    Raises ClientError if a message failed.
    """
    done = Published(name)
    deliveries: list[BulkDelivery] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    times: list[int | None] = []
    with Producer(bootstrap, {"acks": "all", "linger.ms": 20}) as producer:

        def send() -> None:
            deliveries.append(producer.send_batch(name, values, keys, timestamps_ms=times))
            on_progress(len(values))
            keys.clear()
            values.clear()
            times.clear()

        for message in messages(topic):
            keys.append(message.key)
            values.append(message.value)
            times.append(message.timestamp_ms)
            done.rows += 1
            done.value_bytes += len(message.value)
            done.checksum += zlib.crc32(message.value)
            done.by_date[message.date] += 1
            done.by_key[message.key.decode()] += 1
            if len(values) == CHUNK_ROWS:
                send()
            if done.rows == limit:
                break
        if values:
            send()
        for delivery in deliveries:
            delivery.result()
    return done
