"""More partitions than descriptors: open files are bounded, and operations in progress do not fail."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from log_stage import NOW, MakeBatch, MakeLog

from tidemill.log import log_segment, sparse_index
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.open_files import OpenFiles
from tidemill.log.system_files import SystemFiles
from tidemill.model.types import TopicPartition


class Holder:
    def __init__(self) -> None:
        self.touched = False
        self.lets_go = 0

    def close_idle(self) -> None:
        self.lets_go += 1


def test_the_least_recently_used_file_is_closed_first() -> None:
    some = OpenFiles(8)
    holders = [Holder() for _ in range(8)]
    for one in holders:
        some.opened(one)
    for one in holders[:4]:
        one.touched = True
    some.opened(Holder())
    assert [one.lets_go for one in holders] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert len(some.held) == 7


def test_a_file_is_opened_above_the_limit_when_all_are_in_use() -> None:
    some = OpenFiles(8)
    holders = [Holder() for _ in range(100)]
    for one in holders:
        one.touched = True
        some.opened(one)
    assert len(some.held) <= 8
    assert sum(one.lets_go for one in holders) == 100 - len(some.held)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> OpenFiles:
    """A process whose logs may hold 16 descriptors."""
    some = OpenFiles(16)
    monkeypatch.setattr(log_segment, "OPEN_FILES", some)
    monkeypatch.setattr(sparse_index, "OPEN_FILES", some)
    return some


def descriptors_under(path: Path) -> int:
    return sum(
        os.readlink(f"/proc/self/fd/{name}").startswith(str(path))
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_writing_and_reading_many_partitions_uses_few_descriptors(
    few: OpenFiles, tmp_path: Path, batch: MakeBatch
) -> None:
    manager = LogManager(SystemFiles(), [str(tmp_path)])
    manager.load(NOW, lambda topic: LogConfig())
    config = LogConfig(index_interval_bytes=0, segment_bytes=300)
    logs = [manager.create(TopicPartition("t", at), b"t" * 16, config, NOW) for at in range(40)]
    for turn in range(6):
        for log in logs:
            log.append(batch(1, timestamp=NOW + turn), 0, NOW)
            assert descriptors_under(tmp_path) <= 16
    for offset in range(6):
        for log in logs:
            piece = log.read(offset, 1000, 6, True)
            assert piece is not None
            assert piece.read()[:8] == offset.to_bytes(8, "big")
            assert log.offset_for_timestamp(NOW + offset) == (NOW + offset, offset)
        assert descriptors_under(tmp_path) <= 16 + 1
    assert len(few.held) <= 16
    assert manager.close(NOW, {}) == []


def test_a_range_in_transmission_survives_closing_its_segment(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append(batch(), 0, NOW)
    piece = log.read(0, 1000, 1, True)
    assert piece is not None
    log.close_handlers()
    log.append(batch(), 0, NOW)
    assert piece.read()[:8] == bytes(8)
    assert log.read(1, 1000, 2, True) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_indexes_are_mapped_while_their_files_are_being_renamed(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of({"index_interval_bytes": 0, "segment_bytes": 400})
    for number in range(10):
        log.append(batch(1, timestamp=NOW + number), 0, NOW)
    segment = log.segments[0]
    indexes = (segment.index, segment.time_index)

    def are_mapped() -> list[bool]:
        for index in indexes:
            index.close_idle()
        maps = Path("/proc/self/maps").read_text()
        return [index.path in maps for index in indexes]

    segment.pin()
    assert are_mapped() == [True, True]
    segment.unpin()
    assert are_mapped() == [False, False]


def test_a_failed_append_is_truncated_after_the_file_was_closed(log_of: MakeLog, batch: MakeBatch) -> None:
    log = log_of()
    log.append(batch(), 0, NOW)
    log.close_handlers()
    with open(log.active.path, "ab") as file:
        file.write(b"torn off")
    log.append(batch(), 0, NOW)
    piece = log.read(1, 1000, 2, True)
    assert piece is not None
    assert piece.read()[:8] == (1).to_bytes(8, "big")


SMALL = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    from tidemill.log.log_config import LogConfig
    from tidemill.log.system_files import SystemFiles
    from tidemill.log.log_manager import LogManager
    from tidemill.model.types import TopicPartition
    from tidemill.records.batch import parse_batch
    from record_builders import build_batch

    data = build_batch([(1, b"k", b"v", None)])
    batch = parse_batch(data, 0, len(data))
    directories = sys.argv[1:]
    for life in range(3):
        manager = LogManager(SystemFiles(), directories)
        manager.dirs.lock()
        manager.dirs.claim("c" * 22, 1)
        manager.load(0, lambda topic: LogConfig())
        for at in range(300):
            log = manager.create(TopicPartition("t", at), b"t" * 16, LogConfig(index_interval_bytes=0), 0)
            assert log.append(batch, 0, 0).base_offset == 2 * life, at
            assert log.append(batch, 0, 0).base_offset == 2 * life + 1, at
        for log in manager.logs.values():
            assert log.read(0, 1000, log.end_offset, True).read()
        assert manager.close(0, {}) == []
        assert manager.recovered_bytes == 0
    print("done")
"""


def test_a_process_works_with_fewer_descriptors_than_partitions(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SMALL), str(tmp_path / "a"), str(tmp_path / "b")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "done\n", done.stderr
