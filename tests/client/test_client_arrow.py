"""Arrow columns that are sent: the accepted types and their conversions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidemill.client.arrow import columns_of

Column = list[Any] | None


def sent(**columns: pa.Array) -> dict[str, Column]:
    """Returns the columns that are sent for a table with these columns and a value in each row."""
    count = len(next(iter(columns.values())))
    table = pa.table({"value": pa.array([b"v"] * count, pa.binary()), **columns})
    (found,) = columns_of(table)
    return dict(zip(("value", "key", "timestamp", "headers", "partition"), found, strict=True))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
def test_the_partitioner_chooses_for_a_null_partition(kind: pa.DataType) -> None:
    assert sent(partition=pa.array([3, None, 0], kind))["partition"] == [3, -1, 0]
    assert sent(partition=pa.nulls(2))["partition"] == [-1, -1]


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.int32(), [1500, None], [1500, None]),
        (pa.int64(), [1500, None], [1500, None]),
        (pa.null(), [None, None], [None, None]),
        (pa.timestamp("s"), [2, None], [2000, None]),
        (pa.timestamp("ms"), [1500, None], [1500, None]),
        (pa.timestamp("us"), [1_500_999, -1], [1500, -1]),
        (pa.timestamp("ns", tz="UTC"), [1_500_999_999, -1], [1500, -1]),
        (pa.timestamp("us", tz="Europe/Berlin"), [1_500_000, None], [1500, None]),
    ],
)
def test_times_are_timestamps_or_whole_milliseconds(
    kind: pa.DataType, given: list[int | None], expected: list[int | None]
) -> None:
    assert sent(timestamp=pa.array(given, kind))["timestamp"] == expected


@pytest.mark.parametrize("kind", [pa.float64(), pa.string(), pa.bool_(), pa.date32()])
def test_a_time_of_another_type_is_refused_with_the_expected_type(kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"column timestamp is .*, and must be a timestamp, or int64 milli"):
        sent(timestamp=pa.array([None], kind))


@pytest.mark.parametrize("count", [0, 1, 16_383, 16_384, 16_385, 40_000])
def test_every_row_is_sent_once_and_in_order(count: int) -> None:
    values = [b"%d" % at for at in range(count)]
    found = [
        value for part in columns_of(pa.table({"value": pa.array(values, pa.binary())})) for value in part[0]
    ]
    assert found == values


HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.list_(HEADER), [[{"key": "a", "value": b"1"}], None], [[("a", b"1")], None]),
        (pa.large_list(HEADER), [[{"key": "a", "value": None}], []], [[("a", None)], []]),
        (pa.list_(HEADER, 1), [[{"key": "a", "value": b"1"}], None], [[("a", b"1")], None]),
        (pa.list_(pa.null()), [[], None], [[], None]),
        (pa.null(), [None, None], [None, None]),
    ],
)
def test_headers_are_lists_of_structs(kind: pa.DataType, given: list[Any], expected: list[Any]) -> None:
    assert sent(headers=pa.array(given, kind))["headers"] == expected


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.string(), ["a=1"]),
        (pa.list_(pa.string()), [["a"]]),
        (pa.list_(pa.struct([("key", pa.string())])), [[{"key": "a"}]]),
        (pa.map_(pa.string(), pa.binary()), [[("a", b"1")]]),
    ],
)
def test_headers_of_another_type_are_refused_with_the_expected_type(
    kind: pa.DataType, given: list[Any]
) -> None:
    with pytest.raises(ValueError, match=r"column headers is .*, and must be a list of structs of key and v"):
        sent(headers=pa.array(given, kind))
