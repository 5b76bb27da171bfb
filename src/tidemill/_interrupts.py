"""Records ctrl-C during the imports of ``tidemill serve``, where Python may lose it.

Python prints and drops a KeyboardInterrupt that is raised in a finalizer or in a callback of an import. The
broker would then not stop.
"""

from __future__ import annotations

import signal
from types import FrameType

received = False
"""Whether a SIGINT was received."""


def watch() -> None:
    """Installs the handler, unless SIGINT is ignored or has another handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global received
    received = True
    raise KeyboardInterrupt
