"""A broker's own place: what it carries out although whoever wanted it is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.coordination.image import ClusterImage, Delta, TopicImage
from tidemill.server.seat import Seat


def test_a_change_is_carried_out_whole_though_whoever_decided_it_is_broken_off() -> None:
    async def story() -> None:
        going, done = asyncio.Event(), asyncio.Event()
        carried_out: list[Delta] = []

        async def carry_out(delta: Delta, told: asyncio.Future[None]) -> None:
            await going.wait()
            carried_out.append(delta)
            done.set()

        seat = Seat.__new__(Seat)
        commands: Any = SimpleNamespace(carry_out=carry_out)
        seat.commands = commands
        seat._changes = set()
        delta = Delta(ClusterImage(), ClusterImage())
        decided = asyncio.get_running_loop().create_task(seat.announce(delta))
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

        seat = Seat.__new__(Seat)
        commands: Any = SimpleNamespace(carry_out=carry_out)
        seat.commands = commands
        seat._changes = set()
        image = ClusterImage()
        await seat.announce(Delta(image, image))
        (change,) = seat._changes
        late.set()
        await asyncio.wait([change])
        with pytest.raises(ValueError, match="before"):
            await seat.announce(Delta(image, image, deleted=[TopicImage("t", b"1" * 16, (), {})]))
        assert not seat._changes

    asyncio.run(story())
    (told,) = [record for record in caplog.records if record.exc_info]
    assert "after" in str(told.exc_info)
