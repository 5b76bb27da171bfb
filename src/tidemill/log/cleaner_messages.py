"""The messages between the broker and a cleaner process, as plain data.

A message on the pipes is a pickle after its length (uint32, big-endian).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

HEADER: Final = struct.Struct(">I")
GO_ON: Final = "go on"
ABORT: Final = "abort"
ABORTED: Final = "aborted"


class NewPace(NamedTuple):
    """Changes the limit of bytes per second of a running job."""

    bytes_per_second: float


DAMAGED: Final = "damaged"
STORAGE: Final = "storage"
FAULT: Final = "fault"


class ClosedSegment(NamedTuple):
    """A closed segment; ``size`` is the size of its log file."""

    base_offset: int
    size: int


class LastBatch(NamedTuple):
    """The last batch of a live producer: its offset (-1: unknown) and its epoch."""

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
    """A new segment, written and synced under its ``.cleaned`` names, that replaces the segments ``old``."""

    old: tuple[int, ...]
    """The base offsets of these segments; the first is also that of the new segment."""
    size: int


class CleanCounts(NamedTuple):
    """The results of a job."""

    end_offset: int = 0
    """The new clean end."""
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
    """A failed job: ``damaged`` (the log), ``storage`` (its files) or ``fault`` (the cleaner)."""

    kind: str
    text: str


Message: TypeAlias = CleanJob | NewPace | CleanedGroup | CleanCounts | Failure | str
"""A string is one of the signals at the top."""


def encode(message: Message) -> bytes:
    """A message with its length."""
    import pickle  # Half a megabyte, which a broker without a compacted topic does not need.

    data = pickle.dumps(message)
    return HEADER.pack(len(data)) + data


def decode(data: bytes) -> Message:
    """The message that :func:`encode` packed, without its length. Raises TypeError for another object."""
    import pickle

    found: object = pickle.loads(data)
    if not isinstance(found, Message):
        raise TypeError(f"a {type(found).__name__} is not a message of the cleaner")
    return found
