"""The producer's buffer: one queue of batches per partition, in the order in which they were created.

This code runs once per message and does no I/O. Threads that send append to the last batch of a partition;
the sender thread removes batches from the front. One lock protects all queues, and both sides hold it
briefly.

A batch goes ``open -> waiting -> in flight -> done``, and back to waiting when it is retried. Sequence
numbers are assigned when a batch is first sent. Retries keep the order: a partition with a batch that was
sent before sends nothing else until that batch is completed.

Source: KIP-98 (idempotence), KIP-91 (delivery timeout), KIP-360 (a producer bumps its own epoch), KIP-480
(sticky partitions).
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from mypy_extensions import i64

from tidemill.client.errors import BufferFull, ClientClosed, ClientError, RequestTimeout
from tidemill.client.partitioners import CONSISTENT, MURMUR2, ROUND_ROBIN, crc32_partition, murmur2
from tidemill.model.errors import ErrorCode
from tidemill.records.builder import BatchBuilder

RECORD_OVERHEAD_BYTES: Final = 24
"""Approximate size of a record without key and value; batch headers are negligible here."""

NUMBER_STEP: Final = 1 << 32
"""Distance between the numbers of adjacent batches: space for the parts that a batch may be split into."""

SEQUENCE_MASK: Final = 0x7FFFFFFF
EPOCH_MAX: Final = 32767


class ProducerBatch:
    """A batch of messages, its state and its result."""

    def __init__(
        self, queue: PartitionQueue, number: int, created: float, codec: i64, level: int | None
    ) -> None:
        self.queue = queue
        self.number = number
        self.span = NUMBER_STEP
        self.created = created
        self.builder = BatchBuilder(codec, level)
        self.bytes: i64 = 0
        self.urgent = False
        self.full = False
        self.attempts = 0
        self.refusals = 0
        """Attempts that the broker has refused: they are not in the log."""
        self.in_doubt = False
        """Whether the batch may be in the log: it was sent, and no response has excluded that."""
        self.retry_at = 0.0
        self.producer_id: i64 = -1
        self.producer_epoch: i64 = -1
        self.sequence: i64 = -1
        self.done = False
        self.error: Exception | None = None
        self.last_refusal: Exception | None = None
        self.base_offset: i64 = -1
        self.append_time_ms: i64 = -1
        self.callbacks: list[tuple[int, int, OnDelivery]] | None = None
        self.event: threading.Event | None = None
        self.parts: list[ProducerBatch] | None = None
        self.part_starts: list[int] | None = None


class RecordMetadata:
    """The position of a message: ``offset`` is -1 with acks=0, and if the broker already had the message."""

    def __init__(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms

    def __repr__(self) -> str:
        return (
            f"RecordMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms})"
        )


OnDelivery = Callable[[RecordMetadata | None, Exception | None], None]
"""A callback for the result of a message: one of the two is None."""


class Delivery:
    """The result of one message, known once its batch is completed."""

    def __init__(
        self, accumulator: RecordAccumulator, batch: ProducerBatch, index: i64, timestamp_ms: i64
    ) -> None:
        self._accumulator = accumulator
        self.batch = batch
        """The batch to which the message was appended. It may have been split since."""
        self._index: i64 = index
        self.first_index: i64 = index
        """Index of the first of the messages that :meth:`exception_of_all` covers."""
        self._timestamp_ms: i64 = timestamp_ms

    def done(self) -> bool:
        """Whether the message was acknowledged or has failed."""
        return self._final_batch()[0].done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Waits for the acknowledgement, up to ``timeout`` seconds; raises the error if the message failed.

        Waiting ends lingering: the batch is sent at once. Raises RequestTimeout if there is no result yet.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """As :meth:`result`, but returns the error instead of raising it; None if there is none."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            batch = self._final_batch()[0]
            if batch.done and batch.parts is None:
                return batch.error
            self._accumulator.await_batch(
                batch, None if deadline is None else max(0.0, deadline - time.monotonic())
            )

    def all_done(self) -> bool:
        """As :meth:`done`, for the messages of the batch from :attr:`first_index` to this one."""
        return all(batch.done for batch in self._batches())

    def exception_of_all(self, timeout: float | None = None) -> Exception | None:
        """As :meth:`exception`, for the messages of the batch from :attr:`first_index` to this one."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.all_done():
            for batch in self._batches():
                self._accumulator.await_batch(
                    batch, None if deadline is None else max(0.0, deadline - time.monotonic())
                )
        return next((batch.error for batch in self._batches() if batch.error is not None), None)

    def _batches(self) -> list[ProducerBatch]:
        """Returns the batches that contain the messages from :attr:`first_index` to this one."""
        found: list[ProducerBatch] = []
        todo: list[tuple[ProducerBatch, int, int]] = [(self.batch, int(self.first_index), int(self._index))]
        while todo:
            batch, first, last = todo.pop()
            parts, starts = batch.parts, batch.part_starts
            if parts is None or starts is None:
                found.append(batch)
                continue
            for number, start in enumerate(starts):
                end = starts[number + 1] if number + 1 < len(starts) else last + 1
                if first < end and last >= start:
                    todo.append((parts[number], max(first - start, 0), min(last, end - 1) - start))
        return found

    def _final_batch(self) -> tuple[ProducerBatch, i64]:
        """Returns the batch of the message and its index there, following the parts of a split batch."""
        batch = self.batch
        index: i64 = self._index
        while batch.parts is not None and batch.part_starts is not None:
            number = 0
            for i in range(len(batch.part_starts)):
                if i64(batch.part_starts[i]) <= index:
                    number = i
            index -= i64(batch.part_starts[number])
            batch = batch.parts[number]
        return batch, index

    def _metadata(self) -> RecordMetadata:
        batch, index = self._final_batch()
        return metadata_of(batch, int(index), int(self._timestamp_ms))


def metadata_of(batch: ProducerBatch, index: int, timestamp_ms: int) -> RecordMetadata:
    """Returns the position of the message at ``index`` of a completed batch."""
    offset = int(batch.base_offset)
    time_ms = timestamp_ms if batch.append_time_ms < 0 else int(batch.append_time_ms)
    return RecordMetadata(
        batch.queue.topic, batch.queue.partition, offset + index if offset >= 0 else -1, time_ms
    )


class PartitionQueue:
    """The batches of one partition: ``waiting`` (the last may be open) and ``in_flight``, both in order."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.open_batch: ProducerBatch | None = None
        self.next_number = 0
        self.producer_id: i64 = -1
        self.producer_epoch: i64 = -1
        self.next_sequence: i64 = 0
        self.epoch_bump_required = False
        self.in_flight_node_id: i64 = -1
        """The broker that has the batches in flight."""
        self.acknowledged_at = 0.0
        """When the last of its batches was acknowledged, in monotonic seconds."""
        self.has_failed = False
        """Whether the last completed batch failed."""


