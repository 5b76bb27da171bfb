"""A cluster on this machine, in one directory: brokers, and a ZooKeeper unless a running one is named.

================================  =====================================================================
in the directory                  contents
================================  =====================================================================
``cluster.json``                  address of ZooKeeper, and the port of each broker
``zookeeper/``                    configuration, log and data of ZooKeeper
``broker-N/server.properties``    settings of the broker: written once, the user's to edit afterwards
``broker-N/data/``                data directory of the broker
================================  =====================================================================

The directories of brokers and ZooKeeper also hold the files of :mod:`tidemill.cli.processes`.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from tidemill.cli import local_cluster_settings
from tidemill.cli.local_cluster_settings import HOST
from tidemill.cli.processes import POLL_S, Background
from tidemill.server.zookeeper_jars import JAVA_OPTIONS, SERVER, ZooKeeperMissing, class_path, serves

DIRECTORY = "tidemill-cluster"
DIRECTORY_VARIABLE = "TIDEMILL_CLUSTER_DIR"
FIRST_PORT = 9092
ZOOKEEPER_PORT = 2181
ZOOKEEPER = "zookeeper"
PORTS_TRIED_MAX = 100
FREE_PORTS = (20_000, 32_000)
"""Below the range of ephemeral ports, so that the ports are still free at the next start."""

CONNECT_S = 3.0
FREE_BYTES_MIN = 65536
"""Free space, in bytes, below which a disk counts as full."""

READY = "ready.json"
SETTINGS = "server.properties"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
NOTICE_S = 3.0
"""After this time a command explains why it still waits."""


class LocalCluster:
    """The cluster in ``directory``. :meth:`load` and :meth:`new` create instances."""

    def __init__(self, directory: str, zookeeper: str, own_port: int | None, ports: dict[int, int]) -> None:
        self.directory = Path(directory)
        self.zookeeper_connect = zookeeper
        self.own_port = own_port
        """Port of the cluster's own ZooKeeper; None when it uses a ZooKeeper that was named."""
        self.ports = ports
        """Ports of the brokers by broker id."""

    @classmethod
    def load(cls, directory: str) -> LocalCluster | None:
        """Returns the cluster that an earlier start created; None when there is none."""
        path = Path(directory, "cluster.json")
        try:
            found = json.loads(path.read_text())
            ports = {int(number): int(port) for number, port in found["brokers"].items()}
            own = found["zookeeper_port"]
            created = cls(directory, str(found["zookeeper"]), None if own is None else int(own), ports)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise click.ClickException(
                f"{path} is not a file of 'tidemill cluster up' ({type(problem).__name__}: {problem}): "
                "repair it, or name another directory with -d"
            ) from None
        created.ports = {number: created._port_of(number, port) for number, port in ports.items()}
        return created

    @classmethod
    def existing(cls, directory: str) -> LocalCluster:
        """Returns the cluster as :meth:`load` does. Raises ClickException when there is none."""
        found = cls.load(directory)
        if found is None:
            raise click.ClickException(
                f"there is no cluster in {directory}: 'tidemill cluster up' creates one, and -d names "
                "another directory"
            )
        return found

    @classmethod
    def new(cls, directory: str, zookeeper: str | None, is_any_port: bool) -> LocalCluster:
        """Returns a cluster without brokers. Writes and starts nothing."""
        if zookeeper is not None:
            return cls(directory, _with_path(zookeeper), None, {})
        port = _port_of_running(Path(directory))
        if port is None:
            port = free_port() if is_any_port else _first_free(ZOOKEEPER_PORT)
        return cls(directory, f"{HOST}:{port}", port, {})

    def save(self) -> None:
        """Writes ``cluster.json``."""
        path = self.directory / "cluster.json"
        temporary = path.with_suffix(".tmp")
        document = {
            "zookeeper": self.zookeeper_connect,
            "zookeeper_port": self.own_port,
            "brokers": {str(number): port for number, port in sorted(self.ports.items())},
        }
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        os.replace(temporary, path)

    def delete(self) -> list[str]:
        """Deletes the cluster's files, and its directory once empty. Returns the names of other files."""
        for directory in (self.process(name).directory for name in self.names):
            if directory.exists():
                shutil.rmtree(directory)
        # Deleted last: an interrupted deletion can be repeated.
        (self.directory / "cluster.json").unlink()
        left = sorted(file.name for file in self.directory.iterdir() if file.name != "lock")
        (self.directory / "lock").unlink()
        if not left:
            self.directory.resolve().rmdir()
        return left

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the cluster: other commands cannot start or stop processes meanwhile."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise click.ClickException(
                    f"another command is starting or stopping the cluster in {self.directory}: wait until it "
                    "is done"
                ) from None
            try:
                yield
            except KeyboardInterrupt:
                self._print_running()
                raise
            except OSError as problem:
                if problem.filename is None and _is_full(self.directory):
                    raise click.ClickException(
                        f"there is no space left in {self.directory}: free some"
                    ) from None
                raise

    def _print_running(self) -> None:
        """Prints the processes that keep running after a command was interrupted."""
        running = [display_name(name) for name in self.running()]
        if running:
            verb = "runs" if len(running) == 1 else "run"
            click.echo(
                f"\ntidemill: {', '.join(running)} {verb}: 'tidemill cluster up{self.option}' starts the "
                f"others, 'tidemill cluster down{self.option}' stops the cluster",
                err=True,
            )

    # State

    def is_on(self, zookeeper: str) -> bool:
        """Returns whether the cluster uses this ZooKeeper."""
        own = f"{HOST}:{self.own_port}" if self.own_port is not None else None
        return zookeeper == own or _with_path(zookeeper) == self.zookeeper_connect

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as ``host:port`` separated by commas."""
        return ",".join(f"{HOST}:{port}" for _, port in sorted(self.ports.items()))

    @property
    def option(self) -> str:
        """The ``-d`` option that selects this cluster, for hints; empty where it is the default."""
        found = os.environ.get(DIRECTORY_VARIABLE) or DIRECTORY
        return (
            ""
            if os.path.abspath(found) == os.path.abspath(self.directory)
            else f" -d {shlex.quote(str(self.directory))}"
        )

    @property
    def next_port(self) -> int:
        """The port after those of the existing brokers."""
        return max(self.ports.values(), default=FIRST_PORT - 1) + 1

    @property
    def names(self) -> list[str]:
        """Names of the processes: broker ids, and ZooKeeper if the cluster has its own."""
        return [*map(str, sorted(self.ports)), *([ZOOKEEPER] if self.own_port is not None else [])]

    def process(self, name: str) -> Background:
        """Returns the process of a broker, or of ZooKeeper."""
        if name == ZOOKEEPER:
            return Background(self.directory / ZOOKEEPER, ZOOKEEPER)
        return Background(self.directory / f"broker-{name}", "broker")

    def running(self) -> dict[str, int]:
        """Returns the process ids of the running processes by name."""
        found = {name: self.process(name).pid() for name in self.names}
        return {name: pid for name, pid in found.items() if pid is not None}

    def _port_of(self, number: int, port: int) -> int:
        """Returns the port of a broker: of its ready file while it runs, else of its file of settings."""
        process = self.process(str(number))
        return _reported_port(process) or local_cluster_settings.configured_port(
            process.directory / SETTINGS, port
        )

    # Creating brokers

    def add_brokers(
        self, count: int, first_port: int, settings: Mapping[str, str], *, is_exact: bool = False
    ) -> None:
        """Adds ``count`` brokers, with ``settings`` and the settings that fit the new number of brokers.

        With ``is_exact`` the first broker gets ``first_port``, or no broker is added. Otherwise ports that
        brokers of the cluster have are skipped.
        """
        created = {}
        taken = set(self.ports.values())
        port = first_port
        if is_exact and port in taken:
            owner = next(number for number, used_port in self.ports.items() if used_port == port)
            raise click.ClickException(
                f"port {port} belongs to broker {owner} of this cluster: give another port, or leave --port "
                f"out for {self.next_port}"
            )
        for number in range(max(self.ports, default=0) + 1, max(self.ports, default=0) + 1 + count):
            while first_port and port in taken:
                port += 1
            created[number] = port or free_port(taken)
            taken.add(created[number])
            if first_port:
                _check_free(created[number], first_port)
        total = len(self.ports) + count
        written = {
            number: local_cluster_settings.keys_of_broker(
                number, port, total, self.zookeeper_connect, settings, place
            )
            for place, (number, port) in enumerate(created.items())
        }
        for keys in written.values():
            local_cluster_settings.check(keys)
        for number, keys in written.items():
            directory = self.directory / f"broker-{number}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / SETTINGS).write_text(local_cluster_settings.text(keys))
        self.ports.update(created)
        self.save()

    def remove(self, number: int) -> None:
        """Removes a broker from the cluster, and deletes its directory."""
        directory = self.process(str(number)).directory
        del self.ports[number]
        self.save()
        if directory.exists():
            shutil.rmtree(directory)

    # Starting and stopping

    def check(self, numbers: Collection[str]) -> None:
        """Raises ClickException for a missing prerequisite, before anything is written or started.

        ``numbers`` are the existing brokers that are to run.
        """
        if importlib.util.find_spec("kazoo") is None:
            raise click.ClickException(
                "brokers need kazoo to reach ZooKeeper; install it: pip install 'tidemill[zookeeper]'"
            )
        if self.own_port is None:
            _check_reachable(self.zookeeper_connect)
        elif self.process(ZOOKEEPER).pid() is None:
            _jars()
            self._check_own_port(self.own_port)
        running = self.running()
        for number, port in sorted(self.ports.items()):
            if str(number) in numbers and str(number) not in running:
                _check_free(port, None)

    def _check_own_port(self, port: int) -> None:
        if not _is_free(port):
            raise click.ClickException(
                f"port {port} of the ZooKeeper in {self.directory} is in use{_port_user_hint(port)}"
            )

    def start_zookeeper(self) -> bool:
        """Starts the cluster's ZooKeeper and waits until it serves. Returns False if it was running."""
        process, port = self.process(ZOOKEEPER), self.own_port
        if port is None or process.pid() is not None:
            return False
        jars = _jars()
        self._check_own_port(port)
        process.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": process.directory.resolve() / "data",
            "clientPort": port,
            "clientPortAddress": HOST,
            "admin.enableServer": "false",
            "tickTime": 500,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "autopurge.purgeInterval": 1,
        }
        path = process.directory / "zoo.cfg"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = shutil.which("java") or "java"
        process.start([java, *JAVA_OPTIONS, "-cp", jars, SERVER, str(path)])
        deadline = time.monotonic() + START_TIMEOUT_S
        while not serves(HOST, port):
            if process.pid() is None or time.monotonic() > deadline:
                raise _not_started("ZooKeeper", process)
            time.sleep(POLL_S)
        return True

    def start_brokers(self, numbers: Collection[int]) -> Iterator[int]:
        """Starts brokers that do not run, all at once. Yields each as it serves; raises for failed ones."""
        waiting = {number: self.process(str(number)) for number in sorted(numbers)}
        waiting = {number: process for number, process in waiting.items() if process.pid() is None}
        for number, process in waiting.items():
            _check_free(self.ports[number], None)
            (process.directory / READY).unlink(missing_ok=True)
            command = [sys.executable, "-m", "tidemill", "serve", "--quiet"]
            command += ["--config", str(process.directory / SETTINGS)]
            command += ["--data", str(process.directory / "data")]
            process.start([*command, "--ready-file", str(process.directory / READY)], _environment())
        began = time.monotonic()
        explained: set[int] = set()
        problems = []
        while waiting:
            for number, process in list(waiting.items()):
                if _reported_port(process) is not None:
                    del waiting[number]
                    self.ports[number] = self._port_of(number, self.ports[number])
                    yield number
                elif process.pid() is None or time.monotonic() > began + START_TIMEOUT_S:
                    del waiting[number]
                    problems.append(_not_started(f"broker {number}", process).message)
                elif time.monotonic() > began + NOTICE_S and number not in explained:
                    explained.add(number)
                    click.echo(f"broker {number} is still starting: {process.last_line}", err=True)
            time.sleep(POLL_S)
        if problems:
            raise click.ClickException("\ntidemill: ".join(problems))

    def stop(self, name: str) -> bool:
        """Stops a process in an orderly way, and waits for its end. Returns whether it was running."""
        process = self.process(name)
        if self._signal(name, signal.SIGTERM) is None:
            return False
        if process.wait_end(NOTICE_S):
            return True
        at_once = f"'tidemill cluster kill {name}{self.option}' kills it"
        if process.is_suspended:
            raise click.ClickException(
                f"{display_name(name)} (process {process.pid()}) is suspended, as by SIGSTOP, and stops only "
                f"after it is resumed: 'kill -CONT {process.pid()}' resumes it, {at_once}"
            )
        click.echo(
            f"{display_name(name)} is still stopping; the limit is {STOP_TIMEOUT_S:g} s ({at_once})", err=True
        )
        if not process.wait_end(STOP_TIMEOUT_S - NOTICE_S):
            raise click.ClickException(
                f"{display_name(name)} has not stopped within {STOP_TIMEOUT_S:g} s (its log: "
                f"{process.log_file}): {at_once}"
            )
        return True

    def kill(self, name: str) -> int | None:
        """Kills a process, to simulate a crash. Returns its process id, None when it was not running."""
        pid = self._signal(name, signal.SIGKILL)
        self.process(name).wait_end(STOP_TIMEOUT_S)
        return pid

    def _signal(self, name: str, number: signal.Signals) -> int | None:
        process = self.process(name)
        try:
            return process.signal(number)
        except PermissionError:
            raise click.ClickException(
                f"{display_name(name)} (process {process.pid()}) belongs to another user: run the command as "
                "that user"
            ) from None


