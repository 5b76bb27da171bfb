"""Any sequence of produces to a compacted topic, in any format, codec and timestamp type.

The records are converted, compacted, recovered after crashes, read in any format, and compared with a model.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest
from compaction_model import Model
from compaction_stage import SMALL, MortalFiles, Row, clean, opened
from faulty_files import Killed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from default_limits import RecordLimits, down, open_cursor, read_stored
from record_builders import build_batch, build_message_set
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import ZSTD, Batch
from tidemill.records.format_conversion import KEEP_CODEC, for_storage
from tidemill.records.record_reader import iter_stored

NOW = 1_700_000_000_000
DIRECTORY = "/d/t-0"
DAY = 24 * 60 * 60 * 1000
LIMITS = RecordLimits(max_batch_bytes=1 << 20, timestamp_after_ms=(1 << 63) - 1)
NO_TYPE, CREATE, APPEND = -1, 0, 1

Read = tuple[int, int, int, bytes | None, bytes | None]
"""Offset, timestamp, its type, key, value."""

Contents = list[tuple[int, bytes | None, bytes | None]]
keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"k" * 33])
values = st.none() | st.binary(max_size=20)
contents = st.lists(st.tuples(st.integers(0, 1 << 40), keys, values), min_size=1, max_size=6)


class Stored(NamedTuple):
    """The format of a stored record."""

    magic: int
    codec: int
    kind: int


def sent_bytes(magic: int, codec: int, records: Contents) -> bytes:
    """Records as a producer sends it."""
    if magic == 2:
        return build_batch([(*one, []) for one in records], codec)
    return build_message_set(magic, records, codec)


def read_all(data: bytes, first_offset: int) -> list[Read]:
    """Returns the records of complete batches and entries from an offset."""
    found = []
    position = 0
    while position < len(data):
        cursor = open_cursor(data, position, len(data))
        while cursor.step():
            found.append((cursor.offset, cursor.timestamp, cursor.timestamp_type, cursor.key, cursor.value))
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return [one for one in found if one[0] >= first_offset]


class FormatsMachine(RuleBasedStateMachine):
    """The model of the stored records, with their format, codec and timestamp type beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.files = MortalFiles()
        self.files.make_directory(DIRECTORY)
        self.model = Model()
        self.stored: list[Stored] = []
        self.magic, self.codec, self.append_time = 2, KEEP_CODEC, False
        self.clock = NOW
        self.clean_end = -1

    @initialize(
        segment_bytes=st.integers(800, 3000), interval=st.integers(0, 600), retention_ms=st.integers(0, DAY)
    )
    def begin(self, segment_bytes: int, interval: int, retention_ms: int) -> None:
        self.settings = {
            "segment_bytes": segment_bytes,
            "index_interval_bytes": interval,
            "delete_retention_ms": retention_ms,
        }
        self.retention_ms = retention_ms
        self.log = self.open(0, False)

    def open(self, recovery_point: int, clean: bool) -> Log:
        log = opened(
            self.files, DIRECTORY, settings=self.settings, recovery_point=recovery_point, clean=clean
        )
        log.clean_end = self.clean_end
        log.set_config(self.config())
        return log

    def config(self) -> LogConfig:
        kind = "LogAppendTime" if self.append_time else "CreateTime"
        return LogConfig(**{**SMALL, **self.settings}, message_timestamp_type=kind)  # type: ignore[arg-type]

    @rule(
        settings=st.tuples(st.integers(0, 2), st.integers(KEEP_CODEC, 4), st.booleans()),
        sent=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), contents), min_size=1, max_size=4),
    )
    def produce(self, settings: tuple[int, int, bool], sent: list[tuple[int, int, Contents]]) -> None:
        """Produces to the topic with its current settings."""
        self.store_as(*settings)
        for magic, codec, records in sent:
            self.produce_one(magic, codec, records)

    def store_as(self, magic: int, codec: int, append_time: bool) -> None:
        self.magic, self.append_time = magic, append_time
        self.codec = KEEP_CODEC if codec == ZSTD and magic < 2 else codec
        self.log.set_config(self.config())

    def produce_one(self, magic: int, codec: int, records: Contents) -> None:
        if codec == ZSTD and (magic < 2 or (self.magic < 2 and self.codec == KEEP_CODEC)):
            codec = 0
        self.clock += 1
        data = sent_bytes(magic, codec, records)
        made = for_storage(
            data, 0, len(data), self.magic, self.codec, LIMITS, self.clock, self.append_time, None
        )
        base = int(self.log.end_offset)
        if isinstance(made, Batch):
            result = self.log.append(made, 0, self.clock)
        else:
            result = self.log.append_messages(made, 0, self.clock)
        assert (result.base_offset, result.last_offset) == (base, base + len(records) - 1)
        kind = NO_TYPE if self.magic == 0 else APPEND if self.append_time else CREATE
        times = [
            -1 if self.magic == 0 else self.clock if self.append_time else time_ms if magic else -1
            for time_ms, _, _ in records
        ]
        rows = [(time_ms, *row[1:]) for time_ms, row in zip(times, records, strict=True)]
        if self.magic == 2:
            self.model.append(base, rows)
        else:
            self.model.append_old(base, 1, False, rows)
        used = codec if self.codec == KEEP_CODEC else self.codec
        self.stored += [Stored(self.magic, used, kind)] * len(records)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        recovery_point = int(self.log.recovery_point)
        if clean:
            self.log.close(self.clock)
            recovery_point = int(self.log.recovery_point)
        self.files.kill()
        self.log = self.open(recovery_point, clean)

    @rule(luck=st.integers(0, 3))
    def lose_power(self, luck: int) -> None:
        """Closed segments were synced. A prefix of the active segment may survive."""
        sync = self.log.begin_flush(whole=False)
        sync.run()
        self.log.finish_flush(sync, self.clock)
        self.keep_names()
        recovery_point = int(self.log.recovery_point)
        self.files.power_cut(Random(luck) if luck else None)
        self.log = self.open(recovery_point, False)
        end = int(self.log.end_offset)
        assert end >= recovery_point
        del self.stored[end:]
        self.model.rows = [row for row in self.model.rows if row[0] < end]
        self.model.old = {offset for offset in self.model.old if offset < end}
        self.model.horizons = {base: ms for base, ms in self.model.horizons.items() if base < end}

    def keep_names(self) -> None:
        """The partition's directory and its first contents are synced."""
        for directory in (DIRECTORY, "/d", "/"):
            self.files.sync_directory(directory)

    @rule(later_ms=st.integers(0, DAY), rolls=st.booleans(), chunk_bytes=st.sampled_from([100, 4096]))
    def compact(self, later_ms: int, rolls: bool, chunk_bytes: int) -> None:
        if self.make_dirty(rolls):
            after = self.after_cleaning(later_ms)
            clean(self.log, self.clock, chunk_bytes=chunk_bytes)
            self.clean_end = int(self.log.clean_end)
            self.model = after

    @rule(
        later_ms=st.integers(0, DAY),
        operations=st.integers(0, 120),
        ending=st.sampled_from(["kill", "power cut", "power cut with luck"]),
    )
    def compact_and_crash(self, later_ms: int, operations: int, ending: str) -> None:
        if not self.make_dirty(True):
            return
        self.log.flush(self.clock)
        self.keep_names()
        recovery_point = int(self.log.recovery_point)
        bases = [int(one.base_offset) for one in self.log.segments]
        after = self.after_cleaning(later_ms)
        self.files.left = operations
        with suppress(Killed):
            clean(self.log, self.clock)
        self.files.left = -1
        if ending == "kill":
            self.files.kill()
        else:
            self.files.power_cut(Random(operations) if "luck" in ending else None)
        self.log = self.open(recovery_point, False)
        self.model = self.which(after, bases)

    def make_dirty(self, rolls: bool) -> bool:
        if rolls:
            self.log.roll(self.clock)
        return bool(self.log.active.base_offset > max(self.log.clean_end, 0))

    def after_cleaning(self, later_ms: int) -> Model:
        """Returns the expected records after a cleaning at this point."""
        self.clock += later_ms
        self.files.now_ms = self.clock
        written = [(int(one.base_offset), self.files.modified_ms(one.path)) for one in self.log.segments]
        model = copy.deepcopy(self.model)
        first_dirty, end = max(int(self.log.clean_end), 0), int(self.log.active.base_offset)
        model.clean(first_dirty, end, self.clock, self.retention_ms, written)
        return model

    def which(self, after: Model, bases: list[int]) -> Model:
        """The log is new up to the start of a segment and old after it; returns its model."""
        found = read_all(self.whole(), 0)
        for cut in [*bases, int(self.log.end_offset)]:
            rows = [row for row in after.rows if row[0] < cut]
            rows += [row for row in self.model.rows if row[0] >= cut]
            if found == self.seen(rows):
                after.rows = rows
                after.horizons = {
                    int(one.base_offset): int(one.base_timestamp)
                    for one in iter_stored(self.whole())
                    if isinstance(one, Batch) and one.has_delete_horizon
                }
                return after
        raise AssertionError(f"neither old nor new: {found}, not {self.model.rows} nor {after.rows}")

    def whole(self) -> bytes:
        """Returns all bytes of the log."""
        return b"".join(self.files.read(segment.path)[: segment.size] for segment in self.log.segments)

    def seen(self, rows: list[Row], magic: int = 2) -> list[Read]:
        """Reads the records as a client with formats up to ``magic``."""
        return [
            (offset, time_ms, self.stored[offset].kind, key, value)
            if magic > 0
            else (offset, -1, NO_TYPE, key, value)
            for offset, time_ms, key, value in rows
        ]

    @rule(bytes_max=st.integers(1, 3000), part=st.floats(0, 1))
    def read(self, bytes_max: int, part: float) -> None:
        """Reads as clients of each format."""
        for magic in range(3):
            self.read_as(magic, bytes_max, round(int(self.log.end_offset) * part))

    def read_as(self, magic: int, bytes_max: int, first: int) -> None:
        """Reads in parts; a client without zstd reads up to the first such batch."""
        end = int(self.log.end_offset)
        offset = first
        found: list[Read] = []
        limit = end
        while offset < end and (piece := self.log.read(offset, bytes_max, end, True)) is not None:
            data = piece.read()
            following = max(int(one.next_offset) for one in iter_stored(data))
            if magic < 2:
                try:
                    made = down(data, 0, len(data), magic, offset, bytes_max)
                except KafkaError as refused:
                    if refused.code != ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                        raise
                    limit = offset
                    break
                data, following = made.data, int(made.next_offset)
            assert following > offset
            found += read_all(data, offset)
            offset = following
        rows = [row for row in self.model.rows if first <= row[0] < limit]
        assert found == self.seen(rows, magic)
        if limit < end:
            # Its later records may be compacted away: the batch header covers their offsets.
            batches = (
                one for one in iter_stored(self.whole()) if not isinstance(one, Batch) or one.record_count
            )
            assert next(one.codec for one in batches if one.last_offset >= limit) == ZSTD

    @rule(time_ms=st.integers(0, 1 << 40) | st.integers(NOW, NOW + DAY))
    def look_up_a_time(self, time_ms: int) -> None:
        fitting = [(row[1], row[0]) for row in self.model.rows if row[1] >= time_ms]
        assert self.log.offset_for_timestamp(time_ms) == (fitting[0] if fitting else None)

    @invariant()
    def reads_equal_the_model(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.start_offset, self.log.end_offset) == (0, len(self.stored))
            assert read_all(self.whole(), 0) == self.seen(self.model.rows)

    @invariant()
    def headers_match_their_records(self) -> None:
        if not hasattr(self, "log"):
            return
        for one in iter_stored(self.whole()):
            stored = self.stored[one.last_offset]
            times = [int(record.timestamp) for record in read_stored(one)]
            if isinstance(one, Batch) and one.has_delete_horizon:
                assert self.model.horizons[int(one.base_offset)] == one.base_timestamp
            if times:
                assert (one.magic, one.codec) == (stored.magic, stored.codec)
                assert max(times) == (one.max_timestamp if isinstance(one, Batch) else one.timestamp)


@pytest.mark.slow
def test_records_of_any_format_are_unchanged_after_any_operations() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        FormatsMachine,
        settings=settings(
            max_examples=200,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
