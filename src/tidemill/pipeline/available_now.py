"""The base class of stream readers that know Trigger.AvailableNow; PySpark has it from 4.2 on."""

from __future__ import annotations

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
except ImportError:  # before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces the class that PySpark has from 4.2 on."""
