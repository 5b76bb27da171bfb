"""Converts between the message formats: from producers to a topic's format, and for old consumers.

=================  ======================================================================================
from → to          conversion
=================  ======================================================================================
same format        checked, and kept byte for byte unless the codec or the offsets require a rewrite
v0, v1 → v2        all entries of the set become one batch; a v0 record has no time (-1)
v2 → v1, v0        one wrapper when there is a codec, else an entry for each record; headers cannot be kept
v1 → v0            likewise; timestamps are dropped
=================  ======================================================================================

Pure functions of bytes: they read no clock and keep no state, so they may run in a thread or in a worker
process. Their memory use is bounded by their arguments.

Source: Apache Kafka, ``LogValidator.java``, ``RecordsUtil.java``, ``MemoryRecordsBuilder.java``; KIP-31,
KIP-32, KIP-98.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import (
    CODEC_MASK,
    CURRENT_MAGIC,
    GZIP,
    MAGIC,
    NO_COMPRESSION,
    NO_TIMESTAMP,
    RECORDS,
    ZSTD,
    Batch,
    check_crc,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.batch_validation import (
    COSTLY_GZIP_BYTES,
    COSTLY_RECORDS,
    COSTLY_UNPACKED_BYTES,
    RecordLimits,
    begin_validation,
    finish_validation,
    is_costly,
)
from tidemill.records.builder import BatchBuilder, assemble
from tidemill.records.compression import compress, unpacked_bytes_bound
from tidemill.records.legacy_formats import (
    ENTRY_BYTES_MIN_V0,
    ENTRY_BYTES_MIN_V1,
    check_old_codec,
    pack,
    parse_entry,
)
from tidemill.records.message_set import MessageSet, MessageSetWriter, wrap
from tidemill.records.message_set_validation import CheckedSet, check_size
from tidemill.records.record_cursor import APPEND_TIME, BatchCursor, EntryCursor, RecordCursor

KEEP_CODEC: Final = -1
"""``compression.type=producer``: the records keep the codec of the producer."""

WRAPPER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Unpacked: a larger batch becomes several wrappers, which bounds the memory in use."""

COSTLY_MESSAGES: Final = COSTLY_RECORDS // 5
"""Each message has its own checksum, and is rewritten."""

READERS_GZIP_LEVEL: Final = 1
"""For old consumers gzip uses its fastest level: a tenth more bytes than at level 6, in a tenth of the
time."""

COSTLY_COMPRESSED_BYTES: Final = 32 * 1024
"""Bytes that gzip, the slowest codec, compresses in 1 ms."""


# -- from producers


def for_storage(
    data: bytes,
    position: i64,
    end: i64,
    target_magic: i64,
    codec: i64,
    limits: RecordLimits,
    now_ms: i64,
    append_time: bool,
    level: int | None = None,
) -> Batch | MessageSet:
    """Converts a producer's records to the topic's format: a ``Batch`` for format 2, else a ``MessageSet``.

    ``data[position:end]`` is a message set of entries of format 0 or 1, or one batch of format 2. The result
    is of format ``target_magic`` (0, 1, 2) and of ``codec`` (0 none to 4 zstd, or ``KEEP_CODEC``), compressed
    with ``level`` where it has to be recompressed. ``append_time``: the topic stores the broker's clock,
    which :meth:`Log.append` and :meth:`Log.append_messages` write; here it only disables the check of the
    records' times. Every record is checked before the function returns. The caller has checked what the
    header of a batch shows: its size as sent, and :func:`check_can_be_old`.

    Raises CorruptMessage (framing, checksums, compression), InvalidRecord (with ``record_errors`` where
    single records are invalid; INVALID_TIMESTAMP for their times), and KafkaError with MESSAGE_TOO_LARGE (an
    entry as sent, or the records as stored), UNSUPPORTED_COMPRESSION_TYPE (zstd in a message set) or
    UNSUPPORTED_FOR_MESSAGE_FORMAT (record headers below format 2).
    """
    if target_magic < 0 or target_magic > CURRENT_MAGIC:
        raise ValueError(f"message format v{target_magic} does not exist: 0, 1 and 2 do")
    if position < 0 or end > len(data) or position > end:
        raise ValueError(f"bytes {position} to {end} are not inside a buffer of {len(data)} bytes")
    if end == position:
        raise InvalidRecord("the partition has no records in the request")
    if end - position > MAGIC and data[position + MAGIC] >= CURRENT_MAGIC:
        return _store_batch(data, position, end, target_magic, codec, limits, now_ms, level)
    checked = CheckedSet(data, position, end, limits, now_ms, limits.check_timestamps and not append_time)
    wanted: i64 = checked.codec if codec == KEEP_CODEC else codec
    if target_magic == CURRENT_MAGIC:
        return _batch_of(checked, wanted, limits, level)
    check_old_codec(wanted, target_magic)
    if target_magic == checked.magic and wanted == checked.codec:
        if wanted == NO_COMPRESSION:
            return MessageSet(
                data[position:end], target_magic, NO_COMPRESSION, checked.count, checked.max_timestamp
            )
        if target_magic == 0:
            inside = checked.data
            return MessageSet(b"", 0, wanted, checked.count, NO_TIMESTAMP, inside, level)
        if checked.has_plain_offsets:
            return MessageSet(data[position:end], 1, wanted, checked.count, checked.max_timestamp)
    return _old_set(_rewritten(checked, target_magic, limits), wanted, limits, level)


