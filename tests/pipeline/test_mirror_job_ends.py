"""When a mirror has copied all, and which errors end it, decided without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tidemill.cli.mirror import _summary
from tidemill.client.errors import BrokerUnreachable, ClientClosed, ClientError
from tidemill.client.wait_reasons import Kind, Wait
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror import mirror_job
from tidemill.pipeline.mirror.cluster_observer import ClusterObserver
from tidemill.pipeline.mirror.cluster_outages import REPORT_AFTER_S, OutageReports
from tidemill.pipeline.mirror.mirror_job import RESTARTS_MAX, SourceRun
from tidemill.pipeline.mirror.mirror_lag import MirrorLag
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.spark_errors import explained
from tidemill.testing.broker import Broker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
EAST, WEST = (MirrorSource(alias, {"bootstrap.servers": "a:1"}) for alias in ("east", "west"))


def run_with(
    goal: Mapping[TopicPartition, int],
    lag: MirrorLag,
    copied: Mapping[TopicPartition, int] | None = None,
    later_goal: Mapping[TopicPartition, int] | None = None,
) -> Any:
    """A run of the source east: ``copied`` for ordinary records, None for the same offsets."""
    job = MirrorJob(sources=[EAST], target=WEST, checkpoint="x", trigger="available-now", groups=None)
    run: Any = SourceRun(Mock(), job, EAST, None)
    run._observer = Mock(names={}, refused={}, selects_none=False, position_failure=None, outage="")
    run._observer.waits.return_value = {}
    run._observer.measure.return_value = lag
    run._observer.copy_positions.return_value = 0
    run._observer.goal.return_value = goal if later_goal is None else later_goal
    run._goal = goal
    if copied is not None:
        run._records = Mock()
        run._records.points.copied.return_value = copied
    return run


def lag(messages: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> MirrorLag:
    return MirrorLag(messages, {}, ends)


def test_all_is_copied_once_the_mirror_has_what_the_source_had_at_the_start() -> None:
    assert run_with({T0: 9}, lag({T0: 0}, {T0: 9}))._is_copied()
    assert run_with({T0: 9}, lag({T0: 4}, {T0: 9}))._is_copied()
    assert not run_with({T0: 9, T1: 2}, lag({T0: 0, T1: 1}, {T0: 9, T1: 1}))._is_copied()
    assert not run_with({T0: 9}, lag({}, {}))._is_copied()
    assert run_with({T0: 9}, lag({T0: 4}, {}), {T0: 9})._is_copied()
    assert not run_with({T0: 9}, lag({T0: 4}, {}), {T0: 5})._is_copied()


def test_a_topic_without_records_is_not_waited_for() -> None:
    assert run_with({T0: 0, T1: 7}, lag({T0: 0, T1: 0}, {}), {})._is_copied()


def test_a_topic_that_was_deleted_meanwhile_is_not_waited_for() -> None:
    assert run_with({T0: 9}, lag({}, {}), later_goal={})._is_copied()
    assert run_with({T0: 9}, lag({}, {}), {}, later_goal={})._is_copied()


def test_lists_that_select_no_topic_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    run = run_with({}, lag({}, {}))
    run._observer.selects_none = True
    assert run._is_copied()
    assert run._is_copied()
    assert "no topic of the source east matches the allow list '*'" in run.progress.unmatched
    assert [record.message for record in caplog.records] == [run.progress.unmatched]
    assert run.progress.unmatched in _summary([run.progress])
    run._observer.selects_none = False
    assert run._is_copied()
    assert run.progress.unmatched == ""


def test_a_query_that_has_not_copied_all_is_started_again_after_a_pause() -> None:
    run = run_with({T0: 9}, lag({T0: 9}, {T0: 0}))
    run._query = Mock(isActive=False, recentProgress=[])
    run._query.exception.return_value = None
    run._start_query = Mock()
    assert not run.has_ended()
    assert not run.has_ended()
    run._start_query.assert_not_called()


@pytest.mark.parametrize("outage", [BrokerUnreachable("cut"), OSError("no route")])
def test_an_outage_after_refused_batches_does_not_end_the_mirror(outage: Exception) -> None:
    run = run_with({}, lag({}, {}))
    copied = {"refused": "t\nno, since", "problem": "of another", "records": 0, "bytes": 0}
    table = {"batchId": 0, "observedMetrics": {"copied": copied}}
    query = Mock(recentProgress=[Mock(json=json.dumps(table))])
    run._observer.is_mirror.side_effect = outage
    run._note_batches(query)
    table["batchId"] = 1
    query.recentProgress = [Mock(json=json.dumps(table))]
    run._observer.is_mirror.side_effect = None
    run._observer.is_mirror.return_value = True
    with pytest.raises(
        ClientError, match=r"^no, since; a mirror accepts batches only at the inter-broker"
    ) as problem:
        run._note_batches(query)
    assert problem.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("problem", "ends"),
    [(BrokerUnreachable("cut"), False), (ConfigError("a loop"), True), (ValueError("a fault"), True)],
)
def test_the_thread_that_measures_does_not_end_alone(problem: Exception, ends: bool) -> None:
    run = run_with({}, lag({}, {}))
    run._query = Mock(isActive=True, recentProgress=[])
    run._stopping = Mock(wait=Mock(side_effect=[False, False, True]), is_set=lambda: False)
    run._observer.measure.side_effect = problem
    run._observe()
    with pytest.raises(type(problem)) if ends else nullcontext():
        assert not run.has_ended()
    assert run._observer.measure.call_count == 2


def test_a_stop_is_no_reason_to_wait() -> None:
    run = run_with({}, lag({}, {}))
    run._observer.measure.side_effect = ClientClosed("the client is closed")
    run._observer.interrupt.side_effect = run._observe
    run._thread = Mock(ident=None)
    run._stopping = Mock(wait=Mock(side_effect=[False, True]))
    run.stop()
    run._observer.interrupt.assert_called_once()
    assert run.progress.waiting == ""


# -- failures of Spark

CONNECT = (
    "An error occurred while calling o42.load.\n: org.apache.spark.SparkException: Python worker failed to "
    "connect back.\n\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker\n"
    "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect "
    "back"
)
PAUSE_S_MAX = 80.0
CRASHED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of the job, which a test sets."""
    mine = SimpleNamespace(now_s=1_000.0)
    mine.monotonic = lambda: mine.now_s
    monkeypatch.setattr(mirror_job, "time", mine)
    return mine


