"""Produce requests with several conversions: events of the first batches during later conversions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths_bench import NODE, Bench, Client, batch, bench_in

from tidemill.broker.conversion_jobs import ConversionJob, Result
from tidemill.model.errors import ErrorCode

OTHER = 2
RECORDS = 60
VALUES = [b"%d" % number * 500 for number in range(RECORDS)]


class Converting:
    """A produce to two partitions with ``compression.type``: one is appended, one is being converted."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.jobs = 0
        self.go_on = asyncio.Event()
        bench.put("t", 3, compression_type="gzip")
        bench.preparation.conversion.run = self.run  # type: ignore[method-assign]
        for index in range(2):
            bench.partition("t", index).apply_state(
                NODE, 0, (NODE, OTHER), (NODE, OTHER), partition_epoch=0, now_ms=0
            )
        self.writer: Client = bench.client()
        self.first = bench.partition("t", 0)
        self.second = bench.partition("t", 1)

    async def run(self, job: ConversionJob[Result]) -> Result:
        self.jobs += 1
        if self.jobs > 1:
            await self.go_on.wait()
        return job.run()

    def produce(self, timeout_ms: int = 60_000) -> None:
        sent = batch(*VALUES)
        self.writer.produce(9, {("t", 0): sent, ("t", 1): sent}, timeout_ms=timeout_ms)
        self.bench.until(lambda: self.jobs == 2)
        assert (self.first.log.end_offset, self.second.log.end_offset) == (RECORDS, 0)

    def finish(self) -> None:
        self.go_on.set()
        self.bench.until(lambda: self.second.log.end_offset == RECORDS)
        self.second.fetched_by(OTHER, RECORDS, 0, 1)

    def errors(self) -> list[ErrorCode]:
        return [ErrorCode(part.error_code) for part in self.writer.produced(9)]


@pytest.fixture
def converting(tmp_path: Path) -> Iterator[Converting]:
    with bench_in(tmp_path) as bench:
        yield Converting(bench)


def test_a_batch_committed_during_another_conversion_is_acknowledged(converting: Converting) -> None:
    converting.produce()
    converting.first.fetched_by(OTHER, RECORDS, 0, 1)
    assert converting.first.high_watermark == RECORDS
    assert converting.writer.is_silent()
    converting.finish()
    assert converting.errors() == [ErrorCode.NONE, ErrorCode.NONE]


def test_a_batch_truncated_during_another_conversion_is_not_acknowledged(
    converting: Converting,
) -> None:
    converting.produce()
    first = converting.first
    first.apply_state(OTHER, 1, (NODE, OTHER), (OTHER,), partition_epoch=1, now_ms=1)
    first.truncate_to(0, 1)
    converting.finish()
    # The other leader has committed as many records of its own at these offsets.
    others = bytearray(batch(*[b"another"] * RECORDS))
    others[12:16] = (1).to_bytes(4, "big")
    first.append_from_leader(bytes(others), RECORDS, 0, 1)
    assert first.high_watermark == RECORDS
    assert converting.errors() == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]


def test_a_connection_closed_during_a_conversion_is_released(converting: Converting) -> None:
    converting.produce()
    converting.writer.connection.close("gone")
    converting.go_on.set()
    converting.bench.until(lambda: not converting.bench.preparation.tasks)
    assert converting.second.log.end_offset == 0
    converting.first.fetched_by(OTHER, RECORDS, 0, 1)
    assert converting.first.delayed.append_count == 0
