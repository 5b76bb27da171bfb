"""The producer: collects messages into batches and sends them in the background.

    with Producer("127.0.0.1:9092") as producer:
        delivery = producer.send("topic", b"value", key=b"key")
        print(delivery.result().offset)

Threads: any number of threads may share a producer. Processes: after a fork, the child needs a producer of
its own; using the parent's producer raises.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.client import wait_reasons
from tidemill.client.config import config_of
from tidemill.client.config_keys import PRODUCER
from tidemill.client.errors import (
    AbortableTransactionError,
    ClientClosed,
    ClientError,
    FatalTransactionError,
    ProducerFenced,
    RequestTimeout,
)
from tidemill.client.group_commits import offsets_to_commit
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.network_client import NetworkClient
from tidemill.client.partitioners import CUSTOM, kind_of
from tidemill.client.record_accumulator import (
    Delivery,
    OnDelivery,
    ProducerBatch,
    RecordAccumulator,
    RecordMetadata,
    TopicQueues,
    closed_error,
)
from tidemill.client.sender import REQUEST_OVERHEAD_BYTES, Sender
from tidemill.client.transaction_manager import (
    ConsumerGroupMetadata,
    PreparedTransaction,
    TransactionManager,
    prepared_of,
)
from tidemill.client.wait_reasons import Wait
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.records.compression import codec_of

if TYPE_CHECKING:
    from tidemill.client.arrow import SendColumns

logger = logging.getLogger(__name__)

FOREVER_S = 10.0**9
CLOSE_ABORT_S = 5.0
"""How long a closing producer tries to abort its transaction. Its timeout ends it otherwise."""

Headers = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]


class BulkDelivery:
    """The result of many messages that were sent together."""

    __slots__ = ("_deliveries", "count")

    def __init__(self, count: int, deliveries: list[Delivery]) -> None:
        self.count = count
        self._deliveries = deliveries

    def done(self) -> bool:
        """Whether all messages were acknowledged or have failed."""
        return all(delivery.all_done() for delivery in self._deliveries)

    def result(self, timeout: float | None = None) -> int:
        """Waits up to ``timeout`` seconds for all acknowledgements; returns the count, or raises an error."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for delivery in self._deliveries:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            error = delivery.exception_of_all(left)
            if error is not None:
                raise error
        return self.count

    def sample(self, timeout: float | None = None) -> RecordMetadata:
        """Waits for an acknowledgement; returns the metadata of one of the messages.

        Raises ValueError without messages.
        """
        if not self._deliveries:
            raise ValueError("no message was sent")
        return self._deliveries[0].result(timeout)


class Counts(NamedTuple):
    """The numbers of messages of a producer so far."""

    sent: int
    """Messages passed to the producer."""
    acknowledged: int
    failed: int
    """Messages that failed with an error."""
    refused: int = 0
    """Those of the failed messages that brokers have refused, and not stored. Other failed messages, as after
    a timeout, may be stored.
    """

    @property
    def unknown(self) -> int:
        """Messages neither acknowledged nor failed yet."""
        return self.sent - self.acknowledged - self.failed


