"""The way of a produce request: decode, append, answer. Version 0 to 13; compiled.

The layout of request and reply is in :mod:`tidemill.broker.produce_codec`.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i16, i32, i64

from tidemill.broker.produce_codec import (
    BY_ID,
    NONE,
    ProduceFields,
    ProducePart,
    decode,
    encode,
)
from tidemill.broker.refusals import PASSING, Refusals
from tidemill.model.errors import ErrorCode, InvalidRecord, KafkaError, ProtocolError
from tidemill.model.ports import Clock
from tidemill.net.connection import Connection, Reply
from tidemill.net.deadlines import Deadlines
from tidemill.net.memory import Memory
from tidemill.records.batch import MAGIC, ZSTD, Batch, parse_batch
from tidemill.records.convert import for_storage, is_costly_for_storage
from tidemill.records.message_set import MessageSet
from tidemill.records.validate import is_costly, validate
from tidemill.replication.partition import Partition
from tidemill.replication.topics import TopicTable
from tidemill.replication.waiting import Awaited

CURRENT_FORMAT: Final = 3
"""From this version on a request carries one batch for a partition, before it message sets."""
ZSTD_FROM: Final = 7
WRAPPED_HERE_BYTES: Final = 16 * 1024
"""Of a compressed set for a topic of format v0, which is compressed once its offsets are known."""


class PlacedSet(MessageSet):
    """A wrapper of format v0 that was compressed for one place in the log."""

    def __init__(self, data: bytes, base_offset: i64, codec: i64, record_count: i64) -> None:
        super().__init__(data, 0, codec, record_count, -1)
        self.base_offset: i64 = base_offset

    def stored(self, base_offset: i64, append_time_ms: i64 = -1) -> bytes:
        """The bytes, which hold their offsets already."""
        if base_offset != self.base_offset:
            raise RuntimeError(f"a set made for offset {self.base_offset} was to be stored at {base_offset}")
        return self.data


class ProduceRequest(ProduceFields):
    """A decoded request; it waits for its partitions when it has to."""

    def __init__(self, connection: Connection, data: bytes, version: i16, correlation_id: i32) -> None:
        super().__init__(version, correlation_id)
        self.connection = connection
        self.data = data
        self.reply: Reply | None = None
        self.waiting_for: list[ProducePart] = []
        self.is_appended = False
        """Every partition has its batch, or an error. Before that, no commit ends the request."""
        self.done = False

    def on_committed(self, partition: Awaited) -> None:
        """One of the partitions has what was appended."""
        self._settle(partition, None)

    def on_append_failed(self, partition: Awaited, error: KafkaError) -> None:
        """One of the partitions will not have it."""
        self._settle(partition, error)

    def _settle(self, partition: Awaited, error: KafkaError | None) -> None:
        if self.done:
            return
        rest: list[ProducePart] = []
        for part in self.waiting_for:
            if part.partition is not partition:
                rest.append(part)
            elif error is not None:
                part.fail(error)
            elif partition.holds_back(self.acks, part.end_offset):
                rest.append(part)
            elif self.acks == -1:
                short = partition.commit_error()
                if short is not None:
                    part.fail(short)
        self.waiting_for = rest
        if not rest and self.is_appended:
            self.finish()

    def is_over(self) -> bool:
        """Whether the request was answered, or nobody waits for the answer any more."""
        return self.done or self.connection.closed

    @property
    def is_wanted(self) -> bool:
        """Whether it is still to be appended after it had to wait. A client that waits for no answer may be
        gone by then; one that does will send it again."""
        return self.acks == 0 or not self.connection.closed

    def on_deadline(self) -> None:
        """The client's timeout has passed: what is still waited for is answered as timed out."""
        if self.done:
            return
        error = KafkaError(f"not committed within timeout.ms={self.timeout_ms}", ErrorCode.REQUEST_TIMED_OUT)
        for part in self.waiting_for:
            part.fail(error)
        self.waiting_for = []
        self.finish()

    def finish(self) -> None:
        """Sends the reply. The records are let go: the deadline may keep this object for long."""
        self.done = True
        reply = self.reply
        if reply is not None:
            reply.complete([encode(self)] if self.acks != 0 else [])
        self.data = b""
        self.topics = []


