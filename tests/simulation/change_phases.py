"""The phases of changes that a cluster goes through: faults are aimed at them, and each meeting is counted.

A phase is open from its begin to its end, as a request that is not answered yet; or, where a change has only
a moment, for a short time after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

MOMENT_S = 0.25
"""A change that has only a moment is under way for so long."""

REPLICATION_PHASES = (
    "broker start",
    "leader change",
    "ISR shrink",
    "ISR expand",
    "DeleteRecords asked",
    "DeleteRecords answered",
    "log emptied",
    "truncation",
)
CLUSTER_PHASES = (
    *REPLICATION_PHASES,
    "controller change",
    "topic creation asked",
    "topic creation written",
    "topic deletion asked",
    "topic deletion written",
    "move asked",
    "move copying",
    "move ended",
    "election asked",
    "group rebalance",
    "group assigned",
)
COMPACTION_PHASES = ("cleaning", "exchange of segments")
"""Of clusters with a compacted topic."""
MIN_INSYNC_PHASES = ("min.insync.replicas change asked", "min.insync.replicas changed")
"""Of clusters in which that is changed."""
ALL_PHASES = (*CLUSTER_PHASES, *COMPACTION_PHASES, *MIN_INSYNC_PHASES)


class ChangePhases:
    """What is under way in a cluster."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.on_begin: Callable[[str], None] = lambda phase: None
        self.begun: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._until: dict[str, float] = {}

    def begin(self, phase: str) -> None:
        """A phase begins that :meth:`end` ends."""
        self._open[phase] += 1
        self._report(phase)

    def end(self, phase: str) -> None:
        """A phase ends."""
        self._open[phase] = max(0, self._open[phase] - 1)

    def moment(self, phase: str) -> None:
        """A change happens that has no end."""
        self._until[phase] = self.now() + MOMENT_S
        self._report(phase)

    def _report(self, phase: str) -> None:
        if phase not in ALL_PHASES:
            raise KeyError(phase)
        self.begun[phase] += 1
        self.on_begin(phase)

    def under_way(self) -> list[str]:
        """The phases that are open now."""
        now = self.now()
        return [phase for phase in ALL_PHASES if self._open[phase] > 0 or self._until.get(phase, 0.0) >= now]
