"""The exactly-once sink on a real cluster, without Spark: tasks and drivers that fail, stop and run twice."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from tidemill.client import Admin, Consumer, Producer
from tidemill.client.errors import ClientError, error_for
from tidemill.client.producer import BulkDelivery, RecordMetadata
from tidemill.client.transaction_manager import PreparedTransaction
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.client_pool import repeated
from tidemill.pipeline.exactly_once import control_topic
from tidemill.pipeline.exactly_once.control_records import (
    Batch,
    Begin,
    Decision,
    Place,
    RowSet,
    Token,
    Transaction,
    Winner,
)
from tidemill.pipeline.exactly_once.control_topic import PARTITIONS, ControlTopic, ensure_control_topic
from tidemill.pipeline.exactly_once.protocol import (
    BatchesOutOfOrder,
    ControlRecordsLost,
    OutcomeUnknown,
    RowsDiffer,
    RowsLost,
    Superseded,
    TaskResult,
    TransactionsAborted,
    abort_batch,
    commit_batch,
    write_task,
)
from tidemill.pipeline.exactly_once.requests import AppendControl, EndTransaction, WriteRows
from tidemill.pipeline.exactly_once.sink_cluster import SinkCluster
from tidemill.pipeline.sink_options import SinkOptions, parse_sink_options

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("spark")]

CONTROL = "_tidemill_sink_test"
PREFIX = "sink-test"


class Ended(Exception):
    """A driver or a task that ends."""


class Target:
    """A query on a cluster, and its topic."""

    def __init__(self, cluster: Any, query: str | None = None) -> None:
        self.topic = cluster.topic(2)
        self.query = query or uuid.uuid4().hex
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": self.topic}
        self.options: SinkOptions = parse_sink_options({**given, "delivery": "exactly-once"}, streaming=True)
        ensure_control_topic(self.options.client, CONTROL)
        self.cluster = SinkCluster(self.options, CONTROL, PREFIX, self.query)
        self.admin = Admin(cluster.bootstrap)
        repeated(lambda: self.admin.describe_topics([self.topic]), 10)
        self.bootstrap = cluster.bootstrap

    def batch(self, number: int = 0) -> Batch:
        return Batch(self.query, number)

    def task(self, number: int, token: str, task: int, *rows: str) -> TaskResult:
        """Writes the rows of a task."""
        steps = write_task(self.batch(number), Token(token), task)
        return self.cluster.run(steps, self.rows(*rows))

    def rows(self, *rows: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        values = pa.array([one.encode() for one in rows], pa.binary())
        yield self.topic, pa.RecordBatch.from_arrays([values, values], names=["key", "value"])

    def task_around(self, token: str, event: Callable[[], None], *rows: str) -> TaskResult:
        """Writes the rows of a task of the first batch; ``event`` occurs before it opens its transaction."""
        steps = write_task(self.batch(), Token(token), 0)
        result: Any = None
        while True:
            try:
                request = steps.send(result)
            except StopIteration as end:
                written: TaskResult = end.value
                return written
            if isinstance(request, WriteRows):
                event()
            result = self.cluster.execute(request, self.rows(*rows))

    def stray(self, token: str, *rows: str) -> TaskResult:
        """Writes rows into a transaction that the commit does not list, because its coordinator moves."""
        self.cluster.execute(AppendControl(Begin(self.batch(), Token(token))), ())
        self.commit(0, "other", self.task(0, "other", 0, *rows))
        written = self.cluster.execute(WriteRows(self.batch()), self.rows(*rows))
        assert self.open_transactions() == 1
        return TaskResult(self.batch(), Token(token), 0, True, written)

    def commit(self, number: int, token: str, *messages: TaskResult, **options: bool) -> bool:
        return self.cluster.run(commit_batch(self.batch(number), Token(token), messages, **options))

    def commit_up_to(
        self, kind: type, token: str, *messages: TaskResult, after: bool, number: int = 0
    ) -> None:
        """Commits, and ends before or after the first request of a kind."""
        steps = commit_batch(self.batch(number), Token(token), messages)
        result: Any = None
        while True:
            request = steps.send(result)
            if isinstance(request, kind) and not after:
                return
            result = self.cluster.execute(request, ())
            if isinstance(request, kind):
                return

    def committed(self) -> list[str]:
        """Returns the values that a reader of committed records gets, sorted."""
        found = []
        partitions = [TopicPartition(self.topic, number) for number in range(2)]
        with Consumer(self.bootstrap, isolation_level="read_committed") as consumer:
            ends = self.admin.list_offsets(dict.fromkeys(partitions, "latest"), committed_only=True)
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            while any(consumer.position(one) < ends[one].offset for one in partitions):
                found += [record.value.decode() for record in consumer.poll(1) if record.value]
        return sorted(found)

    def open_transactions(self) -> int:
        """Returns the number of open transactions of the query."""
        listed = self.admin.list_transactions(states=["Ongoing"])
        return sum(one.transactional_id.startswith(f"{PREFIX}-{self.query}-") for one in listed)

    def abort(self, written: TaskResult) -> None:
        """Aborts the transaction of a task, as its timeout does."""
        assert written.rows is not None
        name, producer_id, epoch = written.rows.transaction
        self.admin.end_transaction(name, PreparedTransaction(producer_id, epoch), is_commit=False)


@pytest.fixture
def target(cluster: Any) -> Iterator[Target]:
    made = Target(cluster)
    yield made
    made.admin.close()


def test_rows_are_visible_after_the_commit(target: Target) -> None:
    messages = [target.task(0, "a", 0, "1", "2"), target.task(0, "a", 1, "3")]
    assert target.committed() == []
    assert target.open_transactions() == 2
    target.commit(0, "a", *messages)
    assert target.committed() == ["1", "2", "3"]
    assert target.open_transactions() == 0


def test_a_batch_that_is_written_again_after_its_commit_adds_nothing(target: Target) -> None:
    assert target.commit(0, "a", target.task(0, "a", 0, "1"))
    again = target.task(0, "b", 0, "1")
    assert again.rows is None
    assert not target.commit(0, "b", again)
    assert target.committed() == ["1"]


def test_ids_are_used_again_for_later_batches(target: Target) -> None:
    names = set()
    for number in range(3):
        written = target.task(number, f"token-{number}", 0, str(number))
        assert written.rows is not None
        names.add(written.rows.transaction.transactional_id)
        target.commit(number, f"token-{number}", written)
    assert target.committed() == ["0", "1", "2"]
    assert len(names) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [AppendControl, EndTransaction])
def test_a_driver_that_ends_during_the_commit(target: Target, kind: type, after: bool) -> None:
    messages = [target.task(0, "a", 0, "1"), target.task(0, "a", 1, "2")]
    target.commit_up_to(kind, "a", *messages, after=after)
    again = [target.task(0, "b", 0, "1"), target.task(0, "b", 1, "2")]
    target.commit(0, "b", *again)
    assert target.committed() == ["1", "2"]
    assert target.open_transactions() == 0


def test_a_former_driver_commits_nothing(target: Target) -> None:
    former = target.task(0, "a", 0, "1")
    later = target.task(0, "b", 0, "1")
    with pytest.raises(Superseded, match="has begun later"):
        target.commit(0, "a", former)
    target.cluster.run(abort_batch(target.batch(), Token("a"), [former]))
    target.commit(0, "b", later)
    assert target.committed() == ["1"]
    assert target.open_transactions() == 0


def test_a_task_that_runs_twice_is_written_once(target: Target) -> None:
    lost = target.task(0, "a", 0, "1")
    chosen = target.task(0, "a", 0, "1")
    assert lost.rows != chosen.rows
    target.commit(0, "a", chosen)
    assert target.committed() == ["1"]
    assert target.open_transactions() == 0


def test_rows_of_a_transaction_that_timed_out_are_written_again(target: Target) -> None:
    messages = [target.task(0, "a", 0, "1"), target.task(0, "a", 1, "2", "3")]
    target.commit_up_to(EndTransaction, "a", *messages, after=False)
    target.abort(messages[1])
    with pytest.raises(RowsLost, match=r"tasks 1 \(2 rows, to spark-"):
        target.commit(0, "b", target.task(0, "b", 0, "1"), target.task(0, "b", 1, "3", "2"))
    again = [target.task(0, "c", 0, "1"), target.task(0, "c", 1, "3", "2")]
    assert [one.rows is None for one in again] == [True, False]
    target.commit(0, "c", *again)
    assert target.committed() == ["1", "2", "3"]
    assert target.open_transactions() == 0


def test_other_rows_stop_the_query_unless_lost_rows_are_skipped(target: Target) -> None:
    messages = [target.task(0, "a", 0, "1"), target.task(0, "a", 1, "2", "3")]
    target.commit_up_to(EndTransaction, "a", *messages, after=False)
    target.abort(messages[1])
    with pytest.raises(RowsLost):
        target.commit(0, "b", target.task(0, "b", 0, "1", "2", "3"))
    with pytest.raises(RowsDiffer, match="skipLostRows"):
        target.commit(0, "c", target.task(0, "c", 0, "1", "2", "3"))
    target.commit(0, "d", target.task(0, "d", 0, "1", "2", "3"), skips_lost_rows=True)
    assert target.committed() == ["1"]
    target.commit(1, "e", target.task(1, "e", 0, "4"))
    assert target.committed() == ["1", "4"]
    assert target.open_transactions() == 0


def test_a_query_with_a_longer_name_keeps_its_transactions(cluster: Any, target: Target) -> None:
    other = Target(cluster, f"{target.query}-daily")
    theirs = other.task(0, "a", 0, "1")
    target.commit(0, "b", target.task(0, "b", 0, "2"))
    other.commit(0, "a", theirs)
    assert (other.committed(), target.committed()) == (["1"], ["2"])
    other.admin.close()


def test_an_earlier_batch_waits_for_a_later_one_that_has_begun(target: Target) -> None:
    later = target.task(6, "a", 0, "6")
    target.commit_up_to(EndTransaction, "a", later, after=False, number=6)
    with pytest.raises(BatchesOutOfOrder, match="write batch 6 again first"):
        target.task(5, "b", 0, "5")
    with pytest.raises(BatchesOutOfOrder, match="write batch 6 again first"):
        target.commit(5, "c")
    target.commit(6, "d", target.task(6, "d", 0, "6"))
    assert target.committed() == ["6"]


def test_a_batch_that_began_first_is_not_stopped_by_a_later_one(target: Target) -> None:
    earlier = target.task(5, "a", 0, "5")
    with pytest.raises(BatchesOutOfOrder, match="write batch 5 again first"):
        target.task(6, "b", 0, "6")
    target.commit(5, "a", earlier)
    target.commit(6, "c", target.task(6, "c", 0, "6"))
    assert target.committed() == ["5", "6"]
    assert target.open_transactions() == 0


@pytest.mark.parametrize("token", ["a", "b"])
def test_a_task_that_opens_a_transaction_after_the_batch_is_done_aborts_it(
    target: Target, token: str
) -> None:
    """A task of a former driver, or a speculative one of the driver that has written the batch."""
    written = target.task_around(token, lambda: target.commit(0, "b", target.task(0, "b", 0, "1")), "1")
    assert (written.has_rows, written.rows) == (True, None)
    assert target.open_transactions() == 0
    assert target.committed() == ["1"]


def test_a_task_that_opens_a_transaction_after_the_decision_aborts_it(target: Target) -> None:
    def decide() -> None:
        target.commit_up_to(AppendControl, "b", target.task(0, "b", 0, "1"), after=True)

    written = target.task_around("a", decide, "1")
    assert written.rows is None
    assert target.open_transactions() == 1
    target.commit(0, "a", written)
    assert target.open_transactions() == 0
    assert target.committed() == ["1"]


def test_a_task_that_writes_lost_rows_again_after_another_one_aborts_them(target: Target) -> None:
    message = target.task(0, "a", 0, "1")
    target.commit_up_to(EndTransaction, "a", message, after=False)
    target.abort(message)
    with pytest.raises(RowsLost):
        target.commit(0, "b", target.task(0, "b", 0, "1"))

    def write_again() -> None:
        target.commit_up_to(AppendControl, "d", target.task(0, "d", 0, "1"), after=True)

    written = target.task_around("c", write_again, "1")
    assert written.rows is None
    target.commit(0, "c", written)
    assert target.committed() == ["1"]
    assert target.open_transactions() == 0


def test_an_attempt_that_goes_on_after_the_batch_is_done_leaves_no_transaction_open(target: Target) -> None:
    written = target.stray("a", "1")
    target.commit(0, "a", written)
    assert target.open_transactions() == 0
    assert target.committed() == ["1"]


def test_a_batch_that_is_committed_again_leaves_no_transaction_of_a_former_driver_open(
    target: Target,
) -> None:
    target.stray("a", "1")
    assert not target.commit(0, "b", target.task(0, "b", 0, "1"))
    assert target.open_transactions() == 0
    assert target.committed() == ["1"]


def test_a_batch_that_is_committed_again_leaves_a_later_one_alone(target: Target) -> None:
    target.commit(0, "a", target.task(0, "a", 0, "1"))
    later = target.task(1, "b", 0, "2")
    target.commit(0, "c", target.task(0, "c", 0, "1"))
    target.commit(1, "b", later)
    assert target.committed() == ["1", "2"]


def test_an_attempt_that_fails_after_the_batch_is_done_leaves_no_transaction_open(target: Target) -> None:
    written = target.stray("a", "1")
    assert not target.cluster.run(abort_batch(target.batch(), Token("a"), [written]))
    assert target.open_transactions() == 0
    assert target.committed() == ["1"]


def test_a_transaction_that_timed_out_before_the_decision_leaves_nothing(target: Target) -> None:
    messages = [target.task(0, "a", 0, "1"), target.task(0, "a", 1, "2", "3")]
    target.abort(messages[1])
    with pytest.raises(TransactionsAborted, match=r"tasks 1 \(2 rows, to spark-.*transaction.timeout.ms"):
        target.commit(0, "a", *messages)
    target.cluster.run(abort_batch(target.batch(), Token("a"), messages))
    assert target.committed() == []
    target.commit(0, "b", target.task(0, "b", 0, "1", "2", "3"))
    assert target.committed() == ["1", "2", "3"]
    assert target.open_transactions() == 0


@pytest.mark.parametrize("end", [abort_batch, commit_batch])
def test_a_decided_batch_is_not_aborted_if_its_control_records_were_lost(target: Target, end: Any) -> None:
    messages = [target.task(0, "a", 0, "1")]
    target.commit_up_to(EndTransaction, "a", *messages, after=False)
    lost = SinkCluster(target.options, f"{CONTROL}_lost", PREFIX, target.query)
    ensure_control_topic(target.options.client, f"{CONTROL}_lost")
    with pytest.raises(ControlRecordsLost, match="was the control topic deleted"):
        lost.run(end(target.batch(), Token("a"), messages))
    target.commit(0, "b", target.task(0, "b", 0, "1"))
    assert target.committed() == ["1"]


def test_a_batch_may_have_thousands_of_tasks(target: Target) -> None:
    control = control_of(target)
    batch, token = target.batch(), Token("a")
    winners = tuple(
        Winner(
            task,
            Transaction(f"{PREFIX}-{target.query}-{uuid.uuid4().hex[:16]}-0", 10_000 + task, 1),
            RowSet(1000, int.from_bytes(uuid.uuid4().bytes[:8], "big")),
            Place(target.topic, 0, 1_000_000 + task),
        )
        for task in range(20_000)
    )
    control.append(Begin(batch, token))
    control.append(Decision(batch, token, winners))
    valid = control.read(batch).valid
    assert valid is not None
    assert valid.winners == winners


def control_of(target: Target, name: str = CONTROL) -> ControlTopic:
    return ControlTopic(target.options.client, name, target.query)


def count_records(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of records of each read of a control topic."""
    real, counts = ControlTopic._raw, []

    def counted(self: ControlTopic, *arguments: Any) -> Iterator[Any]:
        found = list(real(self, *arguments))
        counts.append(len(found))
        return iter(found)

    monkeypatch.setattr(ControlTopic, "_raw", counted)
    return counts


