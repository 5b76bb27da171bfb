"""Round trips, and comparisons with kafka-python, aiokafka and the codecs of Arrow."""

from __future__ import annotations

import gzip
import struct

import cramjam
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter
from record_samples import NOW_MS, OPEN, PythonBatch, PythonBuilder, batches_of_records, decompress, parsed

from default_limits import iter_records, read_records
from record_builders import build_batch, parse_batches
from tidemill.model.errors import CorruptMessage
from tidemill.records.batch import CURRENT_MAGIC, GZIP, LZ4, NO_COMPRESSION, SNAPPY, ZSTD
from tidemill.records.batch_validation import validate
from tidemill.records.builder import BatchBuilder, stamp_append_time
from tidemill.records.compression import (
    CODEC_NAMES,
    codec_of,
    compress,
    unpacked_bytes_bound,
)
from tidemill.records.format_conversion import for_storage
from tidemill.records.varint import read_varint, read_varlong, varint_size, write_varint

CODECS = [NO_COMPRESSION, GZIP, SNAPPY, LZ4, ZSTD]
LIMIT = 1 << 24


def fields(records):
    return [(r.timestamp, r.key, r.value, r.headers) for r in records]


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip(value):
    writer = BytesWriter()
    write_varint(writer, value)
    data = writer.getvalue()
    assert len(data) == varint_size(value)
    assert read_varlong(data, 0, len(data)) == (value, len(data))
    if -(2**31) <= value < 2**31:
        assert read_varint(data, 0, len(data)) == (value, len(data))


@settings(max_examples=60, deadline=None)
@given(batches_of_records, st.sampled_from(CODECS))
def test_built_batches_are_valid_and_read_back(records, codec):
    data = build_batch(records, codec=codec, base_offset=100)
    batch = parsed(data)
    assert validate(batch, OPEN, NOW_MS) is batch
    read = list(iter_records(data))
    assert fields(read) == records
    assert [r.offset for r in read] == list(range(100, 100 + len(records)))


@settings(max_examples=60, deadline=None)
@given(batches_of_records, st.sampled_from(CODECS))
def test_aiokafka_reads_built_batches(records, codec):
    other = AioBatch(bytearray(build_batch(records, codec=codec)))
    assert other.validate_crc()
    assert fields(other) == records


@settings(max_examples=60, deadline=None)
@given(batches_of_records, st.sampled_from(CODECS))
def test_aiokafka_batches_are_valid_and_read(records, codec):
    builder = AioBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
        batch_size=1 << 20,
    )
    for index, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(index, timestamp=timestamp, key=key, value=value, headers=headers)
    data = bytes(builder.build())
    batch = parsed(data)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 1, 9)
    assert batch.is_transactional
    assert validate(batch, OPEN, NOW_MS) is batch
    assert fields(iter_records(data)) == records


@settings(max_examples=60, deadline=None)
@given(batches_of_records, st.sampled_from([NO_COMPRESSION, GZIP]))
def test_kafka_python_and_tidemill_read_the_batches_of_each_other(records, codec):
    other = PythonBatch(bytearray(build_batch(records, codec=codec)))
    assert other.validate_crc()
    assert fields(other) == records
    builder = PythonBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for index, (timestamp, key, value, headers) in enumerate(records):
        builder.append(index, timestamp, key, value, headers)
    data = bytes(builder.build())
    assert fields(iter_records(data)) == records
    validate(parsed(data), OPEN, NOW_MS)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=3000), times=st.sampled_from([0, 1, 7, 60]))
