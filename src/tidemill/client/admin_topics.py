"""The admin client's part for topics, their records and their offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.client.admin_base import AdminBase, grace, left_ms
from tidemill.client.admin_types import (
    CreatedTopic,
    NewTopic,
    PartitionDescription,
    ProducerEntry,
    TopicDescription,
    TopicListing,
)
from tidemill.client.cluster_image import Topic
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, check, error_for
from tidemill.client.group_protocol import by_topic
from tidemill.client.offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    OffsetAt,
    list_offsets,
    list_offsets_known,
)
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_producers,
)

HIGH_WATERMARK = -1
"""For :meth:`TopicAdmin.delete_records`: everything up to the end."""

PLACES = {"earliest": EARLIEST, "latest": LATEST, "max-timestamp": MAX_TIMESTAMP}


class TopicAdmin(AdminBase):
    """Topics: create, delete, list, describe, grow; what is in them."""

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
                topics=wanted, timeout_ms=left_ms(deadline), validate_only=validate_only
            )
            answer = connection.call(ApiKey.CREATE_TOPICS, request, timeout=grace(deadline))
            result: dict[str, CreatedTopic | ClientError] = {}
            for item in answer.topics:
                if item.error_code:
                    result[item.name] = _refused(item, "create", connection)
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
                    # Else each topic would cost the metadata of all those made before it.
                    self._cluster.forget(name)
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
            request = delete_topics.DeleteTopicsRequest(timeout_ms=left_ms(deadline))
            if version >= 6:
                request.topics = [delete_topics.DeleteTopicState(name=name) for name in wanted]
            else:
                request.topic_names = wanted
            answer = connection.call(ApiKey.DELETE_TOPICS, request, version=version, timeout=grace(deadline))
            result: dict[str, ClientError | None] = {}
            for item in answer.responses:
                result[item.name or ""] = _refused(item, "delete", connection) if item.error_code else None
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
                topics=[item], timeout_ms=left_ms(deadline), validate_only=validate_only
            )
            answer = connection.call(ApiKey.CREATE_PARTITIONS, request, timeout=grace(deadline))
            for result in answer.results:
                check(
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
                timeout_ms=left_ms(deadline),
            )

        result: dict[TopicPartition, int] = {}
        for broker, item, entry in self._ask_leaders(wanted, ApiKey.DELETE_RECORDS, build, deadline):
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
        places: Mapping[TopicPartition, int | str],
        *,
        committed_only: bool = False,
        timeout: float | None = None,
        failures: dict[TopicPartition, ClientError] | None = None,
    ) -> dict[TopicPartition, OffsetAt]:
        """Offsets at ``earliest``, ``latest``, ``max-timestamp`` or a time in ms, by partition.

        With ``failures`` a partition that cannot tell is put there with its error, and none is raised.
        """
        times: dict[TopicPartition, int] = {}
        for item, place in places.items():
            found = PLACES.get(place) if isinstance(place, str) else place
            if found is None:
                raise ValueError(f"offsets at {place!r}: use {', '.join(PLACES)} or milliseconds since 1970")
            times[TopicPartition(*item)] = found
        deadline = self._deadline(timeout)
        if failures is not None:
            return list_offsets_known(self._cluster, times, deadline, failures, committed_only=committed_only)
        return list_offsets(self._cluster, times, deadline, committed_only=committed_only)

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
        for broker, item, entry in self._ask_leaders(wanted, ApiKey.DESCRIBE_PRODUCERS, build, deadline):
            what = f"describe the producers of {item}"
            check(entry.error_code, what, detail=entry.error_message, broker=broker)
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


def _refused(item: Any, what: str, connection: Connection) -> ClientError:
    """The error of one topic in an answer; raised where it says that another broker is the controller."""
    missing = item.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
    problem = error_for(
        item.error_code,
        f"{what} topic {item.name!r}",
        detail=item.error_message,
        broker=connection.address,
        topic=item.name,
        step="check its name; a list of the topics shows what is there" if missing else None,
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
