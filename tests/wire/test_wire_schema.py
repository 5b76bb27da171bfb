"""Message classes apart from their encoding, and the consistency of their descriptions."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from wire_values import all_messages

from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.model.types import ZERO_ID
from tidemill.wire.apis import API, ApiKey, request_class, response_class
from tidemill.wire.codec import decode, decode_prefix, encode, encode_parts
from tidemill.wire.codegen import allows_null, is_flexible
from tidemill.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from tidemill.wire.messages.fetch import FetchRequest, ReplicaState
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
)
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from tidemill.wire.schema import (
    BOOL,
    FLOAT64,
    RECORDS,
    STRING,
    VERSION_MAX,
    EncodeError,
    Struct,
    UnsupportedByVersion,
    WireType,
    carries,
    field,
    parse_versions,
)


def classes() -> list[type[Struct]]:
    found: dict[type[Struct], None] = {}

    def add(cls: type[Struct]) -> None:
        found[cls] = None
        for one in cls.fields_:
            if isinstance(one.element, type):
                add(one.element)

    for cls, _ in all_messages():
        add(cls)
    return list(found)


def test_fields_have_the_defaults_of_the_protocol() -> None:
    request = FetchRequest()
    assert (request.max_bytes, request.session_epoch, request.rack_id) == (2**31 - 1, -1, "")
    assert request.cluster_id is None
    assert request.topics == []
    assert request.replica_state == ReplicaState(replica_id=-1, replica_epoch=-1)
    assert MetadataRequestTopic().topic_id == ZERO_ID
    assert PartitionProduceData().records is None


def test_messages_do_not_share_their_lists_or_inner_messages() -> None:
    one, other = FetchRequest(), FetchRequest()
    one.topics.append(None)  # type: ignore[arg-type]
    one.replica_state.replica_id = 7
    assert other == FetchRequest()
    decoded = decode(FetchRequest, 12, encode(other, 12))
    decoded.replica_state.replica_id = 7
    assert decode(FetchRequest, 12, encode(other, 12)) == other


def test_accepts_only_fields_as_keyword_arguments() -> None:
    with pytest.raises(TypeError):
        MetadataRequestTopic(b"", "t")  # type: ignore[misc]
    with pytest.raises(TypeError, match="topik"):
        MetadataRequestTopic(topik="t")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataRequestTopic().topik = "t"  # type: ignore[attr-defined]


def test_equality_is_by_class_and_value() -> None:
    assert MetadataRequestTopic(name="a") == MetadataRequestTopic(name="a")
    assert MetadataRequestTopic(name="a") != MetadataRequestTopic(name="b")
    assert MetadataRequestTopic(name="a") != "a"
    with pytest.raises(TypeError, match="unhashable"):
        hash(MetadataRequestTopic())


def test_repr_shows_set_fields_and_hides_secrets() -> None:
    assert repr(MetadataRequestTopic(name="a")) == "MetadataRequestTopic(name='a')"
    assert repr(PartitionProduceData(records=bytes(1000))) == "PartitionProduceData(records=<1000 bytes>)"
    assert "hunter2" not in repr(SaslAuthenticateRequest(auth_bytes=b"\0me\0hunter2"))


def test_messages_survive_pickling() -> None:
    message = FetchRequest(rack_id="r", replica_state=ReplicaState(replica_id=3))
    assert pickle.loads(pickle.dumps(message)) == message


def test_rejects_a_field_that_the_version_lacks_unless_it_is_ignorable() -> None:
    with pytest.raises(
        UnsupportedByVersion, match=r"v3 allow_auto_topic_creation cannot carry False.*4\+"
    ) as caught:
        encode(MetadataRequest(allow_auto_topic_creation=False), 3)
    assert isinstance(caught.value, KafkaError)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert encode(MetadataRequest(), 3) == bytes(4)
    kept = decode(FetchRequest, 2, encode(FetchRequest(max_bytes=5, rack_id="ignorable"), 2))
    assert kept == FetchRequest()


@pytest.mark.parametrize(
    ("message", "version", "text"),
    [
        (MetadataRequest(topics=None), 0, "topics is None, which version 0"),
        (MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9, r"topics\[0\].name is None"),
        (MetadataResponse(throttle_time_ms=2**31), 3, "throttle_time_ms = 2147483648 is no INT32"),
        (
            MetadataResponse(brokers=[MetadataResponseBroker(port="9092")]),
            1,
            r"brokers\[0\].port = '9092' is no INT32",
        ),  # type: ignore[arg-type]
        (MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"short")]), 12, "b'short' is not an id"),
        (MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32768)]), 12, "32768 bytes is over 32767"),
        (
            MetadataRequest(topics=[MetadataRequestTopic(name="\ud800")]),
            1,
            r"topics\[0\].name = '\\ud800' is no STRING",
        ),
        (MetadataRequest(topics=["t"]), 1, r"topics\[0\] = 't' is no MetadataRequestTopic"),  # type: ignore[list-item]
        (MetadataRequest(topics=7), 1, "topics = 7 is not a list"),  # type: ignore[arg-type]
        (MetadataRequest(), 99, "no version 99; it has 0-13"),
        (MetadataRequestTopic(), 1, "none of its own"),
        (FetchRequest(replica_state=None), 15, "replica_state is None"),  # type: ignore[arg-type]
    ],
)
def test_an_encoding_error_contains_field_and_value(message: Struct, version: int, text: str) -> None:
    with pytest.raises(EncodeError, match=text):
        encode(message, version)


def test_does_not_decode_versions_that_a_message_lacks() -> None:
    with pytest.raises(ProtocolError, match="MetadataRequest has no version 14"):
        decode(MetadataRequest, 14, b"")


def test_null_messages_are_one_byte() -> None:
    assert encode(DescribeTopicPartitionsRequest(), 0) == b"\x01\x00\x00\x07\xd0\xff\x00"
    request = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="t", partition_index=1))
    assert encode(request, 0) == b"\x01\x00\x00\x07\xd0\x01\x02t\x00\x00\x00\x01\x00\x00"
    assert decode(DescribeTopicPartitionsRequest, 0, encode(request, 0)) == request


def test_encodes_tagged_fields_in_the_order_of_their_tags() -> None:
    class Backwards(Struct, versions="0", flexible="0+"):
        """A description with the higher tag first."""

        late: str = field(STRING, tag=300)
        early: str = field(STRING, tag=1)

    assert encode(Backwards(late="l", early="e"), 0) == b"\x02\x01\x02\x02e\xac\x02\x02\x02l"
    assert encode(Backwards(late="l"), 0) == b"\x01\xac\x02\x02\x02l"
    assert decode(Backwards, 0, b"\x02\xac\x02\x02\x02l\x01\x02\x02e") == Backwards(late="l", early="e")
    with pytest.raises(ProtocolError, match="early: the tagged field ends at byte 5, its size says 6"):
        decode(Backwards, 0, b"\x01\x01\x03\x02e\x00")
    with pytest.raises(ProtocolError, match="early"):
        decode(Backwards, 0, b"\x01\x01\x01\x02e")


def test_records_are_encoded_without_a_copy() -> None:
    records = memoryview(b"records of a batch")
    request = ProduceRequest(
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])]  # type: ignore[arg-type]
    )
    assert any(part is records for part in encode_parts(request, 9))
    decoded = decode(ProduceRequest, 9, encode(request, 9))
    assert decoded.topic_data[0].partition_data[0].records == records


def test_decodes_consecutive_messages() -> None:
    data = encode(MetadataRequestAlone(name="a"), 0) + encode(MetadataRequestAlone(name="b"), 0)
    first, position = decode_prefix(MetadataRequestAlone, 0, data, 0, len(data))
    second, position = decode_prefix(MetadataRequestAlone, 0, data, position, len(data))
    assert (first.name, second.name, position) == ("a", "b", len(data))


class MetadataRequestAlone(Struct, versions="0"):
    """A message class only for the test."""

    name: str = field(STRING)


@pytest.mark.parametrize(
    ("text", "first", "last"), [("3-12", 3, 12), ("7", 7, 7), ("9+", 9, 32767), ("", 0, -1)]
)
def test_version_ranges_are_parsed(text: str, first: int, last: int) -> None:
    assert parse_versions(text) == (first, last)


def test_requests_and_responses_have_the_same_versions() -> None:
    assert {int(key) for key in ApiKey} == set(API)
    for key, spec in API.items():
        assert 0 <= spec.version_min <= spec.version_max < VERSION_MAX
        assert response_class(key).versions_ == request_class(key).versions_
        for version in range(spec.version_min, spec.version_max + 1):
            for cls in (request_class(key), response_class(key)):
                assert is_flexible(cls, version) == spec.is_flexible(version)


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_annotations_match_the_wire_types(cls: type[Struct]) -> None:
    assert cls.__doc__
    assert cls.__doc__ != Struct.__doc__
    tags = [one.tag for one in cls.fields_ if one.tag >= 0]
    assert len(tags) == len(set(tags))
    for one in cls.fields_:
        kind = python_name(one.element)
        expected = f"list[{kind}]" if one.is_array else kind
        if one.nullable or one.type is RECORDS:
            expected += " | None"
        assert cls.__annotations__[one.name] == expected, one.name


def python_name(kind: WireType | type[Struct]) -> str:
    if not isinstance(kind, WireType):
        return kind.__name__
    if kind in (BOOL, FLOAT64, STRING):
        return {BOOL: "bool", FLOAT64: "float", STRING: "str"}[kind]
    return "int" if isinstance(kind.default, int) else "bytes"


def test_nullable_and_tagged_versions_are_within_those_of_the_field() -> None:
    for cls, version in all_messages():
        stack: list[Any] = [cls]
        while stack:
            current = stack.pop()
            for one in current.fields_:
                if allows_null(one, version) and not carries(one, version):
                    pytest.fail(f"{current.__name__}.{one.name} may be null in v{version}, which lacks it")
                if carries(one, version) and isinstance(one.element, type):
                    stack.append(one.element)


def test_message_modules_are_imported_on_first_use() -> None:
    script = (
        "import sys, tidemill.wire.header; from tidemill.wire.apis import request_class; request_class(12);"
        "print([n for n in sys.modules if n.startswith('tidemill.wire.')])"
    )
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert "tidemill.wire.messages.heartbeat" in out
    assert "tidemill.wire.messages.fetch" not in out
    assert "tidemill.wire.codegen" not in out


def test_messages_are_executed_with_the_first_use_of_their_module() -> None:
    script = (
        "import sys, types; from tidemill.wire.messages import heartbeat as messages;"
        "print(type(messages) is types.ModuleType);"
        "from tidemill.wire.messages.heartbeat import HeartbeatRequest;"
        "print(messages.HeartbeatRequest is HeartbeatRequest, hasattr(messages, 'HeartbeatMistake'));"
        "import tidemill.wire.messages.heartbeat as again;"
        "print(again is messages, type(messages) is types.ModuleType);"
        "from tidemill.wire.messages import mistake"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\nTrue False\nTrue True\n"
    assert "ImportError: cannot import name 'mistake' from 'tidemill.wire.messages'" in done.stderr
