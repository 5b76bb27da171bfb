"""The writers of the delivery ``at-least-once``.

All in-sync replicas acknowledge a message before its task ends. Spark retries a failed task: the messages of
its first attempt are then duplicates.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tidemill.pipeline.missing_rights import needs
from tidemill.pipeline.options import AT_LEAST_ONCE
from tidemill.pipeline.sink_columns import missing_topics_refused, rows_by_topic
from tidemill.pipeline.sink_options import SinkOptions
from tidemill.pipeline.stream_arrow_writer import DataSourceStreamArrowWriter
from tidemill.pipeline.worker_process import prepare_for_next_task

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("tidemill.pipeline")

UNACKNOWLEDGED_MAX = 64
"""The maximum number of unacknowledged Arrow batches before the writer waits for the first."""


class Sent(WriterCommitMessage):
    """The result of one task."""

    def __init__(self, rows: int, topics: Sequence[str]) -> None:
        self.rows = rows
        self.topics = tuple(topics)


class _WriterBase:
    """The common part of both writers, which differ in the arguments of ``commit`` and ``abort``."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        try:
            return send_batches(self._options, self._columns, iterator)
        finally:
            prepare_for_next_task()


class TidemillWriter(_WriterBase, DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        logger.info("%s", summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        logger.warning("the write failed; already written, and kept in the log: %s", summary(messages))


class TidemillStreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        logger.info("batch %d: %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        text = summary(messages)
        logger.warning("batch %d failed, Spark retries it; written by this attempt: %s", batchId, text)


def send_batches(options: SinkOptions, columns: tuple[str, ...], batches: Iterable[pa.RecordBatch]) -> Sent:
    """Sends all rows and waits for all acknowledgements. Raises the first error of a message."""
    from tidemill.client import Producer

    client: dict[str, Any] = {"acks": "all", "linger.ms": "20", **options.client}
    client["allow.auto.create.topics"] = options.create_topics
    rows = 0
    topics: set[str] = set()
    unacknowledged: deque[Any] = deque()
    write = needs("Write", topic=options.topic or "of each row", delivery=AT_LEAST_ONCE)
    with write, Producer(None, client) as producer:
        for batch in batches:
            rows += batch.num_rows
            for topic, part in rows_by_topic(options.topic, columns, batch):
                topics.add(topic)
                with missing_topics_refused(options):
                    unacknowledged.append(producer.send_arrow(topic, part))
            while unacknowledged and (len(unacknowledged) > UNACKNOWLEDGED_MAX or unacknowledged[0].done()):
                unacknowledged.popleft().result()
        producer.flush()
        while unacknowledged:
            unacknowledged.popleft().result()
    return Sent(rows, sorted(topics))


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Returns how much the finished tasks have written."""
    sent = [message for message in messages if isinstance(message, Sent)]
    topics = sorted({topic for message in sent for topic in message.topics})
    failed = len(messages) - len(sent)
    text = f"{sum(message.rows for message in sent)} messages to {', '.join(topics) or 'no topic'}"
    return f"{text} ({failed} of {len(messages)} tasks failed)" if failed else text
