"""Requests to transaction coordinators before a batch begins a transaction in a partition (KIP-890).

Readers of committed records would wait for ever behind a batch that no marker follows. The coordinator
therefore verifies that the partition is part of the transaction, or adds it for a client with transaction
version 2.

Source: Apache Kafka, ``AddPartitionsToTxnManager.java``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from tidemill.broker.handlers.add_partitions_to_txn import IMPLICIT_FROM, verify_or_add
from tidemill.broker.produce_admission import AdmissionResult
from tidemill.broker.produce_codec import Refused
from tidemill.broker.produce_handler import AdmittedRequest
from tidemill.broker.transaction_guard import OWN_EPOCH_FROM
from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import NO_BROKER, TopicPartition
from tidemill.transactions.transaction_metadata import EPOCH_BUMP_VERSION
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import add_partitions_to_txn as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.inter_broker_client import InterBrokerClient

ABORTABLE_FROM: Final = 11
"""From this version of Produce on, clients know TRANSACTION_ABORTABLE."""
VERIFY_VERSION: Final = 4
TEMPORARY: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # Another partition of the request is new, and the coordinator has no metadata of it yet.
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
"""Errors after which a producer repeats its request. All clients repeat it after NOT_ENOUGH_REPLICAS."""

PartitionErrors = dict[TopicPartition, ErrorCode]


class AddPartitionsToTxnManager:
    """The requests to the coordinators of transactions."""

    def __init__(self, broker: Broker, client: InterBrokerClient | None) -> None:
        self._broker = broker
        self._client = client

    async def verify(self, admitted: AdmittedRequest) -> list[AdmissionResult]:
        """Verifies the partitions of a Produce request with a guard; refuses those that are not verified."""
        request = admitted.request
        adds = request.version >= OWN_EPOCH_FROM
        guarded = {
            TopicPartition(guard.partition.topic, int(guard.partition.index)): guard
            for guard in admitted.guards
            if guard is not None
        }
        if not adds and not self._broker.config.bool("transaction.partition.verification.enable"):
            return admitted.partitions
        if request.transactional_id is None:
            errors = dict.fromkeys(guarded, ErrorCode.INVALID_TXN_STATE)
        else:
            producers = {ProducerIdAndEpoch(one.producer_id, one.epoch) for one in guarded.values()}
            if len(producers) > 1:
                errors = dict.fromkeys(guarded, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            else:
                name = request.transactional_id.decode("utf-8", "replace")
                errors = await self.add_or_verify(name, producers.pop(), list(guarded), adds)
        results: list[AdmissionResult] = []
        for guard, one in zip(admitted.guards, admitted.partitions, strict=True):
            if guard is None:
                results.append(one)
                continue
            where = TopicPartition(guard.partition.topic, int(guard.partition.index))
            error = errors.get(where, ErrorCode.UNKNOWN_SERVER_ERROR)
            if error is ErrorCode.NONE:
                results.append(one)
            else:
                results.append(Refused(guard.index, _refusal(where, error, request.version)))
        return results

    async def add_or_verify(
        self, name: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition], adds: bool
    ) -> PartitionErrors:
        """Adds partitions to a transaction, or verifies that they are part of it; returns their errors.

        While the transaction before it still ends, an addition is repeated for a short time.
        """
        config = self._broker.config
        pause_s = config.seconds("add.partitions.to.txn.retry.backoff.ms")
        left_s = config.seconds("add.partitions.to.txn.retry.backoff.max.ms")
        while True:
            errors = await self._ask(name, producer, partitions, adds)
            if not adds or left_s <= 0 or ErrorCode.CONCURRENT_TRANSACTIONS not in errors.values():
                return errors
            await asyncio.sleep(pause_s)
            left_s -= pause_s

    async def _ask(
        self, name: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition], adds: bool
    ) -> PartitionErrors:
        broker = self._broker
        number = broker.transaction_coordinator.runtime.partition_for(name)
        topic = broker.metadata_cache.topic(TRANSACTION_TOPIC)
        image = topic.partition(number) if topic is not None else None
        leader = NO_BROKER if image is None else image.leader
        if leader == broker.node_id:
            return dict(
                await verify_or_add(
                    broker, name, producer, partitions, adds=adds, client_version=EPOCH_BUMP_VERSION
                )
            )
        if leader == NO_BROKER or self._client is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        # A task of its own: the caller may run without one, and a request has timeouts.
        return await asyncio.ensure_future(
            self._ask_other(self._client, leader, name, producer, partitions, adds)
        )

    async def _ask_other(
        self,
        client: InterBrokerClient,
        leader: int,
        name: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        adds: bool,
    ) -> PartitionErrors:
        topics: dict[str, list[int]] = {}
        for one in partitions:
            topics.setdefault(one.topic, []).append(one.partition)
        request = messages.AddPartitionsToTxnRequest(
            transactions=[
                messages.AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    verify_only=not adds,
                    topics=[
                        messages.AddPartitionsToTxnTopic(name=one, partitions=numbers)
                        for one, numbers in topics.items()
                    ],
                )
            ]
        )
        versions = (IMPLICIT_FROM, IMPLICIT_FROM) if adds else (VERIFY_VERSION, IMPLICIT_FROM)
        try:
            response = await client.request(
                leader, ApiKey.ADD_PARTITIONS_TO_TXN, versions, request, messages.AddPartitionsToTxnResponse
            )
        except KafkaError as problem:
            return dict.fromkeys(partitions, problem.code)
        if response.error_code:
            return dict.fromkeys(partitions, ErrorCode.of(response.error_code))
        return {
            TopicPartition(found.name, one.partition_index): ErrorCode.of(one.partition_error_code)
            for result in response.results_by_transaction
            for found in result.topic_results
            for one in found.results_by_partition
        }


def _refusal(where: TopicPartition, error: ErrorCode, version: int) -> KafkaError:
    """Returns the error of a batch in a form that the client of this version of Produce knows."""
    if error in TEMPORARY and not (error is ErrorCode.CONCURRENT_TRANSACTIONS and version >= OWN_EPOCH_FROM):
        return KafkaError(
            f"{where}: the transaction coordinator has not confirmed the transaction yet ({error.name})",
            ErrorCode.NOT_ENOUGH_REPLICAS,
        )
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        error = ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return KafkaError(f"{where} is not part of an open transaction of this producer ({error.name})", error)
