"""What a cleaning is told and what it tells, as plain data: it crosses the border of a process.

A message on the pipes is a pickle behind its length (uint32, big-endian).
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, Final, NamedTuple

HEADER: Final = struct.Struct(">I")
GO_ON: Final = "go on"
ABORT: Final = "abort"
ABORTED: Final = "aborted"


class NewPace(NamedTuple):
    """The limit of bytes a second was changed while a job runs."""

    bytes_per_second: float


DAMAGED: Final = "damaged"
STORAGE: Final = "storage"
FAULT: Final = "fault"


class ClosedSegment(NamedTuple):
    """A closed segment as the plan saw it; ``size`` is the bytes of its log."""

    base_offset: int
    size: int


class LastBatch(NamedTuple):
    """What the last batch of a living producer is: its offset (-1: none is known) and its epoch."""

    last_offset: int
    epoch: int


class CleanJob(NamedTuple):
    """One cleaning of one log, from its first segment to before ``upper_bound``."""

    name: str
    directory: str
    segments: tuple[ClosedSegment, ...]
    first_dirty: int
    upper_bound: int
    producers: dict[int, LastBatch]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes_max: int
    interval_bytes: int
    map_bytes: int
    load_factor: float
    chunk_bytes: int
    bytes_per_second: float
    unpacked_bytes_max: int


class CleanedGroup(NamedTuple):
    """One new segment, written and synced under its ``.cleaned`` names, that stands for ``old`` ones."""

    old: tuple[int, ...]
    """Their base offsets; the first is the new one's too."""
    size: int


class CleanCounts(NamedTuple):
    """What a cleaning did."""

    end_offset: int = 0
    """Up to here the log is clean."""
    mapped_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    keys: int = 0
    map_bytes: int = 0
    map_utilization: float = 0.0


class Failure(NamedTuple):
    """A job that could not be done: ``damaged`` (the log), ``storage`` (files), ``fault`` (the cleaner)."""

    kind: str
    text: str


def encode(message: Any) -> bytes:
    """A message with its length."""
    data = pickle.dumps(message)
    return HEADER.pack(len(data)) + data
