"""The lag of a mirror behind its source, in messages and seconds, measured at both clusters.

The lag in seconds of a partition is the age of the first batch that the mirror does not have. It is measured
from outside of the query, so that it also grows while the query cannot reach a cluster.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from tidemill.client.errors import ClientError
from tidemill.client.range_reader import RangeReader
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.reachable_partition_offsets import ReachableOffsets
from tidemill.records.batch import BASE_TIMESTAMP, CURRENT_MAGIC, MAGIC, RECORDS
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

AGES_MAX = 20
"""Partitions whose first missing batch is read for its age in one measurement: those with the largest lag."""
AGES_S = 30.0
"""How long ages are read: each read of a broker that does not answer waits for a timeout."""
FIRST_BATCH_BYTES = 1
"""Brokers return at least one whole batch, however small the limit is."""

_I64 = struct.Struct(">q")


class MirrorLag(NamedTuple):
    """The lag of one source's mirrors, by partition of the source."""

    messages: Mapping[TopicPartition, int]
    """Offsets between the ends; transaction markers and compacted records count as well."""
    seconds: Mapping[TopicPartition, float]
    """Only of the partitions that are behind, and at most of :data:`AGES_MAX`."""
    ends: Mapping[TopicPartition, int]
    """The log ends of the target, by its partitions; empty if it cannot be reached."""
    held_back: Mapping[TopicPartition, str] = {}
    """Why partitions of the source are not copied while others are. Their lag is that of the last measurement
    in which it could be measured.
    """

    @property
    def total(self) -> int:
        """The lag of all partitions in messages."""
        return sum(self.messages.values())

    @property
    def seconds_max(self) -> float:
        """The largest lag in seconds; 0 without one."""
        return max(self.seconds.values(), default=0.0)


NO_LAG = MirrorLag({}, {}, {})


def measure_lag(
    source: ReachableOffsets,
    target: ReachableOffsets,
    names: Mapping[str, str],
    before: MirrorLag = NO_LAG,
    now_s: float | None = None,
) -> MirrorLag:
    """Measures the lag of topics; ``names`` has the target's name of each. Raises ClientError.

    ``before`` is the last lag. ``now_s`` is the time since 1970, by default now.
    """
    mirrors = target.describe(sorted(names.values()))
    topics = source.describe(sorted(names))
    items = {
        TopicPartition(topic, number): TopicPartition(names[topic], number)
        for topic, seen in topics.items()
        if names[topic] in mirrors
        for number in range(min(seen.partitions, mirrors[names[topic]].partitions))
    }
    listed = target.list(items.values(), LATEST)
    # The end of a mirror without a leader does not move.
    ends = {mirror: before.ends[mirror] for mirror in items.values() if mirror in before.ends} | listed
    reached = {item: ends[mirror] for item, mirror in items.items() if mirror in ends}
    lag = _lag(source, items, reached, before, now_s)
    held_back = {
        item: f"in the target, {target.held_back[mirror]}"
        for item, mirror in items.items()
        if mirror in target.held_back
    }
    return lag._replace(ends=ends, held_back={**held_back, **lag.held_back})


def measure_record_lag(
    source: ReachableOffsets,
    names: Iterable[str],
    copied: Mapping[TopicPartition, int],
    before: MirrorLag = NO_LAG,
    now_s: float | None = None,
) -> MirrorLag:
    """Measures the lag of topics whose records have new offsets, without the target. Raises ClientError.

    ``copied`` has the offsets that the mirror has reached at the source. The reader is read_committed: an
    open transaction of the source is no lag, since nobody can read it yet.
    """
    topics = source.describe(sorted(names))
    items = [
        TopicPartition(topic, number) for topic, seen in topics.items() for number in range(seen.partitions)
    ]
    earliest = source.list_some([item for item in items if item not in copied], EARLIEST)
    reached = {**earliest, **{item: copied[item] for item in items if item in copied}}
    return _lag(source, items, reached, before, now_s)


def log_ends(target: ReachableOffsets, names: Iterable[str]) -> dict[TopicPartition, int]:
    """Returns the log ends of topics of the target. Raises ClientError."""
    mirrors = target.describe(sorted(names))
    items = [
        TopicPartition(name, number) for name, seen in mirrors.items() for number in range(seen.partitions)
    ]
    return target.list(items, LATEST)


