"""Message formats v0 and v1: consecutive entries, each with an offset.

========  ========  ==============  ==================================================================
v0 byte   v1 byte   field           notes
========  ========  ==============  ==================================================================
0         0         offset          int64; of a wrapper: that of its last message; not in the checksum
8         8         size            int32: bytes that follow this field
12        12        checksum        u32: CRC-32 of what follows it
16        16        magic           int8: 0 or 1
17        17        attributes      int8: bits 0-2 codec, in v1 bit 3 append time
-         18        timestamp       int64, ms; of a wrapper: the largest inside, or the broker's clock
18        26        key length      int32, -1: no key
22        30        key
...       ...       value length    int32, -1: no value (a tombstone)
...       ...       value           of a wrapper: a message set of the same format, compressed
========  ========  ==============  ==================================================================

All integers are big-endian. The smallest entries are 26 and 34 bytes. A message set is compressed as a whole:
it becomes the value of one message without a key, the wrapper, whose attributes hold the codec (1 gzip, 2
snappy, 3 lz4). The messages inside are not compressed themselves. Their offsets are absolute in v0, so that a
broker must recompress a set when it assigns offsets; in v1 they count from 0, and the wrapper has the
absolute offset of the last::

    absolute offset = wrapper's offset + (offset inside - last offset inside)

With append time (bit 3 of the wrapper's attributes) the wrapper's timestamp applies to all its messages.

lz4 in v0 has a wrong checksum in its frame header: Kafka's first clients computed it over the magic number
too. The writer reproduces that, and the reader ignores it. In v1 the checksum is the correct one.

Source: Apache Kafka's documentation, "Old Message Format"; KIP-31 (relative offsets), KIP-32 (timestamps),
KIP-57 (lz4); ``LegacyRecord.java``, ``AbstractLegacyRecordBatch.java``, ``Lz4BlockInputStream.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be
from mypy_extensions import i64, mypyc_attr

from tidemill.model.errors import CorruptMessage, ErrorCode, InvalidRecord
from tidemill.records.batch import (
    APPEND_TIME_FLAG,
    CODEC_MASK,
    COPIED_BYTES_MAX,
    LOG_OVERHEAD,
    LZ4,
    NO_TIMESTAMP,
)
from tidemill.records.checksum import crc32
from tidemill.records.compression import CODEC_NAMES, compress, decompress_range

SIZE: Final = 8
CRC: Final = 12
MAGIC: Final = 16
ATTRIBUTES: Final = 17
TIMESTAMP: Final = 18
"""In v1; v0 has no timestamp."""
KEY_LENGTH_V0: Final = 18
KEY_LENGTH_V1: Final = 18 + 8

ENTRY_BYTES_MIN_V0: Final = LOG_OVERHEAD + 14
ENTRY_BYTES_MIN_V1: Final = LOG_OVERHEAD + 22

LZ4_DESCRIPTOR: Final = 4
"""The position of the flags in a frame, after its magic number."""
LZ4_MAGIC_BYTES: Final = b"\x04\x22\x4d\x18"
LZ4_OLD_HEADER: Final = LZ4_MAGIC_BYTES + b"\x60\x40\x1a"
"""As :data:`tidemill.records.compression.LZ4_HEADER`, with its checksum computed over the magic number
too."""

PRIME_1: Final = 2654435761
PRIME_2: Final = 2246822519
PRIME_3: Final = 3266489917
PRIME_4: Final = 668265263
PRIME_5: Final = 374761393
"""The primes of xxHash32."""


@mypyc_attr(acyclic=True, free_list_len=1)
class Entry:
    """The fields of one entry, as a view of the bytes that contain it; a wrapper is not unpacked."""

    def __init__(self, data: bytes, position: i64, size: i64) -> None:
        self.data = data
        self.position: i64 = position
        self.size: i64 = size
        self.offset: i64 = read_i64_be(data, position)
        self.crc: i64 = i64(read_i32_be(data, position + CRC)) & 0xFFFFFFFF
        self.magic: i64 = i64(data[position + MAGIC])
        self.attributes: i64 = i64(data[position + ATTRIBUTES])
        self.timestamp: i64 = NO_TIMESTAMP
        at: i64 = position + KEY_LENGTH_V0
        if self.magic > 0:
            self.timestamp = read_i64_be(data, position + TIMESTAMP)
            at = position + KEY_LENGTH_V1
        self.key_position: i64 = at + 4
        self.key_length: i64 = i64(read_i32_be(data, at))
        """-1: no key."""
        self.value_position: i64 = position + size
        self.value_length: i64 = -2
        """-1: no value; less than -1: the fields do not fit the entry."""
        space: i64 = position + size - self.key_position - 4
        if -1 <= self.key_length <= space:
            at = self.key_position + (self.key_length if self.key_length > 0 else 0)
            self.value_position = at + 4
            length: i64 = i64(read_i32_be(data, at))
            if (length if length > 0 else 0) == position + size - self.value_position:
                self.value_length = length if length >= -1 else -2

    @property
    def codec(self) -> i64:
        """0 none, else the entry is a wrapper: 1 gzip, 2 snappy, 3 lz4."""
        return self.attributes & CODEC_MASK

    @property
    def append_time(self) -> bool:
        """Whether the timestamp is the broker's clock, which then applies to all messages inside too."""
        return self.magic > 0 and self.attributes & APPEND_TIME_FLAG != 0

    @property
    def last_offset(self) -> i64:
        """The offset of the last message."""
        return self.offset

    @property
    def next_offset(self) -> i64:
        """The offset after it."""
        return self.offset + 1

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        if self.key_length < 0:
            return None
        return self.data[self.key_position : self.key_position + self.key_length]

    @property
    def value(self) -> bytes | None:
        """The value, or None. Of a wrapper: the compressed message set."""
        if self.value_length < 0:
            return None
        return self.data[self.value_position : self.value_position + self.value_length]

    def __repr__(self) -> str:
        return (
            f"Entry(offset {self.offset}, v{self.magic}, {self.size} bytes at {self.position}, "
            f"attributes {self.attributes:#x}, timestamp {self.timestamp})"
        )


