"""The controller over a real store: its writes, its published changes, and its state after a restart."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from controller_stage import (
    REGISTRATION,
    Setting,
    alter_config,
    create,
    delete,
    next_controller,
    place,
    restart,
    started,
    with_controller,
)

from alter_partition_items import isr_change, item_for
from tidemill.controller.admin_manager import ConfigCommand, generate_broker_id
from tidemill.controller.configuration_control import Alteration, AlterOperation, ResourceType
from tidemill.controller.producer_id_blocks import claim_block
from tidemill.controller.topics import Growth, NewTopic, Plan
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import (
    Create,
    Operation,
    SetData,
    Store,
    StoreUnavailable,
    subtree,
)
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    ConfigNode,
    ConfigResource,
    LeaderIsrAndControllerEpoch,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.ids import new_id
from tidemill.model.types import TopicPartition


async def waiting_for_broker_9(setting: Setting) -> Setting:
    """Returns a second controller; the only in-sync replica of ``t-0`` is on the unregistered broker 9."""
    assert await create(setting, "t") is None
    await place(setting, TopicAssignment(None, {0: [9, 0]}), LeaderIsrAndControllerEpoch(-1, 1, [9], 1))
    return await next_controller(setting)


def same(one: ClusterImage, other: ClusterImage) -> bool:
    """Returns whether both images have equal topics."""

    def plain(image: ClusterImage) -> object:
        return {
            name: (
                topic.topic_id,
                dict(topic.config),
                topic.node_version,
                [(p.leader, p.leader_epoch, p.replicas, p.isr, p.partition_epoch) for p in topic.partitions],
            )
            for name, topic in sorted(image.topics.items())
        }

    return plain(one) == plain(other)


def test_the_first_start_creates_a_cluster_and_later_starts_find_it(tmp_path: Path) -> None:
    async def start(setting: Setting) -> tuple[str, int, int]:
        image = setting.controller.image
        assert len(image.cluster_id) == 22
        assert image.controller_id == 0
        assert list(image.brokers) == [0]
        assert image.brokers[0].endpoints["PLAINTEXT"].port == 9092
        node = await setting.store.get("/controller")
        assert node is not None
        assert node.owner == setting.store.session_id
        return image.cluster_id, image.controller_epoch, image.brokers[0].epoch

    first, second = with_controller(tmp_path, start), with_controller(tmp_path, start)
    assert second[0] == first[0]
    assert second[1] == first[1] + 1
    assert second[2] > first[2]


async def test_the_cluster_id_of_a_data_directory_is_kept(tmp_path: Path) -> None:
    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    image = await Setting(store).controller.context.load("known")
    assert image.cluster_id == "known"
    assert (await Setting(store).controller.context.load("other")).cluster_id == "known"
    await store.close()


async def test_a_registration_whose_response_was_lost_is_found(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        controller = setting.controller
        before = await setting.store.get("/brokers/ids/0")
        assert before is not None
        assert await controller.election.register(REGISTRATION._replace(rack="r")) == before.creation_id
        node = await setting.store.get("/brokers/ids/0")
        assert node is not None
        assert json.loads(node.data)["rack"] == "r"


async def test_a_broker_with_an_id_in_use_is_rejected(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        other = Setting(setting.store.join())
        await other.controller.context.load()
        with pytest.raises(KafkaError, match="/brokers/ids/0") as caught:
            await other.controller.election.register(REGISTRATION)
        assert not await other.controller.context.activate()
        assert caught.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert not other.controller.is_active
        with pytest.raises(KafkaError) as refused:
            await other.controller.admin_manager.create_topics([NewTopic("t")])
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        await other.store.close()


async def test_a_topic_created_while_the_cluster_is_read_again_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a session expiration, when the broker becomes controller again."""

    async with started(tmp_path) as setting:
        was_read, go_on = asyncio.Event(), asyncio.Event()

        async def load_slowly(*arguments: Any) -> ClusterImage:
            image = await load_image(*arguments)
            was_read.set()
            await go_on.wait()
            return image

        async def make() -> None:
            assert await setting.controller.context.activate()
            assert await create(setting, "t") is None

        monkeypatch.setattr("tidemill.controller.controller_context.load_image", load_slowly)
        setting.controller.election.resign()
        loading = asyncio.create_task(setting.controller.context.load())
        await was_read.wait()
        making = asyncio.create_task(make())
        await asyncio.wait([making], timeout=0.2)
        go_on.set()
        await asyncio.gather(loading, making)
        assert "t" in setting.controller.image.topics
        assert same(setting.controller.image, await load_image(setting.store))


