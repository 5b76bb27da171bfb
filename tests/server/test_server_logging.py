"""Log lines: levels, format, escaping of text from outside, suppressed repetitions."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from tidemill.model.errors import ConfigError
from tidemill.server.logging import TRACE, RepeatFilter, parse_levels, set_up


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    loggers = [logging.getLogger("tidemill"), logging.getLogger("asyncio")]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    raising = logging.raiseExceptions
    yield
    logging.raiseExceptions = raising
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
    logging.getLogger("tidemill.net").setLevel(logging.NOTSET)


def written(*levels: str) -> io.StringIO:
    stream = io.StringIO()
    set_up(levels or ("info",), stream)
    return stream


def test_a_line_has_time_level_logger_and_text() -> None:
    stream = written()
    logging.getLogger("tidemill.server").warning("a %s", "thing")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING server: a thing\n", stream.getvalue())


def test_loggers_have_their_own_levels() -> None:
    stream = written("warning", "net=debug")
    logging.getLogger("tidemill.server").info("quiet")
    logging.getLogger("tidemill.net").debug("loud")
    assert "quiet" not in stream.getvalue()
    assert "DEBUG   net: loud" in stream.getvalue()


def test_parses_level_names() -> None:
    assert parse_levels(["trace"]) == (TRACE, {})
    assert parse_levels(["Info", "tidemill.net = DEBUG"]) == (logging.INFO, {"tidemill.net": logging.DEBUG})


@pytest.mark.parametrize("text", ["loud", "net=loud", "=info", ""])
def test_rejects_an_unknown_level_and_lists_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="trace, debug, info, warning, error"):
        parse_levels([text])


def test_escapes_control_characters() -> None:
    stream = written()
    logging.getLogger("tidemill.server").info("client %s", "x\n2026 ERROR server: all is lost\x1b[31m\x9b")
    assert stream.getvalue().count("\n") == 1
    assert r"x\x0a2026 ERROR server: all is lost\x1b[31m\x9b" in stream.getvalue()


def test_indents_a_traceback() -> None:
    stream = written()
    try:
        raise ValueError("deep\n2026-03-01 ERROR server: all is lost\x1b[31m")
    except ValueError:
        logging.getLogger("tidemill.server").exception("it broke")
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("server: it broke")
    assert lines[-2:] == ["    ValueError: deep", r"    2026-03-01 ERROR server: all is lost\x1b[31m"]
    assert all(line.startswith("    ") for line in lines[1:])


def record(message: str, created: float) -> logging.LogRecord:
    made = logging.LogRecord("tidemill.x", logging.INFO, "", 0, message, None, None)
    made.created = created
    return made


def test_suppresses_and_counts_repetitions() -> None:
    repeats = RepeatFilter(repeats_max=3, window_s=10)
    let_through = [repeats.filter(record("same", 100 + i)) for i in range(8)]
    assert let_through == [True] * 3 + [False] * 5
    assert repeats.filter(record("other", 105))
    later = record("same", 111)
    assert repeats.filter(later)
    assert later.getMessage() == "same (5 similar lines were suppressed)"
    fresh = record("same", 130)
    assert repeats.filter(fresh)
    assert fresh.getMessage() == "same"


def test_a_second_setup_replaces_the_first() -> None:
    first = written("debug")
    second = written("info")
    logging.getLogger("tidemill.net").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
