"""How positions of groups are copied: with few requests, also back, and from several sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable, ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.offsets_of_groups import OffsetsOfGroups
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror import mirror_job, written_group_offsets
from tidemill.pipeline.mirror.cluster_observer import ClusterObserver
from tidemill.pipeline.mirror.group_sync import GroupSync
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.position_translation import MergedPositions
from tidemill.pipeline.mirror.sync_points import NO_POINTS, SyncPoint, TopicIds
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.mirror.written_group_offsets import (
    POSITIONS_FILE,
    WrittenPositions,
    encode_positions,
    parse_positions,
)
from tidemill.testing.broker import Broker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = {T0: 100, T1: 100}
IDS = TopicIds(bytes(range(16)), bytes(16 * [7]))


class Groups:
    """An admin client of a cluster with groups."""

    def __init__(self, **positions: int) -> None:
        self.positions = {group: {T0: OffsetAndMetadata(offset)} for group, offset in positions.items()}
        self.failures: dict[str, ClientError] = {}
        self.refusals: dict[str, ClientError] = {}
        """The errors of commits."""
        self.calls: list[str] = []

    def list_groups(self) -> list[Any]:
        return [Mock(group_id=group, protocol_type="consumer") for group in self.positions]

    def offsets_of_groups(self, wanted: Mapping[str, object], timeout: float) -> OffsetsOfGroups:
        self.calls.append(f"read {len(wanted)}")
        found = {group: dict(self.positions.get(group, {})) for group in wanted if group not in self.failures}
        return OffsetsOfGroups(found, {group: one for group, one in self.failures.items() if group in wanted})

    def alter_offsets_of_groups(
        self, commits: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]], timeout: float
    ) -> dict[str, ClientError]:
        self.calls.append(f"write {len(commits)}")
        for group, positions in commits.items():
            if group not in self.refusals:
                self.positions.setdefault(group, {}).update(positions)
        return {group: one for group, one in self.refusals.items() if group in commits}

    def at(self, group: str = "g") -> int:
        return self.positions[group][T0].offset

    def move(self, offset: int, group: str = "g") -> None:
        self.positions[group] = {T0: OffsetAndMetadata(offset)}


class Copy:
    """A source, a target, and the copy of positions, which can be started again."""

    def __init__(self, folder: Path, **positions: int) -> None:
        self.path = folder / "east" / POSITIONS_FILE
        self.source, self.target = Groups(**positions), Groups()
        self.restart()

    def restart(self) -> None:
        source: Any = self.source
        target: Any = self.target
        written = WrittenPositions(self.path)
        self.sync = GroupSync(source, target, TopicFilter(), lambda _group, positions: positions, written)

    def run(self) -> list[str]:
        return self.sync.run(ENDS)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path, g=50)


def test_positions_of_many_groups_need_few_requests(tmp_path: Path) -> None:
    copy = Copy(tmp_path, **{f"g{number}": number % 100 for number in range(600)})
    assert copy.run() == []
    assert copy.source.calls == ["read 500", "read 100"]
    assert copy.target.calls == ["read 500", "write 500", "read 100", "write 100"]
    assert copy.sync.copied == 600
    copy.source.move(90, "g5")
    copy.target.calls.clear()
    copy.run()
    assert copy.target.calls == ["read 500", "write 1", "read 100", "write 0"]
    assert copy.target.at("g5") == 90


def test_a_group_that_fails_is_the_only_one_that_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Copy(tmp_path, g=50, h=60, i=70, j=80)
    copy.source.failures = {"g": BrokerUnreachable("no coordinator")}
    copy.target.failures = {"h": BrokerUnreachable("no coordinator"), "j": AuthenticationFailed("no right")}
    for _ in range(3):
        assert copy.run() == ["g", "h", "j"]
    assert copy.target.at("i") == 70
    assert copy.sync.failures.keys() == {"g", "h"}
    assert [record.message for record in caplog.records] == [
        "the positions of group j are not all copied: no right",
        "the positions of 2 groups are not copied now: no coordinator",
    ]
    copy.source.failures, copy.target.failures = {}, {}
    assert copy.run() == []
    assert copy.sync.failures == {}


def test_a_group_with_members_in_the_target_is_left_alone(copy: Copy) -> None:
    copy.run()
    copy.source.move(20)
    copy.target.refusals = {"g": ClientError("members", ErrorCode.NON_EMPTY_GROUP)}
    assert copy.run() == ["g"]
    # Its members have committed what the mirror would have.
    copy.target.refusals = {}
    copy.target.move(20)
    copy.source.move(10)
    assert copy.run() == ["g"]
    assert copy.target.at() == 20


def test_a_position_goes_back_with_its_source_also_after_a_restart(copy: Copy) -> None:
    for offset in (50, 80, 20, 60):
        copy.source.move(offset)
        assert copy.run() == []
        copy.restart()
        assert copy.target.at() == offset
    copy.target.move(90)  # the group has read there
    copy.source.move(30)
    copy.restart()
    assert copy.run() == ["g"]
    assert copy.target.at() == 90


def test_a_group_that_reads_in_the_target_is_reported_once(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    copy.target.move(60)
    for offset in range(60, 70):
        copy.target.move(offset)
        assert copy.run() == ["g"]
    assert [record.message for record in caplog.records] == [
        "the positions of group g are not all copied: its position in t-0 of the target is ahead, and stays"
    ]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_position_goes_back_after_a_crash_before_or_after_its_commit(
    copy: Copy, is_committed: bool
) -> None:
    copy.run()
    commit = copy.target.alter_offsets_of_groups

    def crash(commits: Mapping[str, Any], timeout: float) -> dict[str, ClientError]:
        if is_committed:
            commit(commits, timeout)
        raise KeyboardInterrupt

    copy.target.alter_offsets_of_groups = crash  # type: ignore[method-assign]
    copy.source.move(70)
    with pytest.raises(KeyboardInterrupt):
        copy.run()
    copy.target.alter_offsets_of_groups = commit  # type: ignore[method-assign]
    assert copy.target.at() == (70 if is_committed else 50)
    copy.restart()
    copy.source.move(10)
    assert copy.run() == []
    assert copy.target.at() == 10


def test_a_group_that_is_not_listed_for_long_is_forgotten(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written_group_offsets, "ABSENT_MAX", 3)
    copy.run()
    written = WrittenPositions(copy.path)
    for listed in ((), (), ("g",), (), ()):
        written.forget_absent(listed)
        assert written.of("g") == {T0: (50,)}
    written.forget_absent(())
    assert written.of("g") == {}


def test_a_damaged_file_of_positions_is_refused(copy: Copy) -> None:
    copy.run()
    copy.path.write_text('{"version": 2, "groups": {}}')
    with pytest.raises(ConfigError, match="is damaged, or of a later version"):
        copy.restart()


def test_the_example_of_the_page_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "group-positions.md").read_text()
    example = next(line for line in page.splitlines() if line.startswith("{"))
    groups = parse_positions(example.encode())
    assert groups == {
        "readers": {TopicPartition("orders", 0): (120,), TopicPartition("orders", 1): (98, 103)}
    }
    assert encode_positions(groups).decode() == example


# -- several sources


def positions_at(*offsets: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition("t", number): OffsetAndMetadata(offset) for number, offset in enumerate(offsets)}


def merged_of(**starts: dict[TopicPartition, int]) -> MergedPositions:
    """Sources whose records begin in the target at ``starts``; none has a group yet."""
    merged = MergedPositions(starts)
    for alias, begin in starts.items():
        merged.register(alias, lambda begin=begin: begin)  # type: ignore[misc]
        merged.finish(alias)
    return merged


def test_a_source_in_which_a_group_has_no_position_is_unread() -> None:
    merged = merged_of(a={T0: 0, T1: 0}, b={T0: 3})
    assert merged.merge("a", "g", positions_at(7, 9)) == positions_at(3, 9)
    merged.finish("a")
    assert merged.merge("b", "g", positions_at(5)) == {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(9)}
    merged.finish("b")
    assert merged.merge("a", "g", positions_at(7, 9)) == positions_at(5, 9)


def test_a_partition_that_is_held_back_at_one_source_does_not_move() -> None:
    merged = merged_of(a={T0: 0, T1: 0}, b={T0: 3, T1: 3})
    merged.merge("b", "g", positions_at(5, 5))
    merged.finish("b")
    assert merged.merge("a", "g", positions_at(4), {T1}) == positions_at(4)
    merged.finish("a")
    assert merged.merge("b", "g", positions_at(6, 6)) == positions_at(4)


def test_a_group_that_cannot_be_read_at_one_source_keeps_its_position() -> None:
    merged = merged_of(a={T0: 0}, b={T0: 3})
    # Never read there: its position is not known at all.
    merged.finish("a", ["g"])
    assert merged.merge("b", "g", positions_at(9)) == {}
    merged.merge("a", "g", positions_at(6))
    for failed in ([], ["g"], ["g"]):
        merged.finish("a", failed)
        assert merged.merge("b", "g", positions_at(9)) == positions_at(6)
    merged.finish("a")
    assert merged.merge("b", "g", positions_at(9)) == positions_at(0)


def test_the_records_of_a_source_begin_at_its_first_point() -> None:
    points = NO_POINTS.with_points(
        "t", IDS, {0: SyncPoint(-1, 5, 8), 1: SyncPoint(-1, 0, 2)}, is_spread=False
    )
    assert points.starts() == {}
    # Its first batch is being written.
    assert points.starts({T0}) == {T0: 8}
    points = points.with_points("t", IDS, {0: SyncPoint(0, 9, 30)}, is_spread=False)
    assert points.starts() == {T0: 8}
    spread = points.with_points("t", IDS, {2: SyncPoint(0, None, 4)}, is_spread=True)
    assert spread.starts() == {T0: 8, T1: 2, TopicPartition("t", 2): 4}


@pytest.mark.parametrize(
    ("more", "are_merged"),
    [
        ({"same_offsets": False}, True),
        ({"same_offsets": False, "prefixed": True}, False),
        ({"same_offsets": True}, False),
    ],
)
def test_the_sources_of_a_job_share_the_positions_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, bool], are_merged: bool
) -> None:
    sources = [MirrorSource(alias, {"bootstrap.servers": "a:1"}) for alias in ("east", "north")]
    west = MirrorSource("west", {"bootstrap.servers": "b:1"})
    job = MirrorJob(sources=sources, target=west, checkpoint=str(tmp_path), **more)
    given: list[MergedPositions | None] = []

    def run_of(_spark: Any, _job: Any, source: Any, _metrics: Any, merged: Any, _claimed: Any) -> Any:
        given.append(merged)
        return Mock(has_ended=lambda: True, progress=None)

    monkeypatch.setattr(mirror_job, "SourceRun", run_of)
    mirror_job.run_mirror(Mock(), job)
    assert len(given) == 2
    assert given[0] is given[1]
    assert (given[0] is not None) == are_merged


def test_a_group_of_several_sources_is_where_it_has_read_everything(tmp_path: Path) -> None:
    sources = [MirrorSource(alias, {"bootstrap.servers": "a:1"}) for alias in ("east", "north")]
    west = MirrorSource("west", {"bootstrap.servers": "b:1"})
    job = MirrorJob(sources=sources, target=west, checkpoint=str(tmp_path), same_offsets=False)
    merged = MergedPositions(["east", "north"])
    observers = []
    for source, offset, begin in zip(sources, (40, 30), (5, 3), strict=True):
        records = Mock(starts=lambda begin=begin: {T0: begin})
        observer: Any = ClusterObserver(job, source, records, merged)
        observer._translation = Mock(unknown=Mock(return_value=set()))
        observer._translation.translate.return_value = positions_at(offset)
        observer._groups = Mock(failures={}, copied=0)
        assert not observer.knows_positions
        assert observer._translate("both", {}) == {}
        observer.copy_positions(Mock(ends={}))
        observers.append(observer)
    assert observers[0].knows_positions
    assert observers[0]._translate("both", {}) == positions_at(30)
    assert observers[0]._translate("east only", {}) == positions_at(3)
    observers[1].copy_positions(Mock(ends={}))
    assert observers[1]._translate("north only", {}) == positions_at(5)


# -- stop


@pytest.mark.timeout(120)
@pytest.mark.parametrize("call", ["measure", "copy_positions"])
def test_a_stop_does_not_wait_for_the_requests_of_the_thread(tmp_path: Path, call: str) -> None:
    with Broker(faults=True) as source, Broker(faults=True) as target:
        east = MirrorSource("east", {"bootstrap.servers": source.bootstrap})
        west = MirrorSource("west", {"bootstrap.servers": target.bootstrap})
        job = MirrorJob(sources=[east], target=west, checkpoint=str(tmp_path))
        observer = ClusterObserver(job, east)
        lag = observer.measure()
        for broker in (source, target):
            broker.cut("silent")
        ended: list[Exception] = []

        def work() -> None:
            while True:
                try:
                    observer.measure() if call == "measure" else observer.copy_positions(lag)
                except ClientError as problem:
                    ended.append(problem)
                    return

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        time.sleep(1.0)
        assert thread.is_alive()
        observer.interrupt()
        thread.join(timeout=10)
        assert not thread.is_alive()
        assert ended
        observer.close()
