"""The codecs of batches: gzip, snappy, lz4, zstd, in the framings that Kafka's clients write.

======  =========================================================================================
codec   framing
======  =========================================================================================
gzip    members (RFC 1952), one after the other
snappy  written: xerial's frame: magic 82 'SNAPPY' 00, version int32 1, compatible int32 1, then
        blocks of (length int32, raw snappy of at most 32 KiB); read: that (several may follow each
        other), or one raw snappy block, as librdkafka writes it
lz4     frames; written with independent blocks of 64 KiB, without checksums and content size: the
        Java client refuses dependent blocks
zstd    frames
======  =========================================================================================

Sizes in received bytes are not trusted, and are never allocated unchecked. The output goes into a buffer of
at most ``bytes_max``, whose pages use memory only once they are written, and of less where the frame's blocks
bound it (:func:`unpacked_bytes_bound`). cramjam releases the GIL while it works, so large batches may be
processed in a thread.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import BytesWriter, read_i32_be, write_i32_be
from mypy_extensions import i32, i64

from tidemill.model.errors import CorruptMessage, ErrorCode, InvalidRecord, UnpackedTooLarge
from tidemill.model.unpacked_limit import UNPACKED_KEY
from tidemill.records.batch import GZIP, LZ4, NO_COMPRESSION, SNAPPY, ZSTD

CODEC_NAMES: Final = ["none", "gzip", "snappy", "lz4", "zstd"]
"""Indexed by number; the names are those of configurations."""

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 8 + 4 + 4
XERIAL_BLOCK_BYTES: Final = 32 * 1024

LZ4_MAGIC: Final = 0x184D2204
LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
"""Magic, flags (version 1, independent blocks), 64 KiB blocks, and the checksum of these two bytes."""
LZ4_BLOCK_BYTES: Final = 64 * 1024
LZ4_STORED_FLAG: Final = 0x80000000
LZ4_END: Final = b"\x00\x00\x00\x00"

ZSTD_MAGIC: Final = 0xFD2FB528
ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
SKIPPABLE_MAGIC: Final = 0x184D2A50
"""Skippable frames, for both lz4 and zstd: the last 4 bits are arbitrary."""

GZIP_RATIO_MAX: Final = 1032
"""Deflate's largest ratio: 258 bytes for 2 bits."""

GZIP_BYTES_MIN: Final = 10 + 2 + 8
"""The size of a member: header, an empty block, checksum and size."""

SMALL_BUFFER_BYTES: Final = 1024 * 1024
"""Up to this size a zeroed buffer is cheaper than a memory map, each page of which costs a page fault."""


def codec_of(name: str) -> i64:
    """Returns the number of a codec by its name; raises ValueError for an unknown codec."""
    if name not in CODEC_NAMES:
        raise ValueError(f"compression {name!r} is not known: use one of {', '.join(CODEC_NAMES)}")
    return CODEC_NAMES.index(name)


def compress(codec: i64, data: bytes, level: int | None = None) -> bytes:
    """Compresses ``data`` in the framing of ``codec``.

    ``level`` is the codec's own: gzip 1 to 9 (-1: 6), lz4 1 to 17 (9, the default, is its fast mode, as for
    Kafka's ``compression.lz4.level``), zstd -131072 to 22 (3); snappy has no levels.
    """
    if codec == NO_COMPRESSION:
        return data
    import cramjam

    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, 6 if level is None or level == -1 else level))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, 3 if level is None else level))
    if codec == SNAPPY:
        return _compress_snappy(cramjam.snappy, data)
    if codec == LZ4:
        return _compress_lz4(cramjam.lz4, data, level)
    raise _unknown_codec(codec)


