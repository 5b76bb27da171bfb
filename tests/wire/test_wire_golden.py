"""Bytes written by the message classes of Apache Kafka, for messages that kio does not support.

``golden_kafka.jsonl`` has one message per line, with its field values: versions that Kafka 4
removed, written by Kafka 3.9.2; messages with times that kio cannot represent; and of the APIs of share
groups, streams groups and the Raft quorum the first and last version, written by Kafka 4.3.1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemill.wire.apis import API, ApiKey, request_class, response_class
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidemill.wire.schema import BYTES, RECORDS, UUID, Struct

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden_kafka.jsonl").read_text("utf-8").splitlines()
]


def value_from(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, type):
        return struct_from(kind, value)
    return bytes.fromhex(value) if kind in (BYTES, RECORDS, UUID) else value


def struct_from(cls: type[Struct], values: dict[str, Any]) -> Struct:
    arguments = {}
    for one in cls.fields_:
        if one.name in values:
            value = values[one.name]
            if one.is_array and value is not None:
                arguments[one.name] = [value_from(one.element, item) for item in value]
            else:
                arguments[one.name] = value_from(one.element, value)
    assert arguments.keys() == values.keys()
    return cls(**arguments)


def message_class(name: str) -> type[Struct]:
    for key, spec in API.items():
        if name == f"{spec.name}Request":
            return request_class(key)
        if name == f"{spec.name}Response":
            return response_class(key)
    return {one.__name__: one for one in (ConsumerProtocolAssignment, ConsumerProtocolSubscription)}[name]


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['message']}-{line['version']}")
def test_encodes_the_same_bytes_as_kafka(line: dict[str, Any]) -> None:
    cls, data = message_class(line["message"]), bytes.fromhex(line["hex"])
    message = struct_from(cls, line["fields"])
    assert encode(message, line["version"]) == data
    assert decode(cls, line["version"], data) == message


def test_the_messages_include_unsupported_apis() -> None:
    written = {line["message"] for line in LINES}
    for key in (ApiKey.VOTE, ApiKey.BROKER_REGISTRATION, *range(76, 93)):
        assert {f"{API[key].name}Request", f"{API[key].name}Response"} <= written


def test_the_messages_include_the_oldest_versions() -> None:
    written = {(line["message"], line["version"]) for line in LINES}
    for name in (
        "Produce",
        "Fetch",
        "ListOffsets",
        "OffsetCommit",
        "OffsetFetch",
        "CreateTopics",
        "LeaderAndIsr",
    ):
        assert {(f"{name}Request", 0), (f"{name}Response", 0)} <= written
