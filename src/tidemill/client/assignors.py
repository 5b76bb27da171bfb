"""Who of a group reads which partition: pure functions, executed by the group's leading member.

range              per topic, a run of neighbouring partitions to each member
roundrobin         all partitions of all topics dealt out in order
sticky             balanced, and as little moved as can be; everything is given up in a rebalance
cooperative-sticky the same goal, but only what moves is given up (KIP-429): a partition that has another
                   owner still is left out of the first round, and handed on in the one after
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidemill.client.sticky import stick
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition

Assignment = dict[str, list[TopicPartition]]


class Member(NamedTuple):
    """A member as it introduces itself to the leading member.

    ``owned`` is what it has now, ``generation`` since when (-1: unknown).
    """

    member_id: str
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None
    user_data: bytes | None = None
    rack: str | None = None


class Assignor(Protocol):
    """A strategy. ``name`` is what members agree on; other implementations can be given by the user."""

    name: str
    cooperative: bool

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """Every partition of the subscribed topics (name to count) to one member; each member has a list."""
        ...


def _order(member: Member) -> tuple[bool, str, str]:
    """Static members first, by instance id: their place outlives a restart."""
    return (member.instance_id is None, member.instance_id or "", member.member_id)


def deal(partitions: Iterable[TopicPartition], members: Sequence[Member]) -> Assignment:
    """Deals ``partitions`` in their order to ``members`` in theirs, past who has not subscribed."""
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
    """Neighbouring partitions of each topic; the first members get one more where it does not come out."""

    name = "range"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """See :class:`Assignor`."""
        ordered = sorted(members, key=_order)
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
    """All partitions in the order of topic and number, dealt to the members in order."""

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
        return deal(every, sorted(members, key=_order))


class StickyAssignor:
    """Balanced with the fewest moves; members give up everything in a rebalance."""

    name = "sticky"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """See :class:`Assignor`."""
        ordered = sorted(members, key=_order)
        return stick(
            partitions,
            [member.member_id for member in ordered],
            [frozenset(member.topics) for member in ordered],
            [member.owned for member in ordered],
            [member.generation for member in ordered],
        )


class CooperativeStickyAssignor(StickyAssignor):
    """Balanced with the fewest moves; only what moves is given up, one round before it is handed on."""

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """See :class:`Assignor`."""
        return hold_back(super().assign(partitions, members), members)


def hold_back(target: Assignment, members: Sequence[Member]) -> Assignment:
    """The first round towards ``target``: without the partitions that another member still owns."""
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
    """The strategies for what ``partition.assignment.strategy`` holds: names, or objects of one's own."""
    result: list[Assignor] = []
    for name in names:
        if not isinstance(name, str):
            result.append(name)
            continue
        found = BUILT_IN.get(JAVA_NAMES.get(name, name))
        if found is None:
            allowed = ", ".join(BUILT_IN)
            raise ConfigError(f"partition.assignment.strategy has {name!r}; known are {allowed}")
        result.append(found())
    return result
