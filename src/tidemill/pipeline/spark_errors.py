"""Extracts one line from Spark's errors, in which this package's errors are part of Java stack traces."""

from __future__ import annotations

import re

TIDEMILL_ERROR = re.compile(r"\btidemill\.(?:\w+\.)*([A-Z]\w*): (.+)$", re.MULTILINE)
"""An error of this package in a Java or Python stack trace: its class and its text."""

NAME = re.compile(r"^\[[A-Z_0-9.]+\]\s*")
SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\b")
JAVA_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z][\w$]*(?::\s*|$)")
"""The class of a Java exception, before its message."""
CALLED = re.compile(r"^An error occurred while calling .*$")
CAUSED_BY = re.compile(r"^(?:\s*)Caused by: (.+)$", re.MULTILINE)
START_FAULT = re.compile(r"^(Error\b|Invalid|Unrecognized|Unable|Could not|Exception|java\.)")

GATEWAY = "JAVA_GATEWAY_EXITED"
"""PySpark's error code for a Java process that ended before Spark had started."""


def explained(problem: BaseException) -> str:
    """Returns the message of the Tidemill error in a Spark error, or the innermost line of Spark's text."""
    text = str(problem)
    found = TIDEMILL_ERROR.findall(text)
    if found:
        message: str = found[-1][1]
        return message.strip()
    causes = [cause.strip() for cause in CAUSED_BY.findall(text)]
    if causes and (inner := _without_class(causes[-1])):
        return inner
    return one_line(problem)


def start_failure(problem: BaseException, java_output: str) -> str:
    """Returns in one line why Spark did not start; ``java_output`` is Java's output."""
    if GATEWAY not in str(problem):
        return explained(problem)
    lines = [line.strip() for line in java_output.splitlines() if line.strip()]
    fault = next((line for line in lines if START_FAULT.match(line)), lines[-1] if lines else "")
    why = f" ({_without_class(fault)})" if fault else ""
    return f"Java ended before Spark had started{why}: check --conf and JAVA_HOME"


def one_line(problem: BaseException) -> str:
    """Returns the first line of Spark's text, without error code, class name and SQLSTATE."""
    lines = [line.strip() for line in str(problem).strip().splitlines() if not CALLED.match(line.strip())]
    if not lines:
        return type(problem).__name__
    line = _without_class(lines[0].removeprefix(":").strip())
    return SQL_STATE.sub("", NAME.sub("", line)).strip().rstrip(".") or lines[0]


def _without_class(line: str) -> str:
    while (shorter := JAVA_CLASS.sub("", line)) != line and shorter:
        line = shorter
    return line
