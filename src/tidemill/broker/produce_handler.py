"""Handles Produce requests: decodes them, admits them, appends the records, sends the response. Compiled.

    decode ─► admit ─► (prepare: validate, convert) ─► append ─► respond, now or after the replication

The layouts are in :mod:`tidemill.broker.produce_codec`, the refusals in
:mod:`tidemill.broker.produce_admission_checks`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i16, i32, i64, mypyc_attr

from tidemill.broker.api_declaration import CompiledApi
from tidemill.broker.delayed_produce import AwaitedAppend, DelayedProduce, UnsentResponse
from tidemill.broker.produce_admission import (
    Admission,
    AdmissionResult,
    BatchAppend,
    PartitionAppend,
    PreparedPartition,
    ReadyAppend,
    is_immediate,
)
from tidemill.broker.produce_codec import (
    FIRST_VERSION,
    LAST_VERSION,
    Appended,
    PartitionResult,
    ProduceRequest,
    Refused,
    decode,
    encode,
    first_error,
)
from tidemill.broker.rejected_batches import RejectedBatches
from tidemill.broker.transaction_guard import (
    NO_GUARDS,
    TransactionGuard,
    batch_of,
    check_guard,
    guards_of,
)
from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.model.system_interfaces import Clock
from tidemill.net.connection import Connection, PendingResponse
from tidemill.net.deadlines import Deadlines
from tidemill.net.memory_pool import MemoryPool
from tidemill.replication.hosted_topics import TopicTable
from tidemill.replication.partition import Partition
from tidemill.wire.apis import ApiKey

API: Final = CompiledApi(ApiKey.PRODUCE, FIRST_VERSION, LAST_VERSION)


def should_append(connection: Connection, request: ProduceRequest) -> bool:
    """Whether a request must still be appended after a wait.

    A client with acks=0 may have closed the connection. Any other client sends the request again.
    """
    return request.acks == 0 or not connection.closed


class CongestedRequest:
    """A decoded request that is delayed because the disk is congested."""

    def __init__(self, reply: PendingResponse, request: ProduceRequest, data: bytes) -> None:
        self.reply: Final = reply
        self.request: Final = request
        self.data: Final = data


class AdmittedRequest:
    """A request to prepare: the result of the admission for each partition, in the order of the request."""

    def __init__(
        self,
        connection: Connection,
        reply: PendingResponse,
        request: ProduceRequest,
        frame_bytes: i64,
        partitions: list[AdmissionResult],
        guards: list[TransactionGuard | None],
    ) -> None:
        self.connection: Final = connection
        self.reply: Final = reply
        """The position of its response."""
        self.request: Final = request
        self.frame_bytes: Final[i64] = frame_bytes
        self.partitions: Final = partitions
        self.guards: Final = guards
        """For each partition the guard of a batch that would begin a transaction; empty without any."""


@mypyc_attr(free_list_len=1)
class PreparedRequest:
    """A request whose records can be appended."""

    def __init__(
        self,
        connection: Connection,
        reply: PendingResponse | None,
        request: ProduceRequest,
        partitions: list[PreparedPartition],
        guards: list[TransactionGuard | None],
    ) -> None:
        self.connection: Final = connection
        self.reply: Final = reply
        """The position of its response, if the request has waited."""
        self.request: Final = request
        self.partitions: Final = partitions
        """In the order of the request. The preparation adds them one by one."""
        self.guards: Final = guards
        """As in :class:`AdmittedRequest`."""
        self.delayed: DelayedProduce | None = None
        """None until an append must be awaited."""

    @property
    def should_append(self) -> bool:
        """As :func:`should_append`."""
        return should_append(self.connection, self.request)

    def await_append(self, number: int, partition: Partition, required_offset: i64) -> None:
        """Delays the response until the records below ``required_offset`` are committed or flushed.

        ``number``: the index of the append in :attr:`partitions`. The request is registered
        before the appends to the other partitions, during which this append may be committed or truncated.
        """
        acks = self.request.acks
        delayed = self.delayed
        if delayed is None:
            delayed = DelayedProduce(self.connection, acks)
            self.delayed = delayed
        delayed.awaited.append(AwaitedAppend(number, partition, required_offset))
        if acks == -1:
            partition.delayed.wait_committed(required_offset, delayed)
        else:
            partition.delayed.wait_synced(required_offset, delayed)


@mypyc_attr(allow_interpreted_subclasses=True)
class BackgroundPreparation:
    """Prepares costly records outside of the event loop, or in slices."""

    def submit(self, handler: ProduceHandler, admitted: AdmittedRequest) -> None:
        """Validates and converts records, waits for reserved log ends, then calls ``handler.append_all``.

        Meanwhile the pending response blocks later requests of the connection.
        """
        raise NotImplementedError


class ProduceHandler:
    """Handles the Produce requests of all connections."""

    def __init__(
        self,
        topics: TopicTable,
        clock: Clock,
        deadlines: Deadlines,
        preparation: BackgroundPreparation,
        memory: MemoryPool,
        inter_broker_listener: str = "",
    ) -> None:
        self.clock = clock
        self.deadlines = deadlines
        self.preparation = preparation
        self.memory = memory
        self.errors: dict[int, int] = {}
        """The number of partition errors, by error code."""
        self.rejected = RejectedBatches()
        self.admission = Admission(topics, clock, self.rejected, inter_broker_listener)
        self.congested = False
        self.congested_requests: dict[Connection, CongestedRequest] = {}

    def handle(
        self, connection: Connection, data: bytes, body: i64, end: i64, version: i16, correlation_id: i32
    ) -> None:
        """Handles the request whose fields begin at ``body``; raises ProtocolError if it is malformed."""
        try:
            request = decode(data, body, end, version, correlation_id)
        except IndexError as problem:
            raise ProtocolError(f"Produce version {version} is cut short: {problem}") from None
        if self.congested:
            reply = connection.respond_later()
            self.congested_requests[connection] = CongestedRequest(reply, request, data)
            self.memory.reserve(len(data))
            return
        self.admit(connection, None, request, data)

    def set_congested(self, congested: bool) -> None:
        """Delays new requests while the disk is congested, at most one for each connection."""
        self.congested = congested
        while self.congested_requests and not self.congested:
            connection = next(iter(self.congested_requests))
            waiting = self.congested_requests.pop(connection)
            self.memory.release(len(waiting.data))
            if should_append(connection, waiting.request):
                try:
                    self.admit(connection, waiting.reply, waiting.request, waiting.data)
                except Exception as problem:  # noqa: BLE001 - the other delayed requests go on
                    connection.crash(problem)

    def on_close(self, connection: Connection) -> None:
        """Removes the delayed request of a closed connection, unless it has acks=0."""
        waiting = self.congested_requests.get(connection)
        if waiting is not None and not should_append(connection, waiting.request):
            del self.congested_requests[connection]
            self.memory.release(len(waiting.data))

    def admit(
        self, connection: Connection, reply: PendingResponse | None, request: ProduceRequest, data: bytes
    ) -> None:
        """Admits a request, and appends it unless it must be prepared first."""
        now_ms = self.clock.wall_ms()
        partitions = self.admission.admit(request, data, now_ms, connection.peer.listener)
        guards = guards_of(partitions, request.version) if request.is_transactional else NO_GUARDS
        if not guards and is_immediate(partitions):
            self.append_all(PreparedRequest(connection, reply, request, partitions, guards), now_ms)
            return
        if reply is None:
            reply = connection.respond_later()
        self.preparation.submit(
            self, AdmittedRequest(connection, reply, request, len(data), partitions, guards)
        )

    def record_unverified(self, admitted: AdmittedRequest, verified: list[AdmissionResult]) -> None:
        """Records the batches that the verification has refused, so that no later batch is stored before."""
        for one, result in zip(admitted.partitions, verified, strict=True):
            if isinstance(result, Refused) and isinstance(one, PartitionAppend):
                batch = batch_of(one)
                if batch is not None:
                    now_ms = self.clock.monotonic_ms()
                    self.rejected.record(one.records, one.partition, batch, result.error, now_ms)

    def append_all(self, prepared: PreparedRequest, now_ms: i64) -> None:
        """Appends the prepared records, and sends the response now or once the appends are complete."""
        results: list[PartitionResult] = []
        for number, one in enumerate(prepared.partitions):
            if isinstance(one, ReadyAppend):
                results.append(self.append(prepared, number, one, now_ms))
            else:
                results.append(one)
        if prepared.delayed is not None:
            results = prepared.delayed.with_failures(results)
        failed = self.count_errors(results)
        self.respond(prepared, results)
        if failed and prepared.request.acks == 0:
            # With acks=0 there is no response: the end of the connection reports the error.
            problem = first_error(prepared.request, results)
            prepared.connection.close(f"a Produce request with acks=0 failed: {problem}")

    def count_errors(self, results: list[PartitionResult]) -> bool:
        """Counts the errors by their code. Returns whether there are any."""
        failed = False
        for result in results:
            if isinstance(result, Refused):
                failed = True
                code = int(result.error.code)
                self.errors[code] = self.errors.get(code, 0) + 1
        return failed

    def append(
        self, prepared: PreparedRequest, number: int, append: ReadyAppend, now_ms: i64
    ) -> Appended | Refused:
        """Appends the records of one partition, and registers the request if the response must wait.

        ``number``: the index of the append in the partitions of the request.
        """
        records = append.records
        partition = append.partition
        acks = prepared.request.acks
        try:
            if prepared.guards:
                check_guard(prepared.guards[number])
            if self.rejected.rejections and isinstance(append, BatchAppend):
                self.rejected.check(records, partition, append.batch, self.clock.monotonic_ms())
            result = append.append(acks, now_ms)
        except KafkaError as error:
            if isinstance(append, BatchAppend):
                self.rejected.record(records, partition, append.batch, error, self.clock.monotonic_ms())
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
                partition.events.on_storage_error(partition, error)
            return Refused(records.index, error)
        required_offset: i64 = result.last_offset + 1
        if acks != 0 and partition.must_delay_response(acks, required_offset):
            prepared.await_append(number, partition, required_offset)
        return Appended(records.index, result.base_offset, result.append_time_ms, result.start_offset)

    def respond(self, prepared: PreparedRequest, results: list[PartitionResult]) -> None:
        """Sends the response now, or delays it until the awaited appends are complete."""
        request = prepared.request
        connection = prepared.connection
        reply = prepared.reply
        delayed = prepared.delayed
        if delayed is not None and delayed.awaited:
            if reply is None:
                reply = connection.respond_later(blocks_requests=False)
            else:
                reply.unblock_requests()
            delayed.response = UnsentResponse(reply, request, results)
            self.deadlines.add(request.timeout_ms, delayed)
        elif reply is not None:
            reply.complete([encode(request, results)] if request.acks != 0 else [])
        elif request.acks != 0:
            connection.respond_now(encode(request, results))
