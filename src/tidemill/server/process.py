"""The process around a broker: configuration, limits of the system, signals, start and stop.

What an operator can put right ends in one clear line on stderr and exit code 1, without a traceback.
SIGTERM, SIGINT and SIGHUP stop the broker in order (flush, marker of a clean shutdown, exit code 0); a
second one does not wait any longer. A broker that has lost all of its data directories ends by itself, with
exit code 74.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import FrameType
from typing import Any, Protocol

from tidemill import _interrupts
from tidemill.model.configs import BrokerConfig
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ConfigError, TidemillError
from tidemill.model.faults import fault_of
from tidemill.server import logging as log_lines
from tidemill.server.announce import announce, tell_ready

log = logging.getLogger("tidemill.server")

FILES_WANTED = 65_536
"""Descriptors that the soft limit is raised to, where the hard one allows it."""
FILES_FEW = 4_096
"""Below this the operator is told: every partition holds a file open, every client a socket."""
MALLOC_OPTIONS = ((-1, 16 << 20), (-2, 1 << 20), (-3, 4 << 20))
"""M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's mallopt(3), in bytes."""
COLLECTOR_THRESHOLDS = (5_000, 2, 130)
"""After how many new objects Python looks for cycles among them, and after how many such looks among older
ones, and among all. A topic is dozens of objects that stay, and hundreds while it is made: by Python's own
thresholds (700, 10, 10) all objects of ten thousand topics were looked at for each few hundred that came,
for a quarter of a second, and hardly a cycle was found. A look at the new ones takes a millisecond, at the
older ones, 15,000 at most, four; among all it is not earlier than after two million."""
FORCED = 130
NO_DISK = 74
"""EX_IOERR of sysexits.h. A supervisor can tell it from a crash: started again over a mount point whose disk
is away, the broker would begin with nothing."""
WITHOUT_DISK = (
    "no data directory works any more, and without one there is nothing to serve: the broker ends. Put right "
    "what was said of them, and start it again"
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StoppedWhileStarting(KeyboardInterrupt):
    """A signal came before the broker served: checking the logs of a crash may take long.

    A KeyboardInterrupt is what event loops let through wherever it is raised; others end in some task.
    """


class Server(Protocol):
    """What this module needs of a broker's server."""

    @property
    def listeners(self) -> Sequence[tuple[str, str, int]]:
        """(name, host, port) of every listener, once it is bound."""

    without_disk: Callable[[], None] | None
    """To be called when no data directory works any more."""
    may_be_interrupted: Callable[[], contextlib.AbstractContextManager[None]]
    """Entered around what the start does for long without the event loop: there a signal may raise."""

    async def start(self) -> None:
        """Opens the data directories and listens."""

    async def stop(self) -> None:
        """Flushes, marks the shutdown as clean, lets go of the directories."""

    def metrics(self) -> Iterable[Any]:
        """The broker's metric families."""

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the broker serves, and what it says of itself."""


class Start:
    """What ``tidemill serve`` was asked for."""

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


def serve(start: Start) -> int:
    """Runs a broker until it is told to stop; the exit code of the process."""
    # Nothing that start-up makes is garbage; looking for some would cost it a tenth of its time.
    gc.disable()
    stopping = asyncio.Event()
    signals = Signals(stopping)
    try:
        signals.interrupt_start()
        if _interrupts.heard:
            signals.name = signal.SIGINT.name
            raise StoppedWhileStarting
        config = read_config(start)
        files = raise_file_limit()
        _report(config, files)
        return asyncio.run(_run(config, start, signals, stopping))
    except (TidemillError, OSError) as problem:
        print(f"tidemill: {describe(problem)}", file=sys.stderr)  # noqa: T201
        return 1
    except (StoppedWhileStarting, asyncio.CancelledError):
        log.info("%s while starting: stopped; the next start does what is left", signals.name)
        return 0
    finally:
        gc.enable()


def read_config(start: Start) -> BrokerConfig:
    """The checked configuration, with logging set up as it says."""
    config = BrokerConfig.from_sources(start.config_file, start.sets, start.environment, start.options)
    check_config(config)
    levels = start.log_level.split(",") if start.log_level else config.list("tidemill.log.level")
    log_lines.set_up(levels)
    return config


def check_config(config: BrokerConfig) -> None:
    """What a start refuses before it touches port, disk or network: ConfigError, or ImportError for kazoo."""
    log_lines.parse_levels(config.list("tidemill.log.level"))
    if config.store() == "zookeeper":
        from tidemill.coordination.zookeeper_settings import settings_of

        settings_of(config)
        importlib.import_module("kazoo")


def describe(problem: BaseException) -> str:
    """One line for the operator."""
    if isinstance(problem, OSError) and problem.strerror:
        where = f"{problem.filename}: " if problem.filename else ""
        return f"{where}{problem.strerror}"
    return " ".join(str(problem).split("\n"))


def _report(config: BrokerConfig, files: int) -> None:
    for warning in config.warnings:
        log.warning("%s", warning)
    for note in config.notes:
        log.info("%s", note)
    if files < FILES_FEW:
        log.warning(
            "this process may open only %d files: every partition holds at least one, every client one "
            "more; raise the limit with ulimit -n %d (systemd: LimitNOFILE=, Docker: --ulimit nofile=)",
            files,
            FILES_WANTED,
        )


def raise_file_limit() -> int:
    """Raises the soft limit of open files as far as the hard one allows; the limit that holds now."""
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
    """Tells glibc to keep some megabytes that were freed.

    Receiving takes and frees large buffers all the time, and the kernel would clear their pages each time:
    a tenth of the broker's processor time.
    """
    if sys.platform != "linux":
        return
    import ctypes

    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        for option, value in MALLOC_OPTIONS:
            tune(option, value)


async def _run(config: BrokerConfig, start: Start, signals: Signals, stopping: asyncio.Event) -> int:
    from tidemill.server.app import BrokerServer

    loop = asyncio.get_running_loop()
    signals.cancel_start(loop)
    if start.until_eof:
        signals.watch_input(loop)
    server: Server = BrokerServer(config)
    server.without_disk = signals.without_disk
    server.may_be_interrupted = signals.interrupting
    endpoint = None
    try:
        await server.start()
        signals.install(loop)
        endpoint = await _start_metrics(config, server, stopping)
        metrics_port = endpoint.port if endpoint is not None else None
        announce(config, server.listeners, metrics_port, quiet=start.quiet)
        tell_ready(server.listeners, metrics_port, start.ready_descriptor, start.ready_file)
        keep_freed_memory()
        # What lives now lives as long as the broker: the collector need not look at it again.
        gc.freeze()
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        gc.enable()
        await stopping.wait()
        if signals.is_without_disk:
            log.error("%s", WITHOUT_DISK)
        else:
            log.info("%s: stopping", signals.name)
    finally:
        if endpoint is not None:
            await endpoint.stop()
        await server.stop()
    if signals.is_without_disk:
        return NO_DISK
    log.info("stopped; what was acknowledged is on the disk")
    return 0


def _bind_fault(problem: OSError) -> str:
    """Why an address cannot be bound: asyncio says it with the address once more."""
    number = problem.errno or 0
    return os.strerror(number).lower() if number > 0 else fault_of(problem)


async def _start_metrics(config: BrokerConfig, server: Server, stopping: asyncio.Event) -> Any:
    port = config.int("tidemill.metrics.port")
    if port < 0:
        return None
    from tidemill.server.http import MetricsEndpoint
    from tidemill.server.metrics import ProcessMetrics

    process = ProcessMetrics()

    def health() -> tuple[bool, dict[str, Any]]:
        return (False, {"reason": "stopping"}) if stopping.is_set() else server.health()

    endpoint = MetricsEndpoint(lambda: chain(process.families(), server.metrics()), health)
    host = config.str("tidemill.metrics.host")
    try:
        await endpoint.start(host, port)
    except OSError as problem:
        raise ConfigError(
            f"tidemill.metrics.port={port}: {join_address(host, port)} cannot be bound: "
            f"{_bind_fault(problem)}; choose another with --set tidemill.metrics.port=PORT"
        ) from None
    return endpoint


class Signals:
    """The first signal asks the broker to stop, the second ends the process at once."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self.name = "asked to stop"
        self.is_without_disk = False
        self._numbers: list[signal.Signals] = []
        self._cancel: Callable[[], object] | None = None

    def interrupt_start(self) -> None:
        """Until :meth:`cancel_start`, and within :meth:`interrupting`, a signal raises where the start is."""
        # A SIGHUP that the starter chose to ignore (nohup) stays ignored.
        ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._numbers = [one for one in STOP_SIGNALS if one != signal.SIGHUP or not ignores_hangup]
        for number in self._numbers:
            signal.signal(number, self._while_starting)

    def cancel_start(self, loop: asyncio.AbstractEventLoop) -> None:
        """From here on, until :meth:`install`, a signal cancels the present task: nobody was answered yet.

        An exception that a callback of the loop raises anywhere could leave others waiting for ever.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a start runs in a task")
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """In its block a signal raises: checking the logs of a crash holds the loop for long."""
        cancel, self._cancel = self._cancel, None
        try:
            if self._stopping.is_set():
                raise StoppedWhileStarting
            yield
        finally:
            self._cancel = cancel

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listens for the signals that stop (also as process 1, which has no default actions)."""
        for number in self._numbers:
            loop.add_signal_handler(number, self._on_signal, number)

    def _while_starting(self, number: int, _: FrameType | None) -> None:
        for one in self._numbers:
            signal.signal(one, signal.SIG_IGN)
        # Should the exception get lost (raised in a finalizer, say), the start ends with a stop.
        self._stopping.set()
        self.name = signal.Signals(number).name
        if self._cancel is None:
            raise StoppedWhileStarting
        self._cancel()

    def watch_input(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stops when standard input ends: whoever started this process and holds its input is gone."""

        def on_input() -> None:
            if not os.read(0, 4096):
                loop.remove_reader(0)
                end()

        def end() -> None:
            self.name = "end of standard input"
            self._stopping.set()

        try:
            loop.add_reader(0, on_input)
        except PermissionError:
            # /dev/null and files are at their end, as far as waiting goes.
            loop.call_soon(end)

    def without_disk(self) -> None:
        """Stops because no data directory works any more."""
        if not self._stopping.is_set():
            self.is_without_disk = True
            self._stopping.set()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("%s again: ending without waiting; the next start will check the logs", number.name)
            os._exit(FORCED)
        self.name = number.name
        self._stopping.set()