class Producer:
    """Sends messages to topics.

    The configuration has Kafka's names, as a mapping (``{"linger.ms": 20}``) or as keywords
    (``linger_ms=20``); :mod:`tidemill.client.config_keys` has the table. Raises ConfigError for an invalid
    configuration. Connects when the first message is sent.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        self.config = config_of(PRODUCER, bootstrap_servers, config, keywords)
        self._network_client = NetworkClient(self.config)
        partitioner = self.config["partitioner"]
        custom = partitioner if callable(partitioner) else None
        block = self.config.int("max.block.ms")
        self._max_block_s = FOREVER_S if block < 0 else block / 1000
        request_bytes = self.config.int("max.request.size")
        self._accumulator = RecordAccumulator(
            min(self.config.int("batch.size"), max(1, request_bytes - REQUEST_OVERHEAD_BYTES)),
            self.config.int("buffer.memory"),
            request_bytes,
            codec_of(self.config.str("compression.type")),
            self.config["compression.level"],
            CUSTOM if custom else kind_of(str(partitioner)),
            custom,
            self._wake,
        )
        self._append = self._accumulator.append
        self._topics = self._accumulator.topics
        self._load_lock = threading.Lock()
        name = self.config["transactional.id"]
        self._transactions = (
            None
            if name is None
            else TransactionManager(
                self._network_client,
                str(name),
                self.config.int("transaction.timeout.ms"),
                has_two_phase_commit=self.config.bool("transaction.two.phase.commit.enable"),
            )
        )
        self._sender = Sender(self._network_client, self._accumulator, self._transactions)
        self._sender.thread.start()
        self._closed = False
        self._closing_thread: threading.Thread | None = None
        """Closes the producer after a delivery callback has requested it during a transaction."""
        _PRODUCERS.add(self)
        wait_reasons.register(self)

    def _wake(self) -> None:
        self._sender.wake()

    # -- sending ------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Appends one message to its batch; usually returns at once.

        Blocks up to ``max.block.ms`` while the topic's metadata is unknown or ``buffer.memory`` is full.
        ``timestamp_ms`` defaults to the current time. The sender thread calls ``on_delivery(metadata,
        error)``, with one of the two None; the callback must be quick. Raises TypeError if key or value is
        not bytes.
        """
        if self._transactions is not None:
            self._transactions.check_open()
        found = self._topics.get(topic)
        if found is None:
            found = self._load(topic)
        elif partition is not None and partition >= len(found.queues):
            self._grow()
        if partition is None:
            partition = -1
        elif partition < 0:
            raise ValueError(f"partition {partition} of {topic!r}: partitions count from 0")
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        try:
            return self._append(
                found,
                partition,
                timestamp_ms,
                key,
                value,
                _header_list(headers) if headers else None,
                on_delivery,
                self._max_block_s,
            )
        except TypeError:
            _check_types(topic, key, value)
            raise

    def send_batch(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[list[tuple[str, bytes | None]] | None] | None = None,
        partitions: Sequence[int] | None = None,
    ) -> BulkDelivery:
        """Sends many messages of one topic, given as parallel columns. Blocks as :meth:`send` does.

        Raises ValueError for a negative partition, or for columns of different lengths.
        """
        if partitions is not None and (lowest := min(partitions, default=0)) < 0:
            raise ValueError(f"partition {lowest} of {topic!r}: partitions count from 0")
        return BulkDelivery(
            len(values), self._append_columns(topic, values, keys, timestamps_ms, headers, partitions)
        )

    def _append_columns(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamps_ms: Sequence[int | None] | None,
        headers: Sequence[list[tuple[str, bytes | None]] | None] | None,
        partitions: Sequence[int] | None,
    ) -> list[Delivery]:
        """Appends many messages of one topic; returns one delivery per batch."""
        for name, column in (
            ("keys", keys),
            ("timestamps_ms", timestamps_ms),
            ("headers", headers),
            ("partitions", partitions),
        ):
            if column is not None and len(column) != len(values):
                raise ValueError(f"{len(column)} {name} for {len(values)} values")
        if self._transactions is not None:
            self._transactions.check_open()
        found = self._topics.get(topic) or self._load(topic)
        if partitions is not None and len(values) and max(partitions) >= len(found.queues):
            self._grow()
        return self._accumulator.append_many(
            found,
            partitions,
            timestamps_ms,
            int(time.time() * 1000),
            keys,
            values,
            headers,
            self._max_block_s,
        )

    def send_arrow(self, topic: str, table: Any) -> BulkDelivery:
        """Sends the rows of a ``pyarrow`` Table or RecordBatch.

        Columns: ``value`` (binary or string); optional ``key`` (the same), ``partition`` (int), ``timestamp``
        (timestamp, or int64 ms), ``headers`` (list of structs of key and value). Other columns are ignored.
        """
        from tidemill.client.arrow import columns_of

        count = 0
        deliveries: list[Delivery] = []
        for columns in columns_of(table):
            deliveries += self._append_columns(topic, *columns)
            count += len(columns[0])
        return BulkDelivery(count, deliveries)

    def send_columns(self, topic: str, columns: SendColumns) -> BulkDelivery:
        """Sends a slice of rows in the columns of :func:`tidemill.client.arrow.columns_of`."""
        return BulkDelivery(len(columns[0]), self._append_columns(topic, *columns))

    def partitions_for(self, topic: str) -> int:
        """Returns the number of partitions of the topic; reads the metadata if the topic is unknown."""
        found = self._topics.get(topic) or self._load(topic)
        return len(found.queues)

    def _load(self, topic: str) -> TopicQueues:
        """Reads a topic's metadata and creates its queues. Raises ClientError if it does not exist."""
        self._accumulator.check_open()
        with self._load_lock:
            found = self._topics.get(topic)
            if found is not None:
                return found
            create = self._network_client.config.bool("allow.auto.create.topics")
            known = self._network_client.topic(topic, time.monotonic() + self._max_block_s, create=create)
            topic_queues = TopicQueues(topic, len(known.partitions))
            with self._accumulator.lock:
                self._topics[topic] = topic_queues
            self._sender.apply_metadata()
            return topic_queues

    def _grow(self) -> None:
        """Refreshes the metadata: the topics may have more partitions by now."""
        self._accumulator.check_open()
        self._network_client.refresh(time.monotonic() + self._max_block_s)
        self._sender.apply_metadata()

    # -- transactions -------------------------------------------------------------------------------------

    def begin(self, timeout: float | None = None) -> None:
        """Begins a transaction; the messages sent from now on belong to it.

        The first call also fences other producers with the same ``transactional.id``, and aborts their
        transaction. Waits up to ``timeout`` seconds, by default ``max.block.ms``. Raises ClientError without
        a ``transactional.id``, or if a transaction is open; ProducerFenced if another producer has begun.
        """
        self._accumulator.check_open()
        self._transactional("begin").begin(self._deadline(timeout))

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroupMetadata | str,
        timeout: float | None = None,
    ) -> None:
        """Commits offsets of a group with the transaction: ``group`` is ``consumer.group_metadata()``.

        Raises AbortableTransactionError if the member has left the group, ConfigError or TypeError for
        arguments that are no offsets or no group: then the transaction is as before. After a RequestTimeout,
        call ``send_offsets`` again, or :meth:`abort`: without the offsets there is no commit.
        """
        self._accumulator.check_open()
        metadata: object = ConsumerGroupMetadata(group) if isinstance(group, str) else group
        if not isinstance(metadata, ConsumerGroupMetadata) or not metadata.group_id:
            raise ConfigError(
                f"group={group!r}: it must be consumer.group_metadata(), or the name of a group"
            )
        self._transactional("send_offsets").send_offsets(
            offsets_to_commit(offsets), metadata, self._deadline(timeout)
        )

    def commit(self, timeout: float | None = None) -> None:
        """Waits until the messages of the transaction are acknowledged, and commits it.

        Raises AbortableTransactionError if a message has failed: then call :meth:`abort`. After a
        RequestTimeout the outcome is unknown: call ``commit`` again.
        """
        self._accumulator.check_open()
        transactions = self._ending("commit")
        deadline = self._deadline(timeout)
        with transactions.ending(deadline):
            self.flush(max(0.0, deadline - time.monotonic()))
            transactions.end(True, deadline)

    def abort(self, timeout: float | None = None) -> None:
        """Aborts the transaction: consumers with ``isolation.level=read_committed`` see none of its messages.

        Messages that were not sent yet fail. After a RequestTimeout, call ``abort`` again.
        """
        self._accumulator.check_open()
        transactions = self._ending("abort")
        deadline = self._deadline(timeout)
        with transactions.ending(deadline):
            self._sender.results.fail_all(
                ClientError("the transaction was aborted before the message was sent"), in_flight=False
            )
            self.flush(max(0.0, deadline - time.monotonic()))
            transactions.end(False, deadline)

    def prepare(self, timeout: float | None = None, *, may_time_out: bool = False) -> PreparedTransaction:
        """Waits until the messages of the transaction are acknowledged, and prepares its end.

        For transactions that commit together with another system, such as a database (KIP-939): store the
        result there, in the transaction of that system, and commit that one first; then call :meth:`commit`.
        After a failure another producer with the same ``transactional.id`` reads the stored result and calls
        :meth:`complete`. Needs ``transaction.two.phase.commit.enable``, here and at the broker; with
        ``may_time_out`` not: then the broker aborts the transaction after ``transaction.timeout.ms``. Closing
        the producer leaves the transaction open, and :meth:`Admin.end_transaction` ends it from elsewhere.

        Raises AbortableTransactionError if a message has failed, RequestTimeout if one is still in progress.
        """
        transactions = self._transactional("prepare")
        if not may_time_out:
            transactions.check_two_phase_commit()
        deadline = self._deadline(timeout)
        with transactions.ending(deadline):
            self.flush(max(0.0, deadline - time.monotonic()))
            return transactions.prepare()

    def complete(self, prepared: Sequence[int] | None, timeout: float | None = None) -> bool | None:
        """Ends the transaction that this or a former producer has prepared; fences the former producer.

        Commits it if it is ``prepared``, the last one that the other system has committed (None if it has
        none), and aborts it otherwise. A new producer calls it before :meth:`begin`. Returns True if it has
        committed the transaction, False if it has aborted it, None if none was open. After a RequestTimeout,
        call ``complete`` again. Raises ConfigError for a value that is not two integers.
        """
        self._accumulator.check_open()
        transactions = self._transactional("complete")
        wanted = None if prepared is None else prepared_of(prepared)
        transactions.check_two_phase_commit()
        deadline = self._deadline(timeout)
        with transactions.ending(deadline):
            return transactions.complete(wanted, deadline)

    @contextlib.contextmanager
    def transaction(self, timeout: float | None = None) -> Iterator[None]:
        """A transaction as a ``with`` block: it is committed at the end, and aborted after an exception.

        with producer.transaction():
            producer.send("topic", b"value")

        The block may also call :meth:`commit` or :meth:`abort` itself; then its end does nothing.
        """
        self.begin(timeout)
        try:
            yield
        except BaseException as problem:
            self._abort_after(problem, timeout)
            raise
        self._accumulator.check_open()
        if self._transactional("commit").is_ended:
            return
        try:
            self.commit(timeout)
        except AbortableTransactionError as problem:
            self._abort_after(problem, timeout)
            self._transactional("abort").check_usable()
            raise

    def _abort_after(self, problem: BaseException, timeout: float | None) -> None:
        """Aborts the transaction because of ``problem``, which the caller raises. A failure is logged."""
        if isinstance(problem, FatalTransactionError) or not self._transactional("abort").is_open:
            return
        try:
            self.abort(timeout)
        except ProducerFenced:
            logger.warning("another client has fenced this producer, and so aborted the transaction")
        except ClientError as failure:
            logger.warning("the transaction was not aborted; its timeout will end it: %s", failure)

    def _transactional(self, operation: str) -> TransactionManager:
        if self._transactions is None:
            raise ClientError(f"cannot {operation}: the producer has no transactional.id")
        return self._transactions

    def _ending(self, operation: str) -> TransactionManager:
        if threading.current_thread() is self._sender.thread:
            raise ClientError(
                f"cannot {operation} in a delivery callback: it would wait for responses to other messages,"
                " which the thread of the callback handles"
            )
        return self._transactional(operation)

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._max_block_s if timeout is None else timeout)

    # -- results and closing ------------------------------------------------------------------------------

    def pending_error(self) -> Exception | None:
        """Returns the error that delays messages; None if no message waits or no error is known."""
        return self._sender.results.pending_error()

    def waits(self) -> list[Wait]:
        """Returns the partitions whose messages have waited for a while, with the time and the reason.

        From any thread; see :mod:`tidemill.client.wait_reasons`.
        """
        return self._sender.waits()

    def counts(self) -> Counts:
        """Returns how many messages were sent, acknowledged (with acks=0: written), and failed so far."""
        found = self._accumulator
        with found.lock:
            return Counts(
                int(found.messages),
                int(found.messages_acknowledged),
                int(found.messages_failed),
                int(found.messages_refused),
            )

    def flush(self, timeout: float | None = None) -> None:
        """Returns once every message sent before is acknowledged or has failed.

        Raises RequestTimeout after ``timeout`` seconds; the messages are still in progress then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        todo: list[ProducerBatch] = self._accumulator.mark_all_urgent()
        while todo:
            batch = todo.pop()
            if not batch.done:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._await(batch, left)
            todo += batch.parts or ()

    def _await(self, batch: ProducerBatch, timeout: float | None) -> None:
        """Waits for a batch; the RequestTimeout has the reason of the wait."""
        try:
            self._accumulator.await_batch(batch, timeout)
        except RequestTimeout as problem:
            reason = self._sender.wait_reason(batch.queue, time.monotonic())
            raise RequestTimeout(
                f"{problem}: {reason}", topic=batch.queue.topic, partition=batch.queue.partition
            ) from None

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then closes. Messages that are not acknowledged within ``timeout`` seconds fail.

        In a delivery callback it returns at once: the sender thread flushes, with no timeout, and closes. An
        open transaction is aborted before.
        """
        if self._closed:
            return
        closing, current = self._closing_thread, threading.current_thread()
        if closing is not None and closing is not current:
            if current is self._sender.thread:
                return
            closing.join(timeout)
            if not closing.is_alive():
                return
        elif self._transactions is not None and self._transactions.is_open:
            if current is self._sender.thread:
                # The abort waits for responses, which this thread handles.
                self._closing_thread = threading.Thread(target=self.close, name="tidemill-producer-close")
                self._closing_thread.start()
                return
            self._abort_after(closed_error(), CLOSE_ABORT_S)
        self._closed = True
        self._accumulator.close(closed_error())
        sender = self._sender
        sender.stopping = True
        sender.wake()
        if current is not sender.thread:
            sender.thread.join(timeout)
            if sender.thread.is_alive():
                sender.results.fail_all(
                    ClientClosed("the producer was closed before the message was acknowledged")
                )
                sender.wake()
                sender.thread.join(5)
                self._network_client.close()
        wait_reasons.unregister(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _invalidate_after_fork(self) -> None:
        """Makes the producer unusable in a forked child: its thread and its sockets belong to the parent."""
        self._closed = True
        self._accumulator.invalidate_after_fork(
            ClientClosed(
                "this producer belongs to the parent process; create one after the fork",
                ErrorCode.NETWORK_EXCEPTION,
            )
        )


_PRODUCERS: weakref.WeakSet[Producer] = weakref.WeakSet()


def _invalidate_all_after_fork() -> None:
    for producer in list(_PRODUCERS):
        producer._invalidate_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_invalidate_all_after_fork)


def _header_list(headers: Headers) -> list[tuple[str, bytes | None]]:
    items = headers.items() if isinstance(headers, Mapping) else headers
    return [(str(name), value) for name, value in items]


def _check_types(topic: str, key: Any, value: Any) -> None:
    for name, found in (("key", key), ("value", value)):
        if found is not None and not isinstance(found, bytes):
            raise TypeError(
                f"the {name} of a message for {topic!r} is {type(found).__name__}; it must be bytes or None; "
                "encode it first (text: .encode(), objects: json.dumps(...).encode())"
            )


__all__ = ["BulkDelivery", "Delivery", "Producer", "RecordMetadata", "RequestTimeout"]
