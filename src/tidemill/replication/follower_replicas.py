"""The state of the followers of a partition on its leader. Compiled.

The fetch offset of a follower is its log end offset. This determines the high watermark (all in-sync replicas
have everything below it), which replicas leave the ISR, and which may join it. The high watermark waits for
the members of the committed and of a pending ISR (:mod:`tidemill.replication.isr_state`). This module has no
clock and no I/O.

All times are milliseconds of the monotonic clock: with a wall clock that was set back, a silent follower
would stay in the ISR for longer.

A restarted broker may have fewer records than before. Followers therefore send their broker epoch with each
fetch, and the leader names the members of a requested ISR with these epochs: the records of a former process
of a broker do not count.

Source: Apache Kafka, ``kafka.cluster.Partition`` and ``Replica``; KIP-497 for pending changes, KIP-903 for
broker epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i32, i64

from tidemill.model.types import NO_OFFSET
from tidemill.replication.isr_state import IsrState

NO_BROKER_EPOCH: Final[i64] = -1
"""The epoch of a follower that has not fetched, or sends no broker epoch (Fetch before version 15)."""
NEVER_MS: Final[i64] = -1
"""The time of an event that has not occurred."""


class Follower:
    """The state of one follower, from its fetches."""

    def __init__(self) -> None:
        self.epoch: i64 = NO_BROKER_EPOCH
        """The broker epoch of its last fetch; -1 before that, or if it sends none."""
        self.end_offset: i64 = NO_OFFSET
        """Its log end offset; -1 before its first fetch in this epoch."""
        self.known_end: i64 = NO_OFFSET
        """Its last known log end offset, in an earlier leader epoch or process; -1: unknown.

        Only for metrics.
        """
        self.start_offset: i64 = NO_OFFSET
        self.caught_up_ms: i64 = NEVER_MS
        """When it last had the log end offset of the leader."""
        self._fetched_ms: i64 = NEVER_MS
        self._leader_end: i64 = NO_OFFSET

    def fetched(self, offset: i64, start_offset: i64, leader_end: i64, now_ms: i64) -> None:
        """Updates the state for a fetch at ``offset``, when the leader's log ended at ``leader_end``.

        A follower that has reached the leader's log end offset at its previous fetch was caught up at that
        time: otherwise a follower of a continuously written log would never count as caught up.
        """
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self._leader_end >= 0 and offset >= self._leader_end and self._fetched_ms > self.caught_up_ms:
            self.caught_up_ms = self._fetched_ms
        self.end_offset = offset
        self.start_offset = start_offset
        self._fetched_ms = now_ms
        self._leader_end = leader_end

    def fetch_repeated(self, now_ms: i64) -> None:
        """Updates the state of a caught-up follower that repeated its fetch, last at ``now_ms``.

        Fetches without new information are not recorded one by one, but when new records arrive.
        """
        if self.end_offset >= 0 and now_ms > self._fetched_ms:
            self._fetched_ms = now_ms
            if self.end_offset >= self._leader_end:
                self.caught_up_ms = now_ms

    def forget(self) -> None:
        """Resets the state."""
        self.known_end = self.last_end()
        self.end_offset = NO_OFFSET
        self.caught_up_ms = NEVER_MS
        self._fetched_ms = NEVER_MS
        self._leader_end = NO_OFFSET

    def last_end(self) -> i64:
        """Its last known log end offset; -1: unknown."""
        return self.end_offset if self.end_offset >= 0 else self.known_end

    def is_caught_up(self, leader_end: i64, now_ms: i64, lag_ms_max: i64) -> bool:
        """Whether it is caught up, or was within the last ``lag_ms_max`` ms."""
        if self.end_offset == leader_end:
            return True
        return self.caught_up_ms >= 0 and now_ms - self.caught_up_ms <= lag_ms_max

    def has_fetched_since(self, since_ms: i64) -> bool:
        """Whether it has fetched since then, or had no time to do so."""
        return self._fetched_ms >= since_ms or self.caught_up_ms >= since_ms


class FollowerReplicas:
    """The replicas of a partition in one leader epoch."""

    def __init__(
        self,
        leader: i32,
        replicas: tuple[int, ...],
        isr_state: IsrState,
        now_ms: i64,
        lag_ms_max: i64,
    ) -> None:
        """``isr_state`` is that of the partition. Members of the ISR have ``lag_ms_max`` ms from ``now_ms``
        on to catch up.
        """
        self.leader: i32 = leader
        self.lag_ms_max: i64 = lag_ms_max
        self.isr_state = isr_state
        self.followers: dict[int, Follower] = {}
        for broker in replicas:
            if broker != leader:
                follower = Follower()
                if broker in isr_state.isr:
                    follower.caught_up_ms = now_ms
                self.followers[broker] = follower

    def change(self, replicas: tuple[int, ...], former_isr: tuple[int, ...]) -> None:
        """Applies a state of the same leader epoch, which had the ISR ``former_isr`` before."""
        isr = self.isr_state.isr
        for broker in replicas:
            if broker != self.leader and broker not in self.followers:
                self.followers[broker] = Follower()
        for broker, follower in list(self.followers.items()):
            if broker not in replicas:
                del self.followers[broker]
            elif broker in former_isr and broker not in isr:
                # It was removed from the ISR, possibly because it failed: commits do not wait for it until it
                # fetches again.
                follower.forget()

    def resume(self, left: FollowerReplicas) -> None:
        """Takes over the followers' broker epochs from the time when this broker led in the same state.

        A repeated ISR request names the same registrations: a broker that was restarted since is excluded.
        """
        for broker, follower in self.followers.items():
            known = left.followers.get(broker)
            if known is not None:
                follower.epoch = known.epoch

    def fetched(
        self,
        broker: i32,
        offset: i64,
        start_offset: i64,
        leader_end: i64,
        now_ms: i64,
        epoch: i64 = NO_BROKER_EPOCH,
    ) -> bool:
        """Records a fetch. Returns whether ``broker`` is a follower and has no later ``epoch``.

        As in Apache Kafka, an epoch of -1 is always accepted: older followers send none.
        """
        follower = self.followers.get(int(broker))
        if follower is None or 0 <= epoch < follower.epoch:
            return False
        if 0 <= follower.epoch < epoch and int(broker) not in self.isr_state.isr:
            # After its restart only its current fetch offset counts: commits do not wait for it as for a
            # caught-up replica.
            follower.forget()
        follower.epoch = epoch
        follower.fetched(offset, start_offset, leader_end, now_ms)
        return True

    def fetch_repeated(self, broker: i32, now_ms: i64, epoch: i64 = NO_BROKER_EPOCH) -> None:
        """Records that ``broker`` repeated its fetch, last at ``now_ms``."""
        follower = self.followers.get(int(broker))
        if follower is not None and not 0 <= epoch < follower.epoch:
            follower.fetch_repeated(now_ms)

    def epoch_of(self, broker: i32) -> i64:
        """The broker epoch of a follower's last fetch; -1 if unknown."""
        follower = self.followers.get(int(broker))
        return NO_BROKER_EPOCH if follower is None else follower.epoch

    def broker_failed(self, broker: i32) -> bool:
        """Records the failure of a broker. Returns whether commits stop waiting for it.

        Commits wait for a member of the ISR until the controller has removed it.
        """
        follower = self.followers.get(int(broker))
        if follower is None or int(broker) in self.isr_state.isr:
            return False
        follower.forget()
        return True

    def is_rejoining(self, broker: i32, own_end: i64, now_ms: i64) -> bool:
        """Whether a follower is expected to join the ISR soon: it was caught up recently."""
        follower = self.followers.get(int(broker))
        if follower is None or follower.end_offset < 0:
            return False
        if int(broker) in self.isr_state.maximal_isr:
            return True
        return follower.is_caught_up(own_end, now_ms, self.lag_ms_max)

    def high_watermark(self, own_end: i64, now_ms: i64) -> i64:
        """The offset below which all in-sync replicas have the log; -1 while one is unknown.

        ``own_end`` is the offset that the leader itself has. Followers that are about to join the ISR count
        as well: otherwise they could never join the ISR of a continuously written log.
        """
        least: i64 = own_end
        maximal_isr = self.isr_state.maximal_isr
        for broker, follower in self.followers.items():
            if follower.end_offset >= least:
                continue
            is_rejoining = follower.end_offset >= 0 and follower.is_caught_up(
                own_end, now_ms, self.lag_ms_max
            )
            if is_rejoining or broker in maximal_isr:
                least = follower.end_offset
        return least

    def can_join_isr(self, broker: i32, high_watermark: i64, epoch_start: i64, log_start: i64) -> bool:
        """Whether a follower outside the ISR has all committed records, also those of this epoch.

        It must have deleted the records that this leader has deleted: otherwise they would return if it were
        elected.
        """
        follower = self.followers.get(int(broker))
        state = self.isr_state
        if follower is None or int(broker) in state.isr or state.pending is not None:
            return False
        if follower.start_offset < log_start:
            return False
        return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start

    def without_lagging(self, own_end: i64, now_ms: i64) -> tuple[int, ...]:
        """The ISR without followers that have not caught up for too long; unchanged if there are none."""
        isr = self.isr_state.isr
        if self.isr_state.pending is not None:
            return isr
        return tuple(
            [
                broker
                for broker in isr
                if broker == self.leader
                or (
                    broker in self.followers
                    and self.followers[broker].is_caught_up(own_end, now_ms, self.lag_ms_max)
                )
            ]
        )

    def has_fetched_since(self, since_ms: i64) -> bool:
        """Whether a member of the ISR has fetched since then, or had no time to do so."""
        for broker, follower in self.followers.items():
            if broker in self.isr_state.isr and follower.has_fetched_since(since_ms):
                return True
        return False

    def set_known_ends(self, known_ends: dict[int, int], high_watermark: i64) -> None:
        """Sets the last known log end offsets; in-sync followers have all committed records."""
        for broker, follower in self.followers.items():
            known: i64 = known_ends.get(broker, NO_OFFSET)
            is_in_sync = broker in self.isr_state.isr
            follower.known_end = high_watermark if is_in_sync and known < high_watermark else known

    def lag_max(self, own_start: i64, own_end: i64) -> i64:
        """The largest number of records of this log that a follower lacks.

        For a follower without a fetch, all records after its last known log end offset count.
        """
        most: i64 = 0
        for follower in self.followers.values():
            end = follower.last_end()
            lag: i64 = own_end - (end if end > own_start else own_start)
            if lag > most:
                most = lag
        return most

    def start_offset(self, own_start: i64, is_alive: Callable[[int], bool]) -> i64:
        """The lowest log start offset of all live replicas; -1: one is unknown.

        In-sync replicas count whether this broker knows that they are live or not: one may have returned, and
        be elected next.
        """
        least: i64 = own_start
        maximal_isr = self.isr_state.maximal_isr
        for broker, follower in self.followers.items():
            if follower.start_offset < least and (broker in maximal_isr or is_alive(broker)):
                least = follower.start_offset
        return least
