"""Which replicas still hold what was acknowledged: decides whether a partition may have lost a record.

A replica of the in-sync set holds every committed record. So does an *eligible* one, that left the in-sync
set while it fell below ``min.insync.replicas``: nothing is committed below that (KIP-966). It is computed
here from the in-sync sets that are in the store, not from what the controller believes.

A replica that lost its disk, or lost its power before it synced, holds nothing that was acknowledged before.
A follower that joins the in-sync set holds what its leader holds. Where the leader lost that before the store
has the set, the follower holds what the leader had: a process that starts after a loss reports it before it
leads anything, so the process before it asked for the follower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

ALWAYS = float("-inf")
NEVER = float("inf")


class Holders:
    """The replicas of one partition, each with the time since which it holds all that was acknowledged."""

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

        ``is_enough_for_leader``: the leader may count by a lower ``min.insync.replicas`` of before, by which
        so many in sync are enough.
        """
        before, after = set(self.isr), set(isr)
        if leader not in self.since and leader not in before and leader in after and self.is_hopeless:
            # The partition recovers without those that are not trusted. One of which nothing may be expected
            # is elected as an eligible one, and the others stay eligible.
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
        """The store has another ``min.insync.replicas``: by it a leader may commit without the eligible.

        Nothing is committed without a leader. Where the leader's process or its session has ended
        (``has_ended``) the eligible may be elected all the same, by a controller that has not read the value
        yet: nor has this leader.
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
            # Its process goes on with what its disk has lost, and others get it from there.
            self.unreported[broker] = since
        elif since < NEVER:
            self.since[broker] = since
        else:
            self.since.pop(broker, None)

    def forget(self) -> None:
        """No replica counts any more: the partition goes on with what its next leader has."""
        self.since.clear()
        self.eligible.clear()
        self.unsure.clear()

    def forget_before(self, now: float) -> None:
        """What was acknowledged before may be lost. What comes is held by those who held that, as ever."""
        self.since = dict.fromkeys(self.since, now)

    def keep(self, brokers: Iterable[int]) -> None:
        """All other replicas do not count any more."""
        kept = set(brokers)
        self.since = {broker: since for broker, since in self.since.items() if broker in kept}
        self.eligible &= kept
        self.unsure &= kept

    def lost(self, broker: int) -> None:
        """A replica lost what it had not synced, or all."""
        self.unreported[broker] = self.since.pop(broker, self.unreported.get(broker, NEVER))

    def cut(self, broker: int) -> None:
        """A replica that was reported as lost follows another, and has cut what it may lack."""
        self.since.pop(broker, None)

    def reported(self, broker: int) -> None:
        """A controller has read that this replica is lost; it may hold everything all the same."""
        self.unreported.pop(broker, None)
        self.distrusted.add(broker)

    def better_than(self, leader: int) -> list[int]:
        """The replicas that hold what a leader lacks, and that no controller distrusts."""
        if leader in self.unreported:
            return []  # No controller has read that it lacks something.
        own = self.since.get(leader, NEVER)
        return [one for one, since in self.since.items() if since < own and one not in self.distrusted]

    def holds(self, acknowledged_s: float) -> bool:
        """Whether a replica must still have what was committed at this time."""
        return any(since <= acknowledged_s for since in self.since.values())

    @property
    def has_forgotten(self) -> bool:
        """Whether records that were acknowledged at some time may be lost."""
        return not self.holds(ALWAYS)

    @property
    def is_hopeless(self) -> bool:
        """Whether no replica that may be elected is known to hold anything: an operator has to decide."""
        return not self.trusted

    @property
    def trusted(self) -> set[int]:
        """The replicas that hold something, and that no controller distrusts."""
        return set(self.since) - self.distrusted
