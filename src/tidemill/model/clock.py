"""The system's clock."""

from __future__ import annotations

import time

from mypy_extensions import i64

from tidemill.model.system_interfaces import Clock


class SystemClock(Clock):
    """The system's wall clock, and its monotonic clock."""

    def wall_ms(self) -> i64:
        """Returns milliseconds since 1970-01-01 UTC."""
        return i64(time.time() * 1000.0)

    def monotonic(self) -> float:
        """Returns seconds that never decrease."""
        return time.monotonic()
