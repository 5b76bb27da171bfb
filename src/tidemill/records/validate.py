"""What a producer's batch must be before it may reach the log: every record is walked and checked.

Layout of a record (message format v2), after unpacking:

==============  ==========  ======================================================================
field           type        notes
==============  ==========  ======================================================================
length          varint      bytes of the record after this field, at least 6
attributes      int8        no bit is used
timestamp delta varlong     ms after the batch's base timestamp
offset delta    varint      0, 1, 2 ... in what producers send
key length      varint      -1: no key
key             bytes
value length    varint      -1: no value (a tombstone)
value           bytes
header count    varint      not negative
headers         ...         each: key length varint (not negative), key, value length varint or -1, value
==============  ==========  ======================================================================

The checks are those of Kafka's broker (``LogValidator.java``, ``DefaultRecord.java``), with two differences:
a record's offset delta that is out of line is refused whether the batch is compressed or not, and a batch
that claims append time is refused in topics of create time too (Kafka clears the bit there). A maximum
timestamp in the header that is not the largest of the records is corrected, as Kafka does.

A walk costs some ns a record compiled and some us as plain Python; so it runs in slices, and
:func:`is_costly` says which batches are better validated in a thread.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from tidemill import _mode
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import (
    GZIP,
    NO_TIMESTAMP,
    NONE,
    RECORD_BYTES_MIN,
    RECORDS,
    Batch,
    check_crc,
)
from tidemill.records.builder import with_max_timestamp
from tidemill.records.compression import decompress_range, unpacked_bytes_bound
from tidemill.records.varint import read_varint, read_varlong

INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
INT64_MIN: Final = -INT64_MAX - 1
INT61_MAX: Final = 0x0FFFFFFFFFFFFFFF
"""Below the size from which the compiler keeps a constant as an object."""

RECORD_LENGTH_MIN: Final = 6
HEADER_BYTES_MIN: Final = 2
NO_KEY: Final = "this topic is compacted: a record needs a key"

RECORD_ERRORS_MAX: Final = 100
"""Refused records that a reply names; the batch is refused whole anyway."""

SLICE_RECORDS: Final = 10_000 if _mode.compiled else 500
"""Records of one slice: 0.1 ms compiled, about 1 ms as plain Python."""

COSTLY_RECORDS: Final = 5 * SLICE_RECORDS

COSTLY_UNPACKED_BYTES: Final = 256 * 1024
"""From here on unpacking and walking would hold an event loop for longer than a thread takes to wake."""

COSTLY_GZIP_BYTES: Final = 8 * 1024
"""Packed: its blocks do not say how large they become (at most 1032 times)."""

COSTLY_BYTES: Final = 8 * 1024 * 1024
"""Uncompressed: only the checksum is computed in one go, at 10 GB/s and more."""


class Limits:
    """What a topic takes from producers."""

    def __init__(
        self,
        max_batch_bytes: i64 = 1_048_588,
        max_unpacked_bytes: i64 = UNPACKED_BYTES_MAX,
        key_required: bool = False,
        timestamp_before_ms: i64 = INT64_MAX,
        timestamp_after_ms: i64 = 3_600_000,
        check_timestamps: bool = True,
    ) -> None:
        self.max_batch_bytes: i64 = max_batch_bytes
        """``max.message.bytes``: the batch as it is sent, its header included."""
        self.max_unpacked_bytes: i64 = max_unpacked_bytes
        """The records of a compressed batch, unpacked."""
        self.key_required = key_required
        """Compacted topics: a record without a key is refused."""
        self.timestamp_before_ms: i64 = timestamp_before_ms
        """``message.timestamp.before.max.ms``: how much older than the broker's clock a record may be."""
        self.timestamp_after_ms: i64 = timestamp_after_ms
        """``message.timestamp.after.max.ms``: how far ahead of the broker's clock a record may be."""
        self.check_timestamps = check_timestamps
        """False in topics of append time, where the records' own times do not count."""


