"""Handles the requests of a controller in another broker: LeaderAndIsr, StopReplica, UpdateMetadata.

All requests are fenced by the controller epoch and by the broker epoch: a request for a former process of
this broker is refused. A controller repeats its unacknowledged requests over a new connection. A request that
arrives over the former connection after that is refused, so that the requests of one controller have one
order. Changes of the controller in this process are applied by
:meth:`tidemill.broker.apply_leader_and_isr.LeaderAndIsrApplier.apply_delta`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping

from tidemill.broker.apply_leader_and_isr import (
    LeaderAndIsrApplier,
    ReplicaAssignments,
    TopicLeaderAndIsr,
)
from tidemill.broker.controller_request_checks import check_leader_and_isr, check_update_metadata
from tidemill.broker.controller_requests import DURING_DELETION, FULL_REQUEST, ControllerRequest
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata_cache import (
    BrokerImage,
    ClusterImage,
    Delta,
    MetadataCache,
    PartitionImage,
    TopicImage,
)
from tidemill.coordination.coordination_store import Node, Store, StoreError
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    CONTROLLER_EPOCH,
    SECURITY_PROTOCOLS,
    BrokerNode,
    BrokerRegistration,
    ConfigNode,
    ConfigResource,
    ControllerEpochNode,
    Endpoint,
)
from tidemill.coordination.topic_image import TopicKey
from tidemill.coordination.topic_index import compute_traits_in_slices
from tidemill.model.configs import BrokerConfig, all_unreadable
from tidemill.model.errors import ErrorCode, KafkaError, ProtocolError
from tidemill.model.event_loop_slices import ITEMS_AT_ONCE_MAX, ITEMS_PER_SLICE, TimeSlice, run_in_slices
from tidemill.model.system_interfaces import Clock
from tidemill.model.types import ZERO_ID
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager
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

logger = logging.getLogger("tidemill.broker")

UNKNOWN_CONNECTION = 0
"""The number of a connection that has no place in the order of connections."""


class ControllerRequestHandler:
    """Handles the requests of a controller in another broker."""

    def __init__(
        self,
        node_id: int,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        store: Store,
        replica_manager: ReplicaManager,
        metadata_cache: MetadataCache,
        applier: LeaderAndIsrApplier,
        *,
        settings_unreadable: Callable[[ConfigResource], None],
    ) -> None:
        """``settings_unreadable`` is called with a resource whose settings are to be read again."""
        self._node_id = node_id
        self._config = config
        self._clock = clock
        self._store = store
        self._replica_manager = replica_manager
        self._metadata_cache = metadata_cache
        self._applier = applier
        self._settings_unreadable = settings_unreadable
        self._newest_connection = UNKNOWN_CONNECTION
        """The newest connection over which the controller of this epoch has sent requests."""
        self._settings: dict[TopicKey, Mapping[str, str]] = {}
        """Settings of topics that are not in the image yet. A former topic of the same name had others."""
        self._loading: list[TopicKey] = []
        """The topics whose settings are being read from the store."""

    async def _fencing_error(self, request: ControllerRequest, connection: int) -> ErrorCode | None:
        if request.controller_epoch < self._applier.controller_epoch:
            logger.warning(
                "a request of broker %d, the controller of epoch %d, is refused: the controller epoch is %d",
                request.controller_id,
                request.controller_epoch,
                self._applier.controller_epoch,
            )
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if (
            request.controller_epoch > self._applier.controller_epoch
            and not await self._is_known_controller_epoch(request)
        ):
            return ErrorCode.NOT_CONTROLLER
        if -1 < request.broker_epoch < self._applier.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.broker_epoch > self._applier.broker_epoch and not await self._is_registered_epoch(
            request.broker_epoch
        ):
            logger.warning(
                "a request of broker %d for broker epoch %d is refused: this broker, which has the address "
                "now, has epoch %d",
                request.controller_id,
                request.broker_epoch,
                self._applier.broker_epoch,
            )
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch > self._applier.controller_epoch:
            self._newest_connection = UNKNOWN_CONNECTION
        if UNKNOWN_CONNECTION < connection < self._newest_connection:
            # The controller has replaced the connection since, and repeated the request over the new one.
            logger.warning(
                "a request of broker %d over a connection that it has replaced is refused",
                request.controller_id,
            )
            return ErrorCode.STALE_BROKER_EPOCH
        self._newest_connection = max(self._newest_connection, connection)
        self._applier.controller_epoch = request.controller_epoch
        return None

    async def _is_known_controller_epoch(self, request: ControllerRequest) -> bool:
        """Whether the store has this controller epoch: an invented one would fence off all later controllers.

        Without an answer of the store the epoch is accepted: the requests may be needed for a recovery.
        """
        try:
            node = await self._store.get(CONTROLLER_EPOCH)
            known = ControllerEpochNode.decode(node.data) if node is not None else request.controller_epoch
        except StoreError:
            return True
        if request.controller_epoch > known:
            logger.warning(
                "a request of broker %d in controller epoch %d is refused: the epoch in the store is %d",
                request.controller_id,
                request.controller_epoch,
                known,
            )
        return request.controller_epoch <= known

    async def _is_registered_epoch(self, epoch: int) -> bool:
        """Whether the store has ``epoch`` for this broker, which the controller may know earlier."""
        node = await self._store.get(BrokerNode.path(self._node_id))
        return node is not None and node.creation_id == epoch

    async def leader_and_isr(
        self, request: LeaderAndIsrRequest, connection: int = UNKNOWN_CONNECTION
    ) -> LeaderAndIsrResponse:
        """Leads and follows partitions.

        Responds KAFKA_STORAGE_ERROR for partitions whose log cannot be opened.
        """
        await run_in_slices(check_leader_and_isr(request))
        async with self._applier.lock:
            error = await self._fencing_error(request, connection)
            if error is not None:
                return LeaderAndIsrResponse(error_code=error, partition_errors=[], topics=[])
            if request.type == FULL_REQUEST:
                await self._applier.stop_unassigned_replicas(_assignments(request))
            time_slice = TimeSlice(self._clock)
            await self._load_settings(request, time_slice)
            wanted = [await self._topic_leader_and_isr(topic, time_slice) for topic in request.topic_states]
            # Leaders first: their followers receive the change at the same time, and fetch at once.
            for is_led in (True, False):
                for one in wanted:
                    await time_slice.step()
                    states = [state for state in one.states if (state.leader == self._node_id) == is_led]
                    # apply_states logs the failure, and the partition's state shows it.
                    with contextlib.suppress(KafkaError):
                        await self._applier.apply_states(one._replace(states=states), time_slice)
            if request.type == FULL_REQUEST:
                await self._applier.log_stray_directories()
            topics = []
            for one in wanted:
                errors = []
                for state in one.states:
                    await time_slice.step()
                    errors.append(self._result(one.name, state.partition))
                topics.append(LeaderAndIsrTopicError(topic_id=one.topic_id, partition_errors=errors))
            return LeaderAndIsrResponse(error_code=0, partition_errors=[], topics=topics)

    async def _topic_leader_and_isr(
        self, topic: LeaderAndIsrTopicState, time_slice: TimeSlice
    ) -> TopicLeaderAndIsr:
        name, topic_id = topic.topic_name, topic.topic_id
        image = TopicImage(name, topic_id, (), self._settings_of((name, topic_id)))
        new_partitions = set()
        states = []
        for one in topic.partition_states:
            await time_slice.step()
            if one.is_new or not self._applier.had_replica(name, one.partition_index, topic_id):
                new_partitions.add(one.partition_index)
            states.append(_state(one))
        return TopicLeaderAndIsr(name, topic_id, image.internal, image.config, states, new_partitions)

    def _result(self, topic: str, index: int) -> LeaderAndIsrPartitionError:
        return LeaderAndIsrPartitionError(
            topic_name=topic,
            partition_index=index,
            error_code=ErrorCode.NONE
            if self._applier.serves(topic, index)
            else ErrorCode.KAFKA_STORAGE_ERROR,
        )

    async def stop_replica(
        self, request: StopReplicaRequest, connection: int = UNKNOWN_CONNECTION
    ) -> StopReplicaResponse:
        """Stops replicas, and deletes the logs of those with ``delete_partition``."""
        async with self._applier.lock:
            error = await self._fencing_error(request, connection)
            if error is not None:
                return StopReplicaResponse(error_code=error, partition_errors=[])
            errors = []
            time_slice = TimeSlice(self._clock)
            for topic in request.topic_states:
                for one in topic.partition_states:
                    await time_slice.step()
                    errors.append(
                        StopReplicaPartitionError(
                            topic_name=topic.topic_name,
                            partition_index=one.partition_index,
                            error_code=self._stop(topic.topic_name, one),
                        )
                    )
            await self._applier.removed()
            return StopReplicaResponse(error_code=0, partition_errors=errors)

    def _stop(self, topic: str, state: StopReplicaPartitionState) -> ErrorCode:
        known = self._replica_manager.find(topic, state.partition_index)
        if known is not None and -1 < state.leader_epoch < known.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        try:
            self._replica_manager.stop_replica(topic, state.partition_index, delete=state.delete_partition)
        except KafkaError as problem:
            logger.error("%s-%d cannot be stopped: %s", topic, state.partition_index, problem)
            return problem.code
        return ErrorCode.NONE

    async def update_metadata(
        self, request: UpdateMetadataRequest, connection: int = UNKNOWN_CONNECTION
    ) -> UpdateMetadataResponse:
        """Publishes an image with the metadata of the request."""
        async with self._applier.lock:
            error = await self._fencing_error(request, connection)
            if error is not None:
                return UpdateMetadataResponse(error_code=error)
            metadata = self._metadata_cache
            time_slice = TimeSlice(self._clock)
            await run_in_slices(check_update_metadata(request, metadata.image))
            if request.type == FULL_REQUEST:
                await self._applier.stop_unassigned_replicas(_assignments(request))
                await run_in_slices(self._stop_replaced_leaders(request))
            await self._load_settings(request, time_slice)
            delta = Delta.between(
                metadata.image, await self._image_after(metadata.image, request, time_slice)
            )
            delta = delta._replace(deleted=tuple(_deleted_permanently(delta, request)))
            self._settings.clear()
            await metadata.publish(delta)
            self._applier.first_change_applied.set()
            return UpdateMetadataResponse(error_code=0)

    def _stop_replaced_leaders(self, request: UpdateMetadataRequest) -> Generator[None, None, None]:
        """Stops leading partitions that others lead in later epochs.

        Yields after ``ITEMS_AT_ONCE_MAX`` partitions.
        """
        number = 0
        for topic in request.topic_states:
            for one in topic.partition_states:
                number += 1
                if number % ITEMS_AT_ONCE_MAX == 0:
                    yield
                known = self._replica_manager.find(topic.topic_name, one.partition_index)
                if known is None or not known.is_leader or one.leader == self._node_id:
                    continue
                if one.leader_epoch > known.leader_epoch:
                    logger.warning(
                        "this broker stops leading %s-%d: broker %d leads it in epoch %d, this broker led it "
                        "in epoch %d",
                        topic.topic_name,
                        one.partition_index,
                        one.leader,
                        one.leader_epoch,
                        known.leader_epoch,
                    )
                    self._replica_manager.stop_leading(known)

    async def _image_after(
        self, before: ClusterImage, request: UpdateMetadataRequest, time_slice: TimeSlice
    ) -> ClusterImage:
        brokers = {one.id: _broker_image(one) for one in request.live_brokers}
        gone = set(before.topics) if request.type == FULL_REQUEST else set()
        changed = []
        for topic in request.topic_states:
            await time_slice.step()
            name = topic.topic_name
            if any(one.leader == DURING_DELETION for one in topic.partition_states):
                gone.add(name)
                continue
            gone.discard(name)
            known = before.topic_of((name, topic.topic_id))
            partitions = await run_in_slices(_partitions_after(known, topic, brokers))
            settings = self._settings_of((name, topic.topic_id))
            after = TopicImage(name, topic.topic_id, partitions, settings)
            await run_in_slices(compute_traits_in_slices(after))
            changed.append(after)
        image = before.with_cluster(
            before.cluster_id, request.controller_id, request.controller_epoch, brokers
        )
        return image.with_topics(changed, sorted(gone & before.topics.keys()))

    async def apply_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Applies settings that another broker or an administrator wrote to the store.

        They also apply to topics without metadata here, if this broker has replicas of them.
        """
        # Under the lock: this broker may become the controller meanwhile, and then reads later settings.
        async with self._applier.lock:
            await self._apply_settings_locked(settings)

    async def _apply_settings_locked(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        changed = [key for key in self._settings if ConfigResource("topics", key[0]) in settings]
        for key in changed:
            self._settings[key] = settings[ConfigResource("topics", key[0])]
        config = self._config()
        await self._applier.publish_settings(settings)
        time_slice = TimeSlice(self._clock)
        # Changed broker settings apply to all topics without metadata: publishing the image has skipped them.
        for key in changed if self._config() is config else list(self._settings):
            await time_slice.step()
            name, topic_id = key
            entry = self._replica_manager.topics.by_name.get(name.encode())
            if (
                self._metadata_cache.image.topic_of(key) is None
                and entry is not None
                and entry.topic_id == topic_id
            ):
                config_of_log = log_config(self._config(), name, self._settings[key])
                self._replica_manager.reconfigure(name, config_of_log)

    def topics_without_metadata(self) -> list[str]:
        """Returns the topics whose settings this broker has, or reads now, without their metadata."""
        return [name for name, _ in (*self._settings, *self._loading)]

    async def _load_settings(
        self, request: LeaderAndIsrRequest | UpdateMetadataRequest, time_slice: TimeSlice
    ) -> None:
        new = []
        for topic in request.topic_states:
            await time_slice.step()
            key = (topic.topic_name, topic.topic_id)
            if self._metadata_cache.image.topic_of(key) is None and key not in self._settings:
                new.append(key)
        self._loading = new
        try:
            paths = [ConfigNode.path("topics", name) for name, _ in new]
            nodes = await self._store.get_many(paths) if paths else []
            for key, path, node in zip(new, paths, nodes, strict=True):
                await time_slice.step()
                self._settings[key] = self._read_settings(key[0], path, node)
        finally:
            self._loading = []

    def _read_settings(self, topic: str, path: str, node: Node | None) -> Mapping[str, str]:
        try:
            return ConfigNode.decode(path, node.data) if node is not None else {}
        except NodeFormatError as problem:
            logger.error("%s Until then no record of topic %s is deleted by its age.", problem, topic)
            self._settings_unreadable(ConfigResource("topics", topic))
            return all_unreadable()

    def _settings_of(self, key: TopicKey) -> Mapping[str, str]:
        known = self._metadata_cache.image.topic_of(key)
        return known.config if known is not None else self._settings.get(key, {})


def _assignments(request: LeaderAndIsrRequest | UpdateMetadataRequest) -> ReplicaAssignments:
    return (
        (topic.topic_name, ((one.partition_index, one.replicas) for one in topic.partition_states))
        for topic in request.topic_states
    )


def _deleted_permanently(delta: Delta, request: UpdateMetadataRequest) -> Iterator[TopicImage]:
    """Yields the topics that the request marks as deleted, or that were recreated.

    A topic without an id that has one now is the same topic: a controller adds ids to topics of older
    versions of Kafka. Other topics are only missing in the full request of a new controller. It may be unable
    to read their nodes, so that the offsets of groups for these topics are kept.
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
        if number % ITEMS_PER_SLICE == 0:
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
