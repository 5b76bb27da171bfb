"""The producer's sender thread: sends ready batches to their leaders and handles the responses.

One thread serves all brokers. Helper threads open the connections, so that a dead broker delays only its own
partitions.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import partial

from tidemill.client.background_update import BackgroundUpdate
from tidemill.client.batch_results import BatchResults
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.connection_attempts import no_response_text
from tidemill.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    as_client_error,
    check,
    error_for,
    text_of,
)
from tidemill.client.missing_topic_warnings import MissingTopicWarnings
from tidemill.client.network_client import DATA, SLOW_S, NetworkClient
from tidemill.client.record_accumulator import (
    EPOCH_MAX,
    SEQUENCE_MASK,
    PartitionQueue,
    ProducerBatch,
    RecordAccumulator,
)
from tidemill.client.transaction_manager import PRODUCE_VERSION_MAX, TransactionManager
from tidemill.client.wait_reasons import Kind, Wait
from tidemill.client.wake_pipe import WakePipe
from tidemill.model.errors import ErrorCode, KafkaError, TidemillError
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

logger = logging.getLogger(__name__)

TOPIC_ID_FROM = 13
REQUEST_OVERHEAD_BYTES = 1024

IDLE_S = 1.0


class Sender:
    """The sender thread and its state: sockets to poll, requests in flight, the producer id."""

    def __init__(
        self,
        network_client: NetworkClient,
        accumulator: RecordAccumulator,
        transactions: TransactionManager | None = None,
    ) -> None:
        config = network_client.config
        self._network_client = network_client
        self._accumulator = accumulator
        self._transactions = transactions
        self.results = BatchResults(network_client, accumulator, transactions)
        self._missing_topics = MissingTopicWarnings()
        self._acks = config.int("acks")
        self._linger_s = config.seconds("linger.ms")
        self._request_timeout_ms = min(config.int("request.timeout.ms"), 2**31 - 1)
        self._in_flight_max = config.int("max.in.flight.requests.per.connection")
        self._request_bytes_max = config.int("max.request.size")
        self._delivery_timeout_s = config.seconds("delivery.timeout.ms")
        self._retry_backoff_s = config.seconds("retry.backoff.ms")
        self._update = BackgroundUpdate(self._retry_backoff_s)
        self._idempotent = config.bool("enable.idempotence")
        self._producer_id = -1
        self._producer_epoch = -1
        self._poll = select.poll()
        self._polled_connections: dict[int, Connection] = {}
        self._in_flight: dict[Connection, deque[tuple[InFlightRequest, list[ProducerBatch]]]] = {}
        """The requests in flight, in their order, each with its batches."""
        self._pipe = WakePipe()
        self._poll.register(self._pipe, select.POLLIN)
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="tidemill-producer", daemon=True)

    def wake(self) -> None:
        """Wakes the sender thread. Safe from any thread."""
        self._pipe.wake()

    # -- the loop -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self.stopping and not self._accumulator.incomplete):
                self._run_once()
        except BaseException as problem:
            logger.exception("the producer's sender thread failed")
            error = ClientError(f"the producer's sender thread failed: {problem!r}; create a new producer")
            self._accumulator.close(error)
            for batch in list(self._accumulator.incomplete):
                self.results.complete(batch, error)
            if not isinstance(problem, Exception):
                raise
        finally:
            self._network_client.close()
            self._pipe.close()
            self.results.run_callbacks()

    def _run_once(self) -> None:
        now = time.monotonic()
        self._start_updates(now)
        wait_s = self._send_ready(now)
        self.results.run_callbacks()
        self._poll_responses(wait_s)
        self.results.run_callbacks()

    def _poll_responses(self, wait_s: float) -> None:
        """Waits up to ``wait_s`` seconds for responses or a wake-up; handles the responses."""
        for descriptor, _ in self._poll.poll(int(wait_s * 1000 + 0.999)):
            if descriptor == self._pipe.fileno():
                self._pipe.drain()
                continue
            connection = self._polled_connections.get(descriptor)
            if connection is not None:
                connection.receive()
        now = time.monotonic()
        for connection, requests in list(self._in_flight.items()):
            connection.expire(now)
            while requests and requests[0][0].done:
                self._handle_response(*requests.popleft())
        for descriptor, connection in list(self._polled_connections.items()):
            # The closing thread may not have ended every request yet: a later iteration handles the rest.
            if connection.closed and not self._in_flight.get(connection):
                self._stop_polling(descriptor, connection)

    def _stop_polling(self, descriptor: int, connection: Connection) -> None:
        del self._polled_connections[descriptor]
        self._in_flight.pop(connection, None)
        with contextlib.suppress(KeyError, OSError, ValueError):
            self._poll.unregister(descriptor)
        if not self._network_client.closed:
            self._network_client.record_failure(connection.node_id)
            self._network_client.request_refresh()

    # -- preconditions of sending -------------------------------------------------------------------------

    def _start_updates(self, now: float) -> None:
        """Fails batches that cannot be sent; starts a helper thread for missing metadata or a missing id."""
        self.results.expire_batches(now)
        error = self._transactions.sending_error if self._transactions is not None else None
        if error is not None:
            self.results.fail_all(error, in_flight=False)
        missing_id = self._lacks_producer_id and bool(self._accumulator.active)
        missing_partition = self._transactions is not None and self._transactions.has_partitions_to_add
        if self._network_client.needs_refresh() or missing_id or missing_partition:
            self._update.start(partial(self._update_cluster, missing_id), self._update_failed, self.wake)

    def _update_cluster(self, missing_id: bool, deadline: float) -> None:
        self._network_client.raise_authentication_error()
        if self._network_client.needs_refresh():
            self._network_client.refresh(deadline)
            self.apply_metadata()
        if missing_id:
            self._init_producer_id(deadline)
        if self._transactions is not None and self._transactions.has_partitions_to_add:
            self._transactions.add_partitions(deadline)

    @property
    def _lacks_producer_id(self) -> bool:
        """Whether the producer is idempotent and has no id. A transactional one gets it before it sends."""
        return self._idempotent and self._producer_id < 0 and self._transactions is None

    def _update_failed(self, problem: TidemillError) -> None:
        """Fails the batches that wait, unless the next update may succeed."""
        error = as_client_error(problem)
        if not error.retriable and not isinstance(error, ClientClosed):
            self.results.fail_all(error, in_flight=False)

    def apply_metadata(self) -> None:
        """Updates the queues from the metadata: adds new partitions, and notes which ones have a leader."""
        with self._accumulator.lock:
            for name, topic in self._accumulator.topics.items():
                known = self._network_client.topics.get(name)
                if known is None:
                    continue
                for p in range(len(topic.queues), len(known.partitions)):
                    topic.queues.append(PartitionQueue(name, p))
                topic.available = [p.partition for p in known.partitions if p.leader >= 0]

    def _init_producer_id(self, deadline: float) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        try:
            response = self._network_client.call_any(
                ApiKey.INIT_PRODUCER_ID, request, InitProducerIdResponse, deadline
            )
            check(response.error_code, "get a producer id (enable.idempotence=false needs none)")
        except KafkaError as problem:
            self.results.producer_id_error = problem
            raise
        self.results.producer_id_error = None
        self._producer_epoch = response.producer_epoch
        self._producer_id = response.producer_id

    # -- sending ------------------------------------------------------------------------------------------

    def _send_ready(self, now: float) -> float:
        """Sends the ready batches; returns the seconds until the next batch may be ready, or IDLE_S."""
        wait_s = IDLE_S
        if self._lacks_producer_id:
            return wait_s
        by_node: dict[int, list[PartitionQueue]] = {}
        accumulator = self._accumulator
        with accumulator.lock:
            flushing = accumulator.waiters > 0 or self.stopping
            for queue in list(accumulator.active):
                due_s = self._ready_after_s(queue, now, flushing)
                if due_s > 0:
                    wait_s = min(wait_s, due_s)
                    continue
                leader = self._network_client.leader(queue.topic, queue.partition)
                if self._transactions is not None and not self._transactions.may_send(
                    TopicPartition(queue.topic, queue.partition)
                ):
                    continue
                if queue.in_flight and leader != queue.in_flight_node_id:
                    # A batch in flight to the former leader may be in the log or not. A retry after later
                    # batches would be out of sequence, and a retry in another epoch would be a duplicate.
                    continue
                by_node.setdefault(leader, []).append(queue)
        if self._transactions is not None and self._transactions.take_new_partitions():
            wait_s = 0.0  # The next iteration starts to add them.
        self._warn_of_missing_topics(by_node.get(-1, ()))
        for node_id, queues in by_node.items():
            if node_id < 0:
                self._network_client.request_refresh()
                wait_s = min(wait_s, self._retry_backoff_s)
                continue
            connection = self._network_client.ready_connection(node_id, DATA)
            if connection is None:
                pause = self._network_client.connection_delay(node_id)
                self._network_client.open_in_background(node_id, DATA, self.wake)
                wait_s = min(wait_s, pause or IDLE_S)
                continue
            if self._send_to(connection, queues):
                wait_s = 0.0
        return wait_s

    def _warn_of_missing_topics(self, leaderless: Iterable[PartitionQueue]) -> None:
        """Warns if the topic of a partition without a leader is missing, and once it exists again."""
        known, errors = self._network_client.topics, self._network_client.topic_errors
        for topic in {queue.topic for queue in leaderless}:
            if topic not in known and (code := errors.get(topic)):
                self._missing_topics.is_missing(topic, text_of(ErrorCode.of(code)))
        for topic in self._missing_topics.topics:
            if topic in known:
                self._missing_topics.exists(topic)

    def _ready_after_s(self, queue: PartitionQueue, now: float, flushing: bool) -> float:
        """Seconds until the first batch may be sent; 0: now, IDLE_S: once a response arrives."""
        waiting = queue.waiting
        if not waiting:
            self._accumulator.active.pop(queue, None)
            return IDLE_S
        head = waiting[0]
        if queue.epoch_bump_required and not queue.in_flight and not head.in_doubt:
            # A batch that may be in the log keeps its sequence: in another epoch it would be a duplicate.
            self._bump_epoch(queue)
            if queue.producer_id < 0:
                return IDLE_S
        if queue.in_flight and (
            queue.epoch_bump_required
            or head.attempts > 0
            or any(batch.attempts > 1 for batch in queue.in_flight)
        ):
            return IDLE_S
        if head.attempts > 0:
            return max(0.0, head.retry_at - now)
        if flushing or head.full or head.urgent or len(waiting) > 1:
            return 0.0
        return max(0.0, head.created + self._linger_s - now)

    def _send_to(self, connection: Connection, queues: list[PartitionQueue]) -> bool:
        """Sends one request with a batch of each queue, up to its size limit. True if more may be ready."""
        in_flight = self._in_flight.setdefault(connection, deque())
        if len(in_flight) >= self._in_flight_max:
            return False
        batches: list[ProducerBatch] = []
        more = False
        size = REQUEST_OVERHEAD_BYTES
        with self._accumulator.lock:
            for queue in queues:
                if not queue.waiting:
                    continue  # Another thread has failed its messages meanwhile.
                batch = queue.waiting[0]
                if batches and size + batch.builder.size_bytes > self._request_bytes_max:
                    more = True
                    continue
                self._move_to_in_flight(queue, batch, connection.node_id)
                size += batch.builder.size_bytes
                batches.append(batch)
                more = more or len(queue.waiting) > 0
        if batches:
            self._send_produce_request(connection, batches)
        return more and len(in_flight) < self._in_flight_max

    def _move_to_in_flight(self, queue: PartitionQueue, batch: ProducerBatch, node_id: int) -> None:
        """Moves a batch from waiting to in flight. The caller holds the lock."""
        queue.waiting.popleft()
        if queue.open_batch is batch:
            queue.open_batch = None
        batch.full = True
        if self._transactions is not None:
            producer = self._transactions.producer_id, self._transactions.epoch
            if producer != (queue.producer_id, queue.producer_epoch):
                queue.producer_id, queue.producer_epoch = producer
                queue.next_sequence = 0
        if self._idempotent and batch.sequence < 0:
            if queue.producer_id < 0:
                queue.producer_id, queue.producer_epoch = self._producer_id, self._producer_epoch
                queue.next_sequence = 0
            batch.producer_id, batch.producer_epoch = queue.producer_id, queue.producer_epoch
            batch.sequence = queue.next_sequence
            queue.next_sequence = (queue.next_sequence + batch.builder.count) & SEQUENCE_MASK
        batch.attempts += 1
        batch.in_doubt = True
        queue.in_flight.append(batch)
        queue.in_flight_node_id = node_id

    def _bump_epoch(self, queue: PartitionQueue) -> None:
        """Restarts the partition's sequence in the next epoch; brokers keep sequences per partition."""
        queue.epoch_bump_required = False
        queue.next_sequence = 0
        if queue.producer_epoch >= EPOCH_MAX:
            self._producer_id = -1
            queue.producer_id = -1
        else:
            queue.producer_epoch += 1
        for batch in queue.waiting:
            batch.sequence = -1
        logger.info(
            "the sequence of %s-%s restarts in producer epoch %s",
            queue.topic,
            queue.partition,
            queue.producer_epoch,
        )

    def _send_produce_request(self, connection: Connection, batches: list[ProducerBatch]) -> None:
        topics: dict[str, TopicProduceData] = {}
        try:
            version = connection.version(ApiKey.PRODUCE)
            transactions = self._transactions
            if transactions is not None and not transactions.is_implicit:
                version = min(version, PRODUCE_VERSION_MAX)
            for batch in batches:
                queue = batch.queue
                data = topics.get(queue.topic)
                if data is None:
                    known = self._network_client.topics.get(queue.topic)
                    topic_id = known.topic_id if known else ZERO_ID
                    if topic_id == ZERO_ID:
                        version = min(version, TOPIC_ID_FROM - 1)
                    data = TopicProduceData(name=queue.topic, topic_id=topic_id, partition_data=[])
                    topics[queue.topic] = data
                records = batch.builder.build(
                    batch.producer_id, batch.producer_epoch, batch.sequence, transactions is not None
                )
                data.partition_data.append(PartitionProduceData(index=queue.partition, records=records))
            message = ProduceRequest(
                transactional_id=None if transactions is None else transactions.transactional_id,
                acks=self._acks,
                timeout_ms=self._request_timeout_ms,
                topic_data=list(topics.values()),
            )
            self._poll_connection(connection)
            request = connection.send(ApiKey.PRODUCE, message, version=version, has_response=self._acks != 0)
        except KafkaError as problem:
            for batch in batches:
                self.results.failed(batch, problem.code, problem)
            return
        if self._acks != 0:
            self._in_flight[connection].append((request, batches))
            return
        for batch in batches:
            self.results.succeeded(batch, -1, -1)

    def _poll_connection(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        if descriptor >= 0 and self._polled_connections.get(descriptor) is not connection:
            self._poll.register(descriptor, select.POLLIN)
            self._polled_connections[descriptor] = connection

    # -- reported waits -----------------------------------------------------------------------------------

    def waits(self) -> list[Wait]:
        """Returns the partitions whose messages have waited for a while, and the reasons. From any thread."""
        since: dict[PartitionQueue, float] = {}
        counts: dict[PartitionQueue, int] = {}
        with self._accumulator.lock:
            for batch in self._accumulator.incomplete:
                since.setdefault(batch.queue, batch.created + self._linger_s)
                counts[batch.queue] = counts.get(batch.queue, 0) + int(batch.builder.count)
            queues = [queue for topic in self._accumulator.topics.values() for queue in topic.queues]
        now = time.monotonic()
        # A partition whose messages failed is reported even if none waits: the problem may not be over.
        found = [
            Wait(Kind.ACKNOWLEDGEMENT, f"{queue.topic}-{queue.partition}", "messages have failed", now)
            for queue in queues
            if queue.has_failed and queue not in since
        ]
        for queue, due in since.items():
            began = max(due, queue.acknowledged_at)
            if now - began > SLOW_S:
                subject = f"{queue.topic}-{queue.partition}"
                reason = self.wait_reason(queue, now)
                found.append(
                    Wait(
                        Kind.ACKNOWLEDGEMENT, subject, reason, began, counts[queue], self._delivery_timeout_s
                    )
                )
        return found

    def wait_reason(self, queue: PartitionQueue, now: float) -> str:
        """Returns the reason for which the messages of a partition are not acknowledged."""
        network_client = self._network_client
        waiting = [wait.reason for wait in network_client.waits()]
        if self._lacks_producer_id:
            problem = self.results.producer_id_error
            return (
                str(problem) if problem is not None else (*waiting, "the producer has no producer id yet")[0]
            )
        with self._accumulator.lock:
            batches = [*queue.in_flight, *queue.waiting]
            node_id = (
                int(queue.in_flight_node_id)
                if queue.in_flight
                else network_client.leader(queue.topic, queue.partition)
            )
        if node_id < 0:
            code = network_client.topic_errors.get(queue.topic, ErrorCode.LEADER_NOT_AVAILABLE)
            return text_of(ErrorCode.of(code))
        blocked = network_client.unresponsive_reason(node_id)
        if blocked is not None:
            return blocked[1]
        found = network_client.ready_connection(node_id, DATA)
        request = found.oldest_unanswered() if found is not None else None
        if request is not None and now - request.sent_s > SLOW_S:
            return no_response_text(request.connection, request.api_key)
        refusals = [str(batch.last_refusal) for batch in batches if batch.last_refusal is not None]
        return (*refusals, *waiting, "the brokers acknowledge more slowly than messages are sent")[0]

    # -- responses ----------------------------------------------------------------------------------------

    def _handle_response(self, request: InFlightRequest, batches: list[ProducerBatch]) -> None:
        try:
            response = request.response(ProduceResponse)
        except KafkaError as problem:
            self._network_client.request_refresh()
            for batch in batches:
                self.results.failed(batch, ErrorCode.NETWORK_EXCEPTION, problem)
            return
        found: dict[tuple[str | None, int], PartitionProduceResponse] = {}
        by_id = request.version >= TOPIC_ID_FROM
        for topic in response.responses:
            name = self._network_client.topic_names.get(topic.topic_id) if by_id else topic.name
            for entry in topic.partition_responses:
                found[name, entry.index] = entry
        for batch in batches:
            result = found.get((batch.queue.topic, batch.queue.partition))
            if result is None:
                missing = BrokerUnreachable(
                    f"broker {request.connection.address} omitted {batch.queue.topic}-"
                    f"{batch.queue.partition} from its response",
                    broker=request.connection.address,
                )
                self.results.failed(batch, ErrorCode.UNKNOWN_TOPIC_ID, missing)
            elif result.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                base = result.base_offset if result.error_code == ErrorCode.NONE else -1
                self.results.succeeded(batch, base, result.log_append_time_ms)
            else:
                detail = result.error_message
                if result.record_errors:
                    first = result.record_errors[0]
                    reason = f"record {first.batch_index}: {first.batch_index_error_message}"
                    if reason not in (detail or ""):
                        detail = f"{detail or ''} {reason}".strip()
                refused = error_for(
                    result.error_code,
                    f"produce to {batch.queue.topic}-{batch.queue.partition}",
                    detail=detail,
                    broker=request.connection.address,
                    topic=batch.queue.topic,
                    partition=batch.queue.partition,
                )
                self.results.refused(batch, refused)
