"""What a mirror copies: topics, names, ranges and positions of groups, decided without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest

from record_builders import build_batch
from tidemill.client.errors import ClientError, DataLoss
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import ClusterView
from tidemill.pipeline.mirror.cluster_observer import ClusterObserver
from tidemill.pipeline.mirror.copy_options import CopyOptions, parse_copy_options
from tidemill.pipeline.mirror.copy_planning import (
    CopyTask,
    MirrorPosition,
    MirrorView,
    copied_beyond_source,
    log_starts_behind,
    longer_than_source,
    next_position,
    parse_mirror_position,
    ranges_behind,
    replaced_topics,
    tasks_of,
)
from tidemill.pipeline.mirror.copy_source import MirroredClusters
from tidemill.pipeline.mirror.group_sync import plan_positions, same_positions
from tidemill.pipeline.mirror.mirror_lag import MirrorLag, MirrorMetrics
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.range_copy import CopyRange, count_batches
from tidemill.pipeline.mirror.target_names import ClaimedNames, TargetNames, prefixed_names
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.mirror.topic_sync import (
    TargetSettings,
    TopicChanges,
    TopicState,
    TopicSync,
    plan_topics,
)
from tidemill.pipeline.stream_offsets import BadPosition, StreamPosition, TopicPosition

SETTINGS = TargetSettings(frozenset(), -1, 3, same_offsets=True)
MIRROR = {"tidemill.mirror.state": "active"}
ID, OTHER_ID = bytes(range(16)), bytes(16 * [7])


# -- topics


@pytest.mark.parametrize(
    ("allow", "matching", "other"),
    [
        ("*", ["a", "a.b", "A_1-x"], []),
        ("orders", ["orders"], ["orders2", "my-orders", ""]),
        ("orders,payments", ["orders", "payments"], ["orders,payments"]),
        ("orders|payments-.*", ["orders", "payments-eu"], ["payments"]),
        ("' orders , payments '", ["orders", "payments"], []),
        ('"a|b"', ["a", "b"], ["ab"]),
        ("*-log,metrics", ["web-log", "metrics"], ["log"]),
        ("t[0-9]{1,3}", ["t1", "t123"], ["t1234"]),
        ("(*-log|x)", ["web-log", "x"], ["y"]),
    ],
)
def test_an_allow_list_has_the_syntax_of_mirrormaker(
    allow: str, matching: list[str], other: list[str]
) -> None:
    wanted = TopicFilter(allow)
    assert [name for name in (*matching, *other) if wanted.matches(name)] == matching


def test_a_deny_list_leaves_topics_out() -> None:
    wanted = TopicFilter("*", "secret-.*,*-tmp")
    assert [name for name in ("a", "secret-a", "a-tmp", "tmp") if wanted.matches(name)] == ["a", "tmp"]


@pytest.mark.parametrize("text", ["", "   ", "''", "a(b", "[", "a{2"])
def test_an_invalid_list_is_refused_with_its_text(text: str) -> None:
    if text == "a{2":  # a literal brace in Python's expressions
        TopicFilter(text).check()
        return
    with pytest.raises(ConfigError, match="name topics"):
        TopicFilter(text).check()


def test_names_are_the_same_or_prefixed() -> None:
    assert TargetNames().target_of("t") == "t"
    assert not TargetNames().is_loop("west.t")
    names = prefixed_names("east", "west")
    assert names.target_of("t") == "east.t"
    assert [name for name in ("t", "west.t", "north.west.t", "west", "north.t") if names.is_loop(name)] == [
        "west.t",
        "north.west.t",
    ]


def test_a_mirror_has_one_source() -> None:
    claimed = ClaimedNames()
    claimed.claim("east", ["t", "u"])
    claimed.claim("north", ["v"])
    claimed.claim("east", ["t"])
    with pytest.raises(ConfigError, match="the sources north and east both have t, and a mirror"):
        claimed.claim("north", ["t", "v"])


def test_a_topic_that_is_created_later_in_a_second_source_of_its_mirror_is_refused() -> None:
    east, north, west = (MirrorSource(alias, {"bootstrap.servers": "a:1"}) for alias in "enw")
    job = MirrorJob(sources=[east, north], target=west, checkpoint="x")
    claimed = ClaimedNames()
    observers: list[Any] = [ClusterObserver(job, source, claimed=claimed) for source in job.sources]
    for observer in observers:
        observer._topics = Mock()
        observer._topics.existing.return_value = ({"t": "t"}, {})
        observer._marks = Mock()
    observers[0]._compare_topics()
    with pytest.raises(ConfigError):
        observers[1]._compare_topics()


def plan(
    source: Mapping[str, TopicState], target: Mapping[str, TopicState] | None = None, **more: Any
) -> TopicChanges:
    names = more.pop("names", TargetNames())
    wanted = more.pop("wanted", TopicFilter())
    return plan_topics(source, target or {}, wanted, names, SETTINGS._replace(**more))


def test_a_missing_topic_is_created_as_at_the_source() -> None:
    source = {
        "t": TopicState(
            6,
            5,
            {
                "retention.ms": "7",
                "min.insync.replicas": "4",
                "leader.replication.throttled.replicas": "*",
                "tidemill.mirror.state": "active",
            },
        )
    }
    changes = plan(source)
    assert changes.mirrored == {"t": "t"}
    created = changes.created["t"]
    assert (created.partitions, created.replication_factor) == (6, 3)
    # Four in-sync replicas of three would refuse all batches.
    assert created.configs == {"retention.ms": "7", "min.insync.replicas": "3", **MIRROR}
    assert plan(source, replication_factor=2).created["t"].replication_factor == 2
    ordinary = plan(source, same_offsets=False).created["t"]
    assert "tidemill.mirror.state" not in (ordinary.configs or {})


def test_settings_that_the_target_does_not_know_are_left_out() -> None:
    source = {"t": TopicState(1, 1, {"retention.ms": "7", "new.setting": "1"})}
    assert plan(source, keys=frozenset({"retention.ms"})).created["t"].configs == {
        "retention.ms": "7",
        **MIRROR,
    }


def test_a_mirror_grows_and_gets_the_settings_of_its_source() -> None:
    source = {"t": TopicState(4, 1, {"retention.ms": "7"})}
    target = {"t": TopicState(3, 1, {"retention.ms": "8", "segment.bytes": "99", **MIRROR})}
    changes = plan(source, target)
    assert changes.grown == {"t": 4}
    assert changes.configured == {"t": {"retention.ms": "7", "segment.bytes": None}}
    assert not changes.created
    same = plan(source, {"t": TopicState(4, 1, {"retention.ms": "7", **MIRROR})})
    assert (same.grown, same.configured) == ({}, {})


def test_a_topic_that_is_no_mirror_is_refused() -> None:
    source = {"t": TopicState(1, 1, {})}
    ordinary = plan(source, {"t": TopicState(1, 1, {})})
    assert ordinary.mirrored == {}
    assert "is not a mirror" in ordinary.refused["t"]
    promoting = plan(source, {"t": TopicState(1, 1, {"tidemill.mirror.state": "promoting"})})
    assert "promoting" in promoting.refused["t"]
    assert plan(source, {"t": TopicState(1, 1, {})}, same_offsets=False).mirrored == {"t": "t"}


def test_loops_and_names_that_are_too_long_are_refused() -> None:
    long = "x" * 249
    source = {name: TopicState(1, 1, {}) for name in ("west.t", "t", long)}
    changes = plan(source, names=prefixed_names("east", "west"))
    assert changes.mirrored == {"t": "east.t"}
    assert "would be a loop" in changes.refused["west.t"]
    assert "at most 249" in changes.refused[long]


# -- ranges


def item(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def view(
    source: Mapping[int, tuple[int, int]], target: Mapping[int, tuple[int, int]], topic_id: bytes | None = ID
) -> MirrorView:
    """Both clusters with log start and log end of each partition of the topic t."""

    def cluster(parts: Mapping[int, tuple[int, int]], ids: dict[str, bytes | None]) -> ClusterView:
        return ClusterView(
            ids,
            {item(n): part[0] for n, part in parts.items()},
            {item(n): part[1] for n, part in parts.items()},
        )

    return MirrorView({"t": "east.t"}, (), cluster(source, {"t": topic_id}), cluster(target, {}))


def test_ranges_begin_at_the_log_ends_of_the_target() -> None:
    seen = view({0: (0, 10), 1: (0, 5), 2: (0, 7)}, {0: (0, 4), 1: (0, 5)})
    assert ranges_behind(seen, seen.source.latest) == [CopyRange("t", "east.t", 0, 10, ID)]


def test_the_position_changes_with_each_batch_and_not_without_lag() -> None:
    start = MirrorPosition(0, StreamPosition({}))
    seen = view({0: (0, 10)}, {0: (0, 4)})
    first = next_position(start, seen, seen.source.latest)
    assert first == MirrorPosition(1, StreamPosition({"t": TopicPosition(ID, {0: 10})}))
    # A copy that was cut short continues, although the source has nothing new.
    again = next_position(first, view({0: (0, 10)}, {0: (0, 7)}), {item(0): 10})
    assert again == MirrorPosition(2, first.source)
    assert next_position(again, view({0: (0, 10)}, {0: (0, 10)}), {item(0): 10}) is again
    assert parse_mirror_position(again.to_json()) == again


def test_a_topic_that_the_source_has_no_longer_keeps_its_place() -> None:
    before = MirrorPosition(3, StreamPosition({"gone": TopicPosition(OTHER_ID, {0: 5})}))
    seen = view({0: (0, 10)}, {0: (0, 4)})
    after = next_position(before, seen, seen.source.latest)
    assert after.source.topics["gone"] == TopicPosition(OTHER_ID, {0: 5})


@pytest.mark.parametrize(
    "table", [{}, {"batch": 1}, {"batch": "x", "source": {}}, {"topics": {}, "version": 1}]
)
def test_a_checkpoint_of_another_query_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(BadPosition, match="checkpoint"):
        parse_mirror_position(table)


def test_a_recreated_topic_stops_the_mirror() -> None:
    known = StreamPosition({"t": TopicPosition(OTHER_ID, {0: 5})})
    (problem,) = replaced_topics(known, view({0: (0, 10)}, {0: (0, 5)}))
    assert "deleted and recreated" in problem
    assert "east.t" in problem
    assert not replaced_topics(known, view({0: (0, 10)}, {0: (0, 5)}, topic_id=None))
    assert not replaced_topics(StreamPosition({}), view({0: (0, 10)}, {0: (0, 5)}))


def test_a_source_that_is_shorter_than_its_mirror_is_an_error() -> None:
    seen = view({0: (0, 10), 1: (0, 3)}, {0: (0, 10), 1: (0, 4)})
    assert copied_beyond_source(seen) == {item(1): 4}
    (problem,) = longer_than_source(seen, {item(1)})
    assert "east.t-1 ends at 4, and its source t-1 at 3" in problem


def test_log_starts_follow_the_source_and_never_go_back() -> None:
    seen = view({0: (5, 10), 1: (0, 3), 2: (2, 2)}, {0: (0, 10), 1: (1, 3), 2: (0, 0)})
    assert log_starts_behind(seen) == {item(0, "east.t"): 5, item(2, "east.t"): 2}


def test_partitions_are_shared_among_tasks_by_size_and_never_divided() -> None:
    ranges = [CopyRange("t", "t", number, 100) for number in range(5)]
    sizes = dict(zip(ranges, (100, 10, 60, 50, 10), strict=True))
    tasks = tasks_of(ranges, sizes, 2)
    assert sorted(sum(sizes[span] for span in task.ranges) for task in tasks) == [110, 120]
    assert sorted((span for task in tasks for span in task.ranges), key=lambda span: span.partition) == ranges
    assert tasks_of(ranges[:1], sizes, 8) == [CopyTask((ranges[0],))]
    assert tasks_of([], {}, 8) == []


def test_options_survive_the_way_through_spark() -> None:
    options = CopyOptions(
        {"bootstrap.servers": "a:1", "sasl.password": "x=y"},
        {"bootstrap.servers": "b:2"},
        TopicFilter("a,b", "c"),
        prefixed_names("east", "west"),
        replication_factor=3,
        topics_interval_s=0.5,
        tasks_max=7,
    )
    through_spark = {name.lower(): value for name, value in options.to_options().items()}
    assert parse_copy_options(through_spark) == options


ROW = (1_700_000_000_000, b"key", b"value", None)


def test_counts_the_records_of_batches_from_an_offset_on() -> None:
    batches = [build_batch([ROW] * count, base_offset=base) for base, count in ((0, 3), (5, 2), (9, 1))]
    data = b"before" + b"".join(batches) + batches[0][:50]
    counts = count_batches(data, 6, len(data), 0)
    assert (counts.next_offset, counts.records, counts.timestamp_ms) == (10, 6, ROW[0])
    later = count_batches(data, 6, len(data), 6)
    assert (later.next_offset, later.records) == (10, 3)
    assert count_batches(data, 6, 6 + 20, 4).next_offset == 4


# -- positions of groups


def offsets(**numbers: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions by partition: ``p0=5``."""
    return {item(int(name[1:])): OffsetAndMetadata(offset, 3, "m") for name, offset in numbers.items()}


