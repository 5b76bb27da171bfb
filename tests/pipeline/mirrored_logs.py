"""Compares the logs of a source and of its mirror, batch by batch."""

from __future__ import annotations

import struct

from tidemill.client import Admin
from tidemill.client.range_reader import RangeReader
from tidemill.model.types import TopicPartition
from tidemill.records.batch import LAST_OFFSET_DELTA, LEADER_EPOCH, LENGTH, LOG_OVERHEAD, MAGIC


def bounds(bootstrap: str, topic: str) -> dict[int, tuple[int, int]]:
    """Returns log start and high watermark of each partition."""
    with Admin(bootstrap) as admin:
        items = [TopicPartition(topic, part.partition) for part in admin.describe_topic(topic).partitions]
        first = admin.list_offsets(dict.fromkeys(items, "earliest"))
        last = admin.list_offsets(dict.fromkeys(items, "latest"))
    return {item.partition: (first[item].offset, last[item].offset) for item in items}


def batches(bootstrap: str, topic: str, partition: int) -> dict[int, bytes]:
    """Returns the stored batches of a partition by base offset, without their leader epochs."""
    start, end = bounds(bootstrap, topic)[partition]
    found: dict[int, bytes] = {}
    with RangeReader(bootstrap, isolation_level="read_uncommitted") as reader:
        for response in reader.fetch(topic, partition, start, end):
            data, at = response.data, response.start
            while response.end - at > LAST_OFFSET_DELTA:
                size = struct.unpack_from(">i", data, at + LENGTH)[0] + LOG_OVERHEAD
                if at + size > response.end:
                    break
                base = struct.unpack_from(">q", data, at)[0]
                found[base] = data[at : at + LEADER_EPOCH] + data[at + MAGIC : at + size]
                at += size
    return found


def assert_same_logs(source: str, target: str, topic: str, target_topic: str | None = None) -> None:
    """Asserts that each partition has the same bounds and the same batches in both clusters."""
    name = target_topic or topic
    assert bounds(source, topic) == bounds(target, name)
    for partition in bounds(source, topic):
        assert batches(source, topic, partition) == batches(target, name, partition), f"{topic}-{partition}"
