"""The texts of ``tidemill pipeline`` that need no Spark."""

from __future__ import annotations

import pytest

from tidemill.cli.pipeline import _outcome
from tidemill.pipeline.sink_options import parse_sink_options

SINK = {"kafka.bootstrap.servers": "h:1", "topic": "flights"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "published 7 messages to flights"),
        ({"delivery": "at-least-once"}, "published 7 messages to flights"),
        (
            {"delivery": "exactly-once", "writeId": "2013", "batchId": "4"},
            "flights has the 7 messages of writeId=2013, batchId=4, each once",
        ),
        (
            {"DELIVERY": " Exactly-Once ", "WRITEID": "2013", "batchid": "+4"},
            "flights has the 7 messages of writeId=2013, batchId=4, each once",
        ),
    ],
)
def test_the_outcome_of_a_publication_says_what_the_topic_has(options: dict[str, str], text: str) -> None:
    """A publication with the ids of an earlier one adds nothing: its messages were not published now."""
    delivery = parse_sink_options({**SINK, **options}, streaming=False).exactly_once
    assert _outcome(delivery, "7 messages", "flights") == text
