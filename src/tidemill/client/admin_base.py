"""What the parts of the admin client share: the cluster, deadlines, and whom to ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tidemill.client.cluster import CONTROL, Cluster
from tidemill.client.config import COMMON, config_of
from tidemill.client.connection import Connection
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout
from tidemill.client.offsets import by_leader
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey


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
        """Asks every leader for its partitions: broker, partition and what it says of each."""
        entries: list[tuple[str, TopicPartition, Any]] = []
        for node_id, part in by_leader(self._cluster, items, deadline, "use").items():
            connection = self._cluster.connection(node_id, CONTROL, deadline)
            answer = connection.call(key, build(part), timeout=grace(deadline))
            entries += [
                (connection.address, TopicPartition(topic.name, entry.partition_index), entry)
                for topic in answer.topics
                for entry in topic.partitions
            ]
        return entries


def left_ms(deadline: float) -> int:
    """What is left until ``deadline``, for a request that tells the broker how long it may take."""
    return max(1, min(int((deadline - time.monotonic()) * 1000), 2**31 - 1))


def grace(deadline: float) -> float:
    """How long to wait for an answer that the broker may take until ``deadline`` for."""
    return max(1.0, deadline - time.monotonic() + 1.0)
