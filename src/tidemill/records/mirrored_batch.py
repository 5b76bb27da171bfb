"""The batches of a Produce request to a mirror: whole batches of the source, with their offsets. Compiled.

Such a batch differs from a stored one in the field ``partition leader epoch`` (byte 12, int32), which the
checksum does not cover, and in which the leader sets its own epoch:

===============  ============================================================================
value            meaning
===============  ============================================================================
-1, 0 and more   sent by an ordinary producer: refused
-2 - gap         mirrored; the source has no batch for the ``gap`` offsets before this batch
===============  ============================================================================

The gap is 0 to :data:`GAP_MAX`. The leader of the mirror appends a batch only if the gap covers all offsets
from its log end on: ``base offset - gap <= log end offset <= base offset``. Two senders with different views
of the log end can therefore not leave a hole, and a batch of an ordinary producer is never taken for a
mirrored one.

A batch without records fills larger gaps, and those at the end of the source. Entries of message formats v0
and v1 have no such field. Their offsets follow the log end with any gap.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i32, i64

from tidemill.records.batch import (
    CURRENT_MAGIC,
    LEADER_EPOCH,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Batch,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.builder import assemble
from tidemill.records.legacy_formats import parse_entry

MIRRORED: Final = -2
"""The leader epoch of a mirrored batch without a gap before it."""
GAP_MAX: Final = 0x7FFFFFFE
"""The largest gap: -2 less this is the smallest int32."""
EMPTY_OFFSETS_MAX: Final = 0x7FFFFFFF
"""The number of offsets that one batch without records fills."""
NOT_MIRRORED: Final[i64] = -1
"""A result of :func:`gap_before`."""


def gap_before(batch: Batch) -> i64:
    """Returns the gap before a mirrored batch; :data:`NOT_MIRRORED` for one of an ordinary producer."""
    return MIRRORED - batch.leader_epoch if batch.leader_epoch <= MIRRORED else NOT_MIRRORED


def as_mirrored(batch: bytes, gap: i64) -> bytes:
    """Returns one batch of format v2 as it is sent to a mirror; ``gap`` is the number of offsets before it.

    Raises ValueError for a gap outside of 0 to :data:`GAP_MAX`.
    """
    out = BytesWriter()
    _write_mirrored(out, batch, 0, len(batch), gap)
    return out.getvalue()


def empty_batches(next_offset: i64, end_offset: i64) -> bytes:
    """Returns mirrored batches without records for the offsets from ``next_offset`` to before ``end_offset``.

    They are sent where the source has no batches: at its end, and in gaps beyond :data:`GAP_MAX`.
    """
    out = BytesWriter()
    while next_offset < end_offset:
        count: i64 = min(end_offset - next_offset, EMPTY_OFFSETS_MAX)
        out.write(
            assemble(
                b"",
                next_offset,
                MIRRORED,
                0,
                count - 1,
                NO_TIMESTAMP,
                NO_TIMESTAMP,
                NO_PRODUCER_ID,
                NO_PRODUCER_EPOCH,
                NO_SEQUENCE,
                0,
            )
        )
        next_offset += count
    return out.getvalue()


def mirrored_batches(data: bytes, next_offset: i64) -> bytes:
    """Returns the batches of a Fetch response as they are sent to a mirror with the log end ``next_offset``.

    The fetch began at ``next_offset``. Batches below it, and an incomplete one at the end, are left out. A
    batch across it is sent whole, without a gap: only an empty mirror accepts it. Raises CorruptMessage for
    bytes that are no batches; checksums are not checked.
    """
    out = BytesWriter()
    position: i64 = 0
    end: i64 = len(data)
    size: i64 = whole_batch_size(data, position, end)
    while size > 0:
        if data[position + MAGIC] < CURRENT_MAGIC:
            entry = parse_entry(data, position, end)
            last: i64 = entry.offset
            if last >= next_offset:
                out.write(data[position : position + size])
        else:
            batch = parse_batch(data, position, end)
            last = batch.last_offset
            if last >= next_offset:
                gap: i64 = max(batch.base_offset - next_offset, 0)
                if gap > GAP_MAX:
                    out.write(empty_batches(next_offset, batch.base_offset))
                    gap = 0
                _write_mirrored(out, data, position, size, gap)
        next_offset = max(next_offset, last + 1)
        position += size
        size = whole_batch_size(data, position, end)
    return out.getvalue()


def _write_mirrored(out: BytesWriter, data: bytes, position: i64, size: i64, gap: i64) -> None:
    if gap < 0 or gap > GAP_MAX:
        raise ValueError(
            f"a gap of {gap} offsets before a mirrored batch: 0 to {GAP_MAX} is possible, and batches without"
            " records (empty_batches) fill larger ones"
        )
    out.write(data[position : position + LEADER_EPOCH])
    write_i32_be(out, i32(MIRRORED - gap))
    out.write(data[position + MAGIC : position + size])