def decompress_range(codec: i64, data: bytes, position: i64, end: i64, bytes_max: i64) -> bytes:
    """Unpacks the bytes from ``position`` to ``end``, to at most ``bytes_max`` bytes.

    Raises CorruptMessage for bytes that are not of that codec, UnpackedTooLarge (both sizes in its text) for
    more than ``bytes_max``, InvalidRecord for a codec that does not exist. It never writes more than
    ``bytes_max`` bytes, whatever sizes the bytes claim.
    """
    if position < 0 or end > len(data) or position > end:
        raise ValueError(f"bytes {position} to {end} are not inside a buffer of {len(data)} bytes")
    if bytes_max < 0:
        raise ValueError(f"bytes_max is {bytes_max}, it must not be negative")
    if codec == NO_COMPRESSION:
        if end - position > bytes_max:
            raise _too_large(codec, end - position, bytes_max)
        return data[position:end]
    bound: i64 = unpacked_bytes_bound(codec, data, position, end)
    capacity: i64 = bound if bound < bytes_max else bytes_max
    size: i64 = 0
    if codec == GZIP and capacity > SMALL_BUFFER_BYTES:
        unpacked = _decompress_small_gzip(data, position, end)
        if unpacked is not None:
            return unpacked
    buffer = _buffer(capacity)
    if codec == SNAPPY:
        size = _decompress_snappy(data, position, end, buffer, capacity)
    else:
        size = _decompress_frames(codec, data, position, end, buffer, capacity, bound)
    with memoryview(buffer) as view:
        return bytes(view[:size])


def unpacked_bytes_bound(codec: i64, data: bytes, position: i64, end: i64) -> i64:
    """Returns an upper bound of the unpacked size, from the blocks' headers alone, without unpacking.

    Raises CorruptMessage for wrong or incomplete framing, InvalidRecord for a codec that does not exist.
    """
    if codec == NO_COMPRESSION:
        return end - position
    if codec == GZIP:
        return (end - position) * GZIP_RATIO_MAX
    if codec == SNAPPY:
        return _snappy_bound(data, position, end)
    if codec == LZ4:
        return _lz4_bound(data, position, end)
    if codec == ZSTD:
        return _zstd_bound(data, position, end)
    raise _unknown_codec(codec)


def _buffer(capacity: i64) -> Any:
    """Returns zeroed memory of at least ``capacity`` bytes; in a large one, unused pages cost no memory."""
    if capacity <= SMALL_BUFFER_BYTES:
        return bytearray(capacity)
    import mmap

    return mmap.mmap(-1, capacity)


def _decompress_frames(
    codec: i64, data: bytes, position: i64, end: i64, buffer: Any, capacity: i64, bound: i64
) -> i64:
    import cramjam

    if codec == GZIP:
        module: Any = cramjam.gzip
    elif codec == LZ4:
        module = cramjam.lz4
    else:
        module = cramjam.zstd
    try:
        with memoryview(data) as whole, memoryview(buffer) as view:
            return i64(module.decompress_into(whole[position:end], view[:capacity]))
    except cramjam.DecompressionError as problem:
        if bound > capacity and "whole buffer" in str(problem):
            raise _too_large(codec, end - position, capacity) from None
        raise CorruptMessage(
            f"{end - position} bytes do not unpack as {CODEC_NAMES[codec]}: {problem}; "
            "the producer's compression library wrote something else"
        ) from None


def _decompress_small_gzip(data: bytes, position: i64, end: i64) -> bytes | None:
    """Unpacks a member whose trailer names a small size; returns None when that size is wrong."""
    if end - position < GZIP_BYTES_MIN:
        return None
    said: i64 = _little(GZIP, data, end - 4, end)
    if said <= 0 or said > SMALL_BUFFER_BYTES:
        return None
    import cramjam

    buffer = bytearray(said)
    try:
        with memoryview(data) as whole:
            size = i64(cramjam.gzip.decompress_into(whole[position:end], buffer))
    except cramjam.DecompressionError:
        return None
    return bytes(buffer) if size == said else None


