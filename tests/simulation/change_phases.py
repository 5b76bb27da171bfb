"""The phases of the changes of a cluster: faults are timed to them, and each coincidence is counted.

A phase lasts from its begin to its end, as for a request without a response; or, for an instantaneous change,
for a short time after it.
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
TRANSACTION_PHASES = ("transaction open", "transaction end asked", "transaction ended")
"""Of clusters with transactional producers."""
_KNOWN_PHASES = (*ALL_PHASES, *TRANSACTION_PHASES)


class ChangePhases:
    """The current changes of a cluster."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.on_begin: Callable[[str], None] = lambda phase: None
        self.begun: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._until: dict[str, float] = {}

    def begin(self, phase: str) -> None:
        """A phase begins, until :meth:`end`."""
        self._open[phase] += 1
        self._report(phase)

    def end(self, phase: str) -> None:
        """A phase ends."""
        self._open[phase] = max(0, self._open[phase] - 1)

    def moment(self, phase: str) -> None:
        """An instantaneous change occurs."""
        self._until[phase] = self.now() + MOMENT_S
        self._report(phase)

    def _report(self, phase: str) -> None:
        if phase not in _KNOWN_PHASES:
            raise KeyError(phase)
        self.begun[phase] += 1
        self.on_begin(phase)

    def under_way(self) -> list[str]:
        """Returns the current phases."""
        now = self.now()
        return [
            phase for phase in _KNOWN_PHASES if self._open[phase] > 0 or self._until.get(phase, 0.0) >= now
        ]
