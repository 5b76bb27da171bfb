"""Chooses Spark's writer for the option ``delivery``, and checks the columns and the topic before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.errors import ConfigError
from tidemill.pipeline.sink_columns import checked_columns, refuse_missing_topic
from tidemill.pipeline.sink_options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


def batch_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Returns a writer for these columns. Raises ConfigError for columns that cannot be written."""
    if overwrite:
        raise ConfigError(
            'a topic cannot be overwritten, only appended to: use .mode("append"). To start again, '
            "delete and recreate the topic"
        )
    columns = checked_columns(options, schema)
    refuse_missing_topic(options)
    if options.exactly_once is None:
        from tidemill.pipeline.at_least_once import TidemillWriter

        return TidemillWriter(options, columns)
    from tidemill.pipeline.exactly_once.writers import ExactlyOnceWriter

    return ExactlyOnceWriter(options, options.exactly_once, columns)


def stream_writer(options: SinkOptions, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """As :func:`batch_writer`, for streams.

    Output mode ``complete``, for which Spark requests to overwrite, appends the whole result after each
    micro-batch, as in Spark's own connector.
    """
    columns = checked_columns(options, schema)
    refuse_missing_topic(options)
    if options.exactly_once is None:
        from tidemill.pipeline.at_least_once import TidemillStreamWriter

        return TidemillStreamWriter(options, columns)
    from tidemill.pipeline.exactly_once.writers import ExactlyOnceStreamWriter

    return ExactlyOnceStreamWriter(options, options.exactly_once, columns)
