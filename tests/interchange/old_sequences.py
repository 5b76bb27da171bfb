"""Requests of old and new producers, for Apache Kafka and the broker under test alike."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from old_wire import GZIP, LZ4, SNAPPY, ZSTD, entry, wrapper

from record_builders import build_batch

NONE = 0
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
APPEND_TIME = 8


class Sent(NamedTuple):
    """A Produce request."""

    name: str
    version: int
    records: bytes


def messages(magic: int, now_ms: int, offsets: tuple[int, ...] = (0, 1, 2, 3)) -> bytes:
    """Returns messages of every kind, with unordered timestamps."""
    shapes = ((b"key", b"value", 5), (None, b"no key", 9), (b"gone", None, 7), (b"", b"", 7))
    return b"".join(
        entry(magic, key, value, offset=offset, timestamp=now_ms + more)
        for offset, (key, value, more) in zip(offsets, shapes, strict=True)
    )


def batch(codec: int, now_ms: int, headers: bool = False) -> bytes:
    """Returns the same messages as a batch of v2."""
    more = [("trace", b"1"), ("none", None)] if headers else []
    shapes = ((b"key", b"value", 5), (None, b"no key", 9), (b"gone", None, 7), (b"", b"", 7))
    return build_batch([(now_ms + time, key, value, more) for key, value, time in shapes], codec)


def plain(now_ms: int) -> Iterator[Sent]:
    """Yields the requests of correct producers."""
    for magic in (0, 1):
        for version in (0, 1, 2):
            yield Sent(f"v{magic} in {version}", version, messages(magic, now_ms))
        for codec in ("gzip", "snappy", "lz4"):
            number = CODECS[codec]
            inside = messages(magic, now_ms)
            yield Sent(f"v{magic} {codec}", 2, wrapper(magic, number, inside, offset=3, timestamp=now_ms + 9))
            yield Sent(f"v{magic} {codec} at 0", 2, wrapper(magic, number, inside, timestamp=now_ms + 9))
            unknown = messages(magic, now_ms, (-1, -1, -1, -1))
            for offset in (-1, 3):
                yield Sent(
                    f"v{magic} {codec} at {offset}, -1 inside",
                    2,
                    wrapper(magic, number, unknown, offset=offset, timestamp=now_ms + 9),
                )
            apart = messages(magic, now_ms, (10, 12, 15, 30))
            yield Sent(
                f"v{magic} {codec} with gaps",
                2,
                wrapper(magic, number, apart, offset=30, timestamp=now_ms + 9),
            )
        raw = wrapper(magic, SNAPPY, messages(magic, now_ms), offset=3, timestamp=now_ms, raw_snappy=True)
        yield Sent(f"v{magic} raw snappy", 2, raw)
        yield Sent(f"v{magic} same offsets", 2, messages(magic, now_ms, (7, 7, 7, 7)))
    for codec, number in CODECS.items():
        for version in (3, 7, 8):
            if codec != "zstd" or version >= 7:
                yield Sent(f"v2 {codec} in {version}", version, batch(number, now_ms))
    yield Sent("v2 in 2", 2, batch(NONE, now_ms))
    yield Sent("v2 gzip in 2", 2, batch(GZIP, now_ms))
    yield Sent("v2 headers", 8, batch(NONE, now_ms, True))
    yield Sent("v2 headers gzip", 8, batch(GZIP, now_ms, True))


def odd(now_ms: int) -> Iterator[Sent]:
    """Yields incorrect and unusual requests."""
    for magic in (0, 1):
        one = entry(magic, b"k", b"v", timestamp=now_ms)
        set_ = messages(magic, now_ms)
        good = wrapper(magic, GZIP, set_, offset=3, timestamp=now_ms + 9)
        cases = [
            ("wrong checksum", 2, entry(magic, b"k", b"v", timestamp=now_ms, crc=1)),
            ("second checksum wrong", 2, one + entry(magic, b"k", b"v", offset=1, crc=1)),
            ("wrong checksum inside", 2, wrapper(magic, GZIP, entry(magic, b"k", b"v", crc=1))),
            ("two wrappers", 2, good + good),
            ("message and wrapper", 2, one + good),
            ("wrapper and message", 2, good + one),
            ("wrapper in a wrapper", 2, wrapper(magic, GZIP, wrapper(magic, GZIP, set_))),
            ("other format inside", 2, wrapper(magic, GZIP, messages(1 - magic, now_ms))),
            ("other format beside", 2, one + entry(1 - magic, b"k", b"v", timestamp=now_ms)),
            ("batch beside", 2, one + batch(NONE, now_ms)),
            ("empty wrapper", 2, wrapper(magic, GZIP, b"")),
            ("wrapper without value", 2, entry(magic, None, None, attributes=GZIP)),
            ("wrapper of noise", 2, entry(magic, None, b"noise" * 9, attributes=GZIP)),
            ("wrapper of no codec", 2, entry(magic, None, b"noise" * 9, attributes=5)),
            ("wrapper of zstd", 2, wrapper(magic, ZSTD, set_, offset=3)),
            ("cut", 2, one[:-1]),
            ("one and one cut", 2, one + one[:-1]),
            ("in 3", 3, one),
            ("too small", 2, struct.pack(">qi", 0, 3) + b"abc"),
            ("offset inside too large", 2, wrapper(magic, GZIP, set_, offset=1)),
            ("offset inside larger than -1", 2, wrapper(magic, GZIP, set_, offset=-1)),
        ]
        for name, version, records in cases:
            yield Sent(f"v{magic} {name}", version, records)
    yield from [
        Sent("v1 append time said", 2, entry(1, b"k", b"v", timestamp=now_ms, attributes=APPEND_TIME)),
        Sent(
            "v1 append time of a wrapper",
            2,
            wrapper(1, GZIP, messages(1, now_ms), offset=3, timestamp=now_ms, attributes=APPEND_TIME),
        ),
        Sent("v1 time below -1", 2, entry(1, b"k", b"v", timestamp=-5)),
        Sent("v1 no time", 2, entry(1, b"k", b"v")),
        Sent("v1 far future", 2, entry(1, b"k", b"v", timestamp=now_ms + 90_000_000)),
        Sent(
            "v1 far future inside", 2, wrapper(1, GZIP, entry(1, b"k", b"v", timestamp=now_ms + 90_000_000))
        ),
        Sent("magic 3", 2, entry(3, b"k", b"v")),
        Sent("nothing", 2, b""),
        Sent("nothing in 3", 3, b""),
        Sent("v2 two batches in 3", 3, batch(NONE, now_ms) * 2),
        Sent("v2 two batches in 2", 2, batch(NONE, now_ms) * 2),
        Sent("v2 zstd in 3", 3, batch(ZSTD, now_ms)),
        Sent(
            "v2 idempotent",
            8,
            build_batch([(now_ms, b"k", b"v", [])], producer_id=7, producer_epoch=0, base_sequence=0),
        ),
        Sent("v2 cut", 3, batch(NONE, now_ms)[:-1]),
        Sent("v2 wrong checksum", 3, batch(NONE, now_ms)[:-1] + b"\x02"),
        Sent(
            "v2 far future", 8, build_batch([(now_ms, b"k", b"v", []), (now_ms + 90_000_000, b"k", b"v", [])])
        ),
    ]


def keyless(now_ms: int) -> Iterator[Sent]:
    """Yields requests for a compacted topic: a batch with a record without a key is not stored."""
    for codec in (NONE, GZIP):
        records = [(now_ms, b"k", b"v", []), (now_ms, None, b"v", []), (now_ms, b"k", None, [])]
        for version in (3, 8):
            yield Sent(f"v2 {codec} in {version}", version, build_batch(records, codec))
        yield Sent(f"v2 {codec}, all", 8, build_batch([(now_ms, None, b"v", [])] * 7, codec))
        yield Sent(f"v2 {codec}, none", 8, build_batch([(now_ms, b"k", b"v", [])] * 7, codec))
    for magic in (0, 1):
        inside = entry(magic, b"k", b"v") + entry(magic, None, b"v", offset=1)
        yield Sent(f"v{magic}", 2, inside)
        yield Sent(f"v{magic} gzip", 2, wrapper(magic, GZIP, inside, offset=1))
        yield Sent(f"v{magic} in order", 2, entry(magic, b"k", b"v"))
