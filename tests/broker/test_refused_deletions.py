"""Topics and replicas that the controller's own broker cannot delete at once."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from test_commands import NODE, Commanded

from tidemill.coordination.image import ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.server import seat
from tidemill.server.seat import Seat
from tidemill.testing.files import FaultyFiles


def test_a_topic_that_the_controllers_own_broker_cannot_delete_at_first_is_deleted_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seat, "AGAIN_S", 0.001)
    topic = TopicImage("t", b"1" * 16, (PartitionImage(0, NODE, 0, [NODE], [NODE]),), {})

    async def story() -> None:
        confirmed: asyncio.Queue[tuple[int, list[tuple[str, bytes]]]] = asyncio.Queue()

        async def replicas_deleted(broker_id: int, topics: list[tuple[str, bytes]]) -> None:
            confirmed.put_nowait((broker_id, topics))

        with ThreadPoolExecutor(1) as pool:
            one = Commanded(pool)
            await one.commands.carry_out(
                Delta(ClusterImage(), ClusterImage(topics={"t": topic}), created=[topic])
            )
            deleting = ClusterImage(deleting={"t": topic})
            controller: Any = SimpleNamespace(
                image=deleting, is_active=True, replicas_deleted=replicas_deleted
            )
            place = Seat.__new__(Seat)
            place._tasks, place._deleting = set(), set()
            place._broker = one.broker
            one.broker.controller = controller
            place.commands = one.commands
            one.commands.deletion_refused = place._deletion_refused
            files = one.broker.logs.files
            assert isinstance(files, FaultyFiles)
            files.fail("rename", "/d/t-0", errno.ENOSPC, times=3)
            delta = Delta(ClusterImage(topics={"t": topic}), deleting, deleted=[topic])
            await one.commands.carry_out(delta)
            # As when a broker returns meanwhile.
            await one.commands.carry_out(Delta(deleting, deleting, deleted=[topic]))
            assert "t" in delta.failures
            assert await asyncio.wait_for(confirmed.get(), 10) == (NODE, [("t", b"1" * 16)])
            assert not one.broker.logs.logs
            while place._tasks:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
            assert confirmed.empty()

    asyncio.run(story())


@pytest.mark.parametrize("comes_back", ["", "with metadata", "by another controller, without metadata yet"])
def test_a_replica_that_the_controllers_own_broker_cannot_delete_when_it_is_moved_away_goes_in_the_end(
    monkeypatch: pytest.MonkeyPatch, comes_back: str
) -> None:
    """If it stayed, a move back would bring back what was deleted and compacted meanwhile."""
    monkeypatch.setattr(seat, "AGAIN_S", 0.05 if comes_back else 0.001)

    def image(*replicas: int, epoch: int) -> ClusterImage:
        partition = PartitionImage(0, replicas[0], epoch, list(replicas), list(replicas), epoch)
        return ClusterImage(topics={"t": TopicImage("t", b"1" * 16, (partition,), {})})

    async def story() -> None:
        with ThreadPoolExecutor(1) as pool:
            one = Commanded(pool)
            place = Seat.__new__(Seat)
            place._tasks, place._letting_go = set(), set()
            place._broker, place.commands = one.broker, one.commands
            one.commands.let_go_refused = place._let_go_refused
            here, away, back = image(NODE, 2, epoch=1), image(2, 3, epoch=2), image(2, NODE, epoch=3)
            await one.commands.carry_out(Delta.between(ClusterImage(), here))
            files = one.broker.logs.files
            assert isinstance(files, FaultyFiles)
            files.fail("rename", "/d/t-0", errno.ENOSPC, times=1 if comes_back else 3)
            await one.commands.carry_out(Delta.between(here, away))
            if comes_back == "with metadata":
                await one.commands.carry_out(Delta.between(away, back))
            elif comes_back:
                await one.lead("t", b"1" * 16, 0, leader=2, leader_epoch=3)
            async with asyncio.timeout(10):
                while place._tasks:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.001)
            assert bool(one.broker.logs.logs) == bool(comes_back)
            assert (one.broker.partitions.find("t", 0) is not None) == bool(comes_back)

    asyncio.run(story())
