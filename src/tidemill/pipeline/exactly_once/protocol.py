"""The steps of the exactly-once sink, without I/O, as generators of requests.

A task (:func:`write_task`), the commit of a batch (:func:`commit_batch`) and its abort (:func:`abort_batch`)
run in different processes, any of which may end, stand still and continue, or run twice. The order of the
control records decides between them (:mod:`~tidemill.pipeline.exactly_once.batch_state`).

1. A task appends ``begin`` and reads up to it. Only then does it open a transaction, unless the batch is
   decided already or a newer attempt has begun. When its rows are written, it reads to the end: if the batch
   was decided meanwhile, it aborts the transaction, and otherwise leaves it open.
2. The commit lists the open transactions of the query, *then* reads the control partition to its end. It
   stops if a transaction of its tasks is no longer open, aborts the other ones, and appends ``decision``. If
   that is valid, the batch is decided: from then on no winner is aborted by anyone, and any driver ends them.
3. An attempt that fails appends ``abandon`` before it aborts its transactions: its ``decision`` may be on
   the way.

Why no transaction of a newer attempt is aborted: whoever opens one has appended its ``begin`` before. A
transaction that was listed and belongs to a newer attempt therefore has its ``begin`` in what is read after.

Why no transaction stays open after ``done``: the commit lists the open ones again after ``decision``, and
aborts those that it has not chosen. A transaction that was opened later than that has a task that finds
``decision`` when its rows are written.

A winner may have been aborted because it timed out. Then the query stops with ``lost`` in the control topic,
and the next attempt writes the rows of these tasks again, if it has the same rows for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemill.model.errors import TidemillError
from tidemill.pipeline.exactly_once.batch_state import BatchState, ValidDecision
from tidemill.pipeline.exactly_once.control_records import (
    NO_DECISION,
    Abandon,
    Batch,
    Begin,
    Decision,
    Done,
    Lost,
    Token,
    Transaction,
    Winner,
)
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
    Steps,
    TransactionRows,
    WriteRows,
    ask,
)


class SinkError(TidemillError):
    """A batch that this attempt cannot write."""


class Superseded(SinkError):
    """A newer attempt to write the same batch has begun."""


class BatchesOutOfOrder(SinkError):
    """Another batch has begun before this one, and was never completed."""


class RowsLost(SinkError):
    """Transactions of a decided batch were aborted. The next attempt writes their rows again."""


class RowsDiffer(SinkError):
    """The rows of aborted transactions cannot be written again: the attempt has other rows."""


class TransactionsAborted(SinkError):
    """Transactions of this attempt were aborted before the batch was decided."""


class ControlRecordsLost(SinkError):
    """The control topic does not have the records of this attempt."""


class OutcomeUnknown(SinkError):
    """Nothing shows any more whether a transaction was committed."""


# -- a task ------------------------------------------------------------------------------------------------


class TaskResult(NamedTuple):
    """The message of a task to the commit of its batch."""

    batch: Batch
    token: Token
    task: int
    has_rows: bool
    rows: TransactionRows | None
    """None without rows, or if the batch was decided before."""


def write_task(batch: Batch, token: Token, task: int) -> Steps[TaskResult]:
    """Writes the rows of a task that has rows. Raises Superseded and BatchesOutOfOrder."""
    offset = yield from ask(AppendControl(Begin(batch, token)))
    state = yield from ask(ReadControl(batch, offset))
    if state.is_done or (state.valid is not None and not state.valid.lost):
        return TaskResult(batch, token, task, True, None)
    _check_order(state)
    if state.is_superseded(token):
        raise Superseded(_superseded(batch))
    rows = yield from ask(WriteRows(batch))
    if (yield from _is_needed(batch, rows, state.valid)):
        return TaskResult(batch, token, task, True, rows)
    yield from ask(EndTransaction(rows.transaction, is_commit=False))
    return TaskResult(batch, token, task, True, None)


def _is_needed(batch: Batch, rows: TransactionRows, valid: ValidDecision | None) -> Steps[bool]:
    """Whether rows may still be chosen: if ``valid`` was the decision before, as those of a lost transaction.

    False if the batch was decided meanwhile: the commit may have listed the open transactions before, and
    then nothing else would abort this one before its timeout.
    """
    if valid is not None and rows.rows not in [one.rows for one in valid.winners if one.task in valid.lost]:
        return False
    state = yield from ask(ReadControl(batch))
    return not state.is_done and _offset(state.valid) == _offset(valid)


def _offset(valid: ValidDecision | None) -> int:
    return NO_DECISION if valid is None else valid.offset


# -- the end of a batch ------------------------------------------------------------------------------------


def commit_batch(
    batch: Batch, token: Token, messages: Sequence[TaskResult], *, skips_lost_rows: bool = False
) -> Steps[bool]:
    """Commits the transactions of the tasks. Raises SinkError; then :func:`abort_batch` is to run.

    Returns False if the batch, or a later one, was done before: then this attempt adds nothing.
    With ``skips_lost_rows`` the batch is complete without rows that were lost and cannot be written again, or
    of which nothing shows any more whether they were lost.
    """
    if not any(one.has_rows for one in messages):
        # No task has begun. Without this, a former attempt could commit its rows later.
        yield from ask(AppendControl(Begin(batch, token)))
    listed = yield from ask(ListTransactions(batch.query))
    state = yield from ask(ReadControl(batch))
    written = _written(messages)
    if state.is_done:
        # Those that form the batch are committed: this does not change their end. While no later batch has
        # begun, no open transaction can become part of one: a former driver has ended before it aborted them.
        yield from _abort(written if state.unfinished else dict.fromkeys([*listed, *written]))
        return False
    _check_begun(state, token)
    _check_order(state)
    valid = state.valid
    if valid is not None and not valid.lost:
        yield from _complete(batch, token, valid, written, skips_lost_rows=skips_lost_rows)
        return True
    if state.is_superseded(token):
        raise Superseded(_superseded(batch))
    decision, missing = _decision(batch, token, messages, valid)
    if missing and not skips_lost_rows:
        raise RowsDiffer(_rows_differ(batch, missing))
    yield from _check_open(decision, listed, written)
    kept = {one.transaction for one in decision.winners}
    yield from _abort(one for one in listed if one not in kept)
    offset = yield from ask(AppendControl(decision))
    state = yield from ask(ReadControl(batch, offset))
    if offset not in state.valid_offsets or state.valid is None:
        raise Superseded(_superseded(batch))
    skipped = frozenset(one.task for one in missing)
    yield from _complete(batch, token, state.valid, written, skipped, skips_lost_rows=skips_lost_rows)
    return True


def abort_batch(batch: Batch, token: Token, messages: Sequence[TaskResult]) -> Steps[bool]:
    """Aborts the transactions of an attempt that do not form the batch.

    Returns False if some of them form it, or if the batch is done. Raises ControlRecordsLost.
    """
    offset = yield from ask(AppendControl(Abandon(batch, token)))
    state = yield from ask(ReadControl(batch, offset))
    written = _written(messages)
    if state.is_done:
        # Those that form the batch are committed: this does not change their end.
        yield from _abort(written)
        return False
    if written:
        _check_begun(state, token)
    kept = set() if state.valid is None else {one.transaction for one in state.valid.winners}
    yield from _abort(one for one in written if one not in kept)
    return kept.isdisjoint(written)


def _written(messages: Iterable[TaskResult]) -> list[Transaction]:
    """Returns the transactions of an attempt."""
    return [one.rows.transaction for one in messages if one.rows is not None]


def _decision(
    batch: Batch, token: Token, messages: Sequence[TaskResult], valid: ValidDecision | None
) -> tuple[Decision, list[Winner]]:
    """Returns the decision of this attempt, and its winners that were lost and not written again.

    Raises Superseded.
    """
    if valid is None:
        if any(one.has_rows and one.rows is None for one in messages):
            raise Superseded(_superseded(batch))
        written = [Winner(one.task, *one.rows) for one in messages if one.rows is not None]
        return Decision(batch, token, tuple(written)), []
    left = [one.rows for one in messages if one.rows is not None]
    winners, missing = [], []
    for winner in valid.winners:
        if winner.task in valid.lost:
            again = next((one for one in left if one.rows == winner.rows), None)
            if again is None:
                missing.append(winner)
            else:
                left.remove(again)
                winner = Winner(winner.task, *again)
        winners.append(winner)
    return Decision(batch, token, tuple(winners), valid.offset), missing


def _check_open(
    decision: Decision, listed: Iterable[Transaction], written: Iterable[Transaction]
) -> Steps[None]:
    """Raises TransactionsAborted unless the transactions that this attempt adds to the batch are open.

    Without this, the batch would be committed in part.
    """
    unlisted = set(written).difference(listed)
    aborted = []
    for winner in decision.winners:
        if winner.transaction in unlisted and not (yield from ask(IsOpen(winner.transaction))):
            aborted.append(winner)
    if aborted:
        raise TransactionsAborted(_transactions_aborted(decision.batch, aborted))


def _complete(
    batch: Batch,
    token: Token,
    valid: ValidDecision,
    written: Iterable[Transaction],
    skipped: frozenset[int] = frozenset(),
    *,
    skips_lost_rows: bool,
) -> Steps[None]:
    """Commits the winners of a decided batch, but those of the tasks in ``skipped``.

    ``written`` are the transactions of this attempt. Raises RowsLost, and OutcomeUnknown unless rows that may
    be lost are skipped.
    """
    lost = []
    for winner in valid.winners:
        if winner.task in skipped:
            continue
        outcome = yield from _commit(winner)
        if outcome is Outcome.ABORTED:
            lost.append(winner)
        elif outcome is Outcome.OPEN or (outcome is Outcome.UNKNOWN and not skips_lost_rows):
            raise OutcomeUnknown(_outcome_unknown(winner, outcome))
    # Transactions of attempts that were not chosen. A later batch begins only after this one is done, so that
    # transactions listed before the read below belong to this batch.
    listed = yield from ask(ListTransactions(batch.query))
    state = yield from ask(ReadControl(batch))
    if state.is_done:
        yield from _abort(written)
        return
    if lost:
        tasks = frozenset(one.task for one in lost)
        yield from ask(AppendControl(Lost(batch, token, valid.offset, tasks)))
        raise RowsLost(_rows_lost(batch, lost))
    if state.valid is None or state.valid.offset != valid.offset:
        raise Superseded(_superseded(batch))
    yield from ask(AppendControl(Done(batch, token)))
    kept = {one.transaction for one in valid.winners}
    yield from _abort(one for one in listed if one not in kept)
    yield from ask(DeleteControl(batch, tuple(state.obsolete)))


def _commit(winner: Winner) -> Steps[Outcome]:
    """Commits a transaction, unless it has ended already; returns its outcome."""
    ended = yield from ask(EndTransaction(winner.transaction, is_commit=True))
    if ended is EndResult.ENDED:
        return Outcome.COMMITTED
    return (yield from ask(FindOutcome(winner)))


def _abort(transactions: Iterable[Transaction]) -> Steps[None]:
    for one in transactions:
        yield from ask(EndTransaction(one, is_commit=False))


def _check_begun(state: BatchState, token: Token) -> None:
    if not state.has_begun(token):
        raise ControlRecordsLost(
            f"the control topic has no record of this attempt to write batch {state.batch.number} of"
            f" {state.batch.query} any more: was the control topic deleted? The transactions of the attempt"
            " stay open, because they may form the batch: compare the batch with what readers of the target"
            " topics get before you start the query again"
        )


def _check_order(state: BatchState) -> None:
    first = state.to_complete_first
    if first is not None:
        raise BatchesOutOfOrder(
            f"batch {first} of {state.batch.query} was begun and never completed, so that batch"
            f" {state.batch.number} cannot be written: write batch {first} again first"
        )


# -- texts -------------------------------------------------------------------------------------------------


def _superseded(batch: Batch) -> str:
    return (
        f"another driver writes batch {batch.number} of {batch.query} as well, and has begun later: this"
        " attempt writes nothing; end one of the two drivers"
    )


def _transactions_aborted(batch: Batch, aborted: Sequence[Winner]) -> str:
    return (
        f"batch {batch.number} of {batch.query} is not written: {_tasks(aborted)} were aborted before the"
        " last task had ended, probably by their timeout. Set kafka.transaction.timeout.ms (at most"
        " transaction.max.timeout.ms of the brokers) above the time that a batch takes, or make its batches"
        " smaller"
    )


def _rows_lost(batch: Batch, lost: Sequence[Winner]) -> str:
    return (
        f"batch {batch.number} of {batch.query} was decided, but {_tasks(lost)} timed out before the commit"
        " and were aborted: start the query again, which writes these rows again; raise"
        " kafka.transaction.timeout.ms if drivers may be away for so long"
    )


def _rows_differ(batch: Batch, missing: Sequence[Winner]) -> str:
    return (
        f"batch {batch.number} of {batch.query} is committed in part: {_tasks(missing)} timed out and were"
        " aborted, and no task of this attempt has the same rows. Start the query with the same number of"
        " cores and partitions and without adaptive execution, so that its tasks get the same rows; or write"
        " the missing rows yourself, and then mark the batch as done with skipLostRows=true"
    )


def _outcome_unknown(winner: Winner, outcome: Outcome) -> str:
    topic, partition, offset = winner.sample
    if outcome is Outcome.OPEN:
        advice = "start the query again when its leader and its coordinator are available"
    else:
        advice = "set skipLostRows=true once, which takes the transaction for committed"
    return (
        f"whether transaction {winner.transaction.transactional_id} (producer"
        f" {winner.transaction.producer_id}, epoch {winner.transaction.epoch}) was committed is unknown: the"
        f" record at offset {offset} of {topic}-{partition}: {outcome.value}; {advice}"
    )


def _tasks(lost: Sequence[Winner]) -> str:
    topics = ", ".join(sorted({one.sample.topic for one in lost}))
    numbers = ", ".join(str(one.task) for one in lost)
    return f"the transactions of tasks {numbers} ({sum(one.rows.rows for one in lost)} rows, to {topics})"
