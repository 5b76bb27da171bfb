"""An event loop with simulated time, shared by simulated processes that may be killed or suspended.

Two things determine the run: the order in which callbacks were scheduled, and simulated time, which advances
to the next timer when no callback is left. So each run with a seed is equal. The coroutines of the broker run
on it unchanged. Each callback runs for the process that scheduled it (a context variable carries the
process). A killed process runs nothing any more, not even its ``finally`` clauses; a suspended process runs
all of it later, and does not notice. A *step* is a timer that fires: bytes that arrive, a thread's job that
ends, a deadline that passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

from faulty_files import Killed

from tidemill.model.system_interfaces import Clock

WALL_MS = 1_700_000_000_000
"""The wall clock when the simulation begins."""
START_S = 1000.0
"""The monotonic clock then."""
JOB_S_MEAN = 0.0005
"""How long a thread takes for a job."""
SLOW_JOB_S_MEAN = 0.03
SLOW_JOBS = 0.03
"""The share of jobs that take long."""


def wall_ms_at(now_s: float) -> int:
    """Returns the time of a correct wall clock at a time of the monotonic clock."""
    return WALL_MS + int((now_s - START_S) * 1000)


class Process:
    """One process: its tasks, and whether they run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.held: list[asyncio.Handle] = []
        """What a paused process has to do once it goes on."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.remains: list[asyncio.Task[Any]] = []
        """The tasks of a killed process, which must not be destroyed: their ``finally`` would run."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def kill(self) -> None:
        """Ends the process: none of its callbacks runs from now on."""
        self.alive = False
        self.remains = list(self.tasks)
        self.held.clear()


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process of the current callback; None for the simulator."""


class Call(asyncio.Handle):
    """A cheaper handle, for a loop without debug mode and with many callbacks."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], loop: Any, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class TimedCall(Call, asyncio.TimerHandle):
    """As :class:`Call`, with a time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: Any,
        context: Context | None,
    ) -> None:
        Call.__init__(self, callback, args, loop, context)
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        """Cancels the call; the heap drops it at its time."""
        self._cancelled = True
        self._callback = self._args = None


class NumberedTask(asyncio.Task[Any]):
    """A task whose position in sets depends on its number, and not on its address."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


WAITS_MAX = 100
"""A coroutine that is ended waits so often at most."""


