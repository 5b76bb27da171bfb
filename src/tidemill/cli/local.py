"""A cluster on this machine, for trying out, in one directory: brokers, and a ZooKeeper unless one is named.

================================  =====================================================================
in the directory                  what it holds
================================  =====================================================================
``cluster.json``                  where ZooKeeper is, and the port of each broker
``zookeeper/``                    ZooKeeper's configuration, log and data
``broker-N/server.properties``    the broker's settings: written once, and yours from then on
``broker-N/data/``                its topics
================================  =====================================================================

Both kinds of directories have the files of :mod:`tidemill.cli.processes` as well.
"""

from __future__ import annotations

import fcntl
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

from tidemill.cli import local_settings
from tidemill.cli.local_settings import HOST
from tidemill.cli.processes import POLL_S, Background

DIRECTORY = "tidemill-cluster"
DIRECTORY_VARIABLE = "TIDEMILL_CLUSTER_DIR"
FIRST_PORT = 9092
ZOOKEEPER_PORT = 2181
ZOOKEEPER = "zookeeper"
PORTS_TRIED_MAX = 100
FREE_PORTS = (20_000, 32_000)
"""Below those that connections get, so that they are still free at the next start."""

CONNECT_S = 3.0
ROOM_BYTES = 65536
"""With less than this a disk is full."""

READY = "ready.json"
SETTINGS = "server.properties"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
STOP_QUIETLY_S = 3.0


