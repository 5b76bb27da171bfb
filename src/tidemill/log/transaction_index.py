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
from typing import Final, NamedTuple

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
