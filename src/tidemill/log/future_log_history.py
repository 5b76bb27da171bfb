"""Truncates a future log to its common end with the current log.

While a move is interrupted, a follower may truncate records that the future log has, and a later leader may
write others at their offsets. All records of one leader epoch come from one leader, and each log has the
first of them: two logs that both have an epoch are equal up to the first end of that epoch. As a check, the
last batch before that point must be the same in both, and the preceding batches must have the same size:
while the directory of the future log is offline, compaction may remove tombstones of the current log that the
future log has not copied yet.

Messages of formats v0 and v1 have no epoch. If a future log ends with such messages, its earlier messages may
differ too, so it is copied again from the start.

Source: KIP-279; Apache Kafka, ``ReplicaAlterLogDirsThread.java``, which also truncates by epochs.
"""

from __future__ import annotations

from typing import Final

from tidemill.log.errors import StorageErrors
from tidemill.log.log import Log
from tidemill.records.batch import ATTRIBUTES, CURRENT_MAGIC, MAGIC

COMPARED_BYTES: Final = ATTRIBUTES
"""The compared part of a batch: offset, length, leader epoch, magic and checksum, which covers the records.
"""


def truncate_to_common_end(copy: Log, partition: Log, now_ms: int) -> None:
    """Truncates ``copy`` to its common end with ``partition``, or empties it if that end is unknown.

    The truncation is not synced, which must be done before further appends. Raises StorageError.
    """
    end = _common_end(copy, partition)
    if end > partition.start_offset:
        copy.truncate_to(end, now_ms)  # A batch across the end is removed as a whole.
        if (
            copy.end_offset > partition.start_offset
            and _is_last_batch_same(copy, partition)
            and _bytes_before(copy, partition, copy) == _bytes_before(copy, partition, partition)
        ):
            return
    copy.truncate_fully_and_start_at(partition.start_offset, now_ms)


def _common_end(copy: Log, partition: Log) -> int:
    """The end of the common history, by the leader epochs; -1 without a common epoch."""
    if copy.start_offset > partition.start_offset:
        return -1
    end = min(int(copy.end_offset), int(partition.end_offset))
    return copy.leader_epochs.common_end(partition.leader_epochs, end)


def _is_last_batch_same(copy: Log, partition: Log) -> bool:
    """Whether ``partition`` has the last batch of ``copy``; False if this cannot be determined."""
    header = _header_at(copy, int(copy.end_offset) - 1)
    if len(header) < COMPARED_BYTES or header[MAGIC] != CURRENT_MAGIC:
        return False
    return header == _header_at(partition, int(copy.end_offset) - 1)


def _bytes_before(copy: Log, partition: Log, log: Log) -> int:
    """The size in ``log``, one of the two, of the batches from the partition's start to the copy's end."""
    start, end = partition.start_offset, copy.end_offset
    first, last = int(log.segment_list.at(start)), int(log.segment_list.at(end))
    with StorageErrors("read", log.directory):
        count = log.segments[last].translate_offset(end) - log.segments[first].translate_offset(start)
    return int(count) + sum(int(one.size) for one in log.segments[first:last])


def _header_at(log: Log, offset: int) -> bytes:
    """The first bytes of the batch with ``offset``, or of the next one; empty if there is none."""
    found = log.read(offset, 1, log.end_offset, True)
    if found is None:
        return b""
    with StorageErrors("read", log.directory):
        return found.file.read_at(found.position, COMPARED_BYTES)
