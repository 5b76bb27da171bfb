"""The APIs for reassignments and elections, with a real controller of several brokers and a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from test_handlers_topics import INSIDE, SmallBroker, broker_in

from alter_partition_items import isr_change, item_for
from tidemill.controller.controller import KafkaController
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import Create, Delete, SetData, Store
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import (
    PREFERRED_REPLICA_ELECTION,
    REASSIGN_PARTITIONS,
    BrokerNode,
    BrokerRegistration,
    Endpoint,
    PartitionListNode,
    ReassignmentNode,
    TopicNode,
)
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from tidemill.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownRequest
from tidemill.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tidemill.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tidemill.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

PREFERRED, UNCLEAN = 0, 1
FIRST = TopicPartition("t", 0)


class Brokers:
    """Broker 7, which is the controller, and others of which there is only the registration."""

    def __init__(self, asked: SmallBroker) -> None:
        self.asked = asked
        self.store: Store = asked.store
        self.controller: KafkaController = asked.controller
        self.failover = asked.controller.failover

    async def come(self, *broker_ids: int, lost_unsynced: bool = False) -> None:
        """Others register."""
        for one in broker_ids:
            data = registration(one, lost_unsynced)
            await self.store.transact([Create(BrokerNode.path(one), data, ephemeral=True)])
        await self.failover.brokers_changed()

    async def go(self, *broker_ids: int) -> None:
        """Others end."""
        for one in broker_ids:
            await self.store.transact([Delete(BrokerNode.path(one))])
        await self.failover.brokers_changed()

    async def have(self, *replicas: Sequence[int], name: str = "t") -> None:
        """Makes a topic with these replicas."""
        placed = [
            CreatableReplicaAssignment(partition_index=n, broker_ids=list(r)) for n, r in enumerate(replicas)
        ]
        made = CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=placed, configs=[]
        )
        (result,) = (await self.asked.ask(CreateTopicsRequest(topics=[made], timeout_ms=5000), 5)).topics
        assert result.error_code == 0, result.error_message

    def partition(self, number: int = 0, name: str = "t") -> PartitionImage:
        """A partition as everybody was told of it."""
        return self.asked.metadata_cache.image.topics[name].partitions[number]

    async def in_sync(self, *isr: int, number: int = 0) -> None:
        """The leader asks for this in-sync set."""
        now = self.controller.image.topics["t"].partitions[number]
        change = isr_change(now.leader, now.leader_epoch, now.partition_epoch, [(one, -1) for one in isr])
        topic_id = self.controller.image.topics["t"].topic_id
        (result,) = await self.asked.controller.alter_partitions([item_for(topic_id, number, change)])
        assert isinstance(result, PartitionImage), result

    async def alter(
        self, wishes: Mapping[int, list[int] | None], version: int = 0, *, factor_may_change: bool = True
    ) -> dict[int, int]:
        """Reassignments for partitions of the topic; the codes."""
        partitions = [ReassignablePartition(partition_index=n, replicas=r) for n, r in wishes.items()]
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=5000,
            allow_replication_factor_change=factor_may_change,
            topics=[ReassignableTopic(name="t", partitions=partitions)],
        )
        response = await self.asked.ask(request, version)
        assert response.error_code == 0
        ((name, results),) = [(topic.name, topic.partitions) for topic in response.responses]
        assert name == "t"
        assert all(bool(one.error_message) == bool(one.error_code) for one in results)
        return {one.partition_index: one.error_code for one in results}

    async def moving(
        self, topics: Any = None
    ) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
        """What is listed: replicas, adding, removing."""
        request = ListPartitionReassignmentsRequest(timeout_ms=5000, topics=topics)
        response = await self.asked.ask(request, 0)
        assert response.error_code == 0
        return {
            (topic.name, one.partition_index): (one.replicas, one.adding_replicas, one.removing_replicas)
            for topic in response.topics
            for one in topic.partitions
        }

    async def elect(self, version: int, kind: int, numbers: list[int] | None) -> dict[int, int]:
        """Asks for elections in the topic; the codes."""
        listed = None if numbers is None else [TopicPartitions(topic="t", partitions=numbers)]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=listed, timeout_ms=5000)
        response = await self.asked.ask(request, version)
        assert response.error_code == 0
        return {
            one.partition_id: one.error_code
            for topic in response.replica_election_results
            for one in topic.partition_result
        }

    async def agrees_with_store(self) -> None:
        """What the controller knows is what a new one would read."""
        known, stored = self.controller.image, await load_image(self.store)
        for name, topic in known.topics.items():
            other = stored.topics[name]
            assert other.node_version == topic.node_version
            assert list(map(str, other.partitions)) == list(map(str, topic.partitions))
            for one, two in zip(topic.partitions, other.partitions, strict=True):
                assert one.partition_epoch == two.partition_epoch


def registration(broker_id: int, lost_unsynced: bool = False) -> bytes:
    endpoint = Endpoint("INSIDE", "PLAINTEXT", f"10.0.0.{broker_id}", 19092)
    registered = BrokerRegistration(
        broker_id, (endpoint,), f"rack-{broker_id}", lost=LostReplicas(unsynced=lost_unsynced)
    )
    return BrokerNode.encode(registered)


@asynccontextmanager
async def brokers_in(directory: Path, **config: Any) -> AsyncIterator[Brokers]:
    """Brokers 7, 1, 2 and 3."""
    async with broker_in(directory, **config) as asked:
        brokers = Brokers(asked)
        await brokers.come(1, 2, 3)
        yield brokers
        asked.controller.election.resign()


async def test_a_broker_that_lost_records_joins_the_isr_once_its_registration_reports_no_loss(
    tmp_path: Path,
) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7, 1])
        await brokers.go(1)
        await brokers.come(1, lost_unsynced=True)
        assert brokers.partition().isr == [7]
        with pytest.raises(AssertionError, match="still reports lost records"):
            await brokers.in_sync(7, 1)
        await brokers.store.transact([SetData(BrokerNode.path(1), registration(1))])
        await brokers.in_sync(7, 1)
        assert brokers.partition().isr == [7, 1]


# Reassignments


async def test_a_partition_is_reassigned(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7, 1], [1, 7])
        assert await brokers.moving() == {}
        assert await brokers.alter({0: [2, 3]}) == {0: 0}
        assert await brokers.moving() == {("t", 0): ([2, 3, 7, 1], [2, 3], [7, 1])}
        only = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[1, 9])]
        assert await brokers.moving(only) == {}
        await brokers.agrees_with_store()
        told = brokers.partition()
        assert (told.leader, told.isr, told.leader_epoch) == (7, [7, 1], 1)
        await brokers.in_sync(7, 1, 2)
        assert len(await brokers.moving()) == 1
        await brokers.in_sync(7, 1, 2, 3)
        assert await brokers.moving() == {}
        told = brokers.partition()
        assert (told.leader, told.replicas, told.isr, told.leader_epoch) == (2, [2, 3], [2, 3], 2)
        await brokers.agrees_with_store()


async def test_a_reassignment_is_cancelled(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7, 1], [1, 7])
        await brokers.alter({0: [2, 7]})
        await brokers.in_sync(7, 1)
        assert await brokers.alter({0: None, 1: None, 2: None}) == {
            0: 0,
            1: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        told = brokers.partition()
        assert (told.leader, told.replicas, told.adding) == (7, [7, 1], [])
        await brokers.agrees_with_store()


async def test_invalid_reassignments_are_refused_per_partition(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7], [7], [7])
        assert await brokers.alter({0: [8], 1: [], 2: [1]}) == {
            0: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            2: 0,
        }
        assert await brokers.alter({0: [1, 2]}, 1, factor_may_change=False) == {
            0: ErrorCode.INVALID_REPLICATION_FACTOR
        }
        assert await brokers.alter({0: [7, 2]}, 1) == {0: 0}


async def test_a_reassignment_continues_under_the_next_controller(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7, 1])
        await brokers.alter({0: [2, 1]})
        # The leader adds the replica to the ISR just before the controller ends.
        state = brokers.controller.image.topics["t"].partitions[0]
        path = "/brokers/topics/t/partitions/0/state"
        data = b'{"controller_epoch":1,"leader":7,"version":1,"leader_epoch":1,"isr":[7,1,2]}'
        await brokers.store.transact([SetData(path, data, state.partition_epoch)])
        brokers.controller.election.resign()
        await brokers.store.transact([Delete("/controller")])
        assert await brokers.controller.context.activate()
        told = brokers.partition()
        assert (told.leader, told.replicas, told.isr, told.leader_epoch) == (2, [2, 1], [1, 2], 2)
        assert await brokers.moving() == {}
        await brokers.agrees_with_store()


async def test_another_writer_of_the_topic_node_does_not_prevent_a_reassignment(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7], [7])
        node = await brokers.store.get(TopicNode.path("t"))
        assert node is not None
        await brokers.store.transact([SetData(TopicNode.path("t"), node.data)])
        assert await brokers.alter({0: [1], 1: [2]}) == {0: 0, 1: 0}
        assert len(await brokers.moving()) == 2
        await brokers.agrees_with_store()


async def test_a_broker_that_is_not_the_controller_returns_not_controller(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7])
        brokers.controller.election.resign()
        topics = [ReassignableTopic(name="t", partitions=[])]
        asked = brokers.asked
        for request, version in (
            (AlterPartitionReassignmentsRequest(topics=topics), 0),
            (ListPartitionReassignmentsRequest(topics=None), 0),
            (ElectLeadersRequest(topic_partitions=None), 2),
            (ControlledShutdownRequest(broker_id=1, broker_epoch=-1), 3),
        ):
            assert (await asked.ask(request, version)).error_code == ErrorCode.NOT_CONTROLLER
        named = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])
        (topic,) = (await asked.ask(named, 0)).replica_election_results
        assert [one.error_code for one in topic.partition_result] == [ErrorCode.NOT_CONTROLLER]


# Nodes that administrators write


async def test_a_requested_reassignment_node_is_applied_and_deleted_at_its_end(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7], [7], [7], [7])
        numbers = {n: TopicPartition("t", n) for n in range(5)}
        wishes = {numbers[0]: [1], numbers[1]: [2], numbers[2]: [9], numbers[3]: [7], numbers[4]: [7]}
        await brokers.store.transact([Create(REASSIGN_PARTITIONS, ReassignmentNode.encode(wishes))])

        async def left() -> set[int] | None:
            node = await brokers.store.get(REASSIGN_PARTITIONS)
            return None if node is None else {p.partition for p in ReassignmentNode.decode(node.data)}

        for _ in range(2):  # The node that it wrote itself is read as well.
            await brokers.controller.reassignments.apply_requested_reassignments()
            assert await left() == {0, 1}
        await brokers.in_sync(7, 1)
        assert await left() == {1}
        assert await brokers.alter({1: [3]}) == {1: 0}, "the later request takes precedence"
        assert await left() is None
        assert list(await brokers.moving()) == [("t", 1)]
        await brokers.controller.reassignments.apply_requested_reassignments()


async def test_a_requested_reassignment_node_is_kept_until_it_was_read(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7], [7], [7])
        await brokers.alter({0: [1]})
        wishes = {TopicPartition("t", 1): [2], TopicPartition("t", 2): [7]}
        await brokers.store.transact([Create(REASSIGN_PARTITIONS, ReassignmentNode.encode(wishes))])
        await brokers.in_sync(7, 1)
        await brokers.alter({0: [7]})
        node = await brokers.store.get(REASSIGN_PARTITIONS)
        assert node is not None
        assert ReassignmentNode.decode(node.data) == wishes
        await brokers.controller.reassignments.apply_requested_reassignments()
        assert list(await brokers.moving()) == [("t", 0), ("t", 1)]
        (outcome,) = await brokers.controller.admin_manager.delete_topics(["t"])
        assert outcome.error is None
        assert not await brokers.store.exists(REASSIGN_PARTITIONS)


async def test_unreadable_nodes_are_kept_for_the_administrator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7])
        paths = [REASSIGN_PARTITIONS, PREFERRED_REPLICA_ELECTION]
        await brokers.store.transact([Create(path, b"{}") for path in paths])
        await brokers.controller.reassignments.apply_requested_reassignments()
        await brokers.controller.leader_elections.run_requested_elections()
        assert await brokers.alter({0: [1]}) == {0: 0}
        assert all([await brokers.store.exists(path) for path in paths])
        await brokers.store.transact([Delete(path) for path in paths])
    for path in (REASSIGN_PARTITIONS, PREFERRED_REPLICA_ELECTION):
        assert any(path in record.getMessage() for record in caplog.records)


async def test_requested_elections_are_run(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1, 7], [7, 1])
        await brokers.go(1)
        await brokers.come(1)
        await brokers.in_sync(7, 1)
        asked = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
        path = PREFERRED_REPLICA_ELECTION
        await brokers.store.transact([Create(path, PartitionListNode.encode(asked))])
        await brokers.controller.leader_elections.run_requested_elections()
        assert brokers.partition().leader == 1
        assert not await brokers.store.exists(path)
        await brokers.controller.leader_elections.run_requested_elections()


# Elections


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_preferred_replicas_are_elected(tmp_path: Path, version: int) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1, 7], [7, 1], [1, 7])
        await brokers.go(1)
        assert brokers.partition().leader == 7
        unavailable = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert await brokers.elect(version, PREFERRED, None) == {0: unavailable, 2: unavailable}
        await brokers.come(1)
        await brokers.in_sync(7, 1)
        assert await brokers.elect(version, PREFERRED, [0, 1, 2, 3]) == {
            0: 0,
            1: ErrorCode.ELECTION_NOT_NEEDED,
            2: unavailable,
            3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        told = brokers.partition()
        assert (told.leader, told.isr, told.leader_epoch) == (1, [7, 1], 2)
        await brokers.in_sync(7, 1, number=2)
        assert await brokers.elect(version, PREFERRED, None) == {2: 0}
        assert await brokers.elect(version, PREFERRED, None) == {}
        await brokers.agrees_with_store()


async def test_unclean_elections_and_unknown_election_types(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1, 2], [7, 3])
        await brokers.in_sync(1)
        await brokers.go(1)
        assert brokers.partition().leader == -1
        assert await brokers.elect(1, UNCLEAN, [0, 1]) == {0: 0, 1: ErrorCode.ELECTION_NOT_NEEDED}
        assert (brokers.partition().leader, brokers.partition().isr) == (2, [2])
        request = ElectLeadersRequest(election_type=5, topic_partitions=None)
        assert (await brokers.asked.ask(request, 2)).error_code == ErrorCode.INVALID_REQUEST


async def test_preferred_leaders_are_elected_automatically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.controller.leader_election_requests.REBALANCE_DELAY_S", 0.0)

    async with brokers_in(tmp_path, leader_imbalance_check_interval_seconds=1) as brokers:
        await brokers.have([1, 7], [7, 1])
        await brokers.go(1)
        await brokers.come(1)
        returned = asyncio.Event()

        async def look(delta: Delta) -> None:
            if delta.image.topics["t"].partitions[0].leader == 1:
                returned.set()

        brokers.asked.metadata_cache.on_change(look)
        await brokers.in_sync(7, 1)
        async with asyncio.timeout(30):
            await returned.wait()
        await brokers.agrees_with_store()


# Shutdowns


async def test_controlled_shutdown_is_accepted_only_from_brokers(tmp_path: Path) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1, 7])
        request = ControlledShutdownRequest(broker_id=1, broker_epoch=-1)
        response = await brokers.asked.ask(request, 3, INSIDE)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert brokers.partition(0).leader == 1
        assert not brokers.controller.context.stopping()


async def test_a_request_with_the_epoch_of_an_earlier_registration_changes_no_isr(
    tmp_path: Path,
) -> None:
    async with brokers_in(tmp_path) as brokers:
        asked: Any = brokers.asked
        asked.failover = brokers.failover
        await brokers.have([1, 2])
        now, topic_id = brokers.partition(), brokers.controller.image.topics["t"].topic_id
        before = brokers.controller.image.brokers[1].epoch
        smaller = AlterPartitionRequestPartitionData(
            partition_index=0,
            leader_epoch=now.leader_epoch,
            partition_epoch=now.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=1, broker_epoch=-1)],
        )
        topic = AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[smaller])
        request = AlterPartitionRequest(broker_id=1, broker_epoch=before - 1, topics=[topic])
        answer = await asked.ask(request, 3)
        assert (answer.error_code, answer.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])
        assert brokers.partition().isr == [1, 2]
        request.broker_epoch = before
        answer = await asked.ask(request, 3)
        assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
        assert brokers.partition().isr == [1]


@pytest.mark.parametrize("version", range(4))
async def test_a_controlled_shutdown_moves_leaderships_to_other_brokers(tmp_path: Path, version: int) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1, 7], [7, 1], [1, 2])
        await brokers.have([1], name="u")
        await brokers.in_sync(1, number=2)
        epoch = brokers.controller.image.brokers[1].epoch

        async def leave(broker: int, of_epoch: int = epoch) -> Any:
            return await brokers.asked.ask(
                ControlledShutdownRequest(broker_id=broker, broker_epoch=of_epoch), version
            )

        assert (await leave(9, -1)).error_code == ErrorCode.BROKER_NOT_AVAILABLE
        if version >= 2:
            assert (await leave(1, epoch - 1)).error_code == ErrorCode.STALE_BROKER_EPOCH
        response = await leave(1)
        assert response.error_code == 0
        assert [(p.topic_name, p.partition_index) for p in response.remaining_partitions] == [("t", 2)]
        assert (brokers.partition(0).leader, brokers.partition(0).isr) == (7, [7])
        assert (brokers.partition(1).leader, brokers.partition(1).isr) == (7, [7])
        # It is not elected and does not join the ISR until it has started again.
        assert await brokers.elect(2, PREFERRED, [0]) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        assert await brokers.alter({1: [1, 2]}) == {1: 0}, "an existing replica may stay"
        await brokers.go(1)
        await brokers.come(1)
        assert not brokers.controller.context.stopping()
        await brokers.in_sync(7, 1)
        assert await brokers.elect(2, PREFERRED, [0]) == {0: 0}
        await brokers.agrees_with_store()
