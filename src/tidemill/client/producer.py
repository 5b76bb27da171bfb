"""The producer: messages in, batches out, in the background.

    with Producer("127.0.0.1:9092") as producer:
        delivery = producer.send("topic", b"value", key=b"key")
        print(delivery.result().offset)

Threads: one producer may be used by any number of threads. Processes: after a fork, the child needs a
producer of its own; using the parent's raises.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from tidemill.client import accumulator as queues
from tidemill.client import waits
from tidemill.client.accumulator import Accumulator, Delivery, PendingBatch, RecordMetadata, TopicQueues
from tidemill.client.cluster import Cluster
from tidemill.client.config import PRODUCER, config_of
from tidemill.client.errors import ClientClosed, ClientError, RequestTimeout
from tidemill.client.partitioners import kind_of
from tidemill.client.sender import REQUEST_OVERHEAD_BYTES, Sender
from tidemill.client.waits import Wait
from tidemill.model.errors import ErrorCode

LOG = logging.getLogger(__name__)

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
KINDS = {
    "murmur2": queues.MURMUR2,
    "consistent": queues.CONSISTENT,
    "roundrobin": queues.ROUND_ROBIN,
    "sticky": queues.STICKY,
}
FOREVER_SECONDS = 10.0**9

Headers = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]
OnDelivery = Callable[[RecordMetadata | None, Exception | None], None]


class BulkDelivery:
    """The fate of many messages that were handed over together."""

    __slots__ = ("_deliveries", "count")

    def __init__(self, count: int, deliveries: list[Delivery]) -> None:
        self.count = count
        self._deliveries = deliveries

    def done(self) -> bool:
        """Whether all messages were acknowledged, or given up."""
        return all(delivery.all_done() for delivery in self._deliveries)

    def result(self, timeout: float | None = None) -> int:
        """Waits (seconds) until all messages are acknowledged; their count. Raises the first error."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for delivery in self._deliveries:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            error = delivery.exception_of_all(left)
            if error is not None:
                raise error
        return self.count


class Counts(NamedTuple):
    """Messages of a producer so far."""

    sent: int
    """Handed over."""
    acknowledged: int
    failed: int
    """Given up, with an error."""

    @property
    def unknown(self) -> int:
        """Neither acknowledged nor given up yet."""
        return self.sent - self.acknowledged - self.failed


