"""Validates produced batches that would block the event loop, and then lets the handler append them.

A thread decompresses a batch. The validation of its records runs in slices, between which the event loop does
other work. :mod:`tidemill.broker.produce_conversion` converts message formats. Meanwhile the connection
handles no further request, so that its requests stay in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeAlias

from tidemill.broker.conversion_workers import ConversionWorkers
from tidemill.broker.eager_start import eager_start
from tidemill.broker.produce_admission import AdmissionResult, BatchAppend, BatchValidation
from tidemill.broker.produce_codec import Refused
from tidemill.broker.produce_conversion import ProduceConversion
from tidemill.broker.produce_handler import AdmittedRequest, BackgroundPreparation, ProduceHandler
from tidemill.model.errors import KafkaError
from tidemill.model.task_set import TaskSet
from tidemill.net.memory_pool import MemoryPool
from tidemill.records.batch_validation import begin_validation, finish_validation

UNPACKED_MAX = 4
"""The decompressed batches at a time, each of ``tidemill.unpacked.batch.bytes.max`` at most."""
SLICE_RECORDS = 20_000
"""The records of one slice: a quarter of a millisecond at 12 ns each."""

Verifier: TypeAlias = Callable[[AdmittedRequest], Awaitable[list[AdmissionResult]]]
"""Verifies the partitions of a request with guards. Returns them, or their refusals."""


async def no_verifier(admitted: AdmittedRequest) -> list[AdmissionResult]:
    """Refuses every request with guards, for a handler that serves no transactions."""
    raise RuntimeError("a batch begins a transaction, which nothing verifies")


class ProduceValidation(BackgroundPreparation):
    """Validates costly batches, converts records, and passes the request to its handler."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Executor,
        memory: MemoryPool,
        conversions: ConversionWorkers | None = None,
        verify: Verifier = no_verifier,
    ) -> None:
        self.loop = loop
        self.workers = workers
        self.memory = memory
        self.tasks = TaskSet(loop)
        self.submitted = 0
        """The number of submitted requests."""
        self._verify = verify
        self.conversion = ProduceConversion(loop, conversions or ConversionWorkers())
        self._unpacked = asyncio.Semaphore(UNPACKED_MAX)
        self._begin = eager_start(self.run)

    def submit(self, handler: ProduceHandler, admitted: AdmittedRequest) -> None:
        """Prepares ``admitted``: at once, or in a new task if it has to wait."""
        self.submitted += 1
        work = self._begin(handler, admitted)
        if work is not None:
            self.tasks.start(work)

    async def run(self, handler: ProduceHandler, admitted: AdmittedRequest) -> None:
        """Prepares one request, and appends it."""
        self.memory.reserve(admitted.frame_bytes)
        try:
            partitions = admitted.partitions
            if admitted.guards:
                partitions = await self._verify(admitted)
                handler.record_unverified(admitted, partitions)
            validated = [
                await self.check(one, handler.clock.wall_ms()) if isinstance(one, BatchValidation) else one
                for one in partitions
            ]
            prepared = await self.conversion.prepare(handler, admitted, validated)
            if prepared.should_append:
                handler.append_all(prepared, handler.clock.wall_ms())
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            admitted.connection.crash(problem)
        finally:
            self.memory.release(admitted.frame_bytes)
            for guard in admitted.guards:
                if guard is not None:
                    guard.end()

    async def stop(self) -> None:
        """Cancels the preparation of all requests, without appends and responses."""
        await self.tasks.cancel()

    async def check(self, costly: BatchValidation, now_ms: int) -> BatchAppend | Refused:
        """Validates one batch. Returns its append, or the error."""
        batch, limits = costly.batch, costly.partition.validation_limits
        async with self._unpacked:
            try:
                walk = await self.loop.run_in_executor(self.workers, begin_validation, batch, limits, now_ms)
                done = walk.step(SLICE_RECORDS)
                while not done:
                    await asyncio.sleep(0)
                    done = walk.step(SLICE_RECORDS)
                checked = finish_validation(batch, walk, limits)
            except KafkaError as error:
                return Refused(costly.records.index, error)
        return BatchAppend(costly.records, costly.partition, checked)
