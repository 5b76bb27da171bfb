"""Produce requests with a batch that is too costly to check on the loop.

Unpacking runs in a thread, walking in slices with the loop's other work in between. The connection takes
no further request meanwhile, so what it sends stays in order; all others go on.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from tidemill.broker.conversion import Conversions
from tidemill.broker.produce import ProducePath, ProduceRequest
from tidemill.broker.produce_codec import ProducePart
from tidemill.broker.storing import Storing
from tidemill.model.errors import KafkaError
from tidemill.net.memory import Memory
from tidemill.records.batch import Batch
from tidemill.records.validate import begin_validation, finish_validation

UNPACKED_MAX = 4
"""Batches that are held unpacked at a time: each may have ``tidemill.unpacked.batch.bytes.max``."""
SLICE_RECORDS = 20_000
"""Walked at 12 ns each: a quarter of a millisecond."""


class SlowLane:
    """Takes over from the compiled way, and gives the request back once its batches are checked."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        workers: Executor,
        memory: Memory,
        conversions: Conversions | None = None,
    ) -> None:
        self.loop = loop
        self.workers = workers
        self.memory = memory
        self.path: ProducePath | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.taken = 0
        self.storing = Storing(loop, conversions or Conversions())
        self._places = asyncio.Semaphore(UNPACKED_MAX)

    def __call__(self, request: ProduceRequest) -> None:
        """Checks the costly batches of ``request``, then appends it."""
        self.taken += 1
        request.connection.context.busy = True
        task = self.loop.create_task(self.run(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def run(self, request: ProduceRequest) -> None:
        """One request from its batches to its answer."""
        path = self.path
        if path is None:
            raise RuntimeError("the slow lane was not connected")
        connection = request.connection
        count = len(request.data)
        self.memory.take(count)
        try:
            for topic in request.topics:
                for part in topic.parts:
                    if part.error == 0 and part.unchecked and part.batch is not None:
                        await self.check(part, part.batch, path.clock.wall_ms())
            await self.storing.prepare(request, path)
            connection.context.busy = False
            if request.is_wanted:
                path.append_all(request, path.clock.wall_ms())
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            connection.crash(problem)
        finally:
            self.memory.release(count)

    async def stop(self) -> None:
        """Gives up what is under way: nothing of it was appended, nor answered."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def check(self, part: ProducePart, batch: Batch, now_ms: int) -> None:
        """Checks one batch; what is wrong with it becomes the answer of its partition."""
        partition = part.partition
        if partition is None:
            raise RuntimeError("a batch without a partition was to be checked")
        limits = partition.limits
        async with self._places:
            try:
                walk = await self.loop.run_in_executor(self.workers, begin_validation, batch, limits, now_ms)
                done = walk.step(SLICE_RECORDS)
                while not done:
                    await asyncio.sleep(0)
                    done = walk.step(SLICE_RECORDS)
                part.batch = finish_validation(batch, walk, limits)
            except KafkaError as error:
                part.fail(error)
