"""How many topics and partitions a request may name, to the item."""

from __future__ import annotations

import struct

import pytest

from tidemill.broker.fetch_codec import decode_forgotten, decode_topic
from tidemill.broker.produce_codec import ProduceFields, ProduceTopic, decode_parts
from tidemill.model.errors import ProtocolError

VERSION = 11
"""Without flexible fields: counts are int32."""
NAME = struct.pack(">h", 1) + b"t"
FETCHED = struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 20)
NO_RECORDS = struct.pack(">ii", 0, -1)


def test_what_several_topics_of_a_fetch_name_counts_together() -> None:
    two = NAME + struct.pack(">i", 2) + 2 * FETCHED
    parts: list = []
    for _ in range(2):
        assert decode_topic(parts, two, 0, len(two), VERSION, 5) == len(two)
    assert len(parts) == 4
    with pytest.raises(ProtocolError, match="2 more topics or partitions"):
        decode_topic(parts, two, 0, len(two), VERSION, 5)
    one = NAME + struct.pack(">i", 1) + FETCHED
    assert decode_topic(parts, one, 0, len(one), VERSION, 5) == len(one)
    with pytest.raises(ProtocolError, match="1 more topics or partitions"):
        decode_topic(parts, one, 0, len(one), VERSION, 5)
    assert len(parts) == 5


def test_what_several_topics_of_a_fetch_forget_counts_together() -> None:
    two = NAME + struct.pack(">i", 2) + struct.pack(">ii", 0, 1)
    parts: list = []
    for _ in range(2):
        assert decode_forgotten(parts, two, 0, len(two), VERSION, 5) == len(two)
    assert [int(part.index) for part in parts] == [0, 1, 0, 1]
    with pytest.raises(ProtocolError, match="2 more topics or partitions"):
        decode_forgotten(parts, two, 0, len(two), VERSION, 5)
    one = NAME + struct.pack(">ii", 1, 7)
    assert decode_forgotten(parts, one, 0, len(one), VERSION, 5) == len(one)
    with pytest.raises(ProtocolError, match="1 more topics or partitions"):
        decode_forgotten(parts, one, 0, len(one), VERSION, 5)


@pytest.mark.parametrize("count", [1, 3])
def test_a_topic_of_a_produce_names_as_many_as_are_left(count: int) -> None:
    data = struct.pack(">i", count) + count * NO_RECORDS
    request, topic = ProduceFields(VERSION, 1), ProduceTopic(b"t")
    assert decode_parts(request, topic, data, 0, len(data), False, count) == len(data)
    assert len(topic.parts) == count
    with pytest.raises(ProtocolError, match=f"{count} more topics or partitions"):
        decode_parts(request, ProduceTopic(b"t"), data, 0, len(data), False, count - 1)