def display_name(name: str) -> str:
    """Returns the name of a process in messages."""
    return "ZooKeeper" if name == ZOOKEEPER else f"broker {name}"


def _with_path(zookeeper: str) -> str:
    # Brokers with the same ids may use the bare address: these brokers must not join their cluster.
    return zookeeper if "/" in zookeeper else f"{zookeeper}/{DIRECTORY}"


def _environment() -> dict[str, str]:
    """Returns the environment without keys of brokers, which would override the file of each broker."""
    from tidemill.model.configs.config_loader import ENVIRONMENT_PREFIX, NOT_KEYS

    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENVIRONMENT_PREFIX) or name in NOT_KEYS
    }


def _port_of_running(directory: Path) -> int | None:
    """Returns the port of a running ZooKeeper of this directory whose ``cluster.json`` is gone."""
    process = Background(directory / ZOOKEEPER, ZOOKEEPER)
    if process.pid() is None:
        return None
    try:
        lines = (process.directory / "zoo.cfg").read_text().splitlines()
        return int(dict(line.split("=", 1) for line in lines if "=" in line)["clientPort"])
    except (OSError, ValueError, KeyError):
        return None


def free_port(but: Collection[int] = ()) -> int:
    """Returns a port that is free, and outside the range that systems assign ports from."""
    import random

    for _ in range(PORTS_TRIED_MAX):
        port = random.randrange(*FREE_PORTS)
        if port not in but and _is_free(port):
            return port
    raise click.ClickException(
        f"no port from {FREE_PORTS[0]} to {FREE_PORTS[1]} is free: name one with --port"
    )


