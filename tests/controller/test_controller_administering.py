"""When the controller looks for topics that administrators wrote."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.controller import administering
from tidemill.controller.administering import PUT_OFF_MAX, Administering
from tidemill.coordination.port import NoNode


class Looked:
    """Stands for a controller, and notes when its store is asked."""

    def __init__(self) -> None:
        self.is_changing = True
        self.asked = 0
        self.store = SimpleNamespace(children=self.children)
        self.wanted: asyncio.Queue[str] = asyncio.Queue()

    async def children(self, path: str) -> list[str]:
        self.asked += 1
        raise NoNode(path)


def test_a_look_waits_while_the_controller_itself_changes_topics_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(administering, "LATER_S", 0.0)

    async def story() -> None:
        looked: Any = Looked()
        one = Administering(looked, looked.wanted.put_nowait)
        for _ in range(PUT_OFF_MAX):
            for _ in range(3):
                await one.topics_changed()
            assert looked.asked == 0
            assert await asyncio.wait_for(looked.wanted.get(), 10) == "/brokers/topics"
            assert looked.wanted.empty(), "many events are one look"
        with pytest.raises(NoNode):
            await one.topics_changed()
        await one.topics_changed()
        looked.is_changing = False
        await asyncio.wait_for(looked.wanted.get(), 10)
        with pytest.raises(NoNode):
            await one.topics_changed()
        assert looked.asked == 2

    asyncio.run(story())


def test_a_look_that_was_put_off_ends_with_the_office(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administering, "LATER_S", 0.0)

    async def story() -> None:
        looked: Any = Looked()
        one = Administering(looked, looked.wanted.put_nowait)
        await one.topics_changed()
        one.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        assert looked.wanted.empty()

    asyncio.run(story())
