"""Long polls, limits and fetch sessions, one request at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_clients_versions import batch_of, message, produce, topic_id
from wire_peer import WirePeer

from default_limits import iter_records
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey

VERSION = 18
LONG_MS = 20_000

NewTopic = Callable[..., str]


@pytest.fixture
def peer(bootstrap: str) -> Iterator[WirePeer]:
    with WirePeer(bootstrap) as connected:
        yield connected


class Fetcher:
    """Fetches the partitions of one topic by its id."""

    def __init__(self, peer: WirePeer, topic: str) -> None:
        self.peer = peer
        self.topic_id = topic_id(peer, topic)

    def request(self, offsets: dict[int, int], **fields: Any) -> Any:
        partition_max_bytes = fields.pop("partition_max_bytes", 1 << 20)
        forgotten = fields.pop("forgotten", [])
        wanted = [
            message(
                "fetch",
                "FetchPartition",
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
            )
            for partition, offset in offsets.items()
        ]
        topics = [message("fetch", "FetchTopic", topic_id=self.topic_id, partitions=wanted)] if wanted else []
        gone = [message("fetch", "ForgottenTopic", topic_id=self.topic_id, partitions=forgotten)]
        defaults = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 24}
        return message(
            "fetch",
            "FetchRequest",
            topics=topics,
            forgotten_topics_data=gone if forgotten else [],
            **{**defaults, **fields},
        )

    def fetch(self, offsets: dict[int, int], **fields: Any) -> Any:
        return self.peer.ask(ApiKey.FETCH, VERSION, self.request(offsets, **fields))


def partitions_of(answer: Any) -> dict[int, Any]:
    return {one.partition_index: one for topic in answer.responses for one in topic.partitions}


def values(part: Any) -> list[bytes]:
    return [record.value for record in iter_records(part.records)]


def test_a_fetch_waits_for_min_bytes(peer: WirePeer, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fetcher = Fetcher(peer, topic)
    answers: list[Any] = []
    began = time.monotonic()
    waiting = threading.Thread(
        target=lambda: answers.append(fetcher.fetch({0: 0}, max_wait_ms=LONG_MS, min_bytes=1000))
    )
    waiting.start()
    with WirePeer(bootstrap) as other:
        produce(other, topic, b"x" * 300)
        waiting.join(0.3)
        assert answers == []
        produce(other, topic, b"y" * 900)
    waiting.join(10)
    assert time.monotonic() - began < LONG_MS / 1000
    assert values(partitions_of(answers[0])[0]) == [b"x" * 300, b"y" * 900]


def test_a_fetch_is_answered_empty_after_max_wait(peer: WirePeer, new_topic: NewTopic) -> None:
    fetcher = Fetcher(peer, new_topic())
    began = time.monotonic()
    answer = fetcher.fetch({0: 0}, max_wait_ms=300, min_bytes=1)
    assert 0.28 < time.monotonic() - began < 5
    assert (partitions_of(answer)[0].error_code, partitions_of(answer)[0].records) == (0, b"")


@pytest.mark.parametrize("offset", [-1, 5])
def test_an_offset_out_of_range_is_returned_at_once(peer: WirePeer, new_topic: NewTopic, offset: int) -> None:
    topic = new_topic()
    produce(peer, topic, b"one")
    answer = Fetcher(peer, topic).fetch({0: offset}, max_wait_ms=LONG_MS, min_bytes=1)
    assert partitions_of(answer)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_missing_partition_does_not_delay_others(peer: WirePeer, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(peer, topic, b"one")
    parts = partitions_of(Fetcher(peer, topic).fetch({0: 0, 9: 0}, max_wait_ms=LONG_MS, min_bytes=1))
    assert values(parts[0]) == [b"one"]
    assert parts[9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_limits_keep_whole_batches_and_the_first_batch_is_always_returned(
    peer: WirePeer, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    for _ in range(5):
        produce(peer, topic, b"x" * 1000)
    fetcher = Fetcher(peer, topic)
    assert len(values(partitions_of(fetcher.fetch({0: 0}, partition_max_bytes=10))[0])) == 1
    assert len(values(partitions_of(fetcher.fetch({0: 0}, max_bytes=10))[0])) == 1
    assert len(values(partitions_of(fetcher.fetch({0: 0}, partition_max_bytes=2500))[0])) == 2
    assert len(values(partitions_of(fetcher.fetch({0: 3}))[0])) == 2


def test_a_waiting_fetch_ends_when_its_topic_is_deleted(
    peer: WirePeer, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    fetcher = Fetcher(peer, topic)
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(fetcher.fetch({0: 0}, max_wait_ms=LONG_MS, min_bytes=1))
    )
    waiting.start()
    waiting.join(0.2)
    assert answers == []
    with WirePeer(bootstrap) as other:
        state = message("delete_topics", "DeleteTopicState", name=topic)
        request = message("delete_topics", "DeleteTopicsRequest", topics=[state], timeout_ms=10_000)
        assert other.ask(ApiKey.DELETE_TOPICS, 6, request).responses[0].error_code == 0
    waiting.join(10)
    assert partitions_of(answers[0])[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_session_returns_only_changed_partitions(peer: WirePeer, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    produce(peer, topic, b"one")
    fetcher = Fetcher(peer, topic)
    whole = fetcher.fetch({0: 0, 1: 0, 2: 0}, session_epoch=0)
    session = whole.session_id
    assert session > 0
    assert sorted(partitions_of(whole)) == [0, 1, 2]

    def next_fetch(epoch: int, offsets: dict[int, int] | None = None, **fields: Any) -> Any:
        return fetcher.fetch(offsets or {}, session_id=session, session_epoch=epoch, **fields)

    assert list(partitions_of(next_fetch(1, {0: 1}))) == []
    produce(peer, topic, b"two")
    changed = partitions_of(next_fetch(2))
    assert list(changed) == [0]
    assert values(changed[0]) == [b"two"]
    # The session has not advanced: the partition is returned again.
    assert values(partitions_of(next_fetch(3))[0]) == [b"two"]
    assert list(partitions_of(next_fetch(4, {0: 2}, forgotten=[1, 2]))) == []
    repeated = next_fetch(4)
    assert repeated.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    ended = next_fetch(-1)
    assert (ended.error_code, ended.session_id) == (0, 0)
    assert next_fetch(5).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_delayed_fetch_completes_for_any_partition_of_its_session(
    peer: WirePeer, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    fetcher = Fetcher(peer, topic)
    session = fetcher.fetch({0: 0, 1: 0, 2: 0}, session_epoch=0).session_id
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            fetcher.fetch({}, session_id=session, session_epoch=1, max_wait_ms=LONG_MS, min_bytes=1)
        )
    )
    waiting.start()
    waiting.join(0.1)
    with WirePeer(bootstrap) as other:
        produce(other, topic, b"one")
    waiting.join(10)
    assert values(partitions_of(answers[0])[0]) == [b"one"]


def test_a_session_does_not_starve_the_last_partition(peer: WirePeer, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    fetcher = Fetcher(peer, topic)
    for _ in range(3):
        for partition in range(3):
            part = message(
                "produce",
                "PartitionProduceData",
                index=partition,
                records=batch_of(b"%d" % partition * 1000),
            )
            data = message("produce", "TopicProduceData", topic_id=fetcher.topic_id, partition_data=[part])
            request = message("produce", "ProduceRequest", acks=-1, timeout_ms=5000, topic_data=[data])
            assert peer.ask(ApiKey.PRODUCE, 13, request).responses[0].partition_responses[0].error_code == 0
    answer = fetcher.fetch({0: 0, 1: 0, 2: 0}, session_epoch=0, max_bytes=1200, partition_max_bytes=1200)
    offsets = {0: 0, 1: 0, 2: 0}
    for epoch in range(1, 10):
        changed: dict[int, int] = {}
        for index, part in partitions_of(answer).items():
            count = len(values(part))
            if count:
                offsets[index] += count
                changed[index] = offsets[index]
        if epoch == 4:
            assert min(offsets.values()) == 1
        answer = fetcher.fetch(
            changed,
            session_id=answer.session_id,
            session_epoch=epoch,
            max_bytes=1200,
            partition_max_bytes=1200,
        )
    assert offsets == {0: 3, 1: 3, 2: 3}


def test_a_recreated_topic_has_another_id(peer: WirePeer, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fetcher = Fetcher(peer, topic)
    state = message("delete_topics", "DeleteTopicState", name=topic)
    request = message("delete_topics", "DeleteTopicsRequest", topics=[state], timeout_ms=10_000)
    assert peer.ask(ApiKey.DELETE_TOPICS, 6, request).responses[0].error_code == 0
    wanted = message("create_topics", "CreatableTopic", name=topic, num_partitions=1, replication_factor=1)
    request = message("create_topics", "CreateTopicsRequest", topics=[wanted])
    assert peer.ask(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code == 0
    assert topic_id(peer, topic) != fetcher.topic_id
    answer = fetcher.fetch({0: 0}, max_wait_ms=LONG_MS, min_bytes=1)
    assert partitions_of(answer)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
