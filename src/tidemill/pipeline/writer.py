"""Writes: rows become messages, at least once.

==========  ==========================================  =========================================
column      Spark                                       without it
==========  ==========================================  =========================================
value       string or binary                            an error: it is required
key         string or binary                            no key; messages are spread
topic       string                                      the option ``topic``, which wins over it
partition   int                                         by the key's murmur2, as Kafka's clients
headers     array<struct<key: string, value: binary>>   no headers
timestamp   timestamp                                   the time of sending
==========  ==========================================  =========================================

As Spark's own Kafka sink, with ``timestamp`` added; ``offset`` and ``timestampType`` are passed over, so
that what was read can be written again. A message is acknowledged by all in-sync replicas before its task
ends. A task that fails is done again by Spark: what its first try had sent is then there twice.

A topic that is not there is an error, before a task starts where the option names it; with
``createTopics=true`` the broker creates it with its own number of partitions, if its settings allow that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError, InvalidRecord
from tidemill.pipeline.columns import TYPES
from tidemill.pipeline.connect import borrowed
from tidemill.pipeline.options import SinkOptions
from tidemill.pipeline.targets import is_gone, missing_topic
from tidemill.pipeline.worker_process import prepare_for_next_task

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # 4.0 gives record batches to a class that is both

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """What PySpark has from 4.1 on."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidemill.client import Producer

log = logging.getLogger("tidemill.pipeline")

ALLOWED = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (TYPES["headers"],),
    "timestamp": ("timestamp",),
}

PASSED_OVER = ("offset", "timestampType")
"""Columns of the source that mean nothing for a message that is yet to be written."""

UNSETTLED_MAX = 64
"""Arrow batches handed to the producer and not yet acknowledged, before the writer waits for the first."""


class Sent(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, rows: int, topics: Sequence[str]) -> None:
        self.rows = rows
        self.topics = tuple(topics)


class _Writing:
    """What both writers do; they differ in the arguments of ``commit`` and ``abort``."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        try:
            return send_batches(self._options, self._columns, iterator)
        finally:
            prepare_for_next_task()


class TidemillWriter(_Writing, DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("%s", summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; already written and staying in the log: %s", summary(messages))


class TidemillStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.info("batch %d: %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        text = summary(messages)
        log.warning("batch %d failed, Spark repeats it; written by its first try: %s", batchId, text)


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> TidemillWriter:
    """A writer for these columns. Raises ConfigError for ones that cannot be written."""
    if overwrite:
        raise ConfigError(
            'a topic cannot be overwritten, only appended to: use .mode("append"). To start anew, delete the '
            "topic and make it again"
        )
    columns = checked_columns(options, schema)
    refuse_missing_topic(options)
    return TidemillWriter(options, columns)


def stream_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> TidemillStreamWriter:
    """As :func:`batch_writer`, for streams.

    Output mode ``complete``, with which Spark asks to overwrite, appends the whole result after each
    micro-batch, as Spark's own connector does.
    """
    columns = checked_columns(options, schema)
    refuse_missing_topic(options)
    return TidemillStreamWriter(options, columns)


def refuse_missing_topic(options: SinkOptions, topic: str | None = None) -> None:
    """Raises ConfigError for a topic (by default that of the option) that is missing and not to be created.

    Otherwise the broker would create a misspelt topic in silence.
    """
    topic = topic or options.topic
    if topic is None or options.create_topics:
        return
    with borrowed(options.client) as cluster:
        if topic not in cluster.describe([topic]):
            raise ConfigError(
                f"{missing_topic(cluster, topic, options.bootstrap)} Create it with tidemill topic create "
                f"{topic}, or set createTopics=true to let the broker create it"
            )


def checked_columns(options: SinkOptions, schema: StructType) -> tuple[str, ...]:
    """The columns that are written, in the order of the schema."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in kinds.items():
        if name in PASSED_OVER:
            continue
        if name not in ALLOWED:
            raise ConfigError(
                f"column {name} ({kind}) has no place in a message: allowed are {', '.join(ALLOWED)}. Put "
                "it into the value, for instance to_json(struct(...)) as value, or leave it out"
            )
        if kind not in ALLOWED[name]:
            raise ConfigError(f"column {name} is {kind}: {' or '.join(ALLOWED[name])} is allowed, cast it")
    if "value" not in kinds:
        raise ConfigError(f"there is no column value, only {', '.join(kinds)}: a message needs one")
    if options.topic is None and "topic" not in kinds:
        raise ConfigError("where to write to is not said: set the option topic, or have a column topic")
    return tuple(name for name in kinds if name not in PASSED_OVER)


def send_batches(options: SinkOptions, columns: tuple[str, ...], batches: Iterable[pa.RecordBatch]) -> Sent:
    """Sends all rows and waits until each is acknowledged. Raises the first error of a message."""
    from tidemill.client import Producer

    client: dict[str, Any] = {"acks": "all", "linger.ms": "20", **options.client}
    client["allow.auto.create.topics"] = options.create_topics
    rows = 0
    topics: set[str] = set()
    unsettled: deque[Any] = deque()
    with Producer(None, client) as producer:
        for batch in batches:
            rows += batch.num_rows
            for topic, part in by_topic(options.topic, columns, batch):
                topics.add(topic)
                unsettled.append(_send(producer, options, topic, part))
            while unsettled and (len(unsettled) > UNSETTLED_MAX or unsettled[0].done()):
                unsettled.popleft().result()
        producer.flush()
        while unsettled:
            unsettled.popleft().result()
    return Sent(rows, sorted(topics))


def _send(producer: Producer, options: SinkOptions, topic: str, part: pa.RecordBatch) -> Any:
    try:
        return producer.send_arrow(topic, part)
    except ClientError as problem:
        if is_gone(problem):
            refuse_missing_topic(options, topic)
        raise


def by_topic(
    fixed: str | None, columns: tuple[str, ...], batch: pa.RecordBatch
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch, topic by topic. Raises InvalidRecord for a row without a topic."""
    import pyarrow.compute as pc

    payload = batch.select([name for name in columns if name != "topic"])
    if batch.num_rows == 0:
        return
    if fixed is not None:
        yield fixed, payload
        return
    names = batch.column("topic")
    if names.null_count:
        raise InvalidRecord(
            f"{names.null_count} of {batch.num_rows} rows have no topic: fill the column, or set the "
            "option topic"
        )
    distinct = pc.unique(names).to_pylist()
    for name in distinct:
        yield name, payload if len(distinct) == 1 else payload.filter(pc.equal(names, name))


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """How much was written, by the tasks that finished."""
    sent = [message for message in messages if isinstance(message, Sent)]
    topics = sorted({topic for message in sent for topic in message.topics})
    failed = len(messages) - len(sent)
    text = f"{sum(message.rows for message in sent)} messages to {', '.join(topics) or 'no topic'}"
    return f"{text} ({failed} of {len(messages)} tasks failed)" if failed else text
