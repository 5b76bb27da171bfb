"""A partition that cannot be copied holds back no other: without a cluster, and with a broker that fails."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tidemill.client import Admin, Producer
from tidemill.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    DataLoss,
    RequestTimeout,
)
from tidemill.client.leader_log_ends import LeaderLogEnds
from tidemill.client.range_reader import RangeReader, TopicView
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import ClusterView
from tidemill.pipeline.mirror import copy_source, reachable_partition_offsets, source_truncation
from tidemill.pipeline.mirror.copy_options import CopyOptions
from tidemill.pipeline.mirror.copy_source import MirroredClusters
from tidemill.pipeline.mirror.mirror_lag import MirrorLag, MirrorMetrics, measure_lag, measure_record_lag
from tidemill.pipeline.mirror.reachable_partition_offsets import ReachableOffsets
from tidemill.pipeline.mirror.record_planning import waiting_for_target
from tidemill.pipeline.mirror.record_source import RecordClusters, RecordOptions
from tidemill.pipeline.mirror.source_truncation import ShorterSources
from tidemill.pipeline.mirror.target_names import TargetNames
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.stream_offsets import StreamPosition
from tidemill.testing.broker import Broker
from tidemill.testing.cluster import Cluster
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
NO_LEADER = BrokerUnreachable("no leader for t-1", ErrorCode.LEADER_NOT_AVAILABLE)


class Leaders:
    """A reader of a topic with three partitions, whose leaders may be missing."""

    def __init__(self, log: list[str] | None = None, name: str = "") -> None:
        self.leaderless: set[int] = set()
        self.failures: dict[TopicPartition, ClientError] = {}
        self.ends = {T0: 10, T1: 10, T2: 10}
        self.asked: list[set[TopicPartition]] = []
        self.log = [] if log is None else log
        self.name = name

    def describe(self, topics: Collection[str]) -> dict[str, TopicView]:
        return dict.fromkeys(topics, TopicView(None, 3, frozenset(self.leaderless)))

    def list_offsets_or_failures(
        self, wanted: Mapping[TopicPartition, int], timeout_s: float
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, ClientError]]:
        self.asked.append(set(wanted))
        self.log.append(f"{self.name} {'latest' if LATEST in wanted.values() else 'earliest'}")
        failures = {item: NO_LEADER for item in wanted if item.partition in self.leaderless}
        failures |= {item: self.failures[item] for item in wanted if item in self.failures}
        found = {
            item: self.ends[item] if at == LATEST else 0
            for item, at in wanted.items()
            if item not in failures
        }
        return found, failures

    def fetch(self, *_: Any, **__: Any) -> Iterator[Any]:
        return iter(())


def offsets_of(reader: Leaders) -> ReachableOffsets:
    fake: Any = reader
    return ReachableOffsets(fake)


def test_a_partition_without_a_leader_is_left_out_until_the_metadata_names_one() -> None:
    reader = Leaders()
    offsets = offsets_of(reader)
    reader.leaderless = {1}
    offsets.describe(["t"])
    assert offsets.list([T0, T1, T2], LATEST) == {T0: 10, T2: 10}
    assert offsets.held_back.keys() == {T1}
    # Only the first attempt waits for an election.
    assert offsets.list([T0, T1, T2], LATEST) == {T0: 10, T2: 10}
    assert reader.asked == [{T0, T1, T2}, {T0, T2}]
    reader.leaderless = set()
    offsets.describe(["t"])
    assert offsets.list([T0, T1, T2], LATEST) == {T0: 10, T1: 10, T2: 10}
    assert not offsets.held_back


def test_a_leader_that_does_not_answer_is_asked_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(reachable_partition_offsets, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reader = Leaders()
    offsets = offsets_of(reader)
    reader.failures = {T1: RequestTimeout("silent")}
    offsets.describe(["t"])
    for _ in range(3):
        assert offsets.list([T0, T1], LATEST) == {T0: 10}
    reader.failures = {}
    assert offsets.list([T0, T1], LATEST) == {T0: 10}
    now[0] += reachable_partition_offsets.AGAIN_S
    assert offsets.list([T0, T1], LATEST) == {T0: 10, T1: 10}
    assert reader.asked == [{T0, T1}, {T0}, {T0}, {T0}, {T0, T1}]


def test_no_leader_at_all_is_an_outage_and_a_refusal_is_an_error() -> None:
    reader = Leaders()
    offsets = offsets_of(reader)
    reader.leaderless = {0, 1, 2}
    offsets.describe(["t"])
    for _ in range(2):
        with pytest.raises(BrokerUnreachable, match="t-0 has no leader"):
            offsets.list([T0, T1], LATEST)
        assert offsets.list_some([T0, T1], LATEST) == {}
    assert offsets.list([], LATEST) == {}
    refusing = Leaders()
    refusing.failures = {T1: AuthenticationFailed("no")}
    with pytest.raises(AuthenticationFailed):
        offsets_of(refusing).list([T0, T1], LATEST)


# -- the same offsets


def clusters_of(source: Leaders, target: Leaders) -> Any:
    clusters: Any = object.__new__(MirroredClusters)
    clusters._names, clusters._compacted, clusters._next_sync_s = {"t": "t"}, set(), float("inf")
    clusters._options = Mock(topics_interval_s=10.0)
    clusters._topics = Mock()
    clusters._topics.run.return_value = SimpleNamespace(mirrored={"t": "t"}, compacted=set())
    clusters._source, clusters._target = offsets_of(source), offsets_of(target)
    clusters._shorter = ShorterSources(clusters._source.reader)
    clusters._target_admin = Mock()
    return clusters


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_mirror_goes_on_with_the_partitions_that_have_leaders(side: str) -> None:
    source, target = Leaders(), Leaders()
    (source if side == "source" else target).leaderless = {1}
    view = clusters_of(source, target).view(StreamPosition({}))
    assert view.source.latest == {T0: 10, T2: 10}
    assert {item for item in view.target.latest if item in view.source.latest} == {T0, T2}


def test_the_ends_of_the_target_are_read_before_those_of_the_source() -> None:
    """Otherwise a mirror could be longer than its source, which has lost nothing."""
    log: list[str] = []
    clusters_of(Leaders(log, "source"), Leaders(log, "target")).view(StreamPosition({}))
    assert log.index("target latest") < log.index("source latest")


# -- a source that is shorter


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(source_truncation, "time", SimpleNamespace(monotonic=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def log_ends(reader: Any, ends: Mapping[TopicPartition, int]) -> Any:
    reader.leader_log_ends = lambda _items, _timeout_s: LeaderLogEnds(dict(ends), {})
    return reader


def test_a_high_watermark_that_a_new_leader_has_not_moved_yet_is_no_loss(clock: Clock) -> None:
    shorter = ShorterSources(log_ends(Mock(), {T0: 10}))
    for _ in range(100):
        assert shorter.lost({T0: 10}) == set()
        clock.now_s += 10


@pytest.mark.parametrize(
    ("ends", "patience_s"),
    [({T0: 9}, source_truncation.SHORTER_S), ({}, source_truncation.SHORTER_WITHOUT_LOG_END_S)],
)
def test_a_log_that_stays_shorter_has_lost_records(
    clock: Clock, ends: dict[TopicPartition, int], patience_s: float
) -> None:
    assert patience_s > 18, "the session of a deposed leader"
    shorter = ShorterSources(log_ends(Mock(), ends))
    assert shorter.lost({T0: 10}) == set()
    clock.now_s += patience_s - 1
    assert shorter.lost({T0: 10, T1: 5}) == set()
    clock.now_s += 1
    assert shorter.lost({T0: 10, T1: 5}) == {T0}
    # It was not shorter meanwhile.
    assert shorter.lost({}) == set()
    assert shorter.lost({T0: 10}) == set()


def test_a_leader_that_does_not_answer_for_a_while_delays_the_finding_of_a_loss_by_no_more(
    clock: Clock,
) -> None:
    known: dict[TopicPartition, int] = {}
    shorter = ShorterSources(log_ends(Mock(), known))
    begun_s = clock.now_s
    while clock.now_s < begun_s + source_truncation.SHORTER_S:
        assert shorter.lost({T0: 10}) == set()
        clock.now_s += 1
    assert shorter.lost({T0: 10}) == set()
    known[T0] = 9
    clock.now_s += 1
    assert shorter.lost({T0: 10}) == {T0}


def test_a_mirror_waits_for_a_source_that_may_not_be_shorter_and_copies_the_others(clock: Clock) -> None:
    source, target = Leaders(), Leaders()
    source.ends, target.ends = {T0: 7, T1: 20, T2: 5}, {T0: 10, T1: 10, T2: 5}
    clusters = clusters_of(log_ends(source, {T0: 7}), target)
    view = clusters.view(StreamPosition({}))
    assert [(one.partition, one.end) for one in copy_source.ranges_behind(view, view.source.latest)] == [
        (1, 20)
    ]
    clock.now_s += source_truncation.SHORTER_S
    with pytest.raises(DataLoss, match="the mirror t-0 ends at 10, and its source t-0 at 7"):
        clusters.view(StreamPosition({}))


def test_the_log_end_of_a_leader_is_above_its_high_watermark() -> None:
    with Cluster(2) as cluster, RangeReader(cluster.bootstrap) as reader:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", 2, 2)
        cluster.wait_in_sync("t")
        (follower,) = cluster.followers("t", 1)
        follower.pause()
        try:
            with Producer(cluster.leader("t", 1).bootstrap, acks=1, enable_idempotence=False) as producer:
                producer.send("t", b"x", partition=1).result(20)
            reader.describe(["t"])
            assert reader.list_offsets({T1: LATEST}) == {T1: 0}
            found = reader.leader_log_ends([T1, T2], 10.0)
            assert (found.offsets, found.failures.keys()) == ({T1: 1}, {T2})
        finally:
            follower.resume()


# -- ordinary records


def test_what_the_target_cannot_store_is_not_read() -> None:
    names = {"t": "east.t"}
    sources = {"t": TopicView(None, 3)}
    mirror = TopicPartition("east.t", 1)
    same = waiting_for_target(sources, names, {"east.t": TopicView(None, 3, frozenset({1}))})
    assert same == {T1: mirror}
    spread = waiting_for_target(sources, names, {"east.t": TopicView(None, 5, frozenset({1, 4}))})
    assert spread == dict.fromkeys([T0, T1, T2], mirror)
    assert waiting_for_target(sources, names, {"east.t": TopicView(None, 3)}) == {}
    assert waiting_for_target(sources, names, {}) == {}


def record_clusters_of(source: Leaders, target: Leaders) -> Any:
    clusters: Any = object.__new__(RecordClusters)
    clusters._names, clusters._next_sync_s, clusters._partitions = {"t": "t"}, float("inf"), {"t": 3}
    clusters._source, clusters._target = offsets_of(source), target
    return clusters


@pytest.mark.parametrize("side", ["source", "target"])
def test_records_of_the_partitions_that_have_leaders_are_read(side: str) -> None:
    source, target = Leaders(), Leaders()
    (source if side == "source" else target).leaderless = {1}
    clusters = record_clusters_of(source, target)
    assert clusters.view().latest == {T0: 10, T2: 10}
    assert clusters.view({"t"}, {T0}).latest == {T0: 10, T2: 10}
    if side == "source":
        # A micro-batch whose end is fixed waits for its partitions.
        with pytest.raises(BrokerUnreachable, match="t-1 has no leader"):
            clusters.view({"t"}, {T0, T1})
    else:
        assert clusters.view({"t"}, {T0, T1}).latest == {T0: 10, T1: 10, T2: 10}


# -- lag and metrics


def test_the_lag_of_a_partition_that_is_held_back_grows_or_stays() -> None:
    source, target = Leaders(), Leaders()
    here, there = offsets_of(source), offsets_of(target)
    target.ends = {T0: 10, T1: 4, T2: 10}
    before = measure_lag(here, there, {"t": "t"})
    assert (before.messages, before.held_back) == ({T0: 0, T1: 6, T2: 0}, {})
    target.leaderless, source.leaderless = {1}, {2}
    source.ends = {T0: 10, T1: 30, T2: 10}
    after = measure_lag(here, there, {"t": "t"}, before)
    assert after.messages == {T0: 0, T1: 26, T2: 0}
    assert after.ends == target.ends
    assert after.held_back.keys() == {T1, T2}
    assert after.held_back[T1].startswith("in the target, t-1 has no leader")
    assert after.held_back[T2].startswith("at the source, t-2 has no leader")
    target.leaderless = source.leaderless = set()
    assert measure_lag(here, there, {"t": "t"}, after).held_back == {}
    source.ends = {T0: 8, T1: 30, T2: 10}
    (reason,) = measure_lag(here, there, {"t": "t"}, after).held_back.values()
    assert "the source reports the end 8 of t-0, and 10 is copied" in reason


def test_the_lag_of_records_is_measured_without_a_leader() -> None:
    source = Leaders()
    offsets = offsets_of(source)
    before = measure_record_lag(offsets, ["t"], {T0: 10, T1: 4})
    assert before.messages == {T0: 0, T1: 6, T2: 10}
    source.leaderless = {1, 2}
    after = measure_record_lag(offsets, ["t"], {T0: 10, T1: 4}, before)
    assert after.messages[T1] == 6
    assert after.held_back.keys() == {T1, T2}


def test_metrics_name_the_partitions_that_are_held_back() -> None:
    metrics = MirrorMetrics()

    def held_back(partition: int) -> float | None:
        labels = {"source": "east", "topic": "t", "partition": str(partition)}
        return metrics.registry.get_sample_value("tidemill_mirror_held_back", labels)

    metrics.note_lag("east", MirrorLag({T0: 0}, {}, {}, {T1: "no leader"}))
    assert (held_back(0), held_back(1)) == (None, 1.0)
    metrics.note_lag("east", MirrorLag({T0: 0}, {}, {}))
    assert held_back(1) is None


# -- two clusters


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Cluster, Broker]]:
    """A source of two brokers, and a target of one."""
    with Cluster(2) as source, Broker() as target:
        yield source, target


@pytest.mark.timeout(300)
def test_a_source_without_one_of_its_brokers_is_mirrored_on(pair: tuple[Cluster, Broker]) -> None:
    source, target = pair
    with Admin(source.bootstrap) as admin:
        admin.create_topic("t", 4, 1)
        led = {one.partition: one.leader for one in admin.describe_topic("t").partitions}
    with Producer(source.bootstrap) as producer:
        for number in led:
            producer.send("t", b"x", partition=number).result(20)
    gone = led[0]
    source[gone].kill()
    here, there = (
        {"bootstrap.servers": address, "default.api.timeout.ms": "20000"}
        for address in (source[led[1] if led[1] != gone else 3 - gone].bootstrap, target.bootstrap)
    )
    left = {TopicPartition("t", number) for number, leader in led.items() if leader != gone}
    assert left
    options = CopyOptions(here, there, TopicFilter("t"), TargetNames())
    clusters = MirroredClusters(options)
    try:
        view = clusters.view(StreamPosition({}))
        while not view.target.latest:  # a mirror is being created
            view = clusters.view(StreamPosition({}))
        assert view.source.latest == dict.fromkeys(left, 1)
        began_s = time.process_time(), time.monotonic()
        for _ in range(20):
            assert clusters.view(StreamPosition({})).source.latest == dict.fromkeys(left, 1)
        # The first attempt has waited; the next ones wait for no leader.
        assert time.monotonic() - began_s[1] < 20 * reachable_partition_offsets.PATIENCE_S
    finally:
        clusters.close()
    records = RecordClusters(RecordOptions(options))
    try:
        found: ClusterView = records.view()
        assert found.latest == dict.fromkeys(left, 1)
        assert found.topic_ids.keys() == {"t"}
    finally:
        records.close()
    with RangeReader(None, here) as reader:
        offsets = ReachableOffsets(reader)
        offsets.describe(["t"])
        assert offsets.list([TopicPartition("t", number) for number in led], EARLIEST).keys() == left
        assert offsets.held_back.keys() == {TopicPartition("t", number) for number in led} - left
