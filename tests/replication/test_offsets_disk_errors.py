"""Failing disks under ``__consumer_offsets``: other brokers become coordinators of its groups."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faulty_files import FaultyFiles
from test_leader_isolation import NODE, Stage

from record_builders import build_batch
from tidemill.broker.broker import Broker
from tidemill.broker.coordinator_topic import PartitionCoordinatorLog
from tidemill.coordination.topic_image import OFFSETS_TOPIC
from tidemill.log.log_config import LogConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState

ALWAYS = 1 << 30


class Coordinator(Stage):
    """A broker that leads a partition of committed offsets, with its reports about the disk."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__(pool)
        state = PartitionState(0, NODE, 3, (NODE,), (NODE,), 5)
        run_at_once(self.replicas.put_topic_in_slices(OFFSETS_TOPIC, b"o" * 16, True, [state], LogConfig()))
        broker: Any = Broker()
        broker.replica_manager, broker.clock = self.replicas, self.clock
        self.offsets = PartitionCoordinatorLog(broker, OFFSETS_TOPIC)
        self.directory_failed = asyncio.Event()
        self.replicas.listener.directory_failed = self.directory_failed.set
        self.led: dict[str, bool] = {}
        """As leadership listeners are called: in the broker, the groups are given up with that."""
        self.replicas.leadership_listeners.append(self._note)

    def _note(self, partition: Partition, is_led: bool) -> None:
        self.led[partition.topic] = is_led

    @property
    def stored(self) -> Partition:
        found = self.replicas.find(OFFSETS_TOPIC, 0)
        assert found is not None
        return found

    def break_disk(self, operation: str, number: int) -> None:
        files = self.logs.files
        assert isinstance(files, FaultyFiles)
        files.fail(operation, OFFSETS_TOPIC, number, times=ALWAYS)

    async def commit(self) -> None:
        await self.offsets.append(0, build_batch([(1_700_000_000_000, b"group", b"offset", None)]))

    async def load(self) -> None:
        async for _ in self.offsets.read(0):
            pass

    async def fails(self, work: Awaitable[None]) -> None:
        with pytest.raises(KafkaError) as caught:
            await work
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@asynccontextmanager
async def coordinating() -> AsyncIterator[Coordinator]:
    with ThreadPoolExecutor(1) as pool:
        async with asyncio.timeout(10):
            yield Coordinator(pool)


@pytest.mark.parametrize(
    ("work", "operation", "number"),
    [
        pytest.param(Coordinator.commit, "append", errno.EIO, id="write offset commits: EIO"),
        pytest.param(Coordinator.commit, "append", errno.EROFS, id="write offset commits: EROFS"),
        pytest.param(Coordinator.load, "read_at", errno.EIO, id="read committed offsets: EIO"),
    ],
)
async def test_a_broker_that_cannot_access_offsets_stops_coordinating_their_groups(
    work: Callable[[Coordinator], Awaitable[None]], operation: str, number: int
) -> None:
    async with coordinating() as one:
        await one.commit()
        one.break_disk(operation, number)
        await one.fails(work(one))
        await one.directory_failed.wait()
        assert one.stored.is_offline
        assert one.led[OFFSETS_TOPIC] is False


async def test_a_full_disk_is_reported_for_offset_commits_and_accepts_them_later() -> None:
    async with coordinating() as one:
        await one.commit()
        one.break_disk("append", errno.ENOSPC)
        await one.fails(one.commit())
        assert one.replicas.full_directories == ["/d"]
        files = one.logs.files
        assert isinstance(files, FaultyFiles)
        files.heal()
        await one.commit()
        assert not one.stored.is_offline