def test_a_topic_is_stored_published_and_found_again(tmp_path: Path) -> None:
    async def make(setting: Setting) -> ClusterImage:
        outcomes = await setting.controller.admin_manager.create_topics(
            [NewTopic("a", config={"retention.ms": "5"}), NewTopic("no/name"), NewTopic("b", 2, 1)]
        )
        assert [(item.name, item.error is None) for item in outcomes] == [
            ("a", True),
            ("no/name", False),
            ("b", True),
        ]
        (delta,) = setting.deltas
        assert [topic.name for topic in delta.created] == ["a", "b"]
        assert delta.image is setting.controller.image
        assert delta.before.topics == {}
        assert [len(topic.partitions) for topic in delta.created] == [3, 2]
        assert same(await load_image(setting.store), setting.controller.image)
        return setting.controller.image

    async def find(image: ClusterImage) -> None:
        async with started(tmp_path) as setting:
            assert same(image, setting.controller.image)
            topic = setting.controller.image.topics["a"]
            assert setting.controller.image.topics_by_id[topic.topic_id] is topic

    asyncio.run(find(with_controller(tmp_path, make, num_partitions=3)))


async def test_validate_only_creates_nothing(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        before = await subtree(setting.store, "/brokers/topics")
        outcomes = await setting.controller.admin_manager.create_topics(
            [NewTopic("a"), NewTopic("")], validate_only=True
        )
        assert [outcome.error is None for outcome in outcomes] == [True, False]
        assert await create(setting, "t") is None
        (outcome,) = await setting.controller.admin_manager.create_partitions(
            [Growth("t", 3)], validate_only=True
        )
        assert outcome.error is None
        command = ConfigCommand(
            ResourceType.TOPIC, "t", [Alteration("retention.ms", AlterOperation.SET, "1")]
        )
        assert await setting.controller.admin_manager.alter_configs([command], validate_only=True) == [None]
        topic = setting.controller.image.topics["t"]
        assert (len(topic.partitions), topic.config) == (1, {})
        await setting.controller.admin_manager.delete_topics(["t"])
        assert await subtree(setting.store, "/brokers/topics") == before


async def test_two_requests_for_one_name_create_one_topic(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        create = setting.controller.admin_manager.create_topics
        results = await asyncio.gather(*(create([NewTopic("t", count)]) for count in (1, 2, 3)))
        codes = [outcome.error.code if outcome.error else None for (outcome,) in results]
        assert codes == [None, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.TOPIC_ALREADY_EXISTS]
        assert len(setting.controller.image.topics["t"].partitions) == 1
        (colliding,) = await create([NewTopic("t.x")])
        (collided,) = await create([NewTopic("t_x")])
        assert colliding.error is None
        assert collided.error is not None


async def test_a_failure_to_apply_a_change_is_returned_to_the_client(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        setting.fails["bad"] = KafkaError("no room", ErrorCode.KAFKA_STORAGE_ERROR)
        good, bad = await setting.controller.admin_manager.create_topics([NewTopic("good"), NewTopic("bad")])
        assert good.error is None
        assert bad.error is setting.fails["bad"]


async def test_a_deletion_removes_every_node(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        before = await subtree(setting.store, "/")
        await setting.controller.admin_manager.create_topics(
            [NewTopic("t", 3, config={"retention.ms": "1"}), NewTopic("u")]
        )
        topic = setting.controller.image.topics["t"]
        setting.deltas.clear()
        gone, missing, kept = await setting.controller.admin_manager.delete_topics(["t", "missing", "u"])
        assert gone.error is None
        assert kept.error is None
        assert kept.topic is not None
        assert missing.error is not None
        assert missing.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        deleted = [one.topic_id for one in setting.deltas[0].deleted]
        assert deleted == [topic.topic_id, kept.topic.topic_id]
        assert setting.controller.image.topics == {}
        assert setting.controller.image.deleting == {}
        assert await subtree(setting.store, "/") == before
        (again,) = await setting.controller.admin_manager.create_topics([NewTopic("t")])
        assert again.topic is not None
        assert again.topic.topic_id != topic.topic_id


async def test_topic_deletion_can_be_disabled(tmp_path: Path) -> None:
    async with started(tmp_path, delete_topic_enable=False) as setting:
        assert await create(setting, "t") is None
        with pytest.raises(KafkaError) as caught:
            await setting.controller.admin_manager.delete_topics(["t"])
        assert caught.value.code == ErrorCode.TOPIC_DELETION_DISABLED


def test_an_interrupted_deletion_continues_at_the_next_start(tmp_path: Path) -> None:
    async def interrupted(setting: Setting) -> None:
        await setting.controller.admin_manager.create_topics([NewTopic("t", 2), NewTopic("u")])
        setting.fails["t"] = KafkaError("the disk does not answer", ErrorCode.KAFKA_STORAGE_ERROR)
        assert await delete(setting, "t") is setting.fails["t"]
        assert await setting.store.exists("/admin/delete_topics/t")
        assert "being deleted" in str(await create(setting, "t"))

    async def resumed() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        setting = Setting(store)
        image = await setting.controller.context.load()
        assert list(image.topics) == ["u"]
        assert list(image.deleting) == ["t"]
        await setting.controller.election.register(REGISTRATION)
        await setting.controller.context.activate()
        deleted = [topic for delta in setting.deltas for topic in delta.deleted]
        assert [(topic.name, len(topic.partitions)) for topic in deleted] == [("t", 2)]
        assert not await store.exists("/brokers/topics/t")
        assert not await store.exists("/admin/delete_topics/t")
        assert setting.controller.image.deleting == {}
        await store.close()

    with_controller(tmp_path, interrupted)
    asyncio.run(resumed())


def test_partitions_are_added_and_found_again(tmp_path: Path) -> None:
    async def grow(setting: Setting) -> ClusterImage:
        assert await create(setting, "t") is None
        setting.deltas.clear()
        (outcome,) = await setting.controller.admin_manager.create_partitions([Growth("t", 4)])
        assert outcome.error is None
        ((old, new),) = setting.deltas[0].changed
        assert (len(old.partitions), len(new.partitions)) == (1, 4)
        (second,) = await setting.controller.admin_manager.create_partitions([Growth("t", 5)])
        assert second.error is None
        return setting.controller.image

    async def find(image: ClusterImage) -> None:
        async with started(tmp_path) as setting:
            assert same(image, setting.controller.image)

    asyncio.run(find(with_controller(tmp_path, grow)))


def test_settings_are_changed_published_and_found_again(tmp_path: Path) -> None:
    def change(name: str, value: str) -> list[Alteration]:
        return [Alteration(name, AlterOperation.SET, value)]

    async def alter(setting: Setting) -> None:
        assert await create(setting, "t") is None
        setting.deltas.clear()
        errors = await setting.controller.admin_manager.alter_configs(
            [
                ConfigCommand(ResourceType.TOPIC, "t", change("retention.ms", "7")),
                ConfigCommand(ResourceType.TOPIC, "missing", change("retention.ms", "7")),
                ConfigCommand(ResourceType.BROKER, "0", change("log.retention.ms", "8")),
                ConfigCommand(ResourceType.BROKER, "", change("log.retention.ms", "9")),
                ConfigCommand(ResourceType.BROKER, "0", change("broker.id", "9")),
                ConfigCommand(ResourceType.CLIENT_METRICS, "x", change("a", "b")),
            ]
        )
        assert [error.code if error else None for error in errors] == [
            None,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            None,
            None,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        assert [delta.broker_configs_changed for delta in setting.deltas] == [False, True, True]
        ((old, new),) = setting.deltas[0].reconfigured
        assert (old.config, new.config) == ({}, {"retention.ms": "7"})

    async def find(setting: Setting) -> None:
        image = setting.controller.image
        assert image.topics["t"].config == {"retention.ms": "7"}
        assert image.broker_config(0) == {"log.retention.ms": "8"}
        assert image.default_broker_config() == {"log.retention.ms": "9"}

    with_controller(tmp_path, alter)
    with_controller(tmp_path, find)


async def test_a_controller_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        assert await create(setting, "t") is None
        other: Store = setting.store.join()
        await other.transact([SetData("/controller_epoch", b"99")])
        before = await subtree(other, "/")
        for _ in range(2):
            try:
                (outcome,) = await setting.controller.admin_manager.create_topics([NewTopic("u")])
                error = outcome.error
            except KafkaError as refused:
                error = refused
            assert error is not None
            assert error.code == ErrorCode.NOT_CONTROLLER
        assert await subtree(other, "/") == before
        await other.close()


def test_a_topic_node_written_by_an_administrator_is_completed(tmp_path: Path) -> None:
    async def write(setting: Setting) -> None:
        await setting.store.transact(
            [Create(TopicNode.path("t"), b'{"version":1,"partitions":{"0":[0],"1":[0]}}')]
        )

    async def find(setting: Setting) -> None:
        topic = setting.controller.image.topics["t"]
        assert [partition.leader for partition in topic.partitions] == [0, 0]
        assert topic.topic_id != bytes(16)
        node = await setting.store.get(TopicNode.path("t"))
        assert node is not None
        assert json.loads(node.data)["version"] == 3
        assert same(await load_image(setting.store), setting.controller.image)
        (outcome,) = await setting.controller.admin_manager.create_partitions([Growth("t", 3)])
        assert outcome.error is None

    with_controller(tmp_path, write)
    with_controller(tmp_path, find)


def test_a_start_after_lost_writes_assigns_new_leader_epochs(tmp_path: Path) -> None:
    async def make(setting: Setting) -> None:
        await setting.controller.admin_manager.create_topics([NewTopic("t", 3)])

    async def start_again() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        setting = Setting(store)
        await setting.controller.context.load()
        await setting.controller.election.register(REGISTRATION._replace(lost=LostReplicas(unsynced=True)))
        await setting.controller.context.activate()
        topic = setting.controller.image.topics["t"]
        assert [partition.leader_epoch for partition in topic.partitions] == [1, 1, 1]
        assert same(await load_image(store), setting.controller.image)
        await store.close()

    with_controller(tmp_path, make)
    asyncio.run(start_again())


def test_each_block_of_producer_ids_is_allocated_once(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        other = setting.store.join()
        blocks = await asyncio.gather(*(claim_block(store, 0) for store in (setting.store, other) * 3))
        assert sorted(blocks) == [(number * 1000, 1000) for number in range(6)]
        node = await other.get("/latest_producer_id_block")
        assert node is not None
        assert json.loads(node.data)["block_end"] == "5999"
        await other.close()

    async def later(setting: Setting) -> None:
        assert await claim_block(setting.store, 0) == (6000, 1000)

    with_controller(tmp_path, story)
    with_controller(tmp_path, later)


async def test_a_producer_id_in_a_log_is_not_allocated_again(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        assert await claim_block(setting.store, 0, used=999) == (1_001_000, 1000)
        assert await claim_block(setting.store, 0, used=999) == (1_002_000, 1000)
        assert await claim_block(setting.store, 0, used=1_002_999) == (1_003_000, 1000)
        assert await claim_block(setting.store, 0, used=1_004_000) == (2_004_001, 1000)
        # A client may write any id. Such an id must not exhaust the remaining ids.
        assert await claim_block(setting.store, 0, used=2**63 - 1) == (2_005_001, 1000)


async def test_generated_broker_ids_are_above_the_reserved_ones_and_differ(tmp_path: Path) -> None:
    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    assert [await generate_broker_id(store, 1000) for _ in range(3)] == [1001, 1002, 1003]
    await store.close()


async def test_a_gap_in_the_partition_numbers_of_a_topic_is_reported(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        await setting.store.transact(
            [Create(TopicNode.path("t"), b'{"version":1,"partitions":{"0":[0],"2":[0]}}')]
        )
        image = await load_image(setting.store)
        assert list(image.unreadable) == [("topics", "t")]
        assert re.match(
            r"/brokers/topics/t holds .* it has no partition 1 ", str(image.unreadable["topics", "t"])
        )


def test_a_thousand_topics_are_created_and_loaded(tmp_path: Path) -> None:
    async def make(setting: Setting) -> None:
        outcomes = await setting.controller.admin_manager.create_topics(
            NewTopic(f"topic-{number}", 6) for number in range(1000)
        )
        assert all(outcome.error is None for outcome in outcomes)

    async def load(setting: Setting) -> None:
        assert len(setting.controller.image.topics) == 1000

    with_controller(tmp_path, make)
    with_controller(tmp_path, load)


async def test_a_leaderless_partition_waits_until_unclean_election_is_enabled(tmp_path: Path) -> None:
    async with started(tmp_path) as setting:
        other = await waiting_for_broker_9(setting)
        assert other.controller.image.topics["t"].partitions[0].leader == -1
        assert await alter_config(other, "unclean.leader.election.enable", "true", topic="t") is None
        partition = other.controller.image.topics["t"].partitions[0]
        assert (partition.leader, partition.isr, partition.leader_epoch) == (0, [0], 2)


@pytest.mark.parametrize("name", ["t", ""], ids=["of the topic", "of the cluster"])
async def test_a_change_of_min_insync_replicas_empties_the_elr_in_the_same_transaction(
    tmp_path: Path, name: str
) -> None:
    state_path = PartitionStateNode.path("t", 0)

    async with started(tmp_path) as setting:
        assert await create(setting, "t") is None
        eligible = LeaderIsrAndControllerEpoch(0, 1, [0], 1, elr=(8, 9))
        await place(setting, TopicAssignment(None, {0: [0, 8, 9]}), eligible)
        other = await next_controller(setting, min_insync_replicas=3)
        written: list[list[str]] = []
        transact = setting.store.transact

        async def note(operations: Sequence[Operation]) -> object:
            written.append([one.path for one in operations])
            return await transact(operations)

        with mock.patch.object(setting.store, "transact", note):
            key = "retention.ms" if name else "log.retention.ms"
            assert await alter_config(other, key, "7", topic=name) is None
            assert not any(state_path in paths for paths in written)
            assert list(other.controller.image.topics["t"].partitions[0].elr) == [8, 9]
            written.clear()
            assert await alter_config(other, "min.insync.replicas", "2", topic=name) is None
        kind = ConfigNode.path("topics", "t") if name else ConfigNode.path("brokers", DEFAULT_ENTITY)
        assert [kind in paths and state_path in paths for paths in written] == [True]
        found = (await load_image(setting.store)).topics["t"].partitions[0]
        assert (found.leader, found.isr, list(found.elr)) == (0, [0], [])


@pytest.mark.parametrize("is_asked_for", [False, True])
async def test_a_broker_that_reports_losses_before_a_preferred_election_is_not_elected(
    tmp_path: Path, is_asked_for: bool
) -> None:
    async with started(tmp_path) as setting:
        assert await create(setting, "t") is None
        await restart(setting, 1)
        await place(setting, TopicAssignment(None, {0: [1, 0]}), LeaderIsrAndControllerEpoch(0, 1, [0, 1], 1))
        other = await next_controller(setting)
        assert other.controller.image.topics["t"].partitions[0].isr == [0, 1]
        # No watch has notified the controller of it yet.
        await restart(setting, 1, missing=True)
        if is_asked_for:
            await other.controller.leader_elections.elect([TopicPartition("t", 0)])
        else:
            assert await other.controller.leader_elections.elect_imbalanced() == 0
        found = other.controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr) == (0, [0])


async def test_a_broker_that_reports_losses_during_a_failover_does_not_stay_leader(
    tmp_path: Path,
) -> None:
    async with started(tmp_path) as setting:
        await setting.controller.admin_manager.create_topics([NewTopic("t"), NewTopic("u")])
        assignment = TopicAssignment(new_id(), {0: [1, 0]}, {0: [1]}, {0: [0]})
        gone = PartitionStateNode.encode(LeaderIsrAndControllerEpoch(9, 1, [9, 0], 1))
        await restart(setting, 1)
        await place(
            setting,
            assignment,
            LeaderIsrAndControllerEpoch(0, 1, [0, 1], 1),
            SetData(PartitionStateNode.path("u", 0), gone),
        )
        other = Setting(setting.store)
        await other.controller.context.load()
        write = other.controller.context.write

        async def restart_before(plans: Iterable[Plan]) -> None:
            """Broker 1 registers again while other partitions get leaders."""
            other.controller.context.write = write  # type: ignore[method-assign]
            await restart(setting, 1, missing=True)
            await write(plans)

        other.controller.context.write = restart_before  # type: ignore[method-assign]
        assert await other.controller.context.activate()
        found = other.controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr, found.replicas) == (0, [0], [1, 0])


@pytest.mark.parametrize("is_wished", [False, True])
async def test_a_broker_that_reports_losses_before_a_reassignment_completes_does_not_stay_leader(
    tmp_path: Path, is_wished: bool
) -> None:
    async with started(tmp_path) as setting:
        assert await create(setting, "t") is None
        adding = {0: [] if is_wished else [1]}
        removing = {0: [] if is_wished else [0]}
        assignment = TopicAssignment(new_id(), {0: [1, 0]}, adding, removing)
        await restart(setting, 1)
        await place(setting, assignment, LeaderIsrAndControllerEpoch(0, 1, [0, 1] if is_wished else [0], 1))
        other = await next_controller(setting)
        image = other.controller.image
        known, epoch = image.topics["t"], image.brokers[1].epoch
        # No watch has notified the controller of it yet.
        await restart(setting, 1, missing=True)
        if is_wished:
            await other.controller.reassignments.alter({TopicPartition("t", 0): [1]})
        else:
            one = known.partitions[0]
            change = isr_change(0, one.leader_epoch, one.partition_epoch, [(0, -1), (1, epoch)])
            await other.controller.alter_partitions([item_for(known.topic_id, 0, change)])
        found = other.controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr, found.replicas) == (0, [0], [1, 0])


@pytest.mark.parametrize("is_by_others", [False, True])
async def test_an_unclean_leader_is_elected_after_a_failed_store_call(
    tmp_path: Path, is_by_others: bool
) -> None:
    settings = {"unclean.leader.election.enable": "true"}

    async with started(tmp_path) as setting:
        other = await waiting_for_broker_9(setting)
        await asyncio.sleep(0.01)  # It has found that no replica can be elected.
        silences = [StoreUnavailable("it is away")]

        async def look() -> None:
            if silences:
                raise silences.pop()

        other.controller.context.parts.refresh_brokers = look
        if is_by_others:
            data = ConfigNode.encode(settings)
            await setting.store.transact([SetData(ConfigNode.path("topics", "t"), data)])
            with pytest.raises(StoreUnavailable):
                await other.controller.context.apply_stored_settings(
                    {ConfigResource("topics", "t"): settings}
                )
            await other.controller.context.apply_stored_settings({ConfigResource("topics", "t"): settings})
        else:
            await alter_config(other, "unclean.leader.election.enable", "true", topic="t")
        for _ in range(100):
            if other.controller.image.topics["t"].partitions[0].leader == 0:
                break
            await asyncio.sleep(0.01)
        assert not silences
        assert other.controller.image.topics["t"].partitions[0].leader == 0


@pytest.mark.parametrize("is_default", [False, True])
async def test_concurrent_setting_changes_survive_a_read_of_the_store(
    tmp_path: Path, is_default: bool
) -> None:
    """The controller reads the settings on each change notification and applies them once it is idle."""
    names = ["retention.ms", "flush.messages", "segment.bytes"]
    if is_default:
        names = ["log.retention.ms", "log.flush.interval.messages", "log.segment.bytes"]
    entity = "" if is_default else "t"
    node = ("brokers", DEFAULT_ENTITY) if is_default else ("topics", "t")
    path = ConfigNode.path(*node)

    async with started(tmp_path) as setting:
        controller = setting.controller

        async def alter(name: str) -> None:
            assert await alter_config(setting, name, "100000", topic=entity) is None

        async def stored() -> dict[str, str]:
            found = await setting.store.get(path)
            assert found is not None
            return ConfigNode.decode(path, found.data)

        assert await create(setting, "t") is None
        await alter(names[0])
        read = {ConfigResource(*node): await stored()}
        await asyncio.gather(alter(names[1]), controller.context.apply_stored_settings(read), alter(names[2]))
        wanted = dict.fromkeys(names, "100000")
        assert await stored() == wanted
        image = controller.image
        assert (image.default_broker_config() if is_default else image.topics["t"].config) == wanted