def _compress_snappy(snappy: Any, data: bytes) -> bytes:
    writer = BytesWriter()
    writer.write(XERIAL_MAGIC)
    write_i32_be(writer, 1)
    write_i32_be(writer, 1)
    size: i64 = len(data)
    position: i64 = 0
    while position < size:
        block = bytes(snappy.compress_raw(data[position : position + XERIAL_BLOCK_BYTES]))
        write_i32_be(writer, i32(len(block)))
        writer.write(block)
        position += XERIAL_BLOCK_BYTES
    return writer.getvalue()


def _is_xerial(data: bytes, position: i64, end: i64) -> bool:
    return end - position >= XERIAL_HEADER_BYTES and data[position : position + 8] == XERIAL_MAGIC


def _decompress_snappy(data: bytes, position: i64, end: i64, buffer: Any, capacity: i64) -> i64:
    """The caller has checked the framing: each block's length is within the data."""
    import cramjam

    written: i64 = 0
    with memoryview(data) as whole, memoryview(buffer) as view:
        if not _is_xerial(data, position, end):
            return _unpack_snappy_block(
                cramjam, whole[position:end], view[:capacity], capacity, end - position
            )
        start: i64 = position
        while position < end:
            if _is_xerial(data, position, end):
                position += XERIAL_HEADER_BYTES
                continue
            length: i64 = i64(read_i32_be(data, position))
            position += 4
            written += _unpack_snappy_block(
                cramjam, whole[position : position + length], view[written:capacity], capacity, end - start
            )
            position += length
    return written


def _unpack_snappy_block(cramjam: Any, block: Any, space: Any, capacity: i64, packed: i64) -> i64:
    try:
        with block, space:
            if i64(cramjam.snappy.decompress_raw_len(block)) > len(space):
                raise _too_large(SNAPPY, packed, capacity)
            return i64(cramjam.snappy.decompress_raw_into(block, space))
    except cramjam.DecompressionError as problem:
        raise CorruptMessage(
            f"a block of {packed} bytes does not unpack as snappy: {problem}; "
            "the producer's compression library wrote something else"
        ) from None


def _snappy_bound(data: bytes, position: i64, end: i64) -> i64:
    """Sums the lengths in the blocks' headers: the decoder enforces each of them."""
    if not _is_xerial(data, position, end):
        return _snappy_block_bytes(data, position, end)
    total: i64 = 0
    while position < end:
        if _is_xerial(data, position, end):
            position += XERIAL_HEADER_BYTES
            continue
        if end - position < 4:
            raise _cut_frame(SNAPPY, position)
        length: i64 = i64(read_i32_be(data, position))
        position += 4
        if length <= 0 or length > end - position:
            raise _cut_frame(SNAPPY, position)
        total += _snappy_block_bytes(data, position, position + length)
        position += length
    return total


def _snappy_block_bytes(data: bytes, position: i64, end: i64) -> i64:
    """Returns the unsigned varint at the start of a raw block: its unpacked length."""
    value: i64 = 0
    shift: i64 = 0
    while position < end and shift <= 28:
        byte: i64 = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value
        shift += 7
    raise _cut_frame(SNAPPY, position)


def _compress_lz4(lz4: Any, data: bytes, level: int | None) -> bytes:
    size: i64 = len(data)
    position: i64 = 0
    writer = BytesWriter()
    writer.write(LZ4_HEADER)
    while position < size:
        block = data[position : position + LZ4_BLOCK_BYTES]
        packed: bytes
        if level is None or level == 9:
            packed = bytes(lz4.compress_block(block, store_size=False))
        else:
            packed = bytes(
                lz4.compress_block(block, mode="high_compression", compression=level, store_size=False)
            )
        if len(packed) < len(block):
            _write_little(writer, len(packed))
            writer.write(packed)
        else:
            _write_little(writer, len(block) | LZ4_STORED_FLAG)
            writer.write(block)
        position += LZ4_BLOCK_BYTES
    writer.write(LZ4_END)
    return writer.getvalue()


def _write_little(writer: BytesWriter, value: i64) -> None:
    writer.append(int(value & 0xFF))
    writer.append(int((value >> 8) & 0xFF))
    writer.append(int((value >> 16) & 0xFF))
    writer.append(int((value >> 24) & 0xFF))


