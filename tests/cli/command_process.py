"""One command in a separate process, with the time at which each of its lines arrived."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO

LONG_S = 60.0
"""No busy machine takes longer to start a command."""


@contextlib.contextmanager
def hangup_not_ignored() -> Iterator[None]:
    """A process that is started in the block receives SIGHUP, also if nohup started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class Command:
    """A running ``tidemill`` command."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.name = " ".join(arguments[:2])
        with hangup_not_ignored():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemill", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        self.out: list[tuple[float, str]] = []
        self.err: list[tuple[float, str]] = []
        """Lines, with the monotonic time of each."""
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, file: IO[bytes], lines: list[tuple[float, str]]) -> None:
        for line in file:
            with self._changed:
                lines.append((time.monotonic(), line.decode().rstrip("\n")))
                self._changed.notify_all()

    def write(self, text: str) -> None:
        """Writes ``text`` to standard input at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end_input(self) -> None:
        """Ends standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def wait_for_line(
        self, pattern: str, *, after: float = 0.0, where: str = "err", within: float = LONG_S
    ) -> float:
        """Waits for a matching line, from the time ``after`` on; returns the seconds until its arrival."""
        deadline = time.monotonic() + within
        lines = self.err if where == "err" else self.out
        with self._changed:
            while True:
                for at, line in lines:
                    if at >= after and re.search(pattern, line):
                        return at - after
                left = deadline - time.monotonic()
                assert left > 0, f"{self.name}: no {pattern!r} in {lines}"
                self._changed.wait(left)

    def errors(self) -> list[str]:
        """Returns the lines of standard error so far."""
        return [line for _, line in self.err if line]

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        """Sends ctrl-C, or another signal; returns the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Returns the exit code, once all output has been read."""
        code = self.process.wait(LONG_S)
        for thread in self._threads:
            thread.join(LONG_S)
        return code


@contextlib.contextmanager
def commands(*each: Sequence[str]) -> Iterator[list[Command]]:
    """Starts commands, and ends those that still run at the end of the test."""
    started = [Command(arguments) for arguments in each]
    try:
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.communicate()