def parse_entry(data: bytes, position: i64, end: i64, check_crcs: bool = True) -> Entry:
    """Parses the entry at ``position``; ``end`` is the end of the bytes of it and its followers.

    Raises CorruptMessage when the size or the magic byte is impossible or the checksum is wrong,
    InvalidRecord when key and value do not fill the entry exactly.
    """
    if position < 0 or end > len(data) or position > end:
        raise ValueError(f"bytes {position} to {end} are not inside a buffer of {len(data)} bytes")
    left: i64 = end - position
    if left < ENTRY_BYTES_MIN_V0:
        raise _too_short(position, left)
    size: i64 = i64(read_i32_be(data, position + SIZE)) + LOG_OVERHEAD
    magic: i64 = i64(data[position + MAGIC])
    if magic > 1:
        raise _wrong_magic(position, magic)
    size_min: i64 = ENTRY_BYTES_MIN_V0 if magic == 0 else ENTRY_BYTES_MIN_V1
    if size < size_min or size > left:
        raise _wrong_size(position, size, size_min, left)
    entry = Entry(data, position, size)
    if check_crcs:
        found = entry_crc(data, position, size)
        if found != entry.crc:
            raise _wrong_crc(entry, found)
    if entry.value_length < -1:
        raise _wrong_fields(entry)
    return entry


def entry_crc(data: bytes, position: i64, size: i64) -> i64:
    """Computes the checksum of the entry's bytes."""
    first: i64 = position + MAGIC
    last: i64 = position + size
    if size <= COPIED_BYTES_MAX:
        return i64(crc32(data[first:last]))
    with memoryview(data) as view:
        return i64(crc32(view[first:last]))


def unpack_entry(entry: Entry, bytes_max: i64) -> bytes:
    """Returns the message set inside a wrapper, at most ``bytes_max``.

    Raises InvalidRecord for a wrapper without a value and for a codec that its format lacks
    (UNSUPPORTED_COMPRESSION_TYPE), else as :func:`tidemill.records.compression.decompress_range`.
    """
    check_old_codec(entry.codec, entry.magic)
    if entry.value_length < 0:
        raise InvalidRecord(
            f"the wrapper at byte {entry.position} with offset {entry.offset} has no value: "
            "it must contain a compressed message set"
        )
    first: i64 = entry.value_position
    last: i64 = first + entry.value_length
    if entry.codec == LZ4 and entry.magic == 0:
        corrected = correct_lz4_checksum(entry.data[first:last])
        return decompress_range(LZ4, corrected, 0, len(corrected), bytes_max)
    return decompress_range(entry.codec, entry.data, first, last, bytes_max)


