"""Manages the partitions of this broker: creates, changes and removes them as the controller commands.

The state of the cluster is passed as plain values; this layer does not access the coordination store. The
broker calls the methods for periodic tasks. Blocking work (syncs, file removal) runs in the executor, one
sync of a partition at a time.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final

from tidemill.log.errors import DiskFull, is_disk_broken, is_transient, topic_failure
from tidemill.log.file_names import partition_directory
from tidemill.log.log import Log
from tidemill.log.log_config import LogConfig
from tidemill.log.log_creation import offline_log
from tidemill.log.log_manager import LogManager
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.event_loop_slices import run_in_slices, slices_of, yield_to_loop
from tidemill.model.system_interfaces import Clock
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.replication.abstract_fetcher_manager import AbstractFetcherManager
from tidemill.replication.checkpoint_writer import Checkpoints
from tidemill.replication.full_disk_reports import FullDiskLog
from tidemill.replication.hosted_topics import TopicEntry, TopicSettings, TopicTable
from tidemill.replication.log_failure_handler import LogFailureHandler
from tidemill.replication.log_flusher import LogFlusher
from tidemill.replication.log_start_checkpoint import LogStartCheckpointWriter
from tidemill.replication.message_format import message_format_of, validation_limits_of
from tidemill.replication.mirror_promotions import MirrorPromotions
from tidemill.replication.page_writeback import WriteBack
from tidemill.replication.partition import Partition, PartitionEvents
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_alter_log_dirs import ReplicaAlterLogDirs

logger = logging.getLogger("tidemill.replication")

FOLLOW_RETRY_S: Final = 1.0
"""The delay after a failed truncation: the disk may be full, or descriptors missing."""


class ReplicaManagerListener(ABC):
    """The part of a broker that communicates for its replicas with the controller."""

    @abstractmethod
    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """A leader requests another ISR, over the state of ``partition_epoch``.

        :meth:`ReplicaManager.isr_changed` or :meth:`ReplicaManager.isr_refused` completes the request.
        """

    @abstractmethod
    def is_registered(self, broker_id: int) -> bool:
        """Whether a broker is registered, in the metadata of this broker."""

    @abstractmethod
    def directory_failed(self) -> None:
        """A data directory has gone offline."""

    @abstractmethod
    def directory_distrusted(self) -> None:
        """A data directory was marked because of a failed sync."""


class ReplicaManager(PartitionEvents, LogFailureHandler):
    """The partitions with a replica on this broker."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        syncers: Executor,
        writers: Executor,
        listener: ReplicaManagerListener,
    ) -> None:
        self.listener = listener
        self.node_id = node_id
        self.logs = logs
        self.clock = clock
        self.loop = loop
        self.syncers = syncers
        self.topics = TopicTable()
        self.write_back = WriteBack(loop, writers, self)
        self.checkpoints = Checkpoints(logs, loop, syncers)
        self.full_disks = FullDiskLog(logs.dirs, clock)
        self.log_flusher = LogFlusher(logs, self.checkpoints, self.full_disks, clock, loop, syncers, self)
        self.log_start_writer = LogStartCheckpointWriter(logs, self.checkpoints, loop)
        self.replica_alter_log_dirs = ReplicaAlterLogDirs(
            logs,
            self.topics,
            self.checkpoints,
            self.full_disks,
            clock,
            loop,
            self,
        )
        self.leadership_listeners: list[Callable[[Partition, bool], None]] = []
        """Called with a partition and whether this broker leads it, when that or its leader epoch changes."""
        self.replica_fetcher_manager: AbstractFetcherManager | None = None
        """None if no broker follows another."""
        self._marking: set[asyncio.Future[list[StorageError]]] = set()
        self.unsynced_logs: dict[TopicPartition, int] = {}
        """Logs that were open in a power failure, with their recovery points at the start: there may be holes
        after these offsets, which no later sync fills.
        """
        self.promotions = MirrorPromotions(self.topics, clock)
        self.isr_shrinks = 0
        self.isr_expands = 0
        """The number of times that ISRs of partitions led here have shrunk and expanded."""

    @property
    def full_directories(self) -> list[str]:
        """Data directories without disk space."""
        return list(self.full_disks.since)

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition, if this broker has it."""
        return self.topics.find(topic, index)

    def all(self) -> Iterator[Partition]:
        """All partitions of this broker."""
        for entry in self.topics.by_name.values():
            for partition in entry.partitions:
                if partition is not None:
                    yield partition

    # Changes

    def put_topic_in_slices(
        self,
        name: str,
        topic_id: bytes,
        internal: bool,
        states: Sequence[PartitionState],
        config: LogConfig,
        new_partitions: Container[int] = (),
    ) -> Generator[None, None, None]:
        """Creates missing partitions of a topic, and applies new states, with a pause before each.

        ``new_partitions``: the partitions whose replicas are new on this broker. Raises one StorageError for
        all partitions that cannot be created; they return their error to clients, and the other partitions
        are served.
        """
        entry = self.topics.by_name.get(name.encode())
        if entry is not None and entry.topic_id != topic_id:
            yield from self.deleting(name, entry.topic_id)
            entry = None
        if entry is None:
            entry = TopicEntry(name, topic_id, internal)
            self.topics.put(entry)
        count = max((state.partition for state in states), default=-1) + 1
        entry.partitions.extend([None] * (count - len(entry.partitions)))
        settings = TopicSettings(config)
        self.promotions.apply_settings(entry, config)
        failures: dict[int, StorageError] = {}
        for state in states:
            if self.node_id not in state.replicas:
                continue
            yield
            partition = entry.partitions[state.partition]
            if partition is None:
                try:
                    is_new = state.partition in new_partitions
                    partition = self._create_partition(entry, state, config, is_new=is_new)
                except StorageError as problem:
                    failures[state.partition] = problem
                    partition = self._create_offline_partition(entry, state.partition, config, problem)
                entry.partitions[state.partition] = partition
            # Before it may lead: with a lower min.insync.replicas it could commit records that no other
            # replica has.
            settings.apply(partition, self.clock.monotonic_ms())
            self._apply_newer_state(partition, state)
        if failures:
            raise topic_failure(name, failures)

    def _may_replace(self, topic: str, state: PartitionState) -> bool:
        """Whether this broker may start with an empty log where a former topic of the same name has one.

        Either the leader has the records, or there are none yet, or this broker has reported that it has
        none, which the controller knows. A broker has no records of a topic that was created after its start.
        Otherwise the store may be wrong, for instance restored from an old copy.
        """
        if self.replica_fetcher_manager is None:
            return False
        is_first = state.leader_epoch == 0 and state.partition_epoch == 0
        has_none = self.logs.dirs.may_replace(TopicPartition(topic, state.partition))
        return is_first or has_none or state.leader not in (self.node_id, -1)

    def _create_partition(
        self, entry: TopicEntry, state: PartitionState, config: LogConfig, *, is_new: bool
    ) -> Partition:
        key = TopicPartition(entry.name, state.partition)
        found = self.logs.create(key, entry.topic_id, config, self.clock.wall_ms(), is_new=is_new)
        if self._may_replace(entry.name, state) and ZERO_ID != found.topic_id != entry.topic_id:
            aside = self.logs.set_aside(key, self.clock.wall_ms())
            logger.error(
                "%s held a topic of this name with another id (%s, the cluster's is %s), which was deleted "
                "while this broker was down: its records are kept in %s until that is removed",
                found.directory,
                found.topic_id.hex(),
                entry.topic_id.hex(),
                aside,
            )
            found = self.logs.create(key, entry.topic_id, config, self.clock.wall_ms())
        if found.topic_id == ZERO_ID:
            self._assign_id(found, entry.topic_id)
        elif found.topic_id != entry.topic_id:
            raise StorageError(
                f"{found.directory} holds a topic of this name with another id ({found.topic_id.hex()}, the"
                f" cluster's is {entry.topic_id.hex()}): move the directory away"
            )
        promised = self.logs.promised.pop(key, 0)
        is_alone = state.replicas == (self.node_id,)
        if is_alone and promised > found.end_offset:  # Otherwise another replica may have the records.
            logger.warning("%s continues at offset %d: lower offsets are not assigned again", key, promised)
            found.skip_to(promised, self.clock.wall_ms())
            found.flush(self.clock.wall_ms())  # A start after a power failure has to find it, too.
            self.logs.checkpoint_recovery_points()
        self.full_disks.report_warnings()
        partition = Partition(
            entry.name,
            state.partition,
            found,
            validation_limits_of(config),
            self.node_id,
            self,
            message_format_of(config),
        )
        # Records above the known high watermark may be on no other replica.
        known = max(self.logs.dirs.high_watermarks.get(key, 0), int(found.start_offset))
        partition.high_watermark = min(known, int(found.end_offset))
        partition.note_offset_change()
        return partition

    def _assign_id(self, found: Log, topic_id: bytes) -> None:
        """Sets the topic id of a log; on a full disk only until the next start. Raises StorageError."""
        try:
            self.logs.assign_topic_id(found, topic_id)
        except DiskFull as problem:
            # Its records can be read anyway, and the next start asks the store for the id again.
            found.topic_id = topic_id
            logger.warning("%s has no partition.metadata before the next start: %s", found.directory, problem)

    def _create_offline_partition(
        self, entry: TopicEntry, index: int, config: LogConfig, problem: StorageError
    ) -> Partition:
        """Creates an offline partition, which returns KAFKA_STORAGE_ERROR to all requests."""
        key = TopicPartition(entry.name, index)
        failed = [directory for directory in self.logs.dirs.all if directory.is_offline]
        path = (failed or self.logs.dirs.all)[0].file(partition_directory(key))
        one = offline_log(self.logs.files, path, key, config, entry.topic_id)
        partition = Partition(entry.name, index, one, validation_limits_of(config), self.node_id, self)
        partition.mark_offline(str(problem))
        return partition

    def _apply_newer_state(self, partition: Partition, state: PartitionState) -> None:
        known = (int(partition.leader_epoch), int(partition.partition_epoch))
        if (state.leader_epoch, state.partition_epoch) < known:
            logger.info("%s-%d: %s is older than the current state", partition.topic, partition.index, state)
            return
        # A later version with the same content completes a requested change of the one before.
        if (
            known == (state.leader_epoch, state.partition_epoch)
            and partition.leader == state.leader
            and partition.isr == state.isr
            and partition.replicas == state.replicas
        ):
            return
        self._apply_state(partition, state)

    def _apply_state(self, partition: Partition, state: PartitionState) -> None:
        led, epoch, leader = partition.is_leader, partition.leader_epoch, partition.leader
        if led and state.leader == leader:
            # A member without a replica any more was moved away by a reassignment.
            members = [one for one in partition.isr if one in state.replicas]
            self.isr_shrinks += any(one not in state.isr for one in members)
            self.isr_expands += any(one not in partition.isr for one in state.isr)
        partition.apply_state(
            state.leader,
            state.leader_epoch,
            state.replicas,
            state.isr,
            partition_epoch=state.partition_epoch,
            now_ms=self.clock.monotonic_ms(),
            adding=state.adding,
        )
        if partition.is_offline:
            return
        if partition.is_leader:
            # Other replicas follow the log in its current state, and new records are acknowledged.
            self.unsynced_logs.pop(partition.log.topic_partition, None)
        is_new = (epoch, leader) != (partition.leader_epoch, partition.leader)
        if self.replica_fetcher_manager is not None and is_new:
            if partition.is_leader or partition.leader < 0:
                self.replica_fetcher_manager.remove_partition(partition)
            else:
                self.follow(partition)
        if led != partition.is_leader or (led and is_new):
            for listener in self.leadership_listeners:
                listener(partition, partition.is_leader)

    def follow(self, partition: Partition) -> None:
        """Follows the leader of ``partition`` in its current leader epoch.

        If the log cannot be truncated, the partition is not followed, because its fetches would claim records
        that are not on disk. This is retried unless the partition gets another leader.
        """
        if self.replica_fetcher_manager is None:
            return
        try:
            self._truncate_unsynced(partition)
            starts = self.logs.dirs.directory_of(partition.log).start_offsets
            if starts.written(partition.log.topic_partition) < partition.log.start_offset:
                # A power failure could restore a lower log start offset.
                partition.save_log_start_offset()
            self.replica_fetcher_manager.add_partition(partition)
        except StorageError as problem:
            self.replica_fetcher_manager.remove_partition(partition)
            self.on_storage_error(partition, problem)
            self.loop.call_later(FOLLOW_RETRY_S, self._retry_follow, partition, _leader_of(partition))

    def _retry_follow(self, partition: Partition, leader: tuple[int, int]) -> None:
        is_gone = partition.is_offline or partition.deleted or self.log_flusher.stopping
        if not is_gone and leader == _leader_of(partition):
            self.follow(partition)

    def _truncate_unsynced(self, partition: Partition) -> None:
        """Truncates a log that was open in a power failure to its synced part, unless this broker has led
        since.

        The leader has the other records. Raises StorageError.
        """
        key = partition.log.topic_partition
        if key in self.unsynced_logs:
            partition.truncate_to(
                self.unsynced_logs[key],
                self.clock.wall_ms(),
                "they were not synced before the power failure; they are fetched again from the leader",
            )
            del self.unsynced_logs[key]

    def step_down(self) -> None:
        """Stops leading and following all partitions that other brokers have, until the controller's next
        state.

        Called after the session has expired: another broker may lead them.
        """
        for partition in self.all():
            if len(partition.replicas) > 1:
                self.stop_leading(partition)

    def stop_leading(self, partition: Partition) -> None:
        """Stops leading or following a partition until the controller's next state.

        Delayed produces fail with NOT_LEADER_OR_FOLLOWER. Nothing is deleted.
        """
        if partition.leader >= 0:
            self._apply_state(partition, PartitionState.of(partition)._replace(leader=-1))

    def stop_unassigned(self, some: list[Partition], assigned: Container[TopicPartition]) -> list[Partition]:
        """Stops replicas that are not ``assigned`` to this broker. Returns those that led; the logs stay."""
        led = []
        for partition in some:
            key = TopicPartition(partition.topic, int(partition.index))
            if key in assigned:
                continue
            if partition.is_leader and not partition.is_offline:
                led.append(partition)
            self.logs.set_high_watermark(key, int(partition.high_watermark))
            self.stop_leading(partition)
            self.stop_replica(partition.topic, int(partition.index), delete=False)
        return led

    def stop_replica(self, topic: str, index: int, *, delete: bool) -> None:
        """Removes a partition, with ``delete`` also its files. Raises StorageError."""
        entry = self.topics.by_name.get(topic.encode())
        partition = entry.partition(index) if entry is not None else None
        if entry is not None and partition is not None:
            entry.remove_partition(partition)
            self._delete(partition)
            if not any(entry.partitions):
                self.topics.remove(entry)
        key = TopicPartition(topic, index)
        if delete and self.logs.get(key) is not None:
            self.logs.delete(key, self.clock.wall_ms())

    def reconfigure(self, name: str, config: LogConfig) -> None:
        """Applies a topic's settings."""
        entry = self.topics.by_name.get(name.encode())
        if entry is None:
            return
        settings = TopicSettings(config)
        self.promotions.apply_settings(entry, config)
        for partition in filter(None, entry.partitions):
            settings.apply(partition, self.clock.monotonic_ms())

    def deleting(self, name: str, topic_id: bytes, partition_count: int = 0) -> Iterator[None]:
        """Removes a topic, with a pause for each log; the files are removed later. Raises StorageError.

        Also removes logs that an interrupted deletion left behind: ``partition_count`` avoids a search of all
        logs. Logs of a former topic of the same name stay.
        """
        entry = self.topics.by_name.get(name.encode())
        count = partition_count if entry is None else len(entry.partitions)
        keys: Iterable[TopicPartition] = (TopicPartition(name, number) for number in range(count))
        keys = keys if count else [key for key in self.logs.logs if key.topic == name]
        if entry is not None:
            self.topics.remove(entry)
            for partition in filter(None, entry.partitions):
                yield
                self._delete(partition)
                entry.remove_partition(partition)
        failure = None
        for key in keys:
            yield
            found = self.logs.get(key)
            if found is not None and ZERO_ID not in (topic_id, found.topic_id) and found.topic_id != topic_id:
                logger.warning("%s stays: it belongs to another topic of the same name", found.directory)
                continue
            try:
                self.logs.delete(key, self.clock.wall_ms())
            except StorageError as problem:
                failure = failure or problem
        if failure is not None:
            raise failure

    def _delete(self, partition: Partition) -> None:
        led = partition.is_leader
        partition.delete()
        self._stop_replication(partition, led)

    def _stop_replication(self, partition: Partition, led: bool) -> None:
        if self.replica_fetcher_manager is not None:
            self.replica_fetcher_manager.remove_partition(partition)
        if led:
            for listener in self.leadership_listeners:
                listener(partition, False)

    # Log start offsets

    def log_start_offset_moved(self, partition: Partition) -> None:
        """Writes the log start offset of ``partition`` in a thread, then notifies it."""
        self.log_start_writer.begin(partition)

    def is_alive(self, broker: int) -> bool:
        """Whether DeleteRecords waits for a broker."""
        return self.listener.is_registered(broker)

    # Flushes

    def flush_requested(self, partition: Partition) -> None:
        """Syncs the log of ``partition`` in a thread, then notifies it."""
        self.log_flusher.begin(partition)

    def sync_failed(self, one: Log, problem: StorageError) -> None:
        """Takes the data directory offline, unless the log was deleted meanwhile.

        After a failed sync the system may have dropped unwritten data: the next sync would succeed although
        that data is not on disk. Only a restart, which reads the logs, can determine their content.
        """
        if not one.closed and is_transient(problem):
            self.full_disks.flush_failed(one.topic_partition, problem)
        else:
            self._fail_directory(one, problem, is_trusted=False)

    def _fail_directory(self, one: Log, problem: StorageError, *, is_trusted: bool) -> None:
        """``is_trusted``: the disk has all written data, and the next start may read it from the cache."""
        if one.closed:
            return
        directory = self.logs.dirs.directory_of(one)
        self._take_offline(directory.path, str(problem))
        if not is_trusted:
            marking = self.loop.run_in_executor(None, self.logs.dirs.mark_sync_failed, directory)
            self._marking.add(marking)
            marking.add_done_callback(self._on_directory_marked)

    def _on_directory_marked(self, marking: asyncio.Future[list[StorageError]]) -> None:
        self._marking.discard(marking)
        if not marking.cancelled():
            for problem in marking.result():
                logger.warning("could not write a mark of the failed sync: %s", problem)
        self.listener.directory_distrusted()

    def _take_offline(self, path: str, reason: str) -> None:
        for key in self.logs.dirs.fail_directory(path, reason):
            partition = self.find(key.topic, key.partition)
            if partition is not None:
                self._mark_offline(partition, reason)
        self.full_disks.report_warnings()
        self.listener.directory_failed()

    def on_storage_error(self, partition: Partition, error: KafkaError) -> None:
        """Takes the data directory offline if its disk is broken, after the current request."""
        if isinstance(error, DiskFull):
            self.full_disks.append_rejected(self.logs.dirs.directory_of(partition.log).path, error)
        elif isinstance(error, StorageError):
            if is_disk_broken(error):
                self.loop.call_soon(self.sync_failed, partition.log, error)
            else:
                self.full_disks.log_limited(
                    partition.log.directory, f"{partition.topic}-{partition.index}: {error}"
                )

    async def check_directories(self) -> None:
        """Checks for full disks that have space again, and takes removed data directories offline."""
        self.full_disks.remove_recovered()
        for path in await self.loop.run_in_executor(self.syncers, self.logs.dirs.missing_directories):
            self._take_offline(
                path,
                f"{path} or its meta.properties does not exist: another program has removed or "
                "unmounted it. Restore it, and restart the broker",
            )

    def storage_failed(self, one: Log, problem: StorageError) -> None:
        """Takes the data directory of a log offline: a partial rename leaves it unusable."""
        self._fail_directory(one, problem, is_trusted=not is_disk_broken(problem))

    def high_watermark_of(self, key: TopicPartition) -> int | None:
        """The high watermark of a partition; None if it is not served here."""
        partition = self.find(key.topic, key.partition)
        return None if partition is None or partition.is_offline else int(partition.high_watermark)

    def _mark_offline(self, partition: Partition, reason: str) -> None:
        led = partition.is_leader and not partition.is_offline
        partition.mark_offline(reason)
        self._stop_replication(partition, led)

    # ISR changes

    def isr_requested(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Forwards a requested ISR."""
        self.listener.alter_isr(partition, isr, int(partition_epoch))

    def isr_changed(self, partition: Partition, state: PartitionState) -> None:
        """Applies the requested ISR that the controller has written."""
        if not partition.deleted:
            self._apply_newer_state(partition, state)

    def isr_refused(self, partition: Partition) -> None:
        """The controller has rejected the requested ISR."""
        partition.isr_refused(self.clock.monotonic_ms())

    async def maybe_shrink_isr(self) -> None:
        """Requests the removal of followers from ISRs that have not caught up for too long."""
        for some in slices_of(list(self.all())):
            now_ms = self.clock.monotonic_ms()
            for partition in some:
                is_led = partition.is_leader and not partition.is_offline and not partition.deleted
                if is_led and partition.replication is not None:
                    partition.maybe_shrink_isr(now_ms)
            await yield_to_loop()

    def records_truncated(self, partition: Partition, first: int, last: int, reason: str) -> None:
        """Logs the records that a follower has truncated, with the reason."""
        logger.warning(
            "%s-%d: truncated the records of offsets %d to %d: %s",
            partition.topic,
            partition.index,
            first,
            last,
            reason,
        )

    def write_back_requested(self, partition: Partition) -> None:
        """Writes back the new bytes of ``partition`` in a thread."""
        self.write_back.begin(partition)

    # Periodic tasks

    async def cleanup_logs(self) -> None:
        """Applies retention to some partitions at a time."""
        count = 0
        for some in slices_of(list(self.all())):
            ends = {
                TopicPartition(one.topic, int(one.index)): int(one.high_watermark)
                for one in some
                if self.find(one.topic, int(one.index)) is one
            }
            moved = self.logs.cleanup_logs(self.clock.wall_ms(), ends)
            count += len(moved)
            for key in moved:
                partition = self.find(key.topic, key.partition)
                if partition is not None:
                    partition.delayed.record_change()
                    if not partition.is_leader:
                        partition.save_log_start_offset()
            await yield_to_loop()
        if count:
            logger.info("retention advanced the start offset of %d logs", count)
            await self.checkpoints.write_log_starts()
        await run_in_slices(self.logs.remove_expired_producers_in_slices(self.clock.wall_ms()))
        self.full_disks.report_warnings()

    async def remove_due(self) -> None:
        """Removes files whose delay is over, in a thread."""
        paths = self.logs.removals.pop_due(self.clock.wall_ms())
        if paths:
            for problem in await self.loop.run_in_executor(self.syncers, self.logs.remove_paths, paths):
                logger.error("%s", problem)

    def high_watermark_moved(self, partition: Partition) -> None:
        """Registers the high watermark for the next checkpoint."""
        self.checkpoints.moved[partition] = None

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks of all partitions."""
        return {
            TopicPartition(partition.topic, int(partition.index)): int(partition.high_watermark)
            for partition in self.all()
        }

    async def stop(self) -> None:
        """Waits for flushes and checkpoints in progress, and interrupts moves."""
        self.log_flusher.stopping = True
        self.log_start_writer.stop()
        await self.replica_alter_log_dirs.stop()
        tasks = self.log_flusher.under_way | self.write_back.under_way | self.checkpoints.under_way
        await asyncio.gather(*tasks, return_exceptions=True)
        # The failed syncs among these tasks have started to mark their directories.
        await asyncio.gather(*self._marking, return_exceptions=True)


def _leader_of(partition: Partition) -> tuple[int, int]:
    return int(partition.leader), int(partition.leader_epoch)
