"""Reads the logs of simulated brokers: their content, their state on disk, and their changes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from simulated_disk import SimulatedFiles

from tidemill.log.checkpoint_files import CheckpointDamaged, parse_checkpoint
from tidemill.log.file_names import MOVED_TO
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.checksum import crc32c
from tidemill.records.end_transaction_marker import ABORT, read_marker
from tidemill.records.record_reader import iter_stored
from tidemill.replication.partition import Partition

DATA_DIRECTORIES = ("/data", "/data2")
"""Where simulated brokers may have their logs."""
_BASE_AND_LENGTH = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_LAST_DELTA = struct.Struct(">i")
CRC_AT, CHECKED_FROM, LAST_DELTA_AT = 17, 21, 23


def records_of(partition: Partition) -> bytes:
    """Returns all batches of a log, byte for byte."""
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


def aborted_offsets(data: bytes) -> set[int]:
    """Returns the offsets of the records in ``data`` whose transactions end there with an abort."""
    return uncommitted_offsets(data)[0]


def uncommitted_offsets(data: bytes) -> tuple[set[int], set[int]]:
    """Returns the offsets of the records in ``data`` whose transactions end there with an abort, and of those
    whose transactions do not end there.
    """
    open_ones: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for batch in iter_stored(data):
        if not isinstance(batch, Batch) or not batch.is_transactional:
            continue
        if not batch.is_control:
            offsets = range(int(batch.base_offset), int(batch.last_offset) + 1)
            open_ones.setdefault(int(batch.producer_id), []).extend(offsets)
            continue
        marker = read_marker(batch)
        held = open_ones.pop(int(batch.producer_id), [])
        if marker is not None and marker.control_type == ABORT:
            aborted.update(held)
    return aborted, {offset for held in open_ones.values() for offset in held}


def log_directory(names_in: Callable[[str], Collection[str]], partition: str) -> str:
    """Returns the directory of a partition's log, such as ``t-0``, also during a move to another directory.

    Once the copy has the final name, a starting broker uses it instead of the original.
    """
    there = [path for one in DATA_DIRECTORIES if names_in(path := f"{one}/{partition}")]
    left = [path for path in there if MOVED_TO not in names_in(path)]
    return (left or there or [f"{DATA_DIRECTORIES[0]}/{partition}"])[0]


def has_line(files: SimulatedFiles, path: str, topic_partition: TopicPartition) -> bool:
    """Whether the checkpoint at ``path`` after a power failure has a line of a partition."""
    directory, _, name = path.rpartition("/")
    if name not in files.durable_names(directory):
        return False
    try:
        lines = parse_checkpoint(files.durable(path), 3, path)
    except CheckpointDamaged:
        return False
    return any((topic, int(index)) == topic_partition for topic, index, _ in lines)


def end_on_disk(files: SimulatedFiles, partition: str) -> int:
    """Returns the end of the whole batches in the segments of a partition's log; -1 without a log."""

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
    """Returns the whole batches at the start of a file: first and last offset, and bytes."""
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
    """Detects changes of the logs of running brokers: truncation, new segments, moved start offsets."""

    def __init__(self, happened: Callable[[str], None]) -> None:
        self._happened = happened
        self._seen: dict[Any, tuple[int, int, int]] = {}

    def look(self, node_id: int, partitions: Iterable[Partition]) -> None:
        """Compares the logs of a broker with their state at the last call."""
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
