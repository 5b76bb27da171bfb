"""Produces whose records are brought into another form in a worker process, before they are stored.

The connection takes no further request meanwhile, so what it sends stays in order; all others go on. One
form needs more: messages in a wrapper of format v0 have absolute offsets under its compression. While such a
wrapper is made, the end of its partition is reserved, and other produces to that partition wait.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tidemill.broker.conversion import Conversions
from tidemill.broker.produce import WRAPPED_HERE_BYTES, PlacedSet, ProducePath, ProduceRequest
from tidemill.broker.produce_codec import ProducePart
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.message_set import MessageSet
from tidemill.replication.partition import Partition

REQUESTS_MAX = 4
"""Requests that are brought into another form at a time: each holds what became of one batch, which may be 32
times as large as what came, and is appended before the next is converted. Worker processes are no more."""
PLACES_TRIED = 10
"""How often a wrapper is made again when the broker itself appended to the partition meanwhile."""


class Storing:
    """Brings the records of requests into the form in which their topics store them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conversions: Conversions) -> None:
        self.loop = loop
        self.conversions = conversions
        self._waiting: dict[Partition, list[asyncio.Future[None]]] = {}
        self._room = asyncio.Semaphore(REQUESTS_MAX)

    async def prepare(self, request: ProduceRequest, path: ProducePath) -> None:
        """Converts what is left to convert, and returns once no partition of the request is reserved.

        Wrappers of format v0 are appended by then. What is wrong becomes the answer of its partition.
        """
        parts = [part for topic in request.topics for part in topic.parts]
        if not any(one.converts or is_for_place(one) for one in parts if one.error == 0):
            await self.all_free(parts)
            return
        async with self._room:
            await self.bring_in(request, parts, path)
            await self.all_free(parts)

    async def bring_in(self, request: ProduceRequest, parts: list[ProducePart], path: ProducePath) -> None:
        """Converts what is left to convert, part by part, and counts the time that it took.

        What was converted is appended before the next is: it may be 32 times as large as what came.
        """
        seconds = 0.0
        for part in parts:
            converted = part.error == 0 and part.converts
            if converted:
                began = time.perf_counter()
                await self.convert(request, part, path)
                seconds += time.perf_counter() - began
            messages = part.messages
            if part.error == 0 and messages is not None and is_for_place(part):
                await self.place(request, part, messages, path)
            elif part.error == 0 and converted and request.is_wanted and is_next(parts, part):
                path.append(request, part, path.clock.wall_ms())
            if converted and (part.error != 0 or part.end_offset >= 0):
                part.batch = part.messages = None
        if seconds:
            self.conversions.note("Produce", seconds)

    async def convert(self, request: ProduceRequest, part: ProducePart, path: ProducePath) -> None:
        """Brings the records of one partition into its topic's form."""
        partition = part.partition
        if partition is None:
            raise RuntimeError("records without a partition were to be converted")
        storage, limits = partition.storage, partition.limits
        try:
            result = await self.run(
                "store",
                int(part.end - part.start),
                request.data[part.start : part.end],
                int(storage.magic),
                int(storage.codec),
                (
                    int(limits.max_batch_bytes),
                    int(limits.max_unpacked_bytes),
                    limits.key_required,
                    int(limits.timestamp_before_ms),
                    int(limits.timestamp_after_ms),
                    limits.check_timestamps,
                ),
                int(path.clock.wall_ms()),
                storage.append_time,
                storage.level,
            )
        except KafkaError as error:
            part.fail(error)
            return
        part.take(stored_of(result))
        path.count_conversion(request, part)

    async def place(
        self, request: ProduceRequest, part: ProducePart, messages: MessageSet, path: ProducePath
    ) -> None:
        """Makes a wrapper of format v0 for the end of its partition, and appends it."""
        partition = part.partition
        if partition is None or messages.unpacked is None:
            raise RuntimeError("a set without a partition or messages was to be placed")
        while partition.reserved:
            await self.freed(partition)
        partition.reserved = True
        try:
            for _ in range(PLACES_TRIED):
                base = int(partition.log.end_offset)
                codec, count = int(messages.codec), int(messages.record_count)
                size = len(messages.unpacked)
                (data,) = await self.run("place", size, messages.unpacked, codec, count, messages.level, base)
                if partition.log.end_offset == base:
                    if request.is_wanted:
                        part.messages = PlacedSet(data, base, codec, count)
                        path.append(request, part, path.clock.wall_ms())
                    return
            raise KafkaError(
                f"{partition.topic}-{partition.index} grew while its records were compressed: send again",
                ErrorCode.REQUEST_TIMED_OUT,
            )
        except KafkaError as error:
            part.fail(error)
        finally:
            partition.reserved = False
            for waiter in self._waiting.pop(partition, ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def all_free(self, parts: list[ProducePart]) -> None:
        """Waits until no partition is reserved: then nothing else runs until the request is appended."""
        while (taken := reserved_of(parts)) is not None:
            await self.freed(taken)

    async def freed(self, partition: Partition) -> None:
        """Waits until the end of ``partition`` may be free."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiting.setdefault(partition, []).append(waiter)
        await waiter

    async def run(self, job: str, size: int, *arguments: Any) -> Any:
        """A job's result from a worker process."""
        conversions = self.conversions
        return await self.loop.run_in_executor(conversions.executor, conversions.call, job, size, *arguments)


def is_next(parts: list[ProducePart], part: ProducePart) -> bool:
    """Whether a converted part may be appended at once, nothing of its partition having to come before."""
    partition = part.partition
    if partition is None or partition.reserved:
        return False
    return not any(
        one.partition is partition and one.error == 0 and one.end_offset < 0
        for one in parts[: parts.index(part)]
    )


def is_for_place(part: ProducePart) -> bool:
    """Whether a wrapper of format v0 is to be made that takes too long for the loop."""
    messages = part.messages
    return messages is not None and len(messages.unpacked or b"") > WRAPPED_HERE_BYTES


def reserved_of(parts: list[ProducePart]) -> Partition | None:
    """A partition that one of ``parts`` would be appended to, and whose end is reserved."""
    for part in parts:
        if part.partition is not None and part.partition.reserved and part.end_offset < 0:
            return part.partition
    return None


def stored_of(result: tuple[Any, ...]) -> Batch | MessageSet:
    """What a process answered, as the log takes it."""
    if len(result) == 1:
        return parse_batch(result[0], 0, len(result[0]))
    return MessageSet(*result)
