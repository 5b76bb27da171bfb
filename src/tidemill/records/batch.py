"""Record batches, message format v2: the header, its limits and its checksum.

=======  =====  ======================  ==========================================================
byte     type   field                   notes
=======  =====  ======================  ==========================================================
0        int64  base offset             assigned by the leader; not in the checksum
8        int32  length                  bytes that follow this field: the size of the batch less 12
12       int32  partition leader epoch  assigned by the leader; not in the checksum
16       int8   magic                   2
17       u32    checksum                CRC-32C of byte 21 to the end
21       int16  attributes              bits 0-2 codec, 3 append time, 4 transactional, 5 control,
                                        6 delete horizon; higher bits are not used
23       int32  last offset delta       offset of the last record less the base offset
27       int64  base timestamp          ms; the first record's (or the delete horizon, with bit 6)
35       int64  max timestamp           ms; the largest of the records, or the broker's clock (bit 3)
43       int64  producer id             -1 without idempotence
51       int16  producer epoch          -1 without idempotence
53       int32  base sequence           -1 without idempotence
57       int32  record count
61       ...    records                 compressed as one, when a codec is set
=======  =====  ======================  ==========================================================

All integers are big-endian. A compacted batch keeps its first and last offset, so its count may be smaller
than ``last offset delta + 1``, even 0; producers' batches must not have such gaps
(:mod:`tidemill.records.batch_validation`).

The checksum does not cover the base offset and the leader epoch, so that the leader sets them without reading
the records: it does not detect an error in those 16 bytes.

Formats v0 and v1 share the first 12 bytes and the position of the magic byte
(:mod:`tidemill.records.legacy_formats`).

Source: Apache Kafka's documentation, "Record Batch"; KIP-98, KIP-101, KIP-110 (zstd).
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64, mypyc_attr

from tidemill.model.errors import CorruptMessage, ErrorCode
from tidemill.records.checksum import crc32c

BASE_OFFSET: Final = 0
LENGTH: Final = 8
LEADER_EPOCH: Final = 12
MAGIC: Final = 16
CRC: Final = 17
ATTRIBUTES: Final = 21
LAST_OFFSET_DELTA: Final = 23
BASE_TIMESTAMP: Final = 27
MAX_TIMESTAMP: Final = 35
PRODUCER_ID: Final = 43
PRODUCER_EPOCH: Final = 51
BASE_SEQUENCE: Final = 53
RECORD_COUNT: Final = 57
RECORDS: Final = 61

LOG_OVERHEAD: Final = 12
"""Base offset and length: the bytes that the length does not count."""

OLD_ENTRY_BYTES_MIN: Final = LOG_OVERHEAD + 14
"""The smallest entry of format v0, which is the smallest item of a log."""

CURRENT_MAGIC: Final = 2

CODEC_MASK: Final = 0x07
APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

NO_COMPRESSION: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

RECORD_BYTES_MIN: Final = 1 + 6
"""Length varint, attributes, timestamp delta, offset delta, key length, value length, header count."""

COPIED_BYTES_MAX: Final = 4096
"""Up to this size a copy is cheaper than a view."""

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

SEQUENCE_MAX: Final = 0x7FFFFFFF

BASE_OFFSET_MAX: Final[i64] = i64(0x7FFFFFFF00000000)


@mypyc_attr(acyclic=True, free_list_len=1)
class Batch:
    """The header of one batch, as a view of the bytes that contain it. The records are not parsed."""

    def __init__(self, data: bytes, position: i64, size: i64) -> None:
        self.data = data
        self.position: i64 = position
        self.size: i64 = size
        self.base_offset: i64 = read_i64_be(data, position)
        self.leader_epoch: i64 = i64(read_i32_be(data, position + LEADER_EPOCH))
        self.magic: i64 = data[position + MAGIC]
        self.crc: i64 = i64(read_i32_be(data, position + CRC)) & 0xFFFFFFFF
        self.attributes: i64 = i64(read_i16_be(data, position + ATTRIBUTES))
        self.last_offset_delta: i64 = i64(read_i32_be(data, position + LAST_OFFSET_DELTA))
        self.base_timestamp: i64 = read_i64_be(data, position + BASE_TIMESTAMP)
        self.max_timestamp: i64 = read_i64_be(data, position + MAX_TIMESTAMP)
        self.producer_id: i64 = read_i64_be(data, position + PRODUCER_ID)
        self.producer_epoch: i64 = i64(read_i16_be(data, position + PRODUCER_EPOCH))
        self.base_sequence: i64 = i64(read_i32_be(data, position + BASE_SEQUENCE))
        self.record_count: i64 = i64(read_i32_be(data, position + RECORD_COUNT))

    @property
    def codec(self) -> i64:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are unassigned."""
        return self.attributes & CODEC_MASK

    @property
    def append_time(self) -> bool:
        """Whether the records' time is :attr:`max_timestamp`, the broker's clock when it appended them."""
        return self.attributes & APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the records become visible only once their transaction is committed."""
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        """Whether the records are markers (commit, abort), which applications never see."""
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether :attr:`base_timestamp` is the time from which compaction may drop the tombstones."""
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def last_offset(self) -> i64:
        """The offset of the last record that was in the batch when it was produced."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> i64:
        """The offset after :attr:`last_offset`."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> i64:
        """The last record's sequence number, which wraps from 2^31 - 1 to 0; -1 without idempotence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def end(self) -> i64:
        """The position in :attr:`data` after the batch."""
        return self.position + self.size

    def to_bytes(self) -> bytes:
        """The bytes of the batch: :attr:`data` when it contains nothing else, else a copy."""
        if self.position == 0 and self.size == len(self.data):
            return self.data
        return self.data[self.position : self.position + self.size]

    def __repr__(self) -> str:
        return (
            f"Batch(offsets {self.base_offset}..{self.last_offset}, {self.record_count} records, "
            f"{self.size} bytes at {self.position}, attributes {self.attributes:#x})"
        )


def parse_batch(data: bytes, position: i64, end: i64) -> Batch:
    """Parses the batch at ``position``; ``end`` is the end of the bytes of it and its followers.

    Raises CorruptMessage when the frame, the magic byte or the counts are impossible. It checks neither the
    checksum (:func:`check_crc`) nor the records (:mod:`tidemill.records.batch_validation`).
    """
    if position < 0 or end > len(data) or position > end:
        raise _out_of_bounds(data, position, end)
    left: i64 = end - position
    if left < LOG_OVERHEAD:
        raise _too_short(position, left)
    size: i64 = i64(read_i32_be(data, position + LENGTH)) + LOG_OVERHEAD
    if left > MAGIC and data[position + MAGIC] != CURRENT_MAGIC:
        raise _wrong_magic(position, data[position + MAGIC])
    if size < RECORDS or size > left:
        raise _wrong_size(position, size, RECORDS, left)
    batch = Batch(data, position, size)
    count: i64 = batch.record_count
    space: i64 = size - RECORDS
    if (
        count < 0
        or batch.last_offset_delta < 0
        or count > batch.last_offset_delta + 1
        or (batch.attributes & CODEC_MASK == NO_COMPRESSION and count > space // RECORD_BYTES_MIN)
        or batch.base_offset > BASE_OFFSET_MAX
    ):
        raise _wrong_counts(batch)
    return batch


def size_of_batch(data: bytes, position: i64 = 0) -> i64:
    """Returns the size of the batch or entry at ``position``. ``data`` has at least its first 12 bytes."""
    return i64(read_i32_be(data, position + LENGTH)) + LOG_OVERHEAD


def whole_batch_size(data: bytes, position: i64, end: i64) -> i64:
    """Returns the size of the batch at ``position`` in bytes, or 0 when it is cut off before ``end``.

    A Fetch response may end within a batch, which its reader skips. An entry of formats v0 and v1 counts as a
    batch. Raises CorruptMessage when the length is smaller than that of any batch.
    """
    if position < 0 or end > len(data) or position > end:
        raise _out_of_bounds(data, position, end)
    left: i64 = end - position
    if left < LOG_OVERHEAD:
        return 0
    size: i64 = i64(read_i32_be(data, position + LENGTH)) + LOG_OVERHEAD
    size_min: i64 = OLD_ENTRY_BYTES_MIN
    if left > MAGIC and data[position + MAGIC] == CURRENT_MAGIC:
        size_min = RECORDS
    if size < size_min:
        raise _wrong_size(position, size, size_min, left)
    return size if size <= left else 0


def check_crc(batch: Batch) -> None:
    """Raises CorruptMessage when the checksum in the header does not match the bytes."""
    first: i64 = batch.position + ATTRIBUTES
    last: i64 = batch.position + batch.size
    found: i64 = 0
    if batch.size <= COPIED_BYTES_MAX:
        found = crc32c(batch.data[first:last])
    else:
        found = crc32c(memoryview(batch.data)[first:last])
    if found != batch.crc:
        raise CorruptMessage(
            f"the batch at byte {batch.position} with base offset {batch.base_offset} ({batch.size} bytes) "
            f"has checksum {found}, its header says {batch.crc}: "
            "the bytes were changed in transit or on the disk"
        )


def _out_of_bounds(data: bytes, position: i64, end: i64) -> ValueError:
    return ValueError(f"bytes {position} to {end} are not inside a buffer of {len(data)} bytes")


def _too_short(position: i64, left: i64) -> CorruptMessage:
    return CorruptMessage(f"{left} bytes at byte {position} are too few for a batch, which starts with 12")


def _wrong_magic(position: i64, magic: i64) -> CorruptMessage:
    if magic < CURRENT_MAGIC:
        return CorruptMessage(
            f"the bytes at {position} are a message set of format v{magic}, where a batch of v2 was expected",
            ErrorCode.INVALID_RECORD,
        )
    return CorruptMessage(f"the batch at byte {position} has magic byte {magic}, only 2 is supported")


def _wrong_size(position: i64, size: i64, size_min: i64, left: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the batch at byte {position} says that it has {size} bytes; "
        f"it needs at least {size_min}, and {left} are available"
    )


def _wrong_counts(batch: Batch) -> CorruptMessage:
    return CorruptMessage(
        f"the batch at byte {batch.position} is impossible: {batch.record_count} records, base offset "
        f"{batch.base_offset}, last offset delta {batch.last_offset_delta}, in {batch.size} bytes, "
        f"codec {batch.codec}"
    )
