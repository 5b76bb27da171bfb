"""Conversion processes: their results, and their jobs when they end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from default_limits import RecordLimits, down
from record_builders import build_batch, build_message_set
from tidemill.broker import conversion_jobs, conversion_workers
from tidemill.broker.conversion_jobs import (
    DownConversionJob,
    Message,
    StorageConversionJob,
    result_of,
    run_job,
)
from tidemill.broker.conversion_process import WINDOW_BYTES
from tidemill.broker.conversion_workers import Budget, ConversionWorkers, Process
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import GZIP, NO_COMPRESSION, ZSTD
from tidemill.records.format_conversion import KEEP_CODEC, Converted

ENOUGH = 1 << 30
WAIT_S = 60
Fields = tuple[bytes, int, int, int]


@pytest.fixture
def conversions() -> Iterator[ConversionWorkers]:
    made = ConversionWorkers(1)
    yield made
    made.close()
    assert made.processes == []


def batches(count: int = 1, records: int = 50, codec: int = GZIP) -> bytes:
    fields = [(1000 + number, b"%d" % number, bytes(100), []) for number in range(records)]
    return b"".join(build_batch(fields, codec, base_offset=first * records) for first in range(count))


def job_for(data: bytes) -> DownConversionJob:
    return DownConversionJob(data, 1, 0, ENOUGH, ENOUGH)


def fields(made: Converted) -> Fields:
    return made.data, int(made.next_offset), int(made.next_position), int(made.record_count)


def ask(conversions: ConversionWorkers, data: bytes) -> Fields:
    return fields(conversions.call(job_for(data)))


def expected(data: bytes) -> Fields:
    return fields(down(data, 0, len(data), 1, 0, ENOUGH))


def state(pid: int) -> str:
    """Returns the state letter of a process; "Z" or "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def until(fact: Callable[[], bool]) -> None:
    """Waits until ``fact`` is true."""
    waited = threading.Event()
    for _ in range(WAIT_S * 200):
        if fact():
            return
        waited.wait(0.005)
    raise AssertionError("it did not come to that")


def test_a_process_returns_the_result_of_the_function(conversions: ConversionWorkers) -> None:
    data = batches(3)
    assert ask(conversions, data) == expected(data)
    (pid,) = conversions.processes
    assert ask(conversions, data) == expected(data)
    assert conversions.processes == [pid]


def test_data_larger_than_the_window_is_converted(conversions: ConversionWorkers) -> None:
    sizes = []
    processes = set()
    for count, records in ((300, 50), (3, 50), (1, 8500), (3, 50)):
        data = batches(count, records, NO_COMPRESSION)
        made = expected(data)
        assert ask(conversions, data) == made
        sizes.append((len(data) > WINDOW_BYTES, len(made[0]) > WINDOW_BYTES))
        processes.update(conversions.processes)
    assert sizes == [(True, True), (False, False), (False, True), (False, False)]
    assert len(processes) == 1


def test_a_lack_of_memory_for_the_window_fails_the_job(
    conversions: ConversionWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else []
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: len(data) - 1)
        with pytest.raises(KafkaError, match="could not be started") as told:
            ask(conversions, batches())
    assert told.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    if before:
        assert sorted(os.listdir("/proc/self/fd")) == before
    assert ask(conversions, batches()) == expected(batches())


def test_errors_of_records_are_raised_by_the_call(conversions: ConversionWorkers) -> None:
    sent = build_message_set(1, [(1, b"k", b"v"), (2, None, b"v"), (3, None, b"v")], GZIP)
    keyed = StorageConversionJob(sent, 2, KEEP_CODEC, RecordLimits(key_required=True), 0, False, None)
    with pytest.raises(InvalidRecord) as told:
        conversions.call(keyed)
    assert [index for index, _ in told.value.record_errors] == [1, 2]
    (pid,) = conversions.processes
    with pytest.raises(KafkaError) as refused:
        conversions.call(StorageConversionJob(sent, 0, ZSTD, RecordLimits(), 0, False, None))
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert conversions.processes == [pid]


def test_a_job_of_an_ended_process_runs_in_a_new_one(conversions: ConversionWorkers) -> None:
    data = batches()
    ask(conversions, data)
    (pid,) = conversions.processes
    os.kill(pid, signal.SIGKILL)
    until(lambda: state(pid) in ("Z", ""))
    assert ask(conversions, data) == expected(data)
    (new,) = conversions.processes
    assert new != pid


