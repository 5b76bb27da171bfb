"""What the leader of a partition knows of its followers, and what follows from that. Compiled.

A follower tells how far it has the log by the offset that it fetches from. From that come the high watermark
(everything below it is on every replica in sync), who falls out of the in-sync set, and who may come back.
Nothing here reads a clock, sends or stores: a change of the in-sync set counts only once the controller has
written it, and until then the high watermark waits for the members of both sets.

All times are milliseconds of the monotonic clock: a wall clock that is set back would keep a silent follower
in the in-sync set for as long.

A broker that was started again may have less than it told before. So followers tell the epoch of their
registration with each fetch, and who asks for a set names its members with them: what a former life of a
broker had makes it no member.

Source: Apache Kafka, ``kafka.cluster.Partition`` and ``Replica``; KIP-497 for changes in flight, KIP-903 for
epochs of registrations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i32, i64

UNKNOWN: Final[i64] = -1


class Follower:
    """One follower, as its fetches tell of it."""

    def __init__(self, broker_id: i32) -> None:
        self.broker_id: i32 = broker_id
        self.epoch: i64 = UNKNOWN
        """Of the registration in which it fetched last; -1 before that, and where it tells none."""
        self.end_offset: i64 = UNKNOWN
        """It has everything below; -1 before its first fetch in this epoch."""
        self.known_end: i64 = UNKNOWN
        """It had everything below when it was heard of before that, in another epoch or life; -1: never.

        For who watches: nothing is decided by it."""
        self.start_offset: i64 = UNKNOWN
        self.caught_up_ms: i64 = UNKNOWN
        """When it last had everything that there was."""
        self._fetched_ms: i64 = UNKNOWN
        self._leader_end: i64 = UNKNOWN

    def fetched(self, offset: i64, start_offset: i64, leader_end: i64, now_ms: i64) -> None:
        """It asked for what comes at ``offset`` while the leader's log ended at ``leader_end``.

        Who now has what the leader had at the fetch before was caught up at that time: without this rule
        a follower of a log that is written without pause would never count as caught up.
        """
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self._leader_end >= 0 and offset >= self._leader_end and self._fetched_ms > self.caught_up_ms:
            self.caught_up_ms = self._fetched_ms
        self.end_offset = offset
        self.start_offset = start_offset
        self._fetched_ms = now_ms
        self._leader_end = leader_end

    def asked_again(self, now_ms: i64) -> None:
        """It had everything, and asked for what comes behind it once more, last at ``now_ms``.

        Fetches that tell nothing new are not noted one by one, but when there is more again.
        """
        if self.end_offset >= 0 and now_ms > self._fetched_ms:
            self._fetched_ms = now_ms
            if self.end_offset >= self._leader_end:
                self.caught_up_ms = now_ms

    def forget(self) -> None:
        """What it told counts no more."""
        self.known_end = self.last_end()
        self.end_offset = UNKNOWN
        self.caught_up_ms = UNKNOWN
        self._fetched_ms = UNKNOWN
        self._leader_end = UNKNOWN

    def last_end(self) -> i64:
        """It had everything below when it was last heard of; -1: this broker never heard of it."""
        return self.end_offset if self.end_offset >= 0 else self.known_end

    def is_caught_up(self, leader_end: i64, now_ms: i64, lag_ms_max: i64) -> bool:
        """Whether it has everything, or had within the last ``lag_ms_max`` ms."""
        if self.end_offset == leader_end:
            return True
        return self.caught_up_ms >= 0 and now_ms - self.caught_up_ms <= lag_ms_max


class Replicas:
    """The replicas of a partition in one leader epoch."""

    def __init__(
        self,
        leader: i32,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        partition_epoch: i64,
        now_ms: i64,
        lag_ms_max: i64,
    ) -> None:
        """Members of ``isr`` have ``lag_ms_max`` ms from ``now_ms`` on to show that they follow."""
        self.leader: i32 = leader
        self.lag_ms_max: i64 = lag_ms_max
        self.partition_epoch: i64 = partition_epoch
        """The version of the partition's state in the store, which the next change has to name."""
        self.isr: tuple[int, ...] = isr
        self.pending: tuple[int, ...] = ()
        """The in-sync set that the controller was asked to write; empty when no change is under way."""
        self.followers: dict[int, Follower] = {}
        for broker in replicas:
            if broker != leader:
                follower = Follower(broker)
                if broker in isr:
                    follower.caught_up_ms = now_ms
                self.followers[broker] = follower

    def change(self, replicas: tuple[int, ...], isr: tuple[int, ...], partition_epoch: i64) -> None:
        """Takes a state of the same leader epoch: replicas may have come and gone, a change is done."""
        for broker in replicas:
            if broker != self.leader and broker not in self.followers:
                self.followers[broker] = Follower(broker)
        for broker, follower in list(self.followers.items()):
            if broker not in replicas:
                del self.followers[broker]
            elif broker in self.isr and broker not in isr:
                # It was taken out, dead perhaps: until it fetches again nobody waits for it.
                follower.forget()
        self.isr = isr
        self.pending = ()
        self.partition_epoch = partition_epoch

    def resume(self, left: Replicas) -> None:
        """Takes over the broker epochs of the followers, from when this broker led in the same state before.

        A set that is asked for again names the same registrations: a broker that was restarted since is not
        meant.
        """
        for broker, follower in self.followers.items():
            known = left.followers.get(broker)
            if known is not None:
                follower.epoch = known.epoch

    def fetched(
        self, broker: i32, offset: i64, start_offset: i64, leader_end: i64, now_ms: i64, epoch: i64 = UNKNOWN
    ) -> bool:
        """Notes a fetch; whether ``broker`` is a follower here, and is not known by a later ``epoch``.

        An epoch of -1 is not held against others, as in Apache Kafka: older followers tell none.
        """
        follower = self.followers.get(int(broker))
        if follower is None or 0 <= epoch < follower.epoch:
            return False
        if 0 <= follower.epoch < epoch and int(broker) not in self.isr:
            # Started anew, it is as far as it says now: nobody waits for it as for one that was caught up.
            follower.forget()
        follower.epoch = epoch
        follower.fetched(offset, start_offset, leader_end, now_ms)
        return True

    def asked_again(self, broker: i32, now_ms: i64, epoch: i64 = UNKNOWN) -> None:
        """Notes that ``broker`` fetched from where it did before, last at ``now_ms``."""
        follower = self.followers.get(int(broker))
        if follower is not None and not 0 <= epoch < follower.epoch:
            follower.asked_again(now_ms)

    def epoch_of(self, broker: i32) -> i64:
        """Of the registration in which a follower fetched last; -1 where that is not known."""
        follower = self.followers.get(int(broker))
        return UNKNOWN if follower is None else follower.epoch

    def gone(self, broker: i32) -> bool:
        """The broker is not there any more; whether that ends the waiting for it.

        A member of the set is waited for until the controller has taken it out.
        """
        follower = self.followers.get(int(broker))
        if follower is None or int(broker) in self.isr:
            return False
        follower.forget()
        return True

    def comes_back(self, broker: i32, own_end: i64, now_ms: i64) -> bool:
        """Whether a follower may be expected in the set soon: it was caught up a moment ago."""
        follower = self.followers.get(int(broker))
        if follower is None or follower.end_offset < 0:
            return False
        return int(broker) in self.pending or follower.is_caught_up(own_end, now_ms, self.lag_ms_max)

    def high_watermark(self, own_end: i64, now_ms: i64) -> i64:
        """Below this every replica in sync has the log; -1 while one has not told yet.

        ``own_end`` is how far the leader itself counts. Followers that are about to come back into the set
        are waited for as well: else a log that is written without pause would never let them in.
        """
        least: i64 = own_end
        for broker, follower in self.followers.items():
            if follower.end_offset >= least:
                continue
            comes_back = follower.end_offset >= 0 and follower.is_caught_up(own_end, now_ms, self.lag_ms_max)
            if comes_back or broker in self.isr or broker in self.pending:
                least = follower.end_offset
        return least

    def may_join(self, broker: i32, high_watermark: i64, epoch_start: i64, log_start: i64) -> bool:
        """Whether a follower outside of the set has all that is committed, in this epoch as well.

        It has to have deleted what this leader has: should it lead, the records would be there again.
        """
        follower = self.followers.get(int(broker))
        if follower is None or int(broker) in self.isr or self.pending:
            return False
        if follower.start_offset < log_start:
            return False
        return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start

    def with_joined(self, broker: i32) -> tuple[int, ...]:
        """The set that ``broker`` joins."""
        return (*self.isr, int(broker))

    def without_lagging(self, own_end: i64, now_ms: i64) -> tuple[int, ...]:
        """The set without those that have not caught up for too long; the same when there are none."""
        if self.pending:
            return self.isr
        return tuple(
            [
                broker
                for broker in self.isr
                if broker == self.leader
                or (
                    broker in self.followers
                    and self.followers[broker].is_caught_up(own_end, now_ms, self.lag_ms_max)
                )
            ]
        )

    def heard_since(self, since_ms: i64) -> bool:
        """Whether a member of the in-sync set has fetched since then, or had no time to yet."""
        for broker, follower in self.followers.items():
            if broker in self.isr and (follower._fetched_ms >= since_ms or follower.caught_up_ms >= since_ms):
                return True
        return False

    def remember(self, known_ends: dict[int, int], high_watermark: i64) -> None:
        """Takes over how far followers had the log before; those in sync have all that is committed."""
        for broker, follower in self.followers.items():
            known: i64 = known_ends.get(broker, UNKNOWN)
            follower.known_end = high_watermark if broker in self.isr and known < high_watermark else known

    def lag_max(self, own_start: i64, own_end: i64) -> i64:
        """The records of this log that the follower lacks which is farthest behind.

        Of one that has not told yet, those that it may lack: all but what it had when it was last heard of.
        """
        most: i64 = 0
        for follower in self.followers.values():
            end = follower.last_end()
            lag: i64 = own_end - (end if end > own_start else own_start)
            if lag > most:
                most = lag
        return most

    def start_offset(self, own_start: i64, is_alive: Callable[[int], bool]) -> i64:
        """The least log start of all live replicas, below which records are gone; -1: one is not known.

        Replicas in sync count whether or not this broker has learnt already that they live: one may have come
        back, and lead next.
        """
        least: i64 = own_start
        for broker, follower in self.followers.items():
            if follower.start_offset < least and (
                broker in self.isr or broker in self.pending or is_alive(broker)
            ):
                least = follower.start_offset
        return least
