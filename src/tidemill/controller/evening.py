"""Which replica, or which leadership, goes next while brokers are evened out, without a look at all of them.

Each pair of brokers that was asked about keeps its candidates in heaps, in the order in which they are
chosen. What a move has made better is put in again; what it has made worse is found when it comes up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from tidemill.model.types import TopicPartition

Held = Mapping[int, Mapping[TopicPartition, int]]
"""By broker: what it holds or leads, with numbers that grow in the order in which it got them."""
Candidate = tuple[int, TopicPartition]
Rank = tuple[int, int, str]
"""How many fewer the giver has of a topic than the taker, the first candidate's number, and the topic."""


class _Pair:
    """What may move from one broker to another."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[Candidate]] = {}
        """By topic, first the one that the giver has had for longest."""
        self.waiting: set[int] = set()
        """The numbers of those."""
        self.topics: list[Rank] = []
        """First that of which the giver has the most more than the taker; among such, the longest had."""
        self.ranks: dict[str, Rank] = {}
        """Which of ``topics`` counts, where there are several of one topic."""

    def wait(self, number: int, partition: TopicPartition) -> None:
        """Puts a candidate in."""
        if number not in self.waiting:
            self.waiting.add(number)
            heappush(self.partitions.setdefault(partition.topic, []), (number, partition))

    def improve(self, rank: Rank) -> None:
        """Takes a topic's rank for what it is, if it is better than it was."""
        known = self.ranks.get(rank[2])
        if known is None or rank < known:
            self.ranks[rank[2]] = rank
            heappush(self.topics, rank)


class ReplicaMoves:
    """The best replica to move between two brokers."""

    def __init__(
        self,
        held: Held,
        surplus: Callable[[int, int, str], int],
        may_move: Callable[[TopicPartition, int, int], bool],
    ) -> None:
        """``surplus``: how many replicas of a topic one broker has more than another.

        ``may_move``: whether a partition's replica may go from one broker, which has it, to another.
        """
        self._held = held
        self._surplus = surplus
        self._may_move = may_move
        self._pairs: dict[int, dict[int, _Pair]] = {broker: {} for broker in held}
        """By giver and taker."""

    def best(self, high: int, low: int) -> TopicPartition | None:
        """The replica that goes next from ``high`` to ``low``; None when none may."""
        pair = self._pairs[high].get(low)
        if pair is None:
            pair = self._pairs[high][low] = self._made(high, low)
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

    def moved(self, partition: TopicPartition, high: int, low: int) -> None:
        """Takes note of a move that was made."""
        for giver, pairs in self._pairs.items():
            number = self._held[giver].get(partition)
            # Of the others only those are better off that may give to who has given.
            for taker in pairs if number is not None else pairs.keys() & {high}:
                pair = pairs[taker]
                if number is not None and self._may_move(partition, giver, taker):
                    pair.wait(number, partition)
                rank = self._ranked(pair, giver, taker, partition.topic)
                if rank is not None:
                    pair.improve(rank)

    def _made(self, high: int, low: int) -> _Pair:
        pair = _Pair()
        for partition, number in self._held[high].items():
            if self._may_move(partition, high, low):
                pair.wait(number, partition)
        for topic, candidates in pair.partitions.items():
            pair.improve((-self._surplus(high, low, topic), candidates[0][0], topic))
        return pair

    def _ranked(self, pair: _Pair, high: int, low: int, topic: str) -> Rank | None:
        """A topic's place among the others now; None when nothing of it may move."""
        candidates = pair.partitions.get(topic)
        while candidates:
            number, partition = candidates[0]
            if self._held[high].get(partition) == number and self._may_move(partition, high, low):
                return -self._surplus(high, low, topic), number, topic
            heappop(candidates)
            pair.waiting.discard(number)
        return None


class Leaderships:
    """What a broker could lead that another leads."""

    def __init__(self, led: Held, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        self._led = led
        self._replicas = replicas
        self._shared: dict[int, dict[int, list[Candidate]]] = {broker: {} for broker in led}
        for broker, partitions in led.items():
            for partition in partitions:
                self.led_by(partition, broker)

    def led_by(self, partition: TopicPartition, leader: int) -> None:
        """Takes note of who leads a partition from now on."""
        candidate = (self._led[leader][partition], partition)
        for broker in self._replicas[partition]:
            if broker != leader and broker in self._led:
                heappush(self._shared[leader].setdefault(broker, []), candidate)

    def takers(self, leader: int) -> list[Candidate]:
        """Brokers that could take a leadership over, each with the one that was had for longest.

        In the order of these, and for one partition in that of its replicas.
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
