"""Mirrors in a circle are refused, over any number of clusters, and chains and failovers are not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tidemill.client import Admin
from tidemill.client.errors import BrokerUnreachable, ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.offsets_of_groups import OffsetsOfGroups
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror import cluster_observer, mirror_loop_detection, topic_sync
from tidemill.pipeline.mirror.mirror_loop_detection import MARK_S, KnownMarks, TopicMarks, marked_topics
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.target_names import TargetNames, prefixed_names
from tidemill.pipeline.mirror.topic_filter import ALL_NAMES, TopicFilter
from tidemill.pipeline.mirror.topic_sync import TargetSettings, TopicState
from tidemill.testing.broker import Broker

T0 = TopicPartition("t", 0)
SAME = {"t": "t"}


class Cluster:
    """An admin client of a cluster with committed offsets."""

    def __init__(self, cluster_id: str | None, failure: ClientError | None = None) -> None:
        self.cluster_id = cluster_id
        self.failure = failure
        self.committed: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.calls: list[str] = []

    def describe_cluster(self) -> Cluster:
        return self

    def list_groups(self, timeout: float | None = None) -> list[Any]:
        self._call("list groups")
        return [Mock(group_id=group) for group in ("g", *self.committed)]

    def alter_group_offsets(
        self, group: str, offsets: dict[TopicPartition, OffsetAndMetadata], timeout: float | None = None
    ) -> None:
        self._call("commit")
        self.committed.setdefault(group, {}).update(offsets)

    def group_offsets(
        self, group: str, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._call("read")
        return self.committed.get(group, {})

    def offsets_of_groups(
        self, wanted: Mapping[str, Iterable[TopicPartition] | None], timeout: float | None = None
    ) -> OffsetsOfGroups:
        self.calls.append(f"read {len(wanted)}")
        if self.failure is not None:
            return OffsetsOfGroups({}, dict.fromkeys(wanted, self.failure))
        found = {
            group: {
                item: mark
                for item, mark in self.committed.get(group, {}).items()
                if some is None or item in some
            }
            for group, some in wanted.items()
        }
        return OffsetsOfGroups(found, {})

    def alter_offsets_of_groups(
        self, offsets: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]], timeout: float | None = None
    ) -> dict[str, ClientError]:
        written = {group: some for group, some in offsets.items() if some}
        self.calls.append(f"commit {len(written)}")
        if self.failure is not None:
            return dict.fromkeys(written, self.failure)
        for group, some in written.items():
            self.committed.setdefault(group, {}).update(some)
        return {}

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure

    def mark_of(self, origin: str, topic: str = "t") -> float:
        """Returns the time of a mark, in seconds."""
        return int(self.committed[f"tidemill-mirror.{origin}"][TopicPartition(topic, 0)].metadata) / 1000


def commit(source: Any, target: Any, names: Mapping[str, str], now_s: float) -> None:
    TopicMarks(source, target).commit(names, now_s=now_s)


def clusters(*names: str) -> list[Any]:
    return [Cluster(name) for name in names]


# -- marks


def test_a_mirror_finds_the_topics_that_another_one_copies_from_its_target() -> None:
    here, there, other = clusters("here", "there", "other")
    commit(here, there, {"t": "t", "u": "u"}, 1_000.0)
    commit(here, there, {"u": "u"}, 1_060.0)
    assert marked_topics(there, here, now_s=1_060.0) == {"t", "u"}
    assert marked_topics(there, here, now_s=1_130.0) == {"u"}
    assert marked_topics(there, here, now_s=1_200.0) == set()
    assert marked_topics(here, there, now_s=1_060.0) == set()
    assert marked_topics(there, other, now_s=1_060.0) == set()


def test_marks_are_passed_on_with_the_time_of_their_origin() -> None:
    a, b, c, d = clusters("a", "b", "c", "d")
    commit(a, b, {"t": "t", "u": "u"}, 1_000.0)
    commit(b, c, {"t": "a.t", "v": "v"}, 1_015.0)
    commit(c, d, {"a.t": "t"}, 1_030.0)
    assert [d.mark_of("a"), d.mark_of("b"), d.mark_of("c")] == [1_000.0, 1_015.0, 1_030.0]
    assert c.committed["tidemill-mirror.a"].keys() == {TopicPartition("a.t", 0)}
    assert marked_topics(d, a, now_s=1_000.0 + MARK_S) == {"t"}
    assert marked_topics(d, a, now_s=1_001.0 + MARK_S) == set()
    assert marked_topics(d, b, now_s=1_001.0 + MARK_S) == {"t"}


def test_a_cluster_without_an_id_passes_marks_on() -> None:
    a, c = clusters("a", "c")
    b: Any = Cluster(None)
    commit(a, b, SAME, 1_000.0)
    commit(b, c, SAME, 1_010.0)
    assert c.committed.keys() == {"tidemill-mirror.a"}
    assert marked_topics(c, b, now_s=1_010.0) == set()


def test_no_circle_renews_a_mark() -> None:
    circle = clusters("a", "b", "c")
    commit(circle[0], circle[1], SAME, 1_000.0)
    # The first mirror has ended, and all three go on passing on what they find.
    for step in range(40):
        now_s = 1_010.0 + 10 * step
        for number in (1, 2):
            commit(circle[number], circle[(number + 1) % 3], SAME, now_s)
        TopicMarks(circle[0], circle[1])._pass_on(SAME, ids("a", "b"), now_s)
    assert [circle[1].mark_of("a"), circle[2].mark_of("a")] == [1_000.0, 1_000.0]
    assert "tidemill-mirror.a" not in circle[0].committed
    assert marked_topics(circle[2], circle[0], now_s=1_010.0 + MARK_S) == set()


def ids(source: str, target: str) -> Any:
    return mirror_loop_detection.ClusterIds(source, target)


def test_an_older_mark_of_a_longer_way_replaces_no_later_one() -> None:
    a, b, c = clusters("a", "b", "c")
    commit(a, b, SAME, 1_000.0)
    commit(a, c, SAME, 1_050.0)
    commit(b, c, SAME, 1_060.0)
    assert c.mark_of("a") == 1_050.0
    commit(a, b, SAME, 1_070.0)
    commit(b, c, SAME, 1_080.0)
    assert c.mark_of("a") == 1_070.0


def test_marks_need_few_requests() -> None:
    a, b, c = clusters("a", "b", "c")
    marks: Any = TopicMarks(a, b)
    for _ in range(3):
        marks.commit(SAME)
    assert (a.calls, b.calls) == (["list groups"] * 3, ["commit"] * 3)
    a.calls, b.calls = [], []
    TopicMarks(b, c).commit(SAME)
    assert (b.calls, c.calls) == (["list groups", "read 1"], ["commit", "read 1", "commit 1"])
    # Marks of topics that are not mirrored are not passed on.
    d = Cluster("d")
    TopicMarks(b, d).commit({"u": "u"})  # type: ignore[arg-type]
    assert d.calls == ["commit"]


def test_other_metadata_is_no_mark() -> None:
    here, there, other = clusters("here", "there", "other")
    there.committed["tidemill-mirror.here"] = {T0: OffsetAndMetadata(3, -1, "note")}
    assert marked_topics(there, here) == set()
    commit(there, other, SAME, 1_000.0)
    assert other.committed.keys() == {"tidemill-mirror.there"}


def test_marks_that_are_not_allowed_do_not_stop_a_mirror_but_an_outage_waits() -> None:
    here: Any = Cluster("here")
    refusing: Any = Cluster("there", ClientError("no", ErrorCode.GROUP_AUTHORIZATION_FAILED))
    commit(here, refusing, SAME, 1_000.0)
    assert marked_topics(refusing, here) == set()
    alone: Any = Cluster("there", ClientError("no", ErrorCode.COORDINATOR_NOT_AVAILABLE))
    commit(here, alone, SAME, 1_000.0)
    assert marked_topics(alone, here) == set()
    cut: Any = Cluster("there", BrokerUnreachable("cut"))
    with pytest.raises(BrokerUnreachable):
        commit(here, cut, SAME, 1_000.0)
    with pytest.raises(BrokerUnreachable):
        marked_topics(cut, here)


@pytest.mark.parametrize("code", [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_marks_that_cannot_be_passed_on_do_not_stop_a_mirror(code: ErrorCode) -> None:
    a, b, c = clusters("a", "b", "c")
    commit(a, b, SAME, 1_000.0)
    marks = TopicMarks(b, c)
    b.failure = ClientError("no", code)
    marks.commit(SAME, now_s=1_010.0)
    assert c.committed.keys() == {"tidemill-mirror.b"}
    b.failure = None
    marks.commit(SAME, now_s=1_020.0)
    assert c.mark_of("a") == 1_000.0
    # A broker that cannot list groups now does not hide the marks whose coordinators answer.
    commit(a, b, SAME, 1_030.0)
    b.list_groups = Mock(side_effect=BrokerUnreachable("cut"))
    marks.commit(SAME, now_s=1_040.0)
    assert c.mark_of("a") == 1_030.0


def test_marks_are_passed_on_while_the_coordinator_of_the_own_ones_does_not_answer() -> None:
    a, b, c = clusters("a", "b", "c")
    commit(a, b, SAME, 1_000.0)
    c.alter_group_offsets = Mock(side_effect=BrokerUnreachable("cut"))
    with pytest.raises(BrokerUnreachable):
        commit(b, c, SAME, 1_010.0)
    assert c.mark_of("a") == 1_000.0


class Clock:
    """The time of marks, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, monotonic: bool = False) -> None:
        self.now_s = time.time()
        mine = SimpleNamespace(
            monotonic=(lambda: self.now_s) if monotonic else time.monotonic, time=lambda: self.now_s
        )
        monkeypatch.setattr(mirror_loop_detection, "time", mine)


