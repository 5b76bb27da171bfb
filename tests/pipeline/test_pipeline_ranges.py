"""The client that reads ranges, used again after its topic has changed behind its back; no Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.client.errors import DataLoss, TopicRecreated
from tidemill.client.ranges import RangeReader
from tidemill.pipeline import connect

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("spark")]


@pytest.fixture
def reader(cluster: Any) -> Iterator[RangeReader]:
    """One that has no reason of its own to ask for metadata again."""
    with RangeReader(cluster.bootstrap, metadata_max_age_ms=3_600_000) as made:
        yield made


def read(reader: RangeReader, topic: str, partition: int, end: int, topic_id: bytes | None) -> list[bytes]:
    batches = reader.read(topic, partition, 0, end, topic_id=topic_id)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def id_of(cluster: Any, topic: str) -> bytes | None:
    """The topic's id as a client sees it that did not know the topic before."""
    with RangeReader(cluster.bootstrap) as fresh:
        return fresh.describe([topic])[topic].topic_id


def test_a_reader_that_remembers_the_topic_of_before_reads_the_one_of_now(
    cluster: Any, reader: RangeReader
) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 2)
    before = id_of(cluster, topic)
    assert read(reader, topic, 0, 2, before) == [b"0", b"1"]
    cluster.delete(topic)
    cluster.topic(1, topic)
    cluster.produce(topic, 3, start=10)
    now = id_of(cluster, topic)
    assert now != before
    # Asked for by the id of now, the topic is no other than was planned: only the reader's view is old.
    assert read(reader, topic, 0, 3, now) == [b"10", b"11", b"12"]
    with pytest.raises(TopicRecreated, match=f"topic '{topic}' was deleted and made anew"):
        read(reader, topic, 0, 3, before)


def test_a_reader_that_remembers_fewer_partitions_reads_one_that_came_since(
    cluster: Any, reader: RangeReader
) -> None:
    topic = cluster.topic()
    cluster.produce(topic, 1)
    assert read(reader, topic, 0, 1, None) == [b"0"]
    cluster.grow(topic, 2)
    cluster.produce(topic, 2, 1, start=5)
    assert read(reader, topic, 1, 2, None) == [b"5", b"6"]
    with pytest.raises(DataLoss, match=f"topic '{topic}' has 2 partitions, 2 is not one"):
        read(reader, topic, 2, 1, None)


def test_a_client_that_was_lent_out_before_is_used_again_and_never_after_a_fork(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "_idle", {})
    monkeypatch.setattr(connect, "_idle_process", os.getpid())
    client = {"bootstrap.servers": cluster.bootstrap}
    with connect.borrowed(client) as first:
        first.topic_names()
    with connect.borrowed(client) as again:
        assert again is first
    child = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        with connect.borrowed(client) as forked:
            assert forked is not first
    forked.close()
    first.close()
