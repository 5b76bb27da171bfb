"""Executes the requests of the protocol on the target cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidemill.client.errors import ClientError, DataLoss
from tidemill.client.transaction_manager import PreparedTransaction
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.client_pool import RETRY_PAUSE_S, pooled_admin, pooled_cluster, repeated
from tidemill.pipeline.exactly_once.control_records import Batch, Place, Transaction
from tidemill.pipeline.exactly_once.control_topic import ControlTopic
from tidemill.pipeline.exactly_once.requests import (
    AppendControl,
    DeleteControl,
    EndResult,
    EndTransaction,
    FindOutcome,
    IsOpen,
    ListTransactions,
    Outcome,
    ReadControl,
    Request,
    Steps,
    TransactionRows,
    WriteRows,
)
from tidemill.pipeline.exactly_once.task_transaction import write_in_transaction
from tidemill.pipeline.exactly_once.transactional_ids import pattern_of, unused_id
from tidemill.pipeline.missing_rights import needs
from tidemill.pipeline.sink_columns import missing_topics_refused
from tidemill.pipeline.sink_options import SinkOptions
from tidemill.wire.list_offset_timestamps import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.client.admin import Admin
    from tidemill.client.admin_types import TransactionListing

ResultT = TypeVar("ResultT")

ONGOING: Final = "Ongoing"
RETRY_TIMEOUT_S: Final = 60.0
"""For so long a request is repeated while coordinators or leaders move, or markers are written."""
ENDED_BEFORE: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""The errors of EndTxn for a transaction that has ended before."""

RowsByTopic = Iterable[tuple[str, "pa.RecordBatch"]]
"""The rows of a task, by topic."""


class SinkCluster:
    """The target cluster, for one query."""

    def __init__(self, options: SinkOptions, control_topic: str, id_prefix: str, query: str) -> None:
        self._options = options
        self._client = options.client
        self._id_prefix = id_prefix
        self._query = query
        self._control = ControlTopic(options.client, control_topic, query)

    def run(self, steps: Steps[ResultT], rows: RowsByTopic = ()) -> ResultT:
        """Executes all requests of the steps and returns their result. ``rows`` are those of a task."""
        result: Any = None
        while True:
            try:
                request = steps.send(result)
            except StopIteration as end:
                found: ResultT = end.value
                return found
            result = self.execute(request, rows)

    def execute(self, request: Request[Any], rows: RowsByTopic) -> Any:
        """Executes a request and returns its result."""
        match request:
            case AppendControl(record):
                return self._control.append(record)
            case ReadControl(batch, up_to):
                return self._control.read(batch, up_to)
            case DeleteControl(_, stored):
                return self._control.delete(stored)
            case WriteRows(batch):
                return self._write(batch, rows)
            case ListTransactions():
                return self._list()
            case IsOpen(transaction):
                return self._is_open(transaction)
            case EndTransaction(transaction, is_commit):
                return self._end(transaction, is_commit=is_commit)
            case FindOutcome(winner):
                return self._find_outcome(winner.sample)
        raise TypeError(f"an unknown request: {request}")

    def _write(self, batch: Batch, rows: RowsByTopic) -> TransactionRows:
        name = unused_id(self._id_prefix, self._query, batch.number)
        creates = str(self._options.create_topics).lower()
        topic = self._options.topic or "of each row"
        with needs("Write", topic=topic, id_prefix=self._id_prefix), missing_topics_refused(self._options):
            return write_in_transaction({**self._client, "allow.auto.create.topics": creates}, name, rows)

    def _needs_write_on_ids(self) -> AbstractContextManager[None]:
        return needs("Write", id_prefix=self._id_prefix)

    def _list(self) -> tuple[Transaction, ...]:
        with self._needs_write_on_ids(), pooled_admin(self._client) as admin:
            return tuple(
                one
                for listing in repeated(lambda: self._listings(admin), RETRY_TIMEOUT_S)
                if (one := _open_transaction(admin, listing.transactional_id)) is not None
            )

    def _listings(self, admin: Admin) -> list[TransactionListing]:
        pattern = pattern_of(self._id_prefix, self._query)
        try:
            return admin.list_transactions(states=[ONGOING], pattern=pattern)
        except ClientError as problem:
            if problem.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
        # A broker does not know the filter.
        ours = re.compile(pattern)
        return [
            one for one in admin.list_transactions(states=[ONGOING]) if ours.fullmatch(one.transactional_id)
        ]

    def _is_open(self, transaction: Transaction) -> bool:
        with self._needs_write_on_ids(), pooled_admin(self._client) as admin:
            return _open_transaction(admin, transaction.transactional_id) == transaction

    def _end(self, transaction: Transaction, *, is_commit: bool) -> EndResult:
        name, producer_id, epoch = transaction
        with self._needs_write_on_ids(), pooled_admin(self._client) as admin:
            try:
                admin.end_transaction(name, PreparedTransaction(producer_id, epoch), is_commit=is_commit)
            except ClientError as problem:
                if problem.code in ENDED_BEFORE:
                    return EndResult.ENDED_BEFORE
                raise
        return EndResult.ENDED

    def _find_outcome(self, sample: Place) -> Outcome:
        """Reads the sample. Its marker may still be written, or an earlier transaction may be open."""
        deadline = time.monotonic() + RETRY_TIMEOUT_S
        while True:
            with needs("Read", topic=sample.topic):
                outcome = self._outcome(sample)
            if outcome is not Outcome.OPEN or time.monotonic() >= deadline:
                return outcome
            time.sleep(RETRY_PAUSE_S)

    def _outcome(self, sample: Place) -> Outcome:
        if self._shows(sample, "read_committed"):
            return Outcome.COMMITTED
        if self._stable_offset(sample) <= sample.offset:
            return Outcome.OPEN
        # It may have been committed since the first read.
        if self._shows(sample, "read_committed"):
            return Outcome.COMMITTED
        return Outcome.ABORTED if self._shows(sample, "read_uncommitted") else Outcome.UNKNOWN

    def _stable_offset(self, sample: Place) -> int:
        partition = TopicPartition(sample.topic, sample.partition)
        with pooled_cluster({**self._client, "isolation.level": "read_committed"}) as cluster:
            return cluster.list_offsets({partition: LATEST})[partition]

    def _shows(self, sample: Place, isolation: str) -> bool:
        """Whether a reader gets the sample."""
        partition = TopicPartition(sample.topic, sample.partition)
        with pooled_cluster({**self._client, "isolation.level": isolation}) as cluster:
            if cluster.list_offsets({partition: LATEST})[partition] <= sample.offset:
                return False
            try:
                batches = cluster.read(*partition, sample.offset, sample.offset + 1)
                return any(batch.num_rows > 0 for batch in batches)
            except DataLoss:
                return False


def _open_transaction(admin: Admin, transactional_id: str) -> Transaction | None:
    """Returns the open transaction of a transactional id; None if it has ended meanwhile."""
    try:
        found = admin.describe_transaction(transactional_id)
    except ClientError as problem:
        if problem.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    if found.state != ONGOING:
        return None
    return Transaction(transactional_id, found.producer_id, found.producer_epoch)
