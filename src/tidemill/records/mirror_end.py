"""The end of a mirror: a control record after which no batch comes from another cluster. Compiled.

A control batch without a producer has one record. Clients skip it, because they do not know its type.

=====  =======  =======================================================
       type     field
=====  =======  =======================================================
key    int16    version, 0
       int16    control record type, 19,785
value  int16    version, 0
       16 byte  id of the topic that was a mirror
=====  =======  =======================================================

Apache Kafka uses the types 0 to 6. Later versions may add bytes to the value, which readers ignore. The topic
id distinguishes the end of a mirror from a copy of it, in a mirror of that topic.
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import i64

from tidemill.model.errors import KafkaError
from tidemill.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Batch
from tidemill.records.builder import BatchBuilder
from tidemill.records.end_transaction_marker import MARKER_BATCH_BYTES_MAX
from tidemill.records.record_reader import read_records

MIRROR_END: Final = 19785
TOPIC_ID: Final = 2
_KEY: Final = struct.pack(">hh", 0, MIRROR_END)
_VERSION: Final = struct.pack(">h", 0)
_VALUE_BYTES_MIN: Final = TOPIC_ID + 16


def build_mirror_end(topic_id: bytes, timestamp: i64) -> bytes:
    """Builds the control batch that ends the mirror ``topic_id``."""
    builder = BatchBuilder()
    builder.append(timestamp, _KEY, _VERSION + topic_id, None)
    return builder.build(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, False, -1, 0, True)


def ended_mirror(batch: Batch) -> bytes | None:
    """Returns the id of the topic if a control batch is the end of a mirror; None also if it is malformed."""
    if batch.producer_id >= 0 or batch.size > MARKER_BATCH_BYTES_MAX:
        return None
    try:
        records = read_records(batch, MARKER_BATCH_BYTES_MAX)
    except KafkaError:
        return None
    if not records or records[0].key != _KEY:
        return None
    value = records[0].value
    return None if value is None or len(value) < _VALUE_BYTES_MIN else value[TOPIC_ID:_VALUE_BYTES_MIN]
