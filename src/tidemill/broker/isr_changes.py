"""Asking the controller for other in-sync sets: what partitions want meanwhile goes out together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from tidemill.broker.broker import Broker
from tidemill.broker.carrying_out import state_of
from tidemill.broker.controller_link import ControllerLink
from tidemill.controller.failover import Failover, WantedIsr
from tidemill.controller.isr import IsrChange
from tidemill.coordination.port import StoreError
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)

log = logging.getLogger("tidemill.broker")

VERSIONS = (3, 3)
RETRY_S = 0.05
RETRY_S_MAX = 1.0
"""Between requests, after several that came to nothing."""
REFUSALS = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST})
"""With these answers the set that was asked for was not written, and will not be: the controller has found
the state over which it was asked for.

With UNKNOWN_TOPIC_ID it may have been written before: the topic was deleted since, and the answer lost.
Apache Kafka's leader does not go back to the set before, either (``Partition.handleAlterPartitionError``).
"""
FENCED = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED})
"""With these answers the controller says that this broker leads the partition no longer.

Apache Kafka's leader waits for the controller's command then (``Partition.handleAlterPartitionError``). That
may have been in the queue of a controller that is gone. Other errors may be those of a controller that was
deposed and does not know it: UNKNOWN_TOPIC_ID for a topic that its successor made.
"""
PARTITIONS_MAX = 1000
"""In one request."""


def members_of(partition: Partition, isr: Sequence[int], own_epoch: int) -> list[tuple[int, int]]:
    """The members of a set, with the epochs of the registrations in which they fetched last."""
    replication = partition.replication
    return [
        (
            broker,
            own_epoch
            if replication is None or broker == replication.leader
            else int(replication.epoch_of(broker)),
        )
        for broker in isr
    ]


class _Wanted:
    """What one partition asks for."""

    def __init__(
        self, partition: Partition, isr: tuple[int, ...], partition_epoch: int, own_epoch: int
    ) -> None:
        self.partition = partition
        self.members = members_of(partition, isr, own_epoch)
        """As they are known now: who is started anew meanwhile is not the one that is meant."""
        self.key = (partition.log.topic_id, int(partition.index))
        self.leader_epoch = int(partition.leader_epoch)
        self.partition_epoch = partition_epoch
        self.isr = isr

    def is_waited_for(self, *, at_any_state: bool = False) -> bool:
        """Whether the partition still is in the state over which it asked, and waits for the answer."""
        partition = self.partition
        replication = partition.replication
        return (
            not partition.deleted
            and partition.leader_epoch == self.leader_epoch
            and replication is not None
            and replication.pending == self.isr
            and (at_any_state or replication.partition_epoch == self.partition_epoch)
        )


class IsrChanges:
    """Carries what leaders want to the controller, here or elsewhere, one request at a time."""

    def __init__(
        self, broker: Broker, link: ControllerLink, failover: Failover, epoch: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._link = link
        self._failover = failover
        self._epoch = epoch
        self._wanted: dict[tuple[bytes, int], _Wanted] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def want(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Asks for ``isr`` over the state of that epoch."""
        one = _Wanted(partition, isr, partition_epoch, self._epoch())
        self._wanted[one.key] = one
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Asks for nothing any more, whatever fetches that are still under way bring up."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        rest_s = RETRY_S
        while self._wanted:
            keys = list(self._wanted)[:PARTITIONS_MAX]
            asked = [one for key in keys if (one := self._wanted.pop(key)).is_waited_for()]
            if not asked:
                continue
            try:
                results = await self._ask(asked)
            except KafkaError as problem:
                log.info("in-sync sets are asked for again: %s", problem)
                results = [problem] * len(asked)
            except Exception:
                log.exception("asking for in-sync sets failed")
                results = [KafkaError("asking failed")] * len(asked)
            for one, result in zip(asked, results, strict=True):
                try:
                    self._take(one, result)
                except Exception:
                    # A fault of this program: without this loop nothing would be asked for any more.
                    log.exception("an answer about an in-sync set could not be taken")
            # Who is refused asks again with its next fetch: a broker of which the controller has yet to hear,
            # or that is yet to fetch in its new life, is not to keep both busy until then.
            if any(key in self._wanted for key in keys) or any(map(_is_ineligible, results)):
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, RETRY_S_MAX)
            else:
                rest_s = RETRY_S
        self._task = None

    def _take(self, one: _Wanted, result: PartitionState | KafkaError) -> None:
        """Ends a change whose outcome is known. Others are asked for again, and may have been made:

        until a leader knows, nothing may count as committed that the wanted members do not have.
        """
        partitions = self._broker.partitions
        if not one.is_waited_for():
            return
        if isinstance(result, PartitionState):
            partitions.isr_changed(one.partition, result)
        elif result.code in FENCED:
            log.warning(
                "%s-%d is led here no longer, this broker led it in epoch %d: %s",
                one.partition.topic,
                one.partition.index,
                one.leader_epoch,
                result,
            )
            partitions.stop_leading(one.partition)
            return
        else:
            log.info("%s-%d: %s", one.partition.topic, one.partition.index, result)
            if result.code not in REFUSALS:
                self._wanted.setdefault(one.key, one)
                return
        if one.is_waited_for(at_any_state=True):
            # It changed nothing, or a later state is known already.
            partitions.isr_refused(one.partition)

    async def _ask(self, asked: Sequence[_Wanted]) -> list[PartitionState | KafkaError]:
        if self._broker.controller.is_active:
            return await self._ask_here(asked)
        answer: AlterPartitionResponse = await self._link.ask_when_reached(
            ApiKey.ALTER_PARTITION, VERSIONS, lambda: self._request(asked)
        )
        if answer.error_code != 0:
            raise KafkaError("the controller refuses to change in-sync sets", ErrorCode(answer.error_code))
        return _results(asked, answer)

    def _request(self, asked: Sequence[_Wanted]) -> AlterPartitionRequest:
        """What is still waited for: who has stepped down since, and leads again, has forgotten the rest."""
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for one in asked:
            if not one.is_waited_for():
                continue
            topic = topics.setdefault(
                one.key[0], AlterPartitionRequestTopicData(topic_id=one.key[0], partitions=[])
            )
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=one.key[1],
                    leader_epoch=one.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in one.members
                    ],
                    partition_epoch=one.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker.node_id, broker_epoch=self._epoch(), topics=list(topics.values())
        )

    async def _ask_here(self, asked: Sequence[_Wanted]) -> list[PartitionState | KafkaError]:
        wanted = [
            WantedIsr(
                one.key[0],
                one.key[1],
                IsrChange(
                    self._broker.node_id,
                    one.leader_epoch,
                    one.partition_epoch,
                    one.members,
                    self._epoch(),
                ),
            )
            for one in asked
        ]
        try:
            results = await self._failover.alter_isr(wanted)
        except StoreError as problem:
            raise KafkaError(str(problem), ErrorCode.NOT_CONTROLLER) from None
        return [one if isinstance(one, KafkaError) else state_of(one) for one in results]


def _is_ineligible(result: PartitionState | KafkaError) -> bool:
    return isinstance(result, KafkaError) and result.code == ErrorCode.INELIGIBLE_REPLICA


def _results(asked: Sequence[_Wanted], answer: AlterPartitionResponse) -> list[PartitionState | KafkaError]:
    found: Mapping[tuple[bytes, int], PartitionState | KafkaError] = {
        (topic.topic_id, one.partition_index): (
            KafkaError(
                f"the controller refuses the in-sync set: {ErrorCode(one.error_code).name}",
                ErrorCode(one.error_code),
            )
            if one.error_code != 0
            else PartitionState(
                one.partition_index, one.leader_id, one.leader_epoch, (), tuple(one.isr), one.partition_epoch
            )
        )
        for topic in answer.topics
        for one in topic.partitions
    }
    missing = KafkaError("the controller does not answer for this partition")
    results = []
    for one in asked:
        result = found.get(one.key, missing)
        if isinstance(result, PartitionState):
            result = result._replace(replicas=one.partition.replicas, adding=one.partition.adding)
        results.append(result)
    return results
