"""Applies the changes of the controller to this broker: creates logs, leads, follows and stops replicas.

Changes are applied one after another, from the controller of this process as well as from requests.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.broker.dynamic_broker_config import effective_config
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata_cache import Delta, MetadataCache, PartitionImage, TopicImage
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import TOPIC
from tidemill.coordination.nodes import ConfigResource
from tidemill.log.log_manager import LogManager
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.model.event_loop_slices import (
    ITEMS_PER_SLICE,
    STEPS_PER_SLICE,
    TimeSlice,
    run_in_slices,
    slices_of,
    yield_to_loop,
)
from tidemill.model.system_interfaces import Clock
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager

logger = logging.getLogger("tidemill.broker")

NEW_FOLLOWER_DELAY_S_MAX = 0.25
"""How long this broker waits for the other brokers to apply a change, before it creates logs of new
followers."""


ReplicaAssignments = Iterable[tuple[str, Iterable[tuple[int, Sequence[int]]]]]
"""Topics by name, each with its partitions by index, each with the brokers of its replicas."""


class TopicLeaderAndIsr(NamedTuple):
    """The states of the partitions of one topic that this broker leads or follows."""

    name: str
    topic_id: bytes
    internal: bool
    settings: Mapping[str, str]
    states: Sequence[PartitionState]
    new_partitions: Container[int]
    """The partitions whose replicas are new on this broker."""


class LeaderAndIsrListener(ABC):
    """Receives the failures and deviations that the application of a change detects."""

    @abstractmethod
    def own_replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """A change assigns partitions (by topic id) to this broker that cannot be opened."""

    @abstractmethod
    def own_replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """This broker serves partitions (by topic id) that are offline in the controller's image."""

    @abstractmethod
    def topic_deletion_refused(self, topic: TopicImage) -> None:
        """The logs of a deleted topic cannot be deleted now, for instance because the disk is full."""

    @abstractmethod
    def replica_deletion_refused(self, topic: TopicImage, index: int) -> None:
        """A partition was reassigned, and its log cannot be deleted now."""

    @abstractmethod
    def controller_moved(self) -> None:
        """The controller of this process makes a change although a later one has sent requests."""


