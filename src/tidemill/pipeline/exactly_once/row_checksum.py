"""Row count and checksum of the rows of a task, in any order.

The checksum is the sum of a 64-bit hash of each row, modulo 2**64. The hash is BLAKE2b: sums of linear codes
such as CRC-32C are equal for different rows, for instance after two rows have exchanged their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from tidemill.pipeline.exactly_once.control_records import RowSet

CHECKSUM_BYTES = 8
TOPIC_BYTES = 16
MODULUS = 1 << 8 * CHECKSUM_BYTES

Headers = list[tuple[str, bytes | None]]


class RowChecksum:
    """Count and checksum of the rows that were added."""

    def __init__(self) -> None:
        self._count = self._total = 0

    @property
    def row_set(self) -> RowSet:
        """Count and checksum."""
        return RowSet(self._count, self._total % MODULUS)

    def add(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """Adds messages of a topic, given as parallel columns."""
        person = blake2b(topic.encode(), digest_size=TOPIC_BYTES).digest()
        self._count += len(values)
        rows: Iterable[bytes]
        if timestamps_ms is None and headers is None and partitions is None:
            if keys is None:
                rows = map(_value_row, values)
            else:
                rows = map(_keyed_row, keys, values)
        else:
            missing = [None] * len(values)
            rows = map(
                _row,
                keys or missing,
                values,
                timestamps_ms or missing,
                headers or missing,
                partitions or missing,
            )
        self._total += sum(
            [
                int.from_bytes(blake2b(row, digest_size=CHECKSUM_BYTES, person=person).digest(), "big")
                for row in rows
            ]
        )


def _value_row(value: bytes | None) -> bytes:
    return b"-" if value is None else b"+%b" % value


def _keyed_row(key: bytes | None, value: bytes | None) -> bytes:
    if key is None:
        return _value_row(value)
    return b"%d:%b%b" % (len(key), key, _value_row(value))


def _row(
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int | None,
    headers: Headers | None,
    partition: int | None,
) -> bytes:
    shown = [(name, None if content is None else content.hex()) for name, content in headers or ()]
    return b"%b %b" % (repr((timestamp_ms, partition, shown)).encode(), _keyed_row(key, value))
