"""Prints the results of the records layer for a corpus, one line each; a test runs it in each mode.

The corpus is the same in every run: valid batches, and the same with faults and a right checksum. With
``--without-librt`` librt cannot be imported.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import struct
import sys
from collections.abc import Callable, Iterator

NOW_MS = 1_700_000_000_000


class Absent:
    """Makes imports of librt fail with the error of its own ABI check."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "librt":
            raise ValueError("ABI version conflict")


if "--without-librt" in sys.argv:
    sys.meta_path.insert(0, Absent())  # type: ignore[arg-type]

from default_limits import RecordLimits, decode_columns, iter_records  # noqa: E402
from record_builders import build_batch, parse_batches  # noqa: E402
from tidemill import _build_mode  # noqa: E402
from tidemill.model.errors import KafkaError  # noqa: E402
from tidemill.records.batch import parse_batch  # noqa: E402
from tidemill.records.batch_validation import begin_validation, finish_validation, is_costly  # noqa: E402
from tidemill.records.builder import build_end_marker, stamp_append_time  # noqa: E402
from tidemill.records.checksum import crc32c  # noqa: E402


def good_batches() -> list[bytes]:
    chosen = random.Random(7)
    batches = [build_end_marker(True, NOW_MS, 5, 1, 2)]
    for codec in range(5):
        for count in (1, 3, 40):
            records = [
                (
                    NOW_MS + chosen.randrange(-(10**6), 10**6),
                    None if i % 3 else chosen.randbytes(chosen.randrange(80)),
                    None if i % 5 == 1 else chosen.randbytes(chosen.randrange(200)),
                    [("h", b"x"), ("ä", None)] if i % 4 == 0 else None,
                )
                for i in range(count)
            ]
            batches.append(build_batch(records, codec=codec, base_offset=chosen.randrange(1 << 40)))
    return batches


def corpus() -> Iterator[bytes]:
    chosen = random.Random(11)
    good = good_batches()
    yield from good
    yield from (a + b for a, b in itertools.pairwise(good))
    for _ in range(1500):
        data = bytearray(chosen.choice(good))
        for _ in range(chosen.randrange(1, 4)):
            place = chosen.randrange(21, len(data))
            data[place] = chosen.choice((0, 1, 0x7F, 0x80, 0xFF, chosen.randrange(256)))
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        yield bytes(data)
    for _ in range(500):
        data = bytearray(chosen.choice(good))
        data[chosen.randrange(21)] = chosen.randrange(256)
        yield bytes(data)
    for _ in range(300):
        data = chosen.choice(good)[:61] + bytes(
            chosen.choices((0, 1, 0x80, 0xFF, 2, 14), k=chosen.randrange(60))
        )
        shell = bytearray(data)
        struct.pack_into(">i", shell, 8, len(shell) - 12)
        struct.pack_into(">q", shell, 27, chosen.choice((0, -1, 2**63 - 1, -(2**63), NOW_MS)))
        struct.pack_into(">i", shell, 57, chosen.choice((0, 1, 2, 2**31 - 1)))
        struct.pack_into(">I", shell, 17, crc32c(bytes(shell[21:])))
        yield bytes(shell)


def validated(data: bytes) -> str:
    limits = RecordLimits(key_required=len(data) % 2 == 0, unpacked_bytes_max=20_000)
    batch = parse_batch(data, 0, len(data))
    walk = begin_validation(batch, limits, NOW_MS)
    while not walk.step(7):
        pass
    stored = finish_validation(batch, walk, limits)
    return f"{is_costly(batch)} {stored.to_bytes().hex()} {stamp_append_time(batch, NOW_MS).hex()}"


def headers(data: bytes) -> str:
    names = (
        "crc leader_epoch base_timestamp max_timestamp producer_id producer_epoch base_sequence "
        "last_sequence next_offset codec append_time is_control"
    )
    return " ".join(
        f"{batch!r} {[getattr(batch, name) for name in names.split()]}"
        for batch in parse_batches(data, 0, len(data))
    )


def columns(data: bytes) -> str:
    found = decode_columns(data, want_headers=True, check_crcs=False, bytes_max=100)
    count = found.count
    header_fields = found.headers
    if header_fields is None:
        raise ValueError("headers were asked for")
    parts = [
        list(found.keys.edges)[: 2 * count],
        list(found.keys.nulls)[:count],
        list(found.values.edges)[: 2 * count],
        list(found.values.nulls)[:count],
        list(found.offsets)[:count],
        list(found.timestamps)[:count],
        found.timestamp_types,
        list(header_fields.begins),
        list(header_fields.key_edges),
        list(header_fields.value_edges),
        list(header_fields.value_nulls),
        [found.next_offset, found.next_position, found.unfinished],
    ]
    return repr(parts)


def records(data: bytes) -> str:
    return " ".join(repr(record) for record in iter_records(data, check_crcs=False))


def main() -> None:
    print("compiled" if _build_mode.compiled else f"plain: {_build_mode.reason}")
    ways: list[Callable[[bytes], str]] = [headers, validated, records, columns]
    for data in corpus():
        for way in ways:
            try:
                answer = hashlib.sha256(way(data).encode()).hexdigest()[:16]
            except KafkaError as error:
                answer = f"{type(error).__name__} {error.code} {error} {getattr(error, 'record_errors', '')}"
            print(way.__name__, answer)


if __name__ == "__main__":
    main()
