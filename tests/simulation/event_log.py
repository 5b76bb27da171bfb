"""The event log of a simulated run: network, log lines of the program and responses to clients. Shown on
failure.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable

from simulated_loop import PROCESS, START_S, SimulatedLoop

LINES_KEPT = 50_000
LINES_SHOWN = 200


class Violation(AssertionError):
    """A promise was broken."""


class EventLog(logging.Handler):
    """Collects the events of the world, the log lines of the program, and the responses to clients."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.INFO)
        self._loop = loop
        self._lines: deque[tuple[float, str, str | Callable[[], str]]] = deque(maxlen=LINES_KEPT)
        self._last: dict[str, str] = {}
        self.violation = ""
        self.on_violation: Callable[[], None] = lambda: None
        self.counts: dict[str, int] = {}

    def add(self, text: str | Callable[[], str], who: str | None = None) -> None:
        """Adds a line; a function is called only if the line is shown."""
        if who is None:
            process = PROCESS.get()
            who = process.name if process is not None else "the world"
        if isinstance(text, str):
            if self._last.get(who) == text:
                return  # The line is repeated.
            self._last[who] = text
        self._lines.append((self._loop.time() - START_S, who, text))

    def count(self, what: str, times: int = 1) -> None:
        """Counts an event."""
        self.counts[what] = self.counts.get(what, 0) + times

    def violate(self, text: str) -> None:
        """A promise was broken: the run ends."""
        if not self.violation:
            self.violation = text
            self.add(f"VIOLATION: {text}")
            self.on_violation()

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a log line of the program. A line with a traceback is a fault of the program."""
        self.add(lambda: f"log: {record.levelname} {record.getMessage()}")
        if record.exc_info is not None and record.levelno >= logging.ERROR:
            problem = record.exc_info[1]
            trace = logging.Formatter().formatException(record.exc_info)
            self.add(trace)
            self.violate(f"the program logs an internal error: {record.getMessage()} ({problem!r})")

    def fingerprint(self) -> str:
        """Returns a short text that differs if any line differs."""
        return hashlib.sha256(self.last_lines(LINES_KEPT).encode()).hexdigest()[:16]

    def last_lines(self, lines: int = LINES_SHOWN) -> str:
        """Returns the last lines, oldest first."""
        shown = list(self._lines)[-lines:]
        return "\n".join(
            f"{at:9.4f} s  {who:<12} {text() if callable(text) else text}" for at, who, text in shown
        )
