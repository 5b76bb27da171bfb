"""Between the message formats: what producers send becomes what a topic stores, what is stored what old
consumers read.

=================  ======================================================================================
from → to          what happens
=================  ======================================================================================
same format        checked, and kept byte for byte where neither codec nor offsets ask for more
v0, v1 → v2        all entries of the set become one batch; a v0 record has no time (-1)
v2 → v1, v0        one wrapper when there is a codec, else an entry for each record; headers cannot be kept
v1 → v0            likewise; times go
=================  ======================================================================================

Pure functions of bytes: nothing here reads a clock or keeps anything, so that they may run in a thread or in
a worker process. What they take is bounded by their arguments.

Source: Apache Kafka, ``LogValidator.java``, ``RecordsUtil.java``, ``MemoryRecordsBuilder.java``; KIP-31,
KIP-32, KIP-98.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.records.batch import Batch
from tidemill.records.message_set import MessageSet
from tidemill.records.validate import Limits

KEEP_CODEC: Final = -1
"""``compression.type=producer``: the records stay under the codec that they came with."""


def for_storage(
    data: bytes,
    position: i64,
    end: i64,
    target_magic: i64,
    codec: i64,
    limits: Limits,
    now_ms: i64,
    append_time: bool,
    level: int | None = None,
) -> Batch | MessageSet:
    """What a topic stores of what a producer sent: a ``Batch`` for format 2, a ``MessageSet`` for 0 and 1.

    ``data[position:end]`` is a message set of entries of format 0 or 1, or one batch of format 2; the result
    is of format ``target_magic`` (0, 1, 2) and of ``codec`` (0 none to 4 zstd, or ``KEEP_CODEC``), compressed
    with ``level`` where it had to be compressed anew. ``append_time``: the topic stores the broker's clock,
    which :meth:`Log.append` and :meth:`Log.append_messages` write; here it only means that the times of
    records are not checked. Every record is checked before anything is returned.

    Raises CorruptMessage (framing, checksums, compression), InvalidRecord (with ``record_errors`` where
    single records are at fault; INVALID_TIMESTAMP for their times), and KafkaError with MESSAGE_TOO_LARGE
    (as it was sent, or as it would be stored), UNSUPPORTED_COMPRESSION_TYPE (zstd below format 2) or
    UNSUPPORTED_FOR_MESSAGE_FORMAT (idempotent or transactional batches and headers below format 2).
    """
    raise NotImplementedError


def is_costly_for_storage(data: bytes, position: i64, end: i64, target_magic: i64, codec: i64) -> bool:
    """Whether :func:`for_storage` could hold an event loop for more than about a millisecond.

    By what the bytes could be at worst, as :func:`tidemill.records.validate.is_costly`.
    """
    raise NotImplementedError


class Converted:
    """What :func:`down` made of stored batches."""

    def __init__(self, data: bytes, next_offset: i64, next_position: i64, record_count: i64) -> None:
        self.data = data
        """Whole entries of the asked format; empty when there was nothing but what old formats cannot say."""
        self.next_offset: i64 = next_offset
        """The offset after the last batch that was taken or left out; -1 when there was no whole batch."""
        self.next_position: i64 = next_position
        """The byte of the stored data that belongs to it."""
        self.record_count: i64 = record_count


def down(
    data: bytes,
    position: i64,
    end: i64,
    target_magic: i64,
    first_offset: i64,
    max_bytes: i64,
) -> Converted:
    """Stored batches and entries of any format as a message set of format ``target_magic`` (0 or 1).

    ``data[position:end]`` is a range of a log: whole batches, and perhaps a last one that is cut off, which
    is left out. Offsets stay; codecs stay (lz4 in the framing of the format); headers are dropped, control
    batches left out. A compressed batch is kept whole though it may begin before ``first_offset``, as with
    Kafka; of uncompressed ones only the records from ``first_offset`` on are taken, and batches that have
    none are left out.

    Stops before the batch that would lead beyond ``max_bytes`` of output, but takes one that has records. A
    result may be empty while ``next_offset`` went on (control batches only): read on from there. Raises
    KafkaError with UNSUPPORTED_COMPRESSION_TYPE when the first batch to take is of zstd, which no old format
    has (a later one ends the result before it), CorruptMessage and InvalidRecord for bytes that no log holds.
    """
    raise NotImplementedError
