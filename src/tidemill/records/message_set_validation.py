"""Validates producers' message sets of formats v0 and v1 before they reach the log.

The checks are those of Kafka's broker (``LogValidator.java``), with these differences. Bytes after the last
whole entry of a set or wrapper are refused, where Kafka drops them, and so are keys and values that do not
fill their entry exactly. A message that claims append time is also refused in topics with create time (Kafka
clears the bit there). As in Kafka, wrong offsets inside a wrapper, which some old clients send, are accepted:
the messages are rewritten.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import CURRENT_MAGIC, MAGIC, NO_COMPRESSION, NO_TIMESTAMP
from tidemill.records.batch_validation import NO_KEY, RECORD_ERRORS_MAX, RecordLimits, timestamp_bounds
from tidemill.records.legacy_formats import Entry, check_old_codec, parse_entry
from tidemill.records.record_cursor import EntryCursor, framed_size

APPEND_TIME_CLAIMED: Final = (
    "the message claims that its timestamp is the broker's (append time), which only a broker may do"
)


class CheckedSet:
    """A message set of v0 or v1 from a producer, with every message checked.

    :attr:`data` from :attr:`position` to :attr:`end` contains the messages without compression.
    """

    def __init__(
        self, data: bytes, position: i64, end: i64, limits: RecordLimits, now_ms: i64, check_timestamps: bool
    ) -> None:
        self.data = data
        self.position: i64 = position
        self.end: i64 = end
        self.magic: i64 = 0
        self.codec: i64 = NO_COMPRESSION
        self.count: i64 = 0
        self.max_timestamp: i64 = NO_TIMESTAMP
        self.has_plain_offsets: bool = True
        """Whether the offsets are 0, 1, 2 ... and the wrapper has the offset of the last message."""
        self.errors: list[tuple[int, str]] = []
        self.error_code: ErrorCode = ErrorCode.NONE
        self.key_required: bool = limits.key_required
        low, high = timestamp_bounds(limits, now_ms, check_timestamps)
        self.timestamp_min: i64 = low
        self.timestamp_max: i64 = high
        first = self._check_entries(limits)
        if first.codec == NO_COMPRESSION:
            self._check_messages()
        else:
            cursor = EntryCursor(first, limits.unpacked_bytes_max, True)
            self.codec = first.codec
            self.data = cursor.data
            self.position = 0
            self.end = len(cursor.data)
            self._check_messages()
            if cursor.base != 0 or (first.offset != 0 and first.offset != self.count - 1):
                self.has_plain_offsets = False
        if self.errors:
            index, text = self.errors[0]
            raise InvalidRecord(
                f"{len(self.errors)} of {self.count} records cannot be stored, so none was; "
                f"record {index}: {text}",
                self.error_code,
                tuple(self.errors),
            )

    def _check_entries(self, limits: RecordLimits) -> Entry:
        """Checks the entries without unpacking them; returns the first."""
        first = parse_entry(self.data, self.position, self.end)
        self.magic = first.magic
        position: i64 = self.position
        index: i64 = 0
        while position < self.end:
            if self.end - position > MAGIC and self.data[position + MAGIC] == CURRENT_MAGIC:
                raise InvalidRecord(
                    f"entry {index} is a batch of v2 in a message set of v{first.magic}: send one format"
                )
            check_size(framed_size(self.data, position, self.end), limits, "has")
            entry = parse_entry(self.data, position, self.end)
            if entry.magic != first.magic:
                raise InvalidRecord(
                    f"entry {index} has message format v{entry.magic}, the first of its set v{first.magic}"
                )
            if entry.append_time:
                self._add_error(index, ErrorCode.INVALID_TIMESTAMP, APPEND_TIME_CLAIMED)
            if entry.codec != NO_COMPRESSION:
                check_old_codec(entry.codec, entry.magic)
                if entry.size != self.end - self.position:
                    raise InvalidRecord("a compressed message set must be exactly one wrapper")
            position += entry.size
            index += 1
        return first

    def _check_messages(self) -> None:
        """Checks every message; those inside a wrapper with their checksums."""
        position: i64 = self.position
        inside = self.codec != NO_COMPRESSION
        while position < self.end:
            message = parse_entry(self.data, position, self.end, inside)
            index: i64 = self.count
            if inside and message.magic != self.magic:
                self._add_error(
                    index,
                    ErrorCode.INVALID_RECORD,
                    f"a message of format v{message.magic} is inside a wrapper of v{self.magic}",
                )
            elif inside and message.codec != NO_COMPRESSION:
                self._add_error(index, ErrorCode.INVALID_RECORD, "a wrapper is inside a wrapper")
            else:
                self._check_message(index, message)
            if message.offset != index:
                self.has_plain_offsets = False
            self.count += 1
            position += message.size

    def _check_message(self, index: i64, message: Entry) -> None:
        if self.key_required and message.key_length < 0:
            self._add_error(index, ErrorCode.INVALID_RECORD, NO_KEY)
        if message.magic == 0:
            return
        timestamp: i64 = message.timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if (timestamp < self.timestamp_min or timestamp > self.timestamp_max) and timestamp != NO_TIMESTAMP:
            self._add_error(
                index,
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {timestamp} is out of range: this topic accepts {self.timestamp_min} to "
                f"{self.timestamp_max} now (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
            )

    def _add_error(self, index: i64, code: ErrorCode, text: str) -> None:
        if not self.errors:
            self.error_code = code
        if len(self.errors) < RECORD_ERRORS_MAX:
            self.errors.append((int(index), text))


def check_size(size: i64, limits: RecordLimits, verb: str) -> None:
    """Raises KafkaError with MESSAGE_TOO_LARGE for a batch or message above the topic's limit."""
    if size > limits.max_batch_bytes:
        raise KafkaError(
            f"a batch or message {verb} {size} bytes, this topic accepts {limits.max_batch_bytes} "
            "(max.message.bytes): lower batch.size of the producer, or raise the topic's limit",
            ErrorCode.MESSAGE_TOO_LARGE,
        )
