"""Where a consumer stands in its partitions: finding out, seeking, pausing, and looking offsets up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tidemill.client.cluster import Cluster
from tidemill.client.config import CONSUMER, config_of
from tidemill.client.errors import ClientClosed, NoOffset, RequestTimeout
from tidemill.client.fetcher import Fetcher, Place
from tidemill.client.group_offsets import Committed, fetch_offsets
from tidemill.client.offset_resets import OffsetResets
from tidemill.client.offsets import EARLIEST, LATEST, OffsetAt, by_leader, list_offsets
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition


class Positions:
    """The consumer's part for positions. For one thread at a time; timeouts are in seconds."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        self.config = config_of(CONSUMER, bootstrap_servers, config, keywords)
        self._cluster = Cluster(self.config)
        self._cluster.create = self.config.bool("allow.auto.create.topics")
        self._places: dict[TopicPartition, Place] = {}
        self._unread: dict[TopicPartition, int] = {}
        """How far a loop over the consumer has got in the records of its last poll."""
        self._at_work: dict[TopicPartition, int] = {}
        """The first offset of the records given out last, which the user may still be working on."""
        self._fetcher = Fetcher(self._cluster, self._places)
        self._resets = OffsetResets(self._cluster, self._places, self._fetcher)
        self._timeout = self.config.seconds("default.api.timeout.ms")
        self._policy = self.config.text("auto.offset.reset")
        self._closed = False
        self._user_lock = threading.RLock()

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

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else timeout)

    def _find_positions(self, deadline: float) -> float:
        """Finds out where to begin: committed offsets first, then by ``auto.offset.reset``.

        Seconds until that is worth doing again.
        """
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
        return self._resets.step()

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
            self._forget(TopicPartition(*partition))

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
                self._forget(TopicPartition(*item))

    def _forget(self, item: TopicPartition) -> None:
        """Drops what was fetched of a partition, and where the user stood in it."""
        self._fetcher.forget(item)
        self._unread.pop(item, None)
        self._at_work.pop(item, None)

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """The offset of the record that comes next. RequestTimeout when it cannot be found out in time."""
        with self._used():
            deadline = self._deadline(timeout)
            while True:
                offset = self._place(partition).offset
                if offset is not None:
                    return self._unread.get(TopicPartition(*partition), offset)
                by_leader(self._cluster, [TopicPartition(*partition)], deadline, "look up an offset of")
                left = deadline - time.monotonic()
                if left <= 0:
                    late = RequestTimeout(f"the position in {partition} was not found in time")
                    raise self._resets.failures.get(TopicPartition(*partition), late)
                if self._cluster.needs_refresh():
                    self._cluster.refresh(deadline)
                wait = self._find_positions(deadline)
                if self._place(partition).offset is None:
                    self._fetcher.wait(min(left, wait), self._resets.connections, for_records=False)

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

    def troubles(self) -> dict[TopicPartition, tuple[str, float]]:
        """The assigned partitions that cannot be read now: the error's name, and for how many seconds so far.

        It is asked for them again and again: a leader may be found, or a disk may come back.
        """
        now = time.monotonic()
        for item in self._places:
            self._fetcher.has_leader(item)
        return {
            item: (place.trouble, now - place.trouble_since)
            for item, place in self._places.items()
            if place.trouble
        }

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