@mypyc_attr(acyclic=True, free_list_len=1)
class RecordWalk:
    """Walks over unpacked records from ``position`` to ``end``, in slices, and checks each.

    Framing that is wrong raises InvalidRecord at once; a record that may not be stored is noted in
    :attr:`errors` and the walk goes on. ``timestamp_min`` and ``timestamp_max`` bound the records' times
    (a record without a time, -1, passes); ``key_required`` refuses records without a key.
    """

    def __init__(
        self,
        data: bytes,
        position: i64,
        end: i64,
        count: i64,
        base_timestamp: i64 = 0,
        key_required: bool = False,
        timestamp_min: i64 = INT64_MIN,
        timestamp_max: i64 = INT64_MAX,
    ) -> None:
        if position < 0 or end > len(data) or position > end:
            raise ValueError(f"bytes {position} to {end} are not inside a buffer of {len(data)} bytes")
        if count < 0 or count > (end - position) // RECORD_BYTES_MIN:
            raise InvalidRecord(
                f"{count} records cannot be in {end - position} bytes: each takes at least {RECORD_BYTES_MIN}"
            )
        self.data = data
        self.position: i64 = position
        self.end: i64 = end
        self.count: i64 = count
        self.base_timestamp: i64 = base_timestamp
        self.key_required = key_required
        self.timestamp_min: i64 = timestamp_min
        self.timestamp_max: i64 = timestamp_max
        self.index: i64 = 0
        """Records walked so far."""
        self.max_timestamp: i64 = NO_TIMESTAMP
        """The largest of the times seen so far, -1 when there was none."""
        self.max_timestamp_index: i64 = -1
        """The first record that has it."""
        self.errors: list[tuple[int, str]] = []
        """(index in the batch, what is wrong with that record)"""
        self.error_code: ErrorCode = ErrorCode.NONE
        """The code of the first of :attr:`errors`."""
        self._record_end: i64 = position
        self._headers_left: i64 = 0
        self._done = False

    def step(self, records_max: i64 = SLICE_RECORDS) -> bool:
        """Walks over up to ``records_max`` more records (a header counts as one); whether all are done."""
        left: i64 = records_max
        while not self._done:
            if self._headers_left == 0 and self.index == self.count:
                if self.position != self.end:
                    raise _rest(self.count, self.position, self.end)
                self._done = True
            elif left <= 0:
                break
            elif self._headers_left > 0:
                left -= self._walk_headers(left)
            else:
                left -= self._walk_records(left)
        return self._done

    def _walk_records(self, records_max: i64) -> i64:
        """Stops after a record that has headers, which are not walked yet; the number of records walked."""
        data = self.data
        end: i64 = self.end
        position: i64 = self.position
        base_timestamp: i64 = self.base_timestamp
        timestamp_min: i64 = self.timestamp_min
        timestamp_max: i64 = self.timestamp_max
        largest: i64 = self.max_timestamp
        key_required = self.key_required
        first: i64 = self.index
        index: i64 = first
        last: i64 = self.count if self.count - first < records_max else first + records_max
        headers: i64 = 0
        while index < last and headers == 0:
            length, position = read_varint(data, position, end)
            if length < RECORD_LENGTH_MIN or length > end - position:
                raise _wrong_length("record", length, index, position, end)
            record_end: i64 = position + length
            delta, position = read_varlong(data, position + 1, record_end)
            offset_delta, position = read_varint(data, position, record_end)
            if offset_delta != index:
                raise _wrong_offset(offset_delta, index)
            length, position = read_varint(data, position, record_end)
            if length > 0:
                if length > record_end - position:
                    raise _wrong_length("key", length, index, position, record_end)
                position += length
            elif length < 0:
                if length != -1:
                    raise _wrong_length("key", length, index, position, record_end)
                if key_required:
                    self._note(index, ErrorCode.INVALID_RECORD, NO_KEY)
            length, position = read_varint(data, position, record_end)
            if length > 0:
                if length > record_end - position:
                    raise _wrong_length("value", length, index, position, record_end)
                position += length
            elif length < -1:
                raise _wrong_length("value", length, index, position, record_end)
            headers, position = read_varint(data, position, record_end)
            if headers != 0:
                if headers < 0 or headers > (record_end - position) // HEADER_BYTES_MIN:
                    raise _wrong_length("header count", headers, index, position, record_end)
                self._headers_left = headers
                self._record_end = record_end
            elif position != record_end:
                raise _misfit(index, position, record_end)
            timestamp: i64 = add_timestamp(base_timestamp, delta)
            if timestamp > largest:
                largest = timestamp
                self.max_timestamp_index = index
            if (timestamp < timestamp_min or timestamp > timestamp_max) and timestamp != NO_TIMESTAMP:
                self._note_timestamp(index, timestamp)
            index += 1
        self.index = index
        self.position = position
        self.max_timestamp = largest
        return index - first

    def _walk_headers(self, headers_max: i64) -> i64:
        """Walks over headers of the record before :attr:`index`; how many."""
        data = self.data
        position: i64 = self.position
        end: i64 = self._record_end
        index: i64 = self.index - 1
        count: i64 = self._headers_left if self._headers_left < headers_max else headers_max
        left: i64 = count
        while left > 0:
            length, position = read_varint(data, position, end)
            if length < 0 or length > end - position:
                raise _wrong_length("header key", length, index, position, end)
            length, position = read_varint(data, position + length, end)
            if length > 0:
                if length > end - position:
                    raise _wrong_length("header value", length, index, position, end)
                position += length
            elif length < -1:
                raise _wrong_length("header value", length, index, position, end)
            left -= 1
        self._headers_left -= count
        self.position = position
        if self._headers_left == 0 and position != end:
            raise _misfit(index, position, end)
        return count

    def _note(self, index: i64, code: ErrorCode, text: str) -> None:
        if not self.errors:
            self.error_code = code
        if len(self.errors) < RECORD_ERRORS_MAX:
            self.errors.append((index, text))

    def _note_timestamp(self, index: i64, timestamp: i64) -> None:
        self._note(
            index,
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {timestamp} is out of range: this topic takes {self.timestamp_min} to "
            f"{self.timestamp_max} now (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
        )


