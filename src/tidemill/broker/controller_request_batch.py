"""The requests of the controller to one other broker: built from a change of the cluster, without I/O."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, TypedDict

from tidemill.broker.controller_requests import DURING_DELETION, FULL_REQUEST, ControllerRequest
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage, Delta
from tidemill.coordination.nodes import SECURITY_PROTOCOLS
from tidemill.coordination.topic_image import PartitionImage, TopicImage, TopicKey
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from tidemill.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from tidemill.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

RequestBuilder = Generator[None, None, ControllerRequest]
"""Builds a request. Yields after every ``ITEMS_PER_SLICE`` partitions."""


class ReplicaStop(NamedTuple):
    """A replica that the broker has to stop."""

    leader_epoch: int
    delete: bool


TOPIC_DELETION: Final = ReplicaStop(DURING_DELETION, True)
"""The stop of each replica of a deleted topic. One object, as a topic may have ten thousand."""

NO_IMAGE: Final = ClusterImage()
"""The image of an empty batch."""


class ControllerRequestBatch:
    """The changes that one broker has not acknowledged."""

    def __init__(self) -> None:
        self.image = NO_IMAGE
        """The latest image, with the live brokers and the controller."""
        self.is_full = False
        """Whether the batch has the full state, not only changes."""
        self.states: dict[TopicKey, dict[int, PartitionImage]] = {}
        """The partitions that the broker leads or follows."""
        self.new_replicas: dict[TopicKey, set[int]] = {}
        """Those of :attr:`states` whose replicas are new on the broker."""
        self.metadata: dict[TopicKey, dict[int, PartitionImage]] = {}
        self.deleted_topics: dict[TopicKey, None] = {}
        """The topics that the metadata of the broker has to remove."""
        self.stops: dict[TopicKey, dict[int, ReplicaStop]] = {}
        self.has_changes = False

    def add(self, newer: ControllerRequestBatch) -> None:
        """Merges ``newer`` into this batch. A full state replaces pending states, and keeps pending stops."""
        if newer.is_full:
            # Partitions may have been reassigned while the broker was dead for the controller.
            self.states.clear()
            self.new_replicas.clear()
            self.metadata.clear()
        if newer.has_changes:
            self.image = newer.image
            self.has_changes = True
        self.is_full = self.is_full or newer.is_full
        for key in (*newer.stops, *newer.deleted_topics):
            states = self.states.get(key)
            if states:
                for index in newer.stops.get(key, ()):
                    states.pop(index, None)
        for key in newer.deleted_topics:
            self.metadata.pop(key, None)
        self.deleted_topics.update(newer.deleted_topics)
        for mine, other in (
            (self.states, newer.states),
            (self.metadata, newer.metadata),
        ):
            for key, partitions in other.items():
                mine.setdefault(key, {}).update(partitions)
        for key, new_replicas in newer.new_replicas.items():
            self.new_replicas.setdefault(key, set()).update(new_replicas)
        for key, stops in newer.stops.items():
            self.stops.setdefault(key, {}).update(stops)


def batch_for(delta: Delta, broker_id: int, *, is_full: bool) -> ControllerRequestBatch | None:
    """Returns the batch of a change for one broker, or None if the change does not concern the broker.

    ``is_full``: the batch has the full state, for a new broker.
    """
    batch = ControllerRequestBatch()
    batch.image = delta.image
    batch.is_full = is_full
    if is_full:
        for topic in delta.image.topics.values():
            _add_topic(batch, topic, topic.partitions, broker_id)
        for topic in delta.image.deleting.values():
            _add_deletion(batch, topic, broker_id)
    else:
        for topic in delta.created:
            _add_topic(batch, topic, topic.partitions, broker_id)
            _add_new_replicas(batch, topic, (), broker_id)
        for old, topic in delta.changed:
            _add_topic(batch, topic, topic.changed_partitions(old), broker_id)
            _add_new_replicas(batch, topic, old.partitions, broker_id)
            _add_reassigned_replicas(batch, old, topic, broker_id)
        for topic in delta.deleted:
            _add_deletion(batch, topic, broker_id)
    batch.has_changes = bool(
        is_full
        or batch.metadata
        or batch.deleted_topics
        or batch.stops
        or dict(delta.before.brokers) != dict(delta.image.brokers)
        or delta.before.controller_epoch != delta.image.controller_epoch
    )
    return batch if batch.has_changes else None


def _add_topic(
    batch: ControllerRequestBatch, topic: TopicImage, partitions: Iterable[PartitionImage], broker_id: int
) -> None:
    key = (topic.name, topic.topic_id)
    by_index = {one.partition: one for one in partitions}
    if by_index:
        batch.metadata[key] = by_index
        states = {index: one for index, one in by_index.items() if broker_id in one.replicas}
        if states:
            batch.states[key] = states


def _add_new_replicas(
    batch: ControllerRequestBatch, topic: TopicImage, before: Sequence[PartitionImage], broker_id: int
) -> None:
    key = (topic.name, topic.topic_id)
    new_replicas = {
        index
        for index in batch.states.get(key, ())
        if index >= len(before) or broker_id not in before[index].replicas
    }
    if new_replicas:
        batch.new_replicas[key] = new_replicas


def _add_reassigned_replicas(
    batch: ControllerRequestBatch, old: TopicImage, new: TopicImage, broker_id: int
) -> None:
    for before, after in zip(old.partitions, new.partitions, strict=False):
        if before is not after and broker_id in before.replicas and broker_id not in after.replicas:
            stops = batch.stops.setdefault((new.name, new.topic_id), {})
            stops[after.partition] = ReplicaStop(after.leader_epoch, True)


def _add_deletion(batch: ControllerRequestBatch, topic: TopicImage, broker_id: int) -> None:
    key = (topic.name, topic.topic_id)
    batch.deleted_topics[key] = None
    stops = {one.partition: TOPIC_DELETION for one in topic.partitions if broker_id in one.replicas}
    if stops:
        batch.stops[key] = stops


class CommonFields(TypedDict):
    """The fields of all three requests."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int


