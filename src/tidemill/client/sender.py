"""The producer's sender thread: takes ready batches, sends them to their leaders, settles what comes back.

One thread serves all brokers. Connections are opened by helper threads, so that a dead broker holds up only
its own partitions.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections import deque
from typing import Any

from tidemill.client.accumulator import (
    EPOCH_MAX,
    SEQUENCE_MASK,
    Accumulator,
    PartitionQueue,
    PendingBatch,
)
from tidemill.client.cluster import DATA, SLOW_S, Cluster
from tidemill.client.connection import Connection
from tidemill.client.connection_attempts import no_answer
from tidemill.client.errors import (
    NEXT_STEP,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    RequestTimeout,
    code_of,
    error_for,
)
from tidemill.client.outcomes import Outcomes
from tidemill.client.request import Request
from tidemill.client.waits import Kind, Wait
from tidemill.client.wake_pipe import WakePipe
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

LOG = logging.getLogger(__name__)

TOPIC_ID_FROM = 13
REQUEST_OVERHEAD_BYTES = 1024

IDLE_SECONDS = 1.0


class Sender:
    """The thread, and what it keeps: sockets to poll, requests under way, the producer id."""

    def __init__(self, cluster: Cluster, accumulator: Accumulator) -> None:
        config = cluster.config
        self._cluster = cluster
        self._accumulator = accumulator
        self.outcomes = Outcomes(cluster, accumulator)
        self._acks = config.int("acks")
        self._linger = config.seconds("linger.ms")
        self._timeout_ms = min(config.int("request.timeout.ms"), 2**31 - 1)
        self._in_flight_max = config.int("max.in.flight.requests.per.connection")
        self._request_bytes = config.int("max.request.size")
        self._delivery_timeout_s = config.seconds("delivery.timeout.ms")
        self._backoff = config.seconds("retry.backoff.ms")
        self._idempotent = config.bool("enable.idempotence")
        self._producer_id = -1
        self._producer_epoch = -1
        self._poll = select.poll()
        self._registered: dict[int, Connection] = {}
        self._outstanding: dict[Connection, deque[Request]] = {}
        self._pipe = WakePipe()
        self._poll.register(self._pipe, select.POLLIN)
        self._refreshing = False
        self.stopping = False
        self.thread = threading.Thread(target=self._run, name="tidemill-producer", daemon=True)

    def wake(self) -> None:
        """Has the thread look again. Safe from any thread."""
        self._pipe.wake()

    # -- the loop -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self.stopping and not self._accumulator.incomplete):
                self._turn()
        except BaseException as problem:
            LOG.exception("the producer's sender thread ends")
            error = ClientError(f"the producer's sender thread failed: {problem!r}; make a new producer")
            self._accumulator.shut(error)
            for batch in list(self._accumulator.incomplete):
                self.outcomes.settle(batch, error)
            self.outcomes.run_callbacks()
            if not isinstance(problem, Exception):
                raise
        finally:
            self._pipe.close()

    def _turn(self) -> None:
        now = time.monotonic()
        self._prepare(now)
        wait = self._send_ready(now)
        self.outcomes.run_callbacks()
        self._await(wait)
        self.outcomes.run_callbacks()

    def _await(self, wait: float) -> None:
        """Sleeps until an answer, a wake-up or the time; takes the answers."""
        for descriptor, _ in self._poll.poll(int(wait * 1000 + 0.999)):
            if descriptor == self._pipe.fileno():
                self._pipe.drain()
                continue
            connection = self._registered.get(descriptor)
            if connection is not None:
                connection.receive()
        now = time.monotonic()
        for connection, requests in list(self._outstanding.items()):
            connection.expire(now)
            while requests and requests[0].done:
                self._answered(requests.popleft())
        for descriptor, connection in list(self._registered.items()):
            # The thread that closes may not have ended every request yet: those are taken in a later turn.
            if connection.closed and not self._outstanding.get(connection):
                self._unregister(descriptor, connection)

    def _unregister(self, descriptor: int, connection: Connection) -> None:
        del self._registered[descriptor]
        self._outstanding.pop(connection, None)
        with contextlib.suppress(KeyError, OSError, ValueError):
            self._poll.unregister(descriptor)
        if not self._cluster.closed:
            self._cluster.failed(connection.node_id)
            self._cluster.request_refresh()

    # -- what must be there before anything is sent -------------------------------------------------------

    def _prepare(self, now: float) -> None:
        """Gives up what is too old; has metadata and producer id brought by a helper thread."""
        accumulator = self._accumulator
        self.outcomes.expire(now)
        missing_id = self._idempotent and self._producer_id < 0 and bool(accumulator.active)
        if (self._cluster.needs_refresh() or missing_id) and not self._refreshing:
            self._refreshing = True
            threading.Thread(
                target=self._ask_cluster, args=(missing_id,), name="tidemill-producer-metadata", daemon=True
            ).start()

    def _ask_cluster(self, missing_id: bool) -> None:
        deadline = time.monotonic() + 5
        try:
            self._cluster.raise_refusal()
            if self._cluster.needs_refresh():
                self._cluster.refresh(deadline)
                self.take_metadata()
            if missing_id:
                self._init_producer_id(deadline)
        except KafkaError as problem:
            if not problem.retriable and not isinstance(problem, ClientClosed):
                self.outcomes.fail_all(problem, in_flight=False)
            else:
                LOG.debug("metadata or producer id: %s", problem)
                time.sleep(self._backoff)
        finally:
            self._refreshing = False
            self.wake()

    def take_metadata(self) -> None:
        """Brings the queues up to the metadata: new partitions, and which ones have a leader."""
        with self._accumulator.lock:
            for name, topic in self._accumulator.topics.items():
                known = self._cluster.topics.get(name)
                if known is None:
                    continue
                for p in range(len(topic.queues), len(known.partitions)):
                    topic.queues.append(PartitionQueue(name, p))
                topic.available = [p.partition for p in known.partitions if p.leader >= 0]

    def _init_producer_id(self, deadline: float) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        try:
            answer = self._cluster.call_any(ApiKey.INIT_PRODUCER_ID, request, deadline)
            if answer.error_code:
                raise error_for(
                    answer.error_code, "get a producer id (enable.idempotence=false does without)"
                )
        except KafkaError as problem:
            self.outcomes.id_problem = problem
            raise
        self.outcomes.id_problem = None
        self._producer_epoch = answer.producer_epoch
        self._producer_id = answer.producer_id

    # -- sending ------------------------------------------------------------------------------------------

    def _send_ready(self, now: float) -> float:
        """Sends what is ready; seconds until the next batch may be, or a large number."""
        wait = IDLE_SECONDS
        if self._idempotent and self._producer_id < 0:
            return wait
        by_node: dict[int, list[PartitionQueue]] = {}
        accumulator = self._accumulator
        with accumulator.lock:
            flushing = accumulator.waiters > 0 or self.stopping
            for queue in list(accumulator.active):
                due = self._due(queue, now, flushing)
                if due > 0:
                    wait = min(wait, due)
                    continue
                leader = self._cluster.leader(queue.topic, queue.partition)
                if queue.in_flight and leader != queue.sent_to:
                    # What the former leader has may be in the log or not. Sent again after later batches, it
                    # would be out of sequence, and under another epoch it would be there twice.
                    continue
                by_node.setdefault(leader, []).append(queue)
        for node_id, queues in by_node.items():
            if node_id < 0:
                self._cluster.request_refresh()
                wait = min(wait, self._backoff)
                continue
            connection = self._cluster.opened(node_id, DATA)
            if connection is None:
                pause = self._cluster.pause(node_id)
                self._cluster.open_soon(node_id, DATA, self.wake)
                wait = min(wait, pause or IDLE_SECONDS)
                continue
            if self._send_to(connection, queues):
                wait = 0.0
        return wait

    def _due(self, queue: PartitionQueue, now: float, flushing: bool) -> float:
        """Seconds until the first batch may be sent; 0: now, IDLE_SECONDS: once an answer comes."""
        waiting = queue.waiting
        if not waiting:
            self._accumulator.active.pop(queue, None)
            return IDLE_SECONDS
        head = waiting[0]
        if queue.bump_due and not queue.in_flight and not head.in_doubt:
            # Under another epoch what is in the log already would be there twice: it keeps its sequence.
            self._bump(queue)
            if queue.producer_id < 0:
                return IDLE_SECONDS
        if queue.in_flight and (
            queue.bump_due or head.attempts > 0 or any(batch.attempts > 1 for batch in queue.in_flight)
        ):
            return IDLE_SECONDS
        if head.attempts > 0:
            return max(0.0, head.retry_at - now)
        if flushing or head.full or head.urgent or len(waiting) > 1:
            return 0.0
        return max(0.0, head.created + self._linger - now)

    def _send_to(self, connection: Connection, queues: list[PartitionQueue]) -> bool:
        """Sends one request with a batch of each queue, as far as they fit; True when more may be ready."""
        under_way = self._outstanding.setdefault(connection, deque())
        if len(under_way) >= self._in_flight_max:
            return False
        batches: list[PendingBatch] = []
        more = False
        size = REQUEST_OVERHEAD_BYTES
        with self._accumulator.lock:
            for queue in queues:
                if not queue.waiting:
                    continue  # Another thread has given its messages up meanwhile.
                batch = queue.waiting[0]
                if batches and size + batch.builder.size_bytes > self._request_bytes:
                    more = True
                    continue
                self._take(queue, batch, connection.node_id)
                size += batch.builder.size_bytes
                batches.append(batch)
                more = more or len(queue.waiting) > 0
        if batches:
            self._request(connection, batches)
        return more and len(under_way) < self._in_flight_max

    def _take(self, queue: PartitionQueue, batch: PendingBatch, node_id: int) -> None:
        """From waiting to in flight. The caller holds the lock."""
        queue.waiting.popleft()
        if queue.open is batch:
            queue.open = None
        batch.full = True
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
        queue.sent_to = node_id

    def _bump(self, queue: PartitionQueue) -> None:
        """Begins the partition's sequence again under the next epoch; brokers keep it per partition."""
        queue.bump_due = False
        queue.next_sequence = 0
        if queue.producer_epoch >= EPOCH_MAX:
            self._producer_id = -1
            queue.producer_id = -1
        else:
            queue.producer_epoch += 1
        for batch in queue.waiting:
            batch.sequence = -1
        LOG.info(
            "the sequence of %s-%s begins again under producer epoch %s",
            queue.topic,
            queue.partition,
            queue.producer_epoch,
        )

    def _request(self, connection: Connection, batches: list[PendingBatch]) -> None:
        topics: dict[str, TopicProduceData] = {}
        try:
            version = connection.version(ApiKey.PRODUCE)
            for batch in batches:
                queue = batch.queue
                data = topics.get(queue.topic)
                if data is None:
                    known = self._cluster.topics.get(queue.topic)
                    topic_id = known.topic_id if known else ZERO_ID
                    if topic_id == ZERO_ID:
                        version = min(version, TOPIC_ID_FROM - 1)
                    data = TopicProduceData(name=queue.topic, topic_id=topic_id, partition_data=[])
                    topics[queue.topic] = data
                records = batch.builder.build(batch.producer_id, batch.producer_epoch, batch.sequence)
                data.partition_data.append(PartitionProduceData(index=queue.partition, records=records))
            message = ProduceRequest(
                transactional_id=None,
                acks=self._acks,
                timeout_ms=self._timeout_ms,
                topic_data=list(topics.values()),
            )
            self._register(connection)
            request = connection.send(
                ApiKey.PRODUCE, message, version=version, tag=batches, answered=self._acks != 0
            )
        except KafkaError as problem:
            for batch in batches:
                self.outcomes.failed(batch, problem.code, problem)
            return
        if self._acks != 0:
            self._outstanding[connection].append(request)
            return
        for batch in batches:
            self.outcomes.succeeded(batch, -1, -1)

    def _register(self, connection: Connection) -> None:
        descriptor = connection.fileno()
        if descriptor >= 0 and self._registered.get(descriptor) is not connection:
            self._poll.register(descriptor, select.POLLIN)
            self._registered[descriptor] = connection

    # -- what is waited for -------------------------------------------------------------------------------

    def waits(self) -> list[Wait]:
        """The partitions whose messages are not acknowledged for a while now, and why. From any thread."""
        since: dict[PartitionQueue, float] = {}
        counts: dict[PartitionQueue, int] = {}
        with self._accumulator.lock:
            for batch in self._accumulator.incomplete:
                since.setdefault(batch.queue, batch.created + self._linger)
                counts[batch.queue] = counts.get(batch.queue, 0) + int(batch.builder.count)
            queues = [queue for topic in self._accumulator.topics.values() for queue in topic.queues]
        now = time.monotonic()
        # Where messages were given up, that none waits is no end of the trouble.
        found = [
            Wait(Kind.ACKNOWLEDGEMENT, f"{queue.topic}-{queue.partition}", "messages were given up", now)
            for queue in queues
            if queue.has_given_up and queue not in since
        ]
        for queue, due in since.items():
            began = max(due, queue.acknowledged_at)
            if now - began > SLOW_S:
                subject = f"{queue.topic}-{queue.partition}"
                reason = self._reason(queue, now)
                found.append(
                    Wait(
                        Kind.ACKNOWLEDGEMENT, subject, reason, began, counts[queue], self._delivery_timeout_s
                    )
                )
        return found

    def _reason(self, queue: PartitionQueue, now: float) -> str:
        """Why the messages of a partition are not acknowledged."""
        cluster = self._cluster
        asked = [wait.reason for wait in cluster.waits()]
        if self._idempotent and self._producer_id < 0:
            problem = self.outcomes.id_problem
            return str(problem) if problem is not None else (*asked, "the producer has no id yet")[0]
        with self._accumulator.lock:
            batches = [*queue.in_flight, *queue.waiting]
            node_id = int(queue.sent_to) if queue.in_flight else cluster.leader(queue.topic, queue.partition)
        if node_id < 0:
            code = code_of(cluster.errors.get(queue.topic, ErrorCode.LEADER_NOT_AVAILABLE))
            return f"{code.name}; {NEXT_STEP[code]}" if code in NEXT_STEP else code.name
        blocked = cluster.blocked(node_id)
        if blocked is not None:
            return blocked[1]
        found = cluster.opened(node_id, DATA)
        request = found.unanswered() if found is not None else None
        if request is not None and now - request.sent > SLOW_S:
            return no_answer(request.connection, request.api_key)
        refusals = [str(one.last_refusal) for one in batches if one.last_refusal is not None]
        return (*refusals, *asked, "the brokers are slower than the messages come")[0]

    # -- answers ------------------------------------------------------------------------------------------

    def _answered(self, request: Request) -> None:
        batches: list[PendingBatch] = request.tag
        try:
            answer = request.response()
        except KafkaError as problem:
            self._cluster.request_refresh()
            for batch in batches:
                self.outcomes.failed(batch, ErrorCode.NETWORK_EXCEPTION, problem)
            return
        found: dict[tuple[Any, int], Any] = {}
        by_id = request.version >= TOPIC_ID_FROM
        for topic in answer.responses:
            name = self._cluster.names.get(topic.topic_id) if by_id else topic.name
            for entry in topic.partition_responses:
                found[name, entry.index] = entry
        for batch in batches:
            entry = found.get((batch.queue.topic, batch.queue.partition))
            if entry is None:
                missing = BrokerUnreachable(
                    f"broker {request.connection.address} left {batch.queue.topic}-{batch.queue.partition} "
                    "out of its answer",
                    broker=request.connection.address,
                )
                self.outcomes.failed(batch, ErrorCode.UNKNOWN_TOPIC_ID, missing)
            elif entry.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                base = entry.base_offset if entry.error_code == ErrorCode.NONE else -1
                self.outcomes.succeeded(batch, base, entry.log_append_time_ms)
            else:
                detail = entry.error_message
                if entry.record_errors:
                    first = entry.record_errors[0]
                    why = f"record {first.batch_index}: {first.batch_index_error_message}"
                    if why not in (detail or ""):
                        detail = f"{detail or ''} {why}".strip()
                refused = error_for(
                    entry.error_code,
                    f"produce to {batch.queue.topic}-{batch.queue.partition}",
                    detail=detail,
                    broker=request.connection.address,
                    topic=batch.queue.topic,
                    partition=batch.queue.partition,
                )
                self.outcomes.failed(batch, code_of(entry.error_code), refused)


__all__ = ["RequestTimeout", "Sender"]
