"""Writes rows as messages, at least once.

==========  ==========================================  =========================================
column      Spark                                       without it
==========  ==========================================  =========================================
value       string or binary                            an error: it is required
key         string or binary                            no key; messages are spread
topic       string                                      the option ``topic``, which overrides it
partition   int                                         by the key's murmur2, as Kafka's clients
headers     array<struct<key: string, value: binary>>   no headers
timestamp   timestamp                                   the time of sending
==========  ==========================================  =========================================

As in Spark's own Kafka sink, with ``timestamp`` added. ``offset`` and ``timestampType`` are ignored, so that
rows that were read can be written again. All in-sync replicas acknowledge a message before its task ends.
Spark retries a failed task: the messages of its first attempt are then duplicates.

A topic that does not exist is an error, before a task starts if the option names it. With
``createTopics=true`` the broker creates it with its default number of partitions, if its settings allow that.
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
from tidemill.pipeline.connect import pooled_cluster
from tidemill.pipeline.offset_ranges import is_gone, missing_topic
from tidemill.pipeline.options import SinkOptions
from tidemill.pipeline.worker_process import prepare_for_next_task

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # 4.0 passes record batches to a subclass of both

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Replaces the class that PySpark has from 4.1 on."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidemill.client import Producer

logger = logging.getLogger("tidemill.pipeline")

ALLOWED = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (TYPES["headers"],),
    "timestamp": ("timestamp",),
}

IGNORED_COLUMNS = ("offset", "timestampType")
"""Columns of the source that have no meaning for a message to be written."""

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


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> TidemillWriter:
    """Returns a writer for these columns. Raises ConfigError for columns that cannot be written."""
    if overwrite:
        raise ConfigError(
            'a topic cannot be overwritten, only appended to: use .mode("append"). To start again, '
            "delete and recreate the topic"
        )
    columns = checked_columns(options, schema)
    refuse_missing_topic(options)
    return TidemillWriter(options, columns)


def stream_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> TidemillStreamWriter:
    """As :func:`batch_writer`, for streams.

    Output mode ``complete``, for which Spark requests to overwrite, appends the whole result after each
    micro-batch, as in Spark's own connector.
    """
    columns = checked_columns(options, schema)
    refuse_missing_topic(options)
    return TidemillStreamWriter(options, columns)


def refuse_missing_topic(options: SinkOptions, topic: str | None = None) -> None:
    """Raises ConfigError for a missing topic (by default, the option's) unless it is to be created.

    Otherwise the broker would silently create a misspelt topic.
    """
    topic = topic or options.topic
    if topic is None or options.create_topics:
        return
    with pooled_cluster(options.client) as cluster:
        if topic not in cluster.describe([topic]):
            raise ConfigError(
                f"{missing_topic(cluster, topic, options.bootstrap)} Create it with tidemill topic create "
                f"{topic}, or set createTopics=true to let the broker create it"
            )


def checked_columns(options: SinkOptions, schema: StructType) -> tuple[str, ...]:
    """Returns the columns to write, in the order of the schema. Raises ConfigError."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in kinds.items():
        if name in IGNORED_COLUMNS:
            continue
        if name not in ALLOWED:
            raise ConfigError(
                f"column {name} ({kind}) is not part of a message: allowed are {', '.join(ALLOWED)}. Put "
                "it into the value, for instance to_json(struct(...)) as value, or omit it"
            )
        if kind not in ALLOWED[name]:
            raise ConfigError(f"column {name} is {kind}: {' or '.join(ALLOWED[name])} is allowed, cast it")
    if "value" not in kinds:
        raise ConfigError(f"there is no column value, only {', '.join(kinds)}: a message needs one")
    if options.topic is None and "topic" not in kinds:
        raise ConfigError("the topic is missing: set the option topic, or add a column topic")
    return tuple(name for name in kinds if name not in IGNORED_COLUMNS)


def send_batches(options: SinkOptions, columns: tuple[str, ...], batches: Iterable[pa.RecordBatch]) -> Sent:
    """Sends all rows and waits for all acknowledgements. Raises the first error of a message."""
    from tidemill.client import Producer

    client: dict[str, Any] = {"acks": "all", "linger.ms": "20", **options.client}
    client["allow.auto.create.topics"] = options.create_topics
    rows = 0
    topics: set[str] = set()
    unacknowledged: deque[Any] = deque()
    with Producer(None, client) as producer:
        for batch in batches:
            rows += batch.num_rows
            for topic, part in by_topic(options.topic, columns, batch):
                topics.add(topic)
                unacknowledged.append(_send(producer, options, topic, part))
            while unacknowledged and (len(unacknowledged) > UNACKNOWLEDGED_MAX or unacknowledged[0].done()):
                unacknowledged.popleft().result()
        producer.flush()
        while unacknowledged:
            unacknowledged.popleft().result()
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
    """Splits the rows of a batch by topic. Raises InvalidRecord for a row without a topic."""
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
    """Returns how much the finished tasks have written."""
    sent = [message for message in messages if isinstance(message, Sent)]
    topics = sorted({topic for message in sent for topic in message.topics})
    failed = len(messages) - len(sent)
    text = f"{sum(message.rows for message in sent)} messages to {', '.join(topics) or 'no topic'}"
    return f"{text} ({failed} of {len(messages)} tasks failed)" if failed else text
