"""The index of aborted transactions of a segment: ``<base offset>.txnindex``, 34 bytes an entry.

====  =====  ==================  ==========================================================
byte  type   field               notes
====  =====  ==================  ==========================================================
0     int16  version             0
2     int64  producer id
10    int64  first offset        of the transaction in this partition
18    int64  last offset         that of its abort marker, which lies in this segment
26    int64  last stable offset  of the partition when the marker was written
====  =====  ==================  ==========================================================

All integers are big-endian; last offsets grow from entry to entry. A segment without aborts has no file.

There is no checksum.

Source: Apache Kafka, ``TransactionIndex.java``, ``AbortedTxn.java``; KIP-98.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidemill.log.names import TRANSACTION_INDEX, offset_of
from tidemill.model.ports import Files

ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
ABORTED_ENTRY_BYTES: Final = 2 + 4 * 8
ABORTED_VERSION: Final = 0


class Aborted(NamedTuple):
    """One aborted transaction, as a segment's index tells it."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode_aborted(data: bytes) -> Aborted:
    """The entry in 34 bytes; its version is not looked at."""
    return Aborted(*ABORTED_ENTRY.unpack(data))


def decode_all(data: bytes) -> list[Aborted]:
    """The whole entries of an index."""
    ends = range(ABORTED_ENTRY_BYTES, len(data) + 1, ABORTED_ENTRY_BYTES)
    return [decode_aborted(data[end - ABORTED_ENTRY_BYTES : end]) for end in ends]


def encode_all(entries: Iterable[Aborted]) -> bytes:
    """An index with these entries."""
    return b"".join([ABORTED_ENTRY.pack(*one) for one in entries])


def read_all(files: Files, directory: str) -> list[Aborted]:
    """The entries of all indexes of a partition. Raises OSError; an index that goes meanwhile is left out."""
    found: list[Aborted] = []
    for name in files.list(directory):
        if offset_of(name, TRANSACTION_INDEX) >= 0:
            try:
                found += decode_all(files.read(f"{directory}/{name}"))
            except FileNotFoundError:
                continue
    return found
