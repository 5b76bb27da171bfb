"""How nodes' data is written: JSON objects, and ids as 22 characters."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Generator, Mapping
from typing import Any

from tidemill.coordination.port import StoreError
from tidemill.model.faults import fault_of
from tidemill.model.slices import ITEMS_A_PAUSE, slices_of


def _told(reason: object) -> str:
    return fault_of(reason) if isinstance(reason, BaseException) else str(reason)


INT32_MAX = 2**31 - 1


class NodeFormatError(StoreError):
    """A node's data is not what its kind says. ``path`` is the node's."""

    def __init__(self, path: str, data: bytes, reason: object) -> None:
        self.path = path
        shown = data[:200].decode("utf-8", "replace")
        # Without the node of a partition's state its replicas would be taken for new ones.
        step = "Correct the node." if path.startswith("/brokers/") else "Correct or remove the node."
        super().__init__(f"{path} holds {shown!r}, which cannot be read: {_told(reason)}. {step}")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def write_json(value: Mapping[str, Any]) -> bytes:
    """JSON without spaces, as Kafka writes it."""
    return _encode(value).encode()


def writing_json(value: Mapping[str, Any]) -> Generator[None, None, bytes]:
    """As :func:`write_json`, with a pause after some members each of the objects in ``value``."""
    members = []
    for name, one in value.items():
        if not isinstance(one, Mapping):
            members.append(f"{_encode(name)}:{_encode(one)}")
            continue
        texts = []
        for some in slices_of(list(one.items()), ITEMS_A_PAUSE):
            texts.append(_encode(dict(some))[1:-1])
            if len(some) == ITEMS_A_PAUSE:
                yield
        members.append(f"{_encode(name)}:{{{','.join(texts)}}}")
    return f"{{{','.join(members)}}}".encode()


def read_json(path: str, data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``; NodeFormatError when it is none."""
    value = read_any_json(path, data)
    if not isinstance(value, dict):
        raise NodeFormatError(path, data, "it is no JSON object")
    return value


def read_any_json(path: str, data: bytes) -> Any:
    """The JSON value in ``data``; NodeFormatError when it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NodeFormatError(path, data, error) from None


def number(value: object, least: int = 0, most: int = INT32_MAX) -> int:
    """A whole number of a node, which may be written as a text; ValueError for anything else."""
    found = int(value) if isinstance(value, str) else value
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{value!r} is no whole number from {least} to {most}")
    return found


def numbers(values: object) -> list[int]:
    """Ids of brokers, each once; ValueError for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is no list of broker ids")
    found = [number(one) for one in values]
    if len(set(found)) < len(found):
        raise ValueError(f"{values!r} names a broker twice")
    return found


def check_version(value: Mapping[str, Any], latest: int) -> int:
    """The version that an object names (1 if none); ValueError for one later than ``latest``."""
    version = number(value.get("version", 1), 1)
    if version > latest:
        raise ValueError(f"version {version} is not known here, {latest} is the latest that is")
    return version


def encode_id(identifier: bytes) -> str:
    """16 bytes as Kafka writes ids: 22 characters of URL-safe base64 without padding."""
    if len(identifier) != 16:
        raise ValueError(f"an id has 16 bytes, this one {len(identifier)}")
    return base64.urlsafe_b64encode(identifier)[:22].decode()


def decode_id(text: str) -> bytes:
    """The 16 bytes of an id; ValueError when ``text`` is none."""
    try:
        identifier = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        identifier = b""
    if len(identifier) != 16:
        raise ValueError(f"{text!r} is no id: 22 characters of URL-safe base64 are expected")
    return identifier


def new_id() -> bytes:
    """A random id (UUID version 4), never zero, whose text does not begin with a dash."""
    while True:
        raw = bytearray(secrets.token_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 0x3E:  # "-" would look like an option on a command line.
            return bytes(raw)
