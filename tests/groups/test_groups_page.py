"""The example of the format page is encoded and decoded."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.groups.offset_records import CommittedOffset, OffsetRecord, decode_record

PAGE = Path(__file__).parents[2] / "docs/formats/consumer-offsets.md"
HEX = re.compile(r"[0-9a-f]+( [0-9a-f]+)*(?=  |$)")


def test_the_example_of_the_page_is_a_committed_offset() -> None:
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    key, value = (
        bytes.fromhex("".join(match.group() for line in block.splitlines() if (match := HEX.match(line))))
        for block in blocks
    )
    offset = CommittedOffset(42, 5, "md", 1_700_000_000_000, topic_id=bytes(range(16)))
    record = OffsetRecord("grp", "topic", 7, offset)
    assert decode_record(key, value) == record
    assert (record.key_bytes(), record.value_bytes()) == (key, value)
