"""The topics of an image as they are looked up, and in what one edition of them differs from the one before.

To change a few of thousands of topics costs copies of dictionaries, which the interpreter makes at once, and
no look at each topic.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemill.model.slices import slices_of
from tidemill.model.types import ZERO_ID

if TYPE_CHECKING:
    from tidemill.coordination.image import TopicImage


PARTITIONS_A_PAUSE: Final = 1000
"""Of one topic that are looked at: less than a microsecond each."""


class Traits(NamedTuple):
    """What an index has to know of all partitions of a topic."""

    brokers: frozenset[int]
    """Those that have replicas."""
    is_moving: bool
    is_leaderless: bool
    has_eligible: bool


def noting_traits(topic: TopicImage) -> Generator[None, None, None]:
    """Has a topic of many partitions know its traits, before it comes into an index; pauses meanwhile.

    A look at 10,000 partitions in one go would hold the event loop for some milliseconds.
    """
    if topic.traits is not None or len(topic.partitions) <= PARTITIONS_A_PAUSE:
        return
    brokers: set[int] = set()
    is_moving = is_leaderless = has_eligible = False
    for some in slices_of(topic.partitions, PARTITIONS_A_PAUSE):
        brokers.update(chain.from_iterable(one.replicas for one in some))
        is_moving = is_moving or any(one.adding or one.removing for one in some)
        is_leaderless = is_leaderless or any(one.leader < 0 for one in some)
        has_eligible = has_eligible or any(one.elr for one in some)
        yield
    topic.traits = Traits(frozenset(brokers), is_moving, is_leaderless, has_eligible)


class TopicIndex:
    """Topics by name and by id, and the names of some that need care. Never changed, as images are not."""

    __slots__ = (
        "_before",
        "_edition",
        "_touched",
        "by_broker",
        "by_id",
        "by_name",
        "eligible",
        "leaderless",
        "moving",
    )

    def __init__(self, by_name: Mapping[str, TopicImage]) -> None:
        self.by_name = by_name
        self.by_id: Mapping[bytes, TopicImage] = _by_id(by_name)
        """Of two that somebody gave the same id the later one; none without an id."""
        self.moving: Mapping[str, None] = dict.fromkeys(
            name for name, topic in by_name.items() if _is_moving(topic)
        )
        """Topics with partitions on their way to other brokers."""
        self.leaderless: Mapping[str, None] = dict.fromkeys(
            name for name, topic in by_name.items() if _is_leaderless(topic)
        )
        """Topics with partitions that have no leader."""
        self.eligible: Mapping[str, None] = dict.fromkeys(
            name for name, topic in by_name.items() if _has_eligible(topic)
        )
        """Topics with partitions that have eligible leader replicas beside their in-sync set."""
        self.by_broker: Mapping[int, Mapping[str, None]] = _by_broker(by_name)
        """Topic names by the id of each broker that has replicas."""
        self._edition = object()
        # Not the edition itself: it would keep all those before it in memory.
        self._before: object = None
        self._touched: tuple[str, ...] = ()

    def with_changes(self, changed: Iterable[TopicImage], removed: Iterable[str] = ()) -> TopicIndex:
        """The next edition: with topics added or replaced, and others gone."""
        by_name, by_id, moving = dict(self.by_name), dict(self.by_id), dict(self.moving)
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
                (moving, _is_moving(topic)),
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
            moving.pop(name, None)
            leaderless.pop(name, None)
            eligible.pop(name, None)
        if not touched:
            return self
        # As many ids as topics: each has one of its own. Otherwise a look at all tells whose they are.
        is_plain = len(by_id) == len(by_name) and len(self.by_id) == len(self.by_name)
        made = TopicIndex.__new__(TopicIndex)
        made.by_name = by_name
        made.by_id = by_id if is_plain else _by_id(by_name)
        made.moving = moving
        made.leaderless = leaderless
        made.eligible = eligible
        made.by_broker = holders.by_broker
        made._edition = object()
        made._before = self._edition
        made._touched = tuple(touched)
        return made

    def with_replicas_on(self, brokers: Iterable[int]) -> list[TopicImage]:
        """The topics of which any of ``brokers`` has a replica."""
        names = chain.from_iterable(self.by_broker.get(broker, ()) for broker in brokers)
        return [self.by_name[name] for name in dict.fromkeys(names)]

    def may_differ_from(self, before: TopicIndex) -> Iterable[str]:
        """The names of the topics that may be others than in ``before``, or not be in both."""
        if self is before:
            return ()
        if self._before is before._edition:
            return self._touched
        return chain(self.by_name, filterfalse(self.by_name.__contains__, before.by_name))


class _Holders:
    """The topics by broker, while an edition is made. Those of brokers where nothing changes are shared."""

    def __init__(self, before: Mapping[int, Mapping[str, None]]) -> None:
        self.by_broker = dict(before)
        self._own: dict[int, dict[str, None]] = {}

    def replace(self, old: TopicImage | None, new: TopicImage | None) -> None:
        """Takes a topic in, replaces it or lets it go."""
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
    return set(chain.from_iterable(one.replicas for one in topic.partitions))


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


def _is_moving(topic: TopicImage) -> bool:
    if topic.traits is not None:
        return topic.traits.is_moving
    return any(one.adding or one.removing for one in topic.partitions)


def _is_leaderless(topic: TopicImage) -> bool:
    if topic.traits is not None:
        return topic.traits.is_leaderless
    return any(one.leader < 0 for one in topic.partitions)


def _has_eligible(topic: TopicImage) -> bool:
    if topic.traits is not None:
        return topic.traits.has_eligible
    return any(one.elr for one in topic.partitions)
