"""A broker's own place: what it carries out although whoever wanted it is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.broker import Broker
from tidemill.broker.held_answers import HeldAnswers
from tidemill.coordination.image import ClusterImage, Delta, TopicImage
from tidemill.model.errors import StorageError
from tidemill.server import seat
from tidemill.server.cluster import Cluster
from tidemill.server.seat import Seat


def test_a_change_is_carried_out_whole_though_whoever_decided_it_is_broken_off() -> None:
    async def story() -> None:
        going, done = asyncio.Event(), asyncio.Event()
        carried_out: list[Delta] = []

        async def carry_out(delta: Delta, told: asyncio.Future[None]) -> None:
            await going.wait()
            carried_out.append(delta)
            done.set()

        place = Seat.__new__(Seat)
        commands: Any = SimpleNamespace(carry_out=carry_out)
        place.commands = commands
        place._changes = set()
        delta = Delta(ClusterImage(), ClusterImage())
        decided = asyncio.get_running_loop().create_task(place.announce(delta))
        await asyncio.sleep(0)
        decided.cancel()
        await asyncio.gather(decided, return_exceptions=True)
        assert decided.cancelled()
        going.set()
        await asyncio.wait_for(done.wait(), 10)
        assert carried_out == [delta]

    asyncio.run(story())


def test_a_change_is_announced_once_it_is_told_and_fails_only_before_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        late = asyncio.Event()

        async def carry_out(delta: Delta, told: asyncio.Future[None]) -> None:
            if delta.deleted:
                raise ValueError("before")
            told.set_result(None)
            await late.wait()
            raise ValueError("after")

        place = Seat.__new__(Seat)
        commands: Any = SimpleNamespace(carry_out=carry_out)
        place.commands = commands
        place._changes = set()
        image = ClusterImage()
        await place.announce(Delta(image, image))
        (change,) = place._changes
        late.set()
        await asyncio.wait([change])
        with pytest.raises(ValueError, match="before"):
            await place.announce(Delta(image, image, deleted=[TopicImage("t", b"1" * 16, (), {})]))
        assert not place._changes

    asyncio.run(story())
    (told,) = [record for record in caplog.records if record.exc_info]
    assert "after" in str(told.exc_info)


class Place(Seat):
    """A broker whose new data directory cannot be signed, so many times."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.cleared = asyncio.Event()
        logs: Any = SimpleNamespace(missed=0, accept=self.accept, loss_heeded=lambda: None)
        self._broker = Broker()
        self._broker.logs = logs
        self._tasks = set()
        commands: Any = SimpleNamespace(heard=asyncio.Event())
        self.commands = commands
        saving: Any = SimpleNamespace(save_for_sure=self.saved)
        self.distrusted = self.starts = saving
        membership: Any = SimpleNamespace(clear_loss=self.clear_loss)
        self.membership = membership

    def accept(self) -> None:
        self.refused -= 1
        if self.refused >= 0:
            raise StorageError("cannot write /d/meta.properties: No space left on device")

    async def saved(self) -> None:
        pass

    async def clear_loss(self) -> None:
        assert self.refused < 0
        self.cleared.set()


@pytest.mark.parametrize("is_late", [False, True])
def test_replicas_that_were_lost_count_again_once_a_full_disk_has_room(
    is_late: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seat, "AGAIN_S", 0.001)
    monkeypatch.setattr(seat, "FIRST_COMMAND_S", 0.01)

    async def story() -> None:
        place = Place(3)
        if not is_late:
            place.commands.heard.set()
        await place.wait_told()
        place.commands.heard.set()
        await asyncio.wait_for(place.cleared.wait(), 10)

    asyncio.run(story())
    assert sum("No space left" in one for one in caplog.messages) == 3


def test_work_that_fails_behind_everybodys_back_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError("a fault of this program")

    async def story() -> None:
        place = Place(0)
        place.begin(work())
        await asyncio.wait(place._tasks)
        await asyncio.sleep(0)
        assert not place._tasks

    asyncio.run(story())
    (told,) = [record for record in caplog.records if record.name == "tidemill.server" and record.exc_info]
    assert "a fault of this program" in str(told.exc_info)


def test_a_change_that_is_carried_out_after_the_stop_follows_nobody() -> None:
    """The logs are closed then, and what is appended would not be synced."""

    async def ends() -> None:
        pass

    async def story() -> None:
        place = Cluster.__new__(Cluster)
        place._broker = Broker()
        followed: list[Any] = []

        async def stop_following() -> None:
            followed.append(partitions.following)

        following: Any = SimpleNamespace(stop=stop_following)
        partitions: Any = SimpleNamespace(following=following)
        part: Any = SimpleNamespace(stop=lambda: None)
        left: Any = SimpleNamespace(stop=ends, leave=ends, resign=lambda: None)
        place._broker.partitions = partitions
        place._broker.controller = place._settings = place.membership = left
        place._isr_changes = place._link = part
        place._held = HeldAnswers()
        place._silence, place._following = None, following
        place._tasks, place._changes = set(), set()
        await place.stop()
        assert followed == [None]
        assert partitions.following is None

    asyncio.run(story())
