"""Members of consumer groups: threads with a consumer of one client, behind the same calls."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

SETTLE_S = 25.0
"""How long a group may take to agree before its test fails."""
POLL_S = 0.05
KAFKA_PYTHON_POLL_MS = 3_000
"""Much longer than a join: kafka-python 3.0 loses its assignment, and sends no heartbeats any more, if a poll
ends while the leader of the group joins again because of changed metadata."""
SESSION_MS = 20_000
"""More than a broker needs to restart on a busy machine: librdkafka rejoins when its session has expired,
and a static member gets another id then."""


class Member(ABC):
    """Joins in its own thread, and records (partition, offset) of each message until it is stopped."""

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], strategy: str, instance: str | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topics = list(topics)
        self.strategy = strategy
        self.instance = instance
        self.read: list[tuple[str, int, int]] = []
        self.assigned: set[tuple[str, int]] = set()
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as failure:  # noqa: BLE001 - it is raised again in the test's thread
            self.failure = failure

    @abstractmethod
    def consume(self) -> None:
        """Subscribes, polls until ``stopping`` is set, closes: the work of the thread."""

    def stop(self) -> None:
        """Commits, leaves the group, and closes."""
        self.stopping.set()
        self.thread.join(SETTLE_S)
        assert not self.thread.is_alive(), f"{self} does not stop"
        self.assigned = set()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self.thread.join(SETTLE_S)


class ConfluentMember(Member):
    """confluent-kafka, based on librdkafka."""

    strategies = ("range", "roundrobin", "cooperative-sticky")

    def consume(self) -> None:
        from confluent_kafka import Consumer, KafkaError

        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": self.strategy,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": SESSION_MS,
            "log_level": 0,
        }
        if self.instance is not None:
            config["group.instance.id"] = self.instance
        consumer = Consumer(config)
        consumer.subscribe(self.topics)
        while not self.stopping.is_set():
            message = consumer.poll(POLL_S)
            self.assigned = {(one.topic, one.partition) for one in consumer.assignment()}
            if message is None:
                continue
            if message.error():
                if message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise AssertionError(str(message.error()))
            self.read.append((message.topic(), message.partition(), message.offset()))
        consumer.close()


class KafkaPythonMember(Member):
    """kafka-python."""

    strategies = ("range", "roundrobin", "cooperative-sticky")

    def consume(self) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.errors import KafkaConnectionError

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignors[self.strategy]],
            heartbeat_interval_ms=200,
            session_timeout_ms=SESSION_MS,
        )
        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
            """Records the assignment, also within a poll."""

            def on_partitions_revoked(self, revoked: object) -> None:
                member.assigned = {(one.topic, one.partition) for one in consumer.assignment()}

            on_partitions_assigned = on_partitions_revoked

        consumer.subscribe(self.topics, listener=Listener())
        while not self.stopping.is_set():
            try:
                polled = consumer.poll(timeout_ms=KAFKA_PYTHON_POLL_MS)
            except KafkaConnectionError:  # It may raise this while its broker is stopped.
                continue
            for batch in polled.values():
                self.read.extend((one.topic, one.partition, one.offset) for one in batch)
            self.assigned = {(one.topic, one.partition) for one in consumer.assignment()}
        consumer.close()


class AiokafkaMember(Member):
    """aiokafka."""

    strategies = ("range", "roundrobin", "sticky")

    def consume(self) -> None:
        asyncio.run(self.consume_in_loop())

    async def consume_in_loop(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }
        consumer = AIOKafkaConsumer(
            *self.topics,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignors[self.strategy]],
            heartbeat_interval_ms=200,
            session_timeout_ms=SESSION_MS,
        )
        await consumer.start()
        try:
            while not self.stopping.is_set():
                for batch in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
                    self.read.extend((one.topic, one.partition, one.offset) for one in batch)
                self.assigned = {(one.topic, one.partition) for one in consumer.assignment()}
        finally:
            await consumer.stop()


MEMBERS: dict[str, type[Member]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


def wait_until(condition: Callable[[], bool], what: str, *members: Member) -> None:
    """Waits until the group reaches a state; the error of a timeout shows the state of the members."""
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        for member in members:
            if member.failure is not None:
                raise member.failure
        if time.monotonic() > deadline:
            state = [f"{type(one).__name__} {sorted(one.assigned)} read {len(one.read)}" for one in members]
            raise AssertionError(f"not {what} within {SETTLE_S:g} s: {state}")
        time.sleep(0.02)


def wait_for_shares(members: Sequence[Member], topic: str, partitions: int) -> None:
    """Waits until the members own every partition once, as evenly as possible."""

    def settled() -> bool:
        owned = [pair for member in members for pair in member.assigned]
        sizes = [len(member.assigned) for member in members]
        everything = {(topic, partition) for partition in range(partitions)}
        return len(owned) == partitions and set(owned) == everything and max(sizes) - min(sizes) <= 1

    wait_until(settled, f"{partitions} partitions shared by {len(members)} members", *members)
