"""Logs that lost records which checkpoints know of: what a start says, keeps, and gives out again."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidemill.cli.log import command
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.moves import begin_move
from tidemill.log.names import BOOT, RECORDS_LOST
from tidemill.log.verify import DirectoryCheck
from tidemill.model.clock import SystemClock
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.builder import build_batch
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState

NODE = 1
KEY = TopicPartition("t", 0)
SMALL = LogConfig(segment_bytes=600)
BATCHES = 9
WHOLE = 27


def made() -> Batch:
    data = build_batch([(1_700_000_000_000, b"k", b"v" * 40, None)] * 3)
    return parse_batch(data, 0, len(data))


@contextmanager
def started(*data: Path) -> Iterator[tuple[LogManager, ReplicaManager]]:
    """A broker over the directories ``data``, which is stopped in order."""
    logs = LogManager(SystemFiles(), list(map(str, data)))
    logs.lock()
    logs.claim("cluster", NODE)
    logs.load(0, lambda topic: SMALL)
    with ThreadPoolExecutor(1) as pool:
        replicas = ReplicaManager(NODE, logs, SystemClock(), asyncio.get_running_loop(), pool, pool)
        replicas.report_warnings()
        yield logs, replicas
        assert logs.close(0, replicas.high_watermarks()) == []


def served(replicas: ReplicaManager, others: tuple[int, ...] = ()) -> Partition:
    state = PartitionState(0, NODE, 0, (NODE, *others), (NODE,))
    replicas.put_topic("t", bytes([1]) * 16, False, [state], SMALL)
    found = replicas.find("t", 0)
    assert found is not None
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory after a clean stop: a partition of nine batches, three records each."""
    path = tmp_path / "data"
    path.mkdir()

    async def fill() -> None:
        with started(path) as (logs, replicas):
            logs.create(KEY, bytes([1]) * 16, SMALL, 0)
            partition = served(replicas)
            for _ in range(BATCHES):
                partition.append([made()], 1, 0)
            assert partition.high_watermark == WHOLE

    asyncio.run(fill())
    return path


def restarted(
    data: Path, caplog: pytest.LogCaptureFixture, others: tuple[int, ...] = ()
) -> tuple[int, int, list[str]]:
    """Start and end of the partition after a start, and the warnings of that."""
    found = (0, 0)

    async def run() -> None:
        nonlocal found
        with started(data) as (_, replicas):
            partition = served(replicas, others)
            found = (int(partition.log.start_offset), int(partition.log.end_offset))

    caplog.clear()
    with caplog.at_level(logging.WARNING, "tidemill"):
        asyncio.run(run())
    return *found, [record.getMessage() for record in caplog.records]


def rehearsed(data: Path) -> str:
    outcome = CliRunner().invoke(command, ["recover", "--dry-run", str(data)], standalone_mode=False)
    assert outcome.exception is None, outcome.exception
    return outcome.output


def remove_segments(data: Path) -> None:
    for path in (data / "t-0").iterdir():
        if path.suffix in (".log", ".index", ".timeindex"):
            path.unlink()


def remove_directory(data: Path) -> None:
    shutil.rmtree(data / "t-0")


@pytest.mark.parametrize("remove", [remove_segments, remove_directory])
def test_a_partition_whose_files_are_gone_is_told_once_and_its_offsets_are_not_given_out_again(
    data: Path, caplog: pytest.LogCaptureFixture, remove: Callable[[Path], None]
) -> None:
    remove(data)
    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (WHOLE, WHOLE)
    (told,) = [text for text in warnings if "are lost" in text]
    assert f"{data}/t-0: its segment files are gone" in told
    assert f"knows of offset {WHOLE}: the records of offsets 0 to {WHOLE - 1} are lost" in told
    assert f"t-0 goes on at offset {WHOLE}: none below it is given out again" in warnings
    assert restarted(data, caplog) == (WHOLE, WHOLE, [])


def test_a_rehearsal_tells_of_segments_that_are_gone(data: Path) -> None:
    remove_segments(data)
    assert f"knows of offset {WHOLE}: the records of offsets 0 to {WHOLE - 1} are lost" in rehearsed(data)