class TopicQueues:
    """The queues of one topic, and the current partition of messages without a key."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = [PartitionQueue(name, p) for p in range(partitions)]
        self.available: list[int] = list(range(partitions))
        self.round_robin_turn: i64 = 0
        self.sticky_partition: i64 = -1


class RecordAccumulator:
    """All queues of a producer. Calls ``wake``, under the lock, when the sender has work."""

    def __init__(
        self,
        batch_bytes: i64,
        buffer_bytes: i64,
        message_bytes_max: i64,
        codec: i64,
        level: int | None,
        kind: i64,
        custom: Callable[[str, bytes | None, int], int] | None,
        wake: Callable[[], None],
    ) -> None:
        self.batch_bytes: i64 = batch_bytes
        self.buffer_bytes: i64 = buffer_bytes
        self.message_bytes_max: i64 = message_bytes_max
        self.codec: i64 = codec
        self.compression_level = level
        self.partitioner_kind: i64 = kind
        self.custom_partitioner = custom
        self.wake = wake
        self.used_bytes: i64 = 0
        self.waiters = 0
        self.messages: i64 = 0
        """Messages that were appended so far; the next two count those acknowledged and those that failed."""
        self.messages_acknowledged: i64 = 0
        self.messages_failed: i64 = 0
        self.messages_refused: i64 = 0
        self.closed: ClientError | None = None
        """The error that appends raise."""
        self.forked: ClientError | None = None
        """The error that waiting raises in a forked child, where no thread completes a batch."""
        self.lock = threading.Lock()
        self.space_freed = threading.Condition(self.lock)
        self.topics: dict[str, TopicQueues] = {}
        self.active: dict[PartitionQueue, None] = {}
        self.incomplete: dict[ProducerBatch, None] = {}

    # -- called by the threads that send ------------------------------------------------------------------

    def append(
        self,
        topic: TopicQueues,
        partition: i64,
        timestamp_ms: i64,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        on_delivery: OnDelivery | None,
        max_block_s: float,
    ) -> Delivery:
        """Appends a message; ``partition`` -1 calls the partitioner. Blocks while the buffer is full.

        A partitioner of the user runs before the lock is taken: it may be slow, and may use the producer.
        """
        size: i64 = RECORD_OVERHEAD_BYTES
        if key is not None:
            size += i64(len(key))
        if value is not None:
            size += i64(len(value))
        if headers is not None:
            for name, content in headers:
                size += 10 + i64(len(name)) + (0 if content is None else i64(len(content)))
        if size > self.message_bytes_max or size > self.buffer_bytes:
            raise self._too_large(topic, size)
        if partition < 0 and self.custom_partitioner is not None:
            partition = self._call_partitioner(self.custom_partitioner, topic, key)
        self.lock.acquire()
        try:
            self.check_open()
            if self.used_bytes + size > self.buffer_bytes:
                self._await_space(size, max_block_s)
            if partition < 0:
                partition = self._choose_partition(topic, key)
            batch = self._batch_for(topic, partition, size)
            before: i64 = batch.builder.size_bytes
            index: i64 = batch.builder.count
            try:
                after: i64 = batch.builder.append(timestamp_ms, key, value, headers)
            except BaseException:
                if batch.builder.count == 0:
                    self._forget_batch(batch)
                raise
            batch.bytes += after - before
            self.used_bytes += after - before
            self.messages += 1
            if on_delivery is not None:
                if batch.callbacks is None:
                    batch.callbacks = []
                batch.callbacks.append((int(index), int(timestamp_ms), on_delivery))
            if after >= self.batch_bytes and not batch.full:
                self._close_batch(batch)
            return Delivery(self, batch, index, timestamp_ms)
        finally:
            self.lock.release()

    def append_many(
        self,
        topic: TopicQueues,
        partitions: Sequence[int] | None,
        timestamps_ms: Sequence[int | None] | None,
        now_ms: i64,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        headers: Sequence[list[tuple[str, bytes | None]] | None] | None,
        max_block_s: float,
    ) -> list[Delivery]:
        """Appends many messages of one topic; returns one delivery per batch: that of its last message.

        The ``first_index`` of a delivery is the index of the first of these messages in its batch.
        """
        last: dict[ProducerBatch, Delivery] = {}
        count = len(values)
        for i in range(count):
            stamp = now_ms
            if timestamps_ms is not None:
                given = timestamps_ms[i]
                if given is not None:
                    stamp = i64(given)
            delivery = self.append(
                topic,
                -1 if partitions is None else i64(partitions[i]),
                stamp,
                None if keys is None else keys[i],
                values[i],
                None if headers is None else headers[i],
                None,
                max_block_s,
            )
            before = last.get(delivery.batch)
            if before is not None:
                delivery.first_index = before.first_index
            last[delivery.batch] = delivery
        return list(last.values())

    def _call_partitioner(
        self, partitioner: Callable[[str, bytes | None, int], int], topic: TopicQueues, key: bytes | None
    ) -> i64:
        """Calls the user's partitioner. As in Kafka, the topic may get more partitions meanwhile."""
        count: i64 = len(topic.queues)
        chosen: i64 = partitioner(topic.name, key, int(count))
        if chosen < 0 or chosen >= count:
            raise ValueError(f"the partitioner chose {chosen} of {count} partitions of {topic.name!r}")
        return chosen

    def _choose_partition(self, topic: TopicQueues, key: bytes | None) -> i64:
        count: i64 = len(topic.queues)
        if key is not None:
            if self.partitioner_kind == MURMUR2:
                return (murmur2(key) & 0x7FFFFFFF) % count
            if self.partitioner_kind == CONSISTENT:
                return i64(crc32_partition(key, int(count)))
        usable: i64 = len(topic.available)
        if self.partitioner_kind == ROUND_ROBIN:
            topic.round_robin_turn += 1
            if usable == 0:
                return topic.round_robin_turn % count
            return i64(topic.available[topic.round_robin_turn % usable])
        if topic.sticky_partition < 0 or topic.queues[topic.sticky_partition].open_batch is None:
            topic.sticky_partition = self._next_sticky(topic, count, usable)
        return topic.sticky_partition

    def _next_sticky(self, topic: TopicQueues, count: i64, usable: i64) -> i64:
        """Chooses a random partition with a leader, so that the load is even over time."""
        if usable == 0:
            return i64(random.randrange(int(count)))
        chosen: i64 = topic.available[random.randrange(int(usable))]
        if chosen == topic.sticky_partition and usable > 1:
            chosen = topic.available[random.randrange(int(usable))]
        return chosen

    def _batch_for(self, topic: TopicQueues, partition: i64, size: i64) -> ProducerBatch:
        if partition >= i64(len(topic.queues)):
            raise self._no_partition(topic, partition)
        queue = topic.queues[partition]
        batch = queue.open_batch
        if batch is not None:
            if batch.builder.size_bytes + size <= self.batch_bytes:
                return batch
            self._close_batch(batch)
            if self.partitioner_kind != ROUND_ROBIN and topic.sticky_partition == partition:
                topic.sticky_partition = -1
        return self._new_batch(queue)

    def _new_batch(self, queue: PartitionQueue) -> ProducerBatch:
        batch = ProducerBatch(queue, queue.next_number, time.monotonic(), self.codec, self.compression_level)
        queue.next_number += NUMBER_STEP
        queue.open_batch = batch
        queue.waiting.append(batch)
        self.active[queue] = None
        self.incomplete[batch] = None
        self.wake()
        return batch

    def _forget_batch(self, batch: ProducerBatch) -> None:
        """Removes a new batch whose first message could not be appended: an empty batch cannot be sent."""
        batch.queue.open_batch = None
        batch.queue.waiting.remove(batch)
        self.incomplete.pop(batch, None)

    def _close_batch(self, batch: ProducerBatch) -> None:
        batch.full = True
        if batch.queue.open_batch is batch:
            batch.queue.open_batch = None
        self.wake()

    def _await_space(self, size: i64, max_block_s: float) -> None:
        deadline = time.monotonic() + max_block_s
        self.waiters += 1
        try:
            while self.used_bytes + size > self.buffer_bytes:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BufferFull(
                        f"{self.used_bytes} bytes wait to be sent, and {size} more do not fit into "
                        f"buffer.memory={self.buffer_bytes} within max.block.ms; slow down, raise "
                        "buffer.memory, or check whether the brokers keep up"
                    )
                self.wake()
                self.space_freed.wait(left)
                self.check_open()
        finally:
            self.waiters -= 1

    def check_open(self) -> None:
        """Raises the error with which the accumulator was closed, if it was."""
        if self.closed is not None:
            raise self.closed

    def _too_large(self, topic: TopicQueues, size: i64) -> ClientError:
        limit = f"buffer.memory={self.buffer_bytes}"
        if size > self.message_bytes_max:
            limit = f"max.request.size={self.message_bytes_max}"
        return ClientError(
            f"a message of about {size} bytes for topic {topic.name!r} is larger than {limit}; "
            "send smaller messages, or raise this limit and max.message.bytes of the topic",
            ErrorCode.MESSAGE_TOO_LARGE,
            topic=topic.name,
        )

    def _no_partition(self, topic: TopicQueues, partition: i64) -> ClientError:
        return ClientError(
            f"topic {topic.name!r} has no partition {partition}, it has {len(topic.queues)} partitions; "
            "choose a smaller one, or add partitions",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            topic=topic.name,
            partition=int(partition),
        )

    # -- waiting for the result ---------------------------------------------------------------------------

    def await_batch(self, batch: ProducerBatch, timeout: float | None) -> None:
        """Returns once ``batch`` is completed; raises RequestTimeout after ``timeout`` seconds."""
        with self.lock:
            if batch.done:
                return
            self._check_process()
            if batch.event is None:
                batch.event = threading.Event()
            if not batch.urgent:
                batch.urgent = True
                self.wake()
            event = batch.event
        if not event.wait(timeout):
            raise RequestTimeout(
                f"batch for {batch.queue.topic}-{batch.queue.partition} is not completed after "
                f"{timeout:g} s: retries continue until delivery.timeout.ms"
            )

    def mark_all_urgent(self) -> list[ProducerBatch]:
        """Ends the lingering of all waiting batches; returns the batches that are not completed yet."""
        with self.lock:
            self._check_process()
            batches = list(self.incomplete)
            for batch in batches:
                batch.urgent = True
            self.wake()
            return batches

    def _check_process(self) -> None:
        if self.forked is not None:
            raise self.forked

    # -- called by the sender -----------------------------------------------------------------------------

    def complete(self, batch: ProducerBatch, error: Exception | None) -> None:
        """Completes a batch: frees its memory and wakes waiters. The sender runs the callbacks, unlocked."""
        with self.lock:
            batch.error = error
            batch.done = True
            if error is None:
                self.messages_acknowledged += batch.builder.count
                batch.queue.acknowledged_at = time.monotonic()
            else:
                self.messages_failed += batch.builder.count
                if 0 < batch.refusals == batch.attempts:
                    self.messages_refused += batch.builder.count
            batch.queue.has_failed = error is not None
            self.incomplete.pop(batch, None)
            self.used_bytes -= batch.bytes
            if batch.event is not None:
                batch.event.set()
            if self.waiters > 0:
                self.space_freed.notify_all()

    def close(self, error: ClientError) -> None:
        """Makes further appends raise ``error``."""
        with self.lock:
            self.closed = error
            self.space_freed.notify_all()

    def invalidate_after_fork(self, error: ClientError) -> None:
        """Makes appends and waiting raise ``error``. A thread of the parent may hold the former lock."""
        self.lock = threading.Lock()
        self.closed = self.forked = error


def closed_error() -> ClientClosed:
    """Returns the error that a closed producer raises."""
    return ClientClosed("the producer is closed; create a new one", ErrorCode.NETWORK_EXCEPTION)
