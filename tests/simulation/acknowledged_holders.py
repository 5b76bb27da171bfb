"""Which replicas still hold what was acknowledged: decides whether a partition may have lost a record.

A replica of the in-sync set holds every committed record. So does an *eligible* one, that left the in-sync
set while it fell below ``min.insync.replicas``: nothing is committed below that (KIP-966). It is computed
here from the in-sync sets that are in the store, not from what the controller believes.

A replica that lost its disk, or lost its power before it synced, holds nothing that was acknowledged before.
A follower that joins the in-sync set holds what its leader holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

ALWAYS = float("-inf")


class Holders:
    """The replicas of one partition, each with the time since which it holds all that was acknowledged."""

    def __init__(self, min_isr: int) -> None:
        self.min_isr = min_isr
        self.isr: tuple[int, ...] = ()
        self.eligible: set[int] = set()
        self.since: dict[int, float] = {}
        """Times in simulated seconds; :data:`ALWAYS` for a replica that lacks nothing."""
        self.suspected: set[int] = set()
        """Replicas that report a loss, and hold everything all the same: no record waited for a sync."""
        self.failed: set[int] = set()
        """Replicas that have lost something before, or met a disk error: reports of it may come late."""
        self._is_new = True

    def state_written(
        self, now: float, leader: int, isr: Collection[int], unregistered: Collection[int]
    ) -> None:
        """The store has another state. Those in ``unregistered`` have not reported their loss yet."""
        before, after = set(self.isr), set(isr)
        if leader not in self.since and leader not in before and leader in after and self.is_hopeless:
            # The partition recovers without those that are not trusted.
            self.since.clear()
            self.eligible.clear()
        self.suspected -= after - before
        is_first, self._is_new = self._is_new, False
        if len(after) >= self.min_isr:
            self.eligible = set()
        else:
            self.eligible |= before - after
        self.eligible -= after
        for broker in sorted(after - before):
            if broker in unregistered:
                continue
            if leader != broker and leader in before and leader in after:
                self._join(broker, leader)
            else:
                self.since.setdefault(broker, ALWAYS if is_first else now)
        if leader in after and leader not in unregistered:
            self.since.setdefault(leader, now)
        self.isr = tuple(isr)
        self.keep(after | self.eligible)

    def _join(self, broker: int, leader: int) -> None:
        if leader in self.since:
            self.since[broker] = self.since[leader]
        else:
            self.since.pop(broker, None)

    def keep(self, brokers: Iterable[int]) -> None:
        """All other replicas do not count any more."""
        kept = set(brokers)
        self.since = {broker: since for broker, since in self.since.items() if broker in kept}
        self.eligible &= kept

    def lost(self, broker: int) -> None:
        """A replica lost what it had not synced, or all."""
        self.failed.add(broker)
        self.since.pop(broker, None)

    def suspect(self, broker: int) -> None:
        """A replica will report a loss, and holds everything all the same."""
        self.suspected.add(broker)
        self.failed.add(broker)

    def better_than(self, leader: int) -> list[int]:
        """The replicas that hold what a leader lacks, and never failed."""
        own = self.since.get(leader, float("inf"))
        return [broker for broker, since in self.since.items() if since < own and broker not in self.failed]

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
        return not set(self.since) - self.suspected
