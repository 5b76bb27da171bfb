"""Changes that do not fit into one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tidemill.controller.shell import Controller
from tidemill.controller.topics import NewTopic
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import Delta
from tidemill.coordination.loading import load_image
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.pieces import OPERATIONS_MAX
from tidemill.coordination.port import Operation, Result, StoreUnavailable
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

PARTITIONS = OPERATIONS_MAX


async def nobody_told(delta: Delta) -> None:
    """There is no broker to tell."""


async def opened(directory: Path) -> tuple[EmbeddedStore, Controller]:
    """A controller in office."""
    store = EmbeddedStore.open(str(directory / "coordination.db"))
    controller = Controller(store, 1, BrokerConfig.of, nobody_told, SystemClock(), Random(1))
    await controller.load()
    await controller.register(BrokerRegistration(1, ()))
    await controller.activate()
    return store, controller


def test_a_topic_of_many_partitions_is_made_moved_and_deleted_in_pieces(tmp_path: Path) -> None:
    async def story() -> None:
        store, controller = await opened(tmp_path)
        try:
            (outcome,) = await controller.create_topics([NewTopic("t", PARTITIONS, 1)])
            assert outcome.error is None
            stored = (await load_image(store)).topics["t"]
            assert [one.leader for one in stored.partitions] == [1] * PARTITIONS
            wishes = {TopicPartition("t", number): [1] for number in range(PARTITIONS)}
            assert await controller.moves.alter(wishes) == {}
            (outcome,) = await controller.delete_topics(["t"])
            assert outcome.error is None
            assert not await store.exists("/brokers/topics/t")
        finally:
            controller.resign()
            await store.close()

    asyncio.run(story())


def test_what_stops_half_way_is_finished_before_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store, controller = await opened(tmp_path)
        write, pieces = store.transact, 0

        async def only_one_piece(operations: Sequence[Operation]) -> list[Result]:
            nonlocal pieces
            pieces += 1
            if pieces == 2:
                raise StoreUnavailable("gone for a moment")
            return await write(operations)

        try:
            monkeypatch.setattr(store, "transact", only_one_piece)
            (outcome,) = await controller.create_topics([NewTopic("t", PARTITIONS, 1)])
            assert outcome.error is not None
            assert outcome.error.code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "t" not in controller.image.topics
            (again,) = await controller.create_topics([NewTopic("t", PARTITIONS, 1)])
            assert again.error is not None
            assert again.error.code == ErrorCode.TOPIC_ALREADY_EXISTS
            assert [one.leader for one in controller.image.topics["t"].partitions] == [1] * PARTITIONS
            stored = (await load_image(store)).topics["t"]
            assert [one.leader for one in stored.partitions] == [1] * PARTITIONS
        finally:
            controller.resign()
            await store.close()

    asyncio.run(story())


def test_a_controller_that_loses_its_office_amid_a_large_change_writes_no_more_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store, controller = await opened(tmp_path)
        write, pieces = store.transact, 0

        async def expires_with_the_first(operations: Sequence[Operation]) -> list[Result]:
            nonlocal pieces
            pieces += 1
            results = await write(operations)
            controller.resign()
            return results

        try:
            monkeypatch.setattr(store, "transact", expires_with_the_first)
            (outcome,) = await controller.create_topics([NewTopic("t", PARTITIONS, 1)])
            assert outcome.error is not None
            assert outcome.error.code == ErrorCode.NOT_CONTROLLER
            assert pieces == 1
        finally:
            await store.close()

    asyncio.run(story())
