"""ISR changes of leaders, sent to a controller whose responses may be lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from replica_stage import Broker as Logs

from tidemill.broker.alter_partition_manager import RETRY_S, AlterPartitionManager
from tidemill.broker.api_declaration import HandledApi
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
OWN_EPOCH, FORMER_EPOCH, CURRENT_EPOCH = 7, 5, 9


class Controller:
    """Returns ``responses`` in their order: errors of the connection, error codes, or the written ISR."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.requests: list[AlterPartitionRequest] = []
        self.requested_at_s: list[float] = []

    async def send_when_connected(
        self,
        api: HandledApi,
        build: Callable[[], AlterPartitionRequest],
        response_type: type[AlterPartitionResponse],
    ) -> Any:
        assert response_type is AlterPartitionResponse
        request = build()
        self.requests.append(request)
        self.requested_at_s.append(asyncio.get_running_loop().time())
        response = self.responses.pop(0)
        if isinstance(response, KafkaError):
            raise response
        ((wanted,),) = [topic.partitions for topic in request.topics]
        if isinstance(response, ErrorCode):
            one = AlterPartitionResponsePartitionData(partition_index=0, error_code=response)
        else:
            one = AlterPartitionResponsePartitionData(
                partition_index=0,
                error_code=0,
                leader_id=LEADER,
                leader_epoch=wanted.leader_epoch,
                isr=response,
                partition_epoch=wanted.partition_epoch + 1,
            )
        topic = AlterPartitionResponseTopicData(topic_id=request.topics[0].topic_id, partitions=[one])
        return AlterPartitionResponse(error_code=0, topics=[topic])


class Parts:
    """A fake replica manager."""

    def isr_changed(self, partition: Partition, state: PartitionState) -> None:
        partition.apply_state(
            state.leader,
            state.leader_epoch,
            state.replicas,
            state.isr,
            partition_epoch=state.partition_epoch,
            now_ms=0,
        )

    def isr_refused(self, partition: Partition) -> None:
        partition.isr_refused(0)


def run_leader(
    *responses: Any, then: Callable[[Partition], None] = lambda partition: None
) -> tuple[Partition, Controller]:
    """Runs a leader that is alone in the ISR and whose follower fetches, until all responses were returned.

    ``then`` is called while the first request is in flight.
    """
    logs = Logs(LEADER)
    (partition,) = logs.partitions
    controller = Controller(*responses)

    async def run() -> None:
        other_controller: Any = SimpleNamespace(is_active=False)
        parts: Any = Parts()
        channel: Any = controller
        manager = AlterPartitionManager(
            LEADER, parts, other_controller, channel, broker_epoch=lambda: OWN_EPOCH
        )
        partition.apply_state(LEADER, 3, (LEADER, FOLLOWER), (LEADER,), partition_epoch=5, now_ms=0)
        partition.fetched_by(FOLLOWER, 0, 0, 0, FORMER_EPOCH)
        ((isr, epoch),) = logs.events.wanted
        manager.submit(partition, isr, epoch)
        logs.write(0, b"a")
        then(partition)
        async with asyncio.timeout(10):
            while controller.responses:
                assert partition.high_watermark == 0
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
        manager.stop()
        manager.submit(partition, isr, epoch)
        assert manager._task is None, "after the stop nothing begins"

    asyncio.run(run())
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
def test_a_change_that_may_have_been_written_is_sent_again(lost: KafkaError | ErrorCode) -> None:
    partition, controller = run_leader(lost, lost, [LEADER, FOLLOWER])
    assert partition.isr == (LEADER, FOLLOWER)
    assert partition.high_watermark == 0
    assert len(controller.requests) == 3
    assert controller.requests[0] == controller.requests[2]


def members(request: AlterPartitionRequest) -> list[tuple[int, int]]:
    """Returns the requested ISR of the only partition, with the broker epochs."""
    ((wanted,),) = [topic.partitions for topic in request.topics]
    return [(member.broker_id, member.broker_epoch) for member in wanted.new_isr_with_epochs]


def test_isr_members_have_the_broker_epochs_of_their_fetches() -> None:
    _, controller = run_leader([LEADER, FOLLOWER])
    assert controller.requests[0].broker_epoch == OWN_EPOCH
    assert members(controller.requests[0]) == [(LEADER, OWN_EPOCH), (FOLLOWER, FORMER_EPOCH)]


def test_a_repeated_request_has_the_broker_epochs_of_the_submission() -> None:
    def restarts_empty(partition: Partition) -> None:
        assert partition.fetched_by(FOLLOWER, 0, 0, 1, CURRENT_EPOCH)

    _, controller = run_leader(LOST, ErrorCode.INELIGIBLE_REPLICA, then=restarts_empty)
    assert [members(request)[1] for request in controller.requests] == [(FOLLOWER, FORMER_EPOCH)] * 2


async def test_the_next_fetch_after_a_rejection_submits_the_current_broker_epoch() -> None:
    logs = Logs(LEADER)
    (partition,) = logs.partitions
    controller = Controller(ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INELIGIBLE_REPLICA, [LEADER, FOLLOWER])

    other_controller: Any = SimpleNamespace(is_active=False)
    parts: Any = Parts()
    channel: Any = controller
    manager = AlterPartitionManager(LEADER, parts, other_controller, channel, broker_epoch=lambda: OWN_EPOCH)
    logs.events.isr_requested = manager.submit  # type: ignore[assignment]
    partition.apply_state(LEADER, 3, (LEADER, FOLLOWER), (LEADER,), partition_epoch=5, now_ms=0)
    async with asyncio.timeout(10):
        for epoch in (FORMER_EPOCH, CURRENT_EPOCH, CURRENT_EPOCH):
            left = len(controller.responses)
            assert partition.fetched_by(FOLLOWER, 0, 0, 1, epoch)
            while len(controller.responses) == left:
                assert partition.isr == (LEADER,)
                await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    manager.stop()
    assert partition.isr == (LEADER, FOLLOWER)
    assert [members(request)[1][1] for request in controller.requests] == [
        FORMER_EPOCH,
        CURRENT_EPOCH,
        CURRENT_EPOCH,
    ]
    # Requests are not sent as often as followers fetch.
    waits_s = [later - before for before, later in itertools.pairwise(controller.requested_at_s)]
    assert all(wait_s >= RETRY_S * 0.9 for wait_s in waits_s), waits_s


def test_a_rejected_isr_does_not_hold_back_the_high_watermark() -> None:
    partition, controller = run_leader(ErrorCode.INELIGIBLE_REPLICA)
    assert partition.isr == (LEADER,)
    assert partition.high_watermark == 1
    assert len(controller.requests) == 1
