"""Iterates over the records of one batch or entry of any format, without an object per record.

Layout of a record (message format v2), without compression:

===============  ==========  ======================================================================
field            type        notes
===============  ==========  ======================================================================
length           varint      bytes of the record after this field, at least 6
attributes       int8        no bit is used
timestamp delta  varlong     ms after the batch's base timestamp
offset delta     varint      after the batch's base offset; 0, 1, 2 ... in producers' batches
key length       varint      -1: no key
key              bytes
value length     varint      -1: no value, a tombstone
value            bytes
header count     varint      not negative
headers          ...         each: key length varint (not negative), key, value length varint or -1, value
===============  ==========  ======================================================================

A cursor holds the positions of the current record's fields in its :attr:`RecordCursor.data`; callers that
need the bytes slice them. :class:`BatchCursor` is the only reader of this layout: validation, the record
reader, columns, compaction and conversions are loops over it. :class:`EntryCursor` reads a single message of
v0 or v1, or a wrapper with its messages (:mod:`tidemill.records.legacy_formats`).

Records are read strictly: every length must fit its record and batch, and records must fill the batch
exactly. Offsets must increase, and match those of the batch or wrapper.

Source: Apache Kafka, ``DefaultRecord.java``, ``DefaultRecordBatch.java``, ``AbstractLegacyRecordBatch.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64, mypyc_attr

from tidemill.model.errors import CorruptMessage, InvalidRecord, KafkaError
from tidemill.records.batch import (
    CODEC_MASK,
    CURRENT_MAGIC,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    NO_COMPRESSION,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    RECORDS,
    Batch,
    check_crc,
    parse_batch,
)
from tidemill.records.compression import decompress_range
from tidemill.records.legacy_formats import ENTRY_BYTES_MIN_V0, Entry, parse_entry, unpack_entry
from tidemill.records.varint import INT64_MAX, INT64_MIN, read_varint, read_varlong

RECORD_LENGTH_MIN: Final = 6
HEADER_BYTES_MIN: Final = 2

NO_TIMESTAMP_TYPE: Final = -1
CREATE_TIME: Final = 0
APPEND_TIME: Final = 1

INT61_MAX: Final = 0x0FFFFFFFFFFFFFFF
"""Below the size from which the compiler keeps a constant as an object."""


@mypyc_attr(acyclic=True)
class RecordCursor:
    """Positioned before the first of some records; :meth:`step` moves to the next one."""

    def __init__(
        self, magic: i64, codec: i64, timestamp_type: i64, data: bytes, position: i64, end: i64
    ) -> None:
        self.magic: i64 = magic
        self.codec: i64 = codec
        self.timestamp_type: i64 = timestamp_type
        """-1 none (v0), 0 create time, 1 append time."""
        self.data = data
        """The buffer of the positions: the stored bytes, or the unpacked records."""
        self.position: i64 = position
        """The position of the next record."""
        self.end: i64 = end
        """The position after the last record."""
        self.count: i64 = 0
        """The total number of records."""
        self.last_offset: i64 = -1
        """The last offset of the batch or entry, which may be larger than that of its last record."""
        self.offset: i64 = -1
        self.timestamp: i64 = NO_TIMESTAMP
        self.key_position: i64 = 0
        self.key_length: i64 = -1
        self.value_position: i64 = 0
        self.value_length: i64 = -1
        self.header_count: i64 = 0

    def step(self) -> bool:
        """Moves to the next record; False after the last. Raises CorruptMessage and InvalidRecord."""
        raise NotImplementedError

    def move_to(self, data: bytes, position: i64) -> None:
        """Continues in another buffer, which holds the same records; the next one is at ``position``."""
        self.data = data
        self.end += position - self.position
        self.position = position

    @property
    def key(self) -> bytes | None:
        """The current record's key."""
        if self.key_length < 0:
            return None
        return self.data[self.key_position : self.key_position + self.key_length]

    @property
    def value(self) -> bytes | None:
        """The current record's value."""
        if self.value_length < 0:
            return None
        return self.data[self.value_position : self.value_position + self.value_length]


