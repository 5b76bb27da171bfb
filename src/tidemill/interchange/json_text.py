"""Messages as JSON, in the form in which Apache Kafka's tools print them.

Names are in camel case, byte strings and ids in base64; a tagged field is left out where it has its default.

Source: Apache Kafka, ``MessageGenerator``'s JSON converters.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from tidemill.coordination.encoding import encode_id
from tidemill.wire.schema import UUID, Field, Struct, parse_versions


def camel_case(name: str) -> str:
    """``topic_id`` as ``topicId``."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def plain(message: Struct, version: int) -> dict[str, Any]:
    """The fields that ``version`` carries, as JSON can hold them, in the order of their description."""
    shown: dict[str, Any] = {}
    for one in message.fields_:
        first, last = parse_versions(one.versions)
        if not first <= version <= last:
            continue
        value = getattr(message, one.name)
        if one.tag >= 0 and value == one.default_value():
            continue
        shown[camel_case(one.name)] = _plain_value(one, value, version)
    return shown


def _plain_value(one: Field, value: Any, version: int) -> Any:
    if isinstance(value, list | tuple):
        return [_plain_value(one, item, version) for item in value]
    if isinstance(value, Struct):
        return plain(value, version)
    if isinstance(value, bytes | bytearray | memoryview):
        if one.element is UUID:
            return encode_id(bytes(value))
        return base64.b64encode(value).decode()
    return value


def compact(value: Any) -> str:
    """JSON on one line without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
