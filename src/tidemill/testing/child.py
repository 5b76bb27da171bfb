"""Helper processes of the test tools: they read and write one line of JSON per command."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

LOG_LINES_SHOWN = 20
STOP_S = 10.0


class ChildFailed(RuntimeError):
    """A helper process did not start, has ended or does not respond. The text ends with its log."""


class Child:
    """Runs ``python -m MODULE ARGUMENTS``: ends with its standard input, and so with this process."""

    def __init__(self, module: str, log_path: str, timeout_s: float = 30.0) -> None:
        self._module = module
        self._log_path = log_path
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The process id. Raises ChildFailed when the process is not running."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The standard error of the process, over all of its starts."""
        return read_log(self._log_path)

    def start(self, arguments: Sequence[str] = ()) -> dict[str, Any]:
        """Starts the process. Returns the line that it writes once it serves."""
        self.kill()  # It may have ended by itself: its pipes are still open.
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._unread = b""
        try:
            return self._read()
        except BaseException:
            self.kill()
            raise

    def execute(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a command. Returns its response. Raises ChildFailed for a refusal, an end or a timeout."""
        with self._lock:
            process = self._running()
            if process.stdin is None:
                raise ChildFailed(f"{self._module} has no input")
            try:
                process.stdin.write(json.dumps(command).encode() + b"\n")
                process.stdin.flush()
            except OSError:
                raise self._failure("has ended") from None
            response = self._read()
        if "error" in response:
            raise ChildFailed(str(response["error"]))
        return response

    def pause(self) -> None:
        """Suspends the process: its connections stay open, and no request gets a response."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process, to simulate a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        self._close(process)

    def stop(self) -> None:
        """Stops the process in an orderly way, by closing its input."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGCONT)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self._close(process)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ChildFailed(f"{self._module} is not running")
        return self._process

    def _read(self) -> dict[str, Any]:
        process = self._running()
        if process.stdout is None:
            raise ChildFailed(f"{self._module} has no output")
        deadline = time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failure(f"did not respond within {self._timeout_s:g} s")
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    raise self._failure(f"ended with exit code {process.wait()}")
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _failure(self, problem: str) -> ChildFailed:
        return ChildFailed(f"{self._module} {problem}{last_lines(self.log)}")


def read_log(path: str) -> str:
    """Returns the log of a process; empty if there is none yet."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def last_lines(log: str) -> str:
    """Returns the end of a log, to be appended to the message of a failure."""
    lines = log.splitlines()[-LOG_LINES_SHOWN:]
    return ":\n" + "\n".join(lines) if lines else ", and logged nothing"
