"""The base class of streaming writers that get record batches, in all versions of PySpark."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # 4.0 passes record batches to a subclass of both

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef]
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        """Replaces the class that PySpark has from 4.1 on."""


__all__ = ["DataSourceStreamArrowWriter"]
