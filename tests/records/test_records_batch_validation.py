"""Invalid batches of producers, each with the error code of Kafka."""

from __future__ import annotations

import pytest
from record_samples import NOW_MS, OPEN, parsed, patched, raw_batch, raw_record, with_crc, zigzag

from default_limits import BatchCursor, RecordLimits
from record_builders import build_batch, parse_batches
from tidemill.model.errors import CorruptMessage, ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CURRENT_MAGIC,
    GZIP,
    LAST_OFFSET_DELTA,
    LENGTH,
    MAGIC,
    MAX_TIMESTAMP,
    NO_COMPRESSION,
    PRODUCER_ID,
    RECORD_COUNT,
    Batch,
    check_crc,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.batch_validation import (
    RECORD_ERRORS_MAX,
    begin_validation,
    finish_validation,
    is_costly,
    validate,
)
from tidemill.records.builder import build_end_marker, stamp_append_time
from tidemill.records.format_conversion import for_storage
from tidemill.records.record_cursor import add_timestamp

GOOD = build_batch([(NOW_MS, b"key", b"value", [("h", b"x"), ("i", None)]), (NOW_MS + 1, None, None, None)])


def refused(
    data: bytes, limits: RecordLimits = OPEN, code: ErrorCode = ErrorCode.INVALID_RECORD
) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validate(parse_batch(data, 0, len(data)), limits, NOW_MS)
    assert caught.value.code == code, caught.value
    return caught.value


def test_a_valid_batch_is_stored_unchanged() -> None:
    batch = parsed(GOOD)
    assert validate(batch, RecordLimits(), NOW_MS) is batch


# -- framing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (LENGTH, ">i", 48),
        (LENGTH, ">i", -1),
        (LENGTH, ">i", -(2**31)),
        (LENGTH, ">i", len(GOOD) - 11),
        (LENGTH, ">i", 2**31 - 1),
        (MAGIC, ">b", 3),
        (MAGIC, ">b", -1),
        (RECORD_COUNT, ">i", -1),
        (RECORD_COUNT, ">i", 2_000_000_000),
        (LAST_OFFSET_DELTA, ">i", -1),
        (LAST_OFFSET_DELTA, ">i", 0),
        (0, ">q", 2**63 - 1),
    ],
)
def test_rejects_an_invalid_frame(position: int, layout: str, value: int) -> None:
    data = patched(GOOD, position, layout, value)
    with pytest.raises(CorruptMessage) as caught:
        parse_batch(data, 0, len(data))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_old_formats(magic: int) -> None:
    data = patched(GOOD, MAGIC, ">b", magic)
    with pytest.raises(CorruptMessage, match=f"message set of format v{magic}") as caught:
        parse_batch(data, 0, len(data))
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_a_wrong_checksum_is_reported_with_both_values() -> None:
    batch = parsed(GOOD[:-1] + b"\x01")
    with pytest.raises(CorruptMessage, match=rf"checksum \d+, its header says {batch.crc}"):
        check_crc(batch)
    refused(batch.to_bytes(), code=ErrorCode.CORRUPT_MESSAGE)


def test_the_checksum_excludes_base_offset_and_leader_epoch() -> None:
    check_crc(parsed(b"\x00" * 7 + b"\x05" + GOOD[8:12] + b"\x00\x00\x00\x09" + GOOD[16:]))


def test_a_truncated_batch_is_an_error_in_a_request_and_a_value_for_a_reader() -> None:
    for end in range(len(GOOD)):
        assert whole_batch_size(GOOD, 0, end) == 0
        if end:
            with pytest.raises(CorruptMessage):
                parse_batches(GOOD, 0, end)
    assert whole_batch_size(GOOD, 0, len(GOOD)) == len(GOOD)


@pytest.mark.parametrize(("position", "end"), [(-1, 10), (0, len(GOOD) + 1), (5, 4)])
def test_positions_outside_the_bytes_raise_value_error(position: int, end: int) -> None:
    with pytest.raises(ValueError, match="not inside"):
        parse_batch(GOOD, position, end)


def test_a_batch_beyond_the_bytes_raises_value_error() -> None:
    with pytest.raises(ValueError, match="not inside"):
        BatchCursor(Batch(GOOD, 0, len(GOOD) + 1))


# -- header -----------------------------------------------------------------------------------------------