def test_a_process_reads_each_control_record_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    control, counts = control_of(target), count_records(monkeypatch)
    for number in range(20):
        begin = Begin(target.batch(), Token(f"token-{number}"))
        assert control.read(target.batch(), control.append(begin)).has_begun(begin.token)
    # The record that was read last is read again.
    assert counts[1:] == [2] * 19
    assert control.read(target.batch()).has_begun(Token("token-0"))


def test_an_earlier_part_of_the_control_topic_is_read_from_its_start(target: Target) -> None:
    control = control_of(target)
    first, second = (control.append(Begin(target.batch(), Token(one))) for one in ("a", "b"))
    assert control.read(target.batch(), second).is_superseded(Token("a"))
    assert not control.read(target.batch(), first).is_superseded(Token("a"))
    assert control.read(target.batch()).is_superseded(Token("a"))


def test_a_control_topic_that_was_created_again_is_read_from_its_start(cluster: Any, target: Target) -> None:
    name = f"again-{target.query}"
    ensure_control_topic(target.options.client, name)
    control = control_of(target, name)
    control.read(target.batch(), control.append(Begin(target.batch(), Token("a"))))
    cluster.delete(name)
    ensure_control_topic(target.options.client, name)
    for token in ("b", "c"):
        control.append(Begin(target.batch(), Token(token)))
    log = control.read(target.batch())
    assert [log.has_begun(Token(one)) for one in "abc"] == [False, True, True]


