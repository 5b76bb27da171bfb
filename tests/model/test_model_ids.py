"""Ids in Kafka's text format."""

from __future__ import annotations

import pytest

from tidemill.model.ids import decode_id, encode_id, new_id, topic_id_text
from tidemill.model.types import ZERO_ID

ID = bytes.fromhex("8d6b13f5c2e14f0bb9fd2f2f8d31a3e4")


def test_ids_are_22_characters_of_url_safe_base64() -> None:
    assert encode_id(bytes(16)) == "A" * 22
    assert decode_id(encode_id(ID)) == ID
    assert encode_id(bytes.fromhex("fbff000102030405060708090a0b0c0d")) == "-_8AAQIDBAUGBwgJCgsMDQ"
    for bad in ("", "A" * 21, "A" * 24, "A" * 22 + "==", "=" * 22, "A" * 21 + "!"):
        with pytest.raises(ValueError):
            decode_id(bad)
    with pytest.raises(ValueError):
        encode_id(b"short")


def test_new_ids_differ_and_do_not_look_like_options() -> None:
    ids = {new_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not any(encode_id(one).startswith("-") for one in ids)


def test_a_topic_without_an_id_has_no_text() -> None:
    assert topic_id_text(ID) == encode_id(ID)
    assert [topic_id_text(none) for none in (None, b"", ZERO_ID)] == [None] * 3
