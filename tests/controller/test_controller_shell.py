"""The controller over a real store: what it writes, publishes, and finds again after a restart."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from controller_office import REGISTRATION, Setting, in_office, started

from tidemill.controller.configs import Alteration, AlterOperation, ResourceType
from tidemill.controller.failover import Failover, WantedIsr
from tidemill.controller.isr import IsrChange
from tidemill.controller.producer_ids import claim_block
from tidemill.controller.shell import ConfigCommand, generate_broker_id
from tidemill.controller.topics import Growth, NewTopic, Plan
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.encoding import new_id
from tidemill.coordination.image import ClusterImage
from tidemill.coordination.loading import load_image
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    BrokerNode,
    ConfigNode,
    PartitionState,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import Create, Delete, Operation, SetData, Store, StoreUnavailable, subtree
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition

OTHER_BROKER = REGISTRATION._replace(broker_id=1)


async def register_with_losses(store: Store) -> None:
    """Registers broker 1 again, as after a start on an empty disk."""
    path = BrokerNode.path(1)
    lost = OTHER_BROKER._replace(lost=LostReplicas(missing=True))
    await store.transact([Delete(path)])
    await store.transact([Create(path, BrokerNode.encode(lost))])


async def waiting_for_broker_9(setting: Setting) -> Setting:
    """Returns a second controller; the only in-sync replica of ``t-0`` is on the unregistered broker 9."""
    await setting.controller.create_topics([NewTopic("t")])
    waiting = PartitionStateNode.encode(PartitionState(-1, 1, [9], 1))
    await setting.store.transact(
        [
            SetData(TopicNode.path("t"), TopicNode.encode(TopicAssignment(None, {0: [9, 0]}))),
            SetData(PartitionStateNode.path("t", 0), waiting),
        ]
    )
    other = Setting(setting.store)
    await other.controller.load()
    assert await other.controller.activate()
    return other


def same(one: ClusterImage, other: ClusterImage) -> bool:
    """Whether both say the same of topics."""

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


def test_the_first_start_makes_a_cluster_and_later_ones_find_it(tmp_path: Path) -> None:
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

    first, second = in_office(tmp_path, start), in_office(tmp_path, start)
    assert second[0] == first[0]
    assert second[1] == first[1] + 1
    assert second[2] > first[2]


def test_the_cluster_id_of_a_data_directory_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        image = await Setting(store).controller.load("known")
        assert image.cluster_id == "known"
        assert (await Setting(store).controller.load("other")).cluster_id == "known"
        await store.close()

    asyncio.run(story())


def test_a_broker_whose_registration_was_not_answered_finds_it(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        controller = setting.controller
        before = await setting.store.get("/brokers/ids/0")
        assert before is not None
        assert await controller.register(REGISTRATION._replace(rack="r")) == before.creation_id
        node = await setting.store.get("/brokers/ids/0")
        assert node is not None
        assert json.loads(node.data)["rack"] == "r"

    in_office(tmp_path, story)


def test_a_broker_whose_id_is_taken_is_refused(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        other = Setting(setting.store.join())
        await other.controller.load()
        with pytest.raises(KafkaError, match="/brokers/ids/0") as caught:
            await other.controller.register(REGISTRATION)
        assert not await other.controller.activate()
        assert caught.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert not other.controller.is_active
        with pytest.raises(KafkaError) as refused:
            await other.controller.create_topics([NewTopic("t")])
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        await other.store.close()

    in_office(tmp_path, story)


def test_a_topic_that_is_made_while_the_cluster_is_read_again_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a session's end, when the broker takes its place again."""

    async def story(setting: Setting) -> None:
        was_read, go_on = asyncio.Event(), asyncio.Event()

        async def load_slowly(*arguments: Any) -> ClusterImage:
            image = await load_image(*arguments)
            was_read.set()
            await go_on.wait()
            return image

        async def make() -> None:
            assert await setting.controller.activate()
            await setting.controller.create_topics([NewTopic("t")])

        monkeypatch.setattr("tidemill.controller.office.load_image", load_slowly)
        setting.controller.resign()
        loading = asyncio.create_task(setting.controller.load())
        await was_read.wait()
        making = asyncio.create_task(make())
        await asyncio.wait([making], timeout=0.2)
        go_on.set()
        await asyncio.gather(loading, making)
        assert "t" in setting.controller.image.topics
        assert same(setting.controller.image, await load_image(setting.store))

    in_office(tmp_path, story)


