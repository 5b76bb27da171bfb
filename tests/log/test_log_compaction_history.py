"""Any history of a compacted log: formats, codecs, transactions, cleanings, crashes; against a model."""

from __future__ import annotations

import copy
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from compaction_model import APPENDED, Model
from compaction_stage import (
    NOW,
    MortalFiles,
    Row,
    clean,
    end_transaction,
    opened,
    rows,
    write,
    write_old,
)
from faulty_files import Killed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_stage import batches

from tidemill.log.log import Log

DIRECTORY = "/d/t-0"
DAY = 24 * 60 * 60 * 1000

Contents = list[tuple[int, bytes | None, bytes | None]]
keys = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d", b"k" * 33]))
contents = st.lists(
    st.tuples(st.integers(NOW, NOW + 50), keys, st.one_of(st.none(), st.binary(max_size=8))),
    min_size=1,
    max_size=6,
)


class History(RuleBasedStateMachine):
    """A log on files that may be killed or lose their power, and its expected records."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MortalFiles()
        self.files.make_directory(DIRECTORY)
        self.model = Model()
        self.now_ms = NOW
        self.sequence = 0
        self.clean_end = -1

    @initialize(segment_bytes=st.integers(800, 3000), retention_ms=st.integers(0, DAY))
    def begin(self, segment_bytes: int, retention_ms: int) -> None:
        self.retention_ms = retention_ms
        self.settings = {"segment_bytes": segment_bytes, "delete_retention_ms": retention_ms}
        self.log = self.open(0)

    def open(self, recovery_point: int, start_offset: int = 0) -> Log:
        log = opened(
            self.files,
            DIRECTORY,
            settings=self.settings,
            recovery_point=recovery_point,
            start_offset=start_offset,
        )
        log.clean_end = self.clean_end
        return log

    @rule(records=contents, codec=st.integers(0, 4), idempotent=st.booleans())
    def append(self, records: Contents, codec: int, idempotent: bool) -> None:
        producer = {"producer_id": 3, "producer_epoch": 0, "base_sequence": self.sequence}
        self.model.append(write(self.log, records, codec=codec, **producer if idempotent else {}), records)
        if idempotent:
            self.sequence += len(records)

    @rule(records=contents, magic=st.integers(0, 1), codec=st.integers(0, 3), append_time=st.booleans())
    def append_old(self, records: Contents, magic: int, codec: int, append_time: bool) -> None:
        base = write_old(self.log, magic, records, codec, APPENDED if append_time else -1)
        self.model.append_old(base, magic, append_time, records)

    @rule(records=contents, producer=st.integers(4, 5), committed=st.booleans())
    def append_transaction(self, records: Contents, producer: int, committed: bool) -> None:
        options: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        self.log.producer_state.entries.pop(producer, None)
        base = write(self.log, records, transactional=True, **options)
        self.model.append(base, records)
        end_transaction(self.log, producer, committed)
        if not committed:
            self.model.aborted |= set(range(base, base + len(records)))

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(part=st.floats(0, 1))
    def advance_start(self, part: float) -> None:
        start = int(self.log.start_offset)
        self.log.advance_start(start + round((int(self.log.end_offset) - start) * part / 3))
        gone = [one for one in self.log.segments[1:] if one.base_offset <= self.log.start_offset]
        self.log.delete_old_segments(len(gone), self.now_ms)
        first = int(self.log.segments[0].base_offset)
        self.model.rows = [row for row in self.model.rows if row[0] >= first]

    @precondition(lambda self: self.now_ms < NOW + 50 * DAY)
    @rule(later_ms=st.integers(0, DAY), chunk_bytes=st.sampled_from([100, 4096]))
    def clean(self, later_ms: int, chunk_bytes: int) -> None:
        if not self.is_dirty:
            return
        after = self.after_cleaning(later_ms)
        clean(self.log, self.now_ms, chunk_bytes=chunk_bytes)
        self.clean_end = int(self.log.clean_end)
        self.model = after

    @property
    def is_dirty(self) -> bool:
        return self.log.active.base_offset > max(self.log.clean_end, self.log.start_offset)

    def after_cleaning(self, later_ms: int) -> Model:
        """Returns the expected records after a cleaning at this point."""
        self.now_ms += later_ms
        self.files.now_ms = self.now_ms
        log = self.log
        first_dirty = max(int(log.clean_end), int(log.start_offset))
        written = [(int(one.base_offset), self.files.modified_ms(one.path)) for one in log.segments]
        model = copy.deepcopy(self.model)
        end = int(log.active.base_offset)
        model.clean(first_dirty, end, self.now_ms, self.retention_ms, written)
        return model

    @rule(
        later_ms=st.integers(0, DAY),
        operations=st.integers(0, 120),
        power_cut=st.booleans(),
        luck=st.integers(0, 3),
    )
    def clean_and_crash(self, later_ms: int, operations: int, power_cut: bool, luck: int) -> None:
        if not self.is_dirty:
            return
        if power_cut:
            self.sync()
        bases = [int(one.base_offset) for one in self.log.segments]
        recovery_point, start = int(self.log.recovery_point), int(self.log.start_offset)
        after = self.after_cleaning(later_ms)
        self.files.left = operations
        with suppress(Killed):
            clean(self.log, self.now_ms)
        self.files.left = -1
        if power_cut:
            self.files.power_cut(Random(luck) if luck else None)
        else:
            self.files.kill()
        self.log = self.open(recovery_point, start)
        self.model = self.which(after, bases)

    def sync(self) -> None:
        """A power cut may lose none of the appended records."""
        self.log.flush(self.now_ms)
        for name in self.files.list(DIRECTORY):
            file = self.files.open(f"{DIRECTORY}/{name}")
            file.sync()
            file.close()
        self.files.sync_directory(DIRECTORY)
        self.files.sync_directory("/d")
        self.files.sync_directory("/")

    def which(self, after: Model, bases: list[int]) -> Model:
        """The log is new up to the start of a segment and old after it; returns its model."""
        found = rows(self.log)
        for cut in [*bases, int(self.log.end_offset)]:
            expected = [row for row in after.rows if row[0] < cut]
            expected += [row for row in self.model.rows if row[0] >= cut]
            if self.visible(found) == self.visible(expected):
                after.rows = expected
                # The rows may be equal. Only the batches show whether tombstones have a delete horizon.
                horizons = {
                    int(one.base_offset): int(one.base_timestamp)
                    for one in batches(self.log)
                    if one.has_delete_horizon and not one.is_control
                }
                assert horizons.items() <= after.horizons.items() | self.model.horizons.items()
                after.horizons = horizons
                return after
        raise AssertionError(f"neither old nor new: {found}, not {self.model.rows} nor {after.rows}")

    def visible(self, found: list[Row]) -> list[Row]:
        return [row for row in found if row[0] >= self.log.start_offset]

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        recovery_point, start = int(self.log.recovery_point), int(self.log.start_offset)
        if clean:
            self.log.close(self.now_ms)
            recovery_point = int(self.log.recovery_point)
        self.files.kill()
        self.log = self.open(recovery_point, start)

    @invariant()
    def reads_equal_the_model(self) -> None:
        if hasattr(self, "log"):
            assert self.visible(rows(self.log)) == self.visible(self.model.rows)


@pytest.mark.slow
def test_a_compacted_log_matches_its_model_after_any_history() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=80,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
