"""Many topics in one command: written in few transactions, each answered for itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from controller_office import Setting, in_office

from tidemill.controller.topics import NewTopic
from tidemill.coordination.loading import load_image
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    TOPICS,
    ConfigNode,
    ControllerEpochNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import Create, Delete, Operation, Result, SetData, StoreUnavailable
from tidemill.model.errors import ErrorCode, KafkaError


async def create(setting: Setting, names: str) -> list[KafkaError | None]:
    outcomes = await setting.controller.create_topics([NewTopic(name, 1, 1) for name in names])
    return [outcome.error for outcome in outcomes]


def test_many_topics_are_written_and_removed_in_few_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        transact, sizes = setting.store.transact, []

        async def counted(operations: Sequence[Operation]) -> list[Result]:
            sizes.append(len(operations))
            return await transact(operations)

        monkeypatch.setattr(setting.store, "transact", counted)
        names = [f"t{number}" for number in range(300)]
        made = await setting.controller.create_topics([NewTopic(name, 1, 1) for name in names])
        assert [outcome.error for outcome in made] == [None] * 300
        assert sizes == [1001, 501], "each with a check of the controller's epoch"
        sizes.clear()
        gone = await setting.controller.delete_topics(names)
        assert [outcome.error for outcome in gone] == [None] * 300
        assert len(sizes) == 3
        assert await setting.store.children(TOPICS) == []

    in_office(tmp_path, story)


def test_where_the_store_does_not_answer_none_of_its_transaction_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(setting: Setting) -> None:
        calls = []

        async def silent(operations: Sequence[Operation]) -> list[Result]:
            calls.append(len(operations))
            raise StoreUnavailable("the connection broke")

        monkeypatch.setattr(setting.store, "transact", silent)
        errors = await create(setting, "abc")
        assert [error and error.code for error in errors] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        assert len(calls) == 1, "what may have been written is not tried again"
        monkeypatch.undo()
        assert await create(setting, "abc") == [None] * 3

    in_office(tmp_path, story)


def test_what_somebody_put_below_a_topic_goes_with_it(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        assert await create(setting, "abc") == [None] * 3
        await setting.store.transact(
            [Create(f"{TopicNode.path('b')}/note"), Delete(ConfigNode.path("topics", "c"))]
        )
        outcomes = await setting.controller.delete_topics("abc")
        assert [outcome.error for outcome in outcomes] == [None] * 3
        assert await setting.store.children(TOPICS) == []
        assert await setting.store.children(DELETE_TOPICS) == []
        assert await setting.store.children("/config/topics") == []
        assert not setting.controller.image.deleting

    in_office(tmp_path, story)


def test_a_topic_that_cannot_be_made_is_no_hindrance_to_those_of_its_transaction(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        # One has settings from before, and one was made by somebody else a moment ago.
        await setting.store.transact(
            [
                Create(ConfigNode.path("topics", "b"), ConfigNode.encode({"retention.ms": "5"})),
                Create(TopicNode.path("c"), TopicNode.encode(TopicAssignment(None, {0: [0]}))),
            ]
        )
        codes = [error and error.code for error in await create(setting, "abcd")]
        assert codes == [None, None, ErrorCode.TOPIC_ALREADY_EXISTS, None]
        assert [topic.name for topic in setting.deltas[0].created] == ["a", "b", "d"]
        node = await setting.store.get(ConfigNode.path("topics", "b"))
        assert node is not None
        assert ConfigNode.decode("", node.data) == {}
        image = await load_image(setting.store)
        assert sorted(image.topics) == ["a", "b", "c", "d"]

    in_office(tmp_path, story)


def test_topics_of_a_controller_that_was_replaced_are_all_refused(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        node = await setting.store.get(CONTROLLER_EPOCH)
        assert node is not None
        epoch = ControllerEpochNode.decode(node.data) + 1
        await setting.store.transact([SetData(CONTROLLER_EPOCH, ControllerEpochNode.encode(epoch))])
        codes = [error and error.code for error in await create(setting, "abc")]
        assert codes == [ErrorCode.NOT_CONTROLLER] * 3
        assert await setting.store.children(TOPICS) == []

    in_office(tmp_path, story)
