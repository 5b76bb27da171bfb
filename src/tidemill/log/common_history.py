"""Up to where the copy of a partition on its way to another directory holds what the partition holds.

While the move rests a follower may cut records that the copy has, and other records of a later leader take
their offsets. All records of one leader epoch come from one leader, and each log has the first of them: two
logs that know an epoch are the same up to where it ends first in one of them. As a check, the last batch
before that point must be the same in both, and what comes before it must take as many bytes: while the copy's
directory is offline nothing keeps compaction from the partition, and from tombstones that the copy has yet to
get.

Messages of formats v0 and v1 know no epoch. Of a copy that ends with them nobody can tell whether it has
other messages further down, so that it is copied again from its beginning.

Source: KIP-279; Apache Kafka, ``ReplicaAlterLogDirsThread.java``, which truncates by epochs, too.
"""

from __future__ import annotations

from typing import Final

from tidemill.log.errors import storage_error
from tidemill.log.log import Log
from tidemill.records.batch import ATTRIBUTES, CURRENT_MAGIC, MAGIC

COMPARED_BYTES: Final = ATTRIBUTES
"""Of a batch: offset, length, leader epoch, magic and checksum, so that it speaks for the records, too."""


def rejoin(copy: Log, partition: Log, now_ms: int) -> None:
    """Cuts ``copy`` to what it has in common with ``partition``; it is emptied where that is not known.

    The cut is not synced: that must be done before more is copied. Raises StorageError.
    """
    end = _common_end(copy, partition)
    if end > partition.start_offset:
        copy.truncate_to(end, now_ms)  # A batch that straddles the end goes as a whole.
        if (
            copy.end_offset > partition.start_offset
            and _is_last_batch_same(copy, partition)
            and _bytes_before(copy, partition, copy) == _bytes_before(copy, partition, partition)
        ):
            return
    empty(copy, partition, now_ms)


def empty(copy: Log, partition: Log, now_ms: int) -> None:
    """Empties ``copy``, so that it begins where ``partition`` does. Raises StorageError."""
    copy.truncate_fully(partition.start_offset, now_ms)


def _common_end(copy: Log, partition: Log) -> int:
    """Where the histories part, by their leader epochs; -1 when they have none in common."""
    if copy.start_offset > partition.start_offset:
        return -1
    end = min(int(copy.end_offset), int(partition.end_offset))
    return copy.leader_epochs.common_end(partition.leader_epochs, end)


def _is_last_batch_same(copy: Log, partition: Log) -> bool:
    """Whether the last batch of ``copy`` is in ``partition``; False also where nobody can tell."""
    header = _header_at(copy, int(copy.end_offset) - 1)
    if len(header) < COMPARED_BYTES or header[MAGIC] != CURRENT_MAGIC:
        return False
    return header == _header_at(partition, int(copy.end_offset) - 1)


def _bytes_before(copy: Log, partition: Log, log: Log) -> int:
    """What the batches from the partition's start to the copy's end take in ``log``, one of the two."""
    start, end = partition.start_offset, copy.end_offset
    first, last = int(log.segment_at(start)), int(log.segment_at(end))
    try:
        count = log.segments[last].position_of(end) - log.segments[first].position_of(start)
    except OSError as problem:
        raise storage_error("read", log.directory, problem) from problem
    return int(count) + sum(int(one.size) for one in log.segments[first:last])


def _header_at(log: Log, offset: int) -> bytes:
    """The first bytes of the batch that has ``offset``, or of the one after it; empty when there is none."""
    found = log.read(offset, 1, log.end_offset, True)
    if found is None:
        return b""
    try:
        return found.file.read_at(found.position, COMPARED_BYTES)
    except OSError as problem:
        raise storage_error("read", log.directory, problem) from problem