def several_batches_error(first: Batch, size: i64) -> InvalidRecord:
    """Returns the error of a partition whose records, ``size`` bytes, are more than its first batch."""
    return InvalidRecord(
        f"{size} bytes of records hold more than one batch (the first has {first.size} bytes)"
    )


def check_can_be_old(batch: Batch, codec: i64, magic: i64) -> None:
    """Raises KafkaError if a batch has features that a topic of format ``magic`` (0 or 1) cannot store.

    ``codec`` is that of the topic, or ``KEEP_CODEC``. :func:`for_storage` checks the headers of the records.
    """
    check_old_codec(batch.codec if codec == KEEP_CODEC else codec, magic)
    if batch.is_transactional:
        raise _needs_current("transactions need", magic)
    if batch.producer_id >= 0:
        raise _needs_current("idempotent producers need", magic)


def is_costly_for_storage(data: bytes, position: i64, end: i64, target_magic: i64, codec: i64) -> bool:
    """Whether :func:`for_storage` could block an event loop for more than about a millisecond.

    It assumes the worst case for the bytes, as :func:`tidemill.records.batch_validation.is_costly`. Wrong
    framing is not costly: it is refused at once.
    """
    try:
        if end - position > MAGIC and data[position + MAGIC] >= CURRENT_MAGIC:
            batch = parse_batch(data, position, end)
            same = codec == KEEP_CODEC or codec == batch.codec
            if is_costly(batch) or (same and target_magic == CURRENT_MAGIC):
                return is_costly(batch)
            if target_magic < CURRENT_MAGIC and batch.record_count > COSTLY_MESSAGES:
                return True
            bound = _unpacked_bytes_max(data, position, end)
            return _is_costly_to_pack(bound, NO_COMPRESSION if same else codec)
        entry = parse_entry(data, position, end, False)
        if entry.codec == GZIP and entry.size > COSTLY_GZIP_BYTES:
            return True
        bytes_max = _unpacked_bytes_max(data, position, end)
        wanted: i64 = entry.codec if codec == KEEP_CODEC else codec
        return bytes_max // ENTRY_BYTES_MIN_V0 > COSTLY_MESSAGES or _is_costly_to_pack(bytes_max, wanted)
    except KafkaError:
        return False


def unpacked_bytes_max(data: bytes, bytes_max: i64) -> i64:
    """Returns an upper bound of the unpacked size of the whole batches in ``data``.

    Counts no further batches once the sum is above ``bytes_max``, and none after an invalid one, which the
    conversion refuses at once.
    """
    total: i64 = 0
    position: i64 = 0
    end: i64 = len(data)
    try:
        while total <= bytes_max:
            size: i64 = whole_batch_size(data, position, end)
            if size == 0:
                break
            total += _unpacked_bytes_max(data, position, position + size)
            position += size
    except KafkaError:
        return total
    return total


