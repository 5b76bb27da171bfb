"""A broker in its own process, for tests and experiments.

With ``faults=True`` its clients connect through :mod:`tidemill.testing.network`, and its disk is a
:mod:`tidemill.testing.disk`: links can be cut, responses replaced by errors, the disk filled and slowed down.
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
from typing import TYPE_CHECKING, Any, Self

from tidemill.model.errors import ConfigError
from tidemill.testing.child import last_lines, read_log
from tidemill.testing.started import Started

if TYPE_CHECKING:
    from tidemill.testing.disk import Disk
    from tidemill.testing.links import BrokerLinks
    from tidemill.testing.network import InjectedError

TEST_CONFIG: dict[str, str] = {
    # A group in a test should not wait for more members, nor should the broker create 50 directories.
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    # Records that a test writes with old timestamps must not be deleted half a minute after the start.
    "log.initial.task.delay.ms": "86400000",
    "log.retention.check.interval.ms": "86400000",
}
"""Settings of a test's broker that differ from the defaults; ``config`` overrides them."""

ALONE = "1"
"""The name of a single broker as an end of its links."""


class BrokerFailed(RuntimeError):
    """A broker did not start, or did not stop. The text ends with the last lines of its log."""


class Broker(Started):
    """``with Broker() as broker:`` starts a broker on a free port of 127.0.0.1, and removes it afterwards.

    ``config`` holds broker keys (``{"num.partitions": 3}``). Without ``data_dir`` the data goes to a
    temporary directory that is deleted at the end; a given directory is kept. The broker ends when this
    process ends, for whatever reason. Raises ConfigError for an unknown key: a misspelt key would test
    nothing.

    :meth:`cut`, :meth:`fail_next` and :attr:`disk` need ``faults=True``; :meth:`pause`, :meth:`kill` and
    :meth:`start` work always. ``links`` are the links of the broker's cluster.
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
        self.config = {**TEST_CONFIG, **{key: setting_text(value) for key, value in (config or {}).items()}}
        self.port = port
        self.host = "127.0.0.1"
        self.metrics_port: int | None = None
        self.started_in_s = 0.0
        """Duration of the last start, until the broker served."""
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

    # State

    @property
    def bootstrap(self) -> str:
        """``host:port``, for a client's ``bootstrap.servers``."""
        return f"{self.host}:{self.port}"

    @property
    def inter_broker_bootstrap(self) -> str:
        """``host:port`` of the listener for brokers, which accepts the batches of mirrors."""
        port = self.port if self._links is None else self._links.broker_port
        return f"{self.host}:{port}"

    @property
    def pid(self) -> int:
        """The process id."""
        if self._process is None:
            raise BrokerFailed("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_answering(self) -> bool:
        """Whether the process is running, and is not paused."""
        return self.running and not self._is_paused

    @property
    def log(self) -> str:
        """The log of the broker, over all of its starts."""
        return read_log(self._log_path)

    # Control

    def start(self) -> Self:
        """Starts the broker and waits until it serves. The port of an earlier start is kept."""
        if self.running:
            return self
        self.kill()  # It may have ended by itself: its pipe and its links are still in the old state.
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
        """Stops the broker in an orderly way, and waits for it. Returns its exit code (0 for success)."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process, to simulate a crash. Appended data stays in the page cache."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Suspends the process, to simulate a long pause of the machine.

        Connections stay open, the system accepts new ones, and no request gets a response.
        """
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Resumes a paused broker; has no effect on a broker that is not paused."""
        if self._is_paused:
            os.kill(self.pid, signal.SIGCONT)
            self._is_paused = False

    def restart(self) -> Broker:
        """Stops the broker, and starts it on the same port with the same data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stops the broker, and deletes its directory unless it was given."""
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
        """Its disk, to be filled or slowed down. Raises BrokerFailed for a broker without ``faults=True``."""
        if self._disk is None:
            raise _without_faults("disk")
        return self._disk

    def cut(self, how: str = "silent") -> None:
        """Cuts the link between the broker and its clients, including clients that connect later.

        ``silent``: nothing passes, and neither side is notified, as with an unplugged cable; data that was
        sent passes once the link is healed. ``reset``: existing and new connections are reset.
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
        """Replaces the next responses of an API by an error: ``fail_next("Fetch", "UNKNOWN_TOPIC_ID")``.

        ``api`` and ``error`` are Kafka's names (or numbers); ``client_id`` selects the clients with this
        client id. The broker does not execute a request that changes something, unless ``carried_out`` is
        set: then it executes the request, and only its response is lost, as when a leader fails right
        afterwards. A response counts if it has a field for the error: a Fetch without partitions has none,
        and a Produce with ``acks=0`` has no response. Raises ValueError for a name that does not exist.
        """
        return self._need_links("fail_next()").fail_next(
            api, error, times, client_id, carried_out=carried_out
        )

    def mend(self) -> Broker:
        """Ends every fault: heals the link, drops errors, repairs the disk, resumes or starts the broker."""
        if self._links is not None:
            self._links.mend()
        if self._disk is not None:
            self._disk.mend()
        self.resume()
        return self.start()

    def _need_links(self, fault: str) -> BrokerLinks:
        if self._links is None:
            raise _without_faults(fault)
        return self._links

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"Broker({self.bootstrap}, {state}, data in {self.data_dir})"

    # Implementation

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
        """Returns the line that the broker writes once it serves. Raises BrokerFailed when it does not."""
        deadline = time.monotonic() + self._timeout_s
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BrokerFailed(
                        f"the broker was not ready within {self._timeout_s:g} s{last_lines(self.log)}"
                    )
                piece = os.read(descriptor, 4096)
                if not piece:
                    code = self._process.wait() if self._process is not None else None
                    raise BrokerFailed(f"the broker ended with exit code {code}{last_lines(self.log)}")
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
                f"the broker did not stop within {self._timeout_s:g} s{last_lines(self.log)}"
            ) from None
        finally:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            if self._links is not None:
                self._links.down()
        return code


def setting_text(value: object) -> str:
    """Returns the text of a setting's value, as the configuration has it: ``true`` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_unknown(config: Mapping[str, Any]) -> None:
    from tidemill.model.configs.config_loader import is_known, unknown

    for name in config:
        if not is_known(name):
            raise ConfigError(unknown(name, "the test's broker"))


def _refuse_own_listeners(config: Mapping[str, Any], port: int) -> None:
    """Raises ConfigError for listeners in ``config``: the links need listeners of their own."""
    named = [name for name in config if name.endswith("listeners") or name.startswith("listener.")]
    if named or port:
        raise ConfigError(
            f"{named[0] if named else f'port={port}'}: a broker with faults listens on the ports of its "
            "links; leave it out, or create the broker without faults"
        )


def _without_faults(fault: str) -> BrokerFailed:
    return BrokerFailed(f"{fault} needs Broker(faults=True), or the fixture tidemill_faulty_broker")
