"""The range reader with metadata that has become outdated since its last use; no Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.client.errors import DataLoss, TopicRecreated
from tidemill.client.range_reader import RangeReader
from tidemill.pipeline import client_pool

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("spark")]


@pytest.fixture
def reader(cluster: Any) -> Iterator[RangeReader]:
    """A reader that has no reason to refresh its metadata."""
    with RangeReader(cluster.bootstrap, metadata_max_age_ms=3_600_000) as made:
        yield made


def read(reader: RangeReader, topic: str, partition: int, end: int, topic_id: bytes | None) -> list[bytes]:
    batches = reader.read(topic, partition, 0, end, topic_id=topic_id)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def id_of(cluster: Any, topic: str) -> bytes | None:
    """Returns the topic's id as seen by a new client."""
    with RangeReader(cluster.bootstrap) as fresh:
        return fresh.describe([topic])[topic].topic_id


def test_a_reader_with_outdated_metadata_reads_the_recreated_topic(cluster: Any, reader: RangeReader) -> None:
    topic = cluster.filled(2)
    before = id_of(cluster, topic)
    assert read(reader, topic, 0, 2, before) == [b"0", b"1"]
    cluster.delete(topic)
    cluster.topic(1, topic)
    cluster.produce(topic, 3, start=10)
    now = id_of(cluster, topic)
    assert now != before
    # Requested by the current id, the topic is the planned one: only the reader's metadata is outdated.
    assert read(reader, topic, 0, 3, now) == [b"10", b"11", b"12"]
    with pytest.raises(TopicRecreated, match=f"topic '{topic}' was deleted and recreated"):
        read(reader, topic, 0, 3, before)


def test_a_reader_with_outdated_metadata_reads_an_added_partition(cluster: Any, reader: RangeReader) -> None:
    topic = cluster.filled(1)
    assert read(reader, topic, 0, 1, None) == [b"0"]
    cluster.grow(topic, 2)
    cluster.produce(topic, 2, 1, start=5)
    assert read(reader, topic, 1, 2, None) == [b"5", b"6"]
    with pytest.raises(DataLoss, match=f"topic '{topic}' has 2 partitions and no partition 2"):
        read(reader, topic, 2, 1, None)


def test_a_pooled_client_is_reused_but_not_after_a_fork(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrow = client_pool.ClientPool(client_pool.open_cluster).borrow
    client = {"bootstrap.servers": cluster.bootstrap}
    with borrow(client) as first:
        first.topic_names()
    with borrow(client) as again:
        assert again is first
    child = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        with borrow(client) as forked:
            assert forked is not first
    forked.close()
    first.close()
