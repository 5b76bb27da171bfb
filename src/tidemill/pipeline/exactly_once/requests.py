"""The requests of the protocol's steps to the cluster, and their results.

Steps are generators: they yield a request, and receive its result. A request that fails raises its error
there, which leaves everything as it is: its outcome may be unknown.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from tidemill.pipeline.exactly_once.batch_state import BatchState
from tidemill.pipeline.exactly_once.control_records import (
    Batch,
    ControlRecord,
    Place,
    RowSet,
    StoredRecord,
    Transaction,
    Winner,
)

ResultT = TypeVar("ResultT")


class Request(Generic[ResultT]):
    """An operation on the cluster; its result has type ``ResultT``."""


@dataclass(frozen=True, slots=True)
class AppendControl(Request[int]):
    """Appends a control record with acks=all; the result is its offset."""

    record: ControlRecord


@dataclass(frozen=True, slots=True)
class ReadControl(Request[BatchState]):
    """Reads the control records of the query up to an offset (inclusive), or to the end of the log."""

    batch: Batch
    up_to: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteControl(Request[None]):
    """Appends tombstones for records."""

    batch: Batch
    stored: Sequence[StoredRecord]


class TransactionRows(NamedTuple):
    """The rows that a task has written into its open transaction."""

    transaction: Transaction
    rows: RowSet
    sample: Place


@dataclass(frozen=True, slots=True)
class WriteRows(Request[TransactionRows]):
    """Opens a transaction, and writes all rows of the task into it.

    Its transactional id is new, or was last used for an earlier batch: InitProducerId aborts the open
    transaction of the id, which may have been chosen for this batch.
    """

    batch: Batch


@dataclass(frozen=True, slots=True)
class ListTransactions(Request[tuple[Transaction, ...]]):
    """Lists the open transactions of the query, at all coordinators."""

    query: str


class EndResult(Enum):
    """The result of EndTxn."""

    ENDED = "the transaction has ended as requested"
    ENDED_BEFORE = "it had ended before, or its producer was fenced"


@dataclass(frozen=True, slots=True)
class IsOpen(Request[bool]):
    """Whether a transaction is open, by its coordinator. :class:`ListTransactions` misses those whose
    coordinator moves.
    """

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class EndTransaction(Request[EndResult]):
    """Commits or aborts the transaction of exactly this producer id and epoch."""

    transaction: Transaction
    is_commit: bool


class Outcome(Enum):
    """The outcome of a transaction, as the log of its sample shows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "still open"
    UNKNOWN = "the record was removed"


@dataclass(frozen=True, slots=True)
class FindOutcome(Request[Outcome]):
    """Looks whether a reader with read_committed sees the sample of a transaction."""

    winner: Winner


Steps = Generator[Request[Any], Any, ResultT]


def ask(request: Request[ResultT]) -> Steps[ResultT]:
    """Yields a request and returns its result."""
    result: ResultT = yield request
    return result
