"""The connections of an admin client: to the controller, to the leaders of partitions, to all brokers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout
from tidemill.client.network_client import CONTROL, NetworkClient
from tidemill.client.offsets import leader_connection, partitions_by_leader
from tidemill.model.errors import RETRIABLE, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

ResultT = TypeVar("ResultT")


class PartitionResult(Protocol):
    """The result of a partition in the response of its leader."""

    error_code: int


PartitionResultT = TypeVar("PartitionResultT", bound=PartitionResult)


class AdminConnections:
    """The cluster metadata and the connections of an admin client. Timeouts are in seconds."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.network_client = NetworkClient(config)
        self._timeout = self.config.seconds("default.api.timeout.ms")

    def deadline(self, timeout: float | None) -> float:
        """Returns the end of ``timeout`` or ``default.api.timeout.ms``, in ``time.monotonic`` seconds."""
        return time.monotonic() + (self._timeout if timeout is None else timeout)

    def call_controller(self, deadline: float, send: Callable[[Connection], ResultT]) -> ResultT:
        """Calls ``send`` with a connection to the controller; retries until ``deadline`` if the controller
        moves.
        """
        while True:
            try:
                if self.network_client.controller_id < 0 or self.network_client.needs_refresh():
                    self.network_client.refresh(deadline)
                controller = self.network_client.controller_id
                connection = (
                    self.network_client.connection(controller, CONTROL, deadline)
                    if controller >= 0
                    else self.network_client.any_connection(deadline)
                )
                return send(connection)
            except ClientError as problem:
                moved = problem.code == ErrorCode.NOT_CONTROLLER or isinstance(
                    problem, BrokerUnreachable | RequestTimeout
                )
                if not moved:
                    raise
                self.network_client.request_refresh()
                self.network_client.back_off(problem, deadline)

    def call_leaders(
        self,
        items: Iterable[TopicPartition],
        send: Callable[[Connection, list[TopicPartition]], Mapping[TopicPartition, PartitionResultT]],
        deadline: float,
    ) -> list[tuple[str, TopicPartition, PartitionResultT]]:
        """Calls ``send`` with a connection to each leader and its partitions; returns broker address,
        partition and result of each.

        Retries until ``deadline`` if a leader moves, is unreachable or returns a retriable error.
        """
        entries: list[tuple[str, TopicPartition, PartitionResultT]] = []
        left = list(items)
        while True:
            refused: list[tuple[str, TopicPartition, PartitionResultT]] = []
            silent: ClientError | None = None
            again: list[TopicPartition] = []
            for node_id, part in partitions_by_leader(self.network_client, left, deadline, "use").items():
                try:
                    connection = leader_connection(self.network_client, node_id, part, deadline)
                    answered = send(connection, part)
                except (BrokerUnreachable, RequestTimeout) as problem:
                    silent = problem
                    again += part
                    continue
                for item, result in answered.items():
                    is_refused = ErrorCode.of(result.error_code) in RETRIABLE
                    (refused if is_refused else entries).append((connection.address, item, result))
            again += [item for _, item, _ in refused]
            if not again or not self.network_client.wait_for_retry(deadline):
                if silent is not None:
                    raise silent
                return entries + refused
            left = again
            self.network_client.refresh(deadline)

    def live_brokers(self, deadline: float) -> list[int]:
        """Returns the ids of the live brokers, sorted, and refreshes the metadata with their addresses.

        Metadata also lists brokers that have just failed; DescribeCluster does not.
        """
        self.network_client.refresh(deadline)
        known = self.network_client.nodes
        if self.network_client.any_connection(deadline).supports(ApiKey.DESCRIBE_CLUSTER):
            response = self.network_client.call_any(
                ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), DescribeClusterResponse, deadline
            )
            if not response.error_code:
                return sorted(b.broker_id for b in response.brokers if b.broker_id in known)
        return sorted(known)


def remaining_ms(deadline: float) -> int:
    """Returns the milliseconds until ``deadline``, for the timeout field of a request."""
    return max(1, min(int((deadline - time.monotonic()) * 1000), 2**31 - 1))


def response_timeout(deadline: float) -> float:
    """Returns the client's timeout in seconds: one second after the broker's, which ends at ``deadline``."""
    return max(1.0, deadline - time.monotonic() + 1.0)
