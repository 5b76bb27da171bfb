"""The process around a broker, as an operator meets it: real processes, real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.model.configs import Listener
from tidemill.server.announce import hints, loopback_warning
from tidemill.server.process import STOP_SIGNALS, Signals, StoppedWhileStarting
from tidemill.testing import Broker

Serve = Callable[..., "subprocess.CompletedProcess[str]"]


def serve_once(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a broker that must fail to start."""
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


def test_a_bad_value_is_named_with_what_is_allowed(tmp_path: Path) -> None:
    outcome = serve_once("--set", "num.partitions=many", "-d", str(tmp_path / "d"))
    assert_one_clear_line(outcome, "num.partitions=many", "a whole number, 1 or more", "--set num.partitions")
    assert not (tmp_path / "d").exists()


def test_a_configuration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    outcome = serve_once("--config", str(tmp_path / "x"))
    assert outcome.returncode == 2
    assert f"{tmp_path / 'x'} is not there: name a properties file" in outcome.stderr


def test_a_port_in_use_is_named(tmp_path: Path, broker: Broker) -> None:
    outcome = serve_once(
        "--set", f"listeners=PLAINTEXT://127.0.0.1:{broker.port}", "-d", str(tmp_path / "other")
    )
    assert_one_clear_line(outcome, f"127.0.0.1:{broker.port}", "in use", "--port PORT")


def test_a_metrics_port_in_use_is_named(tmp_path: Path, broker: Broker) -> None:
    outcome = serve_once(
        "--set",
        "listeners=PLAINTEXT://127.0.0.1:0",
        "--set",
        f"tidemill.metrics.port={broker.port}",
        "-d",
        str(tmp_path / "other"),
    )
    assert_one_clear_line(outcome, f"tidemill.metrics.port={broker.port}", "cannot be bound")


def test_a_locked_data_directory_is_named(broker: Broker) -> None:
    outcome = serve_once("--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", broker.data_dir)
    assert_one_clear_line(outcome, broker.data_dir, "another")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_rights_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    outcome = serve_once("--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", str(closed / "data"))
    assert_one_clear_line(outcome, str(closed), "ermission")


def test_a_file_in_the_place_of_the_data_directory_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    outcome = serve_once("--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", str(file))
    assert_one_clear_line(outcome, str(file))


def test_the_data_of_another_broker_is_refused(tmp_path: Path) -> None:
    with Broker({"broker.id": 5}, data_dir=tmp_path / "data") as first:
        directory = first.data_dir
    outcome = serve_once(
        "--set", "broker.id=6", "--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", directory
    )
    assert_one_clear_line(outcome, directory, "5", "6")


