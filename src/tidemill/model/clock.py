"""The system's clock."""

from __future__ import annotations

import time

from mypy_extensions import i64

from tidemill.model.ports import Clock


class SystemClock(Clock):
    """Wall time as the system has it, and time since an arbitrary start."""

    def wall_ms(self) -> i64:
        """Milliseconds since 1970-01-01 UTC."""
        return i64(time.time() * 1000.0)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