def test_positions_are_copied_with_their_metadata_once_their_records_are_there() -> None:
    changes = plan_positions(offsets(p0=5, p1=9), {}, {}, {item(0): 5, item(1): 8})
    assert changes.commits == {item(0): OffsetAndMetadata(5, -1, "m")}
    assert changes.waiting == {item(1): 9}


def test_positions_in_unknown_partitions_are_left_out() -> None:
    assert plan_positions(offsets(p0=5), {}, {}, {}).commits == {}


def test_a_position_goes_back_with_its_source_if_the_mirror_has_written_it() -> None:
    ends = {item(0): 100}
    back = plan_positions(offsets(p0=5), offsets(p0=50), {item(0): (50,)}, ends)
    assert back.commits == {item(0): OffsetAndMetadata(5, -1, "m")}
    moved = plan_positions(offsets(p0=5), offsets(p0=50), {item(0): (40,)}, ends)
    assert (moved.commits, moved.ahead) == ({}, {item(0): 50})
    assert plan_positions(offsets(p0=60), offsets(p0=50), {}, ends).commits[item(0)].offset == 60
    assert plan_positions(offsets(p0=50), offsets(p0=50), {}, ends).commits == {}


def test_the_same_positions_have_the_names_of_the_target() -> None:
    positions = {**offsets(p0=5), TopicPartition("other", 0): OffsetAndMetadata(1)}
    assert same_positions({"t": "east.t"})(positions) == {item(0, "east.t"): OffsetAndMetadata(5, 3, "m")}


