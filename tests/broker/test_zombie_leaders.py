"""Leaders whose partition was reassigned without a request to them: when they stop, and what they keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from test_alter_partition_manager import LOST, Controller
from test_controller_requests import FIRST, NODE, BrokerStage

from record_builders import build_batch
from tidemill.broker.alter_partition_manager import AlterPartitionManager
from tidemill.broker.controller_request_batch import batch_for
from tidemill.broker.metadata_cache import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch, parse_batch
from tidemill.replication.delayed_operations import OffsetCallback
from tidemill.replication.partition import Partition
from tidemill.wire.apis import ApiKey
from unpaused import requests_in

OTHER, THIRD = 2, 3
SILENT_MS = 60_000
BROKERS = {one: BrokerImage(BrokerRegistration(one, (), None), 10) for one in (NODE, OTHER, THIRD)}
LED = PartitionImage(0, NODE, 3, [NODE, OTHER], [NODE, OTHER], 5)
MOVED = PartitionImage(0, OTHER, 5, [OTHER, THIRD], [OTHER, THIRD], 9)


def image(*partitions: PartitionImage, epoch: int = 1) -> ClusterImage:
    topics = {"t": TopicImage("t", FIRST, partitions, {})} if partitions else {}
    return ClusterImage("c", OTHER, epoch, BROKERS, topics)


class Zombie(BrokerStage):
    """A broker that leads t-0 since a request of controller epoch 1."""

    async def begin(self) -> Partition:
        await self.apply_full_state(image(LED))
        found = self.broker.replica_manager.find("t", 0)
        assert found is not None
        assert found.is_leader
        return found

    async def apply_full_state(
        self, new: ClusterImage, keys: Iterable[ApiKey] = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA)
    ) -> None:
        """Applies those full requests of a new controller that have one of ``keys``. Others are lost."""
        self.settings.controller_epoch = b"%d" % new.controller_epoch
        batch = batch_for(Delta(new, new), NODE, is_full=True)
        assert batch is not None
        for key, request in requests_in(batch, BROKERS[NODE], "PLAINTEXT"):
            if key not in keys:
                continue
            if key == ApiKey.LEADER_AND_ISR:
                assert (await self.requests.leader_and_isr(request)).error_code == 0
            elif key == ApiKey.UPDATE_METADATA:
                assert (await self.requests.update_metadata(request)).error_code == 0


def a_batch() -> Batch:
    """A batch with one record."""
    data = build_batch([(1_700_000_000_000, b"k", b"v", None)])
    return parse_batch(data, 0, len(data))


def produce(partition: Partition) -> asyncio.Future[KafkaError | None]:
    """Produces with ``acks=all``. The future has the error of the response."""
    future: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    result = partition.append(a_batch(), -1, 0)
    partition.delayed.wait_committed(result.last_offset + 1, OffsetCallback(future.set_result))
    return future


@asynccontextmanager
async def zombie_broker() -> AsyncIterator[Zombie]:
    with ThreadPoolExecutor(1) as pool:
        yield Zombie(pool)


def is_refused_with_not_leader(waiting: asyncio.Future[KafkaError | None]) -> bool:
    """Whether the response makes the client look for the new leader."""
    error = waiting.result() if waiting.done() else None
    return error is not None and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("key", [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA])
async def test_a_leader_of_a_reassigned_partition_stops_at_the_full_request_of_a_new_controller(
    key: ApiKey, caplog: pytest.LogCaptureFixture
) -> None:
    async with zombie_broker() as zombie:
        partition = await zombie.begin()
        waiting = produce(partition)
        await zombie.apply_full_state(image(MOVED, epoch=2), [key])
        assert is_refused_with_not_leader(waiting)
        assert zombie.broker.replica_manager.find("t", 0) is None
        with pytest.raises(KafkaError):
            partition.append(a_batch(), 1, 0)
        log = zombie.broker.log_manager.get(TopicPartition("t", 0))
        assert log is not None
        assert log.end_offset == 1, "no data is deleted"
    assert "this broker stops leading t-0" in caplog.text


async def test_a_leader_of_a_deleted_topic_stops_at_the_full_request_of_a_new_controller() -> None:
    async with zombie_broker() as zombie:
        waiting = produce(await zombie.begin())
        await zombie.apply_full_state(image(epoch=2))
        assert is_refused_with_not_leader(waiting)
        assert zombie.broker.log_manager.get(TopicPartition("t", 0)) is not None


async def test_a_leader_that_becomes_the_controller_stops_leading_reassigned_partitions() -> None:
    async with zombie_broker() as zombie:
        waiting = produce(await zombie.begin())
        await zombie.applier.apply_delta(Announcement(Delta(ClusterImage(), image(MOVED, epoch=2))))
        assert is_refused_with_not_leader(waiting)
        assert zombie.broker.replica_manager.find("t", 0) is None
        assert zombie.broker.log_manager.get(TopicPartition("t", 0)) is not None


async def test_a_new_controller_logs_the_stray_directories_of_its_broker_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warned() -> list[str]:
        return [one for one in caplog.messages if "this broker has no replica" in one]

    async with zombie_broker() as zombie:
        await zombie.begin()
        moved = image(MOVED, epoch=2)
        await zombie.applier.apply_delta(Announcement(Delta(ClusterImage(), moved)))
        assert len(warned()) == 1
        assert "this broker has no replica: 1, /d/t-0 for instance" in warned()[0]
        await zombie.applier.apply_delta(Announcement(Delta.between(moved, moved)))
        assert len(warned()) == 1


async def test_a_leader_stops_when_metadata_has_another_leader_in_a_later_epoch() -> None:
    later = PartitionImage(0, OTHER, 4, [NODE, OTHER], [OTHER], 6)

    async with zombie_broker() as zombie:
        partition = await zombie.begin()
        waiting = produce(partition)
        await zombie.apply_full_state(image(later, epoch=2), [ApiKey.UPDATE_METADATA])
        assert is_refused_with_not_leader(waiting)
        assert zombie.broker.replica_manager.find("t", 0) is partition, "it becomes a follower"
        await zombie.apply_full_state(image(later, epoch=2))
        assert (partition.leader, partition.leader_epoch) == (OTHER, 4)


async def test_a_full_request_does_not_interrupt_assigned_leaders() -> None:
    async with zombie_broker() as zombie:
        partition = await zombie.begin()
        waiting = produce(partition)
        await zombie.apply_full_state(image(LED, epoch=2))
        assert not waiting.done()
        assert partition.is_leader
        assert zombie.broker.replica_manager.find("t", 0) is partition
        partition.fetched_by(OTHER, 1, 0, 1)
        assert waiting.result() is None


async def test_a_partition_that_is_assigned_again_keeps_its_log_and_high_watermark() -> None:
    async with zombie_broker() as zombie:
        partition = await zombie.begin()
        produce(partition)
        partition.fetched_by(OTHER, 1, 0, 1)
        assert partition.high_watermark == 1
        await zombie.apply_full_state(image(epoch=2))
        await zombie.apply_full_state(image(PartitionImage(0, OTHER, 6, [OTHER, NODE], [OTHER], 11), epoch=3))
        back = zombie.broker.replica_manager.find("t", 0)
        assert back is not None
        assert (back.leader, back.high_watermark, back.log.end_offset) == (OTHER, 1, 1)


def start_alter_partition_manager(zombie: Zombie, *answers: Any) -> AlterPartitionManager:
    """Has the broker send ISR changes to a controller with these responses."""
    link: Any = Controller(*answers)
    controller: Any = SimpleNamespace(is_active=False)
    manager = AlterPartitionManager(
        NODE, zombie.broker.replica_manager, controller, link, broker_epoch=lambda: 10
    )
    zombie.broker.replica_manager.listener.alter_isr = manager.submit
    return manager


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED])
async def test_a_leader_stops_when_its_isr_is_refused_with_a_fenced_epoch(error: ErrorCode) -> None:
    async with zombie_broker() as zombie:
        partition = await zombie.begin()
        waiting = produce(partition)
        manager = start_alter_partition_manager(zombie, LOST, error)
        partition.maybe_shrink_isr(zombie.broker.clock.monotonic_ms() + SILENT_MS)
        async with asyncio.timeout(10):
            await waiting
        assert is_refused_with_not_leader(waiting)
        with pytest.raises(KafkaError, match="t-0 has no leader") as refused:
            partition.append(a_batch(), 1, 0)
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log.end_offset == 1
        manager.stop()


async def test_a_leader_continues_while_the_controller_does_not_respond() -> None:
    async with zombie_broker() as zombie:
        partition = await zombie.begin()
        waiting = produce(partition)
        manager = start_alter_partition_manager(zombie, *[LOST] * 3, ErrorCode.NOT_CONTROLLER, [NODE])
        partition.maybe_shrink_isr(zombie.broker.clock.monotonic_ms() + SILENT_MS)
        async with asyncio.timeout(10):
            assert await waiting is None
        assert partition.is_leader
        manager.stop()