class ProducePath:
    """Takes produce requests of all connections."""

    def __init__(
        self, topics: TopicTable, clock: Clock, deadlines: Deadlines, slow_lane: Any, memory: Memory
    ) -> None:
        self.topics = topics
        self.clock = clock
        self.deadlines = deadlines
        self.slow_lane = slow_lane
        """Called with a request that holds a batch too costly for the loop, after ``reply`` was set."""
        self.memory = memory
        self.errors: dict[int, int] = {}
        self.refusals = Refusals()
        self.congested = False
        self.held_back: list[ProduceRequest] = []

    def handle(
        self, connection: Connection, data: bytes, body: i64, end: i64, version: i16, correlation_id: i32
    ) -> None:
        """Takes the request whose fields begin at ``body``. ProtocolError: it is none."""
        request = ProduceRequest(connection, data, version, correlation_id)
        try:
            decode(request, data, body, end)
        except IndexError as problem:
            raise ProtocolError(f"Produce version {version} is cut short: {problem}") from None
        if self.congested:
            request.reply = connection.reply_later()
            connection.context.busy = True
            self.held_back.append(request)
            self.memory.take(len(data))
            return
        self.take(request)

    def set_congested(self, congested: bool) -> None:
        """While the disk falls behind, requests wait here; each connection has one at most."""
        self.congested = congested
        while self.held_back and not self.congested:
            request = self.held_back.pop(0)
            self.memory.release(len(request.data))
            request.connection.context.busy = False
            if request.is_wanted:
                try:
                    self.take(request)
                except Exception as problem:  # noqa: BLE001 - the others that were held back go on
                    request.connection.crash(problem)

    def forget(self, connection: Connection) -> None:
        """The connection has ended: what it wanted an answer to, it will send again."""
        for request in list(self.held_back):
            if request.connection is connection and not request.is_wanted:
                self.held_back.remove(request)
                self.memory.release(len(request.data))

    def take(self, request: ProduceRequest) -> None:
        """Checks and appends a request."""
        now_ms = self.clock.wall_ms()
        if self.check(request) and not self.prepare(request, now_ms):
            if request.reply is None:
                request.reply = request.connection.reply_later()
            self.slow_lane(request)
            return
        self.append_all(request, now_ms)

    def check(self, request: ProduceRequest) -> bool:
        """Whether any of it may be appended; otherwise every partition carries the error."""
        error: KafkaError | None = None
        if request.transactional:
            error = KafkaError(
                "transactions are not supported by this version: produce without transactional.id, "
                "and no batch as part of a transaction",
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            )
        elif request.acks < -1 or request.acks > 1:
            error = KafkaError(
                f"acks={request.acks} is not one of -1 (all), 0 and 1", ErrorCode.INVALID_REQUIRED_ACKS
            )
        if error is None:
            return True
        for topic in request.topics:
            for part in topic.parts:
                part.fail(error)
        return False

    def prepare(self, request: ProduceRequest, now_ms: i64) -> bool:
        """Finds partitions and checks batches; False when one of them is too costly to check here."""
        quick = True
        for topic in request.topics:
            entry = (
                self.topics.by_id.get(topic.key)
                if request.version >= BY_ID
                else self.topics.by_name.get(topic.key)
            )
            for part in topic.parts:
                partition = None if entry is None else entry.partition(part.index)
                try:
                    if partition is None:
                        raise unknown_partition(topic.key, part.index, request.version, entry is None)
                    if entry is not None and entry.internal:
                        raise internal_topic(entry.name)
                    part.partition = partition
                    partition.check_leader(-1)
                    if partition.reserved:
                        quick = False
                    if request.version < CURRENT_FORMAT or not partition.storage.as_produced:
                        if not self.prepare_other(request, part, partition, now_ms):
                            quick = False
                        continue
                    part.batch = only_batch(request.data, part.start, part.end)
                    if part.batch.codec == ZSTD and request.version < ZSTD_FROM:
                        raise unexpected_zstd(request.version)
                    if is_costly(part.batch):
                        part.unchecked = True
                        quick = False
                    else:
                        part.batch = validate(part.batch, partition.limits, now_ms)
                except KafkaError as error:
                    part.fail(error)
                    self.note_refused(request, part, error)
        return quick

    def note_refused(self, request: ProduceRequest, part: ProducePart, error: KafkaError) -> None:
        """The batches behind this one, which may be here already, must not be stored before it."""
        batch = part.batch
        if batch is None and request.version >= CURRENT_FORMAT and error.code in PASSING:
            try:
                batch = only_batch(request.data, part.start, part.end)
            except KafkaError:
                return
        if batch is not None:
            now_ms: i64 = self.clock.monotonic_ms()
            partition = part.partition
            if partition is None:
                self.refusals.note(part.topic, part.index, batch, error, None, now_ms)
            else:
                # By its name: the same client may name a topic by id in one request, and not in the next.
                name = partition.topic.encode()
                self.refusals.note(name, part.index, batch, error, partition.log.producer_state, now_ms)

    def prepare_other(
        self, request: ProduceRequest, part: ProducePart, partition: Partition, now_ms: i64
    ) -> bool:
        """Brings records into the form that the topic stores; False where that is too costly to do here."""
        data = request.data
        storage = partition.storage
        if part.start == part.end and request.version < CURRENT_FORMAT:
            # An empty message set was never an error: Kafka answers it with offset -1.
            part.end_offset = 0
            return True
        if request.version >= CURRENT_FORMAT:
            batch = only_batch(data, part.start, part.end)
            if batch.codec == ZSTD and request.version < ZSTD_FROM:
                raise unexpected_zstd(request.version)
        if is_costly_for_storage(data, part.start, part.end, storage.magic, storage.codec):
            part.converts = True
            return False
        part.take(
            for_storage(
                data,
                part.start,
                part.end,
                storage.magic,
                storage.codec,
                partition.limits,
                now_ms,
                storage.append_time,
                storage.level,
            )
        )
        self.count_conversion(request, part)
        messages = part.messages
        return messages is None or messages.unpacked is None or len(messages.unpacked) <= WRAPPED_HERE_BYTES

    def count_conversion(self, request: ProduceRequest, part: ProducePart) -> None:
        """Counts the records of ``part`` as converted, where their format is another one than it was."""
        partition = part.partition
        if partition is None or part.end - part.start <= MAGIC:
            return
        sent: i64 = i64(request.data[part.start + MAGIC])
        batch = part.batch
        messages = part.messages
        if batch is not None and sent != batch.magic:
            partition.produce_conversions += batch.record_count
        elif messages is not None and sent != messages.magic:
            partition.produce_conversions += messages.record_count

    def append_all(self, request: ProduceRequest, now_ms: i64) -> None:
        """Appends what was found good, and answers now or once it is committed."""
        failed = False
        for topic in request.topics:
            for part in topic.parts:
                if part.error == NONE and part.end_offset < 0:
                    self.append(request, part, now_ms)
                if part.error != NONE:
                    failed = True
                    self.errors[part.error] = self.errors.get(part.error, 0) + 1
        request.is_appended = True
        if request.waiting_for:
            self.wait(request)
        elif request.acks != 0:
            request.done = True
            if request.reply is None:
                request.connection.reply_now(encode(request))
            else:
                request.finish()
        else:
            if request.reply is not None:
                request.finish()
            if failed:
                # With acks=0 there is no reply: the end of the connection tells that something is wrong.
                request.connection.close("a produce with acks=0 failed")

    def append(self, request: ProduceRequest, part: ProducePart, now_ms: i64) -> None:
        """Appends one partition's batch, and waits for its commit where the answer does.

        The wait begins here: before the other partitions have theirs, this one may be committed, or cut.
        """
        partition = part.partition
        batch = part.batch
        messages = part.messages
        if partition is None or (batch is None and messages is None):
            raise RuntimeError("a part without a batch was to be appended")
        try:
            if batch is not None:
                if self.refusals.noted:
                    state = partition.log.producer_state
                    name = partition.topic.encode()
                    at_ms: i64 = self.clock.monotonic_ms()
                    self.refusals.check(name, part.index, batch, state, at_ms)
                    if part.topic != name:
                        # It was refused by its id before this broker knew the topic.
                        self.refusals.check(part.topic, part.index, batch, state, at_ms)
                result = partition.append([batch], request.acks, now_ms)
            elif messages is not None:
                result = partition.append_messages(messages, request.acks, now_ms)
        except KafkaError as error:
            part.fail(error)
            self.note_refused(request, part, error)
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                partition.events.storage_trouble(partition, error)
            return
        part.base_offset = result.base_offset
        part.end_offset = result.last_offset + 1
        part.append_time = result.append_time_ms
        part.log_start = result.start_offset
        if request.acks != 0 and partition.holds_back(request.acks, part.end_offset):
            request.waiting_for.append(part)
            if request.acks == -1:
                partition.wait_committed(part.end_offset, request)
            else:
                partition.wait_synced(part.end_offset, request)

    def wait(self, request: ProduceRequest) -> None:
        """Answers the request once its partitions have what was appended, or at its deadline."""
        if request.reply is None:
            request.reply = request.connection.reply_later()
        # What was appended need not be held: only its answer waits.
        request.data = b""
        for topic in request.topics:
            for one in topic.parts:
                one.batch = None
                one.messages = None
        self.deadlines.add(request.timeout_ms, request)


