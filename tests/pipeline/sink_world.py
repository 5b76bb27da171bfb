"""A simulated world of the exactly-once sink: drivers, tasks, the control topic and transactions.

Each step executes one request of one driver or task. Drivers end, or stand still while another one begins
with the same checkpoint, and continue. Tasks are repeated, run twice, and go on after their driver has ended.
Responses are lost, coordinators move, and appended records arrive late. Transactions time out. The control
topic is compacted. Processes read it from its start, or continue where they have read before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

from tidemill.pipeline.exactly_once import protocol as real_protocol
from tidemill.pipeline.exactly_once.compacted_records import CompactedRecords
from tidemill.pipeline.exactly_once.control_records import (
    Batch,
    ControlRecord,
    Decision,
    Lost,
    Place,
    StoredRecord,
    Token,
    Transaction,
    new_record_id,
)
from tidemill.pipeline.exactly_once.row_checksum import RowChecksum

QUERY = "query"
TASKS = 3
BATCHES = 2
DRIVERS_MAX = 9
STEPS_MAX = 5000
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class NoResponse(Exception):
    """A request whose response was lost, or that could not be sent."""


@dataclass
class Rows:
    """The rows that a transaction has written, and its state."""

    batch: int
    rows: tuple[int, ...]
    state: str = OPEN


class Variation(NamedTuple):
    """What occurs in a run."""

    has_timeouts: bool
    has_other_rows: bool
    """Whether tasks of a later attempt may have other rows of the batch."""
    loses_responses: bool
    compacts: bool


class Entry(NamedTuple):
    """A record of the control topic; a tombstone without ``record``."""

    offset: int
    record_id: str
    record: ControlRecord | None


class Reader:
    """What a process has read of the control topic."""

    def __init__(self) -> None:
        self.records = CompactedRecords()
        self.end = 0


class Worker:
    """A process of Python workers, which runs one task after the other and keeps its producers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reader = Reader()
        self.used: dict[str, int] = {}
        """The batch for which each transactional id was used last."""

    def unused_id(self, batch: int) -> str:
        """Returns a transactional id whose last transaction has ended: that of a batch before."""
        ended = (name for name, last in self.used.items() if last < batch)
        name = next(ended, f"{QUERY}-{self.name}-{len(self.used)}")
        self.used[name] = batch
        return name


@dataclass
class Attempt:
    """A running attempt of a task."""

    task: int
    steps: Generator[Any, Any, Any]
    reader: Reader
    answer: Any = None
    problem: Exception | None = None
    stands_until: int = 0
    """It stands still until this step."""


@dataclass
class Driver:
    """A driver of the query, from its batch to the last one."""

    number: int
    batch: int
    workers: list[Worker]
    reader: Reader
    token: Token
    attempts: list[Attempt] = field(default_factory=list)
    messages: dict[int, Any] = field(default_factory=dict)
    stage: str = "plan"
    steps: Attempt | None = None
    failed: str = ""
    stands_until: int = 0
    """It stands still until this step."""


