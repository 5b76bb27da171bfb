"""A full disk: writes return an error, reads continue, and writes succeed again once there is space."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash_machine import NOW, PATIENCE_S, Client, NewMachine, batch_of
from faulty_files import FaultyFiles

from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

DISK_BYTES = 8 * 1024 * 1024
VALUE_BYTES = 20_000
FILES_BYTES = 3 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small file system")
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def value(number: int) -> bytes:
    """Returns the value of a message."""
    return b"%06d " % number + bytes(VALUE_BYTES)


def fill(client: Client, first: int, topic: str = "t") -> list[bytes]:
    """Writes until the disk is full; returns the acknowledged messages."""
    written: list[bytes] = []
    for number in range(first, first + 2000):
        client.produce(topic, 0, batch_of(value(number)))
        code, offset = client.produced()
        if code:
            assert (code, offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            return written
        assert offset == number
        written.append(value(number))
    raise AssertionError("the disk has no end")


def wait_until(done: Callable[[], bool]) -> None:
    """Waits until the condition is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fill_file_system(directory: Path) -> None:
    """Fills the file system to the last byte."""
    with contextlib.suppress(OSError), open(directory / "filler", "ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass


def offset_at(client: Client, timestamp: int) -> int:
    """Returns the first offset at or after a time."""
    part = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    asked = ListOffsetsTopic(name="t", partitions=[part])
    answer = client.ask(ApiKey.LIST_OFFSETS, 5, ListOffsetsRequest(replica_id=-1, topics=[asked]))
    found: int = answer.topics[0].partitions[0].offset
    return found


def test_a_full_file_system_refuses_only_writes_until_there_is_space(small_disk: Path) -> None:
    with Broker(data_dir=small_disk / "data") as broker:
        address = (broker.host, broker.port)
        client = Client(address)
        with contextlib.closing(client):
            assert client.make_topic("t") == 0
            wait_until(lambda: client.coordinator("group") == 0)
            wait_until(lambda: client.commit("group", "t", 1) == 0)
            (small_disk / "filler").write_bytes(bytes(3_000_000))
            written = fill(client, 0)
            assert len(written) > 50
            fill_file_system(small_disk)
            assert client.read("t", 0) == written
            refuse_all(client)
            assert broker.running
            (small_disk / "filler").unlink()
            client.produce("t", 0, batch_of(value(len(written))))
            assert client.produced() == (0, len(written))
            written.append(value(len(written)))
            wait_until(lambda: client.commit("group", "t", 1000) == 0)
            assert client.committed("group", "t") == (0, 1000)
            assert client.make_topic("other") == 0
            assert client.read("t", 0) == written
            written += fill(client, len(written))
        log = broker.log
        assert "Traceback" not in log, log
        broker.kill()
        make_room(small_disk)
        broker.start()
        check_after_restart(broker, written)
        assert broker.stop() == 0
        broker.start()
        check_after_restart(broker, written)
        assert "Traceback" not in broker.log, broker.log


def refuse_all(client: Client) -> None:
    """Without any space, every write is refused with an error that its client knows."""
    client.produce("t", 0, batch_of(value(0)))
    assert client.produced() == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    codes = {client.commit("group", "t", 2 + number) for number in range(300)}
    codes.discard(0)  # As long as there is room in the last page.
    assert codes <= {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}, codes
    assert codes
    code = client.make_topic("other")
    assert code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR), code


def make_room(directory: Path) -> None:
    """Enlarges the file system, as an operator does."""
    larger = f"remount,size={2 * DISK_BYTES}"
    subprocess.run(["mount", "-o", larger, str(directory)], check=True, capture_output=True)


def check_after_restart(broker: Broker, written: list[bytes]) -> None:
    """Checks that all messages exist and are found."""
    with contextlib.closing(Client((broker.host, broker.port))) as client:
        assert client.read("t", 0) == written
        assert offset_at(client, NOW) == 0
        assert offset_at(client, NOW + 1) == -1
        code, offset = client.committed("group", "t")
        wait_until(lambda: client.committed("group", "t")[0] == 0)
        assert client.committed("group", "t") == (0, 1000), (code, offset)


def test_a_broker_that_cannot_start_on_a_full_disk_prints_one_line(small_disk: Path) -> None:
    (small_disk / "reserve").write_bytes(bytes(256 * 1024))
    with Broker(data_dir=small_disk / "data") as broker:
        with contextlib.closing(Client((broker.host, broker.port))) as client:
            assert client.make_topic("t") == 0
            written = fill(client, 0)
        fill_file_system(small_disk)
        code = broker.stop()
        assert code in (0, 1)
        assert "Traceback" not in broker.log, broker.log
        before = len(broker.log)
        command = broker._command(2)
        done = subprocess.run(
            [*command, "--ready-file", os.devnull],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            input="",
        )
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode != 0:
            assert "No space left" in done.stderr or "full" in done.stderr, done.stderr
        for name in ("reserve", "filler", "data.log"):
            (small_disk / name).unlink(missing_ok=True)
        broker.start()
        with contextlib.closing(Client((broker.host, broker.port))) as client:
            assert client.read("t", 0) == written
        assert "Traceback" not in broker.log[before:], broker.log


def test_files_that_run_out_of_space_refuse_writers_and_serve_readers(new_machine: NewMachine) -> None:
    files = FaultyFiles(FILES_BYTES)
    machine = new_machine(files).start()
    client = machine.client()
    assert client.make_topic("t") == 0
    wait_until(lambda: client.coordinator("group") == 0)
    wait_until(lambda: client.commit("group", "t", 1) == 0)
    written = fill(client, 0)
    assert len(written) > 20
    assert client.read("t", 0) == written
    machine.inside(lambda: setattr(files, "space_bytes", 2 * FILES_BYTES))
    written += fill(client, len(written))
    assert client.read("t", 0) == written
    machine.inside(lambda: setattr(files, "space_bytes", 3 * FILES_BYTES))
    wait_until(lambda: client.commit("group", "t", 7) == 0)
    machine.stop()
    machine.start()
    client = machine.client()
    assert client.read("t", 0) == written
    wait_until(lambda: client.committed("group", "t")[0] == 0)
    assert client.committed("group", "t") == (0, 7)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_failed_write_leaves_no_gap_and_no_data(new_machine: NewMachine, number: int) -> None:
    files = FaultyFiles()
    machine = new_machine(files).start()
    client = machine.client()
    producer_id = client.producer_id()
    assert client.make_topic("t") == 0
    written = []
    for sequence in range(30):
        if sequence % 3 == 1:
            machine.inside(lambda: files.fail("append", "t-0/", number))
            client.produce("t", 0, batch_of(value(sequence), producer_id=producer_id, sequence=sequence))
            assert client.produced() == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        client.produce("t", 0, batch_of(value(sequence), producer_id=producer_id, sequence=sequence))
        assert client.produced() == (0, sequence)
        written.append(value(sequence))
    assert client.read("t", 0) == written
    machine.power_cut(None)
