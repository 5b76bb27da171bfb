"""Partitioners: choose the partition of a message.

The keyed partitioners hash as other clients do that write to the same topics: murmur2 as the Java client (so
that a key goes to the same partition from all programs), CRC-32 as librdkafka's ``consistent``.

A partitioner of the user is a callable: ``(topic, key, number of partitions) -> partition``. It runs in the
thread that sends; several threads may call it at the same time.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from mypy_extensions import i64

from tidemill.model.errors import ConfigError


def murmur2(data: bytes) -> int:
    """Returns the 32-bit murmur2 hash of the Java client, unsigned; Java prints the same bits signed."""
    length: i64 = len(data)
    multiplier: i64 = 0x5BD1E995
    mask: i64 = 0xFFFFFFFF
    seed: i64 = 0x9747B28C
    h: i64 = seed ^ length
    i: i64 = 0
    k: i64
    last: i64 = length - 3
    while i < last:
        k = data[i] | (data[i + 1] << 8) | (data[i + 2] << 16) | (data[i + 3] << 24)
        k = (k * multiplier) & mask
        k = ((k ^ (k >> 24)) * multiplier) & mask
        h = ((h * multiplier) & mask) ^ k
        i += 4
    rest: i64 = length - i
    if rest == 3:
        h ^= data[i + 2] << 16
    if rest >= 2:
        h ^= data[i + 1] << 8
    if rest >= 1:
        h = ((h ^ data[i]) * multiplier) & mask
    h = ((h ^ (h >> 13)) * multiplier) & mask
    return h ^ (h >> 15)


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Returns the partition of ``key`` that Java clients choose."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def crc32_partition(key: bytes, partitions: int) -> int:
    """Returns the partition of ``key`` that librdkafka's ``consistent`` partitioner chooses."""
    return crc32(key) % partitions


MURMUR2: Final = 0
CONSISTENT: Final = 1
ROUND_ROBIN: Final = 2
STICKY: Final = 3
CUSTOM: Final = 4
"""The kind of a partitioner of the user."""

KINDS: Final = {
    "murmur2": MURMUR2,
    "consistent": CONSISTENT,
    "roundrobin": ROUND_ROBIN,
    "sticky": STICKY,
}
"""The kinds by the values of ``partitioner``: murmur2 and consistent are sticky without a key."""

ALIASES: Final = {
    "default": "murmur2",
    "murmur2_random": "murmur2",
    "consistent_random": "consistent",
    "crc32": "consistent",
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2",
    "kafka.producer.DefaultPartitioner": "murmur2",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "roundrobin",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "sticky",
}


def kind_of(name: str) -> int:
    """Returns the kind of a configured name; raises ConfigError for an unknown name."""
    kind = KINDS.get(ALIASES.get(name, name))
    if kind is None:
        allowed = ", ".join(KINDS)
        raise ConfigError(f"partitioner={name!r} is not known; use one of {allowed}, or a callable")
    return kind
