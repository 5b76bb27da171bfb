"""The batches of a log as a consumer reads them, damage to its files, and its copy to another directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from log_start import NOW
from tidemill.log.log import Log
from tidemill.log.log_dir_move import LogDirMove
from tidemill.records.batch import Batch, check_crc
from tidemill.records.legacy_formats import Entry
from tidemill.records.record_reader import iter_stored

MakeBatch = Callable[..., Batch]
"""The fixture ``batch``."""
MakeLog = Callable[..., Log]
"""The fixture ``log_of``."""


def stored(log: Log, bytes_max: int = 1 << 20) -> Iterator[Batch | Entry]:
    """Returns every batch or entry that a consumer gets from the start, and checks the order.

    A read returns about ``bytes_max`` bytes.
    """
    offset = int(log.start_offset)
    while offset < log.end_offset:
        part = log.read(offset, bytes_max, log.end_offset, True)
        if part is None:
            return
        for one in iter_stored(part.read()):
            assert one.last_offset >= offset
            offset = int(one.next_offset)
            yield one


def batches(log: Log) -> Iterator[Batch]:
    """Returns the batches of format v2, with valid checksums."""
    for one in stored(log):
        if isinstance(one, Batch):
            check_crc(one)
            yield one


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    """Inverts bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def copy_all(move: LogDirMove) -> None:
    """Copies all records of a log to its future log."""
    while (piece := move.next_range(1 << 20, NOW)) is not None:
        move.copy_range(piece, NOW)
