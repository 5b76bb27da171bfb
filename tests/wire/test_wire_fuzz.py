"""Invalid bytes: decoding raises only ProtocolError, and allocates little memory."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
from wire_values import all_messages, message_of

from tidemill.model.errors import ProtocolError
from tidemill.wire.codec import decode, encode
from tidemill.wire.codegen import is_flexible
from tidemill.wire.decoding import ELEMENTS_MAX, REQUEST_ELEMENTS_MAX, elements_max
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest
from tidemill.wire.messages.update_metadata import UpdateMetadataRequest
from tidemill.wire.schema import Struct

VERSIONS: dict[str, list[tuple[type[Struct], int]]] = {}
for _cls, _version in all_messages():
    VERSIONS.setdefault(_cls.__name__, []).append((_cls, _version))

BYTES_MAX = 600
"""Longer examples are skipped, because a message is truncated at each of its bytes."""


def example(cls: type[Struct], version: int, seed: object = 0) -> bytes:
    for attempt in range(20):
        random_ = random.Random(f"{cls.__name__} {version} {seed} {attempt}")
        data = encode(message_of(random_, cls, version, items_max=2), version)
        if len(data) <= BYTES_MAX:
            return data
    return encode(cls(), version)


@pytest.mark.parametrize("name", VERSIONS)
def test_rejects_a_message_truncated_at_any_byte(name: str) -> None:
    for cls, version in VERSIONS[name]:
        data = example(cls, version)
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                decode(cls, version, data[:size])
        for size in range(0, len(data), 7):
            with pytest.raises(ProtocolError):
                decode(cls, version, data, 0, size)


@pytest.mark.parametrize("name", VERSIONS)
def test_rejects_bytes_after_a_message(name: str) -> None:
    for cls, version in VERSIONS[name]:
        data = example(cls, version)
        with pytest.raises(ProtocolError, match="1 bytes follow"):
            decode(cls, version, data + b"\0")
        assert decode(cls, version, b"??" + data + b"!", 2, len(data) + 2) == decode(cls, version, data)


@pytest.mark.parametrize("name", VERSIONS)
def test_flipped_bytes_are_rejected_or_another_message(name: str) -> None:
    random_ = random.Random(name)
    for cls, version in VERSIONS[name]:
        for seed in range(2):
            data = example(cls, version, seed)
            for _ in range(60 if data else 0):
                damaged = bytearray(data)
                for _ in range(random_.choice((1, 1, 2, 5))):
                    damaged[random_.randrange(len(data))] = random_.choice(
                        (0, 1, 127, 128, 255, random_.randrange(256))
                    )
                try:
                    message = decode(cls, version, bytes(damaged))
                except ProtocolError:
                    continue
                assert decode(cls, version, encode(message, version)) == message


@pytest.mark.parametrize("name", VERSIONS)
def test_a_wrong_count_or_length_allocates_no_memory(name: str) -> None:
    for cls, version in (VERSIONS[name][0], VERSIONS[name][-1]):
        data = example(cls, version, "lies")
        lies = [
            b"\x7f\xff\xff\xff",
            b"\x7f\xff",
            b"\x80\x00\x00\x00",
            b"\xff\xff\xff\xff\x0f",
            b"\xff\xff\xff\x7f",
        ]
        decode(cls, version, data)
        tracemalloc.start()
        try:
            for position in range(0, len(data), 3):
                for lie in lies:
                    damaged = data[:position] + lie + data[position + len(lie) :]
                    with contextlib.suppress(ProtocolError):
                        decode(cls, version, damaged)
            assert tracemalloc.get_traced_memory()[1] < 300_000
        finally:
            tracemalloc.stop()


def test_limits_the_items_of_all_arrays_together() -> None:
    count = REQUEST_ELEMENTS_MAX
    names = b"\0\0" * (count + 1)
    assert len(decode(MetadataRequest, 1, count.to_bytes(4, "big") + names[2:]).topics or ()) == count
    with pytest.raises(ProtocolError, match=f"over {count} in one message"):
        decode(MetadataRequest, 1, (count + 1).to_bytes(4, "big") + names)
    topic = b"\0\0" + (10_000).to_bytes(4, "big") + bytes(40_000)
    topics = REQUEST_ELEMENTS_MAX // 10_000
    nested = b"\0\0" + topics.to_bytes(4, "big") + topic * topics
    with pytest.raises(ProtocolError, match="in one message"):
        decode(OffsetFetchRequest, 1, nested)


def test_messages_with_cluster_metadata_may_have_more_items() -> None:
    for cls in (MetadataResponse, UpdateMetadataRequest):
        assert elements_max(cls) == ELEMENTS_MAX


@pytest.mark.parametrize("name", VERSIONS)
def test_skips_unknown_tagged_fields(name: str) -> None:
    for cls, version in VERSIONS[name]:
        if not is_flexible(cls, version):
            continue
        data = encode(cls(), version)
        assert data[-1] == 0  # no tagged field is set
        known = decode(cls, version, data)
        assert decode(cls, version, data[:-1] + b"\x02\xe7\x07\x03abc\xe8\x07\x00") == known
        for bad in (
            b"\x01",
            b"\x01\xe7\x07",
            b"\x01\xe7\x07\x04abc",
            b"\x7f\xe7\x07\x00",
            b"\x80\x80\x80\x80\x80\x00",
        ):
            with pytest.raises(ProtocolError):
                decode(cls, version, data[:-1] + bad)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, b"\xff\xff\xff\xff"),  # topics may not be null before version 1
        (1, b"\xff\xff\xff\xfe"),  # neither null nor a count
        (1, b"\x00\x00\x00\x01\xff\xff"),  # a name may not be null
        (1, b"\x00\x00\x00\x01\xff\xfe"),
        (1, b"\x00\x00\x00\x01\x00\x02\xc3\x28"),  # no UTF-8
        (9, b"\x02\x00\x00\x00\x00\x00\x00"),  # a compact name may not be null
        (9, b"\x81\x80\x80\x80\x80\x00\x00\x00\x00\x00"),  # a varint of six bytes
        (9, b"\xff\xff\xff\xff\x1f\x00\x00\x00\x00"),  # a varint over 32 bits
        (9, b"\x02" + b"\x81\x80\x02" + b"a" * 32768 + b"\x00\x00\x00\x00\x00"),  # a string over 32767 bytes
    ],
)
def test_rejects_invalid_values(version: int, data: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"MetadataRequest v{version}|varint"):
        decode(MetadataRequest, version, data)


def test_the_error_contains_field_and_value() -> None:
    data = encode(MetadataResponse(cluster_id="tide"), 2)
    with pytest.raises(ProtocolError) as caught:
        decode(MetadataResponse, 2, data[:6])
    assert str(caught.value) == (
        "MetadataResponse v2 cluster_id: 4 bytes are due at byte 6, but the message ends at 6"
    )
    with pytest.raises(
        ProtocolError, match="MetadataResponse v2 brokers: 2147483647 items cannot be in the 0 bytes"
    ):
        decode(MetadataResponse, 2, b"\x7f\xff\xff\xff")


def test_rejects_positions_outside_the_bytes() -> None:
    for position, end in ((-1, 2), (3, 2), (0, 99)):
        with pytest.raises(ProtocolError, match="no bytes"):
            decode(MetadataRequest, 0, bytes(4), position, end)
