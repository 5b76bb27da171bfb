"""Produces that are brought into another form: how many are held in it at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.produce import WRAPPED_HERE_BYTES
from tidemill.broker.storing import REQUESTS_MAX, Storing
from tidemill.records.batch import GZIP
from tidemill.replication.storage import Storage

LARGE = b"x" * (WRAPPED_HERE_BYTES + 1)


class Slow(Storing):
    """Its workers take a turn of the loop for each job."""

    unpacked = LARGE

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.jobs: list[str] = []

    async def run(self, job: str, size: int, *arguments: Any) -> Any:
        self.jobs.append(job)
        await asyncio.sleep(0)
        return (b"", 0, GZIP, 1, -1, self.unpacked, None) if job == "store" else (b"w",)


class Path:
    """Where requests are appended; counts the sets that are held before they are."""

    def __init__(self) -> None:
        self.held = 0
        self.held_most = 0
        self.appended: list[Any] = []
        self.clock = SimpleNamespace(wall_ms=lambda: 0)

    def count_conversion(self, request: Any, part: Any) -> None:
        self.held += 1
        self.held_most = max(self.held_most, self.held)

    def append(self, request: Any, part: Any, now_ms: int) -> None:
        self.held -= 1
        part.partition.log.end_offset += 1
        part.end_offset = part.partition.log.end_offset
        self.appended.append(request)


class Part(SimpleNamespace):
    """The records of one partition of a request."""

    def __init__(self, partition: Any, *, converts: bool) -> None:
        super().__init__(
            partition=partition, converts=converts, error=0, start=0, end=10, end_offset=-1, messages=None
        )

    def take(self, stored: Any) -> None:
        self.converts = False
        self.messages = stored


class Served(SimpleNamespace):
    """A partition, as far as it is asked for."""

    __hash__ = object.__hash__


def partition() -> Any:
    limits = SimpleNamespace(
        max_batch_bytes=1,
        max_unpacked_bytes=1,
        key_required=False,
        timestamp_before_ms=0,
        timestamp_after_ms=0,
        check_timestamps=False,
    )
    log = SimpleNamespace(end_offset=0)
    return Served(reserved=False, log=log, limits=limits, storage=Storage(0), topic="t", index=0)


def request(*parts: Part) -> Any:
    return SimpleNamespace(topics=[SimpleNamespace(parts=list(parts))], data=bytes(10), is_wanted=True)


def stored(loop: asyncio.AbstractEventLoop) -> Slow:
    return Slow(loop, SimpleNamespace(note=lambda api, seconds: None))


def test_few_requests_are_held_unpacked_at_a_time() -> None:
    async def run() -> None:
        path: Any = Path()
        one = partition()
        storing = stored(asyncio.get_running_loop())
        requests = [request(Part(one, converts=True)) for _ in range(5 * REQUESTS_MAX)]
        await asyncio.gather(*(storing.prepare(each, path) for each in requests))
        assert sorted(map(id, path.appended)) == sorted(map(id, requests))
        assert 1 < path.held_most <= REQUESTS_MAX
        assert not one.reserved
        # While one is compressed for its place at the end, no other is for the same place.
        assert storing.jobs.count("place") == len(requests)

    asyncio.run(run())


@pytest.mark.parametrize("unpacked", [LARGE, b"small"])
def test_what_became_of_one_part_is_appended_before_the_next_is_converted(unpacked: bytes) -> None:
    async def run() -> None:
        path: Any = Path()
        storing = stored(asyncio.get_running_loop())
        storing.unpacked = unpacked
        one = request(*(Part(partition(), converts=True) for _ in range(6)))
        await storing.prepare(one, path)
        assert (len(path.appended), path.held_most) == (6, 1)
        assert [part.messages for part in one.topics[0].parts] == [None] * 6

    asyncio.run(run())


def test_parts_of_one_partition_stay_in_order() -> None:
    async def run() -> None:
        path: Any = Path()
        storing = stored(asyncio.get_running_loop())
        storing.unpacked = b"small"
        same = partition()
        first, second = Part(same, converts=False), Part(same, converts=True)
        await storing.prepare(request(first, second), path)
        # The first one is appended by whoever asked, and the second one after it.
        assert path.appended == []
        assert second.messages is not None

    asyncio.run(run())


def test_what_is_stored_as_it_came_waits_for_no_conversion_of_another_topic() -> None:
    async def run() -> None:
        path: Any = Path()
        storing = stored(asyncio.get_running_loop())
        busy = [
            asyncio.create_task(storing.prepare(request(Part(partition(), converts=True)), path))
            for _ in range(5 * REQUESTS_MAX)
        ]
        await asyncio.sleep(0)
        await storing.prepare(request(Part(partition(), converts=False)), path)
        assert not any(task.done() for task in busy)
        await asyncio.gather(*busy)

    asyncio.run(run())
