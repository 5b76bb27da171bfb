"""Converts messages to JSON, in the format of Apache Kafka's tools.

Names are in camel case, byte strings and ids in base64. A tagged field with its default value is omitted.

Source: Apache Kafka, ``MessageGenerator``'s JSON converters.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from tidemill.model.ids import encode_id
from tidemill.wire.schema import UUID, Field, Struct, carries


def camel_case(name: str) -> str:
    """Converts ``topic_id`` to ``topicId``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def plain(message: Struct, version: int) -> dict[str, Any]:
    """Returns the fields of ``version`` as JSON-compatible values, in the order of their definition."""
    shown: dict[str, Any] = {}
    for field in message.fields_:
        if not carries(field, version):
            continue
        value = getattr(message, field.name)
        if field.tag >= 0 and value == field.default_value():
            continue
        shown[camel_case(field.name)] = _plain_value(field, value, version)
    return shown


def _plain_value(field: Field, value: Any, version: int) -> Any:
    if isinstance(value, list | tuple):
        return [_plain_value(field, item, version) for item in value]
    if isinstance(value, Struct):
        return plain(value, version)
    if isinstance(value, bytes | bytearray | memoryview):
        if field.element is UUID:
            return encode_id(bytes(value))
        return base64.b64encode(value).decode()
    return value


def compact(value: Any) -> str:
    """Encodes JSON on one line without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