def _lag(
    source: ReachableOffsets,
    items: Collection[TopicPartition],
    reached: Mapping[TopicPartition, int],
    before: MirrorLag,
    now_s: float | None,
) -> MirrorLag:
    latest = source.list(reached, LATEST)
    measured = {item: max(0, end - reached[item]) for item, end in latest.items()}
    messages = {item: before.messages[item] for item in reached if item in before.messages} | measured
    behind = sorted((item for item, lag in measured.items() if lag), key=lambda item: -measured[item])
    seconds: dict[TopicPartition, float] = {}
    deadline = time.monotonic() + AGES_S
    for item in behind[:AGES_MAX]:
        if time.monotonic() >= deadline:
            break
        time_ms = _time_of_first(source.reader, item, reached[item], latest[item])
        if time_ms >= 0:
            seconds[item] = max(0.0, (time.time() if now_s is None else now_s) - time_ms / 1000)
    held_back = {
        item: f"at the source, {problem}" for item, problem in source.held_back.items() if item in items
    }
    held_back |= {
        item: f"the source reports the end {end} of {item}, and {reached[item]} is copied: a new leader "
        "reports all committed records later, otherwise they are lost"
        for item, end in latest.items()
        if end < reached[item]
    }
    return MirrorLag(messages, seconds, {}, held_back)


def _time_of_first(source: RangeReader, item: TopicPartition, offset: int, end: int) -> int:
    """Returns the base timestamp of the first batch from an offset on, in ms; -1 if it has none."""
    try:
        for response in source.fetch(item.topic, item.partition, offset, end, bytes_max=FIRST_BATCH_BYTES):
            at = response.start
            if response.end - at >= RECORDS and response.data[at + MAGIC] == CURRENT_MAGIC:
                time_ms: int = _I64.unpack_from(response.data, at + BASE_TIMESTAMP)[0]
                return time_ms
            break
    except ClientError:
        pass  # Records were deleted meanwhile, or a broker has failed: the lag in messages says enough.
    return -1


class MirrorMetrics:
    """Prometheus metrics of a job, by the alias of the source."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._noted: dict[str, frozenset[TopicPartition]] = {}
        self._aged: dict[str, frozenset[TopicPartition]] = {}
        self._held: dict[str, frozenset[TopicPartition]] = {}
        """The partitions with a lag in messages, those with one in seconds, and those that are held back, by
        source."""
        labels = ("source", "topic", "partition")
        self._messages = Gauge(
            "tidemill_mirror_lag_messages",
            "Offsets of the source that the mirror does not have.",
            labels,
            registry=self.registry,
        )
        self._seconds = Gauge(
            "tidemill_mirror_lag_seconds",
            "Age of the first batch that the mirror does not have; 0 without lag.",
            labels,
            registry=self.registry,
        )
        self._held_back = Gauge(
            "tidemill_mirror_held_back",
            "1 for a partition that is not copied while others are.",
            labels,
            registry=self.registry,
        )
        self._records = Counter(
            "tidemill_mirror_records", "Copied records.", ("source",), registry=self.registry
        )
        self._bytes = Counter("tidemill_mirror_bytes", "Copied bytes.", ("source",), registry=self.registry)
        self._positions = Gauge(
            "tidemill_mirror_group_positions",
            "Positions of groups that were copied.",
            ("source",),
            registry=self.registry,
        )
        self._measured = Gauge(
            "tidemill_mirror_measured_timestamp_seconds",
            "Time of the last measurement of the lag.",
            ("source",),
            registry=self.registry,
        )

    def serve(self, port: int, address: str = "127.0.0.1") -> None:
        """Serves the metrics by HTTP in a thread. Raises OSError."""
        start_http_server(port, address, self.registry)

    def note_lag(self, source: str, lag: MirrorLag) -> None:
        """Sets the lag of all partitions of a source.

        Removes that of partitions that are not mirrored any more, and an age that was not measured.
        """
        for item in self._noted.get(source, frozenset()).difference(lag.messages):
            self._messages.remove(source, item.topic, str(item.partition))
        aged = {item for item, messages in lag.messages.items() if item in lag.seconds or not messages}
        for item in self._aged.get(source, frozenset()).difference(aged):
            self._seconds.remove(source, item.topic, str(item.partition))
        for item, messages in lag.messages.items():
            labels = (source, item.topic, str(item.partition))
            self._messages.labels(*labels).set(messages)
            if item in aged:
                self._seconds.labels(*labels).set(lag.seconds.get(item, 0.0))
        for item in self._held.get(source, frozenset()).difference(lag.held_back):
            self._held_back.remove(source, item.topic, str(item.partition))
        for item in lag.held_back:
            self._held_back.labels(source, item.topic, str(item.partition)).set(1)
        self._noted[source], self._aged[source] = frozenset(lag.messages), frozenset(aged)
        self._held[source] = frozenset(lag.held_back)
        self._measured.labels(source).set_to_current_time()

    def note_copied(self, source: str, records: int, size: int) -> None:
        """Adds what a micro-batch has copied."""
        self._records.labels(source).inc(records)
        self._bytes.labels(source).inc(size)

    def note_positions(self, source: str, copied: int) -> None:
        """Sets the number of positions that were copied."""
        self._positions.labels(source).set(copied)
