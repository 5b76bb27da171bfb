"""Markers reach the leaders of their partitions: batches, moves, failures, deleted topics."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.task_set import TaskSet
from tidemill.model.transaction_types import ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.transactions import transaction_marker_channel_manager as channel
from tidemill.transactions.coordinator_effects import TransactionMarker
from tidemill.transactions.transaction_marker_channel_manager import (
    PartitionMarker,
    TransactionMarkerChannelManager,
)

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


class Leaders:
    """The leaders of partitions, with the answers of a test."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int | None] = {P0: 1, P1: 1, P2: 2}
        self.gone: set[TopicPartition] = set()
        self.answers: list[Mapping[TopicPartition, ErrorCode] | Exception] = []
        """The next answers; without one, all markers are written."""
        self.requests: list[tuple[int, list[TopicPartition]]] = []
        self.epochs: list[int] = []
        """The epochs of the coordinator in the requests."""
        self.gate = asyncio.Event()
        self.gate.set()

    def leader(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition)

    async def deleted(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        return self.gone.intersection(partitions)

    async def write(
        self, broker_id: int, markers: Sequence[PartitionMarker]
    ) -> Mapping[tuple[int, TopicPartition], ErrorCode]:
        self.requests.append((broker_id, [one.partition for one in markers]))
        self.epochs += {one.coordinator_epoch() for one in markers}
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        return {
            (one.marker.producer.producer_id, one.partition): answer.get(one.partition, ErrorCode.NONE)
            for one in markers
        }


class Markers:
    """A channel manager that sends markers of producer 1."""

    def __init__(self) -> None:
        self.leaders = Leaders()
        self.tasks = TaskSet()
        self.manager = TransactionMarkerChannelManager(self.leaders, self.tasks)
        self.written: list[TopicPartition] = []
        self.is_coordinator = True
        self.epoch = 7

    def send(self, *partitions: TopicPartition) -> None:
        marker = TransactionMarker(
            transactional_id="x", producer=ProducerIdAndEpoch(1, 0), is_commit=True, client_version=2
        )
        self.manager.send(
            [
                PartitionMarker(
                    marker,
                    one,
                    lambda: self.epoch,
                    lambda _, where: self.written.append(where),
                    lambda: self.is_coordinator,
                )
                for one in partitions
            ]
        )

    async def settle(self) -> None:
        """Waits until no marker is queued."""
        async with asyncio.timeout(5):
            while self.manager.unfinished:  # noqa: ASYNC110 - nothing reports the last one
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert not self.tasks


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "RETRY_S", 0.005)


async def test_each_leader_gets_the_markers_of_its_partitions_in_one_request() -> None:
    markers = Markers()
    markers.send(P0, P1, P2)
    await markers.settle()
    assert sorted(markers.leaders.requests) == [(1, [P0, P1]), (2, [P2])]
    assert sorted(markers.written) == [P0, P1, P2]


async def test_markers_that_come_during_a_request_share_the_next_one() -> None:
    markers = Markers()
    markers.leaders.gate.clear()
    markers.send(P0)
    await asyncio.sleep(0)
    markers.send(P1)
    markers.send(P0)
    await asyncio.sleep(0)
    markers.leaders.gate.set()
    await markers.settle()
    assert markers.leaders.requests == [(1, [P0]), (1, [P1, P0])]


