"""The broker process: configuration, system limits, signals, start and stop.

| exit code | reason |
|---|---|
| 0 | SIGTERM, SIGINT or SIGHUP: a clean shutdown, with flushed logs and a marker |
| 1 | an error that the operator can correct, in one line on stderr without a traceback |
| 74 | all data directories have failed |
| 130 | a second signal, later than half a second after the first: the process ends at once |
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING

from tidemill import _interrupts
from tidemill._interrupts import SAME_REQUEST_S, STOP_SIGNALS
from tidemill.model.configs import BrokerConfig
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ConfigError, TidemillError
from tidemill.model.os_error_texts import fault_of
from tidemill.server import logging as log_lines
from tidemill.server.startup_report import log_startup, notify_ready
from tidemill.server.stderr_writer import background_stderr

if TYPE_CHECKING:
    from tidemill.server.broker_server import BrokerServer
    from tidemill.server.http_endpoint import MetricsEndpoint

logger = logging.getLogger("tidemill.server")

FILES_WANTED = 65_536
"""The number of descriptors for the soft limit, if the hard limit is infinite."""
FILES_WARNED_BELOW = 4_096
"""A lower limit is logged: every partition needs an open file, and every client a socket."""
MALLOC_OPTIONS = ((-1, 16 << 20), (-2, 1 << 20), (-3, 4 << 20))
"""M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's mallopt(3), in bytes."""
COLLECTOR_THRESHOLDS = (5_000, 2, 130)
"""Thresholds of the three generations of Python's garbage collector. A topic creates hundreds of objects,
and keeps dozens. With the default thresholds (700, 10, 10) each few hundred new objects caused a
collection of all objects, which took 0.25 s with ten thousand topics and found few cycles. With these
thresholds a collection of generation 0 takes 1 ms, and of generation 1, which has 15,000 objects at most,
4 ms. A collection of generation 2 takes place after two million new objects at the earliest."""
EXIT_FORCED = 130
EXIT_NO_DIRECTORY = 74
"""EX_IOERR of sysexits.h. It lets a supervisor distinguish the failure of all disks from a crash: a broker
that is restarted on an empty mount point would start without data."""
ALL_DIRECTORIES_FAILED = (
    "all data directories have failed, and the broker stops. Correct the errors logged above, and start it "
    "again"
)


class StoppedWhileStarting(KeyboardInterrupt):
    """A signal arrived before the end of the start. The recovery of logs may take a long time.

    A KeyboardInterrupt, because event loops propagate it from everywhere; other exceptions end in a task.
    """


class ServeOptions:
    """The options of ``tidemill serve``."""

    __slots__ = (
        "config_file",
        "environment",
        "log_level",
        "options",
        "quiet",
        "ready_descriptor",
        "ready_file",
        "sets",
        "until_eof",
    )

    def __init__(
        self,
        *,
        config_file: str | None = None,
        sets: Sequence[str] = (),
        options: Sequence[tuple[str, str]] = (),
        environment: Mapping[str, str] | None = None,
        log_level: str | None = None,
        ready_file: str | None = None,
        ready_descriptor: int | None = None,
        quiet: bool = False,
        until_eof: bool = False,
    ) -> None:
        self.config_file = config_file
        self.sets = tuple(sets)
        self.options = tuple(options)
        self.environment = dict(environment or {})
        self.log_level = log_level
        self.ready_file = ready_file
        self.ready_descriptor = ready_descriptor
        self.quiet = quiet
        self.until_eof = until_eof


@background_stderr()
def serve(start: ServeOptions) -> int:
    """Runs a broker until a signal stops it. Returns the exit code of the process."""
    # The start creates no garbage; the collector would take a tenth of its time.
    gc.disable()
    stopping = asyncio.Event()
    signals = Signals(stopping)
    try:
        signals.interrupt_start()
        if _interrupts.received:
            signals.name = signal.Signals(_interrupts.received).name
            raise StoppedWhileStarting
        config = read_config(start)
        files = raise_file_limit()
        _log_config_warnings(config, files)
        return asyncio.run(_run(config, start, signals, stopping))
    except (TidemillError, OSError) as problem:
        print(f"tidemill: {describe(problem)}", file=sys.stderr)  # noqa: T201
        return 1
    except (StoppedWhileStarting, asyncio.CancelledError):
        logger.info("%s during the start: stopped; the next start continues the recovery", signals.name)
        return 0
    finally:
        signals.end_start()
        gc.enable()


