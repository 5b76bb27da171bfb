"""The connection to the controller: who asks over it, and what he is told where there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidemill.broker import controller_link
from tidemill.broker.controller_link import ControllerLink
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.net.link import Link, LinkError

OWN, FIRST, SECOND = 1, 2, 3


class Connection:
    """What stands for a link: it answers with the broker that it leads to."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.closed = ""
        self.on_close: Callable[[str], None] | None = None

    def version_of(self, key: int, lowest: int, highest: int) -> int:
        return highest

    def close(self, reason: str) -> None:
        if not self.closed:
            self.closed = reason
            if self.on_close is not None:
                self.on_close(reason)

    async def ask(self, key: int, version: int, request: Any, timeout_s: float) -> int:
        if self.closed:
            raise LinkError(f"broker {self.broker}: {self.closed}")
        return self.broker


class Brokers:
    """Takes connections, but for brokers that stand still."""

    def __init__(self, *still: int) -> None:
        self.still = still
        self.connections: list[Connection] = []

    async def connect(self, broker: int) -> Link:
        if broker in self.still:
            await asyncio.Event().wait()
        self.connections.append(Connection(broker))
        link: Any = self.connections[-1]
        return link


def linked(brokers: Brokers, story: Callable[[ControllerLink], Awaitable[None]]) -> None:
    async def run() -> None:
        link = ControllerLink(OWN, brokers.connect, lambda broker: None)
        try:
            async with asyncio.timeout(10):
                await story(link)
        finally:
            link.stop()

    asyncio.run(run())


async def asked(link: ControllerLink) -> Any:
    return await link.ask(0, (0, 0), object())


def refused(problem: pytest.ExceptionInfo[KafkaError]) -> str:
    assert problem.value.code == ErrorCode.NOT_CONTROLLER
    return str(problem.value)


def test_who_asks_reaches_whoever_is_the_controller_then() -> None:
    brokers = Brokers()

    async def story(link: ControllerLink) -> None:
        link.set_controller(FIRST)
        assert await asked(link) == FIRST
        link.set_controller(SECOND)
        assert brokers.connections[0].closed
        assert await asked(link) == SECOND

    linked(brokers, story)


def test_a_connection_that_ended_is_followed_by_another() -> None:
    brokers = Brokers()

    async def story(link: ControllerLink) -> None:
        link.set_controller(FIRST)
        assert await asked(link) == FIRST
        brokers.connections[0].close("it broke")
        assert await asked(link) == FIRST

    linked(brokers, story)
    assert len(brokers.connections) == 2


def test_the_controller_itself_and_who_knows_of_none_ask_nobody() -> None:
    async def story(link: ControllerLink) -> None:
        for controller in (-1, OWN):
            link.set_controller(controller)
            with pytest.raises(KafkaError) as problem:
                await asked(link)
            assert "no other broker is known to be it" in refused(problem)

    linked(Brokers(), story)


def test_who_waits_for_a_controller_that_stands_still_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_link, "REACH_S", 0.01)

    async def story(link: ControllerLink) -> None:
        link.set_controller(FIRST)
        with pytest.raises(KafkaError) as problem:
            await asked(link)
        assert "broker 2 has not taken a connection within 0.01 s" in refused(problem)

    linked(Brokers(FIRST), story)


def test_who_waits_for_a_controller_is_told_that_it_is_replaced() -> None:
    async def story(link: ControllerLink) -> None:
        link.set_controller(FIRST)
        waiting = asyncio.create_task(asked(link))
        await asyncio.sleep(0)
        link.set_controller(SECOND)
        with pytest.raises(KafkaError) as problem:
            await waiting
        assert "another broker has become it" in refused(problem)

    linked(Brokers(FIRST), story)


def test_who_is_broken_off_while_he_waits_is_not_told_anything() -> None:
    async def story(link: ControllerLink) -> None:
        link.set_controller(FIRST)
        waiting = asyncio.create_task(asked(link))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    linked(Brokers(FIRST), story)