class LeaderAndIsrApplier:
    """Applies changes of the cluster to the partitions and the metadata of this broker."""

    def __init__(
        self,
        node_id: int,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        log_manager: LogManager,
        replica_manager: ReplicaManager,
        metadata_cache: MetadataCache,
        *,
        removed: Callable[[], Awaitable[None]],
        listener: LeaderAndIsrListener,
    ) -> None:
        """``removed``: see :attr:`removed`."""
        self.controller_epoch = 0
        self.broker_epoch = -1
        """The epoch of this broker's registration; -1 before the registration."""
        self.first_change_applied = asyncio.Event()
        """Set after the first change for this registration was applied."""
        self._node_id = node_id
        self._config = config
        self._clock = clock
        self._log_manager = log_manager
        self._replica_manager = replica_manager
        self._metadata_cache = metadata_cache
        self._listener = listener
        self._next_config: BrokerConfig | None = None
        """The configuration that a change contains, while its partitions are applied."""
        self.removed = removed
        """Awaited after logs were deleted, before that is confirmed."""
        self.lock = asyncio.Lock()
        """Held while a change is applied."""

    # The controller of this process

    async def apply_delta(
        self, announcement: Announcement, published: asyncio.Future[None] | None = None
    ) -> None:
        """Applies a change of this process's controller, and publishes its image.

        ``published`` is done when the image is published and this broker leads the partitions that it has to
        lead. The logs of new followers are created after that: no client waits for them. Their failures are
        passed to :meth:`LeaderAndIsrListener.own_replicas_failed` as well.
        """
        delta = announcement.delta
        async with self.lock:
            if delta.image.controller_epoch < self.controller_epoch:
                logger.warning(
                    "a change of controller epoch %d is not applied: requests of epoch %d were applied",
                    delta.image.controller_epoch,
                    self.controller_epoch,
                )
                self._listener.controller_moved()
                return
            self.controller_epoch = delta.image.controller_epoch
            if not delta.before.brokers:
                await self.stop_unassigned_replicas(
                    (topic.name, ((one.partition, one.replicas) for one in topic.partitions))
                    for topic in delta.image.topics.values()
                )
            time_slice = TimeSlice(self._clock)
            await self._delete_topics(announcement, time_slice)
            failed: list[tuple[bytes, int]] = []
            if delta.broker_configs_changed:
                # Before this broker leads partitions: with the former, lower min.insync.replicas it would
                # commit records that no other replica has.
                self._next_config = effective_config(self._config(), delta.image, self._node_id)
            try:
                new_followers = [
                    await self._apply_topic(announcement, one, one.partitions, time_slice, failed)
                    for one in delta.created
                ]
                for old, topic in delta.changed:
                    new_followers.append(
                        await self._apply_topic(
                            announcement, topic, topic.changed_partitions(old), time_slice, failed
                        )
                    )
                    await self._delete_reassigned_replicas(announcement, old, topic, time_slice)
            finally:
                self._next_config = None
            if not delta.before.brokers:
                await self.log_stray_directories({*delta.image.deleting, *delta.image.unreadable_of(TOPIC)})
            for name, failure in (await self._metadata_cache.publish(delta)).items():
                announcement.fail(name, failure)
            self.first_change_applied.set()
            if published is not None and not published.done():
                published.set_result(None)
            if failed:
                self._listener.own_replicas_failed(failed)
            new_followers = [one for one in new_followers if one.states]
            if new_followers and announcement.others:
                # This thread also sends the change to the other brokers, for which clients wait.
                await asyncio.wait(announcement.others, timeout=NEW_FOLLOWER_DELAY_S_MAX)
            await self._apply_new_followers(announcement, new_followers, time_slice)

    async def _apply_new_followers(
        self, announcement: Announcement, new_followers: Sequence[TopicLeaderAndIsr], time_slice: TimeSlice
    ) -> None:
        failed: list[tuple[bytes, int]] = []
        for one in new_followers:
            await self._apply_and_collect_failures(announcement, one, time_slice, failed)
        if failed:
            self._listener.own_replicas_failed(failed)

    async def _apply_and_collect_failures(
        self,
        announcement: Announcement,
        leader_and_isr: TopicLeaderAndIsr,
        time_slice: TimeSlice,
        failed: list[tuple[bytes, int]],
    ) -> None:
        """Applies the states of one topic.

        Adds partitions that cannot be opened to ``failed``, unless the controller has them as offline.
        Reports served partitions that the controller has as offline.
        """
        served: list[tuple[bytes, int]] = []
        try:
            await self.apply_states(leader_and_isr, time_slice)
        except KafkaError as problem:
            announcement.fail(leader_and_isr.name, problem)
        image = announcement.delta.image.topics.get(leader_and_isr.name)
        for state in leader_and_isr.states:
            await time_slice.step()
            known = image.partition(state.partition) if image is not None else None
            is_offline = known is not None and self._node_id in known.offline
            if self.serves(leader_and_isr.name, state.partition):
                if is_offline:
                    served.append((leader_and_isr.topic_id, state.partition))
            elif not is_offline:
                failed.append((leader_and_isr.topic_id, state.partition))
        if served:
            self._listener.own_replicas_served(served)

    def serves(self, topic: str, index: int) -> bool:
        """Whether this broker has the partition, and its directory works."""
        partition = self._replica_manager.find(topic, index)
        return partition is not None and not partition.is_offline

    async def stop_unassigned_replicas(self, topics: ReplicaAssignments) -> None:
        """Stops leading and following replicas that a full request does not assign to this broker.

        Their logs are kept. An earlier controller may have reassigned the partitions and ended before its
        StopReplica arrived.
        """
        assigned = await run_in_slices(_assigned_to(self._node_id, topics))
        for some in slices_of(list(self._replica_manager.all()), STEPS_PER_SLICE):
            for partition in self._replica_manager.stop_unassigned(list(some), assigned):
                logger.warning(
                    "this broker stops leading %s-%d: the controller assigns no replica of it here. "
                    "Records that this broker acknowledged after the reassignment are in %s only",
                    partition.topic,
                    partition.index,
                    partition.log.directory,
                )
            await yield_to_loop()

    async def log_stray_directories(self, others: Container[str] = ()) -> None:
        """Warns of logs whose partitions have no replica here. Called once all replicas here are known.

        The logs are kept, as by Apache Kafka's brokers on ZooKeeper: an operator may have removed the topic
        by mistake.
        """
        strays = []
        for some in slices_of(list(self._log_manager.logs.items()), ITEMS_PER_SLICE):
            strays += [
                one.directory
                for key, one in some
                if key.topic not in others and self._replica_manager.find(key.topic, key.partition) is None
            ]
            await yield_to_loop()
        if strays:
            logger.warning(
                "directories of partitions of which this broker has no replica: %d, %s for instance. These "
                "were reassigned or deleted while this broker was stopped, or the coordination store was "
                "restored from an older copy, or the controller cannot read the nodes of their topic, which "
                "it logs. The directories stay until an operator removes them",
                len(strays),
                strays[0],
            )

    async def _delete_topics(self, announcement: Announcement, time_slice: TimeSlice) -> None:
        for topic in announcement.delta.deleted:
            try:
                for _ in self._replica_manager.deleting(topic.name, topic.topic_id, len(topic.partitions)):
                    await time_slice.step()
            except KafkaError as problem:
                logger.error("%s: %s", topic.name, problem)
                announcement.fail(topic.name, problem)
                self._listener.topic_deletion_refused(topic)
        if announcement.delta.deleted:
            await self.removed()

    async def retry_topic_deletion(self, topic: TopicImage) -> None:
        """Deletes the logs of a topic whose deletion has failed before. Raises StorageError."""
        async with self.lock:
            known = self._replica_manager.topics.by_name.get(topic.name.encode())
            if known is not None and known.topic_id != topic.topic_id:
                return  # Another controller has completed the deletion, and a new topic has the name.
            time_slice = TimeSlice(self._clock)
            for _ in self._replica_manager.deleting(topic.name, topic.topic_id, len(topic.partitions)):
                await time_slice.step()
            await self.removed()

    async def retry_replica_deletion(self, topic: TopicImage, index: int) -> None:
        """Deletes a replica that was reassigned, unless it is assigned again. Raises StorageError."""
        async with self.lock:
            known = self._metadata_cache.image.topic_of((topic.name, topic.topic_id))
            if known is None:
                return  # The deletion of the topic has deleted this replica as well.
            image = known.partition(index)
            is_assigned = image is not None and self._node_id in image.replicas
            # Another controller may have assigned it again, and send its UpdateMetadata next.
            if not is_assigned and self._replica_manager.find(topic.name, index) is None:
                self._replica_manager.stop_replica(topic.name, index, delete=True)
                await self.removed()

    async def _apply_topic(
        self,
        announcement: Announcement,
        topic: TopicImage,
        changed: Iterable[PartitionImage],
        time_slice: TimeSlice,
        failed: list[tuple[bytes, int]],
    ) -> TopicLeaderAndIsr:
        """Applies the states for which clients wait.

        Returns those of new followers, which are applied later.
        """
        node = self._node_id
        new_partitions: set[int] = set()
        now: list[PartitionState] = []
        new_followers: list[PartitionState] = []
        for one in changed:
            await time_slice.step()
            if node not in one.replicas:
                continue
            if not self.had_replica(topic.name, one.partition, topic.topic_id):
                new_partitions.add(one.partition)
            (new_followers if one.leader != node and one.partition in new_partitions else now).append(
                state_of(one)
            )
        leader_and_isr = TopicLeaderAndIsr(
            topic.name, topic.topic_id, topic.internal, topic.config, now, new_partitions
        )
        await self._apply_and_collect_failures(announcement, leader_and_isr, time_slice, failed)
        return leader_and_isr._replace(states=new_followers)

    async def _delete_reassigned_replicas(
        self, announcement: Announcement, old: TopicImage, new: TopicImage, time_slice: TimeSlice
    ) -> None:
        node = self._node_id
        reassigned = [
            before.partition
            for before, after in zip(old.partitions, new.partitions, strict=False)
            if before is not after and node in before.replicas and node not in after.replicas
        ]
        for index in reassigned:
            await time_slice.step()
            try:
                self._replica_manager.stop_replica(new.name, index, delete=True)
            except KafkaError as problem:
                logger.error("%s-%d: %s", new.name, index, problem)
                announcement.fail(new.name, problem)
                self._listener.replica_deletion_refused(new, index)
        if reassigned:
            await self.removed()

    async def apply_states(self, leader_and_isr: TopicLeaderAndIsr, time_slice: TimeSlice) -> None:
        """Creates the missing logs, and applies the states. Raises one error for all failed partitions."""
        name, topic_id = leader_and_isr.name, leader_and_isr.topic_id
        states = [state for state in leader_and_isr.states if self._node_id in state.replicas]
        if not states:
            return
        config = log_config(self._next_config or self._config(), name, leader_and_isr.settings)
        try:
            for _ in self._replica_manager.put_topic_in_slices(
                name, topic_id, leader_and_isr.internal, states, config, leader_and_isr.new_partitions
            ):
                await time_slice.step()
        except KafkaError as problem:
            logger.error("%s: %s", name, problem)
            raise

    def had_replica(self, name: str, index: int, topic_id: bytes) -> bool:
        """Whether this broker had the replica before. Its disk may be missing now.

        The first change of a new controller has all partitions as if they were new, and may have ids for
        topics that an older version of Kafka has created without ids.
        """
        known = self._metadata_cache.image.topics.get(name)
        if known is None or known.topic_id not in (topic_id, ZERO_ID) or index >= len(known.partitions):
            return False
        return self._node_id in known.partitions[index].replicas

    async def publish_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Publishes an image with ``settings``. The caller holds :attr:`lock`."""
        metadata = self._metadata_cache
        image = metadata.image.with_settings(settings)
        if image is not metadata.image:
            await metadata.publish(Delta.between(metadata.image, image))


def _assigned_to(broker_id: int, topics: ReplicaAssignments) -> Generator[None, None, set[TopicPartition]]:
    """Returns the partitions with a replica on a broker. Yields after ``ITEMS_PER_SLICE`` partitions each."""
    found = set()
    number = 0
    for name, partitions in topics:
        for index, replicas in partitions:
            number += 1
            if number % ITEMS_PER_SLICE == 0:
                yield
            if broker_id in replicas:
                found.add(TopicPartition(name, index))
    return found


def state_of(image: PartitionImage) -> PartitionState:
    """Converts the image of a partition to the state that the partition applies."""
    return PartitionState(
        image.partition,
        image.leader,
        image.leader_epoch,
        tuple(image.replicas),
        tuple(image.isr),
        image.partition_epoch,
        tuple(image.adding),
    )
