"""What becomes of a batch: acknowledged, sent again, sent in parts, or given up.

============================  ============================================================================
answer                        then
============================  ============================================================================
no error, a duplicate         settled; a duplicate has no offset
too large, several messages   sent as two batches with the same sequences
retriable, or the broker has  back to the waiting ones after a pause, as often as ``retries`` and
lost the sequence             ``delivery.timeout.ms`` allow
anything else                 settled with the error; an idempotent partition begins its sequence again
============================  ============================================================================

Source: KIP-91 (delivery timeout), KIP-126 (splitting), KIP-360 (a producer bumps its own epoch).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from tidemill.client.accumulator import Accumulator, PendingBatch, metadata_of
from tidemill.client.cluster import Cluster
from tidemill.client.errors import DeliveryTimeout, code_of
from tidemill.client.splitting import split
from tidemill.model.errors import ErrorCode, KafkaError

LOG = logging.getLogger(__name__)

LEADER_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
"""After these the metadata is read again before the next try."""

STATE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""The broker's idea of this producer's sequence is another: it begins again under the next epoch."""

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""A batch of several messages is sent in parts after these."""


class Outcomes:
    """Settles the batches of one producer. For the sender thread, but for :meth:`fail_all`."""

    def __init__(self, cluster: Cluster, accumulator: Accumulator) -> None:
        config = cluster.config
        self._cluster = cluster
        self._accumulator = accumulator
        self._delivery_timeout = config.seconds("delivery.timeout.ms")
        self._retries = config.int("retries")
        self._backoff = config.seconds("retry.backoff.ms")
        self._backoff_max = config.seconds("retry.backoff.max.ms")
        self._idempotent = config.bool("enable.idempotence")
        self._finished: deque[tuple[Any, PendingBatch, int, int]] = deque()
        self.id_problem: KafkaError | None = None
        """Why the producer has no id yet, without which it sends nothing."""

    def succeeded(self, batch: PendingBatch, base_offset: int, append_time_ms: int) -> None:
        """The broker has the batch: at ``base_offset``, or -1 where it did not say."""
        with self._accumulator.lock:
            if batch not in batch.queue.in_flight:
                return  # Given up meanwhile: see :meth:`fail_all`.
            batch.queue.in_flight.remove(batch)
        batch.base_offset = base_offset
        batch.append_time_ms = append_time_ms
        self.settle(batch, None)

    def failed(self, batch: PendingBatch, code: ErrorCode, problem: Exception) -> None:
        """Sends a batch again, in parts or as it is, or gives it up."""
        queue = batch.queue
        if code in LEADER_MOVED:
            self._cluster.request_refresh()
        now = time.monotonic()
        retriable = isinstance(problem, KafkaError) and problem.retriable
        with self._accumulator.lock:
            if batch not in queue.in_flight:
                return
            first = queue.in_flight[0] is batch
            queue.in_flight.remove(batch)
            if code in STATE_LOST and self._idempotent:
                retriable = True
                batch.in_doubt = False
                if first:
                    queue.bump_due = True
            if code in TOO_LARGE and batch.builder.count > 1:
                self._split(batch)
                return
            late = now >= batch.created + self._delivery_timeout
            if retriable and not late and batch.attempts <= self._retries:
                batch.last_refusal = problem
                self._requeue(batch, now)
                return
            if self._idempotent and batch.sequence >= 0:
                queue.bump_due = True
        if retriable and late:
            problem = _late(batch, problem)
        self.settle(batch, problem)

    def _requeue(self, batch: PendingBatch, now: float) -> None:
        """Back among the waiting ones, in the old order, after a pause that grows. Under the lock."""
        pause = min(self._backoff * 2 ** min(batch.attempts - 1, 20), self._backoff_max)
        batch.retry_at = now + pause
        self._insert(batch)

    def _insert(self, batch: PendingBatch) -> None:
        queue = batch.queue
        at = 0
        for other in queue.waiting:
            if other.number > batch.number:
                break
            at += 1
        queue.waiting.insert(at, batch)
        self._accumulator.active[queue] = None

    def _split(self, batch: PendingBatch) -> None:
        """Puts the parts of a batch in its place. Under the lock."""
        for part in split(batch):
            self._accumulator.incomplete[part] = None
            self._insert(part)
        self._accumulator.incomplete.pop(batch, None)
        if batch.event is not None:
            batch.event.set()

    def _remove_waiting(self, batch: PendingBatch) -> None:
        batch.queue.waiting.remove(batch)
        if batch.queue.open is batch:
            batch.queue.open = None

    def expire(self, now: float) -> bool:
        """Gives up batches that waited longer than ``delivery.timeout.ms``."""
        expired: list[PendingBatch] = []
        with self._accumulator.lock:
            for queue in list(self._accumulator.active):
                while queue.waiting and now >= queue.waiting[0].created + self._delivery_timeout:
                    batch = queue.waiting[0]
                    self._remove_waiting(batch)
                    if batch.sequence >= 0:
                        queue.bump_due = True
                    expired.append(batch)
        for batch in expired:
            self.settle(batch, self._expired(batch))
        return bool(expired)

    def _expired(self, batch: PendingBatch) -> DeliveryTimeout:
        if batch.last_refusal is not None:
            return _late(batch, batch.last_refusal)
        if self.id_problem is not None:
            return DeliveryTimeout(
                f"{_messages(batch)} waited longer than delivery.timeout.ms: {self.id_problem}",
                topic=batch.queue.topic,
                partition=batch.queue.partition,
            )
        reason = self._cluster.errors.get(batch.queue.topic)
        more = f" (the topic: {code_of(reason).name})" if reason else ""
        return DeliveryTimeout(
            f"{_messages(batch)} waited longer than delivery.timeout.ms{more}; is its leader running, and "
            "reachable from here?",
            topic=batch.queue.topic,
            partition=batch.queue.partition,
        )

    def trouble(self) -> Exception | None:
        """Why what waits is not acknowledged yet; None when nothing is known."""
        if self.id_problem is not None:
            return self.id_problem
        with self._accumulator.lock:
            refusals = (batch.last_refusal for batch in self._accumulator.incomplete)
            return next((one for one in refusals if one is not None), None)

    def settle(self, batch: PendingBatch, error: Exception | None) -> None:
        """Ends a batch, well or with an error; its callbacks wait for :meth:`run_callbacks`."""
        callbacks = batch.callbacks
        self._accumulator.settle(batch, error)
        if callbacks:
            self._finished.extend((callback, batch, index, stamp) for index, stamp, callback in callbacks)

    def run_callbacks(self) -> None:
        """Calls what users gave to be called, in the order in which their messages ended."""
        while self._finished:
            callback, batch, index, stamp = self._finished.popleft()
            try:
                if batch.error is None:
                    callback(metadata_of(batch, index, stamp), None)
                else:
                    callback(None, batch.error)
            except Exception:
                LOG.exception("a delivery callback failed")

    def fail_all(self, error: KafkaError, *, in_flight: bool = True) -> None:
        """Gives up everything that is not settled, or what is not in flight. From any thread."""
        for batch in list(self._accumulator.incomplete):
            with self._accumulator.lock:
                queue = batch.queue
                if batch in queue.waiting:
                    self._remove_waiting(batch)
                elif in_flight and batch in queue.in_flight:
                    queue.in_flight.remove(batch)
                else:
                    continue
            self.settle(batch, error)


def _late(batch: PendingBatch, last: Exception) -> DeliveryTimeout:
    """What to say of a batch that was sent, and whose time is over: ``last`` tells what went wrong."""
    tries = "1 try" if batch.attempts == 1 else f"{batch.attempts} tries"
    return DeliveryTimeout(
        f"{_messages(batch)} not acknowledged within delivery.timeout.ms, after {tries}; the last: {last}",
        topic=batch.queue.topic,
        partition=batch.queue.partition,
    )


def _messages(batch: PendingBatch) -> str:
    count = batch.builder.count
    noun = "1 message" if count == 1 else f"{count} messages"
    return f"{noun} for {batch.queue.topic}-{batch.queue.partition}"
