"""Guards batches that would begin a transaction in a partition: its coordinator is asked first. Compiled.

A guard is begun when a request is admitted. It ends at the append, or with the request. In between,
:mod:`tidemill.broker.add_partitions_to_txn_manager` asks the coordinator, and a marker may void the guard.

Source: KIP-890; Apache Kafka, ``ReplicaManager.maybeStartTransactionVerificationForPartitions``.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i16, i32, i64

from tidemill.broker.produce_admission import (
    AdmissionResult,
    BatchAppend,
    BatchValidation,
    PartitionAppend,
    RecordsConversion,
    has_batch,
)
from tidemill.log.producer_state_manager import VerificationGuard
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import Batch, parse_batch
from tidemill.replication.partition import Partition

OWN_EPOCH_FROM: Final = 12
"""From this version of Produce on, each transaction has its own epoch."""


class TransactionGuard:
    """The verification of a batch that would begin a transaction in its partition."""

    def __init__(
        self, index: i32, partition: Partition, producer_id: i64, epoch: i64, has_own_epoch: bool
    ) -> None:
        self.index: Final[i32] = index
        self.partition: Final = partition
        self.producer_id: Final[i64] = producer_id
        self.epoch: Final[i64] = epoch
        self.log: Final = partition.log
        self.guard: VerificationGuard | None = self.log.producer_state.begin_verification(
            producer_id, epoch, has_own_epoch
        )

    def end(self) -> bool:
        """Ends the verification. Returns whether the batch may be appended now."""
        state = self.log.producer_state
        guard = self.guard
        self.guard = None
        if (
            guard is not None
            and state.end_verification(self.producer_id, guard)
            and self.partition.log is self.log
        ):
            return True
        return state.has_transaction(self.producer_id, self.epoch)


NO_GUARDS: Final[list[TransactionGuard | None]] = []


def guards_of(admitted: list[AdmissionResult], version: i16) -> list[TransactionGuard | None]:
    """Returns a guard for each batch that would begin a transaction; an empty list if there is none."""
    guards: list[TransactionGuard | None] = []
    found = False
    for one in admitted:
        guard: TransactionGuard | None = None
        batch = batch_of(one)
        if batch is not None and isinstance(one, PartitionAppend):
            state = one.partition.log.producer_state
            if batch.is_transactional and not state.has_transaction(batch.producer_id, batch.producer_epoch):
                guard = TransactionGuard(
                    one.records.index,
                    one.partition,
                    batch.producer_id,
                    batch.producer_epoch,
                    version >= OWN_EPOCH_FROM,
                )
                found = True
        guards.append(guard)
    return guards if found else NO_GUARDS


def batch_of(admitted: AdmissionResult) -> Batch | None:
    """Returns the batch that a request has for a partition; None if there is none of format v2."""
    if isinstance(admitted, BatchAppend):
        return admitted.batch
    if isinstance(admitted, BatchValidation):
        return admitted.batch
    if isinstance(admitted, RecordsConversion) and has_batch(admitted.data, admitted.records):
        try:
            return parse_batch(admitted.data, admitted.records.start, admitted.records.end)
        except KafkaError:
            return None
    return None


def check_guard(guard: TransactionGuard | None) -> None:
    """Raises KafkaError (INVALID_TXN_STATE) if the transaction has ended since it was verified."""
    if guard is not None and not guard.end():
        raise KafkaError(
            f"the transaction of producer {guard.producer_id} ended before its batch was appended",
            ErrorCode.INVALID_TXN_STATE,
        )
