"""Processes that convert records: what they answer, and what becomes of a job when they die."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.broker import conversion
from tidemill.broker.conversion import Budget, Conversions, Process
from tidemill.broker.conversion_process import WINDOW_BYTES, perform, result_of
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import GZIP, NONE
from tidemill.records.builder import build_batch
from tidemill.records.convert import KEEP_CODEC, down
from tidemill.records.message_set import build_message_set

ENOUGH = 1 << 30
WAIT_S = 60
LIMITS = (1 << 20, 32 << 20, False, 1 << 62, 1 << 62, True)


@pytest.fixture
def conversions() -> Iterator[Conversions]:
    made = Conversions(1)
    yield made
    made.close()
    assert made.processes == []


def batches(count: int = 1, records: int = 50, codec: int = GZIP) -> bytes:
    fields = [(1000 + number, b"%d" % number, bytes(100), []) for number in range(records)]
    return b"".join(build_batch(fields, codec, base_offset=first * records) for first in range(count))


def ask(conversions: Conversions, data: bytes) -> Any:
    return conversions.call("down", len(data), data, 1, 0, ENOUGH, ENOUGH)


def expected(data: bytes) -> tuple[bytes, int, int, int]:
    made = down(data, 0, len(data), 1, 0, ENOUGH)
    return made.data, int(made.next_offset), int(made.next_position), int(made.record_count)


def state(pid: int) -> str:
    """One letter; "Z" and "" for a process that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def until(fact: Callable[[], bool]) -> None:
    """Returns when ``fact`` holds."""
    waited = threading.Event()
    for _ in range(WAIT_S * 200):
        if fact():
            return
        waited.wait(0.005)
    raise AssertionError("it did not come to that")


def test_a_process_answers_as_the_function_does(conversions: Conversions) -> None:
    data = batches(3)
    assert ask(conversions, data) == expected(data)
    assert ask(conversions, data) == expected(data)
    assert (conversions.started, conversions.jobs, len(conversions.processes)) == (1, 2, 1)


def test_what_does_not_fit_into_the_window_goes_too(conversions: Conversions) -> None:
    sizes = []
    for count, records in ((300, 50), (3, 50), (1, 8500), (3, 50)):
        data = batches(count, records, NONE)
        made = expected(data)
        assert ask(conversions, data) == made
        sizes.append((len(data) > WINDOW_BYTES, len(made[0]) > WINDOW_BYTES))
    assert sizes == [(True, True), (False, False), (False, True), (False, False)]
    assert conversions.started == 1


def test_a_window_that_the_system_has_no_memory_for_is_an_error_of_the_job(
    conversions: Conversions, monkeypatch: pytest.MonkeyPatch
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


def test_what_is_wrong_with_records_comes_as_the_error_that_it_is(conversions: Conversions) -> None:
    sent = build_message_set(1, [(1, b"k", b"v"), (2, None, b"v"), (3, None, b"v")], GZIP)
    keyed = (1 << 20, 32 << 20, True, 1 << 62, 1 << 62, True)
    with pytest.raises(InvalidRecord) as told:
        conversions.call("store", len(sent), sent, 2, KEEP_CODEC, keyed, 0, False, None)
    assert [index for index, _ in told.value.record_errors] == [1, 2]
    with pytest.raises(KafkaError) as refused:
        conversions.call("store", len(sent), sent, 0, 4, LIMITS, 0, False, None)
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert conversions.started == 1


def test_a_job_whose_process_has_died_goes_to_a_new_one(conversions: Conversions) -> None:
    data = batches()
    ask(conversions, data)
    (pid,) = conversions.processes
    os.kill(pid, signal.SIGKILL)
    until(lambda: state(pid) in ("Z", ""))
    assert ask(conversions, data) == expected(data)
    assert conversions.started == 2
    assert pid not in conversions.processes


def test_a_job_whose_process_is_killed_at_work_goes_to_a_new_one(conversions: Conversions) -> None:
    data = batches()
    ask(conversions, data)
    (pid,) = conversions.processes
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(ask(conversions, data)))
    worker.start()
    until(lambda: conversions.jobs == 2)
    os.kill(pid, signal.SIGKILL)
    worker.join(WAIT_S)
    assert found == [expected(data)]


def test_a_process_that_is_stuck_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "JOB_S_MAX", 10.0)
    conversions = Conversions(1)
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


def test_a_job_that_kills_two_processes_is_given_up(
    conversions: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(process: Process, job: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        raise EOFError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(Process, "call", dies)
        with pytest.raises(KafkaError, match="ended twice") as told:
            ask(conversions, batches())
    assert told.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert conversions.started == 2
    assert ask(conversions, batches()) == expected(batches())


def test_processes_without_work_end(conversions: Conversions) -> None:
    ask(conversions, batches())
    (pid,) = conversions.processes
    conversions.reap()
    assert conversions.processes == [pid]
    conversions.reap(-1.0)
    assert conversions.processes == []
    assert state(pid) == ""
    assert ask(conversions, batches()) == expected(batches())


def test_the_end_of_the_broker_ends_jobs_at_work() -> None:
    conversions = Conversions(1)
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
    until(lambda: conversions.jobs == 2)
    conversions.close()
    worker.join(WAIT_S)
    assert [error.code for error in outcome] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert "with the broker" in str(outcome[0])


def test_a_process_that_is_started_while_the_broker_ends_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = Conversions(1)
    started: list[int] = []

    class Late(Process):
        def __init__(self) -> None:
            super().__init__()
            started.append(self.process.pid)
            conversions.close()

    monkeypatch.setattr(conversion, "Process", Late)
    with pytest.raises(KafkaError, match="the broker is stopping"):
        ask(conversions, batches())
    assert [state(pid) for pid in started] == [""]


def test_bytes_at_once_are_bounded_and_what_is_larger_goes_alone() -> None:
    budget = Budget(100)
    budget.take(500)
    taken: list[int] = []

    def take() -> None:
        budget.take(60)
        taken.append(60)

    workers = [threading.Thread(target=take) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert (taken, budget.used) == ([], 500)
    budget.give_back(500)
    until(lambda: taken == [60])
    assert budget.used == 60
    budget.give_back(60)
    for worker in workers:
        worker.join(WAIT_S)
    assert (taken, budget.used) == ([60, 60], 60)


def test_a_large_job_is_not_passed_by_those_that_come_after_it() -> None:
    budget = Budget(100)
    budget.take(60)
    taken: list[int] = []

    def take(count: int) -> None:
        budget.take(count)
        taken.append(count)

    workers = []
    for number, count in enumerate((500, 30, 40), 1):
        workers.append(threading.Thread(target=take, args=(count,)))
        workers[-1].start()
        until(lambda number=number: len(budget._queue) == number)  # type: ignore[misc]
    assert taken == []
    budget.give_back(60)
    until(lambda: taken == [500])
    budget.give_back(500)
    for worker in workers:
        worker.join(WAIT_S)
    assert (sorted(taken[1:]), budget.used) == ([30, 40], 70)


def test_running_out_of_memory_is_an_error_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setitem(
        __import__("tidemill.broker.conversion_process", fromlist=["JOBS"]).JOBS, "down", greedy
    )
    with pytest.raises(KafkaError, match="out of memory"):
        result_of(perform("down", ()))
