"""What the links make of requests and answers, frame by frame."""

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
    """An exchange with rules, and a correlation id that counts."""

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

    def answer(self, key: ApiKey, number: int, message: Struct) -> Any:
        """The answer as the client gets it; None where it is that of the broker."""
        changed = self.exchange.answer(encode_response(key, VERSIONS[key], number, message)[4:])
        return None if changed is None else decode_response(key, VERSIONS[key], changed, 4)[1]


def rule(api: ApiKey, code: ErrorCode, times: int = 1, *, carried_out: bool = False) -> Rule:
    return Rule(api, code, times, None, carried_out=carried_out)


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> ProduceRequest:
    """A Produce whose batch has this first sequence."""
    header = bytearray(70)
    header[16] = 2
    struct.pack_into(">qhi", header, 43, producer_id, epoch, sequence)
    part = PartitionProduceData(index=0, records=bytes(header))
    topic = TopicProduceData(name="t", partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def code_of(answer: Any) -> int:
    found: int = answer[1].responses[0].partition_responses[0].error_code
    return found


def test_batches_behind_one_that_was_refused_are_refused_alike_until_it_comes_again() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert not link.request(ApiKey.PRODUCE, batch(0))
    # Sent before the client could know: out of order for a broker that has not stored the first.
    assert not link.request(ApiKey.PRODUCE, batch(5))
    assert link.request(ApiKey.PRODUCE, batch(5, producer_id=8))
    answers = link.ready(ApiKey.PRODUCE)
    assert [code_of(one) for one in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert [one[0] for one in answers] == [1, 2]
    assert link.request(ApiKey.PRODUCE, batch(0))
    assert link.request(ApiKey.PRODUCE, batch(5))


def test_a_producer_that_gave_a_refused_batch_up_goes_on_with_its_next_epoch() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE))
    assert not link.request(ApiKey.PRODUCE, batch(0))
    assert link.request(ApiKey.PRODUCE, batch(5, epoch=1))
    assert link.request(ApiKey.PRODUCE, batch(10, epoch=1))


def test_answers_leave_in_the_order_of_the_requests() -> None:
    link = Link()
    assert link.request(ApiKey.METADATA, MetadataRequest(topics=None))
    link.rules.add(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    assert not link.request(ApiKey.PRODUCE, batch(0))
    assert link.ready(ApiKey.PRODUCE) == []  # The answer before it has not come.
    assert link.answer(ApiKey.METADATA, 1, MetadataResponse()) is None
    assert [code_of(one) for one in link.ready(ApiKey.PRODUCE)] == [ErrorCode.REQUEST_TIMED_OUT]


def test_a_produce_that_wants_no_answer_passes_and_is_not_waited_for() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    silent = batch(0)
    silent.acks = 0
    assert link.request(ApiKey.PRODUCE, silent)
    silent.transactional_id = "a transaction of a long name" * 10
    assert link.request(ApiKey.PRODUCE, silent)
    assert not link.request(ApiKey.PRODUCE, batch(0))
    assert [code_of(one) for one in link.ready(ApiKey.PRODUCE)] == [ErrorCode.REQUEST_TIMED_OUT]


def test_what_was_done_before_the_rule_is_told_as_it_was() -> None:
    link = Link()
    assert link.request(ApiKey.PRODUCE, batch(0))
    link.rules.add(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    assert link.answer(ApiKey.PRODUCE, 1, ProduceResponse()) is None


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


def test_an_error_reaches_all_partitions_of_a_fetch_session_though_the_answer_names_none() -> None:
    link = Link()
    link.request(ApiKey.FETCH, fetch(0, 0, 0, 1))
    assert link.answer(ApiKey.FETCH, 1, FetchResponse(session_id=9)) is None
    link.request(ApiKey.FETCH, fetch(9, 1, 2, forgotten=(0,)))
    assert link.answer(ApiKey.FETCH, 2, FetchResponse(session_id=9)) is None
    link.rules.add(rule(ApiKey.FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    link.request(ApiKey.FETCH, fetch(9, 2))
    told = link.answer(ApiKey.FETCH, 3, FetchResponse(session_id=9))
    (topic,) = told.responses
    assert (told.session_id, told.error_code) == (9, 0)
    assert [one.partition_index for one in topic.partitions] == [1, 2]
    assert {one.error_code for one in topic.partitions} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    link.request(ApiKey.FETCH, fetch(9, 3))
    data = PartitionData(partition_index=1, records=b"x")
    response = FetchResponse(session_id=9, responses=[FetchableTopicResponse(topic="t", partitions=[data])])
    assert link.answer(ApiKey.FETCH, 4, response) is None


def test_an_error_of_a_fetch_session_is_that_of_the_whole_answer() -> None:
    link = Link(rule(ApiKey.FETCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    link.request(ApiKey.FETCH, fetch(0, 0, 0))
    told = link.answer(ApiKey.FETCH, 1, FetchResponse(session_id=9))
    assert (told.error_code, told.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def test_what_is_no_request_passes() -> None:
    link = Link(rule(ApiKey.PRODUCE, ErrorCode.REQUEST_TIMED_OUT))
    for frame in (b"", b"\0", b"\x7f\xff\0\0\0\0\0\1", b"\0\0\0\x0b\0\0\0\1\xff\xff\0\0\0"):
        assert link.exchange.request(frame)
