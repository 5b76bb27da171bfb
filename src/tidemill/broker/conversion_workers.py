"""Worker processes that convert records between message formats, and their metrics.

The conversion of a megabyte takes from milliseconds to hundreds of milliseconds, for which it would block the
event loop. So it runs in a process, and a thread waits for the process. The first conversion starts both. A
process ends after it was idle for a while.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from tidemill.broker.conversion_jobs import ConversionJob, Message, Result, result_of
from tidemill.broker.conversion_process import Channel, open_window
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.time_histogram import TimeHistogram

logger = logging.getLogger("tidemill.broker")

PROCESSES_MAX = 4
BYTES_MAX = 64 * 1024 * 1024
"""Bytes before conversion of all running jobs. A larger job waits until it is the only one."""
JOB_S_MAX = 120.0
"""The timeout of a job. It ends the process."""
IDLE_S = 60.0
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
"""Has the C library of Linux reuse the memory of one piece for the next. New pages, which the kernel clears,
cost a quarter of a conversion."""
PROGRAM = "from tidemill.broker.conversion_process import main; main()"


def default_processes() -> int:
    """Returns one less than the processors of this process, 1 to 4: the event loop uses one."""
    # Only some systems report the processors that a process may use.
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(PROCESSES_MAX, count - 1))


class Process:
    """One worker process, which runs one job at a time."""

    def __init__(self) -> None:
        import subprocess

        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as opened, theirs:
            opened.callback(ours.close)
            window = open_window()
            try:
                self.channel = Channel(ours, window)
                opened.callback(self.channel.close)
                # In a session of its own, so that a Ctrl-C at the terminal does not interrupt its job.
                self.process = subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(window)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **ALLOCATION},
                    start_new_session=True,
                    pass_fds=(window,),
                )
            finally:
                os.close(window)
            opened.pop_all()
        self.limit(JOB_S_MAX)
        self.idle_since = time.monotonic()

    def call(self, job: Message) -> Message:
        """Runs a job. Raises OSError or EOFError if the process has ended or timed out."""
        self.channel.send(job)
        return self.channel.receive()

    def limit(self, seconds: float) -> None:
        """Sets the timeout of a job. The kernel applies it, so that one call can receive a whole result."""
        value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.channel.connection.setsockopt(socket.SOL_SOCKET, option, value)

    def close(self) -> None:
        """Ends the process."""
        self.channel.close()
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()


class Budget:
    """Limits the bytes of all running jobs. A job larger than the limit waits until it is the only one.

    Jobs start in the order of their arrival, so that small jobs do not delay a large one for ever.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    def acquire(self, count: int) -> None:
        """Waits until the job fits into the limit."""
        turn = object()

        def is_my_turn() -> bool:
            room = self.used == 0 or self.used + count <= self.bytes_max
            return room and self._queue[0] is turn

        with self._changed:
            self._queue.append(turn)
            self._changed.wait_for(is_my_turn)
            self._queue.popleft()
            self.used += count
            self._changed.notify_all()

    def release(self, count: int) -> None:
        """Releases the bytes of a completed job."""
        with self._changed:
            self.used -= count
            self._changed.notify_all()


class ConversionWorkers:
    """The conversion processes of a broker. Calls block: run them in the threads of :attr:`executor`."""

    def __init__(self, processes_max: int = 0, bytes_max: int = BYTES_MAX) -> None:
        self.processes_max = processes_max or default_processes()
        self.budget = Budget(bytes_max)
        self.times = {"Produce": TimeHistogram(), "Fetch": TimeHistogram()}
        """The duration of the conversions of a request, in seconds, by API."""
        self.closed = False
        self._executor: ThreadPoolExecutor | None = None
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._lock = threading.Lock()

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The threads that wait for the processes, one for each."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.processes_max, thread_name_prefix="convert")
        return self._executor

    @property
    def processes(self) -> list[int]:
        """The ids of the running processes."""
        with self._lock:
            return [one.process.pid for one in self._all]

    def call(self, job: ConversionJob[Result]) -> Result:
        """Runs a job in a process. Returns its result, or raises its KafkaError.

        If the process ends, a new one runs the job. If that one ends as well, UNKNOWN_SERVER_ERROR is raised.
        """
        size = len(job.data)
        self.budget.acquire(size)
        try:
            for attempt in range(2):
                process = self._take()
                try:
                    answer = process.call(job.encode())
                except (OSError, EOFError, ValueError, TypeError) as problem:
                    self._end(process)
                    if self.closed:
                        break
                    logger.warning(
                        "a conversion process has ended (%s); %s",
                        str(problem) or type(problem).__name__,
                        "a new one runs its job" if attempt == 0 else "its job has failed",
                    )
                    continue
                except BaseException:
                    self._end(process)
                    raise
                self._put_back(process)
                return result_of(job, answer)
        finally:
            self.budget.release(size)
        raise KafkaError(
            f"records of {size} bytes could not be converted: the conversion process ended"
            + (" with the broker" if self.closed else " twice; check the free memory"),
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )

    def record_time(self, api: str, seconds: float) -> None:
        """Records the duration of one request's conversions."""
        with self._lock:
            self.times[api].record(seconds)

    def reap(self, idle_s: float = IDLE_S) -> None:
        """Ends processes that had nothing to do for ``idle_s``."""
        with self._lock:
            before = time.monotonic() - idle_s
            ended = [one for one in self._idle if one.idle_since <= before]
            self._idle = [one for one in self._idle if one.idle_since > before]
            self._all.difference_update(ended)
        for one in ended:
            one.close()

    def close(self) -> None:
        """Ends all processes. Running jobs fail."""
        self.closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            ended = list(self._all)
            self._all.clear()
            self._idle = []
        for one in ended:
            with contextlib.suppress(OSError):
                one.process.kill()
        if self._executor is not None:
            self._executor.shutdown()
        for one in ended:
            one.close()

    def _take(self) -> Process:
        with self._lock:
            self._check_open()
            if self._idle:
                return self._idle.pop()
        try:
            process = Process()
        except OSError as problem:
            raise KafkaError(
                f"a conversion process could not be started: {problem}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            ) from problem
        try:
            with self._lock:
                self._check_open()  # close() ends only the processes in the set.
                self._all.add(process)
        except KafkaError:
            process.close()
            raise
        return process

    def _check_open(self) -> None:
        if self.closed:
            raise KafkaError("the broker is stopping", ErrorCode.UNKNOWN_SERVER_ERROR)

    def _put_back(self, process: Process) -> None:
        process.idle_since = time.monotonic()
        with self._lock:
            if process in self._all:
                self._idle.append(process)

    def _end(self, process: Process) -> None:
        with self._lock:
            self._all.discard(process)
        process.close()