class LocalCluster:
    """The cluster in ``directory``; :meth:`load` and :meth:`new` make one."""

    def __init__(self, directory: str, zookeeper: str, own_port: int | None, ports: dict[int, int]) -> None:
        self.directory = Path(directory)
        self.zookeeper_connect = zookeeper
        self.own_port = own_port
        """Where its own ZooKeeper listens; None when another one is used."""
        self.ports = ports
        """The brokers' ports by their ids."""

    @classmethod
    def load(cls, directory: str) -> LocalCluster | None:
        """The cluster of an earlier start; None when there is none."""
        path = Path(directory, "cluster.json")
        try:
            found = json.loads(path.read_text())
            ports = {int(number): int(port) for number, port in found["brokers"].items()}
            own = found["zookeeper_port"]
            made = cls(directory, str(found["zookeeper"]), None if own is None else int(own), ports)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise click.ClickException(
                f"{path} is not what 'tidemill cluster up' wrote ({type(problem).__name__}: {problem}): "
                "repair it, or name another directory with -d"
            ) from None
        made.ports = {number: made._port_of(number, port) for number, port in ports.items()}
        return made

    @classmethod
    def existing(cls, directory: str) -> LocalCluster:
        """The same, for commands that need one."""
        found = cls.load(directory)
        if found is None:
            raise click.ClickException(
                f"there is no cluster in {directory}: 'tidemill cluster up' makes one, and -d names another "
                "directory"
            )
        return found

    @classmethod
    def new(cls, directory: str, zookeeper: str | None, is_any_port: bool) -> LocalCluster:
        """A cluster without brokers; nothing is written or started."""
        if zookeeper is not None:
            return cls(directory, _with_path(zookeeper), None, {})
        port = _port_of_running(Path(directory))
        if port is None:
            port = free_port() if is_any_port else _first_free(ZOOKEEPER_PORT)
        return cls(directory, f"{HOST}:{port}", port, {})

    def save(self) -> None:
        """Writes where all is."""
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
        """Removes what it wrote, and its directory if nothing else is there; the names of what else is."""
        for directory in (self.process(name).directory for name in self.names):
            if directory.exists():
                shutil.rmtree(directory)
        # The last of it: what was interrupted before can be done again.
        (self.directory / "cluster.json").unlink()
        left = sorted(one.name for one in self.directory.iterdir() if one.name != "lock")
        (self.directory / "lock").unlink()
        if not left:
            self.directory.resolve().rmdir()
        return left

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other commands from starting and stopping meanwhile."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise click.ClickException(
                    f"another command starts or stops the cluster in {self.directory}: wait until it is done"
                ) from None
            try:
                yield
            except KeyboardInterrupt:
                self._tell_running()
                raise
            except OSError as problem:
                if problem.filename is None and _is_full(self.directory):
                    raise click.ClickException(
                        f"there is no room left in {self.directory}: make some"
                    ) from None
                raise

    def _tell_running(self) -> None:
        """Says what goes on after a command that was interrupted."""
        running = [said(name) for name in self.running()]
        if running:
            verb = "runs" if len(running) == 1 else "run"
            click.echo(
                f"\ntidemill: {', '.join(running)} {verb}: 'tidemill cluster up{self.option}' starts what "
                f"does not, 'tidemill cluster down{self.option}' ends all",
                err=True,
            )

    # What there is

    def is_on(self, zookeeper: str) -> bool:
        """Whether that is the ZooKeeper that it uses."""
        own = f"{HOST}:{self.own_port}" if self.own_port is not None else None
        return zookeeper == own or _with_path(zookeeper) == self.zookeeper_connect

    @property
    def bootstrap(self) -> str:
        """``host:port`` of all brokers."""
        return ",".join(f"{HOST}:{port}" for _, port in sorted(self.ports.items()))

    @property
    def option(self) -> str:
        """What commands about it need to find it, for hints."""
        found = os.environ.get(DIRECTORY_VARIABLE) or DIRECTORY
        return (
            ""
            if os.path.abspath(found) == os.path.abspath(self.directory)
            else f" -d {shlex.quote(str(self.directory))}"
        )

    @property
    def next_port(self) -> int:
        """Behind those of the brokers that there are."""
        return max(self.ports.values(), default=FIRST_PORT - 1) + 1

    @property
    def names(self) -> list[str]:
        """What can be started and killed: brokers by their ids, and ZooKeeper if it is its own."""
        return [*map(str, sorted(self.ports)), *([ZOOKEEPER] if self.own_port is not None else [])]

    def process(self, name: str) -> Background:
        """The process of a broker, or of ZooKeeper."""
        if name == ZOOKEEPER:
            return Background(self.directory / ZOOKEEPER, ZOOKEEPER)
        return Background(self.directory / f"broker-{name}", "broker")

    def running(self) -> dict[str, int]:
        """The process numbers of what runs."""
        found = {name: self.process(name).pid() for name in self.names}
        return {name: pid for name, pid in found.items() if pid is not None}

    def _port_of(self, number: int, port: int) -> int:
        """Where a broker listens, or will once it is started: its file is its owner's to change."""
        process = self.process(str(number))
        pid = process.pid()
        told = local_settings.port_told(process.directory / READY, pid) if pid is not None else None
        return told or local_settings.port_in(process.directory / SETTINGS, port)

    # Making brokers

    def add_brokers(
        self, count: int, first_port: int, settings: Mapping[str, str], *, is_exact: bool = False
    ) -> None:
        """Makes so many more, with settings that go with how many there are then, and ``settings``.

        ``is_exact``: the first gets that port, or none is made. Else ports of the cluster are passed over.
        """
        made = {}
        taken = set(self.ports.values())
        port = first_port
        if is_exact and port in taken:
            owner = next(number for number, one in self.ports.items() if one == port)
            raise click.ClickException(
                f"port {port} is that of broker {owner} of this cluster: give another one, or leave --port "
                f"out for {self.next_port}"
            )
        for number in range(max(self.ports, default=0) + 1, max(self.ports, default=0) + 1 + count):
            while first_port and port in taken:
                port += 1
            made[number] = port or free_port(taken)
            taken.add(made[number])
            if first_port:
                _check_free(made[number], first_port)
        total = len(self.ports) + count
        written = {
            number: local_settings.of_broker(number, port, total, self.zookeeper_connect, settings, place)
            for place, (number, port) in enumerate(made.items())
        }
        for keys in written.values():
            local_settings.check(keys)
        for number, keys in written.items():
            directory = self.directory / f"broker-{number}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / SETTINGS).write_text(local_settings.text(keys))
        self.ports.update(made)
        self.save()

    def remove(self, number: int) -> None:
        """Forgets a broker, and deletes what it has."""
        directory = self.process(str(number)).directory
        del self.ports[number]
        self.save()
        if directory.exists():
            shutil.rmtree(directory)

    # Starting and ending

    def check(self, numbers: Collection[str]) -> None:
        """Says what is missing on this machine, before anything is written or started.

        ``numbers`` are the brokers that are to run then, of those that there are.
        """
        _need_kazoo()
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
                f"port {port}, where the ZooKeeper of {self.directory} listens, is in use{_by(port)}"
            )

    def start_zookeeper(self) -> bool:
        """Starts its ZooKeeper unless it runs, and waits until that serves; whether it was started."""
        from tidemill.server.zookeeper_jars import JAVA_OPTIONS, SERVER, serves

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
        """Starts those that do not run, all at once; each as it serves. Then says which do not."""
        waiting = {number: self.process(str(number)) for number in sorted(numbers)}
        waiting = {number: process for number, process in waiting.items() if process.pid() is None}
        for number, process in waiting.items():
            _check_free(self.ports[number], None)
            (process.directory / READY).unlink(missing_ok=True)
            command = [sys.executable, "-m", "tidemill", "serve", "--quiet"]
            command += ["--config", str(process.directory / SETTINGS)]
            command += ["--data", str(process.directory / "data")]
            process.start([*command, "--ready-file", str(process.directory / READY)], _environment())
        deadline = time.monotonic() + START_TIMEOUT_S
        problems = []
        while waiting:
            for number, process in list(waiting.items()):
                if _is_ready(process):
                    del waiting[number]
                    self.ports[number] = self._port_of(number, self.ports[number])
                    yield number
                elif process.pid() is None or time.monotonic() > deadline:
                    del waiting[number]
                    problems.append(_not_started(f"broker {number}", process).message)
            time.sleep(POLL_S)
        if problems:
            raise click.ClickException("\ntidemill: ".join(problems))

    def stop(self, name: str) -> bool:
        """Ends one in order, and waits for that; whether it ran."""
        process = self.process(name)
        if self._signal(name, signal.SIGTERM) is None:
            return False
        if process.wait_end(STOP_QUIETLY_S):
            return True
        at_once = f"'tidemill cluster kill {name}{self.option}' ends it at once"
        if process.stands_still:
            raise click.ClickException(
                f"{said(name)} (process {process.pid()}) was halted, as SIGSTOP does, and stops only when it "
                f"goes on: 'kill -CONT {process.pid()}' lets it, {at_once}"
            )
        click.echo(f"{said(name)} is still stopping; it gets {STOP_TIMEOUT_S:g} s ({at_once})", err=True)
        if not process.wait_end(STOP_TIMEOUT_S - STOP_QUIETLY_S):
            raise click.ClickException(
                f"{said(name)} has not stopped within {STOP_TIMEOUT_S:g} s (its log: {process.log_file}): "
                f"{at_once}"
            )
        return True

    def kill(self, name: str) -> int | None:
        """Ends one at once, as a crash does; its process number, None when it did not run."""
        pid = self._signal(name, signal.SIGKILL)
        self.process(name).wait_end(STOP_TIMEOUT_S)
        return pid

    def _signal(self, name: str, number: signal.Signals) -> int | None:
        process = self.process(name)
        try:
            return process.signal(number)
        except PermissionError:
            raise click.ClickException(
                f"{said(name)} (process {process.pid()}) is another user's: give the command as that one"
            ) from None


