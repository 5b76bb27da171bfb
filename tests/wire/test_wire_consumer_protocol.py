"""The topics of a consumer's subscription, as the group coordinator reads them."""

from __future__ import annotations

import pytest

from tidemill.model.errors import ProtocolError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.wire.consumer_protocol_codec import subscribed_topics_in_slices


@pytest.mark.parametrize(
    ("data", "topics"),
    [
        ("0000 00000002 0001 61 0002 6263 ffffffff", ["a", "bc"]),
        ("0003 00000000 ffffffff", []),
        ("0003 00000001 0001 61 00000002 0102 7fffffff", ["a"]),
        ("0009 00000001 0001 61 ffffffff 00", ["a"]),
        ("0000 000186a0" + 100_000 * "0000" + "ffffffff", [""] * 100_000),
    ],
    ids=["version-0", "no-topics", "damage-after-user-data", "later-version", "as-many-as-allowed"],
)
def test_the_topics_of_a_subscription_of_any_version_are_read(data: str, topics: list[str]) -> None:
    assert run_at_once(subscribed_topics_in_slices(bytes.fromhex(data))) == topics


@pytest.mark.parametrize(
    "data",
    [
        "",
        "00",
        "0000 7fffffff",
        "0000 ffffffff",
        "0000 000186a1" + 100_001 * "0000" + "ffffffff",
        "0000 00000001 0009 61",
        "0000 00000001 ffff",
        "0000 00000001 0001 ff ffffffff",
        "0003 00000000",
    ],
)
def test_a_malformed_subscription_raises(data: str) -> None:
    with pytest.raises(ProtocolError):
        run_at_once(subscribed_topics_in_slices(bytes.fromhex(data)))
