"""The partition of a coordinator's topic that stores a group or a transactional id. Compiled.

No result is cached: clients choose the ids, also those that do not exist.
"""

from __future__ import annotations

from mypy_extensions import i64


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 units, in 32 bits with sign."""
    value: i64 = 0
    units = text.encode("utf-16-be", "surrogatepass")
    length: i64 = len(units)
    index: i64 = 0
    while index < length:
        value = (31 * value + (units[index] << 8) + units[index + 1]) & 0xFFFFFFFF
        index += 2
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partition_count: int) -> int:
    """The partition of an id: ``abs(hash) % partition_count``, where the smallest integer counts as 0."""
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
