"""The consumer: records of topics, alone or as a member of a group.

    with Consumer("127.0.0.1:9092", group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["topic"])
        while True:
            for record in consumer.poll(1.0):
                print(record.value)

A consumer is for one thread at a time (another one raises), except :meth:`Consumer.wakeup`. Timeouts are in
seconds. Where an exception leaves the ``with``, the records that were given out last are not committed by
themselves: the group reads them again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.client import waits
from tidemill.client.assignors import assignors_for
from tidemill.client.chunks import ConsumerRecord, ConsumerRecords
from tidemill.client.collecting import collect, collect_arrow
from tidemill.client.errors import (
    BrokerUnreachable,
    ClientError,
    NoAnswerYet,
    NoOffset,
    RequestTimeout,
    error_for,
)
from tidemill.client.fetcher import Place
from tidemill.client.group import Membership
from tidemill.client.group_offsets import COORDINATOR_MOVED, Committed
from tidemill.client.positions import Positions
from tidemill.client.waits import Wait
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger(__name__)

ARROW_BYTES_MAX = 64 * 1024 * 1024

HOPELESS = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
"""What is said of a topic that will not be there however long a consumer waits."""


class RebalanceListener(Protocol):
    """Hears of partitions that come and go. Called inside poll() and close(), in their thread."""

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These were added; positions may be sought now."""
        ...

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These go; what was done with their records can still be committed."""
        ...

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are gone already; a commit would fail."""
        ...