def pack(magic: i64, codec: i64, data: bytes, level: int | None = None) -> bytes:
    """Compresses ``data`` in the framing of format ``magic``; the result is the value of a wrapper."""
    check_old_codec(codec, magic)
    packed = compress(codec, data, level)
    if codec == LZ4 and magic == 0:
        return LZ4_OLD_HEADER + packed[len(LZ4_OLD_HEADER) :]
    return packed


def check_old_codec(codec: i64, magic: i64) -> None:
    """Raises InvalidRecord with UNSUPPORTED_COMPRESSION_TYPE for a codec that v0 and v1 lack."""
    if codec > LZ4:
        name = CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else "unknown"
        raise InvalidRecord(
            f"compression codec {codec} ({name}) does not exist in message format v{magic}: "
            "use gzip, snappy or lz4, or message format v2",
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


def correct_lz4_checksum(data: bytes) -> bytes:
    """Returns the frame with a correct checksum in its header.

    Bytes that are not a frame are returned unchanged: the decoder reports them.
    """
    if len(data) < LZ4_DESCRIPTOR + 3 or data[:LZ4_DESCRIPTOR] != LZ4_MAGIC_BYTES:
        return data
    flags: i64 = i64(data[LZ4_DESCRIPTOR])
    end: i64 = LZ4_DESCRIPTOR + 2 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if end >= len(data):
        return data
    writer = BytesWriter()
    writer.write(data[:end])
    writer.append(int((xxhash32(data[LZ4_DESCRIPTOR:end]) >> 8) & 0xFF))
    writer.write(data[end + 1 :])
    return writer.getvalue()


def xxhash32(data: bytes) -> i64:
    """xxHash32 with seed 0, for fewer than 16 bytes: a frame's header has at most 14."""
    size: i64 = len(data)
    if size > 15:
        raise ValueError(f"{size} bytes exceed the limit of 15 bytes of this short form")
    value: i64 = (PRIME_5 + size) & 0xFFFFFFFF
    position: i64 = 0
    while position + 4 <= size:
        word: i64 = (
            data[position] | data[position + 1] << 8 | data[position + 2] << 16 | data[position + 3] << 24
        )
        value = (value + _times(word, PRIME_3)) & 0xFFFFFFFF
        value = _times(((value << 17) | (value >> 15)) & 0xFFFFFFFF, PRIME_4)
        position += 4
    while position < size:
        value = (value + i64(data[position]) * PRIME_5) & 0xFFFFFFFF
        value = _times(((value << 11) | (value >> 21)) & 0xFFFFFFFF, PRIME_1)
        position += 1
    value = _times(value ^ (value >> 15), PRIME_2)
    value = _times(value ^ (value >> 13), PRIME_3)
    return value ^ (value >> 16)


def _times(value: i64, factor: i64) -> i64:
    """Returns the low 32 bits of a product, without exceeding an int64 in between."""
    low: i64 = (value & 0xFFFF) * factor
    high: i64 = ((value >> 16) * (factor & 0xFFFF)) << 16
    return (low + high) & 0xFFFFFFFF


def _too_short(position: i64, left: i64) -> CorruptMessage:
    return CorruptMessage(
        f"{left} bytes at byte {position} are too few for an entry, which has at least {ENTRY_BYTES_MIN_V0}"
    )


def _wrong_magic(position: i64, magic: i64) -> CorruptMessage:
    return CorruptMessage(f"the entry at byte {position} has magic byte {magic}, a message set has 0 or 1")


def _wrong_size(position: i64, size: i64, size_min: i64, left: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the entry at byte {position} says that it has {size} bytes; "
        f"it needs at least {size_min}, and {left} are available"
    )


def _wrong_crc(entry: Entry, found: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the entry at byte {entry.position} with offset {entry.offset} ({entry.size} bytes) "
        f"has checksum {found}, it says {entry.crc}: the bytes were changed in transit or on the disk"
    )


def _wrong_fields(entry: Entry) -> InvalidRecord:
    return InvalidRecord(
        f"the entry at byte {entry.position} with offset {entry.offset} has {entry.size} bytes, "
        f"but key length {entry.key_length} and value do not fill them exactly"
    )
