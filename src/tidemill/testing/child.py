"""Processes of the test tools beside the brokers: one line of JSON in, one line out."""

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
    """A process of the test tools did not start, has ended or does not answer. The text ends with its log."""


class Child:
    """``python -m MODULE ARGUMENTS``: ends when its standard input does, and so with this process."""

    def __init__(self, module: str, log_path: str, timeout_s: float = 30.0) -> None:
        self._module = module
        self._log_path = log_path
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The process number. ChildFailed when it does not run."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the process has written to standard error, over all of its starts."""
        with contextlib.suppress(OSError), open(self._log_path, encoding="utf-8", errors="replace") as file:
            return file.read()
        return ""

    def start(self, arguments: Sequence[str] = ()) -> dict[str, Any]:
        """Starts the process; the line that it writes once it serves."""
        self.kill()  # It may have ended by itself: its pipes are open then.
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

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a command; its answer. ChildFailed when the process refuses it, has ended or is silent."""
        with self._lock:
            process = self._running()
            if process.stdin is None:
                raise ChildFailed(f"{self._module} has no input")
            try:
                process.stdin.write(json.dumps(command).encode() + b"\n")
                process.stdin.flush()
            except OSError:
                raise self._failure("has ended") from None
            answer = self._read()
        if "error" in answer:
            raise ChildFailed(str(answer["error"]))
        return answer

    def pause(self) -> None:
        """Stops the process where it is: its connections stay open, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process at once, as a crash does."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        self._close(process)

    def stop(self) -> None:
        """Ends the process in order, by the end of its input."""
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
            raise ChildFailed(f"{self._module} does not run")
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
                    raise self._failure(f"did not answer within {self._timeout_s:g} s")
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece:
                    raise self._failure(f"ended with exit code {process.wait()}")
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _failure(self, what: str) -> ChildFailed:
        lines = self.log.splitlines()[-LOG_LINES_SHOWN:]
        tail = ":\n" + "\n".join(lines) if lines else ", and logged nothing"
        return ChildFailed(f"{self._module} {what}{tail}")
