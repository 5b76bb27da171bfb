"""The admin client: topics, configuration, groups, the cluster.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("topic", partitions=6, configs={"retention.ms": "-1"})
        print(admin.describe_topic("topic"))

Every call waits for its outcome, and raises ClientError when it fails. Timeouts are in seconds;
``default.api.timeout.ms`` is the default. Several threads may share an admin client.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from tidemill.client.admin_connections import AdminConnections, remaining_ms, response_timeout
from tidemill.client.admin_types import (
    SOURCES,
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSynonym,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    GroupMember,
    LogDirectory,
    NewTopic,
    OpenTransaction,
    PartitionDescription,
    PartitionLag,
    PartitionReassignment,
    ProducerEntry,
    ReplicaSize,
    ResourceType,
    TopicDescription,
    TopicListing,
    TransactionDescription,
    TransactionListing,
)
from tidemill.client.cluster_metadata import Topic
from tidemill.client.config import config_of
from tidemill.client.config_keys import COMMON
from tidemill.client.connection import Connection
from tidemill.client.consumer_protocol import decode_assignment
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout, check, error_for
from tidemill.client.group_commits import commit_offsets, offsets_to_commit
from tidemill.client.group_offsets import OffsetAndMetadata, fetch_offsets
from tidemill.client.group_requests import (
    CONSUMER_PROTOCOL,
    COORDINATOR_MOVED,
    call_coordinator,
    leave_group,
)
from tidemill.client.network_client import CONTROL, TRANSACTION
from tidemill.client.offsets import (
    OffsetAndTimestamp,
    OffsetsAndFailures,
    list_offsets,
    list_offsets_or_failures,
)
from tidemill.client.offsets_of_groups import (
    OffsetsOfGroups,
    commit_offsets_of_groups,
    fetch_offsets_of_groups,
)
from tidemill.client.transaction_manager import (
    CONCURRENT_BACKOFF_S,
    END_VERSION_MAX,
    IMPLICIT_VERSION,
    PreparedTransaction,
    TransactionManager,
)
from tidemill.client.wait_reasons import Wait
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.mirror_state import MIRROR_STATE, is_mirror
from tidemill.model.transaction_types import TRANSACTION_VERSION
from tidemill.model.types import TopicPartition, by_topic
from tidemill.wire.apis import ApiKey
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST, MAX_TIMESTAMP
from tidemill.wire.messages import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    unregister_broker,
)
from tidemill.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidemill.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidemill.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidemill.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tidemill.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidemill.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidemill.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

FENCE_TIMEOUT_MS = 60_000
"""The transaction timeout in the request that fences a producer. No transaction begins with it."""
HIGH_WATERMARK = -1
"""For :meth:`Admin.delete_records`: all records below the high watermark."""

OFFSET_SPECS = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DEAD = "Dead"
PREFERRED, UNCLEAN = 0, 1
"""Types of elections: of the preferred replica, and of any live replica of a leaderless partition."""


class Admin:
    """Administrates a cluster. Configuration as for the other clients (:mod:`tidemill.client.config`)."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        self.config = config_of(COMMON, bootstrap_servers, config, keywords)
        self._connections = AdminConnections(self.config)
        self._network_client = self._connections.network_client

    # -- topics, their records and offsets ----------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> CreatedTopic:
        """Creates a topic and waits until its partitions have leaders. -1 selects the broker's default."""
        topic = NewTopic(
            name,
            partitions,
            replication_factor,
            dict(configs or {}),
            {p: list(replicas) for p, replicas in (assignments or {}).items()},
        )
        result = self.create_topics([topic], validate_only=validate_only, timeout=timeout)[name]
        if isinstance(result, ClientError):
            raise result
        return result

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> dict[str, CreatedTopic | ClientError]:
        """Creates topics, and waits until their partitions have leaders, or for ``timeout``.

        Returns the created topic or the error of each. ``validate_only`` only checks the requests. The
        client forgets the metadata of the created topics.
        """
        deadline = self._connections.deadline(timeout)
        wanted = [_creatable(topic) for topic in topics]

        def send(connection: Connection) -> dict[str, CreatedTopic | ClientError]:
            request = create_topics.CreateTopicsRequest(
                topics=wanted, timeout_ms=remaining_ms(deadline), validate_only=validate_only
            )
            response = connection.call(
                ApiKey.CREATE_TOPICS,
                request,
                create_topics.CreateTopicsResponse,
                timeout=response_timeout(deadline),
            )
            result: dict[str, CreatedTopic | ClientError] = {}
            for item in response.topics:
                if item.error_code:
                    result[item.name] = _refused(item, "create", connection)
                    continue
                configs = {entry.name: entry.value for entry in item.configs or ()}
                result[item.name] = CreatedTopic(
                    item.name, item.topic_id, item.num_partitions, item.replication_factor, configs
                )
            return result

        found = self._connections.call_controller(deadline, send)
        if not validate_only:
            for name, outcome in found.items():
                if isinstance(outcome, CreatedTopic):
                    self._await_leaders(name, deadline)
                    # The topic leaves the metadata, so that the next refresh does not read all topics created
                    # before.
                    self._network_client.remove_topic(name)
        return found

    def _await_leaders(self, name: str, deadline: float) -> None:
        """Returns once the metadata has leaders for all partitions of the topic, or at ``deadline``."""
        pause = 0.01
        while time.monotonic() < deadline:
            self._network_client.refresh(deadline, [name])
            known = self._network_client.topics.get(name)
            if known is not None and known.partitions and all(p.leader >= 0 for p in known.partitions):
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.2)

    def delete_topic(self, name: str, timeout: float | None = None) -> None:
        """Deletes a topic and its records."""
        problem = self.delete_topics([name], timeout)[name]
        if problem is not None:
            raise problem

    def delete_topics(
        self, names: Iterable[str], timeout: float | None = None
    ) -> dict[str, ClientError | None]:
        """Deletes topics; returns None or the error of each."""
        deadline = self._connections.deadline(timeout)
        wanted = list(names)

        def send(connection: Connection) -> dict[str, ClientError | None]:
            version = connection.version(ApiKey.DELETE_TOPICS)
            request = delete_topics.DeleteTopicsRequest(timeout_ms=remaining_ms(deadline))
            if version >= 6:
                request.topics = [delete_topics.DeleteTopicState(name=name) for name in wanted]
            else:
                request.topic_names = wanted
            response = connection.call(
                ApiKey.DELETE_TOPICS,
                request,
                delete_topics.DeleteTopicsResponse,
                version=version,
                timeout=response_timeout(deadline),
            )
            result: dict[str, ClientError | None] = {}
            for item in response.responses:
                result[item.name or ""] = _refused(item, "delete", connection) if item.error_code else None
            return result

        found = self._connections.call_controller(deadline, send)
        for name in wanted:
            self._network_client.remove_topic(name)
        return found

    def list_topics(
        self, *, include_internal: bool = False, timeout: float | None = None
    ) -> list[TopicListing]:
        """Returns all topics, sorted by name."""
        self._network_client.refresh(self._connections.deadline(timeout), every=True)
        return [
            TopicListing(
                topic.name,
                topic.topic_id,
                len(topic.partitions),
                max((len(p.replicas) for p in topic.partitions), default=0),
                topic.internal,
            )
            for topic in sorted(self._network_client.topics.values(), key=lambda topic: topic.name)
            if include_internal or not topic.internal
        ]

    def describe_topic(self, name: str, timeout: float | None = None) -> TopicDescription:
        """Describes the partitions of a topic. Raises ClientError UNKNOWN_TOPIC_OR_PARTITION if it does not
        exist.
        """
        return self.describe_topics([name], timeout)[name]

    def describe_topics(
        self, names: Iterable[str], timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        """Describes the partitions of topics. Raises ClientError for the first topic that does not exist."""
        deadline = self._connections.deadline(timeout)
        wanted = list(names)
        self._network_client.refresh(deadline, wanted)
        return {name: _topic_description(self._network_client.topic(name, deadline)) for name in wanted}

    def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Raises the number of partitions to ``total``, and waits until all have leaders, or for ``timeout``.

        ``assignments`` has the replicas of the new partitions. ``validate_only`` only checks the request.
        """
        deadline = self._connections.deadline(timeout)
        replicas = (
            None
            if assignments is None
            else [create_partitions.CreatePartitionsAssignment(broker_ids=list(ids)) for ids in assignments]
        )
        item = create_partitions.CreatePartitionsTopic(name=topic, count=total, assignments=replicas)

        def send(connection: Connection) -> None:
            request = create_partitions.CreatePartitionsRequest(
                topics=[item], timeout_ms=remaining_ms(deadline), validate_only=validate_only
            )
            response = connection.call(
                ApiKey.CREATE_PARTITIONS,
                request,
                create_partitions.CreatePartitionsResponse,
                timeout=response_timeout(deadline),
            )
            for result in response.results:
                check(
                    result.error_code,
                    f"raise topic {topic!r} to {total} partitions",
                    detail=result.error_message,
                    broker=connection.address,
                    topic=topic,
                )

        self._connections.call_controller(deadline, send)
        while not validate_only and time.monotonic() < deadline:
            self._await_leaders(topic, deadline)
            known = self._network_client.topics.get(topic)
            if known is None or len(known.partitions) >= total:
                return
            time.sleep(0.05)

    # -- records and offsets ------------------------------------------------------------------------------

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records before each offset (HIGH_WATERMARK: all); returns the new log start offsets."""
        wanted = {TopicPartition(*item): offset for item, offset in before.items()}
        deadline = self._connections.deadline(timeout)

        def send(
            connection: Connection, items: list[TopicPartition]
        ) -> dict[TopicPartition, delete_records.DeleteRecordsPartitionResult]:
            request = delete_records.DeleteRecordsRequest(
                topics=[
                    delete_records.DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            delete_records.DeleteRecordsPartition(
                                partition_index=p, offset=wanted[TopicPartition(topic, p)]
                            )
                            for p in numbers
                        ],
                    )
                    for topic, numbers in by_topic(items).items()
                ],
                timeout_ms=remaining_ms(deadline),
            )
            response = connection.call(
                ApiKey.DELETE_RECORDS,
                request,
                delete_records.DeleteRecordsResponse,
                timeout=response_timeout(deadline),
            )
            return {
                TopicPartition(topic.name, entry.partition_index): entry
                for topic in response.topics
                for entry in topic.partitions
            }

        result: dict[TopicPartition, int] = {}
        for broker, item, entry in self._connections.call_leaders(wanted, send, deadline):
            check(
                entry.error_code,
                f"delete records of {item} before {wanted[item]}",
                broker=broker,
                topic=item.topic,
                partition=item.partition,
            )
            result[item] = entry.low_watermark
        return result

    def list_offsets(
        self,
        offset_specs: Mapping[TopicPartition, int | str],
        *,
        committed_only: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Returns the offsets at ``earliest``, ``latest``, ``max-timestamp`` or a time in ms, by partition.

        Raises the error of the first partition that fails.
        """
        deadline = self._connections.deadline(timeout)
        return list_offsets(
            self._network_client, _times(offset_specs), deadline, committed_only=committed_only
        )

    def list_offsets_or_failures(
        self,
        offset_specs: Mapping[TopicPartition, int | str],
        *,
        committed_only: bool = False,
        timeout: float | None = None,
    ) -> OffsetsAndFailures:
        """As :meth:`list_offsets`, but returns the errors of the partitions that fail."""
        deadline = self._connections.deadline(timeout)
        return list_offsets_or_failures(
            self._network_client, _times(offset_specs), deadline, committed_only=committed_only
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, list[ProducerEntry]]:
        """Returns the active idempotent producers of each partition, from its leader."""

        def send(
            connection: Connection, items: list[TopicPartition]
        ) -> dict[TopicPartition, describe_producers.PartitionResponse]:
            request = describe_producers.DescribeProducersRequest(
                topics=[
                    describe_producers.TopicRequest(name=topic, partition_indexes=numbers)
                    for topic, numbers in by_topic(items).items()
                ]
            )
            response = connection.call(
                ApiKey.DESCRIBE_PRODUCERS,
                request,
                describe_producers.DescribeProducersResponse,
                timeout=response_timeout(deadline),
            )
            return {
                TopicPartition(topic.name, entry.partition_index): entry
                for topic in response.topics
                for entry in topic.partitions
            }

        wanted = [TopicPartition(*item) for item in partitions]
        deadline = self._connections.deadline(timeout)
        result: dict[TopicPartition, list[ProducerEntry]] = {}
        for broker, item, entry in self._connections.call_leaders(wanted, send, deadline):
            check(
                entry.error_code,
                f"describe the producers of {item}",
                detail=entry.error_message,
                broker=broker,
            )
            result[item] = [
                ProducerEntry(
                    p.producer_id,
                    p.producer_epoch,
                    p.last_sequence,
                    p.last_timestamp,
                    p.coordinator_epoch,
                    p.current_txn_start_offset,
                )
                for p in entry.active_producers
            ]
        return result

    # -- transactions -------------------------------------------------------------------------------------

    def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        running_for_ms: int = -1,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all brokers, filtered by states, producer ids, duration and name.

        ``pattern``: a regular expression of RE2 for the whole name. Raises ClientError UNSUPPORTED_VERSION if
        a broker does not know a filter.
        """
        deadline = self._connections.deadline(timeout)
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=running_for_ms,
            transactional_id_pattern=pattern,
        )
        found: dict[str, TransactionListing] = {}
        for node_id in self._connections.live_brokers(deadline):
            connection = self._network_client.connection(node_id, CONTROL, deadline)
            response = connection.call(ApiKey.LIST_TRANSACTIONS, request, ListTransactionsResponse)
            check(response.error_code, "list transactions", broker=connection.address)
            for one in response.transaction_states:
                found[one.transactional_id] = TransactionListing(
                    one.transactional_id, one.producer_id, one.transaction_state, node_id
                )
        return [found[name] for name in sorted(found)]

    def describe_transaction(
        self, transactional_id: str, timeout: float | None = None
    ) -> TransactionDescription:
        """Describes a transactional id. Raises ClientError TRANSACTIONAL_ID_NOT_FOUND without one."""

        def send(connection: Connection) -> TransactionDescription:
            found = connection.only_result(
                ApiKey.DESCRIBE_TRANSACTIONS,
                connection.call(
                    ApiKey.DESCRIBE_TRANSACTIONS,
                    DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                    DescribeTransactionsResponse,
                ).transaction_states,
            )
            check(found.error_code, f"describe transaction {transactional_id!r}", broker=connection.address)
            return TransactionDescription(
                transactional_id,
                found.producer_id,
                found.producer_epoch,
                found.transaction_state,
                found.transaction_timeout_ms,
                found.transaction_start_time_ms,
                [TopicPartition(one.topic, index) for one in found.topics for index in one.partitions],
                connection.node_id,
            )

        return call_coordinator(
            self._network_client,
            transactional_id,
            self._connections.deadline(timeout),
            send,
            TRANSACTION,
        )

    def open_transactions(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[OpenTransaction]:
        """Returns the transactions that are open in the partitions, by their leaders."""
        return [
            OpenTransaction(
                partition,
                one.producer_id,
                one.producer_epoch,
                one.coordinator_epoch,
                one.transaction_start_offset,
                one.last_timestamp_ms,
            )
            for partition, producers in self.describe_producers(partitions, timeout).items()
            for one in producers
            if one.transaction_start_offset >= 0
        ]

    def find_hanging_transactions(
        self,
        partitions: Iterable[TopicPartition],
        *,
        idle_for_ms: int = 900_000,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """Returns the open transactions that no coordinator will end: consumers of committed records wait.

        Their last record is older than ``idle_for_ms``, by default ``transaction.max.timeout.ms``.
        """
        before_ms = int(time.time() * 1000) - idle_for_ms
        candidates = [
            one for one in self.open_transactions(partitions, timeout) if one.last_timestamp_ms <= before_ms
        ]
        return self.hanging_among(candidates, timeout)

    def hanging_among(
        self, candidates: Sequence[OpenTransaction], timeout: float | None = None
    ) -> list[OpenTransaction]:
        """Returns those open transactions that no coordinator knows: none will end them.

        Those in mirrors are not among them: they have ended, or will end, at the source of the mirror.
        """
        mirrors = {
            topic
            for topic in sorted({one.partition.topic for one in candidates})
            if self.is_mirror(topic, timeout)
        }
        candidates = [one for one in candidates if one.partition.topic not in mirrors]
        if not candidates:
            return []
        producer_ids = sorted({one.producer_id for one in candidates})
        names = {
            one.producer_id: one.transactional_id
            for one in self.list_transactions(producer_ids=producer_ids, timeout=timeout)
        }
        known = {
            producer_id: set(self.describe_transaction(name, timeout).partitions)
            for producer_id, name in names.items()
        }
        return [one for one in candidates if one.partition not in known.get(one.producer_id, ())]

    def is_mirror(self, topic: str, timeout: float | None = None) -> bool:
        """Whether a topic is a mirror with the offsets of its source, also while it is promoted."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self.describe_configs(resource, [MIRROR_STATE], timeout=timeout)
        return is_mirror({name: entry.value for name, entry in found.items()})

    def fence_producer(self, transactional_id: str, timeout: float | None = None) -> None:
        """Aborts the transaction of a transactional id, and fences its producer.

        This also ends a two-phase commit, which has no timeout.
        """
        transactions = TransactionManager(self._network_client, transactional_id, FENCE_TIMEOUT_MS)
        transactions.init(self._connections.deadline(timeout))

    def end_transaction(
        self,
        transactional_id: str,
        prepared: PreparedTransaction,
        *,
        is_commit: bool,
        timeout: float | None = None,
    ) -> None:
        """Commits or aborts a transaction that its producer has prepared; repeated, it succeeds again.

        Raises ClientError, without an effect on other transactions: INVALID_TXN_STATE if it has ended the
        other way; INVALID_PRODUCER_EPOCH, PRODUCER_FENCED or INVALID_PRODUCER_ID_MAPPING if it has timed out,
        or a later producer has begun with the id.
        """
        deadline = self._connections.deadline(timeout)
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=prepared.producer_id,
            producer_epoch=prepared.epoch,
            committed=is_commit,
        )
        operation = f"{'commit' if is_commit else 'abort'} the transaction of {transactional_id!r}"

        def send(connection: Connection) -> int:
            version = connection.version(ApiKey.END_TXN)
            if connection.finalized_features.get(TRANSACTION_VERSION, 0) < IMPLICIT_VERSION:
                version = min(version, END_VERSION_MAX)
            code = connection.call(ApiKey.END_TXN, request, EndTxnResponse, version=version).error_code
            if code in COORDINATOR_MOVED:
                check(code, operation, broker=connection.address)
            return code

        while True:
            code = call_coordinator(self._network_client, transactional_id, deadline, send, TRANSACTION)
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                check(code, operation)
                return
            # The transaction is being ended.
            if time.monotonic() >= deadline:
                raise RequestTimeout(f"{error_for(code, operation)}; no success within the timeout")
            self._network_client.pause(CONCURRENT_BACKOFF_S)

    def abort_open_transaction(self, transaction: OpenTransaction, timeout: float | None = None) -> None:
        """Writes an abort marker for a hanging transaction into its partition.

        This is not for a transaction that its coordinator may still end: its other partitions could be
        committed.
        """
        partition = transaction.partition

        def send(
            connection: Connection, items: list[TopicPartition]
        ) -> dict[TopicPartition, WritableTxnMarkerPartitionResult]:
            response = connection.call(
                ApiKey.WRITE_TXN_MARKERS,
                WriteTxnMarkersRequest(
                    markers=[
                        WritableTxnMarker(
                            producer_id=transaction.producer_id,
                            producer_epoch=transaction.producer_epoch,
                            transaction_result=False,
                            topics=[
                                WritableTxnMarkerTopic(
                                    name=partition.topic, partition_indexes=[partition.partition]
                                )
                            ],
                            coordinator_epoch=max(0, transaction.coordinator_epoch),
                        )
                    ]
                ),
                WriteTxnMarkersResponse,
                timeout=response_timeout(deadline),
            )
            return {
                TopicPartition(topic.name, one.partition_index): one
                for marker in response.markers
                for topic in marker.topics
                for one in topic.partitions
            }

        deadline = self._connections.deadline(timeout)
        for broker, item, result in self._connections.call_leaders([partition], send, deadline):
            check(result.error_code, f"abort the transaction in {item}", broker=broker)

    # -- settings -----------------------------------------------------------------------------------------

    def topic_configs(
        self, topic: str, timeout: float | None = None, *, documentation: bool = False
    ) -> dict[str, ConfigEntry]:
        """Returns the configuration of a topic, by key."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.describe_configs(resource, documentation=documentation, timeout=timeout)

    def broker_configs(self, broker_id: int, timeout: float | None = None) -> dict[str, ConfigEntry]:
        """Returns the configuration of a broker, by key."""
        return self.describe_configs(ConfigResource(ResourceType.BROKER, str(broker_id)), timeout=timeout)

    def describe_configs(
        self,
        resource: ConfigResource,
        keys: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        broker: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, ConfigEntry]:
        """Returns the configuration of a resource: all keys, or ``keys``.

        Brokers apply a change at different times: ``broker`` selects the broker that responds.
        """
        found = self.describe_configs_of(
            [resource], keys, documentation=documentation, broker=broker, timeout=timeout
        )
        result = found[resource]
        if isinstance(result, ClientError):
            raise result
        return result

    def describe_configs_of(
        self,
        resources: Sequence[ConfigResource],
        keys: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        broker: int | None = None,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | ClientError]:
        """As :meth:`describe_configs`, for several resources in one request; returns the error of each.

        Named brokers cannot be among several resources: each has its own configuration.
        """
        deadline = self._connections.deadline(timeout)
        if not resources:
            return {}
        connection = (
            self._connection_for(resources[0], deadline)
            if broker is None
            else self._broker_connection(broker, deadline)
        )
        version = connection.version(ApiKey.DESCRIBE_CONFIGS)
        wanted = None if keys is None else list(keys)
        request = describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=int(resource.kind),
                    resource_name=resource.name,
                    configuration_keys=wanted,
                )
                for resource in resources
            ],
            include_synonyms=version >= 1,
            include_documentation=documentation and version >= 3,
        )
        response = connection.call(
            ApiKey.DESCRIBE_CONFIGS,
            request,
            describe_configs.DescribeConfigsResponse,
            version=version,
            timeout=response_timeout(deadline),
        )
        found: dict[ConfigResource, dict[str, ConfigEntry] | ClientError] = {}
        for resource in resources:
            result = connection.only_result(
                ApiKey.DESCRIBE_CONFIGS,
                [one for one in response.results if (one.resource_type, one.resource_name) == resource],
            )
            if result.error_code:
                found[resource] = error_for(
                    result.error_code,
                    f"describe the configuration of {_named(resource)}",
                    detail=result.error_message,
                    broker=connection.address,
                )
            else:
                found[resource] = {entry.name: _config_entry(entry) for entry in result.configs}
        return found

    def alter_configs(
        self,
        resource: ConfigResource,
        set: Mapping[str, str] | None = None,
        *,
        remove: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Changes keys of a resource: sets, removes, appends to or subtracts from lists. Other keys stay."""
        deadline = self._connections.deadline(timeout)
        changes = [(key, SET, value) for key, value in (set or {}).items()]
        changes += [(key, DELETE, "") for key in remove]
        changes += [(key, APPEND, value) for key, value in (append or {}).items()]
        changes += [(key, SUBTRACT, value) for key, value in (subtract or {}).items()]
        entries = [
            incremental_alter_configs.AlterableConfig(
                name=key, config_operation=operation, value=None if operation == DELETE else str(value)
            )
            for key, operation, value in changes
        ]
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=int(resource.kind), resource_name=resource.name, configs=entries
                )
            ],
            validate_only=validate_only,
        )
        connection = self._connection_for(resource, deadline)
        response = connection.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            request,
            incremental_alter_configs.IncrementalAlterConfigsResponse,
            timeout=response_timeout(deadline),
        )
        what = f"change the configuration of {_named(resource)}"
        for result in response.responses:
            check(result.error_code, what, detail=result.error_message, broker=connection.address)

    def _connection_for(self, resource: ConfigResource, deadline: float) -> Connection:
        """Returns a connection to the broker that has the configuration, or to any broker."""
        own = resource.kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name
        if not own:
            return self._network_client.any_connection(deadline)
        if not resource.name.isdigit():
            raise ValueError(f"a broker's name is its id, {resource.name!r} is no number")
        return self._broker_connection(int(resource.name), deadline)

    def _broker_connection(self, broker: int, deadline: float) -> Connection:
        if broker not in self._network_client.nodes:
            self._network_client.refresh(deadline)
        return self._network_client.connection(broker, CONTROL, deadline)

    # -- groups and their offsets -------------------------------------------------------------------------

    def list_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """Returns the groups of all brokers, filtered by ``states`` (Stable ..) and ``types`` (classic,
        consumer).

        Raises ClientError UNSUPPORTED_VERSION if a broker cannot filter: by state before 2.6, by type before
        3.8.
        """
        deadline = self._connections.deadline(timeout)
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        found: dict[str, GroupListing] = {}
        for node_id in self._connections.live_brokers(deadline):
            connection = self._network_client.connection(node_id, CONTROL, deadline)
            # A broker that cannot filter is an error: it would return groups that do not match.
            response = connection.call(ApiKey.LIST_GROUPS, request, ListGroupsResponse)
            if response.error_code not in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                raise error_for(response.error_code, "list groups", broker=connection.address)
            for group in response.groups:
                found[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state, group.group_type, node_id
                )
        return [found[name] for name in sorted(found)]

    def describe_group(self, group: str, timeout: float | None = None) -> GroupDescription:
        """Describes a group, its members and its assignment. Raises ClientError GROUP_ID_NOT_FOUND without a
        group.
        """

        def send(connection: Connection) -> GroupDescription:
            response = connection.only_result(
                ApiKey.DESCRIBE_GROUPS,
                connection.call(
                    ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse
                ).groups,
            )
            gone = response.error_code == ErrorCode.GROUP_ID_NOT_FOUND or response.group_state == DEAD
            if gone and connection.supports(ApiKey.CONSUMER_GROUP_DESCRIBE):
                found = _describe_consumer_group(connection, group)
                if found is not None:
                    return found
            if gone:
                raise error_for(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"describe group {group!r}", broker=connection.address
                )
            check(response.error_code, f"describe group {group!r}", broker=connection.address)
            return _described(response, connection.node_id)

        return call_coordinator(self._network_client, group, self._connections.deadline(timeout), send)

    def delete_group(self, group: str, timeout: float | None = None) -> None:
        """Deletes a group without members, and its offsets."""

        def send(connection: Connection) -> None:
            response = connection.call(
                ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse
            )
            for result in response.results:
                check(result.error_code, f"delete group {group!r}", broker=connection.address)

        call_coordinator(self._network_client, group, self._connections.deadline(timeout), send)

    def remove_member(
        self, group: str, *, member_id: str = "", instance_id: str | None = None, timeout: float | None = None
    ) -> None:
        """Removes a member from its group, by member id or, for a static member, by instance id."""

        def send(connection: Connection) -> None:
            response = leave_group(connection, group, member_id, instance_id, "removed by an administrator")
            what = f"remove {instance_id or member_id!r} from group {group!r}"
            check(response.error_code, what, broker=connection.address)
            for member in response.members:
                check(member.error_code, what, broker=connection.address)

        call_coordinator(self._network_client, group, self._connections.deadline(timeout), send)

    # -- offsets ------------------------------------------------------------------------------------------

    def group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the committed offsets of a group, or of ``partitions``; omits partitions without one."""
        return fetch_offsets(self._network_client, group, partitions, self._connections.deadline(timeout))

    def offsets_of_groups(
        self,
        wanted: Mapping[str, Iterable[TopicPartition] | None],
        timeout: float | None = None,
    ) -> OffsetsOfGroups:
        """As :meth:`group_offsets` of many groups, with few requests.

        Returns the errors of the groups that fail, and does not try again.
        """
        return fetch_offsets_of_groups(self._network_client, wanted, self._connections.deadline(timeout))

    def alter_offsets_of_groups(
        self,
        offsets: Mapping[str, Mapping[TopicPartition, int | OffsetAndMetadata]],
        timeout: float | None = None,
    ) -> dict[str, ClientError]:
        """As :meth:`alter_group_offsets` of many groups; returns the errors of the groups that fail."""
        commits = {group: offsets_to_commit(wanted) for group, wanted in offsets.items() if wanted}
        return commit_offsets_of_groups(self._network_client, commits, self._connections.deadline(timeout))

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        timeout: float | None = None,
    ) -> None:
        """Sets committed offsets of a group without members."""
        wanted = offsets_to_commit(offsets)
        try:
            commit_offsets(self._network_client, group, wanted, self._connections.deadline(timeout))
        except ClientError as problem:
            if problem.code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise error_for(
                    ErrorCode.NON_EMPTY_GROUP, f"set offsets of group {group!r}", broker=problem.broker
                ) from problem
            raise

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> None:
        """Deletes committed offsets of topics to which no member subscribes."""
        grouped = by_topic(TopicPartition(*item) for item in partitions)
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in numbers],
                )
                for topic, numbers in grouped.items()
            ],
        )

        def send(connection: Connection) -> None:
            response = connection.call(ApiKey.OFFSET_DELETE, request, OffsetDeleteResponse)
            check(response.error_code, f"delete offsets of group {group!r}", broker=connection.address)
            for topic in response.topics:
                for entry in topic.partitions:
                    check(
                        entry.error_code,
                        f"delete the offset of group {group!r} in {topic.name}-{entry.partition_index}",
                        broker=connection.address,
                    )

        call_coordinator(self._network_client, group, self._connections.deadline(timeout), send)

    def reset_group_offsets(
        self,
        group: str,
        topics: Sequence[str] | None = None,
        *,
        to: str | int = "earliest",
        timestamp_ms: int | None = None,
        shift_by: int | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, tuple[int | None, int]]:
        """Resets the offsets of a group without members; returns the old offset or None, and the new offset.

        The partitions are those of ``topics``, ``partitions``, or all with a committed offset. The new offset
        is ``to`` (earliest, latest or an offset), the first record at or after ``timestamp_ms`` (otherwise
        the end), or the old offset plus ``shift_by``. It is limited to the range of the log. ``dry_run``
        changes nothing.
        """
        deadline = self._connections.deadline(timeout)
        old = self.group_offsets(group, timeout=timeout)
        items = self._partitions_to_reset(old, topics, partitions, deadline)
        starts = list_offsets(self._network_client, dict.fromkeys(items, EARLIEST), deadline)
        ends = list_offsets(self._network_client, dict.fromkeys(items, LATEST), deadline)
        timed = (
            list_offsets(self._network_client, dict.fromkeys(items, timestamp_ms), deadline)
            if timestamp_ms is not None
            else {}
        )
        plan: dict[TopicPartition, tuple[int | None, int]] = {}
        for item in items:
            before = old[item].offset if item in old else None
            start, end = starts[item].offset, ends[item].offset
            if timestamp_ms is not None:
                target = timed[item].offset if timed[item].offset >= 0 else end
            elif shift_by is not None:
                target = (start if before is None else before) + shift_by
            elif isinstance(to, str):
                if to not in ("earliest", "latest"):
                    raise ValueError(f"reset to {to!r}: use earliest, latest or an offset")
                target = start if to == "earliest" else end
            else:
                target = to
            plan[item] = (before, min(max(target, start), end))
        if not dry_run:
            self.alter_group_offsets(group, {item: new for item, (_, new) in plan.items()}, timeout)
        return plan

    def _partitions_to_reset(
        self,
        old: Mapping[TopicPartition, OffsetAndMetadata],
        topics: Sequence[str] | None,
        partitions: Iterable[TopicPartition] | None,
        deadline: float,
    ) -> list[TopicPartition]:
        items = {TopicPartition(*item) for item in partitions or ()}
        self._network_client.refresh(deadline, topics)
        for name in topics or ():
            known = self._network_client.topic(name, deadline)
            items.update(TopicPartition(name, p.partition) for p in known.partitions)
        if topics is None and partitions is None:
            items.update(old)
        return sorted(items)

    def group_lag(self, group: str, timeout: float | None = None) -> list[PartitionLag]:
        """Returns position and lag of a group in every partition with a committed offset or an assigned
        member.

        Raises ClientError if a leader does not respond in time.
        """
        deadline = self._connections.deadline(timeout)
        committed = self.group_offsets(group, timeout=timeout)
        readers: dict[TopicPartition, GroupMember] = {}
        try:
            description = self.describe_group(group, timeout)
        except ClientError as problem:
            if problem.code != ErrorCode.GROUP_ID_NOT_FOUND or not committed:
                raise
        else:
            readers = {item: member for member in description.members for item in member.partitions}
        self._network_client.refresh(deadline, {item.topic for item in [*committed, *readers]})
        items = [i for i in sorted({*committed, *readers}) if i.topic in self._network_client.topics]
        led = [item for item in items if self._network_client.leader(item.topic, item.partition) >= 0]
        starts = list_offsets(self._network_client, dict.fromkeys(led, EARLIEST), deadline)
        ends = list_offsets(self._network_client, dict.fromkeys(led, LATEST), deadline)
        rows: list[PartitionLag] = []
        for item in items:
            at = committed[item].offset if item in committed else None
            end = ends[item].offset if item in ends else None
            member = readers.get(item)
            rows.append(
                PartitionLag(
                    item.topic,
                    item.partition,
                    at,
                    starts[item].offset if item in starts else None,
                    end,
                    None if at is None or end is None else max(0, end - at),
                    member.member_id if member else "",
                    member.client_id if member else "",
                    member.host if member else "",
                )
            )
        return rows

    # -- reassignments and elections ----------------------------------------------------------------------

    def alter_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None], timeout: float | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Starts or cancels reassignments; returns None or the error of each partition (KIP-455).

        ``reassignments`` has the new broker ids of each partition, the preferred leader first; None cancels
        the reassignment in progress. A different number of ids changes the replication factor. Reassignments
        continue after the call: see :meth:`list_reassignments`.
        """
        deadline = self._connections.deadline(timeout)
        topics = [
            alter_partition_reassignments.ReassignableTopic(
                name=name,
                partitions=[
                    alter_partition_reassignments.ReassignablePartition(
                        partition_index=number, replicas=_listed(reassignments[TopicPartition(name, number)])
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(reassignments).items()
        ]

        def send(connection: Connection) -> dict[TopicPartition, ClientError | None]:
            request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(
                timeout_ms=remaining_ms(deadline), topics=topics
            )
            response = connection.call(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                request,
                alter_partition_reassignments.AlterPartitionReassignmentsResponse,
                timeout=response_timeout(deadline),
            )
            check(
                response.error_code,
                "move partitions",
                detail=response.error_message,
                broker=connection.address,
            )
            results = (
                (item.name, p.partition_index, p.error_code, p.error_message)
                for item in response.responses
                for p in item.partitions
            )
            return _outcomes(results, "move", connection)

        return self._connections.call_controller(deadline, send)

    def alter_replica_log_dirs(
        self, broker_id: int, directories: Mapping[TopicPartition, str], timeout: float | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Moves replicas between directories of one broker (KIP-113); returns None or the error of each.

        ``directories`` has the absolute path of the target directory of each replica. The error is
        REPLICA_NOT_AVAILABLE if the broker has no such replica yet; it will create the replica in that
        directory. :meth:`describe_log_dirs` shows the progress.
        """
        deadline = self._connections.deadline(timeout)
        connection = self._broker_connection(broker_id, deadline)
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
        response = connection.call(
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            request,
            alter_replica_log_dirs.AlterReplicaLogDirsResponse,
            timeout=response_timeout(deadline),
        )
        results = (
            (item.topic_name, p.partition_index, p.error_code, None)
            for item in response.results
            for p in item.partitions
        )
        return _outcomes(results, f"move the replica of broker {broker_id} of", connection)

    def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the reassignments in progress, of ``partitions`` or of all."""
        deadline = self._connections.deadline(timeout)
        wanted = (
            None
            if partitions is None
            else [
                list_partition_reassignments.ListPartitionReassignmentsTopics(
                    name=name, partition_indexes=numbers
                )
                for name, numbers in by_topic(partitions).items()
            ]
        )

        def send(connection: Connection) -> dict[TopicPartition, PartitionReassignment]:
            request = list_partition_reassignments.ListPartitionReassignmentsRequest(
                timeout_ms=remaining_ms(deadline), topics=wanted
            )
            response = connection.call(
                ApiKey.LIST_PARTITION_REASSIGNMENTS,
                request,
                list_partition_reassignments.ListPartitionReassignmentsResponse,
                timeout=response_timeout(deadline),
            )
            check(
                response.error_code,
                "list the moves of partitions",
                detail=response.error_message,
                broker=connection.address,
            )
            return {
                TopicPartition(topic.name, p.partition_index): PartitionReassignment(
                    list(p.replicas), list(p.adding_replicas), list(p.removing_replicas)
                )
                for topic in response.topics
                for p in topic.partitions
            }

        return self._connections.call_controller(deadline, send)

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        unclean: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, ClientError | None]:
        """Elects the preferred replicas as leaders; returns None or the error of each (KIP-183, KIP-460).

        Without ``partitions``, all partitions are checked, and the result has only those that needed an
        election. If the leader is the right one already, the error is ELECTION_NOT_NEEDED. ``unclean`` elects
        any live replica of a partition without a leader; records that this replica lacks are lost.
        """
        deadline = self._connections.deadline(timeout)
        wanted = (
            None
            if partitions is None
            else [
                elect_leaders.TopicPartitions(topic=name, partitions=numbers)
                for name, numbers in by_topic(partitions).items()
            ]
        )

        def send(connection: Connection) -> dict[TopicPartition, ClientError | None]:
            version = connection.version(ApiKey.ELECT_LEADERS)
            if unclean and version < 1:
                raise error_for(
                    ErrorCode.UNSUPPORTED_VERSION, "elect out-of-sync leaders", broker=connection.address
                )
            request = elect_leaders.ElectLeadersRequest(
                election_type=UNCLEAN if unclean else PREFERRED,
                topic_partitions=wanted,
                timeout_ms=remaining_ms(deadline),
            )
            response = connection.call(
                ApiKey.ELECT_LEADERS,
                request,
                elect_leaders.ElectLeadersResponse,
                version=version,
                timeout=response_timeout(deadline),
            )
            check(response.error_code, "elect leaders", broker=connection.address)
            results = (
                (item.topic, p.partition_id, p.error_code, p.error_message)
                for item in response.replica_election_results
                for p in item.partition_result
            )
            return _outcomes(results, "elect a leader of", connection)

        return self._connections.call_controller(deadline, send)

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Removes the registration of a dead broker that does not return: topic deletions continue."""
        deadline = self._connections.deadline(timeout)

        def send(connection: Connection) -> None:
            response = connection.call(
                ApiKey.UNREGISTER_BROKER,
                unregister_broker.UnregisterBrokerRequest(broker_id=broker_id),
                unregister_broker.UnregisterBrokerResponse,
                timeout=response_timeout(deadline),
            )
            check(
                response.error_code,
                f"unregister broker {broker_id}",
                detail=response.error_message,
                broker=connection.address,
            )

        self._connections.call_controller(deadline, send)

    # -- brokers ------------------------------------------------------------------------------------------

    def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        """Returns the cluster id, the controller and the brokers."""
        deadline = self._connections.deadline(timeout)
        connection = self._network_client.any_connection(deadline)
        if connection.supports(ApiKey.DESCRIBE_CLUSTER):
            response = self._network_client.call_any(
                ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), DescribeClusterResponse, deadline
            )
            check(
                response.error_code,
                "describe the cluster",
                detail=response.error_message,
                broker=connection.address,
            )
            brokers = [BrokerDescription(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
            return ClusterDescription(response.cluster_id, response.controller_id, sorted(brokers))
        metadata = self._network_client
        metadata.refresh(deadline)
        brokers = [BrokerDescription(n.node_id, n.host, n.port, n.rack) for n in metadata.nodes.values()]
        return ClusterDescription(metadata.cluster_id, metadata.controller_id, sorted(brokers))

    def brokers_without_store(self, timeout: float | None = None) -> dict[int, float]:
        """Returns the brokers whose coordination store (ZooKeeper) does not respond, and since how many
        seconds.

        Each broker reports its own connection to the store. The result omits brokers that do not respond, and
        brokers of Apache Kafka, which do not report the connection.
        """
        deadline = self._connections.deadline(timeout)
        self._network_client.refresh(deadline)
        found: dict[int, float] = {}
        for broker_id in sorted(self._network_client.nodes):
            try:
                connection = self._network_client.connection(broker_id, CONTROL, deadline)
                if not connection.supports(ApiKey.DESCRIBE_CLUSTER):
                    continue
                # The limit leaves time for the other brokers if one is suspended.
                timeout_seconds = min(response_timeout(deadline), self.config.seconds("request.timeout.ms"))
                response = connection.call(
                    ApiKey.DESCRIBE_CLUSTER,
                    DescribeClusterRequest(),
                    DescribeClusterResponse,
                    timeout=timeout_seconds,
                )
            except (BrokerUnreachable, RequestTimeout):
                continue
            if response.store_silent_ms > 0:
                found[broker_id] = response.store_silent_ms / 1000
        return found

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, timeout: float | None = None
    ) -> dict[int, list[LogDirectory]]:
        """Returns the log directories of all brokers, or of ``brokers``, with the size of every replica."""
        deadline = self._connections.deadline(timeout)
        if brokers is None:
            brokers = self._connections.live_brokers(deadline)
        else:
            self._network_client.refresh(deadline)
        result: dict[int, list[LogDirectory]] = {}
        for broker_id in brokers:
            connection = self._network_client.connection(broker_id, CONTROL, deadline)
            response = connection.call(
                ApiKey.DESCRIBE_LOG_DIRS,
                describe_log_dirs.DescribeLogDirsRequest(topics=None),
                describe_log_dirs.DescribeLogDirsResponse,
                timeout=response_timeout(deadline),
            )
            check(
                response.error_code,
                f"describe the directories of broker {broker_id}",
                broker=connection.address,
            )
            result[broker_id] = [_log_directory(found) for found in response.results]
        return result

    # -- waits and ending ---------------------------------------------------------------------------------

    def waits(self) -> list[Wait]:
        """Returns why the calls of other threads wait: see :mod:`tidemill.client.wait_reasons`."""
        return self._network_client.waits()

    def close(self) -> None:
        """Closes the connections."""
        self._network_client.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _creatable(topic: NewTopic) -> create_topics.CreatableTopic:
    by_hand = topic.assignments or {}
    return create_topics.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if by_hand else topic.partitions,
        replication_factor=-1 if by_hand else topic.replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(partition_index=p, broker_ids=list(ids))
            for p, ids in sorted(by_hand.items())
        ],
        configs=[
            create_topics.CreatableTopicConfig(name=key, value=str(value))
            for key, value in (topic.configs or {}).items()
        ],
    )


