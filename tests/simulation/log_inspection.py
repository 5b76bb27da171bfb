"""Reads the logs of simulated brokers: what they hold, what is on their disks, and what happens to them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from simulated_disk import SimulatedFiles

from tidemill.log.checkpoints import CheckpointDamaged, parse_checkpoint
from tidemill.log.names import MOVED_TO
from tidemill.model.types import TopicPartition
from tidemill.records.checksum import crc32c
from tidemill.records.reader import iter_stored
from tidemill.replication.partition import Partition

DATA_DIRECTORIES = ("/data", "/data2")
"""Where simulated brokers may have their logs."""
_BASE_AND_LENGTH = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_LAST_DELTA = struct.Struct(">i")
CRC_AT, CHECKED_FROM, LAST_DELTA_AT = 17, 21, 23


def records_of(partition: Partition) -> bytes:
    """All batches of a log, byte for byte."""
    log = partition.log
    found = b""
    offset = int(log.start_offset)
    end = int(log.end_offset)
    while offset < end:
        piece = log.read(offset, 1 << 20, end, True)
        if piece is None:
            break
        data = piece.read()
        found += data
        # A compacted log has batches without records.
        offset = max((int(batch.last_offset) for batch in iter_stored(data)), default=end) + 1
    return found


def log_directory(names_in: Callable[[str], Collection[str]], partition: str) -> str:
    """The directory with the log of a partition, such as ``t-0``, where it was moved from one to another.

    Once the copy is there under its name, a broker that starts takes it instead of the one that was copied.
    """
    there = [path for one in DATA_DIRECTORIES if names_in(path := f"{one}/{partition}")]
    left = [path for path in there if MOVED_TO not in names_in(path)]
    return (left or there or [f"{DATA_DIRECTORIES[0]}/{partition}"])[0]


def has_line(files: SimulatedFiles, path: str, topic_partition: TopicPartition) -> bool:
    """Whether the checkpoint that a power cut would leave at ``path`` has a line of a partition."""
    directory, _, name = path.rpartition("/")
    if name not in files.durable_names(directory):
        return False
    try:
        lines = parse_checkpoint(files.durable(path), 3, path)
    except CheckpointDamaged:
        return False
    return any((topic, int(index)) == topic_partition for topic, index, _ in lines)


def end_on_disk(files: SimulatedFiles, partition: str) -> int:
    """Where the whole batches end that are in the segments of a partition's log; -1 when it has none."""

    def names_in(path: str) -> list[str]:
        return files.list(path) if files.exists(path) else []

    directory = log_directory(names_in, partition)
    end = -1
    for name in names_in(directory):
        if not name.endswith(".log"):
            continue
        for _, last, _ in whole_batches(files.read(f"{directory}/{name}")):
            end = max(end, last + 1)
    return end


def whole_batches(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The batches at the beginning of a file that are whole: their first and last offset, and their bytes."""
    position = 0
    while position + CHECKED_FROM + LAST_DELTA_AT <= len(data):
        base, length = _BASE_AND_LENGTH.unpack_from(data, position)
        size = _BASE_AND_LENGTH.size + length
        batch = data[position : position + size]
        if (
            length <= 0
            or len(batch) < size
            or _CRC.unpack_from(batch, CRC_AT)[0] != crc32c(batch[CHECKED_FROM:])
        ):
            break
        yield base, base + _LAST_DELTA.unpack_from(batch, LAST_DELTA_AT)[0], batch
        position += size


class LogWatch:
    """Notices what happens to the logs of running brokers: truncation, new segments, moved starts."""

    def __init__(self, happened: Callable[[str], None]) -> None:
        self._happened = happened
        self._seen: dict[Any, tuple[int, int, int]] = {}

    def look(self, node_id: int, partitions: Iterable[Partition]) -> None:
        """Compares the logs of a broker with how they were when they were looked at last."""
        for partition in partitions:
            log = partition.log
            key = (node_id, log.topic_id, int(partition.index))
            now = (int(log.start_offset), int(log.end_offset), int(log.active.base_offset))
            before = self._seen.get(key)
            if before == now:
                continue
            self._seen[key] = now
            if before is None:
                continue
            start, end, active = before
            if now[1] < end:
                self._happened("truncation")
            if now[2] > active:
                self._happened("segment roll")
            if now[0] > start:
                self._happened("log start moved")
                if now[0] == now[1]:
                    self._happened("log emptied")
