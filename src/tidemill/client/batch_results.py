"""Handles the result of a batch: completes it, retries it, splits it, or fails it.

============================  ============================================================================
response                      action
============================  ============================================================================
no error, a duplicate         completed; a duplicate has no offset
too large, several messages   sent as two batches with the same sequences
retriable, or the broker has  retried after a pause, as often as ``retries`` and ``delivery.timeout.ms``
lost the sequence             allow
anything else                 completed with the error; an idempotent partition restarts its sequence
============================  ============================================================================

Source: KIP-91 (delivery timeout), KIP-126 (splitting), KIP-360 (a producer bumps its own epoch).
"""

from __future__ import annotations

import logging
import time
from collections import deque

from tidemill.client.batch_splitting import split
from tidemill.client.errors import ClientError, DeliveryTimeout
from tidemill.client.network_client import NetworkClient
from tidemill.client.record_accumulator import (
    OnDelivery,
    ProducerBatch,
    RecordAccumulator,
    metadata_of,
)
from tidemill.client.transaction_manager import TransactionManager
from tidemill.model.errors import INVALID_METADATA, ErrorCode, KafkaError

logger = logging.getLogger(__name__)

PRODUCE_REFRESH_ERRORS = INVALID_METADATA | {ErrorCode.NETWORK_EXCEPTION}
"""Errors after which the metadata is refreshed before the retry."""

STATE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Errors after which the producer restarts its sequence in the next epoch: the broker expects another one."""

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""Errors after which a batch of several messages is split."""


