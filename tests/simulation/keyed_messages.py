"""Records with keys: the key of a message in a compacted topic, and whether it is a tombstone.

Both follow from the message, so that checkers know them for removed records. A tombstone has no value: a
header identifies the message.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

KEYS = 12
"""Few, so that most records are replaced soon."""
TOMBSTONES = 5
"""One message of so many is a tombstone."""
HEADER = "message"


@lru_cache(maxsize=1 << 14)
def _hash_of(producer: str, number: int) -> int:
    return zlib.crc32(f"{producer}:{number}".encode())


def key_of(message: tuple[str, int]) -> bytes:
    """Returns the key of a producer's message with this number."""
    return b"key-%d" % (_hash_of(*message) % KEYS)


def is_tombstone(message: tuple[str, int]) -> bool:
    """Whether the message is sent without a value."""
    return (_hash_of(*message) >> 8) % TOMBSTONES == 0
