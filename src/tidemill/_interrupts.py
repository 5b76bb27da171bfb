"""The signals that end a command: SIGINT (ctrl-C), SIGTERM and SIGHUP raise KeyboardInterrupt.

The signal is recorded, because Python may lose the exception. It prints and drops a KeyboardInterrupt that
is raised in a finalizer or in a callback of an import. The broker would then not stop.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAME_REQUEST_S = 0.5
"""The time after the first signal in which further ones are the same request. timeout(1), and wrappers that
forward ctrl-C, send a signal twice."""

received = 0
"""The number of the last signal; 0: none was received."""
_received_s = -1.0


def watch() -> None:
    """Installs the handler, except for signals that are ignored (nohup) or have another handler."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global received, _received_s
    if time.monotonic() - _received_s >= SAME_REQUEST_S:
        received, _received_s = number, time.monotonic()
        raise KeyboardInterrupt


def exit_code(arguments: Sequence[str]) -> int:
    """Returns the exit code after a signal: 0 for a broker, also before its start was complete."""
    return 0 if list(arguments[:1]) == ["serve"] else 128 + (received or signal.SIGINT)
