"""The pages of formats v0 and v1 match old clients and the code."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from legacy_samples import read_set

from record_builders import build_message_set
from tidemill.records import legacy_formats
from tidemill.records.legacy_formats import Entry, parse_entry, unpack_entry
from tidemill.records.message_set import with_offsets

with warnings.catch_warnings():
    # kafka-python uses functions that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.legacy_records import LegacyRecordBatchBuilder

ROOT = Path(__file__).parents[2]
PAGES = {magic: (ROOT / f"docs/formats/message-v{magic}.md").read_text() for magic in (0, 1)}
RECORDED = ROOT / "tests/interchange/recorded/zookeeper/data"
"""Written by Apache Kafka 3.9.2: eight records in each codec."""
TIME = 1524709879130
RECORDS = [(TIME, b"key", b"value"), (TIME + 5, None, b"value")]
LZ4, SNAPPY = 3, 2
CODECS = ("none", "gzip", "snappy", "lz4")


def rows(magic: int, number: int) -> list[tuple[bytes, str]]:
    """The lines of an example: bytes and description."""
    block = PAGES[magic].split("```")[1 + 2 * number]
    found = []
    for line in block.strip().splitlines():
        data, _, text = re.sub(r"\s{2,}", "  ", line).partition("  ")
        found.append((bytes.fromhex(data), text))
    return found


def example(magic: int, number: int) -> bytes:
    return b"".join(data for data, _ in rows(magic, number))


def entries(data: bytes) -> list[Entry]:
    found, position = [], 0
    while position < len(data):
        found.append(parse_entry(data, position, len(data)))
        position += int(found[-1].size)
    return found


def by_kafka_python(magic: int, codec: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 16)
    for number, (time_ms, key, value) in enumerate(RECORDS):
        builder.append(number, time_ms if magic else None, key, value)
    return bytes(builder.build())


def expected(magic: int) -> list[tuple[int, int, int, bytes | None, bytes | None]]:
    times = [time_ms if magic else -1 for time_ms, _, _ in RECORDS]
    kind = 0 if magic else -1
    return [(at, times[at], kind, key, value) for at, (_, key, value) in enumerate(RECORDS)]


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_client_and_the_code_write_the_set_of_the_page(magic: int) -> None:
    data = example(magic, 0)
    assert data == by_kafka_python(magic, 0)
    assert data == build_message_set(magic, RECORDS)
    assert read_set(data) == expected(magic)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_values_of_the_page_match_the_bytes(magic: int) -> None:
    for number in (0, 1):
        for data, text in rows(magic, number):
            word, *rest = text.split() or [""]
            if word in ("offset", "size", "checksum", "timestamp") and rest and rest[0].isdigit():
                assert int.from_bytes(data, "big") == int(rest[0]), text
            if word in ("key", "value") and rest[0] == "length":
                assert int.from_bytes(data[:4], "big", signed=True) == int(rest[1].rstrip(",:")), text


@pytest.mark.parametrize(("magic", "codec"), [(0, LZ4), (1, SNAPPY)])
def test_the_wrapper_contains_the_set(magic: int, codec: int) -> None:
    (wrapper,) = entries(example(magic, 1))
    assert (wrapper.codec, wrapper.offset, wrapper.key) == (codec, 0, None)
    assert unpack_entry(wrapper, 1 << 20) == example(magic, 0)


@pytest.mark.parametrize(("magic", "codec"), [(0, LZ4), (1, SNAPPY), (0, 1), (1, 1), (0, SNAPPY), (1, LZ4)])
def test_reads_wrappers_of_an_old_client(magic: int, codec: int) -> None:
    (wrapper,) = entries(by_kafka_python(magic, codec))
    assert unpack_entry(wrapper, 1 << 20) == example(magic, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_positions_of_the_table_match_the_code(magic: int) -> None:
    found = {
        name.strip(): int(position)
        for position, name in re.findall(r"^\| (\d+) \|[^|]*\| ([a-z ]+) \|", PAGES[magic], re.MULTILINE)
    }
    names = {
        "size": legacy_formats.SIZE,
        "checksum": legacy_formats.CRC,
        "magic": legacy_formats.MAGIC,
        "attributes": legacy_formats.ATTRIBUTES,
    }
    names["key length"] = legacy_formats.KEY_LENGTH_V1 if magic else legacy_formats.KEY_LENGTH_V0
    if magic:
        names["timestamp"] = legacy_formats.TIMESTAMP
    assert names.items() <= found.items()
    assert found["offset"] == 0
    assert found["key"] == names["key length"] + 4


@pytest.mark.parametrize("magic", [0, 1])
def test_reads_files_of_apache_kafka(magic: int) -> None:
    data = (RECORDED / f"old{magic}-0" / "00000000000000000000.log").read_bytes()
    values = [f"{codec} {number} ".encode() * 4 for codec in CODECS for number in range(8)]
    keys = [None if number % 4 == 3 else b"k%d" % (number % 3) for _ in CODECS for number in range(8)]
    found = read_set(data)
    assert [one[0] for one in found] == list(range(32))
    assert [one[1:3] for one in found] == [
        (1_700_000_000_000 + 1000 * (at % 8), 0) if magic else (-1, -1) for at in range(32)
    ]
    assert [one[3] for one in found] == keys
    assert [one[4] for one in found] == [None if at % 8 == 5 else value for at, value in enumerate(values)]
    assert [int(one.codec) for one in entries(data)] == [0] * 8 + [1, 2, 3]


@pytest.mark.parametrize("magic", [0, 1])
def test_writes_the_same_uncompressed_bytes_as_apache_kafka(magic: int) -> None:
    data = (RECORDED / f"old{magic}-0" / "00000000000000000000.log").read_bytes()
    outside = [one for one in entries(data) if one.codec == 0]
    end = int(outside[-1].position + outside[-1].size)
    records = [(time_ms, key, value) for _, time_ms, _, key, value in read_set(data[:end])]
    assert build_message_set(magic, records) == data[:end]
    for wrapper in entries(data)[8:]:
        inside = unpack_entry(wrapper, 1 << 20)
        first = int(wrapper.offset) - 7 if magic == 0 else 0
        packed = [(int(one.timestamp), one.key, one.value) for one in entries(inside)]
        assert build_message_set(magic, packed, base_offset=first) == inside
        assert with_offsets(inside, first) == inside
