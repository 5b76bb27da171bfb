"""The lag of a query: the figures of Spark's own connector, and a group with its offsets."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition
from tidemill.pipeline import Lag, LagListener
from tidemill.pipeline.lag import lag_behind

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.xdist_group("spark")]


def test_the_metrics_have_the_names_and_texts_of_sparks_connector() -> None:
    behind = {TopicPartition("a", 0): 3, TopicPartition("a", 1): 0, TopicPartition("b", 0): 4}
    lag = Lag("id", "name", 0, 7, behind)
    assert lag.metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "4",
        "avgOffsetsBehindLatest": "2.3333333333333335",
    }
    assert lag.total == 7
    assert Lag("id", None, 0, 7, {}).metrics == {}


def test_a_partition_added_after_the_batch_has_no_lag() -> None:
    one, other = TopicPartition("a", 0), TopicPartition("a", 1)
    assert lag_behind({one: 5}, {one: 7, other: 4}) == {one: 2}
    assert lag_behind({one: 5}, {one: 3}) == {one: 0}


@pytest.mark.parametrize(
    ("options", "group", "text"),
    [
        (None, "g", "needs the brokers to commit to a group"),
        ({"subscribe": "t"}, "g", r"kafka\.bootstrap\.servers is missing"),
        ({"kafka.bootstrap.servers": "h:1"}, " ", "group is empty"),
    ],
)
def test_a_listener_without_brokers_or_group_cannot_commit(
    options: dict[str, str] | None, group: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        LagListener(options, group=group)


def test_before_4_2_a_listener_needs_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.9")
    with pytest.raises(ConfigError, match=r"latest offsets on PySpark 4\.1\.9"):
        LagListener()


def test_from_4_2_on_a_listener_needs_no_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("4.2.0", "4.2.0.dev3", "4.10.1", "10.0.0"):
        monkeypatch.setattr(pyspark, "__version__", version)
        assert LagListener().latest("no query") is None


def test_before_4_2_the_latest_offset_of_the_progress_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a Python source it is the end of the micro-batch; for Spark's own connector it is correct."""

    class Brokers:
        def describe(self, topics: list[str]) -> dict[str, Any]:
            return {topic: SimpleNamespace(partitions=1) for topic in topics}

        def list_offsets(self, wanted: Any) -> dict[TopicPartition, int]:
            return dict.fromkeys(wanted, 9)

    monkeypatch.setattr(pyspark, "__version__", "4.1.9")
    listener = LagListener({"kafka.bootstrap.servers": "h:1"})
    monkeypatch.setattr(listener, "_cluster", Brokers())
    listener.onQueryProgress(progress(position("t", 3), position("t", 3)))
    assert listener._lags["q", 0].total == 6
    listener.onQueryProgress(progress({"t": {"0": 3}}, {"t": {"0": 5}}))
    assert listener._lags["q", 0].total == 2


def progress(end: object, latest: object = None, name: str | None = None) -> Any:
    source = SimpleNamespace(
        endOffset=json.dumps(end), latestOffset=None if latest is None else json.dumps(latest)
    )
    return SimpleNamespace(progress=SimpleNamespace(id="q", name=name, batchId=3, sources=[source]))


def position(topic: str, number: int) -> dict[str, Any]:
    return {"topics": {topic: {"id": None, "next": {"0": number}}}, "version": 1}


def test_sources_without_topics_and_other_queries_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    listener = LagListener({"kafka.bootstrap.servers": "h:1"}, query="mine")
    for other in (5, {"logOffset": 3}, [1]):
        listener.onQueryProgress(progress(other, other, "mine"))
    listener.onQueryProgress(progress(position("t", 3), position("t", 9), "other"))
    assert listener.latest("q") is None
    listener.onQueryProgress(progress(position("t", 3), position("t", 9), "mine"))
    lag = listener.latest("q")
    assert lag is not None
    assert (lag.total, lag.batch_id, lag.query) == (6, 3, "mine")


def test_errors_in_a_listener_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")

    def broken(_: Lag) -> None:
        raise ValueError("no such gauge")

    listener = LagListener({"kafka.bootstrap.servers": "h:1"}, on_lag=broken)
    listener.onQueryProgress(progress(position("t", 3), position("t", 9), "mine"))
    assert "the lag of query mine is not known: no such gauge" in caplog.text


def wait_for(what: Any) -> None:
    deadline_s = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_query_reports_its_lag_and_commits_the_last_batch(lab: Any) -> None:
    topic = lab.cluster.topic(2)
    lab.cluster.produce(topic, 30, 0)
    lab.cluster.produce(topic, 10, 1)
    seen: list[Lag] = []
    group = f"{topic}-lag"
    listener = LagListener(
        {"kafka.bootstrap.servers": lab.cluster.bootstrap}, group=group, on_lag=seen.append
    )
    lab.spark.streams.addListener(listener)
    try:
        query = lab.start(topic, now=False, maxOffsetsPerTrigger=16)
        try:
            query.processAllAvailable()
            wait_for(lambda: seen and not seen[-1].total)
        finally:
            query.stop()
    finally:
        lab.spark.streams.removeListener(listener)
        listener.close()
    by_batch = {lag.batch_id: lag for lag in seen}
    lag = listener.latest(str(query.id))
    assert lag is not None
    assert lag.behind == {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
    assert lab.cluster.committed(group) == {(topic, 0): 30, (topic, 1): 10}
    assert by_batch[0].behind == {TopicPartition(topic, 0): 18, TopicPartition(topic, 1): 6}
    assert by_batch[0].metrics == {
        "minOffsetsBehindLatest": "6",
        "maxOffsetsBehindLatest": "18",
        "avgOffsetsBehindLatest": "12.0",
    }
