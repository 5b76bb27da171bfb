"""Ctrl-C while the broker's command is being loaded, noted where Python may lose it.

A KeyboardInterrupt that is raised in a finalizer, or in a callback of an import, is printed and dropped. Who
waits for the end of the broker would wait for good.
"""

from __future__ import annotations

import signal
from types import FrameType

heard = False
"""Whether it came."""


def watch() -> None:
    """Begins to note it, where Python's own handler is in place: one that is ignored stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global heard
    heard = True
    raise KeyboardInterrupt