def _refused(
    item: create_topics.CreatableTopicResult | delete_topics.DeletableTopicResult,
    operation: str,
    connection: Connection,
) -> ClientError:
    """Builds the error of one topic in a response; raises NOT_CONTROLLER instead."""
    missing = item.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    problem = error_for(
        item.error_code,
        f"{operation} topic {item.name!r}",
        detail=item.error_message,
        broker=connection.address,
        topic=item.name,
        step="check its name; the list of topics has all names" if missing else None,
    )
    if item.error_code == ErrorCode.NOT_CONTROLLER:
        raise problem
    return problem


def _topic_description(topic: Topic) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        topic.internal,
        [
            PartitionDescription(p.partition, p.leader, p.leader_epoch, p.replicas, p.isr, p.offline)
            for p in topic.partitions
        ],
    )


def _config_entry(entry: describe_configs.DescribeConfigsResourceResult) -> ConfigEntry:
    source = SOURCES.get(entry.config_source, "unknown")
    return ConfigEntry(
        entry.name,
        entry.value,
        source,
        bool(entry.is_default) or source == "default",
        entry.read_only,
        entry.is_sensitive,
        [ConfigSynonym(s.name, s.value, SOURCES.get(s.source, "unknown")) for s in entry.synonyms],
        entry.documentation,
    )