def read_config(start: ServeOptions) -> BrokerConfig:
    """Reads and checks the configuration, and configures logging."""
    config = BrokerConfig.from_sources(start.config_file, start.sets, start.environment, start.options)
    check_config(config)
    levels = start.log_level.split(",") if start.log_level else config.list("tidemill.log.level")
    log_lines.set_up(levels)
    return config


def check_config(config: BrokerConfig) -> None:
    """Checks that need no port, disk or network. Raises ConfigError, or ImportError if kazoo is missing."""
    log_lines.parse_levels(config.list("tidemill.log.level"))
    if config.store() == "zookeeper":
        from tidemill.coordination.zookeeper_settings import settings_of

        settings_of(config)
        importlib.import_module("kazoo")


def describe(problem: BaseException) -> str:
    """Returns the text of an error on one line, for the operator."""
    if isinstance(problem, OSError) and problem.strerror:
        where = f"{problem.filename}: " if problem.filename else ""
        return f"{where}{problem.strerror}"
    return " ".join(str(problem).split("\n"))


def _log_config_warnings(config: BrokerConfig, files: int) -> None:
    for warning in config.warnings:
        logger.warning("%s", warning)
    for note in config.notes:
        logger.info("%s", note)
    if files < FILES_WARNED_BELOW:
        logger.warning(
            "this process may open only %d files; every partition and every client needs at least one. Raise "
            "the limit with ulimit -n %d (systemd: LimitNOFILE=, Docker: --ulimit nofile=)",
            files,
            FILES_WANTED,
        )


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard limit. Returns the new soft limit."""
    try:
        import resource
    except ImportError:
        return FILES_WANTED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return FILES_WANTED
    best = FILES_WANTED if hard == resource.RLIM_INFINITY else hard
    if best > soft:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
            soft = best
    return soft


def keep_freed_memory() -> None:
    """Configures glibc to keep some megabytes of freed memory.

    The network code allocates and frees large buffers continuously. Without this the kernel clears their
    pages each time, which takes a tenth of the CPU time of the broker.
    """
    if sys.platform != "linux":
        return
    import ctypes

    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        for option, value in MALLOC_OPTIONS:
            tune(option, value)


async def _run(config: BrokerConfig, start: ServeOptions, signals: Signals, stopping: asyncio.Event) -> int:
    from tidemill.server.broker_server import BrokerServer

    loop = asyncio.get_running_loop()
    signals.cancel_start(loop)
    if start.until_eof:
        signals.watch_input(loop)
    server = BrokerServer(config)
    server.on_all_directories_failed = signals.on_all_directories_failed
    server.interruptible = signals.interrupting
    endpoint = None
    try:
        await server.start()
        signals.install(loop)
        endpoint = await _start_metrics(config, server, stopping)
        metrics_port = endpoint.port if endpoint is not None else None
        log_startup(config, server.listeners, metrics_port, quiet=start.quiet)
        notify_ready(server.listeners, metrics_port, start.ready_descriptor, start.ready_file)
        keep_freed_memory()
        # The present objects live as long as the broker. The collector skips them from now on.
        gc.freeze()
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        gc.enable()
        await stopping.wait()
        if signals.all_directories_failed:
            logger.error("%s", ALL_DIRECTORIES_FAILED)
        else:
            logger.info("%s: stopping", signals.name)
    finally:
        if endpoint is not None:
            await endpoint.stop()
        await server.stop()
    if signals.all_directories_failed:
        return EXIT_NO_DIRECTORY
    logger.info("stopped; all acknowledged records are on disk")
    return 0


def _bind_failure_reason(problem: OSError) -> str:
    """The reason of a failed bind, without the address that asyncio adds."""
    number = problem.errno or 0
    return os.strerror(number).lower() if number > 0 else fault_of(problem)


async def _start_metrics(
    config: BrokerConfig, server: BrokerServer, stopping: asyncio.Event
) -> MetricsEndpoint | None:
    port = config.int("tidemill.metrics.port")
    if port < 0:
        return None
    from tidemill.server.broker_metrics import families
    from tidemill.server.health import Health
    from tidemill.server.http_endpoint import MetricsEndpoint
    from tidemill.server.metrics import ProcessMetrics

    process = ProcessMetrics()

    def health() -> Health:
        return Health("stopping") if stopping.is_set() else server.health()

    endpoint = MetricsEndpoint(lambda: chain(process.families(), families(server)), health)
    host = config.str("tidemill.metrics.host")
    try:
        await endpoint.start(host, port)
    except OSError as problem:
        raise ConfigError(
            f"tidemill.metrics.port={port}: {join_address(host, port)} cannot be bound: "
            f"{_bind_failure_reason(problem)}; choose another with --set tidemill.metrics.port=PORT"
        ) from None
    return endpoint


class Signals:
    """Handles signals: the first one stops the broker, a later second one ends the process at once."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self.name = "asked to stop"
        self._stopped_s = 0.0
        """The monotonic time at which the stop began."""
        self.all_directories_failed = False
        self._numbers: list[signal.Signals] = []
        self._cancel: Callable[[], object] | None = None
        self._unraisable_hook = sys.unraisablehook
        self._is_installing = False
        self._handled: int | None = None
        """A signal during :meth:`install`, which the event loop may report as well."""

    def interrupt_start(self) -> None:
        """Makes signals raise, until :meth:`cancel_start` and within :meth:`interrupting`."""
        # A SIGHUP that the parent process ignores (nohup) stays ignored.
        ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._numbers = [one for one in STOP_SIGNALS if one != signal.SIGHUP or not ignores_hangup]
        for number in self._numbers:
            signal.signal(number, self._while_starting)
        sys.unraisablehook = self._on_unraisable

    def end_start(self) -> None:
        """Reports all exceptions in finalizers from now on."""
        sys.unraisablehook = self._unraisable_hook

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Reports an exception in a finalizer, except after a signal, which may have interrupted it."""
        if not self._stopping.is_set():
            self._unraisable_hook(unraisable)

    def cancel_start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes signals cancel the current task, until :meth:`install`.

        An exception raised in a callback of the event loop could leave other tasks waiting forever.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a start runs in a task")
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Makes signals raise in its block, because the recovery of logs blocks the event loop."""
        cancel, self._cancel = self._cancel, None
        try:
            if self._stopping.is_set():
                raise StoppedWhileStarting
            yield
        finally:
            self._cancel = cancel

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Installs the handlers of the event loop (needed as process 1, which has no default actions)."""
        self.end_start()
        self._is_installing = True
        for number in self._numbers:
            loop.add_signal_handler(number, self._on_signal, number)
        self._is_installing = False

    def _while_starting(self, number: int, _: FrameType | None) -> None:
        if self._is_installing:
            self._handled = number
            self._stop(signal.Signals(number).name)
            return
        for one in self._numbers:
            signal.signal(one, signal.SIG_IGN)
        # If the exception is lost (raised in a finalizer, for example), the start ends with a stop.
        self._stop(signal.Signals(number).name)
        if self._cancel is None:
            raise StoppedWhileStarting
        self._cancel()

    def _stop(self, name: str) -> None:
        self.name = name
        self._stopped_s = time.monotonic()
        self._stopping.set()

    def watch_input(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stops the broker at the end of standard input, because the parent process has ended."""

        end = partial(self._stop, "end of standard input")

        def on_input() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                end()

        try:
            loop.add_reader(0, on_input)
        except PermissionError:
            # epoll does not support /dev/null and files, which count as ended.
            loop.call_soon(end)

    def on_all_directories_failed(self) -> None:
        """Stops the broker because all data directories have failed."""
        if not self._stopping.is_set():
            self.all_directories_failed = True
            self._stop(self.name)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._handled == number:
            self._handled = None
            return
        if not self._stopping.is_set():
            self._stop(number.name)
        elif time.monotonic() - self._stopped_s >= SAME_REQUEST_S:
            logger.warning("second %s: ending at once; the next start will recover the logs", number.name)
            sys.stderr.close()
            os._exit(EXIT_FORCED)
