"""Clean stops: under load, and during the recovery after a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from crash_load import STYLES, Committer, Writer, check_accounts, make_topic, read_all, wait_for_progress

from tidemill.records.builder import BatchBuilder
from tidemill.testing import Broker

PARTITIONS = 3
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERED = "after an unclean shutdown"
BATCHES = 300_000
"""The number of batches of one message; their recovery takes some seconds in plain Python."""


def test_clean_restarts_under_load_lose_no_record_and_need_no_recovery(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        make_topic(broker, "t", PARTITIONS)
        writers = [Writer(broker, "t", PARTITIONS, style) for style in STYLES[1:4]]
        committer = Committer(broker, "t", PARTITIONS, "group")
        for one in (*writers, committer):
            one.start()
        for _ in range(4):
            wait_for_progress(writers)
            assert broker.stop() == 0
            assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
            broker.start()
            assert not (tmp_path / "data" / CLEAN_SHUTDOWN).exists()
            committer.check()
        for one in (*writers, committer):
            one.end()
        check_accounts(read_all(broker, "t", PARTITIONS), writers)
        assert RECOVERED not in broker.log, broker.log
        assert "Traceback" not in broker.log, broker.log
        broker.kill()
        broker.start()
        assert RECOVERED in broker.log


def long_recovery(tmp_path: Path) -> str:
    """Returns the path of a data directory whose recovery takes long."""
    with Broker(data_dir=tmp_path / "data") as broker:
        make_topic(broker, "t", 1)
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"message")
    batch = builder.build()
    data = b"".join([number.to_bytes(8, "big") + batch[8:] for number in range(BATCHES)])
    (tmp_path / "data" / "t-0" / (20 * "0" + ".log")).write_bytes(data)
    (tmp_path / "data" / CLEAN_SHUTDOWN).unlink()
    (tmp_path / "data" / "recovery-point-offset-checkpoint").unlink()
    return str(tmp_path / "data")


def test_a_signal_stops_a_recovery_and_the_next_start_has_every_record(tmp_path: Path) -> None:
    directory = long_recovery(tmp_path)
    command = [sys.executable, "-m", "tidemill", "serve", "-d", directory]
    with subprocess.Popen(
        [*command, "--set", "listeners=PLAINTEXT://127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    ) as process:
        # The index is rebuilt from the first batch on.
        index = Path(directory) / "t-0" / (20 * "0" + ".index")
        before = index.stat().st_mtime_ns
        deadline = time.monotonic() + 20
        while index.stat().st_mtime_ns == before and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        took_s = time.monotonic() - began
    assert process.returncode == 0, errors
    assert "Traceback" not in errors, errors
    assert "listens on" not in errors, "it was too late to disturb the recovery"
    assert took_s < 2, f"{took_s:.1f} s"
    assert not (Path(directory) / CLEAN_SHUTDOWN).exists()
    with Broker(data_dir=directory) as broker:
        stored = read_all(broker, "t", 1)[0]
        assert len(stored) == BATCHES
        assert RECOVERED in broker.log
