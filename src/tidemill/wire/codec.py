"""Encodes and decodes messages.

The codec of a class, version and direction is generated on its first use, by :mod:`tidemill.wire.decoding`
and :mod:`tidemill.wire.encoding`. These are imported then: a command that sends nothing starts without them.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Final, TypeVar

from tidemill.model.errors import ProtocolError
from tidemill.wire.schema import Decoder, EncodeError, Encoder, Struct, contains

S = TypeVar("S", bound=Struct)

VERSION_BYTES: Final = 2


def encode(message: Struct, version: int) -> bytes:
    """Encodes ``message`` in ``version``.

    Raises :class:`UnsupportedByVersion` when a field is set that is absent in this version (and must not be
    dropped), :class:`EncodeError` when a value does not fit its type or the version does not exist.
    """
    return b"".join(encode_parts(message, version))


def encode_versioned(message: Struct, version: int) -> bytes:
    """As :func:`encode`, after an INT16 with the version, as in records of the coordinators."""
    return version.to_bytes(VERSION_BYTES, "big") + encode(message, version)


def version_of(data: bytes | None) -> int:
    """Returns the INT16 version before a message. Raises ProtocolError."""
    if data is None or len(data) < VERSION_BYTES:
        raise ProtocolError(f"{data!r} is too short to contain a version")
    return int.from_bytes(data[:VERSION_BYTES], "big", signed=True)


def encode_parts(message: Struct, version: int) -> list[bytes]:
    """As :func:`encode`, in parts: records and other byte strings are the message's own objects."""
    parts: list[bytes] = []
    encoder = message.encoders_.get(version) or _make_encoder(type(message), version)
    try:
        encoder(message, parts.append)
    except (struct.error, AttributeError, TypeError, ValueError) as problem:
        if isinstance(problem, EncodeError):
            raise
        raise EncodeError(_explain(message, version, problem)) from problem
    return parts


def decode(cls: type[S], version: int, data: bytes, position: int = 0, end: int | None = None) -> S:
    """Decodes the message that fills ``data[position:end]``.

    Raises only :class:`ProtocolError`, when the bytes are not such a message.
    """
    stop = len(data) if end is None else end
    message, position = decode_prefix(cls, version, data, position, stop)
    if position != stop:
        raise ProtocolError(
            f"{cls.__name__} v{version} ends at byte {position}, but {stop - position} bytes follow it"
        )
    return message


def decode_prefix(cls: type[S], version: int, data: bytes, position: int, end: int) -> tuple[S, int]:
    """As :func:`decode`, for a message that others may follow: returns it and the position after it."""
    decoder = cls.decoders_.get(version) or _make_decoder(cls, version)
    if not 0 <= position <= end <= len(data):
        raise ProtocolError(f"{cls.__name__} v{version}: no bytes {position} to {end} in {len(data)} bytes")
    try:
        return decoder(data, position, end)
    except UnicodeDecodeError as problem:
        raise ProtocolError(f"{cls.__name__} v{version}: a string is not UTF-8: {problem}") from None


def decode_in_slices(
    cls: type[S], version: int, data: bytes, position: int, end: int
) -> Generator[None, None, tuple[S, int]]:
    """As :func:`decode_prefix`, with a pause after every few items: for messages with many items."""
    from tidemill.wire.decoding import make_decoder

    if not 0 <= position <= end <= len(data):
        raise ProtocolError(f"{cls.__name__} v{version}: no bytes {position} to {end} in {len(data)} bytes")
    decoder = cls.paced_.get(("decode", version))
    if decoder is None:
        _check_version(cls, version, ProtocolError)
        decoder = cls.paced_["decode", version] = make_decoder(cls, version, paced=True)
    try:
        found: tuple[S, int] = yield from decoder(data, position, end)
    except UnicodeDecodeError as problem:
        raise ProtocolError(f"{cls.__name__} v{version}: a string is not UTF-8: {problem}") from None
    return found


def encode_in_slices(message: Struct, version: int, parts: list[bytes]) -> Generator[None, None, None]:
    """As :func:`encode_parts`, with a pause after every few items, in which ``parts`` may be emptied."""
    from tidemill.wire.encoding import make_encoder

    cls = type(message)
    encoder = cls.paced_.get(("encode", version))
    if encoder is None:
        _check_version(cls, version, EncodeError)
        encoder = cls.paced_["encode", version] = make_encoder(cls, version, paced=True)
    try:
        yield from encoder(message, parts.append)
    except (struct.error, AttributeError, TypeError, ValueError) as problem:
        if isinstance(problem, EncodeError):
            raise
        raise EncodeError(_explain(message, version, problem)) from problem


def _make_encoder(cls: type[Struct], version: int) -> Encoder:
    from tidemill.wire.encoding import make_encoder

    _check_version(cls, version, EncodeError)
    cls.encoders_[version] = make_encoder(cls, version)
    return cls.encoders_[version]


def _make_decoder(cls: type[Struct], version: int) -> Decoder:
    from tidemill.wire.decoding import make_decoder

    _check_version(cls, version, ProtocolError)
    cls.decoders_[version] = make_decoder(cls, version)
    return cls.decoders_[version]


def _check_version(cls: type[Struct], version: int, error: type[Exception]) -> None:
    if not contains(cls.versions_, version):
        raise error(f"{cls.__name__} has no version {version}; it has {cls.versions_ or 'none of its own'}")


def _explain(message: Struct, version: int, problem: Exception) -> str:
    """Describes the field for which an encoder failed; encoders themselves do no such checks."""
    from tidemill.wire.encoding import first_bad_value

    found = first_bad_value(message, version)
    return f"{type(message).__name__} v{version}: {found or problem}"
