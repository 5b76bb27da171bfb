"""Spark's writers for the delivery ``exactly-once``.

Spark pickles a writer for the tasks of each batch, and makes another one, in another process, for the commit
of a micro-batch. What the commit needs is therefore in the messages of the tasks. If no task has sent a
message, nothing was written, and there is nothing to commit.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tidemill.model.errors import ConfigError
from tidemill.pipeline.exactly_once.control_records import Batch, Token
from tidemill.pipeline.exactly_once.control_topic import ensure_control_topic
from tidemill.pipeline.exactly_once.protocol import TaskResult, abort_batch, commit_batch, write_task
from tidemill.pipeline.exactly_once.sink_cluster import SinkCluster
from tidemill.pipeline.sink_columns import rows_by_topic
from tidemill.pipeline.sink_options import ExactlyOnce, SinkOptions
from tidemill.pipeline.stream_arrow_writer import DataSourceStreamArrowWriter
from tidemill.pipeline.worker_process import prepare_for_next_task

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("tidemill.pipeline")

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties of the tasks of a micro-batch."""


class TaskCommitMessage(WriterCommitMessage):
    """The message of a task."""

    def __init__(self, written: TaskResult) -> None:
        self.written = written


class Attempt(NamedTuple):
    """An attempt to write a batch, and the messages of its tasks."""

    batch: Batch
    token: Token
    messages: list[TaskResult]

    def __str__(self) -> str:
        rows = sum(one.rows.rows.rows for one in self.messages if one.rows is not None)
        return f"batch {self.batch.number} of {self.batch.query} ({rows} messages of this attempt)"


class _WriterBase:
    """The common part of both writers."""

    def __init__(self, options: SinkOptions, delivery: ExactlyOnce, columns: tuple[str, ...]) -> None:
        self._options = options
        self._delivery = delivery
        self._columns = columns
        self._token = Token(uuid.uuid4().hex)
        ensure_control_topic(options.client, delivery.control_topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        try:
            return TaskCommitMessage(self._write(iterator))
        finally:
            prepare_for_next_task()

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a task of Spark has a context")
        batch, task = self._batch(context), context.partitionId()
        filled = (one for one in iterator if one.num_rows)
        first = next(filled, None)
        if first is None:
            return TaskResult(batch, self._token, task, False, None)
        rows = self._rows_by_topic(first, filled)
        return self._cluster(batch).run(write_task(batch, self._token, task), rows)

    def _rows_by_topic(
        self, first: pa.RecordBatch, others: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        yield from rows_by_topic(self._options.topic, self._columns, first)
        for batch in others:
            yield from rows_by_topic(self._options.topic, self._columns, batch)

    def _batch(self, context: TaskContext) -> Batch:
        """Returns the batch that a task writes."""
        write_id, batch_id = self._delivery.write_id, self._delivery.batch_id
        if write_id is not None and batch_id is not None:
            return Batch(f"write-{write_id}", batch_id)
        query, number = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
        if query is None or number is None:
            raise ConfigError(
                f"the task has no {QUERY_PROPERTY} and {BATCH_PROPERTY}, by which delivery=exactly-once knows"
                " its batch: use this delivery for streams, or with writeId and batchId"
            )
        return Batch(query, int(number))

    def _cluster(self, batch: Batch) -> SinkCluster:
        return SinkCluster(self._options, self._delivery.control_topic, self._delivery.id_prefix, batch.query)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        attempt = _attempt(messages)
        if attempt is None:
            return
        batch, token, written = attempt
        skips = self._delivery.skip_lost_rows
        if self._cluster(batch).run(commit_batch(batch, token, written, skips_lost_rows=skips)):
            logger.info("committed %s", attempt)
        else:
            # Spark repeats a micro-batch if its driver ended before Spark had stored that it was written.
            level = logging.INFO if self._delivery.write_id is None else logging.WARNING
            logger.log(level, "%s: it, or a later batch, was complete before; nothing is added", attempt)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        attempt = _attempt(messages)
        if attempt is None:
            return
        batch, token, written = attempt
        if self._cluster(batch).run(abort_batch(batch, token, written)):
            logger.warning("aborted %s", attempt)
        else:
            logger.warning("%s is decided already: it is not aborted", attempt)


class ExactlyOnceWriter(_WriterBase, DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class ExactlyOnceStreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    """Writes each micro-batch of a streaming query once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


def _attempt(messages: Sequence[WriterCommitMessage | None]) -> Attempt | None:
    """Returns the attempt whose tasks have sent these messages; None without messages."""
    written = [one.written for one in messages if isinstance(one, TaskCommitMessage)]
    if not written:
        return None
    return Attempt(written[0].batch, written[0].token, written)