def _unpacked_bytes_max(data: bytes, position: i64, end: i64) -> i64:
    """Returns an upper bound of the unpacked size of the batch or message set ``data[position:end]``."""
    if data[position + MAGIC] >= CURRENT_MAGIC:
        batch = parse_batch(data, position, end)
        return unpacked_bytes_bound(batch.codec, data, position + RECORDS, batch.end)
    entry = parse_entry(data, position, end, False)
    if entry.codec == NO_COMPRESSION:
        return end - position
    return unpacked_bytes_bound(
        entry.codec, data, entry.value_position, entry.value_position + entry.value_length
    )


def _is_costly_to_pack(bytes_max: i64, codec: i64) -> bool:
    return bytes_max > (COSTLY_COMPRESSED_BYTES if codec == GZIP else COSTLY_UNPACKED_BYTES)


def _store_batch(
    data: bytes,
    position: i64,
    end: i64,
    target_magic: i64,
    codec: i64,
    limits: RecordLimits,
    now_ms: i64,
    level: int | None,
) -> Batch | MessageSet:
    """Converts a batch of v2."""
    batch = parse_batch(data, position, end)
    if batch.size != end - position:
        raise several_batches_error(batch, end - position)
    wanted: i64 = batch.codec if codec == KEEP_CODEC else codec
    walk = begin_validation(batch, limits, now_ms)
    while not walk.step():
        pass
    stored = finish_validation(batch, walk, limits)
    unpacked: bytes | None = walk.cursor.data if batch.codec != NO_COMPRESSION else None
    if target_magic < CURRENT_MAGIC:
        return _old_set(_from_batch(stored, unpacked, target_magic, limits), wanted, limits, level)
    if wanted == batch.codec:
        return stored
    records = unpacked
    if records is None:
        records = stored.data[stored.position + RECORDS : stored.position + stored.size]
    packed = assemble(
        compress(wanted, records, level),
        stored.base_offset,
        stored.leader_epoch,
        (stored.attributes & ~CODEC_MASK) | wanted,
        stored.last_offset_delta,
        stored.base_timestamp,
        stored.max_timestamp,
        stored.producer_id,
        stored.producer_epoch,
        stored.base_sequence,
        stored.record_count,
    )
    check_size(len(packed), limits, "would be stored with")
    return parse_batch(packed, 0, len(packed))


def _from_batch(batch: Batch, unpacked: bytes | None, magic: i64, limits: RecordLimits) -> MessageSetWriter:
    """Returns the records of a batch as messages with offsets from 0."""
    writer = MessageSetWriter(magic, False, limits.unpacked_bytes_max)
    cursor = BatchCursor(batch, unpacked, limits.unpacked_bytes_max)
    while cursor.step():
        if cursor.header_count > 0:
            raise _needs_current("record headers need", magic)
        _append(writer, writer.count, cursor)
    return writer


def _append(writer: MessageSetWriter, offset: i64, cursor: RecordCursor) -> None:
    writer.append(
        offset,
        cursor.timestamp,
        cursor.data,
        cursor.key_position,
        cursor.key_length,
        cursor.value_position,
        cursor.value_length,
    )


def _rewritten(checked: CheckedSet, magic: i64, limits: RecordLimits) -> MessageSetWriter:
    """Returns the messages in format ``magic`` with offsets from 0; v0 timestamps become -1."""
    writer = MessageSetWriter(magic, False, limits.unpacked_bytes_max)
    position: i64 = checked.position
    while position < checked.end:
        message = parse_entry(checked.data, position, checked.end, False)
        writer.append(
            writer.count,
            message.timestamp,
            checked.data,
            message.key_position,
            message.key_length,
            message.value_position,
            message.value_length,
        )
        position += message.size
    return writer


