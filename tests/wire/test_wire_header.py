"""Frames and headers, byte by byte."""

from __future__ import annotations

import random

import pytest

from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.wire.apis import API, ApiKey, request_header_version, response_header_version
from tidemill.wire.header import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
)
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.messages.metadata import MetadataRequest

HEADER_0 = bytes.fromhex(
    "0007"  # api key: ControlledShutdown
    "0000"  # version
    "00000005"  # correlation id
)
HEADER_1 = bytes.fromhex(
    "000c"  # api key: Heartbeat
    "0003"  # version
    "00000102"  # correlation id
    "0003"  # client id: its length ..
    "6d6521"  # .. and "me!"
)
HEADER_2 = bytes.fromhex(
    "000c"  # api key: Heartbeat
    "0004"  # version, the first flexible one
    "7fffffff"  # correlation id
    "ffff"  # client id: null, with the old length all the same
    "02"  # two tagged fields
    "0001"  # tag 0, one byte ..
    "aa"
    "8f0100"  # tag 143, empty
)


def fields(header: RequestHeader) -> tuple[int, int, int, str | None, int]:
    return header.api_key, header.api_version, header.correlation_id, header.client_id, header.body_position


@pytest.mark.parametrize(
    ("data", "parsed"),
    [
        pytest.param(HEADER_0 + b"body", (7, 0, 5, None, 8), id="version 0"),
        pytest.param(HEADER_1, (12, 3, 0x102, "me!", 13), id="version 1"),
        pytest.param(HEADER_2, (12, 4, 2**31 - 1, None, len(HEADER_2)), id="version 2"),
    ],
)
def test_request_headers_are_parsed(data: bytes, parsed: tuple[int, int, int, str | None, int]) -> None:
    assert fields(parse_request_header(data)) == parsed


def test_parses_a_header_inside_a_longer_buffer() -> None:
    buffer = b"\0\0\0\x0d" + HEADER_1 + b"next"
    assert parse_request_header(buffer, 4, 4 + len(HEADER_1)).body_position == 4 + len(HEADER_1)


