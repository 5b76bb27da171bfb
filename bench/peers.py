"""The compared brokers: Tidemill and Apache Kafka, each as a process with a clean directory.

Run as a program, it downloads Apache Kafka's jars and prints their path.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

KAFKA_VERSION = "4.3.1"
ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>jars</artifactId>
<version>1</version><dependencies>{}</dependencies></project>
"""
DEPENDENCY = """
<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"""


def maven_jars(directory: Path, *artifacts: str) -> Path:
    """Returns a directory of jars, downloaded with Maven if necessary: artifacts as group:name:version."""
    done = directory / ".complete"
    if not done.exists():
        if shutil.which("mvn") is None or shutil.which("java") is None:
            raise SystemExit("bench: Maven and Java are needed (apt-get install maven)")
        directory.mkdir(parents=True, exist_ok=True)
        wanted = "".join(DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        (directory / "pom.xml").write_text(POM.format(wanted))
        subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"],
            cwd=directory,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        done.touch()
    return directory / "libs"


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Returns the directory of Apache Kafka's jars."""
    given = os.environ.get("TIDEMILL_KAFKA_LIBS")
    if given:
        return Path(given)
    if version.startswith("0.8."):
        return maven_jars(BUILD / "kafka" / version, f"org.apache.kafka:kafka_2.11:{version}")
    return maven_jars(
        BUILD / "kafka" / version,
        f"org.apache.kafka:kafka_2.13:{version}",
        f"org.apache.kafka:kafka-tools:{version}",
        "org.slf4j:slf4j-simple:1.7.36",
    )


LOAD = Path(__file__).resolve().parent / "load.py"
Figures = dict[str, float]


def load(*arguments: object) -> Figures:
    """Runs one client process."""
    return run_client(LOAD, *arguments)


def run_client(program: Path, *arguments: object) -> Figures:
    """Runs a program with arguments; returns the figures that it prints."""
    done = subprocess.run(
        [sys.executable, str(program), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def end_in_order() -> None:
    """Makes SIGTERM end this program as ctrl-C does: brokers are stopped, and directories removed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def warm_memory(count: int) -> None:
    """Allocates and frees ``count`` bytes, so that the pages that a run needs are ready.

    A virtual machine returns freed pages to its host within seconds, and the first access to each then costs
    several times as much as a write to a log: otherwise the host would be measured.
    """
    chunk = b"x" * (1 << 20)
    with mmap.mmap(-1, count) as pages:
        for _ in range(count >> 20):
            pages.write(chunk)


class CallCount:
    """Counts the system calls of processes until :meth:`end`.

    Uses ``perf``; without it or without permission, counts only their reads and writes.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._perf = self._begun()
        self._before = self._read_or_written()

    def _begun(self) -> subprocess.Popen[str] | None:
        if shutil.which("perf") is None:
            return None
        perf = subprocess.Popen(
            ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", ",".join(map(str, self._pids))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.3)
        return perf if perf.poll() is None else None

    def _read_or_written(self) -> int:
        count = 0
        for pid in self._pids:
            words = Path(f"/proc/{pid}/io").read_text().split()
            count += int(words[words.index("syscr:") + 1]) + int(words[words.index("syscw:") + 1])
        return count

    def end(self) -> int:
        """Returns the number of calls."""
        counted = self._read_or_written() - self._before
        if self._perf is not None:
            self._perf.send_signal(signal.SIGINT)
            first = self._perf.communicate()[1].split(",")[0]
            counted = int(first) if first.isdigit() else counted
        return counted


def free_port() -> int:
    """Returns an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Peer:
    """A broker as a process; ``with`` starts and removes it. ``settings``: ``key=value`` lines."""

    name = "?"

    def __init__(self, data: Path, settings: Sequence[str] = ()) -> None:
        self.data = data
        self.settings = tuple(settings)
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_s = 0.0

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Returns the command and its environment."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepares the broker before the measurement."""

    def __enter__(self) -> Peer:
        self.make_ready()
        self.start()
        return self

    def make_ready(self) -> None:
        """Creates an empty directory, and an empty file for the output."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        self.prepare()
        self.log_path.unlink(missing_ok=True)

    @property
    def log_path(self) -> Path:
        """The path of the broker's output."""
        return self.data.parent / f"{self.data.name}.log"

    def start(self) -> None:
        """Starts the broker with the data in its directory, and waits."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts the broker without waiting for a response."""
        command, variables = self.command()
        self.log = self.log_path.open("ab")
        self._began = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=self.log,
            stderr=self.log,
            stdin=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Waits until the broker responds."""
        self._answered()
        self.ready_s = time.perf_counter() - self._began

    def _answered(self) -> None:
        request = bytes.fromhex("0000000a0012000000000001ffff")
        for _ in range(12_000):
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as probe:
                    probe.sendall(request)
                    if probe.recv(4):
                        return
            except OSError:
                time.sleep(0.005)
            if self.process is not None and self.process.poll() is not None:
                said = self.log_path.read_text(errors="replace")[-2000:]
                raise SystemExit(f"bench: {self.name} did not start:\n{said}")
        raise SystemExit(f"bench: {self.name} did not answer within a minute, see {self.log.name}")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Stops the broker and removes its directory."""
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    def stop(self) -> None:
        """Stops the broker; keeps its directory."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
            self.log.close()

    def kill(self) -> None:
        """Kills the broker, as a crash does; keeps its directory."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.log.close()

    @property
    def pid(self) -> int:
        """The broker's process."""
        if self.process is None:
            raise RuntimeError("the broker was not started")
        return self.process.pid

    def cpu_s(self) -> float:
        """Processor seconds that the broker has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Resident megabytes of the broker."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0


class Tidemill(Peer):
    """Tidemill, from the environment that runs the benchmark."""

    name = "tidemill"

    def command(self) -> tuple[list[str], dict[str, str]]:
        return [
            sys.executable,
            "-m",
            "tidemill",
            "serve",
            "--set",
            f"listeners=PLAINTEXT://127.0.0.1:{self.port}",
            "--set",
            f"log.dirs={self.data}",
            "--set",
            "num.partitions=3",
            *(part for line in self.settings for part in ("--set", line)),
        ], {"PYTHONDONTWRITEBYTECODE": ""}


class Kafka(Peer):
    """Apache Kafka, a KRaft broker with a heap of 1 GB. ``told``: loggers whose lines go to the log."""

    name = "kafka"
    told: tuple[str, ...] = ()

    def __init__(self, data: Path, settings: Sequence[str] = (), node_id: int = 1) -> None:
        super().__init__(data, settings)
        self.node_id = node_id
        self.controller_port = free_port()
        self.voters = f"{node_id}@127.0.0.1:{self.controller_port}"
        """Of the quorum; of a cluster, all of them."""
        self.jars = kafka_jars()
        self.properties = data.parent / f"{data.name}.properties"

    def prepare(self) -> None:
        self.properties.write_text(
            f"process.roles=broker,controller\nnode.id={self.node_id}\n"
            f"controller.quorum.voters={self.voters}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}\ncontroller.listener.names=CONTROLLER\n"
            f"log.dirs={self.data}\nnum.partitions=3\noffsets.topic.replication.factor=1\n"
            "group.initial.rebalance.delay.ms=0\n" + "".join(f"{line}\n" for line in self.settings)
        )
        cluster_id = "A" * 22
        self.tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.properties))

    def tool(self, *arguments: str) -> str:
        """Runs one of Kafka's tools by class, with arguments; returns its output."""
        return subprocess.run(
            [*self._java(), *arguments], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def _java(self) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        told = [f"-Dorg.slf4j.simpleLogger.log.{name}=info" for name in self.told]
        return ["java", quiet, *told, "-cp", f"{self.jars}/*"]

    def command(self) -> tuple[list[str], dict[str, str]]:
        java = self._java()
        options = ["-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return [java[0], *options, *java[1:], "kafka.Kafka", str(self.properties)], {}


if __name__ == "__main__":
    print(kafka_jars())