def _old_set(writer: MessageSetWriter, codec: i64, limits: RecordLimits, level: int | None) -> MessageSet:
    """Returns the set to store for messages with offsets from 0. Raises KafkaError when it is too large."""
    inside = writer.getvalue()
    magic: i64 = writer.magic
    count: i64 = writer.count
    if codec == NO_COMPRESSION:
        check_size(writer.largest_entry, limits, "would be stored with")
        return MessageSet(inside, magic, NO_COMPRESSION, count, writer.max_timestamp)
    if magic == 0:
        if len(inside) > limits.max_batch_bytes:
            packed: i64 = len(pack(0, codec, inside, level))
            check_size(packed + ENTRY_BYTES_MIN_V0, limits, "would be stored with")
        return MessageSet(b"", 0, codec, count, NO_TIMESTAMP, inside, level)
    wrapper = wrap(magic, codec, inside, count - 1, writer.max_timestamp, NO_TIMESTAMP, level)
    check_size(len(wrapper), limits, "would be stored with")
    return MessageSet(wrapper, magic, codec, count, writer.max_timestamp)


def _batch_of(checked: CheckedSet, codec: i64, limits: RecordLimits, level: int | None) -> Batch:
    """Returns a batch of v2 with all messages of the set."""
    builder = BatchBuilder(codec, level)
    position: i64 = checked.position
    while position < checked.end:
        message = parse_entry(checked.data, position, checked.end, False)
        builder.append(message.timestamp, message.key, message.value)
        position += message.size
    data = builder.build()
    check_size(len(data), limits, "would be stored with")
    return parse_batch(data, 0, len(data))


def _needs_current(what: str, magic: i64) -> KafkaError:
    return KafkaError(
        f"{what} message format v2, this topic stores v{magic} (message.format.version): "
        "raise it, or disable that feature in the producer",
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )


# -- for old consumers


class Converted:
    """The result of :func:`down`."""

    def __init__(self, data: bytes, next_offset: i64, next_position: i64, record_count: i64) -> None:
        self.data = data
        """Whole entries of the target format; empty when the range has only data that old formats lack."""
        self.next_offset: i64 = next_offset
        """The offset after the last batch that was converted or skipped; -1 when there was no whole batch."""
        self.next_position: i64 = next_position
        """The position in the stored data of the next batch to read."""
        self.record_count: i64 = record_count
        """Records that were rewritten; those of entries that were copied do not count."""


def down(
    data: bytes,
    position: i64,
    end: i64,
    target_magic: i64,
    first_offset: i64,
    max_bytes: i64,
    unpacked_bytes_max: i64,
) -> Converted:
    """Converts stored batches and entries of any format to a message set of format ``target_magic`` (0 or 1).

    ``data[position:end]`` is a range of a log: whole batches, and possibly an incomplete last batch, which is
    skipped. Offsets and codecs stay (lz4 in the framing of the format); headers are dropped, and control
    batches are skipped. As in Kafka, a compressed batch is kept whole even if it starts before
    ``first_offset``; of uncompressed batches, only the records from ``first_offset`` on are converted, and
    batches without such records are skipped. A batch of more than ``WRAPPER_BYTES_MAX`` unpacked becomes
    several wrappers.

    Stops before the output would exceed ``max_bytes``, within a batch too, but converts at least one entry.
    The result may be empty while ``next_offset`` advanced (control batches only): continue there. Raises
    KafkaError with UNSUPPORTED_COMPRESSION_TYPE when the first batch to convert uses zstd, which no old
    format has (a later zstd batch ends the result before it), CorruptMessage and InvalidRecord for bytes that
    no log contains and for a batch of more than ``unpacked_bytes_max``: no data with a wrong checksum gets a
    new one.
    """
    work = _Down(target_magic, first_offset, max_bytes, unpacked_bytes_max)
    size: i64 = whole_batch_size(data, position, end)
    while size > 0 and work.convert_next(data, position, size):
        position += size
        size = whole_batch_size(data, position, end)
    return Converted(work.out.getvalue(), work.next_offset, position, work.out.count)


