"""The exchange of requests and responses of a link, frame by frame."""

from __future__ import annotations

import struct
from typing import Any

from tidemill.model.errors import ErrorCode
from tidemill.testing.frames import Exchange, Rule, Rules
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import decode_response, encode_request, encode_response
from tidemill.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.schema import Struct

VERSIONS = {ApiKey.PRODUCE: 11, ApiKey.FETCH: 12, ApiKey.METADATA: 9}


class Link:
    """An exchange with rules, and a correlation id that increases."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = Rules()
        for rule in rules:
            self.rules.add(rule)
        self.exchange = Exchange(self.rules)
        self.number = 0

    def request(self, key: ApiKey, message: Struct) -> bool:
        self.number += 1
        return self.exchange.request(encode_request(key, VERSIONS[key], self.number, "c", message)[4:])

    def ready(self, key: ApiKey) -> list[Any]:
        return [decode_response(key, VERSIONS[key], frame, 4) for frame in self.exchange.ready()]

    def response(self, key: ApiKey, number: int, message: Struct) -> Any:
        """The replaced response; None if the client receives the response of the broker."""
        changed = self.exchange.replace_response(encode_response(key, VERSIONS[key], number, message)[4:])
        return None if changed is None else decode_response(key, VERSIONS[key], changed, 4)[1]


def rule(api: ApiKey, code: ErrorCode, times: int = 1, *, carried_out: bool = False) -> Rule:
    return Rule(api, code, times, None, carried_out=carried_out)


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> ProduceRequest:
    """A Produce request with a batch with this base sequence."""
    header = bytearray(70)
    header[16] = 2
    struct.pack_into(">qhi", header, 43, producer_id, epoch, sequence)
    part = PartitionProduceData(index=0, records=bytes(header))
    topic = TopicProduceData(name="t", partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def code_of(response: Any) -> int:
    found: int = response[1].responses[0].partition_responses[0].error_code
    return found


def test_batches_after_a_rejected_batch_are_rejected_until_it_is_retried() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert not link.request(ApiKey.PRODUCE, batch(0))
    # Sent before the client received the error: out of order, because the first batch is not stored.
    assert not link.request(ApiKey.PRODUCE, batch(5))
    assert link.request(ApiKey.PRODUCE, batch(5, producer_id=8))
    answers = link.ready(ApiKey.PRODUCE)
    assert [code_of(one) for one in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert [one[0] for one in answers] == [1, 2]
    assert link.request(ApiKey.PRODUCE, batch(0))
    assert link.request(ApiKey.PRODUCE, batch(5))


def test_a_producer_that_abandons_a_rejected_batch_continues_with_the_next_epoch() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE))
    assert not link.request(ApiKey.PRODUCE, batch(0))
    assert link.request(ApiKey.PRODUCE, batch(5, epoch=1))
    assert link.request(ApiKey.PRODUCE, batch(10, epoch=1))


def test_responses_are_sent_in_the_order_of_the_requests() -> None:
    link = Link()
    assert link.request(ApiKey.METADATA, MetadataRequest(topics=None))
    link.rules.add(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    assert not link.request(ApiKey.PRODUCE, batch(0))
    assert link.ready(ApiKey.PRODUCE) == []  # The response before it has not arrived.
    assert link.response(ApiKey.METADATA, 1, MetadataResponse()) is None
    assert [code_of(one) for one in link.ready(ApiKey.PRODUCE)] == [ErrorCode.REQUEST_TIMED_OUT]


def test_a_produce_with_acks_0_is_forwarded_and_has_no_response() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    silent = batch(0)
    silent.acks = 0
    assert link.request(ApiKey.PRODUCE, silent)
    silent.transactional_id = "a transaction of a long name" * 10
    assert link.request(ApiKey.PRODUCE, silent)
    assert not link.request(ApiKey.PRODUCE, batch(0))
    assert [code_of(one) for one in link.ready(ApiKey.PRODUCE)] == [ErrorCode.REQUEST_TIMED_OUT]


def test_a_request_executed_before_the_rule_keeps_its_response() -> None:
    link = Link()
    assert link.request(ApiKey.PRODUCE, batch(0))
    link.rules.add(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    assert link.response(ApiKey.PRODUCE, 1, ProduceResponse()) is None


def fetch(session_id: int, epoch: int, *indexes: int, forgotten: tuple[int, ...] = ()) -> FetchRequest:
    topics = [
        FetchTopic(
            topic="t",
            partitions=[FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in indexes],
        )
    ]
    left = [ForgottenTopic(topic="t", partitions=list(forgotten))]
    return FetchRequest(
        max_wait_ms=1,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=topics if indexes else [],
        forgotten_topics_data=left if forgotten else [],
    )


def test_an_error_applies_to_all_partitions_of_a_fetch_session() -> None:
    link = Link()
    link.request(ApiKey.FETCH, fetch(0, 0, 0, 1))
    assert link.response(ApiKey.FETCH, 1, FetchResponse(session_id=9)) is None
    link.request(ApiKey.FETCH, fetch(9, 1, 2, forgotten=(0,)))
    assert link.response(ApiKey.FETCH, 2, FetchResponse(session_id=9)) is None
    link.rules.add(rule(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    link.request(ApiKey.FETCH, fetch(9, 2))
    response = link.response(ApiKey.FETCH, 3, FetchResponse(session_id=9))
    (topic,) = response.responses
    assert (response.session_id, response.error_code) == (9, 0)
    assert [one.partition_index for one in topic.partitions] == [1, 2]
    assert {one.error_code for one in topic.partitions} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    link.request(ApiKey.FETCH, fetch(9, 3))
    data = PartitionData(partition_index=1, records=b"x")
    response = FetchResponse(session_id=9, responses=[FetchableTopicResponse(topic="t", partitions=[data])])
    assert link.response(ApiKey.FETCH, 4, response) is None


def test_a_fetch_session_error_applies_to_the_whole_response() -> None:
    link = Link(rule(ApiKey.FETCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    link.request(ApiKey.FETCH, fetch(0, 0, 0))
    response = link.response(ApiKey.FETCH, 1, FetchResponse(session_id=9))
    assert (response.error_code, response.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def test_forwards_invalid_requests() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    for frame in (b"", b"\0", b"\x7f\xff\0\0\0\0\0\1", b"\0\0\0\x0b\0\0\0\1\xff\xff\0\0\0"):
        assert link.exchange.request(frame)
