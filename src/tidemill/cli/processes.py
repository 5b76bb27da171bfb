"""Processes that go on when the command that started them has ended: each has a directory with its files.

=========  ==========================================================================================
file       what it holds
=========  ==========================================================================================
NAME.pid   process number and, where the system tells, when it started: a number is used again some day
NAME.log   what the process says, over all of its starts
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
"""The place of a process's start in /proc/PID/stat, counted behind its name (field 22)."""

POLL_S = 0.02
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Background:
    """A process by its files in ``directory``; it may have been started by an earlier command."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self._pid_file = directory / f"{name}.pid"
        self.log_file = directory / f"{name}.log"

    def pid(self) -> int | None:
        """The process number; None when it does not run."""
        try:
            number, _, started = self._pid_file.read_text().strip().partition(" ")
            pid = int(number)
        except (OSError, ValueError):
            return None
        now = _started(pid)
        return pid if now is not None and (not started or started == now) else None

    @property
    def stands_still(self) -> bool:
        """Whether a signal has halted it: it does nothing until another one lets it go on."""
        pid = self.pid()
        fields = _stat(pid) if pid is not None else None
        return fields is not None and fields[0] == "T"

    @property
    def last_line(self) -> str:
        """What it said last."""
        with contextlib.suppress(OSError), open(self.log_file, "rb") as file:
            file.seek(max(0, os.path.getsize(self.log_file) - 8192))
            lines = file.read().decode("utf-8", "replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Starts it, apart from this terminal; the process number. It is not waited for."""
        self.directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Ctrl-C waits until it is written which process this is: nobody would find it again.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            # Not subprocess: what it starts is to be waited for, and this outlives the one that could.
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
        """Sends a signal; the process number, None when it does not run."""
        pid = self.pid()
        if pid is None:
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    def wait_end(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        deadline = time.monotonic() + timeout_s
        while self.pid() is not None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        self._pid_file.unlink(missing_ok=True)
        return True


def _started(pid: int) -> str | None:
    """When a process started, as the system counts ("" where it does not tell); None for one that ended."""
    with contextlib.suppress(ChildProcessError, OverflowError):
        os.waitpid(pid, os.WNOHANG)  # One of our own would else stay, ended, until we end.
    fields = _stat(pid)
    if fields is None:
        if os.path.isdir("/proc/self"):
            return None
        return "" if _is_there(pid) else None
    # It is shown as ended when its first thread has; its ports are free when the others have, too.
    return None if fields[0] in "ZX" and _threads(pid) <= 1 else fields[START_TIME]


def _stat(pid: int) -> list[str] | None:
    """What the system tells of a process, from its state on; None where it tells nothing."""
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
