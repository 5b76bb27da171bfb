"""Message formats v0 and v1: the examples of their documentation, and invalid bytes."""

from __future__ import annotations

import struct
import zlib

import pytest
from legacy_samples import entry_bytes, messages, read_set

from default_limits import EntryCursor, RecordLimits, down
from record_builders import build_batch, build_message_set
from tidemill.model.errors import CorruptMessage, ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import GZIP, LZ4, NO_COMPRESSION, RECORDS, SNAPPY, ZSTD, Batch, parse_batch
from tidemill.records.builder import stamp_append_time
from tidemill.records.compression import compress, decompress_range
from tidemill.records.format_conversion import COSTLY_MESSAGES, KEEP_CODEC, for_storage, is_costly_for_storage
from tidemill.records.legacy_formats import (
    LZ4_OLD_HEADER,
    correct_lz4_checksum,
    pack,
    parse_entry,
    unpack_entry,
    xxhash32,
)
from tidemill.records.message_set import MessageSet, MessageSetWriter, wrap

TIME_MS = 1524709879130


def test_a_v0_message_with_key_and_value_has_34_bytes() -> None:
    data = build_message_set(0, [(TIME_MS, b"key", b"value")])
    assert len(data) == 34
    assert parse_entry(data, 0, len(data)).crc == 592888119
    assert data == bytes.fromhex(
        "0000000000000000"  # offset
        "00000016"  # size: 22 bytes follow
        "2356c137"  # crc 592888119
        "00"  # magic
        "00"  # attributes
        "00000003" + b"key".hex() + "00000005" + b"value".hex()
    )


def test_a_v0_message_without_a_key_has_31_bytes_and_both_messages_65() -> None:
    data = build_message_set(0, [(TIME_MS, b"key", b"value"), (TIME_MS, None, b"value")])
    assert len(build_message_set(0, [(TIME_MS, None, b"value")])) == 31
    assert len(data) == 65


def test_a_v1_message_with_key_and_value_has_42_bytes() -> None:
    data = build_message_set(1, [(TIME_MS, b"key", b"value")])
    assert len(data) == 42
    assert data[16:] == bytes.fromhex(
        "01"  # magic
        "00"  # attributes
        "00000162ffca6d5a"  # timestamp 1524709879130
        "00000003" + b"key".hex() + "00000005" + b"value".hex()
    )
    assert parse_entry(data, 0, 42).crc == zlib.crc32(data[16:])


def test_ten_records_have_320_bytes_in_v0_400_in_v1_and_191_in_v2() -> None:
    records = [(TIME_MS, None, b"123456")] * 10
    assert len(build_message_set(0, records)) == 320
    assert len(build_message_set(1, records)) == 400
    assert len(build_batch([(*record, None) for record in records])) == 191


def test_the_smallest_messages_have_26_and_34_bytes() -> None:
    assert len(build_message_set(0, [(TIME_MS, None, None)])) == 26
    assert len(build_message_set(1, [(TIME_MS, None, None)])) == 34


@pytest.mark.parametrize(("magic", "size"), [(0, -1), (0, 0), (0, 13), (1, 0), (1, 14), (1, 21)])
def test_rejects_messages_below_the_minimum_size(magic: int, size: int) -> None:
    body = bytes([magic, 0]) + bytes(20)
    body = body[: max(0, size - 4)]
    data = struct.pack(">qiI", 0, size, zlib.crc32(body)) + body
    for follow in (b"", bytes(40)):
        with pytest.raises(CorruptMessage):
            parse_entry(data + follow, 0, len(data + follow))