def validate(batch: Batch, limits: Limits, now_ms: i64) -> Batch:
    """Checks the whole batch at once; the batch to store: the same, or one whose max timestamp was corrected.

    Raises CorruptMessage (framing, checksum, compression), InvalidRecord (with ``record_errors`` where single
    records are at fault; its code is INVALID_TIMESTAMP for those out of time), KafkaError with
    MESSAGE_TOO_LARGE. An event loop calls the three parts itself: :func:`begin_validation` (in a thread when
    :func:`is_costly`), :meth:`RecordWalk.step` in slices, :func:`finish_validation`.
    """
    walk = begin_validation(batch, limits, now_ms)
    while not walk.step(SLICE_RECORDS):
        pass
    return finish_validation(batch, walk, limits)


def begin_validation(batch: Batch, limits: Limits, now_ms: i64) -> RecordWalk:
    """Checks size, checksum and header, unpacks where needed; the walk that is to be done."""
    if batch.size > limits.max_batch_bytes:
        raise KafkaError(
            f"the batch has {batch.size} bytes, this topic takes {limits.max_batch_bytes} "
            "(max.message.bytes): lower batch.size of the producer, or raise the topic's limit",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
    check_crc(batch)
    check_produced_header(batch)
    data = batch.data
    position: i64 = batch.position + RECORDS
    end: i64 = batch.position + batch.size
    if batch.codec != NONE:
        data = decompress_range(batch.codec, data, position, end, limits.max_unpacked_bytes)
        position = 0
        end = len(data)
    lowest, highest = timestamp_bounds(limits, now_ms, limits.check_timestamps)
    return RecordWalk(
        data, position, end, batch.record_count, batch.base_timestamp, limits.key_required, lowest, highest
    )


def timestamp_bounds(limits: Limits, now_ms: i64, check: bool) -> tuple[i64, i64]:
    """The smallest and the largest time in ms that a topic takes now; any int64 without ``check``."""
    lowest: i64 = INT64_MIN
    highest: i64 = INT64_MAX
    if check:
        if limits.timestamp_before_ms < INT64_MAX and now_ms >= INT64_MIN + limits.timestamp_before_ms:
            lowest = now_ms - limits.timestamp_before_ms
        if limits.timestamp_after_ms < INT64_MAX and now_ms <= INT64_MAX - limits.timestamp_after_ms:
            highest = now_ms + limits.timestamp_after_ms
    return lowest, highest


def finish_validation(batch: Batch, walk: RecordWalk, limits: Limits) -> Batch:
    """What :func:`validate` returns or raises, after the walk's last step."""
    if walk.errors:
        index, text = walk.errors[0]
        raise InvalidRecord(
            f"{len(walk.errors)} of {batch.record_count} records cannot be stored, so none was; "
            f"record {index}: {text}",
            walk.error_code,
            tuple(walk.errors),
        )
    if limits.check_timestamps and walk.max_timestamp != batch.max_timestamp:
        return with_max_timestamp(batch, walk.max_timestamp)
    return batch


def check_produced_header(batch: Batch) -> None:
    """Raises InvalidRecord for a header that no producer may send, though a log may hold it."""
    count: i64 = batch.record_count
    if count < 1 or batch.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"a batch of {count} records says that its last offset delta is {batch.last_offset_delta}: "
            "producers send at least one record, and number them from 0 without gaps"
        )
    if batch.is_control:
        raise InvalidRecord("a control batch was sent by a client: only brokers write transaction markers")
    if batch.append_time:
        text = (
            "the batch says that its timestamps are the broker's (append time), which only a broker may say"
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


def unpack(batch: Batch, bytes_max: i64) -> bytes:
    """The records of ``batch`` without compression, at most ``bytes_max``; see ``decompress_range``."""
    return decompress_range(
        batch.codec, batch.data, batch.position + RECORDS, batch.position + batch.size, bytes_max
    )


def is_costly(batch: Batch) -> bool:
    """Whether validating it at once could hold the event loop for more than about a millisecond.

    By what the bytes could be at worst, from their blocks' headers; not by what they claim. Framing that is
    wrong is not costly: it is refused at once.
    """
    codec: i64 = batch.codec
    if batch.record_count > COSTLY_RECORDS:
        return True
    if codec == NONE:
        return batch.size > COSTLY_BYTES
    if codec == GZIP:
        return batch.size > COSTLY_GZIP_BYTES
    try:
        bound = unpacked_bytes_bound(codec, batch.data, batch.position + RECORDS, batch.position + batch.size)
    except KafkaError:
        return False
    return bound > COSTLY_UNPACKED_BYTES


def add_timestamp(base: i64, delta: i64) -> i64:
    """``base + delta`` where that is an int64, else InvalidRecord."""
    if -INT61_MAX < base < INT61_MAX and -INT61_MAX < delta < INT61_MAX:
        return base + delta
    if (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < INT64_MIN - delta):
        raise InvalidRecord(f"timestamp delta {delta} leads beyond int64 from base timestamp {base}")
    return base + delta


def _wrong_length(what: str, length: i64, index: i64, position: i64, end: i64) -> InvalidRecord:
    return InvalidRecord(
        f"record {index} has {what} {length} at byte {position}, where {end - position} are left"
    )


def _wrong_offset(delta: i64, index: i64) -> InvalidRecord:
    return InvalidRecord(
        f"record {index} has offset delta {delta}: producers number them from 0 without gaps"
    )


def _misfit(index: i64, position: i64, end: i64) -> InvalidRecord:
    return InvalidRecord(
        f"record {index} says that it ends at byte {end}, but its fields end at byte {position}"
    )


def _rest(count: i64, position: i64, end: i64) -> InvalidRecord:
    return InvalidRecord(f"after {count} records {end - position} bytes are left at byte {position}")