def slow(clock: Clock) -> Mock:
    """A request that waits for its timeout."""

    def wait(*_: Any, **__: Any) -> None:
        clock.now_s += mirror_loop_detection.COORDINATOR_S
        raise BrokerUnreachable("cut")

    return Mock(side_effect=wait)


def test_marks_that_were_read_are_kept_while_their_coordinator_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = clusters("here", "there")
    clock = Clock(monkeypatch, monotonic=True)
    commit(there, here, SAME, clock.now_s)
    marks = KnownMarks(here, there)
    assert marks.topics() == {"t"}
    here.group_offsets = slow(clock)
    for _ in range(3):
        assert marks.topics() == {"t"}
    assert here.group_offsets.call_count == 1
    clock.now_s += MARK_S
    assert marks.topics() == {"t"}
    assert here.group_offsets.call_count == 2
    with pytest.raises(BrokerUnreachable):
        KnownMarks(here, there).topics()
    assert KnownMarks(here, there, must_wait=False).topics() == set()


def test_a_broker_that_does_not_list_its_groups_is_not_asked_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = clusters("a", "b")
    clock = Clock(monkeypatch, monotonic=True)
    marks = TopicMarks(a, b)
    a.list_groups = slow(clock)
    for _ in range(3):
        marks.commit(SAME)
    assert a.list_groups.call_count == 1
    clock.now_s += MARK_S / 2
    marks.commit(SAME)
    assert a.list_groups.call_count == 2


