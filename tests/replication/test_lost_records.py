"""Logs without records that their checkpoints cover: log lines, kept records and reused offsets."""

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
from replica_stage import batch_of

from broker_listeners import IgnoringReplicaManagerListener
from default_limits import DirectoryCheck
from log_start import start_logs
from tidemill.cli.log import command
from tidemill.log.file_names import BOOT, RECORDS_LOST
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_dir_move import begin_move
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.model.clock import SystemClock
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager

NODE = 1
KEY = TopicPartition("t", 0)
SMALL = LogConfig(segment_bytes=600)
BATCHES = 9
WHOLE = 27


def made() -> Batch:
    return batch_of(*[b"v" * 40] * 3)


@contextmanager
def started(*data: Path) -> Iterator[tuple[LogManager, ReplicaManager]]:
    """A broker over the directories ``data``, with a clean shutdown."""
    logs = start_logs(SystemFiles(), list(map(str, data)), SMALL, now_ms=0, node=NODE)
    with ThreadPoolExecutor(1) as pool:
        replicas = ReplicaManager(
            NODE,
            logs,
            SystemClock(),
            asyncio.get_running_loop(),
            pool,
            pool,
            IgnoringReplicaManagerListener(),
        )
        replicas.full_disks.report_warnings()
        yield logs, replicas
        assert logs.close(0, replicas.high_watermarks()) == []


