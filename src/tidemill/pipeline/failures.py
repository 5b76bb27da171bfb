"""What went wrong inside Spark, in one line: errors of this package come back as Java stack traces."""

from __future__ import annotations

import re

OURS = re.compile(r"^tidemill\.[\w.]+: (.+)$", re.MULTILINE)

NAME = re.compile(r"^\[[A-Z_0-9.]+\]\s*")
SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\b")


def explained(problem: BaseException) -> str:
    """The message of the tidemill error inside a failure of Spark, or Spark's own first line."""
    text = str(problem)
    found = OURS.findall(text)
    if found:
        message: str = found[-1]
        return message.strip()
    return one_line(problem)


def one_line(problem: BaseException) -> str:
    """The first line of Spark's text, without its name for the error and the state of SQL."""
    lines = str(problem).strip().splitlines()
    if not lines:
        return type(problem).__name__
    return SQL_STATE.sub("", NAME.sub("", lines[0])).strip().rstrip(".") or lines[0]