class Consumer(Positions):
    """Reads topics.

    Configuration by Kafka's names, as a mapping (``{"group.id": "g"}``) or as keywords (``group_id="g"``);
    the table is in :mod:`tidemill.client.config`. Nothing is connected before the first call that needs it.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        super().__init__(bootstrap_servers, config, **keywords)
        self._names: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._listener: RebalanceListener | None = None
        self._group: Membership | None = None
        self._subscribed = False
        self._subscribed_at = 0.0
        self._seen_version = -1
        self._auto_commit = self.config.bool("enable.auto.commit") and bool(self.config["group.id"])
        self._commit_every = self.config.seconds("auto.commit.interval.ms")
        self._next_commit = time.monotonic() + self._commit_every
        self._woken = False
        self._closing = False
        waits.register(self)

    # -- choosing -----------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Shares ``topics``, or those whose whole name matches ``pattern``, with the rest of the group.

        Replaces an earlier subscription. ConfigError without ``group.id``.
        """
        with self._used():
            names = {topics} if isinstance(topics, str) else set(topics)
            if bool(names) == (pattern is not None):
                raise ValueError("subscribe to topics or to a pattern: exactly one of them")
            if not self.config["group.id"]:
                raise ConfigError("subscribe() needs group.id; without a group, assign() partitions")
            if self._places and not self._subscribed:
                raise ValueError("partitions are assigned by hand; unsubscribe() first")
            self._names = names
            self._pattern = re.compile(pattern) if pattern is not None else None
            self._cluster.every = pattern is not None
            self._cluster.request_refresh()
            self._seen_version = -1
            self._listener = listener
            self._subscribed = True
            self._subscribed_at = time.monotonic()
            if self._group is None:
                assignors = assignors_for(self.config["partition.assignment.strategy"])
                self._group = Membership(self._cluster, assignors, self)
            else:
                self._group.request_rejoin("the subscription changed")
            self._group.is_subscribed = True

    def unsubscribe(self) -> None:
        """Gives everything up: leaves the group, drops partitions assigned by hand."""
        with self._used():
            self._leave("unsubscribed")
            for item in list(self._places):
                self._drop(item)
            self._names, self._pattern, self._listener, self._subscribed = set(), None, None, False
            self._cluster.every = False

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads these partitions, without a group's assignment. Positions of those kept stay."""
        with self._used():
            if self._subscribed:
                raise ValueError("the consumer subscribes to topics; unsubscribe() first")
            wanted = {TopicPartition(*item) for item in partitions}
            for item in list(self._places):
                if item not in wanted:
                    self._drop(item)
            for item in wanted:
                self._places.setdefault(item, Place())
            missing = {item.topic for item in wanted if item.topic not in self._cluster.topics}
            if missing:
                self._cluster.want(missing)
            if self._auto_commit:
                self._member()

    def assignment(self) -> set[TopicPartition]:
        """The partitions read now."""
        return set(self._places)

    def subscription(self) -> set[str]:
        """The topics subscribed to now; with a pattern, those that matched last."""
        return set(self._names)

    # -- reading ------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, *, max_records: int | None = None) -> ConsumerRecords:
        """The next records, at most ``max.poll.records``; empty when none came within ``timeout`` seconds.

        Also what keeps a member in its group: it joins, rebalances, and commits where that is automatic.
        """
        count = self.config.int("max.poll.records") if max_records is None else max_records
        with self._used():
            self._begin_poll()
            found = self._await(timeout, lambda: collect(self._fetcher, self._places, count))
            return ConsumerRecords(found or {})

    def poll_arrow(
        self, timeout: float = 1.0, *, include_headers: bool = False, bytes_max: int = ARROW_BYTES_MAX
    ) -> pa.Table | None:
        """All records that are there, as a table; None when none came within ``timeout`` seconds.

        Columns: topic (string), partition (int32), and those of :mod:`tidemill.client.arrow`. No
        Python object is made for a record.
        """
        with self._used():
            self._begin_poll()
            return self._await(
                timeout, lambda: collect_arrow(self._fetcher, self._places, include_headers, bytes_max)
            )

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records without end, until the consumer is closed. Commits count those that were given out."""
        while not self._closed:
            records = self.poll(1.0)
            self._unread.update({item: records[item][0].offset for item in records.partitions()})
            for record in records:
                item = TopicPartition(record.topic, record.partition)
                if item in self._unread:  # Else its partition was given up, or is read from elsewhere.
                    self._unread[item] = record.offset + 1
                    self._at_work = {item: record.offset}
                    yield record
            self._unread.clear()

    def _begin_poll(self) -> None:
        """The user is done with what was given out; what a loop was left before is fetched again."""
        self._at_work.clear()
        for item, offset in list(self._unread.items()):
            self._places[item].offset = offset
            self._forget(item)

    def _await(self, timeout: float, collect: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + timeout
        if not self._subscribed and not self._places:
            raise ValueError("the consumer has nothing to read; subscribe() or assign() first")
        while True:
            if self._woken:
                self._woken = False
                return None
            wait = self._coordinate(deadline)
            self._fetcher.take()
            before = {
                chunk.item: chunk.next_offset
                for chunk in self._fetcher.chunks
                if chunk.item in self._places and self._places[chunk.item].offset == chunk.next_offset
            }
            found = collect()
            if found:
                self._at_work = before
                return found
            wait = min(wait, self._fetcher.send())
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._fetcher.wait(min(left, wait), self._resets.connections)

    def _coordinate(self, deadline: float) -> float:
        """Group, metadata, positions, commits; seconds until this is worth doing again."""
        group = self._group
        wait = 1.0
        if self._cluster.needs_refresh():
            if self._seen_version < 0 and self._subscribed:
                self._first_metadata(deadline)
            else:
                self._cluster.refresh_soon(self._fetcher.wake)
        self._look_at_metadata()
        if group is not None and self._subscribed:
            group.commits.finish()
            self._commit_in_time()
            if not group.step(deadline):
                return 0.1
            wait = min(wait, max(0.0, self._next_commit - time.monotonic())) if self._auto_commit else wait
        elif group is not None:
            group.commits.finish()
            self._commit_in_time()
        try:
            return min(wait, self._find_positions(deadline))
        except ClientError as problem:
            if not problem.retriable or isinstance(problem, NoOffset):
                raise
            LOG.debug("positions: %s", problem)
            return min(wait, 0.1)

    def _first_metadata(self, deadline: float) -> None:
        try:
            self._cluster.refresh(max(deadline, time.monotonic() + 0.5), self._names)
        except NoAnswerYet:
            if time.monotonic() - self._subscribed_at > self._timeout:
                raise
        except (BrokerUnreachable, RequestTimeout):
            if not self._cluster.nodes:
                raise

    def _look_at_metadata(self) -> None:
        """What new metadata changes: topics that match the pattern, partitions to share out.

        Raises AuthenticationFailed where a helper thread was refused.
        """
        self._cluster.raise_refusal()
        if self._cluster.version == self._seen_version or not self._cluster.version:
            return
        self._seen_version = self._cluster.version
        self._refuse_topics()
        group = self._group
        if group is None or not self._subscribed:
            return
        if self._pattern is not None:
            hide = self.config.bool("exclude.internal.topics")
            match = self._pattern.fullmatch
            names = {
                topic.name
                for topic in self._cluster.topics.values()
                if match(topic.name) and not (hide and topic.internal)
            }
            if names != self._names:
                self._names = names
                group.request_rejoin("the topics that match the pattern changed")
        group.metadata_changed()

    def _refuse_topics(self) -> None:
        """Raises for topics that no waiting brings, once for each reading of the metadata, as Java does."""
        names = self._names if self._subscribed else {item.topic for item in self._places}
        errors = self._cluster.errors
        hopeless = sorted(name for name in names if errors.get(name) in HOPELESS)
        if hopeless:
            raise error_for(errors[hopeless[0]], f"read {', '.join(map(repr, hopeless))}", topic=hopeless[0])

    # -- committing ---------------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | Committed] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commits the positions, or ``offsets`` (of the records to read next), and waits.

        CommitFailed when the group went on without this member.
        """
        with self._used():
            self._member().commits.now(self._to_commit(offsets), self._deadline(timeout))
            if offsets is None:
                self._at_work.clear()

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | Committed] | None = None,
        *,
        on_commit: Callable[[ClientError | None], None] | None = None,
    ) -> None:
        """Commits without waiting. ``on_commit(error or None)`` is called in a later poll() or close()."""
        with self._used():
            self._member().commits.soon(
                self._to_commit(offsets), self._deadline(None), on_commit or _log_failed_commit
            )
            if offsets is None:
                self._at_work.clear()

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """The group's committed offsets; partitions without one are left out."""
        with self._used():
            self._member()
            return self._fetch_committed([TopicPartition(*i) for i in partitions], self._deadline(timeout))

    def _member(self) -> Membership:
        if not self.config["group.id"]:
            raise ConfigError("committed offsets need group.id")
        if self._group is None:
            assignors = assignors_for(self.config["partition.assignment.strategy"])
            self._group = Membership(self._cluster, assignors, self)
        return self._group

    def _to_commit(
        self, offsets: Mapping[TopicPartition, int | Committed] | None
    ) -> dict[TopicPartition, tuple[int, int, str]]:
        if offsets is None:
            return {
                item: (self._unread.get(item, place.offset), -1, "")
                for item, place in self._places.items()
                if place.offset is not None
            }
        return {
            TopicPartition(*item): (at, -1, "")
            if isinstance(at, int)
            else (at.offset, at.leader_epoch, at.metadata)
            for item, at in offsets.items()
        }

    def _commit_in_time(self) -> None:
        if not self._auto_commit or time.monotonic() < self._next_commit:
            return
        self._next_commit = time.monotonic() + self._commit_every
        offsets = self._to_commit(None)
        group = self._group
        if not offsets or group is None or (self._subscribed and group.generation < 0):
            return
        try:
            group.commits.soon(offsets, time.monotonic() + 1, _log_failed_commit)
        except ClientError as problem:
            _log_failed_commit(problem)

    # -- what the membership calls ------------------------------------------------------------------------

    def owned(self) -> list[TopicPartition]:
        """See :class:`tidemill.client.group.User`."""
        return sorted(self._places)

    def subscribed_topics(self) -> set[str]:
        """See :class:`tidemill.client.group.User`."""
        return set(self._names)

    def commit_before_rebalance(self, deadline: float) -> None:
        """See :class:`tidemill.client.group.User`."""
        offsets = self._to_commit(None)
        group = self._group
        if not self._auto_commit or not offsets or group is None or group.generation < 0:
            return
        try:
            group.commits.now(offsets, max(deadline, time.monotonic() + 1))
        except ClientError as problem:
            _log_failed_commit(problem)

    def revoke(self, items: Sequence[TopicPartition]) -> None:
        """See :class:`tidemill.client.group.User`."""
        with self._dropping(items):
            if self._listener is not None:
                self._listener.on_revoked(items)

    def lose(self, items: Sequence[TopicPartition]) -> None:
        """See :class:`tidemill.client.group.User`."""
        with self._dropping(items):
            if self._listener is not None:
                self._listener.on_lost(items)

    @contextmanager
    def _dropping(self, items: Sequence[TopicPartition]) -> Iterator[None]:
        """Forgets ``items`` after the block, whatever the user's listener raises in it."""
        try:
            yield
        finally:
            for item in items:
                self._drop(item)

    def assign_from_group(self, items: Sequence[TopicPartition], added: Sequence[TopicPartition]) -> None:
        """See :class:`tidemill.client.group.User`."""
        for item in items:
            self._places.setdefault(item, Place())
        missing = {item.topic for item in items if item.topic not in self._cluster.topics}
        if missing:
            self._cluster.want(missing)
        self._next_commit = time.monotonic() + self._commit_every
        if self._listener is not None:
            self._listener.on_assigned(added)

    def wake(self) -> None:
        """See :class:`tidemill.client.group.User`."""
        self._fetcher.wake()

    def _drop(self, item: TopicPartition) -> None:
        self._places.pop(item, None)
        self._forget(item)

    # -- ending -------------------------------------------------------------------------------------------

    def waits(self) -> list[Wait]:
        """What keeps records back now, and since when; from any thread.

        See :mod:`tidemill.client.waits`.
        """
        group = self._group
        found = [*self._fetcher.waits(), *self._resets.waits()]
        return [*found, *group.waits()] if group is not None else found

    def wakeup(self) -> None:
        """Ends a poll() that waits, from any thread: it returns what it has, perhaps nothing."""
        self._woken = True
        self._fetcher.wake()

    def _leave(self, reason: str) -> None:
        group = self._group
        if group is None:
            return
        try:
            if self._subscribed:
                self.commit_before_rebalance(time.monotonic() + 5)
                owned = self.owned()
                if owned:
                    self.revoke(owned)
            elif self._auto_commit:
                try:
                    group.commits.now(self._to_commit(None), time.monotonic() + 5)
                except ClientError as problem:
                    _log_failed_commit(problem)
            group.commits.finish(1.0)
        finally:
            # Also when a callback of the user's raised: else the heartbeats would keep the place for nobody.
            group.leave(reason)
            self._group = None

    def close(self) -> None:
        """Commits where that is automatic, leaves the group, closes the connections."""
        if self._closed or self._closing:
            return
        with self._used():
            # Not closed yet: the listener may commit while partitions are given up.
            self._closing = True
            try:
                self._leave("the consumer is closed")
            finally:
                self._closed = True
                waits.unregister(self)
                self._cluster.close()
                self._fetcher.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._unread.update(self._at_work)
        self.close()


def _log_failed_commit(error: ClientError | None) -> None:
    if error is not None:
        level = logging.DEBUG if error.code in COORDINATOR_MOVED else logging.WARNING
        LOG.log(level, "a commit failed: %s", error)
