"""Batches and strategies for the tests of the record formats."""

from __future__ import annotations

import struct
import warnings

from hypothesis import strategies as st

from default_limits import RecordLimits
from record_builders import build_batch
from tidemill.records.batch import CRC, Batch, parse_batch
from tidemill.records.checksum import crc32c
from tidemill.records.compression import decompress_range

with warnings.catch_warnings():
    # kafka-python uses functions that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as PythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder

__all__ = ["PythonBatch", "PythonBuilder"]

NOW_MS = 1_700_000_000_000
OPEN = RecordLimits(max_batch_bytes=1 << 30, timestamp_after_ms=(1 << 63) - 1)
"""RecordLimits that reject only invalid batches."""

blobs = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4)
timestamps = st.integers(0, 1 << 50)
record_fields = st.tuples(timestamps, blobs, blobs, headers)
batches_of_records = st.lists(record_fields, min_size=1, max_size=30)


def decompress(codec: int, data: bytes, bytes_max: int) -> bytes:
    """Decompresses ``data`` completely."""
    return decompress_range(codec, data, 0, len(data), bytes_max)


def parsed(data: bytes) -> Batch:
    """The batch in ``data``, which must be the only one."""
    batch = parse_batch(data, 0, len(data))
    assert batch.size == len(data)
    return batch


def with_crc(data: bytes | bytearray) -> bytes:
    """The batch with the right checksum of its bytes."""
    return bytes(data[:CRC]) + struct.pack(">I", crc32c(bytes(data[21:]))) + bytes(data[21:])


def patched(data: bytes, position: int, layout: str, *values: int) -> bytes:
    """The batch with changed values at ``position`` and the right checksum."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, *values)
    return with_crc(changed)


def zigzag(value: int) -> bytes:
    """A varint according to the documentation, independent of the encoder of Tidemill."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def raw_record(
    *,
    attributes: int = 0,
    timestamp_delta: int = 0,
    offset_delta: int = 0,
    key_length: int = -1,
    key: bytes = b"",
    value_length: int = -1,
    value: bytes = b"",
    header_count: int = 0,
    header_bytes: bytes = b"",
    length: int | None = None,
) -> bytes:
    """A record with possibly wrong fields."""
    body = (
        bytes([attributes])
        + zigzag(timestamp_delta)
        + zigzag(offset_delta)
        + zigzag(key_length)
        + key
        + zigzag(value_length)
        + value
        + zigzag(header_count)
        + header_bytes
    )
    return zigzag(len(body) if length is None else length) + body


def raw_batch(records: bytes, count: int = 1, base_timestamp: int = NOW_MS) -> bytes:
    """A batch around arbitrary bytes, with a right frame and checksum."""
    shell = build_batch([(base_timestamp, None, None, None)])[:61]
    data = bytearray(shell) + records
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    return with_crc(data)