class NoPendingCallbacks(RuntimeError):
    """No callback is left, and the awaited event has not occurred."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of a simulation. Its sockets are those of the simulated network."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.steps = 0
        """Timers that have fired."""
        self._stopping = False
        self.on_step: Callable[[], None] | None = None
        """Called after every :attr:`steps_a_look` steps."""
        self.steps_a_look = 1
        self._now = START_S
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = 0
        self._soon: list[asyncio.Handle] = []
        self.sockets: dict[int, Any] = {}
        """The network's, by descriptor."""
        self.is_in_job = False
        self.job_hangs_s = 0.0
        """Set by a completed job: its result is returned this much later."""
        """Whether a thread's job runs now, in the middle of which a process may end."""

    def time(self) -> float:
        """Returns simulated seconds."""
        return self._now

    # -- callbacks

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Runs the callback at the current time, after those scheduled before."""
        handle = Call(callback, args, self, context)
        self._soon.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As :meth:`call_soon`: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback in ``delay`` seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs the callback at ``when``."""
        handle = TimedCall(when, callback, args, self, context)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, handle))
        return handle

    def _run_once(self) -> None:
        """Runs iterations of the loop, each of all due callbacks or of the next timer, until the stop."""
        while True:
            if not self._soon:
                self._wait()
            due, self._soon = self._soon, []
            for position, handle in enumerate(due):
                if not handle._cancelled:  # type: ignore[attr-defined]
                    self._call(handle)
                if self._stopping:
                    self._soon = [*due[position + 1 :], *self._soon]
                    return

    def _wait(self) -> None:
        """Advances the time until a timer fires."""
        while self._timers:
            when, _, handle = heapq.heappop(self._timers)
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None and not process.alive:
                continue
            self._now = max(self._now, when)
            self.steps += 1
            self._soon.append(handle)
            if self.on_step is not None and self.steps % self.steps_a_look == 0:
                self.on_step()
            return
        raise NoPendingCallbacks("nothing will ever happen again")

    def _call(self, handle: Any) -> None:
        """Calls back, if the process runs and is not suspended."""
        context = handle._context
        process = context.get(PROCESS)
        if process is not None:
            if process.paused:
                process.held.append(handle)
                return
            if not process.alive:
                return
        try:
            context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as problem:  # noqa: BLE001 - as every loop of asyncio has it
            message = f"Exception in callback {handle!r}"
            self.call_exception_handler({"message": message, "exception": problem, "handle": handle})

    # -- processes

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Creates a task of the process in whose context it is created."""
        self._order += 1
        task = NumberedTask(self._order, coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.add(task)
        return task

    def resume(self, process: Process) -> None:
        """Resumes a suspended process with the missed callbacks."""
        process.paused = False
        held, process.held = process.held, []
        self._soon.extend(held)

    # -- what blocks

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs ``func`` as a thread would: at the start or the end of the time that the job takes."""
        future = self.create_future()
        outcome: list[tuple[Any, BaseException | None]] = []
        hangs_s: list[float] = []

        def work() -> None:
            self.is_in_job = True
            try:
                outcome.append((func(*args), None))
            except Killed:
                return  # No caller waits any more.
            except Exception as problem:  # noqa: BLE001 - whoever waits is told
                outcome.append((None, problem))
            finally:
                self.is_in_job = False
                if self.job_hangs_s:
                    hangs_s.append(self.job_hangs_s)
                    self.job_hangs_s = 0.0

        def tell() -> None:
            if not outcome:
                work()
            if hangs := hangs_s.pop() if hangs_s else 0.0:
                self.call_later(hangs, tell)
                return
            if future.done() or not outcome:
                return
            result, problem = outcome[0]
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

        if self.random.random() < 0.5:
            self.call_soon(work)
        is_slow = self.random.random() < SLOW_JOBS
        delay = self.random.expovariate(1 / (SLOW_JOB_S_MEAN if is_slow else JOB_S_MEAN))
        self.call_later(delay, tell)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """There are no names, and no sockets, outside of the simulated network."""
        raise OSError(f"the simulated world has no {host}:{port}")

    # -- sockets: see simulated_network.py

    def _socket(self, descriptor: Any) -> Any:
        return self.sockets[descriptor if isinstance(descriptor, int) else descriptor.fileno()]

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        """Calls back whenever a simulated socket is readable."""
        self._socket(fd).set_reader(asyncio.Handle(callback, args, self))

    def remove_reader(self, fd: Any) -> bool:
        """Removes the callback."""
        found: bool = self._socket(fd).set_reader(None)
        return found

    def add_writer(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        """Calls back whenever a simulated socket is writable."""
        self._socket(fd).set_writer(asyncio.Handle(callback, args, self))

    def remove_writer(self, fd: Any) -> bool:
        """Removes the callback."""
        found: bool = self._socket(fd).set_writer(None)
        return found

    async def sock_recv_into(self, sock: Any, buf: Any) -> int:
        """Waits for bytes, and reads them."""
        while True:
            try:
                count: int = sock.recv_into(buf)
            except BlockingIOError:
                await sock.until_readable()
            else:
                return count

    def end(self, processes: list[Process]) -> None:
        """Ends the remaining tasks of the processes, and closes the loop."""
        self.set_exception_handler(lambda loop, context: None)
        for process in processes:
            process.alive = False
        with warnings.catch_warnings():
            # Some coroutines have never started.
            warnings.simplefilter("ignore", RuntimeWarning)
            for process in processes:
                tasks, process.remains = [*process.remains, *process.tasks], []
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
        self._soon.clear()
        self._timers.clear()
        self.close()


class JobsInOrder(Executor):
    """Replaces a pool of threads that its creator waits for: runs each job when it is submitted.

    Threads would run them in an order that no seed determines, and take longer.
    """

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        """No threads are created, regardless of their number."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs the job now."""
        future: Future[Any] = Future()
        try:
            # A thread has a separate context.
            result = Context().run(fn, *args, **kwargs)
        except BaseException as problem:  # noqa: BLE001 - whoever asks for the result is told
            future.set_exception(problem)
        else:
            future.set_result(result)
        return future


class WorldEnds(BaseException):
    """Raised in waiting coroutines when the run is over."""


def _close(coroutine: Any) -> None:
    """Ends a coroutine, which may wait during its end: each wait ends, too."""
    for _ in range(WAITS_MAX):
        waits = False
        with contextlib.suppress(BaseException):
            # Not close(): it ends one wait of the innermost coroutine, and all of those around it.
            coroutine.throw(WorldEnds())
            waits = True
        if not waits:
            return


class SimulatedClock(Clock):
    """The clocks of a machine: the wall clock may be wrong."""

    def __init__(self, loop: SimulatedLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return wall_ms_at(self._loop._now) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop._now
