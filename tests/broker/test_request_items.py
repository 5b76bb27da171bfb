"""The exact limits for the topics and partitions of a request."""

from __future__ import annotations

import struct

import pytest

from tidemill.broker.produce_codec import decode_topic
from tidemill.model.errors import ProtocolError
from tidemill.wire.fetch_layout import FetchRequestReader
from tidemill.wire.hot_path_codec import ITEMS_MAX

VERSION = 11
"""Without flexible fields: counts are int32."""
NAME = struct.pack(">h", 1) + b"t"
HEAD = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1)
FETCHED = struct.pack(">iiqqi", 0, -1, 0, -1, 1 << 20)
NO_RECORDS = struct.pack(">ii", 0, -1)


def decoder_of(topics: bytes, items_max: int) -> FetchRequestReader:
    """Returns a decoder of a fetch with a limit of ``items_max`` items."""
    data = HEAD + topics + struct.pack(">h", 0)
    decoder = FetchRequestReader(VERSION, 1, data, 0, len(data))
    decoder.items_left += items_max - ITEMS_MAX
    return decoder


def run(decoder: FetchRequestReader, at_once: int) -> None:
    """Decodes all items, ``at_once`` at a time."""
    while not decoder.run(at_once):
        pass


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_the_partitions_of_all_topics_of_a_fetch_are_limited(at_once: int) -> None:
    two = NAME + struct.pack(">i", 2) + 2 * FETCHED
    topics = struct.pack(">i", 2) + 2 * two + struct.pack(">i", 0)
    decoder = decoder_of(topics, 6)
    run(decoder, at_once)
    assert [int(part.index) for part in decoder.partitions] == [0, 0, 0, 0]
    decoder = decoder_of(topics, 5)
    with pytest.raises(ProtocolError, match="2 more topics or partitions"):
        run(decoder, at_once)
    assert len(decoder.partitions) == 2


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_the_forgotten_partitions_of_all_topics_of_a_fetch_are_limited(at_once: int) -> None:
    two = NAME + struct.pack(">i", 2) + struct.pack(">ii", 0, 1)
    topics = struct.pack(">ii", 0, 2) + 2 * two
    decoder = decoder_of(topics, 6)
    run(decoder, at_once)
    assert [index for _, index in decoder.forgotten] == [0, 1, 0, 1]
    decoder = decoder_of(topics, 5)
    with pytest.raises(ProtocolError, match="2 more topics or partitions"):
        run(decoder, at_once)


def test_a_fetch_with_too_many_topics_is_refused_before_they_are_decoded() -> None:
    data = HEAD + struct.pack(">i", ITEMS_MAX + 1) + bytes(ITEMS_MAX + 1)
    with pytest.raises(ProtocolError, match="more topics or partitions"):
        FetchRequestReader(VERSION, 1, data, 0, len(data))


@pytest.mark.parametrize("count", [1, 3])
def test_the_partitions_of_a_produce_topic_are_limited_to_the_remaining_number(count: int) -> None:
    data = NAME + struct.pack(">i", count) + count * NO_RECORDS
    version = 8
    topic, position = decode_topic(data, 0, len(data), version, count)
    assert (position, topic.key, len(topic.partitions)) == (len(data), b"t", count)
    with pytest.raises(ProtocolError, match=f"{count} more topics or partitions"):
        decode_topic(data, 0, len(data), version, count - 1)
