"""Many topics in one request: few transactions, and one result per topic."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from controller_stage import (
    Setting,
    started,
    with_controller,
)

from tidemill.controller.topic_batches import PARTITIONS_A_PART
from tidemill.controller.topics import PARTITIONS_PER_REQUEST_MAX, NewTopic
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import (
    Create,
    Delete,
    Operation,
    Result,
    SetData,
    StoreUnavailable,
)
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    TOPICS,
    ConfigNode,
    ControllerEpochNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition

Result_ = TypeVar("Result_")


async def create_all(setting: Setting, names: str) -> list[KafkaError | None]:
    outcomes = await setting.controller.admin_manager.create_topics([NewTopic(name, 1, 1) for name in names])
    return [outcome.error for outcome in outcomes]


async def test_many_topics_are_written_and_removed_in_few_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        transact, sizes = setting.store.transact, []

        async def counted(operations: Sequence[Operation]) -> list[Result]:
            sizes.append(len(operations))
            return await transact(operations)

        monkeypatch.setattr(setting.store, "transact", counted)
        names = [f"t{number}" for number in range(300)]
        made = await setting.controller.admin_manager.create_topics([NewTopic(name, 1, 1) for name in names])
        assert [outcome.error for outcome in made] == [None] * 300
        assert sizes == [501, 501, 501], "each checks the controller epoch"
        sizes.clear()
        gone = await setting.controller.admin_manager.delete_topics(names)
        assert [outcome.error for outcome in gone] == [None] * 300
        assert len(sizes) == 2 * 3, "markers and removals"
        assert await setting.store.children(TOPICS) == []


async def test_a_transaction_without_store_response_is_not_reported_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as setting:
        calls = []

        async def silent(operations: Sequence[Operation]) -> list[Result]:
            calls.append(len(operations))
            raise StoreUnavailable("the connection broke")

        monkeypatch.setattr(setting.store, "transact", silent)
        errors = await create_all(setting, "abc")
        assert [error and error.code for error in errors] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        assert len(calls) == 1, "an uncertain write is not retried"
        monkeypatch.undo()
        assert await create_all(setting, "abc") == [None] * 3


async def test_nodes_added_below_a_topic_are_deleted_with_it(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        assert await create_all(setting, "abc") == [None] * 3
        await setting.store.transact(
            [Create(f"{TopicNode.path('b')}/note"), Delete(ConfigNode.path("topics", "c"))]
        )
        outcomes = await setting.controller.admin_manager.delete_topics("abc")
        assert [outcome.error for outcome in outcomes] == [None] * 3
        assert await setting.store.children(TOPICS) == []
        assert await setting.store.children(DELETE_TOPICS) == []
        assert await setting.store.children("/config/topics") == []
        assert not setting.controller.image.deleting


async def test_an_invalid_topic_does_not_fail_others_of_its_transaction(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        # One topic has settings left from before, and another client has just created one.
        await setting.store.transact(
            [
                Create(ConfigNode.path("topics", "b"), ConfigNode.encode({"retention.ms": "5"})),
                Create(TopicNode.path("c"), TopicNode.encode(TopicAssignment(None, {0: [0]}))),
            ]
        )
        codes = [error and error.code for error in await create_all(setting, "abcd")]
        assert codes == [None, None, ErrorCode.TOPIC_ALREADY_EXISTS, None]
        assert [topic.name for topic in setting.deltas[0].created] == ["a", "b", "d"]
        node = await setting.store.get(ConfigNode.path("topics", "b"))
        assert node is not None
        assert ConfigNode.decode("", node.data) == {}
        image = await load_image(setting.store)
        assert sorted(image.topics) == ["a", "b", "c", "d"]


async def test_a_replaced_controller_rejects_all_topics(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        node = await setting.store.get(CONTROLLER_EPOCH)
        assert node is not None
        epoch = ControllerEpochNode.decode(node.data) + 1
        await setting.store.transact([SetData(CONTROLLER_EPOCH, ControllerEpochNode.encode(epoch))])
        codes = [error and error.code for error in await create_all(setting, "abc")]
        assert codes == [ErrorCode.NOT_CONTROLLER] * 3
        assert await setting.store.children(TOPICS) == []


async def passes_beside(work: Awaitable[Result_]) -> tuple[int, Result_]:
    """Counts the iterations of the event loop during ``work``; returns the count and the result."""
    doing = asyncio.ensure_future(work)
    passes = 0
    while not doing.done():
        passes += 1
        await asyncio.sleep(0)
    return passes, await doing


async def test_the_event_loop_runs_between_the_parts_of_a_large_command(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        controller = setting.controller
        topics = [NewTopic(f"t{number}", 1, 1) for number in range(10 * PARTITIONS_A_PART)]
        requested = [
            controller.admin_manager.create_topics(topics, validate_only=True),
            controller.admin_manager.create_topics(topics),
        ]
        for work in requested:
            passes, outcomes = await passes_beside(work)
            assert [outcome.error for outcome in outcomes] == [None] * len(topics)
            assert passes >= 10
        assert [len(delta.created) for delta in setting.deltas] == [PARTITIONS_A_PART] * 10
        keys = [TopicPartition(topic.name, 0) for topic in topics]
        for wanted in (keys, None):
            passes, results = await passes_beside(controller.leader_elections.elect(wanted))
            assert len(results) == (0 if wanted is None else len(keys))
            assert passes >= 10
        passes, errors = await passes_beside(controller.reassignments.alter(dict.fromkeys(keys)))
        assert {error.code for error in errors.values()} == {ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
        assert len(errors) == len(keys)
        assert passes >= 10
        passes, outcomes = await passes_beside(
            controller.admin_manager.delete_topics([topic.name for topic in topics])
        )
        assert [outcome.error for outcome in outcomes] == [None] * len(topics)
        assert passes >= 10


@pytest.mark.parametrize("validate_only", [True, False])
async def test_name_collisions_and_the_budget_apply_to_all_parts_of_a_command(
    tmp_path: Path, validate_only: bool
) -> None:
    async with started(tmp_path) as setting:
        first = [NewTopic("a.b", 1, 1), *(NewTopic(f"t{number}", 200, 1) for number in range(5))]
        last = [NewTopic("a_b", 1, 1), NewTopic("large", PARTITIONS_PER_REQUEST_MAX - 1000, 1)]
        outcomes = await setting.controller.admin_manager.create_topics(
            first + last, validate_only=validate_only
        )
        codes = [outcome.error and outcome.error.code for outcome in outcomes]
        assert codes == [None] * 6 + [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.POLICY_VIOLATION]


async def test_results_before_a_controller_change_are_returned(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        controller, publish = setting.controller, setting.publish
        names = [f"t{number}" for number in range(3 * PARTITIONS_A_PART)]

        async def replaced(delta: Delta) -> Announcement:
            announcement = await publish(delta)
            if len(setting.deltas) == 2:
                controller.election.resign()
            return announcement

        controller.context._announce = replaced
        outcomes = await controller.admin_manager.create_topics([NewTopic(name, 1, 1) for name in names])
        assert [outcome.name for outcome in outcomes] == names
        made = 2 * PARTITIONS_A_PART
        assert [outcome.error for outcome in outcomes[:made]] == [None] * made
        codes = {outcome.error and outcome.error.code for outcome in outcomes[made:]}
        assert codes == {ErrorCode.NOT_CONTROLLER}
        with pytest.raises(KafkaError, match="not the controller"):
            await controller.admin_manager.delete_topics(names)


def test_errors_of_many_topics_are_freed_without_garbage_collection(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        controller = setting.controller
        made = await controller.admin_manager.create_topics(
            [NewTopic(""), NewTopic("t", 1, 1, {}, {"no.such": "1"})]
        )
        elected = await controller.leader_elections.elect([TopicPartition("t", 5), TopicPartition("u", 0)])
        moved = await controller.reassignments.alter({TopicPartition("t", 5): None})
        errors = [outcome.error for outcome in made] + [*elected.values(), *moved.values()]
        watched = [weakref.ref(error) for error in errors if error is not None]
        assert len(watched) == 5
        del made, elected, moved, errors
        assert [one() for one in watched] == [None] * 5

    gc.disable()
    try:
        with_controller(tmp_path, story)
    finally:
        gc.enable()
