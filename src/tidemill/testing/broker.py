"""A broker in a process of its own, for a test or for trying something out.

With ``faults=True`` its clients reach it through :mod:`tidemill.testing.network`, and its disk is one of
:mod:`tidemill.testing.disk`: links can be cut, answers replaced by errors, the disk filled and slowed down.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidemill.model.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.testing.disk import Disk
    from tidemill.testing.links import BrokerLinks
    from tidemill.testing.network import InjectedError

TEST_CONFIG: dict[str, str] = {
    # A test's group should not wait for members that never come, nor make 50 directories.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    # Nor should records that it gives fixed dates be gone once the broker has served for half a minute.
    "log.initial.task.delay.ms": "86400000",
    "log.retention.check.interval.ms": "86400000",
}
"""What a test's broker has other than a real one; ``config`` goes before it."""

ALONE = "1"
"""The name of a broker without others among the ends of its links."""
LOG_LINES_SHOWN = 20


class BrokerFailed(RuntimeError):
    """A broker did not start, or did not stop. The text ends with the last lines of its log."""


class Broker:
    """``with Broker() as broker:`` starts one on a free port of 127.0.0.1, and takes it away afterwards.

    ``config`` holds broker keys (``{"num.partitions": 3}``). Without ``data_dir`` the data goes to a
    directory of its own that is removed at the end; a given one stays. The broker ends when this process
    does, however that happens. ConfigError for a key that no broker has: a misspelt one would test nothing.

    ``faults=True`` is needed for :meth:`cut`, :meth:`fail_next` and :attr:`disk`; :meth:`pause`, :meth:`kill`
    and :meth:`start` work always. ``links`` are those of a cluster that the broker belongs to.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        faults: bool = False,
        links: BrokerLinks | None = None,
    ) -> None:
        _refuse_unknown(config or {})
        if links is not None or faults:
            _refuse_own_listeners(config or {}, port)
        self.config = {**TEST_CONFIG, **{key: _text(value) for key, value in (config or {}).items()}}
        self.port = port
        self.host = "127.0.0.1"
        self.metrics_port: int | None = None
        self.started_in_s = 0.0
        """How long the last start took, until the broker served."""
        self._timeout_s = timeout_s
        self._environment = dict(environment or {})
        self._own_directory = None if data_dir is not None else tempfile.mkdtemp(prefix="tidemill-")
        base = self._own_directory or os.fspath(data_dir or "")
        self.data_dir = os.path.join(base, "data") if self._own_directory else os.path.abspath(base)
        self._log_path = os.path.join(base, "broker.log") if self._own_directory else f"{self.data_dir}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._links = links
        self._owns_links = links is None and faults
        self._disk: Disk | None = None
        if links is not None or faults:
            self._prepare_faults(f"{base}/disk" if self._own_directory else f"{self.data_dir}.disk")

    def _prepare_faults(self, disk_path: str) -> None:
        from tidemill.testing.disk import Disk

        os.makedirs(os.path.dirname(disk_path), exist_ok=True)
        self._disk = Disk(disk_path)
        if self._links is None:
            from tidemill.testing.links import BrokerLinks
            from tidemill.testing.network import Network

            self._links = BrokerLinks(Network().start(), ALONE)
        self.port = self._links.port

    # Where it is

    @property
    def bootstrap(self) -> str:
        """``host:port``, for a client's ``bootstrap.servers``."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process number."""
        if self._process is None:
            raise BrokerFailed("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_answering(self) -> bool:
        """Whether the process lives, and is not paused."""
        return self.running and not self._is_paused

    @property
    def log(self) -> str:
        """What the broker has logged so far, over all of its starts."""
        with contextlib.suppress(OSError), open(self._log_path, encoding="utf-8", errors="replace") as file:
            return file.read()
        return ""

    # What can be done with it

    def start(self) -> Broker:
        """Starts the broker and waits until it serves. The port of an earlier start is kept."""
        if self.running:
            return self
        self.kill()  # It may have ended by itself: its pipe and its links are as they were then.
        began = time.monotonic()
        if self._links is not None:
            self._links.starting()
        readable, writable = os.pipe()
        try:
            with open(self._log_path, "ab") as log:
                self._process = subprocess.Popen(
                    self._command(writable),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(writable,),
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )
            os.close(writable)
            writable = -1
            ready = json.loads(self._read_ready(readable))
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(readable)
            if writable >= 0:
                os.close(writable)
        if self._links is None:
            self.port = ready["listeners"][0]["port"]
        else:
            self._links.up()
        self.metrics_port = ready["metrics_port"]
        self.started_in_s = time.monotonic() - began
        return self

    def stop(self) -> int:
        """Asks the broker to stop in order, and waits for it; its exit code (0 when all went well)."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process at once, as a crash does. What it appended stays in the page cache."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stops the process where it is, as a long pause of the machine does.

        Connections stay open, new ones are taken by the system, and nobody answers.
        """
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Lets a paused broker go on; nothing happens to one that is not paused."""
        if self._is_paused:
            os.kill(self.pid, signal.SIGCONT)
            self._is_paused = False

    def restart(self) -> Broker:
        """Stops in order, and starts on the same port with the same data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stops the broker and removes its directory, unless that was given."""
        try:
            if self._disk is not None:
                self._disk.mend()
            self.stop()
        finally:
            if self._links is not None and self._owns_links:
                self._links.network.close()
            if self._own_directory is not None:
                shutil.rmtree(self._own_directory, ignore_errors=True)

    # Faults

    @property
    def disk(self) -> Disk:
        """Its disk, to be filled or slowed down. BrokerFailed for a broker made without ``faults=True``."""
        if self._disk is None:
            raise _without_faults("disk")
        return self._disk

    def cut(self, how: str = "silent") -> None:
        """Cuts the link between the broker and its clients, those that connect later included.

        ``silent``: nothing passes, and nobody is told, as with a cable that is pulled; what was sent passes
        once the link is healed. ``reset``: connections are reset, and new ones as well.
        """
        self._need_links("cut()").cut(how)

    def heal(self) -> None:
        """Ends the cut."""
        self._need_links("heal()").heal()

    def fail_next(
        self,
        api: str | int,
        error: str | int,
        times: int = 1,
        *,
        client_id: str | None = None,
        carried_out: bool = False,
    ) -> InjectedError:
        """Answers the next requests of an API with an error: ``fail_next("Fetch", "UNKNOWN_TOPIC_ID")``.

        ``api`` and ``error`` are Kafka's names (or numbers); ``client_id`` picks the clients that call
        themselves so. What a request would change is not done, unless ``carried_out``: then the broker does
        it, and only the answer is lost, as when a leader fails right after. An answer counts when it has a
        place for the error: a Fetch without partitions has none. A Produce with ``acks=0`` has no answer.
        ValueError for a name that does not exist.
        """
        return self._need_links("fail_next()").fail_next(
            api, error, times, client_id, carried_out=carried_out
        )

    def mend(self) -> Broker:
        """Ends every fault: heals the link, forgets errors, mends the disk, resumes, starts when killed."""
        if self._links is not None:
            self._links.mend()
        if self._disk is not None:
            self._disk.mend()
        self.resume()
        return self.start()

    def _need_links(self, what: str) -> BrokerLinks:
        if self._links is None:
            raise _without_faults(what)
        return self._links

    def __enter__(self) -> Broker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"Broker({self.bootstrap}, {state}, data in {self.data_dir})"

    # How it is done

    def _command(self, ready_descriptor: int) -> list[str]:
        sets = {
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": self.data_dir,
            **self.config,
            **(self._links.settings() if self._links is not None else {}),
        }
        program = ["tidemill"]
        if self._disk is not None:
            program = ["tidemill.testing.broker_process", self._disk.path]
        command = [sys.executable, "-m", *program, "serve", "--until-eof", "--quiet"]
        command += ["--ready-fd", str(ready_descriptor)]
        for key, value in sets.items():
            command += ["--set", f"{key}={value}"]
        return command

    def _read_ready(self, descriptor: int) -> bytes:
        """The line that the broker writes when it serves; BrokerFailed when it ends or stays silent."""
        deadline = time.monotonic() + self._timeout_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BrokerFailed(
                        f"the broker was not ready within {self._timeout_s:g} s{self._last_lines()}"
                    )
                piece = os.read(descriptor, 4096)
                if not piece:
                    code = self._process.wait() if self._process is not None else None
                    raise BrokerFailed(f"the broker ended with exit code {code}{self._last_lines()}")
                line += piece
        return line

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            process.send_signal(number)
            if self._is_paused:
                process.send_signal(signal.SIGCONT)
                self._is_paused = False
            code = process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(
                f"the broker did not stop within {self._timeout_s:g} s{self._last_lines()}"
            ) from None
        finally:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            if self._links is not None:
                self._links.down()
        return code

    def _last_lines(self) -> str:
        lines = self.log.splitlines()[-LOG_LINES_SHOWN:]
        return ":\n" + "\n".join(lines) if lines else ", and logged nothing"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    from tidemill.model.configs.sources import is_known, unknown

    for name in config:
        if not is_known(name):
            raise ConfigError(unknown(name, "the test's broker"))


def _refuse_own_listeners(config: Mapping[str, Any], port: int) -> None:
    """Links lead to listeners that the test's tools chose."""
    named = [name for name in config if name.endswith("listeners") or name.startswith("listener.")]
    if named or port:
        raise ConfigError(
            f"{named[0] if named else f'port={port}'}: a broker with faults listens where its links lead; "
            "leave it out, or make the broker without faults"
        )


def _without_faults(what: str) -> BrokerFailed:
    return BrokerFailed(f"{what} needs Broker(faults=True), or the fixture tidemill_faulty_broker")
