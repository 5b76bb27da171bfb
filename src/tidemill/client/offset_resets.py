"""Finds out where a consumer begins in partitions without a committed offset: ListOffsets of their leaders.

Nothing here waits for a broker. One that does not answer, or a partition without a leader, keeps no other
partition waiting.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tidemill.client.cluster import CONTROL, SLOW_S, Cluster
from tidemill.client.connection import Connection
from tidemill.client.connection_attempts import no_answer
from tidemill.client.errors import BrokerUnreachable, ClientError, error_for
from tidemill.client.fetcher import Fetcher, Place
from tidemill.client.offsets import OffsetAt, send_list_offsets, take_list_offsets
from tidemill.client.request import Request
from tidemill.client.waits import Kind, Wait
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition


class OffsetResets:
    """The lookups of one consumer that are under way. For the polling thread."""

    def __init__(self, cluster: Cluster, places: dict[TopicPartition, Place], fetcher: Fetcher) -> None:
        self._cluster = cluster
        self._places = places
        self._fetcher = fetcher
        self._backoff_s = cluster.config.seconds("retry.backoff.ms")
        self._requests: dict[int, tuple[Request, dict[TopicPartition, int]]] = {}
        """By broker the request under way, and the timestamp that it names for each partition."""
        self._retry_at = 0.0
        self.failures: dict[TopicPartition, ClientError] = {}
        """Why a partition has no position yet."""

    @property
    def connections(self) -> list[Connection]:
        """Those over which answers will come."""
        return [request.connection for request, _ in self._requests.values()]

    def step(self) -> float:
        """Takes what was answered, and asks for the rest; seconds until it is worth doing again.

        Raises the ClientError of a partition that is not worth asking for again.
        """
        self._take()
        now = time.monotonic()
        asked = {item for _, times in self._requests.values() for item in times}
        unknown = {
            item: place.reset
            for item, place in self._places.items()
            if place.offset is None and place.reset is not None and item not in asked
        }
        for item in self.failures.keys() - unknown.keys() - asked:
            del self.failures[item]
        if not unknown:
            return 1.0
        if self._retry_at > now:
            return self._retry_at - now
        waits = [self._ask(node_id, times) for node_id, times in self._by_leader(unknown).items()]
        return min(waits, default=self._backoff_s)

    def _by_leader(self, unknown: dict[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
        found: dict[int, dict[TopicPartition, int]] = {}
        problems: dict[TopicPartition, ClientError] = {}
        for item, at in unknown.items():
            topic = self._cluster.topics.get(item.topic)
            if topic is None or item.partition >= len(topic.partitions):
                problems[item] = _problem(item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not self._fetcher.has_leader(item):
                problems[item] = _problem(item, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                found.setdefault(topic.partitions[item.partition].leader, {})[item] = at
        self._failed(problems)
        return found

    def _ask(self, node_id: int, times: dict[TopicPartition, int]) -> float:
        if node_id in self._requests:
            return 1.0
        connection = self._cluster.opened(node_id, CONTROL)
        if connection is None:
            problem = BrokerUnreachable(f"there is no connection to the leader, broker {node_id}, yet")
            self.failures |= dict.fromkeys(times, problem)
            blocked = self._cluster.blocked(node_id)
            if blocked is not None:
                self._note(dict.fromkeys(times, BrokerUnreachable(blocked[1])))
            self._cluster.open_soon(node_id, CONTROL, self._fetcher.wake)
            return self._cluster.pause(node_id) or 1.0
        try:
            request = send_list_offsets(
                connection, times, self._cluster.config, committed_only=self._fetcher.committed_only
            )
        except ClientError as refused:
            self._failed(dict.fromkeys(times, refused))
            return self._backoff_s
        self._requests[node_id] = (request, times)
        return 1.0

    def _take(self) -> None:
        found: dict[TopicPartition, OffsetAt] = {}
        failures: dict[TopicPartition, ClientError] = {}
        for node_id, (request, times) in list(self._requests.items()):
            request.connection.wait(request, 0.0)
            if request.done:
                del self._requests[node_id]
                again: dict[TopicPartition, ClientError] = {}
                take_list_offsets(request, times, found, again, failures)
                self._failed(again)
                for item, at in times.items():
                    place = self._places.get(item)
                    if item in found and place is not None and place.offset is None and place.reset == at:
                        place.offset, place.reset = found[item].offset, None
                        place.trouble = ""
                        self.failures.pop(item, None)
        for item, failure in failures.items():
            if item in self._places:
                raise failure

    def _failed(self, problems: dict[TopicPartition, ClientError]) -> None:
        if problems:
            self.failures |= problems
            self._note(problems)
            self._retry_at = time.monotonic() + self._backoff_s
            self._cluster.request_refresh()

    def _note(self, problems: Mapping[TopicPartition, ClientError]) -> None:
        for item, problem in problems.items():
            place = self._places.get(item)
            if place is not None:
                place.note(problem.code.name, str(problem))

    def waits(self) -> list[Wait]:
        """The partitions whose position a broker is asked for, and has not answered. From any thread."""
        now = time.monotonic()
        return [
            Wait(Kind.READ, str(item), no_answer(request.connection, request.api_key), request.sent)
            for request, times in list(self._requests.values())
            if now - request.sent > SLOW_S and request.connection.unanswered() is request
            for item in times
        ]


def _problem(item: TopicPartition, code: ErrorCode) -> ClientError:
    return error_for(code, f"look up an offset of {item}", topic=item.topic, partition=item.partition)
