"""What a controller, in this process or in another broker, has this broker do.

The controller of this process hands over its images. Another one sends LeaderAndIsr (which replicas to lead
and to follow), StopReplica (which to let go), and UpdateMetadata (what clients are told). All are fenced by
the controller's epoch, and by the epoch of this broker's registration: a command for the process that ran
here before is not for this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.context import RequestContext
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.nodes import BrokerRegistration, ConfigNode, Endpoint
from tidemill.log.errors import failure_of
from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.replication.manager import PartitionState
from tidemill.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
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

LOGS_A_TURN = 50
"""Logs that are made, or partitions that are led or followed, before the loop does its other work."""
DURING_DELETION = -2
"""As a leader, and as a leader epoch: the topic is being deleted."""
WHOLE_IMAGE = 1
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""By their numbers in UpdateMetadata."""


class Commands:
    """Carries out what controllers decide, one command at a time."""

    def __init__(
        self, broker: Broker, removed: Callable[[], Awaitable[None]], listener: str | None = None
    ) -> None:
        """``removed`` is awaited after logs were deleted, before that is confirmed.

        ``listener`` is the one through which brokers reach each other; None: there are no others.
        """
        self.listener = listener
        self.controller_epoch = 0
        self.broker_epoch = -1
        """Of this broker's registration; -1 as long as it is not registered."""
        self.heard = asyncio.Event()
        """Set once the first command for this registration was carried out."""
        self._broker = broker
        self._removed = removed
        self._one_at_a_time = asyncio.Lock()
        self._settings: dict[str, Mapping[str, str]] = {}
        """Settings of topics that the image does not have yet."""

    # The controller of this process

    async def carry_out(self, delta: Delta) -> None:
        """Carries out a change that this process's controller has decided, and makes its image current."""
        async with self._one_at_a_time:
            if delta.image.controller_epoch < self.controller_epoch:
                log.warning("a later controller has sent commands: this one's are not carried out")
                return
            self.controller_epoch = delta.image.controller_epoch
            await self._remove(delta)
            turn = Turn()
            for topic in delta.created:
                await self._put(delta, topic, topic.partitions, turn)
            for old, topic in delta.changed:
                await self._put(delta, topic, changed_partitions(old, topic), turn)
                await self._let_go(delta, old, topic)
            await self._broker.metadata.publish(delta)
            self.heard.set()

    async def _remove(self, delta: Delta) -> None:
        partitions = self._broker.partitions
        for topic in delta.deleted:
            try:
                partitions.remove_topic(topic.name, topic.topic_id)
            except KafkaError as problem:
                log.error("%s: %s", topic.name, problem)
                delta.fail(topic.name, problem)
        if delta.deleted:
            await self._removed()

    async def _put(
        self, delta: Delta, topic: TopicImage, changed: Iterable[PartitionImage], turn: Turn
    ) -> None:
        states = [
            PartitionState(
                one.partition,
                one.leader,
                one.leader_epoch,
                tuple(one.replicas),
                tuple(one.isr),
                one.partition_epoch,
            )
            for one in changed
            if self._broker.node_id in one.replicas
        ]
        try:
            await self._take(topic.name, topic.topic_id, topic.internal, states, topic.config, turn)
        except KafkaError as problem:
            delta.fail(topic.name, problem)

    async def _let_go(self, delta: Delta, old: TopicImage, new: TopicImage) -> None:
        node = self._broker.node_id
        gone = [
            before.partition
            for before, after in zip(old.partitions, new.partitions, strict=False)
            if before is not after and node in before.replicas and node not in after.replicas
        ]
        for index in gone:
            try:
                self._broker.partitions.stop_replica(new.name, index, delete=True)
            except KafkaError as problem:
                delta.fail(new.name, problem)
        if gone:
            await self._removed()

    async def _take(
        self,
        name: str,
        topic_id: bytes,
        internal: bool,
        states: Sequence[PartitionState],
        settings: Mapping[str, str],
        turn: Turn,
    ) -> None:
        """Makes the logs that are missing, and takes the states over. Raises what it could not, in one."""
        if not states:
            return
        broker = self._broker
        config = log_config(broker.config, settings)
        failures: dict[int, KafkaError] = {}
        failure: KafkaError | None = None
        for state in states:
            await turn.next()
            if broker.partitions.find(name, state.partition) is None:
                try:
                    key = TopicPartition(name, state.partition)
                    broker.logs.create(key, topic_id, config, broker.clock.wall_ms())
                except KafkaError as problem:
                    log.error("%s-%d: %s", name, state.partition, problem)
                    failures[state.partition] = problem
        for start in range(0, len(states), LOGS_A_TURN):
            try:
                piece = states[start : start + LOGS_A_TURN]
                broker.partitions.put_topic(name, topic_id, internal, piece, config)
            except KafkaError as problem:
                log.error("%s: %s", name, problem)
                failure = failure or problem
            await asyncio.sleep(0)
        if failures:
            raise failure_of(name, failures)
        if failure is not None:
            raise failure

    async def take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        """Takes settings (by kind and name) over that somebody wrote to the store."""
        async with self._one_at_a_time:
            metadata = self._broker.metadata
            image = metadata.image.with_settings(settings)
            if image is not metadata.image:
                await metadata.publish(Delta.between(metadata.image, image))

    # Controllers of other processes

    def are_open_to(self, context: RequestContext) -> bool:
        """Whether a request among brokers may come as this one came: others than brokers could send it."""
        return self.listener is not None and context.listener.name == self.listener

    def _refusal(self, request: Any) -> ErrorCode | None:
        if request.controller_epoch < self.controller_epoch:
            log.warning(
                "a command of broker %d, which was the controller in epoch %d, is refused: %d is now",
                request.controller_id,
                request.controller_epoch,
                self.controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if -1 < request.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        self.controller_epoch = request.controller_epoch
        return None

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Leads and follows as told; KAFKA_STORAGE_ERROR for partitions whose log cannot be had."""
        async with self._one_at_a_time:
            refusal = self._refusal(request)
            if refusal is not None:
                return LeaderAndIsrResponse(error_code=refusal, partition_errors=[], topics=[])
            await self._learn_settings([topic.topic_name for topic in request.topic_states])
            turn = Turn()
            topics = []
            for topic in request.topic_states:
                name, topic_id = topic.topic_name, topic.topic_id
                image = TopicImage(name, topic_id, (), self._settings_of(name))
                states = [_state(one) for one in topic.partition_states]
                # A failure is logged there, and its partition has failed.
                with contextlib.suppress(KafkaError):
                    await self._take(name, topic_id, image.internal, states, image.config, turn)
                errors = [self._result(name, one.partition_index) for one in topic.partition_states]
                topics.append(LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=errors))
            return LeaderAndIsrResponse(error_code=0, partition_errors=[], topics=topics)

    def _result(self, topic: str, index: int) -> LeaderAndIsrPartitionError:
        partition = self._broker.partitions.find(topic, index)
        failed = partition is None or partition.failed
        return LeaderAndIsrPartitionError(
            topic_name=topic,
            partition_index=index,
            error_code=ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE,
        )

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Lets go of replicas, with their files where that is wanted."""
        async with self._one_at_a_time:
            refusal = self._refusal(request)
            if refusal is not None:
                return StopReplicaResponse(error_code=refusal, partition_errors=[])
            errors = []
            turn = Turn()
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

    async def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Takes the news into the image that clients are answered from."""
        async with self._one_at_a_time:
            refusal = self._refusal(request)
            if refusal is not None:
                return UpdateMetadataResponse(error_code=refusal)
            await self._learn_settings([topic.topic_name for topic in request.topic_states])
            metadata = self._broker.metadata
            delta = Delta.between(metadata.image, self._image_after(metadata.image, request))
            self._settings.clear()
            await metadata.publish(delta)
            self.heard.set()
            return UpdateMetadataResponse(error_code=0)

    def _image_after(self, before: ClusterImage, request: UpdateMetadataRequest) -> ClusterImage:
        brokers = {one.id: _broker_image(one) for one in request.live_brokers}
        gone = set(before.topics) if request.type == WHOLE_IMAGE else set()
        changed = []
        for topic in request.topic_states:
            name = topic.topic_name
            if any(one.leader == DURING_DELETION for one in topic.partition_states):
                gone.add(name)
                continue
            gone.discard(name)
            known = before.topics.get(name)
            if known is not None and known.topic_id != topic.topic_id:
                known = None
            partitions = _partitions_after(known, topic)
            changed.append(TopicImage(name, topic.topic_id, partitions, self._settings_of(name)))
        image = before.with_cluster(
            before.cluster_id, request.controller_id, request.controller_epoch, brokers
        )
        return image.with_topics(changed, gone & set(before.topics))

    async def _learn_settings(self, names: Iterable[str]) -> None:
        known = self._broker.metadata.image.topics
        new = [name for name in names if name not in known and name not in self._settings]
        paths = [ConfigNode.path("topics", name) for name in new]
        nodes = await self._broker.store.get_many(paths) if paths else []
        for name, path, node in zip(new, paths, nodes, strict=True):
            self._settings[name] = ConfigNode.decode(path, node.data) if node is not None else {}

    def _settings_of(self, name: str) -> Mapping[str, str]:
        known = self._broker.metadata.image.topics.get(name)
        return known.config if known is not None else self._settings.get(name, {})


class Turn:
    """Lets the loop do its other work after every so many steps."""

    def __init__(self) -> None:
        self._steps = 0

    async def next(self) -> None:
        """One more step."""
        self._steps += 1
        if self._steps % LOGS_A_TURN == 0:
            await asyncio.sleep(0)


def changed_partitions(old: TopicImage, new: TopicImage) -> list[PartitionImage]:
    """The partitions of ``new`` that are not as they were."""
    known = old.partitions
    return [one for place, one in enumerate(new.partitions) if place >= len(known) or one is not known[place]]


def _state(one: LeaderAndIsrPartitionState) -> PartitionState:
    return PartitionState(
        one.partition_index,
        one.leader,
        one.leader_epoch,
        tuple(one.replicas),
        tuple(one.isr),
        one.partition_epoch,
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
    known: TopicImage | None, topic: UpdateMetadataTopicState
) -> tuple[PartitionImage, ...]:
    partitions = list(known.partitions) if known is not None else []
    for one in topic.partition_states:
        while len(partitions) <= one.partition_index:
            partitions.append(PartitionImage(len(partitions), -1, 0, [], [], -1))
        partitions[one.partition_index] = PartitionImage(
            one.partition_index, one.leader, one.leader_epoch, one.replicas, one.isr, one.zk_version
        )
    return tuple(partitions)
