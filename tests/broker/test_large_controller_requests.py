"""Requests about a thousand topics or partitions: results for each topic, and slices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from test_controller_requests import NODE, broker_stage
from test_handlers_topics import broker_in, new_topics

from alter_partition_items import isr_change, item_for
from tidemill.broker.handlers import delete_topics
from tidemill.broker.handlers.common import SETTINGS_MAX
from tidemill.controller.leader_election import CHANGES_PER_SLICE
from tidemill.controller.topics import PARTITIONS_PER_REQUEST_MAX
from tidemill.coordination.topic_image import PartitionImage
from tidemill.coordination.topic_index import PARTITIONS_PER_SLICE
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_AT_ONCE_MAX, ITEMS_PER_SLICE, STEPS_PER_SLICE
from tidemill.model.types import ZERO_ID
from tidemill.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tidemill.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidemill.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)

PARTITIONS = 3000
GOOD = [f"t{number}" for number in range(1000)]
Result = TypeVar("Result")
INVALID_REQUEST, POLICY_VIOLATION = ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION
INVALID, UNKNOWN, TWICE, INVALID_PLACE = "not valid", "unknown", "twice", 450


async def test_one_request_creates_grows_or_deletes_a_thousand_topics(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        names = [*GOOD[:INVALID_PLACE], INVALID, TWICE, *GOOD[INVALID_PLACE:], TWICE]
        made = await broker.ask(new_topics(*names), 7)
        codes = {one.name: one.error_code for one in made.topics}
        assert list(codes) == names[:-1]
        assert codes.pop(INVALID) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert codes.pop(TWICE) == ErrorCode.INVALID_REQUEST
        assert codes == dict.fromkeys(GOOD, ErrorCode.NONE)
        assert sorted(broker.metadata_cache.topics) == sorted(GOOD)
        assert all(
            one.topic_id == broker.metadata_cache.topics[one.name].topic_id
            for one in made.topics
            if one.name in GOOD
        )

        names = [*GOOD[:INVALID_PLACE], UNKNOWN, TWICE, *GOOD[INVALID_PLACE:], TWICE]
        wanted = [CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]
        request = CreatePartitionsRequest(topics=wanted, timeout_ms=60_000, validate_only=False)
        grown = await broker.ask(request, 3)
        codes = {one.name: one.error_code for one in grown.results}
        assert list(codes) == names[:-1]
        assert codes.pop(UNKNOWN) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes.pop(TWICE) == ErrorCode.INVALID_REQUEST
        assert codes == dict.fromkeys(GOOD, ErrorCode.NONE)
        assert {len(topic.partitions) for topic in broker.metadata_cache.topics.values()} == {2}

        states = [DeleteTopicState(name=name, topic_id=ZERO_ID) for name in (*names, GOOD[7])]
        gone = await broker.ask(DeleteTopicsRequest(topics=states, timeout_ms=60_000), 6)
        codes = {one.name: one.error_code for one in gone.responses}
        assert codes.pop(UNKNOWN) == codes.pop(TWICE) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes.pop(GOOD[7]) == ErrorCode.INVALID_REQUEST
        assert codes == dict.fromkeys([name for name in GOOD if name != GOOD[7]], ErrorCode.NONE)
        assert list(broker.metadata_cache.topics) == [GOOD[7]]


async def test_too_many_settings_or_partitions_of_a_topic_are_refused(
    tmp_path: Path,
) -> None:
    async with broker_in(tmp_path) as broker:
        many = [CreatableTopicConfig(name=f"k{number}", value="1") for number in range(SETTINGS_MAX + 1)]
        placed = [
            CreatableReplicaAssignment(partition_index=number, broker_ids=[7])
            for number in range(PARTITIONS_PER_REQUEST_MAX + 1)
        ]
        topics = [
            CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=assigned, configs=configs
            )
            for name, assigned, configs in (("a", [], many), ("b", placed, []), ("c", [], many[:0]))
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=False)
        first, second, third = (await broker.ask(request, 7)).topics
        assert (first.error_code, "1001 settings" in first.error_message) == (INVALID_REQUEST, True)
        assert (second.error_code, "10001" in second.error_message) == (POLICY_VIOLATION, True)
        assert third.error_code == ErrorCode.NONE

        changes = [AlterableConfig(name=one.name, value=one.value) for one in many]
        resource = AlterConfigsResource(resource_type=2, resource_name="c", configs=changes)
        answer = await broker.ask(AlterConfigsRequest(resources=[resource], validate_only=False), 2)
        (refused,) = answer.responses
        assert (refused.error_code, "1001 settings" in refused.error_message) == (INVALID_REQUEST, True)

        new = [CreatePartitionsAssignment(broker_ids=[7])] * (PARTITIONS_PER_REQUEST_MAX + 1)
        wanted = [CreatePartitionsTopic(name="c", count=len(new) + 1, assignments=new)]
        grow = CreatePartitionsRequest(topics=wanted, timeout_ms=60_000, validate_only=False)
        (refused,) = (await broker.ask(grow, 3)).results
        assert (refused.error_code, "10001" in refused.error_message) == (POLICY_VIOLATION, True)


async def test_requests_about_a_thousand_topics_yield_to_the_event_loop() -> None:
    async with broker_stage() as side:
        state = LeaderAndIsrPartitionState(
            partition_index=0, controller_epoch=1, leader=NODE, isr=[NODE], replicas=[NODE], is_new=True
        )
        states = [
            LeaderAndIsrTopicState(topic_name=name, topic_id=id_of(name), partition_states=[state])
            for name in GOOD
        ]
        lead = LeaderAndIsrRequest(
            controller_id=2, controller_epoch=1, broker_epoch=10, topic_states=states, live_leaders=[]
        )
        passes, answer = await passes_beside(side.requests.leader_and_isr(lead))
        assert [one.topic_id for one in answer.topics] == [id_of(name) for name in GOOD]
        assert {one.error_code for topic in answer.topics for one in topic.partition_errors} == {0}
        # Settings, states, logs, followers and results.
        assert passes >= 5 * len(GOOD) // STEPS_PER_SLICE
        passes, _ = await passes_beside(side.update_metadata(*((name, id_of(name), [0]) for name in GOOD)))
        assert sorted(side.broker.metadata_cache.topics) == sorted(GOOD)
        assert passes >= 2 * len(GOOD) // STEPS_PER_SLICE


def test_other_requests_are_handled_during_a_deletion_of_thousands_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions before 6 have only names, which are converted to the items of later versions in slices."""
    names = [f"t{number}" for number in range(6000)]
    taken: list[str] = []

    def item(**given: Any) -> DeleteTopicState:
        taken.append(given["name"])
        return DeleteTopicState(**given)

    async def most_at_once(doing: asyncio.Future[Any]) -> int:
        before, most = 0, 0
        while not doing.done():
            await asyncio.sleep(0)
            most = max(most, len(taken) - before)
            before = len(taken)
        return most

    async def story() -> None:
        async with broker_in(tmp_path) as broker:
            request = DeleteTopicsRequest(topic_names=names, timeout_ms=5000)
            doing = asyncio.ensure_future(broker.ask(request, 5))
            most = await most_at_once(doing)
            assert most < len(names) // 2
            assert [one.name for one in (await doing).responses] == names == taken

    monkeypatch.setattr(delete_topics.messages, "DeleteTopicState", item)
    asyncio.run(story())


