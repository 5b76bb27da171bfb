"""The format page matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tidemill
from default_limits import read_records
from record_builders import build_batch
from tidemill.records import batch as layout
from tidemill.records.batch import check_crc, parse_batch

MODULE = Path(tidemill.__file__).parent / "records/batch.py"
PAGE = Path(__file__).parents[2] / "docs/formats/record-batch.md"

FIELDS = {
    "base offset": layout.BASE_OFFSET,
    "length": layout.LENGTH,
    "partition leader epoch": layout.LEADER_EPOCH,
    "magic": layout.MAGIC,
    "checksum": layout.CRC,
    "attributes": layout.ATTRIBUTES,
    "last offset delta": layout.LAST_OFFSET_DELTA,
    "base timestamp": layout.BASE_TIMESTAMP,
    "max timestamp": layout.MAX_TIMESTAMP,
    "producer id": layout.PRODUCER_ID,
    "producer epoch": layout.PRODUCER_EPOCH,
    "base sequence": layout.BASE_SEQUENCE,
    "record count": layout.RECORD_COUNT,
    "records": layout.RECORDS,
}


def example() -> bytes:
    block = PAGE.read_text().split("```")[1]
    return b"".join(bytes.fromhex(re.split(r"\s{2,}", line)[0]) for line in block.strip().splitlines())


def test_builds_and_reads_the_example() -> None:
    data = example()
    assert data == build_batch([(1524709879130, b"key", b"value", None)], leader_epoch=0)
    batch = parse_batch(data, 0, len(data))
    check_crc(batch)
    (record,) = read_records(batch)
    assert (record.offset, record.timestamp, record.key, record.value) == (0, 1524709879130, b"key", b"value")


@pytest.mark.parametrize(
    "source",
    [PAGE.read_text().partition("## Record")[0], MODULE.read_text().partition("from __future__")[0]],
    ids=["page", "module"],
)
def test_the_positions_of_the_table_match_the_code(source: str) -> None:
    rows = re.findall(r"^\|? ?(\d+) +\|? ?(?:\w+|\.\.\.)? +\|? ?((?:[a-z]+ )*[a-z]+)\b", source, re.MULTILINE)
    found = {name.strip(): int(position) for position, name in rows}
    for name, position in FIELDS.items():
        assert any(key.startswith(name) and found[key] == position for key in found), (name, position, found)
