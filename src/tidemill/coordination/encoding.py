"""The encoding of node data: JSON objects."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from tidemill.coordination.coordination_store import StoreError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, slices_of
from tidemill.model.os_error_texts import fault_of

INT32_MAX = 2**31 - 1


class NodeFormatError(StoreError):
    """A node's data does not match the format of its kind. ``path`` is the node's path."""

    def __init__(self, path: str, data: bytes, reason: object) -> None:
        self.path = path
        shown = data[:200].decode("utf-8", "replace")
        # Never removed: without the node of a partition's state, its replicas would count as new.
        step = "Correct the node." if path.startswith("/brokers/") else "Correct or remove the node."
        why = fault_of(reason) if isinstance(reason, BaseException) else reason
        super().__init__(f"{path} holds {shown!r}, which cannot be read: {why}. {step}")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def write_json(value: Mapping[str, Any]) -> bytes:
    """Encodes JSON without spaces, as Kafka does."""
    return _encode(value).encode()


def write_json_in_slices(value: Mapping[str, Any]) -> Generator[None, None, bytes]:
    """As :func:`write_json`, with a pause after every few members of the objects in ``value``."""
    members = []
    for name, member in value.items():
        if not isinstance(member, Mapping):
            members.append(f"{_encode(name)}:{_encode(member)}")
            continue
        texts = []
        for some in slices_of(list(member.items()), ITEMS_PER_SLICE):
            texts.append(_encode(dict(some))[1:-1])
            if len(some) == ITEMS_PER_SLICE:
                yield
        members.append(f"{_encode(name)}:{{{','.join(texts)}}}")
    return f"{{{','.join(members)}}}".encode()


def read_json(path: str, data: bytes) -> dict[str, Any]:
    """Returns the JSON object in ``data``; raises NodeFormatError for anything else."""
    value = read_any_json(path, data)
    if not isinstance(value, dict):
        raise NodeFormatError(path, data, "it is not a JSON object")
    return value


def read_any_json(path: str, data: bytes) -> Any:
    """Returns the JSON value in ``data``; raises NodeFormatError when it is malformed."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NodeFormatError(path, data, error) from None


def number(value: object, least: int = 0, most: int = INT32_MAX) -> int:
    """Returns an integer of a node, which may be a string; raises ValueError for anything else."""
    found = int(value) if isinstance(value, str) else value
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{value!r} is not an integer from {least} to {most}")
    return found


def numbers(values: object) -> list[int]:
    """Returns a list of broker ids without duplicates; raises ValueError for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"{values!r} is not a list of broker ids")
    found = [number(value) for value in values]
    if len(set(found)) < len(found):
        raise ValueError(f"{values!r} contains a broker twice")
    return found


def check_version(value: Mapping[str, Any], latest: int) -> int:
    """Returns the version of an object (1 if absent); raises ValueError for one above ``latest``."""
    version = number(value.get("version", 1), 1)
    if version > latest:
        raise ValueError(f"version {version} is unknown, {latest} is the latest supported version")
    return version
