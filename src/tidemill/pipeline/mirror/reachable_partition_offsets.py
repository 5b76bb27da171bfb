"""Lists the offsets of the partitions whose leaders answer: a partition without one stops no other."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from tidemill.client.errors import BrokerUnreachable, ClientError
from tidemill.client.range_reader import RangeReader, TopicView
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition

PATIENCE_S: Final = 5.0
"""How long a listing waits for the leader of a partition that has answered before: an election is shorter."""
AGAIN_S: Final = 30.0
"""How long a partition is left out whose leader is known and does not answer: each attempt may wait for a
timeout. One without a leader is left out until the metadata names one."""


class ReachableOffsets:
    """The offsets of a cluster's partitions. The reader is the caller's. For one thread."""

    def __init__(self, reader: RangeReader) -> None:
        self.reader = reader
        self.held_back: dict[TopicPartition, ClientError] = {}
        """The partitions that were left out, and why."""
        self.views: dict[str, TopicView] = {}
        """The topics as they were described last."""
        self._next_try_s: dict[TopicPartition, float] = {}

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        """Returns the existing topics among ``topics``, and reads their leaders. Raises ClientError."""
        described = self.reader.describe(topics)
        self.views = {topic: seen for topic, seen in self.views.items() if topic not in topics} | described
        self.held_back = {
            item: problem
            for item, problem in self.held_back.items()
            if item.topic not in topics or item.topic in described
        }
        return described

    def list(self, items: Iterable[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Returns the offsets of the partitions whose leaders answer.

        ``time_ms`` is EARLIEST, LATEST or a time. Raises ClientError for an error that no wait would end, and
        that of an outage: no leader answers.
        """
        wanted = list(items)
        found = self.list_some(wanted, time_ms)
        if wanted and not found:
            raise self.held_back[wanted[0]]
        return found

    def list_some(self, items: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """As :meth:`list`, but returns nothing during an outage."""
        due = [item for item in items if self._is_due(item)]
        if not due:
            return {}
        found, failures = self.reader.list_offsets_or_failures(dict.fromkeys(due, time_ms), PATIENCE_S)
        for item, problem in failures.items():
            if not problem.retriable:
                raise problem
            if problem.code is ErrorCode.LEADER_NOT_AVAILABLE:
                problem = no_leader(item)
            else:
                self._next_try_s[item] = time.monotonic() + AGAIN_S
            self.held_back[item] = problem
        for item in found:
            self.held_back.pop(item, None)
            self._next_try_s.pop(item, None)
        return found

    def _is_due(self, item: TopicPartition) -> bool:
        if item not in self.held_back:
            return True
        view = self.views.get(item.topic)
        has_leader = view is None or item.partition not in view.leaderless
        return has_leader and time.monotonic() >= self._next_try_s.get(item, 0.0)


def no_leader(item: TopicPartition) -> BrokerUnreachable:
    """Returns the error of a partition without a leader."""
    return BrokerUnreachable(
        f"{item} has no leader: start the brokers of its replicas, or check their logs",
        ErrorCode.LEADER_NOT_AVAILABLE,
        topic=item.topic,
        partition=item.partition,
    )
