"""The columns of a DataFrame that is written as messages.

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
rows that were read can be written again.

A topic that does not exist is an error, before a task starts if the option names it. With
``createTopics=true`` the broker creates it with its default number of partitions, if its settings allow that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError, InvalidRecord
from tidemill.pipeline.client_pool import pooled_cluster
from tidemill.pipeline.offset_ranges import is_gone, missing_topic
from tidemill.pipeline.sink_options import SinkOptions
from tidemill.pipeline.source_columns import TYPES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

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


@contextmanager
def missing_topics_refused(options: SinkOptions) -> Iterator[None]:
    """Replaces the client's error for a missing topic by that of :func:`refuse_missing_topic`."""
    try:
        yield
    except ClientError as problem:
        if is_gone(problem) and problem.topic is not None:
            refuse_missing_topic(options, problem.topic)
        raise


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


def rows_by_topic(
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
