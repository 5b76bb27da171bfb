"""The replication quota of a leader for followers that catch up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import NODE, Bench, Client, batch, bench_in, parts_of

from tidemill.broker.metadata_cache import MetadataCache
from tidemill.broker.replication_quotas import ReplicationQuotas
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import parse_batch
from tidemill.replication.replication_quota import UNLIMITED, RateLimit, ReplicationQuota
from tidemill.wire.messages.fetch import FetchPartition, ReplicaState

VERSION = 17
FOLLOWER = 2
LONG_MS = 60_000
SIZE = 1000
"""The bytes of a value."""
WINDOW_S = 1000.0
KEYS = [("t", 0), ("t", 1)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """The leader of topic ``t`` with follower 2, which has partition 1, and not yet 0."""
    with bench_in(tmp_path) as one:
        for index in range(2):
            in_sync = (NODE, FOLLOWER) if index else (NODE,)
            one.partition("t", index).apply_state(
                NODE, 0, (NODE, FOLLOWER), in_sync, partition_epoch=0, now_ms=one.clock.now_ms
            )
        one.manager.listener.alter_isr = lambda *change: None
        yield one


def throttled(bench: Bench, bytes_per_second: int, sample_s: float = WINDOW_S) -> ReplicationQuota:
    throttle = ReplicationQuota(NODE, RateLimit(bytes_per_second, sample_s=sample_s))
    throttle.set_topic("t", ["*"])
    bench.fetches.reader.quota = throttle
    return throttle


def write(bench: Bench, index: int = 0, count: int = 1) -> None:
    """Writes batches; a fetch returns one of them."""
    for _ in range(count):
        data = batch(b"v" * SIZE)
        bench.partition("t", index).append(parse_batch(data, 0, len(data)), 1, bench.clock.now_ms)


class Follower:
    """The session of broker 2."""

    def __init__(self, bench: Bench) -> None:
        self.client: Client = bench.client()
        self.session = 0
        self.epoch = 0

    def ask(self, offsets: dict[tuple[str, int], int], wait_ms: int = 0) -> None:
        parts = {
            key: FetchPartition(fetch_offset=offset, partition_max_bytes=SIZE * 3 // 2)
            for key, offset in offsets.items()
        }
        self.client.fetch(
            VERSION,
            parts,
            session_id=self.session,
            session_epoch=self.epoch,
            max_wait_ms=wait_ms,
            replica_state=ReplicaState(replica_id=FOLLOWER, replica_epoch=1),
        )

    def received(self) -> dict[tuple[str, int], Any]:
        answer = self.client.fetched(VERSION)
        assert answer.error_code == 0
        self.session = answer.session_id
        self.epoch += 1
        return dict(parts_of(answer))

    def sizes(self) -> dict[tuple[str, int], int]:
        """Returns the bytes of the records in the response."""
        return {key: len(part.records or b"") for key, part in self.received().items()}


def test_an_out_of_sync_follower_gets_no_records_above_the_rate(bench: Bench) -> None:
    throttle = throttled(bench, 0)
    follower = Follower(bench)
    for index in (0, 1):
        write(bench, index, 3)
    follower.ask(dict.fromkeys(KEYS, 0))
    sent = follower.sizes()
    assert min(sent.values()) > SIZE, "nothing had been sent before"
    assert throttle.bytes == sum(sent.values()), "also what goes to those in sync counts"
    follower.ask(dict.fromkeys(KEYS, 1))
    sizes = follower.sizes()
    assert sizes.pop(("t", 1)) > SIZE, "it is in sync"
    assert not any(sizes.values())
    follower.ask({})
    assert ("t", 0) not in follower.sizes()
    partition = bench.partition()
    assert partition.replication is not None
    assert partition.replication.followers[FOLLOWER].end_offset == 1, "what it has is noted all the same"
    throttle.limit.bytes_per_second = UNLIMITED
    follower.ask({})
    assert follower.sizes()["t", 0] > SIZE


def test_errors_of_throttled_partitions_are_sent(bench: Bench) -> None:
    throttled(bench, 0)
    follower = Follower(bench)
    write(bench, 0, 3)
    follower.ask({("t", 0): 0})
    follower.received()
    follower.ask({("t", 0): 7})
    assert follower.received()["t", 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_appends_to_throttled_partitions_do_not_complete_a_delayed_fetch(bench: Bench) -> None:
    throttle = throttled(bench, 0)
    follower = Follower(bench)
    write(bench, 0, 3)
    write(bench, 1)
    follower.ask(dict.fromkeys(KEYS, 0))
    follower.received()
    follower.ask(dict.fromkeys(KEYS, 1))
    follower.received()  # The high watermarks.
    follower.ask({}, LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    write(bench)
    bench.turn()
    assert bench.fetches.waiting == 1
    write(bench, 1)
    sizes = follower.sizes()
    assert sizes.pop(("t", 1)) > SIZE
    assert not any(sizes.values())
    follower.ask({("t", 1): 2}, LONG_MS)
    follower.received()
    follower.ask({}, LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    throttle.limit.bytes_per_second = UNLIMITED
    write(bench)
    assert follower.sizes()["t", 0] > SIZE, "what was held back comes with the next"


@pytest.mark.parametrize("in_session", [True, False])
def test_throttled_records_are_sent_once_the_rate_allows(bench: Bench, in_session: bool) -> None:
    """Without appends and requests a timer completes the fetch."""
    throttle = throttled(bench, 0, sample_s=0.02)
    follower = Follower(bench)
    if not in_session:
        follower.epoch = -1
    write(bench, 0, 3)
    follower.ask({("t", 0): 0})
    follower.received()
    follower.epoch = 1 if in_session else -1
    throttle.limit.bytes_per_second = 5 * SIZE
    held_s = throttle.limit.wait_s(bench.loop.time())
    follower.ask({("t", 0): 1})
    follower.received()
    follower.epoch = 2 if in_session else -1
    began = time.monotonic()
    follower.ask({} if in_session else {("t", 0): 1}, LONG_MS)
    sizes = follower.sizes()
    assert held_s > 0.05
    assert time.monotonic() - began < LONG_MS / 1000 / 2
    assert sizes["t", 0] > SIZE


def test_the_quota_of_another_broker_or_topic_does_not_apply(bench: Bench) -> None:
    throttle = throttled(bench, 0)
    throttle.set_topic("t", ["0:2", "1:1"])
    follower = Follower(bench)
    write(bench, 0, 3)
    for offset in range(2):
        follower.ask({("t", 0): offset})
        assert follower.sizes()["t", 0] > SIZE
    assert throttle.bytes == 0


def test_a_follower_about_to_join_the_isr_is_not_throttled(bench: Bench) -> None:
    partition = bench.partition()
    partition.apply_state(
        NODE, 1, (NODE, FOLLOWER, 3), (NODE, 3), partition_epoch=1, now_ms=bench.clock.now_ms
    )
    throttled(bench, 0)
    follower = Follower(bench)
    write(bench)
    partition.fetched_by(3, 1, 0, bench.clock.now_ms)
    follower.ask({("t", 0): 0})
    assert follower.sizes()["t", 0] > SIZE
    write(bench)
    partition.fetched_by(3, 2, 0, bench.clock.now_ms)
    assert partition.high_watermark == 2
    # It has all records of its last fetch: from now on commits wait for it.
    follower.ask({("t", 0): 1}, LONG_MS)
    assert not any(follower.sizes().values())
    write(bench)
    partition.fetched_by(3, 3, 0, bench.clock.now_ms)
    assert partition.high_watermark == 2
    follower.ask({}, LONG_MS)
    assert follower.sizes()["t", 0] > SIZE


def image_of(*topics: TopicImage) -> ClusterImage:
    return ClusterImage(topics={topic.name: topic for topic in topics})


def test_quotas_follow_the_settings_of_topics_and_of_the_broker() -> None:
    def topic(leader: str, follower: str, topic_id: bytes = b"t" * 16) -> TopicImage:
        settings = {
            "leader.replication.throttled.replicas": leader,
            "follower.replication.throttled.replicas": follower,
        }
        return TopicImage("t", topic_id, (), settings)

    def covered() -> list[list[int]]:
        sides = (throttling.leader, throttling.follower)
        return [[partition for partition in range(3) if side.covers("t", partition)] for side in sides]

    def become(image: ClusterImage) -> None:
        asyncio.run(metadata.publish(Delta.between(metadata.image, image)))

    metadata = MetadataCache(image_of(topic("0:1,1:2", "2:1")))
    settings = {"leader.replication.throttled.rate": 1000, "follower.replication.throttled.rate": 2000}
    config = BrokerConfig.of(settings)
    throttling = ReplicationQuotas(1, lambda: config, metadata)
    assert covered() == [[0], [2]]
    limits = [side.limit.bytes_per_second for side in (throttling.leader, throttling.follower)]
    assert limits == [1000, 2000]
    become(image_of(topic("*", "")))
    assert covered() == [[0, 1, 2], []]
    become(image_of(topic("no list", "1:1")))
    assert covered() == [[], [1]]
    become(image_of())
    assert covered() == [[], []]
    become(image_of(topic("2:1", "0:1,1:1", b"u" * 16)))
    assert covered() == [[2], [0, 1]]
    config = BrokerConfig.of({key: 2 * value for key, value in settings.items()})
    become(ClusterImage(topics=metadata.image.topics, broker_configs={1: {"x": "y"}}))
    limits = [side.limit.bytes_per_second for side in (throttling.leader, throttling.follower)]
    assert limits == [2000, 4000]
