"""Damaged and malicious bytes: each parser returns or raises an expected error, in short time and memory."""

from __future__ import annotations

import contextlib
import gzip
import resource
import struct
import sys
import time
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import NOW_MS, OPEN, decompress, parsed, patched, raw_batch, with_crc, zigzag

from default_limits import RecordLimits, decode_columns, iter_records
from record_builders import build_batch, parse_batches
from tidemill.model.errors import CorruptMessage, InvalidRecord, KafkaError
from tidemill.records.arrow import to_record_batch
from tidemill.records.batch import GZIP, LZ4, SNAPPY, ZSTD, check_crc, parse_batch
from tidemill.records.batch_validation import is_costly, validate
from tidemill.records.compression import compress, unpacked_bytes_bound

RECORDS = [(NOW_MS + i, b"key", b"value" * i, [("h", b"x"), ("n", None)]) for i in range(4)]
LIMIT = 1 << 20


def use_all(data: bytes) -> int:
    """Parses the bytes with every parser. Returns the number of parsers that rejected them.

    Parsers that accept the bytes must read the same records.
    """
    read: list[list[int]] = []

    def check() -> None:
        for batch in parse_batches(data, 0, len(data)):
            check_crc(batch)

    def validate_records() -> None:
        for batch in parse_batches(data, 0, len(data)):
            is_costly(batch)
            validate(batch, OPEN, NOW_MS)

    def one_by_one(check_crcs: bool) -> None:
        offsets = [int(record.offset) for record in iter_records(data, check_crcs=check_crcs)]
        read.append(offsets)

    def as_columns() -> None:
        read.append(to_record_batch(decode_columns(data, want_headers=True))["offset"].to_pylist())

    parsers: list[Callable[[], object]] = [
        check,
        validate_records,
        lambda: one_by_one(True),
        lambda: one_by_one(False),
        as_columns,
        lambda: decode_columns(data, check_crcs=False, aborted=[(0, 0), (-1, 0)]),
    ]
    refused = 0
    for parse in parsers:
        try:
            parse()
        except KafkaError:
            refused += 1
    assert all(offsets == read[0] for offsets in read)
    return refused


@pytest.mark.parametrize("codec", range(5))
def test_every_changed_byte_is_detected_by_all_parsers(codec: int) -> None:
    """All parsers detect changes under the checksum; the bytes before it are validated separately."""
    data = build_batch(RECORDS, codec=codec)
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= flip
            refused = use_all(bytes(damaged))
            if position >= 16:
                assert refused >= 4, f"byte {position} ^ {flip:#x} was noticed by {refused} of 4 parsers"


