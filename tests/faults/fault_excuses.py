"""The losses that a history excuses by its faults; no other loss is excused.

| excuse | of | when |
|---|---|---|
| new-leader | acks=1 | the leader changed before the record was known to be committed |
| lost | acks=all, reads, deletions, of unsynced partitions | all replicas with the record lost it |

They are those of ``docs/decisions/promises.md``.

A leader that is disconnected or suspended learns late of its successor, and acknowledges until then: the
change may have been up to ``DEPOSED_S`` before the record was sent (``docs/decisions/isolated-leaders.md``).

The replicas with a record are all replicas, once they were in sync after its acknowledgement (``settled``);
before that at least ``min.insync.replicas``. So a record is excused if that many brokers lost their unsynced
data between its acknowledgement and the next time when all were in sync, or all brokers between two later
times.
"""

from __future__ import annotations

from collections import defaultdict

from fault_history import Event

BROKERS = 3
MIN_IN_SYNC = 2
DEPOSED_S = 12.0
"""Two lives of a session, and a pause."""
LATE_S = 2.0
"""How much later than the broker did something its client may have noted it."""


class Excuses:
    """Processes the fault events in order."""

    def __init__(self) -> None:
        self._settled: list[float] = []
        self._losses: list[tuple[float, int]] = []
        self._epochs: dict[int, int] = {}
        self._changes: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def record_settled(self, event: Event) -> None:
        """Records that all replicas are in sync."""
        self._settled.append(event["at"])

    def record_loss(self, event: Event) -> None:
        """Records that brokers lose their unsynced data."""
        self._losses += [(event["at"], broker) for broker in event["brokers"]]

    def record_state(self, event: Event) -> None:
        """Records the state of a partition; another epoch means that the leader changed meanwhile."""
        place = event["p"]
        if self._epochs.get(place, event["epoch"]) != event["epoch"]:
            self._changes[place].append((event["since"], event["at"]))
        self._epochs[place] = event["epoch"]

    def has_new_leader(self, place: int, begin: float, end: float) -> bool:
        """Whether a message sent at that time may have been appended by a leader that was replaced."""
        changes = self._changes[place]
        return any(since <= end + LATE_S and at >= begin - DEPOSED_S for since, at in changes)

    def is_lost_by_all(self, at: float) -> bool:
        """Whether all brokers with a record acknowledged at that time may have lost it since."""
        begin, wanted = at - LATE_S, MIN_IN_SYNC
        for end in [*(one for one in self._settled if one > at), float("inf")]:
            losers = {broker for when, broker in self._losses if begin <= when < end}
            if len(losers) >= wanted:
                return True
            begin, wanted = end, BROKERS
        return False