@mypyc_attr(acyclic=True, free_list_len=1)
class BatchCursor(RecordCursor):
    """A cursor over a batch of v2; ``unpacked`` are its unpacked records, if the caller has them.

    ``produced``: the batch comes from a producer. A malformed record is then InvalidRecord, else
    CorruptMessage. The batch's checksum is not checked.
    """

    def __init__(
        self,
        batch: Batch,
        unpacked: bytes | None,
        unpacked_bytes_max: i64,
        produced: bool = False,
    ) -> None:
        position: i64 = batch.position + RECORDS
        end: i64 = batch.position + batch.size
        data = batch.data
        codec: i64 = batch.attributes & CODEC_MASK
        if codec != NO_COMPRESSION:
            if unpacked is None:
                unpacked = decompress_range(codec, data, position, end, unpacked_bytes_max)
            data = unpacked
            position = 0
            end = len(data)
        if end > len(data):
            raise ValueError(f"bytes {position} to {end} are not inside a buffer of {len(data)} bytes")
        kind: i64 = APPEND_TIME if batch.append_time else CREATE_TIME
        super().__init__(CURRENT_MAGIC, codec, kind, data, position, end)
        self.batch = batch
        self.produced: bool = produced
        self.count = batch.record_count
        self.last_offset = batch.last_offset
        self.index: i64 = -1
        """The number of records before the current one."""
        self.record_position: i64 = position
        """The position of the current record, which ends at :attr:`position`."""
        self.offset_position: i64 = position
        """The position of the current record's offset delta."""
        self.headers_left: i64 = 0
        """Headers of the current record after the current header."""
        self.header_position: i64 = position
        """The position of the next header."""
        self.header_key_position: i64 = 0
        self.header_key_length: i64 = 0
        self.header_value_position: i64 = 0
        self.header_value_length: i64 = -1
        self._base_offset: i64 = batch.base_offset
        self._base_timestamp: i64 = batch.base_timestamp
        self._gaps: i64 = batch.last_offset_delta - batch.record_count + 1
        """The number of the batch's offsets that have no record."""
        if kind == APPEND_TIME:
            self.timestamp = batch.max_timestamp
        if batch.record_count > (end - position) // RECORD_BYTES_MIN:
            raise self._error(
                f"{batch.record_count} records cannot be in {end - position} bytes: "
                f"each takes at least {RECORD_BYTES_MIN}"
            )

    def step(self) -> bool:
        """Moves to the next record. Its headers are checked by :meth:`step_header` only."""
        position: i64 = self.position
        index: i64 = self.index + 1
        if index == self.count:
            if position != self.end:
                raise self._error(f"after {index} records, {self.end - position} bytes remain")
            return False
        data = self.data
        self.index = index
        self.record_position = position
        length, position = read_varint(data, position, self.end)
        if length < RECORD_LENGTH_MIN or length > self.end - position:
            raise self._wrong("length", length, position, self.end)
        end: i64 = position + length
        delta, position = read_varlong(data, position + 1, end)
        self.offset_position = position
        offset_delta, position = read_varint(data, position, end)
        offset: i64 = self._base_offset + offset_delta
        if offset_delta < 0 or offset_delta > self._gaps + index or (index > 0 and offset <= self.offset):
            raise self._wrong("offset delta", offset_delta, position, end)
        length, position = read_varint(data, position, end)
        if length < -1 or length > end - position:
            raise self._wrong("key length", length, position, end)
        self.key_position = position
        self.key_length = length
        if length > 0:
            position += length
        length, position = read_varint(data, position, end)
        if length < -1 or length > end - position:
            raise self._wrong("value length", length, position, end)
        self.value_position = position
        self.value_length = length
        if length > 0:
            position += length
        count, position = read_varint(data, position, end)
        if count == 0:
            if position != end:
                raise self._wrong_end(position, end)
        elif count < 0 or count > (end - position) // HEADER_BYTES_MIN:
            raise self._wrong("header count", count, position, end)
        if self.timestamp_type == CREATE_TIME:
            self.timestamp = add_timestamp(self._base_timestamp, delta)
        self.offset = offset
        self.header_count = count
        self.headers_left = count
        self.header_position = position
        self.position = end
        return True

    def step_header(self) -> bool:
        """Moves to the next header of the current record; False after the last. Raises as :meth:`step`."""
        if self.headers_left == 0:
            return False
        data = self.data
        end: i64 = self.position
        length, position = read_varint(data, self.header_position, end)
        if length < 0 or length > end - position:
            raise self._wrong("header key length", length, position, end)
        self.header_key_position = position
        self.header_key_length = length
        length, position = read_varint(data, position + length, end)
        if length < -1 or length > end - position:
            raise self._wrong("header value length", length, position, end)
        self.header_value_position = position
        self.header_value_length = length
        if length > 0:
            position += length
        self.header_position = position
        self.headers_left -= 1
        if self.headers_left == 0 and position != end:
            raise self._wrong_end(position, end)
        return True

    def seek(self, position: i64) -> None:
        """Moves to before the record at ``position``, a former :attr:`record_position`.

        Later steps do not check that the batch has as many records as its header says.
        """
        self.position = position
        self.index = -1
        self._gaps = self.last_offset - self._base_offset

    @property
    def header_key(self) -> str:
        """The current header's key; bytes that are not UTF-8 become replacement characters."""
        position: i64 = self.header_key_position
        return self.data[position : position + self.header_key_length].decode("utf-8", "replace")

    @property
    def header_value(self) -> bytes | None:
        """The current header's value."""
        if self.header_value_length < 0:
            return None
        return self.data[self.header_value_position : self.header_value_position + self.header_value_length]

    def _wrong(self, what: str, value: i64, position: i64, end: i64) -> KafkaError:
        return self._error(
            f"record {self.index} has {what} {value} at byte {position}, where {end - position} are left"
        )

    def _wrong_end(self, position: i64, end: i64) -> KafkaError:
        return self._error(
            f"record {self.index} should end at byte {end}, but its last field or header has end {position}"
        )

    def _error(self, text: str) -> KafkaError:
        batch = self.batch
        text = (
            f"{text} (the batch with base offset {batch.base_offset}, {batch.record_count} records, "
            f"{batch.size} bytes)"
        )
        return InvalidRecord(text) if self.produced else CorruptMessage(text)


