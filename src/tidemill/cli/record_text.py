"""Formats and parses records as text: plain, and JSON that round-trips."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from tidemill.model.errors import TidemillError
from tidemill.model.os_error_texts import fault_of

if TYPE_CHECKING:
    from tidemill.client.completed_fetch import ConsumerRecord


RECORD_FIELDS = (
    *("key", "key_base64", "value", "value_base64", "headers"),
    *("topic", "partition", "offset", "timestamp", "timestamp_type"),
)
HEADER_FIELDS = ("key", "value", "value_base64")
LONG_MAX = 2**63 - 1
HEADERS_TEXT = 'headers are a list of objects, as [{"key": "k", "value": "v"}]'


class BadInput(TidemillError):
    """A line of input that is not a valid record."""


def as_text(data: bytes | None) -> tuple[str | None, str | None]:
    """Returns (text, None) for UTF-8, (None, base64) for other bytes, (None, None) for null."""
    if data is None:
        return None, None
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode("ascii")


def bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Returns ``data`` as a field of a JSON object. For bytes that are not UTF-8 it is ``<name>_base64``."""
    text, encoded = as_text(data)
    return {name: text} if encoded is None else {f"{name}_base64": encoded}


def header_objects(headers: list[tuple[str, bytes | None]]) -> list[dict[str, str | None]]:
    """Returns the headers of a record for JSON."""
    return [{"key": name, **bytes_field("value", data)} for name, data in headers]


def to_json(record: ConsumerRecord) -> str:
    """Returns one line. Bytes that are not UTF-8 go to ``key_base64``, ``value_base64``; headers likewise."""
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "append" if record.timestamp_type == 1 else "create",
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": header_objects(record.headers),
    }
    return json.dumps(shown, ensure_ascii=False)


class InputRecord:
    """A record to send. ``partition`` and ``timestamp_ms`` are None where the input does not set them."""

    __slots__ = ("headers", "key", "partition", "timestamp_ms", "value")

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers or []
        self.partition = partition
        self.timestamp_ms = timestamp_ms


def from_json(line: bytes, *, keep_place: bool = False) -> InputRecord:
    """Parses the output of :func:`to_json`. Uses partition and timestamp only with ``keep_place``.

    A value that is a JSON object, list or number is sent as its compact JSON text. A null value becomes a
    tombstone; a missing value, or a field of another name, is an error.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"not JSON: {fault_of(problem)}") from None
    if not isinstance(found, dict):
        raise BadInput('a JSON record is an object, as {"key": "k", "value": "v"}')
    _refuse_others(found, RECORD_FIELDS, "a record")
    _need_value(found, 'a record needs a value: {"value": "v"}, or {"value": null} for a tombstone')
    listed = found.get("headers")
    if listed is not None and not isinstance(listed, list):
        raise BadInput(HEADERS_TEXT)
    headers = []
    for header in listed or []:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise BadInput(HEADERS_TEXT)
        _refuse_others(header, HEADER_FIELDS, "a header")
        if not _is_text(header["key"]):
            raise BadInput(f"the name of the header {header['key']!r} contains half of a surrogate pair")
        _need_value(header, f"the header {header['key']!r} needs a value, which may be null")
        headers.append((header["key"], _bytes_of(header, "value")))
    return InputRecord(
        _bytes_of(found, "value"),
        _bytes_of(found, "key"),
        headers,
        _whole(found, "partition") if keep_place else None,
        _whole(found, "timestamp") if keep_place else None,
    )


def _refuse_others(found: dict[str, Any], known: tuple[str, ...], description: str) -> None:
    from tidemill.model.similar_names import did_you_mean

    for name in found:
        if name not in known:
            hint = did_you_mean(name, known) or f"; the fields of {description} are {', '.join(known)}"
            raise BadInput(f"{name!r} is not a field of {description}{hint}")


def _need_value(found: dict[str, Any], text: str) -> None:
    if "value" not in found and found.get("value_base64") is None:
        raise BadInput(text)


def _bytes_of(found: dict[str, Any], name: str) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        if found.get(name) is not None:
            raise BadInput(f"{name} and {name}_base64 are both given: give at most one")
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise BadInput(f"{name}_base64 is not base64") from None
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise BadInput(f"{name} contains a number that JSON does not allow (NaN, or beyond 1e308)") from None
    return text.encode("utf-8", "surrogatepass")


def _is_text(text: str) -> bool:
    """Returns whether ``text`` can be encoded as UTF-8, as names of headers must be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONG_MAX:
        raise BadInput(f"{name} is {value!r}: it must be a non-negative integer of at most 64 bits")
    return value


def for_terminal(text: str) -> str:
    """Returns ``text`` with control characters escaped, so that a message cannot control the terminal."""
    return "".join(
        letter if letter.isprintable() or letter == "\t" else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )
