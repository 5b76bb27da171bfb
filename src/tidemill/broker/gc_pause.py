"""Pauses the garbage collector of the process while a large request is handled.

It would repeatedly scan hundreds of thousands of new objects without cycles. The pause ends while the request
waits for memory or other operations: its objects are old by then, and other requests run without a pause.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

GC_PAUSE_S_MAX: Final = 60.0
"""The longest time without garbage collection."""


class GcPause:
    """One pause at a time. All methods must be called in the event loop's thread."""

    def __init__(self) -> None:
        self._had_gc = False
        """Whether garbage collection was enabled before the pause."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Disables garbage collection, for ``GC_PAUSE_S_MAX`` at most."""
        self._had_gc = gc.isenabled()
        gc.disable()
        self._timer = asyncio.get_running_loop().call_later(GC_PAUSE_S_MAX, self._enable)

    def end(self) -> None:
        """Enables garbage collection again. Does nothing without a pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._enable()

    def _enable(self) -> None:
        if not self._had_gc:
            return
        # The remaining new objects, for example new topics, are permanent. They become old objects without a
        # scan, which would take a tenth of a second for hundreds of thousands. Their number is unknown: the
        # interpreter subtracts freed objects from the count of new ones.
        gc.freeze()
        gc.unfreeze()
        gc.enable()
