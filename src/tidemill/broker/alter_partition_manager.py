"""Requests ISR changes from the controller (AlterPartition).

One request is in flight at a time. The next one has the changes of all partitions that were submitted
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from tidemill.broker.apply_leader_and_isr import state_of
from tidemill.broker.broker_to_controller_channel import BrokerToControllerChannel
from tidemill.broker.handlers import alter_partition
from tidemill.controller.alter_partition import AlterPartitionItem, IsrMember
from tidemill.controller.controller import KafkaController
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.model.backoff import Backoff
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)

logger = logging.getLogger("tidemill.broker")

RETRY_S = 0.05
RETRY_S_MAX = 1.0
"""The first and the longest pause after a request with changes that have to be sent again."""
REJECTIONS = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST})
"""Errors with which the ISR was not written, and will not be: the partition was in the expected state.

UNKNOWN_TOPIC_ID is not one of them: the ISR may have been written, the response lost and the topic deleted.
Apache Kafka's leader keeps the pending ISR, too (``Partition.handleAlterPartitionError``).
"""
FENCED = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED})
"""Errors with which the controller states that this broker does not lead the partition any more.

Apache Kafka's leader then waits for LeaderAndIsr (``Partition.handleAlterPartitionError``). That request may
have been lost with the controller that had queued it. Other errors do not prove a later leader epoch: a
controller that was replaced without knowing it returns UNKNOWN_TOPIC_ID for a topic that its successor
created.
"""
PARTITIONS_MAX = 1000
"""In one request."""

PartitionKey = tuple[bytes, int]
"""A partition by topic id and index."""


def members_of(partition: Partition, isr: Sequence[int], own_epoch: int) -> list[IsrMember]:
    """Returns the members of an ISR, each with the broker epoch of its last fetch."""
    replication = partition.replication
    return [
        IsrMember(
            broker,
            own_epoch
            if replication is None or broker == replication.leader
            else int(replication.epoch_of(broker)),
        )
        for broker in isr
    ]


class _PendingChange:
    """An ISR change that a partition has submitted."""

    def __init__(self, partition: Partition, isr: tuple[int, ...], item: AlterPartitionItem) -> None:
        self.partition = partition
        self.isr = isr
        self.item = item
        """With the broker epochs of the submission: a follower that restarts later is not a member."""

    @property
    def key(self) -> PartitionKey:
        """The topic id and the partition."""
        return self.item.topic_id, self.item.partition

    def is_pending(self, *, in_any_state: bool = False) -> bool:
        """Whether the partition still waits for this change, in the partition epoch of the submission.

        ``in_any_state``: in any partition epoch.
        """
        partition = self.partition
        pending = partition.isr_state.pending
        return (
            not partition.deleted
            and partition.leader_epoch == self.item.leader_epoch
            and pending is not None
            and pending.isr == self.isr
            and (in_any_state or partition.partition_epoch == self.item.partition_epoch)
        )


class AlterPartitionManager:
    """Sends the ISR changes of leaders to the controller, which may be this broker, one request at a time."""

    def __init__(
        self,
        node_id: int,
        replica_manager: ReplicaManager,
        controller: KafkaController,
        channel: BrokerToControllerChannel,
        *,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._replica_manager = replica_manager
        self._controller = controller
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._unsent: dict[PartitionKey, _PendingChange] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def submit(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Requests ``isr`` in place of the ISR of ``partition_epoch``."""
        broker_epoch = self._broker_epoch()
        item = AlterPartitionItem(
            topic_id=partition.log.topic_id,
            partition=int(partition.index),
            leader=self._node_id,
            leader_epoch=int(partition.leader_epoch),
            partition_epoch=partition_epoch,
            isr=members_of(partition, isr, broker_epoch),
            broker_epoch=broker_epoch,
        )
        one = _PendingChange(partition, isr, item)
        self._unsent[one.key] = one
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Stops sending. Changes that are submitted later are ignored."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        backoff = Backoff(RETRY_S, RETRY_S_MAX)
        while self._unsent:
            keys = list(self._unsent)[:PARTITIONS_MAX]
            changes = [one for key in keys if (one := self._unsent.pop(key)).is_pending()]
            if not changes:
                continue
            try:
                results = await self._send(changes)
            except KafkaError as problem:
                logger.info("ISR changes are sent again: %s", problem)
                results = [problem] * len(changes)
            except Exception:
                logger.exception("sending ISR changes failed")
                results = [KafkaError("sending ISR changes failed")] * len(changes)
            for one, result in zip(changes, results, strict=True):
                try:
                    self._handle_result(one, result)
                except Exception:
                    # A bug. The loop has to go on: it sends the changes of all partitions.
                    logger.exception("handling the result of an ISR change failed")
            # A partition with an ineligible replica submits its change again at the next fetch. The pause
            # limits these requests until the controller knows the registration of the replica's broker, and
            # until the replica has fetched with its new broker epoch.
            if any(key in self._unsent for key in keys) or any(map(_is_ineligible, results)):
                await backoff.sleep()
            else:
                backoff.reset()
        self._task = None

    def _handle_result(self, one: _PendingChange, result: PartitionState | KafkaError) -> None:
        """Completes a change with a known outcome, and queues any other change again.

        A change without a known outcome may have been written. Until the leader knows, a record is committed
        only if the replicas of the pending ISR have it, too.
        """
        if not one.is_pending():
            return
        if isinstance(result, PartitionState):
            self._replica_manager.isr_changed(one.partition, result)
        elif result.code in FENCED:
            logger.warning(
                "this broker stops leading %s-%d, which it led in epoch %d: %s",
                one.partition.topic,
                one.partition.index,
                one.item.leader_epoch,
                result,
            )
            self._replica_manager.stop_leading(one.partition)
            return
        else:
            logger.info("%s-%d: %s", one.partition.topic, one.partition.index, result)
            if result.code not in REJECTIONS:
                self._unsent.setdefault(one.key, one)
                return
        if one.is_pending(in_any_state=True):
            # The controller changed nothing, or the partition has a later state already.
            self._replica_manager.isr_refused(one.partition)

    async def _send(self, changes: Sequence[_PendingChange]) -> list[PartitionState | KafkaError]:
        if self._controller.is_active:
            return await self._alter_locally(changes)
        response = await self._channel.send_when_connected(
            alter_partition.API, lambda: self._request(changes), AlterPartitionResponse
        )
        if response.error_code != 0:
            name = ErrorCode.name_of(response.error_code)
            raise KafkaError(f"the controller refuses ISR changes: {name}", ErrorCode.of(response.error_code))
        return _results(changes, response)

    def _request(self, changes: Sequence[_PendingChange]) -> AlterPartitionRequest:
        """Builds the request with the changes that are still pending.

        A partition whose leader has stepped down meanwhile does not wait for its change any more.
        """
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for one in changes:
            if not one.is_pending():
                continue
            item = one.item
            topic = topics.setdefault(
                item.topic_id, AlterPartitionRequestTopicData(topic_id=item.topic_id, partitions=[])
            )
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=item.partition,
                    leader_epoch=item.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
                        for member in item.isr
                    ],
                    partition_epoch=item.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    async def _alter_locally(self, changes: Sequence[_PendingChange]) -> list[PartitionState | KafkaError]:
        broker_epoch = self._broker_epoch()
        try:
            results = await self._controller.alter_partitions(
                [one.item._replace(broker_epoch=broker_epoch) for one in changes]
            )
        except StoreError as problem:
            raise wire_error(problem) from None
        return [one if isinstance(one, KafkaError) else state_of(one) for one in results]


def _is_ineligible(result: PartitionState | KafkaError) -> bool:
    return isinstance(result, KafkaError) and result.code == ErrorCode.INELIGIBLE_REPLICA


def _results(
    changes: Sequence[_PendingChange], response: AlterPartitionResponse
) -> list[PartitionState | KafkaError]:
    found: Mapping[PartitionKey, PartitionState | KafkaError] = {
        (topic.topic_id, one.partition_index): (
            KafkaError(
                f"the controller refuses the ISR: {ErrorCode.name_of(one.error_code)}",
                ErrorCode.of(one.error_code),
            )
            if one.error_code != 0
            else PartitionState(
                one.partition_index, one.leader_id, one.leader_epoch, (), tuple(one.isr), one.partition_epoch
            )
        )
        for topic in response.topics
        for one in topic.partitions
    }
    results = []
    for one in changes:
        result = found.get(one.key) or KafkaError(
            f"the response of the controller lacks {one.partition.topic}-{one.partition.index}"
        )
        if isinstance(result, PartitionState):
            result = result._replace(replicas=one.partition.replicas, adding=one.partition.adding)
        results.append(result)
    return results
