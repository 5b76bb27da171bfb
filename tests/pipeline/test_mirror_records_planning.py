"""What a mirror of ordinary records reads, creates, refuses and repeats, decided without a cluster."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call, patch

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tidemill.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    DataLoss,
    FatalTransactionError,
)
from tidemill.client.range_reader import TopicView
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import ClusterView
from tidemill.pipeline.mirror import (
    cluster_observer,
    cluster_outages,
    record_query,
    record_source,
)
from tidemill.pipeline.mirror.checkpoint_clusters import CLUSTERS_FILE, ClusterIds, refuse_other_clusters
from tidemill.pipeline.mirror.copy_options import CopyOptions
from tidemill.pipeline.mirror.mirror_loop_detection import refuse_same_cluster
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.query_failures import Verdict, verdict_on
from tidemill.pipeline.mirror.record_planning import MirrorDataLoss, changes_of, plan_advance, plan_batch
from tidemill.pipeline.mirror.record_query import RecordQuery
from tidemill.pipeline.mirror.record_source import RecordOptions, parse_record_options
from tidemill.pipeline.mirror.sync_points import NO_POINTS, SyncPoint, SyncPoints, TopicIds, TopicPoints
from tidemill.pipeline.mirror.target_names import TargetNames, prefixed_names
from tidemill.pipeline.mirror.topic_filter import ALL_NAMES, TopicFilter
from tidemill.pipeline.mirror.topic_sync import TargetSettings, TopicState, plan_topics
from tidemill.pipeline.stream_offsets import (
    StreamPosition,
    TopicPosition,
    parse_position,
    position_of,
)

ID, OTHER_ID = bytes(range(16)), bytes(16 * [7])
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def view(
    earliest: dict[TopicPartition, int], latest: dict[TopicPartition, int], topic_id: bytes | None = ID
) -> ClusterView:
    return ClusterView({item.topic: topic_id for item in latest}, earliest, latest)


def position(offsets: dict[TopicPartition, int], topic_id: bytes | None = ID) -> StreamPosition:
    return position_of(offsets, {item.topic: topic_id for item in offsets})


# -- what is read


def test_new_topics_and_partitions_begin_at_their_earliest_record() -> None:
    ahead = plan_advance(position({T0: 5}), view({T0: 0, T1: 30}, {T0: 9, T1: 40}))
    assert (ahead.begin, ahead.end, ahead.absent, list(ahead.losses)) == (
        {T0: 5, T1: 30},
        {T0: 9, T1: 40},
        {},
        [],
    )


def test_a_source_that_ends_before_the_position_is_a_loss() -> None:
    (loss,) = plan_advance(position({T0: 9}), view({T0: 0}, {T0: 5})).losses
    assert "t-0 ends at 5, before the position 9" in loss


def test_a_topic_that_was_deleted_keeps_its_place_and_is_no_loss() -> None:
    before = position({T0: 9, TopicPartition("u", 0): 3})
    there = view({T0: 0}, {T0: 9})
    ahead = plan_advance(before, there)
    assert (ahead.absent, list(ahead.losses)) == ({TopicPartition("u", 0): 3}, [])
    (note,) = changes_of(before, there)
    assert note.startswith("topic u is not at the source any more")


def test_a_recreated_topic_begins_at_its_start_and_is_no_loss() -> None:
    before, there = position({T0: 9}), view({T0: 2}, {T0: 4}, OTHER_ID)
    ahead = plan_advance(before, there)
    assert (ahead.begin, ahead.end, list(ahead.losses)) == ({T0: 2}, {T0: 4}, [])
    (note,) = changes_of(before, there)
    assert "topic t of the source was deleted and recreated" in note


def test_a_batch_has_one_range_for_each_partition() -> None:
    start, end = position({T0: 5}), position({T0: 9, T1: 40})
    ranges, losses = plan_batch(start, end, view({T0: 0, T1: 30}, {T0: 10, T1: 40}))
    assert [(one.partition, one.start, one.end, one.topic_id) for one in ranges] == [
        (0, 5, 9, ID),
        (1, 30, 40, ID),
    ]
    assert losses == []


def test_records_that_were_deleted_before_they_were_read_are_a_loss() -> None:
    ranges, (loss,) = plan_batch(position({T0: 5}), position({T0: 9}), view({T0: 7}, {T0: 10}))
    assert [(one.start, one.end) for one in ranges] == [(7, 9)]
    assert "offsets 5 to 6 of t-0 were deleted" in loss


@pytest.mark.parametrize("there", [ClusterView({}, {}, {}), view({T0: 0}, {T0: 20}, OTHER_ID)])
def test_a_topic_that_was_deleted_after_the_plan_is_left_out(there: ClusterView) -> None:
    assert plan_batch(position({T0: 5}), position({T0: 9}), there) == ([], [])


def test_a_batch_of_a_recreated_topic_begins_at_its_start() -> None:
    ranges, losses = plan_batch(
        position({T0: 5}), position({T0: 9}, OTHER_ID), view({T0: 1}, {T0: 9}, OTHER_ID)
    )
    assert ([(one.start, one.end) for one in ranges], losses) == ([(1, 9)], [])


def test_topics_of_brokers_without_ids_continue() -> None:
    before = StreamPosition({"t": TopicPosition(None, {0: 5})})
    assert plan_advance(before, view({T0: 0}, {T0: 9}, None)).begin == {T0: 5}


def test_options_are_parsed_as_they_were_given() -> None:
    copy = CopyOptions(
        {"bootstrap.servers": "a:1"},
        {"bootstrap.servers": "b:1"},
        TopicFilter("orders.*", "x"),
        prefixed_names("east", "west"),
        2,
        0.5,
        3,
    )
    options = RecordOptions(copy, 77, fail_on_data_loss=False, follows_configs=False)
    given = {name.lower(): value for name, value in options.to_options().items()}
    assert parse_record_options(given) == options
    assert parse_record_options(RecordOptions(copy).to_options()) == RecordOptions(copy)


class Clusters:
    """The clusters of a reader: what planning sees each time, the last one again and again."""

    def __init__(self, *views: ClusterView | ClientError) -> None:
        self.views = list(views)
        self.shorter = Mock(lost=lambda shorter: set(shorter) if len(self.views) == 1 else set())
        """What is shorter in the last view has lost records."""

    def view(self, planned: Collection[str] = (), needed: Collection[TopicPartition] = ()) -> ClusterView:
        self.planned, self.needed = planned, needed
        seen = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(seen, ClientError):
            raise seen
        return seen


def reader_of(monkeypatch: pytest.MonkeyPatch, *views: ClusterView | ClientError, **more: Any) -> Any:
    for module, name in ((record_source, "LOSS_PAUSE_S"), (cluster_outages, "PAUSE_S")):
        monkeypatch.setattr(module, name, 0.0)
    copy = CopyOptions({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, ALL_NAMES, TargetNames())
    schema = StructType([StructField("value", BinaryType())])
    reader: Any = record_source.RecordStreamReader(RecordOptions(copy, **more), schema)
    reader._clusters = Mock(get=Mock(return_value=Clusters(*views)))
    return reader


def test_a_batch_has_a_limit_and_ends_where_the_source_did(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(monkeypatch, view({T0: 0, T1: 0}, {T0: 90, T1: 10}), offsets_max=20)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    ends = [parse_position(start).offsets()]
    for _ in range(7):
        end = reader.latestOffset(start)
        assert len(reader.partitions(start, end)) <= 2
        ends.append(parse_position(end).offsets())
        start = end
        reader._clusters.get().views = [view({T0: 0, T1: 0}, {T0: 500, T1: 500})]
    assert ends[-1] == {T0: 90, T1: 10}
    assert all(sum(after.values()) - sum(before.values()) <= 20 for before, after in pairwise(ends))


def test_an_outage_is_no_new_position_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cut = BrokerUnreachable("cut")
    reader = reader_of(monkeypatch, cut, cut, view({T0: 0}, {T0: 9}), cut, view({T0: 0}, {T0: 9}))
    start = position({T0: 5}).to_json()
    assert reader.latestOffset(start) == start
    assert reader.latestOffset(start) == start
    end = reader.latestOffset(start)
    assert parse_position(end).offsets() == {T0: 9}
    assert [(one.start, one.end) for one in reader.partitions(start, end)] == [(5, 9)]
    assert [record.message for record in caplog.records if record.name == "tidemill.pipeline"] == [
        "the mirror waits: cut",
        "the mirror continues; it waited because: cut",
    ] * 2


def test_an_error_that_stays_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(monkeypatch, ClientError("no", ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ClientError, match="no"):
        reader.latestOffset(position({T0: 5}).to_json())


def test_a_shorter_source_is_a_loss_once_it_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {T0: 0, T1: 0}
    short, whole = view(both, {T0: 5, T1: 3}), view(both, {T0: 9, T1: 5})
    start = position({T0: 9}).to_json()
    # It is not known yet, and the other partition is read.
    reader = reader_of(monkeypatch, short, short, whole, whole)
    after = reader.latestOffset(start)
    assert parse_position(after).offsets() == {T0: 9, T1: 3}
    # A query that ends waits until it is known.
    reader._target = {T0: 9, T1: 5}
    assert parse_position(reader.latestOffset(after)).offsets() == {T0: 9, T1: 5}
    with pytest.raises(MirrorDataLoss, match="t-0 ends at 5, before the position 9"):
        reader_of(monkeypatch, short).latestOffset(start)
    accepting = reader_of(monkeypatch, short, fail_on_data_loss=False)
    assert parse_position(accepting.latestOffset(start)).offsets() == {T0: 5, T1: 3}


def test_records_that_are_deleted_after_the_plan_are_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    start, end = position({T0: 5}).to_json(), position({T0: 9}).to_json()
    there = view({T0: 7}, {T0: 9})
    with pytest.raises(MirrorDataLoss, match="offsets 5 to 6 of t-0 were deleted"):
        reader_of(monkeypatch, there).partitions(start, end)
    (left,) = reader_of(monkeypatch, there, fail_on_data_loss=False).partitions(start, end)
    assert (left.start, left.end) == (7, 9)


@pytest.mark.parametrize(
    "before", [position({}), position({TopicPartition("u", 0): 3}), position({T0: 7}, OTHER_ID)]
)
def test_a_repeated_batch_begins_where_it_was_planned(
    monkeypatch: pytest.MonkeyPatch, before: StreamPosition
) -> None:
    start = before.to_json()
    planned = view({T0: 0, T1: 2}, {T0: 9, T1: 9})
    end = json.loads(json.dumps(reader_of(monkeypatch, planned).latestOffset(start)))
    there = view({T0: 6, T1: 20}, {T0: 9, T1: 20})
    with pytest.raises(MirrorDataLoss) as caught:
        reader_of(monkeypatch, there).partitions(start, end)
    assert "offsets 0 to 5 of t-0 were deleted" in str(caught.value)
    assert "offsets 2 to 8 of t-1 were deleted" in str(caught.value)
    (left,) = reader_of(monkeypatch, there, fail_on_data_loss=False).partitions(start, end)
    assert (left.partition, left.start, left.end) == (0, 6, 9)


def test_the_start_of_a_batch_is_not_that_of_later_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TopicPartition("u", 0)
    seen = view({T0: 0}, {T0: 9})
    reader = reader_of(monkeypatch, seen)
    first = reader.latestOffset(reader.initialOffset())
    assert reader.latestOffset(first) == first
    assert reader.partitions(first, first) == []
    reader._clusters.get().views = [view({T0: 0, other: 4}, {T0: 9, other: 5})]
    second = reader.latestOffset(first)
    assert [(one.topic, one.start, one.end) for one in reader.partitions(first, second)] == [("u", 4, 5)]
    reader._clusters.get().views = [view({T0: 0, T1: 3, other: 4}, {T0: 12, T1: 4, other: 5})]
    third = reader.latestOffset(second)
    assert [(one.topic, one.partition, one.start, one.end) for one in reader.partitions(second, third)] == [
        ("t", 0, 9, 12),
        ("t", 1, 3, 4),
    ]


def test_the_first_sync_point_is_where_the_first_batch_was_planned() -> None:
    end = StreamPosition({"t": TopicPosition(ID, {0: 9, 1: 9}, {0: 2})})
    clients: Any = object.__new__(record_query.RecordClients)
    clients._source = Mock(describe=Mock(return_value={"t": TopicView(ID, 2)}))
    clients._source.list_some = lambda items, _time_ms: dict.fromkeys(items, 6)
    topic = record_query.TargetTopic("t", TopicIds(ID, ID), {0: 9, 1: 9}, frozenset({0, 1}), 2, 2)
    ends = record_query.BatchEnds(0, position({}), end)
    # A checkpoint of an earlier version does not have the start.
    assert clients.starts(ends, {"t": [0, 1]}, {"t": topic}) == {T0: 2, T1: 6}


def test_a_planned_topic_is_read_even_if_it_is_not_selected_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    start, end = position({T0: 5}), position({T0: 9})
    unmoved = {"u": TopicPosition(OTHER_ID, {0: 3})}
    first, last = (StreamPosition({**one.topics, **unmoved}).to_json() for one in (start, end))
    reader = reader_of(monkeypatch, view({T0: 0}, {T0: 9}))
    assert [(one.start, one.end) for one in reader.partitions(first, last)] == [(5, 9)]
    assert (reader._clusters.get().planned, reader._clusters.get().needed) == ({"t"}, {T0})
    clusters: Any = object.__new__(record_source.RecordClusters)
    clusters._names, clusters._next_sync_s, clusters._partitions = {"a": "a"}, float("inf"), {"a": 1}
    clusters._source, clusters._target = Mock(held_back={}), Mock(describe=Mock(return_value={}))
    clusters._source.describe.side_effect = lambda names: dict.fromkeys(names, TopicView(ID, 1))
    clusters._source.list.side_effect = lambda items, _time_ms: dict.fromkeys(items, 9)
    assert set(clusters.view({"t"}).topic_ids) == {"a", "t"}
    assert set(clusters.view().topic_ids) == {"a"}


def test_a_planned_topic_that_a_broker_does_not_know_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, end = position({}).to_json(), position({T0: 9}).to_json()
    reader = reader_of(monkeypatch, view({}, {}), view({T0: 0}, {T0: 9}))
    assert [(one.start, one.end) for one in reader.partitions(start, end)] == [(0, 9)]


def test_a_partition_that_a_broker_does_not_know_yet_keeps_its_place() -> None:
    ahead = plan_advance(position({T0: 5, T1: 7}), view({T0: 0}, {T0: 9}))
    assert ahead.absent == {T1: 7}
    recreated = plan_advance(position({T0: 5, T1: 7}, OTHER_ID), view({T0: 0}, {T0: 9}))
    assert recreated.absent == {}


# -- topics of the target

KEYS = frozenset({"retention.ms", "segment.ms", "message.timestamp.type", "message.timestamp.after.max.ms"})
SETTINGS = TargetSettings(KEYS, -1, 3, same_offsets=False)


def plan(source: dict[str, TopicState], target: dict[str, TopicState] | None = None, **more: Any) -> Any:
    given = {"names": TargetNames(), "settings": SETTINGS, "loops": (), **more}
    return plan_topics(source, target or {}, ALL_NAMES, given["names"], given["settings"], given["loops"])


def test_a_new_topic_keeps_the_times_of_records_and_is_no_mirror() -> None:
    source = {"t": TopicState(2, 1, {"retention.ms": "9", "message.timestamp.type": "LogAppendTime"})}
    assert plan(source).created["t"].configs == {
        "retention.ms": "9",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": str(2**63 - 1),
    }


def test_settings_follow_the_source_but_those_of_times_do_not() -> None:
    source = {"t": TopicState(2, 1, {"retention.ms": "9", "message.timestamp.type": "LogAppendTime"})}
    target = {"t": TopicState(2, 1, {"message.timestamp.type": "CreateTime", "segment.ms": "5"})}
    assert plan(source, target).configured == {"t": {"retention.ms": "9", "segment.ms": None}}
    assert plan(source, target, settings=SETTINGS._replace(follows_configs=False)).configured == {}


def test_an_ordinary_topic_of_the_target_gets_the_records() -> None:
    changes = plan({"t": TopicState(3, 1, {})}, {"t": TopicState(2, 1, {})})
    assert (changes.mirrored, changes.grown) == ({"t": "t"}, {"t": 3})


def test_the_control_topic_of_the_sink_is_not_mirrored() -> None:
    state = TopicState(16, 1, {})
    assert "exactly-once sinks" in plan({"_tidemill_sink": state}).refused["_tidemill_sink"]


def test_topics_in_a_loop_are_refused() -> None:
    state = TopicState(1, 1, {})
    changes = plan({"t": state, "u": state}, loops={"t"})
    assert changes.mirrored == {"u": "u"}
    assert "deny the topic in one of the mirrors" in changes.refused["t"]


# -- the clusters of a checkpoint


def cluster(cluster_id: str | None) -> Any:
    """An admin client of a cluster with an id."""
    return Mock(describe_cluster=lambda: Mock(cluster_id=cluster_id))


def test_a_cluster_is_recognized_by_its_id() -> None:
    one, again, other, unknown = map(cluster, ("one", "one", "two", None))
    with pytest.raises(ConfigError, match="the source east and the target are the same cluster"):
        refuse_same_cluster(one, again, "east")
    assert refuse_same_cluster(one, other, "east") == ("one", "two")
    assert refuse_same_cluster(unknown, unknown, "east") == (None, None)


def test_a_checkpoint_is_not_continued_with_other_clusters(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint" / "source1"
    refuse_other_clusters(folder, "source1", ClusterIds("east", None))
    refuse_other_clusters(folder, "source1", ClusterIds("east", "west"))
    refuse_other_clusters(folder, "source1", ClusterIds(None, None))
    for ids, name in ((ClusterIds("north", "west"), "source"), (ClusterIds("east", "north"), "target")):
        with pytest.raises(ConfigError, match=rf"the {name} of source1 is the cluster north now"):
            refuse_other_clusters(folder, "source1", ids)
    (folder / CLUSTERS_FILE).write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        refuse_other_clusters(folder, "source1", ClusterIds("east", "west"))


@pytest.mark.parametrize("same_offsets", [True, False])
def test_another_target_is_refused_unless_its_log_ends_are_the_positions(
    tmp_path: Path, same_offsets: bool
) -> None:
    east, west = (MirrorSource(alias, {"bootstrap.servers": "a:1"}) for alias in ("east", "west"))
    job = MirrorJob(sources=[east], target=west, checkpoint=str(tmp_path), same_offsets=same_offsets)
    for target, is_refused in (("west", False), ("other", not same_offsets)):
        observer: Any = cluster_observer.ClusterObserver(job, east, None if same_offsets else Mock())
        observer._source_admin, observer._target_admin = cluster("east"), cluster(target)
        with pytest.raises(ConfigError) if is_refused else nullcontext():
            observer.refuse_wrong_clusters()


# -- the query


def query_in(folder: Path) -> RecordQuery:
    (folder / "offsets").mkdir()
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(position({T0: 5}).to_json())}")
    (folder / "metadata").write_text('{"id": "q1"}')
    copy = CopyOptions({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, ALL_NAMES, TargetNames())
    return RecordQuery(Mock(), RecordOptions(copy), "east", folder, "available-now", Mock())


def test_a_batch_is_written_only_once_its_plan_is_on_disk(tmp_path: Path) -> None:
    query = query_in(tmp_path)
    query._files = files = Mock(wraps=SystemFiles())
    synced: list[Any] = []
    query._write_batch = lambda *_: synced.extend(files.method_calls)  # type: ignore[method-assign]
    query.write_batch(Mock(), 0)
    assert synced == [
        call.open(f"{tmp_path}/metadata"),
        call.open(f"{tmp_path}/offsets/0"),
        call.sync_directory(f"{tmp_path}/offsets"),
        call.sync_directory(str(tmp_path)),
    ]


def test_a_target_that_has_lost_records_gets_its_point_before_the_batch_is_written(tmp_path: Path) -> None:
    ends = record_query.BatchEnds(5, position({T0: 100}), position({T0: 120}))
    topic = record_query.TargetTopic("t", TopicIds(ID, ID), {0: 120}, frozenset({0}), 1, 1)
    query: Any = query_in(tmp_path)
    query.points = SyncPoints({"t": TopicPoints(TopicIds(ID, ID), False, {0: (SyncPoint(4, 100, 77),)})})
    clients = Mock(
        topics=Mock(return_value={"t": topic}),
        stable_ends=Mock(return_value={T0: 60}),
        target_ends=Mock(return_value={T0: 90}),
    )
    query._clients = Mock(get=lambda: clients)
    query._renamed, written = Mock(), []
    query._write = lambda *_: written.append(query._stored_points().topics["t"].partitions[0])
    observed = Mock(get={"records": 20, "bytes": 1})
    with (
        patch.object(record_query, "Observation", return_value=observed),
        patch.object(record_query, "_counts"),
    ):
        query._write_batch(Mock(), ends)
    assert written == [(SyncPoint(4, 100, 60),)]
    assert query.points.topics["t"].partitions[0] == (SyncPoint(4, 100, 60), SyncPoint(5, 120, 90))


def test_the_error_of_a_batch_is_kept_for_the_verdict(tmp_path: Path) -> None:
    query = query_in(tmp_path)
    query._write_batch = Mock(side_effect=BrokerUnreachable("cut"))  # type: ignore[method-assign]
    with pytest.raises(BrokerUnreachable):
        query.write_batch(Mock(), 0)
    assert isinstance(query.failure, BrokerUnreachable)


def test_stored_points_are_read_again(tmp_path: Path) -> None:
    points = NO_POINTS.with_points("t", TopicIds(ID, ID), {0: SyncPoint(0, 5, 6)}, is_spread=False)
    query_in(tmp_path)._store(points)
    again = RecordQuery(Mock(), Mock(), "east", tmp_path, "available-now", Mock())
    assert again.points == points


def test_the_records_of_a_batch_that_a_crash_has_cut_short_count_as_written(tmp_path: Path) -> None:
    """Its plan is in the checkpoint, and its point is not."""
    query = query_in(tmp_path)
    first = NO_POINTS.with_points("t", TopicIds(ID, ID), {0: SyncPoint(-1, 0, 8)}, is_spread=False)
    query._store(first)
    again = RecordQuery(Mock(), Mock(), "east", tmp_path, "available-now", Mock())
    assert again.starts() == {T0: 8}
    (tmp_path / "offsets" / "0").unlink()
    planned = RecordQuery(Mock(), Mock(), "east", tmp_path, "available-now", Mock())
    assert planned.starts() == {}


def test_the_records_of_a_batch_count_as_written_before_they_are(tmp_path: Path) -> None:
    ends = record_query.BatchEnds(0, StreamPosition({}), position({T0: 5}))
    topic = record_query.TargetTopic("t", TopicIds(ID, ID), {0: 5}, frozenset({0}), 1, 1)
    (tmp_path / "offsets").mkdir()
    query: Any = RecordQuery(Mock(), Mock(), "east", tmp_path, "available-now", Mock())
    clients = Mock(
        topics=Mock(return_value={"t": topic}),
        starts=Mock(return_value={T0: 0}),
        stable_ends=Mock(return_value={T0: 8}),
        target_ends=Mock(return_value={T0: 8}),
    )
    query._clients = Mock(get=lambda: clients)
    query._renamed, found = Mock(), []
    query._write = lambda *_: found.append(query.starts())
    observed = Mock(get={"records": 5, "bytes": 1})
    with (
        patch.object(record_query, "Observation", return_value=observed),
        patch.object(record_query, "_counts"),
    ):
        query._write_batch(Mock(), ends)
    assert found == [{T0: 8}]


def first_points(query: RecordQuery, ends: record_query.BatchEnds, targets: int = 1) -> SyncPoints:
    """Returns the points before a batch of a topic with one partition, whose mirror ends at 77."""
    topic = record_query.TargetTopic(
        "t", TopicIds(ID, ID), ends.end.topics["t"].next, ends.changed("t"), 1, targets
    )
    at_end = {TopicPartition("t", number): 77 for number in range(targets)}
    clients = Mock(starts=Mock(return_value={T0: 100}), target_ends=Mock(return_value=at_end))
    query._clients = Mock(get=lambda: clients)
    return query._first_points(ends, {"t": topic})


def test_the_first_point_of_a_topic_is_where_its_copy_begins(tmp_path: Path) -> None:
    ends = record_query.BatchEnds(0, StreamPosition({}), position({T0: 120}))
    seen = first_points(query_in(tmp_path), ends).topics["t"]
    assert seen.partitions == {0: (SyncPoint(-1, 100, 77),)}


@pytest.mark.parametrize("targets", [1, 2])
def test_a_topic_whose_points_are_lost_begins_at_the_start_of_both_logs(tmp_path: Path, targets: int) -> None:
    ends = record_query.BatchEnds(5, position({T0: 100}), position({T0: 120}))
    query = query_in(tmp_path)
    query.points = first_points(query, ends, targets)
    seen = query.points.topics["t"]
    assert seen.partitions[0] == (SyncPoint(-1, 0, 0), SyncPoint(4, 100, 77))
    assert seen.partitions.get(1, (SyncPoint(-1, None, 0),))[0] == SyncPoint(-1, None, 0)
    assert seen.spread_targets({0: 50}) == dict.fromkeys(range(targets), 0)
    assert first_points(query, ends, targets) is query.points


@pytest.mark.parametrize(
    ("stored", "end", "points"),
    [
        ((SyncPoint(4, 100, 77),), 77, (SyncPoint(4, 100, 77),)),
        ((SyncPoint(4, 100, 77),), 60, (SyncPoint(4, 100, 60),)),
        ((SyncPoint(1, 100, 77),), 60, (SyncPoint(1, 100, None), SyncPoint(4, 100, 60))),
        # The batch is repeated, and its point was stored.
        ((SyncPoint(5, 120, 97),), 80, (SyncPoint(5, 120, 80),)),
    ],
)
def test_a_target_that_has_lost_records_gets_a_point_at_its_end(
    tmp_path: Path, stored: tuple[SyncPoint, ...], end: int, points: tuple[SyncPoint, ...]
) -> None:
    ends = record_query.BatchEnds(5, position({T0: 100}), position({T0: 120}))
    topic = record_query.TargetTopic("t", TopicIds(ID, ID), {0: 120}, frozenset({0}), 1, 1)
    query = query_in(tmp_path)
    query.points = SyncPoints({"t": TopicPoints(TopicIds(ID, ID), False, {0: stored})})
    query._clients = Mock(get=lambda: Mock(stable_ends=Mock(return_value={T0: end})))
    assert query._points_after_loss(ends, {"t": topic}).topics["t"].partitions == {0: points}


@pytest.mark.parametrize(("patience_s", "end"), [(60.0, 12), (0.0, 7)])
def test_the_end_of_a_batch_is_that_after_its_markers(
    patience_s: float, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_query, "STABLE_S", patience_s)
    copy = CopyOptions({"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:1"}, ALL_NAMES, TargetNames())
    clients = record_query.RecordClients(copy)
    clients._target_ends = Mock(list_some=Mock(side_effect=[{T0: 11}, {T0: 11}, {T0: 12}]))
    clients._target = Mock(list_some=Mock(side_effect=[{T0: 7}, {T0: 7}, {T0: 12}]))
    assert clients.target_ends([T0]) == {T0: end}


class Listing:
    """An admin client that lists transactions, or does not know the request or its filter."""

    def __init__(self, known: tuple[bool, bool]) -> None:
        self.known = known

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_transactions(self, *, states: list[str], pattern: str | None = None) -> list[Any]:
        if not self.known[pattern is not None]:
            raise ClientError("unknown", ErrorCode.UNSUPPORTED_VERSION)
        return []


@pytest.mark.parametrize(
    ("known", "delivery"),
    [((True, True), "exactly-once"), ((True, False), "exactly-once"), ((False, False), "at-least-once")],
)
def test_a_target_that_lists_no_transactions_gets_records_at_least_once(
    known: tuple[bool, bool], delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_query, "Admin", lambda *_: Listing(known))
    assert record_query.delivery_for({}) == delivery


# -- what follows from a failure

SPARK_TEXT = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was thrown from Python:
Traceback (most recent call last):
  File "reader.py", line 1, in read
{}

SQLSTATE: XXKST
=== Streaming Query ==="""


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("tidemill.client.errors.BrokerUnreachable: no broker answers", Verdict.WAIT),
        ("tidemill.client.errors.DeliveryTimeout: a message", Verdict.WAIT),
        (
            "tidemill.client.errors.ClientError: cannot fetch: NOT_LEADER_OR_FOLLOWER; the leader",
            Verdict.WAIT,
        ),
        ("tidemill.client.errors.FatalTransactionError: the transaction timed out", Verdict.WAIT),
        ("tidemill.pipeline.exactly_once.protocol.TransactionsAborted: batch 3", Verdict.WAIT),
        ("tidemill.client.errors.DataLoss: records 3 to 4 of t-0 were deleted", Verdict.COUNT),
        ("tidemill.pipeline.mirror.record_planning.MirrorDataLoss: offsets 3 to 4", Verdict.END),
        ("tidemill.client.errors.AuthenticationFailed: check user and password", Verdict.END),
        ("tidemill.client.errors.ClientError: cannot send: TOPIC_AUTHORIZATION_FAILED; ask", Verdict.END),
        (
            "tidemill.client.errors.FatalTransactionError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            Verdict.COUNT,
        ),
        ("tidemill.pipeline.exactly_once.protocol.RowsDiffer: batch 3", Verdict.END),
        ("tidemill.pipeline.exactly_once.protocol.Superseded: another driver", Verdict.COUNT),
        ("tidemill.model.errors.ConfigError: option x", Verdict.END),
        ("java.lang.RuntimeException: a worker was killed", Verdict.COUNT),
    ],
)
def test_spark_has_failed_because_of(line: str, verdict: Verdict) -> None:
    assert verdict_on(RuntimeError(SPARK_TEXT.format(line))) is verdict


def test_the_last_error_counts() -> None:
    lines = (
        "tidemill.client.errors.AuthenticationFailed: x\n\nDuring handling of the above exception, another "
        "exception occurred:\n\ntidemill.client.errors.BrokerUnreachable: y"
    )
    assert verdict_on(RuntimeError(SPARK_TEXT.format(lines))) is Verdict.WAIT


@pytest.mark.parametrize(
    ("problem", "verdict"),
    [
        (BrokerUnreachable("cut"), Verdict.WAIT),
        (ClientError("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), Verdict.WAIT),
        (ClientError("x", ErrorCode.TOPIC_AUTHORIZATION_FAILED), Verdict.END),
        (AuthenticationFailed("x"), Verdict.END),
        (MirrorDataLoss("x"), Verdict.END),
        (DataLoss("x"), Verdict.COUNT),
        (FatalTransactionError("x", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), Verdict.COUNT),
        (ConfigError("x"), Verdict.END),
        (ConnectionResetError("x"), Verdict.WAIT),
        (ValueError("x"), Verdict.COUNT),
    ],
)
def test_a_batch_has_failed_with(problem: BaseException, verdict: Verdict) -> None:
    assert verdict_on(problem) is verdict
