"""Steps over the records of one batch or entry of any format, without an object for each.

A cursor tells where the current record's key and value lie in its :attr:`RecordCursor.data`; whoever wants
the bytes takes them from there. Formats are told apart here, so that conversions, lookups by time and tools
need not: a batch of v2, a single message of v0 or v1, a wrapper with its messages.

What stands in a log is read strictly: offsets go up, and fit what the batch or wrapper says.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from tidemill.model.errors import CorruptMessage, InvalidRecord
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import (
    CODEC_MASK,
    CURRENT_MAGIC,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    NONE,
    RECORD_BYTES_MIN,
    RECORDS,
    Batch,
    check_crc,
    parse_batch,
    wrong_record,
)
from tidemill.records.compression import decompress_range
from tidemill.records.legacy import ENTRY_BYTES_MIN_V0, Entry, parse_entry, unpack_entry
from tidemill.records.validate import RECORD_LENGTH_MIN, add_timestamp
from tidemill.records.varint import read_varint, read_varlong

NO_TIMESTAMP_TYPE: Final = -1
CREATE_TIME: Final = 0
APPEND_TIME: Final = 1


class RecordCursor:
    """Before the first of some records; :meth:`step` goes to the next one."""

    def __init__(self, magic: i64, codec: i64, timestamp_type: i64, data: bytes) -> None:
        self.magic: i64 = magic
        self.codec: i64 = codec
        self.timestamp_type: i64 = timestamp_type
        """-1 none (v0), 0 create time, 1 append time."""
        self.data = data
        """What the positions are in: the stored bytes, or what they unpacked to."""
        self.count: i64 = 0
        """Records that there are in all."""
        self.is_control: bool = False
        self.last_offset: i64 = -1
        """Of the batch or entry, which may be larger than that of its last record."""
        self.offset: i64 = -1
        self.timestamp: i64 = NO_TIMESTAMP
        self.key_position: i64 = 0
        self.key_length: i64 = -1
        self.value_position: i64 = 0
        self.value_length: i64 = -1
        self.header_count: i64 = 0

    def step(self) -> bool:
        """Goes to the next record; False after the last. Raises CorruptMessage and InvalidRecord."""
        raise NotImplementedError

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


class BatchCursor(RecordCursor):
    """Over the records of a batch of v2; ``unpacked`` are its records if somebody unpacked them already."""

    def __init__(
        self, batch: Batch, unpacked: bytes | None = None, unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX
    ) -> None:
        position: i64 = batch.position + RECORDS
        end: i64 = batch.position + batch.size
        data = batch.data
        codec: i64 = batch.attributes & CODEC_MASK
        if codec != NONE:
            if unpacked is None:
                unpacked = decompress_range(codec, data, position, end, unpacked_bytes_max)
            data = unpacked
            position = 0
            end = len(data)
        super().__init__(CURRENT_MAGIC, codec, APPEND_TIME if batch.append_time else CREATE_TIME, data)
        if batch.record_count > (end - position) // RECORD_BYTES_MIN:
            raise wrong_record(batch, "count", batch.record_count)
        self.batch = batch
        self.count = batch.record_count
        self.is_control = batch.is_control
        self.last_offset = batch.last_offset
        self.position: i64 = position
        self.end: i64 = end
        self.left: i64 = batch.record_count
        self.last_delta: i64 = -1
        if batch.append_time:
            self.timestamp = batch.max_timestamp

    def step(self) -> bool:
        """Goes to the next record; its headers are not looked at."""
        batch = self.batch
        data = self.data
        if self.left == 0:
            if self.position != self.end:
                raise wrong_record(batch, "rest", self.end - self.position)
            return False
        length, position = read_varint(data, self.position, self.end)
        if length < RECORD_LENGTH_MIN or length > self.end - position:
            raise wrong_record(batch, "length", length)
        end: i64 = position + length
        time_delta, position = read_varlong(data, position + 1, end)
        offset_delta, position = read_varint(data, position, end)
        if offset_delta <= self.last_delta or offset_delta > batch.last_offset_delta:
            raise wrong_record(batch, "offset delta", offset_delta)
        length, position = read_varint(data, position, end)
        if length < -1 or length > end - position:
            raise wrong_record(batch, "key length", length)
        self.key_position = position
        self.key_length = length
        position += length if length > 0 else 0
        length, position = read_varint(data, position, end)
        if length < -1 or length > end - position:
            raise wrong_record(batch, "value length", length)
        self.value_position = position
        self.value_length = length
        position += length if length > 0 else 0
        self.header_count, position = read_varint(data, position, end)
        if self.header_count < 0 or (self.header_count == 0 and position != end):
            raise wrong_record(batch, "header count", self.header_count)
        if self.timestamp_type == CREATE_TIME:
            self.timestamp = add_timestamp(batch.base_timestamp, time_delta)
        self.offset = batch.base_offset + offset_delta
        self.last_delta = offset_delta
        self.position = end
        self.left -= 1
        return True


class EntryCursor(RecordCursor):
    """Over one message of v0 or v1, or over all inside of a wrapper.

    ``produced``: as a producer sent it, with offsets that a broker does not rely on. A wrapper of v1 with
    offset 0 is taken then as some clients mean it: the offsets inside are those of the set. So are offsets
    below 0, which others write because they know none.
    """

    def __init__(
        self, entry: Entry, unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX, produced: bool = False
    ) -> None:
        codec: i64 = entry.codec
        kind: i64 = NO_TIMESTAMP_TYPE
        if entry.magic > 0:
            kind = APPEND_TIME if entry.append_time else CREATE_TIME
        data = entry.data
        position: i64 = entry.position
        end: i64 = entry.position + entry.size
        if codec != NONE:
            data = unpack_entry(entry, unpacked_bytes_max)
            position = 0
            end = len(data)
        super().__init__(entry.magic, codec, kind, data)
        self.entry = entry
        self.last_offset = entry.offset
        self.position: i64 = position
        self.end: i64 = end
        self.produced: bool = produced
        self.base: i64 = 0
        """What is added to the offsets inside."""
        self.first: bool = True
        if codec == NONE:
            self.count = 1
        else:
            self._survey()

    def _survey(self) -> None:
        """Counts the messages inside of a wrapper and finds what their offsets are relative to."""
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
        """Goes to the next message."""
        if self.codec == NONE:
            if not self.first:
                return False
            self._take(self.entry)
            self.offset = self.entry.offset
            self.first = False
            return True
        if self.position >= self.end:
            return False
        message = parse_entry(self.data, self.position, self.end)
        if message.magic != self.magic or message.codec != NONE:
            raise _wrong_message(self.entry, message)
        offset: i64 = self.base + message.offset
        if not self.produced and (
            message.offset < 0 or (offset <= self.offset and not self.first) or offset > self.last_offset
        ):
            raise _wrong_offset(self.entry, offset, self.offset)
        self._take(message)
        self.offset = offset
        self.first = False
        self.position += message.size
        return True

    def _take(self, message: Entry) -> None:
        self.timestamp = self.entry.timestamp if self.timestamp_type == APPEND_TIME else message.timestamp
        self.key_position = message.key_position
        self.key_length = message.key_length
        self.value_position = message.value_position
        self.value_length = message.value_length


def open_cursor(
    data: bytes,
    position: i64,
    end: i64,
    check_crcs: bool = True,
    unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX,
) -> RecordCursor:
    """A cursor over the stored batch or entry that begins at ``position`` and is whole before ``end``.

    Raises CorruptMessage and InvalidRecord when it makes no sense, and with ``check_crcs`` when its checksum
    is wrong (the messages inside of a wrapper have their own, which are always checked).
    """
    if end - position > MAGIC and data[position + MAGIC] < CURRENT_MAGIC:
        return EntryCursor(parse_entry(data, position, end, check_crcs), unpacked_bytes_max)
    batch = parse_batch(data, position, end)
    if check_crcs:
        check_crc(batch)
    return BatchCursor(batch, None, unpacked_bytes_max)


def framed_size(data: bytes, position: i64, end: i64) -> i64:
    """The size of an entry in bytes, overhead included. Raises CorruptMessage when it is not whole."""
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
        f"the wrapper has offset {entry.offset}, which is that of its last message; "
        f"that one has offset {last} inside"
    )


def _wrong_message(entry: Entry, message: Entry) -> InvalidRecord:
    return InvalidRecord(
        f"the wrapper with offset {entry.offset} (v{entry.magic}) holds a message of v{message.magic} "
        f"with codec {message.codec}: messages inside are of the wrapper's format and not compressed again"
    )


def _wrong_offset(entry: Entry, offset: i64, before: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the wrapper with offset {entry.offset} holds offset {offset} after {before}: "
        "offsets must go up, to that of the wrapper"
    )
