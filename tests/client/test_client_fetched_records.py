"""The records that a poll returns if one of the fetched batches is damaged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from default_limits import CompletedFetch
from record_builders import build_batch
from tidemill.client.completed_fetch import ConsumerRecords
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import CONSUMER
from tidemill.client.fetched_records import collect, collect_arrow
from tidemill.client.fetcher import Fetcher
from tidemill.client.network_client import NetworkClient
from tidemill.client.subscription_state import PartitionPosition, SubscriptionState
from tidemill.model.errors import CorruptMessage
from tidemill.model.types import TopicPartition
from tidemill.records.record_reader import Record
from tidemill.wire.fetch_layout import FetchedPartition

COUNT = 3
DAMAGED = TopicPartition("t", 1)
BYTES_MAX = 1 << 20


class Polls:
    """The polls of one consumer with records of three partitions, the second of them damaged."""

    def __init__(self, as_arrow: bool) -> None:
        self.as_arrow = as_arrow
        cluster = NetworkClient(ClientConfig(CONSUMER, {"bootstrap.servers": "unused:1"}))
        self.subscriptions = SubscriptionState(cluster.config)
        self.positions = self.subscriptions.positions
        self.fetcher = Fetcher(cluster, self.subscriptions)
        for number in range(COUNT):
            self.bring(TopicPartition("t", number))

    def bring(self, item: TopicPartition) -> None:
        data = build_batch([(1, b"k", b"%d" % item.partition, None)])
        if item == DAMAGED:
            data = data[:-2] + b"?" + data[-1:] + build_batch([(1, b"k", b"behind", None)], base_offset=1)
        response = FetchedPartition(item.topic.encode(), item.partition, data)
        response.end = len(data)
        position = self.positions[item] = PartitionPosition()
        position.offset = 0
        fetch = CompletedFetch(item, response, 0, committed_only=False, check_crcs=True)
        self.fetcher.completed_fetches.append(fetch)

    def values(self) -> list[bytes]:
        if self.as_arrow:
            table = collect_arrow(self.fetcher, self.subscriptions, False, BYTES_MAX)
            return [] if table is None else table["value"].to_pylist()
        found = collect(self.fetcher, self.subscriptions, 100)
        return [record.value or b"" for records in found.values() for record in records]


@pytest.fixture(params=[False, True], ids=["records", "arrow"])
def polls(request: pytest.FixtureRequest) -> Iterator[Polls]:
    found = Polls(request.param)
    yield found
    found.fetcher.close()


def test_a_damaged_batch_is_reported_not_skipped_and_does_not_affect_others(polls: Polls) -> None:
    assert polls.values() == [b"0"]
    with pytest.raises(CorruptMessage, match=r"t-1 cannot be read"):
        polls.values()
    assert polls.values() == [b"2"]
    assert [position.offset for position in polls.positions.values()] == [1, 0, 1]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_consumer_records_are_true_if_not_empty(count: int) -> None:
    record = Record(0, 1, 0, None, b"value", [])
    found = ConsumerRecords({TopicPartition("t", 0): [record] * count} if count else {})
    assert (bool(found), len(found), len(list(found))) == (count > 0, count, count)