class Producer:
    """Sends messages to topics.

    Configuration by Kafka's names, as a mapping (``{"linger.ms": 20}``) or as keywords (``linger_ms=20``);
    the table is in :mod:`tidemill.client.config`. ConfigError for one that cannot be used. Nothing is
    connected before the first message.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        self.config = config_of(PRODUCER, bootstrap_servers, config, keywords)
        self._cluster = Cluster(self.config)
        partitioner = self.config["partitioner"]
        custom = partitioner if callable(partitioner) else None
        block = self.config.int("max.block.ms")
        self._block = FOREVER_SECONDS if block < 0 else block / 1000
        request_bytes = self.config.int("max.request.size")
        self._accumulator = Accumulator(
            min(self.config.int("batch.size"), max(1, request_bytes - REQUEST_OVERHEAD_BYTES)),
            self.config.int("buffer.memory"),
            request_bytes,
            CODECS[self.config.text("compression.type")],
            self.config["compression.level"],
            queues.CUSTOM if custom else KINDS[kind_of(str(partitioner))],
            custom,
            self._wake,
        )
        self._append = self._accumulator.append
        self._topics = self._accumulator.topics
        self._load_lock = threading.Lock()
        self._sender = Sender(self._cluster, self._accumulator)
        self._sender.thread.start()
        self._closed = False
        _LIVING.add(self)
        waits.register(self)

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
        """Hands one message over and returns at once, usually.

        It blocks up to ``max.block.ms`` while the topic's metadata is not known or ``buffer.memory`` is full.
        ``timestamp_ms`` is now unless told. ``on_delivery(metadata, error)`` is called by the sender thread,
        with one of the two None; it must be quick. TypeError where key or value are not bytes.
        """
        found = self._topics.get(topic)
        if found is None:
            found = self._load(topic)
        elif partition is not None and partition >= len(found.queues):
            self._grow(topic)
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
                self._block,
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
        """Hands many messages of one topic over; the columns run parallel. Blocks as :meth:`send` does."""
        for name, column in (
            ("keys", keys),
            ("timestamps_ms", timestamps_ms),
            ("headers", headers),
            ("partitions", partitions),
        ):
            if column is not None and len(column) != len(values):
                raise ValueError(f"{len(column)} {name} for {len(values)} values")
        found = self._topics.get(topic) or self._load(topic)
        if partitions is not None and len(values) and max(partitions) >= len(found.queues):
            self._grow(topic)
        deliveries = self._accumulator.append_many(
            found, partitions, timestamps_ms, int(time.time() * 1000), keys, values, headers, self._block
        )
        return BulkDelivery(len(values), deliveries)

    def send_arrow(self, topic: str, table: Any) -> BulkDelivery:
        """Hands the rows of a ``pyarrow`` Table or RecordBatch over.

        Columns: ``value`` (binary or string); optional ``key`` (the same), ``partition`` (int), ``timestamp``
        (timestamp, or int64 ms), ``headers`` (list of structs of key and value). Others are not looked at.
        """
        from tidemill.client.arrow import columns_of

        count = 0
        deliveries: list[Delivery] = []
        for values, keys, stamps, headers, partitions in columns_of(table):
            part = self.send_batch(
                topic, values, keys, timestamps_ms=stamps, headers=headers, partitions=partitions
            )
            count += part.count
            deliveries += part._deliveries
        return BulkDelivery(count, deliveries)

    def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has; asks the cluster when it is not known."""
        found = self._topics.get(topic) or self._load(topic)
        return len(found.queues)

    def _load(self, topic: str) -> TopicQueues:
        """A topic's queues, after its metadata was read. ClientError when there is no such topic."""
        self._check_open()
        with self._load_lock:
            found = self._topics.get(topic)
            if found is not None:
                return found
            create = self._cluster.config.bool("allow.auto.create.topics")
            known = self._cluster.topic(topic, time.monotonic() + self._block, create=create)
            made = TopicQueues(topic, len(known.partitions))
            with self._accumulator.lock:
                self._topics[topic] = made
            self._sender.take_metadata()
            return made

    def _grow(self, topic: str) -> None:
        """Reads the metadata again: the topic may have more partitions by now."""
        self._cluster.refresh(time.monotonic() + self._block)
        self._sender.take_metadata()

    # -- ending -------------------------------------------------------------------------------------------

    def trouble(self) -> Exception | None:
        """Why messages that wait are not acknowledged yet; None when nothing is known, or nothing waits."""
        return self._sender.outcomes.trouble()

    def waits(self) -> list[Wait]:
        """The partitions whose messages are not acknowledged for a while now, since when, and why.

        From any thread; see :mod:`tidemill.client.waits`.
        """
        return self._sender.waits()

    def counts(self) -> Counts:
        """How many messages were handed over so far, acknowledged (with acks=0: sent), and given up."""
        found = self._accumulator
        with found.lock:
            return Counts(int(found.messages), int(found.messages_acknowledged), int(found.messages_failed))

    def flush(self, timeout: float | None = None) -> None:
        """Returns once every message handed over before is acknowledged or given up.

        ``timeout`` in seconds; RequestTimeout when it runs out, and the messages are still under way then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        todo: list[PendingBatch] = self._accumulator.mark_all_urgent()
        while todo:
            batch = todo.pop()
            if not batch.done:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._accumulator.await_batch(batch, left)
            todo += batch.parts or ()

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then closes. What is not acknowledged within ``timeout`` seconds is given up."""
        if self._closed:
            return
        self._closed = True
        self._accumulator.shut(queues.closed_error())
        sender = self._sender
        sender.stopping = True
        sender.wake()
        if threading.current_thread() is not sender.thread:
            sender.thread.join(timeout)
            if sender.thread.is_alive():
                sender.outcomes.fail_all(
                    ClientClosed("the producer was closed before the message was acknowledged")
                )
                sender.wake()
                sender.thread.join(5)
        self._cluster.close()
        _LIVING.discard(self)
        waits.unregister(self)

    def _check_open(self) -> None:
        if self._closed:
            raise queues.closed_error()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _disown(self) -> None:
        """In a forked child: the thread stayed with the parent, and its sockets are not ours."""
        self._closed = True
        self._accumulator.lock = threading.Lock()
        self._accumulator.closed = ClientError(
            "this producer belongs to the parent process; make one after the fork",
            ErrorCode.NETWORK_EXCEPTION,
        )


_LIVING: weakref.WeakSet[Producer] = weakref.WeakSet()


def _disown_all() -> None:
    for producer in list(_LIVING):
        producer._disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


def _header_list(headers: Headers) -> list[tuple[str, bytes | None]]:
    items = headers.items() if isinstance(headers, Mapping) else headers
    return [(str(name), value) for name, value in items]


def _check_types(topic: str, key: Any, value: Any) -> None:
    for name, found in (("key", key), ("value", value)):
        if found is not None and not isinstance(found, bytes):
            raise TypeError(
                f"the {name} of a message for {topic!r} is {type(found).__name__}, it must be bytes or None; "
                "encode it first (text: .encode(), objects: json.dumps(...).encode())"
            )


__all__ = ["BulkDelivery", "Delivery", "Producer", "RecordMetadata", "RequestTimeout"]
