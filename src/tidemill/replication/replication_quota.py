"""Throttles replication, so that clients keep their share of the network.

Leader and follower each have a throttle. It applies to the replicas that the topic settings
``leader.replication.throttled.replicas`` and ``follower.replication.throttled.replicas`` list, and limits
their total rate to the broker's setting in bytes per second:

========  =========================================================  =====================================
side      before a fetch                                             after a fetch
========  =========================================================  =====================================
leader    a fetch of a follower that is not in sync gets nothing of  the bytes of throttled partitions
          a throttled partition while the rate is exceeded           that go to followers are recorded
follower  a throttled partition that lags and is not in the ISR is   the bytes of throttled partitions
          omitted while the rate is exceeded                         that came are recorded
========  =========================================================  =====================================

In-sync replicas are never throttled, because that would delay producers. Their bytes are recorded, though.
The same holds for replicas that are about to join the ISR, for which commits already wait; Kafka has no such
rule.

This module has no clock: callers pass the time in seconds of any monotonic clock. Source: KIP-73; Kafka's
``ReplicationQuotaManager`` and ``SimpleRate``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidemill.model.configs.replica_lists import partitions_on

UNLIMITED = 0x7FFF_FFFF_FFFF_FFFF
"""In bytes per second: no limit."""
SAMPLES = 11
"""``replication.quota.window.num``: ten complete samples and the current one."""
SAMPLE_S = 1.0
"""``replication.quota.window.size.seconds``"""
MOMENT_S = 1e-6
"""Longer than rounding errors."""


class RateLimit:
    """Bytes per second, measured over the samples of the last seconds.

    All recorded bytes count, even above the rate: callers check first and record afterwards. After a burst
    the limit stays exceeded until the mean over the samples is below the rate.
    """

    def __init__(
        self, bytes_per_second: int = UNLIMITED, samples: int = SAMPLES, sample_s: float = SAMPLE_S
    ) -> None:
        self.bytes_per_second = bytes_per_second
        """May change at any time."""
        self._samples_max = samples
        self._sample_s = sample_s
        self._samples: deque[tuple[float, int]] = deque()
        """The start of each sample, oldest first, and its bytes."""
        self._total = 0

    def record(self, size: int, now: float) -> None:
        """Counts ``size`` bytes."""
        self._forget(now)
        self._total += size
        if self._samples and now - self._samples[-1][0] < self._sample_s:
            began, before = self._samples[-1]
            self._samples[-1] = (began, before + size)
        else:
            self._samples.append((now, size))

    def rate(self, now: float) -> float:
        """The bytes per second over the samples; the first second counts as complete."""
        self._forget(now)
        if not self._samples:
            return 0.0
        return self._total / max(self._sample_s, now - self._samples[0][0])

    def is_exceeded(self, now: float) -> bool:
        """Whether the recorded rate is above the limit."""
        return self.rate(now) > self.bytes_per_second

    def wait_s(self, now: float) -> float:
        """The time until the rate is not exceeded any more, without further bytes; 0 if it is not."""
        if not self.is_exceeded(now):
            return 0.0
        return max(MOMENT_S, self._enough_at(now) - now)

    def _enough_at(self, now: float) -> float:
        """When the rate is not exceeded any more, without further bytes."""
        left, earliest = self._total, now
        for began, size in self._samples:
            # While this sample is the oldest, all remaining bytes count over the time since it began, the
            # first second of which counts as complete.
            ends = began + self._samples_max * self._sample_s
            if left <= self.bytes_per_second * self._sample_s:
                return earliest
            if self.bytes_per_second > 0:
                enough = max(earliest, began + left / self.bytes_per_second)
                # At its end this sample is dropped, and the same moment may exceed the rate again.
                if enough < ends - MOMENT_S:
                    return enough
            left -= size
            earliest = max(earliest, ends)
        return earliest

    def _forget(self, now: float) -> None:
        kept_s = self._samples_max * self._sample_s
        while self._samples and now - self._samples[0][0] >= kept_s:
            self._total -= self._samples.popleft()[1]


class Turns:
    """A sequence of transfers at a common rate, which may change while they wait."""

    def __init__(self, bytes_per_second: int = UNLIMITED) -> None:
        self.bytes_per_second = bytes_per_second
        """May change at any time."""
        self._taken = 0
        self._passed = 0.0
        self._at = 0.0

    def append(self, size: int, now: float) -> int:
        """Appends a transfer of ``size`` bytes. Returns its number."""
        self._pass(now)
        self._taken += size
        return self._taken

    def wait_s(self, turn: int, now: float) -> float:
        """The time until a transfer may start, at the current rate."""
        self._pass(now)
        return max(0.0, turn - self._passed) / max(1, self.bytes_per_second)

    def _pass(self, now: float) -> None:
        passed = self._passed + (now - self._at) * self.bytes_per_second
        self._passed = min(passed, float(self._taken))
        self._at = now


class ReplicationQuota:
    """The throttle of one side on one broker: its partitions and its limit."""

    def __init__(self, broker_id: int, limit: RateLimit) -> None:
        self.limit = limit
        self.bytes = 0
        """All recorded bytes."""
        self._broker_id = broker_id
        self._topics: dict[str, frozenset[int] | None] = {}

    @property
    def is_set(self) -> bool:
        """Whether any partition is throttled."""
        return bool(self._topics)

    def set_topic(self, topic: str, replicas: Sequence[str]) -> None:
        """Sets the throttled replicas of a topic; none if the topic does not exist any more."""
        partitions = partitions_on(replicas, self._broker_id)
        if partitions is None or partitions:
            self._topics[topic] = partitions
        else:
            self._topics.pop(topic, None)

    def covers(self, topic: str, partition: int) -> bool:
        """Whether this broker's replica of the partition is throttled."""
        partitions = self._topics.get(topic, _NONE)
        return partitions is None or partition in partitions

    def is_throttled(self, topic: str, partition: int, now: float, *, in_sync: bool) -> bool:
        """Whether the quota is exceeded, so that the partition is omitted from responses."""
        return not in_sync and self.covers(topic, partition) and self.limit.is_exceeded(now)

    def record(self, topic: str, partition: int, size: int, now: float) -> None:
        """Records bytes of the partition, if it is throttled."""
        if self.covers(topic, partition):
            self.bytes += size
            self.limit.record(size, now)


_NONE: frozenset[int] = frozenset()
