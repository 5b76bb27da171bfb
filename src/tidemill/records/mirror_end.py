"""The end of a mirror: a control record after which no batch comes from another cluster.

A control batch without a producer has one record. Clients skip it, because they do not know its type.

=====  =======  ==============================
       type     field
=====  =======  ==============================
key    int16    version, 0
       int16    control record type, 19,785
value  int16    version, 0
=====  =======  ==============================

Apache Kafka uses the types 0 to 6.
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import i64

from tidemill.model.errors import KafkaError
from tidemill.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Batch
from tidemill.records.builder import BatchBuilder
from tidemill.records.end_transaction_marker import MARKER_BATCH_BYTES_MAX, read_control_record

MIRROR_END: Final = 19785
_KEY: Final = struct.pack(">hh", 0, MIRROR_END)
_VALUE: Final = struct.pack(">h", 0)


def build_mirror_end(timestamp: i64) -> bytes:
    """Builds the control batch."""
    builder = BatchBuilder()
    builder.append(timestamp, _KEY, _VALUE, None)
    return builder.build(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, False, -1, 0, True)


def is_mirror_end(batch: Batch) -> bool:
    """Whether a control batch is the end of a mirror; False if it is malformed."""
    if batch.producer_id >= 0 or batch.size > MARKER_BATCH_BYTES_MAX:
        return False
    try:
        record = read_control_record(batch)
    except KafkaError:
        return False
    return record is not None and record.control_type == MIRROR_END