@pytest.mark.parametrize("codec", range(5))
def test_a_changed_byte_under_a_correct_checksum_causes_no_unexpected_error(codec: int) -> None:
    data = build_batch(RECORDS, codec=codec)
    for position in range(21, len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= flip
            use_all(with_crc(damaged))


@pytest.mark.parametrize("codec", range(5))
def test_every_truncation_is_detected(codec: int) -> None:
    data = build_batch(RECORDS, codec=codec)
    for end in range(1, len(data)):
        assert use_all(data[:end]) == 2, "a request refuses the rest, a reader leaves it out"
        shortened = bytearray(data[:end])
        if end > 61:
            struct.pack_into(">i", shortened, 8, end - 12)
            assert use_all(with_crc(shortened)) >= 3, f"cut at {end}"


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_cause_no_unexpected_error(data: bytes) -> None:
    use_all(data)


@given(st.binary(max_size=200), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_random_bytes_as_records_cause_no_unexpected_error(data: bytes, count: int) -> None:
    if count <= len(data) // 7:
        use_all(raw_batch(data, count))


@given(st.binary(max_size=200), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_random_bytes_as_compressed_records_cause_no_unexpected_error(data: bytes, codec: int) -> None:
    use_all(patched(raw_batch(data), 21, ">h", codec))


@given(st.binary(max_size=100), st.integers(0, 400), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_frames_with_changed_bytes_decompress_within_the_limit(
    change: bytes, position: int, codec: int
) -> None:
    packed = compress(codec, bytes(range(256)) * 300)
    packed = packed[:position] + change + packed[position + len(change) :]
    for bytes_max in (0, 1000, LIMIT):
        with contextlib.suppress(KafkaError):
            assert len(decompress(codec, packed, bytes_max)) <= bytes_max


# -- bombs ------------------------------------------------------------------------------------------------

ZEROS = bytes(50_000_000)
BOMBS = {
    "gzip": (GZIP, gzip.compress(ZEROS)),
    "gzip of many members": (GZIP, gzip.compress(bytes(1 << 20)) * 200),
    "snappy raw": (SNAPPY, bytes(cramjam.snappy.compress_raw(ZEROS))),
    "snappy": (SNAPPY, compress(SNAPPY, ZEROS)),
    "lz4": (LZ4, compress(LZ4, ZEROS)),
    "lz4 of many frames": (LZ4, compress(LZ4, bytes(1 << 20)) * 200),
    "lz4 of another library": (LZ4, bytes(cramjam.lz4.compress(ZEROS))),
    "zstd": (ZSTD, bytes(cramjam.zstd.compress(ZEROS))),
    "zstd of many frames": (ZSTD, bytes(cramjam.zstd.compress(bytes(1 << 20))) * 200),
}


def resident_max_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("name", BOMBS)
def test_rejects_a_decompression_bomb_within_its_limit(name: str) -> None:
    codec, packed = BOMBS[name]
    decompress(codec, compress(codec, b"warm"), 100)
    before = resident_max_bytes()
    with pytest.raises(InvalidRecord, match=rf"{len(packed)} bytes of \w+ unpack to more than {LIMIT} bytes"):
        decompress(codec, packed, LIMIT)
    assert resident_max_bytes() - before < 8 * LIMIT
    batch = parsed(patched(raw_batch(packed), 21, ">h", codec))
    assert is_costly(batch)
    with pytest.raises(InvalidRecord):
        validate(batch, RecordLimits(max_batch_bytes=1 << 30, unpacked_bytes_max=LIMIT), NOW_MS)


def zstd_frame(window: int, content_size: int, blocks: bytes) -> bytes:
    """A frame with this window and content size in its header."""
    return struct.pack("<IBBQ", 0xFD2FB528, 0xC0, window, content_size) + blocks


CLAIMS = {
    "zstd content of 2^62": (ZSTD, zstd_frame(0, 1 << 62, b"\x09\x00\x00x")),
    "zstd window of 128 MiB": (ZSTD, zstd_frame(17 << 3, 1 << 27, b"\x09\x00\x00x")),
    "zstd window of 2^41": (ZSTD, zstd_frame(0xFF, 1 << 41, b"\x09\x00\x00x")),
    "zstd run block of 2 MiB": (ZSTD, zstd_frame(0, 1 << 21, b"\xfb\xff\xff\x00" * 3 + b"\x01\x00\x00")),
    "lz4 content of 2^62": (
        LZ4,
        struct.pack("<IBBQB", 0x184D2204, 0x68, 0x70, 1 << 62, 0) + b"\x01\x00\x00\x80x\x00\x00\x00\x00",
    ),
    "lz4 block of 2 GiB": (LZ4, b"\x04\x22\x4d\x18\x60\x70\x73\xff\xff\xff\x7f"),
    "skippable frame of 4 GiB": (ZSTD, b"\x50\x2a\x4d\x18\xff\xff\xff\xff"),
    "snappy raw of 4 GiB": (SNAPPY, b"\xff\xff\xff\xff\x0f\x00x"),
    "snappy raw of more": (SNAPPY, b"\xff\xff\xff\xff\xff\xff\x0f\x00x"),
    "snappy block of 2 GiB": (SNAPPY, compress(SNAPPY, b"")[:16] + b"\x7f\xff\xff\xff" + b"\x05"),
    "snappy block of negative length": (SNAPPY, compress(SNAPPY, b"")[:16] + b"\xff\xff\xff\xff" + b"\x05"),
    "snappy block claiming 4 GiB": (
        SNAPPY,
        compress(SNAPPY, b"")[:16] + b"\x00\x00\x00\x06\xff\xff\xff\xff\x0f\x00",
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_does_not_allocate_claimed_sizes(name: str) -> None:
    codec, packed = CLAIMS[name]
    before = resident_max_bytes()
    started = time.perf_counter()
    with pytest.raises((CorruptMessage, InvalidRecord)):
        decompress(codec, packed, 1 << 30)
    assert time.perf_counter() - started < 2
    assert resident_max_bytes() - before < 16 * LIMIT


def test_many_empty_blocks_are_fast() -> None:
    packed = zstd_frame(0, 0, b"\x00\x00\x00" * 300_000 + b"\x01\x00\x00")
    assert unpacked_bytes_bound(ZSTD, packed, 0, len(packed)) == 0


def test_rejects_a_count_of_two_billion_at_once() -> None:
    records = zigzag(2_000_000_000)
    for codec in range(5):
        data = patched(raw_batch(compress(codec, records * 20), 1), 21, ">h", codec)
        data = patched(patched(data, 57, ">i", 2_000_000_000), 23, ">i", 1_999_999_999)
        started = time.perf_counter()
        assert use_all(data) >= 4
        assert time.perf_counter() - started < 2


def test_rejects_a_wrong_length_at_once() -> None:
    data = patched(build_batch(RECORDS), 8, ">i", 2**31 - 1)
    with pytest.raises(CorruptMessage, match="says that it has 2147483659 bytes"):
        parse_batch(data, 0, len(data))
