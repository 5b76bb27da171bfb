"""Log lines: levels, shape, what strangers cannot do to them."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from tidemill.model.errors import ConfigError
from tidemill.server.logging import TRACE, RepeatFilter, parse_levels, set_up


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
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


def test_a_line_has_time_level_part_and_text() -> None:
    stream = written()
    logging.getLogger("tidemill.server").warning("a %s", "thing")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING server: a thing\n", stream.getvalue())


def test_single_loggers_have_levels_of_their_own() -> None:
    stream = written("warning", "net=debug")
    logging.getLogger("tidemill.server").info("quiet")
    logging.getLogger("tidemill.net").debug("loud")
    assert "quiet" not in stream.getvalue()
    assert "DEBUG   net: loud" in stream.getvalue()


def test_levels_are_read_by_name() -> None:
    assert parse_levels(["trace"]) == (TRACE, {})
    assert parse_levels(["Info", "tidemill.net = DEBUG"]) == (logging.INFO, {"tidemill.net": logging.DEBUG})


@pytest.mark.parametrize("text", ["loud", "net=loud", "=info", ""])
def test_an_unknown_level_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="trace, debug, info, warning, error"):
        parse_levels([text])


def test_a_strangers_text_can_neither_forge_a_line_nor_paint_the_terminal() -> None:
    stream = written()
    logging.getLogger("tidemill.server").info("client %s", "x\n2026 ERROR server: all is lost\x1b[31m\x9b")
    assert stream.getvalue().count("\n") == 1
    assert r"x\x0a2026 ERROR server: all is lost\x1b[31m\x9b" in stream.getvalue()


def test_a_traceback_stands_below_its_line_and_forges_none() -> None:
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


def test_what_repeats_is_held_back_and_counted() -> None:
    repeats = RepeatFilter(repeats_max=3, window_s=10)
    let_through = [repeats.filter(record("same", 100 + i)) for i in range(8)]
    assert let_through == [True] * 3 + [False] * 5
    assert repeats.filter(record("other", 105))
    later = record("same", 111)
    assert repeats.filter(later)
    assert later.getMessage() == "same (5 more like it were not shown)"
    fresh = record("same", 130)
    assert repeats.filter(fresh)
    assert fresh.getMessage() == "same"


def test_setting_up_again_replaces_what_was_there() -> None:
    first = written("debug")
    second = written("info")
    logging.getLogger("tidemill.net").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
