"""The consumer: records of topics, alone or as a member of a group.

    with Consumer("127.0.0.1:9092", group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["topic"])
        while True:
            for record in consumer.poll(1.0):
                print(record.value)

One thread at a time may use a consumer, except :meth:`Consumer.wakeup`; other threads get a RuntimeError.
Timeouts are in seconds. After an exception in the ``with`` block, close() does not commit the records
returned last: the group reads them again.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.client import wait_reasons
from tidemill.client.assignors import assignors_for
from tidemill.client.completed_fetch import ConsumerRecord, ConsumerRecords
from tidemill.client.config import config_of
from tidemill.client.config_keys import CONSUMER
from tidemill.client.consumer_coordinator import ConsumerCoordinator
from tidemill.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    ConnectionAttemptPending,
    NoOffset,
    RequestTimeout,
    error_for,
)
from tidemill.client.fetched_records import collect, collect_arrow
from tidemill.client.fetcher import Fetcher
from tidemill.client.group_commits import Offsets, log_failed_commit, offsets_to_commit
from tidemill.client.group_offsets import OffsetAndMetadata, fetch_offsets
from tidemill.client.network_client import NetworkClient, PollEnded
from tidemill.client.offset_resets import OffsetResets
from tidemill.client.offsets import OffsetAndTimestamp, list_offsets, partitions_by_leader
from tidemill.client.subscription_state import RebalanceListener, SubscriptionState
from tidemill.client.transaction_manager import ConsumerGroupMetadata
from tidemill.client.wait_reasons import Wait
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

FoundT = TypeVar("FoundT")

ARROW_BYTES_MAX = 64 * 1024 * 1024

PERMANENT_ERRORS = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""Errors of a topic that a retry does not fix."""


class ConsumerState(Enum):
    """The states of a consumer, in the order of their transitions."""

    OPEN = "open"
    CLOSING = "closing"
    """It leaves the group. The rebalance listener may still commit."""
    CLOSED = "closed"