def test_a_partition_whose_last_read_record_was_compacted_is_read_from_its_start(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = control_of(target)
    for token in ("a", "b"):
        control.read(target.batch(), control.append(Begin(target.batch(), Token(token))))
    real = ControlTopic._raw

    def compacted(self: ControlTopic, cluster: Any, start: int, end: int) -> Iterator[Any]:
        return (one for one in real(self, cluster, start, end) if b'"a"' in (one.value or b""))

    monkeypatch.setattr(ControlTopic, "_raw", compacted)
    log = control.read(target.batch())
    assert [log.has_begun(Token(one)) for one in "ab"] == [True, False]


def test_a_partition_whose_records_were_deleted_is_read_from_its_start(cluster: Any, target: Target) -> None:
    name = cluster.topic(PARTITIONS)
    control = control_of(target, name)
    last = control.append(Begin(target.batch(), Token("a")))
    assert control.read(target.batch(), last).has_begun(Token("a"))
    last = control.append(Begin(target.batch(), Token("b")))
    cluster.delete_before(name, last, control._partition.partition)
    log = control.read(target.batch(), last)
    assert [log.has_begun(Token(one)) for one in "ab"] == [False, True]


def test_a_process_keeps_the_records_of_few_queries(target: Target) -> None:
    for number in range(control_topic.QUERIES_MAX + 3):
        batch = Batch(f"{target.query}-{number}", 0)
        control = ControlTopic(target.options.client, CONTROL, batch.query)
        control.read(batch, control.append(Begin(batch, Token("a"))))
    assert len(control_topic._read) == control_topic.QUERIES_MAX


def test_a_control_topic_may_have_more_partitions(cluster: Any, target: Target) -> None:
    name = cluster.topic(PARTITIONS + 4, cleanup_policy="compact")
    ensure_control_topic(target.options.client, name)
    fewer = cluster.topic(PARTITIONS - 1, cleanup_policy="compact")
    with pytest.raises(ConfigError, match="has 15 partitions, and 16 are needed"):
        ensure_control_topic(target.options.client, fewer)


def test_a_control_topic_that_another_driver_has_created_is_checked(
    cluster: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cluster.topic(1, cleanup_policy="compact")
    late(monkeypatch, Admin, "describe_topics")
    with pytest.raises(ConfigError, match="has 1 partitions, and 16 are needed"):
        ensure_control_topic(target.options.client, name)


def test_an_append_waits_until_its_broker_has_the_control_topic(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(monkeypatch, Producer, "_load")
    client = {**target.options.client, "client.id": target.query}
    assert ControlTopic(client, CONTROL, target.query).append(Begin(target.batch(), Token("a"))) >= 0


def late(monkeypatch: pytest.MonkeyPatch, client: type, method: str) -> None:
    """The first broker that a client asks does not have a new topic yet."""
    real, calls = getattr(client, method), count()

    def answer(*arguments: Any) -> Any:
        if next(calls) == 0:
            raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "read the metadata")
        return real(*arguments)

    monkeypatch.setattr(client, method, answer)


def test_a_control_topic_that_was_deleted_is_not_created_by_an_append(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"gone-{target.query}"
    monkeypatch.setattr(control_topic, "METADATA_TIMEOUT_S", 0.2)
    control = ControlTopic(target.options.client, name, target.query)
    with pytest.raises(ClientError, match=name):
        control.append(Begin(target.batch(), Token("a")))
    with pytest.raises(ClientError, match=name):
        target.admin.describe_topics([name])


def test_a_batch_whose_outcome_nothing_shows_any_more_is_completed_on_request(target: Target) -> None:
    written = target.task(0, "a", 0, "1")
    target.commit_up_to(EndTransaction, "a", written, after=True)
    assert written.rows is not None
    target.admin.fence_producer(written.rows.transaction.transactional_id)
    sample = written.rows.sample
    target.admin.delete_records({TopicPartition(sample.topic, sample.partition): sample.offset + 1})
    with pytest.raises(OutcomeUnknown, match="set skipLostRows=true"):
        target.commit(0, "b", target.task(0, "b", 0, "1"))
    target.commit(0, "c", target.task(0, "c", 0, "1"), skips_lost_rows=True)
    target.commit(1, "d", target.task(1, "d", 0, "2"))
    assert target.committed() == ["2"]


def test_a_missing_topic_of_a_row_is_named(target: Target) -> None:
    values = pa.array([b"1"], pa.binary())
    rows = [(f"{target.topic}x", pa.RecordBatch.from_arrays([values], names=["value"]))]
    with pytest.raises(ConfigError, match=f"{target.topic}.*createTopics=true"):
        target.cluster.run(write_task(target.batch(), Token("a"), 0), rows)
    assert target.open_transactions() == 0


def test_an_append_without_an_offset_is_an_error(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has forgotten the offset of a repeated request: what was read up to it is unknown."""
    unknown = RecordMetadata(CONTROL, 0, -1, 0)
    monkeypatch.setattr(BulkDelivery, "sample", lambda self: unknown)
    with pytest.raises(ClientError, match="no offset"):
        target.task(0, "a", 0, "1")
