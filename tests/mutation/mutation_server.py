"""Runs pytest repeatedly, each time in a child process with pytest and Hypothesis already imported.

A line of JSON on standard input requests a run: the arguments, the file for the output, and the timeout in
seconds. The response is a line with the exit code; -1 after the timeout. Processes that a run has started are
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
    """Runs pytest with these arguments; returns the exit code."""
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
    """Responds until the end of standard input."""
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
