"""Plans the replicas of partitions when brokers are added or removed or the replication factor changes.

A plan names the partitions that change and all replicas of each, preferred leader first, as a reassignment
request does. It moves as little data as its purpose allows; another order of the same replicas moves none.
Racks are considered only if every broker has one. ``random`` decides between equal brokers, so the same
random numbers give the same plan.

This module has no I/O; see :mod:`tidemill.controller.topics`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from random import Random

from tidemill.controller.leader_balance import Leaderships, ReplicaMoves
from tidemill.controller.replica_placement import place_replicas_in_slices
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition

Assignment = Mapping[TopicPartition, Sequence[int]]
"""The replicas of partitions, preferred leader first. For a reassignment in progress, the target replicas."""
Racks = Mapping[int, str | None]
"""The brokers that may hold replicas, with their racks."""


def generate(current: Assignment, racks: Racks, random: Random) -> dict[TopicPartition, list[int]]:
    """Places all partitions as if their topics were created now, with their current replication factors."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in sorted(current):
        by_topic.setdefault(partition.topic, []).append(partition)
    generated = {}
    for partitions in by_topic.values():
        factor = max(len(current[partition]) for partition in partitions)
        placed = run_at_once(place_replicas_in_slices(racks, len(partitions), factor, random))
        for partition, replicas in zip(partitions, placed, strict=True):
            generated[partition] = replicas[: len(current[partition])]
    return _changes(current, generated)


def change_factor(
    current: Assignment, racks: Racks, factor: int, random: Random
) -> dict[TopicPartition, list[int]]:
    """Gives every partition ``factor`` replicas and keeps its preferred leader.

    New replicas go to the brokers with the fewest replicas, preferably into racks without one. Replicas are
    removed from brokers outside ``racks`` first, then from shared racks, then from the brokers with the most
    replicas.
    """
    _check_factor(factor, racks)
    placement = _Placement(current, racks, random)
    for partition, replicas in placement.replicas.items():
        while len(replicas) < factor:
            placement.add(partition, placement.best_for(replicas), len(replicas))
        while len(replicas) > factor:
            placement.remove(partition, placement.least_needed(replicas))
    return _changes(current, placement.replicas)


def decommission(
    current: Assignment, racks: Racks, gone: Collection[int], random: Random
) -> dict[TopicPartition, list[int]]:
    """Moves all replicas away from the brokers ``gone``, and no others.

    Each replica goes to the broker with the fewest replicas, preferably into a rack without one. If the
    preferred leader was removed, the replica on the broker with the fewest preferred leaderships takes its
    place. Raises INVALID_REPLICATION_FACTOR if a partition has too few other brokers.
    """
    staying = {broker: rack for broker, rack in racks.items() if broker not in gone}
    _check_room(current, staying, gone)
    placement = _Placement(current, staying, random)
    orphans = []
    for partition, replicas in placement.replicas.items():
        if replicas[0] in gone:
            orphans.append(partition)
        for place, broker in enumerate(replicas):
            if broker in gone:
                rest = replicas[:place] + replicas[place + 1 :]
                placement.remove(partition, broker)
                placement.add(partition, placement.best_for(rest), place)
    for partition in orphans:
        placement.lead(partition, placement.least_leading(placement.replicas[partition]))
    return _changes(current, placement.replicas)


def spread(current: Assignment, racks: Racks, random: Random) -> dict[TopicPartition, list[int]]:
    """Balances the numbers of replicas and of preferred leaders per broker, for example for new brokers.

    Moves as few replicas as possible, and never reduces the number of racks of a partition. Unless racks
    prevent it, no broker then has two replicas more than another. Replicas on brokers outside ``racks`` stay.
    """
    placement = _Placement(current, racks, random)
    moves = ReplicaMoves(placement.held, placement.surplus, placement.may_move)
    while _even_out(placement, moves):
        pass
    leaderships = Leaderships(placement.led, placement.replicas)
    while _even_out_leaders(placement, leaderships):
        pass
    return _changes(current, placement.replicas)


def _changes(
    current: Assignment, planned: Mapping[TopicPartition, list[int]]
) -> dict[TopicPartition, list[int]]:
    return {
        partition: replicas for partition, replicas in planned.items() if list(current[partition]) != replicas
    }


def _check_factor(factor: int, racks: Racks) -> None:
    if not 1 <= factor <= len(racks):
        raise KafkaError(
            f"A replication factor of {factor} is not possible with {len(racks)} broker(s). Use at "
            "least 1 and at most the number of brokers, or keep more brokers.",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def _check_room(current: Assignment, staying: Racks, gone: Collection[int]) -> None:
    for partition, replicas in sorted(current.items()):
        if sum(broker in gone for broker in replicas) > len(staying.keys() - set(replicas)):
            topic, count = partition.topic, len(replicas)
            raise KafkaError(
                f"{topic}-{partition.partition} has {count} replicas. Without {_brokers(gone)} too few live "
                f"brokers remain: {_brokers(staying)}. Start a stopped broker, add one, or first lower the "
                f"topic's replication factor ('tidemill topic alter {topic} --replication-factor N').",
                ErrorCode.INVALID_REPLICATION_FACTOR,
            )


def _brokers(ids: Collection[int]) -> str:
    """Names brokers in a message: "broker 1", "brokers 1, 2", "none"."""
    if not ids:
        return "none"
    return f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, sorted(ids)))}"


