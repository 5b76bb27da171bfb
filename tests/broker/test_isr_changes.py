"""Asking the controller for in-sync sets, whose answers may be lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from replica_stage import Broker as Logs

from tidemill.broker.isr_changes import RETRY_S, IsrChanges
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

LEADER, FOLLOWER = 1, 2
OWN_EPOCH, FORMER, NOW = 7, 5, 9


class Controller:
    """Answers in the order of ``answers``: errors of the connection, codes, or the set that was written."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[AlterPartitionRequest] = []
        self.asked_s: list[float] = []

    async def ask_when_reached(
        self, key: int, versions: tuple[int, int], make: Callable[[], AlterPartitionRequest]
    ) -> Any:
        request = make()
        self.asked.append(request)
        self.asked_s.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        ((wanted,),) = [topic.partitions for topic in request.topics]
        if isinstance(answer, ErrorCode):
            one = AlterPartitionResponsePartitionData(partition_index=0, error_code=answer)
        else:
            one = AlterPartitionResponsePartitionData(
                partition_index=0,
                error_code=0,
                leader_id=LEADER,
                leader_epoch=wanted.leader_epoch,
                isr=answer,
                partition_epoch=wanted.partition_epoch + 1,
            )
        topic = AlterPartitionResponseTopicData(topic_id=request.topics[0].topic_id, partitions=[one])
        return AlterPartitionResponse(error_code=0, topics=[topic])


class Parts:
    """What stands for the manager of partitions."""

    def isr_changed(self, partition: Partition, state: PartitionState) -> None:
        partition.become(
            state.leader, state.leader_epoch, state.replicas, state.isr, state.partition_epoch, 0
        )

    def isr_refused(self, partition: Partition) -> None:
        partition.isr_refused(0)


def story(
    *answers: Any, then: Callable[[Partition], None] = lambda partition: None
) -> tuple[Partition, Controller]:
    """A leader alone, whose follower is back; what is known once all answers were given.

    ``then`` is what happens while the first request is on its way.
    """
    logs = Logs(LEADER)
    (partition,) = logs.partitions
    controller = Controller(*answers)

    async def ask() -> None:
        parts: Any = SimpleNamespace(
            controller=SimpleNamespace(is_active=False), partitions=Parts(), node_id=LEADER
        )
        link: Any = controller
        failover: Any = None
        changes = IsrChanges(parts, link, failover, lambda: OWN_EPOCH)
        partition.become(LEADER, 3, (LEADER, FOLLOWER), (LEADER,), 5, 0)
        partition.fetched_by(FOLLOWER, 0, 0, 0, FORMER)
        ((isr, epoch),) = logs.events.wanted
        changes.want(partition, isr, epoch)
        logs.write(0, b"a")
        then(partition)
        async with asyncio.timeout(10):
            while controller.answers:
                assert partition.high_watermark == 0
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
        changes.stop()
        changes.want(partition, isr, epoch)
        assert changes._task is None, "after the stop nothing begins"

    asyncio.run(ask())
    return partition, controller


LOST = KafkaError("the connection broke", ErrorCode.NOT_CONTROLLER)


@pytest.mark.parametrize(
    "lost",
    [
        LOST,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_what_may_have_been_written_is_asked_for_again(lost: KafkaError | ErrorCode) -> None:
    partition, controller = story(lost, lost, [LEADER, FOLLOWER])
    assert partition.isr == (LEADER, FOLLOWER)
    assert partition.high_watermark == 0
    assert len(controller.asked) == 3
    assert controller.asked[0] == controller.asked[2]


def members(request: AlterPartitionRequest) -> list[tuple[int, int]]:
    """Who the set of the only partition has, with the epochs of their registrations."""
    ((wanted,),) = [topic.partitions for topic in request.topics]
    return [(member.broker_id, member.broker_epoch) for member in wanted.new_isr_with_epochs]


def test_members_are_named_with_the_epochs_in_which_they_fetched() -> None:
    _, controller = story([LEADER, FOLLOWER])
    assert controller.asked[0].broker_epoch == OWN_EPOCH
    assert members(controller.asked[0]) == [(LEADER, OWN_EPOCH), (FOLLOWER, FORMER)]


def test_a_request_means_who_was_there_when_it_was_wanted_however_often_it_is_sent() -> None:
    def comes_back_with_nothing(partition: Partition) -> None:
        assert partition.fetched_by(FOLLOWER, 0, 0, 1, NOW)

    _, controller = story(LOST, ErrorCode.INELIGIBLE_REPLICA, then=comes_back_with_nothing)
    assert [members(request)[1] for request in controller.asked] == [(FOLLOWER, FORMER)] * 2


def test_after_a_refusal_the_next_fetch_asks_again_with_the_epoch_that_is_known_then() -> None:
    logs = Logs(LEADER)
    (partition,) = logs.partitions
    controller = Controller(ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INELIGIBLE_REPLICA, [LEADER, FOLLOWER])

    async def ask() -> None:
        parts: Any = SimpleNamespace(
            controller=SimpleNamespace(is_active=False), partitions=Parts(), node_id=LEADER
        )
        nobody: Any = None
        link: Any = controller
        changes = IsrChanges(parts, link, nobody, lambda: OWN_EPOCH)
        logs.events.isr_wanted = changes.want  # type: ignore[assignment]
        partition.become(LEADER, 3, (LEADER, FOLLOWER), (LEADER,), 5, 0)
        async with asyncio.timeout(10):
            for epoch in (FORMER, NOW, NOW):
                left = len(controller.answers)
                assert partition.fetched_by(FOLLOWER, 0, 0, 1, epoch)
                while len(controller.answers) == left:
                    assert partition.isr == (LEADER,)
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        changes.stop()

    asyncio.run(ask())
    assert partition.isr == (LEADER, FOLLOWER)
    assert [members(request)[1][1] for request in controller.asked] == [FORMER, NOW, NOW]
    # The controller is not asked as fast as followers fetch.
    waits_s = [later - before for before, later in itertools.pairwise(controller.asked_s)]
    assert all(wait_s >= RETRY_S * 0.9 for wait_s in waits_s), waits_s


def test_what_was_refused_is_not_waited_for() -> None:
    partition, controller = story(ErrorCode.INELIGIBLE_REPLICA)
    assert partition.isr == (LEADER,)
    assert partition.high_watermark == 1
    assert len(controller.asked) == 1