FAILURES: list[Any] = [
    KafkaError("broker 1 does not respond", ErrorCode.NETWORK_EXCEPTION),
    RuntimeError("a bug, which must not block the transactional id for ever"),
    {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER},
    {P0: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND},
    {P0: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
    {P0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    {P0: ErrorCode.UNKNOWN_SERVER_ERROR},
]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_marker_that_was_not_written_is_sent_to_the_next_leader(failure: Any) -> None:
    markers = Markers()
    markers.leaders.answers = [failure]
    markers.send(P0)
    await asyncio.sleep(0)
    markers.leaders.leaders[P0] = 2
    await markers.settle()
    assert markers.leaders.requests == [(1, [P0]), (2, [P0])]
    assert markers.written == [P0]


async def test_a_partition_without_leader_is_waited_for() -> None:
    markers = Markers()
    markers.leaders.leaders[P0] = None
    markers.send(P0)
    await asyncio.sleep(0.02)
    assert markers.leaders.requests == []
    markers.leaders.leaders[P0] = 3
    await markers.settle()
    assert markers.leaders.requests == [(3, [P0])]


@pytest.mark.parametrize("when", ["before", "after a failure"])
async def test_a_deleted_partition_needs_no_marker(when: str) -> None:
    markers = Markers()
    if when == "after a failure":
        markers.leaders.answers = [{P0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
        markers.send(P0)
    markers.leaders.leaders[P0] = None
    markers.leaders.gone.add(P0)
    if when == "before":
        markers.send(P0)
    await markers.settle()
    assert markers.written == [P0]


@pytest.mark.parametrize("error", sorted(channel.WRITTEN))
async def test_a_partition_that_needs_no_marker_does_not_delay_the_end(error: ErrorCode) -> None:
    markers = Markers()
    markers.leaders.answers = [{P0: error}]
    markers.send(P0)
    await markers.settle()
    assert (markers.written, len(markers.leaders.requests)) == ([P0], 1)


async def test_a_marker_of_a_former_coordinator_is_given_up() -> None:
    markers = Markers()
    markers.leaders.answers = [{P0: ErrorCode.TRANSACTION_COORDINATOR_FENCED}]
    markers.send(P0)
    await asyncio.sleep(0)
    markers.is_coordinator = False
    await markers.settle()
    assert markers.written == []
    assert len(markers.leaders.requests) == 1


async def test_a_coordinator_that_was_replaced_for_a_while_writes_its_markers_in_its_new_epoch() -> None:
    """It was not notified of the coordinator in between, which has written markers."""
    markers = Markers()
    markers.leaders.answers = [{P0: ErrorCode.TRANSACTION_COORDINATOR_FENCED}]
    markers.send(P0)
    await asyncio.sleep(0)
    markers.epoch = 9
    await markers.settle()
    assert markers.written == [P0]
    assert markers.leaders.epochs == [7, 9]


async def test_a_broker_that_coordinates_no_more_sends_no_more() -> None:
    markers = Markers()
    markers.leaders.answers = [{P0: ErrorCode.NOT_LEADER_OR_FOLLOWER}]
    markers.send(P0)
    await asyncio.sleep(0)
    markers.is_coordinator = False
    await markers.settle()
    assert (markers.written, len(markers.leaders.requests)) == ([], 1)


async def test_a_marker_is_not_sent_after_its_broker_has_lost_the_coordination() -> None:
    markers = Markers()
    markers.leaders.gate.clear()
    markers.send(P0)
    await asyncio.sleep(0)
    markers.send(P1)
    markers.is_coordinator = False
    markers.leaders.gate.set()
    await markers.settle()
    assert markers.leaders.requests == [(1, [P0])]


async def test_an_error_of_one_transaction_loses_no_marker_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    markers = Markers()

    def fail_once(marker: TransactionMarker, where: TopicPartition) -> None:
        raise RuntimeError(f"the marker of {where} was not expected")

    marker = TransactionMarker(
        transactional_id="y", producer=ProducerIdAndEpoch(2, 0), is_commit=True, client_version=2
    )
    markers.manager.send([PartitionMarker(marker, P1, lambda: 7, fail_once, lambda: True)])
    markers.send(P0)
    await markers.settle()
    assert markers.written == [P0]
    (record,) = caplog.records
    assert "was not counted" in record.getMessage()


async def test_a_broker_that_is_down_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidemill.transactions")
    markers = Markers()
    down = KafkaError("broker 1 refuses connections", ErrorCode.NETWORK_EXCEPTION)
    markers.leaders.answers = [down, down, down]
    markers.send(P0)
    await markers.settle()
    assert len(markers.leaders.requests) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "broker 1 has not written 1 markers, which are sent again: broker 1 refuses connections"
    ]


async def test_markers_for_a_leader_that_is_down_take_several_turns() -> None:
    markers = Markers()
    count = 3 * ITEMS_PER_SLICE
    partitions = [TopicPartition("many", number) for number in range(count)]
    markers.send(*partitions)
    routed = []
    for one in partitions:
        markers.leaders.leaders[one] = 1
    while len(markers.written) < count:
        await asyncio.sleep(0)
        routed.append(sum(len(sent) for _, sent in markers.leaders.requests))
    await markers.settle()
    assert routed[-1] == count
    assert max(after - before for before, after in zip([0, *routed], routed, strict=False)) <= count // 3