def unknown_partition(key: bytes, index: i32, version: i16, topic_unknown: bool) -> KafkaError:
    """The error for a partition that is not here."""
    if version >= BY_ID and topic_unknown:
        return KafkaError(f"no topic has the id {key.hex()}", ErrorCode.UNKNOWN_TOPIC_ID)
    name = key.hex() if version >= BY_ID else key.decode("utf-8", "replace")
    return KafkaError(f"{name}-{index} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def internal_topic(name: str) -> KafkaError:
    """The error for a topic whose records only brokers write: committed offsets can be forged there."""
    return KafkaError(
        f"{name} is an internal topic: brokers write it, produce requests do not",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    )


def unexpected_zstd(version: i16) -> KafkaError:
    """The error for a codec that clients of this version do not know."""
    return KafkaError(
        f"zstd in Produce {version}: it may be used from version {ZSTD_FROM} on",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    )


def only_batch(data: bytes, start: i64, end: i64) -> Batch:
    """The one batch between ``start`` and ``end``: since v3 a produce holds exactly one for a partition."""
    if end == start:
        raise InvalidRecord("no records: produce requests from version 3 on carry one batch for a partition")
    if end - start >= 17 and data[start + 16] != 2:
        raise InvalidRecord(
            f"a batch of message format {data[start + 16]}: produce requests from version 3 on carry format 2"
        )
    batch = parse_batch(data, start, end)
    if batch.size != end - start:
        raise InvalidRecord(
            f"{end - start} bytes of records hold more than one batch (the first has {batch.size} bytes)"
        )
    return batch
