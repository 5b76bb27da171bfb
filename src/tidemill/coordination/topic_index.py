"""Indexes of an image's topics, and the differences between one edition of an index and the previous one.

A change to a few of thousands of topics copies dictionaries, which is fast, and iterates over no topics.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, filterfalse
from typing import Final

from tidemill.coordination.topic_image import TopicImage, Traits
from tidemill.model.event_loop_slices import slices_of
from tidemill.model.types import ZERO_ID

PARTITIONS_PER_SLICE: Final = 1000
"""Partitions of a topic that are processed before a pause: less than a microsecond each."""


def compute_traits_in_slices(topic: TopicImage) -> Generator[None, None, None]:
    """Computes the traits of a topic with many partitions before the topic is indexed; pauses in between.

    Processing 10,000 partitions at once would block the event loop for some milliseconds.
    """
    if topic.traits is not None or len(topic.partitions) <= PARTITIONS_PER_SLICE:
        return
    brokers: set[int] = set()
    is_reassigning = is_leaderless = has_eligible = False
    for some in slices_of(topic.partitions, PARTITIONS_PER_SLICE):
        brokers.update(chain.from_iterable(partition.replicas for partition in some))
        is_reassigning = is_reassigning or any(partition.adding or partition.removing for partition in some)
        is_leaderless = is_leaderless or any(partition.leader < 0 for partition in some)
        has_eligible = has_eligible or any(partition.elr for partition in some)
        yield
    topic.traits = Traits(frozenset(brokers), is_reassigning, is_leaderless, has_eligible)


class TopicIndex:
    """Topics by name and by id, and the names of topics in special states. Immutable, like images."""

    __slots__ = (
        "_before",
        "_edition",
        "_touched",
        "by_broker",
        "by_id",
        "by_name",
        "eligible",
        "leaderless",
        "reassigning",
    )

    def __init__(self, by_name: Mapping[str, TopicImage]) -> None:
        self.by_name = by_name
        self.by_id: Mapping[bytes, TopicImage] = _by_id(by_name)
        """Where two topics have the same id, the later one; topics without an id are absent."""
        self.reassigning: Mapping[str, None] = dict.fromkeys(
            name for name, topic in by_name.items() if _is_reassigning(topic)
        )
        """Topics with partitions that are being reassigned."""
        self.leaderless: Mapping[str, None] = dict.fromkeys(
            name for name, topic in by_name.items() if _is_leaderless(topic)
        )
        """Topics with partitions that have no leader."""
        self.eligible: Mapping[str, None] = dict.fromkeys(
            name for name, topic in by_name.items() if _has_eligible(topic)
        )
        """Topics with partitions that have eligible leader replicas outside of the ISR."""
        self.by_broker: Mapping[int, Mapping[str, None]] = _by_broker(by_name)
        """Topic names by the id of each broker with replicas."""
        self._edition = object()
        # Not the edition itself: that would keep all its predecessors in memory.
        self._before: object = None
        self._touched: tuple[str, ...] = ()

    def with_changes(self, changed: Iterable[TopicImage], removed: Iterable[str] = ()) -> TopicIndex:
        """Returns the next edition, with topics added, replaced or removed."""
        by_name, by_id, reassigning = dict(self.by_name), dict(self.by_id), dict(self.reassigning)
        leaderless, eligible = dict(self.leaderless), dict(self.eligible)
        holders = _Holders(self.by_broker)
        touched: dict[str, None] = {}
        for topic in changed:
            name = topic.name
            touched[name] = None
            known = by_name.get(name)
            _forget(by_id, known)
            holders.replace(known, topic)
            by_name[name] = topic
            if topic.topic_id != ZERO_ID:
                by_id[topic.topic_id] = topic
            for names, is_one in (
                (reassigning, _is_reassigning(topic)),
                (leaderless, _is_leaderless(topic)),
                (eligible, _has_eligible(topic)),
            ):
                if is_one:
                    names[name] = None
                else:
                    names.pop(name, None)
        for name in removed:
            touched[name] = None
            known = by_name.pop(name, None)
            _forget(by_id, known)
            holders.replace(known, None)
            reassigning.pop(name, None)
            leaderless.pop(name, None)
            eligible.pop(name, None)
        if not touched:
            return self
        # As many ids as topics means that ids are unique. Otherwise the map is rebuilt from all topics.
        ids_are_unique = len(by_id) == len(by_name) and len(self.by_id) == len(self.by_name)
        made = TopicIndex.__new__(TopicIndex)
        made.by_name = by_name
        made.by_id = by_id if ids_are_unique else _by_id(by_name)
        made.reassigning = reassigning
        made.leaderless = leaderless
        made.eligible = eligible
        made.by_broker = holders.by_broker
        made._edition = object()
        made._before = self._edition
        made._touched = tuple(touched)
        return made

    def with_replicas_on(self, brokers: Iterable[int]) -> list[TopicImage]:
        """Returns the topics with a replica on any of ``brokers``."""
        names = chain.from_iterable(self.by_broker.get(broker, ()) for broker in brokers)
        return [self.by_name[name] for name in dict.fromkeys(names)]

    def may_differ_from(self, before: TopicIndex) -> Iterable[str]:
        """Returns the names of the topics that may differ from ``before``, or exist in only one of both."""
        if self is before:
            return ()
        if self._before is before._edition:
            return self._touched
        return chain(self.by_name, filterfalse(self.by_name.__contains__, before.by_name))


class _Holders:
    """The topics by broker, while an edition is built. Unchanged brokers share those of ``before``."""

    def __init__(self, before: Mapping[int, Mapping[str, None]]) -> None:
        self.by_broker = dict(before)
        self._own: dict[int, dict[str, None]] = {}

    def replace(self, old: TopicImage | None, new: TopicImage | None) -> None:
        """Adds, replaces or removes a topic."""
        had, has = _brokers_of(old), _brokers_of(new)
        for broker in had - has:
            if old is not None:
                self._names_of(broker).pop(old.name, None)
        for broker in has - had:
            if new is not None:
                self._names_of(broker)[new.name] = None

    def _names_of(self, broker: int) -> dict[str, None]:
        own = self._own.get(broker)
        if own is None:
            own = self._own[broker] = self.by_broker[broker] = dict(self.by_broker.get(broker, ()))
        return own


def _brokers_of(topic: TopicImage | None) -> AbstractSet[int]:
    if topic is None:
        return set()
    if topic.traits is not None:
        return topic.traits.brokers
    return set(chain.from_iterable(partition.replicas for partition in topic.partitions))


def _by_broker(by_name: Mapping[str, TopicImage]) -> dict[int, dict[str, None]]:
    found: dict[int, dict[str, None]] = {}
    for name, topic in by_name.items():
        for broker in _brokers_of(topic):
            found.setdefault(broker, {})[name] = None
    return found


def _by_id(by_name: Mapping[str, TopicImage]) -> dict[bytes, TopicImage]:
    return {topic.topic_id: topic for topic in by_name.values() if topic.topic_id != ZERO_ID}


def _forget(by_id: dict[bytes, TopicImage], topic: TopicImage | None) -> None:
    if topic is not None and by_id.get(topic.topic_id) is topic:
        del by_id[topic.topic_id]


def _is_reassigning(topic: TopicImage) -> bool:
    if topic.traits is not None:
        return topic.traits.is_reassigning
    return any(partition.adding or partition.removing for partition in topic.partitions)


def _is_leaderless(topic: TopicImage) -> bool:
    if topic.traits is not None:
        return topic.traits.is_leaderless
    return any(partition.leader < 0 for partition in topic.partitions)


def _has_eligible(topic: TopicImage) -> bool:
    if topic.traits is not None:
        return topic.traits.has_eligible
    return any(partition.elr for partition in topic.partitions)