def id_of(name: str) -> bytes:
    return name.encode().rjust(16, b"-")


async def passes_beside(work: Awaitable[Result]) -> tuple[int, Result]:
    """Returns the number of turns of the event loop during ``work``, and its result."""
    doing = asyncio.ensure_future(work)
    passes = 0
    while not doing.done():
        passes += 1
        await asyncio.sleep(0)
    return passes, await doing


async def test_requests_about_a_topic_of_thousands_of_partitions_yield_to_the_event_loop() -> None:
    pauses = PARTITIONS // ITEMS_PER_SLICE

    async with broker_stage() as side:
        await side.lead("t", id_of("t"), *range(PARTITIONS))
        everything = ("t", id_of("t"), range(PARTITIONS))
        # The states are built and compared.
        passes, _ = await passes_beside(side.update_metadata(everything))
        assert len(side.broker.metadata_cache.topics["t"].partitions) == PARTITIONS
        assert passes >= pauses + PARTITIONS // PARTITIONS_PER_SLICE
        # A full request also checks the replicas of this broker, and those that others lead.
        passes, _ = await passes_beside(side.update_metadata(everything, is_full=True))
        assert passes >= 2 * pauses + PARTITIONS // ITEMS_AT_ONCE_MAX + PARTITIONS // STEPS_PER_SLICE
        passes, _ = await passes_beside(side.lead("t", id_of("t"), *range(PARTITIONS), is_full=True))
        # And the states, the logs and the results.
        assert passes >= 2 * pauses + 3 * PARTITIONS // STEPS_PER_SLICE
        assert all(side.broker.replica_manager.find("t", number) for number in range(PARTITIONS))


async def test_unassigned_replicas_are_stopped_before_the_full_request_ends() -> None:
    async with broker_stage() as side:
        await side.lead("t", id_of("t"), *range(PARTITIONS))
        kept = range(0, PARTITIONS, 2)
        update = asyncio.ensure_future(side.update_metadata(("t", id_of("t"), kept), is_full=True))
        # Another request that arrives meanwhile is handled after it.
        after = asyncio.ensure_future(side.lead("t", id_of("t"), 1, leader_epoch=1))
        await asyncio.gather(update, after)
        found = [number for number in range(PARTITIONS) if side.broker.replica_manager.find("t", number)]
        assert found == sorted([*kept, 1])


async def test_isr_changes_of_thousands_of_partitions_are_written_in_parts(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        states = [CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)]
        made = CreateTopicsRequest(topics=states, timeout_ms=60_000, validate_only=False)
        assert [one.error_code for one in (await broker.ask(made, 7)).topics] == [0]
        topic = broker.controller.image.topics["t"]
        read = topic.partitions = ReadTuple(topic.partitions)
        node = broker.node_id
        # The same ISR in the current partition epoch, and one with an unknown broker.
        wanted = [
            item_for(topic.topic_id, number, isr_change(node, 0, 0, [(node, -1), *others]))
            for number in range(PARTITIONS)
            for others in ([], [(99, -1)])
        ]
        passes, results = await passes_beside(broker.controller.alter_partitions(wanted))
        assert passes >= len(wanted) // CHANGES_PER_SLICE
        assert read.times <= 2
        errors = [one for one in results if isinstance(one, KafkaError)]
        assert len(errors) == PARTITIONS
        assert all(one.__traceback__ is None for one in errors)


class ReadTuple(tuple[PartitionImage, ...]):
    """Counts its iterations."""

    times = 0

    def __iter__(self) -> Iterator[PartitionImage]:
        self.times += 1
        return super().__iter__()