class Consumer:
    """Reads topics.

    The configuration has Kafka's names, as a mapping (``{"group.id": "g"}``) or as keywords
    (``group_id="g"``); :mod:`tidemill.client.config_keys` has the table. Connects at the first call that
    needs a broker.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        self.config = config_of(CONSUMER, bootstrap_servers, config, keywords)
        self._network_client = NetworkClient(self.config)
        self._network_client.allow_auto_topic_creation = self.config.bool("allow.auto.create.topics")
        self._subscriptions = SubscriptionState(self.config)
        self._fetcher = Fetcher(self._network_client, self._subscriptions)
        self._offset_resets = OffsetResets(self._network_client, self._subscriptions, self._fetcher)
        self._default_api_timeout_s = self.config.seconds("default.api.timeout.ms")
        self._state = ConsumerState.OPEN
        self._user_lock = threading.RLock()
        self._coordinator: ConsumerCoordinator | None = None
        self._subscribed_at = 0.0
        self._seen_metadata_version = -1
        wait_reasons.register(self)

    # -- Subscription -------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Subscribes to ``topics``, or to topics whose whole name matches ``pattern``, as a member of the
        group.

        Replaces the former subscription. Raises ConfigError without ``group.id``.
        """
        with self._acquire():
            names = {topics} if isinstance(topics, str) else set(topics)
            if bool(names) == (pattern is not None):
                raise ValueError("subscribe to topics or to a pattern: exactly one of them")
            if not self.config.str("group.id"):
                raise ConfigError("subscribe() needs group.id; without a group, assign() partitions")
            regex = re.compile(pattern) if pattern is not None else None
            self._subscriptions.subscribe(names, regex, listener)
            self._network_client.needs_all_topics = pattern is not None
            self._network_client.request_refresh()
            self._seen_metadata_version = -1
            self._subscribed_at = time.monotonic()
            if self._coordinator is None:
                self._coordinator = self._create_coordinator()
            else:
                self._coordinator.request_rejoin("the subscription changed")

    def unsubscribe(self) -> None:
        """Leaves the group, and drops assigned partitions."""
        with self._acquire():
            try:
                self._leave_group("unsubscribed")
            finally:
                self._remove_partitions(self.assignment())
                self._subscriptions.unsubscribe()
                self._network_client.needs_all_topics = False

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Assigns partitions without a group. Partitions that were assigned before keep their positions."""
        with self._acquire():
            if self._subscriptions.is_subscribed:
                raise ValueError("the consumer subscribes to topics; unsubscribe() first")
            wanted = {TopicPartition(*item) for item in partitions}
            self._remove_partitions(self.assignment() - wanted)
            self._subscriptions.add_partitions(wanted)
            self._network_client.add_topics(item.topic for item in wanted)
            if self.config.str("group.id") and self.config.bool("enable.auto.commit"):
                self._require_coordinator()

    def _remove_partitions(self, items: Collection[TopicPartition]) -> None:
        self._subscriptions.remove_partitions(items)
        self._fetcher.drop_completed_fetches(items)

    def assignment(self) -> set[TopicPartition]:
        """Returns the assigned partitions."""
        return set(self._subscriptions.positions)

    def subscription(self) -> set[str]:
        """Returns the subscribed topics; with a pattern, the topics that matched last."""
        return set(self._subscriptions.topics)

    # -- Poll ---------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> ConsumerRecords:
        """Returns the next records, at most ``max.poll.records``; none if none arrive within ``timeout``
        seconds.

        Also joins the group, takes part in rebalances, and commits if auto-commit is enabled.
        """
        count = self.config.int("max.poll.records") if max_records is None else max_records
        with self._acquire():
            found = self._poll_until(timeout, lambda: collect(self._fetcher, self._subscriptions, count))
            return ConsumerRecords(found or {})

    def poll_arrow(
        self, timeout: float = 1.0, *, include_headers: bool = False, bytes_max: int = ARROW_BYTES_MAX
    ) -> pa.Table | None:
        """Returns all fetched records as a table; None if none arrive within ``timeout`` seconds.

        Columns: topic (string), partition (int32), and those of :mod:`tidemill.client.arrow`. Creates no
        Python object for a record.
        """
        with self._acquire():
            return self._poll_until(
                timeout,
                lambda: collect_arrow(self._fetcher, self._subscriptions, include_headers, bytes_max),
            )

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterates over records until the consumer is closed. Commits include the records returned so far."""
        subscriptions = self._subscriptions
        offsets = subscriptions.iteration_offsets
        while self._state is not ConsumerState.CLOSED:
            records = self.poll(1.0)
            offsets.update({item: records[item][0].offset for item in records.partitions()})
            for record in records:
                item = TopicPartition(record.topic, record.partition)
                if item in offsets:  # Otherwise it was revoked or sought.
                    subscriptions.returned_offsets = {item: record.offset}
                    offsets[item] = record.offset + 1
                    yield record
            offsets.clear()

    def _begin_poll(self) -> None:
        """Marks the records of the last poll as processed; refetches the records that an iteration did not
        return.
        """
        self._subscriptions.returned_offsets.clear()
        for item, offset in list(self._subscriptions.iteration_offsets.items()):
            self.seek(item, offset)

    def _poll_until(self, timeout: float, collect: Callable[[], FoundT]) -> FoundT | None:
        deadline = time.monotonic() + timeout
        self._begin_poll()
        if not self._subscriptions.is_subscribed and not self._subscriptions.positions:
            raise ValueError("the consumer has nothing to read; subscribe() or assign() first")
        while True:
            if self._fetcher.take_wakeup():
                return None
            try:
                wait = self._update_assignment_metadata(deadline)
            except PollEnded:
                wait = 0.0
            if self._fetcher.take_wakeup():
                return None
            self._fetcher.handle_responses()
            found = collect()
            if found:
                return found
            wait = min(wait, self._fetcher.send_fetches())
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._fetcher.wait(min(left, wait), self._offset_resets.connections)

    def _update_assignment_metadata(self, deadline: float) -> float:
        """Advances membership, metadata, commits and positions; returns the seconds until the next useful
        call.
        """
        coordinator = self._coordinator
        if self._network_client.needs_refresh():
            if self._seen_metadata_version < 0 and self._subscriptions.is_subscribed:
                self._first_metadata(deadline)
            else:
                self._network_client.refresh_in_background(self._fetcher.wake)
        self._update_subscription()
        if coordinator is not None:
            coordinator.commits.handle_responses()
            coordinator.auto_commit_if_due()
            if self._subscriptions.is_subscribed and not coordinator.poll(deadline):
                return 0.1
        try:
            return min(1.0, self._update_positions(deadline, in_poll=True))
        except ClientError as problem:
            if not problem.retriable or isinstance(problem, NoOffset):
                raise
            logger.debug("positions: %s", problem)
            return 0.1

    def _first_metadata(self, deadline: float) -> None:
        until, topics = max(deadline, time.monotonic() + 0.5), self._subscriptions.topics
        try:
            self._fetcher.call_until_wakeup(lambda: self._network_client.refresh(until, topics), until)
        except ConnectionAttemptPending:
            if time.monotonic() - self._subscribed_at > self._default_api_timeout_s:
                raise
        except (BrokerUnreachable, RequestTimeout):
            if not self._network_client.nodes:
                raise

    def _update_subscription(self) -> None:
        """Rejoins the group if new metadata changes the matching topics or the partitions to assign.

        Raises the AuthenticationFailed of a helper thread.
        """
        self._network_client.raise_authentication_error()
        version = self._network_client.metadata_version
        if version in (0, self._seen_metadata_version):
            return
        self._seen_metadata_version = version
        self._raise_topic_errors()
        coordinator = self._coordinator
        if coordinator is None or not self._subscriptions.is_subscribed:
            return
        if self._subscriptions.pattern is not None:
            hide = self.config.bool("exclude.internal.topics")
            match = self._subscriptions.pattern.fullmatch
            names = {
                topic.name
                for topic in self._network_client.topics.values()
                if match(topic.name) and not (hide and topic.internal)
            }
            if names != self._subscriptions.topics:
                self._subscriptions.topics = names
                coordinator.request_rejoin("the topics that match the pattern changed")
        coordinator.metadata_changed()

    def _raise_topic_errors(self) -> None:
        """Raises a permanent error of the topics, once for each refresh of the metadata, as Java's consumer
        does.
        """
        names = (
            self._subscriptions.topics
            if self._subscriptions.is_subscribed
            else {item.topic for item in self._subscriptions.positions}
        )
        errors = self._network_client.topic_errors
        failed = sorted(name for name in names if errors.get(name) in PERMANENT_ERRORS)
        if failed:
            raise error_for(errors[failed[0]], f"read {', '.join(map(repr, failed))}", topic=failed[0])

    # -- Commit -------------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commits the positions, or ``offsets`` (of the next records to read), and waits.

        Raises CommitFailed if the group rebalanced without this member.
        """
        with self._acquire():
            commits = self._require_coordinator().commits
            commits.commit(self._offsets_to_commit(offsets), self._deadline(timeout))
            if offsets is None:
                self._subscriptions.returned_offsets.clear()

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        *,
        on_commit: Callable[[ClientError | None], None] | None = None,
    ) -> None:
        """Commits without waiting. A later poll() or close() calls ``on_commit(error or None)``."""
        with self._acquire():
            self._require_coordinator().commits.commit_async(
                self._offsets_to_commit(offsets), self._deadline(None), on_commit or log_failed_commit
            )
            if offsets is None:
                self._subscriptions.returned_offsets.clear()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Returns this member of its group, for :meth:`Producer.send_offsets`.

        Read it for each transaction: it changes with each rebalance. Raises ClientError without a group.
        """
        with self._acquire():
            member = self._require_coordinator()
            return ConsumerGroupMetadata(
                member.group_id, member.generation, member.member_id, member.instance_id
            )

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the committed offsets of the group; omits partitions without an offset."""
        with self._acquire():
            self._require_coordinator()
            return self._fetch_committed([TopicPartition(*i) for i in partitions], self._deadline(timeout))

    def _require_coordinator(self) -> ConsumerCoordinator:
        if not self.config.str("group.id"):
            raise ConfigError("committed offsets need group.id")
        if self._coordinator is None:
            self._coordinator = self._create_coordinator()
        return self._coordinator

    def _create_coordinator(self) -> ConsumerCoordinator:
        assignors = assignors_for(self.config["partition.assignment.strategy"])
        return ConsumerCoordinator(self._network_client, assignors, self._subscriptions, self._fetcher)

    def _offsets_to_commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None) -> Offsets:
        return self._subscriptions.all_consumed() if offsets is None else offsets_to_commit(offsets)

    # -- Positions ----------------------------------------------------------------------------------------

    @contextmanager
    def _acquire(self) -> Iterator[None]:
        """Raises an error for a second thread, and if the consumer is closed."""
        if not self._user_lock.acquire(blocking=False):
            raise RuntimeError(
                "the consumer is used by another thread; only wakeup() may be called from there"
            )
        try:
            if self._state is ConsumerState.CLOSED:
                raise ClientClosed(
                    "the consumer is closed; create a new consumer", ErrorCode.NETWORK_EXCEPTION
                )
            yield
        finally:
            self._user_lock.release()

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._default_api_timeout_s if timeout is None else timeout)

    def _update_positions(self, deadline: float, *, in_poll: bool = False) -> float:
        """Sets unknown positions: from committed offsets, otherwise by ``auto.offset.reset``.

        Returns the seconds until the next useful call. ``in_poll`` raises PollEnded at a
        wakeup(), or at ``deadline`` if a dropped call has not ended.
        """
        unknown = self._subscriptions.initializing_partitions()
        if unknown:
            reset_timestamp = self._subscriptions.default_reset_timestamp
            committed: dict[TopicPartition, OffsetAndMetadata] = {}
            if self.config.str("group.id"):
                committed = self._fetch_committed(unknown, deadline, in_poll=in_poll)
            for item in unknown:
                position = self._subscriptions.positions[item]
                if item in committed:
                    position.seek(committed[item].offset)
                elif reset_timestamp is None:
                    raise NoOffset(
                        f"no offset is committed for {item}, and auto.offset.reset=none; seek(), or set "
                        "earliest or latest",
                        topic=item.topic,
                        partition=item.partition,
                    )
                else:
                    position.request_reset(reset_timestamp)
        return self._offset_resets.reset_positions()

    def _fetch_committed(
        self, items: Iterable[TopicPartition], deadline: float, *, in_poll: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        group = self.config.str("group.id")
        # Also with read_uncommitted: the input may be without transactions, and its offsets in one (KIP-447).
        fetch = partial(fetch_offsets, self._network_client, group, items, deadline, stable=True)
        return self._fetcher.call_until_wakeup(fetch, deadline) if in_poll else fetch()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Sets the position of a partition to ``offset``."""
        with self._acquire():
            if offset < 0:
                raise ValueError(f"offset {offset} of {partition}: offsets count from 0")
            item = TopicPartition(*partition)
            self._subscriptions.seek(item, offset)
            self._fetcher.drop_completed_fetches([item])

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Sets the positions to the first records, of all partitions without an argument."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Sets the positions to the ends, of all partitions without an argument."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Sequence[TopicPartition], where: int) -> None:
        with self._acquire():
            for item in [TopicPartition(*item) for item in partitions or self._subscriptions.positions]:
                self._subscriptions.request_reset(item, where)
                self._fetcher.drop_completed_fetches([item])

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Returns the offset of the next record. Raises RequestTimeout if it is not known in time."""
        with self._acquire():
            began, deadline = time.monotonic(), self._deadline(timeout)
            item = TopicPartition(*partition)
            while True:
                offset = self._subscriptions.consumed_offset(item)
                if offset is not None:
                    return offset
                partitions_by_leader(self._network_client, [item], deadline, "look up an offset of")
                left = deadline - time.monotonic()
                if left <= 0:
                    late = RequestTimeout(
                        f"the position in {partition} is unknown after "
                        f"{time.monotonic() - began:.1f} s; check that the leader of the partition is running"
                    )
                    raise self._offset_resets.failures.get(item, late)
                if self._network_client.needs_refresh():
                    self._network_client.refresh(deadline)
                wait = self._update_positions(deadline)
                if self._subscriptions.position_of(item).offset is None:
                    self._fetcher.wait(min(left, wait), self._offset_resets.connections, for_records=False)

    def pause(self, *partitions: TopicPartition) -> None:
        """Returns no records of the partitions until :meth:`resume`; the membership continues."""
        with self._acquire():
            for item in partitions:
                self._subscriptions.position_of(item).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Returns records of the partitions again."""
        with self._acquire():
            for item in partitions:
                self._subscriptions.position_of(item).paused = False

    def paused(self) -> set[TopicPartition]:
        """Returns the paused partitions."""
        return {item for item, position in self._subscriptions.positions.items() if position.paused}

    def lag(self, partition: TopicPartition) -> int | None:
        """Returns the number of records up to the end as of the last fetch; None before the first fetch."""
        position = self._subscriptions.position_of(partition)
        end = position.last_stable_offset if self._fetcher.committed_only else position.high_watermark
        return max(0, end - position.offset) if end >= 0 and position.offset is not None else None

    def partition_errors(self) -> dict[TopicPartition, tuple[str, float]]:
        """Returns the assigned partitions that cannot be read: the name of the error, and the seconds since
        its start.

        The consumer retries: a partition may get a leader, or a disk may return.
        """
        now = time.monotonic()
        for item in self._subscriptions.positions:
            self._fetcher.has_leader(item)
        return {
            item: (position.error_name, now - position.error_since)
            for item, position in self._subscriptions.positions.items()
            if position.error_name
        }

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Returns the first offset at or after each time (ms since 1970 UTC), with its time; None without a
        record.
        """
        with self._acquire():
            wanted = {TopicPartition(*item): stamp for item, stamp in times_ms.items()}
            if any(stamp < 0 for stamp in wanted.values()):
                raise ValueError("times are milliseconds since 1970, not negative")
            found = list_offsets(self._network_client, wanted, self._deadline(timeout))
            return {item: (at if at.offset >= 0 else None) for item, at in found.items()}

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return self._beginning_or_end_offsets(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Returns the high watermark of each partition, or the last stable offset with read_committed."""
        return self._beginning_or_end_offsets(partitions, LATEST, timeout)

    def _beginning_or_end_offsets(
        self, partitions: Iterable[TopicPartition], where: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        with self._acquire():
            wanted = {TopicPartition(*item): where for item in partitions}
            found = list_offsets(
                self._network_client,
                wanted,
                self._deadline(timeout),
                committed_only=self._fetcher.committed_only,
            )
            return {item: at.offset for item, at in found.items()}

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """Returns the partitions of a topic. Raises ClientError if the topic does not exist."""
        with self._acquire():
            known = self._network_client.topic(topic, self._deadline(timeout))
            return [TopicPartition(topic, p.partition) for p in known.partitions]

    def topics(self, timeout: float | None = None) -> list[str]:
        """Returns the names of all topics."""
        with self._acquire():
            self._network_client.refresh(self._deadline(timeout), every=True)
            return sorted(self._network_client.topics)

    # -- Close --------------------------------------------------------------------------------------------

    def waits(self) -> list[Wait]:
        """Returns the reasons for missing records, each with its start time. From any thread.

        See :mod:`tidemill.client.wait_reasons`.
        """
        coordinator = self._coordinator
        found = [*self._fetcher.waits(), *self._offset_resets.waits()]
        return [*found, *coordinator.waits()] if coordinator is not None else found

    def wakeup(self) -> None:
        """Ends a waiting poll(), or the next poll() if none waits. From any thread.

        That poll() returns no records; a later poll() returns the fetched records.
        """
        self._fetcher.wakeup()

    def _leave_group(self, reason: str) -> None:
        coordinator = self._coordinator
        if coordinator is None:
            return
        try:
            coordinator.prepare_leave(time.monotonic() + 5)
        finally:
            # Otherwise, after an exception of a callback, the heartbeats would continue for a closed
            # consumer.
            coordinator.leave_group(reason)
            self._coordinator = None

    def close(self) -> None:
        """Commits if auto-commit is enabled, leaves the group, and closes the connections."""
        if self._state is not ConsumerState.OPEN:
            return
        with self._acquire():
            self._state = ConsumerState.CLOSING
            try:
                self._leave_group("the consumer is closed")
            finally:
                self._state = ConsumerState.CLOSED
                wait_reasons.unregister(self)
                self._network_client.close()
                self._fetcher.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._subscriptions.iteration_offsets.update(self._subscriptions.returned_offsets)
        self.close()
