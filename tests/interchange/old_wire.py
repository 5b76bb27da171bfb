"""Requests of old clients and their records, encoded and decoded with struct.

No code of the product is used, so that it can be compared with Apache Kafka byte by byte.
"""

from __future__ import annotations

import socket
import struct
import zlib
from types import TracebackType
from typing import Any, NamedTuple

import cramjam
from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
NOW = "now"
"""Stands for the broker's clock, where two brokers are compared."""


class Produced(NamedTuple):
    """The response to a Produce request."""

    error: int
    base_offset: int
    append_time: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()


class Fetched(NamedTuple):
    """The response to a Fetch request."""

    error: int
    high_watermark: int
    records: bytes


class Entry(NamedTuple):
    """An entry or batch: its fields without sizes and checksums, which are verified."""

    magic: int
    offset: int
    """Of an entry its own, of a batch its first."""
    attributes: int
    times: tuple[Any, ...]
    """Of v0 none, of v1 one, of v2 the first and the largest."""
    rest: tuple[Any, ...]
    """Key and value, the entries inside of a wrapper, or what else a batch says and its unpacked records."""


def text(value: str) -> bytes:
    """Encodes a string of the protocol."""
    return struct.pack(">h", len(value)) + value.encode()


class OldPeer:
    """A connection with one request at a time."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)

    def __enter__(self) -> OldPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        """Returns the body of the response."""
        frame = struct.pack(">hhi", key, version, 1) + text("old") + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)[4:]

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data

    def produce(self, version: int, topic: str, records: bytes, acks: int = -1) -> Produced:
        """Sends Produce for partition 0, in a version from 0 to 8."""
        body = struct.pack(">h", -1) if version >= 3 else b""
        body += struct.pack(">hii", acks, 10_000, 1) + text(topic)
        body += struct.pack(">iii", 1, 0, len(records)) + records
        answer = self.ask(PRODUCE, version, body)
        at = 4 + 2 + len(topic) + 4 + 4
        error, base = struct.unpack_from(">hq", answer, at)
        at += 10
        append_time = -1
        if version >= 2:
            (append_time,) = struct.unpack_from(">q", answer, at)
            at += 8
        if version < 8:
            return Produced(error, base, append_time)
        (count,) = struct.unpack_from(">i", answer, at + 8)
        at += 12
        errors = []
        for _ in range(count):
            index, length = struct.unpack_from(">ih", answer, at)
            at += 6
            errors.append((index, answer[at : at + length].decode() if length >= 0 else None))
            at += max(length, 0)
        return Produced(error, base, append_time, tuple(errors))

    def fetch(
        self, version: int, topic: str, offset: int, bytes_max: int = 1 << 20, wait_ms: int = 0
    ) -> Fetched:
        """Sends Fetch for partition 0, in a version from 0 to 4."""
        body = struct.pack(">iii", -1, wait_ms, 1)
        if version >= 3:
            body += struct.pack(">i", 50 << 20)
        if version >= 4:
            body += b"\0"
        body += struct.pack(">i", 1) + text(topic) + struct.pack(">iiqi", 1, 0, offset, bytes_max)
        answer = self.ask(FETCH, version, body)
        at = (4 if version >= 1 else 0) + 4 + 2 + len(topic) + 4 + 4
        error, high = struct.unpack_from(">hq", answer, at)
        at += 10
        if version >= 4:
            (aborted,) = struct.unpack_from(">i", answer, at + 8)
            at += 12 + 16 * max(aborted, 0)
        (size,) = struct.unpack_from(">i", answer, at)
        records = answer[at + 4 :]
        assert len(records) == max(size, 0), (len(records), size)
        return Fetched(error, high, records)

    def segment_offsets(self, topic: str, timestamp: int, count: int) -> tuple[int, list[int]]:
        """Sends ListOffsets 0; returns error and offsets."""
        body = struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiqi", 1, 0, timestamp, count)
        answer = self.ask(LIST_OFFSETS, 0, body)
        at = 4 + 2 + len(topic) + 4 + 4
        error, found = struct.unpack_from(">hi", answer, at)
        return error, list(struct.unpack_from(f">{found}q", answer, at + 6))

    def offset_of_time(self, topic: str, timestamp: int) -> tuple[int, int, int]:
        """Sends ListOffsets 1; returns error, timestamp, offset."""
        body = struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiq", 1, 0, timestamp)
        answer = self.ask(LIST_OFFSETS, 1, body)
        found: tuple[int, int, int] = struct.unpack_from(">hqq", answer, 4 + 2 + len(topic) + 4 + 4)
        return found


# -- records


def entry(
    magic: int,
    key: bytes | None,
    value: bytes | None,
    *,
    offset: int = 0,
    attributes: int = 0,
    timestamp: int = -1,
    crc: int | None = None,
) -> bytes:
    """Encodes an entry of v0 or v1."""
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", timestamp)
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body) if crc is None else crc) + body


def packed(magic: int, codec: int, data: bytes, *, raw_snappy: bool = False) -> bytes:
    """Compresses the value of a wrapper as clients of that time did; lz4 of v0 with their wrong checksum."""
    if codec == GZIP:
        return zlib.compress(data, wbits=31)
    if codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(data))
        return block if raw_snappy else XERIAL + struct.pack(">i", len(block)) + block
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    import lz4.frame

    frame = bytearray(lz4.frame.compress(data, block_linked=False, store_size=False))
    if magic == 0:
        frame[6] = lz4_checksum(frame[:6])
    return bytes(frame)


def unpacked(magic: int, codec: int, data: bytes) -> bytes:
    """Decompresses the value of a wrapper."""
    if codec == GZIP:
        return zlib.decompress(data, wbits=31)
    if codec == SNAPPY:
        if not data.startswith(XERIAL[:8]):
            return bytes(cramjam.snappy.decompress_raw(data))
        out, at = b"", 16
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
            at += 4 + size
        return out
    if codec == ZSTD:
        return bytes(cramjam.zstd.decompress(data))
    frame = bytearray(data)
    if magic == 0:
        frame[6] = lz4_checksum(data[4:6])
    return bytes(cramjam.lz4.decompress(bytes(frame)))


def lz4_checksum(descriptor: bytes | bytearray) -> int:
    """Computes the checksum of a frame header: the second byte of its xxHash32. The first clients included
    the magic number.
    """
    import xxhash

    return xxhash.xxh32(bytes(descriptor)).intdigest() >> 8 & 0xFF


def wrapper(
    magic: int, codec: int, inside: bytes, *, offset: int = 0, timestamp: int = -1, **more: Any
) -> bytes:
    """Encodes a compressed message set."""
    value = packed(magic, codec, inside, raw_snappy=more.pop("raw_snappy", False))
    attributes = codec | more.pop("attributes", 0)
    return entry(magic, None, value, offset=offset, timestamp=timestamp, attributes=attributes, **more)


def take_apart(data: bytes, inside: bool = False) -> tuple[list[Entry], bytes]:
    """Decodes the whole entries and batches in ``data``; also returns the bytes after the last."""
    found = []
    at = 0
    while at + 17 <= len(data):
        offset, size = struct.unpack_from(">qi", data, at)
        if size < 14 or at + 12 + size > len(data):
            break
        one = data[at : at + 12 + size]
        found.append(_batch(one, offset) if one[16] == 2 else _entry(one, offset, inside))
        at += 12 + size
    return found, data[at:]


def _entry(data: bytes, offset: int, inside: bool) -> Entry:
    (crc,) = struct.unpack_from(">I", data, 12)
    assert crc == zlib.crc32(data[16:]), f"the entry with offset {offset} has a wrong checksum"
    magic, attributes = data[16], data[17]
    at = 18
    times: tuple[Any, ...] = ()
    if magic:
        times = struct.unpack_from(">q", data, at)
        at += 8
    fields = []
    for _ in range(2):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        fields.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    assert at == len(data)
    codec = attributes & 7
    if codec == 0:
        return Entry(magic, offset, attributes, times, tuple(fields))
    assert not inside
    assert fields[0] is None
    if magic == 0 and codec == LZ4:
        # The first clients accept no other checksum.
        assert fields[1][6] == lz4_checksum(fields[1][:6])
    content, rest = take_apart(unpacked(magic, codec, fields[1]), True)
    assert not rest
    return Entry(magic, offset, attributes, times, tuple(content))


def _batch(data: bytes, offset: int) -> Entry:
    (epoch,) = struct.unpack_from(">i", data, 12)
    (crc,) = struct.unpack_from(">I", data, 17)
    assert crc == crc32c(data[21:]), f"the batch with offset {offset} has a wrong checksum"
    fields = struct.unpack_from(">hiqqqhii", data, 21)
    attributes, last_delta, first_time, max_time, producer, producer_epoch, sequence, count = fields
    codec = attributes & 7
    records = unpacked(2, codec, data[61:]) if codec else data[61:]
    rest = (epoch, last_delta, producer, producer_epoch, sequence, count, records)
    return Entry(2, offset, attributes, (first_time, max_time), rest)
