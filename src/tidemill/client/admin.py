"""The admin client: topics, configuration, groups, the cluster.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("topic", partitions=6, configs={"retention.ms": "-1"})
        print(admin.describe_topic("topic"))

Every call waits for its outcome and raises ClientError where it failed. Timeouts are in seconds,
``default.api.timeout.ms`` unless told. An admin may be used by several threads.

The calls are in :mod:`tidemill.client.admin_topics`, :mod:`tidemill.client.admin_configs`,
:mod:`tidemill.client.admin_groups` and :mod:`tidemill.client.admin_moves`; here are those for the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from tidemill.client.admin_base import grace
from tidemill.client.admin_configs import ConfigAdmin
from tidemill.client.admin_groups import GroupAdmin
from tidemill.client.admin_moves import MoveAdmin
from tidemill.client.admin_topics import HIGH_WATERMARK, TopicAdmin
from tidemill.client.admin_types import BrokerDescription, ClusterDescription, LogDirectory, ReplicaSize
from tidemill.client.cluster import CONTROL
from tidemill.client.errors import BrokerUnreachable, RequestTimeout, check, code_of
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_log_dirs
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest


class Admin(TopicAdmin, ConfigAdmin, GroupAdmin, MoveAdmin):
    """Administrates a cluster. Configuration as for the other clients (:mod:`tidemill.client.config`)."""

    def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        """The cluster's id, controller and brokers."""
        deadline = self._deadline(timeout)
        connection = self._cluster.any_connection(deadline)
        if connection.supports(ApiKey.DESCRIBE_CLUSTER):
            answer = self._cluster.call_any(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), deadline)
            check(
                answer.error_code,
                "describe the cluster",
                detail=answer.error_message,
                broker=connection.address,
            )
            brokers = [BrokerDescription(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers]
            return ClusterDescription(answer.cluster_id, answer.controller_id, sorted(brokers))
        self._cluster.refresh(deadline)
        brokers = [BrokerDescription(n.node_id, n.host, n.port, n.rack) for n in self._cluster.nodes.values()]
        return ClusterDescription(self._cluster.cluster_id, self._cluster.controller_id, sorted(brokers))

    def silent_stores(self, timeout: float | None = None) -> dict[int, float]:
        """The brokers whose coordination store (ZooKeeper) does not answer, and for how many seconds.

        Every broker is asked, for each has a connection to the store of its own. Brokers that do not answer
        themselves, and those of Apache Kafka, which do not say it, are left out.
        """
        deadline = self._deadline(timeout)
        self._cluster.refresh(deadline)
        found: dict[int, float] = {}
        for broker_id in sorted(self._cluster.nodes):
            try:
                connection = self._cluster.connection(broker_id, CONTROL, deadline)
                if not connection.supports(ApiKey.DESCRIBE_CLUSTER):
                    continue
                # One broker that stands still must not take the time of all others.
                patience = min(grace(deadline), self.config.seconds("request.timeout.ms"))
                answer = connection.call(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout=patience)
            except (BrokerUnreachable, RequestTimeout):
                continue
            if answer.store_silent_ms > 0:
                found[broker_id] = answer.store_silent_ms / 1000
        return found

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, timeout: float | None = None
    ) -> dict[int, list[LogDirectory]]:
        """The log directories of brokers (all, unless told), with the size of every replica in them."""
        deadline = self._deadline(timeout)
        if brokers is None:
            brokers = self._living_brokers(deadline)
        else:
            self._cluster.refresh(deadline)
        result: dict[int, list[LogDirectory]] = {}
        for broker_id in brokers:
            connection = self._cluster.connection(broker_id, CONTROL, deadline)
            request = describe_log_dirs.DescribeLogDirsRequest(topics=None)
            answer = connection.call(ApiKey.DESCRIBE_LOG_DIRS, request, timeout=grace(deadline))
            what = f"describe the directories of broker {broker_id}"
            check(answer.error_code, what, broker=connection.address)
            result[broker_id] = [_log_directory(found) for found in answer.results]
        return result

    # -- ending -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _log_directory(found: Any) -> LogDirectory:
    return LogDirectory(
        found.log_dir,
        code_of(found.error_code).name if found.error_code else None,
        found.total_bytes,
        found.usable_bytes,
        [
            ReplicaSize(topic.name, p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
            for topic in found.topics
            for p in topic.partitions
        ],
    )


__all__ = ["HIGH_WATERMARK", "Admin"]