@pytest.mark.parametrize("magic", [2, 3, 127, 255])
def test_rejects_an_unknown_magic(magic: int) -> None:
    data = bytearray(build_message_set(1, [(TIME_MS, b"key", b"value")]))
    data[16] = magic
    data[12:16] = struct.pack(">I", zlib.crc32(data[16:]))
    with pytest.raises(CorruptMessage, match=f"magic byte {magic}") as caught:
        parse_entry(bytes(data), 0, len(data))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_distinguishes_tombstones_and_empty_values() -> None:
    data = build_message_set(1, [(1, b"", None), (2, None, b"")])
    assert [(key, value) for _, _, _, key, value in read_set(data)] == [(b"", None), (None, b"")]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("key_length", "value_length"),
    [(-2, 5), (4, 5), (3, 4), (3, 6), (3, -1), (-1, 5), (2**31 - 1, 5), (3, -2)],
)
def test_rejects_fields_that_do_not_fill_the_entry(magic: int, key_length: int, value_length: int) -> None:
    data = entry_bytes(magic, key=b"key", value=b"value", key_length=key_length, value_length=value_length)
    with pytest.raises(InvalidRecord, match="do not fill them exactly"):
        parse_entry(data, 0, len(data))


# -- wrappers


def with_base_offset(data: bytes, offset: int) -> bytes:
    """A batch of v2, stored at ``offset``."""
    return struct.pack(">q", offset) + data[8:]


def stored_at(made: Batch | MessageSet, offset: int, append_time_ms: int = -1) -> bytes:
    """The stored bytes of a produced set whose first record has ``offset``."""
    if isinstance(made, MessageSet):
        return made.stored(offset, append_time_ms)
    return with_base_offset(made.to_bytes(), offset)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_offsets_inside_are_absolute_in_v0_and_relative_in_v1(codec: int) -> None:
    records = [(TIME_MS + i, b"key", b"value") for i in range(6)]
    v0 = build_message_set(0, records, codec, base_offset=1025)
    v1 = build_message_set(1, records, codec, base_offset=1025)
    for data in (v0, v1):
        assert struct.unpack_from(">q", data)[0] == 1030, "the wrapper's offset is that of the last message"
        assert [offset for offset, *_ in read_set(data)] == list(range(1025, 1031))
    inside = [struct.unpack_from(">q", unpack_entry(parse_entry(d, 0, len(d)), 10_000))[0] for d in (v0, v1)]
    assert inside == [1025, 0]


def test_offsets_after_compaction_have_gaps_that_stay() -> None:
    """AO = AO of the last + (IO - IO of the last), also after records were removed."""
    inside = messages(1, [(2, TIME_MS, b"a", b"1"), (5, TIME_MS + 1, b"b", b"2")])
    data = wrap(1, GZIP, inside, 1030, TIME_MS + 1)
    assert [offset for offset, *_ in read_set(data)] == [1027, 1030]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("stored_magic", [0, 1, 2])
@pytest.mark.parametrize("offsets", [(-1, -1, -1), (-3, -2, -1), (-(2**63), 5, -(2**63))])
@pytest.mark.parametrize("wrapper_offset", [-1, 0, 2**63 - 1])
def test_accepts_compressed_sets_with_offsets_minus_one(
    codec: int, magic: int, stored_magic: int, offsets: tuple[int, ...], wrapper_offset: int
) -> None:
    """pykafka 2.8 does so with broker_version 0.10.2 and 1.0.0; Apache Kafka 3.9.2 accepts it."""
    inside = messages(magic, [(offset, TIME_MS, b"key", b"%d" % offset) for offset in offsets])
    data = wrap(magic, codec, inside, wrapper_offset, TIME_MS)
    made = for_storage(data, 0, len(data), stored_magic, KEEP_CODEC, RecordLimits(), TIME_MS, False)
    assert [(offset, value) for offset, *_, value in read_set(stored_at(made, 100))] == [
        (100 + index, b"%d" % offset) for index, offset in enumerate(offsets)
    ]


