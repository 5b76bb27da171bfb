"""Any sequence of operations on a log, against a plain list of records."""

from __future__ import annotations

from typing import Any

import pytest
from faulty_files import FaultyFiles
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from default_limits import iter_records
from record_builders import build_batch
from tidemill.log import log_loader
from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_loader import LogLoader
from tidemill.log.retention import expired_segments
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch

NOW = 1_700_000_000_000
DIRECTORY = "/data/t-0"


class LogMachine(RuleBasedStateMachine):
    """The model is a list of (offset, value, leader epoch), and the log start offset."""

    def __init__(self) -> None:
        super().__init__()
        self.files = FaultyFiles()
        self.files.make_directory(DIRECTORY)
        self.removals = DelayedFileRemoval()
        self.records: list[tuple[int, bytes, int]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.count = 0
        self.recovery_point = 0

    @initialize(
        segment_bytes=st.integers(600, 2000), interval=st.integers(0, 600), index_bytes=st.integers(36, 400)
    )
    def begin(self, segment_bytes: int, interval: int, index_bytes: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=interval, segment_index_bytes=index_bytes
        )
        self.log = self.open(False)

    def open(self, clean: bool) -> Log:
        opening = LogLoader(
            self.files,
            DIRECTORY,
            TopicPartition("t", 0),
            self.config,
            removals=self.removals,
            now_ms=NOW,
            recovery_point=self.recovery_point,
            start_offset=self.start,
            clean=clean,
        )
        log = opening.open()
        assert opening.warnings == []
        return log

    def batch(self, count: int, size: int, **options: Any) -> tuple[Any, list[bytes]]:
        values = [b"%06d" % (self.count + at) + bytes(size) for at in range(count)]
        self.count += count
        data = build_batch([(NOW + self.count, None, value, None) for value in values], **options)
        return parse_batch(data, 0, len(data)), values

    @rule(count=st.integers(1, 5), size=st.integers(0, 60), codec=st.sampled_from([0, 0, 3]))
    def append(self, count: int, size: int, codec: int) -> None:
        batch, values = self.batch(count, size, codec=codec)
        result = self.log.append(batch, self.epoch, NOW)
        assert (result.base_offset, result.last_offset) == (self.end, self.end + count - 1)
        self.records += [(self.end + at, value, self.epoch) for at, value in enumerate(values)]
        self.end += count

    @rule(gap=st.integers(0, 3), count=st.integers(1, 3))
    def append_as_follower(self, gap: int, count: int) -> None:
        base = self.end + gap
        batch, values = self.batch(count, 5, base_offset=base, leader_epoch=self.epoch)
        assert self.log.append_copied(batch.data, NOW) == base + count
        self.records += [(base + at, value, self.epoch) for at, value in enumerate(values)]
        self.end = base + count

    @rule()
    def next_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        ends = sorted({offset + 1 for offset, _, _ in self.records} & set(self.boundaries()))
        if not ends:
            return
        offset = ends[round((len(ends) - 1) * part)]
        assert self.log.truncate_to(offset, NOW) == (offset < self.end)
        self.records = [record for record in self.records if record[0] < offset]
        self.end = offset

    def boundaries(self) -> list[int]:
        found = [int(segment.base_offset) for segment in self.log.segments]
        for segment in self.log.segments:
            data = self.files.read(segment.path)
            position = 0
            while position < len(data):
                base = int.from_bytes(data[position : position + 8], "big")
                found += [base, base + int.from_bytes(data[position + 23 : position + 27], "big") + 1]
                position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        return [offset for offset in found if offset >= self.start]

    @rule(part=st.floats(0, 1))
    def advance_start(self, part: float) -> None:
        offset = self.start + round((self.end - self.start) * part)
        assert self.log.advance_start(offset) == (offset > self.start)
        self.start = offset
        self.records = [record for record in self.records if record[0] >= offset]

    @rule()
    def retain(self) -> None:
        self.log.delete_old_segments(expired_segments(self.log, self.end, NOW), NOW)

    @rule()
    def flush(self) -> None:
        self.log.flush(NOW)
        self.recovery_point = int(self.log.recovery_point)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.log.close(NOW)
        self.recovery_point = min(self.recovery_point, int(self.log.recovery_point))
        self.files.kill()
        self.log = self.open(clean)

    @rule(bytes_max=st.integers(1, 3000))
    def read_in_pieces(self, bytes_max: int) -> None:
        found: list[tuple[int, bytes | None]] = []
        offset = self.start
        while True:
            part = self.log.read(offset, bytes_max, self.end, True)
            if part is None:
                break
            records = [(record.offset, record.value) for record in iter_records(part.read(), offset)]
            assert records
            found += records
            offset = records[-1][0] + 1
        assert found == [(offset, value) for offset, value, _ in self.records]

    @rule(part=st.floats(0, 1))
    def read_up_to_a_limit(self, part: float) -> None:
        boundaries = sorted({*self.boundaries(), self.end})
        limit = boundaries[round((len(boundaries) - 1) * part)]
        piece = self.log.read(self.start, 1 << 20, limit, True) if self.start < self.end else None
        if piece is not None:
            records = [record.offset for record in iter_records(piece.read(), self.start)]
            assert records == [offset for offset, _, _ in self.records if offset < limit][: len(records)]
            assert records

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
            for offset, _, epoch in self.records[:: max(1, len(self.records) // 5)]:
                assert self.log.leader_epochs.epoch_of(offset) == epoch


@pytest.mark.slow
@pytest.mark.parametrize("spared_bytes_min", [1, log_loader.SPARED_BYTES_MIN])
def test_a_log_matches_a_list_of_records_after_any_operations(
    monkeypatch: pytest.MonkeyPatch, spared_bytes_min: int
) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setattr(log_loader, "SPARED_BYTES_MIN", spared_bytes_min)
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
