"""The index of aborted transactions of a segment: ``<base offset>.txnindex``, 34 bytes an entry.

====  =====  ==================  ==========================================================
byte  type   field               notes
====  =====  ==================  ==========================================================
0     int16  version             0
2     int64  producer id
10    int64  first offset        of the transaction in this partition
18    int64  last offset         that of its abort marker, in this segment
26    int64  last stable offset  of the partition when the marker was written
====  =====  ==================  ==========================================================

All integers are big-endian; last offsets grow from entry to entry. A segment without aborts has no file.

There is no checksum. An entry is written before its marker: a consumer must not read a marker without an
entry. If the marker cannot be appended, the entry is removed before the next one, and by recovery.

Source: Apache Kafka, ``TransactionIndex.java``, ``AbortedTxn.java``; KIP-98.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from tidemill.log.checkpoint_files import read_existing
from tidemill.log.file_names import TRANSACTION_INDEX, offset_of
from tidemill.model.system_interfaces import File, Files

ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
ABORTED_ENTRY_BYTES: Final = 2 + 4 * 8
ABORTED_VERSION: Final = 0


class Aborted(NamedTuple):
    """One aborted transaction, as an entry of a segment's index."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode_aborted(data: bytes) -> Aborted:
    """The entry in 34 bytes; its version is not checked."""
    return Aborted(*ABORTED_ENTRY.unpack(data))


def decode_all(data: bytes) -> list[Aborted]:
    """The complete entries of an index."""
    ends = range(ABORTED_ENTRY_BYTES, len(data) + 1, ABORTED_ENTRY_BYTES)
    return [decode_aborted(data[end - ABORTED_ENTRY_BYTES : end]) for end in ends]


def encode_all(entries: Iterable[Aborted]) -> bytes:
    """The content of an index with these entries."""
    return b"".join([ABORTED_ENTRY.pack(*one) for one in entries])


def append_entry(files: Files, path: str, entry: Aborted) -> None:
    """Adds an entry to the index at ``path``, replacing entries of markers that were never appended.

    Raises OSError; an incomplete entry that a failure leaves does not count, and the next one replaces it.
    """
    with files.open(path, create=True) as file:
        _truncate(file, entry.last_offset)
        file.append([ABORTED_ENTRY.pack(*entry)])


def truncate_entries(files: Files, path: str, offset: int) -> None:
    """Removes the entries of markers at or after ``offset``. Raises OSError."""
    with suppress(FileNotFoundError), files.open(path) as file:
        _truncate(file, offset)


def _truncate(file: File, offset: int) -> None:
    size = int(file.size())
    whole = size - size % ABORTED_ENTRY_BYTES
    while whole:
        before = whole - ABORTED_ENTRY_BYTES
        if decode_aborted(file.read_at(before, ABORTED_ENTRY_BYTES)).last_offset < offset:
            break
        whole = before
    if whole < size:
        file.truncate(whole)


def damage(data: bytes, base_offset: int, end_offset: int) -> str:
    """Describes damage to the index of the segment from ``base_offset`` to ``end_offset``; else empty."""
    before = base_offset - 1
    if len(data) % ABORTED_ENTRY_BYTES:
        return f"{len(data)} bytes are not a multiple of the entry size"
    for at, entry in enumerate(decode_all(data)):
        if entry.version != ABORTED_VERSION:
            return f"entry {at} has version {entry.version}, expected {ABORTED_VERSION}"
        if not before < entry.last_offset < end_offset or not 0 <= entry.first_offset < entry.last_offset:
            return f"entry {at} has invalid offsets {entry.first_offset} to {entry.last_offset}"
        before = entry.last_offset
    return ""


def write_index(files: Files, path: str, entries: Iterable[Aborted]) -> bool:
    """Writes the index at ``path``. Returns whether its entries have changed. Raises OSError."""
    data = encode_all(entries)
    if read_existing(files, path) == data:
        return False
    if data:
        files.replace(path, data)
    else:
        files.remove(path)
    return True


def read_all(files: Files, directory: str) -> list[Aborted]:
    """The entries of all indexes of a partition. Raises OSError; an index that is removed meanwhile is
    skipped.
    """
    found: list[Aborted] = []
    for name in files.list(directory):
        if offset_of(name, TRANSACTION_INDEX) >= 0:
            found += decode_all(read_existing(files, f"{directory}/{name}"))
    return found
