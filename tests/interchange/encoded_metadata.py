"""Encodes records of KRaft's metadata, as a controller of Apache Kafka does."""

from __future__ import annotations

from tidemill.interchange.metadata_records import FRAME_VERSION, RECORDS
from tidemill.wire.codec import encode
from tidemill.wire.primitives import encode_uvarint
from tidemill.wire.schema import Struct

NUMBERS = {record: number for number, record in RECORDS.items()}


def encode_metadata(record: Struct, version: int) -> bytes:
    """Encodes a record with its frame version, type and version."""
    head = encode_uvarint(FRAME_VERSION) + encode_uvarint(NUMBERS[type(record)]) + encode_uvarint(version)
    return bytes(head) + encode(record, version)