def _first_free(port: int) -> int:
    for number in range(port, port + PORTS_TRIED_MAX):
        if _is_free(number):
            return number
    raise click.ClickException(
        f"ports {port} to {port + PORTS_TRIED_MAX - 1} are in use: --port 0 takes any free ports"
    )


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def _check_free(port: int, first_port: int | None) -> None:
    if _is_free(port):
        return
    other = f", or give another first port (--port {first_port + 10000}; 0 takes any)" if first_port else ""
    raise click.ClickException(f"port {port} is in use{_port_user_hint(port)}{other}")


def _port_user_hint(port: int) -> str:
    from tidemill.cli.port_users import port_user

    user = port_user(port)
    return f" by {user}: end that" if user is not None else ": end the program that uses it"


def _reported_port(process: Background) -> int | None:
    """Returns the port of a running broker; None until it serves."""
    pid = process.pid()
    return local_cluster_settings.reported_port(process.directory / READY, pid) if pid is not None else None


def _not_started(program: str, process: Background) -> click.ClickException:
    how = "is not ready yet" if process.pid() is not None else "has ended"
    silent = "there is no space left for its log" if _is_full(process.directory) else "it printed nothing"
    last = process.last_line or silent
    return click.ClickException(f"{program} {how}: {last} (its log: {process.log_file})")


def _is_full(directory: Path) -> bool:
    return shutil.disk_usage(directory).free < FREE_BYTES_MIN


def _jars() -> str:
    try:
        return class_path()
    except ZooKeeperMissing as problem:
        raise click.ClickException(f"{problem}; or name a running ZooKeeper: --zookeeper HOST:PORT") from None


def _check_reachable(connect: str) -> None:
    """Raises ClickException when no address of the named ZooKeeper accepts connections."""
    problems = []
    for text in connect.partition("/")[0].split(","):
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdigit():
            raise click.UsageError(f"--zookeeper {connect}: {text.strip()!r} is not HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except UnicodeError:
            problems.append(f"{text.strip()}: not a host name")
        except (OSError, OverflowError) as problem:
            problems.append(f"{text.strip()}: {getattr(problem, 'strerror', None) or problem}")
        else:
            return
    raise click.ClickException(
        f"no ZooKeeper can be reached ({'; '.join(problems)}): start it, or leave --zookeeper out: "
        "a new cluster then has its own"
    )