@settings(max_examples=40, deadline=None)
def test_compression_round_trip_within_its_limit(codec, data, times):
    whole = data * times
    packed = compress(codec, whole)
    assert decompress(codec, packed, LIMIT) == whole
    assert unpacked_bytes_bound(codec, packed, 0, len(packed)) >= len(whole)


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 65535, 65536, 65537, 300_000])
@pytest.mark.parametrize("codec", CODECS)
def test_decompresses_up_to_the_exact_limit(codec, size):
    whole = (b"abcdefg" * (size // 7 + 1))[:size]
    packed = compress(codec, whole)
    assert decompress(codec, packed, size) == whole
    if size:
        with pytest.raises(Exception, match=f"{size - 1} bytes"):
            decompress(codec, packed, size - 1)


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
@given(st.binary(max_size=200_000))
@settings(max_examples=15, deadline=None)
def test_arrow_is_an_independent_codec(codec, whole):
    number = codec_of(codec)
    other = pa.Codec(codec)
    ours = compress(number, whole)
    assert other.decompress(ours, decompressed_size=len(whole), asbytes=True) == whole
    assert decompress(number, other.compress(whole, asbytes=True), LIMIT) == whole


@given(st.binary(max_size=100_000))
@settings(max_examples=15, deadline=None)
def test_reads_raw_snappy_of_another_library(whole):
    assert decompress(SNAPPY, pa.Codec("snappy").compress(whole, asbytes=True), LIMIT) == whole


def test_writes_snappy_in_the_frame_of_the_java_client():
    packed = compress(SNAPPY, b"x" * 70_000)
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    position, blocks = 16, b""
    while position < len(packed):
        (length,) = struct.unpack_from(">i", packed, position)
        block = packed[position + 4 : position + 4 + length]
        blocks += bytes(cramjam.snappy.decompress_raw(block))
        position += 4 + length
    assert blocks == b"x" * 70_000


def test_writes_lz4_frames_for_the_java_client():
    packed = compress(LZ4, b"abc" * 50_000)
    flags, sizes = packed[4], packed[5]
    assert flags == 0b01_1_0_0_0_0_0, "version 1, independent blocks, no checksums, no content size"
    assert sizes >> 4 == 4, "blocks of 64 KiB"


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_reads_consecutive_frames(codec):
    assert decompress(codec, compress(codec, b"one") + compress(codec, b"two"), 100) == b"onetwo"


@pytest.mark.parametrize("kind", [0, 15])
@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_skips_skippable_frames_at_any_position(codec: int, kind: int) -> None:
    skipped = struct.pack("<II", 0x184D2A50 + kind, 3) + b"xyz"
    one, two = compress(codec, b"one"), compress(codec, b"two")
    for packed in (skipped + one + two, one + skipped + skipped + two, one + two + skipped):
        assert decompress(codec, packed, 100) == b"onetwo"
    assert decompress(codec, skipped, 100) == b""


def test_every_compression_level_round_trips():
    whole = bytes(range(256)) * 400
    assert gzip.decompress(compress(GZIP, whole, 9)) == whole
    assert decompress(LZ4, compress(LZ4, whole, 12), LIMIT) == whole
    assert decompress(ZSTD, compress(ZSTD, whole, 19), LIMIT) == whole
    assert decompress(ZSTD, compress(ZSTD, whole, -5), LIMIT) == whole


def test_codecs_are_found_by_name():
    assert [codec_of(name) for name in CODEC_NAMES] == CODECS
    with pytest.raises(ValueError, match="'brotli' is not known: use one of none, gzip"):
        codec_of("brotli")


@pytest.mark.parametrize("codec", CODECS)
def test_recompression_changes_only_the_codec(codec):
    records = [(NOW_MS + i, b"k", b"v" * 50, [("h", b"x")]) for i in range(20)]
    data = build_batch(records, codec=GZIP, producer_id=3, producer_epoch=1, base_sequence=4)
    other = for_storage(data, 0, len(data), CURRENT_MAGIC, codec, OPEN, NOW_MS, False)
    assert other.codec == codec
    assert (other.producer_id, other.base_sequence, other.record_count) == (3, 4, 20)
    assert validate(other, OPEN, NOW_MS) is other
    assert fields(read_records(other)) == records


def test_log_append_time_applies_to_every_record():
    batch = parsed(build_batch([(5, None, b"a", None), (9, None, b"b", None)]))
    stamped = parsed(stamp_append_time(batch, NOW_MS))
    assert stamped.append_time
    assert [(r.timestamp, r.timestamp_type) for r in read_records(stamped)] == [(NOW_MS, 1)] * 2
    assert AioBatch(bytearray(stamped.to_bytes())).validate_crc()
    assert stamp_append_time(stamped, NOW_MS) is stamped.data


def test_the_builder_reports_its_size_and_can_be_reused():
    builder = BatchBuilder()
    sizes = [builder.append(NOW_MS - i, b"k" * i, None, [("h", None)] * i) for i in range(100)]
    assert sizes[-1] == builder.size_bytes == len(builder.build())
    first, second = parsed(builder.build(1, 0, 0)), parsed(builder.build(1, 0, 100))
    assert (first.base_sequence, second.base_sequence) == (0, 100)
    assert first.max_timestamp == first.base_timestamp == NOW_MS
    with pytest.raises(ValueError, match="without records"):
        BatchBuilder().build()


def test_sequence_wraps_after_int32():
    batch = parsed(build_batch([(0, None, None, None)] * 3, producer_id=1, base_sequence=2**31 - 2))
    assert batch.last_sequence == 0


def test_reads_consecutive_batches():
    one, two = build_batch([(1, None, b"a", None)]), build_batch([(2, None, b"b", None)], base_offset=1)
    batches = parse_batches(b"xx" + one + two, 2, 2 + len(one) + len(two))
    assert [(b.base_offset, b.position, b.next_offset) for b in batches] == [(0, 2, 1), (1, 2 + len(one), 2)]
    assert batches[1].to_bytes() == two


@pytest.mark.parametrize("sizes", [(0, 30), (30, 0), (5000, 30), (30, 5000), (2 << 20, 30), (30, 2 << 20)])
def test_reads_all_gzip_members(sizes: tuple[int, int]) -> None:
    """The size at the end is only that of the last member."""
    parts = [bytes(at % 251 for at in range(size)) for size in sizes]
    packed = b"".join(gzip.compress(part) for part in parts)
    assert decompress(GZIP, packed, 8 << 20) == b"".join(parts)


@pytest.mark.parametrize("said", [0, 1, 4999, 5001, 1 << 20, 0xFFFFFFFF])
def test_rejects_gzip_with_a_wrong_size(said: int) -> None:
    packed = gzip.compress(bytes(5000))
    with pytest.raises(CorruptMessage):
        decompress(GZIP, packed[:-4] + said.to_bytes(4, "little"), 8 << 20)