def request_builders(
    batch: ControllerRequestBatch, to: BrokerImage, listener: str
) -> Iterator[tuple[ApiKey, RequestBuilder]]:
    """Yields the requests of a batch in their order, each as its API key and a generator that builds it.

    A batch with new followers has a second LeaderAndIsr request, the last one: no client waits for new
    followers.
    """
    common_fields: CommonFields = {
        "controller_id": batch.image.controller_id,
        "controller_epoch": batch.image.controller_epoch,
        "broker_epoch": to.epoch,
    }
    if batch.stops:
        yield ApiKey.STOP_REPLICA, _stop_replica(batch, common_fields)
    new_followers = _new_followers(batch, to.broker_id)
    others = _without(batch.states, new_followers)
    for states in (others, None, new_followers):
        if states is None:
            yield ApiKey.UPDATE_METADATA, _update_metadata(batch, common_fields)
        elif states or (batch.is_full and states is others):
            yield ApiKey.LEADER_AND_ISR, _leader_and_isr(batch, states, listener, common_fields)


States = Mapping[TopicKey, Mapping[int, PartitionImage]]


def _new_followers(
    batch: ControllerRequestBatch, broker_id: int
) -> dict[TopicKey, dict[int, PartitionImage]]:
    """Returns the new replicas of a batch that the broker does not lead."""
    new_followers: dict[TopicKey, dict[int, PartitionImage]] = {}
    if batch.is_full:
        return new_followers
    for key, new_replicas in batch.new_replicas.items():
        states = batch.states.get(key, {})
        chosen = {
            index: one for index, one in states.items() if index in new_replicas and one.leader != broker_id
        }
        if chosen:
            new_followers[key] = chosen
    return new_followers


def _without(states: States, others: States) -> States:
    if not others:
        return {key: partitions for key, partitions in states.items() if partitions}
    left = {
        key: {index: one for index, one in partitions.items() if index not in others.get(key, ())}
        for key, partitions in states.items()
    }
    return {key: partitions for key, partitions in left.items() if partitions}


def _stop_replica(batch: ControllerRequestBatch, common_fields: CommonFields) -> RequestBuilder:
    topics = []
    numbers = count(1)
    for (name, _), stops in batch.stops.items():
        states = []
        for (index, stop), number in zip(stops.items(), numbers, strict=False):
            if number % ITEMS_PER_SLICE == 0:
                yield
            states.append(
                StopReplicaPartitionState(
                    partition_index=index, leader_epoch=stop.leader_epoch, delete_partition=stop.delete
                )
            )
        topics.append(StopReplicaTopicState(topic_name=name, partition_states=states))
    return StopReplicaRequest(topic_states=topics, **common_fields)


def _leader_and_isr(
    batch: ControllerRequestBatch, states: States, listener: str, common_fields: CommonFields
) -> RequestBuilder:
    topics = []
    leaders: set[int] = set()
    numbers = count(1)
    for (name, topic_id), partitions in states.items():
        new_replicas = () if batch.is_full else batch.new_replicas.get((name, topic_id), ())
        partition_states = []
        for (index, one), number in zip(partitions.items(), numbers, strict=False):
            if number % ITEMS_PER_SLICE == 0:
                yield
            leaders.add(one.leader)
            partition_states.append(
                LeaderAndIsrPartitionState(
                    partition_index=index,
                    controller_epoch=batch.image.controller_epoch,
                    leader=one.leader,
                    leader_epoch=one.leader_epoch,
                    isr=list(one.isr),
                    partition_epoch=one.partition_epoch,
                    replicas=list(one.replicas),
                    adding_replicas=list(one.adding),
                    removing_replicas=list(one.removing),
                    is_new=index in new_replicas,
                )
            )
        topics.append(
            LeaderAndIsrTopicState(topic_name=name, topic_id=topic_id, partition_states=partition_states)
        )
    return LeaderAndIsrRequest(
        type=FULL_REQUEST if batch.is_full else 0,
        topic_states=topics,
        live_leaders=list(_leaders(batch, leaders, listener)),
        **common_fields,
    )