class _Down:
    """The state of one call of :func:`down`."""

    def __init__(self, magic: i64, first_offset: i64, max_bytes: i64, unpacked_bytes_max: i64) -> None:
        self.out = MessageSetWriter(magic)
        self.magic: i64 = magic
        self.first_offset: i64 = first_offset
        self.max_bytes: i64 = max_bytes
        self.unpacked_bytes_max: i64 = unpacked_bytes_max
        self.next_offset: i64 = -1

    def convert_next(self, data: bytes, position: i64, size: i64) -> bool:
        """Converts the batch at ``position``; False when the output ends at :attr:`next_offset`."""
        if data[position + MAGIC] == CURRENT_MAGIC:
            batch = parse_batch(data, position, position + size)
            check_crc(batch)
            if batch.is_control or batch.last_offset < self.first_offset or batch.record_count == 0:
                self.next_offset = batch.next_offset
                return True
            if batch.codec == ZSTD:
                return self._refuse_zstd(batch)
            return self._convert(BatchCursor(batch, None, self.unpacked_bytes_max))
        entry = parse_entry(data, position, position + size)
        if entry.offset < self.first_offset:
            self.next_offset = entry.offset + 1
            return True
        if entry.magic > self.magic:
            return self._convert(EntryCursor(entry, self.unpacked_bytes_max))
        if not self._has_space(size):
            return False  # A wrapper has the offset of its last message: the next offset is that before.
        self.out.extend(data[position : position + size], 0)
        self.next_offset = entry.offset + 1
        return True

    def _has_space(self, size: i64) -> bool:
        used: i64 = self.out.size_bytes
        return used == 0 or size <= self.max_bytes - used

    def _refuse_zstd(self, batch: Batch) -> bool:
        if self.out.size_bytes == 0:
            raise KafkaError(
                f"the batch with base offset {batch.base_offset} is compressed with zstd, which message "
                f"format v{self.magic} does not support: read it with a client of Kafka 2.1 or later",
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            )
        self.next_offset = batch.base_offset
        return False

    def _convert(self, cursor: RecordCursor) -> bool:
        if cursor.codec == NO_COMPRESSION:
            return self._convert_plain(cursor)
        inside = MessageSetWriter(self.magic)
        begin: i64 = -1
        while cursor.step():
            if begin >= 0 and inside.size_bytes >= WRAPPER_BYTES_MAX:
                if not self._wrap(cursor, inside, begin):
                    return False
                inside = MessageSetWriter(self.magic)
                begin = -1
            if begin < 0:
                begin = cursor.offset
            last: i64 = cursor.offset
            _append(inside, last - begin if self.magic > 0 else last, cursor)
            self.next_offset = last + 1
        if begin >= 0 and not self._wrap(cursor, inside, begin):
            return False
        self.next_offset = cursor.last_offset + 1
        return True

    def _wrap(self, cursor: RecordCursor, inside: MessageSetWriter, begin: i64) -> bool:
        """Adds the collected messages as a wrapper; its last offset is before :attr:`next_offset`."""
        last: i64 = self.next_offset - 1
        if last < self.first_offset:
            return True
        append_time_ms: i64 = cursor.timestamp if cursor.timestamp_type == APPEND_TIME else NO_TIMESTAMP
        level: int | None = READERS_GZIP_LEVEL if cursor.codec == GZIP else None
        wrapper = wrap(
            self.magic, cursor.codec, inside.getvalue(), last, inside.max_timestamp, append_time_ms, level
        )
        if not self._has_space(len(wrapper)):
            self.next_offset = begin
            return False
        self.out.extend(wrapper, inside.count)
        return True

    def _convert_plain(self, cursor: RecordCursor) -> bool:
        self.out.append_time = self.magic > 0 and cursor.timestamp_type == APPEND_TIME
        overhead: i64 = ENTRY_BYTES_MIN_V1 if self.magic > 0 else ENTRY_BYTES_MIN_V0
        while cursor.step():
            if cursor.offset < self.first_offset:
                continue
            size: i64 = overhead + (cursor.key_length if cursor.key_length > 0 else 0)
            if not self._has_space(size + (cursor.value_length if cursor.value_length > 0 else 0)):
                self.next_offset = cursor.offset
                return False
            _append(self.out, cursor.offset, cursor)
        self.next_offset = cursor.last_offset + 1
        return True
