"""Random messages from their descriptions, determined by the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import API, request_class, response_class
from tidemill.wire.codegen import allows_null
from tidemill.wire.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidemill.wire.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UINT16,
    UUID,
    Struct,
    WireType,
    carries,
    parse_versions,
)

WIDTHS = {INT8: 8, INT16: 16, INT32: 32, INT64: 64}
TEXTS = ("", "a", "tidemill", "zażółć gęślą jaźń", "日誌の水車", "x" * 127, "y" * 300, "🌊")


def all_messages() -> Iterator[tuple[type[Struct], int]]:
    """All message classes with all their versions."""
    classes: list[type[Struct]] = [ConsumerProtocolSubscription, ConsumerProtocolAssignment]
    for key in API:
        classes += [request_class(key), response_class(key)]
    for cls in classes:
        first, last = parse_versions(cls.versions_)
        for version in range(first, last + 1):
            yield cls, version


def value_of(random_: random.Random, kind: WireType, name: str) -> Any:
    """A random value of the wire type; limits are more frequent."""
    if kind is BOOL:
        return random_.random() < 0.5
    if kind in WIDTHS:
        if name.endswith("error_code"):
            return int(random_.choice(list(ErrorCode)))
        half = 1 << (WIDTHS[kind] - 1)
        return random_.choice([0, 1, -1, half - 1, -half, random_.randrange(-half, half)])
    if kind is UINT16:
        return random_.choice([0, 1, 65535, random_.randrange(65536)])
    if kind is FLOAT64:
        return random_.choice([0.0, -1.5, 1e300, random_.random()])
    if kind is UUID:
        return random_.choice([bytes(16), random_.randbytes(16)])
    if kind is STRING:
        return random_.choice(TEXTS)
    assert kind in (BYTES, RECORDS)
    return random_.choice([b"", b"\0", random_.randbytes(random_.randrange(200))])


def message_of(random_: random.Random, cls: type[Struct], version: int, items_max: int = 3) -> Struct:
    """A message of ``cls`` with random values in all fields of ``version``."""
    values = {}
    for one in cls.fields_:
        if not carries(one, version) or (one.tag >= 0 and random_.random() < 0.4):
            continue
        if allows_null(one, version) and random_.random() < 0.25:
            values[one.name] = None
            continue

        def item(kind: WireType | type[Struct], name: str = one.name) -> Any:
            if isinstance(kind, WireType):
                return value_of(random_, kind, name)
            return message_of(random_, kind, version, items_max)

        if one.is_array:
            values[one.name] = [item(one.element) for _ in range(random_.randint(0, items_max))]
        else:
            values[one.name] = item(one.element)
    return cls(**values)
