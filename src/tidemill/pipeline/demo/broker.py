"""The demo's broker: ``tidemill serve`` in a separate process, on a free port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tidemill.client.range_reader import RangeReader
from tidemill.model.errors import KafkaError, TidemillError

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 20.0


class BrokerFailed(TidemillError):
    """The broker did not start, or ended unexpectedly; the text has the end of its log."""


class DemoBroker:
    """Starts a broker with its data in ``directory``, and stops it."""

    def __init__(self, directory: Path) -> None:
        self.log_path = directory / "broker.log"
        self._data = directory / "broker-data"
        self._pid_path = directory / "broker.pid"
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""
        self.ready_seconds = 0.0

    def start(self) -> None:
        """Starts the broker, and returns when it answers. Raises BrokerFailed."""
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "tidemill", "serve", "--until-eof"]
        command += ["--set", f"listeners=PLAINTEXT://{self.bootstrap}", "--set", f"log.dirs={self._data}"]
        began_s = time.monotonic()
        with self.log_path.open("wb") as log:
            # Its standard input ends with this process, however that ends; it then shuts down cleanly.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self._pid_path.write_text(str(self._process.pid))
        while not self._answers():
            if self._process.poll() is not None:
                raise BrokerFailed(
                    f"the broker ended with code {self._process.returncode}:\n{self.log_end()}"
                )
            if time.monotonic() - began_s > START_SECONDS_MAX:
                self.stop()
                raise BrokerFailed(f"the broker does not answer at {self.bootstrap}:\n{self.log_end()}")
            time.sleep(0.01)
        self.ready_seconds = time.monotonic() - began_s

    def stop(self) -> int | None:
        """Shuts the broker down and returns its exit code; kills it after a timeout."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._pid_path.unlink(missing_ok=True)
        return process.returncode

    def log_end(self, lines: int = 20) -> str:
        """Returns the last lines of the broker's log."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(it has no log)"

    def resident_bytes(self) -> int | None:
        """Returns the memory of the broker's process; None if the system does not report it."""
        try:
            pages = int(
                Path(f"/proc/{self._process.pid if self._process else 0}/statm").read_text().split()[1]
            )
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _answers(self) -> bool:
        try:
            with RangeReader(self.bootstrap) as reader:
                reader.connect(0.0, 5.0)
        except (KafkaError, OSError):
            return False
        return True


def stop_leftover(directory: Path) -> None:
    """Stops the broker of an earlier demo that was killed, and waits for its end.

    The caller must hold the lock of the folder: the broker of a running demo looks the same.
    """
    pid_path = directory / "broker.pid"
    try:
        pid = int(pid_path.read_text())
    except (OSError, ValueError):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _is_broker_of(pid, directory):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline_s = time.monotonic() + STOP_SECONDS_MAX
        while _is_broker_of(pid, directory) and time.monotonic() < deadline_s:
            time.sleep(0.05)


def _is_broker_of(pid: int, directory: Path) -> bool:
    shown = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return "tidemill serve" in shown.stdout and f"{directory}{os.sep}" in shown.stdout


def free_port() -> int:
    """Returns an unused port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