@pytest.mark.parametrize("copied", [None, {}])
@pytest.mark.parametrize("text", [CONNECT, CRASHED])
def test_a_query_whose_start_finds_no_python_worker_is_started_again(
    clock: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
    text: str,
    copied: Mapping[TopicPartition, int] | None,
) -> None:
    run = run_with({T0: 9}, lag({T0: 9}, {T0: 0}), copied)
    query = Mock(isActive=True, recentProgress=[])
    run._start_query = Mock(side_effect=[RuntimeError(text), RuntimeError(text), query])
    run._thread = Mock()
    run.start()
    run._thread.start.assert_called_once()
    for attempt, pause_s in ((1, 5), (2, 10)):
        clock.now_s += pause_s - 1
        assert not run.has_ended()
        assert run._start_query.call_count == attempt
        clock.now_s += 1
        assert not run.has_ended()
    assert run._query is query
    assert [record.message for record in caplog.records] == [
        f"the mirror of east starts again from its checkpoint in {pause_s} s, attempt {attempt} of 5, after "
        f"a failure: {explained(RuntimeError(text))}"
        for attempt, pause_s in ((1, 5), (2, 10))
    ]


def test_a_query_that_never_finds_a_python_worker_ends_the_mirror(clock: SimpleNamespace) -> None:
    run = run_with({T0: 9}, lag({T0: 9}, {T0: 0}))
    run._start_query = Mock(side_effect=RuntimeError(CONNECT))
    run._thread = Mock()
    run.start()
    for _ in range(RESTARTS_MAX - 1):
        clock.now_s += PAUSE_S_MAX
        assert not run.has_ended()
    clock.now_s += PAUSE_S_MAX
    with pytest.raises(RuntimeError, match="connect back"):
        run.has_ended()


