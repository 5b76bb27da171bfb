"""When the controller looks for topics that administrators wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controller_office import Setting, in_office

from tidemill.controller import administering
from tidemill.controller.administering import PUT_OFF_MAX, Administering
from tidemill.controller.topics import NewTopic
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


def test_the_controllers_own_marks_are_no_administrators(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(setting: Setting) -> None:
        controller = setting.controller
        names = [f"t{number}" for number in range(9)]
        await controller.create_topics([NewTopic(name, 1, 1) for name in names])
        one = Administering(controller, lambda path: None)
        _, outcomes = await asyncio.gather(one.deletions_wanted(), controller.delete_topics(names))
        assert [outcome.error for outcome in outcomes] == [None] * 9
        deleting = asyncio.get_running_loop().create_task(controller.delete_topics(names))
        made = asyncio.get_running_loop().create_task(
            controller.create_topics([NewTopic(name, 1, 1) for name in names])
        )
        await one.deletions_wanted()
        await asyncio.gather(deleting, made)
        assert sorted(controller.image.topics) == names

    in_office(tmp_path, story)
    assert not [record for record in caplog.records if "is not deleted" in record.getMessage()]