@pytest.mark.parametrize("header", [HEADER_0, HEADER_1, HEADER_2])
def test_rejects_a_header_truncated_at_any_byte(header: bytes) -> None:
    for size in range(len(header)):
        with pytest.raises(ProtocolError):
            parse_request_header(header[:size])
        with pytest.raises(ProtocolError):
            parse_request_header(header, 0, size)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"\x03\xe7" + HEADER_1[2:], "999 is no API key"),
        (b"\xff\xff" + HEADER_1[2:], "-1 is no API key"),
        (b"\x00\x5d" + HEADER_1[2:], "93 is no API key"),  # Kafka 4.3 ends with 92.
        (HEADER_1[:8] + b"\xff\xfe" + HEADER_1[10:], "negative length -2"),
        (HEADER_1[:8] + b"\x7f\xff" + HEADER_1[10:], "32767 bytes"),
        (HEADER_1[:10] + b"\xc3\x28!", "not UTF-8"),
        (HEADER_2[:10] + b"\xff\xff\xff\xff\x0f", "4294967295 tagged fields"),
    ],
)
def test_rejects_invalid_headers(header: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        parse_request_header(header)


def test_parses_headers_of_future_versions() -> None:
    future = b"\x00\x12\x00\x63" + bytes(4) + b"\x00\x01a\x00"
    header = parse_request_header(future)
    assert fields(header) == (18, 99, 0, "a", 12)
    with pytest.raises(ProtocolError, match="no version 99"):
        decode_request(header, future)


def test_random_bytes_are_a_header_or_rejected() -> None:
    random_ = random.Random(7)
    for _ in range(20_000):
        data = random_.choice((b"", b"\0\x03\0\x0c", b"\0\x12\0\x03")) + random_.randbytes(
            random_.randrange(30)
        )
        try:
            header = parse_request_header(data)
        except ProtocolError:
            continue
        assert 0 < header.body_position <= len(data)


def test_a_request_frame_byte_by_byte() -> None:
    message = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    frame = bytes.fromhex(
        "0000001d"  # size
        "000c 0003 00000102 0003 6d6521"  # header 1
        "0001 67"  # group id
        "00000001"  # generation id
        "0001 6d"  # member id
        "ffff"  # group instance id
        "".replace(" ", "")
    )
    frame = frame[:3] + bytes([len(frame) - 4]) + frame[4:]
    assert encode_request(ApiKey.HEARTBEAT, 3, 0x102, "me!", message) == frame
    flexible = bytes.fromhex("00000017 000c 0004 00000001 ffff 00 0267 00000001 026d 00 00")
    flexible = flexible[:3] + bytes([len(flexible) - 4]) + flexible[4:]
    assert encode_request(ApiKey.HEARTBEAT, 4, 1, None, message) == flexible
    for data in (frame, flexible):
        assert decode_request(parse_request_header(data, 4), data) == message


def test_encodes_controlled_shutdown_0_without_a_client_id() -> None:
    frame = encode_request(ApiKey.CONTROLLED_SHUTDOWN, 0, 5, "nobody", ControlledShutdownRequest(broker_id=3))
    assert frame == b"\0\0\0\x0c" + HEADER_0 + b"\0\0\0\3"


def test_a_response_frame_byte_by_byte() -> None:
    message = HeartbeatResponse(throttle_time_ms=7, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    old = bytes.fromhex("0000000a 00000102 00000007 001b")
    flexible = bytes.fromhex("0000000c 00000102 00 00000007 001b 00")
    assert encode_response(ApiKey.HEARTBEAT, 3, 0x102, message) == old
    assert encode_response(ApiKey.HEARTBEAT, 4, 0x102, message) == flexible
    assert decode_response(ApiKey.HEARTBEAT, 3, old[4:]) == (0x102, message)
    assert decode_response(ApiKey.HEARTBEAT, 4, flexible, 4) == (0x102, message)
    for size in range(len(flexible) - 4):
        with pytest.raises(ProtocolError):
            decode_response(ApiKey.HEARTBEAT, 4, flexible[4 : 4 + size])


def test_responses_of_api_versions_have_header_0_in_every_version() -> None:
    message = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    frame = encode_response(ApiKey.API_VERSIONS, 3, 1, message)
    assert frame == bytes.fromhex("00000013 00000001 0000 02 0012 0000 0004 00 00000000 00")
    assert decode_response(ApiKey.API_VERSIONS, 3, frame[4:]) == (1, message)


def test_decodes_the_response_to_an_unsupported_version_of_api_versions() -> None:
    message = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)],
    )
    frame = encode_response(ApiKey.API_VERSIONS, 0, 9, message)
    assert decode_response(ApiKey.API_VERSIONS, 4, frame[4:]) == (9, message)
    request = ApiVersionsRequest(client_software_name="kcat", client_software_version="1")
    assert parse_request_header(encode_request(ApiKey.API_VERSIONS, 4, 1, "", request), 4).client_id == ""


def test_header_versions_follow_the_flexible_versions() -> None:
    for key, spec in API.items():
        for version in range(spec.version_min, spec.version_max + 1):
            flexible = spec.is_flexible(version)
            if (key, version) != (ApiKey.CONTROLLED_SHUTDOWN, 0):
                assert request_header_version(key, version) == (2 if flexible else 1)
            expected = 1 if flexible and key != ApiKey.API_VERSIONS else 0
            assert response_header_version(key, version) == expected
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 0) == 0
    assert request_header_version(ApiKey.SASL_HANDSHAKE, 1) == 1


def test_a_too_long_client_id_is_a_local_error() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_request(ApiKey.METADATA, 1, 1, "x" * 32768, MetadataRequest())
