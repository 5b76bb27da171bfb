"""What the parts of the admin client share: the cluster, deadlines, and whom to ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tidemill.client.cluster import CONTROL, Cluster
from tidemill.client.config import COMMON, config_of
from tidemill.client.connection import Connection
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout, code_of
from tidemill.client.offsets import by_leader
from tidemill.model.errors import RETRIABLE, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest


class AdminBase:
    """The cluster as an administrator reaches it. Timeouts are in seconds."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        self.config = config_of(COMMON, bootstrap_servers, config, keywords)
        self._cluster = Cluster(self.config)
        self._timeout = self.config.seconds("default.api.timeout.ms")

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._timeout if timeout is None else timeout)

    def _controller(self, deadline: float, ask: Callable[[Connection], Any]) -> Any:
        """Calls ``ask`` with the controller's connection, again while that moves and there is time."""
        while True:
            try:
                if self._cluster.controller_id < 0 or self._cluster.needs_refresh():
                    self._cluster.refresh(deadline)
                controller = self._cluster.controller_id
                connection = (
                    self._cluster.connection(controller, CONTROL, deadline)
                    if controller >= 0
                    else self._cluster.any_connection(deadline)
                )
                return ask(connection)
            except ClientError as problem:
                moved = problem.code == ErrorCode.NOT_CONTROLLER or isinstance(
                    problem, BrokerUnreachable | RequestTimeout
                )
                pause = self.config.seconds("retry.backoff.ms")
                if not moved or time.monotonic() + pause >= deadline:
                    raise
                self._cluster.request_refresh()
                time.sleep(pause)

    def _ask_leaders(
        self,
        items: Iterable[TopicPartition],
        key: ApiKey,
        build: Callable[[list[TopicPartition]], Any],
        deadline: float,
    ) -> list[tuple[str, TopicPartition, Any]]:
        """Asks every leader for its partitions: broker, partition and what it says of each.

        Leaders that moved, are away or cannot answer just now are asked again while there is time.
        """
        entries: list[tuple[str, TopicPartition, Any]] = []
        left = list(items)
        while True:
            refused: list[tuple[str, TopicPartition, Any]] = []
            silent: ClientError | None = None
            again: list[TopicPartition] = []
            for node_id, part in by_leader(self._cluster, left, deadline, "use").items():
                try:
                    answered = self._ask_leader(node_id, part, key, build, deadline)
                except (BrokerUnreachable, RequestTimeout) as problem:
                    silent = problem
                    again += part
                    continue
                for entry in answered:
                    is_refused = code_of(entry[2].error_code) in RETRIABLE
                    (refused if is_refused else entries).append(entry)
            again += [item for _, item, _ in refused]
            pause = self.config.seconds("retry.backoff.ms")
            if not again or time.monotonic() + pause >= deadline:
                if silent is not None:
                    raise silent
                return entries + refused
            left = again
            time.sleep(pause)
            self._cluster.refresh(deadline)

    def _living_brokers(self, deadline: float) -> list[int]:
        """The ids of the brokers that live, lowest first, and their addresses in the cluster's metadata.

        Metadata lists brokers that have just died, too; DescribeCluster does not.
        """
        self._cluster.refresh(deadline)
        known = self._cluster.nodes
        if self._cluster.any_connection(deadline).supports(ApiKey.DESCRIBE_CLUSTER):
            answer = self._cluster.call_any(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), deadline)
            if not answer.error_code:
                return sorted(one.broker_id for one in answer.brokers if one.broker_id in known)
        return sorted(known)

    def _ask_leader(
        self,
        node_id: int,
        part: list[TopicPartition],
        key: ApiKey,
        build: Callable[[list[TopicPartition]], Any],
        deadline: float,
    ) -> list[tuple[str, TopicPartition, Any]]:
        if node_id < 0:
            raise BrokerUnreachable(
                f"no leader for {', '.join(map(str, part))}", ErrorCode.LEADER_NOT_AVAILABLE
            )
        connection = self._cluster.connection(node_id, CONTROL, deadline)
        answer = connection.call(key, build(part), timeout=grace(deadline))
        return [
            (connection.address, TopicPartition(topic.name, entry.partition_index), entry)
            for topic in answer.topics
            for entry in topic.partitions
        ]


def left_ms(deadline: float) -> int:
    """What is left until ``deadline``, for a request that tells the broker how long it may take."""
    return max(1, min(int((deadline - time.monotonic()) * 1000), 2**31 - 1))


def grace(deadline: float) -> float:
    """How long to wait for an answer that the broker may take until ``deadline`` for."""
    return max(1.0, deadline - time.monotonic() + 1.0)