@pytest.mark.parametrize("codec", [NO_COMPRESSION, GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("stored_magic", [0, 1, 2])
def test_stores_a_set_regardless_of_the_surrounding_bytes(codec: int, magic: int, stored_magic: int) -> None:
    data = build_message_set(magic, [(TIME_MS + at, b"key", b"%d" % at) for at in range(3)], codec)
    for before in (0, 3, 33):
        request = b"#" * before + data + b"#" * 40
        made = for_storage(
            request, before, before + len(data), stored_magic, KEEP_CODEC, RecordLimits(), TIME_MS, False
        )
        assert [(one[0], one[4]) for one in read_set(stored_at(made, 100))] == [
            (100 + at, b"%d" % at) for at in range(3)
        ]


@pytest.mark.parametrize("stored_magic", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_is_the_only_message_of_its_set(magic: int, stored_magic: int) -> None:
    wrapper = build_message_set(magic, [(TIME_MS, b"k", b"v")], GZIP)
    plain = build_message_set(magic, [(TIME_MS, b"k", b"v")])
    for data in (wrapper * 2, wrapper + plain, plain + wrapper):
        with pytest.raises(InvalidRecord, match="must be exactly one wrapper"):
            for_storage(data, 0, len(data), stored_magic, KEEP_CODEC, RecordLimits(), TIME_MS, False)


@pytest.mark.parametrize("value_bytes", range(20))
def test_append_time_is_stored_with_every_message_of_a_set(value_bytes: int) -> None:
    data = build_message_set(1, [(at, b"key", b"%d" % at + bytes(value_bytes)) for at in range(4)])
    made = for_storage(data, 0, len(data), 1, KEEP_CODEC, RecordLimits(), TIME_MS, True)
    assert read_set(stored_at(made, 100, TIME_MS)) == [
        (100 + at, TIME_MS, 1, b"key", b"%d" % at + bytes(value_bytes)) for at in range(4)
    ]


@pytest.mark.parametrize(("position", "end"), [(-1, 10), (0, 43), (40, 43), (42, 41), (43, 43)])
def test_rejects_a_range_outside_its_buffer(position: int, end: int) -> None:
    """For formats v0 and v1, for compressed bytes, and for the bytes of a producer."""
    data = build_message_set(1, [(TIME_MS, b"key", b"value")])
    assert len(data) == 42
    for take in (
        lambda: parse_entry(data, position, end),
        lambda: decompress_range(GZIP, data, position, end, 1000),
        lambda: for_storage(data, position, end, 1, KEEP_CODEC, RecordLimits(), TIME_MS, False),
        lambda: parse_batch(data, position, end),
    ):
        with pytest.raises(ValueError, match=f"bytes {position} to {end} are not inside a buffer of 42"):
            take()


@pytest.mark.parametrize("wrapper_offset", [-1, 1])
def test_rejects_a_wrapper_with_larger_inner_offsets(wrapper_offset: int) -> None:
    inside = messages(1, [(offset, TIME_MS, b"key", b"value") for offset in range(3)])
    data = wrap(1, GZIP, inside, wrapper_offset, TIME_MS)
    with pytest.raises(InvalidRecord, match=f"the wrapper has offset {wrapper_offset}"):
        for_storage(data, 0, len(data), 2, KEEP_CODEC, RecordLimits(), TIME_MS, False)


def test_rejects_a_stored_wrapper_with_negative_inner_offsets() -> None:
    data = wrap(1, GZIP, messages(1, [(-1, TIME_MS, b"key", b"value")]), 7, TIME_MS)
    with pytest.raises(InvalidRecord, match="the wrapper has offset 7"):
        read_set(data)


def test_a_wrapper_has_the_largest_timestamp_and_no_key() -> None:
    data = build_message_set(
        1, [(TIME_MS, b"a", b""), (TIME_MS + 5, b"a", b""), (TIME_MS + 2, b"a", b"")], GZIP
    )
    wrapper = parse_entry(data, 0, len(data))
    assert (wrapper.timestamp, wrapper.key, wrapper.codec, wrapper.append_time) == (
        TIME_MS + 5,
        None,
        GZIP,
        False,
    )


def test_log_append_time_of_the_wrapper_overrides_inner_timestamps() -> None:
    data = build_message_set(1, [(5, b"a", b""), (6, b"b", b"")], GZIP, append_time_ms=TIME_MS)
    assert [(ms, kind) for _, ms, kind, _, _ in read_set(data)] == [(TIME_MS, 1)] * 2
    inside = unpack_entry(parse_entry(data, 0, len(data)), 10_000)
    assert [parse_entry(inside, at, len(inside)).attributes for at in (0, len(inside) // 2)] == [0, 0]


WRONG_INSIDE = {
    "nothing": (InvalidRecord, b""),
    "a wrapper": (InvalidRecord, build_message_set(1, [(1, b"k", b"v")], GZIP)),
    "another format": (InvalidRecord, build_message_set(0, [(1, b"k", b"v")])),
    "a message that is cut off": (CorruptMessage, build_message_set(1, [(1, b"k", b"v")])[:-1]),
    "bytes after the last": (CorruptMessage, build_message_set(1, [(1, b"k", b"v")]) + b"\x00"),
    "a wrong checksum": (CorruptMessage, build_message_set(1, [(1, b"k", b"v")])[:-1] + b"w"),
    "the same offset twice": (CorruptMessage, messages(1, [(0, 1, b"k", b"v")] * 2)),
    "falling offsets": (CorruptMessage, messages(1, [(1, 1, b"k", b"v"), (0, 1, b"k", b"v")])),
    "a negative offset": (CorruptMessage, messages(1, [(-1, 1, b"k", b"v"), (0, 1, b"k", b"v")])),
    "an offset beyond the wrapper's": (InvalidRecord, messages(1, [(8, 1, b"k", b"v")])),
}


@pytest.mark.parametrize("what", WRONG_INSIDE)
def test_rejects_a_wrapper_with_other_content(what: str) -> None:
    error, inside = WRONG_INSIDE[what]
    data = wrap(1, GZIP, inside, 7, 1)
    with pytest.raises(error):
        read_set(data)


def test_rejects_a_wrapper_without_a_value() -> None:
    data = entry_bytes(1, attributes=GZIP, key=None, value=None)
    with pytest.raises(InvalidRecord, match="has no value"):
        EntryCursor(parse_entry(data, 0, len(data)))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [4, 5, 7])
def test_rejects_codecs_that_old_formats_lack(magic: int, codec: int) -> None:
    data = entry_bytes(magic, attributes=codec, key=None, value=b"value")
    with pytest.raises(InvalidRecord, match=f"codec {codec}") as caught:
        read_set(data)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_does_not_decompress_a_wrapper_beyond_its_limit(magic: int, codec: int) -> None:
    data = build_message_set(magic, [(1, None, bytes(1_000_000))], codec)
    with pytest.raises(InvalidRecord, match="unpack to more than 500000 bytes"):
        unpack_entry(parse_entry(data, 0, len(data)), 500_000)


# -- lz4


def test_xxhash32_of_a_frame_header() -> None:
    """Values from the tests of the algorithm."""
    assert xxhash32(b"") == 0x02CC5D05
    assert xxhash32(b"a") == 0x550D7456
    assert xxhash32(b"abc") == 0x32D153FF
    assert xxhash32(b"message digest") == 0x7C948494


def test_lz4_of_v0_has_the_wrong_checksum_of_the_first_clients() -> None:
    packed = pack(0, LZ4, b"value")
    assert packed[:7] == LZ4_OLD_HEADER != compress(LZ4, b"value")[:7] == pack(1, LZ4, b"value")[:7]
    assert correct_lz4_checksum(packed) == compress(LZ4, b"value")


@pytest.mark.parametrize("fields", [b"", bytes(range(8)), b"DICT", bytes(range(8)) + b"DICT"])
def test_corrects_the_checksum_of_an_lz4_header_after_its_optional_fields(fields: bytes) -> None:
    """Bit 3 of the flags announces a content size of 8 bytes, bit 0 a dictionary id of 4."""
    flags = 0x60 | (0x08 if len(fields) >= 8 else 0) | (0x01 if fields[-4:] == b"DICT" else 0)
    descriptor = bytes([flags, 0x40]) + fields
    magic, rest = b"\x04\x22\x4d\x18", b"the blocks"
    right = magic + descriptor + bytes([xxhash32(descriptor) >> 8 & 0xFF]) + rest
    wrong = magic + descriptor + bytes([right[len(magic + descriptor)] ^ 0xFF]) + rest
    assert correct_lz4_checksum(wrong) == correct_lz4_checksum(right) == right


@pytest.mark.parametrize("checksum", [0x82, 0x1A, 0x00])
def test_reads_lz4_of_v0_with_any_checksum_and_of_v1_only_with_the_right_one(checksum: int) -> None:
    for magic in (0, 1):
        inside = messages(magic, [(0, 1, None, b"value")])
        packed = bytearray(compress(LZ4, inside))
        packed[6] = checksum
        data = entry_bytes(magic, attributes=LZ4, key=None, value=bytes(packed))
        if magic == 0 or checksum == 0x82:
            assert [value for *_, value in read_set(data)] == [b"value"]
        else:
            with pytest.raises(CorruptMessage, match="lz4"):
                read_set(data)


@pytest.mark.parametrize("end", range(12))
def test_rejects_a_truncated_lz4_frame_of_v0(end: int) -> None:
    data = entry_bytes(0, attributes=LZ4, key=None, value=pack(0, LZ4, b"x")[:end])
    with pytest.raises((CorruptMessage, InvalidRecord)):
        read_set(data)


def test_reads_raw_snappy_and_the_frame_of_xerial() -> None:
    import cramjam

    inside = messages(1, [(0, 1, None, b"value")])
    raw = bytes(cramjam.snappy.compress_raw(inside))
    data = entry_bytes(1, attributes=SNAPPY, key=None, value=raw)
    assert [value for *_, value in read_set(data)] == [b"value"]
    assert pack(1, SNAPPY, inside)[:8] == b"\x82SNAPPY\x00"


def test_the_frame_of_xerial_has_blocks_of_32_kib() -> None:
    """As written by clients of that format: the header, then each block after its length."""
    import cramjam

    data = bytes(range(256)) * 300
    packed = pack(1, SNAPPY, data)
    position, sizes = 16, []
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        position += 4 + size
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(packed[position - size : position]))))
    assert sizes == [32768, 32768, len(data) - 65536]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("append_time_ms", [-1, TIME_MS + 500])
def test_a_stored_wrapper_of_v1_has_the_largest_timestamp_or_log_append_time(
    codec: int, append_time_ms: int
) -> None:
    times = [TIME_MS, TIME_MS + 7, TIME_MS + 3]
    inside = messages(1, [(at, time, None, b"value") for at, time in enumerate(times)])
    made = MessageSet(wrap(1, codec, inside, 2, 1), 1, codec, 3, TIME_MS + 7)
    wrapper = parse_entry(data := made.stored(100, append_time_ms), 0, len(data))
    assert wrapper.timestamp == (TIME_MS + 7 if append_time_ms < 0 else append_time_ms)
    assert [offset for offset, *_ in read_set(data)] == [100, 101, 102]


def test_does_not_build_an_empty_set() -> None:
    for codec in (NO_COMPRESSION, GZIP):
        with pytest.raises(ValueError, match="without records"):
            build_message_set(1, [], codec)
    with pytest.raises(ValueError, match="format 0 or 1"):
        build_message_set(2, [(1, None, None)])


@pytest.mark.parametrize("magic", [0, 1])
def test_down_conversion_stops_before_a_zstd_batch_and_then_fails(magic: int) -> None:
    parts = [
        build_batch([(5, b"k", b"%d" % first, None)], codec, base_offset=first)
        for first, codec in ((0, NO_COMPRESSION), (1, ZSTD), (2, NO_COMPRESSION))
    ]
    data = b"".join(parts)
    first = down(data, 0, len(data), magic, 0, 1 << 20)
    assert [offset for offset, *_ in read_set(first.data)] == [0]
    assert (first.next_offset, first.next_position, first.record_count) == (1, len(parts[0]), 1)
    with pytest.raises(KafkaError, match="base offset 1 is compressed with zstd") as caught:
        down(data, len(parts[0]), len(data), magic, 1, 1 << 20)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    behind = down(data, 0, len(data), magic, 2, 1 << 20)
    assert [offset for offset, *_ in read_set(behind.data)] == [2]


# -- down-conversion


ROWS = [(7, b"key", b"value"), (8, None, b"v" * 30), (9, b"k", None), (10, b"", b"")]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_set_writer_fills_its_limit_exactly(magic: int) -> None:
    whole = build_message_set(magic, ROWS)
    sizes = [len(build_message_set(magic, [row])) for row in ROWS]

    def written(bytes_max: int) -> MessageSetWriter:
        writer = MessageSetWriter(magic, False, bytes_max)
        for at, (time, key, value) in enumerate(ROWS):
            data = b"#" + (key or b"") + b"#" + (value or b"")
            key_length, value_length = (-1 if one is None else len(one) for one in (key, value))
            writer.append(at, time, data, 1, key_length, 2 + max(key_length, 0), value_length)
        return writer

    full = written(len(whole))
    assert (full.getvalue(), full.size_bytes, full.count) == (whole, len(whole), 4)
    assert full.largest_entry == max(sizes)
    assert full.max_timestamp == (10 if magic else -1)
    with pytest.raises(InvalidRecord, match=f"4 records take {len(whole)} bytes in message format v{magic}"):
        written(len(whole) - 1)


@pytest.mark.parametrize("magic", [0, 1])
def test_down_conversion_fills_the_limit_exactly(magic: int) -> None:
    rows = [(time, key, value, None) for time, key, value in ROWS]
    data = build_batch(rows, base_offset=20)
    sizes = [len(build_message_set(magic, [row])) for row in ROWS]
    for count in range(1, 5):
        for spare in (0, sizes[count] - 1 if count < 4 else 100):
            made = down(data, 0, len(data), magic, 20, sum(sizes[:count]) + spare)
            assert [offset for offset, *_ in read_set(made.data)] == list(range(20, 20 + count))
            assert (made.next_offset, made.record_count) == (20 + count, count)
            assert made.next_position == (len(data) if count == 4 else 0)
    # At least one message, from the fetch offset.
    made = down(data, 0, len(data), magic, 22, 1)
    assert [offset for offset, *_ in read_set(made.data)] == [22]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_batch_becomes_one_wrapper_with_the_offsets_of_its_format(
    magic: int, codec: int
) -> None:
    batches = [
        build_batch([(7 + at, b"k", b"%d" % at, None) for at in range(3)], codec, base_offset=first)
        for first in (20, 23)
    ]
    data = b"".join(batches)
    made = down(data, 0, len(data), magic, 21, 1 << 20)
    first = parse_entry(made.data, 0, len(made.data))
    assert (first.offset, first.magic, first.codec) == (22, magic, codec)
    inside = unpack_entry(first, 10_000)
    begin = 0 if magic else 20
    offsets = [begin + at for at in range(3)]
    size = len(inside) // 3
    assert [struct.unpack_from(">q", inside, at * size)[0] for at in range(3)] == offsets
    assert [(one[0], one[4]) for one in read_set(made.data)] == [
        (20 + at, b"%d" % (at % 3)) for at in range(6)
    ]
    # The second one fits exactly, or is in the next response.
    for missing, count in ((0, 2), (1, 1)):
        part = down(data, 0, len(data), magic, 21, len(made.data) - missing)
        assert part.next_offset == 20 + 3 * count
        assert part.next_position == sum(map(len, batches[:count]))
        assert len(read_set(part.data)) == 3 * count


@pytest.mark.parametrize("codec", [NO_COMPRESSION, GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_down_conversion_keeps_log_append_time_in_v1(magic: int, codec: int) -> None:
    batch = build_batch([(5, b"k", b"v", None), (6, b"k", b"w", None)], codec, base_offset=20)
    data = stamp_append_time(parse_batch(batch, 0, len(batch)), TIME_MS)
    made = down(data, 0, len(data), magic, 20, 1 << 20)
    attributes = (8 if magic else 0) | codec
    assert parse_entry(made.data, 0, len(made.data)).attributes == attributes
    times = {(ms, kind) for _, ms, kind, _, _ in read_set(made.data)}
    assert times == ({(TIME_MS, 1)} if magic else {(-1, -1)})


@pytest.mark.parametrize("magic", [0, 1])
def test_down_conversion_continues_after_stored_messages(magic: int) -> None:
    rows = [(5, b"k", b"%d" % at) for at in range(3)]
    data = build_message_set(magic, rows, NO_COMPRESSION, base_offset=40)
    size = len(data) // 3
    for first, count in ((0, 3), (40, 3), (41, 2), (42, 1), (43, 0)):
        made = down(data, 0, len(data), magic, first, 1 << 20)
        assert [offset for offset, *_ in read_set(made.data)] == list(range(43 - count, 43))
        assert (made.next_offset, made.next_position) == (43, len(data))
        # They are unchanged, and do not count as converted.
        assert (made.data, made.record_count) == (data[len(data) - count * size :], 0)
    made = down(data, 0, len(data), magic, 41, size)
    assert (made.next_offset, made.next_position) == (42, 2 * size)


# -- work of threads


def is_costly(data: bytes, magic: int, codec: int = KEEP_CODEC) -> bool:
    return is_costly_for_storage(data, 0, len(data), magic, codec)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("count", "costly"), [(COSTLY_MESSAGES, False), (COSTLY_MESSAGES + 1, True)])
def test_converting_a_batch_with_many_records_is_costly(magic: int, count: int, costly: bool) -> None:
    data = build_batch([(5, None, b"v", None)] * count)
    assert is_costly(data, magic) is costly
    assert is_costly(data, 2) is False


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_validating_many_messages_is_costly(magic: int) -> None:
    least = 26 * (COSTLY_MESSAGES + 1)
    assert is_costly(entry_bytes(0, value=bytes(least - 26)), magic) is True
    assert is_costly(entry_bytes(0, value=bytes(least - 27)), magic) is False


@pytest.mark.parametrize(("codec", "bytes_max"), [(GZIP, 32 * 1024), (LZ4, 256 * 1024)])
def test_recompressing_a_large_batch_is_costly(codec: int, bytes_max: int) -> None:
    overhead = len(build_batch([(5, None, bytes(bytes_max - 100), None)])) - RECORDS - (bytes_max - 100)
    for more, costly in ((0, False), (1, True)):
        data = build_batch([(5, None, bytes(bytes_max - overhead + more), None)])
        assert len(data) - RECORDS == bytes_max + more
        assert is_costly(data, 2, codec) is costly
        assert is_costly(data, 2) is False


def test_rejecting_a_batch_at_once_is_not_costly() -> None:
    good = build_batch([(5, None, bytes(100_000), None)])
    assert is_costly(good, 2, GZIP) is True
    assert is_costly(good[:-1], 2, GZIP) is False
    assert is_costly(b"x" * 100_000, 1) is False


@pytest.mark.parametrize("codec", [NO_COMPRESSION, GZIP])
def test_reports_the_index_of_a_message_without_a_key(codec: int) -> None:
    data = build_message_set(1, [(TIME_MS, b"k", b"a"), (TIME_MS, None, b"b"), (TIME_MS, b"k", b"c")], codec)
    with pytest.raises(
        InvalidRecord, match="1 of 3 records cannot be stored, so none was; record 1: "
    ) as caught:
        for_storage(data, 0, len(data), 1, KEEP_CODEC, RecordLimits(key_required=True), TIME_MS, False)
    assert [index for index, _ in caught.value.record_errors] == [1]
