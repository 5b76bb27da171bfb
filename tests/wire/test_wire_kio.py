"""The codecs of Tidemill against kio, an independent codec generated from the same definitions.

Both directions, all APIs and versions that both support: equal bytes, and equal values by field name,
so that swapped fields of one type are detected, too.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import random
import types
import typing
import uuid
from typing import Any

import pytest
from kio.index import (
    UnknownAPIKey,
    UnknownEntity,
    load_entity_schema,
    load_request_schema,
    load_response_schema,
)
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import TZAware, i32Timedelta, i64Timedelta
from wire_values import all_messages, message_of

from tidemill.wire.apis import API
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.describe_cluster import DescribeClusterResponse
from tidemill.wire.schema import Struct

VALUES_PER_VERSION = 6
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
UNTIMELY = {"datetime_i64", "timedelta_i64"}
"""Types of kio that cannot represent every 64-bit number."""

KEYS = {spec.name: int(key) for key, spec in API.items()}
VERSIONS: dict[str, list[tuple[type[Struct], int]]] = {}
for _cls, _version in all_messages():
    VERSIONS.setdefault(_cls.__name__, []).append((_cls, _version))

NOT_IN_KIO = {
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "ControlledShutdown",
}


def kio_class(cls: type[Struct], version: int) -> Any:
    """The class of kio for the same message, or None."""
    name = cls.__name__
    try:
        if name.endswith("Request"):
            return load_request_schema(KEYS[name.removesuffix("Request")], version)
        if name.endswith("Response"):
            return load_response_schema(KEYS[name.removesuffix("Response")], version)
        snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")
        return load_entity_schema(snake, version, EntityType.data)
    except (UnknownAPIKey, UnknownEntity):
        return None


def plain(value: Any) -> Any:
    """A value of kio, converted to the representation of Tidemill."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return value


def same(ours: Any, theirs: Any, path: str) -> None:
    """Fails if a value of Tidemill differs from the converted value of kio."""
    if isinstance(ours, Struct):
        for name, value in theirs.items():
            name = name.rstrip("_")  # kio appends an underscore to Python keywords.
            attribute = name if hasattr(ours, name) else f"{name}_ms"
            same(getattr(ours, attribute), value, f"{path}.{attribute}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), path
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same(one, other, f"{path}[{number}]")
    elif theirs is None and ours in (bytes(16), -1):
        pass  # kio represents the zero id and a missing time by None
    else:
        assert ours == theirs, path


def kio_value(random_: random.Random, kind: Any, kafka_type: str) -> Any:
    """A random value for a field of kio."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if random_.random() < 0.25:
            return None
        return kio_value(random_, next(one for one in arguments if one is not types.NoneType), kafka_type)
    if typing.get_origin(kind) is tuple:
        return tuple(kio_value(random_, arguments[0], kafka_type) for _ in range(random_.randint(0, 3)))
    if dataclasses.is_dataclass(kind):
        return kio_message(random_, kind)
    if kafka_type == "error_code":
        return random_.choice(list(KioErrorCode))
    if kafka_type == "uuid":
        return uuid.UUID(int=random_.getrandbits(128))
    if kafka_type == "datetime_i64":
        return TZAware.parse(EPOCH + datetime.timedelta(seconds=random_.randrange(2**31)))
    if kafka_type == "timedelta_i32":
        return i32Timedelta.parse(datetime.timedelta(milliseconds=random_.randrange(-(2**31), 2**31)))
    if kafka_type == "timedelta_i64":
        return i64Timedelta.parse(datetime.timedelta(milliseconds=random_.randrange(-(2**40), 2**40)))
    if kafka_type in ("bytes", "records"):
        return random_.randbytes(random_.randrange(200))
    if kafka_type == "string":
        return random_.choice(("", "b", "wodnik", "Żuraw", "z" * 200))
    if kafka_type == "bool":
        return random_.random() < 0.5
    if kafka_type == "float64":
        return random_.random()
    bits = int(kafka_type.removeprefix("u").removeprefix("int"))
    low, high = (0, 2**bits) if kafka_type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return random_.choice([low, high - 1, random_.randrange(low, high)])


def kio_message(random_: random.Random, cls: Any) -> Any:
    """A message of kio with values in all fields."""
    values = {}
    for one in dataclasses.fields(cls):
        values[one.name] = kio_value(random_, one.type, one.metadata.get("kafka_type", ""))
    return cls(**values)


def kio_types(cls: Any) -> set[str]:
    """The types of all fields, including nested messages."""
    found = set()
    for one in dataclasses.fields(cls):
        found.add(one.metadata.get("kafka_type", ""))
        stack = [one.type]
        while stack:
            kind = stack.pop()
            stack += [inner for inner in typing.get_args(kind) if inner is not ...]
            if dataclasses.is_dataclass(kind):
                found |= kio_types(kind)
    return found


def kio_bytes(message: Any) -> bytes:
    class Sink(bytearray):
        def write(self, data: bytes) -> None:
            self.extend(data)

    sink = Sink()
    entity_writer(type(message))(sink, message)
    return bytes(sink)


def kio_parse(cls: Any, data: bytes) -> Any:
    message, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return message


@pytest.mark.parametrize("name", VERSIONS)
def test_decodes_and_encodes_messages_of_kio(name: str) -> None:
    for cls, version in VERSIONS[name]:
        theirs = kio_class(cls, version)
        if theirs is None:
            continue
        for number in range(VALUES_PER_VERSION):
            random_ = random.Random(f"kio {name} {version} {number}")
            message = kio_message(random_, theirs)
            data = kio_bytes(message)
            ours = decode(cls, version, data)
            same(ours, plain(message), f"{name} v{version}")
            assert encode(ours, version) == data


@pytest.mark.parametrize("name", VERSIONS)
def test_kio_decodes_and_encodes_messages_of_tidemill(name: str) -> None:
    for cls, version in VERSIONS[name]:
        theirs = kio_class(cls, version)
        if theirs is None or kio_types(theirs) & UNTIMELY:
            continue
        for number in range(VALUES_PER_VERSION):
            message = message_of(random.Random(f"{name} {version} {number}"), cls, version)
            if isinstance(message, DescribeClusterResponse):
                # A tag of Tidemill, which kio rejects; clients skip unknown tags.
                message.store_silent_ms = 0
            data = encode(message, version)
            assert decode(cls, version, data) == message
            other = kio_parse(theirs, data)
            same(message, plain(other), f"{name} v{version}")
            assert kio_bytes(other) == data


def test_kio_supports_the_apis_of_kafka_4() -> None:
    """Otherwise the tests above could pass without a comparison."""
    missing = {name for name in VERSIONS if kio_class(*VERSIONS[name][-1]) is None}
    unknown = {name.removesuffix("Request").removesuffix("Response") for name in missing} - NOT_IN_KIO
    assert not unknown
