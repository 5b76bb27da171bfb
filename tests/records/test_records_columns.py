"""Columns and Arrow batches against the record reader, which parses the same bytes independently."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import NOW_MS, batches_of_records, parsed, patched, raw_batch, raw_record

from default_limits import decode_columns, iter_records
from record_builders import build_batch, build_message_set
from tidemill.model.errors import CorruptMessage
from tidemill.records.arrow import to_record_batch
from tidemill.records.builder import build_end_marker, stamp_append_time
from tidemill.records.column_vectors import MICROSECONDS_BEYOND, MILLISECONDS_MAX, to_microseconds


def value_batch(first: int, count: int, **options) -> bytes:
    records = [(NOW_MS + i, None, b"%d" % i, None) for i in range(first, first + count)]
    return build_batch(records, base_offset=first, **options)


def offsets(columns) -> list[int]:
    batch = to_record_batch(columns)
    batch.validate(full=True)
    return batch["offset"].to_pylist()


def rows(columns):
    batch = to_record_batch(columns)
    batch.validate(full=True)
    names = ["offset", "timestamp", "timestamp_type", "key", "value", *batch.schema.names[5:]]
    plain = batch.set_column(3, "timestamp", batch["timestamp"].cast(pa.int64()))
    return list(zip(*(plain[name].to_pylist() for name in names), strict=True))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(batches_of_records, st.integers(0, 4), st.booleans()), max_size=4),
    st.integers(0, 60),
    st.integers(0, 120),
    st.booleans(),
)
def test_columns_equal_the_records_of_the_reader(groups, start, end, headers):
    data, offset = b"", 0
    for records, codec, append_time in groups:
        batch = build_batch(records, codec=codec, base_offset=offset)
        data += stamp_append_time(parsed(batch), NOW_MS) if append_time else batch
        offset += len(records)
    expected = [
        (r.offset, r.timestamp * 1000, r.timestamp_type, r.key, r.value)
        + (([{"key": k, "value": v} for k, v in r.headers] or None,) if headers else ())
        for r in iter_records(data)
        if start <= r.offset < end
    ]
    columns = decode_columns(data, start, end, want_headers=headers)
    assert rows(columns) == expected
    assert columns.count == len(expected)
    if data:
        assert columns.next_offset == min(offset, end)


old_sets = st.tuples(
    st.integers(0, 1),
    st.sampled_from([0, 1, 2, 3]),
    st.lists(
        st.tuples(
            st.integers(0, 2**45),
            st.one_of(st.none(), st.binary(max_size=9)),
            st.one_of(st.none(), st.binary()),
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(old_sets, max_size=4), st.integers(0, 12), st.integers(0, 20), st.booleans())
def test_columns_of_old_formats_equal_the_records_of_the_reader(groups, start, end, headers):
    data, offset = b"", 0
    for magic, codec, records, append_time in groups:
        data += build_message_set(magic, records, codec, None, offset, NOW_MS if append_time else -1)
        offset += len(records)
        data += value_batch(offset, 1)
        offset += 1
    expected = [
        (r.offset, r.timestamp * 1000, r.timestamp_type, r.key, r.value, *((None,) if headers else ()))
        for r in iter_records(data)
        if start <= r.offset < end
    ]
    columns = decode_columns(data, start, end, want_headers=headers)
    assert rows(columns) == expected
    if data:
        assert columns.next_offset == min(offset, end)
    # In steps of one record the result is the same.
    found, position, begin = [], 0, start
    while True:
        columns = decode_columns(data, begin, end, want_headers=headers, position=position, bytes_max=1)
        found += rows(columns)
        position, begin = columns.next_position, columns.next_offset
        if not columns.unfinished:
            break
    assert found == expected


def test_the_schema_equals_that_of_the_kafka_source_of_spark():
    schema = to_record_batch(decode_columns(value_batch(0, 3), want_headers=True)).schema
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    assert schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestamp_type", pa.int32()),
            ("headers", pa.list_(header)),
        ]
    )
    assert to_record_batch(decode_columns(b"", want_headers=True)).schema == schema


def test_a_truncated_fetch_yields_its_complete_batches():
    data = value_batch(0, 3)
    for end in range(len(data)):
        columns = decode_columns(data[:end])
        assert (columns.count, columns.next_offset, columns.next_position) == (0, -1, 0)
    columns = decode_columns(data + data[:50])
    assert (columns.count, columns.next_offset, columns.next_position) == (3, 3, len(data))


@pytest.mark.parametrize("codec", [0, 2])
def test_applies_the_offset_range_inside_batches(codec):
    data = value_batch(0, 10, codec=codec) + value_batch(10, 10, codec=codec)
    assert offsets(decode_columns(data, 4, 13)) == list(range(4, 13))
    assert decode_columns(data, 4, 13).next_offset == 13
    assert offsets(decode_columns(data, 10, 20)) == list(range(10, 20))
    assert offsets(decode_columns(data, 20, 30)) == []
    assert decode_columns(data, 20, 30).next_offset == 20
    late = decode_columns(value_batch(10, 10, codec=codec), 0, 5)
    assert (late.count, late.next_offset) == (0, 5), "the log begins after the range"


def test_skips_control_batches():
    data = value_batch(0, 2) + build_end_marker(True, NOW_MS, 7, 0, 0, base_offset=2) + value_batch(3, 1)
    columns = decode_columns(data)
    assert offsets(columns) == [0, 1, 3]
    only_marker = decode_columns(build_end_marker(True, NOW_MS, 7, 0, 0, base_offset=2), 2)
    assert (only_marker.count, only_marker.next_offset) == (0, 3)


def transactions() -> bytes:
    """Producer 7 aborts 0-1, commits 4-5; producer 8 commits 2; plain records at 3 and 8."""

    def of(producer: int, first: int, count: int) -> bytes:
        return value_batch(first, count, producer_id=producer, base_sequence=first, transactional=True)

    return (
        of(7, 0, 2)
        + of(8, 2, 1)
        + value_batch(3, 1)
        + build_end_marker(False, NOW_MS, 7, 0, 0, base_offset=4)
        + of(7, 5, 2)
        + build_end_marker(True, NOW_MS, 8, 0, 0, base_offset=7)
        + build_end_marker(True, NOW_MS, 7, 0, 0, base_offset=8)
        + value_batch(9, 1)
    )


def test_skips_aborted_transactions_up_to_their_marker():
    data = transactions()
    assert offsets(decode_columns(data)) == [0, 1, 2, 3, 5, 6, 9]
    assert offsets(decode_columns(data, aborted=[(7, 0)])) == [2, 3, 5, 6, 9]
    assert offsets(decode_columns(data, aborted=[(7, 5), (8, 2), (7, 0)])) == [3, 9]


def test_a_control_batch_without_its_marker_ends_no_transaction():
    """Compaction may remove the record and keep the batch."""
    marker = build_end_marker(False, NOW_MS, 7, 0, 0, base_offset=2)
    empty = patched(marker[:8] + (49).to_bytes(4, "big") + marker[12:61], 57, ">i", 0)
    options = {"producer_id": 7, "base_sequence": 0, "transactional": True}
    data = value_batch(0, 2, **options) + empty + value_batch(3, 1, **options) + value_batch(4, 1)
    assert offsets(decode_columns(data, aborted=[(7, 0)])) == [4]
    assert offsets(decode_columns(data)) == [0, 1, 3, 4]


def test_continuing_keeps_the_state_of_transactions():
    data, seen, position, start = transactions(), [], 0, 0
    while True:
        columns = decode_columns(data, start, position=position, bytes_max=1, aborted=[(7, 0)])
        seen += offsets(columns)
        position, start = columns.next_position, columns.next_offset
        if not columns.unfinished:
            break
    assert seen == [2, 3, 5, 6, 9]
    assert (position, start) == (len(data), 10)


def test_continuing_after_an_abort_marker_loses_no_committed_record():
    data = transactions()
    first = decode_columns(data, 0, 5, aborted=[(7, 0)])
    assert (offsets(first), first.next_offset) == ([2, 3], 5)
    behind = decode_columns(data, 5, position=first.next_position, aborted=[(7, 0)])
    assert offsets(behind) == [5, 6, 9]


@pytest.mark.parametrize("codec", [0, 4])
def test_stops_at_the_byte_limit_and_continues(codec):
    data = b"".join(value_batch(i * 10, 10, codec=codec) for i in range(5))
    first = decode_columns(data, bytes_max=150)
    assert first.unfinished
    assert 0 < first.count < 50
    rest = decode_columns(data, first.next_offset, position=first.next_position)
    assert not rest.unfinished
    assert offsets(first) + offsets(rest) == list(range(50))


def test_checks_the_checksum_on_request():
    data = value_batch(0, 10)
    damaged = data[:-2] + b"X" + data[-1:]
    with pytest.raises(CorruptMessage, match="checksum"):
        decode_columns(damaged)
    assert decode_columns(damaged, check_crcs=False).count == 10


@pytest.mark.parametrize("want_headers", [False, True])
@pytest.mark.parametrize("rest", [b"\0", b"\0\0", b"x" * 300])
def test_rejects_a_record_with_bytes_after_its_headers(want_headers, rest):
    good = raw_record(value_length=1, value=b"v")
    record = raw_record(value_length=1, value=b"v", header_bytes=rest)
    assert decode_columns(raw_batch(good), want_headers=want_headers).count == 1
    with pytest.raises(CorruptMessage, match="header has end"):
        decode_columns(raw_batch(record), want_headers=want_headers)


def test_rejects_offsets_that_do_not_increase():
    with pytest.raises(CorruptMessage, match="base offset 0, the one before it ended at 4"):
        decode_columns(value_batch(0, 5) + value_batch(0, 5))


def test_compacted_batch_has_gaps():
    whole = value_batch(0, 10)
    gaps = patched(whole, 23, ">i", 90)
    columns = decode_columns(gaps)
    assert (columns.count, columns.next_offset) == (10, 91)
    empty = patched(patched(whole[:8] + (49).to_bytes(4, "big") + whole[12:61], 57, ">i", 0), 23, ">i", 90)
    columns = decode_columns(empty + value_batch(91, 1))
    assert offsets(columns) == [91]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1000])
def test_nulls_at_the_edges_of_the_bitmap(count):
    records = [
        (NOW_MS, b"k%d" % i if i % 3 else None, None if i % 2 else b"v%d" % i, [("h", None)] * (i % 2))
        for i in range(count)
    ]
    batch = to_record_batch(decode_columns(build_batch(records), want_headers=True))
    batch.validate(full=True)
    assert batch["key"].to_pylist() == [key for _, key, _, _ in records]
    assert batch["value"].to_pylist() == [value for _, _, value, _ in records]
    assert batch["headers"].to_pylist() == [
        [{"key": "h", "value": None}] if headers else None for _, _, _, headers in records
    ]


def test_header_keys_may_be_invalid_utf8():
    data = bytearray(build_batch([(NOW_MS, None, b"v", [("ab", b"x"), ("c", b"y")])]))
    data[data.index(b"ab")] = 0xFF
    columns = decode_columns(bytes(data), want_headers=True, check_crcs=False)
    assert to_record_batch(columns)["headers"].to_pylist() == [
        [{"key": "\ufffdb", "value": b"x"}, {"key": "c", "value": b"y"}]
    ]


def test_timestamps_are_converted_to_utc():
    batch = to_record_batch(
        decode_columns(build_batch([(NOW_MS + 123, None, None, None), (-1, None, None, None)]))
    )
    utc = datetime.UTC
    assert batch["timestamp"].to_pylist() == [
        datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, utc),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, utc),
    ]


@pytest.mark.parametrize(
    ("ms", "us"),
    [
        (0, 0),
        (-1, -1000),
        (MILLISECONDS_MAX, MILLISECONDS_MAX * 1000),
        (-MILLISECONDS_MAX, -MILLISECONDS_MAX * 1000),
        (MILLISECONDS_MAX + 1, MICROSECONDS_BEYOND),
        (2**63 - 1, MICROSECONDS_BEYOND),
        (-MILLISECONDS_MAX - 1, -MICROSECONDS_BEYOND),
        (-(2**63), -MICROSECONDS_BEYOND),
    ],
)
def test_timestamps_out_of_the_microsecond_range_are_distinct(ms, us):
    assert to_microseconds(ms) == us


def test_value_bytes_survive_the_columns():
    batch = to_record_batch(decode_columns(value_batch(0, 1000)))
    assert batch["value"].to_pylist()[-1] == b"999"
    assert batch["offset"].to_pylist()[-1] == 999


@pytest.mark.parametrize("codec", [0, 3])
def test_reads_a_part_of_a_larger_response(codec):
    data = value_batch(0, 10, codec=codec) + value_batch(10, 10, codec=codec)
    around = b"\xff" * 77 + data + b"\xff" * 99
    columns = decode_columns(around, begin=77, end=77 + len(data))
    assert offsets(columns) == list(range(20))
    assert columns.next_position == 77 + len(data)
    cut = decode_columns(around, begin=77, end=77 + len(data) - 1)
    assert offsets(cut) == list(range(10))
    with pytest.raises(ValueError, match="not inside"):
        decode_columns(around, begin=77, end=len(around) + 1)