def test_where_another_replica_may_have_the_records_the_log_begins_where_it_can_get_them(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove_segments(data)
    start, end, warnings = restarted(data, caplog, others=(2,))
    assert (start, end) == (0, 0)
    assert any("unless another replica has them" in text for text in warnings)


def test_without_high_watermarks_the_recovery_point_tells_what_is_gone(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove_segments(data)
    (data / "replication-offset-checkpoint").unlink()
    for snapshot in (data / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (0, 0)  # what is only on the disk was promised to nobody
    assert any(f"recovery-point-offset-checkpoint knows of offset {WHOLE}" in text for text in warnings)


def test_what_is_cut_after_a_clean_stop_is_kept_and_a_gap_follows(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segments = sorted((data / "t-0").glob("*.log"))
    assert len(segments) > 1
    last, base = segments[-1], int(segments[-1].stem)
    damaged = bytearray(last.read_bytes())
    damaged[16] ^= 1
    last.write_bytes(damaged)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    said = rehearsed(data)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    kept = Path(f"{last}.0.cut")
    assert f"would cut {last} to 0 bytes ({len(damaged)} are lost)" in said
    assert f"would keep what is cut in {kept}" in said

    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (0, WHOLE)
    (told,) = [text for text in warnings if " cut" in text or "lost" in text]
    assert f"t-0: the records of offsets {base} to {WHOLE - 1} are cut, although the last stop was" in told
    assert f"{len(damaged)} bytes are cut; they are kept in {kept}" in told
    assert f"the records of offsets {base} to {WHOLE - 1} are lost" in told
    assert kept.read_bytes() == damaged
    assert restarted(data, caplog) == (0, WHOLE, [])
    assert kept.read_bytes() == damaged
    checks = list(DirectoryCheck(SystemFiles(), str(data)).run())
    assert not any(check.damages for check in checks)
    assert any("is what a start cut from a damaged log" in one.text for one in checks[0].findings)


def test_what_was_written_after_a_gap_survives_a_power_cut(data: Path) -> None:
    last = sorted((data / "t-0").glob("*.log"))[-1]
    last.write_bytes(b"\0" * last.stat().st_size)
    after = data.with_name("after")

    async def write() -> None:
        with started(data) as (_, replicas):
            partition = served(replicas)
            assert partition.log.end_offset == WHOLE
            partition.append([made()], 1, 0)
            partition.log.flush(0)
            shutil.copytree(data, after)

    async def read() -> None:
        with started(after) as (_, replicas):
            assert served(replicas).log.end_offset == WHOLE + 3

    asyncio.run(write())
    (after / BOOT).write_text("before the power cut")
    asyncio.run(read())


def test_a_new_replica_comes_in_sync_although_the_log_ends_with_what_was_lost(data: Path) -> None:
    last = sorted((data / "t-0").glob("*.log"))[-1]
    last.write_bytes(b"\0" * last.stat().st_size)

    async def follow() -> None:
        with started(data) as (logs, replicas):
            leader = served(replicas)
            assert leader.log.end_offset == WHOLE
            leader.become(NODE, 1, (NODE, 2), (NODE,), 1, 0)
            follower = logs.create(TopicPartition("u", 0), bytes([2]) * 16, SMALL, 0)
            while (piece := leader.read(follower.end_offset, 1 << 20, WHOLE, True)) is not None:
                follower.append_as_follower(piece.read(), 0)
            wanted: list[tuple[int, ...]] = []
            replicas.change_isr = lambda partition, isr, epoch: wanted.append(isr)
            leader.fetched_by(2, int(follower.end_offset), 0, 1)
            assert wanted == [(NODE, 2)]

    asyncio.run(follow())


def test_a_partition_that_is_cut_to_nothing_begins_where_it_ended(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # As small as those of a trial: one segment, no index entries.
    for path in (data / "t-0").iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot") and int(path.stem):
            path.unlink()
    (only,) = (data / "t-0").glob("*.log")
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (data / name).write_text("0\n1\nt 0 6\n")
    only.write_bytes(b"\0" * 40 + only.read_bytes()[40:])
    start, end, _ = restarted(data, caplog)
    assert (start, end) == (6, 6)
    assert Path(f"{only}.0.cut").read_bytes()[:40] == b"\0" * 40


def cut_at_batch(last: Path, size: int) -> None:
    os.truncate(last, size)


def cut_within_batch(last: Path, size: int) -> None:
    os.truncate(last, size + 10)


def cut_whole_segment(last: Path, size: int) -> None:
    """Only the names of the indexes are left, as they have no entry."""
    os.truncate(last, 0)


@pytest.mark.parametrize("cut", [cut_at_batch, cut_within_batch, cut_whole_segment])
@pytest.mark.parametrize("committed", [0, 3])
def test_a_follower_that_ends_before_its_clean_stop_reports_it_in_one_warning(
    data: Path, caplog: pytest.LogCaptureFixture, cut: Callable[[Path, int], None], committed: int
) -> None:
    (data / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {committed}\n")
    last = max((data / "t-0").glob("*.log"))
    cut(last, last.stat().st_size - len(made().data))
    said = rehearsed(data)
    end = WHOLE - 3 if last.stat().st_size else int(last.stem)
    lost = (
        f"the log ends at offset {end} after a clean stop, and recovery-point-offset-checkpoint knows of "
        f"offset {WHOLE}: the records of offsets {end} to {WHOLE - 1} are lost"
    )
    assert lost in said

    async def report() -> None:
        with started(data) as (logs, replicas):
            assert logs.damaged == {KEY}
            assert served(replicas, others=(2,)).log.end_offset == end
            logs.damaged.clear()  # As if killed before anybody has heeded it.

    caplog.clear()
    with caplog.at_level(logging.WARNING, "tidemill"):
        asyncio.run(report())
    (told,) = [record.getMessage() for record in caplog.records]
    assert lost in told
    assert "t-0" in told
    assert (data / "t-0" / RECORDS_LOST).exists()

    async def again() -> None:
        with started(data) as (logs, _):
            assert logs.damaged == {KEY}
            logs.loss_heeded()
        with started(data) as (logs, _):
            assert not logs.damaged

    asyncio.run(again())


def test_what_lies_behind_the_end_of_a_clean_stop_is_no_lost_record(data: Path) -> None:
    """A full disk refused a batch halfway, and what was written of it could not be cut."""
    last = max((data / "t-0").glob("*.log"))
    with last.open("ab") as file:
        file.write(bytes(made().data)[:50])

    async def run() -> None:
        with started(data) as (logs, replicas):
            assert served(replicas).log.end_offset == WHOLE
            assert not logs.damaged

    asyncio.run(run())


def test_a_log_that_is_damaged_after_a_clean_stop_without_checkpoints_is_reported(data: Path) -> None:
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (data / name).unlink()
    last = max((data / "t-0").glob("*.log"))
    os.truncate(last, last.stat().st_size - 5)

    async def run() -> None:
        with started(data) as (logs, _):
            assert logs.damaged == {KEY}

    asyncio.run(run())


def append_from_leader(log: Log, base_offset: int) -> None:
    batch = bytearray(made().data)
    batch[:8] = base_offset.to_bytes(8, "big")
    log.append_as_follower(bytes(batch), 0)


def cut_in_gap(logs: LogManager) -> int:
    logs.logs[KEY].truncate_to(WHOLE + 5, 0)
    return WHOLE + 5


def cut_behind_gap(logs: LogManager) -> int:
    logs.logs[KEY].truncate_to(WHOLE + 11, 0)
    return WHOLE + 10


def cut_before_gap(logs: LogManager) -> int:
    logs.logs[KEY].truncate_to(WHOLE - 1, 0)
    return WHOLE - 3


def cut_all(logs: LogManager) -> int:
    logs.logs[KEY].truncate_fully(4, 0)
    return 4


def delete_records(logs: LogManager) -> int:
    logs.logs[KEY].advance_start(WHOLE + 13)
    logs.logs[KEY].remove_segments(len(logs.logs[KEY].segments), 0)
    return WHOLE + 13


def move_elsewhere(logs: LogManager) -> int:
    move = begin_move(logs, KEY, logs.directories[1].path, 0)
    assert move is not None
    while (piece := move.next_piece(300, 0)) is not None:
        move.store(piece, 0)
    move.swap(0, flush=True)
    move.retire(0)
    return WHOLE + 13


@pytest.mark.parametrize(
    "change", [cut_in_gap, cut_behind_gap, cut_before_gap, cut_all, delete_records, move_elsewhere]
)
def test_what_was_cut_or_moved_before_a_clean_stop_is_no_lost_record(
    data: Path, caplog: pytest.LogCaptureFixture, change: Callable[[LogManager], int]
) -> None:
    (data / "replication-offset-checkpoint").write_text("0\n1\nt 0 4\n")

    async def run() -> None:
        with started(data, data.with_name("other")) as (logs, _):
            # As a leader sends what compaction has left.
            append_from_leader(logs.logs[KEY], WHOLE + 10)
            logs.logs[KEY].flush(0)
            logs.checkpoint_recovery_points()
            end = change(logs)
            assert logs.logs[KEY].end_offset == end
        with started(data, data.with_name("other")) as (logs, _):
            assert logs.logs[KEY].end_offset == end
            assert not logs.damaged
            append_from_leader(logs.logs[KEY], end)

    with caplog.at_level(logging.WARNING, "tidemill"):
        asyncio.run(run())
    assert not caplog.records


def test_after_an_unclean_stop_a_torn_end_is_cut_as_ever(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    last = max((data / "t-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-5])
    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (0, WHOLE - 3)
    assert any(f"the log ends at offset {WHOLE - 3}" in text for text in warnings)
    assert not list((data / "t-0").glob("*.cut"))


def test_a_topic_made_anew_takes_nothing_over(data: Path) -> None:
    async def run() -> None:
        with started(data) as (logs, replicas):
            list(replicas.removing("t", bytes([1]) * 16))
            logs.create(KEY, bytes([2]) * 16, SMALL, 0)
            state = PartitionState(0, NODE, 0, (NODE,), (NODE,))
            replicas.put_topic("t", bytes([2]) * 16, False, [state], SMALL)
            partition = replicas.find("t", 0)
            assert partition is not None
            assert partition.log.end_offset == 0

    asyncio.run(run())
