"""What a poll gives out of the answers that have come, where one of them cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.client.chunks import Chunk, ConsumerRecords
from tidemill.client.cluster import Cluster
from tidemill.client.collecting import collect, collect_arrow
from tidemill.client.config import CONSUMER, ClientConfig
from tidemill.client.fetcher import Fetcher, Place
from tidemill.client.fetching import Answer
from tidemill.model.errors import CorruptMessage
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.records.builder import build_batch
from tidemill.records.reader import Record

COUNT = 3
DAMAGED = TopicPartition("t", 1)
BYTES_MAX = 1 << 20


class Polls:
    """The polls of one consumer whose fetch has brought three partitions, the second of them damaged."""

    def __init__(self, as_arrow: bool) -> None:
        self.as_arrow = as_arrow
        self.places: dict[TopicPartition, Place] = {}
        cluster = Cluster(ClientConfig(CONSUMER, {"bootstrap.servers": "unused:1"}))
        self.fetcher = Fetcher(cluster, self.places)
        for number in range(COUNT):
            self.bring(TopicPartition("t", number))

    def bring(self, item: TopicPartition) -> None:
        data = build_batch([(1, b"k", b"%d" % item.partition, None)])
        if item == DAMAGED:
            data = data[:-2] + b"?" + data[-1:] + build_batch([(1, b"k", b"behind", None)], base_offset=1)
        answer = Answer(item.topic, ZERO_ID, data)
        answer.end = len(data)
        place = self.places[item] = Place()
        place.offset = 0
        self.fetcher.chunks.append(Chunk(item, answer, 0, committed_only=False, check_crcs=True))

    def values(self) -> list[bytes]:
        if self.as_arrow:
            table = collect_arrow(self.fetcher, self.places, False, BYTES_MAX)
            return [] if table is None else table["value"].to_pylist()
        found = collect(self.fetcher, self.places, 100)
        return [record.value or b"" for records in found.values() for record in records]


@pytest.fixture(params=[False, True], ids=["records", "arrow"])
def polls(request: pytest.FixtureRequest) -> Iterator[Polls]:
    found = Polls(request.param)
    yield found
    found.fetcher.close()


def test_a_damaged_batch_is_told_and_not_passed_over_and_takes_nothing_with_it(polls: Polls) -> None:
    assert polls.values() == [b"0"]
    with pytest.raises(CorruptMessage, match=r"t-1 cannot be read"):
        polls.values()
    assert polls.values() == [b"2"]
    assert [place.offset for place in polls.places.values()] == [1, 0, 1]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_records_of_a_poll_are_true_when_there_is_one(count: int) -> None:
    record = Record(0, 1, 0, None, b"value", [])
    found = ConsumerRecords({TopicPartition("t", 0): [record] * count} if count else {})
    assert (bool(found), len(found), len(list(found))) == (count > 0, count, count)