def said(name: str) -> str:
    """A name in words."""
    return "ZooKeeper" if name == ZOOKEEPER else f"broker {name}"


def _with_path(zookeeper: str) -> str:
    # Brokers of the same ids may be on the bare address: these must not join them.
    return zookeeper if "/" in zookeeper else f"{zookeeper}/{DIRECTORY}"


def _environment() -> dict[str, str]:
    """This process's, without keys of brokers: these would go before each broker's own file."""
    from tidemill.model.configs.sources import ENVIRONMENT_PREFIX, NOT_KEYS

    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENVIRONMENT_PREFIX) or name in NOT_KEYS
    }


def _port_of_running(directory: Path) -> int | None:
    """Where a ZooKeeper of this directory listens that runs although ``cluster.json`` is gone."""
    process = Background(directory / ZOOKEEPER, ZOOKEEPER)
    if process.pid() is None:
        return None
    try:
        lines = (process.directory / "zoo.cfg").read_text().splitlines()
        return int(dict(line.split("=", 1) for line in lines if "=" in line)["clientPort"])
    except (OSError, ValueError, KeyError):
        return None


def free_port(but: Collection[int] = ()) -> int:
    """A port that nobody has, and that systems give to nobody who does not ask for it."""
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
        f"ports {port} to {port + PORTS_TRIED_MAX - 1} are in use: --port 0 takes any that are free"
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
    raise click.ClickException(f"port {port} is in use{_by(port)}{other}")


def _by(port: int) -> str:
    from tidemill.cli.port_users import port_user

    user = port_user(port)
    return f" by {user}: end that" if user is not None else ": end what uses it"


def _is_ready(process: Background) -> bool:
    pid = process.pid()
    return pid is not None and local_settings.port_told(process.directory / READY, pid) is not None


def _not_started(what: str, process: Background) -> click.ClickException:
    how = "does not serve yet" if process.pid() is not None else "has ended"
    silent = "there is no room left for its log" if _is_full(process.directory) else "it said nothing"
    last = process.last_line or silent
    return click.ClickException(f"{what} {how}: {last} (its log: {process.log_file})")


def _is_full(directory: Path) -> bool:
    return shutil.disk_usage(directory).free < ROOM_BYTES


def _jars() -> str:
    from tidemill.server.zookeeper_jars import ZooKeeperMissing, class_path

    try:
        return class_path()
    except ZooKeeperMissing as problem:
        raise click.ClickException(
            f"{problem}; or name a ZooKeeper that runs: --zookeeper HOST:PORT"
        ) from None


def _check_reachable(connect: str) -> None:
    """Says at once when nobody listens at any address of a ZooKeeper that was named."""
    problems = []
    for text in connect.partition("/")[0].split(","):
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdigit():
            raise click.UsageError(f"--zookeeper {connect}: {text.strip()!r} is not HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except UnicodeError:
            problems.append(f"{text.strip()}: it is no host name")
        except (OSError, OverflowError) as problem:
            problems.append(f"{text.strip()}: {getattr(problem, 'strerror', None) or problem}")
        else:
            return
    raise click.ClickException(
        f"no ZooKeeper can be reached ({'; '.join(problems)}): start it; without --zookeeper "
        "a new cluster has one of its own"
    )


def _need_kazoo() -> None:
    import importlib.util

    if importlib.util.find_spec("kazoo") is None:
        raise click.ClickException(
            "brokers reach ZooKeeper by kazoo, which is not installed: pip install 'tidemill[zookeeper]'"
        )
