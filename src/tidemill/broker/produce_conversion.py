"""Converts produced records to the message format of their topic in worker processes.

Meanwhile the connection handles no further request, so that its requests stay in order. The messages in a
compressed wrapper of format v0 contain their offsets. During the compression of such a wrapper the log end of
its partition is reserved, and other Produce requests for the partition wait.
"""

from __future__ import annotations

import asyncio
import time

from tidemill.broker.conversion_jobs import ConversionJob, Result, StorageConversionJob, WrapperPlacementJob
from tidemill.broker.conversion_workers import ConversionWorkers
from tidemill.broker.produce_admission import (
    CostlyAppend,
    MessageSetAppend,
    PreparedPartition,
    ReadyAppend,
    RecordsConversion,
    ValidatedPartition,
    WrapperCompression,
    append_of_stored,
)
from tidemill.broker.produce_codec import Appended, PartitionResult, Refused
from tidemill.broker.produce_handler import AdmittedRequest, PreparedRequest, ProduceHandler
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition

REQUESTS_MAX = 4
"""The requests that are converted at a time. Each holds one converted batch until its append, which may be 32
times as large as the received one."""
ATTEMPTS_MAX = 10
"""The attempts to compress a wrapper, if the broker itself appends to the partition meanwhile."""


class ProduceConversion:
    """Converts the records of admitted requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: ConversionWorkers) -> None:
        self.loop = loop
        self.workers = workers
        self._waiting: dict[Partition, list[asyncio.Future[None]]] = {}
        self._requests = asyncio.Semaphore(REQUESTS_MAX)

    async def prepare(
        self, handler: ProduceHandler, admitted: AdmittedRequest, validated: list[ValidatedPartition]
    ) -> PreparedRequest:
        """Prepares the partitions of ``admitted``, whose batches are ``validated``.

        Converts costly records, appends them where no earlier append must precede, appends wrappers of format
        v0, and waits for reserved log ends. The caller appends the remaining records in the same turn of the
        event loop. An error becomes the result of its partition.
        """
        prepared = PreparedRequest(admitted.connection, admitted.reply, admitted.request, [], admitted.guards)
        if not any(isinstance(one, CostlyAppend) for one in validated):
            await self.prepare_all(handler, prepared, validated)
        else:
            async with self._requests:
                await self.prepare_all(handler, prepared, validated)
        return prepared

    async def prepare_all(
        self, handler: ProduceHandler, prepared: PreparedRequest, validated: list[ValidatedPartition]
    ) -> None:
        """Prepares the partitions one after the other, and records the time of the conversions.

        It appends converted records before it converts the next ones: they may be 32 times as large as the
        received ones.
        """
        seconds = 0.0
        one: ValidatedPartition | PartitionResult
        for number, one in enumerate(validated):
            if isinstance(one, RecordsConversion):
                began = time.perf_counter()
                one = await self.convert(one, handler.clock.wall_ms())
                seconds += time.perf_counter() - began
                if isinstance(one, ReadyAppend) and prepared.should_append and is_next(one, prepared):
                    one = handler.append(prepared, number, one, handler.clock.wall_ms())
            if isinstance(one, WrapperCompression):
                one = await self.append_wrapper(handler, prepared, number, one)
            prepared.partitions.append(one)
        if seconds:
            self.workers.record_time("Produce", seconds)
        await self.wait_until_unreserved(prepared.partitions)

    async def convert(
        self, costly: RecordsConversion, now_ms: int
    ) -> ReadyAppend | WrapperCompression | Refused:
        """Converts the records of one partition. Returns their append, or the error."""
        records, partition = costly.records, costly.partition
        message_format = partition.message_format
        try:
            stored = await self.run(
                StorageConversionJob(
                    data=costly.data[records.start : records.end],
                    magic=message_format.magic,
                    codec=message_format.codec,
                    limits=partition.validation_limits,
                    now_ms=now_ms,
                    append_time=message_format.append_time,
                    level=message_format.level,
                )
            )
        except KafkaError as error:
            return Refused(records.index, error)
        return append_of_stored(records, partition, costly.data, stored)

    async def append_wrapper(
        self, handler: ProduceHandler, prepared: PreparedRequest, number: int, costly: WrapperCompression
    ) -> Appended | Refused:
        """Compresses a wrapper of format v0 for the current log end, and appends it. Returns the result."""
        partition, messages = costly.partition, costly.messages
        while partition.reserved:
            await self.wait_for_release(partition)
        partition.reserved = True
        try:
            for _ in range(ATTEMPTS_MAX):
                base: int = partition.log.end_offset
                wrapper = await self.run(
                    WrapperPlacementJob(
                        data=costly.unpacked,
                        codec=messages.codec,
                        record_count=messages.record_count,
                        level=messages.level,
                        base_offset=base,
                    )
                )
                if partition.log.end_offset == base:
                    if not prepared.should_append:
                        raise KafkaError(
                            "the client closed its connection before the append", ErrorCode.NETWORK_EXCEPTION
                        )
                    append = MessageSetAppend(costly.records, partition, wrapper)
                    return handler.append(prepared, number, append, handler.clock.wall_ms())
            raise KafkaError(
                f"other appends to {partition.topic}-{partition.index} preceded the compressed ones: retry",
                ErrorCode.REQUEST_TIMED_OUT,
            )
        except KafkaError as error:
            return Refused(costly.records.index, error)
        finally:
            partition.reserved = False
            for waiter in self._waiting.pop(partition, ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def wait_until_unreserved(self, partitions: list[PreparedPartition]) -> None:
        """Waits until no log end is reserved."""
        while (reserved := first_reserved(partitions)) is not None:
            await self.wait_for_release(reserved)

    async def wait_for_release(self, partition: Partition) -> None:
        """Waits until a reservation of the log end of ``partition`` ends."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiting.setdefault(partition, []).append(waiter)
        await waiter

    async def run(self, job: ConversionJob[Result]) -> Result:
        """Runs a job in a worker process. Returns its result."""
        return await self.loop.run_in_executor(self.workers.executor, self.workers.call, job)


def is_next(append: ReadyAppend, prepared: PreparedRequest) -> bool:
    """Whether ``append`` may precede all prepared appends: none is for its partition.

    A reserved log end forbids it.
    """
    return not append.partition.reserved and not any(
        isinstance(earlier, ReadyAppend) and earlier.partition is append.partition
        for earlier in prepared.partitions
    )


def first_reserved(partitions: list[PreparedPartition]) -> Partition | None:
    """Returns the first partition to append to whose log end is reserved."""
    for one in partitions:
        if isinstance(one, ReadyAppend) and one.partition.reserved:
            return one.partition
    return None
