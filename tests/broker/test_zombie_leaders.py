"""A leader whose partition was moved away while no controller reached it: when it stops, and what stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from test_commands import FIRST, NODE, Commanded
from test_isr_changes import LOST, Controller

from tidemill.broker.commanding import commands_for, requests_of
from tidemill.broker.isr_changes import IsrChanges
from tidemill.broker.metadata import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch
from tidemill.replication.partition import Partition
from tidemill.replication.waiting import CommitCallback
from tidemill.wire.apis import ApiKey

OTHER, THIRD = 2, 3
SILENT_MS = 60_000
BROKERS = {one: BrokerImage(BrokerRegistration(one, (), None), 10) for one in (NODE, OTHER, THIRD)}
LED = PartitionImage(0, NODE, 3, [NODE, OTHER], [NODE, OTHER], 5)
MOVED = PartitionImage(0, OTHER, 5, [OTHER, THIRD], [OTHER, THIRD], 9)


def image(*partitions: PartitionImage, epoch: int = 1) -> ClusterImage:
    topics = {"t": TopicImage("t", FIRST, partitions, {})} if partitions else {}
    return ClusterImage("c", OTHER, epoch, BROKERS, topics)


class Zombie(Commanded):
    """A broker that leads t-0, and was told so by the controller of epoch 1."""

    async def begin(self) -> Partition:
        await self.command(image(LED))
        found = self.broker.partitions.find("t", 0)
        assert found is not None
        assert found.is_leader
        return found

    async def command(
        self, new: ClusterImage, keys: Iterable[ApiKey] = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA)
    ) -> None:
        """What a new controller tells this broker: the full state, of which requests may not arrive."""
        self.settings.controller_epoch = b"%d" % new.controller_epoch
        command = commands_for(Delta(new, new), NODE, whole=True)
        assert command is not None
        for key, request in requests_of(command, BROKERS[NODE], "PLAINTEXT"):
            if key not in keys:
                continue
            if key == ApiKey.LEADER_AND_ISR:
                assert (await self.commands.leader_and_isr(request)).error_code == 0
            elif key == ApiKey.UPDATE_METADATA:
                assert (await self.commands.update_metadata(request)).error_code == 0


def produce(partition: Partition) -> asyncio.Future[KafkaError | None]:
    """A produce with ``acks=all``: the error that it is answered with in the end."""
    future: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    data = build_batch([(1_700_000_000_000, b"k", b"v", None)])
    result = partition.append([parse_batch(data, 0, len(data))], -1, 0)
    partition.wait_committed(result.last_offset + 1, CommitCallback(future.set_result))
    return future


def told(test: Callable[[Zombie], Awaitable[None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            await test(Zombie(pool))

    asyncio.run(run())


def is_sent_away(waiting: asyncio.Future[KafkaError | None]) -> bool:
    """Whether a client looks for the real leader now."""
    error = waiting.result() if waiting.done() else None
    return error is not None and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("key", [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA])
def test_a_leader_whose_partition_was_moved_away_stops_when_a_new_controller_tells_the_full_state(
    key: ApiKey, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(zombie: Zombie) -> None:
        partition = await zombie.begin()
        waiting = produce(partition)
        await zombie.command(image(MOVED, epoch=2), [key])
        assert is_sent_away(waiting)
        assert zombie.broker.partitions.find("t", 0) is None
        with pytest.raises(KafkaError):
            partition.append([], 1, 0)
        log = zombie.broker.logs.get(TopicPartition("t", 0))
        assert log is not None
        assert log.end_offset == 1, "no data is deleted"

    told(story)
    assert "t-0 is led here no longer" in caplog.text


def test_a_leader_whose_topic_is_gone_stops_when_a_new_controller_tells_the_full_state() -> None:
    async def story(zombie: Zombie) -> None:
        waiting = produce(await zombie.begin())
        await zombie.command(image(epoch=2))
        assert is_sent_away(waiting)
        assert zombie.broker.logs.get(TopicPartition("t", 0)) is not None

    told(story)


def test_a_leader_that_becomes_the_controller_stops_leading_what_was_moved_away() -> None:
    async def story(zombie: Zombie) -> None:
        waiting = produce(await zombie.begin())
        await zombie.commands.carry_out(Delta(ClusterImage(), image(MOVED, epoch=2)))
        assert is_sent_away(waiting)
        assert zombie.broker.partitions.find("t", 0) is None
        assert zombie.broker.logs.get(TopicPartition("t", 0)) is not None

    told(story)


def test_a_new_controller_names_the_logs_of_its_broker_that_are_elsewhere_by_now_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warned() -> list[str]:
        return [one for one in caplog.messages if "this broker has no replica" in one]

    async def story(zombie: Zombie) -> None:
        await zombie.begin()
        moved = image(MOVED, epoch=2)
        await zombie.commands.carry_out(Delta(ClusterImage(), moved))
        assert len(warned()) == 1
        assert "this broker has no replica: 1, /d/t-0 for instance" in warned()[0]
        await zombie.commands.carry_out(Delta.between(moved, moved))
        assert len(warned()) == 1

    told(story)


def test_a_leader_stops_as_soon_as_metadata_names_another_in_a_later_epoch() -> None:
    later = PartitionImage(0, OTHER, 4, [NODE, OTHER], [OTHER], 6)

    async def story(zombie: Zombie) -> None:
        partition = await zombie.begin()
        waiting = produce(partition)
        await zombie.command(image(later, epoch=2), [ApiKey.UPDATE_METADATA])
        assert is_sent_away(waiting)
        assert zombie.broker.partitions.find("t", 0) is partition, "it is to follow"
        await zombie.command(image(later, epoch=2))
        assert (partition.leader, partition.leader_epoch) == (OTHER, 4)

    told(story)


def test_what_the_full_state_assigns_to_a_broker_goes_on_without_a_break() -> None:
    async def story(zombie: Zombie) -> None:
        partition = await zombie.begin()
        waiting = produce(partition)
        await zombie.command(image(LED, epoch=2))
        assert not waiting.done()
        assert partition.is_leader
        assert zombie.broker.partitions.find("t", 0) is partition
        partition.fetched_by(OTHER, 1, 0, 1)
        assert waiting.result() is None

    told(story)


def test_a_partition_that_comes_back_goes_on_with_its_log_and_its_high_watermark() -> None:
    async def story(zombie: Zombie) -> None:
        partition = await zombie.begin()
        produce(partition)
        partition.fetched_by(OTHER, 1, 0, 1)
        assert partition.high_watermark == 1
        await zombie.command(image(epoch=2))
        await zombie.command(image(PartitionImage(0, OTHER, 6, [OTHER, NODE], [OTHER], 11), epoch=3))
        back = zombie.broker.partitions.find("t", 0)
        assert back is not None
        assert (back.leader, back.high_watermark, back.log.end_offset) == (OTHER, 1, 1)

    told(story)


def asked(zombie: Zombie, *answers: Any) -> IsrChanges:
    """What the broker asks controllers, which answer so: lost connections, or error codes."""
    link: Any = Controller(*answers)
    failover: Any = None
    parts: Any = SimpleNamespace(
        controller=SimpleNamespace(is_active=False), partitions=zombie.broker.partitions, node_id=NODE
    )
    changes = IsrChanges(parts, link, failover, lambda: 10)
    zombie.broker.partitions.change_isr = changes.want
    return changes


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED])
def test_a_leader_stops_when_its_in_sync_set_is_refused_as_that_of_a_former_one(error: ErrorCode) -> None:
    async def story(zombie: Zombie) -> None:
        partition = await zombie.begin()
        waiting = produce(partition)
        changes = asked(zombie, LOST, error)
        partition.drop_lagging(zombie.broker.clock.monotonic_ms() + SILENT_MS)
        async with asyncio.timeout(10):
            await waiting
        assert is_sent_away(waiting)
        with pytest.raises(KafkaError, match="is led by broker -1") as refused:
            partition.append([], 1, 0)
        assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.log.end_offset == 1
        changes.stop()

    told(story)


def test_a_leader_that_cannot_reach_the_controller_leads_on() -> None:
    async def story(zombie: Zombie) -> None:
        partition = await zombie.begin()
        waiting = produce(partition)
        changes = asked(zombie, *[LOST] * 3, ErrorCode.NOT_CONTROLLER, [NODE])
        partition.drop_lagging(zombie.broker.clock.monotonic_ms() + SILENT_MS)
        async with asyncio.timeout(10):
            assert await waiting is None
        assert partition.is_leader
        changes.stop()

    told(story)
