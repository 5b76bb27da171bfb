"""The requested replica assignments of partitions: promise ``reassignment``.

A reassigned partition has the requested replicas as its target, and ends with them; or it returns to its
original replicas if the reassignment is cancelled. A request without a response may be applied at any time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

PartitionKey = tuple[str, int]
Replicas = frozenset[int]
CANCEL = None
"""The request that cancels a reassignment."""


class Assignment(NamedTuple):
    """The replicas of a partition in the store."""

    topic_id: bytes
    replicas: Replicas
    adding: Replicas
    removing: Replicas

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> Replicas:
        """The target replicas."""
        return self.replicas - self.removing

    @property
    def origin(self) -> Replicas:
        """The original replicas."""
        return self.replicas - self.adding


class RequestedReassignments:
    """Tracks the assignments in the store, and the requests of administrators."""

    def __init__(self, broken: Callable[[str, str], None]) -> None:
        self._broken = broken
        self._assigned: dict[PartitionKey, Assignment] = {}
        self._requested: defaultdict[PartitionKey, set[Replicas | None]] = defaultdict(set)
        self._unanswered: defaultdict[PartitionKey, list[Replicas | None]] = defaultdict(list)
        self._accepted: dict[PartitionKey, Replicas] = {}
        """The target by the last request that was answered without an error."""

    def requested(self, tp: PartitionKey, replicas: Collection[int] | None) -> None:
        """A client requests these replicas, or the cancellation (None)."""
        request = _target_of(replicas)
        self._requested[tp].add(request)
        self._unanswered[tp].append(request)

    def accepted(self, tp: PartitionKey, replicas: Collection[int] | None) -> None:
        """The request was successful."""
        request = _target_of(replicas)
        if request in self._unanswered[tp]:
            self._unanswered[tp].remove(request)
            self._accepted[tp] = self._assigned[tp].target if request is CANCEL else request

    def written(
        self,
        tp: PartitionKey,
        topic_id: bytes,
        replicas: Sequence[int],
        adding: Iterable[int],
        removing: Iterable[int],
    ) -> None:
        """The store has another assignment."""
        now = Assignment(topic_id, frozenset(replicas), frozenset(adding), frozenset(removing))
        before = self._assigned.get(tp)
        self._assigned[tp] = now
        if before is None or before.topic_id != topic_id:
            for known in (self._requested, self._unanswered, self._accepted):
                known.pop(tp, None)
        elif now.target != before.target and not self._is_requested(tp, now.target, before):
            self._broken(
                "reassignment",
                f"{tp} gets {sorted(now.target)} without a request; its target was"
                f" {sorted(before.target)} in place of {sorted(before.origin)}",
            )

    def _is_requested(self, tp: PartitionKey, target: Replicas, before: Assignment) -> bool:
        requested = self._requested[tp]
        return target in requested or (
            CANCEL in requested and before.is_reassigning and target == before.origin
        )

    def check_settled(self) -> None:
        """The cluster is at rest: the last successful request is applied, except for requests without a
        response.
        """
        for tp, request in self._accepted.items():
            found = self._assigned[tp].replicas
            if found != request and not self._unanswered[tp]:
                text = f"{tp} ends with {sorted(found)}, and {sorted(request)} were accepted"
                self._broken("reassignment", text)


def _target_of(replicas: Collection[int] | None) -> Replicas | None:
    return CANCEL if replicas is None else frozenset(replicas)
