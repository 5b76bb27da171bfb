"""Topics and replicas that the controller's broker cannot delete at the first attempt."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_files import FaultyFiles
from test_controller_requests import NODE, BrokerStage

from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.task_set import TaskSet
from tidemill.server import refused_deletions
from tidemill.server.refused_deletions import RefusedDeletions


async def test_a_failed_topic_deletion_on_the_controllers_broker_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refused_deletions, "RETRY_S", 0.001)
    topic = TopicImage("t", b"1" * 16, (PartitionImage(0, NODE, 0, [NODE], [NODE]),), {})

    confirmed: asyncio.Queue[tuple[int, list[tuple[str, bytes]]]] = asyncio.Queue()

    async def replicas_deleted(broker_id: int, topics: list[tuple[str, bytes]]) -> None:
        confirmed.put_nowait((broker_id, topics))

    with ThreadPoolExecutor(1) as pool:
        one = BrokerStage(pool)
        await one.applier.apply_delta(
            Announcement(Delta(ClusterImage(), ClusterImage(topics={"t": topic}), created=[topic]))
        )
        deleting = ClusterImage(deleting={"t": topic})
        controller: Any = SimpleNamespace(
            image=deleting,
            is_active=True,
            admin_manager=SimpleNamespace(replicas_deleted=replicas_deleted),
        )
        one.broker.controller = controller
        tasks = TaskSet()
        deletions = RefusedDeletions(one.broker, one.applier, tasks)
        listener: Any = one.listener
        listener.topic_deletion_refused = deletions.retry_topic
        listener.replica_deletion_refused = deletions.retry_replica
        files = one.broker.log_manager.files
        assert isinstance(files, FaultyFiles)
        files.fail("rename", "/d/t-0", errno.ENOSPC, times=3)
        announcement = Announcement(Delta(ClusterImage(topics={"t": topic}), deleting, deleted=[topic]))
        await one.applier.apply_delta(announcement)
        # As if a broker had returned meanwhile.
        await one.applier.apply_delta(Announcement(Delta(deleting, deleting, deleted=[topic])))
        assert "t" in announcement.failures
        assert await asyncio.wait_for(confirmed.get(), 10) == (NODE, [("t", b"1" * 16)])
        assert not one.broker.log_manager.logs
        while tasks:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)
        assert confirmed.empty()


@pytest.mark.parametrize("comes_back", ["", "with metadata", "by another controller, without metadata yet"])
async def test_a_failed_replica_deletion_on_the_controllers_broker_is_retried(
    monkeypatch: pytest.MonkeyPatch, comes_back: str
) -> None:
    """If the log stayed, a later reassignment to this broker would restore deleted records."""
    monkeypatch.setattr(refused_deletions, "RETRY_S", 0.05 if comes_back else 0.001)

    def image(*replicas: int, epoch: int) -> ClusterImage:
        partition = PartitionImage(0, replicas[0], epoch, list(replicas), list(replicas), epoch)
        return ClusterImage(topics={"t": TopicImage("t", b"1" * 16, (partition,), {})})

    with ThreadPoolExecutor(1) as pool:
        one = BrokerStage(pool)
        tasks = TaskSet()
        deletions = RefusedDeletions(one.broker, one.applier, tasks)
        listener: Any = one.listener
        listener.topic_deletion_refused = deletions.retry_topic
        listener.replica_deletion_refused = deletions.retry_replica
        here, away, back = image(NODE, 2, epoch=1), image(2, 3, epoch=2), image(2, NODE, epoch=3)
        await one.applier.apply_delta(Announcement(Delta.between(ClusterImage(), here)))
        files = one.broker.log_manager.files
        assert isinstance(files, FaultyFiles)
        files.fail("rename", "/d/t-0", errno.ENOSPC, times=1 if comes_back else 3)
        await one.applier.apply_delta(Announcement(Delta.between(here, away)))
        if comes_back == "with metadata":
            await one.applier.apply_delta(Announcement(Delta.between(away, back)))
        elif comes_back:
            await one.lead("t", b"1" * 16, 0, leader=2, leader_epoch=3)
        async with asyncio.timeout(10):
            while tasks:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.001)
        assert bool(one.broker.log_manager.logs) == bool(comes_back)
        assert (one.broker.replica_manager.find("t", 0) is not None) == bool(comes_back)
