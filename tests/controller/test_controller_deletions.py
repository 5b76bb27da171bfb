"""Topic deletions that wait for dead brokers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from controller_office import Setting, in_office

from tidemill.controller.failover import Failover
from tidemill.controller.topics import NewTopic
from tidemill.coordination.nodes import BrokerNode, BrokerRegistration
from tidemill.coordination.port import Create, Delete
from tidemill.model.errors import ErrorCode, KafkaError


async def with_dead_brokers(setting: Setting, *dead: int) -> Failover:
    """A topic ``t`` with replicas on broker 0, which is the controller, and on dead brokers, is deleted."""
    failover = Failover(setting.controller)
    for one in dead:
        data = BrokerNode.encode(BrokerRegistration(one, ()))
        await setting.store.transact([Create(BrokerNode.path(one), data, ephemeral=True)])
    await failover.brokers_changed()
    placed = {0: [0, *dead], 1: [*dead, 0]}
    (outcome,) = await setting.controller.create_topics([NewTopic("t", assignments=placed)])
    assert outcome.error is None
    for one in dead:
        await setting.store.transact([Delete(BrokerNode.path(one))])
    await failover.brokers_changed()
    (outcome,) = await setting.controller.delete_topics(["t"])
    assert outcome.error is None
    return failover


async def creation_error(setting: Setting) -> KafkaError | None:
    """What comes of the wish for another topic of that name."""
    (outcome,) = await setting.controller.create_topics([NewTopic("t", 1, 1)], validate_only=True)
    return outcome.error


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about deletions since the last call."""
    found = [one.getMessage() for one in caplog.records if one.name.endswith("controller.deletions")]
    caplog.clear()
    return found


def test_a_deletion_that_waits_for_dead_brokers_is_one_line_until_they_are_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story(setting: Setting) -> None:
        failover = await with_dead_brokers(setting, 1, 2)
        text = "the deletion of topics t waits for brokers {}, which have replicas and are not live"
        assert waits(caplog) == [text.format([1, 2])]
        for _ in range(2):
            await setting.controller.finish_deletions()
        assert waits(caplog) == []
        data = BrokerNode.encode(BrokerRegistration(1, ()))
        await setting.store.transact([Create(BrokerNode.path(1), data, ephemeral=True)])
        await failover.brokers_changed()
        topic = setting.controller.image.deleting["t"]
        await setting.controller.replicas_deleted(1, [("t", topic.topic_id)])
        assert waits(caplog) == [text.format([2])]
        error = await creation_error(setting)
        assert error is not None
        assert error.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert "which waits for brokers [2]: start them" in str(error)

    in_office(tmp_path, story)


def test_a_deletion_ends_when_the_last_broker_that_it_waits_for_is_unregistered(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        await with_dead_brokers(setting, 1, 2)
        await setting.controller.unregister_broker(2)
        error = await creation_error(setting)
        assert "waits for brokers [1]: start them" in str(error)
        await setting.controller.unregister_broker(1)
        assert await creation_error(setting) is None
        assert not await setting.store.exists("/brokers/topics/t")
        assert not await setting.store.exists("/admin/delete_topics/t")
        await setting.controller.unregister_broker(9)  # Nothing waits for it.

    in_office(tmp_path, story)


def test_the_next_controller_does_not_wait_for_a_broker_that_was_unregistered(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        await with_dead_brokers(setting, 1, 2)
        await setting.controller.unregister_broker(1)
        setting.controller.resign()
        await setting.controller.activate(dead=0)
        assert "waits for brokers [2]: start them" in str(await creation_error(setting))
        await setting.controller.unregister_broker(2)
        assert await creation_error(setting) is None

    in_office(tmp_path, story)


def test_a_partition_whose_every_replica_is_on_an_unregistered_broker_is_deleted(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        for one in (1, 2):
            data = BrokerNode.encode(BrokerRegistration(one, ()))
            await setting.store.transact([Create(BrokerNode.path(one), data, ephemeral=True)])
        await failover.brokers_changed()
        await setting.controller.create_topics([NewTopic("t", assignments={0: [1], 1: [2]})])
        for one in (1, 2):
            await setting.store.transact([Delete(BrokerNode.path(one))])
        await failover.brokers_changed()
        await setting.controller.delete_topics(["t"])
        await setting.controller.unregister_broker(1)
        setting.controller.resign()
        await setting.controller.activate(dead=0)
        assert "waits for brokers [2]: start them" in str(await creation_error(setting))
        await setting.controller.unregister_broker(2)
        assert await creation_error(setting) is None

    in_office(tmp_path, story)


def test_a_broker_that_is_live_is_not_unregistered(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        with pytest.raises(KafkaError, match="broker 0 is live"):
            await setting.controller.unregister_broker(0)

    in_office(tmp_path, story)


def test_a_broker_that_is_taken_for_dead_is_not_unregistered_before_its_session_has_ended(
    tmp_path: Path,
) -> None:
    """It may only have stopped listening: the logs of deleted topics would stay there."""

    async def story(setting: Setting) -> None:
        failover = Failover(setting.controller)
        data = BrokerNode.encode(BrokerRegistration(1, ()))
        await setting.store.transact([Create(BrokerNode.path(1), data, ephemeral=True)])
        await failover.brokers_changed()
        await setting.controller.create_topics([NewTopic("t", assignments={0: [1]})])
        failover.found_dead(1, setting.controller.image.brokers[1].epoch)
        await failover.brokers_changed()
        await setting.controller.delete_topics(["t"])
        with pytest.raises(KafkaError, match="try again once its session has ended") as refused:
            await setting.controller.unregister_broker(1)
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        assert "t" in setting.controller.image.deleting
        await setting.store.transact([Delete(BrokerNode.path(1))])
        await setting.controller.unregister_broker(1)
        assert "t" not in setting.controller.image.deleting

    in_office(tmp_path, story)


def test_a_broker_that_registers_while_it_is_unregistered_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its logs of the deleted topics would stay there."""

    async def story(setting: Setting) -> None:
        await with_dead_brokers(setting, 1)
        exists = setting.store.exists

        async def registering(path: str, *rest: Any, **named: Any) -> bool:
            found = await exists(path, *rest, **named)
            if path == BrokerNode.path(1) and not found:
                data = BrokerNode.encode(BrokerRegistration(1, ()))
                await setting.store.transact([Create(path, data, ephemeral=True)])
            return found

        monkeypatch.setattr(setting.store, "exists", registering)
        with pytest.raises(KafkaError, match="is still registered") as refused:
            await setting.controller.unregister_broker(1)
        monkeypatch.undo()
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        assert await setting.store.exists("/brokers/topics/t")
        assert "t" in setting.controller.image.deleting
        await setting.controller.replicas_deleted(1, [("t", setting.controller.image.deleting["t"].topic_id)])
        assert await creation_error(setting) is None

    in_office(tmp_path, story)
