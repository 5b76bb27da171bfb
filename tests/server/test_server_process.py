"""The broker process: errors of the start, signals, notifications, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill._interrupts import STOP_SIGNALS
from tidemill.model.configs import Listener
from tidemill.server.process import Signals, StoppedWhileStarting
from tidemill.server.startup_report import hints, loopback_warning
from tidemill.testing import Broker

FREE_PORT = "listeners=PLAINTEXT://127.0.0.1:0"


def serve_once(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a broker whose start must fail."""
    return subprocess.run(
        [sys.executable, "-m", "tidemill", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **variables},
    )


def assert_one_clear_line(outcome: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    lines = [line for line in outcome.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("tidemill: ")
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as running:
        yield running


@pytest.mark.parametrize(
    ("settings", "directory", "parts"),
    [
        pytest.param(
            ["num.partitions=many"],
            "new",
            ["num.partitions=many", "a whole number, 1 or more", "--set num.partitions"],
            id="an invalid value",
        ),
        pytest.param(
            ["listeners=PLAINTEXT://127.0.0.1:{port}"],
            "other",
            ["127.0.0.1:{port}", "in use", "--port PORT"],
            id="a port in use",
        ),
        pytest.param(
            [FREE_PORT, "tidemill.metrics.port={port}"],
            "other",
            ["tidemill.metrics.port={port}", "cannot be bound"],
            id="a metrics port in use",
        ),
        pytest.param([FREE_PORT], "data", ["{path}/data", "another"], id="a locked data directory"),
        pytest.param([FREE_PORT], "file", ["{path}/file"], id="a file instead of a directory"),
    ],
)
def test_an_error_of_the_start_is_reported_in_one_line(
    tmp_path: Path, broker: Broker, settings: list[str], directory: str, parts: list[str]
) -> None:
    (tmp_path / "file").write_text("x")
    options = [f"--set={one.format(port=broker.port)}" for one in settings]
    outcome = serve_once(*options, "-d", str(tmp_path / directory))
    assert_one_clear_line(outcome, *(part.format(port=broker.port, path=tmp_path) for part in parts))

    assert not (tmp_path / "new").exists()


def test_a_missing_configuration_file_is_reported(tmp_path: Path) -> None:
    outcome = serve_once("--config", str(tmp_path / "x"))
    assert outcome.returncode == 2
    assert f"{tmp_path / 'x'} does not exist: name a properties file" in outcome.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permissions_is_reported(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    outcome = serve_once("--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", str(closed / "data"))
    assert_one_clear_line(outcome, str(closed), "ermission")


def test_rejects_the_data_of_another_broker(tmp_path: Path) -> None:
    with Broker({"broker.id": 5}, data_dir=tmp_path / "data") as first:
        directory = first.data_dir
    outcome = serve_once(
        "--set", "broker.id=6", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", directory
    )
    assert_one_clear_line(outcome, directory, "5", "6")


def test_rejects_the_data_of_another_cluster(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Broker({"broker.id": 1}, data_dir=tmp_path / name):
            pass
    outcome = serve_once(
        "--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", f"{tmp_path / 'one'},{tmp_path / 'two'}"
    )
    assert_one_clear_line(outcome, str(tmp_path / "two"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_causes_a_clean_shutdown_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    # The broker inherits ignored signals (``nohup``).
    before = signal.signal(number, signal.SIG_DFL)
    try:
        broker = Broker(data_dir=tmp_path / "data").start()
    finally:
        signal.signal(number, before)
    process = broker._process
    assert process is not None
    process.send_signal(number)
    assert process.wait(20) == 0
    assert f"{number.name}: stopping" in broker.log
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    broker.close()


def test_a_broker_stops_when_all_data_directories_have_failed(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    with Broker({"log.dirs": ",".join(map(str, directories))}) as running:
        directories[1].rename(tmp_path / "away")
        until_logged(running, "does not exist: another program has removed or unmounted it")
        assert running.running
        directories[0].rename(tmp_path / "too")
        process = running._process
        assert process is not None
        assert process.wait(30) == 74
        assert "all data directories have failed" in running.log
        assert "Traceback" not in running.log
        assert "all acknowledged records are on disk" not in running.log


def until_logged(broker: Broker, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in broker.log:
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.02)


def test_the_end_of_standard_input_stops_the_broker_with_until_eof(broker: Broker) -> None:
    process = broker._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0
    assert "end of standard input" in broker.log


def test_notifies_readiness_in_a_file_and_to_systemd(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(20)
        ready = tmp_path / "ready.json"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidemill", "serve", "--until-eof", "--ready-file", str(ready)),
                *("--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", str(tmp_path / "data")),
                *("--set", "tidemill.metrics.port=0"),
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
        )
        try:
            assert notify.recv(100) == b"READY=1"
            ready_data = json.loads(ready.read_text())
            assert ready_data["pid"] == process.pid
            port = ready_data["listeners"][0]["port"]
            with socket.create_connection(("127.0.0.1", port), 5):
                pass
            with urllib.request.urlopen(
                f"http://127.0.0.1:{ready_data['metrics_port']}/healthz", timeout=5
            ) as answer:
                assert json.load(answer)["status"] == "ok"
            with urllib.request.urlopen(
                f"http://127.0.0.1:{ready_data['metrics_port']}/metrics", timeout=5
            ) as answer:
                body = answer.read().decode()
            assert "tidemill_connections_accepted_total 1.0" in body
            assert "tidemill_active_controller 1.0" in body
        finally:
            _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"tidemill topic create hello -b 127.0.0.1:{port}" in errors


def test_inconsistent_data_directories_fail_the_start(tmp_path: Path) -> None:
    here = tmp_path / "d"
    outcome = serve_once("-d", str(here), "--set", "cordoned.log.dirs=/nowhere")
    assert outcome.returncode == 1
    assert f"cordoned.log.dirs names /nowhere, which is not in log.dirs={here}" in outcome.stderr
    outcome = serve_once("-d", f"{here},{here}")
    assert outcome.returncode == 1
    assert f"log.dirs names {here} twice: name each data directory once (-d/--data)" in outcome.stderr
    assert not here.exists()


def test_duplicate_options_are_reported_as_given(tmp_path: Path) -> None:
    outcome = subprocess.run(
        [
            *(sys.executable, "-m", "tidemill", "serve", "--until-eof", "-d", str(tmp_path / "a"), "-p", "0"),
            *("--set", f"log.dirs={tmp_path / 'b'}", "--set", "listeners=PLAINTEXT://127.0.0.1:0"),
        ],
        input="",
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert outcome.returncode == 0
    assert "log.dirs is given twice (-d/--data, --set log.dirs): the last value applies" in outcome.stderr
    assert "listeners is given twice (-p/--port, --set listeners): the last value applies" in outcome.stderr


def test_logs_unknown_keys_and_keys_without_effect(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partition=3\n")
    environment = {"TIDEMILL_CONFIG": str(file)}
    with Broker({"num.io.threads": 3}, data_dir=tmp_path / "data", environment=environment) as broker:
        log = broker.log
    assert (
        f"WARNING server: num.partition is not a broker key, and has no effect ({file}:1); "
        "did you mean num.partitions?"
    ) in log
    assert "INFO    server: num.io.threads is accepted; no effect: one event loop" in log


def test_warns_of_a_low_limit_of_open_files(tmp_path: Path) -> None:
    outcome = subprocess.run(
        ["bash", "-c", f"ulimit -n 512; exec {sys.executable} -m tidemill serve --until-eof -d {tmp_path}/d"
         " --set listeners=PLAINTEXT://127.0.0.1:0 < /dev/null"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert outcome.returncode == 0
    assert "may open only 512 files" in outcome.stderr


def test_hints_are_complete_commands() -> None:
    everywhere = Listener("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
    text = "\n".join(hints([("PLAINTEXT", "", 9092)], [everywhere]))
    assert "tidemill topic create hello\n" in text
    assert "advertised.listeners=PLAINTEXT://" in text
    own = Listener("PLAINTEXT", "PLAINTEXT", "::1", 5)
    text = "\n".join(hints([("PLAINTEXT", "::1", 5)], [own]))
    assert "tidemill produce hello -b [::1]:5" in text
    assert "advertised.listeners" not in text


def test_warns_if_a_remote_client_receives_a_loopback_address() -> None:
    warning = loopback_warning("PLAINTEXT", "localhost", 9092, "10.0.0.7", "10.0.0.1")
    assert warning is not None
    assert "10.0.0.7" in warning
    assert "PLAINTEXT://" in warning
    assert loopback_warning("PLAINTEXT", "localhost", 9092, "127.0.0.1", "127.0.0.1") is None
    assert loopback_warning("PLAINTEXT", "localhost", 9092, "10.0.0.1", "10.0.0.1") is None
    assert loopback_warning("PLAINTEXT", "example.org", 9092, "10.0.0.7", "10.0.0.1") is None


def test_ctrl_c_during_the_imports_of_python_ends_the_start(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys, tidemill.__main__ as command

        signal.signal(signal.SIGINT, signal.default_int_handler)

        class Late:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                sum(range(100))

        watch = command._interrupts.watch
        command._interrupts.watch = lambda: (watch(), Late(), None)[-1]
        command.main()
    """
    ended = subprocess.run(
        [
            *(sys.executable, "-c", code, "serve", "-d", tmp_path / "d"),
            *("--set", "listeners=PLAINTEXT://127.0.0.1:0"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Exception ignored in" in ended.stderr
    assert ended.returncode == 0
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("delay_s", [0.02, 0.1, 0.3, 0.5])
def test_ctrl_c_ends_a_start_without_traceback_at_any_time(tmp_path: Path, delay_s: float) -> None:
    # The time is random, and the result always the same.
    # Shells start background processes with SIGINT ignored, which child processes inherit.
    code = """if True:
        import os, signal, tidemill.__main__ as command

        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(1, b'.')
        command.main()
    """
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", code, "serve", "-q", "-d", tmp_path / "d"),
            *("--set", "listeners=PLAINTEXT://127.0.0.1:0"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"."
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors


def test_ctrl_c_in_a_finalizer_during_the_start_is_not_reported(tmp_path: Path) -> None:
    code = """if True:
        import os, signal
        from tidemill.server import process

        class Late:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                sum(range(100))

        read = process.read_config
        process.read_config = lambda start: (Late(), read(start))[-1]
        from tidemill.__main__ import main
        main()
    """
    ended = subprocess.run(
        [
            *(sys.executable, "-c", code, "serve", "-q", "-d", tmp_path / "d"),
            *("--set", "listeners=PLAINTEXT://127.0.0.1:0"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "SIGINT during the start: stopped" in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_a_signal_while_the_handlers_are_installed_stops_the_broker_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both handlers receive such a signal: that of the start, and that of the event loop."""
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("a forced end"))
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    async def run() -> None:
        stopping = asyncio.Event()
        signals = Signals(stopping)
        signals.interrupt_start()
        loop = asyncio.get_running_loop()
        signals.cancel_start(loop)
        install = loop.add_signal_handler

        def install_late(number: int, *of: Any) -> None:
            if number == signal.SIGINT:
                # The event loop has begun to watch signals, and the handler is that of the start.
                install(signal.SIGUSR2, lambda: None)
                loop._signal_handlers[number] = asyncio.Handle(of[0], of[1:], loop)  # type: ignore[attr-defined]
                os.kill(os.getpid(), number)
            install(number, *of)

        monkeypatch.setattr(loop, "add_signal_handler", install_late)
        try:
            signals.install(loop)
            await stopping.wait()
            await asyncio.sleep(0.05)
            assert signals.name == "SIGINT"
        finally:
            for number in (*STOP_SIGNALS, signal.SIGUSR2):
                loop.remove_signal_handler(number)

    try:
        asyncio.run(run())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("reason", ["signal", "disks"])
def test_a_signal_soon_after_another_is_the_same_request(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """A wrapper such as timeout(1) sends a signal to its child, and then to the process group of both."""
    ended: list[int] = []
    now = [100.0]
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    signals = Signals(asyncio.Event())
    if reason == "disks":
        signals.on_all_directories_failed()
    else:
        signals._on_signal(signal.SIGINT)
    with contextlib.redirect_stderr(io.StringIO()) as log:
        now[0] += 0.4
        signals._on_signal(signal.SIGTERM)
        assert (ended, signals.name) == ([], "SIGINT" if reason == "signal" else "asked to stop")
        now[0] += 0.2
        signals._on_signal(signal.SIGTERM)
    assert ended == [130]
    assert log.closed


def test_two_signals_at_once_cause_a_clean_shutdown(tmp_path: Path, broker: Broker) -> None:
    process = broker._process
    assert process is not None
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_signal_during_a_wait_interrupts_no_callback() -> None:
    """Other tasks may wait for the callback. The signal cancels the task of the start instead."""
    done: list[str] = []

    def callback() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("the callback")

    async def start(signals: Signals) -> None:
        loop = asyncio.get_running_loop()
        signals.cancel_start(loop)
        loop.call_soon(callback)
        try:
            await asyncio.sleep(20)
        finally:
            done.append("the start")

    before = [(one, signal.getsignal(one)) for one in STOP_SIGNALS]
    signals = Signals(asyncio.Event())
    try:
        signals.interrupt_start()
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(start(signals))
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert done == ["the callback", "the start"]
    assert signals.name == "SIGINT"


def test_a_signal_raises_while_the_start_blocks_the_event_loop() -> None:
    async def start(signals: Signals) -> None:
        signals.cancel_start(asyncio.get_running_loop())
        with signals.interrupting():
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the logs are checked to the end")

    before = [(one, signal.getsignal(one)) for one in STOP_SIGNALS]
    signals = Signals(asyncio.Event())
    try:
        signals.interrupt_start()
        with pytest.raises(StoppedWhileStarting):
            asyncio.run(start(signals))
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert signals.name == "SIGTERM"


def test_a_start_imports_only_the_modules_that_an_idle_broker_uses() -> None:
    script = """
import sys, types, tidemill.server.process, tidemill.server.broker_server
# A module that is executed with its first use has another type until then.
print(*(name for name, module in sys.modules.items() if type(module) is types.ModuleType))
"""
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    imported = set(out.split())
    messages = {name.rpartition(".")[2] for name in imported if name.startswith("tidemill.wire.messages.")}
    assert messages == {"api_versions"}
    # Each takes up to a megabyte.
    assert not imported & {"dataclasses", "hashlib", "pickle", "secrets", "tempfile", "tidemill.wire.codegen"}
