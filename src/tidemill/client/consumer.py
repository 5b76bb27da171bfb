"""The consumer: records of topics, alone or as a member of a group.

    with Consumer("127.0.0.1:9092", group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["topic"])
        while True:
            for record in consumer.poll(1.0):
                print(record.value)

A consumer is for one thread at a time (another one raises), except :meth:`Consumer.wakeup`. Timeouts are in
seconds.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.client.assignors import assignors_for
from tidemill.client.chunks import ConsumerRecord, ConsumerRecords
from tidemill.client.cluster import Cluster
from tidemill.client.config import CONSUMER, ClientConfig
from tidemill.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    NoOffset,
    RequestTimeout,
)
from tidemill.client.fetcher import Fetcher, Place
from tidemill.client.group import Membership
from tidemill.client.group_offsets import COORDINATOR_MOVED, Committed, fetch_offsets
from tidemill.client.offsets import EARLIEST, LATEST, OffsetAt, list_offsets
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.records.reader import Record

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger(__name__)

ARROW_BYTES_MAX = 64 * 1024 * 1024


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


class Consumer:
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
        given = dict(config or {})
        if bootstrap_servers is not None:
            given["bootstrap.servers"] = bootstrap_servers
        self.config = ClientConfig(CONSUMER, given, **keywords)
        self._cluster = Cluster(self.config)
        self._cluster.create = self.config.bool("allow.auto.create.topics")
        self._places: dict[TopicPartition, Place] = {}
        self._fetcher = Fetcher(self._cluster, self._places)
        self._names: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._listener: RebalanceListener | None = None
        self._group: Membership | None = None
        self._subscribed = False
        self._seen_version = -1
        self._timeout = self.config.seconds("default.api.timeout.ms")
        self._policy = self.config.text("auto.offset.reset")
        self._auto_commit = self.config.bool("enable.auto.commit") and bool(self.config["group.id"])
        self._commit_every = self.config.seconds("auto.commit.interval.ms")
        self._next_commit = time.monotonic() + self._commit_every
        self._woken = False
        self._closed = False
        self._user_lock = threading.RLock()

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
            if self._group is None:
                assignors = assignors_for(self.config["partition.assignment.strategy"])
                self._group = Membership(self._cluster, assignors, self)
            else:
                self._group.request_rejoin("the subscription changed")

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
            return ConsumerRecords(self._await(timeout, lambda: self._collect(count)) or {})

    def poll_arrow(
        self, timeout: float = 1.0, *, include_headers: bool = False, bytes_max: int = ARROW_BYTES_MAX
    ) -> pa.Table | None:
        """All records that are there, as a table; None when none came within ``timeout`` seconds.

        Columns: topic (string), partition (int32), and those of :mod:`tidemill.client.arrow`. No
        Python object is made for a record.
        """
        with self._used():
            return self._await(timeout, lambda: self._collect_arrow(include_headers, bytes_max))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records without end, until the consumer is closed."""
        while not self._closed:
            yield from self.poll(1.0)

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
            found = collect()
            if found:
                return found
            wait = min(wait, self._fetcher.send())
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._fetcher.wait(min(left, wait))

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
            group.finish_commits()
            self._commit_in_time()
            if not group.step(deadline):
                return 0.1
            wait = min(wait, max(0.0, self._next_commit - time.monotonic())) if self._auto_commit else wait
        elif group is not None:
            group.finish_commits()
            self._commit_in_time()
        try:
            self._find_positions(deadline)
        except ClientError as problem:
            if not problem.retriable or isinstance(problem, NoOffset):
                raise
            LOG.debug("positions: %s", problem)
            return min(wait, 0.1)
        return wait

    def _first_metadata(self, deadline: float) -> None:
        try:
            self._cluster.refresh(max(deadline, time.monotonic() + 0.5), self._names)
        except (BrokerUnreachable, RequestTimeout):
            if not self._cluster.nodes:
                raise

    def _look_at_metadata(self) -> None:
        """What new metadata changes: topics that match the pattern, partitions to share out."""
        if self._cluster.version == self._seen_version or not self._cluster.version:
            return
        self._seen_version = self._cluster.version
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

    def _collect(self, count: int) -> dict[TopicPartition, list[Record]]:
        result: dict[TopicPartition, list[Record]] = {}
        chunks = self._fetcher.chunks
        turns = len(chunks)
        while chunks and count > 0 and turns > 0:
            turns -= 1
            chunk = chunks[0]
            place = self._places.get(chunk.item)
            if place is None or place.offset != chunk.next_offset:
                chunks.popleft()
                continue
            if place.paused:
                chunks.rotate(-1)
                continue
            try:
                records = chunk.take(count)
            except Exception:
                if result:
                    return result
                chunks.popleft()
                raise
            place.offset = chunk.next_offset
            if records:
                result.setdefault(chunk.item, []).extend(records)
                count -= len(records)
            if chunk.exhausted:
                chunks.popleft()
        if result:
            self._fetcher.send()
        return result

    def _collect_arrow(self, include_headers: bool, bytes_max: int) -> pa.Table | None:
        fetcher = self._fetcher
        chunks = []
        ahead: dict[TopicPartition, int] = {}
        for _ in range(len(fetcher.chunks)):
            chunk = fetcher.chunks.popleft()
            place = self._places.get(chunk.item)
            if place is None or place.offset != chunk.next_offset:
                continue
            if place.paused:
                fetcher.chunks.append(chunk)
                continue
            chunks.append((chunk, place))
            ahead[chunk.item] = chunk.end_offset
        if not chunks:
            return None
        fetcher.send(ahead)
        import pyarrow as pa

        tables = []
        for chunk, place in chunks:
            for batch in chunk.arrow(include_headers, bytes_max):
                count = batch.num_rows
                columns = [
                    pa.repeat(pa.scalar(chunk.item.topic, pa.string()), count),
                    pa.repeat(pa.scalar(chunk.item.partition, pa.int32()), count),
                    *batch.columns,
                ]
                tables.append(
                    pa.RecordBatch.from_arrays(columns, names=["topic", "partition", *batch.schema.names])
                )
            place.offset = chunk.next_offset
        return pa.Table.from_batches(tables) if tables else None

    # -- positions ----------------------------------------------------------------------------------------

    def _find_positions(self, deadline: float) -> None:
        """Finds out where to begin: committed offsets first, then by ``auto.offset.reset``."""
        unknown = [i for i, p in self._places.items() if p.offset is None and p.reset is None]
        if unknown:
            committed: dict[TopicPartition, Committed] = {}
            if self.config["group.id"]:
                committed = self._fetch_committed(unknown, deadline)
            for item in unknown:
                place = self._places[item]
                if item in committed:
                    place.offset = committed[item].offset
                elif self._policy == "none":
                    raise NoOffset(
                        f"no offset is committed for {item}, and auto.offset.reset=none; seek(), or set "
                        "earliest or latest",
                        topic=item.topic,
                        partition=item.partition,
                    )
                else:
                    place.reset = EARLIEST if self._policy == "earliest" else LATEST
        resets = {i: p.reset for i, p in self._places.items() if p.offset is None and p.reset is not None}
        if resets:
            found = list_offsets(self._cluster, resets, deadline, committed_only=self._fetcher.committed_only)
            for item, at in found.items():
                place = self._places[item]
                place.offset, place.reset = at.offset, None

    def _fetch_committed(
        self, items: Iterable[TopicPartition], deadline: float
    ) -> dict[TopicPartition, Committed]:
        return fetch_offsets(
            self._cluster,
            self.config.text("group.id"),
            items,
            deadline,
            stable=self._fetcher.committed_only,
        )

    def _place(self, item: TopicPartition) -> Place:
        found = self._places.get(TopicPartition(*item))
        if found is None:
            raise ValueError(f"{item} is not assigned to this consumer; assigned are {sorted(self._places)}")
        return found

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Reads on from ``offset``."""
        with self._used():
            if offset < 0:
                raise ValueError(f"offset {offset} of {partition}: offsets count from 0")
            place = self._place(partition)
            place.offset, place.reset = offset, None
            self._fetcher.forget(TopicPartition(*partition))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Reads on from the first record; of all partitions when none is named."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Reads on after the last record; of all partitions when none is named."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: Sequence[TopicPartition], where: int) -> None:
        with self._used():
            for item in partitions or list(self._places):
                place = self._place(item)
                place.offset, place.reset = None, where
                self._fetcher.forget(TopicPartition(*item))

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the record that comes next. RequestTimeout when it cannot be found out in time."""
        with self._used():
            deadline = self._deadline(timeout)
            while True:
                offset = self._place(partition).offset
                if offset is not None:
                    return offset
                if time.monotonic() >= deadline:
                    raise RequestTimeout(f"the position in {partition} was not found in time")
                self._find_positions(deadline)

    def pause(self, *partitions: TopicPartition) -> None:
        """Gives out no records of these until :meth:`resume`; the group membership goes on."""
        with self._used():
            for item in partitions:
                self._place(item).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Gives out records of these again."""
        with self._used():
            for item in partitions:
                self._place(item).paused = False

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {item for item, place in self._places.items() if place.paused}

    def lag(self, partition: TopicPartition) -> int | None:
        """Records behind the end, as far as the last fetch knows; None before the first."""
        place = self._place(partition)
        end = place.last_stable_offset if self._fetcher.committed_only else place.high_watermark
        return max(0, end - place.offset) if end >= 0 and place.offset is not None else None

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAt | None]:
        """The first record at or after each time (ms since 1970 UTC): offset and time; None without one."""
        with self._used():
            wanted = {TopicPartition(*item): stamp for item, stamp in times_ms.items()}
            if any(stamp < 0 for stamp in wanted.values()):
                raise ValueError("times are milliseconds since 1970, not negative")
            found = list_offsets(self._cluster, wanted, self._deadline(timeout))
            return {item: (at if at.offset >= 0 else None) for item, at in found.items()}

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._ends(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition; the last stable one with read_committed."""
        return self._ends(partitions, LATEST, timeout)

    def _ends(
        self, partitions: Iterable[TopicPartition], where: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        with self._used():
            wanted = {TopicPartition(*item): where for item in partitions}
            found = list_offsets(
                self._cluster,
                wanted,
                self._deadline(timeout),
                committed_only=self._fetcher.committed_only,
            )
            return {item: at.offset for item, at in found.items()}

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic; ClientError when there is none such."""
        with self._used():
            known = self._cluster.topic(topic, self._deadline(timeout))
            return [TopicPartition(topic, p.partition) for p in known.partitions]

    def topics(self, timeout: float | None = None) -> list[str]:
        """The names of all topics."""
        with self._used():
            self._cluster.refresh(self._deadline(timeout), every=True)
            return sorted(self._cluster.topics)

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else timeout)

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
            self._member().commit(self._to_commit(offsets), self._deadline(timeout))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | Committed] | None = None,
        *,
        on_commit: Callable[[ClientError | None], None] | None = None,
    ) -> None:
        """Commits without waiting. ``on_commit(error or None)`` is called in a later poll() or close()."""
        with self._used():
            self._member().commit_soon(
                self._to_commit(offsets), self._deadline(None), on_commit or _log_failed_commit
            )

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
            return {i: (p.offset, -1, "") for i, p in self._places.items() if p.offset is not None}
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
        if not offsets or group is None:
            return
        try:
            group.commit_soon(offsets, time.monotonic() + 1, _log_failed_commit)
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
            group.commit(offsets, max(deadline, time.monotonic() + 1))
        except ClientError as problem:
            _log_failed_commit(problem)

    def revoke(self, items: Sequence[TopicPartition]) -> None:
        """See :class:`tidemill.client.group.User`."""
        if self._listener is not None:
            self._listener.on_revoked(items)
        for item in items:
            self._drop(item)

    def lose(self, items: Sequence[TopicPartition]) -> None:
        """See :class:`tidemill.client.group.User`."""
        if self._listener is not None:
            self._listener.on_lost(items)
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
        self._fetcher.forget(item)

    # -- ending -------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Ends a poll() that waits, from any thread: it returns what it has, perhaps nothing."""
        self._woken = True
        self._fetcher.wake()

    def _leave(self, reason: str) -> None:
        group = self._group
        if group is None:
            return
        if self._subscribed:
            self.commit_before_rebalance(time.monotonic() + 5)
            owned = self.owned()
            if owned:
                self.revoke(owned)
        elif self._auto_commit:
            try:
                group.commit(self._to_commit(None), time.monotonic() + 5)
            except ClientError as problem:
                _log_failed_commit(problem)
        group.finish_commits(1.0)
        group.leave(reason)
        self._group = None

    def close(self) -> None:
        """Commits where that is automatic, leaves the group, closes the connections."""
        if self._closed:
            return
        with self._used():
            self._closed = True
            try:
                self._leave("the consumer is closed")
            finally:
                self._cluster.close()
                self._fetcher.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Refuses a second thread, and a closed consumer."""
        if not self._user_lock.acquire(blocking=False):
            raise RuntimeError(
                "the consumer is used by another thread; only wakeup() may be called from there"
            )
        try:
            if self._closed:
                raise ClientClosed("the consumer is closed; make a new one", ErrorCode.NETWORK_EXCEPTION)
            yield
        finally:
            self._user_lock.release()


def _log_failed_commit(error: ClientError | None) -> None:
    if error is not None:
        level = logging.DEBUG if error.code in COORDINATOR_MOVED else logging.WARNING
        LOG.log(level, "a commit failed: %s", error)
