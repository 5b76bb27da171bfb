"""Lets PySpark find the format ``tidemill`` by itself: it imports every top-level module ``pyspark_*``.

An import that fails here would hide the Python sources of all others too, so a broken installation
becomes a source that says what is wrong when it is used.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource

try:
    from tidemill.pipeline.source import TidemillDataSource as DefaultSource
except Exception as problem:  # noqa: BLE001 - whatever is broken, the other sources of PySpark must stay
    _reason = f"tidemill is installed, but does not load: {type(problem).__name__}: {problem}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands in for the source, and tells why."""

        @classmethod
        def name(cls) -> str:
            return "tidemill"

        def schema(self) -> NoReturn:
            raise ImportError(_reason)

        def writer(self, schema: object, overwrite: bool) -> NoReturn:
            raise ImportError(_reason)

        def streamWriter(self, schema: object, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
            raise ImportError(_reason)


__all__ = ["DefaultSource"]