def test_a_topic_is_stored_published_and_found_again(tmp_path: Path) -> None:
    async def make(setting: Setting) -> ClusterImage:
        outcomes = await setting.controller.create_topics(
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

    asyncio.run(find(in_office(tmp_path, make, num_partitions=3)))


def test_nothing_is_made_when_only_validation_is_asked_for(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        before = await subtree(setting.store, "/brokers/topics")
        outcomes = await setting.controller.create_topics([NewTopic("a"), NewTopic("")], validate_only=True)
        assert [outcome.error is None for outcome in outcomes] == [True, False]
        await setting.controller.create_topics([NewTopic("t")])
        (outcome,) = await setting.controller.create_partitions([Growth("t", 3)], validate_only=True)
        assert outcome.error is None
        command = ConfigCommand(
            ResourceType.TOPIC, "t", [Alteration("retention.ms", AlterOperation.SET, "1")]
        )
        assert await setting.controller.alter_configs([command], validate_only=True) == [None]
        topic = setting.controller.image.topics["t"]
        assert (len(topic.partitions), topic.config) == (1, {})
        await setting.controller.delete_topics(["t"])
        assert await subtree(setting.store, "/brokers/topics") == before

    in_office(tmp_path, story)


def test_two_wishes_for_one_name_make_one_topic(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        create = setting.controller.create_topics
        results = await asyncio.gather(*(create([NewTopic("t", count)]) for count in (1, 2, 3)))
        codes = [outcome.error.code if outcome.error else None for (outcome,) in results]
        assert codes == [None, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.TOPIC_ALREADY_EXISTS]
        assert len(setting.controller.image.topics["t"].partitions) == 1
        (colliding,) = await create([NewTopic("t.x")])
        (collided,) = await create([NewTopic("t_x")])
        assert colliding.error is None
        assert collided.error is not None

    in_office(tmp_path, story)


def test_what_a_listener_cannot_do_reaches_the_client(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        setting.fails["bad"] = KafkaError("no room", ErrorCode.KAFKA_STORAGE_ERROR)
        good, bad = await setting.controller.create_topics([NewTopic("good"), NewTopic("bad")])
        assert good.error is None
        assert bad.error is setting.fails["bad"]

    in_office(tmp_path, story)


def test_a_deletion_removes_every_node(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        before = await subtree(setting.store, "/")
        await setting.controller.create_topics(
            [NewTopic("t", 3, config={"retention.ms": "1"}), NewTopic("u")]
        )
        topic = setting.controller.image.topics["t"]
        setting.deltas.clear()
        gone, missing, kept = await setting.controller.delete_topics(["t", "missing", "u"])
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
        (again,) = await setting.controller.create_topics([NewTopic("t")])
        assert again.topic is not None
        assert again.topic.topic_id != topic.topic_id

    in_office(tmp_path, story)


def test_deletion_can_be_switched_off(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t")])
        with pytest.raises(KafkaError) as caught:
            await setting.controller.delete_topics(["t"])
        assert caught.value.code == ErrorCode.TOPIC_DELETION_DISABLED

    in_office(tmp_path, story, delete_topic_enable=False)


def test_a_deletion_that_was_interrupted_goes_on_at_the_next_start(tmp_path: Path) -> None:
    async def interrupted(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t", 2), NewTopic("u")])
        setting.fails["t"] = KafkaError("the disk does not answer", ErrorCode.KAFKA_STORAGE_ERROR)
        (outcome,) = await setting.controller.delete_topics(["t"])
        assert outcome.error is setting.fails["t"]
        assert await setting.store.exists("/admin/delete_topics/t")
        (again,) = await setting.controller.create_topics([NewTopic("t")])
        assert again.error is not None
        assert "being deleted" in str(again.error)

    async def resumed() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        setting = Setting(store)
        image = await setting.controller.load()
        assert list(image.topics) == ["u"]
        assert list(image.deleting) == ["t"]
        await setting.controller.register(REGISTRATION)
        await setting.controller.activate()
        deleted = [topic for delta in setting.deltas for topic in delta.deleted]
        assert [(topic.name, len(topic.partitions)) for topic in deleted] == [("t", 2)]
        assert not await store.exists("/brokers/topics/t")
        assert not await store.exists("/admin/delete_topics/t")
        assert setting.controller.image.deleting == {}
        await store.close()

    in_office(tmp_path, interrupted)
    asyncio.run(resumed())


def test_partitions_are_added_and_found_again(tmp_path: Path) -> None:
    async def grow(setting: Setting) -> ClusterImage:
        await setting.controller.create_topics([NewTopic("t")])
        setting.deltas.clear()
        (outcome,) = await setting.controller.create_partitions([Growth("t", 4)])
        assert outcome.error is None
        ((old, new),) = setting.deltas[0].changed
        assert (len(old.partitions), len(new.partitions)) == (1, 4)
        (second,) = await setting.controller.create_partitions([Growth("t", 5)])
        assert second.error is None
        return setting.controller.image

    async def find(image: ClusterImage) -> None:
        async with started(tmp_path) as setting:
            assert same(image, setting.controller.image)

    asyncio.run(find(in_office(tmp_path, grow)))


def test_settings_are_changed_published_and_found_again(tmp_path: Path) -> None:
    def change(name: str, value: str) -> list[Alteration]:
        return [Alteration(name, AlterOperation.SET, value)]

    async def alter(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t")])
        setting.deltas.clear()
        errors = await setting.controller.alter_configs(
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

    in_office(tmp_path, alter)
    in_office(tmp_path, find)


def test_a_controller_that_was_replaced_changes_nothing(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t")])
        other: Store = setting.store.join()
        await other.transact([SetData("/controller_epoch", b"99")])
        before = await subtree(other, "/")
        for _ in range(2):
            try:
                (outcome,) = await setting.controller.create_topics([NewTopic("u")])
                error = outcome.error
            except KafkaError as refused:
                error = refused
            assert error is not None
            assert error.code == ErrorCode.NOT_CONTROLLER
        assert await subtree(other, "/") == before
        await other.close()

    in_office(tmp_path, story)


def test_a_topic_that_an_administrator_wrote_is_completed(tmp_path: Path) -> None:
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
        (outcome,) = await setting.controller.create_partitions([Growth("t", 3)])
        assert outcome.error is None

    in_office(tmp_path, write)
    in_office(tmp_path, find)


def test_a_start_after_lost_writes_gives_new_leader_epochs(tmp_path: Path) -> None:
    async def make(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t", 3)])

    async def restart() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        setting = Setting(store)
        await setting.controller.load()
        await setting.controller.register(REGISTRATION._replace(lost=LostReplicas(unsynced=True)))
        await setting.controller.activate()
        topic = setting.controller.image.topics["t"]
        assert [partition.leader_epoch for partition in topic.partitions] == [1, 1, 1]
        assert same(await load_image(store), setting.controller.image)
        await store.close()

    in_office(tmp_path, make)
    asyncio.run(restart())


def test_producer_ids_come_in_blocks_that_are_given_once(tmp_path: Path) -> None:
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

    in_office(tmp_path, story)
    in_office(tmp_path, later)


def test_no_producer_id_that_a_log_knows_is_given_out_again(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        assert await claim_block(setting.store, 0, used=999) == (1_001_000, 1000)
        assert await claim_block(setting.store, 0, used=999) == (1_002_000, 1000)
        assert await claim_block(setting.store, 0, used=1_002_999) == (1_003_000, 1000)
        assert await claim_block(setting.store, 0, used=1_004_000) == (2_004_001, 1000)
        # A client may write any id, which must not use up all that are left.
        assert await claim_block(setting.store, 0, used=2**63 - 1) == (2_005_001, 1000)

    in_office(tmp_path, story)


def test_generated_broker_ids_are_above_the_reserved_ones_and_differ(tmp_path: Path) -> None:
    async def story() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        assert [await generate_broker_id(store, 1000) for _ in range(3)] == [1001, 1002, 1003]
        await store.close()

    asyncio.run(story())


def test_a_gap_in_a_topics_partitions_is_named(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        await setting.store.transact(
            [Create(TopicNode.path("t"), b'{"version":1,"partitions":{"0":[0],"2":[0]}}')]
        )
        image = await load_image(setting.store)
        assert list(image.unreadable) == [("topics", "t")]
        assert re.match(
            r"/brokers/topics/t holds .* it has no partition 1 ", str(image.unreadable["topics", "t"])
        )

    in_office(tmp_path, story)


def test_a_thousand_topics_are_made_and_loaded(tmp_path: Path) -> None:
    async def make(setting: Setting) -> None:
        outcomes = await setting.controller.create_topics(
            NewTopic(f"topic-{number}", 6) for number in range(1000)
        )
        assert all(outcome.error is None for outcome in outcomes)

    async def load(setting: Setting) -> None:
        assert len(setting.controller.image.topics) == 1000

    in_office(tmp_path, make)
    in_office(tmp_path, load)


def test_nobody_in_sync_is_waited_for_until_somebody_allows_to_lose_records(tmp_path: Path) -> None:
    async def story(setting: Setting) -> None:
        other = await waiting_for_broker_9(setting)
        assert other.controller.image.topics["t"].partitions[0].leader == -1
        change = Alteration("unclean.leader.election.enable", AlterOperation.SET, "true")
        (error,) = await other.controller.alter_configs([ConfigCommand(ResourceType.TOPIC, "t", [change])])
        assert error is None
        partition = other.controller.image.topics["t"].partitions[0]
        assert (partition.leader, partition.isr, partition.leader_epoch) == (0, [0], 2)

    in_office(tmp_path, story)


@pytest.mark.parametrize(("resource", "name"), [(ResourceType.TOPIC, "t"), (ResourceType.BROKER, "")])
def test_another_minimum_of_replicas_in_sync_empties_the_eligible_leaders_as_it_is_written(
    tmp_path: Path, resource: ResourceType, name: str
) -> None:
    state_path = PartitionStateNode.path("t", 0)

    def set_to(key: str, value: str) -> list[ConfigCommand]:
        return [ConfigCommand(resource, name, [Alteration(key, AlterOperation.SET, value)])]

    async def story(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t")])
        eligible = PartitionStateNode.encode(PartitionState(0, 1, [0], 1, elr=(8, 9)))
        topic = TopicNode.encode(TopicAssignment(None, {0: [0, 8, 9]}))
        await setting.store.transact([SetData(TopicNode.path("t"), topic), SetData(state_path, eligible)])
        other = Setting(setting.store, min_insync_replicas=3)
        await other.controller.load()
        await other.controller.activate()
        written: list[list[str]] = []
        transact = setting.store.transact

        async def note(operations: Sequence[Operation]) -> object:
            written.append([one.path for one in operations])
            return await transact(operations)

        with mock.patch.object(setting.store, "transact", note):
            key = "retention.ms" if name else "log.retention.ms"
            assert await other.controller.alter_configs(set_to(key, "7")) == [None]
            assert not any(state_path in paths for paths in written)
            assert list(other.controller.image.topics["t"].partitions[0].elr) == [8, 9]
            written.clear()
            assert await other.controller.alter_configs(set_to("min.insync.replicas", "2")) == [None]
        kind = ConfigNode.path("topics", "t") if name else ConfigNode.path("brokers", DEFAULT_ENTITY)
        assert [kind in paths and state_path in paths for paths in written] == [True]
        found = (await load_image(setting.store)).topics["t"].partitions[0]
        assert (found.leader, found.isr, list(found.elr)) == (0, [0], [])

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_who_registers_with_losses_a_moment_before_preferred_replicas_are_elected_does_not_lead(
    tmp_path: Path, is_asked_for: bool
) -> None:
    async def story(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t")])
        state = PartitionStateNode.encode(PartitionState(0, 1, [0, 1], 1))
        await setting.store.transact(
            [
                Create(BrokerNode.path(1), BrokerNode.encode(OTHER_BROKER)),
                SetData(TopicNode.path("t"), TopicNode.encode(TopicAssignment(None, {0: [1, 0]}))),
                SetData(PartitionStateNode.path("t", 0), state),
            ]
        )
        other = Setting(setting.store)
        await other.controller.load()
        assert await other.controller.activate()
        assert other.controller.image.topics["t"].partitions[0].isr == [0, 1]
        Failover(other.controller)
        # No watch has notified the controller of it yet.
        await register_with_losses(setting.store)
        if is_asked_for:
            await other.controller.leading.elect([TopicPartition("t", 0)])
        else:
            assert await other.controller.leading.balance() == 0
        found = other.controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr) == (0, [0])

    in_office(tmp_path, story)


def test_who_registers_with_losses_while_a_controller_begins_is_not_left_with_what_it_lost(
    tmp_path: Path,
) -> None:
    async def story(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t"), NewTopic("u")])
        assignment = TopicAssignment(new_id(), {0: [1, 0]}, {0: [1]}, {0: [0]})
        state = PartitionStateNode.encode(PartitionState(0, 1, [0, 1], 1))
        gone = PartitionStateNode.encode(PartitionState(9, 1, [9, 0], 1))
        await setting.store.transact(
            [
                Create(BrokerNode.path(1), BrokerNode.encode(OTHER_BROKER)),
                SetData(TopicNode.path("t"), TopicNode.encode(assignment)),
                SetData(PartitionStateNode.path("t", 0), state),
                SetData(PartitionStateNode.path("u", 0), gone),
            ]
        )
        other = Setting(setting.store)
        await other.controller.load()
        Failover(other.controller)
        write = other.controller.write

        async def restart(plans: Iterable[Plan]) -> None:
            """Broker 1 registers again while other partitions get leaders."""
            other.controller.write = write  # type: ignore[method-assign]
            await register_with_losses(setting.store)
            await write(plans)

        other.controller.write = restart  # type: ignore[method-assign]
        assert await other.controller.activate()
        found = other.controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr, found.replicas) == (0, [0], [1, 0])

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_wished", [False, True])
def test_who_registers_with_losses_a_moment_before_a_move_ends_is_not_left_with_what_it_lost(
    tmp_path: Path, is_wished: bool
) -> None:
    async def story(setting: Setting) -> None:
        await setting.controller.create_topics([NewTopic("t")])
        adding = {0: [] if is_wished else [1]}
        removing = {0: [] if is_wished else [0]}
        assignment = TopicAssignment(new_id(), {0: [1, 0]}, adding, removing)
        state = PartitionStateNode.encode(PartitionState(0, 1, [0, 1] if is_wished else [0], 1))
        await setting.store.transact(
            [
                Create(BrokerNode.path(1), BrokerNode.encode(OTHER_BROKER)),
                SetData(TopicNode.path("t"), TopicNode.encode(assignment)),
                SetData(PartitionStateNode.path("t", 0), state),
            ]
        )
        other = Setting(setting.store)
        await other.controller.load()
        assert await other.controller.activate()
        image = other.controller.image
        known, epoch = image.topics["t"], image.brokers[1].epoch
        failover = Failover(other.controller)
        # No watch has notified the controller of it yet.
        await register_with_losses(setting.store)
        if is_wished:
            await other.controller.moves.alter({TopicPartition("t", 0): [1]})
        else:
            one = known.partitions[0]
            change = IsrChange(0, one.leader_epoch, one.partition_epoch, [(0, -1), (1, epoch)])
            await failover.alter_isr([WantedIsr(known.topic_id, 0, change)])
        found = other.controller.image.topics["t"].partitions[0]
        assert (found.leader, found.isr, found.replicas) == (0, [0], [1, 0])

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_by_others", [False, True])
def test_a_leader_that_may_lack_records_is_elected_also_where_the_store_did_not_answer_at_first(
    tmp_path: Path, is_by_others: bool
) -> None:
    settings = {"unclean.leader.election.enable": "true"}

    async def story(setting: Setting) -> None:
        other = await waiting_for_broker_9(setting)
        await asyncio.sleep(0.01)  # By now it has found that nobody may be elected.
        silences = [StoreUnavailable("it is away")]

        async def look() -> None:
            if silences:
                raise silences.pop()

        other.controller.look_at_brokers = look
        if is_by_others:
            data = ConfigNode.encode(settings)
            await setting.store.transact([SetData(ConfigNode.path("topics", "t"), data)])
            with pytest.raises(StoreUnavailable):
                await other.controller.take_settings({("topics", "t"): settings})
            await other.controller.take_settings({("topics", "t"): settings})
        else:
            change = [Alteration(name, AlterOperation.SET, text) for name, text in settings.items()]
            await other.controller.alter_configs([ConfigCommand(ResourceType.TOPIC, "t", change)])
        for _ in range(100):
            if other.controller.image.topics["t"].partitions[0].leader == 0:
                break
            await asyncio.sleep(0.01)
        assert not silences
        assert other.controller.image.topics["t"].partitions[0].leader == 0

    in_office(tmp_path, story)


@pytest.mark.parametrize("is_default", [False, True])
def test_settings_of_several_clients_hold_although_what_they_wrote_is_read_meanwhile(
    tmp_path: Path, is_default: bool
) -> None:
    """Each note of a change has the controller read the settings, and take them when it is free again."""
    names = ["retention.ms", "flush.messages", "segment.bytes"]
    if is_default:
        names = ["log.retention.ms", "log.flush.interval.messages", "log.segment.bytes"]
    kind, entity = (ResourceType.BROKER, "") if is_default else (ResourceType.TOPIC, "t")
    node = ("brokers", DEFAULT_ENTITY) if is_default else ("topics", "t")
    path = ConfigNode.path(*node)

    async def story(setting: Setting) -> None:
        controller = setting.controller

        async def alter(name: str) -> None:
            change = [Alteration(name, AlterOperation.SET, "100000")]
            assert await controller.alter_configs([ConfigCommand(kind, entity, change)]) == [None]

        async def stored() -> dict[str, str]:
            found = await setting.store.get(path)
            assert found is not None
            return ConfigNode.decode(path, found.data)

        await controller.create_topics([NewTopic("t")])
        await alter(names[0])
        read = {node: await stored()}
        await asyncio.gather(alter(names[1]), controller.take_settings(read), alter(names[2]))
        wanted = dict.fromkeys(names, "100000")
        assert await stored() == wanted
        image = controller.image
        assert (image.default_broker_config() if is_default else image.topics["t"].config) == wanted

    in_office(tmp_path, story)
