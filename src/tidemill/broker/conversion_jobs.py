"""The jobs of conversion processes: their arguments, their results, and the messages that contain them.

======================  ===============================================  ==========================
job                     converts                                         result
======================  ===============================================  ==========================
DownConversionJob       stored records for an old consumer               ``Converted``
StorageConversionJob    produced records to the format of their topic    ``Batch`` or ``MessageSet``
WrapperPlacementJob     a message set to a wrapper of format v0          ``PlacedMessageSet``
======================  ===============================================  ==========================

A :class:`Message` to a process has a job, and a message from it the result or the error::

    head (name, further arguments)             data: the records to convert
    head (True, further results)               data: the converted records
    head (False, code, text, record errors)    no data

:mod:`tidemill.broker.conversion_process` has the layout of a message on the socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, cast

from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import Batch, parse_batch
from tidemill.records.batch_validation import RecordLimits
from tidemill.records.format_conversion import Converted, down, for_storage
from tidemill.records.message_set import MessageSet, PlacedMessageSet

Result = TypeVar("Result")

Value: TypeAlias = "bool | int | str | bytes | tuple[Value, ...] | None"
"""A value that ``marshal`` encodes."""

DOWN = "down"
STORE = "store"
PLACE = "place"


class Message(NamedTuple):
    """A job, or its result or error."""

    head: tuple[Value, ...]
    data: bytes = b""


class ConversionJob(Protocol[Result]):
    """A conversion that a process can run."""

    @property
    def data(self) -> bytes:
        """The records to convert."""

    def run(self) -> Result:
        """Converts the records. Raises KafkaError if they are invalid."""

    def encode(self) -> Message:
        """Returns the message to a process."""

    def encode_result(self, result: Result) -> Message:
        """Returns the message from the process."""

    def decode_result(self, message: Message) -> Result:
        """Returns the result in a message from a process."""


class DownConversionJob(NamedTuple):
    """A call of :func:`tidemill.records.format_conversion.down` for all of ``data``."""

    data: bytes
    magic: int
    first_offset: int
    bytes_max: int
    unpacked_bytes_max: int

    def run(self) -> Converted:
        """Converts the records."""
        return down(
            self.data,
            0,
            len(self.data),
            self.magic,
            self.first_offset,
            self.bytes_max,
            self.unpacked_bytes_max,
        )

    def encode(self) -> Message:
        """Returns the message to a process."""
        return Message((DOWN, *self[1:]), self.data)

    @staticmethod
    def decode(message: Message) -> DownConversionJob:
        """Returns the job in a message."""
        arguments = cast("tuple[int, int, int, int]", message.head[1:])
        return DownConversionJob(message.data, *arguments)

    def encode_result(self, result: Converted) -> Message:
        """Returns the message from the process."""
        head = (True, result.next_offset, result.next_position, result.record_count)
        return Message(head, result.data)

    def decode_result(self, message: Message) -> Converted:
        """Returns the result in a message from a process."""
        positions = cast("tuple[int, int, int]", message.head[1:])
        return Converted(message.data, *positions)


LimitValues: TypeAlias = tuple[int, int, bool, int, int, bool]
"""The arguments of :class:`tidemill.records.batch_validation.RecordLimits`, in their order."""
SetValues: TypeAlias = tuple[int, int, int, int, bytes | None, int | None]
"""The arguments of :class:`tidemill.records.message_set.MessageSet` after its data, in their order."""


class StorageConversionJob(NamedTuple):
    """A call of :func:`tidemill.records.format_conversion.for_storage` for all of ``data``."""

    data: bytes
    magic: int
    codec: int
    limits: RecordLimits
    now_ms: int
    append_time: bool
    level: int | None

    def run(self) -> Batch | MessageSet:
        """Converts the records."""
        return for_storage(
            self.data,
            0,
            len(self.data),
            self.magic,
            self.codec,
            self.limits,
            self.now_ms,
            self.append_time,
            self.level,
        )

    def encode(self) -> Message:
        """Returns the message to a process."""
        limits: LimitValues = (
            self.limits.unpacked_bytes_max,
            self.limits.max_batch_bytes,
            self.limits.key_required,
            self.limits.timestamp_before_ms,
            self.limits.timestamp_after_ms,
            self.limits.check_timestamps,
        )
        head = (STORE, self.magic, self.codec, limits, self.now_ms, self.append_time, self.level)
        return Message(head, self.data)

    @staticmethod
    def decode(message: Message) -> StorageConversionJob:
        """Returns the job in a message."""
        arguments = cast("tuple[int, int, LimitValues, int, bool, int | None]", message.head[1:])
        magic, codec, limits, now_ms, append_time, level = arguments
        return StorageConversionJob(
            message.data, magic, codec, RecordLimits(*limits), now_ms, append_time, level
        )

    def encode_result(self, result: Batch | MessageSet) -> Message:
        """Returns the message from the process. That of a batch has no further results."""
        if not isinstance(result, MessageSet):
            return Message((True,), result.to_bytes())
        values: SetValues = (
            result.magic,
            result.codec,
            result.record_count,
            result.max_timestamp,
            result.unpacked,
            result.level,
        )
        return Message((True, *values), result.data)

    def decode_result(self, message: Message) -> Batch | MessageSet:
        """Returns the result in a message from a process."""
        if len(message.head) == 1:
            return parse_batch(message.data, 0, len(message.data))
        return MessageSet(message.data, *cast("SetValues", message.head[1:]))


class WrapperPlacementJob(NamedTuple):
    """Compresses the message set ``data`` to a wrapper whose messages have the offsets from ``base_offset``.

    The wrapper has format v0.
    """

    data: bytes
    codec: int
    record_count: int
    level: int | None
    base_offset: int

    def run(self) -> PlacedMessageSet:
        """Compresses the messages."""
        messages = MessageSet(b"", 0, self.codec, self.record_count, -1, self.data, self.level)
        return self._placed(messages.stored(self.base_offset))

    def _placed(self, wrapper: bytes) -> PlacedMessageSet:
        return PlacedMessageSet(wrapper, self.base_offset, self.codec, self.record_count)

    def encode(self) -> Message:
        """Returns the message to a process."""
        return Message((PLACE, *self[1:]), self.data)

    @staticmethod
    def decode(message: Message) -> WrapperPlacementJob:
        """Returns the job in a message."""
        arguments = cast("tuple[int, int, int | None, int]", message.head[1:])
        return WrapperPlacementJob(message.data, *arguments)

    def encode_result(self, result: PlacedMessageSet) -> Message:
        """Returns the message from the process."""
        return Message((True,), result.data)

    def decode_result(self, message: Message) -> PlacedMessageSet:
        """Returns the result in a message from a process."""
        return self._placed(message.data)


def run_job(job: ConversionJob[Result]) -> Message:
    """Runs a job. Returns the message with its result or error."""
    try:
        return job.encode_result(job.run())
    except KafkaError as error:
        errors = error.record_errors if isinstance(error, InvalidRecord) else ()
        return Message((False, int(error.code), str(error), tuple(errors)))
    except MemoryError:
        text = "out of memory while converting records"
        return Message((False, int(ErrorCode.UNKNOWN_SERVER_ERROR), text, ()))


JOBS: dict[Value, Callable[[Message], Message]] = {
    DOWN: lambda message: run_job(DownConversionJob.decode(message)),
    STORE: lambda message: run_job(StorageConversionJob.decode(message)),
    PLACE: lambda message: run_job(WrapperPlacementJob.decode(message)),
}
"""Runs the job in a message to a process, and returns the message from it."""


def result_of(job: ConversionJob[Result], message: Message) -> Result:
    """Returns the result in a message from a process that has run ``job``, or raises its error."""
    if message.head[0]:
        return job.decode_result(message)
    code, text, record_errors = cast("tuple[int, str, tuple[tuple[int, str], ...]]", message.head[1:])
    if code == ErrorCode.INVALID_RECORD or record_errors:
        raise InvalidRecord(text, ErrorCode(code), record_errors)
    raise KafkaError(text, ErrorCode(code))
