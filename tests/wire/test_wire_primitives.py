"""Unsigned varints against literal bytes, tagged fields, and invalid values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import ProtocolError
from tidemill.wire.header import parse_request_header
from tidemill.wire.primitives import (
    TAGS_MAX,
    encode_uvarint,
    read_tag_count,
    read_uvarint,
    skip_tag_section,
    skip_tags,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_uvarints_have_their_encoding(value: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_uvarint(value) == data
    assert read_uvarint(b"??" + data + b"!", 2, 2 + len(data)) == (value, 2 + len(data))
    for size in range(len(data)):
        with pytest.raises(ProtocolError, match=f"1 bytes are due at byte {size}, but the message ends"):
            read_uvarint(data, 0, size)


@given(st.integers(0, 2**32 - 1))
def test_decodes_encoded_uvarints(value: int) -> None:
    data = encode_uvarint(value)
    assert read_uvarint(b"\x80" + data, 1, 1 + len(data)) == (value, 1 + len(data))


@given(st.binary(max_size=12))
def test_any_bytes_are_a_varint_or_rejected(data: bytes) -> None:
    try:
        value, position = read_uvarint(data, 0, len(data))
    except ProtocolError:
        return
    assert 0 < position <= min(5, len(data))
    assert 0 <= value < 2**32


@pytest.mark.parametrize("text", ["808080808001", "ffffffff1f"], ids=["six bytes", "33 bits"])
def test_rejects_invalid_varints(text: str) -> None:
    data = bytes.fromhex(text)
    with pytest.raises(ProtocolError, match="varint"):
        read_uvarint(data, 0, len(data))


@pytest.mark.parametrize("value", [2**32, -1])
def test_does_not_encode_values_out_of_range(value: int) -> None:
    with pytest.raises(ValueError, match="not an unsigned varint"):
        encode_uvarint(value)


def test_skips_tagged_fields() -> None:
    section = b"\x02\x00\x01a\x05\x00"
    assert skip_tag_section(section + b"rest", 0, len(section) + 4) == len(section)
    assert skip_tags(section, 1, len(section), 2) == len(section)
    assert skip_tag_section(b"\0", 0, 1) == 1
    for size in range(1, len(section)):
        with pytest.raises(ProtocolError):
            skip_tags(section[:size], 1, size, 2)


def test_checks_the_count_of_tagged_fields() -> None:
    for count in (0, TAGS_MAX):
        assert read_tag_count(bytes([count]) + b"\x63\0" * count, 0, 1 + 2 * count) == (count, 1)
    with pytest.raises(ProtocolError, match="cannot be in the 3 bytes from 1 on"):
        read_tag_count(b"\x02\x63\0\x63\0", 0, 4)
    for count in (TAGS_MAX + 1, 50_000_000):
        with pytest.raises(ProtocolError, match=f"{count} tagged fields"):
            read_tag_count(encode_uvarint(count) + b"\x63\0" * 30, 0, 60)


def test_rejects_a_header_with_too_many_tagged_fields_at_once() -> None:
    metadata_12 = bytes.fromhex("0003 000c 00000001 ffff")
    for count in (1, TAGS_MAX):
        frame = metadata_12 + encode_uvarint(count) + b"\x63\0" * count
        assert parse_request_header(frame).body_position == len(frame)
    for count in (TAGS_MAX + 1, 50_000_000):
        with pytest.raises(ProtocolError, match=f"{count} tagged fields"):
            parse_request_header(metadata_12 + encode_uvarint(count) + b"\x63\0" * 30)
