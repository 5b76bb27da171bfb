"""A process that compacts logs: ``python -m tidemill.log.cleaner_process PID``, started by broker PID."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from typing import Final

from tidemill.log.cleaner import Cleaner
from tidemill.log.cleaner_messages import (
    ABORTED,
    DAMAGED,
    FAULT,
    GO_ON,
    HEADER,
    STORAGE,
    CleanCounts,
    CleanJob,
    Failure,
    Message,
    NewPace,
    decode,
    encode,
)
from tidemill.log.errors import storage_error
from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import KafkaError

NICENESS: Final = 10
CHECK_BYTES: Final = 256 * 1024
"""Bytes between two checks of the clock and the input."""
DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class LogCleaningAborted(Exception):
    """The broker has cancelled the job, or has exited."""


class Pipes:
    """The two pipes to the broker."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing

    def receive(self) -> Message | None:
        """The next message; None at the end of the input."""
        header = self._read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        size = HEADER.unpack(header)[0]
        data = self._read(size)
        return decode(data) if len(data) == size else None

    def _read(self, count: int) -> bytes:
        pieces = b""
        while len(pieces) < count:
            piece = os.read(self._reading, count - len(pieces))
            if not piece:
                break
            pieces += piece
        return pieces

    def send(self, message: Message) -> None:
        """Writes a message."""
        left = memoryview(encode(message))
        while left:
            left = left[os.write(self._writing, left) :]

    def wait(self, seconds: float) -> bool:
        """Whether a message arrives within the time."""
        return bool(select.select([self._reading], [], [], seconds)[0])


class Pace:
    """Limits the bytes per second of a job, and handles messages of the broker meanwhile."""

    def __init__(self, pipes: Pipes, bytes_per_second: float) -> None:
        self._pipes = pipes
        self._rate = bytes_per_second
        self._from = time.monotonic()
        self._owed = 0.0
        """Bytes processed since ``_from``."""
        self._unseen = 0

    def __call__(self, count: int) -> None:
        """Counts bytes, and waits if the limit is exceeded. Raises LogCleaningAborted."""
        self._unseen += count
        if self._unseen < CHECK_BYTES:
            return
        self._owed += self._unseen
        self._unseen = 0
        while self._pipes.wait(self._left_s()):
            self.handle(self._pipes.receive())
        if self._left_s() <= 0:
            # Unused bytes do not add up to a later burst.
            self._from, self._owed = time.monotonic(), 0.0

    def _left_s(self) -> float:
        return max(self._from + self._owed / self._rate - time.monotonic(), 0.0)

    def handle(self, message: Message | None) -> None:
        """Handles a message during a job: a new rate.

        Raises LogCleaningAborted for an abort and at the end of the input.
        """
        if not isinstance(message, NewPace):
            raise LogCleaningAborted
        self._rate = message.bytes_per_second


def serve(pipes: Pipes, job: CleanJob) -> CleanCounts | Failure | str:
    """Runs one job. Returns its last message."""
    pace = Pace(pipes, job.bytes_per_second)
    cleaner = Cleaner(SystemFiles(), job, pace)
    run = cleaner.run()
    try:
        for group in run:
            pipes.send(group)
            while (message := pipes.receive()) != GO_ON:
                pace.handle(message)
    except LogCleaningAborted:
        return ABORTED
    except Exception as problem:  # noqa: BLE001 - reported to the broker, which sets the partition aside
        return failure_of(problem, job)
    finally:
        run.close()
    return cleaner.counts


def failure_of(problem: Exception, job: CleanJob) -> Failure:
    """Reports the exception that ended a job to the broker."""
    if isinstance(problem, OSError):
        return Failure(STORAGE, str(storage_error("compact", problem.filename or job.directory, problem)))
    if isinstance(problem, KafkaError):
        return Failure(DAMAGED, str(problem))
    return Failure(FAULT, "".join(traceback.format_exception(problem)))


def die_with_parent(broker: int) -> bool:
    """Has the system kill this process when its parent ends. Returns False if that has happened."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, int(signal.SIGKILL))
    return os.getppid() == broker


def main() -> None:
    """Runs jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's goes to the broker, which ends this process
    if not die_with_parent(int(sys.argv[1])):
        return
    os.nice(NICENESS)
    pipes = Pipes(0, 1)
    while (message := pipes.receive()) is not None:
        if isinstance(message, CleanJob):
            pipes.send(serve(pipes, message))


if __name__ == "__main__":
    main()
