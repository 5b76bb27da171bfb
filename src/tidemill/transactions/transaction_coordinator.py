"""The transaction coordinator of a broker: the transactional ids of all partitions of ``__transaction_state``
that it leads.

Request handlers call :class:`TransactionCoordinator`. Idle transactional ids cost no CPU time: transactions
that time out, and ids that expire, are searched for from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorLog, CoordinatorTopic
from tidemill.coordinator_runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinator_runtime.coordinator_shard import CoordinatorInvariantError, CoordinatorShard
from tidemill.coordinator_runtime.state_machine import Loader
from tidemill.coordinator_runtime.timers import ShardTimerKey
from tidemill.coordinator_runtime.value_classes import Value
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, slices_by_weight, slices_of
from tidemill.model.system_interfaces import Clock
from tidemill.model.transaction_types import NO_TIMEOUT_MS, ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.net.deadlines import Scheduler
from tidemill.transactions.coordinator_effects import (
    AddPartitionsRequest,
    AddPartitionsResult,
    AllocateProducerId,
    EndTransactionRequest,
    InitProducerIdRequest,
    ProducerResult,
    SendMarkers,
    TransactionEnded,
    TransactionFenced,
    TransactionMarker,
    shown,
)
from tidemill.transactions.producer_id_manager import ProducerIdManager
from tidemill.transactions.transaction_marker_channel_manager import (
    MarkerDestinations,
    PartitionMarker,
    TransactionMarkerChannelManager,
)
from tidemill.transactions.transaction_metadata import TransactionMetadata
from tidemill.transactions.transaction_state_manager import TransactionStateManager

if TYPE_CHECKING:
    from tidemill.model.configs import BrokerConfig

logger = logging.getLogger("tidemill.transactions")

TransactionShard: TypeAlias = CoordinatorShard[TransactionStateManager]
"""A partition of ``__transaction_state``."""

APPEND_TIMEOUT_MS: Final = 5_000
"""After this time the response to a request is COORDINATOR_NOT_AVAILABLE; the append continues."""


class TransactionConfig(Value):
    """The settings of the broker configuration that the coordinator reads. Times in milliseconds."""

    unpacked_bytes_max: int
    has_two_phase_commit: bool = False
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    expire_interval_ms: int = 3_600_000

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> TransactionConfig:
        """Reads the keys of a broker configuration."""
        from tidemill.model.unpacked_limit import UNPACKED_KEY

        return cls(
            unpacked_bytes_max=config.int(UNPACKED_KEY),
            has_two_phase_commit=config.bool("transaction.two.phase.commit.enable"),
            max_timeout_ms=config.int("transaction.max.timeout.ms"),
            id_expiration_ms=config.int("transactional.id.expiration.ms"),
            abort_interval_ms=config.int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            expire_interval_ms=config.int("transaction.remove.expired.transaction.cleanup.interval.ms"),
        )


class TransactionTask(Enum):
    """The periodic tasks of the coordinator."""

    ABORT_TIMED_OUT = "abort timed-out transactions"
    EXPIRE_IDS = "remove expired transactional ids"


class TransactionCoordinator:
    """All transactional ids that this broker coordinates."""

    def __init__(
        self,
        *,
        log: CoordinatorLog,
        topic: CoordinatorTopic,
        config: TransactionConfig,
        producer_ids: ProducerIdManager,
        destinations: MarkerDestinations,
        transaction_version: Callable[[], int],
        clock: Clock,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.config = config
        self.commits = 0
        """Transactions committed since the start, for the metrics."""
        self.aborts = 0
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self.runtime = CoordinatorRuntime[TransactionStateManager](
            coordinator=self,
            log=log,
            topic=topic,
            append_timeout_ms=APPEND_TIMEOUT_MS,
            clock=clock,
            scheduler=scheduler,
            logger=logger,
        )
        self.markers = TransactionMarkerChannelManager(destinations, self.runtime.tasks)

    def start(self) -> None:
        """Starts the periodic tasks."""
        self._schedule(TransactionTask.ABORT_TIMED_OUT, self.config.abort_interval_ms)
        self._schedule(TransactionTask.EXPIRE_IDS, self.config.expire_interval_ms)

    def _schedule(self, task: TransactionTask, interval_ms: int) -> None:
        self.runtime.timers.set(task, self.runtime.timers.now_ms() + interval_ms)

    # Calls of the runtime.

    def new_machine(self) -> TransactionStateManager:
        """Returns a state machine without transactional ids."""
        return TransactionStateManager(self._transaction_version, self.config.id_expiration_ms)

    def loader(self, shard: TransactionShard) -> Loader:
        """Returns the loader for the state machine of ``shard``."""
        # Imported late: a broker without transactions decodes no records.
        from tidemill.transactions.transaction_loader import transaction_loader

        return transaction_loader(shard.machine, shard.partition, self.config.unpacked_bytes_max)

    async def loaded(self, shard: TransactionShard) -> None:
        """Sends the markers of the transactions that a former coordinator has decided, in slices."""
        machine = shard.machine
        for names in slices_by_weight(list(machine.prepared), machine.marker_count, ITEMS_PER_SLICE):
            if not shard.is_active:
                return
            machine.send_loaded_markers(names, shard.now())
            shard.perform_effects()
            await asyncio.sleep(0)

    def perform(self, shard: TransactionShard, effect: object) -> None:
        """Allocates a producer id, sends markers, or counts a transaction that ended."""
        if isinstance(effect, AllocateProducerId):
            self.runtime.tasks.start(self._allocate_producer_id(shard, effect.transactional_id))
        elif isinstance(effect, SendMarkers):
            self._send_markers(shard, effect)
        elif isinstance(effect, TransactionFenced):
            logger.info("%s-%d: %s", shard.topic, shard.partition, effect)
        elif not isinstance(effect, TransactionEnded):
            raise CoordinatorInvariantError(f"a transaction coordinator cannot perform {effect!r}")
        elif effect.is_commit:
            self.commits += 1
        else:
            self.aborts += 1

    def timer_set(self, key: ShardTimerKey) -> None:
        """Timers of transactional ids need no account: there is one for each at most."""

    def timer_cancelled(self, key: ShardTimerKey) -> None:
        """As :meth:`timer_set`."""

    def timer_fired(self, key: Hashable) -> None:
        """Runs a periodic task."""
        if key is TransactionTask.ABORT_TIMED_OUT:
            self._schedule(TransactionTask.ABORT_TIMED_OUT, self.config.abort_interval_ms)
            self.runtime.tasks.start(self.abort_timed_out())
        else:
            self._schedule(TransactionTask.EXPIRE_IDS, self.config.expire_interval_ms)
            self.runtime.tasks.start(self.expire())

    async def abort_timed_out(self) -> None:
        """Aborts the transactions that have timed out, in slices."""
        for shard in list(self.runtime.shards.values()):
            for names in slices_of(list(shard.machine.ongoing), ITEMS_PER_SLICE):
                if not shard.is_active:
                    break
                shard.machine.abort_timed_out(names, shard.now())
                shard.perform_effects()
                await asyncio.sleep(0)

    async def expire(self) -> None:
        """Removes transactional ids that were not used for long, in slices."""
        for shard in list(self.runtime.shards.values()):
            removed = 0
            for names in slices_of(list(shard.machine.transactions), ITEMS_PER_SLICE):
                if not shard.is_active:
                    break
                removed += shard.machine.expire(names, shard.now())
                shard.perform_effects()
                await asyncio.sleep(0)
            if removed:
                logger.info(
                    "%s-%d: %d expired transactional ids removed", shard.topic, shard.partition, removed
                )

    async def _allocate_producer_id(self, shard: TransactionShard, name: str) -> None:
        try:
            producer_id = await self._producer_ids.next()
        except Exception as problem:
            code = problem.code if isinstance(problem, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
            logger.warning(
                "no producer id for transactional id %s: %s",
                shown(name),
                problem,
                # Other exceptions than KafkaErrors are bugs.
                exc_info=None if isinstance(problem, KafkaError) else problem,
            )
            shard.machine.producer_id_refused(name, code, shard.now())
        else:
            shard.machine.producer_id_allocated(name, producer_id, shard.now())
        shard.perform_effects()

    def _send_markers(self, shard: TransactionShard, effect: SendMarkers) -> None:
        def written(marker: TransactionMarker, where: TopicPartition) -> None:
            if shard.is_active:
                shard.machine.marker_written(marker.transactional_id, marker.producer, where, shard.now())
                shard.perform_effects()

        self.markers.send(
            [
                PartitionMarker(effect.marker, where, lambda: shard.epoch, written, lambda: shard.is_active)
                for where in effect.partitions
            ]
        )

    # Calls of the request handlers.

    def _find(self, name: str) -> tuple[TransactionShard | None, ErrorCode]:
        return self.runtime.find(name) if name else (None, ErrorCode.INVALID_REQUEST)

    async def init_producer_id(self, request: InitProducerIdRequest) -> ProducerResult:
        """Begins a producer: returns its id and epoch. Older producers of the transactional id are fenced."""
        shard, error = self._find(request.transactional_id)
        if request.transactional_id and not self._is_valid_timeout(request.timeout_ms):
            return ProducerResult(error=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        if shard is None:
            return ProducerResult(error=error)
        response: asyncio.Future[ProducerResult] = shard.submit(
            partial(shard.machine.init_producer_id, request)
        )
        return await response

    def _is_valid_timeout(self, timeout_ms: int) -> bool:
        if timeout_ms == NO_TIMEOUT_MS and self.config.has_two_phase_commit:
            return True
        return 0 < timeout_ms <= self.config.max_timeout_ms

    async def add_partitions(self, request: AddPartitionsRequest) -> ErrorCode:
        """Adds partitions to a transaction; returns once they are in the log."""
        shard, error = self._find(request.transactional_id)
        if shard is None:
            return error
        response: asyncio.Future[AddPartitionsResult] = shard.submit(
            partial(shard.machine.add_partitions, request)
        )
        return (await response).error

    def verify_partitions(
        self, name: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns for each partition whether it is in the transaction; else TRANSACTION_ABORTABLE."""
        shard, error = self._find(name)
        if shard is None:
            return dict.fromkeys(partitions, error)
        return shard.machine.verify_partitions(name, producer, partitions)

    async def end_transaction(self, request: EndTransactionRequest) -> ProducerResult:
        """Commits or aborts a transaction; returns once the decision is in the log."""
        shard, error = self._find(request.transactional_id)
        if shard is None:
            return ProducerResult(error=error)
        response: asyncio.Future[ProducerResult] = shard.submit(
            partial(shard.machine.end_transaction, request)
        )
        return await response

    def describe(self, name: str) -> TransactionMetadata | ErrorCode:
        """Returns the state of a transactional id, or the error that prevents it."""
        shard, error = self._find(name)
        if shard is None:
            return error
        return shard.machine.transactions.get(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

    def id_count(self) -> int:
        """The number of transactional ids that this broker coordinates, for the metrics."""
        return sum(len(shard.machine.transactions) for shard in self.runtime.shards.values())

    def oldest_ms(self) -> int:
        """The age of the oldest open transaction in milliseconds, for the metrics; 0 without one."""
        return max(
            (
                shard.now().wall_ms - start_ms
                for shard in self.runtime.shards.values()
                if (start_ms := shard.machine.oldest_start_ms) is not None
            ),
            default=0,
        )

    def list_transactions(self) -> tuple[ErrorCode, list[Mapping[str, TransactionMetadata]]]:
        """Returns the transactional ids of each partition, with an error while some are being loaded.

        The mappings change with the transactions.
        """
        found: list[Mapping[str, TransactionMetadata]] = []
        error = ErrorCode.NONE
        for shard in self.runtime.shards.values():
            if shard.is_active:
                found.append(shard.machine.transactions)
            else:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return error, found
