"""How long a leader accepts writes after the end of its session: promise ``session``.

With acks=1 a leader needs no replica. A leader that reaches neither the store nor a replica cannot learn of
its successor, and its acknowledged records are lost: it has to stop by itself
(``docs/decisions/isolated-leaders.md``).
"""

from __future__ import annotations

PartitionKey = tuple[str, int]
SLACK_S = 0.8
"""A leader checks every half second whether it is isolated, which applies to earlier records."""
NEVER = float("inf")


class DeposedLeaders:
    """For each broker and partition, the last time of a contact with the rest of the cluster."""

    def __init__(self) -> None:
        self.session_s = NEVER
        """The session timeout."""
        self._ended_s: dict[int, float] = {}
        """When the session of a broker ended that has no other since."""
        self._registered_s: dict[int, float] = {}
        self._woken_s: dict[int, float] = {}
        self._troubled_s: dict[int, float] = {}
        self._followed_s: dict[tuple[PartitionKey, int], float] = {}
        self._late_s: dict[tuple[PartitionKey, int], float] = {}
        """When a leader took its first write that came too late: it may notice with this that it is alone."""

    def session_ended(self, broker: int, now: float) -> None:
        """The store has ended the session of a broker."""
        self._ended_s[broker] = now

    def registered(self, broker: int, now: float) -> None:
        """A broker has another session."""
        self._ended_s.pop(broker, None)
        self._registered_s[broker] = now
        self._late_s = {key: at_s for key, at_s in self._late_s.items() if key[1] != broker}

    def woken(self, broker: int, now: float) -> None:
        """A suspended process resumes."""
        self._woken_s[broker] = now

    def store_troubled(self, broker: int, now: float) -> None:
        """A broker's connection to the store breaks: the broker reads the cluster again. NEVER: the
        connection is slow.
        """
        self._troubled_s[broker] = now

    def store_troubled_s(self, broker: int) -> float:
        """When the connection of a broker to the store last broke, or was slow; NEVER while it is."""
        return self._troubled_s.get(broker, 0.0)

    def in_touch_s(self, broker: int) -> float:
        """Since when a broker has a session and is not suspended; NEVER without a session."""
        if broker in self._ended_s:
            return NEVER
        return max(self._registered_s.get(broker, 0.0), self._woken_s.get(broker, 0.0))

    def followed(self, tp: PartitionKey, leader: int, now: float) -> None:
        """A replica follows this broker."""
        self._followed_s[tp, leader] = now

    def overdue_s(
        self, tp: PartitionKey, broker: int, deposed_s: float, answered_s: float, started_s: float
    ) -> float:
        """For how many seconds a broker should have refused writes; 0 if it may accept them.

        ``deposed_s``: since when another broker leads; ``started_s``: since when the broker's process runs.
        """
        ended_s = self._ended_s.get(broker, NEVER)
        key = (tp, broker)
        alone_s = max(
            ended_s, deposed_s, started_s, self._woken_s.get(broker, 0.0), self._followed_s.get(key, 0.0)
        )
        end_s = alone_s + self.session_s + SLACK_S
        if answered_s <= end_s:
            return 0.0
        return max(0.0, answered_s - self._late_s.setdefault(key, answered_s) - SLACK_S)
