"""How replicas that catch up are slowed down, so that clients keep their share of the network.

Leader and follower have a throttle each. A throttle concerns the replicas that a topic names
(``leader.replication.throttled.replicas``, ``follower.replication.throttled.replicas``), and limits what they
take together, by the bytes a second of the broker's setting. What both sides do with it:

========  =========================================================  =====================================
side      before                                                     after
========  =========================================================  =====================================
leader    a fetch of a follower that is not in sync gets nothing of  the bytes of throttled partitions
          a throttled partition while the rate is exceeded           that go to followers are recorded
follower  a throttled partition that lags, and in whose in-sync set  the bytes of throttled partitions
          it is not, is left out while the rate is exceeded          that came are recorded
========  =========================================================  =====================================

Replicas in sync are never held back: that would hold producers back. They count all the same. So it is with
those that are about to come back into the set, as commits wait for them already: that Kafka does not have.

No clock here: time comes in, in seconds of any clock that never goes back. Source: KIP-73; Kafka's
``ReplicationQuotaManager`` and ``SimpleRate``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidemill.model.configs.replica_lists import partitions_on

UNLIMITED = 0x7FFF_FFFF_FFFF_FFFF
"""Bytes a second: no limit."""
SAMPLES = 11
"""``replication.quota.window.num``: ten whole ones and the one that is being filled."""
SAMPLE_S = 1.0
"""``replication.quota.window.size.seconds``"""
MOMENT_S = 1e-6
"""Longer than what is lost by rounding."""


class RateLimit:
    """Bytes a second, measured over the samples of the last seconds.

    What is recorded counts whether or not it exceeds the rate: one asks first, and records afterwards what
    it came to. So a burst is made up for by silence, until the mean over the samples is below the rate.
    """

    def __init__(
        self, bytes_per_second: int = UNLIMITED, samples: int = SAMPLES, sample_s: float = SAMPLE_S
    ) -> None:
        self.bytes_per_second = bytes_per_second
        """May change at any time."""
        self._samples_max = samples
        self._sample_s = sample_s
        self._samples: deque[tuple[float, int]] = deque()
        """When each sample began, oldest first, and the bytes in it."""
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
        """Bytes a second over the samples; the first second counts as a whole one."""
        self._forget(now)
        if not self._samples:
            return 0.0
        return self._total / max(self._sample_s, now - self._samples[0][0])

    def is_exceeded(self, now: float) -> bool:
        """Whether more has been recorded than the rate allows."""
        return self.rate(now) > self.bytes_per_second

    def wait_s(self, now: float) -> float:
        """How long until the rate is exceeded no more, if nothing is recorded meanwhile; 0 if it is not."""
        if not self.is_exceeded(now):
            return 0.0
        return max(MOMENT_S, self._enough_at(now) - now)

    def _enough_at(self, now: float) -> float:
        """When the rate is exceeded no more, if nothing is recorded meanwhile."""
        left, earliest = self._total, now
        for began, size in self._samples:
            # As long as this sample is the oldest one, all that is left counts over the time since it began,
            # the first second of which counts as a whole one.
            ends = began + self._samples_max * self._sample_s
            if left <= self.bytes_per_second * self._sample_s:
                return earliest
            if self.bytes_per_second > 0:
                enough = max(earliest, began + left / self.bytes_per_second)
                # At its end this sample is forgotten, and the same moment may exceed the rate anew.
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
    """Bytes that go one after the other, at a rate that may change while they wait."""

    def __init__(self, bytes_per_second: int = UNLIMITED) -> None:
        self.bytes_per_second = bytes_per_second
        """May change at any time."""
        self._taken = 0
        self._passed = 0.0
        self._at = 0.0

    def take(self, size: int, now: float) -> int:
        """Takes the turn behind all others for ``size`` bytes; its number."""
        self._pass(now)
        self._taken += size
        return self._taken

    def wait_s(self, turn: int, now: float) -> float:
        """How long until the bytes of a turn may go, as the rate is now."""
        self._pass(now)
        return max(0.0, turn - self._passed) / max(1, self.bytes_per_second)

    def _pass(self, now: float) -> None:
        passed = self._passed + (now - self._at) * self.bytes_per_second
        self._passed = min(passed, float(self._taken))
        self._at = now


class Throttle:
    """One side's throttle on one broker: which partitions, and how much."""

    def __init__(self, broker_id: int, limit: RateLimit) -> None:
        self.limit = limit
        self.bytes = 0
        """All that was counted."""
        self._broker_id = broker_id
        self._topics: dict[str, frozenset[int] | None] = {}

    @property
    def is_set(self) -> bool:
        """Whether any partition is throttled, so that there is anything to ask."""
        return bool(self._topics)

    def set_topic(self, topic: str, replicas: Sequence[str]) -> None:
        """What the topic's setting lists now; nothing where the topic is no more."""
        partitions = partitions_on(replicas, self._broker_id)
        if partitions is None or partitions:
            self._topics[topic] = partitions
        else:
            self._topics.pop(topic, None)

    def covers(self, topic: str, partition: int) -> bool:
        """Whether this broker's replica of the partition is throttled."""
        partitions = self._topics.get(topic, _NONE)
        return partitions is None or partition in partitions

    def holds_back(self, topic: str, partition: int, now: float, *, in_sync: bool) -> bool:
        """Whether the partition has to be left out for now."""
        return not in_sync and self.covers(topic, partition) and self.limit.is_exceeded(now)

    def record(self, topic: str, partition: int, size: int, now: float) -> None:
        """Counts bytes of the partition, if it is throttled."""
        if self.covers(topic, partition):
            self.bytes += size
            self.limit.record(size, now)


_NONE: frozenset[int] = frozenset()
