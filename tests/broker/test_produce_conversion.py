"""Conversion of produced records: the number of concurrent conversions, and the order of appends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import NOW, Bench, bench_in

from record_builders import build_message_set
from tidemill.broker.conversion_jobs import ConversionJob, Result, StorageConversionJob, WrapperPlacementJob
from tidemill.broker.conversion_workers import ConversionWorkers
from tidemill.broker.produce_admission import (
    WRAPPER_BYTES_MAX,
    MessageSetAppend,
    ReadyAppend,
    RecordsConversion,
    ValidatedPartition,
    WrapperCompression,
    append_of_stored,
)
from tidemill.broker.produce_codec import Appended, PartitionRecords, ProduceRequest
from tidemill.broker.produce_conversion import REQUESTS_MAX, ProduceConversion
from tidemill.broker.produce_handler import AdmittedRequest, PreparedRequest
from tidemill.records.batch import GZIP, NO_COMPRESSION
from tidemill.records.format_conversion import for_storage

LARGE = build_message_set(0, [(0, None, b"x" * (WRAPPER_BYTES_MAX + 1))], GZIP)
SMALL = build_message_set(0, [(0, None, b"small")], NO_COMPRESSION)
PARTITIONS = 6


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A topic of format v0, and the handlers for it."""
    with bench_in(tmp_path) as one:
        one.put("t", PARTITIONS, message_magic=0)
        yield one


class Slow(ProduceConversion):
    """Workers that take one turn of the loop for each job. Counts the converted sets before their append."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.loop, ConversionWorkers())
        self.jobs: list[ConversionJob[Any]] = []
        self.held = 0
        self.held_most = 0

    async def run(self, job: ConversionJob[Result]) -> Result:
        self.jobs.append(job)
        await asyncio.sleep(0)
        if isinstance(job, StorageConversionJob):
            self.held += 1
            self.held_most = max(self.held_most, self.held)
        return job.run()


class Handler:
    """Appends as the handler of the bench does, and records the appends."""

    def __init__(self, bench: Bench, slow: Slow) -> None:
        self.clock = bench.clock
        self.appended: list[PreparedRequest] = []
        self._handler = bench.produces
        self._slow = slow

    def append(self, prepared: PreparedRequest, number: int, append: Any, now_ms: int) -> Appended:
        self._slow.held -= 1
        self.appended.append(prepared)
        result = self._handler.append(prepared, number, append, now_ms)
        assert isinstance(result, Appended)
        return result


class Stage:
    """A bench with a conversion and a handler."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.slow = Slow(bench)
        self.handler: Any = Handler(bench, self.slow)
        self.connection = bench.client().connection

    def conversion(self, data: bytes, index: int = 0) -> RecordsConversion:
        """Records that must be converted."""
        records = PartitionRecords(b"t", index, 0, len(data))
        return RecordsConversion(records, self.bench.partition("t", index), data)

    def converted(self, data: bytes) -> ReadyAppend | WrapperCompression:
        """Converted records of the first partition."""
        partition = self.bench.partition()
        stored = for_storage(data, 0, len(data), 0, NO_COMPRESSION, partition.validation_limits, NOW, False)
        return append_of_stored(PartitionRecords(b"t", 0, 0, len(data)), partition, data, stored)

    async def prepare(self, *partitions: ValidatedPartition) -> PreparedRequest:
        """Prepares a request with ``partitions``."""
        request = ProduceRequest(2, 1, 1, 1000, False, [], None)
        reply = self.connection.respond_later()
        admitted = AdmittedRequest(self.connection, reply, request, 0, list(partitions), [])
        prepared = await self.slow.prepare(self.handler, admitted, list(partitions))
        reply.complete([])
        return prepared


def test_the_number_of_concurrent_conversions_is_limited(bench: Bench) -> None:
    stage = Stage(bench)

    async def run() -> None:
        requests = await asyncio.gather(
            *(stage.prepare(stage.conversion(LARGE)) for _ in range(5 * REQUESTS_MAX))
        )
        assert sorted(map(id, stage.handler.appended)) == sorted(map(id, requests))
        assert 1 < stage.slow.held_most <= REQUESTS_MAX
        assert not bench.partition().reserved
        # During the compression for a log end no other wrapper is compressed for the same log end.
        placements = [job for job in stage.slow.jobs if isinstance(job, WrapperPlacementJob)]
        assert len(placements) == len(requests) == bench.partition().log.end_offset

    bench.loop.run_until_complete(run())


@pytest.mark.parametrize("data", [LARGE, SMALL])
def test_converted_records_are_appended_before_the_next_conversion(bench: Bench, data: bytes) -> None:
    stage = Stage(bench)

    async def run() -> None:
        one = await stage.prepare(*(stage.conversion(data, index) for index in range(PARTITIONS)))
        assert (len(stage.handler.appended), stage.slow.held_most) == (PARTITIONS, 1)
        assert all(isinstance(part, Appended) for part in one.partitions)

    bench.loop.run_until_complete(run())


def test_entries_of_one_partition_stay_in_order(bench: Bench) -> None:
    stage = Stage(bench)

    async def run() -> None:
        first, second = stage.converted(SMALL), stage.conversion(SMALL)
        one = await stage.prepare(first, second)
        # The handler appends the first one, and then the second one.
        assert stage.handler.appended == []
        assert one.partitions[0] is first
        assert isinstance(one.partitions[1], MessageSetAppend)
        assert one.partitions[1].records is second.records

    bench.loop.run_until_complete(run())


def test_unconverted_records_do_not_wait_for_the_conversion_of_another_topic(bench: Bench) -> None:
    stage = Stage(bench)

    async def run() -> None:
        busy = [
            asyncio.create_task(stage.prepare(stage.conversion(LARGE, index % PARTITIONS)))
            for index in range(5 * REQUESTS_MAX)
        ]
        await asyncio.sleep(0)
        await stage.prepare(stage.converted(SMALL))
        assert not any(task.done() for task in busy)
        await asyncio.gather(*busy)

    bench.loop.run_until_complete(run())
