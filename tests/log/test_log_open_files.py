"""More partitions than descriptors: what logs hold is bounded, and nothing that is under way breaks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.log import segment, sparse_index
from tidemill.log.config import LogConfig
from tidemill.log.files import SystemFiles
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.open_files import OpenFiles
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch

NOW = 1_700_000_000_000


class Holder:
    def __init__(self) -> None:
        self.touched = False
        self.lets_go = 0

    def let_go(self) -> None:
        self.lets_go += 1


def test_who_was_not_touched_for_longest_lets_go_first() -> None:
    some = OpenFiles(8)
    holders = [Holder() for _ in range(8)]
    for one in holders:
        some.opened(one)
    for one in holders[:4]:
        one.touched = True
    some.opened(Holder())
    assert [one.lets_go for one in holders] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert len(some) == 7


def test_when_all_are_in_use_room_is_made_all_the_same() -> None:
    some = OpenFiles(8)
    for _ in range(100):
        one = Holder()
        one.touched = True
        some.opened(one)
    assert len(some) <= 8
    assert some.let_go_count == 100 - len(some)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> OpenFiles:
    """A process whose logs may hold 16 descriptors."""
    some = OpenFiles(16)
    monkeypatch.setattr(segment, "OPEN_FILES", some)
    monkeypatch.setattr(sparse_index, "OPEN_FILES", some)
    return some


def descriptors_under(path: Path) -> int:
    return sum(
        os.readlink(f"/proc/self/fd/{name}").startswith(str(path))
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_writing_and_reading_many_partitions_holds_few_descriptors(
    few: OpenFiles, tmp_path: Path, batch: Callable[..., Batch]
) -> None:
    manager = LogManager(SystemFiles(), [str(tmp_path)])
    manager.load(NOW, lambda topic: LogConfig())
    config = LogConfig(index_interval_bytes=0, segment_bytes=300)
    logs = [manager.create(TopicPartition("t", at), b"t" * 16, config, NOW) for at in range(40)]
    for turn in range(6):
        for log in logs:
            log.append([batch(1, timestamp=NOW + turn)], 0, NOW)
            assert descriptors_under(tmp_path) <= 16
    for offset in range(6):
        for log in logs:
            piece = log.read(offset, 1000, 6, True)
            assert piece is not None
            assert piece.read()[:8] == offset.to_bytes(8, "big")
            assert log.offset_for_timestamp(NOW + offset) == (NOW + offset, offset)
        assert descriptors_under(tmp_path) <= 16 + 1
    assert few.let_go_count > 100
    assert manager.close(NOW, {}) == []


def test_a_range_that_is_being_sent_outlives_its_segment_letting_go(
    log_of: Callable[..., Log], batch: Callable[..., Batch]
) -> None:
    log = log_of()
    log.append([batch()], 0, NOW)
    piece = log.read(0, 1000, 1, True)
    assert piece is not None
    log.release()
    log.append([batch()], 0, NOW)
    assert piece.read()[:8] == bytes(8)
    assert log.read(1, 1000, 2, True) is not None


def test_what_a_failed_append_left_is_cut_off_although_the_file_was_closed_meanwhile(
    log_of: Callable[..., Log], batch: Callable[..., Batch]
) -> None:
    log = log_of()
    log.append([batch()], 0, NOW)
    log.release()
    with open(log.active.path, "ab") as file:
        file.write(b"torn off")
    log.append([batch()], 0, NOW)
    piece = log.read(1, 1000, 2, True)
    assert piece is not None
    assert piece.read()[:8] == (1).to_bytes(8, "big")


SMALL = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    from tidemill.log.config import LogConfig
    from tidemill.log.files import SystemFiles
    from tidemill.log.manager import LogManager
    from tidemill.model.types import TopicPartition
    from tidemill.records.batch import parse_batch
    from tidemill.records.builder import build_batch

    data = build_batch([(1, b"k", b"v", None)])
    batch = parse_batch(data, 0, len(data))
    directories = sys.argv[1:]
    for life in range(3):
        manager = LogManager(SystemFiles(), directories)
        manager.lock()
        manager.claim("c" * 22, 1)
        manager.load(0, lambda topic: LogConfig())
        for at in range(300):
            log = manager.create(TopicPartition("t", at), b"t" * 16, LogConfig(index_interval_bytes=0), 0)
            assert log.append([batch], 0, 0).base_offset == 2 * life, at
            assert log.append([batch], 0, 0).base_offset == 2 * life + 1, at
        for log in manager.logs.values():
            assert log.read(0, 1000, log.end_offset, True).read()
        assert manager.close(0, {}) == []
        assert manager.recovered_bytes == 0
    print("done")
"""


def test_a_process_with_fewer_descriptors_than_partitions_goes_on_working(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SMALL), str(tmp_path / "a"), str(tmp_path / "b")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "done\n", done.stderr
