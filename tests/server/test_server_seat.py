"""A broker's own place: what it carries out although whoever wanted it is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidemill.coordination.image import ClusterImage, Delta
from tidemill.server.seat import Seat


def test_a_change_is_carried_out_whole_though_whoever_decided_it_is_broken_off() -> None:
    async def story() -> None:
        going, done = asyncio.Event(), asyncio.Event()
        carried_out: list[Delta] = []

        async def carry_out(delta: Delta) -> None:
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