def test_the_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Broker({"broker.id": 1}, data_dir=tmp_path / name):
            pass
    outcome = serve_once(
        "--set", "listeners=PLAINTEXT://127.0.0.1:0", "-d", f"{tmp_path / 'one'},{tmp_path / 'two'}"
    )
    assert_one_clear_line(outcome, str(tmp_path / "two"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_in_order_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    # What the tests ignore (``nohup``), the broker would ignore as well.
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


def test_a_broker_whose_last_data_directory_is_gone_ends(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    with Broker({"log.dirs": ",".join(map(str, directories))}) as running:
        directories[1].rename(tmp_path / "away")
        until_it_says(running, "is gone: something other than the broker removed or unmounted it")
        assert running.running
        directories[0].rename(tmp_path / "too")
        process = running._process
        assert process is not None
        assert process.wait(30) == 74
        assert "no data directory works any more" in running.log
        assert "Traceback" not in running.log
        assert "what was acknowledged is on the disk" not in running.log


def until_it_says(broker: Broker, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in broker.log:
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.02)


def test_the_end_of_standard_input_stops_it_when_asked(broker: Broker) -> None:
    process = broker._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 0
    assert "end of standard input" in broker.log


def test_ready_is_told_in_a_file_and_to_systemd(tmp_path: Path) -> None:
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
            told = json.loads(ready.read_text())
            assert told["pid"] == process.pid
            port = told["listeners"][0]["port"]
            with socket.create_connection(("127.0.0.1", port), 5):
                pass
            with urllib.request.urlopen(
                f"http://127.0.0.1:{told['metrics_port']}/healthz", timeout=5
            ) as answer:
                assert json.load(answer)["status"] == "ok"
            with urllib.request.urlopen(
                f"http://127.0.0.1:{told['metrics_port']}/metrics", timeout=5
            ) as answer:
                body = answer.read().decode()
            assert "tidemill_connections_accepted_total 1.0" in body
            assert "tidemill_active_controller 1.0" in body
        finally:
            _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"tidemill topic create hello -b 127.0.0.1:{port}" in errors


def test_data_directories_that_contradict_each_other_stop_the_start(tmp_path: Path) -> None:
    here = tmp_path / "d"
    outcome = serve_once("-d", str(here), "--set", "cordoned.log.dirs=/nowhere")
    assert outcome.returncode == 1
    assert f"cordoned.log.dirs names /nowhere, which is not in log.dirs={here}" in outcome.stderr
    outcome = serve_once("-d", f"{here},{here}")
    assert outcome.returncode == 1
    assert f"log.dirs names {here} twice: name each data directory once (-d/--data)" in outcome.stderr
    assert not here.exists()


def test_options_that_come_twice_are_named_as_they_were_given(tmp_path: Path) -> None:
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
    assert "log.dirs is given twice (-d/--data, --set log.dirs): the last one holds" in outcome.stderr
    assert "listeners is given twice (-p/--port, --set listeners): the last one holds" in outcome.stderr


def test_unknown_keys_are_warned_of_and_idle_ones_noted(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partition=3\n")
    environment = {"TIDEMILL_CONFIG": str(file)}
    with Broker({"num.io.threads": 3}, data_dir=tmp_path / "data", environment=environment) as broker:
        log = broker.log
    assert (
        f"WARNING server: num.partition is no key of the broker, and without effect ({file}:1); "
        "did you mean num.partitions?"
    ) in log
    assert "INFO    server: num.io.threads is accepted; no effect: one event loop" in log


def test_a_low_limit_of_open_files_is_told(tmp_path: Path) -> None:
    outcome = subprocess.run(
        ["bash", "-c", f"ulimit -n 512; exec {sys.executable} -m tidemill serve --until-eof -d {tmp_path}/d"
         " --set listeners=PLAINTEXT://127.0.0.1:0 < /dev/null"],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert outcome.returncode == 0
    assert "may open only 512 files" in outcome.stderr


def test_hints_can_be_pasted() -> None:
    everywhere = Listener("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
    text = "\n".join(hints([("PLAINTEXT", "", 9092)], [everywhere]))
    assert "tidemill topic create hello\n" in text
    assert "advertised.listeners=PLAINTEXT://" in text
    own = Listener("PLAINTEXT", "PLAINTEXT", "::1", 5)
    text = "\n".join(hints([("PLAINTEXT", "::1", 5)], [own]))
    assert "tidemill produce hello -b [::1]:5" in text
    assert "advertised.listeners" not in text


def test_a_client_from_elsewhere_that_is_sent_to_loopback_is_warned_of() -> None:
    warning = loopback_warning("PLAINTEXT", "localhost", 9092, "10.0.0.7", "10.0.0.1")
    assert warning is not None
    assert "10.0.0.7" in warning
    assert "PLAINTEXT://" in warning
    assert loopback_warning("PLAINTEXT", "localhost", 9092, "127.0.0.1", "127.0.0.1") is None
    assert loopback_warning("PLAINTEXT", "localhost", 9092, "10.0.0.1", "10.0.0.1") is None
    assert loopback_warning("PLAINTEXT", "example.org", 9092, "10.0.0.7", "10.0.0.1") is None


def test_ctrl_c_that_python_loses_while_it_loads_ends_the_start_too(tmp_path: Path) -> None:
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
def test_ctrl_c_ends_a_start_quietly_whenever_it_comes(tmp_path: Path, delay_s: float) -> None:
    # The moment is by chance; whichever it is, the end is the same.
    # Shells start what runs in the background with SIGINT ignored, and so would be the tests' children.
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


def test_a_signal_while_a_start_waits_breaks_no_callback_off() -> None:
    """Others may wait for what the callback does at its end: the start is cancelled where it waits."""
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


def test_a_signal_raises_where_a_start_holds_the_loop() -> None:
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
