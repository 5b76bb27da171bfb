"""Changes that do not fit into one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from controller_stage import Setting, delete, started

from tidemill.controller.topics import NewTopic
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import Operation, Result, StoreUnavailable
from tidemill.coordination.write_batches import OPERATIONS_MAX
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

PARTITIONS = OPERATIONS_MAX


async def create_large(setting: Setting) -> ErrorCode | None:
    """Creates a topic that does not fit into one transaction; returns the error code."""
    (outcome,) = await setting.controller.admin_manager.create_topics([NewTopic("t", PARTITIONS, 1)])
    return None if outcome.error is None else outcome.error.code


async def test_a_large_topic_is_created_reassigned_and_deleted_in_several_transactions(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        assert await create_large(setting) is None
        stored = (await load_image(setting.store)).topics["t"]
        assert [one.leader for one in stored.partitions] == [0] * PARTITIONS
        targets = {TopicPartition("t", number): [0] for number in range(PARTITIONS)}
        assert await setting.controller.reassignments.alter(targets) == {}
        assert await delete(setting, "t") is None
        assert not await setting.store.exists("/brokers/topics/t")


async def test_a_partial_change_is_completed_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        store, controller = setting.store, setting.controller
        write, pieces = store.transact, 0

        async def only_one_piece(operations: Sequence[Operation]) -> list[Result]:
            nonlocal pieces
            pieces += 1
            if pieces == 2:
                raise StoreUnavailable("gone for a moment")
            return await write(operations)

        monkeypatch.setattr(store, "transact", only_one_piece)
        assert await create_large(setting) == ErrorCode.KAFKA_STORAGE_ERROR
        assert "t" not in controller.image.topics
        assert await create_large(setting) == ErrorCode.TOPIC_ALREADY_EXISTS
        assert [one.leader for one in controller.image.topics["t"].partitions] == [0] * PARTITIONS
        stored = (await load_image(store)).topics["t"]
        assert [one.leader for one in stored.partitions] == [0] * PARTITIONS


async def test_a_controller_replaced_amid_a_large_change_stops_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        write, pieces = setting.store.transact, 0

        async def expires_with_the_first(operations: Sequence[Operation]) -> list[Result]:
            nonlocal pieces
            pieces += 1
            results = await write(operations)
            setting.controller.election.resign()
            return results

        monkeypatch.setattr(setting.store, "transact", expires_with_the_first)
        assert await create_large(setting) == ErrorCode.NOT_CONTROLLER
        assert pieces == 1