# -- what the job says


def test_a_topic_that_the_target_cannot_create_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = Mock()
    target.create_topics.return_value = {"t": ClientError("too many", ErrorCode.INVALID_REPLICATION_FACTOR)}
    sync = TopicSync(Mock(), target, TopicFilter(), TargetNames())
    monkeypatch.setattr(sync, "_plan", lambda: plan({"t": TopicState(1, 1, {})}))
    for _ in range(3):
        assert sync.run().refused == {"t": "too many"}
    assert [record.message for record in caplog.records] == ["topic t is not mirrored: too many"]


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, False),
        (ErrorCode.POLICY_VIOLATION, False),  # the mirror is promoted
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, True),
    ],
)
def test_a_mirror_that_is_promoted_keeps_its_log_start(code: ErrorCode, ends: bool) -> None:
    clusters: Any = object.__new__(MirroredClusters)
    clusters._target_admin = Mock()
    clusters._target_admin.delete_records.side_effect = ClientError("no", code)
    with pytest.raises(ClientError) if ends else nullcontext():
        clusters._move_log_starts({item(0): 5})


@pytest.mark.parametrize("promoted", [True, False])
def test_a_mirror_that_is_promoted_may_be_longer_than_its_source(promoted: bool) -> None:
    clusters: Any = object.__new__(MirroredClusters)
    clusters._names, clusters._compacted, clusters._next_sync_s = {"t": "t"}, set(), float("inf")
    clusters._options = Mock(topics_interval_s=10.0)
    clusters._shorter = Mock(lost=set)
    state = {"tidemill.mirror.state": "promoting"} if promoted else MIRROR
    clusters._topics = Mock(run=lambda: plan({"t": TopicState(1, 1, {})}, {"t": TopicState(1, 1, state)}))
    longer, without = view({0: (0, 9)}, {0: (0, 10)}), view({}, {})
    clusters._read = lambda: longer if clusters._names else without
    with nullcontext() if promoted else pytest.raises(DataLoss):
        assert clusters.view(StreamPosition({})) is without


def test_metrics_have_the_partitions_that_are_mirrored_now() -> None:
    metrics = MirrorMetrics()

    def values(name: str) -> dict[str, float]:
        return {
            sample.labels["partition"]: sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.labels["source"] == "east"
        }

    metrics.note_lag("west", MirrorLag({item(9): 1}, {item(9): 1.0}, {}))
    metrics.note_lag("east", MirrorLag({item(0): 0, item(1): 7}, {item(1): 3.0}, {}))
    assert values("tidemill_mirror_lag_seconds") == {"0": 0.0, "1": 3.0}
    # The age of the first is unknown, and no 0; the second one was deleted.
    metrics.note_lag("east", MirrorLag({item(0): 4}, {}, {}))
    assert values("tidemill_mirror_lag_messages") == {"0": 4}
    assert values("tidemill_mirror_lag_seconds") == {}
    metrics.note_lag("east", MirrorLag({item(0): 0}, {}, {}))
    assert values("tidemill_mirror_lag_seconds") == {"0": 0.0}
