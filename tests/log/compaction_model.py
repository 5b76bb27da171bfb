"""The expected result of compaction, computed with lists and dictionaries."""

from __future__ import annotations

from compaction_stage import NOW, Row

APPENDED = NOW + 7
"""The broker's time in messages of append time."""


class Model:
    """Returns the expected records by offset."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.base_of: dict[int, int] = {}
        self.old: set[int] = set()
        self.aborted: set[int] = set()
        self.horizons: dict[int, int] = {}

    def append(self, base: int, records: list[tuple[int, bytes | None, bytes | None]]) -> None:
        for at, (timestamp, key, value) in enumerate(records):
            self.rows.append((base + at, timestamp, key, value))
            self.base_of[base + at] = base

    def append_old(
        self,
        base: int,
        magic: int,
        append_time: bool,
        records: list[tuple[int, bytes | None, bytes | None]],
    ) -> None:
        for at, (timestamp, key, value) in enumerate(records):
            reported = -1 if magic == 0 else APPENDED if append_time else timestamp
            self.rows.append((base + at, reported, key, value))
            self.old.add(base + at)

    def clean(
        self, first_dirty: int, end: int, now_ms: int, retention_ms: int, written: list[tuple[int, int]]
    ) -> None:
        """``written`` are the segments so far with their modification times."""
        latest = {
            row[2]: row[0]
            for row in self.rows
            if first_dirty <= row[0] < end and row[2] is not None and row[0] not in self.aborted
        }
        clean_ms = [time_ms for base, time_ms in written if base < first_dirty]
        old_horizon = clean_ms[-1] - retention_ms if clean_ms else 0
        kept = []
        horizons = dict(self.horizons)
        for row in self.rows:
            offset, _, key, value = row
            if offset in self.old:
                tombstones_stay = [one for base, one in written if base <= offset][-1] > old_horizon
            else:
                tombstones_stay = now_ms < horizons.get(self.base_of[offset], now_ms + 1)
            if offset >= end:
                kept.append(row)
            elif offset in self.aborted:
                continue
            elif key is not None and offset >= latest.get(key, -1) and (value is not None or tombstones_stay):
                kept.append(row)
                if value is None and offset not in self.old:
                    self.horizons.setdefault(self.base_of[offset], now_ms + retention_ms)
        self.rows = kept
