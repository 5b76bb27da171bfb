"""Validates producers' batches before they reach the log: every record is walked and checked.

:mod:`tidemill.records.record_cursor` has the layout of records, and checks that they fit their batch.

The checks are those of Kafka's broker (``LogValidator.java``, ``DefaultRecord.java``), with two differences:
a record with a wrong offset delta is refused whether the batch is compressed or not, and a batch that claims
append time is also refused in topics with create time (Kafka clears the bit there). A maximum timestamp in
the header that is not the largest of the records is corrected, as in Kafka.

A walk takes some ns per record when compiled and some us as plain Python; so it runs in slices, and
:func:`is_costly` identifies batches that should be validated in a thread.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from tidemill import _build_mode
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import (
    GZIP,
    NO_COMPRESSION,
    NO_TIMESTAMP,
    RECORDS,
    Batch,
    check_crc,
)
from tidemill.records.builder import with_max_timestamp
from tidemill.records.compression import unpacked_bytes_bound
from tidemill.records.record_cursor import BatchCursor
from tidemill.records.varint import INT64_MAX, INT64_MIN

NO_KEY: Final = "this topic is compacted: a record needs a key"

RECORD_ERRORS_MAX: Final = 100
"""Invalid records that a response lists; the whole batch is refused in any case."""

SLICE_RECORDS: Final = 10_000 if _build_mode.compiled else 500
"""Records per slice: 0.1 ms compiled, about 1 ms as plain Python."""

COSTLY_RECORDS: Final = 5 * SLICE_RECORDS

COSTLY_UNPACKED_BYTES: Final = 256 * 1024
"""From this size on, unpacking and walking would block an event loop for longer than a thread takes to
wake."""

COSTLY_GZIP_BYTES: Final = 8 * 1024
"""Compressed size: gzip blocks do not contain their unpacked size (at most 1032 times as large)."""

COSTLY_BYTES: Final = 8 * 1024 * 1024
"""Uncompressed size: only the checksum is computed in one go, at 10 GB/s and more."""


class RecordLimits:
    """A topic's limits for produced batches."""

    def __init__(
        self,
        unpacked_bytes_max: i64,
        max_batch_bytes: i64 = 1_048_588,
        key_required: bool = False,
        timestamp_before_ms: i64 = INT64_MAX,
        timestamp_after_ms: i64 = 3_600_000,
        check_timestamps: bool = True,
    ) -> None:
        self.unpacked_bytes_max: i64 = unpacked_bytes_max
        """The unpacked size of the records of a compressed batch."""
        self.max_batch_bytes: i64 = max_batch_bytes
        """``max.message.bytes``: the size of a batch with its header, as sent and as stored."""
        self.key_required = key_required
        """For compacted topics: a record without a key is refused."""
        self.timestamp_before_ms: i64 = timestamp_before_ms
        """``message.timestamp.before.max.ms``: how much older than the broker's clock a record may be."""
        self.timestamp_after_ms: i64 = timestamp_after_ms
        """``message.timestamp.after.max.ms``: how far ahead of the broker's clock a record may be."""
        self.check_timestamps = check_timestamps
        """False in topics with append time, which ignore the records' own times."""


@mypyc_attr(acyclic=True, free_list_len=1)
class RecordWalk:
    """Walks over the records of ``cursor`` in slices, and checks each.

    Wrong framing raises at once, as :meth:`BatchCursor.step`; an invalid record is added to :attr:`errors`,
    and the walk continues. ``timestamp_min`` and ``timestamp_max`` bound the records' times (a record without
    a time, -1, passes); ``key_required`` refuses records without a key.
    """

    def __init__(
        self,
        cursor: BatchCursor,
        key_required: bool = False,
        timestamp_min: i64 = INT64_MIN,
        timestamp_max: i64 = INT64_MAX,
    ) -> None:
        self.cursor = cursor
        self.key_required = key_required
        self.timestamp_min: i64 = timestamp_min
        self.timestamp_max: i64 = timestamp_max
        self.max_timestamp: i64 = NO_TIMESTAMP
        """The largest timestamp so far, -1 without one."""
        self.errors: list[tuple[int, str]] = []
        """(index in the batch, the problem of that record)"""
        self.error_code: ErrorCode | None = None
        """The code of the first of :attr:`errors`."""

    def step(self, records_max: i64 = SLICE_RECORDS) -> bool:
        """Walks over up to ``records_max`` more records (a header counts as one); True when all are done."""
        cursor = self.cursor
        left: i64 = records_max
        while left > 0:
            left -= 1
            if cursor.headers_left > 0:
                cursor.step_header()
            elif cursor.step():
                self._check(cursor)
            else:
                return True
        return False

    def _check(self, cursor: BatchCursor) -> None:
        if self.key_required and cursor.key_length < 0:
            self._add_error(cursor.index, ErrorCode.INVALID_RECORD, NO_KEY)
        timestamp: i64 = cursor.timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if (timestamp < self.timestamp_min or timestamp > self.timestamp_max) and timestamp != NO_TIMESTAMP:
            self._add_timestamp_error(cursor.index, timestamp)

    def _add_error(self, index: i64, code: ErrorCode, text: str) -> None:
        if not self.errors:
            self.error_code = code
        if len(self.errors) < RECORD_ERRORS_MAX:
            self.errors.append((index, text))

    def _add_timestamp_error(self, index: i64, timestamp: i64) -> None:
        self._add_error(
            index,
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {timestamp} is out of range: this topic accepts {self.timestamp_min} to "
            f"{self.timestamp_max} now (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
        )