@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize("same_offsets", [True, False])
def test_each_kind_of_mirror_marks_its_topics(same_offsets: bool, prefixed: bool) -> None:
    east, west = (MirrorSource(alias, {"bootstrap.servers": "a:1"}) for alias in ("east", "west"))
    job = MirrorJob(sources=[east], target=west, checkpoint="x", prefixed=prefixed, same_offsets=same_offsets)
    observer: Any = cluster_observer.ClusterObserver(job, east, None if same_offsets else Mock())
    observer._topics = Mock(loops={"v"})
    observer._topics.existing.return_value = ({"t": "u"}, {})
    observer._marks = Mock()
    observer._compare_topics()
    assert observer._marks.commit.call_args.args == ({"t": "u"}, {"v"})


@pytest.mark.parametrize("same_offsets", [True, False])
@pytest.mark.parametrize("names", [TargetNames(), prefixed_names("source1", "target")])
def test_marks_are_found_by_each_kind_of_mirror(
    monkeypatch: pytest.MonkeyPatch, names: TargetNames, same_offsets: bool
) -> None:
    state = {"source1.t": TopicState(1, 1, {}), "u": TopicState(1, 1, {})}
    monkeypatch.setattr(topic_sync, "read_topics", lambda _admin, _wanted: state)
    monkeypatch.setattr(topic_sync, "read_topics_named", lambda _admin, _names: {})
    monkeypatch.setattr(
        mirror_loop_detection, "marked_topics", lambda _source, _target, _known: {"source1.t", "gone"}
    )
    sync: Any = topic_sync.TopicSync(Mock(), Mock(), ALL_NAMES, names, same_offsets=same_offsets)
    sync._settings = lambda: TargetSettings(frozenset(), -1, 3, same_offsets)
    _, refused = sync.existing()
    assert refused.keys() == {"source1.t"}
    assert "again and again" in refused["source1.t"]
    assert sync.loops == {"source1.t"}
    assert not sync.selects_none
    state.clear()
    assert sync.existing() == ({}, {})
    assert sync.selects_none


# -- clusters


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """The addresses of three clusters: a, b and c."""
    with ExitStack() as stack:
        yield [stack.enter_context(Broker()).bootstrap for _ in range(3)]


class Mirrors:
    """Mirrors of one topic, without the queries that copy records."""

    def __init__(self, addresses: Sequence[str], folder: Path) -> None:
        self.addresses = dict(zip("abc", addresses, strict=True))
        self.topic = f"loops-{uuid.uuid4().hex[:8]}"
        self._folder = folder
        with Admin(self.addresses["a"]) as admin:
            admin.create_topic(self.topic, 1)

    def started(self, way: str, kind: str = "new") -> Any:
        """Returns the mirror of a way, as ``ab``. ``kind`` is new, same, or prefixed with new offsets."""
        source, target = (MirrorSource(name, {"bootstrap.servers": self.addresses[name]}) for name in way)
        job = MirrorJob(
            sources=[source],
            target=target,
            checkpoint=str(self._folder),
            topics=TopicFilter(f"(.*[.])?{self.topic}"),
            same_offsets=kind == "same",
            prefixed=kind == "prefixed",
            topics_interval_s=0.0,
        )
        return cluster_observer.ClusterObserver(job, source, None if kind == "same" else Mock())


