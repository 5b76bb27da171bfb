"""The partition of ``__consumer_offsets`` that stores a group."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

GROUPS_REMEMBERED_MAX: Final = 16_384


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 units, in 32 bits with sign."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8) + units[index + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(GROUPS_REMEMBERED_MAX)
def partition_for(group_id: str, partition_count: int) -> int:
    """The group's partition: ``abs(hash) % partition_count``, where the smallest integer counts as 0."""
    value = java_string_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
