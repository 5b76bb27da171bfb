"""Ids of topics, clusters and data directories: UUIDs, as text in URL-safe base64 without padding.

Source: Apache Kafka, ``Uuid.java``.
"""

from __future__ import annotations

import base64
import binascii
import os

from tidemill.model.types import ZERO_ID


def new_id() -> bytes:
    """Returns a random id (UUID version 4), never zero, whose text does not begin with a dash."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 0x3E:  # A leading "-" would look like an option on a command line.
            return bytes(raw)


def encode_id(identifier: bytes) -> str:
    """Returns the text of an id of 16 bytes."""
    if len(identifier) != 16:
        raise ValueError(f"an id has 16 bytes, this one {len(identifier)}")
    return base64.urlsafe_b64encode(identifier)[:22].decode()


def decode_id(text: str) -> bytes:
    """Returns the 16 bytes of an id; raises ValueError for anything else."""
    try:
        identifier = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        identifier = b""
    if len(identifier) != 16 or len(text) != 22:
        raise ValueError(f"{text!r} is not an id: 22 characters of URL-safe base64 are expected")
    return identifier


def topic_id_text(topic_id: bytes | None) -> str | None:
    """Returns the text of a topic id; None if the topic has no id, as for brokers before Kafka 2.8."""
    return encode_id(topic_id) if topic_id and topic_id != ZERO_ID else None
