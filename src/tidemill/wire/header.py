"""Frames and their headers: the fields before the body of a request or response.

==================  ==========================  ==========================================================
part                type                        in
==================  ==========================  ==========================================================
size                INT32                       every frame; number of the bytes that follow
api key             INT16                       requests
api version         INT16                       requests
correlation id      INT32                       requests and responses
client id           NULLABLE_STRING             requests, header 1 and 2 (never compact)
tagged fields       UNSIGNED_VARINT count, ..   requests with header 2, responses with header 1
==================  ==========================  ==========================================================

Flexible versions of an API use request header 2 and response header 1, others 1 and 0. Two exceptions:
ControlledShutdown 0 has request header 0, and ApiVersions always has response header 0, because its client
may request a version that the broker lacks.

Source: the protocol guide; KIP-482 and KIP-511.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64

from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.wire.apis import (
    API,
    ApiKey,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from tidemill.wire.codec import decode, encode_parts
from tidemill.wire.hot_path_codec import set_i32
from tidemill.wire.primitives import skip_tag_section
from tidemill.wire.schema import Struct

REQUEST_HEADER_SIZE_MIN: Final = 2 + 2 + 4
RESPONSE_HEADER_SIZE_MIN: Final = 4
CLIENT_ID_BYTES_MAX: Final = 32767
FRAME_BYTES_MAX: Final = 2**31 - 1

_CONTROLLED_SHUTDOWN: Final = 7


class RequestHeader:
    """The header of a request; ``body_position`` is the start of its body in the frame."""

    def __init__(
        self, api_key: i64, api_version: i64, correlation_id: i64, client_id: str | None, body_position: i64
    ) -> None:
        self.api_key: i64 = api_key
        self.api_version: i64 = api_version
        self.correlation_id: i64 = correlation_id
        self.client_id: str | None = client_id
        self.body_position: i64 = body_position

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r})"
        )


def parse_request_header(frame: bytes, position: i64 = 0, end: i64 = -1) -> RequestHeader:
    """Parses the header of the request in ``frame[position:end]``, which starts after the size.

    Unknown versions are accepted: the caller handles them. Raises :class:`ProtocolError` for an API key that
    is not in the protocol, and for bytes that are not a header.
    """
    if end < 0:
        end = len(frame)
    if end > len(frame) or position < 0 or end - position < REQUEST_HEADER_SIZE_MIN:
        raise ProtocolError(
            f"a request of {end - position} bytes is too short for its header of {REQUEST_HEADER_SIZE_MIN}"
        )
    key: i64 = i64(read_i16_be(frame, position))
    version: i64 = i64(read_i16_be(frame, position + 2))
    correlation_id: i64 = i64(read_i32_be(frame, position + 4))
    start: i64 = position
    position += REQUEST_HEADER_SIZE_MIN
    spec = API.get(key)
    if spec is None:
        raise ProtocolError(f"{key} is no API key of this protocol (requested version {version})")
    if key == _CONTROLLED_SHUTDOWN and version == 0:
        return RequestHeader(key, version, correlation_id, None, position)

    body = skip_request_header(frame, start, end, spec.is_flexible(version))
    size: i64 = i64(read_i16_be(frame, position))
    position += 2
    try:
        client_id = frame[position : position + size].decode("utf-8") if size >= 0 else None
    except UnicodeDecodeError as problem:
        raise ProtocolError(f"the client id is not UTF-8: {problem}") from None
    return RequestHeader(key, version, correlation_id, client_id, body)


def skip_request_header(frame: bytes, start: i64, end: i64, flexible: bool) -> i64:
    """Returns the start of the body of the request ``frame[start:end]``, which has request header 1 or 2.

    ``flexible``: header 2. It does not decode the client id. Raises :class:`ProtocolError`.
    """
    position: i64 = start + REQUEST_HEADER_SIZE_MIN
    if end - position < 2:
        raise ProtocolError(f"the request header ends at byte {end}, before the client id")
    size: i64 = i64(read_i16_be(frame, position))
    position += 2
    if size > end - position:
        raise ProtocolError(f"the client id has {size} bytes, {end - position} are left in the request")
    if size < -1:
        raise ProtocolError(f"the client id has the negative length {size}")
    if size > 0:
        position += size
    return skip_tag_section(frame, position, end) if flexible else position


def encode_request(
    key: int, version: int, correlation_id: int, client_id: str | None, message: Struct | bytes
) -> bytes:
    """Encodes the frame of a request, including its size. Errors as :func:`tidemill.wire.codec.encode`.

    ``message`` may be a body that is already encoded.
    """
    parts = [message] if isinstance(message, bytes) else encode_parts(message, version)
    return b"".join([request_head(key, version, correlation_id, client_id, parts), *parts])


def request_head(
    key: int, version: int, correlation_id: int, client_id: str | None, parts: list[bytes]
) -> bytes:
    """Encodes the size and the header of a request whose body is ``parts``."""
    header_version = request_header_version(key, version)
    name = b"" if client_id is None else client_id.encode("utf-8")
    if len(name) > CLIENT_ID_BYTES_MAX:
        raise ValueError(f"the client id of {len(name)} bytes is over {CLIENT_ID_BYTES_MAX}")
    out = BytesWriter()
    write_i32_be(out, 0)
    write_i16_be(out, i16(key))
    write_i16_be(out, i16(version))
    write_i32_be(out, i32(correlation_id))
    if header_version > 0:
        write_i16_be(out, -1 if client_id is None else i16(len(name)))
        out.write(name)
    if header_version > 1:
        out.append(0)
    return _sized("request", out, parts)


def encode_response(key: int, version: int, correlation_id: int, message: Struct) -> bytes:
    """Encodes the frame of a response, including its size. Errors as :func:`tidemill.wire.codec.encode`."""
    parts = encode_parts(message, version)
    return b"".join([response_head(key, version, correlation_id, parts), *parts])


def response_head(key: int, version: int, correlation_id: int, parts: list[bytes]) -> bytes:
    """Encodes the size and the header of a response whose body is ``parts``."""
    out = BytesWriter()
    write_i32_be(out, 0)
    write_i32_be(out, i32(correlation_id))
    if response_header_version(key, version) > 0:
        out.append(0)
    return _sized("response", out, parts)


def _sized(kind: str, head: BytesWriter, parts: list[bytes]) -> bytes:
    """Sets the size at the start of ``head``, which the body ``parts`` follow. Returns its bytes."""
    size: i64 = len(head) - 4
    for part in parts:
        size += len(part)
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a {kind} of {size} bytes is over {FRAME_BYTES_MAX}, the limit of a frame")
    set_i32(head, 0, size)
    return head.getvalue()


def decode_request(header: RequestHeader, frame: bytes) -> Struct:
    """Decodes the body of the request whose header was parsed from ``frame``.

    Raises :class:`ProtocolError` when it is malformed, and for a version that this build does not know.
    """
    return decode(request_class(header.api_key), header.api_version, frame, header.body_position)


def response_body(key: int, version: int, frame: bytes, position: i64, end: i64) -> tuple[int, i64]:
    """Returns the correlation id of the response in ``frame[position:end]``, and the start of its body."""
    if end > len(frame) or position < 0 or end - position < RESPONSE_HEADER_SIZE_MIN:
        raise ProtocolError(f"a response of {end - position} bytes is too short for its correlation id")
    correlation_id: int = int(read_i32_be(frame, position))
    position += RESPONSE_HEADER_SIZE_MIN
    if response_header_version(key, version) > 0:
        position = skip_tag_section(frame, position, end)
    return correlation_id, position


def decode_response(
    key: int, version: int, frame: bytes, position: i64 = 0, end: i64 = -1
) -> tuple[int, Struct]:
    """Decodes the response in ``frame[position:end]``, which starts after the size: correlation id and body.

    A broker that lacks the requested version of ApiVersions responds with version 0 and the error
    UNSUPPORTED_VERSION; this function handles that. Raises :class:`ProtocolError` for a malformed response.
    """
    if end < 0:
        end = len(frame)
    correlation_id, position = response_body(key, version, frame, position, end)
    if key == ApiKey.API_VERSIONS and version > 0 and end - position >= 2:
        error: int = int(read_i16_be(frame, position))
        if error == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
    return correlation_id, decode(response_class(key), version, frame, position, end)
