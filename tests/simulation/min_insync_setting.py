"""``min.insync.replicas`` in the store: its value for a topic, and the brokers that have read it.

It is the topic's own value, else the default of the cluster. A change of either counts for the checkers from
the commit in the store on. A leader learns of it a little later: until then it uses the former value, which
is excused (``minimum-not-read``) for no longer than a broker needs to read it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from deposed_leaders import SLACK_S

from tidemill.coordination.nodes import DEFAULT_ENTITY, ConfigNode
from tidemill.model.configs import MIN_INSYNC

if TYPE_CHECKING:
    from promises import Promises

DEFAULT_PATH = ConfigNode.path("brokers", DEFAULT_ENTITY)
TOPICS = ConfigNode.path("topics", "")
LEARN_SESSIONS = 2
"""A broker whose session lives, and whose connection to the store holds, has read a change within so many
lives of a session, and SLACK_S."""
APPLY_S = 2.0
"""What a broker has read it counts by within this time: it may read the rest of the cluster first."""


class TimedValue(NamedTuple):
    """A value of a node and its time; None without a value."""

    value: int | None
    at_s: float


class ReadValue(NamedTuple):
    """A broker has read one of the values of a node."""

    index: int
    at_s: float


class MinInsyncSetting:
    """Tracks the value of each topic in the store, and the reads of brokers."""

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self._values: dict[str, list[TimedValue]] = {}
        """By the path of a node all values that it had."""
        self._reads: defaultdict[tuple[int, str], list[ReadValue]] = defaultdict(list)

    def begin(self, default: int) -> None:
        """Brokers have this value in their files."""
        self._values[DEFAULT_PATH] = [TimedValue(default, self.promises.now())]

    # -- what the world reports

    def written(self, path: str, data: bytes) -> None:
        """A node was written."""
        if path != DEFAULT_PATH and not path.startswith(TOPICS):
            return
        value = _value_in(path, data)
        values = self._values.setdefault(path, [])
        if not values or value != values[-1].value:
            values.append(TimedValue(value, self.promises.now()))
            self._changed(path)

    def read(self, broker: int, path: str, data: bytes) -> None:
        """A broker has read a node."""
        if path in self._values:
            value = _value_in(path, data)
            found = [index for index, one in enumerate(self._values[path]) if one.value == value]
            self._reads[broker, path].append(ReadValue(max(found, default=0), self.promises.now()))

    def topic_removed(self, topic: str) -> None:
        """The topic was removed from the store."""
        path = TOPICS + topic
        self._values.pop(path, None)
        for key in [key for key in self._reads if key[1] == path]:
            del self._reads[key]

    # -- what follows from it

    def of(self, topic: str) -> int:
        """Returns the value of a topic."""
        own = self._values.get(TOPICS + topic)
        value = own[-1].value if own is not None else None
        return self.default if value is None else value

    @property
    def default(self) -> int:
        """Returns the value of topics without their own."""
        return self._values[DEFAULT_PATH][-1].value or 1

    def _changed(self, path: str) -> None:
        topics = [path.removeprefix(TOPICS)]
        if path == DEFAULT_PATH:
            topics = [topic for topic in self.promises.settings if not self.has_own(topic)]
        for topic in topics:
            if topic not in self.promises.settings:
                continue
            before, after = self.promises.settings_of(topic).min_isr, self.of(topic)
            self.promises.min_isr_written(topic, after)
            if before != after and len(self._values[path]) > 1:
                self._count("raised" if after > before else "lowered", topic)
                if path == DEFAULT_PATH:
                    self.promises.events.count("min.insync.replicas changed by its default")

    def own(self, topic: str) -> str | None:
        """Returns the topic's own value."""
        own = self._values.get(TOPICS + topic)
        return None if own is None or own[-1].value is None else str(own[-1].value)

    def has_own(self, topic: str) -> bool:
        """Whether a topic has its own value."""
        return self.own(topic) is not None

    def _count(self, how: str, topic: str) -> None:
        known = [one for tp, one in self.promises.partitions.items() if tp[0] == topic]
        self.promises.events.count(f"min.insync.replicas {how}")
        if any(set(one.holders.isr) != set(one.replicas) for one in known):
            self.promises.events.count(f"min.insync.replicas {how} while a replica was out of sync")

    # -- leaders that have yet to learn of it

    def explains(self, topic: str, leader: int, having: int, sent_s: float) -> bool:
        """Whether a leader that acknowledged with that many replicas need not know the higher value.

        A leader without a session cannot learn of it. If it is the only in-sync replica, it stays the leader:
        no other can be elected (``docs/decisions/isolated-leaders.md``).
        """
        return self.may_be_enough(topic, leader, having, sent_s) and self.promises.excused("minimum-not-read")

    def may_be_enough(self, topic: str, leader: int, having: int, since_s: float | None = None) -> bool:
        """Whether that many replicas may have been enough for a leader since some time, or are now."""
        if TOPICS + topic not in self._values:
            return False
        since_s = self.promises.now() if since_s is None else since_s
        own = self._counted(leader, TOPICS + topic, since_s)
        values = {value for value in own if value is not None}
        if None in own:
            values |= {value or 1 for value in self._counted(leader, DEFAULT_PATH, since_s)}
        return having >= min(values)

    def _counted(self, broker: int, path: str, since_s: float) -> set[int | None]:
        """Returns the values that a broker may have used since ``since_s``."""
        values, reads = self._values[path], self._reads[broker, path]
        deposed = self.promises.deposed
        troubled_s = deposed.store_troubled_s(broker)
        applied = [read.index for read in reads if max(read.at_s, troubled_s) <= since_s - APPLY_S]
        index = max(applied, default=0)
        learns_s = LEARN_SESSIONS * deposed.session_s + SLACK_S
        in_touch_s = max(deposed.in_touch_s(broker), troubled_s)
        while index + 1 < len(values) and max(values[index + 1].at_s, in_touch_s) + learns_s <= since_s:
            index += 1
        return {one.value for one in values[index:]}


def _value_in(path: str, data: bytes) -> int | None:
    text = ConfigNode.decode(path, data).get(MIN_INSYNC)
    return None if text is None else int(text)