def _update_metadata(batch: ControllerRequestBatch, common_fields: CommonFields) -> RequestBuilder:
    topics = [
        UpdateMetadataTopicState(
            topic_name=name,
            topic_id=topic_id,
            partition_states=[
                UpdateMetadataPartitionState(
                    partition_index=0,
                    controller_epoch=batch.image.controller_epoch,
                    leader=DURING_DELETION,
                    leader_epoch=DURING_DELETION,
                )
            ],
        )
        for name, topic_id in batch.deleted_topics
    ]
    living: Mapping[int, BrokerImage] = batch.image.brokers
    numbers = count(1)
    for (name, topic_id), partitions in batch.metadata.items():
        partition_states = []
        for (index, one), number in zip(partitions.items(), numbers, strict=False):
            if number % ITEMS_PER_SLICE == 0:
                yield
            partition_states.append(
                UpdateMetadataPartitionState(
                    partition_index=index,
                    controller_epoch=batch.image.controller_epoch,
                    leader=one.leader,
                    leader_epoch=one.leader_epoch,
                    isr=list(one.isr),
                    zk_version=one.partition_epoch,
                    replicas=list(one.replicas),
                    offline_replicas=[
                        broker for broker in one.replicas if broker not in living or broker in one.offline
                    ],
                )
            )
        topics.append(
            UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=partition_states)
        )
    return UpdateMetadataRequest(
        type=FULL_REQUEST if batch.is_full else 0,
        topic_states=topics,
        live_brokers=[_live_broker(one) for one in batch.image.brokers.values()],
        **common_fields,
    )


def _leaders(
    batch: ControllerRequestBatch, leaders: set[int], listener: str
) -> Iterator[LeaderAndIsrLiveLeader]:
    for broker_id in sorted(leaders):
        broker = batch.image.brokers.get(broker_id)
        endpoint = broker.endpoints.get(listener) if broker is not None else None
        if endpoint is not None:
            yield LeaderAndIsrLiveLeader(broker_id=broker_id, host_name=endpoint.host, port=endpoint.port)


def _live_broker(one: BrokerImage) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=one.broker_id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=endpoint.port,
                host=endpoint.host,
                listener=endpoint.listener,
                security_protocol=SECURITY_PROTOCOLS.index(endpoint.security_protocol),
            )
            for endpoint in one.endpoints.values()
        ],
        rack=one.rack,
    )


def confirmed_deletions(batch: ControllerRequestBatch, response: StopReplicaResponse) -> list[TopicKey]:
    """Returns the deleted topics whose replicas are deleted, by the response to StopReplica."""
    bad = {one.topic_name for one in response.partition_errors if one.error_code != 0}
    return [key for key in batch.stops if key in batch.deleted_topics and key[0] not in bad]


def refused_stops(
    batch: ControllerRequestBatch, response: StopReplicaResponse
) -> dict[TopicKey, dict[int, ReplicaStop]]:
    """Returns the stops that have failed, by the response to StopReplica. The disk may be full.

    A replica that the broker has in a later leader epoch is not one of them.
    """
    bad = {
        (one.topic_name, one.partition_index)
        for one in response.partition_errors
        if one.error_code not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
    }
    if not bad:
        return {}
    refused = {
        key: {index: stop for index, stop in stops.items() if (key[0], index) in bad}
        for key, stops in batch.stops.items()
    }
    return {key: stops for key, stops in refused.items() if stops}


def failed_partitions(response: LeaderAndIsrResponse) -> list[tuple[bytes, int]]:
    """Returns the partitions (by topic id) that are offline, by the response to LeaderAndIsr."""
    return [
        (topic.topic_id, one.partition_index)
        for topic in response.topics
        for one in topic.partition_errors
        if one.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    ]


def replicas_back_online(
    batch: ControllerRequestBatch, broker_id: int, response: LeaderAndIsrResponse
) -> list[tuple[bytes, int]]:
    """Returns the partitions (by topic id) that were offline in ``batch``, and that the broker serves.

    ``response``: the response to LeaderAndIsr.
    """
    offline = {
        (key[1], index)
        for key, states in batch.states.items()
        for index, one in states.items()
        if broker_id in one.offline
    }
    if not offline:
        return []
    return [
        (topic.topic_id, one.partition_index)
        for topic in response.topics
        for one in topic.partition_errors
        if one.error_code == ErrorCode.NONE and (topic.topic_id, one.partition_index) in offline
    ]
