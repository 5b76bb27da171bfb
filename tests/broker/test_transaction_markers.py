"""Markers of transactions in the partitions of a broker: the wait for their commits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker import transaction_markers
from tidemill.broker.transaction_markers import MarkerWriter
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch
from tidemill.model.types import TopicPartition
from tidemill.replication.delayed_operations import OffsetCallback

MARKER = MarkerToWrite(ProducerIdAndEpoch(1, 0), True, 0, 2)
COMMITTED, UNCOMMITTED = TopicPartition("t", 0), TopicPartition("t", 1)


class Waits:
    """The operations that wait for a partition, whose records are never committed."""

    def wait_committed(self, end_offset: int, callback: OffsetCallback) -> None:
        """Never calls back."""


def partition_of(where: TopicPartition) -> Any:
    """A partition with one record; the second one has too few in-sync replicas."""
    return SimpleNamespace(
        is_mirror=False,
        log=SimpleNamespace(directory="/data", end_offset=1),
        append_marker=lambda *fields: None,
        is_committed=lambda end_offset: where == COMMITTED,
        delayed=Waits(),
    )


async def test_a_partition_without_a_commit_hides_no_result_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator gets a response before its request times out."""
    config = BrokerConfig({})
    assert config.seconds("request.timeout.ms") / 2 > transaction_markers.COMMIT_WAIT_S
    monkeypatch.setattr(transaction_markers, "COMMIT_WAIT_S", 0.05)
    broker: Any = SimpleNamespace(
        config=config,
        clock=SystemClock(),
        partition=lambda topic, index: partition_of(TopicPartition(topic, index)),
    )
    writer = MarkerWriter(broker)
    for where in (UNCOMMITTED, COMMITTED, UNCOMMITTED):
        writer.write(MARKER, where)
    async with asyncio.timeout(10):
        errors = await writer.wait()
    assert errors == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
