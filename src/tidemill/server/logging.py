"""Log lines on stderr: one event per line.

    2026-03-01 12:00:00.123 WARNING server: a connection from 10.0.0.7 was refused: ...

Levels are set for all loggers and for single ones: ``info``, or ``info,tidemill.net=debug``. Control
characters are escaped, so that text from outside (client ids, topic names) cannot forge lines or control the
terminal. Repetitions of one message are limited and counted.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import time
from collections.abc import Iterable
from typing import TextIO

from tidemill.model.errors import ConfigError

TRACE = 5
LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
REPEATS_MAX = 20
"""The maximum number of lines of one message (by its template) in one window."""
ADMIN = "tidemill.admin"
ADMIN_REPEATS_MAX = 1000
"""The same for changes by administrators, which are all logged."""
WINDOW_S = 10.0
TEMPLATES_MAX = 1000
ROOT = "tidemill"

_COLOURS = {"TRACE": "2", "DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_TRACE_ESCAPES = {code: text for code, text in _ESCAPES.items() if code != ord("\n")}


def parse_levels(parts: Iterable[str], setting: str = "tidemill.log.level") -> tuple[int, dict[str, int]]:
    """The level of all loggers, and those of single ones, from ``["info", "tidemill.net=debug"]``.

    Raises ConfigError, which names ``setting``.
    """
    everywhere = logging.INFO
    single = {}
    for part in parts:
        name, equals, level = part.strip().rpartition("=")
        number = LEVELS.get(level.strip().lower())
        if number is None or (equals and not name):
            raise ConfigError(
                f"{setting}={part.strip()}: allowed is one of {', '.join(LEVELS)}, "
                "and LOGGER=LEVEL for single loggers"
            )
        if equals:
            short = name.strip()
            single[short if short.split(".")[0] == ROOT else f"{ROOT}.{short}"] = number
        else:
            everywhere = number
    return everywhere, single


def set_up(levels: Iterable[str] = ("info",), stream: TextIO | None = None) -> None:
    """Writes the log of the package to ``stream`` (default stderr), with the given levels."""
    everywhere, single = parse_levels(levels)
    logging.addLevelName(TRACE, "TRACE")
    # Errors while writing to stderr (a full disk, a closed pipe) are ignored.
    logging.raiseExceptions = False
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(LineFormatter(colours=wants_colours(target)))
    handler.addFilter(RepeatFilter())
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.propagate = False
    for name in [ROOT, *logging.Logger.manager.loggerDict]:
        if name == ROOT or name.startswith(f"{ROOT}."):
            logging.getLogger(name).setLevel(logging.NOTSET)
    root.setLevel(everywhere)
    for name, level in single.items():
        logging.getLogger(name).setLevel(level)
    loud = logging.getLogger("asyncio")
    loud.handlers[:] = [handler]
    loud.propagate = False


def wants_colours(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that supports colours, and colours are not disabled."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False


class LineFormatter(logging.Formatter):
    """Formats a line as time, level, logger and text, with an indented traceback below."""

    def __init__(self, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours
        self._second = -1
        self._clock = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        part = record.name.removeprefix(f"{ROOT}.")
        level = f"{record.levelname:<7}"
        if self._colours and record.levelname in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelname]}m{level}\x1b[0m"
        text = record.getMessage().translate(_ESCAPES)
        line = f"{self._clock}.{int(record.msecs):03d} {level} {part}: {text}"
        if record.exc_info:
            # Indented, because an exception's text may contain line ends from outside.
            trace = self.formatException(record.exc_info).translate(_TRACE_ESCAPES)
            line += "\n" + textwrap.indent(trace, "    ")
        return line


class RepeatFilter(logging.Filter):
    """Limits the lines of each message (by its template) in a window.

    The first line after a window with suppressed lines contains their number.
    """

    def __init__(self, repeats_max: int = REPEATS_MAX, window_s: float = WINDOW_S) -> None:
        super().__init__()
        self._repeats_max = repeats_max
        self._window_s = window_s
        self._seen: dict[tuple[str, int, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.levelno, str(record.msg))
        repeats_max = ADMIN_REPEATS_MAX if record.name == ADMIN else self._repeats_max
        seen = self._seen.get(key)
        if seen is None or record.created - seen[0] >= self._window_s:
            if len(self._seen) >= TEMPLATES_MAX:
                self._seen.clear()
            self._seen[key] = [record.created, 1]
            if seen is not None and seen[1] > repeats_max:
                suppressed = int(seen[1]) - repeats_max
                record.msg = f"{record.getMessage()} ({suppressed} similar lines were suppressed)"
                record.args = None
            return True
        seen[1] += 1
        return seen[1] <= repeats_max
