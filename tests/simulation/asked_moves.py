"""The requested replica assignments of partitions: promise ``reassignment``.

A reassigned partition has the requested replicas as its target, and ends with them; or it returns to its
original replicas if the reassignment is cancelled. A request without a response may be applied at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

Place = tuple[str, int]
Replicas = frozenset[int]
STOP = None
"""The wish that stops a move."""


class Assignment(NamedTuple):
    """The replicas of a partition in the store."""

    topic_id: bytes
    replicas: Replicas
    adding: Replicas
    removing: Replicas

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> Replicas:
        """The target replicas."""
        return self.replicas - self.removing

    @property
    def origin(self) -> Replicas:
        """The original replicas."""
        return self.replicas - self.adding


class AskedMoves:
    """Tracks the assignments in the store, and the requests of administrators."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        self._assigned: dict[Place, Assignment] = {}
        self._asked: defaultdict[Place, set[Replicas | None]] = defaultdict(set)
        self._unanswered: defaultdict[Place, list[Replicas | None]] = defaultdict(list)
        self._granted: dict[Place, Replicas] = {}
        """The target by the last request that was answered without an error."""

    def asking(self, place: Place, replicas: Collection[int] | None) -> None:
        """A client requests these replicas, or the cancellation (None)."""
        wish = _wish(replicas)
        self._asked[place].add(wish)
        self._unanswered[place].append(wish)

    def granted(self, place: Place, replicas: Collection[int] | None) -> None:
        """The request was successful."""
        wish = _wish(replicas)
        if wish in self._unanswered[place]:
            self._unanswered[place].remove(wish)
            self._granted[place] = self._assigned[place].target if wish is STOP else wish

    def written(
        self,
        place: Place,
        topic_id: bytes,
        replicas: Sequence[int],
        adding: Iterable[int],
        removing: Iterable[int],
    ) -> None:
        """The store has another assignment."""
        now = Assignment(topic_id, frozenset(replicas), frozenset(adding), frozenset(removing))
        before = self._assigned.get(place)
        self._assigned[place] = now
        if before is None or before.topic_id != topic_id:
            for known in (self._asked, self._unanswered, self._granted):
                known.pop(place, None)
        elif now.target != before.target and not self._is_asked(place, now.target, before):
            self._broken(
                "reassignment",
                f"{place} is to have {sorted(now.target)}, which nobody asked for; it was to have"
                f" {sorted(before.target)} in place of {sorted(before.origin)}",
            )

    def _is_asked(self, place: Place, target: Replicas, before: Assignment) -> bool:
        asked = self._asked[place]
        return target in asked or (STOP in asked and before.is_moving and target == before.origin)

    def at_rest(self) -> None:
        """The cluster is at rest: the last successful request is applied, except for requests without a
        response.
        """
        for place, wish in self._granted.items():
            found = self._assigned[place].replicas
            if found != wish and not self._unanswered[place]:
                text = f"{place} ends with {sorted(found)}, and {sorted(wish)} were granted"
                self._broken("reassignment", text)


def _wish(replicas: Collection[int] | None) -> Replicas | None:
    return STOP if replicas is None else frozenset(replicas)
