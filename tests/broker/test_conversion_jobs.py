"""The jobs of conversion processes: they return the same result in a process as in the broker."""

from __future__ import annotations

import marshal

import pytest

from default_limits import RecordLimits
from record_builders import build_batch, build_message_set
from tidemill.broker.conversion_jobs import (
    JOBS,
    ConversionJob,
    DownConversionJob,
    Message,
    Result,
    StorageConversionJob,
    Value,
    WrapperPlacementJob,
    result_of,
)
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError
from tidemill.records.batch import GZIP, NO_COMPRESSION, ZSTD, Batch
from tidemill.records.format_conversion import KEEP_CODEC
from tidemill.records.message_set import MessageSet

NOW = 1_700_000_000_000
BATCHES = b"".join(
    build_batch([(NOW, b"k%d" % number, bytes(100), [])] * 4, GZIP, base_offset=number * 4)
    for number in range(3)
)
SENT = build_message_set(1, [(NOW, b"k", b"v"), (NOW + 1, None, b"w")], GZIP)


def sent_over_socket(message: Message) -> Message:
    """Returns the message that the other process receives."""
    head: tuple[Value, ...] = marshal.loads(marshal.dumps(message.head))
    return Message(head, message.data)


def in_process(job: ConversionJob[Result]) -> Result:
    """Returns the result of a job that runs in a process."""
    answer = JOBS[job.encode().head[0]](sent_over_socket(job.encode()))
    return result_of(job, sent_over_socket(answer))


@pytest.mark.parametrize(
    ("magic", "first_offset", "bytes_max", "unpacked_bytes_max"),
    [(0, 0, 1 << 20, 1 << 20), (1, 5, 1 << 20, 1 << 20), (1, 0, 10, 1 << 20), (1, 8, 200, 1 << 16)],
)
def test_a_down_conversion(magic: int, first_offset: int, bytes_max: int, unpacked_bytes_max: int) -> None:
    job = DownConversionJob(BATCHES, magic, first_offset, bytes_max, unpacked_bytes_max)
    made, own = in_process(job), job.run()
    assert made.data == own.data != b""
    assert (made.next_offset, made.next_position, made.record_count) == (
        own.next_offset,
        own.next_position,
        own.record_count,
    )
    assert made.next_offset == (4 if bytes_max == 10 else 12)


@pytest.mark.parametrize(
    ("sent", "magic", "codec", "level"),
    [
        (SENT, 0, KEEP_CODEC, None),
        (SENT, 0, NO_COMPRESSION, None),
        (SENT, 1, NO_COMPRESSION, None),
        (SENT, 1, GZIP, 9),
        (SENT, 2, ZSTD, 3),
        (build_batch([(NOW, None, b"v", [])]), 2, GZIP, 1),
        (build_batch([(NOW, None, b"v", [])]), 0, GZIP, 1),
    ],
)
@pytest.mark.parametrize("append_time", [False, True])
def test_a_conversion_for_storage(
    sent: bytes, magic: int, codec: int, level: int | None, append_time: bool
) -> None:
    job = StorageConversionJob(sent, magic, codec, RecordLimits(), NOW, append_time, level)
    made, own = in_process(job), job.run()
    assert type(made) is type(own)
    if isinstance(made, Batch):
        assert magic == 2
        assert made.to_bytes() == own.to_bytes()
        return
    assert isinstance(made, MessageSet)
    assert isinstance(own, MessageSet)
    assert made.magic == magic
    assert (made.data, made.magic, made.codec, made.record_count, made.max_timestamp) == (
        own.data,
        own.magic,
        own.codec,
        own.record_count,
        own.max_timestamp,
    )
    assert (made.unpacked, made.level) == (own.unpacked, own.level)


def test_the_placement_of_a_wrapper() -> None:
    messages = build_message_set(0, [(NOW, b"k", b"v")] * 3)
    job = WrapperPlacementJob(messages, GZIP, 3, 9, 1000)
    made, own = in_process(job), job.run()
    assert made.stored(1000) == own.stored(1000)
    assert (made.base_offset, made.record_count, made.codec, made.magic) == (1000, 3, GZIP, 0)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (RecordLimits(max_batch_bytes=30), ErrorCode.MESSAGE_TOO_LARGE),
        (RecordLimits(unpacked_bytes_max=10), ErrorCode.INVALID_RECORD),
        (RecordLimits(key_required=True), ErrorCode.INVALID_RECORD),
        (RecordLimits(timestamp_before_ms=9), ErrorCode.INVALID_TIMESTAMP),
        (RecordLimits(timestamp_before_ms=9, check_timestamps=False), None),
        (RecordLimits(timestamp_before_ms=10), None),
    ],
)
def test_each_limit_of_a_topic_applies_in_the_process(limits: RecordLimits, code: ErrorCode | None) -> None:
    job = StorageConversionJob(SENT, 2, KEEP_CODEC, limits, NOW + 10, False, None)
    if code is None:
        assert in_process(job).record_count == 2
        return
    with pytest.raises(KafkaError) as own:
        job.run()
    with pytest.raises(KafkaError) as caught:
        in_process(job)
    assert (caught.value.code, str(caught.value)) == (code, str(own.value))
    if isinstance(own.value, InvalidRecord):
        assert isinstance(caught.value, InvalidRecord)
        assert caught.value.record_errors == own.value.record_errors


def test_the_future_limit_applies_in_the_process() -> None:
    job = StorageConversionJob(SENT, 2, KEEP_CODEC, RecordLimits(timestamp_after_ms=0), NOW, False, None)
    with pytest.raises(InvalidRecord) as caught:
        in_process(job)
    assert [index for index, _ in caught.value.record_errors] == [1]
