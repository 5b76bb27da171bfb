"""The basic types, with bytes written out by hand, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import ProtocolError
from tidemill.wire.primitives import (
    Reader,
    Writer,
    encode_uvarint,
    read_uvarint,
    read_varint,
    read_varlong,
    skip_tags,
)

EXAMPLES: list[tuple[str, Any, str]] = [
    ("bool", True, "01"),
    ("bool", False, "00"),
    ("int8", -1, "ff"),
    ("int8", 127, "7f"),
    ("int8", -128, "80"),
    ("int16", -2, "fffe"),
    ("uint16", 65534, "fffe"),
    ("int32", -(2**31), "80000000"),
    ("uint32", 2**32 - 1, "ffffffff"),
    ("int64", 2**63 - 1, "7fffffffffffffff"),
    ("int64", -2, "fffffffffffffffe"),
    ("float64", -1.5, "bff8000000000000"),
    ("uuid", bytes(range(16)), "000102030405060708090a0b0c0d0e0f"),
    ("uvarint", 0, "00"),
    ("uvarint", 127, "7f"),
    ("uvarint", 128, "8001"),
    ("uvarint", 300, "ac02"),
    ("uvarint", 2**32 - 1, "ffffffff0f"),
    ("varint", 0, "00"),
    ("varint", -1, "01"),
    ("varint", 1, "02"),
    ("varint", 2**31 - 1, "feffffff0f"),
    ("varint", -(2**31), "ffffffff0f"),
    ("varlong", -65, "8101"),
    ("varlong", 2**63 - 1, "feffffffffffffffff01"),
    ("varlong", -(2**63), "ffffffffffffffffff01"),
    ("string", "né", "0003 6ec3a9"),
    ("nullable_string", None, "ffff"),
    ("nullable_string", "", "0000"),
    ("compact_string", "né", "04 6ec3a9"),
    ("nullable_compact_string", None, "00"),
    ("nullable_compact_string", "", "01"),
    ("bytes", b"ab", "00000002 6162"),
    ("nullable_bytes", None, "ffffffff"),
    ("compact_bytes", b"ab", "03 6162"),
    ("nullable_compact_bytes", None, "00"),
]


@pytest.mark.parametrize(("kind", "value", "text"), EXAMPLES)
def test_values_byte_by_byte(kind: str, value: Any, text: str) -> None:
    data = bytes.fromhex(text)
    writer = Writer()
    getattr(writer, f"write_{kind.removeprefix('nullable_')}")(value)
    assert writer.getvalue() == data
    assert writer.size() == len(data)
    reader = Reader(b"??" + data + b"!", 2, 2 + len(data))
    assert getattr(reader, f"read_{kind}")() == value
    assert reader.remaining() == 0
    reader.expect_end()
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            getattr(Reader(data, 0, size), f"read_{kind}")()


@given(st.integers(0, 2**32 - 1))
def test_uvarints_come_back(value: int) -> None:
    data = encode_uvarint(value)
    assert read_uvarint(b"\x80" + data, 1, 1 + len(data)) == (value, 1 + len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_come_back(value: int) -> None:
    writer = Writer()
    writer.write_varlong(value)
    data = writer.getvalue()
    assert read_varlong(data, 0, len(data)) == (value, len(data))
    if -(2**31) <= value < 2**31:
        assert read_varint(data, 0, len(data)) == (value, len(data))
    else:
        with pytest.raises(ProtocolError):
            read_varint(data, 0, len(data))


@given(st.binary(max_size=12))
def test_varints_of_any_bytes_end_or_are_refused(data: bytes) -> None:
    limits: list[tuple[Callable[..., tuple[int, int]], int, int]] = [
        (read_uvarint, 5, 2**32),
        (read_varint, 5, 2**31),
        (read_varlong, 10, 2**63),
    ]
    for read, size_max, value_max in limits:
        try:
            value, position = read(data, 0, len(data))
        except ProtocolError:
            continue
        assert 0 < position <= min(size_max, len(data))
        assert -value_max <= value < value_max


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("uvarint", "808080808001"),  # six bytes
        ("uvarint", "ffffffff1f"),  # 33 bits
        ("varlong", "8080808080808080808001"),  # eleven bytes
        ("varlong", "ffffffffffffffffff03"),  # 65 bits
        ("string", "ffff"),  # null
        ("nullable_string", "fffe"),  # a negative length
        ("string", "0002c328"),  # no UTF-8
        ("string", "0001ff"),
        ("compact_string", "00"),  # null
        ("compact_string", "818002" + "61" * 32768),  # over 32767 bytes
        ("bytes", "ffffffff"),  # null
        ("nullable_bytes", "80000000"),
        ("bytes", "7fffffff00"),
        ("compact_bytes", "ffffffff0f00"),
    ],
)
def test_values_that_are_none(kind: str, text: str) -> None:
    data = bytes.fromhex(text)
    with pytest.raises(ProtocolError):
        getattr(Reader(data), f"read_{kind}")()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int8", (128, -129)),
        ("int16", (2**15, -(2**15) - 1)),
        ("uint16", (2**16, -1)),
        ("int32", (2**31, -(2**31) - 1)),
        ("uint32", (2**32, -1)),
        ("varint", (2**31, -(2**31) - 1)),
        ("uvarint", (2**32, -1)),
        ("uuid", (b"short",)),
        ("string", ("x" * 32768,)),
        ("compact_string", ("x" * 32768,)),
    ],
)
def test_what_a_type_cannot_hold_is_not_written(kind: str, values: tuple[Any, ...]) -> None:
    for value in values:
        writer = Writer()
        with pytest.raises(ValueError):
            getattr(writer, f"write_{kind}")(value)
        assert writer.getvalue() == b""


def test_counts_are_held_against_the_bytes_that_are_left() -> None:
    assert Reader(b"\0\0\0\2" + bytes(8)).read_count(4) == 2
    assert Reader(b"\x03" + bytes(8)).read_compact_count(4) == 2
    assert Reader(b"\xff\xff\xff\xff").read_count(1) == -1
    assert Reader(b"\0").read_compact_count(1) == -1
    for data in (b"\0\0\0\3" + bytes(11), b"\x7f\xff\xff\xff" + bytes(8), b"\x80\0\0\0"):
        with pytest.raises(ProtocolError, match="items cannot be"):
            Reader(data).read_count(4)
    for data in (b"\x04" + bytes(11), b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(ProtocolError, match="items cannot be"):
            Reader(data).read_compact_count(4)


def test_tagged_fields_are_stepped_over() -> None:
    section = b"\x02\x00\x01a\x05\x00"
    reader = Reader(section + b"rest")
    reader.skip_tags()
    assert reader.read_raw(4) == b"rest"
    assert skip_tags(section, 1, len(section), 2) == len(section)
    for size in range(1, len(section)):
        with pytest.raises(ProtocolError):
            skip_tags(section[:size], 1, size, 2)


def test_a_reader_stays_inside_its_range() -> None:
    for position, end in ((-1, 1), (2, 1), (0, 4)):
        with pytest.raises(ProtocolError, match="in 3 bytes"):
            Reader(b"abc", position, end)
    reader = Reader(b"abc", 0, 2)
    assert reader.read_raw(2) == b"ab"
    with pytest.raises(ProtocolError, match="1 bytes are due at byte 2, but the message ends at 2"):
        reader.read_int8()
    with pytest.raises(ProtocolError, match="1 bytes follow"):
        Reader(b"a").expect_end()
