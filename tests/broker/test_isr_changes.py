"""Asking the controller for in-sync sets, whose answers may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from replica_stage import Broker as Logs

from tidemill.broker.isr_changes import IsrChanges
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.manager import PartitionState
from tidemill.replication.partition import Partition
from tidemill.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

LEADER, FOLLOWER = 1, 2


class Controller:
    """Answers in the order of ``answers``: errors of the connection, codes, or the set that was written."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[AlterPartitionRequest] = []

    async def ask_when_reached(
        self, key: int, versions: tuple[int, int], make: Callable[[], AlterPartitionRequest]
    ) -> Any:
        request = make()
        self.asked.append(request)
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


def story(*answers: Any) -> tuple[Partition, Controller]:
    """A leader alone, whose follower is back; what is known once all answers were given."""
    logs = Logs(LEADER)
    (partition,) = logs.partitions
    controller = Controller(*answers)

    async def ask() -> None:
        parts: Any = SimpleNamespace(
            controller=SimpleNamespace(is_active=False), partitions=Parts(), node_id=LEADER
        )
        link: Any = controller
        failover: Any = None
        changes = IsrChanges(parts, link, failover, lambda: 7)
        partition.become(LEADER, 3, (LEADER, FOLLOWER), (LEADER,), 5, 0)
        partition.fetched_by(FOLLOWER, 0, 0, 0)
        ((isr, epoch),) = logs.events.wanted
        changes.want(partition, isr, epoch)
        logs.write(0, b"a")
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


@pytest.mark.parametrize("lost", [LOST, ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_UPDATE_VERSION])
def test_what_may_have_been_written_is_asked_for_again(lost: KafkaError | ErrorCode) -> None:
    partition, controller = story(lost, lost, [LEADER, FOLLOWER])
    assert partition.isr == (LEADER, FOLLOWER)
    assert partition.high_watermark == 0
    assert len(controller.asked) == 3
    assert controller.asked[0] == controller.asked[2]


def test_what_was_refused_is_not_waited_for() -> None:
    partition, controller = story(ErrorCode.INELIGIBLE_REPLICA)
    assert partition.isr == (LEADER,)
    assert partition.high_watermark == 1
    assert len(controller.asked) == 1
