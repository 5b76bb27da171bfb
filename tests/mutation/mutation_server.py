"""Runs pytest again and again, each time in a child that has pytest and Hypothesis imported already.

A line of JSON on standard input asks for a run: the arguments, the file for the output, and the seconds that
it may take. The answer is a line with the exit code; -1 when the run did not end. What a run has started is
killed with it.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - most tests need it
import json
import os
import signal
import sys
import time

import coverage  # noqa: F401
import hypothesis.stateful
import hypothesis.strategies  # noqa: F401
import pytest

LOOK_AGAIN_S = 0.02


def run(arguments: list[str], output: str, limit_s: float) -> int:
    """The exit code of pytest with these arguments."""
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        told = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for target, source in ((0, null), (1, told), (2, told)):
            os.dup2(source, target)
        code = 3
        try:
            code = int(pytest.main(arguments))
        finally:
            sys.stdout.flush()
            os._exit(code)
    end = time.monotonic() + limit_s
    code = -1
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(LOOK_AGAIN_S)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    else:
        if code == -1:
            os.waitpid(child, 0)
    return code


def main() -> None:
    """Answers until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
