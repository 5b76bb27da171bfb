"""Checkpoints of high watermarks: writes after few of many changed, and the state after a start."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from test_replica_manager import ALONE, DIRECTORIES, FLUSHED, Stage, made, staged

from tidemill.log.checkpoint_files import read_offsets
from tidemill.log.log_config import LogConfig
from tidemill.model.types import TopicPartition

FILE = "replication-offset-checkpoint"


def written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the directories whose checkpoint is written from now on."""
    found: list[str] = []
    replace = stage.files.replace

    def noted(path: str, data: bytes) -> None:
        if path.endswith(FILE):
            found.append(path.removesuffix(f"/{FILE}"))
        replace(path, data)

    monkeypatch.setattr(stage.files, "replace", noted)
    return found


def stored(stage: Stage) -> dict[str, int]:
    """Returns the contents of the checkpoints by partition."""
    found: dict[TopicPartition, int] = {}
    for directory in DIRECTORIES:
        found |= read_offsets(stage.files, f"{directory}/{FILE}")
    return {str(key): offset for key, offset in found.items()}


def append(stage: Stage, topic: str) -> None:
    stage.partition(topic).append(made(), 1, 0)


def plain(stage: Stage, *names: str) -> None:
    """Creates topics of one partition, in alternating directories."""
    for number, name in enumerate(names):
        stage.topic(name, config=LogConfig(), number=number + 1)


async def test_only_directories_with_changed_high_watermarks_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged() as stage:
        checkpoint = stage.replicas.checkpoints.write_high_watermarks
        plain(stage, "first", "second")
        await checkpoint()
        found = written(stage, monkeypatch)
        await checkpoint()
        assert found == [], "no high watermark has changed"
        append(stage, "second")
        append(stage, "second")
        await checkpoint()
        assert found == ["/disk/b"]
        assert stored(stage) == {"first-0": 0, "second-0": 2}
        append(stage, "second")
        append(stage, "first")
        await checkpoint()
        assert sorted(found[1:]) == ["/disk/a", "/disk/b"]
        assert stored(stage) == {"first-0": 1, "second-0": 3}


async def test_only_changed_high_watermarks_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged() as stage:
        topics = [f"t{number}" for number in range(40)]
        plain(stage, *topics)
        await stage.replicas.checkpoints.write_high_watermarks()
        looked_at: list[Any] = []
        monkeypatch.setattr(
            stage.logs, "set_high_watermark", lambda key, offset: looked_at.append((str(key), offset))
        )
        append(stage, "t7")
        await stage.replicas.checkpoints.write_high_watermarks()
        assert looked_at == [("t7-0", 1)]


async def test_many_high_watermarks_are_collected_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.replication.checkpoint_writer.MOVED_A_TURN", 8)

    async with staged() as stage:
        topics = [f"t{number}" for number in range(40)]
        plain(stage, *topics)
        while stage.replicas.checkpoints.moved:
            await stage.replicas.checkpoints.write_high_watermarks()
        for topic in topics:
            append(stage, topic)
        work = asyncio.create_task(stage.replicas.checkpoints.write_high_watermarks())
        left = [40]
        while not work.done():
            await asyncio.sleep(0)
            left.append(len(stage.replicas.checkpoints.moved))
        assert max(before - after for before, after in pairwise(left)) == 8
        assert stored(stage) == {f"{topic}-0": 1 for topic in topics}


async def test_truncated_deleted_and_recreated_partitions_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged() as stage:
        checkpoint = stage.replicas.checkpoints.write_high_watermarks
        plain(stage, "cut", "gone", "kept")
        for topic in ("cut", "gone", "kept"):
            append(stage, topic)
        await checkpoint()
        stage.partition("cut").truncate_to(0, 0)
        list(stage.replicas.deleting("gone", bytes([2]) * 16))
        await checkpoint()
        assert stored(stage) == {"cut-0": 0, "kept-0": 1}
        stage.topic("gone", config=FLUSHED, number=9)
        await checkpoint()
        assert stored(stage) == {"cut-0": 0, "kept-0": 1, "gone-0": 0}


async def test_a_failed_checkpoint_is_written_on_the_next_run() -> None:
    async with staged() as stage:
        checkpoint = stage.replicas.checkpoints.write_high_watermarks
        plain(stage, "t")
        await checkpoint()
        append(stage, "t")
        stage.files.fail("replace", FILE)
        await checkpoint()
        stage.files.heal()
        assert stored(stage) == {"t-0": 0}
        await checkpoint()
        assert stored(stage) == {"t-0": 1}


async def test_an_unassigned_replica_keeps_its_high_watermark() -> None:
    async with staged() as stage:
        plain(stage, "t")
        append(stage, "t")
        stage.replicas.stop_unassigned(list(stage.replicas.all()), ())
        await stage.replicas.checkpoints.write_high_watermarks()
        assert stored(stage) == {"t-0": 1}
        stage.put("t", bytes([1]) * 16, ALONE)
        assert stage.partition("t").high_watermark == 1
