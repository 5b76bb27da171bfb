"""What a controller's change means to one other broker, and the requests that tell it.

No input or output here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from tidemill.broker.carrying_out import changed_partitions
from tidemill.broker.commands import DURING_DELETION, WHOLE_IMAGE, Key
from tidemill.coordination.image import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.nodes import SECURITY_PROTOCOLS
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import ITEMS_A_PAUSE, in_one_go
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from tidemill.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from tidemill.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

Making = Generator[None, None, Any]
"""The making of a request, which pauses after some items each."""
Item = TypeVar("Item")


class Stop(NamedTuple):
    """A replica that is to be let go."""

    leader_epoch: int
    delete: bool


DELETION: Final = Stop(DURING_DELETION, True)
"""Of each replica of a topic that is deleted: one object, as there may be ten thousand."""


class Command:
    """What one broker has to know and has not confirmed."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        """Whose brokers and controller are told."""
        self.whole = False
        """It holds all that the broker has to know, not only what is new."""
        self.states: dict[Key, dict[int, PartitionImage]] = {}
        """Replicas to lead and to follow."""
        self.fresh: dict[Key, set[int]] = {}
        """Those of them of which the broker had no replica before."""
        self.metadata: dict[Key, dict[int, PartitionImage]] = {}
        self.gone: dict[Key, None] = {}
        """Topics that are gone, for those who ask."""
        self.stops: dict[Key, dict[int, Stop]] = {}
        self.has_news = False

    @property
    def controller_epoch(self) -> int:
        """The epoch of the controller whose command it is."""
        return self.image.controller_epoch

    def add(self, newer: Command) -> None:
        """Merges ``newer`` into this command. A full state replaces pending states, and keeps the stops."""
        if newer.whole:
            # Partitions may have moved away from the broker while the controller took it for dead.
            self.states.clear()
            self.fresh.clear()
            self.metadata.clear()
        if newer.has_news:
            self.image = newer.image
            self.has_news = True
        self.whole = self.whole or newer.whole
        for key in (*newer.stops, *newer.gone):
            states = self.states.get(key)
            if states:
                for index in newer.stops.get(key, ()):
                    states.pop(index, None)
        for key in newer.gone:
            self.metadata.pop(key, None)
        self.gone.update(newer.gone)
        for mine, other in (
            (self.states, newer.states),
            (self.metadata, newer.metadata),
        ):
            for key, partitions in other.items():
                mine.setdefault(key, {}).update(partitions)
        for key, fresh in newer.fresh.items():
            self.fresh.setdefault(key, set()).update(fresh)
        for key, stops in newer.stops.items():
            self.stops.setdefault(key, {}).update(stops)


def commands_for(delta: Delta, broker_id: int, *, whole: bool) -> Command | None:
    """What ``delta`` means to a broker; None for nothing. ``whole``: to one that knows nothing yet."""
    command = Command()
    command.image = delta.image
    command.whole = whole
    if whole:
        for topic in delta.image.topics.values():
            _put(command, topic, topic.partitions, broker_id)
        for topic in delta.image.deleting.values():
            _delete(command, topic, broker_id)
    else:
        for topic in delta.created:
            _put(command, topic, topic.partitions, broker_id)
            _note_fresh(command, topic, (), broker_id)
        for old, topic in delta.changed:
            _put(command, topic, changed_partitions(old, topic), broker_id)
            _note_fresh(command, topic, old.partitions, broker_id)
            _move_away(command, old, topic, broker_id)
        for topic in delta.deleted:
            _delete(command, topic, broker_id)
    command.has_news = bool(
        whole
        or command.metadata
        or command.gone
        or command.stops
        or dict(delta.before.brokers) != dict(delta.image.brokers)
        or delta.before.controller_epoch != delta.image.controller_epoch
    )
    return command if command.has_news else None


def _put(command: Command, topic: TopicImage, partitions: Iterable[PartitionImage], broker_id: int) -> None:
    key = (topic.name, topic.topic_id)
    told = {one.partition: one for one in partitions}
    if told:
        command.metadata[key] = told
        states = {index: one for index, one in told.items() if broker_id in one.replicas}
        if states:
            command.states[key] = states


def _note_fresh(
    command: Command, topic: TopicImage, before: Sequence[PartitionImage], broker_id: int
) -> None:
    key = (topic.name, topic.topic_id)
    fresh = {
        index
        for index in command.states.get(key, ())
        if index >= len(before) or broker_id not in before[index].replicas
    }
    if fresh:
        command.fresh[key] = fresh


def _move_away(command: Command, old: TopicImage, new: TopicImage, broker_id: int) -> None:
    for before, after in zip(old.partitions, new.partitions, strict=False):
        if before is not after and broker_id in before.replicas and broker_id not in after.replicas:
            stops = command.stops.setdefault((new.name, new.topic_id), {})
            stops[after.partition] = Stop(after.leader_epoch, True)


def _delete(command: Command, topic: TopicImage, broker_id: int) -> None:
    key = (topic.name, topic.topic_id)
    command.gone[key] = None
    stops = {one.partition: DELETION for one in topic.partitions if broker_id in one.replicas}
    if stops:
        command.stops[key] = stops


def requests_of(command: Command, to: BrokerImage, listener: str) -> Iterator[tuple[ApiKey, Any]]:
    """As :func:`making_requests`, with the messages."""
    for key, work in making_requests(command, to, listener):
        yield key, in_one_go(work)


def making_requests(command: Command, to: BrokerImage, listener: str) -> Iterator[tuple[ApiKey, Making]]:
    """The requests of a command, in their order: the key, and the making of the message.

    LeaderAndIsr comes twice where the broker gets new replicas that it does not lead: those come last, since
    no client waits for them.
    """
    about: dict[str, Any] = {
        "controller_id": command.image.controller_id,
        "controller_epoch": command.controller_epoch,
        "broker_epoch": to.epoch,
    }
    if command.stops:
        yield ApiKey.STOP_REPLICA, _stop_replica(command, about)
    late = _late(command, to.broker_id)
    prompt = _without(command.states, late)
    for states in (prompt, None, late):
        if states is None:
            yield ApiKey.UPDATE_METADATA, _update_metadata(command, about)
        elif states or (command.whole and states is prompt):
            yield ApiKey.LEADER_AND_ISR, _leader_and_isr(command, states, listener, about)


States = Mapping[Key, Mapping[int, PartitionImage]]


def _late(command: Command, broker_id: int) -> dict[Key, dict[int, PartitionImage]]:
    """The replicas of a command that the broker gets anew, and only follows."""
    late: dict[Key, dict[int, PartitionImage]] = {}
    if command.whole:
        return late
    for key, fresh in command.fresh.items():
        states = command.states.get(key, {})
        chosen = {index: one for index, one in states.items() if index in fresh and one.leader != broker_id}
        if chosen:
            late[key] = chosen
    return late


def _without(states: States, others: States) -> States:
    if not others:
        return {key: partitions for key, partitions in states.items() if partitions}
    left = {
        key: {index: one for index, one in partitions.items() if index not in others.get(key, ())}
        for key, partitions in states.items()
    }
    return {key: partitions for key, partitions in left.items() if partitions}


class _Pace:
    """When the making of a request pauses."""

    def __init__(self) -> None:
        self._count = 0

    def over(self, items: Iterable[Item]) -> Iterator[tuple[bool, Item]]:
        """Each of ``items``, and whether it is time for a pause."""
        for one in items:
            self._count += 1
            yield self._count % ITEMS_A_PAUSE == 0, one


def _stop_replica(command: Command, about: Mapping[str, Any]) -> Making:
    topics = []
    pace = _Pace()
    for (name, _), stops in command.stops.items():
        states = []
        for is_time, (index, stop) in pace.over(stops.items()):
            if is_time:
                yield
            states.append(
                StopReplicaPartitionState(
                    partition_index=index, leader_epoch=stop.leader_epoch, delete_partition=stop.delete
                )
            )
        topics.append(StopReplicaTopicState(topic_name=name, partition_states=states))
    return StopReplicaRequest(topic_states=topics, **about)


def _leader_and_isr(command: Command, states: States, listener: str, about: Mapping[str, Any]) -> Making:
    topics = []
    leaders: set[int] = set()
    pace = _Pace()
    for (name, topic_id), partitions in states.items():
        fresh = () if command.whole else command.fresh.get((name, topic_id), ())
        made = []
        for is_time, (index, one) in pace.over(partitions.items()):
            if is_time:
                yield
            leaders.add(one.leader)
            made.append(
                LeaderAndIsrPartitionState(
                    partition_index=index,
                    controller_epoch=command.controller_epoch,
                    leader=one.leader,
                    leader_epoch=one.leader_epoch,
                    isr=list(one.isr),
                    partition_epoch=one.partition_epoch,
                    replicas=list(one.replicas),
                    adding_replicas=list(one.adding),
                    removing_replicas=list(one.removing),
                    is_new=index in fresh,
                )
            )
        topics.append(LeaderAndIsrTopicState(topic_name=name, topic_id=topic_id, partition_states=made))
    return LeaderAndIsrRequest(
        type=WHOLE_IMAGE if command.whole else 0,
        topic_states=topics,
        live_leaders=list(_leaders(command, leaders, listener)),
        **about,
    )


def _update_metadata(command: Command, about: Mapping[str, Any]) -> Making:
    topics = list(_gone(command))
    living: Mapping[int, BrokerImage] = command.image.brokers
    pace = _Pace()
    for (name, topic_id), partitions in command.metadata.items():
        made = []
        for is_time, (index, one) in pace.over(partitions.items()):
            if is_time:
                yield
            made.append(
                UpdateMetadataPartitionState(
                    partition_index=index,
                    controller_epoch=command.controller_epoch,
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
        topics.append(UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=made))
    return UpdateMetadataRequest(
        type=WHOLE_IMAGE if command.whole else 0,
        topic_states=topics,
        live_brokers=[_broker(one) for one in command.image.brokers.values()],
        **about,
    )


def _leaders(command: Command, leaders: set[int], listener: str) -> Iterator[LeaderAndIsrLiveLeader]:
    for broker_id in sorted(leaders):
        broker = command.image.brokers.get(broker_id)
        endpoint = broker.endpoints.get(listener) if broker is not None else None
        if endpoint is not None:
            yield LeaderAndIsrLiveLeader(broker_id=broker_id, host_name=endpoint.host, port=endpoint.port)


def _gone(command: Command) -> Iterator[UpdateMetadataTopicState]:
    for name, topic_id in command.gone:
        yield UpdateMetadataTopicState(
            topic_name=name,
            topic_id=topic_id,
            partition_states=[
                UpdateMetadataPartitionState(
                    partition_index=0,
                    controller_epoch=command.controller_epoch,
                    leader=DURING_DELETION,
                    leader_epoch=DURING_DELETION,
                )
            ],
        )


def _broker(one: BrokerImage) -> UpdateMetadataBroker:
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


def deleted_topics(command: Command, answer: Any) -> list[Key]:
    """The deleted topics of which the answer to StopReplica says that no file is left."""
    bad = {one.topic_name for one in answer.partition_errors if one.error_code != 0}
    return [key for key in command.stops if key in command.gone and key[0] not in bad]


def refused_stops(command: Command, answer: Any) -> dict[Key, dict[int, Stop]]:
    """The replicas that the answer to StopReplica says are still there: the disk had no room, for instance.

    Those that the broker has anew, in a later leader epoch, are not among them.
    """
    bad = {
        (one.topic_name, one.partition_index)
        for one in answer.partition_errors
        if one.error_code not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
    }
    if not bad:
        return {}
    refused = {
        key: {index: stop for index, stop in stops.items() if (key[0], index) in bad}
        for key, stops in command.stops.items()
    }
    return {key: stops for key, stops in refused.items() if stops}


def failed_partitions(answer: Any) -> list[tuple[bytes, int]]:
    """The partitions (by topic id) that the answer to LeaderAndIsr says cannot be read or written."""
    return [
        (topic.topic_id, one.partition_index)
        for topic in answer.topics
        for one in topic.partition_errors
        if one.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    ]


def served_again(command: Command, broker_id: int, answer: Any) -> list[tuple[bytes, int]]:
    """The partitions (by topic id) that were offline when ``command`` was sent, and that the broker serves.

    ``answer`` is the one to LeaderAndIsr.
    """
    offline = {
        (key[1], index)
        for key, states in command.states.items()
        for index, one in states.items()
        if broker_id in one.offline
    }
    if not offline:
        return []
    return [
        (topic.topic_id, one.partition_index)
        for topic in answer.topics
        for one in topic.partition_errors
        if one.error_code == ErrorCode.NONE and (topic.topic_id, one.partition_index) in offline
    ]
