"""Assignors: assign partitions to the members of a group. Pure functions that the group leader calls.

range              per topic, a range of adjacent partitions for each member
roundrobin         all partitions of all topics in order, to one member after the other
sticky             balanced with the fewest moves; members revoke all partitions in a rebalance
cooperative-sticky the same goal, but members revoke only the partitions that move (KIP-429): a partition
that still has another owner is omitted from the first rebalance, and assigned in the next
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidemill.client.sticky_assignor import assign_sticky
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition

Assignment = dict[str, list[TopicPartition]]


class Member(NamedTuple):
    """A member, as the group leader knows it from its subscription.

    ``owned`` are its current partitions, ``generation`` the one in which it got them (-1: unknown).
    """

    member_id: str
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes | None = None
    rack: str | None = None


class Assignor(Protocol):
    """A strategy, which the members agree on by ``name``. Users may pass their own implementations."""

    name: str
    cooperative: bool

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """Assigns every partition of the subscribed topics (name to count); returns each member's list."""
        ...


def _sort_key(member: Member) -> tuple[bool, str, str]:
    """Sort key: static members first, by instance id, since their position survives a restart."""
    return (member.instance_id is None, member.instance_id or "", member.member_id)


def assign_in_turn(partitions: Iterable[TopicPartition], members: Sequence[Member]) -> Assignment:
    """Deals ``partitions`` to ``members`` in order, skipping members that are not subscribed to the topic."""
    result: Assignment = {member.member_id: [] for member in members}
    takers = [(member.member_id, frozenset(member.topics)) for member in members]
    turn = 0
    for item in partitions:
        for _ in range(len(takers)):
            member_id, topics = takers[turn % len(takers)]
            turn += 1
            if item.topic in topics:
                result[member_id].append(item)
                break
    return result


class RangeAssignor:
    """Assigns adjacent partitions of each topic; the first members get one more for an uneven division."""

    name = "range"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """See :class:`Assignor`."""
        ordered = sorted(members, key=_sort_key)
        result: Assignment = {member.member_id: [] for member in ordered}
        subscribed = {member.member_id: frozenset(member.topics) for member in ordered}
        for topic in sorted(partitions):
            takers = [member_id for member_id, topics in subscribed.items() if topic in topics]
            if not takers:
                continue
            share, more = divmod(partitions[topic], len(takers))
            start = 0
            for i, member_id in enumerate(takers):
                end = start + share + (i < more)
                result[member_id] += [TopicPartition(topic, p) for p in range(start, end)]
                start = end
        return result


class RoundRobinAssignor:
    """Deals all partitions, in the order of topic and number, to the members in order."""

    name = "roundrobin"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """See :class:`Assignor`."""
        wanted = {topic for member in members for topic in member.topics}
        every = (
            TopicPartition(topic, p)
            for topic in sorted(partitions)
            if topic in wanted
            for p in range(partitions[topic])
        )
        return assign_in_turn(every, sorted(members, key=_sort_key))


class StickyAssignor:
    """Balances with the fewest moves; members revoke all partitions in a rebalance."""

    name = "sticky"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """See :class:`Assignor`."""
        ordered = sorted(members, key=_sort_key)
        return assign_sticky(
            partitions,
            [member.member_id for member in ordered],
            [frozenset(member.topics) for member in ordered],
            [member.owned for member in ordered],
            [member.generation for member in ordered],
        )


class CooperativeStickyAssignor(StickyAssignor):
    """Balances with the fewest moves; a partition is revoked one rebalance before it is reassigned."""

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """See :class:`Assignor`."""
        return without_owned_by_others(super().assign(partitions, members), members)


def without_owned_by_others(target: Assignment, members: Sequence[Member]) -> Assignment:
    """Returns ``target`` without the partitions that another member still owns: the first rebalance."""
    owner = {item: member.member_id for member in members for item in member.owned}
    return {
        member_id: [item for item in items if owner.get(item, member_id) == member_id]
        for member_id, items in target.items()
    }


BUILT_IN: dict[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}

JAVA_NAMES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}


def assignors_for(names: Iterable[str | Assignor]) -> list[Assignor]:
    """Returns the strategies of ``partition.assignment.strategy``: names, or the user's own objects."""
    result: list[Assignor] = []
    for name in names:
        if not isinstance(name, str):
            result.append(name)
            continue
        found = BUILT_IN.get(JAVA_NAMES.get(name, name))
        if found is None:
            allowed = ", ".join(BUILT_IN)
            raise ConfigError(f"partition.assignment.strategy has {name!r}; use one of {allowed}")
        result.append(found())
    return result
