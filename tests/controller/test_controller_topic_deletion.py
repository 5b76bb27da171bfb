"""Topic deletions that wait for dead brokers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from controller_stage import Setting, create, delete, registration, restart, started

from tidemill.controller.failover import Failover
from tidemill.controller.topics import NewTopic
from tidemill.coordination.coordination_store import Create, Delete
from tidemill.coordination.nodes import BrokerNode
from tidemill.model.errors import ErrorCode, KafkaError

SHARED = {0: [0, 1, 2], 1: [1, 2, 0]}
"""Replicas of two partitions, each on the controller and on two other brokers."""


async def with_dead_brokers(setting: Setting, assignments: dict[int, list[int]]) -> Failover:
    """Topic ``t`` with replicas on dead brokers is deleted. The controller is broker 0."""
    failover = setting.controller.failover
    dead = sorted({broker for replicas in assignments.values() for broker in replicas} - {0})
    for one in dead:
        await restart(setting, one)
    await failover.brokers_changed()
    topic = NewTopic("t", assignments=assignments)
    (outcome,) = await setting.controller.admin_manager.create_topics([topic])
    assert outcome.error is None
    for one in dead:
        await setting.store.transact([Delete(BrokerNode.path(one))])
    await failover.brokers_changed()
    assert await delete(setting, "t") is None
    return failover


async def creation_error(setting: Setting) -> KafkaError | None:
    """Returns the result of a request to create another topic of that name."""
    (outcome,) = await setting.controller.admin_manager.create_topics(
        [NewTopic("t", 1, 1)], validate_only=True
    )
    return outcome.error


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the log lines about deletions since the last call."""
    found = [one.getMessage() for one in caplog.records if one.name.endswith("controller.topic_deletion")]
    caplog.clear()
    return found


async def test_a_deletion_that_waits_for_dead_brokers_is_logged_once_per_set_of_brokers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async with started(tmp_path) as setting:
        failover = await with_dead_brokers(setting, SHARED)
        text = "the deletion of topics t waits for brokers {}, which have replicas and are not live"
        assert waits(caplog) == [text.format([1, 2])]
        for _ in range(2):
            await setting.controller.context.parts.finish_deletions()
        assert waits(caplog) == []
        await restart(setting, 1)
        await failover.brokers_changed()
        topic = setting.controller.image.deleting["t"]
        await setting.controller.admin_manager.replicas_deleted(1, [("t", topic.topic_id)])
        assert waits(caplog) == [text.format([2])]
        error = await creation_error(setting)
        assert error is not None
        assert error.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert "which waits for brokers [2]: start them" in str(error)


async def test_a_deletion_ends_when_the_last_broker_that_it_waits_for_is_unregistered(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        await with_dead_brokers(setting, SHARED)
        await setting.controller.admin_manager.unregister_broker(2)
        error = await creation_error(setting)
        assert "waits for brokers [1]: start them" in str(error)
        await setting.controller.admin_manager.unregister_broker(1)
        assert await creation_error(setting) is None
        assert not await setting.store.exists("/brokers/topics/t")
        assert not await setting.store.exists("/admin/delete_topics/t")
        await setting.controller.admin_manager.unregister_broker(9)  # No deletion waits for it.


@pytest.mark.parametrize(
    "assignments",
    [
        pytest.param(SHARED, id="every partition has another replica"),
        pytest.param({0: [1], 1: [2]}, id="it has all replicas of a partition"),
    ],
)
async def test_the_next_controller_does_not_wait_for_a_broker_that_was_unregistered(
    tmp_path: Path, assignments: dict[int, list[int]]
) -> None:
    async with started(tmp_path) as setting:
        await with_dead_brokers(setting, assignments)
        await setting.controller.admin_manager.unregister_broker(1)
        setting.controller.election.resign()
        await setting.controller.context.activate(dead=0)
        assert "waits for brokers [2]: start them" in str(await creation_error(setting))
        await setting.controller.admin_manager.unregister_broker(2)
        assert await creation_error(setting) is None


async def test_a_live_broker_cannot_be_unregistered(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        with pytest.raises(KafkaError, match="broker 0 is live"):
            await setting.controller.admin_manager.unregister_broker(0)


async def test_a_broker_marked_dead_cannot_be_unregistered_before_its_session_expires(
    tmp_path: Path,
) -> None:
    """It may only have stopped serving. Otherwise the logs of deleted topics would remain there."""

    async with started(tmp_path) as setting:
        failover = setting.controller.failover
        await restart(setting, 1)
        await failover.brokers_changed()
        assert await create(setting, "t", [1]) is None
        failover.mark_dead(1, broker_epoch=setting.controller.image.brokers[1].epoch)
        await failover.brokers_changed()
        await setting.controller.admin_manager.delete_topics(["t"])
        with pytest.raises(KafkaError, match="try again after its session has expired") as refused:
            await setting.controller.admin_manager.unregister_broker(1)
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        assert "t" in setting.controller.image.deleting
        await setting.store.transact([Delete(BrokerNode.path(1))])
        await setting.controller.admin_manager.unregister_broker(1)
        assert "t" not in setting.controller.image.deleting


async def test_a_deletion_waits_for_a_broker_that_registers_while_it_is_unregistered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its logs of the deleted topics would remain there."""

    async with started(tmp_path) as setting:
        await with_dead_brokers(setting, {0: [0, 1], 1: [1, 0]})
        exists = setting.store.exists

        async def registering(path: str, *rest: Any, **named: Any) -> bool:
            found = await exists(path, *rest, **named)
            if path == BrokerNode.path(1) and not found:
                await setting.store.transact(
                    [Create(path, BrokerNode.encode(registration(1)), ephemeral=True)]
                )
            return found

        monkeypatch.setattr(setting.store, "exists", registering)
        with pytest.raises(KafkaError, match="is still registered") as refused:
            await setting.controller.admin_manager.unregister_broker(1)
        monkeypatch.undo()
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        assert await setting.store.exists("/brokers/topics/t")
        assert "t" in setting.controller.image.deleting
        await setting.controller.admin_manager.replicas_deleted(
            1, [("t", setting.controller.image.deleting["t"].topic_id)]
        )
        assert await creation_error(setting) is None
