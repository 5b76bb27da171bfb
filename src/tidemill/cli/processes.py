"""Background processes that outlive the command that starts them. Each has a directory with two files.

=========  ==========================================================================================
file       contents
=========  ==========================================================================================
NAME.pid   process id and, where the system has it, start time: process ids are reused
NAME.log   output of the process, over all of its starts
=========  ==========================================================================================
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_TIME = 19
"""Index of the start time in /proc/PID/stat, counted after the process name (field 22)."""

POLL_S = 0.02
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Background:
    """A process identified by its files in ``directory``; an earlier command may have started it."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self._pid_file = directory / f"{name}.pid"
        self.log_file = directory / f"{name}.log"

    def pid(self) -> int | None:
        """Returns the process id; None when the process is not running."""
        try:
            number, _, started = self._pid_file.read_text().strip().partition(" ")
            pid = int(number)
        except (OSError, ValueError):
            return None
        now = _started(pid)
        return pid if now is not None and (not started or started == now) else None

    @property
    def is_suspended(self) -> bool:
        """Whether a signal has suspended the process: it does nothing until another signal resumes it."""
        pid = self.pid()
        fields = _stat(pid) if pid is not None else None
        return fields is not None and fields[0] == "T"

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        with contextlib.suppress(OSError), open(self.log_file, "rb") as file:
            file.seek(max(0, os.path.getsize(self.log_file) - 8192))
            lines = file.read().decode("utf-8", "replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Starts the process, detached from this terminal. Returns its id, and does not wait for it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Ctrl-C is deferred until the process id is written: no command could find the process otherwise.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            # Not subprocess, which expects to wait for its child: this process outlives its parent.
            pid = os.posix_spawn(
                command[0],
                list(command),
                dict(os.environ if environment is None else environment),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(self.log_file), flags, 0o644),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=before,
            )
            try:
                temporary = self._pid_file.with_suffix(".pid.tmp")
                temporary.write_text(f"{pid} {_started(pid) or ''}\n")
                os.replace(temporary, self._pid_file)
            except OSError:
                os.kill(pid, signal.SIGKILL)
                raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid

    def signal(self, number: signal.Signals) -> int | None:
        """Sends a signal. Returns the process id; None when the process is not running."""
        pid = self.pid()
        if pid is None:
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    def wait_end(self, timeout_s: float) -> bool:
        """Waits for the end of the process. Returns whether it ended before the timeout."""
        deadline = time.monotonic() + timeout_s
        while self.pid() is not None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        self._pid_file.unlink(missing_ok=True)
        return True


def _started(pid: int) -> str | None:
    """Returns the start time of a process ("" where the system has none); None for one that ended."""
    with contextlib.suppress(ChildProcessError, OverflowError):
        os.waitpid(pid, os.WNOHANG)  # A child of this process would stay a zombie otherwise.
    fields = _stat(pid)
    if fields is None:
        if os.path.isdir("/proc/self"):
            return None
        return "" if _is_there(pid) else None
    # A process is shown as ended when its first thread has; its ports are free when all threads have ended.
    return None if fields[0] in "ZX" and _threads(pid) <= 1 else fields[START_TIME]


def _stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat, from the state on; None where there is no such file."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