def test_the_size_limit_applies_to_a_batch_that_grows_when_recompressed() -> None:
    sent = build_batch([(NOW_MS, None, b"v" * 2000, None)], codec=GZIP)
    stored = for_storage(sent, 0, len(sent), CURRENT_MAGIC, NO_COMPRESSION, RecordLimits(), NOW_MS, False)
    assert isinstance(stored, Batch)
    assert stored.size > len(sent)
    exact = RecordLimits(max_batch_bytes=int(stored.size))
    assert (
        for_storage(sent, 0, len(sent), CURRENT_MAGIC, NO_COMPRESSION, exact, NOW_MS, False).size
        == stored.size
    )
    small = RecordLimits(max_batch_bytes=int(stored.size) - 1)
    with pytest.raises(KafkaError, match=f"would be stored with {stored.size} bytes") as caught:
        for_storage(sent, 0, len(sent), CURRENT_MAGIC, NO_COMPRESSION, small, NOW_MS, False)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_count_and_last_offset_delta_agree() -> None:
    refused(patched(GOOD, LAST_OFFSET_DELTA, ">i", 2))
    refused(patched(GOOD, RECORD_COUNT, ">i", 0))
    refused(patched(GOOD, RECORD_COUNT, ">i", 1))


def test_control_batch_of_a_client() -> None:
    assert "control" in str(refused(build_end_marker(True, NOW_MS, 1, 0, 0)))


def test_rejects_log_append_time_of_a_client() -> None:
    for limits in (OPEN, RecordLimits(check_timestamps=False)):
        error = refused(stamp_append_time(parsed(GOOD), NOW_MS), limits, ErrorCode.INVALID_TIMESTAMP)
        assert isinstance(error, InvalidRecord)
        assert error.record_errors[0][0] == 0


