"""The markers that end transactions: the control records that brokers write.

A control batch has one record:

=====  ================  =====================================================================
       type              field
=====  ================  =====================================================================
key    int16             version, 0
       int16             control record type: 0 abort, 1 commit; others are not markers
value  int16             version, 0
       int32             epoch of the transaction coordinator
=====  ================  =====================================================================

All integers are big-endian. Later versions may add bytes to both, which readers ignore. Compaction may remove
the record and keep the batch.

Source: KIP-98; Apache Kafka, ``EndTransactionMarker.java``, ``ControlRecordType.java``.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i16_be, write_i32_be
from mypy_extensions import i16, i32, i64

from tidemill.model.errors import CorruptMessage, KafkaError
from tidemill.records.batch import Batch
from tidemill.records.record_reader import read_records

ABORT: Final = 0
COMMIT: Final = 1
UNKNOWN_CONTROL_TYPE: Final = -1

VERSION: Final = 0
KEY_BYTES_MIN: Final = 2 + 2
VALUE_BYTES_MIN: Final = 2 + 4

MARKER_BATCH_BYTES: Final = 78
"""The size of the batch of a marker."""
MARKER_BATCH_BYTES_MAX: Final = 1024
"""A larger control batch is not a marker."""


class EndTransactionMarker:
    """The marker of a transaction; ``control_type`` is :data:`ABORT` or :data:`COMMIT`."""

    def __init__(self, control_type: i64, coordinator_epoch: i64) -> None:
        self.control_type: i64 = control_type
        self.coordinator_epoch: i64 = coordinator_epoch

    def key(self) -> bytes:
        """Returns the key of its control record."""
        writer = BytesWriter()
        write_i16_be(writer, VERSION)
        write_i16_be(writer, i16(self.control_type))
        return writer.getvalue()

    def value(self) -> bytes:
        """Returns the value of its control record."""
        writer = BytesWriter()
        write_i16_be(writer, VERSION)
        write_i32_be(writer, i32(self.coordinator_epoch))
        return writer.getvalue()


class ControlRecord:
    """A control record: the type in its key, and the marker if it ends a transaction.

    The type is :data:`UNKNOWN_CONTROL_TYPE` when the key is too short. Other types than those of markers are
    known to Kafka's Raft only.
    """

    def __init__(self, control_type: i64, marker: EndTransactionMarker | None) -> None:
        self.control_type: i64 = control_type
        self.marker = marker


def decode_control_record(key: bytes | None, value: bytes | None) -> ControlRecord:
    """Decodes the key and value of a record in a control batch."""
    if key is None or len(key) < KEY_BYTES_MIN:
        return ControlRecord(UNKNOWN_CONTROL_TYPE, None)
    control_type: i64 = i64(read_i16_be(key, 2))
    if (control_type != ABORT and control_type != COMMIT) or value is None or len(value) < VALUE_BYTES_MIN:
        return ControlRecord(control_type, None)
    marker = EndTransactionMarker(control_type, i64(read_i32_be(value, 2)))
    return ControlRecord(control_type, marker)


def read_control_record(batch: Batch) -> ControlRecord | None:
    """Returns the control record in a control batch; None when compaction has removed the record.

    Raises CorruptMessage for a malformed batch or key.
    """
    records = read_records(batch, MARKER_BATCH_BYTES_MAX)
    if not records:
        return None
    record = decode_control_record(records[0].key, records[0].value)
    if record.control_type == UNKNOWN_CONTROL_TYPE:
        raise CorruptMessage(f"the control batch with base offset {batch.base_offset} has no control type")
    return record


def read_marker(batch: Batch) -> EndTransactionMarker | None:
    """Returns the marker in a control batch; None when it has none, or is malformed."""
    if batch.size > MARKER_BATCH_BYTES_MAX:
        return None
    try:
        record = read_control_record(batch)
    except KafkaError:
        return None
    return None if record is None else record.marker


def is_abort(batch: Batch) -> bool:
    """Whether a control batch aborts a transaction. Raises CorruptMessage when it is malformed."""
    record = read_control_record(batch)
    return record is not None and record.control_type == ABORT
