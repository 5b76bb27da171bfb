"""What a history lets be lost: by the faults that it tells of, and by nothing else.

| excuse | of | when |
|---|---|---|
| new-leader | acks=1 | the leader changed before the record was known to be committed |
| lost | acks=all, reads and deletions, of partitions that are not synced | all that held it lost it |

They are those of ``docs/decisions/promises.md``.

A leader that is cut off, or stands still, learns late that another one leads, and acknowledges until then:
the change may have been up to ``DEPOSED_S`` before the record was sent
(``docs/decisions/cut-off-leaders.md``).

Which replicas held a record: all, once they were in sync after it was acknowledged (``settled``); before that
at least ``min.insync.replicas``. So a record is excused when that many brokers lost what they had not synced
between its acknowledgement and the next time that all was in sync, or all brokers between two later times.
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
    """Takes the events of faults in, in order."""

    def __init__(self) -> None:
        self._settled: list[float] = []
        self._losses: list[tuple[float, int]] = []
        self._epochs: dict[int, int] = {}
        self._changes: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def take_settled(self, event: Event) -> None:
        """All replicas are in sync."""
        self._settled.append(event["at"])

    def take_loss(self, event: Event) -> None:
        """Brokers lose what they had not synced."""
        self._losses += [(event["at"], broker) for broker in event["brokers"]]

    def take_state(self, event: Event) -> None:
        """A partition has another state; another epoch says that the leader changed meanwhile."""
        place = event["p"]
        if self._epochs.get(place, event["epoch"]) != event["epoch"]:
            self._changes[place].append((event["since"], event["at"]))
        self._epochs[place] = event["epoch"]

    def has_new_leader(self, place: int, begin: float, end: float) -> bool:
        """Whether a message that was sent then may have gone to a leader that was none at the end."""
        changes = self._changes[place]
        return any(since <= end + LATE_S and at >= begin - DEPOSED_S for since, at in changes)

    def is_lost_by_all(self, at: float) -> bool:
        """Whether all brokers that held a record acknowledged at that time may have lost it since."""
        begin, wanted = at - LATE_S, MIN_IN_SYNC
        for end in [*(one for one in self._settled if one > at), float("inf")]:
            losers = {broker for when, broker in self._losses if begin <= when < end}
            if len(losers) >= wanted:
                return True
            begin, wanted = end, BROKERS
        return False