def test_a_job_of_a_killed_process_runs_in_a_new_one(conversions: ConversionWorkers) -> None:
    data = batches()
    ask(conversions, data)
    (pid,) = conversions.processes
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    found: list[Fields] = []
    worker = threading.Thread(target=lambda: found.append(ask(conversions, data)))
    worker.start()
    until(lambda: not conversions._idle)
    os.kill(pid, signal.SIGKILL)
    worker.join(WAIT_S)
    assert found == [expected(data)]


def test_a_process_that_times_out_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion_workers, "JOB_S_MAX", 10.0)
    conversions = ConversionWorkers(1)
    try:
        data = batches()
        ask(conversions, data)
        (pid,) = conversions.processes
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state(pid) == "T")
        conversions._idle[0].limit(0.2)
        assert ask(conversions, data) == expected(data)
        until(lambda: state(pid) in ("Z", ""))
    finally:
        conversions.close()


def test_a_job_that_ends_two_processes_fails(
    conversions: ConversionWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Process] = []

    def dies(process: Process, job: Message) -> Message:
        ended.append(process)
        raise EOFError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(Process, "call", dies)
        with pytest.raises(KafkaError, match="ended twice") as told:
            ask(conversions, batches())
    assert told.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(set(ended)) == len(ended) == 2
    assert ask(conversions, batches()) == expected(batches())


def test_idle_processes_end(conversions: ConversionWorkers) -> None:
    ask(conversions, batches())
    (pid,) = conversions.processes
    conversions.reap()
    assert conversions.processes == [pid]
    conversions.reap(-1.0)
    assert conversions.processes == []
    assert state(pid) == ""
    assert ask(conversions, batches()) == expected(batches())


def test_close_ends_running_jobs() -> None:
    conversions = ConversionWorkers(1)
    ask(conversions, batches())
    (pid,) = conversions.processes
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    outcome: list[KafkaError] = []

    def work() -> None:
        try:
            ask(conversions, batches())
        except KafkaError as error:
            outcome.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    until(lambda: not conversions._idle)
    conversions.close()
    worker.join(WAIT_S)
    assert [error.code for error in outcome] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert "with the broker" in str(outcome[0])


def test_a_process_started_during_close_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = ConversionWorkers(1)
    started: list[int] = []

    class Late(Process):
        def __init__(self) -> None:
            super().__init__()
            started.append(self.process.pid)
            conversions.close()

    monkeypatch.setattr(conversion_workers, "Process", Late)
    with pytest.raises(KafkaError, match="the broker is stopping"):
        ask(conversions, batches())
    assert [state(pid) for pid in started] == [""]


def test_the_bytes_of_running_jobs_are_limited_and_a_larger_job_runs_alone() -> None:
    budget = Budget(100)
    budget.acquire(500)
    taken: list[int] = []

    def take() -> None:
        budget.acquire(60)
        taken.append(60)

    workers = [threading.Thread(target=take) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert (taken, budget.used) == ([], 500)
    budget.release(500)
    until(lambda: taken == [60])
    assert budget.used == 60
    budget.release(60)
    for worker in workers:
        worker.join(WAIT_S)
    assert (taken, budget.used) == ([60, 60], 60)


def test_later_jobs_do_not_overtake_a_large_job() -> None:
    budget = Budget(100)
    budget.acquire(60)
    taken: list[int] = []

    def take(count: int) -> None:
        budget.acquire(count)
        taken.append(count)

    workers = []
    for number, count in enumerate((500, 30, 40), 1):
        workers.append(threading.Thread(target=take, args=(count,)))
        workers[-1].start()
        until(lambda number=number: len(budget._queue) == number)  # type: ignore[misc]
    assert taken == []
    budget.release(60)
    until(lambda: taken == [500])
    budget.release(500)
    for worker in workers:
        worker.join(WAIT_S)
    assert (sorted(taken[1:]), budget.used) == ([30, 40], 70)


def test_a_lack_of_memory_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(conversion_jobs, "down", greedy)
    job = job_for(batches())
    with pytest.raises(KafkaError, match="out of memory"):
        result_of(job, run_job(job))