def _named(resource: ConfigResource) -> str:
    return f"{resource.kind.name.lower().replace('_', ' ')} {resource.name or '(all)'!r}"


def _described(response: DescribedGroup, coordinator: int) -> GroupDescription:
    members: list[GroupMember] = []
    for member in response.members:
        partitions: list[TopicPartition] = []
        if response.protocol_type == CONSUMER_PROTOCOL:
            try:
                partitions = decode_assignment(member.member_assignment)
            except ProtocolError:
                partitions = []  # the format of another protocol: its partitions are unknown
        members.append(
            GroupMember(
                member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions
            )
        )
    return GroupDescription(
        response.group_id,
        response.group_state,
        response.protocol_type,
        response.protocol_data,
        coordinator,
        members,
    )


def _describe_consumer_group(connection: Connection, group: str) -> GroupDescription | None:
    """Describes a group of the consumer protocol (KIP-848); returns None if there is no such group."""
    response = connection.only_result(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        connection.call(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ConsumerGroupDescribeRequest(group_ids=[group]),
            ConsumerGroupDescribeResponse,
        ).groups,
    )
    if ErrorCode.of(response.error_code) in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(response.error_code, f"describe group {group!r}", broker=connection.address)
    members = [
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            [
                TopicPartition(topic.topic_name, p)
                for topic in member.assignment.topic_partitions
                for p in topic.partitions
            ],
        )
        for member in response.members
    ]
    return GroupDescription(
        response.group_id,
        response.group_state,
        CONSUMER_PROTOCOL,
        response.assignor_name,
        connection.node_id,
        members,
    )


