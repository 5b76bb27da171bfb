"""Finds the next replica or leadership to move while brokers are balanced, without a scan of all of them.

Each pair of brokers keeps its candidates in heaps, in the order in which they are chosen. Entries that a move
has improved are pushed again. Entries that a move has made worse are corrected when they reach the top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from tidemill.model.types import TopicPartition

Held = Mapping[int, Mapping[TopicPartition, int]]
"""By broker: the partitions that it holds or leads, with numbers that grow in the order of arrival."""
Candidate = tuple[int, TopicPartition]
Rank = tuple[int, int, str]
"""The negative surplus of a topic on the source over the target, the number of the first candidate, the
topic.
"""


class _Pair:
    """The replicas that may move from one broker to another."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[Candidate]] = {}
        """By topic. The partition that the source has held longest comes first."""
        self.numbers: set[int] = set()
        """The numbers of these candidates."""
        self.topics: list[Rank] = []
        """The topic with the largest surplus on the source comes first; among equals, the one held longest.
        """
        self.ranks: dict[str, Rank] = {}
        """The valid entry of each topic in ``topics``, which may have several."""

    def add(self, number: int, partition: TopicPartition) -> None:
        """Adds a candidate."""
        if number not in self.numbers:
            self.numbers.add(number)
            heappush(self.partitions.setdefault(partition.topic, []), (number, partition))

    def update_rank(self, rank: Rank) -> None:
        """Lowers the rank of a topic, if ``rank`` is better than the known one."""
        known = self.ranks.get(rank[2])
        if known is None or rank < known:
            self.ranks[rank[2]] = rank
            heappush(self.topics, rank)


class ReplicaMoves:
    """Finds the best replica to move between two brokers."""

    def __init__(
        self,
        held: Held,
        surplus: Callable[[int, int, str], int],
        may_move: Callable[[TopicPartition, int, int], bool],
    ) -> None:
        """``surplus``: the number of replicas of a topic that one broker has more than another.

        ``may_move``: whether a replica of a partition may move from the broker that has it to another.
        """
        self._held = held
        self._surplus = surplus
        self._may_move = may_move
        self._pairs: dict[int, dict[int, _Pair]] = {broker: {} for broker in held}
        """By source and target."""

    def best(self, high: int, low: int) -> TopicPartition | None:
        """The next replica to move from ``high`` to ``low``; None if no replica may move."""
        pair = self._pairs[high].get(low)
        if pair is None:
            pair = self._pairs[high][low] = self._build(high, low)
        while pair.topics:
            listed = pair.topics[0]
            topic = listed[2]
            if pair.ranks.get(topic) != listed:
                heappop(pair.topics)
                continue
            found = self._ranked(pair, high, low, topic)
            if found is None:
                heappop(pair.topics)
                del pair.ranks[topic]
            elif found == listed:
                return pair.partitions[topic][0][1]
            else:
                heapreplace(pair.topics, found)
                pair.ranks[topic] = found
        return None

    def moved(self, partition: TopicPartition, high: int) -> None:
        """Updates the candidates after a move."""
        for source, pairs in self._pairs.items():
            number = self._held[source].get(partition)
            # For other sources, only pairs with ``high`` as their target may have improved.
            for target in pairs if number is not None else pairs.keys() & {high}:
                pair = pairs[target]
                if number is not None and self._may_move(partition, source, target):
                    pair.add(number, partition)
                rank = self._ranked(pair, source, target, partition.topic)
                if rank is not None:
                    pair.update_rank(rank)

    def _build(self, high: int, low: int) -> _Pair:
        pair = _Pair()
        for partition, number in self._held[high].items():
            if self._may_move(partition, high, low):
                pair.add(number, partition)
        for topic, candidates in pair.partitions.items():
            pair.update_rank((-self._surplus(high, low, topic), candidates[0][0], topic))
        return pair

    def _ranked(self, pair: _Pair, high: int, low: int, topic: str) -> Rank | None:
        """The current rank of a topic; None if none of its replicas may move."""
        candidates = pair.partitions.get(topic)
        while candidates:
            number, partition = candidates[0]
            if self._held[high].get(partition) == number and self._may_move(partition, high, low):
                return -self._surplus(high, low, topic), number, topic
            heappop(candidates)
            pair.numbers.discard(number)
        return None


class Leaderships:
    """The leaderships of a broker that other brokers could take over."""

    def __init__(self, led: Held, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        self._led = led
        self._replicas = replicas
        self._shared: dict[int, dict[int, list[Candidate]]] = {broker: {} for broker in led}
        for broker, partitions in led.items():
            for partition in partitions:
                self.set_leader(partition, broker)

    def set_leader(self, partition: TopicPartition, leader: int) -> None:
        """Records the new leader of a partition."""
        candidate = (self._led[leader][partition], partition)
        for broker in self._replicas[partition]:
            if broker != leader and broker in self._led:
                heappush(self._shared[leader].setdefault(broker, []), candidate)

    def candidates(self, leader: int) -> list[Candidate]:
        """Brokers that could take over a leadership, each with the partition that ``leader`` has led longest.

        Sorted by how long ``leader`` has led the partition, then by the order of its replicas.
        """
        found: list[tuple[int, int, int, TopicPartition]] = []
        led = self._led[leader]
        for broker, candidates in self._shared[leader].items():
            while candidates and led.get(candidates[0][1]) != candidates[0][0]:
                heappop(candidates)
            if candidates:
                number, partition = candidates[0]
                found.append((number, self._replicas[partition].index(broker), broker, partition))
        return [(broker, partition) for _, _, broker, partition in sorted(found)]
