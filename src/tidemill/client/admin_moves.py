"""The admin client's part for where replicas are and who leads: moves between brokers, and elections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.client.admin_base import AdminBase, grace, left_ms
from tidemill.client.admin_types import PartitionMove
from tidemill.client.cluster import CONTROL
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, check, error_for
from tidemill.client.group_protocol import by_topic
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    elect_leaders,
    list_partition_reassignments,
    unregister_broker,
)

PREFERRED, UNCLEAN = 0, 1
"""Types of elections: of the preferred replica; of any that lives, where nobody leads."""


class MoveAdmin(AdminBase):
    """Moves of partitions between brokers, and elections of leaders."""

    def alter_reassignments(
        self, wishes: Mapping[TopicPartition, Sequence[int] | None], timeout: float | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Begins moves, or stops them; None for each that was begun or stopped, or the error (KIP-455).

        ``wishes`` are the broker ids that each partition is to have, the preferred leader first; None stops
        the move that is under way, and reverts it. More or fewer ids than before change the replication
        factor. The moves go on after the call: :meth:`list_reassignments`.
        """
        deadline = self._deadline(timeout)
        topics = [
            alter_partition_reassignments.ReassignableTopic(
                name=name,
                partitions=[
                    alter_partition_reassignments.ReassignablePartition(
                        partition_index=number, replicas=_listed(wishes[TopicPartition(name, number)])
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(wishes).items()
        ]

        def ask(connection: Connection) -> dict[TopicPartition, ClientError | None]:
            request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                timeout_ms=left_ms(deadline), topics=topics
            )
            answer = connection.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, timeout=grace(deadline))
            check(
                answer.error_code, "move partitions", detail=answer.error_message, broker=connection.address
            )
            results = (
                (item.name, one.partition_index, one) for item in answer.responses for one in item.partitions
            )
            return _outcomes(results, "move", connection)

        found: dict[TopicPartition, ClientError | None] = self._controller(deadline, ask)
        return found

    def alter_replica_log_dirs(
        self, broker_id: int, directories: Mapping[TopicPartition, str], timeout: float | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Begins moves between the directories of one broker (KIP-113); None for each, or the error.

        ``directories`` are the absolute paths where its replicas are to lie. REPLICA_NOT_AVAILABLE for one
        that it does not have yet, and will make there. :meth:`describe_log_dirs` shows how far they are.
        """
        deadline = self._deadline(timeout)
        if broker_id not in self._cluster.nodes:
            self._cluster.refresh(deadline)
        connection = self._cluster.connection(broker_id, CONTROL, deadline)
        by_path: dict[str, list[TopicPartition]] = {}
        for item, path in directories.items():
            by_path.setdefault(path, []).append(item)
        request = alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            dirs=[
                alter_replica_log_dirs.AlterReplicaLogDir(
                    path=path,
                    topics=[
                        alter_replica_log_dirs.AlterReplicaLogDirTopic(name=name, partitions=numbers)
                        for name, numbers in by_topic(items).items()
                    ],
                )
                for path, items in by_path.items()
            ]
        )
        answer = connection.call(ApiKey.ALTER_REPLICA_LOG_DIRS, request, timeout=grace(deadline))
        results = (
            (item.topic_name, one.partition_index, one) for item in answer.results for one in item.partitions
        )
        return _outcomes(results, f"move the replica of broker {broker_id} of", connection)

    def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionMove]:
        """The moves that are under way, of ``partitions`` or of all; what does not move is not in it."""
        deadline = self._deadline(timeout)
        wanted = None
        if partitions is not None:
            wanted = [
                list_partition_reassignments.ListPartitionReassignmentsTopics(
                    name=name, partition_indexes=numbers
                )
                for name, numbers in by_topic(partitions).items()
            ]

        def ask(connection: Connection) -> dict[TopicPartition, PartitionMove]:
            request = list_partition_reassignments.ListPartitionReassignmentsRequest(
                timeout_ms=left_ms(deadline), topics=wanted
            )
            answer = connection.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, request, timeout=grace(deadline))
            check(
                answer.error_code,
                "list the moves of partitions",
                detail=answer.error_message,
                broker=connection.address,
            )
            return {
                TopicPartition(topic.name, one.partition_index): PartitionMove(
                    list(one.replicas), list(one.adding_replicas), list(one.removing_replicas)
                )
                for topic in answer.topics
                for one in topic.partitions
            }

        found: dict[TopicPartition, PartitionMove] = self._controller(deadline, ask)
        return found

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, ClientError | None]:
        """Has preferred replicas lead again; None for each that was elected, or the error (KIP-183, KIP-460).

        Without ``partitions`` all are looked at, and only those are in the result that needed it. Where the
        leader is the right one already, the error is ELECTION_NOT_NEEDED. ``unclean`` elects any replica
        that lives where nobody leads, and loses what that one does not have.
        """
        deadline = self._deadline(timeout)
        wanted = None
        if partitions is not None:
            wanted = [
                elect_leaders.TopicPartitions(topic=name, partitions=numbers)
                for name, numbers in by_topic(partitions).items()
            ]

        def ask(connection: Connection) -> dict[TopicPartition, ClientError | None]:
            version = connection.version(ApiKey.ELECT_LEADERS)
            what = "elect leaders"
            if unclean and version < 1:
                raise error_for(
                    ErrorCode.UNSUPPORTED_VERSION, "elect out-of-sync leaders", broker=connection.address
                )
            request = elect_leaders.ElectLeadersRequest(
                election_type=UNCLEAN if unclean else PREFERRED,
                topic_partitions=wanted,
                timeout_ms=left_ms(deadline),
            )
            answer = connection.call(ApiKey.ELECT_LEADERS, request, version=version, timeout=grace(deadline))
            check(answer.error_code, what, broker=connection.address)
            items = answer.replica_election_results
            results = ((item.topic, one.partition_id, one) for item in items for one in item.partition_result)
            return _outcomes(results, "elect a leader of", connection)

        found: dict[TopicPartition, ClientError | None] = self._controller(deadline, ask)
        return found

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Has the cluster wait no more for a dead broker that does not return: topic deletions go on."""
        deadline = self._deadline(timeout)

        def ask(connection: Connection) -> None:
            version = connection.version(ApiKey.UNREGISTER_BROKER)
            request = unregister_broker.UnregisterBrokerRequest(broker_id=broker_id)
            answer = connection.call(
                ApiKey.UNREGISTER_BROKER, request, version=version, timeout=grace(deadline)
            )
            check(
                answer.error_code,
                f"unregister broker {broker_id}",
                detail=answer.error_message,
                broker=connection.address,
            )

        self._controller(deadline, ask)


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _outcomes(
    results: Iterable[tuple[str, int, Any]], what: str, connection: Connection
) -> dict[TopicPartition, ClientError | None]:
    """None or the error of each partition. Raises the error when it is that the controller moved."""
    found: dict[TopicPartition, ClientError | None] = {}
    for topic, number, result in results:
        item = TopicPartition(topic, number)
        if not result.error_code:
            found[item] = None
            continue
        problem = error_for(
            result.error_code,
            f"{what} {item}",
            detail=getattr(result, "error_message", None),
            broker=connection.address,
            topic=topic,
            partition=number,
        )
        if problem.code == ErrorCode.NOT_CONTROLLER:
            raise problem
        found[item] = problem
    return found