def _little(codec: i64, data: bytes, position: i64, end: i64) -> i64:
    if end - position < 4:
        raise _cut_frame(codec, position)
    return data[position] | data[position + 1] << 8 | data[position + 2] << 16 | data[position + 3] << 24


def _lz4_bound(data: bytes, position: i64, end: i64) -> i64:
    """Returns the number of blocks times the maximum block size in their frame's header."""
    total: i64 = 0
    while position < end:
        magic: i64 = _little(LZ4, data, position, end)
        position += 4
        if magic & 0xFFFFFFF0 == SKIPPABLE_MAGIC:
            position += 4 + _little(LZ4, data, position, end)
            continue
        if magic != LZ4_MAGIC or end - position < 3:
            raise _cut_frame(LZ4, position)
        flags: i64 = data[position]
        block_bytes_max: i64 = 1 << (8 + 2 * ((data[position + 1] >> 4) & 7))
        position += 3 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while True:
            length: i64 = _little(LZ4, data, position, end)
            position += 4
            if length == 0:
                break
            total += block_bytes_max
            position += (length & 0x7FFFFFFF) + (4 if flags & 0x10 else 0)
        position += 4 if flags & 0x04 else 0
    if position > end:
        raise _cut_frame(LZ4, end)
    return total


def _zstd_bound(data: bytes, position: i64, end: i64) -> i64:
    """Raw and RLE blocks contain their size; compressed blocks hold at most 128 KiB (RFC 8878, 3.1.1.2)."""
    total: i64 = 0
    while position < end:
        magic: i64 = _little(ZSTD, data, position, end)
        position += 4
        if magic & 0xFFFFFFF0 == SKIPPABLE_MAGIC:
            position += 4 + _little(ZSTD, data, position, end)
            continue
        if magic != ZSTD_MAGIC or position >= end:
            raise _cut_frame(ZSTD, position)
        descriptor: i64 = data[position]
        position += _zstd_header_bytes(descriptor)
        last = False
        while not last:
            if end - position < 3:
                raise _cut_frame(ZSTD, position)
            header: i64 = data[position] | data[position + 1] << 8 | data[position + 2] << 16
            position += 3
            last = header & 1 != 0
            kind: i64 = (header >> 1) & 3
            length: i64 = header >> 3
            total += ZSTD_BLOCK_BYTES_MAX if kind == 2 or length > ZSTD_BLOCK_BYTES_MAX else length
            position += 1 if kind == 1 else length
        position += 4 if descriptor & 4 != 0 else 0
    if position > end:
        raise _cut_frame(ZSTD, end)
    return total


def _zstd_header_bytes(descriptor: i64) -> i64:
    """Size of descriptor, window, dictionary id and content size, by the flags in the descriptor."""
    single_segment = descriptor & 0x20 != 0
    size_flag: i64 = descriptor >> 6
    size_bytes: i64 = (1 if single_segment else 0) if size_flag == 0 else 1 << size_flag
    dictionary_flag: i64 = descriptor & 3
    dictionary_bytes: i64 = 4 if dictionary_flag == 3 else dictionary_flag
    return 1 + (0 if single_segment else 1) + dictionary_bytes + size_bytes


def _too_large(codec: i64, packed: i64, bytes_max: i64) -> UnpackedTooLarge:
    return UnpackedTooLarge(
        f"{packed} bytes of {CODEC_NAMES[codec]} unpack to more than {bytes_max} bytes, the limit "
        f"({UNPACKED_KEY}): send smaller batches, or raise it"
    )


def _cut_frame(codec: i64, position: i64) -> CorruptMessage:
    return CorruptMessage(
        f"the {CODEC_NAMES[codec]} frame is wrong or cut off at byte {position}: "
        "the producer's compression library wrote something else"
    )


def _unknown_codec(codec: i64) -> InvalidRecord:
    return InvalidRecord(
        f"compression codec {codec} does not exist: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    )
