"""Fetch requests and responses by position, compared with the message codec; and the formats of the consumer
protocol.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from record_builders import build_batch
from tidemill.client.assignors import RangeAssignor, StickyAssignor
from tidemill.client.consumer_protocol import (
    decode_assignment,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_data,
    encode_subscription,
    subscription_for,
)
from tidemill.client.errors import ClientError
from tidemill.client.fetch_requests import (
    PartitionFetch,
    encode_request,
    next_offset,
    parse_response,
    version_for,
)
from tidemill.client.group_requests import read_assignment
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.apis import API, ApiKey
from tidemill.wire.codec import decode, encode
from tidemill.wire.header import encode_request as encode_frame
from tidemill.wire.header import encode_response
from tidemill.wire.messages import consumer_protocol, fetch

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("version", range(4, API[ApiKey.FETCH].version_max + 1))
def test_requests_of_every_version_equal_those_of_the_message_codec(version: int) -> None:
    # The partitions of a topic need not follow each other: its key is sent once.
    places = [("a", 3), ("b", 0), ("a", 1)]
    items = [
        PartitionFetch(name, name.encode() * 16, index, index << 33, index + 5, 1 << 20)
        for name, index in places
    ]
    body = encode_request(
        version, items, wait_ms=500, bytes_min=1, bytes_max=1 << 24, committed_only=True, rack="r"
    )
    topics = [
        fetch.FetchTopic(
            topic=name,
            topic_id=name.encode() * 16,
            partitions=[
                fetch.FetchPartition(
                    partition=index,
                    current_leader_epoch=index + 5,
                    fetch_offset=index << 33,
                    partition_max_bytes=1 << 20,
                )
                for index in indexes
            ],
        )
        for name, indexes in (("a", [3, 1]), ("b", [0]))
    ]
    message = fetch.FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=1 << 24, isolation_level=1, topics=topics, rack_id="r"
    )
    assert body == encode(message, version)
    assert encode_frame(ApiKey.FETCH, version, 7, "client", body) == encode_frame(
        ApiKey.FETCH, version, 7, "client", message
    )


def response(version: int) -> bytes:
    records = build_batch([(1, b"k", b"v", None)])
    partitions = [
        fetch.PartitionData(
            partition_index=p,
            error_code=p,
            high_watermark=10 + p,
            last_stable_offset=9 + p,
            log_start_offset=p if version >= 5 else -1,
            aborted_transactions=[fetch.AbortedTransaction(producer_id=7, first_offset=3)] * p if p else None,
            preferred_read_replica=p if version >= 11 else -1,
            records=records * p if p else None,
        )
        for p in range(3)
    ]
    topic = fetch.FetchableTopicResponse(topic="name", topic_id=TOPIC_ID, partitions=partitions)
    message = fetch.FetchResponse(throttle_time_ms=5, session_id=0, responses=[topic, topic])
    if version >= 16:
        message.node_endpoints = [fetch.NodeEndpoint(node_id=1, host="h", port=9)]
    return encode_response(ApiKey.FETCH, version, 77, message)[4:]


@pytest.mark.parametrize("version", range(4, API[ApiKey.FETCH].version_max + 1))
def test_responses_of_every_version_are_parsed_by_position(version: int) -> None:
    frame = response(version)
    answer = parse_response(frame, version)
    assert (answer.error, answer.throttle_ms, len(answer.partitions)) == (0, 5, 6)
    for number, found in enumerate(answer.partitions):
        p = number % 3
        assert found.key == (TOPIC_ID if version >= 13 else b"name")
        assert (found.index, found.error, found.high_watermark) == (p, p, 10 + p)
        assert (found.last_stable_offset, found.aborted) == (9 + p, [(7, 3)] * p or None)
        assert found.log_start_offset == (p if version >= 5 else -1)
        assert found.preferred_replica == (p if version >= 11 else -1)
        assert found.records() == build_batch([(1, b"k", b"v", None)]) * p


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_a_response_truncated_anywhere_is_a_protocol_error(version: int) -> None:
    frame = response(version)
    for end in range(4, len(frame) - 1):
        try:
            parse_response(frame[:end], version)
        except ProtocolError:
            continue
        # Only the tagged fields at the very end may be missing without an error.
        assert len(frame) - end < 30


def test_a_damaged_response_is_a_protocol_error_or_has_other_numbers() -> None:
    chance = random.Random(4)
    for version in (4, 12, 18):
        frame = response(version)
        for _ in range(3000):
            damaged = bytearray(frame)
            damaged[chance.randrange(len(frame))] = chance.randrange(256)
            with contextlib.suppress(ProtocolError):
                answer = parse_response(bytes(damaged), version)
                assert all(len(found.records()) <= len(frame) for found in answer.partitions)


def test_topics_without_an_id_are_requested_by_name() -> None:
    assert version_for(18, [TOPIC_ID, ZERO_ID]) == 12
    assert version_for(18, [TOPIC_ID]) == 18
    assert version_for(11, [ZERO_ID]) == 11


def test_the_next_offset_is_that_of_the_last_whole_batch() -> None:
    one = build_batch([(1, None, b"a", None)] * 3, base_offset=10)
    two = build_batch([(1, None, b"b", None)] * 2, base_offset=20)
    data = one + two
    assert next_offset(data, 0, len(data), 5) == 22
    assert next_offset(data, 0, len(data) - 1, 5) == 13
    assert next_offset(data, 0, len(one) - 1, 5) == 5


OWNED = [TopicPartition("a", 1), TopicPartition("a", 2), TopicPartition("b", 0)]


def test_a_subscription_matches_the_schema_of_the_protocol() -> None:
    data = encode_subscription(["b", "a"], OWNED, 5, "r1", b"u")
    message = decode(consumer_protocol.ConsumerProtocolSubscription, 3, data, 2)
    assert (message.topics, message.user_data) == (["a", "b"], b"u")
    assert (message.generation_id, message.rack_id) == (5, "r1")
    assert [(o.topic, o.partitions) for o in message.owned_partitions] == [("a", [1, 2]), ("b", [0])]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_of_every_version_are_decoded(version: int) -> None:
    owned = [consumer_protocol.TopicPartition(topic="a", partitions=[1])]
    message = consumer_protocol.ConsumerProtocolSubscription(
        topics=["a"], owned_partitions=owned, generation_id=4, rack_id="r"
    )
    data = version.to_bytes(2, "big") + encode(message, version)
    member = decode_subscription(data, "m", "i", "range")
    assert (member.topics, member.instance_id) == (("a",), "i")
    assert member.owned == ((TopicPartition("a", 1),) if version >= 1 else ())
    assert (member.generation, member.rack) == (4 if version >= 2 else -1, "r" if version >= 3 else None)


def test_the_known_fields_of_a_later_subscription_are_read() -> None:
    data = b"\x00\x09" + encode_subscription(["a"], [], 1, None, None)[2:] + b"something new"
    assert decode_subscription(data, "m", None, "range").topics == ("a",)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_subscription_may_omit_the_last_fields_of_its_version(version: int) -> None:
    message = consumer_protocol.ConsumerProtocolSubscription(topics=["a"], user_data=b"u")
    data = version.to_bytes(2, "big") + encode(message, 0)
    member = decode_subscription(data, "m", None, "range")
    assert (member.topics, member.owned, member.user_data) == (("a",), (), b"u")
    with pytest.raises(ProtocolError):
        decode_subscription(data + b"\x7f\xff\xff\xff", "m", None, "range")


def test_sticky_data_of_the_first_version_has_no_generation() -> None:
    data = encode_sticky_data(OWNED, 6)
    assert decode_sticky_data(data) == (tuple(OWNED), 6)
    assert decode_sticky_data(data[:-4]) == (tuple(OWNED), -1)


def test_the_user_data_of_eager_sticky_has_the_former_partitions() -> None:
    data = subscription_for(StickyAssignor(), ["a"], [], OWNED, 6, None)
    member = decode_subscription(data, "m", None, "sticky")
    assert (list(member.owned), member.generation) == (OWNED, 6)
    assert (
        decode_subscription(
            subscription_for(RangeAssignor(), ["a"], [], OWNED, 6, None), "m", None, "range"
        ).owned
        == ()
    )
    assert decode_sticky_data(b"not ours") == ((), -1)


def test_an_assignment_round_trips() -> None:
    data = encode_assignment(OWNED)
    assert decode_assignment(data) == OWNED
    assert decode_assignment(b"") == []
    message = decode(consumer_protocol.ConsumerProtocolAssignment, 3, data, 2)
    assert [(a.topic, a.partitions) for a in message.assigned_partitions] == [("a", [1, 2]), ("b", [0])]


def test_the_error_of_an_invalid_subscription_names_the_group() -> None:
    assert read_assignment(encode_assignment(OWNED), "g") == OWNED
    with pytest.raises(ClientError, match=r"leader of group 'g' sent an assignment") as caught:
        read_assignment(b"\0\0\x7f\xff\xff\xff", "g")
    assert caught.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_false_count_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(b"\x00\x03\x7f\xff\xff\xff", "m", None, "range")
    for data in (b"\x00\x00\x7f\xff\xff\xff", b"\x00", b"\xff\xff\0\0\0\0"):
        with pytest.raises(ProtocolError):
            decode_assignment(data)
