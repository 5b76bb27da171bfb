"""A ZooKeeper server in its own process, from the jars that PySpark contains: no download is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from tidemill.server.zookeeper_jars import JAVA_OPTIONS, MEMBER, SERVER, class_path, serves
from tidemill.testing.child import last_lines, read_log
from tidemill.testing.started import Started

PORTS_TRIED_MAX = 5

# The server ends when this process ends, for whatever reason: its standard input is closed then.
_SHELL = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!; read _; kill -9 $! 2>/dev/null'


class ZooKeeperFailed(RuntimeError):
    """A server did not start. The text ends with the last lines of its log."""


class ZooKeeper(Started):
    """``with ZooKeeper() as server:`` starts a server on a free port of 127.0.0.1, and removes it afterwards.

    ``settings`` are lines of its configuration (``{"maxClientCnxns": "5"}``), ``options`` are options of
    Java. It does not sync its files: they survive a kill of the process, not of the machine.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        options: Iterable[str] = (),
        timeout_s: float = 60.0,
        member: int = 0,
    ) -> None:
        """``member`` is the number of the server in an ensemble."""
        self.port = 0
        self.pid = 0
        self.directory = tempfile.mkdtemp(prefix="tidemill-zookeeper-")
        self.settings = dict(settings or {})
        self._options = list(options)
        self._timeout_s = timeout_s
        self._member = member
        self._shell: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """``host:port``, for ``zookeeper.connect``."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The output of the server, over all of its starts."""
        return read_log(f"{self.directory}/log")

    def start(self) -> Self:
        """Starts the server and waits until it serves. Keeps the port of an earlier start.

        Raises ZooKeeperFailed, and ZooKeeperMissing without PySpark or Java.
        """
        for _ in range(1 if self.port else PORTS_TRIED_MAX):
            port = self.port or free_ports(1)[0]
            self.launch(port)
            if self._wait_ready(port):
                self.port = port
                return self
            self.kill()
        raise self._failure()

    def wait_ready(self) -> None:
        """Waits until a launched server serves."""
        if not self._wait_ready(self.port):
            raise self._failure()

    def _failure(self) -> ZooKeeperFailed:
        return ZooKeeperFailed(f"ZooKeeper did not start within {self._timeout_s:g} s{last_lines(self.log)}")

    def kill(self) -> None:
        """Kills the process, to simulate a crash."""
        shell, self._shell = self._shell, None
        if shell is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        shell.communicate()

    def pause(self) -> None:
        """Suspends the process: connections stay open, and no request gets a response."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Ends the server, and deletes its files."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def launch(self, port: int) -> None:
        """Starts the process, and does not wait for it."""
        settings = {
            "dataDir": f"{self.directory}/data",
            "clientPort": str(port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "tickTime": "200",
            "maxSessionTimeout": "60000",
            "maxClientCnxns": "0",
            **self.settings,
        }
        path = Path(self.directory, "zoo.cfg")
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = ["java", *JAVA_OPTIONS]
        command += ["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024", *self._options]
        command += ["-cp", class_path(), MEMBER if self._member else SERVER, str(path)]
        if self._member:
            Path(self.directory, "data").mkdir(exist_ok=True)
            Path(self.directory, "data", "myid").write_text(str(self._member))
        self._shell = subprocess.Popen(
            ["sh", "-c", _SHELL, "sh", f"{self.directory}/log", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if self._shell.stdout is None:
            raise ZooKeeperFailed("the server's process has no output")
        self.pid = int(self._shell.stdout.readline())

    def _wait_ready(self, port: int) -> bool:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and _is_alive(self.pid):
            if serves("127.0.0.1", port):
                return True
            time.sleep(0.02)
        return False


def free_ports(count: int) -> list[int]:
    """Returns this number of different ports that are free now."""
    with contextlib.ExitStack() as probes:
        # All are held until the last one is found: the system may assign a released port again.
        held = [probes.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in held]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        after_name = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2]
        return after_name.split()[0] != "Z"
    except FileNotFoundError:
        return True
    except ProcessLookupError:
        return False
