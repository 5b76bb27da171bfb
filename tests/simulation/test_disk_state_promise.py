"""The checkers detect disks whose content differs from the reports of brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from disk_state_promise import DiskStatePromise, durable_start
from simulated_disk import SimulatedFiles
from simulated_loop import SimulatedLoop

from record_builders import build_batch
from tidemill.log.checkpoint_files import render_checkpoint
from tidemill.log.file_names import (
    BOOT,
    CLEAN_SHUTDOWN,
    LOG,
    LOG_STARTS,
    RECORDS_LOST,
    future_directory,
    offset_name,
)
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log.log_manager import LogManager
from tidemill.model.types import TopicPartition

KEY = TopicPartition("t", 0)


class Disk:
    """A disk with the log of a partition, in segments that begin at these offsets, all on the disk."""

    def __init__(self, *bases: int) -> None:
        self.broken: list[str] = []
        self.promise = DiskStatePromise(lambda name, text: self.broken.append(name))
        clock = SimpleNamespace(time=lambda: 0.0, is_in_job=False, random=None)
        self.files = SimulatedFiles(cast(SimulatedLoop, clock))
        self.files.shrunk = lambda path: self.promise.shrunk("broker-1", self.files, path)
        for directory in ("/data", "/data/t-0"):
            self.files.make_directory(directory)
        for base in bases:
            file = self.files.open(self.segment(base), create=True)
            file.append([bytes(100)])
            file.sync()
        self.sync()

    def segment(self, base: int) -> str:
        return f"/data/t-0/{offset_name(base, LOG)}"

    def sync(self) -> None:
        for directory in ("/", "/data", "/data/t-0"):
            self.files.sync_directory(directory)

    def remove(self, base: int) -> None:
        self.files.rename(self.segment(base), self.segment(base) + ".deleted")

    def opened(self, *, has_lost: bool = False, start: int = 0, segments: tuple[int, ...] = ()) -> None:
        opening = SimpleNamespace(
            files=self.files, has_lost=has_lost, start_offset=start, topic_partition=KEY
        )
        active = SimpleNamespace(base_offset=5)
        log = SimpleNamespace(directory="/data/t-0", start_offset=3, active=active)
        names = [offset_name(base, LOG) for base in segments]
        self.promise.opened("broker-1", cast(LogLoader, opening), cast(Log, log), names)

    def loaded(self, *, was_blank: bool = False, **directory: Any) -> None:
        known = {
            "is_blank": False,
            "may_have_lost": False,
            "meta": None,
            "path": "/data",
            "logs": {KEY: None},
        }
        one = SimpleNamespace(**known | directory, file=lambda name: f"/data/{name}")
        damaged = directory.get("damaged", set())
        logs = SimpleNamespace(dirs=SimpleNamespace(online=[one], distrusted={"an id"}, damaged=damaged))
        self.promise.loaded("broker-1", self.files, cast(LogManager, logs), ["/data"] if was_blank else [])


@pytest.mark.parametrize("is_synced", [True, False])
def test_segments_after_a_truncation_leave_the_disk_before_it_is_flushed(is_synced: bool) -> None:
    disk = Disk(0, 5, 10)
    file = disk.files.open(disk.segment(5))
    disk.remove(10)
    if is_synced:
        disk.files.sync_directory("/data/t-0")
    file.truncate(50)
    file.sync()
    assert disk.broken == ["truncation"] * (not is_synced)


@pytest.mark.parametrize("is_synced", [True, False])
def test_segments_that_a_recovery_removes_leave_the_disk(is_synced: bool) -> None:
    disk = Disk(0, 5, 10)
    disk.remove(10)
    disk.opened()
    assert disk.broken == [], "a process before that has removed it"
    if is_synced:
        disk.files.sync_directory("/data/t-0")
    disk.opened(segments=(0, 5, 10))
    assert disk.broken == ["truncation"] * (not is_synced)


def test_a_log_does_not_start_before_its_stored_log_start_offset() -> None:
    disk = Disk(0)
    disk.opened(start=3)
    assert disk.broken == []
    disk.opened(start=4)
    assert disk.broken == ["log-start"]


@pytest.mark.parametrize("is_noted", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_lost_log_is_recorded_and_reported(is_noted: bool, is_told: bool) -> None:
    disk = Disk(0)
    if is_noted:
        disk.files.replace(f"/data/t-0/{RECORDS_LOST}", b"")
    disk.opened(has_lost=True)
    disk.loaded(damaged={KEY} if is_told else set())
    assert disk.broken == ["reported-loss"] * ((not is_noted) + (not is_told))


def test_an_empty_disk_and_a_failed_flush_are_reported() -> None:
    disk = Disk(0)
    assert not disk.promise.is_blank(disk.files, "/data")
    disk.loaded(was_blank=True)
    disk.loaded(meta=SimpleNamespace(directory_id="an id"))
    assert disk.broken == ["reported-loss"] * 2
    disk.loaded(was_blank=True, is_blank=True)
    disk.loaded(was_blank=True, path="/data2")
    disk.loaded(meta=SimpleNamespace(directory_id="an id"), may_have_lost=True)
    disk.loaded(meta=SimpleNamespace(directory_id="another"))
    assert len(disk.broken) == 2


def test_a_disk_is_empty_until_it_has_a_log_or_a_boot_id() -> None:
    disk = Disk()
    disk.files.remove("/data/t-0")
    assert disk.promise.is_blank(disk.files, "/data")
    copy = f"/data/{future_directory(KEY)}"
    disk.files.make_directory(copy)
    assert not disk.promise.is_blank(disk.files, "/data"), "a log is on its way there"
    disk.files.remove(copy)
    disk.files.replace(f"/data/{BOOT}", b"boot-0")
    assert not disk.promise.is_blank(disk.files, "/data")


def test_a_running_process_has_no_clean_shutdown_file() -> None:
    disk = Disk(0)
    disk.files.replace(f"/data/{CLEAN_SHUTDOWN}", b"")
    disk.loaded()
    assert disk.broken == ["restart"]


@pytest.mark.parametrize(("start", "is_broken"), [(5, False), (7, False), (8, True)])
def test_a_reported_log_start_offset_survives_a_power_failure(start: int, is_broken: bool) -> None:
    disk = Disk(5, 10)
    disk.files.replace(f"/data/{LOG_STARTS}", render_checkpoint(["t 0 7"]))
    disk.remove(5)
    assert durable_start(disk.files, "t-0") == 7
    known = SimpleNamespace(followers={2: SimpleNamespace(start_offset=start)})
    leader = mock.Mock(replication=known, log=SimpleNamespace(directory="/data/t-0"))
    disk.promise.look("broker-1", leader, lambda broker: disk.files)
    assert disk.broken == ["reported-log-start"] * is_broken


SEGMENT = build_batch([(40, b"k", b"v", None)])


@pytest.mark.parametrize(
    ("config", "high_watermark", "start", "is_broken"),
    [
        (LogConfig(retention_bytes=2 * len(SEGMENT)), 15, 0, False),
        (LogConfig(retention_bytes=2 * len(SEGMENT) + 1), 15, 0, True),
        (LogConfig(retention_bytes=2 * len(SEGMENT)), 10, 0, True),
        (LogConfig(retention_bytes=len(SEGMENT)), 10, 0, False),
        (LogConfig(retention_bytes=2 * len(SEGMENT)), 4, 0, True),
        (LogConfig(retention_bytes=-1, retention_ms=50), 15, 0, False),
        (LogConfig(retention_bytes=-1, retention_ms=60), 15, 0, True),
        (LogConfig(retention_bytes=-1, retention_ms=-1), 15, 5, False),
        (LogConfig(retention_bytes=-1, retention_ms=-1), 15, 4, True),
        (LogConfig(retention_bytes=0, retention_ms=0, cleanup_policy=("compact",)), 15, 4, True),
    ],
)
def test_retention_removes_segments_by_time_and_by_size(
    config: LogConfig, high_watermark: int, start: int, is_broken: bool
) -> None:
    disk = Disk()
    segments = []
    for base in (0, 5, 10):
        data = build_batch([(40, b"k", b"v", None)], base_offset=base)
        disk.files.open(disk.segment(base), create=True).append([data])
        segments.append(SimpleNamespace(base_offset=base, size=len(data)))
    log = SimpleNamespace(
        segment_list=SimpleNamespace(files=disk.files),
        directory="/data/t-0",
        segments=segments,
        start_offset=start,
        end_offset=15,
        config=config,
    )
    disk.promise.expired("broker-1", cast(Log, log), 1, high_watermark, 100)
    assert disk.broken == ["retention"] * is_broken
