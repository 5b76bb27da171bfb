"""``spark.read.format("tidemill")``: the data source that PySpark discovers and instantiates.

PySpark imports this module in every session that uses any Python source. It therefore imports only PySpark;
readers and writers are imported on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class TidemillDataSource(DataSource):
    """Reads and writes topics of any Kafka cluster as tables and streams of Spark, without a jar.

    Options and columns are those of Spark's own Kafka connector: :mod:`tidemill.pipeline.options`,
    :mod:`tidemill.pipeline.source_columns`. ``load()`` requests the schema, unless the read has its own. The
    options are checked there, as far as batches and streams share them.
    """

    @classmethod
    def name(cls) -> str:
        return "tidemill"

    def schema(self) -> str:
        from tidemill.pipeline.options import check_source_options
        from tidemill.pipeline.source_columns import schema_text

        # Streams and batches have the same columns; which of them this is, is not known yet.
        return schema_text(check_source_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidemill.pipeline.batch_reader import TidemillReader
        from tidemill.pipeline.options import parse_source_options

        return TidemillReader(parse_source_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from tidemill.pipeline.options import parse_source_options
        from tidemill.pipeline.stream_reader import TidemillStreamReader

        return TidemillStreamReader(parse_source_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidemill.pipeline.sink_options import parse_sink_options
        from tidemill.pipeline.writer import batch_writer

        return batch_writer(parse_sink_options(self.options, streaming=False), schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from tidemill.pipeline.sink_options import parse_sink_options
        from tidemill.pipeline.writer import stream_writer

        return stream_writer(parse_sink_options(self.options, streaming=True), schema, overwrite)