class World:
    """One run, from a seed."""

    def __init__(self, seed: int, protocol: ModuleType = real_protocol) -> None:
        self.protocol = protocol
        self.random = Random(seed)
        self.variation = Variation(*(self.random.random() < 0.5 for _ in range(4)))
        self.log: list[Entry | None] = []
        self.arriving: list[tuple[str, ControlRecord]] = []
        """Records whose append was given up, and that may still arrive."""
        self.transactions: dict[Transaction, Rows] = {}
        self.epochs: dict[str, int] = {}
        self.expired: set[str] = set()
        """Transactional ids that the coordinator has removed because they were not used for long."""
        self.completed = 0
        """The next batch, by the checkpoint of Spark."""
        self.drivers: list[Driver] = []
        self.live: list[Driver] = []
        self.orphans: list[Attempt] = []
        """Tasks whose driver has ended."""
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.broken: list[str] = []
        self.timed_out: set[Transaction] = set()
        self.is_ending = False
        self._tokens = 0
        self._steps = 0
        self._stands = self.random.choice((0.0, 0.05, 0.15))
        """How often drivers and tasks stand still."""
        self._starts = self.random.choice((0.01, 0.03))
        self._stored_batches = self._split()

    # -- the rows of a batch

    def _split(self) -> dict[int, list[tuple[int, ...]]]:
        return {
            number: [
                tuple(100 * number + 10 * task + one for one in range(self.random.choice((0, 1, 1, 2))))
                for task in range(TASKS)
            ]
            for number in range(BATCHES)
        }

    def rows_of(self, batch: int) -> list[tuple[int, ...]]:
        """Returns the rows of each task of a new attempt."""
        rows = self._stored_batches[batch]
        if not self.variation.has_other_rows or self.random.random() < 0.5:
            return rows
        every = [one for task in rows for one in task]
        self.random.shuffle(every)
        return [tuple(every[task::TASKS]) for task in range(TASKS)]

    # -- the run

    def run(self) -> None:
        """Runs until all batches are complete, or no driver can complete them."""
        self._start()
        for _ in range(STEPS_MAX):
            self._disturb()
            if not self.live:
                if self.completed == BATCHES or len(self.drivers) >= DRIVERS_MAX:
                    break
                self._start()
            self._one_step()
        self.is_ending = True
        self._run_to_the_end()

    def _run_to_the_end(self) -> None:
        """Everything that still runs ends, without further faults; then drivers complete the batches."""
        for _ in range(STEPS_MAX):
            while self.arriving:
                self._store(*self.arriving.pop())
            if not self.live and not self.orphans:
                if self.completed == BATCHES or len(self.drivers) >= 2 * DRIVERS_MAX:
                    break
                self._start()
            self._one_step()

    def _disturb(self) -> None:
        random = self.random
        if self.arriving and random.random() < 0.1:
            self._store(*self.arriving.pop(random.randrange(len(self.arriving))))
        few = len(self.drivers) < DRIVERS_MAX
        if few and self.completed < BATCHES and random.random() < self._starts:
            self._start()
        if self.live and random.random() < 0.01:
            self._crash(self.live[random.randrange(len(self.live))])
        if self.variation.has_timeouts and random.random() < 0.02:
            still = self._open_transactions()
            if still:
                timed_out = random.choice(still)
                self._set(timed_out, ABORTED)
                self.timed_out.add(timed_out)
                self.counts["timeouts"] += 1
                self.trace.append(f"{timed_out} times out")
        if self.variation.has_timeouts and random.random() < 0.005:
            opened = {one.transactional_id for one in self._open_transactions()}
            ended = sorted(self.epochs.keys() - opened)
            self.expired.update(ended[-1:])
        if self.variation.compacts and random.random() < 0.05:
            self._compact()

    def _start(self) -> None:
        number = len(self.drivers)
        workers = [Worker(f"w{number}.{one}") for one in range(2)]
        if self.drivers and self.random.random() < 0.4:
            # The query starts again in the same application.
            workers = self.drivers[-1].workers
        driver = Driver(number, self.completed, workers, Reader(), Token("none"))
        self.drivers.append(driver)
        self.live.append(driver)
        self.counts["drivers"] += 1
        self.trace.append(f"driver {number} starts with batch {driver.batch}")

    def _crash(self, driver: Driver) -> None:
        self.trace.append(f"driver {driver.number} crashes")
        self.counts["crashes"] += 1
        self._end(driver)

    def _end(self, driver: Driver) -> None:
        self.live.remove(driver)
        self.orphans += driver.attempts
        driver.attempts = []

    def _one_step(self) -> None:
        random = self.random
        self._steps += 1
        drivers, orphans = self._going(self.live), self._going(self.orphans)
        if orphans and (not drivers or random.random() < 0.3):
            attempt = random.choice(orphans)
            if self._step(attempt) is not None or attempt.problem is not None:
                self.orphans.remove(attempt)
        elif drivers:
            self._drive(random.choice(drivers))

    def _going(self, some: list[Any]) -> list[Any]:
        """Returns those that do not stand still; some of them do from now on."""
        if self.is_ending:
            return some
        if some and self.random.random() < self._stands:
            self._stop(self.random.choice(some))
        return [one for one in some if one.stands_until <= self._steps]

    def _stop(self, one: Any) -> None:
        """A driver or a task stands still for some steps."""
        one.stands_until = self._steps + self.random.choice((5, 20, 60, 150))

    def _drive(self, driver: Driver) -> None:
        if driver.stage == "plan":
            self._plan(driver)
        elif driver.stage == "tasks":
            self._run_task(driver)
        else:
            assert driver.steps is not None
            result = self._step(driver.steps)
            if result is None and driver.steps.problem is None:
                if not self.is_ending and self.random.random() < self._stands:
                    self._stop(driver)
                return
            self._stage_ended(driver, driver.steps.problem)

    def _plan(self, driver: Driver) -> None:
        if driver.batch >= BATCHES:
            self._end(driver)
            return
        self._tokens += 1
        if self.random.random() < 0.5:
            driver.reader = Reader()  # Spark commits in another process
        driver.token = Token(f"token{self._tokens}")
        driver.messages = {}
        driver.stage = "tasks"
        batch = Batch(QUERY, driver.batch)
        for task, rows in enumerate(self.rows_of(driver.batch)):
            again = 2 if self.random.random() < 0.2 else 1
            for _ in range(again if rows else 1):
                if rows:
                    worker = self.random.choice(driver.workers)
                    steps = self._task_steps(
                        self.protocol.write_task(batch, driver.token, task), worker, rows
                    )
                    driver.attempts.append(Attempt(task, steps, worker.reader))
                else:
                    driver.messages[task] = self.protocol.TaskResult(batch, driver.token, task, False, None)

    def _task_steps(
        self, steps: Generator[Any, Any, Any], worker: Worker, rows: tuple[int, ...]
    ) -> Generator[Any, Any, Any]:
        """The steps of a task, whose rows are written in two steps."""
        answer: Any = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration as end:
                return end.value
            if type(request).__name__ == "WriteRows":
                name = worker.unused_id(request.batch.number)
                transaction = yield ("open", name, request.batch.number, rows)
                answer = yield ("write", transaction, rows)
            else:
                answer = yield request

    def _run_task(self, driver: Driver) -> None:
        if len(driver.messages) < TASKS and driver.attempts:
            going = self._going(driver.attempts)
            if not going:
                return
            attempt = self.random.choice(going)
            result = self._step(attempt)
            if result is None and attempt.problem is None:
                return
            driver.attempts.remove(attempt)
            if result is not None:
                # The commit coordinator of Spark: the first attempt that ends is the task's.
                driver.messages.setdefault(attempt.task, result)
            elif isinstance(attempt.problem, NoResponse) and self.random.random() < 0.5:
                self._retry(driver, attempt.task)
        if len(driver.messages) < TASKS and driver.attempts:
            return
        is_complete = len(driver.messages) == TASKS
        driver.stage = "commit" if is_complete else "abort"
        self.orphans += driver.attempts
        driver.attempts = []
        self._end_batch(driver)

    def _retry(self, driver: Driver, task: int) -> None:
        rows = self._stored_batches[driver.batch][task]
        if self.variation.has_other_rows or not rows:
            return
        steps = self.protocol.write_task(Batch(QUERY, driver.batch), driver.token, task)
        worker = self.random.choice(driver.workers)
        driver.attempts.append(Attempt(task, self._task_steps(steps, worker, rows), worker.reader))

    def _end_batch(self, driver: Driver) -> None:
        batch = Batch(QUERY, driver.batch)
        messages = [driver.messages[task] for task in sorted(driver.messages)]
        steps: Generator[Any, Any, Any]
        if driver.stage == "commit":
            steps = self.protocol.commit_batch(batch, driver.token, messages)
        else:
            steps = self.protocol.abort_batch(batch, driver.token, messages)
        driver.steps = Attempt(-1, steps, driver.reader)

    def _stage_ended(self, driver: Driver, problem: Exception | None) -> None:
        if problem is not None:
            self.counts[type(problem).__name__] += 1
            self.trace.append(f"driver {driver.number}: {driver.stage} fails: {problem}")
        if driver.stage == "commit" and problem is None:
            self.trace.append(f"driver {driver.number} has committed batch {driver.batch}")
            self.counts["commits"] += 1
            if self.random.random() < 0.15 and not self.is_ending:
                self._crash(driver)  # before Spark has stored that
                return
            self.completed = max(self.completed, driver.batch + 1)
            driver.batch += 1
            driver.stage = "plan"
        elif driver.stage == "commit":
            driver.failed = str(problem)
            driver.stage = "abort"
            self._end_batch(driver)
        else:
            self._end(driver)

    # -- requests

    def _step(self, attempt: Attempt) -> Any:
        """Carries out the next request. Returns the result of the steps once they have ended."""
        try:
            request = attempt.steps.send(attempt.answer)
        except StopIteration as end:
            return True if end.value is None else end.value
        except self.protocol.SinkError as problem:
            attempt.problem = problem
            return None
        try:
            attempt.answer = self._carry_out(request, attempt.reader)
        except NoResponse as problem:
            attempt.problem = problem
            attempt.steps.close()
        return None

    def _carry_out(self, request: Any, reader: Reader) -> Any:
        lost = self.variation.loses_responses and not self.is_ending and self.random.random() < 0.03
        if lost and self.random.random() < 0.5:
            if isinstance(request, self.protocol.AppendControl):
                self.arriving.append((new_record_id(request.record), request.record))
            raise NoResponse
        answer = self._answer(request, reader)
        self.trace.append(f"{request}: {answer}")
        if lost:
            raise NoResponse
        return answer

    def _answer(self, request: Any, reader: Reader) -> Any:
        if isinstance(request, tuple):
            return self._write(*request)
        protocol = self.protocol
        if isinstance(request, protocol.AppendControl):
            return self._store(new_record_id(request.record), request.record)
        if isinstance(request, protocol.ReadControl):
            end = len(self.log) if request.up_to is None else request.up_to + 1
            return protocol.BatchState(request.batch, self._read(reader, end))
        if isinstance(request, protocol.DeleteControl):
            for one in request.stored:
                self._store(one.record_id, None)
            return None
        if isinstance(request, protocol.ListTransactions):
            return tuple(one for one in self._open_transactions() if not self._moves_coordinator())
        if isinstance(request, protocol.IsOpen):
            return self.transactions[request.transaction].state == OPEN
        if isinstance(request, protocol.EndTransaction):
            return self._end_transaction(request)
        if isinstance(request, protocol.FindOutcome):
            state = self.transactions[request.winner.transaction].state
            return protocol.Outcome(state.replace(OPEN, "still open"))
        raise TypeError(request)

    def _write(self, what: str, where: Any, *more: Any) -> Any:
        if what == "open":
            batch, rows = more
            epoch = self.epochs[where] = self.epochs.get(where, -1) + 1
            for one, written in self.transactions.items():
                if one.transactional_id == where and written.state == OPEN:
                    self._set(one, ABORTED)
                    self.counts["aborted by InitProducerId"] += 1
            transaction = Transaction(where, 1, epoch)
            self.transactions[transaction] = Rows(batch, rows)
            self.expired.discard(where)
            return transaction
        (rows,) = more
        if self.transactions[where].state != OPEN:
            raise NoResponse  # it is fenced
        checked = RowChecksum()
        checked.add("t", [str(one).encode() for one in rows])
        return self.protocol.TransactionRows(where, checked.row_set, Place("t", 0, 0))

    def _end_transaction(self, request: Any) -> Any:
        one, result = request.transaction, self.protocol.EndResult
        wanted = COMMITTED if request.is_commit else ABORTED
        name = one.transactional_id
        if self.epochs[name] != one.epoch or name in self.expired:
            return result.ENDED_BEFORE
        if self.transactions[one].state == OPEN:
            self._set(one, wanted)
        return result.ENDED if self.transactions[one].state == wanted else result.ENDED_BEFORE

    def _open_transactions(self) -> list[Transaction]:
        return [one for one, rows in self.transactions.items() if rows.state == OPEN]

    def _moves_coordinator(self) -> bool:
        """Whether the coordinator of a transaction is moving, so that no broker lists the transaction."""
        return self.variation.loses_responses and not self.is_ending and self.random.random() < 0.05

    def _set(self, one: Transaction, state: str) -> None:
        self.transactions[one].state = state

    # -- the control topic

    def _read(self, reader: Reader, end: int) -> list[StoredRecord]:
        """Continues where the process has read before; another task of it may have read further since."""
        if reader.end > end:
            found = self.log[:end]
            return [StoredRecord(*one) for one in found if one is not None and one.record is not None]
        for one in self.log[reader.end : end]:
            if one is not None:
                reader.records.add(*one)
        reader.end = end
        return list(reader.records.stored)

    def _store(self, record_id: str, record: ControlRecord | None) -> int:
        self.log.append(Entry(len(self.log), record_id, record))
        if isinstance(record, Lost):
            self._check_lost(record)
        return len(self.log) - 1

    def _check_lost(self, lost: Lost) -> None:
        """Only a timeout aborts a transaction of a decided batch."""
        stored = self.log[lost.decision]
        for winner in stored.record.winners if stored and isinstance(stored.record, Decision) else ():
            if winner.task in lost.tasks and winner.transaction not in self.timed_out:
                self.broken.append(f"{winner.transaction} of a decided batch was aborted")

    def _compact(self) -> None:
        last = {one.record_id: one.offset for one in self.log if one is not None}
        for offset, one in enumerate(self.log):
            if one is None:
                continue
            if last[one.record_id] != offset or (one.record is None and self.random.random() < 0.5):
                self.log[offset] = None

    # -- the promises

    def faults(self) -> Iterator[str]:
        """Yields the broken promises at the end of a run."""
        yield from self.broken
        for number, tasks in self._stored_batches.items():
            wanted = Counter(one for rows in tasks for one in rows)
            found = Counter(
                one
                for rows in self.transactions.values()
                if rows.batch == number and rows.state == COMMITTED
                for one in rows.rows
            )
            if found - wanted:
                yield f"rows of batch {number} are there twice: {found - wanted}"
            if number < self.completed and wanted - found:
                yield f"rows of batch {number}, which is complete, are missing: {wanted - found}"
        if self.completed < BATCHES and not self._may_stop():
            yield f"batch {self.completed} was not completed: {self.drivers[-1].failed}"
        if self.completed == BATCHES and not self.variation.loses_responses:
            yield from (f"{one} was left open" for one in self._open_transactions())

    def _may_stop(self) -> bool:
        """Lost rows that a later attempt cannot write again stop the query."""
        return self.variation.has_other_rows and self.counts["RowsDiffer"] > 0