def validate(batch: Batch, limits: RecordLimits, now_ms: i64) -> Batch:
    """Checks the whole batch at once; returns it, or a copy with a corrected max timestamp.

    The caller has checked the size of the batch. Raises CorruptMessage (framing, checksum, compression) and
    InvalidRecord (with ``record_errors`` where single records are invalid; its code is INVALID_TIMESTAMP for
    times out of range). An event loop calls the three parts itself: :func:`begin_validation` (in a thread
    when :func:`is_costly`), :meth:`RecordWalk.step` in slices, :func:`finish_validation`.
    """
    walk = begin_validation(batch, limits, now_ms)
    while not walk.step(SLICE_RECORDS):
        pass
    return finish_validation(batch, walk, limits)


def begin_validation(batch: Batch, limits: RecordLimits, now_ms: i64) -> RecordWalk:
    """Checks the checksum and the header, and unpacks the records; returns the walk over them."""
    check_crc(batch)
    check_produced_header(batch)
    cursor = BatchCursor(batch, None, limits.unpacked_bytes_max, True)
    lowest, highest = timestamp_bounds(limits, now_ms, limits.check_timestamps)
    return RecordWalk(cursor, limits.key_required, lowest, highest)


def timestamp_bounds(limits: RecordLimits, now_ms: i64, check: bool) -> tuple[i64, i64]:
    """The smallest and the largest timestamp in ms that a topic accepts now; any int64 without ``check``."""
    lowest: i64 = INT64_MIN
    highest: i64 = INT64_MAX
    if check:
        if limits.timestamp_before_ms < INT64_MAX and now_ms >= INT64_MIN + limits.timestamp_before_ms:
            lowest = now_ms - limits.timestamp_before_ms
        if limits.timestamp_after_ms < INT64_MAX and now_ms <= INT64_MAX - limits.timestamp_after_ms:
            highest = now_ms + limits.timestamp_after_ms
    return lowest, highest


def finish_validation(batch: Batch, walk: RecordWalk, limits: RecordLimits) -> Batch:
    """Returns or raises the result of :func:`validate`, after the walk's last step."""
    if walk.errors:
        index, text = walk.errors[0]
        raise InvalidRecord(
            f"{len(walk.errors)} of {batch.record_count} records cannot be stored, so none was; "
            f"record {index}: {text}",
            walk.error_code or ErrorCode.INVALID_RECORD,
            tuple(walk.errors),
        )
    if limits.check_timestamps and walk.max_timestamp != batch.max_timestamp:
        return with_max_timestamp(batch, walk.max_timestamp)
    return batch


def check_produced_header(batch: Batch) -> None:
    """Raises InvalidRecord for a header that no producer may send, although a log may contain it."""
    count: i64 = batch.record_count
    if count < 1 or batch.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"a batch of {count} records has last offset delta {batch.last_offset_delta}: "
            "producers send at least one record, and number them from 0 without gaps"
        )
    if batch.is_control:
        raise InvalidRecord("a control batch was sent by a client: only brokers write transaction markers")
    if batch.append_time:
        text = (
            "the batch claims that its timestamps are the broker's (append time), which only a broker may do"
        )
        raise InvalidRecord(text, ErrorCode.INVALID_TIMESTAMP, ((0, text),))
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise InvalidRecord(
            f"the batch of producer {batch.producer_id} has base sequence {batch.base_sequence}: "
            "it must not be negative"
        )
    if batch.is_transactional and batch.producer_id < 0:
        raise InvalidRecord(
            f"a transactional batch has producer id {batch.producer_id}: it must not be negative"
        )


def is_costly(batch: Batch) -> bool:
    """Whether validating it at once could block the event loop for more than about a millisecond.

    It assumes the worst case, from the headers of the compressed blocks, not from claimed sizes. Wrong
    framing is not costly: it is refused at once.
    """
    codec: i64 = batch.codec
    if batch.record_count > COSTLY_RECORDS:
        return True
    if codec == NO_COMPRESSION:
        return batch.size > COSTLY_BYTES
    if codec == GZIP:
        return batch.size > COSTLY_GZIP_BYTES
    try:
        bound = unpacked_bytes_bound(codec, batch.data, batch.position + RECORDS, batch.position + batch.size)
    except KafkaError:
        return False
    return bound > COSTLY_UNPACKED_BYTES
