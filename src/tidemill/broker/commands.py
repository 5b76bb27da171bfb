"""What a controller, in this process or in another broker, has this broker do.

The controller of this process hands over its images. Another one sends LeaderAndIsr (which replicas to lead
and to follow), StopReplica (which to let go), and UpdateMetadata (what clients are told). All are fenced by
the controller's epoch, and by the epoch of this broker's registration: a command for the process that ran
here before is not for this one. A controller repeats over a new connection what was not answered over the
last; what comes over the old one after that is refused. So what it says of one broker has one order.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.carrying_out import CarryingOut, Placements, Taking, Turn
from tidemill.broker.command_checks import checking_metadata, checking_replicas
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    SECURITY_PROTOCOLS,
    BrokerNode,
    BrokerRegistration,
    ConfigNode,
    ControllerEpochNode,
    Endpoint,
)
from tidemill.coordination.port import Node, StoreError
from tidemill.coordination.topic_index import noting_traits
from tidemill.model.configs import all_unreadable
from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.model.slices import AT_ONCE_MAX, ITEMS_A_PAUSE, with_pauses
from tidemill.model.types import ZERO_ID
from tidemill.replication.partition_state import PartitionState
from tidemill.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)
from tidemill.wire.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
)
from tidemill.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)

log = logging.getLogger("tidemill.broker")

DURING_DELETION = -2
"""As a leader, and as a leader epoch: the topic is being deleted."""
WHOLE_IMAGE = 2
"""The type of requests with the full state. Source: Apache Kafka, ``AbstractControlRequest.Type``."""
UNNUMBERED = 0
"""Of a connection whose place in the order of all is not known."""
Key = tuple[str, bytes]
"""A topic by name and id: another one of that name may have been there before, with settings of its own."""


class Commands(CarryingOut):
    """Carries out what controllers, here or elsewhere, decide."""

    def __init__(
        self, broker: Broker, removed: Callable[[], Awaitable[None]], listener: str | None = None
    ) -> None:
        super().__init__(broker, removed, listener)
        self._newest = UNNUMBERED
        """The newest connection over which the controller of this epoch has sent commands."""
        self._settings: dict[Key, Mapping[str, str]] = {}
        """Settings of topics that the image does not have yet."""
        self._learning: list[Key] = []
        """The topics whose settings are being read."""
        self.settings_unreadable: Callable[[str, str], None] = lambda kind, name: None
        """Called with kind and name where settings could not be read: they are to be read again."""

    async def _refusal(self, request: Any, connection: int) -> ErrorCode | None:
        if request.controller_epoch < self.controller_epoch:
            log.warning(
                "a command of broker %d, which was the controller in epoch %d, is refused: %d is now",
                request.controller_id,
                request.controller_epoch,
                self.controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.controller_epoch > self.controller_epoch and not await self._is_known(request):
            return ErrorCode.NOT_CONTROLLER
        if -1 < request.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.broker_epoch > self.broker_epoch and not await self._is_registered_so(
            request.broker_epoch
        ):
            log.warning(
                "a command of broker %d for a broker of epoch %d is refused: this one, which has the address "
                "now, is of epoch %d",
                request.controller_id,
                request.broker_epoch,
                self.broker_epoch,
            )
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch > self.controller_epoch:
            self._newest = UNNUMBERED
        if UNNUMBERED < connection < self._newest:
            # It was sent before that connection was given up, and has been repeated over a later one since.
            log.warning(
                "a command of broker %d over a connection that it has replaced since is refused",
                request.controller_id,
            )
            return ErrorCode.STALE_BROKER_EPOCH
        self._newest = max(self._newest, connection)
        self.controller_epoch = request.controller_epoch
        return None

    async def _is_known(self, request: Any) -> bool:
        """Whether there has been such a controller: an epoch that nobody had would shut out all to come.

        Where the store does not answer it is believed: that controller may be what brings it back.
        """
        try:
            node = await self._broker.store.get(CONTROLLER_EPOCH)
            known = ControllerEpochNode.decode(node.data) if node is not None else request.controller_epoch
        except StoreError:
            return True
        if request.controller_epoch > known:
            log.warning(
                "a command of broker %d in controller epoch %d is refused: there has been none after %d",
                request.controller_id,
                request.controller_epoch,
                known,
            )
        return bool(request.controller_epoch <= known)

    async def _is_registered_so(self, epoch: int) -> bool:
        """Whether the store has this broker in that epoch: the controller may have heard of it first."""
        node = await self._broker.store.get(BrokerNode.path(self._broker.node_id))
        return node is not None and node.creation_id == epoch

    async def leader_and_isr(
        self, request: LeaderAndIsrRequest, connection: int = UNNUMBERED
    ) -> LeaderAndIsrResponse:
        """Leads and follows as told; KAFKA_STORAGE_ERROR for partitions whose log cannot be had."""
        await with_pauses(checking_replicas(request))
        async with self._one_at_a_time:
            refusal = await self._refusal(request, connection)
            if refusal is not None:
                return LeaderAndIsrResponse(error_code=refusal, partition_errors=[], topics=[])
            if request.type == WHOLE_IMAGE:
                await self._keep_assigned(_placements(request))
            turn = Turn(self._broker.clock)
            await self._learn_settings(request, turn)
            wanted = [await self._taking(topic, turn) for topic in request.topic_states]
            node = self._broker.node_id
            # What is led comes first: the followers that hear of it at the same time ask for it at once.
            for is_led in (True, False):
                for one in wanted:
                    await turn.next()
                    states = [state for state in one.states if (state.leader == node) == is_led]
                    # A failure is logged there, and its partition has failed.
                    with contextlib.suppress(KafkaError):
                        await self._take(one._replace(states=states), turn)
            if request.type == WHOLE_IMAGE:
                await self._warn_of_strays()
            topics = []
            for one in wanted:
                errors = []
                for state in one.states:
                    await turn.next()
                    errors.append(self._result(one.name, state.partition))
                topics.append(LeaderAndIsrTopicError(topic_id=one.topic_id, partition_errors=errors))
            return LeaderAndIsrResponse(error_code=0, partition_errors=[], topics=topics)

    async def _taking(self, topic: LeaderAndIsrTopicState, turn: Turn) -> Taking:
        name, topic_id = topic.topic_name, topic.topic_id
        image = TopicImage(name, topic_id, (), self._settings_of((name, topic_id)))
        fresh = set()
        states = []
        for one in topic.partition_states:
            await turn.next()
            if one.is_new or not self._had(name, one.partition_index, topic_id):
                fresh.add(one.partition_index)
            states.append(_state(one))
        return Taking(name, topic_id, image.internal, image.config, states, fresh)

    def _result(self, topic: str, index: int) -> LeaderAndIsrPartitionError:
        return LeaderAndIsrPartitionError(
            topic_name=topic,
            partition_index=index,
            error_code=ErrorCode.NONE if self._serves(topic, index) else ErrorCode.KAFKA_STORAGE_ERROR,
        )

    async def stop_replica(
        self, request: StopReplicaRequest, connection: int = UNNUMBERED
    ) -> StopReplicaResponse:
        """Lets go of replicas, with their files where that is wanted."""
        async with self._one_at_a_time:
            refusal = await self._refusal(request, connection)
            if refusal is not None:
                return StopReplicaResponse(error_code=refusal, partition_errors=[])
            errors = []
            turn = Turn(self._broker.clock)
            for topic in request.topic_states:
                for one in topic.partition_states:
                    await turn.next()
                    errors.append(
                        StopReplicaPartitionError(
                            topic_name=topic.topic_name,
                            partition_index=one.partition_index,
                            error_code=self._stop(topic.topic_name, one),
                        )
                    )
            await self._removed()
            return StopReplicaResponse(error_code=0, partition_errors=errors)

    def _stop(self, topic: str, state: StopReplicaPartitionState) -> ErrorCode:
        partitions = self._broker.partitions
        known = partitions.find(topic, state.partition_index)
        if known is not None and -1 < state.leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        try:
            partitions.stop_replica(topic, state.partition_index, delete=state.delete_partition)
        except KafkaError as problem:
            log.error("%s-%d cannot be let go: %s", topic, state.partition_index, problem)
            return problem.code
        return ErrorCode.NONE

    async def update_metadata(
        self, request: UpdateMetadataRequest, connection: int = UNNUMBERED
    ) -> UpdateMetadataResponse:
        """Takes the news into the image that clients are answered from."""
        async with self._one_at_a_time:
            refusal = await self._refusal(request, connection)
            if refusal is not None:
                return UpdateMetadataResponse(error_code=refusal)
            metadata = self._broker.metadata
            turn = Turn(self._broker.clock)
            await with_pauses(checking_metadata(request, metadata.image))
            if request.type == WHOLE_IMAGE:
                await self._keep_assigned(_placements(request))
                await with_pauses(self._stopping_to_lead_for(request))
            await self._learn_settings(request, turn)
            delta = Delta.between(metadata.image, await self._image_after(metadata.image, request, turn))
            delta.deleted = tuple(_deleted_for_good(delta, request))
            self._settings.clear()
            await metadata.publish(delta)
            self.heard.set()
            return UpdateMetadataResponse(error_code=0)

    def _stopping_to_lead_for(self, request: UpdateMetadataRequest) -> Generator[None, None, None]:
        """Stops leading partitions that others lead in later epochs; pauses every ``AT_ONCE_MAX`` of them."""
        partitions = self._broker.partitions
        number = 0
        for topic in request.topic_states:
            for one in topic.partition_states:
                number += 1
                if number % AT_ONCE_MAX == 0:
                    yield
                known = partitions.find(topic.topic_name, one.partition_index)
                if known is None or not known.is_leader or one.leader == self._broker.node_id:
                    continue
                if one.leader_epoch > known.leader_epoch:
                    log.warning(
                        "%s-%d is led by broker %d in epoch %d: this broker, which led it in epoch %d, stops",
                        topic.topic_name,
                        one.partition_index,
                        one.leader,
                        one.leader_epoch,
                        known.leader_epoch,
                    )
                    partitions.stop_leading(known)

    async def _image_after(
        self, before: ClusterImage, request: UpdateMetadataRequest, turn: Turn
    ) -> ClusterImage:
        brokers = {one.id: _broker_image(one) for one in request.live_brokers}
        gone = set(before.topics) if request.type == WHOLE_IMAGE else set()
        changed = []
        for topic in request.topic_states:
            await turn.next()
            name = topic.topic_name
            if any(one.leader == DURING_DELETION for one in topic.partition_states):
                gone.add(name)
                continue
            gone.discard(name)
            known = before.topics.get(name)
            if known is not None and known.topic_id != topic.topic_id:
                known = None
            partitions = await with_pauses(_partitions_after(known, topic, brokers))
            settings = self._settings_of((name, topic.topic_id))
            after = TopicImage(name, topic.topic_id, partitions, settings)
            await with_pauses(noting_traits(after))
            changed.append(after)
        image = before.with_cluster(
            before.cluster_id, request.controller_id, request.controller_epoch, brokers
        )
        return image.with_topics(changed, sorted(gone & before.topics.keys()))

    async def _take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        """As in the parent; also of topics of which this broker has replicas, but no metadata yet."""
        changed = [key for key in self._settings if ("topics", key[0]) in settings]
        for key in changed:
            self._settings[key] = settings["topics", key[0]]
        config = self._broker.config
        await super()._take_settings(settings)
        turn = Turn(self._broker.clock)
        # Where the settings of brokers are others now, the image has brought them to none of these topics.
        for key in changed if self._broker.config is config else list(self._settings):
            await turn.next()
            name, topic_id = key
            entry = self._broker.partitions.topics.by_name.get(name.encode())
            if self._known(key) is None and entry is not None and entry.topic_id == topic_id:
                settled = log_config(self._broker.config, name, self._settings[key])
                self._broker.partitions.reconfigure(name, settled)

    def topics_without_metadata(self) -> list[str]:
        return [name for name, _ in (*self._settings, *self._learning)]

    async def _learn_settings(self, request: LeaderAndIsrRequest | UpdateMetadataRequest, turn: Turn) -> None:
        new = []
        for topic in request.topic_states:
            await turn.next()
            key = (topic.topic_name, topic.topic_id)
            if self._known(key) is None and key not in self._settings:
                new.append(key)
        self._learning = new
        try:
            paths = [ConfigNode.path("topics", name) for name, _ in new]
            nodes = await self._broker.store.get_many(paths) if paths else []
            for key, path, node in zip(new, paths, nodes, strict=True):
                await turn.next()
                self._settings[key] = self._read_settings(key[0], path, node)
        finally:
            self._learning = []

    def _read_settings(self, topic: str, path: str, node: Node | None) -> Mapping[str, str]:
        try:
            return ConfigNode.decode(path, node.data) if node is not None else {}
        except NodeFormatError as problem:
            log.error("%s Until then the records of topic %s do not go by their age.", problem, topic)
            self.settings_unreadable("topics", topic)
            return all_unreadable()

    def _settings_of(self, key: Key) -> Mapping[str, str]:
        known = self._known(key)
        return known.config if known is not None else self._settings.get(key, {})

    def _known(self, key: Key) -> TopicImage | None:
        known = self._broker.metadata.image.topics.get(key[0])
        return known if known is not None and known.topic_id == key[1] else None


def _placements(request: LeaderAndIsrRequest | UpdateMetadataRequest) -> Placements:
    return (
        (topic.topic_name, ((one.partition_index, one.replicas) for one in topic.partition_states))
        for topic in request.topic_states
    )


def _deleted_for_good(delta: Delta, request: UpdateMetadataRequest) -> Iterator[TopicImage]:
    """Those that are gone for good: said to be so, or made anew.

    One that had no id, and has one now, is the same: a controller gives ids to topics of older versions of
    Kafka, and this broker may have read the store before that. Others are only not among all that a new
    controller tells of: it may not be able to read their nodes, and what groups have read of them is not
    forgotten for that.
    """
    if not delta.deleted:
        return
    deleted = {
        topic.topic_name
        for topic in request.topic_states
        if any(one.leader == DURING_DELETION for one in topic.partition_states)
    }
    for topic in delta.deleted:
        if topic.name in deleted or (topic.name in delta.image.topics and topic.topic_id != ZERO_ID):
            yield topic


def _state(one: LeaderAndIsrPartitionState) -> PartitionState:
    return PartitionState(
        one.partition_index,
        one.leader,
        one.leader_epoch,
        tuple(one.replicas),
        tuple(one.isr),
        one.partition_epoch,
        tuple(one.adding_replicas),
    )


def _broker_image(one: UpdateMetadataBroker) -> BrokerImage:
    for endpoint in one.endpoints:
        if not 0 <= endpoint.security_protocol < len(SECURITY_PROTOCOLS):
            raise ProtocolError(f"security protocol {endpoint.security_protocol} is not known")
    endpoints = tuple(
        Endpoint(
            endpoint.listener, SECURITY_PROTOCOLS[endpoint.security_protocol], endpoint.host, endpoint.port
        )
        for endpoint in one.endpoints
    )
    return BrokerImage(BrokerRegistration(one.id, endpoints, one.rack), -1)


def _partitions_after(
    known: TopicImage | None, topic: UpdateMetadataTopicState, living: Collection[int]
) -> Generator[None, None, tuple[PartitionImage, ...]]:
    partitions = list(known.partitions) if known is not None else []
    for number, one in enumerate(topic.partition_states, 1):
        if number % ITEMS_A_PAUSE == 0:
            yield
        while len(partitions) <= one.partition_index:
            partitions.append(PartitionImage(len(partitions), -1, 0, [], [], -1))
        partitions[one.partition_index] = PartitionImage(
            one.partition_index,
            one.leader,
            one.leader_epoch,
            one.replicas,
            one.isr,
            one.zk_version,
            offline=frozenset(broker for broker in one.offline_replicas if broker in living),
        )
    return tuple(partitions)
