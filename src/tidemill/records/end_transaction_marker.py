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
from tidemill.records.record_cursor import BatchCursor
from tidemill.records.record_reader import read_records

ABORT: Final = 0
COMMIT: Final = 1
NO_CONTROL_TYPE: Final = -1

VERSION: Final = 0
KEY_BYTES_MIN: Final = 2 + 2
VALUE_BYTES_MIN: Final = 2 + 4

MARKER_BATCH_BYTES_MAX: Final = 1024
"""The batch of a marker has 78 bytes; a larger control batch is not a marker."""


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


def control_record_type(key: bytes | None) -> i64:
    """Returns the type of the control record with this key; -1 when the key is too short."""
    if key is None or len(key) < KEY_BYTES_MIN:
        return NO_CONTROL_TYPE
    return i64(read_i16_be(key, 2))


def decode_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker | None:
    """Decodes a control record; None when it is not a marker."""
    kind: i64 = control_record_type(key)
    if (kind != ABORT and kind != COMMIT) or value is None or len(value) < VALUE_BYTES_MIN:
        return None
    return EndTransactionMarker(kind, i64(read_i32_be(value, 2)))


def read_marker(batch: Batch) -> EndTransactionMarker | None:
    """Returns the marker in a control batch; None when it has none, or is malformed."""
    if batch.size > MARKER_BATCH_BYTES_MAX:
        return None
    try:
        records = read_records(batch, MARKER_BATCH_BYTES_MAX)
    except KafkaError:
        return None
    return decode_marker(records[0].key, records[0].value) if records else None


def control_type(batch: Batch, unpacked_bytes_max: i64) -> i64:
    """Returns the type of the record in a control batch; -1 when compaction has removed it.

    Raises CorruptMessage and InvalidRecord for a malformed record or key, UnpackedTooLarge for a batch of
    more than ``unpacked_bytes_max``.
    """
    cursor = BatchCursor(batch, None, unpacked_bytes_max)
    if not cursor.step():
        return NO_CONTROL_TYPE
    if cursor.key_length < KEY_BYTES_MIN:
        raise CorruptMessage(
            f"the control batch with base offset {batch.base_offset} has a key of {cursor.key_length} bytes"
        )
    return control_record_type(cursor.key)