def _times(offset_specs: Mapping[TopicPartition, int | str]) -> dict[TopicPartition, int]:
    """Returns the timestamps that ListOffsets uses for offset specs."""
    times: dict[TopicPartition, int] = {}
    for item, offset_spec in offset_specs.items():
        found = OFFSET_SPECS.get(offset_spec) if isinstance(offset_spec, str) else offset_spec
        if found is None:
            raise ValueError(
                f"offsets at {offset_spec!r}: use {', '.join(OFFSET_SPECS)} or milliseconds since 1970"
            )
        times[TopicPartition(*item)] = found
    return times


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _outcomes(
    results: Iterable[tuple[str, int, int, str | None]], operation: str, connection: Connection
) -> dict[TopicPartition, ClientError | None]:
    """Returns None or the error of each partition; raises NOT_CONTROLLER instead.

    ``results`` has topic, partition, error code and error message of each.
    """
    found: dict[TopicPartition, ClientError | None] = {}
    for topic, number, error_code, message in results:
        item = TopicPartition(topic, number)
        if not error_code:
            found[item] = None
            continue
        problem = error_for(
            error_code,
            f"{operation} {item}",
            detail=message,
            broker=connection.address,
            topic=topic,
            partition=number,
        )
        if problem.code == ErrorCode.NOT_CONTROLLER:
            raise problem
        found[item] = problem
    return found


def _log_directory(result: describe_log_dirs.DescribeLogDirsResult) -> LogDirectory:
    return LogDirectory(
        result.log_dir,
        ErrorCode.of(result.error_code).name if result.error_code else None,
        result.total_bytes,
        result.usable_bytes,
        [
            ReplicaSize(topic.name, p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
            for topic in result.topics
            for p in topic.partitions
        ],
    )
