"""The admin client: topics, configuration, the cluster; groups are in :mod:`tidemill.client.admin_groups`.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("topic", partitions=6, configs={"retention.ms": "-1"})
        print(admin.describe_topic("topic"))

Every call waits for its outcome and raises ClientError where it failed. Timeouts are in seconds,
``default.api.timeout.ms`` unless told. An admin may be used by several threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from tidemill.client.admin_groups import GroupAdmin
from tidemill.client.admin_types import (
    SOURCES,
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSynonym,
    CreatedTopic,
    LogDirectory,
    NewTopic,
    PartitionDescription,
    ProducerEntry,
    ReplicaSize,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from tidemill.client.cluster import CONTROL, Cluster, Topic
from tidemill.client.config import COMMON, ClientConfig
from tidemill.client.connection import Connection
from tidemill.client.errors import BrokerUnreachable, ClientError, RequestTimeout, code_of, error_for
from tidemill.client.group_protocol import by_topic
from tidemill.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAt, list_offsets
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    incremental_alter_configs,
)
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest

HIGH_WATERMARK = -1
"""For :meth:`Admin.delete_records`: everything up to the end."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

PLACES = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}


class Admin(GroupAdmin):
    """Administrates a cluster. Configuration as for the other clients (:mod:`tidemill.client.config`)."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        given = dict(config or {})
        if bootstrap_servers is not None:
            given["bootstrap.servers"] = bootstrap_servers
        self.config = ClientConfig(COMMON, given, **keywords)
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

    # -- topics -------------------------------------------------------------------------------------------

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
        """Creates a topic, and waits until it has leaders. -1 is the broker's default."""
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
        """Creates topics; what became of each. ``validate_only`` checks and creates nothing."""
        deadline = self._deadline(timeout)
        wanted = [_creatable(topic) for topic in topics]

        def ask(connection: Connection) -> dict[str, CreatedTopic | ClientError]:
            request = create_topics.CreateTopicsRequest(
                topics=wanted, timeout_ms=_left_ms(deadline), validate_only=validate_only
            )
            answer = connection.call(ApiKey.CREATE_TOPICS, request, timeout=_grace(deadline))
            result: dict[str, CreatedTopic | ClientError] = {}
            for item in answer.topics:
                if item.error_code == ErrorCode.NOT_CONTROLLER:
                    raise error_for(item.error_code, "create topics", broker=connection.address)
                if item.error_code:
                    result[item.name] = error_for(
                        item.error_code,
                        f"create topic {item.name!r}",
                        detail=item.error_message,
                        broker=connection.address,
                        topic=item.name,
                    )
                    continue
                configs = {entry.name: entry.value for entry in item.configs or ()}
                result[item.name] = CreatedTopic(
                    item.name, item.topic_id, item.num_partitions, item.replication_factor, configs
                )
            return result

        found: dict[str, CreatedTopic | ClientError] = self._controller(deadline, ask)
        if not validate_only:
            for name, outcome in found.items():
                if isinstance(outcome, CreatedTopic):
                    self._await_leaders(name, deadline)
        return found

    def _await_leaders(self, name: str, deadline: float) -> None:
        """Returns when the metadata has the topic with leaders; not an error when that takes longer."""
        pause = 0.01
        while time.monotonic() < deadline:
            self._cluster.refresh(deadline, [name])
            known = self._cluster.topics.get(name)
            if known is not None and known.partitions and all(p.leader >= 0 for p in known.partitions):
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.2)

    def delete_topic(self, name: str, timeout: float | None = None) -> None:
        """Deletes a topic and all its records."""
        problem = self.delete_topics([name], timeout)[name]
        if problem is not None:
            raise problem

    def delete_topics(
        self, names: Iterable[str], timeout: float | None = None
    ) -> dict[str, ClientError | None]:
        """Deletes topics; None for each that is deleted, or the error."""
        deadline = self._deadline(timeout)
        wanted = list(names)

        def ask(connection: Connection) -> dict[str, ClientError | None]:
            version = connection.version(ApiKey.DELETE_TOPICS)
            request = delete_topics.DeleteTopicsRequest(timeout_ms=_left_ms(deadline))
            if version >= 6:
                request.topics = [delete_topics.DeleteTopicState(name=name) for name in wanted]
            else:
                request.topic_names = wanted
            answer = connection.call(ApiKey.DELETE_TOPICS, request, version=version, timeout=_grace(deadline))
            result: dict[str, ClientError | None] = {}
            for item in answer.responses:
                if item.error_code == ErrorCode.NOT_CONTROLLER:
                    raise error_for(item.error_code, "delete topics", broker=connection.address)
                result[item.name or ""] = (
                    error_for(
                        item.error_code,
                        f"delete topic {item.name!r}",
                        detail=item.error_message,
                        broker=connection.address,
                        topic=item.name,
                    )
                    if item.error_code
                    else None
                )
            return result

        found: dict[str, ClientError | None] = self._controller(deadline, ask)
        for name in wanted:
            self._cluster.forget(name)
        return found

    def list_topics(
        self, *, include_internal: bool = False, timeout: float | None = None
    ) -> list[TopicListing]:
        """All topics, by name."""
        self._cluster.refresh(self._deadline(timeout), every=True)
        return [
            TopicListing(
                topic.name,
                topic.topic_id,
                len(topic.partitions),
                max((len(p.replicas) for p in topic.partitions), default=0),
                topic.internal,
            )
            for topic in sorted(self._cluster.topics.values(), key=lambda topic: topic.name)
            if include_internal or not topic.internal
        ]

    def describe_topic(self, name: str, timeout: float | None = None) -> TopicDescription:
        """A topic's partitions. ClientError UNKNOWN_TOPIC_OR_PARTITION when there is none such."""
        return self.describe_topics([name], timeout)[name]

    def describe_topics(
        self, names: Iterable[str], timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        """The partitions of topics; raises for the first that is not there."""
        deadline = self._deadline(timeout)
        wanted = list(names)
        self._cluster.refresh(deadline, wanted)
        return {name: _topic_description(self._cluster.topic(name, deadline)) for name in wanted}

    def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Lets a topic grow to ``total`` partitions; ``assignments`` names the replicas of the new ones."""
        deadline = self._deadline(timeout)
        item = create_partitions.CreatePartitionsTopic(name=topic, count=total, assignments=None)
        if assignments is not None:
            item.assignments = [
                create_partitions.CreatePartitionsAssignment(broker_ids=list(ids)) for ids in assignments
            ]

        def ask(connection: Connection) -> None:
            request = create_partitions.CreatePartitionsRequest(
                topics=[item], timeout_ms=_left_ms(deadline), validate_only=validate_only
            )
            answer = connection.call(ApiKey.CREATE_PARTITIONS, request, timeout=_grace(deadline))
            for result in answer.results:
                if result.error_code:
                    raise error_for(
                        result.error_code,
                        f"let topic {topic!r} grow to {total} partitions",
                        detail=result.error_message,
                        broker=connection.address,
                        topic=topic,
                    )

        self._controller(deadline, ask)
        while not validate_only and time.monotonic() < deadline:
            self._await_leaders(topic, deadline)
            known = self._cluster.topics.get(topic)
            if known is None or len(known.partitions) >= total:
                return
            time.sleep(0.05)

    # -- records and offsets ------------------------------------------------------------------------------

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes the records before each offset (HIGH_WATERMARK: all); the new start of each partition."""
        wanted = {TopicPartition(*item): offset for item, offset in before.items()}
        deadline = self._deadline(timeout)

        def build(items: list[TopicPartition]) -> Any:
            return delete_records.DeleteRecordsRequest(
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
                timeout_ms=_left_ms(deadline),
            )

        result: dict[TopicPartition, int] = {}
        for connection, answer in self._leaders(wanted, ApiKey.DELETE_RECORDS, build, deadline):
            for topic in answer.topics:
                for entry in topic.partitions:
                    item = TopicPartition(topic.name, entry.partition_index)
                    if entry.error_code:
                        raise error_for(
                            entry.error_code,
                            f"delete records of {item} before {wanted[item]}",
                            broker=connection.address,
                            topic=item.topic,
                            partition=item.partition,
                        )
                    result[item] = entry.low_watermark
        return result

    def list_offsets(
        self,
        places: Mapping[TopicPartition, int | str],
        *,
        committed_only: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt]:
        """Offsets at ``earliest``, ``latest``, ``max-timestamp`` or a time in ms, by partition."""
        times: dict[TopicPartition, int] = {}
        for item, place in places.items():
            found = PLACES.get(place) if isinstance(place, str) else place
            if found is None:
                raise ValueError(f"offsets at {place!r}: use {', '.join(PLACES)} or milliseconds since 1970")
            times[TopicPartition(*item)] = found
        return list_offsets(self._cluster, times, self._deadline(timeout), committed_only=committed_only)

    def describe_producers(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, list[ProducerEntry]]:
        """The idempotent producers that each partition's leader remembers."""

        def build(items: list[TopicPartition]) -> Any:
            return describe_producers.DescribeProducersRequest(
                topics=[
                    describe_producers.TopicRequest(name=topic, partition_indexes=numbers)
                    for topic, numbers in by_topic(items).items()
                ]
            )

        wanted = [TopicPartition(*item) for item in partitions]
        deadline = self._deadline(timeout)
        result: dict[TopicPartition, list[ProducerEntry]] = {}
        for connection, answer in self._leaders(wanted, ApiKey.DESCRIBE_PRODUCERS, build, deadline):
            for topic in answer.topics:
                for entry in topic.partitions:
                    item = TopicPartition(topic.name, entry.partition_index)
                    if entry.error_code:
                        raise error_for(
                            entry.error_code,
                            f"describe the producers of {item}",
                            detail=entry.error_message,
                            broker=connection.address,
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

    def _leaders(
        self,
        items: Iterable[TopicPartition],
        key: ApiKey,
        build: Callable[[list[TopicPartition]], Any],
        deadline: float,
    ) -> list[tuple[Connection, Any]]:
        """Asks every leader for its partitions."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for item in items:
            topic = self._cluster.topic(item.topic, deadline)
            if item.partition >= len(topic.partitions):
                raise error_for(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"use {item}",
                    detail=f"the topic has {len(topic.partitions)} partitions",
                    topic=item.topic,
                )
            by_leader.setdefault(topic.partitions[item.partition].leader, []).append(item)
        answers: list[tuple[Connection, Any]] = []
        for node_id, part in by_leader.items():
            connection = self._cluster.connection(node_id, CONTROL, deadline)
            answers.append((connection, connection.call(key, build(part), timeout=_grace(deadline))))
        return answers

    # -- configuration ------------------------------------------------------------------------------------

    def topic_configs(self, topic: str, timeout: float | None = None) -> dict[str, ConfigEntry]:
        """The configuration of a topic, by key."""
        return self.describe_configs(ConfigResource(ResourceType.TOPIC, topic), timeout=timeout)

    def broker_configs(self, broker_id: int, timeout: float | None = None) -> dict[str, ConfigEntry]:
        """The configuration of a broker, by key."""
        return self.describe_configs(ConfigResource(ResourceType.BROKER, str(broker_id)), timeout=timeout)

    def describe_configs(
        self,
        resource: ConfigResource,
        keys: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        timeout: float | None = None,
    ) -> dict[str, ConfigEntry]:
        """The configuration of a resource: all keys, or ``keys``."""
        deadline = self._deadline(timeout)
        connection = self._for_resource(resource, deadline)
        version = connection.version(ApiKey.DESCRIBE_CONFIGS)
        request = describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=int(resource.kind),
                    resource_name=resource.name,
                    configuration_keys=None if keys is None else list(keys),
                )
            ],
            include_synonyms=version >= 1,
            include_documentation=documentation and version >= 3,
        )
        answer = connection.call(ApiKey.DESCRIBE_CONFIGS, request, version=version, timeout=_grace(deadline))
        result = answer.results[0]
        if result.error_code:
            raise error_for(
                result.error_code,
                f"describe the configuration of {_named(resource)}",
                detail=result.error_message,
                broker=connection.address,
            )
        return {entry.name: _config_entry(entry) for entry in result.configs}

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
        """Changes keys of a resource, and leaves the others: set, back to the default, entries of lists."""
        deadline = self._deadline(timeout)
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
        self._alter(resource, ApiKey.INCREMENTAL_ALTER_CONFIGS, request, deadline)

    def replace_configs(
        self,
        resource: ConfigResource,
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Sets the whole configuration of a resource: what is not in ``configs`` goes back to its default."""
        deadline = self._deadline(timeout)
        request = alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=int(resource.kind),
                    resource_name=resource.name,
                    configs=[
                        alter_configs.AlterableConfig(name=key, value=str(value))
                        for key, value in configs.items()
                    ],
                )
            ],
            validate_only=validate_only,
        )
        self._alter(resource, ApiKey.ALTER_CONFIGS, request, deadline)

    def _alter(self, resource: ConfigResource, key: ApiKey, request: Any, deadline: float) -> None:
        connection = self._for_resource(resource, deadline)
        answer = connection.call(key, request, timeout=_grace(deadline))
        for result in answer.responses:
            if result.error_code:
                raise error_for(
                    result.error_code,
                    f"change the configuration of {_named(resource)}",
                    detail=result.error_message,
                    broker=connection.address,
                )

    def _for_resource(self, resource: ConfigResource, deadline: float) -> Connection:
        """A broker's configuration is asked of that broker, everything else of any."""
        own = resource.kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name
        if not own:
            return self._cluster.any_connection(deadline)
        if not resource.name.isdigit():
            raise ValueError(f"a broker's name is its id, {resource.name!r} is no number")
        if int(resource.name) not in self._cluster.nodes:
            self._cluster.refresh(deadline)
        return self._cluster.connection(int(resource.name), CONTROL, deadline)

    # -- the cluster --------------------------------------------------------------------------------------

    def describe_cluster(self, timeout: float | None = None) -> ClusterDescription:
        """The cluster's id, controller and brokers."""
        deadline = self._deadline(timeout)
        connection = self._cluster.any_connection(deadline)
        if connection.supports(ApiKey.DESCRIBE_CLUSTER):
            answer = self._cluster.call_any(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), deadline)
            if answer.error_code:
                raise error_for(
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

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, timeout: float | None = None
    ) -> dict[int, list[LogDirectory]]:
        """The log directories of brokers (all, unless told), with the size of every replica in them."""
        deadline = self._deadline(timeout)
        self._cluster.refresh(deadline)
        result: dict[int, list[LogDirectory]] = {}
        for broker_id in sorted(self._cluster.nodes) if brokers is None else brokers:
            connection = self._cluster.connection(broker_id, CONTROL, deadline)
            request = describe_log_dirs.DescribeLogDirsRequest(topics=None)
            answer = connection.call(ApiKey.DESCRIBE_LOG_DIRS, request, timeout=_grace(deadline))
            if answer.error_code:
                raise error_for(
                    answer.error_code,
                    f"describe the directories of broker {broker_id}",
                    broker=connection.address,
                )
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


def _left_ms(deadline: float) -> int:
    return max(1, min(int((deadline - time.monotonic()) * 1000), 2**31 - 1))


def _grace(deadline: float) -> float:
    """How long to wait for an answer that the broker may take until ``deadline`` for."""
    return max(1.0, deadline - time.monotonic() + 1.0)


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


def _config_entry(entry: Any) -> ConfigEntry:
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
