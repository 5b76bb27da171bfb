"""Resets the positions of partitions without a committed offset, by ListOffsets requests to their leaders.

Never blocks on a broker: a broker that does not answer, or a partition without a leader, delays no other
partition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.connection_attempts import no_response_text
from tidemill.client.errors import BrokerUnreachable, ClientError, error_for
from tidemill.client.fetcher import Fetcher
from tidemill.client.network_client import CONTROL, SLOW_S, NetworkClient
from tidemill.client.offsets import read_list_offsets, send_list_offsets
from tidemill.client.subscription_state import SubscriptionState
from tidemill.client.wait_reasons import Kind, Wait
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition


class OffsetResets:
    """The lookups of one consumer that are in flight. For the polling thread."""

    def __init__(
        self, network_client: NetworkClient, subscriptions: SubscriptionState, fetcher: Fetcher
    ) -> None:
        self._network_client = network_client
        self._subscriptions = subscriptions
        self._fetcher = fetcher
        self._backoff_s = network_client.config.seconds("retry.backoff.ms")
        self._requests: dict[int, tuple[InFlightRequest, dict[TopicPartition, int]]] = {}
        """By broker, the request in flight, and the timestamp that it has for each partition."""
        self._retry_at = 0.0
        self.failures: dict[TopicPartition, ClientError] = {}
        """The last error of each partition that has no position yet."""

    @property
    def connections(self) -> list[Connection]:
        """The connections on which responses are expected."""
        return [request.connection for request, _ in self._requests.values()]

    def reset_positions(self) -> float:
        """Handles responses and sends missing requests; returns the seconds until the next call is useful.

        Raises the ClientError of a partition that cannot be retried.
        """
        self._handle_responses()
        now = time.monotonic()
        requested = {item for _, times in self._requests.values() for item in times}
        unknown = {
            item: position.reset_timestamp
            for item, position in self._subscriptions.positions.items()
            if position.offset is None and position.reset_timestamp is not None and item not in requested
        }
        for item in self.failures.keys() - unknown.keys() - requested:
            del self.failures[item]
        if not unknown:
            return 1.0
        if self._retry_at > now:
            return self._retry_at - now
        waits = [self._send(node_id, times) for node_id, times in self._by_leader(unknown).items()]
        return min(waits, default=self._backoff_s)

    def _by_leader(self, unknown: dict[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
        found: dict[int, dict[TopicPartition, int]] = {}
        problems: dict[TopicPartition, ClientError] = {}
        for item, at in unknown.items():
            partition = self._network_client.partition(item.topic, item.partition)
            if partition is None:
                problems[item] = _problem(item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not self._fetcher.has_leader(item):
                problems[item] = _problem(item, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                found.setdefault(partition.leader, {})[item] = at
        self._retry_later(problems)
        return found

    def _send(self, node_id: int, times: dict[TopicPartition, int]) -> float:
        if node_id in self._requests:
            return 1.0
        connection = self._network_client.ready_connection(node_id, CONTROL)
        if connection is None:
            problem = BrokerUnreachable(f"there is no connection to the leader, broker {node_id}, yet")
            self.failures |= dict.fromkeys(times, problem)
            blocked = self._network_client.unresponsive_reason(node_id)
            if blocked is not None:
                self._record_errors(dict.fromkeys(times, BrokerUnreachable(blocked[1])))
            self._network_client.open_in_background(node_id, CONTROL, self._fetcher.wake)
            return self._network_client.connection_delay(node_id) or 1.0
        try:
            request = send_list_offsets(
                connection, times, self._network_client.config, committed_only=self._fetcher.committed_only
            )
        except ClientError as refused:
            self._retry_later(dict.fromkeys(times, refused))
            return self._backoff_s
        self._requests[node_id] = (request, times)
        return 1.0

    def _handle_responses(self) -> None:
        failures: dict[TopicPartition, ClientError] = {}
        for node_id, (request, times) in list(self._requests.items()):
            request.connection.wait(request, 0.0)
            if request.done:
                del self._requests[node_id]
                result = read_list_offsets(request, times)
                failures |= result.failures
                self._retry_later(result.retriable)
                for item, at in times.items():
                    position = self._subscriptions.positions.get(item)
                    if (
                        item in result.offsets
                        and position is not None
                        and position.offset is None
                        and position.reset_timestamp == at
                    ):
                        position.seek(result.offsets[item].offset)
                        position.error_name = ""
                        self.failures.pop(item, None)
        for item, failure in failures.items():
            if item in self._subscriptions.positions:
                raise failure

    def _retry_later(self, problems: dict[TopicPartition, ClientError]) -> None:
        if problems:
            self.failures |= problems
            self._record_errors(problems)
            self._retry_at = time.monotonic() + self._backoff_s
            self._network_client.request_refresh()

    def _record_errors(self, problems: Mapping[TopicPartition, ClientError]) -> None:
        for item, problem in problems.items():
            self._subscriptions.record_error(item, problem.code.name, str(problem))

    def waits(self) -> list[Wait]:
        """Returns the partitions whose position a broker has not returned for a while. From any thread."""
        now = time.monotonic()
        return [
            Wait(Kind.READ, str(item), no_response_text(request.connection, request.api_key), request.sent_s)
            for request, times in list(self._requests.values())
            if now - request.sent_s > SLOW_S and request.connection.oldest_unanswered() is request
            for item in times
        ]


def _problem(item: TopicPartition, code: ErrorCode) -> ClientError:
    return error_for(code, f"look up an offset of {item}", topic=item.topic, partition=item.partition)
