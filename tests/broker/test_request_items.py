"""How many topics and partitions a request may name, to the item."""

from __future__ import annotations

import struct

import pytest

from tidemill.broker.fetch_codec import FetchDecoder, FetchFields
from tidemill.broker.produce_codec import ProduceFields, ProduceTopic, decode_parts
from tidemill.model.errors import ProtocolError
from tidemill.wire.fast import ITEMS_MAX

VERSION = 11
"""Without flexible fields: counts are int32."""
NAME = struct.pack(">h", 1) + b"t"
HEAD = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1)
FETCHED = struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 20)
NO_RECORDS = struct.pack(">ii", 0, -1)


def decoder_of(topics: bytes, items_max: int) -> FetchDecoder:
    """Reads a fetch of which ``items_max`` items are left, those being counted that were begun."""
    data = HEAD + topics + struct.pack(">h", 0)
    decoder = FetchDecoder(FetchFields(VERSION, 1), data, 0, len(data))
    decoder.items_left += items_max - ITEMS_MAX
    return decoder


def run(decoder: FetchDecoder, at_once: int) -> None:
    """Reads all, ``at_once`` items at a time."""
    while not decoder.run(at_once):
        pass


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_what_several_topics_of_a_fetch_name_counts_together(at_once: int) -> None:
    two = NAME + struct.pack(">i", 2) + 2 * FETCHED
    topics = struct.pack(">i", 2) + 2 * two + struct.pack(">i", 0)
    decoder = decoder_of(topics, 6)
    run(decoder, at_once)
    assert [int(part.index) for part in decoder.request.parts] == [0, 0, 0, 0]
    decoder = decoder_of(topics, 5)
    with pytest.raises(ProtocolError, match="2 more topics or partitions"):
        run(decoder, at_once)
    assert len(decoder.request.parts) == 2


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_what_several_topics_of_a_fetch_forget_counts_together(at_once: int) -> None:
    two = NAME + struct.pack(">i", 2) + struct.pack(">ii", 0, 1)
    topics = struct.pack(">ii", 0, 2) + 2 * two
    decoder = decoder_of(topics, 6)
    run(decoder, at_once)
    assert [int(part.index) for part in decoder.request.forgotten] == [0, 1, 0, 1]
    decoder = decoder_of(topics, 5)
    with pytest.raises(ProtocolError, match="2 more topics or partitions"):
        run(decoder, at_once)


def test_a_fetch_that_names_more_topics_than_are_allowed_is_refused_before_they_are_read() -> None:
    data = HEAD + struct.pack(">i", ITEMS_MAX + 1) + bytes(ITEMS_MAX + 1)
    with pytest.raises(ProtocolError, match="more topics or partitions"):
        FetchDecoder(FetchFields(VERSION, 1), data, 0, len(data))


@pytest.mark.parametrize("count", [1, 3])
def test_a_topic_of_a_produce_names_as_many_as_are_left(count: int) -> None:
    data = struct.pack(">i", count) + count * NO_RECORDS
    request, topic = ProduceFields(VERSION, 1), ProduceTopic(b"t")
    assert decode_parts(request, topic, data, 0, len(data), False, count) == len(data)
    assert len(topic.parts) == count
    with pytest.raises(ProtocolError, match=f"{count} more topics or partitions"):
        decode_parts(request, ProduceTopic(b"t"), data, 0, len(data), False, count - 1)
