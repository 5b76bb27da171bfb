"""Worker processes that convert records between message formats, and what of it is counted.

A conversion of a megabyte takes the interpreter milliseconds to hundreds of them, in which the event loop
would serve nobody. So it runs in a process, and a thread waits for that. Without conversions there is
neither: the first one starts them, and a process that has had nothing to do for a while ends.
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
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidemill.broker.conversion_process import Channel, answer_of, open_window, result_of
from tidemill.model.counters import TimeHistogram
from tidemill.model.errors import ErrorCode, KafkaError

log = logging.getLogger("tidemill.broker")

PROCESSES_MAX = 4
BYTES_MAX = 64 * 1024 * 1024
"""Bytes that may be in conversion at once, as they are given; a larger job waits to be the only one."""
JOB_S_MAX = 120.0
"""A process that takes longer is taken for stuck."""
IDLE_S = 60.0
KEPT_MAX = 8
"""Replies after which what follows is kept, for the fetches that come next."""
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
"""Has the C library of Linux keep the memory of pieces for the next: pages that the system gives anew, and
clears, cost a quarter of a conversion."""
PROGRAM = "from tidemill.broker.conversion_process import main; main()"


def default_processes() -> int:
    """One less than there are processors for this process, 1 to 4: the event loop has one."""
    # Only some systems tell which processors a process may use.
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(PROCESSES_MAX, count - 1))


class Process:
    """One worker process; a call at a time."""

    def __init__(self) -> None:
        import subprocess

        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as opened, theirs:
            opened.callback(ours.close)
            window = open_window()
            try:
                self.channel = Channel(ours, window)
                opened.callback(self.channel.close)
                # In a session of its own, so that a Ctrl-C at the terminal leaves it to finish its job.
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

    def call(self, job: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The process's answer. Raises OSError and EOFError when it died or is stuck."""
        self.channel.send((job, *arguments[1:]), arguments[0])
        return answer_of(*self.channel.receive())

    def limit(self, seconds: float) -> None:
        """How long it may be silent. The system keeps count, so that whole answers are waited for in it."""
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
    """Bytes that may be in conversion at once. What is larger than all of them waits to be alone.

    Who came first goes first: small jobs do not pass a large one for ever.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    def take(self, count: int) -> None:
        """Waits until there is room."""
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

    def give_back(self, count: int) -> None:
        """The job is done."""
        with self._changed:
            self.used -= count
            self._changed.notify_all()


class Conversions:
    """The processes of a broker, and counters. Calls block: they belong into :attr:`executor`'s threads."""

    def __init__(self, processes_max: int = 0, bytes_max: int = BYTES_MAX) -> None:
        self.processes_max = processes_max or default_processes()
        self.budget = Budget(bytes_max)
        self.times = {"Produce": TimeHistogram(), "Fetch": TimeHistogram()}
        """By API: seconds that a request's conversions took."""
        self.started = 0
        """Processes started so far."""
        self.jobs = 0
        """Jobs that processes did."""
        self.closed = False
        self._executor: ThreadPoolExecutor | None = None
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._kept: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    @property
    def executor(self) -> ThreadPoolExecutor:
        """Threads that wait for the processes: as many as there may be of these."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.processes_max, thread_name_prefix="convert")
        return self._executor

    @property
    def processes(self) -> list[int]:
        """The numbers of the processes that live."""
        with self._lock:
            return [one.process.pid for one in self._all]

    def call(self, job: str, size: int, *arguments: Any) -> Any:
        """What a process makes of a job over ``size`` bytes; raises the KafkaError that it raises.

        A process that dies meanwhile is replaced once; then the job is given up with UNKNOWN_SERVER_ERROR.
        """
        self.budget.take(size)
        try:
            for attempt in range(2):
                process = self._take()
                try:
                    answer = process.call(job, arguments)
                except (OSError, EOFError, ValueError, TypeError) as problem:
                    self._end(process)
                    if self.closed:
                        break
                    log.warning(
                        "a process that converted records ended (%s); %s",
                        str(problem) or type(problem).__name__,
                        "the job goes to a new one" if attempt == 0 else "its job is given up",
                    )
                    continue
                except BaseException:
                    self._end(process)
                    raise
                self._put_back(process)
                return result_of(answer)
        finally:
            self.budget.give_back(size)
        raise KafkaError(
            f"records of {size} bytes could not be converted: the process that was at it ended"
            + (" with the broker" if self.closed else " twice; look at the memory that is left"),
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )

    def note(self, api: str, seconds: float) -> None:
        """Counts the time of one request's conversion."""
        with self._lock:
            self.times[api].note(seconds)

    def keep(self, key: Hashable, what: Any) -> None:
        """Keeps converted records that are likely to be asked for next; those kept longest go."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = what
            while len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]

    def take_kept(self, key: Hashable) -> Any:
        """What was kept under the key, which is kept no longer; None when there is nothing."""
        with self._lock:
            return self._kept.pop(key, None)

    def reap(self, idle_s: float = IDLE_S) -> None:
        """Ends processes that had nothing to do for ``idle_s``; if those are all, nothing is kept."""
        with self._lock:
            before = time.monotonic() - idle_s
            at_work = len(self._all) > len(self._idle)
            if not at_work and all(one.idle_since <= before for one in self._idle):
                self._kept.clear()
            ended = [one for one in self._idle if one.idle_since <= before]
            self._idle = [one for one in self._idle if one.idle_since > before]
            self._all.difference_update(ended)
        for one in ended:
            one.close()

    def close(self) -> None:
        """Ends all processes, also those at work: their jobs fail."""
        self.closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            ended = list(self._all)
            self._all.clear()
            self._idle = []
            self._kept.clear()
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
            self.jobs += 1
            if self._idle:
                return self._idle.pop()
            self.started += 1
        try:
            process = Process()
        except OSError as problem:
            raise KafkaError(
                f"a process that converts records could not be started: {problem}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            ) from problem
        try:
            with self._lock:
                self._check_open()  # close() ends those that it knows of
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