class _Placement:
    """The replicas on brokers while a plan is made, with the replicas and leaderships of each broker."""

    def __init__(self, current: Assignment, racks: Racks, random: Random) -> None:
        self.replicas = {partition: list(current[partition]) for partition in sorted(current)}
        order = sorted(racks)
        random.shuffle(order)
        self.rank = {broker: place for place, broker in enumerate(order)}
        aware = all(rack is not None for rack in racks.values())
        # Without racks, each broker is its own rack: no two replicas ever share one.
        self.rack = {broker: racks[broker] if aware else broker for broker in racks}
        self._numbers = count()
        self.held: dict[int, dict[TopicPartition, int]] = {broker: {} for broker in order}
        """With numbers that grow, like those of ``led``."""
        self.topics: Counter[tuple[int, str]] = Counter()
        """The number of replicas of a topic on a broker."""
        self.led: dict[int, dict[TopicPartition, int]] = {broker: {} for broker in order}
        for partition, replicas in self.replicas.items():
            for broker in replicas:
                self._count(partition, broker)
            if replicas and replicas[0] in self.led:
                self.led[replicas[0]][partition] = next(self._numbers)

    def _count(self, partition: TopicPartition, broker: int) -> None:
        if broker in self.held:
            self.held[broker][partition] = next(self._numbers)
            self.topics[broker, partition.topic] += 1

    def add(self, partition: TopicPartition, broker: int, place: int) -> None:
        """Adds a replica on ``broker``."""
        replicas = self.replicas[partition]
        replicas.insert(place, broker)
        self._count(partition, broker)
        if place == 0:
            self._lead(partition, replicas[1] if len(replicas) > 1 else None, broker)

    def remove(self, partition: TopicPartition, broker: int) -> None:
        """Removes the replica on ``broker``."""
        replicas = self.replicas[partition]
        if replicas[0] == broker:
            self._lead(partition, broker, replicas[1] if len(replicas) > 1 else None)
        replicas.remove(broker)
        if broker in self.held:
            del self.held[broker][partition]
            self.topics[broker, partition.topic] -= 1

    def lead(self, partition: TopicPartition, broker: int) -> None:
        """Makes the replica on ``broker`` the preferred leader; the others keep their order."""
        replicas = self.replicas[partition]
        self._lead(partition, replicas[0], broker)
        replicas.remove(broker)
        replicas.insert(0, broker)

    def _lead(self, partition: TopicPartition, before: int | None, after: int | None) -> None:
        if before in self.led:
            del self.led[before][partition]
        if after in self.led:
            self.led[after][partition] = next(self._numbers)

    def best_for(self, replicas: Sequence[int]) -> int:
        """The broker that should get another replica beside ``replicas``."""
        used = Counter(self.rack.get(broker) for broker in replicas)
        return min(
            (broker for broker in self.rank if broker not in replicas),
            key=lambda broker: (used[self.rack[broker]], len(self.held[broker]), self.rank[broker]),
        )

    def least_needed(self, replicas: Sequence[int]) -> int:
        """The broker whose replica should be removed; never the preferred leader."""
        used = Counter(self.rack.get(broker) for broker in replicas)
        return max(
            replicas[1:],
            key=lambda broker: (
                broker not in self.rank,
                used[self.rack.get(broker)],
                len(self.held.get(broker, ())),
                replicas.index(broker),
            ),
        )

    def least_leading(self, replicas: Sequence[int]) -> int:
        """The broker among ``replicas`` with the fewest preferred leaderships."""
        known = [broker for broker in replicas if broker in self.led]
        return min(known, key=lambda broker: (len(self.led[broker]), replicas.index(broker)))

    def surplus(self, high: int, low: int, topic: str) -> int:
        """The number of replicas of a topic that ``high`` has more than ``low``."""
        return self.topics[high, topic] - self.topics[low, topic]

    def may_move(self, partition: TopicPartition, high: int, low: int) -> bool:
        """Whether the replica on ``high`` may move to ``low``."""
        return partition not in self.held[low] and self.keeps_racks(partition, high, low)

    def keeps_racks(self, partition: TopicPartition, high: int, low: int) -> bool:
        """Whether the partition keeps its number of racks when its replica moves from ``high`` to ``low``."""
        if self.rack[high] == self.rack[low]:
            return True
        others = [self.rack.get(broker) for broker in self.replicas[partition] if broker != high]
        return self.rack[low] not in others or self.rack[high] in others


def _even_out(placement: _Placement, moves: ReplicaMoves) -> bool:
    """Moves one replica from a broker with many to one with few. Returns False if none can move.

    Chooses the topic with the largest difference between the two, so that each topic is balanced too.
    """
    held, rank = placement.held, placement.rank
    falling = sorted(held, key=lambda broker: (-len(held[broker]), rank[broker]))
    for high in falling:
        for low in reversed(falling):
            if len(held[high]) - len(held[low]) < 2:
                break
            partition = moves.best(high, low)
            if partition is not None:
                place = placement.replicas[partition].index(high)
                placement.remove(partition, high)
                placement.add(partition, low, place)
                moves.moved(partition, high)
                return True
    return False


def _even_out_leaders(placement: _Placement, leaderships: Leaderships) -> bool:
    """Moves one leadership from a broker with many, along a chain of brokers that ends at one with few."""
    led, rank = placement.led, placement.rank
    for high in sorted(led, key=lambda broker: (-len(led[broker]), rank[broker])):
        found: dict[int, tuple[int, TopicPartition]] = {}
        waiting = deque([high])
        while waiting:
            broker = waiting.popleft()
            if len(led[high]) - len(led[broker]) >= 2:
                while broker != high:
                    source, partition = found[broker]
                    placement.lead(partition, broker)
                    leaderships.set_leader(partition, broker)
                    broker = source
                return True
            for other, partition in leaderships.candidates(broker):
                if other != high and other not in found:
                    found[other] = (broker, partition)
                    waiting.append(other)
    return False
