"""A group coordinator for tests, with a log in memory and a manual clock."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from typing import Any

from default_limits import iter_records
from tidemill.coordinator_runtime.coordinator_interfaces import CoordinatorEndpoint
from tidemill.groups.coordinator_effects import (
    CommitRequest,
    JoinRequest,
    MemberProtocol,
    OffsetToCommit,
    SyncRequest,
)
from tidemill.groups.group_coordinator import GroupCoordinator
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.offset_records import OffsetsRecord, decode_record
from tidemill.model.system_interfaces import Clock
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.builder import build_end_marker

PARTITIONS = 4


class ManualTime(Clock):
    """The clocks and the timers, which a test advances."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self._timers: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._added = 0
        self._cancelled: set[int] = set()

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def time(self) -> float:
        return self.now_ms / 1000

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        self._added += 1
        heapq.heappush(self._timers, (when, self._added, callback, args))
        return Handle(self._cancelled, self._added)

    @property
    def armed(self) -> int:
        """The number of active timers."""
        return sum(1 for timer in self._timers if timer[1] not in self._cancelled)

    async def advance(self, duration_ms: int) -> None:
        """Advances the time; timers fire at their deadlines."""
        end_ms = self.now_ms + duration_ms
        await turns()
        while self._timers and self._timers[0][0] * 1000 <= end_ms:
            when, number, callback, args = heapq.heappop(self._timers)
            self.now_ms = max(self.now_ms, round(when * 1000))
            if number not in self._cancelled:
                callback(*args)
                await turns()
        self.now_ms = end_ms
        await turns()


class Handle:
    """A timer of :class:`ManualTime`."""

    def __init__(self, cancelled: set[int], number: int) -> None:
        self._cancelled = cancelled
        self._number = number

    def cancel(self) -> None:
        self._cancelled.add(self._number)


async def turns(count: int = 12) -> None:
    """Runs everything that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


class MemoryLog:
    """The logs of all partitions. ``gate`` delays appends; each append raises the next of ``errors``."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.errors: list[BaseException] = []
        self.read_errors: list[BaseException] = []
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.reading = asyncio.Event()
        self.reading.set()

    async def append(self, partition: int, batch: bytes) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.batches.setdefault(partition, []).append(batch)
        await self.gate.wait()

    async def append_marker(self, partition: int, marker: MarkerToWrite) -> None:
        producer_id, epoch = marker.producer
        batch = build_end_marker(marker.is_commit, 0, producer_id, epoch, marker.coordinator_epoch)
        await self.append(partition, batch)

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        self.reads += 1
        await self.reading.wait()
        if self.read_errors:
            raise self.read_errors.pop(0)
        for batch in list(self.batches.get(partition, [])):
            yield batch

    def records(self, partition: int) -> list[OffsetsRecord]:
        """All records of a partition."""
        found = []
        for batch in self.batches.get(partition, []):
            for record in iter_records(batch):
                decoded = decode_record(record.key, record.value)
                assert decoded is not None
                found.append(decoded)
        return found


class MemoryTopic:
    """The offsets topic. ``leads`` is the leader of all partitions; None until the topic is created."""

    name = "__consumer_offsets"

    def __init__(self) -> None:
        self.leads: int | None = 1
        self.ensured = 0
        self.error: Exception | None = None

    def partition_count(self) -> int:
        return PARTITIONS

    def leader(self, partition: int, listener: str) -> CoordinatorEndpoint | None:
        if self.leads is None:
            return None
        return CoordinatorEndpoint(node_id=self.leads, host=f"host-of-{listener}", port=9092 + partition)

    async def ensure(self) -> None:
        self.ensured += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.leads = 1


class CoordinatorFixture:
    """A group coordinator and its ports, used as ``async with CoordinatorFixture() as fixture``."""

    def __init__(self, log: MemoryLog | None = None, lead: bool = True, **config: int) -> None:
        self.time = ManualTime()
        self.log = log or MemoryLog()
        self.topic = MemoryTopic()
        self._lead = lead
        self.service = GroupCoordinator(
            offsets_log=self.log,
            topic=self.topic,
            config=GroupCoordinatorConfig(
                **{
                    "initial_rebalance_delay_ms": 0,
                    "offsets_retention_ms": 60_000,
                    "offsets_retention_check_interval_ms": 10_000,
                    "unpacked_bytes_max": UNPACKED_BYTES_MAX,
                    **config,
                }
            ),
            clock=self.time,
            scheduler=self.time,
        )

    async def __aenter__(self) -> CoordinatorFixture:
        if self._lead:
            self.lead()
            await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.gate.set()
        self.log.reading.set()
        await self.service.stop()
        await turns()

    def lead(self) -> None:
        """Makes this broker the leader of all partitions."""
        for partition in range(PARTITIONS):
            self.service.runtime.become_leader(partition, 1)

    def partition(self, group: str = "g") -> int:
        return self.service.runtime.partition_for(group)

    async def stable(self, group: str = "g", **given: Any) -> str:
        """Creates a group with one member. Returns its member id."""
        joining = asyncio.ensure_future(self.service.join(join(group, **given)))
        await self.time.advance(10)
        joined = await joining
        syncing = self.service.sync(
            SyncRequest(
                group_id=group,
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=((joined.member_id, b"x"),),
            )
        )
        assert (await syncing).assignment == b"x"
        return joined.member_id


def join(group: str = "g", member_id: str = "", **given: Any) -> JoinRequest:
    """The JoinGroup request of a consumer."""
    fields = {
        "group_id": group,
        "member_id": member_id,
        "new_member_id": "",
        "protocol_type": "consumer",
        "protocols": (MemberProtocol(name="range", metadata=b"s"),),
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 30_000,
        "client_id": "app",
    }
    return JoinRequest(**{**fields, **given})


def commit(group: str = "g", offset: int = 5, topic: str = "t", **given: Any) -> CommitRequest:
    """The OffsetCommit of a consumer without a group membership, for one partition."""
    return CommitRequest(
        group_id=group, offsets=(OffsetToCommit(topic=topic, partition=0, offset=offset),), **given
    )