@pytest.mark.parametrize("problem", [RuntimeError("[DATA_SOURCE_NOT_FOUND]"), ConfigError("wrong")])
def test_another_error_of_the_start_of_a_query_ends_the_mirror(problem: Exception) -> None:
    run = run_with({}, lag({}, {}))
    run._start_query = Mock(side_effect=problem)
    with pytest.raises(type(problem)):
        run.start()


@pytest.mark.parametrize("copied", [None, {}])
def test_a_query_that_loses_its_python_worker_is_started_again_a_few_times(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture, copied: Mapping[TopicPartition, int] | None
) -> None:
    run = run_with({T0: 9}, lag({T0: 9}, {T0: 0}), copied)
    if copied is not None:
        run._records.failure = None
    failed = Mock(isActive=False, recentProgress=[])
    failed.exception.return_value = RuntimeError(CONNECT)
    run._start_query = Mock(return_value=failed)
    run._query = failed
    for _ in range(RESTARTS_MAX):
        assert not run.has_ended()
        clock.now_s += PAUSE_S_MAX
        assert not run.has_ended()
    with pytest.raises(RuntimeError, match="connect back"):
        run.has_ended()
    assert len(caplog.records) == RESTARTS_MAX
    assert all("\n" not in record.message for record in caplog.records)


# -- outages


def wait(since: float) -> Wait:
    return Wait(Kind.CLUSTER, "", "no connection to b:1", since)


def test_an_outage_is_logged_once_with_its_cluster_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports = OutageReports("east")
    began_s = 1_000.0
    for second in range(60):
        now_s = began_s + second
        # Between two attempts nothing waits for a moment.
        waits = {} if second == 30 else {"west": wait(began_s)}
        reason = reports.update(waits, began_s - 1, now_s)
        assert (reason != "") == (second >= REPORT_AFTER_S)
    assert reports.update({"west": wait(began_s)}, now_s, now_s + 1) == ""
    assert reports.update({}, now_s, now_s + 2) == ""
    assert [record.message for record in caplog.records] == [
        "the mirror of east waits: no answer of the cluster west for 7 s: no connection to b:1",
        "the mirror of east continues: the cluster west answers again",
    ]
    caplog.clear()
    assert "for 8 s" in reports.update({"west": wait(now_s)}, now_s, now_s + 8)
    assert len(caplog.records) == 1


def test_a_broker_that_is_down_among_others_is_no_outage_of_the_cluster(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports = OutageReports("east")
    for second in range(60):
        assert reports.update({"west": wait(0.0)}, 100.0 + second - second % 6, 100.0 + second) == ""
    assert caplog.records == []


def test_the_oldest_wait_of_a_cluster_counts() -> None:
    job = MirrorJob(sources=[EAST], target=WEST, checkpoint="x")
    observer: Any = ClusterObserver(job, EAST)
    assert observer.waits() == {}
    observer._target_reader = Mock(waits=Mock(return_value=[wait(3.0)]))
    observer._target_admin = Mock(waits=Mock(return_value=[wait(2.0)]))
    assert observer.waits() == {"west": wait(2.0)}
    observer._source_admin = Mock(waits=Mock(side_effect=RuntimeError("dictionary changed size")))
    assert observer.waits() == {}


@pytest.mark.timeout(120)
def test_the_cluster_that_does_not_answer_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as source, Broker() as target:
        east, west = (
            MirrorSource(alias, {"bootstrap.servers": broker.bootstrap})
            for alias, broker in (("east", source), ("west", target))
        )
        run: Any = SourceRun(
            Mock(), MirrorJob(sources=[east], target=west, checkpoint=str(tmp_path)), east, None
        )
        run._query = Mock(isActive=True, recentProgress=[])
        run._thread.start()

        def wait_for(text: str) -> None:
            while text not in caplog.text:
                assert not run.has_ended()
                time.sleep(0.1)

        try:
            while run.progress.lag is None:
                assert not run.has_ended()
                time.sleep(0.1)
            target.kill()
            wait_for("the mirror of east waits: no answer of the cluster west for 7 s")
            assert run.progress.waiting.startswith("no answer of the cluster west")
            target.start()
            wait_for("the mirror of east continues: the cluster west answers again")
        finally:
            run.stop()
    assert "cluster east" not in caplog.text