def test_producer_needs_a_sequence_and_a_transaction_a_producer() -> None:
    refused(patched(GOOD, PRODUCER_ID, ">q", 5))
    refused(patched(GOOD, ATTRIBUTES, ">h", 0x10))
    validate(parsed(patched(patched(GOOD, PRODUCER_ID, ">q", 5), BASE_SEQUENCE, ">i", 0)), OPEN, NOW_MS)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_rejects_an_unknown_codec(codec: int) -> None:
    refused(patched(GOOD, ATTRIBUTES, ">h", codec), code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


@pytest.mark.parametrize("bit", range(6, 15))
def test_accepts_unused_attribute_bits(bit: int) -> None:
    validate(parsed(patched(GOOD, ATTRIBUTES, ">H", 1 << bit)), OPEN, NOW_MS)


def test_ignores_record_attributes() -> None:
    validate(parsed(raw_batch(raw_record(attributes=255))), OPEN, NOW_MS)


# -- records ----------------------------------------------------------------------------------------------

LONG_VARINT = b"\x80\x80\x80\x80\x80\x00"
BROKEN_RECORDS = {
    "record length 5": zigzag(5) + b"\x00" * 7,
    "record length 0": zigzag(0) + b"\x00" * 7,
    "record length negative": zigzag(-7) + b"\x00" * 7,
    "record length beyond the batch": raw_record(length=7),
    "record length of six bytes": LONG_VARINT + b"\x00" * 6,
    "record length beyond int32": b"\xfe\xff\xff\xff\x1f" + b"\x00" * 8,
    "record length cut off": b"\x80" * 7,
    "fields shorter than the record": raw_record(length=7) + b"\x00",
    "timestamp delta of eleven bytes": zigzag(17) + b"\x00" + b"\x80" * 10 + b"\x00" * 6,
    "timestamp delta beyond int64": zigzag(15) + b"\x00" + b"\xff" * 9 + b"\x02" + b"\x00\x01\x01\x00",
    "timestamp beyond int64": raw_record(timestamp_delta=2**63 - 1),
    "offset delta 1 first": raw_record(offset_delta=1),
    "offset delta negative": raw_record(offset_delta=-1),
    "key length -2": raw_record(key_length=-2),
    "key length beyond the record": raw_record(key_length=100, key=b"abc"),
    "key length int32 max": raw_record(key_length=2**31 - 1),
    "value length -2": raw_record(value_length=-2),
    "value length beyond the record": raw_record(value_length=5, value=b"abc"),
    "value length int32 max": raw_record(value_length=2**31 - 1),
    "value length int32 min": raw_record(value_length=-(2**31)),
    "header count negative": raw_record(header_count=-1),
    "header count beyond the record": raw_record(header_count=2, header_bytes=b"\x00\x00"),
    "header count int32 max": raw_record(header_count=2**31 - 1, header_bytes=b"\x00" * 20),
    "header key null": raw_record(header_count=1, header_bytes=zigzag(-1) + zigzag(-1)),
    "header key beyond the record": raw_record(header_count=1, header_bytes=zigzag(9) + zigzag(0)),
    "header value length -2": raw_record(header_count=1, header_bytes=zigzag(0) + zigzag(-2)),
    "header value beyond the record": raw_record(header_count=1, header_bytes=zigzag(0) + zigzag(3)),
    "bytes after the headers": raw_record(header_count=1, header_bytes=b"\x00\x00\x00"),
    "bytes after the records": raw_record() + b"\x00",
}


@pytest.mark.parametrize("name", BROKEN_RECORDS)
def test_rejects_an_invalid_record(name: str) -> None:
    refused(raw_batch(BROKEN_RECORDS[name]))


def test_rejects_a_missing_or_misplaced_second_record() -> None:
    refused(raw_batch(raw_record() + raw_record(offset_delta=2), 2))
    refused(raw_batch(raw_record() + raw_record(offset_delta=0), 2))
    refused(raw_batch(raw_record(key_length=10, key=b"0123456789"), 2))
    validate(parsed(raw_batch(raw_record() + raw_record(offset_delta=1), 2)), OPEN, NOW_MS)


def test_accepts_the_longest_varints() -> None:
    body = b"\x00" + b"\x80" * 9 + b"\x00" + b"\x80\x80\x80\x80\x00" + b"\x01\x01\x00"
    length = bytes([2 * len(body) | 0x80]) + b"\x80\x80\x80\x00"
    validate(parsed(raw_batch(length + body)), OPEN, NOW_MS)


def test_rejects_a_huge_count_at_once() -> None:
    packed = patched(
        build_batch([(NOW_MS, None, b"x" * 1000, None)], codec=4), RECORD_COUNT, ">i", 2_000_000_000
    )
    packed = patched(packed, LAST_OFFSET_DELTA, ">i", 1_999_999_999)
    assert "2000000000 records cannot be in" in str(refused(packed))


# -- time and keys ----------------------------------------------------------------------------------------


def test_lists_timestamps_out_of_bounds() -> None:
    hour = 3_600_000
    data = build_batch(
        [(NOW_MS + delta, b"k", b"v", None) for delta in (0, hour, hour + 1, -hour, -hour - 1)]
    )
    limits = RecordLimits(timestamp_before_ms=hour, timestamp_after_ms=hour)
    error = refused(data, limits, ErrorCode.INVALID_TIMESTAMP)
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [2, 4]
    assert str(NOW_MS + hour + 1) in error.record_errors[0][1]
    validate(parsed(data), RecordLimits(check_timestamps=False), NOW_MS)


def test_default_limits_accept_the_past_and_one_hour_of_the_future() -> None:
    validate(parsed(build_batch([(0, None, b"v", None)])), RecordLimits(), NOW_MS)
    refused(
        build_batch([(NOW_MS + 3_600_001, None, None, None)]), RecordLimits(), ErrorCode.INVALID_TIMESTAMP
    )


def test_accepts_a_record_without_a_timestamp() -> None:
    validate(parsed(build_batch([(-1, None, b"v", None)])), RecordLimits(timestamp_before_ms=1000), NOW_MS)


def test_lists_records_without_the_keys_of_a_compacted_topic() -> None:
    data = build_batch([(NOW_MS, key, b"v", None) for key in (b"a", None, b"", None)])
    error = refused(data, RecordLimits(key_required=True))
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert "compacted" in error.record_errors[0][1]


def test_the_error_code_is_that_of_the_first_rejected_record() -> None:
    data = build_batch([(0, b"k", None, None), (NOW_MS, None, None, None)])
    limits = RecordLimits(key_required=True, timestamp_before_ms=1000)
    error = refused(data, limits, ErrorCode.INVALID_TIMESTAMP)
    assert isinstance(error, InvalidRecord)
    assert [index for index, _ in error.record_errors] == [0, 1]


def test_limits_the_list_of_rejected_records() -> None:
    data = build_batch([(NOW_MS, None, None, None)] * 1000)
    error = refused(data, RecordLimits(key_required=True))
    assert isinstance(error, InvalidRecord)
    assert len(error.record_errors) == RECORD_ERRORS_MAX


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("claimed", [0, NOW_MS + 1000, -1])
def test_wrong_max_timestamp_is_corrected(codec: int, claimed: int) -> None:
    data = build_batch([(NOW_MS + i % 3, b"k", b"v", None) for i in range(10)], codec=codec)
    stored = validate(parsed(patched(data, MAX_TIMESTAMP, ">q", claimed)), OPEN, NOW_MS)
    assert stored.to_bytes() == data


def test_rejects_the_least_base_timestamp() -> None:
    low = raw_batch(raw_record(timestamp_delta=-1), base_timestamp=0)
    data = patched(low, BASE_TIMESTAMP, ">q", -(2**63))
    refused(data)
    stored = validate(
        parsed(patched(low, BASE_TIMESTAMP, ">q", -(2**63) + 1)), RecordLimits(check_timestamps=True), NOW_MS
    )
    assert stored.max_timestamp == -1


# -- slices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records_max", [1, 2, 3, 7, 1000])
def test_validation_in_slices_has_the_same_result(records_max: int) -> None:
    records = [
        (NOW_MS + i % 5, None if i % 4 else b"k", b"v" * i, [("h", b"x")] * (i % 3)) for i in range(50)
    ]
    data = build_batch(records)
    batch = parsed(data)
    limits = RecordLimits(key_required=True)
    walk = begin_validation(batch, limits, NOW_MS)
    steps = 1
    while not walk.step(records_max):
        steps += 1
    with pytest.raises(InvalidRecord) as sliced:
        finish_validation(batch, walk, limits)
    with pytest.raises(InvalidRecord) as whole:
        validate(batch, limits, NOW_MS)
    assert sliced.value.record_errors == whole.value.record_errors
    assert (walk.cursor.index, walk.max_timestamp) == (49, NOW_MS + 4)
    assert steps >= 90 // records_max
    assert walk.step(records_max), "a walk that is done stays done"


def test_a_record_with_many_headers_is_validated_in_slices() -> None:
    data = raw_batch(raw_record(header_count=10_000, header_bytes=b"\x00\x01" * 10_000))
    walk = begin_validation(parsed(data), OPEN, NOW_MS)
    steps = 0
    while not walk.step(100):
        steps += 1
    assert steps >= 100


def test_finds_a_fault_in_a_later_slice() -> None:
    records = b"".join(raw_record(offset_delta=i) for i in range(9)) + raw_record(offset_delta=8)
    walk = begin_validation(parsed(raw_batch(records, 10)), OPEN, NOW_MS)
    assert not walk.step(9)
    with pytest.raises(InvalidRecord, match="record 9 has offset delta 8"):
        walk.step(9)


def test_is_costly_for_large_compressed_batches_and_many_records() -> None:
    small, large = [(NOW_MS, None, b"x" * 1000, None)], [(NOW_MS, None, b"x" * 10_000, None)] * 1000
    for codec in range(5):
        assert not is_costly(parsed(build_batch(small, codec=codec)))
    for codec in range(1, 5):
        assert is_costly(parsed(build_batch(large, codec=codec)))
    assert is_costly(parsed(build_batch([(NOW_MS, None, None, None)] * 60_000)))


def test_with_crc_equals_the_builder() -> None:
    assert with_crc(GOOD) == GOOD


LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("base", "delta", "fits"),
    [
        (0, LEAST, True),
        (-1, LEAST, False),
        (1, LEAST, True),
        (LEAST, 0, True),
        (LEAST, -1, False),
        (LEAST, MOST, True),
        (0, MOST, True),
        (1, MOST, False),
        (-1, MOST, True),
        (MOST, 0, True),
        (MOST, 1, False),
        (MOST, LEAST, True),
        (2**61, 2**61, True),
        (-(2**62), -(2**62), True),
        (-(2**62), -(2**62) - 1, False),
        (2**62, 2**62 - 1, True),
        (2**62, 2**62, False),
    ],
)
def test_timestamp_deltas_are_limited_to_int64(base: int, delta: int, fits: bool) -> None:
    if fits:
        assert add_timestamp(base, delta) == base + delta
        return
    with pytest.raises(InvalidRecord, match="exceeds int64"):
        add_timestamp(base, delta)