def add_timestamp(base: i64, delta: i64) -> i64:
    """Returns ``base + delta``; raises InvalidRecord when the sum is not an int64."""
    if -INT61_MAX < base < INT61_MAX and -INT61_MAX < delta < INT61_MAX:
        return base + delta
    if (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < INT64_MIN - delta):
        raise InvalidRecord(f"timestamp delta {delta} exceeds int64 from base timestamp {base}")
    return base + delta


@mypyc_attr(acyclic=True)
class EntryCursor(RecordCursor):
    """A cursor over one message of v0 or v1, or over all messages inside a wrapper.

    ``produced``: the entry comes from a producer, whose offsets a broker does not trust. A wrapper of v1 with
    offset 0 is then accepted as some clients mean it: the offsets inside are those of the set. Offsets below
    0 are accepted too: other clients write them because they know none.
    """

    def __init__(self, entry: Entry, unpacked_bytes_max: i64, produced: bool = False) -> None:
        codec: i64 = entry.codec
        kind: i64 = NO_TIMESTAMP_TYPE
        if entry.magic > 0:
            kind = APPEND_TIME if entry.append_time else CREATE_TIME
        data = entry.data
        position: i64 = entry.position
        end: i64 = entry.position + entry.size
        if codec != NO_COMPRESSION:
            data = unpack_entry(entry, unpacked_bytes_max)
            position = 0
            end = len(data)
        super().__init__(entry.magic, codec, kind, data, position, end)
        self.entry = entry
        self.last_offset = entry.offset
        self.produced: bool = produced
        self.base: i64 = 0
        """The number to add to the offsets inside."""
        self.first: bool = True
        if codec == NO_COMPRESSION:
            self.count = 1
        else:
            self._count_messages()

    def _count_messages(self) -> None:
        """Counts the messages inside a wrapper, and computes the base of their offsets."""
        data = self.data
        position: i64 = self.position
        end: i64 = self.end
        last: i64 = -1
        while position < end:
            size: i64 = framed_size(data, position, end)
            last = read_i64_be(data, position)
            self.count += 1
            position += size
        if self.count == 0:
            raise InvalidRecord(f"the wrapper with offset {self.entry.offset} holds no message")
        if self.magic == 0 or (self.produced and self.entry.offset == 0):
            return
        if last > self.entry.offset or (last < 0 and not self.produced):
            raise _wrong_wrapper(self.entry, last)
        if last >= 0:
            self.base = self.entry.offset - last

    def step(self) -> bool:
        """Moves to the next message."""
        if self.codec == NO_COMPRESSION:
            if not self.first:
                return False
            self._set_fields(self.entry)
            self.offset = self.entry.offset
            self.first = False
            return True
        if self.position >= self.end:
            return False
        message = parse_entry(self.data, self.position, self.end)
        if message.magic != self.magic or message.codec != NO_COMPRESSION:
            raise _wrong_message(self.entry, message)
        offset: i64 = self.base + message.offset
        if not self.produced and (
            message.offset < 0 or (offset <= self.offset and not self.first) or offset > self.last_offset
        ):
            raise _wrong_offset(self.entry, offset, self.offset)
        self._set_fields(message)
        self.offset = offset
        self.first = False
        self.position += message.size
        return True

    def _set_fields(self, message: Entry) -> None:
        shift: i64 = self.position - message.position
        self.timestamp = self.entry.timestamp if self.timestamp_type == APPEND_TIME else message.timestamp
        self.key_position = message.key_position + shift
        self.key_length = message.key_length
        self.value_position = message.value_position + shift
        self.value_length = message.value_length


