"""The log end for consumers does not decrease when the broker restarts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import paths_bench
import pytest
from paths_bench import FETCH, NODE, Bench, HeldExecutor, batch, bench_in, fetch_request, parts_of, values_of

from tidemill.broker.handlers.list_offsets import look_up, look_up_segments
from tidemill.log.log_config import LogConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.list_offset_timestamps import LATEST
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest

OTHER = 2


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bench, HeldExecutor]]:
    """A broker that was killed after it had committed two records by its own flushes, and restarted."""
    monkeypatch.setattr(paths_bench, "LogConfig", partial(LogConfig, flush_messages=1))
    disk = HeldExecutor()
    before = Bench(tmp_path / "before", syncers=disk)
    client = before.client()
    client.produce(9, {("u", 0): batch(b"a", b"b")})
    before.until(lambda: bool(disk.jobs))
    disk.run()
    assert client.produced(9)[0].error_code == 0
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    before.close()
    bench = Bench(tmp_path / "after", syncers=disk)
    yield bench, disk
    disk.run()
    bench.close()


def test_the_only_replica_returns_no_log_end_before_its_flush(killed: tuple[Bench, HeldExecutor]) -> None:
    bench, disk = killed
    partition = bench.partition("u")
    bench.until(lambda: bool(disk.jobs))
    assert (partition.high_watermark, partition.log.end_offset) == (0, 2)
    wanted = ListOffsetsPartition(timestamp=LATEST, current_leader_epoch=-1)
    with pytest.raises(KafkaError) as refused:
        look_up(partition, wanted, ListOffsetsRequest(replica_id=-1), 5, None)
    assert refused.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    reader = bench.client()
    part = parts_of(reader.ask(FETCH, 12, fetch_request(12, {("u", 0): 0})))["u", 0]
    assert (part.error_code, part.high_watermark, part.records or b"") == (0, -1, b"")
    reader.fetch(12, {("u", 0): 0}, max_wait_ms=60_000)
    disk.run()
    part = parts_of(reader.fetched(12))["u", 0]
    assert (part.high_watermark, values_of(part)) == (2, [b"a", b"b"])
    assert look_up(partition, wanted, ListOffsetsRequest(replica_id=-1), 5, None).offset == 2


def test_a_new_leader_returns_no_log_end_to_the_oldest_clients(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        bench.client().append(b"a", b"b")
        partition = bench.partition()
        partition.high_watermark = 1  # the high watermark that it had as a follower
        partition.apply_state(NODE, 4, (NODE, OTHER), (NODE, OTHER), partition_epoch=1, now_ms=0)
        wanted = ListOffsetsPartition(timestamp=LATEST, max_num_offsets=1)
        with pytest.raises(KafkaError) as refused:
            look_up_segments(partition, wanted, -1, 0)
        assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE
        partition.fetched_by(OTHER, 2, 0, 1)
        assert look_up_segments(partition, wanted, -1, 0).old_style_offsets == [2]
