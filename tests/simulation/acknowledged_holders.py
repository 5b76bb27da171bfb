"""Tracks which replicas still hold acknowledged records: decides whether a partition may have lost a record.

A replica of the ISR holds every committed record. An *eligible* replica does too: it left the ISR when that
fell below ``min.insync.replicas``, and nothing is committed below that (KIP-966). The eligible replicas are
computed here from the ISRs in the store, not from the state of the controller.

A replica that lost its disk, or lost its power before a sync, holds none of the records acknowledged before.
A follower that joins the ISR holds the records of its leader. If the leader loses them before the store has
the new set, the follower holds the records that the leader had: a process that starts after a loss reports it
before it leads, so the process before it requested the follower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

ALWAYS = float("-inf")
NEVER = float("inf")


class Holders:
    """The replicas of one partition, each with the time since which it holds all acknowledged records."""

    def __init__(self, min_isr: int) -> None:
        self.min_isr = min_isr
        self.isr: tuple[int, ...] = ()
        self.eligible: set[int] = set()
        self.since: dict[int, float] = {}
        """Times in simulated seconds; :data:`ALWAYS` for a replica that lacks nothing."""
        self.unreported: dict[int, float] = {}
        """Replicas that have lost something of which no controller has read in a registration yet, each with
        its time before the loss; :data:`NEVER` for one that had none."""
        self.distrusted: set[int] = set()
        """Replicas that were reported as lost, and neither got in sync nor were elected since."""
        self.unsure: set[int] = set()
        """Eligible ones that nothing may be expected of: the leader did not know then that it needs more."""
        self._is_new = True

    def state_written(
        self,
        now: float,
        leader: int,
        isr: Collection[int],
        *,
        is_new_epoch: bool = True,
        is_enough_for_leader: bool = False,
    ) -> None:
        """The store has another state.

        ``is_enough_for_leader``: the leader may still apply a former, lower ``min.insync.replicas``, for
        which the ISR is large enough.
        """
        before, after = set(self.isr), set(isr)
        if leader not in self.since and leader not in before and leader in after and self.is_hopeless:
            # The partition recovers without the untrusted replicas. A hopeless replica is elected as an
            # eligible one, and the others stay eligible.
            others = self.unsure - {leader} if leader in self.unsure else set()
            self.forget()
            self.unsure, self.eligible = others, set(others)
        self.distrusted -= after - before
        if is_new_epoch:
            self.distrusted.discard(leader)
        is_first, self._is_new = self._is_new, False
        if len(after) >= self.min_isr:
            self.eligible = set()
        else:
            self.eligible |= before - after
        self.eligible -= after
        for broker in sorted(after - before):
            if leader != broker and leader in before and leader in after:
                self._join(broker, leader)
            elif broker not in self.unreported:
                self.since.setdefault(broker, ALWAYS if is_first else now)
        if leader in after and leader not in self.unreported:
            self.since.setdefault(leader, now)
        self.isr = tuple(isr)
        self.unsure &= self.eligible
        if is_enough_for_leader:
            self.unsure |= self.eligible
        self.keep(after | self.eligible)
        for broker in self.unsure:
            self.since.pop(broker, None)

    def min_isr_changed(self, min_isr: int, *, is_led: bool, has_ended: bool = False) -> None:
        """The store has another ``min.insync.replicas``: a leader may commit by it without the eligible
        replicas.

        Nothing is committed without a leader. If the leader's process or its session has ended
        (``has_ended``), a controller that has not read the value yet may still elect an eligible replica:
        that leader has not read the value either.
        """
        self.min_isr = min_isr
        if is_led:
            self.unsure = self.unsure | self.eligible if has_ended else set()
            self.eligible = set(self.unsure)
            self.keep({*self.isr, *self.unsure})
            for broker in self.unsure:
                self.since.pop(broker, None)

    def _join(self, broker: int, leader: int) -> None:
        since = self.since.get(leader, self.unreported.get(leader, NEVER))
        if broker in self.unreported:
            # Its process continues although its disk has lost records, and others fetch them from it.
            self.unreported[broker] = since
        elif since < NEVER:
            self.since[broker] = since
        else:
            self.since.pop(broker, None)

    def forget(self) -> None:
        """Removes all replicas: the partition continues with the records of its next leader."""
        self.since.clear()
        self.eligible.clear()
        self.unsure.clear()

    def forget_before(self, now: float) -> None:
        """Records acknowledged before may be lost. The same replicas hold later records."""
        self.since = dict.fromkeys(self.since, now)

    def keep(self, brokers: Iterable[int]) -> None:
        """Removes all other replicas."""
        kept = set(brokers)
        self.since = {broker: since for broker, since in self.since.items() if broker in kept}
        self.eligible &= kept
        self.unsure &= kept

    def lost(self, broker: int) -> None:
        """A replica lost its unsynced records, or all."""
        self.unreported[broker] = self.since.pop(broker, self.unreported.get(broker, NEVER))

    def cut(self, broker: int) -> None:
        """A replica that was reported as lost follows another, and has truncated the records that it may
        lack.
        """
        self.since.pop(broker, None)

    def reported(self, broker: int) -> None:
        """A controller has read that this replica is lost; the replica may hold all records nevertheless."""
        self.unreported.pop(broker, None)
        self.distrusted.add(broker)

    def better_than(self, leader: int) -> list[int]:
        """Returns the replicas that hold records that a leader lacks, and that no controller excludes."""
        if leader in self.unreported:
            return []  # No controller has read that it lacks records.
        own = self.since.get(leader, NEVER)
        return [one for one, since in self.since.items() if since < own and one not in self.distrusted]

    def holds(self, acknowledged_s: float) -> bool:
        """Whether a replica must still have the records committed at this time."""
        return any(since <= acknowledged_s for since in self.since.values())

    @property
    def has_forgotten(self) -> bool:
        """Whether records acknowledged at some time may be lost."""
        return not self.holds(ALWAYS)

    @property
    def is_hopeless(self) -> bool:
        """Whether no electable replica is known to hold records: an operator has to decide."""
        return not self.trusted

    @property
    def trusted(self) -> set[int]:
        """Returns the replicas that hold records, and that no controller excludes."""
        return set(self.since) - self.distrusted