def served(replicas: ReplicaManager, others: tuple[int, ...] = ()) -> Partition:
    state = PartitionState(0, NODE, 0, (NODE, *others), (NODE,))
    run_at_once(replicas.put_topic_in_slices("t", bytes([1]) * 16, False, [state], SMALL))
    found = replicas.find("t", 0)
    assert found is not None
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory after a clean shutdown: a partition of nine batches with three records each."""
    path = tmp_path / "data"
    path.mkdir()

    async def fill() -> None:
        with started(path) as (logs, replicas):
            logs.create(KEY, bytes([1]) * 16, SMALL, 0)
            partition = served(replicas)
            for _ in range(BATCHES):
                partition.append(made(), 1, 0)
            assert partition.high_watermark == WHOLE

    asyncio.run(fill())
    return path


def restarted(
    data: Path, caplog: pytest.LogCaptureFixture, others: tuple[int, ...] = ()
) -> tuple[int, int, list[str]]:
    """Returns start and end of the partition after a start, and the logged warnings."""
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
def test_a_partition_with_missing_files_is_reported_once_and_does_not_reuse_its_offsets(
    data: Path, caplog: pytest.LogCaptureFixture, remove: Callable[[Path], None]
) -> None:
    remove(data)
    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (WHOLE, WHOLE)
    (reported,) = [text for text in warnings if "are lost" in text]
    assert f"{data}/t-0: its segment files are missing" in reported
    assert f"has offset {WHOLE}: the records of offsets 0 to {WHOLE - 1} are lost" in reported
    assert f"t-0 continues at offset {WHOLE}: lower offsets are not assigned again" in warnings
    assert restarted(data, caplog) == (WHOLE, WHOLE, [])


def test_a_dry_run_reports_missing_segments(data: Path) -> None:
    remove_segments(data)
    assert f"has offset {WHOLE}: the records of offsets 0 to {WHOLE - 1} are lost" in rehearsed(data)


def test_a_log_with_missing_files_restarts_at_0_if_another_replica_may_have_the_records(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove_segments(data)
    start, end, warnings = restarted(data, caplog, others=(2,))
    assert (start, end) == (0, 0)
    assert any("unless another replica has them" in text for text in warnings)


def test_without_high_watermarks_the_recovery_point_shows_the_lost_records(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remove_segments(data)
    (data / "replication-offset-checkpoint").unlink()
    for snapshot in (data / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (0, 0)  # bytes on the disk alone were acknowledged to no client
    assert any(f"recovery-point-offset-checkpoint has offset {WHOLE}" in text for text in warnings)


def test_records_lost_after_a_clean_shutdown_leave_a_gap(
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
    assert f"would truncate {last} to 0 bytes ({len(damaged)} are lost)" in said
    assert f"would keep the truncated bytes in {kept}" in said

    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (0, WHOLE)
    (reported,) = [text for text in warnings if " cut" in text or "lost" in text]
    assert (
        f"t-0: the records of offsets {base} to {WHOLE - 1} are truncated, although the last shutdown was"
        in reported
    )
    assert f"{len(damaged)} bytes are truncated; they are kept in {kept}" in reported
    assert f"the records of offsets {base} to {WHOLE - 1} are lost" in reported
    assert kept.read_bytes() == damaged
    assert restarted(data, caplog) == (0, WHOLE, [])
    assert kept.read_bytes() == damaged
    checks = list(DirectoryCheck(SystemFiles(), str(data)).run())
    assert not any(check.damages for check in checks)
    assert any("was truncated from a damaged log by a start" in one.text for one in checks[0].findings)


def test_records_after_a_gap_survive_a_power_cut(data: Path) -> None:
    last = sorted((data / "t-0").glob("*.log"))[-1]
    last.write_bytes(b"\0" * last.stat().st_size)
    after = data.with_name("after")

    async def write() -> None:
        with started(data) as (_, replicas):
            partition = served(replicas)
            assert partition.log.end_offset == WHOLE
            partition.append(made(), 1, 0)
            partition.log.flush(0)
            shutil.copytree(data, after)

    async def read() -> None:
        with started(after) as (_, replicas):
            assert served(replicas).log.end_offset == WHOLE + 3

    asyncio.run(write())
    (after / BOOT).write_text("before the power cut")
    asyncio.run(read())


async def test_a_new_replica_gets_in_sync_with_a_log_that_ends_in_a_gap(data: Path) -> None:
    last = sorted((data / "t-0").glob("*.log"))[-1]
    last.write_bytes(b"\0" * last.stat().st_size)

    with started(data) as (logs, replicas):
        leader = served(replicas)
        assert leader.log.end_offset == WHOLE
        leader.apply_state(NODE, 1, (NODE, 2), (NODE,), partition_epoch=1, now_ms=0)
        follower = logs.create(TopicPartition("u", 0), bytes([2]) * 16, SMALL, 0)
        while (piece := leader.read(follower.end_offset, 1 << 20, WHOLE, True)) is not None:
            follower.append_copied(piece.read(), 0)
        wanted: list[tuple[int, ...]] = []
        replicas.listener.alter_isr = lambda partition, isr, epoch: wanted.append(isr)
        leader.fetched_by(2, int(follower.end_offset), 0, 1)
        assert wanted == [(NODE, 2)]


def test_a_partition_that_lost_all_records_restarts_at_its_former_end(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A small partition: one segment without index entries.
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
    """The index files remain, and are empty."""
    os.truncate(last, 0)


@pytest.mark.parametrize("cut", [cut_at_batch, cut_within_batch, cut_whole_segment])
@pytest.mark.parametrize("committed", [0, 3])
def test_a_follower_shorter_than_at_its_clean_shutdown_logs_one_warning(
    data: Path, caplog: pytest.LogCaptureFixture, cut: Callable[[Path, int], None], committed: int
) -> None:
    (data / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {committed}\n")
    last = max((data / "t-0").glob("*.log"))
    cut(last, last.stat().st_size - len(made().data))
    said = rehearsed(data)
    end = WHOLE - 3 if last.stat().st_size else int(last.stem)
    lost = (
        f"the log ends at offset {end} after a clean shutdown, but recovery-point-offset-checkpoint has "
        f"offset {WHOLE}: the records of offsets {end} to {WHOLE - 1} are lost"
    )
    assert lost in said

    async def report() -> None:
        with started(data) as (logs, replicas):
            assert logs.dirs.damaged == {KEY}
            assert served(replicas, others=(2,)).log.end_offset == end
            logs.dirs.damaged.clear()  # A kill before the loss is handled.

    caplog.clear()
    with caplog.at_level(logging.WARNING, "tidemill"):
        asyncio.run(report())
    (reported,) = [record.getMessage() for record in caplog.records]
    assert lost in reported
    assert "t-0" in reported
    assert (data / "t-0" / RECORDS_LOST).exists()

    async def again() -> None:
        with started(data) as (logs, _):
            assert logs.dirs.damaged == {KEY}
            logs.dirs.mark_losses_handled()
        with started(data) as (logs, _):
            assert not logs.dirs.damaged

    asyncio.run(again())


async def test_bytes_after_the_end_of_a_clean_shutdown_are_not_lost_records(data: Path) -> None:
    """A full disk stopped an append, and the written part could not be truncated."""
    last = max((data / "t-0").glob("*.log"))
    with last.open("ab") as file:
        file.write(bytes(made().data)[:50])

    with started(data) as (logs, replicas):
        assert served(replicas).log.end_offset == WHOLE
        assert not logs.dirs.damaged


async def test_a_log_damaged_after_a_clean_shutdown_without_checkpoints_is_reported(data: Path) -> None:
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (data / name).unlink()
    last = max((data / "t-0").glob("*.log"))
    os.truncate(last, last.stat().st_size - 5)

    with started(data) as (logs, _):
        assert logs.dirs.damaged == {KEY}


def append_from_leader(log: Log, base_offset: int) -> None:
    batch = bytearray(made().data)
    batch[:8] = base_offset.to_bytes(8, "big")
    log.append_copied(bytes(batch), 0)


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
    logs.logs[KEY].truncate_fully_and_start_at(4, 0)
    return 4


def delete_records(logs: LogManager) -> int:
    logs.logs[KEY].advance_start(WHOLE + 13)
    logs.logs[KEY].delete_old_segments(len(logs.logs[KEY].segments), 0)
    return WHOLE + 13


def move_elsewhere(logs: LogManager) -> int:
    move = begin_move(logs, KEY, logs.dirs.all[1].path, 0)
    assert move is not None
    while (piece := move.next_range(300, 0)) is not None:
        move.copy_range(piece, 0)
    move.replace_current(0, flush=True)
    move.delete_replaced(0)
    return WHOLE + 13


@pytest.mark.parametrize(
    "change", [cut_in_gap, cut_behind_gap, cut_before_gap, cut_all, delete_records, move_elsewhere]
)
def test_records_truncated_or_moved_before_a_clean_shutdown_are_not_lost_records(
    data: Path, caplog: pytest.LogCaptureFixture, change: Callable[[LogManager], int]
) -> None:
    (data / "replication-offset-checkpoint").write_text("0\n1\nt 0 4\n")

    async def run() -> None:
        with started(data, data.with_name("other")) as (logs, _):
            # A batch as a leader sends it after compaction.
            append_from_leader(logs.logs[KEY], WHOLE + 10)
            logs.logs[KEY].flush(0)
            logs.checkpoint_recovery_points()
            end = change(logs)
            assert logs.logs[KEY].end_offset == end
        with started(data, data.with_name("other")) as (logs, _):
            assert logs.logs[KEY].end_offset == end
            assert not logs.dirs.damaged
            append_from_leader(logs.logs[KEY], end)

    with caplog.at_level(logging.WARNING, "tidemill"):
        asyncio.run(run())
    assert not caplog.records


def test_after_an_unclean_shutdown_an_incomplete_end_is_truncated(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {WHOLE - 3}\n")
    last = max((data / "t-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-5])
    start, end, warnings = restarted(data, caplog)
    assert (start, end) == (0, WHOLE - 3)
    assert any(f"the log ends at offset {WHOLE - 3}" in text for text in warnings)
    assert not list((data / "t-0").glob("*.cut"))


async def test_a_recreated_topic_inherits_nothing(data: Path) -> None:
    with started(data) as (logs, replicas):
        list(replicas.deleting("t", bytes([1]) * 16))
        logs.create(KEY, bytes([2]) * 16, SMALL, 0)
        state = PartitionState(0, NODE, 0, (NODE,), (NODE,))
        run_at_once(replicas.put_topic_in_slices("t", bytes([2]) * 16, False, [state], SMALL))
        partition = replicas.find("t", 0)
        assert partition is not None
        assert partition.log.end_offset == 0