def open_cursor(
    data: bytes,
    position: i64,
    end: i64,
    check_crcs: bool,
    unpacked_bytes_max: i64,
) -> RecordCursor:
    """Opens a cursor over the stored batch or entry at ``position``, which must end before ``end``.

    Raises CorruptMessage and InvalidRecord when it is malformed, and with ``check_crcs`` when its checksum is
    wrong (the messages inside a wrapper have their own, which are always checked).
    """
    if end - position > MAGIC and data[position + MAGIC] < CURRENT_MAGIC:
        return EntryCursor(parse_entry(data, position, end, check_crcs), unpacked_bytes_max)
    batch = parse_batch(data, position, end)
    if check_crcs:
        check_crc(batch)
    return BatchCursor(batch, None, unpacked_bytes_max)


def framed_size(data: bytes, position: i64, end: i64) -> i64:
    """Returns the size of an entry in bytes, with overhead. Raises CorruptMessage when it is incomplete."""
    left: i64 = end - position
    size: i64 = 0
    if left >= ENTRY_BYTES_MIN_V0:
        size = i64(read_i32_be(data, position + LENGTH)) + LOG_OVERHEAD
    if size < ENTRY_BYTES_MIN_V0 or size > left:
        raise CorruptMessage(
            f"an entry at byte {position} of a message set has size {size}, where {left} bytes are left"
        )
    return size


def _wrong_wrapper(entry: Entry, last: i64) -> InvalidRecord:
    return InvalidRecord(
        f"the wrapper has offset {entry.offset}, which must be that of its last message; "
        f"that message has offset {last} inside"
    )


def _wrong_message(entry: Entry, message: Entry) -> InvalidRecord:
    return InvalidRecord(
        f"the wrapper with offset {entry.offset} (v{entry.magic}) holds a message of v{message.magic} "
        f"with codec {message.codec}: messages inside have the wrapper's format and are not compressed again"
    )


def _wrong_offset(entry: Entry, offset: i64, before: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the wrapper with offset {entry.offset} holds offset {offset} after {before}: "
        "offsets must increase, up to that of the wrapper"
    )
