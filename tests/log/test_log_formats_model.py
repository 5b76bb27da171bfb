"""Any sequence of produces in any format, to a topic whose format changes, read in any, against a list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.recovery import Opening
from tidemill.log.removals import Removals
from tidemill.model.types import TopicPartition
from tidemill.records.batch import Batch
from tidemill.records.builder import build_batch
from tidemill.records.convert import KEEP_CODEC, down, for_storage
from tidemill.records.cursor import open_cursor
from tidemill.records.message_set import build_message_set
from tidemill.records.validate import Limits
from tidemill.testing.files import FaultyFiles

NOW = 1_700_000_000_000
DIRECTORY = "/data/t-0"
LIMITS = Limits(max_batch_bytes=1 << 20, timestamp_after_ms=(1 << 63) - 1)
NO_TYPE, CREATE, APPEND = -1, 0, 1

Read = tuple[int, int, int, bytes | None, bytes | None]
"""Offset, timestamp, its type, key, value."""

blobs = st.none() | st.binary(max_size=20)
contents = st.lists(st.tuples(st.integers(0, 1 << 40), blobs, blobs), min_size=1, max_size=6)
codecs = st.integers(0, 3)


def sent_bytes(magic: int, codec: int, records: list[tuple[int, bytes | None, bytes | None]]) -> bytes:
    """What a producer sends."""
    if magic == 2:
        return build_batch([(*one, []) for one in records], codec)
    return build_message_set(magic, records, codec)


def read_all(data: bytes, first_offset: int) -> list[Read]:
    """The records of whole batches and entries, from an offset on."""
    found = []
    position = 0
    while position < len(data):
        cursor = open_cursor(data, position, len(data))
        while cursor.step():
            found.append((cursor.offset, cursor.timestamp, cursor.timestamp_type, cursor.key, cursor.value))
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return [one for one in found if one[0] >= first_offset]


class FormatsMachine(RuleBasedStateMachine):
    """The model is a list of what was stored, with the format that it is stored in."""

    def __init__(self) -> None:
        super().__init__()
        self.files = FaultyFiles()
        self.files.make_directory(DIRECTORY)
        self.stored: list[tuple[int, Read]] = []
        self.magic = 2
        self.codec = KEEP_CODEC
        self.clock = NOW

    @initialize(
        segment_bytes=st.integers(1200, 4000), interval=st.integers(0, 600), append_time=st.booleans()
    )
    def begin(self, segment_bytes: int, interval: int, append_time: bool) -> None:
        self.append_time = append_time
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            message_timestamp_type="LogAppendTime" if append_time else "CreateTime",
        )
        self.log = self.open(False)

    def open(self, clean: bool) -> Log:
        opening = Opening(
            self.files,
            DIRECTORY,
            TopicPartition("t", 0),
            self.config,
            removals=Removals(),
            now_ms=self.clock,
            recovery_point=0,
            start_offset=0,
            clean=clean,
        )
        log = opening.open()
        assert opening.warnings == []
        return log

    @rule(magic=st.integers(0, 2), codec=st.integers(KEEP_CODEC, 3))
    def store_as(self, magic: int, codec: int) -> None:
        self.magic, self.codec = magic, codec

    @rule(magic=st.integers(0, 2), codec=codecs, records=contents)
    def produce(self, magic: int, codec: int, records: Any) -> None:
        self.clock += 1
        data = sent_bytes(magic, codec, records)
        made = for_storage(
            data, 0, len(data), self.magic, self.codec, LIMITS, self.clock, self.append_time, None
        )
        base = len(self.stored)
        if isinstance(made, Batch):
            result = self.log.append([made], 0, self.clock)
        else:
            result = self.log.append_messages(made, 0, self.clock)
        assert (result.base_offset, result.last_offset) == (base, base + len(records) - 1)
        for at, (time_ms, key, value) in enumerate(records):
            timestamp, kind = time_ms if magic else -1, CREATE
            if self.magic == 0:
                timestamp, kind = -1, NO_TYPE
            elif self.append_time:
                timestamp, kind = self.clock, APPEND
            self.stored.append((self.magic, (base + at, timestamp, kind, key, value)))

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        if clean:
            self.log.close(self.clock)
        self.files.kill()
        self.log = self.open(clean)

    @rule(magic=st.integers(0, 2), bytes_max=st.integers(1, 3000), part=st.floats(0, 1))
    def read(self, magic: int, bytes_max: int, part: float) -> None:
        """As a reader that knows formats up to ``magic``."""
        first = offset = round(len(self.stored) * part)
        found: list[Read] = []
        while offset < len(self.stored):
            piece = self.log.read(offset, bytes_max, len(self.stored), True)
            assert piece is not None
            data = piece.read()
            if magic < 2:
                made = down(data, 0, len(data), magic, offset, bytes_max)
                data = made.data
                assert made.next_offset > offset
            found += read_all(data, offset)
            offset = found[-1][0] + 1
        assert found == [
            one if magic > 0 or stored == 0 else (one[0], -1, NO_TYPE, *one[3:])
            for stored, one in self.stored[first:]
        ]

    @invariant()
    def ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.start_offset, self.log.end_offset) == (0, len(self.stored))


@pytest.mark.slow
def test_records_of_any_format_stay_what_they_are_whatever_is_done_to_them() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        FormatsMachine,
        settings=settings(
            max_examples=80,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
