"""Spark data source and sink, and jobs that use them.

``TidemillDataSource`` implements ``spark.read.format("tidemill")``. ``LagListener`` reports the lag of
streaming queries. Both are imported on first use, so that the command line does not wait for PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.pipeline.lag import Lag, LagListener
    from tidemill.pipeline.source import TidemillDataSource

__all__ = ["Lag", "LagListener", "TidemillDataSource"]


def __getattr__(name: str) -> Any:
    if name == "TidemillDataSource":
        from tidemill.pipeline.source import TidemillDataSource

        return TidemillDataSource
    if name in ("Lag", "LagListener"):
        from tidemill.pipeline import lag

        return getattr(lag, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
