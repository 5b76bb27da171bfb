"""A new coordinator reads ``__consumer_offsets`` up to its log end offset, once that is committed."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from replica_stage import FOLLOWER, LEADER, Broker

from tidemill.broker import coordinator_topic
from tidemill.broker.coordinator_topic import PartitionCoordinatorLog
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError
from tidemill.replication.partition import Partition

AFTER_ALL_TURNS = 50
BATCH_LENGTH_AT = 8


class Reading:
    """A broker that became leader of two records, none of them committed according to this broker."""

    def __init__(self, min_insync_replicas: int = 1) -> None:
        self.broker = Broker(LEADER)
        self.broker.become(LEADER, 1)
        self.broker.write(0, b"a", b"b")
        self.broker.become(FOLLOWER, 2)
        self.broker.become(LEADER, 3)
        self.partition: Partition = self.broker.partitions[0]
        self.partition.set_min_insync_replicas(min_insync_replicas, 0)
        self.has_read = asyncio.Event()

    async def read(self) -> None:
        stands_for: Any = SimpleNamespace(partition=lambda topic, index: self.partition)
        async for _ in PartitionCoordinatorLog(stands_for, OFFSETS_TOPIC).read(0):
            self.has_read.set()

    async def start(self) -> asyncio.Task[None]:
        reading = asyncio.create_task(self.read())
        await self.has_read.wait()
        for _ in range(AFTER_ALL_TURNS):
            await asyncio.sleep(0)
        return reading


async def test_loading_completes_when_the_read_records_are_committed() -> None:
    stage = Reading()
    reading = await stage.start()
    assert not reading.done()
    stage.partition.fetched_by(FOLLOWER, 1, 0, 1)
    await asyncio.sleep(0)
    assert not reading.done()
    stage.partition.fetched_by(FOLLOWER, 2, 0, 2)
    await asyncio.wait_for(reading, 5)


async def test_loading_does_not_wait_for_committed_records() -> None:
    stage = Reading()
    stage.partition.fetched_by(FOLLOWER, 2, 0, 1)
    await asyncio.wait_for(stage.read(), 5)
    assert stage.has_read.is_set()


async def test_loading_fails_when_another_broker_becomes_leader() -> None:
    stage = Reading()
    reading = await stage.start()
    stage.broker.become(FOLLOWER, 4)
    with pytest.raises(KafkaError) as caught:
        await asyncio.wait_for(reading, 5)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_loading_fails_at_a_batch_that_is_longer_than_the_log() -> None:
    stage = Reading()
    stage.partition.fetched_by(FOLLOWER, 2, 0, 1)
    stage.partition.log.active.file().write_at(BATCH_LENGTH_AT, struct.pack(">i", 1_000_000))
    with pytest.raises(CorruptMessage, match="the batch at offset 0 is longer than the log"):
        await asyncio.wait_for(stage.read(), 5)


def test_a_cancelled_wait_reports_no_unhandled_exception() -> None:
    async def story() -> list[str]:
        problems: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context["message"]))
        stage = Reading()
        reading = await stage.start()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        stage.broker.become(FOLLOWER, 4)
        del stage, reading
        gc.collect()
        await asyncio.sleep(0)
        return problems

    assert asyncio.run(story()) == []


def test_a_waiting_coordinator_logs_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_topic, "COMMIT_WARNING_S", 0.0)
    reported: asyncio.Queue[logging.LogRecord] = asyncio.Queue()
    handler = logging.Handler()
    handler.emit = reported.put_nowait  # type: ignore[method-assign]
    logger = logging.getLogger("tidemill.coordinator")
    monkeypatch.setattr(logger, "handlers", [handler])

    async def story() -> logging.LogRecord:
        stage = Reading(min_insync_replicas=2)
        stage.broker.become(LEADER, 4, (LEADER,))
        reading = await stage.start()
        record = await asyncio.wait_for(reported.get(), 5)
        reading.cancel()
        return record

    assert asyncio.run(story()).getMessage() == (
        "t-0: loading it waits for the commit of offsets 0 to 1: brokers [1] are in sync, and"
        " min.insync.replicas is 2; start the brokers that are down"
    )