def compare(mirror: Any) -> list[str]:
    """Does what a mirror does whenever it compares topics; returns the topics that it refuses for a loop."""
    mirror._topics.run()
    mirror._compare_topics()
    return sorted(topic for topic, reason in mirror.refused.items() if "again and again" in reason)


CIRCLES = {
    "new offsets": ("new", "new", "new"),
    "the same offsets first": ("same", "new", "new"),
    "the same offsets in the middle": ("new", "same", "new"),
    "a prefix in the middle": ("new", "prefixed", "new"),
    "a prefix at the end": ("new", "new", "prefixed"),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kinds", CIRCLES.values(), ids=CIRCLES.keys())
def test_a_circle_of_three_clusters_is_refused_where_it_would_close(
    addresses: list[str], tmp_path: Path, kinds: Sequence[str]
) -> None:
    mirrors = Mirrors(addresses, tmp_path)
    name = f"b.{mirrors.topic}" if kinds[1] == "prefixed" else mirrors.topic
    with ExitStack() as stack:
        first, second, last = (
            stack.enter_context(closing(mirrors.started(way, kind)))
            for way, kind in zip(("ab", "bc", "ca"), kinds, strict=True)
        )
        assert compare(first) == []
        assert compare(second) == []
        assert compare(last) == [name]
        assert compare(first) == []
        assert compare(second) == []
        assert compare(last) == [name]
        assert last.names == {}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["new", "same"])
def test_a_chain_without_a_circle_is_mirrored(addresses: list[str], tmp_path: Path, kind: str) -> None:
    mirrors = Mirrors(addresses, tmp_path)
    with ExitStack() as stack:
        chain = [stack.enter_context(closing(mirrors.started(way, kind))) for way in ("ab", "bc")]
        if kind == "new":
            # A second way to the same topic is no circle.
            chain.append(stack.enter_context(closing(mirrors.started("ac", kind))))
        for _ in range(3):
            assert [compare(mirror) for mirror in chain] == [[]] * len(chain)
        assert [mirror.names for mirror in chain] == [{mirrors.topic: mirrors.topic}] * len(chain)


@pytest.mark.timeout(120)
def test_after_a_failover_the_topic_is_mirrored_back_over_the_other_cluster(
    addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    mirrors = Mirrors(addresses, tmp_path)
    with ExitStack() as stack:
        first, second, back = (
            stack.enter_context(closing(mirrors.started(way))) for way in ("ab", "bc", "ca")
        )
        compare(first)
        ended_s = clock.now_s
        while clock.now_s < ended_s + MARK_S:
            assert compare(second) == []
            assert compare(back) == [mirrors.topic]
            clock.now_s += 20
        clock.now_s += 1
        assert compare(second) == []
        assert compare(back) == []
        assert back.names == {mirrors.topic: mirrors.topic}
        # The first mirror is the one that would close the circle now.
        assert compare(first) == [mirrors.topic]


@pytest.mark.timeout(120)
def test_of_mirrors_that_begin_a_circle_together_none_continues_until_one_has_ended(
    addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    mirrors = Mirrors(addresses, tmp_path)
    with Admin(mirrors.addresses["b"]) as b, Admin(mirrors.addresses["c"]) as c:
        b.create_topic(mirrors.topic, 1)
        c.create_topic(mirrors.topic, 1)
    with ExitStack() as stack:
        circle = [stack.enter_context(closing(mirrors.started(way))) for way in ("ab", "bc", "ca")]
        for mirror in circle:
            mirror.names = {mirrors.topic: mirrors.topic}
            mirror._marks.commit(mirror.names)
        for mirror in circle[1:]:
            mirror._marks.commit(mirror.names)
        begun_s = clock.now_s
        while clock.now_s <= begun_s + 2 * MARK_S:
            assert [compare(mirror) for mirror in circle] == [[mirrors.topic]] * 3
            clock.now_s += 30
        ended_s = clock.now_s
        while clock.now_s <= ended_s + MARK_S:
            refused = [compare(mirror) for mirror in circle[:2]]
            clock.now_s += 30
        assert refused == [[], []]


@pytest.mark.timeout(120)
def test_a_mirror_whose_marks_have_expired_renews_none_of_them(
    addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    mirrors = Mirrors(addresses, tmp_path)
    with closing(mirrors.started("ab")) as there, closing(mirrors.started("ba")) as back:
        compare(there)
        assert compare(back) == [mirrors.topic]
        clock.now_s += MARK_S + 1
        assert compare(back) == []
        assert compare(there) == [mirrors.topic]
        assert compare(back) == []