class BatchResults:
    """Completes the batches of one producer. For the sender thread, except :meth:`fail_all` and
    :meth:`pending_error`.
    """

    def __init__(
        self,
        network_client: NetworkClient,
        accumulator: RecordAccumulator,
        transactions: TransactionManager | None = None,
    ) -> None:
        config = network_client.config
        self._transactions = transactions
        self._network_client = network_client
        self._accumulator = accumulator
        self._delivery_timeout_s = config.seconds("delivery.timeout.ms")
        self._retries = config.int("retries")
        self._retry_backoff_s = config.seconds("retry.backoff.ms")
        self._retry_backoff_max_s = config.seconds("retry.backoff.max.ms")
        self._idempotent = config.bool("enable.idempotence")
        self._callbacks: deque[tuple[OnDelivery, ProducerBatch, int, int]] = deque()
        self.producer_id_error: KafkaError | None = None
        """The error of the last request for a producer id. Without an id, the producer sends nothing."""

    def succeeded(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        """Completes an acknowledged batch; ``base_offset`` is -1 if the broker did not return the offset."""
        with self._accumulator.lock:
            if batch not in batch.queue.in_flight:
                return  # The batch has failed meanwhile: see :meth:`fail_all`.
            batch.queue.in_flight.remove(batch)
        batch.base_offset = base_offset
        batch.append_time_ms = append_time_ms
        self.complete(batch, None)

    def refused(self, batch: ProducerBatch, problem: ClientError) -> None:
        """Handles the error of a broker as :meth:`failed`."""
        if not problem.retriable and problem.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
            batch.refusals += 1
        self.failed(batch, problem.code, problem)

    def failed(self, batch: ProducerBatch, code: ErrorCode, problem: Exception) -> None:
        """Retries a batch, splits it, or completes it with the error."""
        queue = batch.queue
        if code in PRODUCE_REFRESH_ERRORS:
            self._network_client.request_refresh()
        now = time.monotonic()
        retriable = isinstance(problem, KafkaError) and problem.retriable
        with self._accumulator.lock:
            if batch not in queue.in_flight:
                return
            first = queue.in_flight[0] is batch
            queue.in_flight.remove(batch)
            if code in STATE_LOST and self._idempotent and self._transactions is None:
                retriable = True
                batch.in_doubt = False
                if first:
                    queue.epoch_bump_required = True
            if code in TOO_LARGE and batch.builder.count > 1:
                self._split(batch)
                return
            late = now >= batch.created + self._delivery_timeout_s
            if retriable and not late and batch.attempts <= self._retries:
                batch.last_refusal = problem
                self._reenqueue(batch, now)
                return
            if self._idempotent and batch.sequence >= 0 and self._transactions is None:
                queue.epoch_bump_required = True
        if retriable and late:
            problem = _timeout_error(batch, problem)
        self.complete(batch, problem)

    def _reenqueue(self, batch: ProducerBatch, now: float) -> None:
        """Makes a batch wait again, in order, with a growing pause. The caller holds the lock."""
        pause = min(self._retry_backoff_s * 2 ** min(batch.attempts - 1, 20), self._retry_backoff_max_s)
        batch.retry_at = now + pause
        self._insert_in_sequence_order(batch)

    def _insert_in_sequence_order(self, batch: ProducerBatch) -> None:
        queue = batch.queue
        at = 0
        for other in queue.waiting:
            if other.number > batch.number:
                break
            at += 1
        queue.waiting.insert(at, batch)
        self._accumulator.active[queue] = None

    def _split(self, batch: ProducerBatch) -> None:
        """Replaces a batch with its parts. The caller holds the lock."""
        for part in split(batch):
            self._accumulator.incomplete[part] = None
            self._insert_in_sequence_order(part)
        self._accumulator.incomplete.pop(batch, None)
        if batch.event is not None:
            batch.event.set()

    def _remove_waiting(self, batch: ProducerBatch) -> None:
        batch.queue.waiting.remove(batch)
        if batch.queue.open_batch is batch:
            batch.queue.open_batch = None

    def expire_batches(self, now: float) -> None:
        """Fails batches that waited longer than ``delivery.timeout.ms``."""
        expired: list[ProducerBatch] = []
        with self._accumulator.lock:
            for queue in list(self._accumulator.active):
                while queue.waiting and now >= queue.waiting[0].created + self._delivery_timeout_s:
                    batch = queue.waiting[0]
                    self._remove_waiting(batch)
                    if batch.sequence >= 0 and self._transactions is None:
                        queue.epoch_bump_required = True
                    expired.append(batch)
        for batch in expired:
            self.complete(batch, self._expiration_error(batch))

    def _expiration_error(self, batch: ProducerBatch) -> DeliveryTimeout:
        if batch.last_refusal is not None:
            return _timeout_error(batch, batch.last_refusal)
        if self.producer_id_error is not None:
            return DeliveryTimeout(
                f"{_messages(batch)} waited longer than delivery.timeout.ms: {self.producer_id_error}",
                topic=batch.queue.topic,
                partition=batch.queue.partition,
            )
        reason = self._network_client.topic_errors.get(batch.queue.topic)
        more = f" (the topic: {ErrorCode.of(reason).name})" if reason else ""
        return DeliveryTimeout(
            f"{_messages(batch)} waited longer than delivery.timeout.ms{more}; is its leader running, and "
            "reachable from here?",
            topic=batch.queue.topic,
            partition=batch.queue.partition,
        )

    def pending_error(self) -> Exception | None:
        """Returns the error that delays waiting messages; None if no error is known."""
        if self.producer_id_error is not None:
            return self.producer_id_error
        with self._accumulator.lock:
            refusals = (batch.last_refusal for batch in self._accumulator.incomplete)
            return next((refusal for refusal in refusals if refusal is not None), None)

    def complete(self, batch: ProducerBatch, error: Exception | None) -> None:
        """Completes a batch, with or without an error, and queues its callbacks for :meth:`run_callbacks`.

        The callbacks are queued first: the sender thread ends once no batch is incomplete.
        """
        if error is not None and self._transactions is not None:
            self._transactions.batch_failed(error)
        if batch.callbacks:
            self._callbacks.extend((call, batch, index, stamp) for index, stamp, call in batch.callbacks)
        self._accumulator.complete(batch, error)

    def run_callbacks(self) -> None:
        """Runs the users' callbacks of completed batches, in the order of their completion."""
        while self._callbacks and self._callbacks[0][1].done:
            callback, batch, index, stamp = self._callbacks.popleft()
            try:
                if batch.error is None:
                    callback(metadata_of(batch, index, stamp), None)
                else:
                    callback(None, batch.error)
            except Exception:
                logger.exception("a delivery callback failed")

    def fail_all(self, error: KafkaError, *, in_flight: bool = True) -> None:
        """Fails all batches that are not completed, or only those not in flight. From any thread."""
        for batch in list(self._accumulator.incomplete):
            with self._accumulator.lock:
                queue = batch.queue
                if batch in queue.waiting:
                    self._remove_waiting(batch)
                elif in_flight and batch in queue.in_flight:
                    queue.in_flight.remove(batch)
                else:
                    continue
            self.complete(batch, error)


def _timeout_error(batch: ProducerBatch, last: Exception) -> DeliveryTimeout:
    """Builds the error of a batch that expired after attempts; ``last`` is the error of the last attempt."""
    tries = "1 try" if batch.attempts == 1 else f"{batch.attempts} tries"
    return DeliveryTimeout(
        f"{_messages(batch)} not acknowledged within delivery.timeout.ms, after {tries}; the last: {last}",
        topic=batch.queue.topic,
        partition=batch.queue.partition,
    )


def _messages(batch: ProducerBatch) -> str:
    count = batch.builder.count
    noun = "1 message" if count == 1 else f"{count} messages"
    return f"{noun} for {batch.queue.topic}-{batch.queue.partition}"
