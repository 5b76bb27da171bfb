"""All partitions of this broker: made, changed and removed as the controller says, flushed and checkpointed.

The cluster's state comes in as plain values; this layer knows no coordination store. Timers are the
broker's: it calls the methods of the section "upkeep" when they are due. What blocks (syncing, removing
files) runs in the executor, one sync of a partition at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Executor

from tidemill.log.config import LogConfig
from tidemill.log.errors import DiskFull, failure_of, is_disk_broken, may_pass
from tidemill.log.log import Log
from tidemill.log.making import offline_log
from tidemill.log.manager import LogManager
from tidemill.log.names import partition_directory
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.ports import Clock
from tidemill.model.slices import a_pause, slices_of
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.replication.checkpoints import Checkpoints
from tidemill.replication.flushing import Flushing
from tidemill.replication.follower_start import FollowerStart
from tidemill.replication.follows import Follows
from tidemill.replication.full_disks import FullDisks
from tidemill.replication.log_start_checkpoint import StartSaving
from tidemill.replication.moves import Mover
from tidemill.replication.partition import Partition, PartitionEvents
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.storage import limits_of, storage_of
from tidemill.replication.topics import TopicEntry, TopicTable, apply_topic_config
from tidemill.replication.write_back import WriteBack

log = logging.getLogger("tidemill.replication")


class ReplicaManager(PartitionEvents):
    """The partitions that have a replica here."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        syncers: Executor,
        writers: Executor,
    ) -> None:
        self.node_id = node_id
        self.logs = logs
        self.clock = clock
        self.loop = loop
        self.syncers = syncers
        self.topics = TopicTable()
        self.mover = Mover(self)
        self.write_back = WriteBack(loop, writers, self.sync_failed)
        self.checkpoints = Checkpoints(logs, loop, syncers)
        self.leadership_listeners: list[Callable[[Partition, bool], None]] = []
        """Called with a partition and whether this broker leads it, when that changes."""
        self.change_isr: Callable[[Partition, tuple[int, ...], int], None] | None = None
        """Asks the controller for another in-sync set over the state of that partition epoch. Without it none
        changes."""
        self.following: Follows | None = None
        """None where no broker follows another."""
        self.lag_ms_max = 30_000
        """``replica.lag.time.max.ms``: who has not caught up for so long is not in sync."""
        self.directory_failed: Callable[[], None] | None = None
        """Called when a data directory was put aside."""
        self.directory_distrusted: Callable[[], None] | None = None
        """Called when a data directory was marked in which a sync failed."""
        self._marking: set[asyncio.Future[list[StorageError]]] = set()
        self.doubtful: dict[TopicPartition, int] = {}
        """Logs that were open when the machine went down, with their recovery points at the start: behind
        these there may be holes, which no sync since then fills."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        """How often in-sync sets of partitions led here lost or got members."""
        self.full_disks = FullDisks(logs, clock)
        self.flushing = Flushing(self)
        self.starts = StartSaving(self)
        self.follower_start = FollowerStart(self)
        self.is_registered: Callable[[int], bool] = lambda broker: True
        """Whether a broker is registered, in the metadata of this broker."""

    @property
    def full(self) -> list[str]:
        """Data directories that had no room lately."""
        return list(self.full_disks.since)

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition when this broker has it."""
        return self.topics.find(topic, index)

    def all(self) -> Iterator[Partition]:
        """Every partition of this broker."""
        for entry in self.topics.by_name.values():
            for partition in entry.partitions:
                if partition is not None:
                    yield partition

    # Changes.

    def put_topic(
        self,
        name: str,
        topic_id: bytes,
        internal: bool,
        states: Sequence[PartitionState],
        config: LogConfig,
    ) -> None:
        """Makes what is new of a topic, and takes over what changed.

        Raises StorageError for a partition that cannot be made; the others are served all the same, and it
        answers with that error.
        """
        entry = self.topics.by_name.get(name.encode())
        if entry is not None and entry.topic_id != topic_id:
            list(self.removing(name, entry.topic_id))
            entry = None
        if entry is None:
            entry = TopicEntry(name, topic_id, internal)
        count = max((state.partition for state in states), default=-1) + 1
        entry.partitions.extend([None] * (count - len(entry.partitions)))
        failures: dict[int, StorageError] = {}
        for state in states:
            if self.node_id not in state.replicas:
                continue
            partition = entry.partitions[state.partition]
            if partition is None:
                try:
                    is_alone = state.replicas == (self.node_id,)
                    may_replace = self._may_replace(name, state)
                    partition = self._make(entry, state.partition, config, is_alone, may_replace)
                except StorageError as problem:
                    failures[state.partition] = problem
                    partition = self._offline(entry, state.partition, config, problem)
                entry.partitions[state.partition] = partition
            # Before it may lead: by a lower value it could commit what no other replica has.
            partition.set_min_insync(config.min_insync_replicas, self.clock.monotonic_ms())
            self._become(partition, state)
        self.topics.put(entry)
        # Not the others: a topic of many partitions comes in pieces.
        configured = [entry.partitions[state.partition] for state in states]
        apply_topic_config(configured, config, self.clock.monotonic_ms())
        if failures:
            raise failure_of(name, failures)

    def _may_replace(self, topic: str, state: PartitionState) -> bool:
        """Whether this broker may begin with an empty log where one of another topic of the name lies.

        The leader has the records, or there are none yet, or this broker has reported that it has none: then
        the controller counts on that. This broker has no records of a topic that was created after its start.
        Otherwise the store may be what is wrong: an old state of it may have been brought back.
        """
        if self.following is None:
            return False
        is_first = state.leader_epoch == 0 and state.partition_epoch == 0
        has_none = self.logs.may_replace(TopicPartition(topic, state.partition))
        return is_first or has_none or state.leader not in (self.node_id, -1)

    def _make(
        self, entry: TopicEntry, index: int, config: LogConfig, is_alone: bool, may_replace: bool
    ) -> Partition:
        key = TopicPartition(entry.name, index)
        found = self.logs.create(key, entry.topic_id, config, self.clock.wall_ms(), is_new=False)
        if may_replace and ZERO_ID != found.topic_id != entry.topic_id:
            aside = self.logs.set_aside(key, self.clock.wall_ms())
            log.error(
                "%s held a topic of this name with another id (%s, the cluster's is %s), which was deleted "
                "while this broker was away: its records are in %s now, until somebody removes that",
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
        if is_alone and promised > found.end_offset:  # otherwise another replica may have the records
            log.warning("%s goes on at offset %d: none below it is given out again", key, promised)
            found.skip_to(promised, self.clock.wall_ms())
            found.flush(self.clock.wall_ms())  # A start after a power cut is to find it, too.
            self.logs.checkpoint_recovery_points()
        self.report_warnings()
        partition = Partition(
            entry.name, index, found, limits_of(config), self.node_id, self, storage_of(config)
        )
        # What lies above what was known to be committed may be on no other replica.
        known = max(self.logs.high_watermarks.get(key, 0), int(found.start_offset))
        partition.high_watermark = min(known, int(found.end_offset))
        partition.note_move()
        return partition

    def _assign_id(self, found: Log, topic_id: bytes) -> None:
        """Gives a log the id of its topic; on a full disk until the next start only. Raises StorageError."""
        try:
            self.logs.assign_topic_id(found, topic_id)
        except DiskFull as problem:
            # Its records can be read all the same, and the next start asks the store for the id again.
            found.topic_id = topic_id
            log.warning("%s has no partition.metadata before the next start: %s", found.directory, problem)

    def _offline(self, entry: TopicEntry, index: int, config: LogConfig, problem: StorageError) -> Partition:
        """A partition whose log cannot be had: it answers KAFKA_STORAGE_ERROR to whoever asks."""
        key = TopicPartition(entry.name, index)
        failed = [directory for directory in self.logs.directories if directory.failure]
        path = (failed or self.logs.directories)[0].file(partition_directory(key))
        one = offline_log(self.logs.files, path, key, config, entry.topic_id)
        partition = Partition(entry.name, index, one, limits_of(config), self.node_id, self)
        partition.fail(str(problem))
        return partition

    def _become(self, partition: Partition, state: PartitionState) -> None:
        known = (int(partition.leader_epoch), int(partition.partition_epoch))
        if (state.leader_epoch, state.partition_epoch) < known:
            log.info("%s-%d: %s is older than what is known", partition.topic, partition.index, state)
            return
        # A later version that says the same ends a change that was asked for over the one before.
        if (
            known == (state.leader_epoch, state.partition_epoch)
            and partition.leader == state.leader
            and partition.isr == state.isr
            and partition.replicas == state.replicas
        ):
            return
        self._change(partition, state)

    def _change(self, partition: Partition, state: PartitionState) -> None:
        led, epoch, leader = partition.is_leader, partition.leader_epoch, partition.leader
        if led and state.leader == leader:
            # Who leaves the set as it has no replica any more was moved away.
            members = [one for one in partition.isr if one in state.replicas]
            self.isr_shrinks += any(one not in state.isr for one in members)
            self.isr_expands += any(one not in partition.isr for one in state.isr)
        partition.lag_ms_max = self.lag_ms_max
        partition.adding = state.adding
        partition.become(
            state.leader,
            state.leader_epoch,
            state.replicas,
            state.isr,
            state.partition_epoch,
            self.clock.monotonic_ms(),
        )
        if partition.failed:
            return
        if partition.is_leader:
            # The others follow this log as it is, and what comes now is acknowledged.
            self.doubtful.pop(partition.log.topic_partition, None)
        if self.following is not None and (epoch, leader) != (partition.leader_epoch, partition.leader):
            if partition.is_leader or partition.leader < 0:
                self.following.leave(partition)
            else:
                self.follower_start.begin(partition)
        if led != partition.is_leader:
            for listener in self.leadership_listeners:
                listener(partition, partition.is_leader)

    def step_down(self) -> None:
        """Leads and follows nothing any more of what other brokers have, too, until it is told anew.

        For a broker whose session has ended: another may lead what it led.
        """
        for partition in self.all():
            if len(partition.replicas) > 1:
                self.stop_leading(partition)

    def stop_leading(self, partition: Partition) -> None:
        """Leads or follows a partition no longer until the controller says who does.

        Produces that wait are answered with NOT_LEADER_OR_FOLLOWER. Nothing is deleted.
        """
        if partition.leader >= 0:
            self._change(partition, PartitionState.of(partition)._replace(leader=-1))

    def keep_replicas(self, some: list[Partition], assigned: Container[TopicPartition]) -> list[Partition]:
        """Stops replicas that are not ``assigned`` to this broker. Returns those that led; the logs stay."""
        led = []
        for partition in some:
            key = TopicPartition(partition.topic, int(partition.index))
            if key in assigned:
                continue
            if partition.is_leader and not partition.failed:
                led.append(partition)
            self.logs.set_high_watermark(key, int(partition.high_watermark))
            self.stop_leading(partition)
            self.stop_replica(partition.topic, int(partition.index), delete=False)
        return led

    def stop_replica(self, topic: str, index: int, *, delete: bool) -> None:
        """Lets go of one partition, ``delete``: with its files. Raises StorageError."""
        entry = self.topics.by_name.get(topic.encode())
        partition = entry.partition(index) if entry is not None else None
        if entry is not None and partition is not None:
            entry.let_go(partition)
            self._delete(partition)
            if not any(entry.partitions):
                self.topics.remove(entry)
        key = TopicPartition(topic, index)
        if delete and self.logs.get(key) is not None:
            self.logs.delete(key, self.clock.wall_ms())

    def reconfigure(self, name: str, config: LogConfig) -> None:
        """Puts a topic's settings into effect."""
        entry = self.topics.by_name.get(name.encode())
        if entry is None:
            return
        apply_topic_config(entry.partitions, config, self.clock.monotonic_ms())

    def removing(self, name: str, topic_id: bytes, partition_count: int = 0) -> Iterator[None]:
        """Forgets a topic, with a pause at each log; the files are removed later. Raises StorageError.

        Also logs that an interrupted deletion left behind: ``partition_count`` spares a look at all logs.
        Logs of another topic, which had the name before, stay.
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
                entry.let_go(partition)
        failure = None
        for key in keys:
            yield
            found = self.logs.get(key)
            if found is not None and ZERO_ID not in (topic_id, found.topic_id) and found.topic_id != topic_id:
                log.warning("%s stays: it is of another topic of this name", found.directory)
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
        if self.following is not None:
            self.following.leave(partition)
        if led:
            for listener in self.leadership_listeners:
                listener(partition, False)

    # Starts of logs.

    def start_moved(self, partition: Partition) -> None:
        """Writes the start of the log of ``partition`` down in a thread, then tells it."""
        self.starts.begin(partition)

    def is_alive(self, broker: int) -> bool:
        """Whether DeleteRecords waits for a broker."""
        return self.is_registered(broker)

    # Flushing.

    def flush_wanted(self, partition: Partition) -> None:
        """Syncs the log of ``partition`` in a thread, then tells it."""
        self.flushing.begin(partition)

    def sync_failed(self, one: Log, problem: StorageError) -> None:
        """Puts the data directory aside, unless the log was deleted meanwhile.

        After a sync that failed the system may have dropped what was to be written: the next sync would
        succeed, and promise what is not on the disk. Only a start, which reads the logs, tells what is there.
        """
        if not one.closed and may_pass(problem):
            self.full_disks.flush_fails(one.topic_partition, problem)
        else:
            self._fail_directory(one, problem, is_trusted=False)

    def _fail_directory(self, one: Log, problem: StorageError, *, is_trusted: bool) -> None:
        """``is_trusted``: the disk has what was written, and the next start may read it from the cache."""
        if one.closed:
            return
        directory = self.logs.directory_of(one)
        self._put_aside(directory.path, str(problem))
        if not is_trusted:
            marking = self.loop.run_in_executor(None, self.logs.distrust, directory)
            self._marking.add(marking)
            marking.add_done_callback(self._marked)

    def _marked(self, marking: asyncio.Future[list[StorageError]]) -> None:
        self._marking.discard(marking)
        if not marking.cancelled():
            for problem in marking.result():
                log.warning("one of the marks of the failed sync could not be written: %s", problem)
        if self.directory_distrusted is not None:
            self.directory_distrusted()

    def _put_aside(self, path: str, reason: str) -> None:
        for key in self.logs.fail_directory(path, reason):
            partition = self.find(key.topic, key.partition)
            if partition is not None:
                self._fail(partition, reason)
        self.report_warnings()
        if self.directory_failed is not None:
            self.directory_failed()

    def storage_trouble(self, partition: Partition, error: KafkaError) -> None:
        """Puts the data directory aside when its disk is broken; not from within the request that met it."""
        if isinstance(error, DiskFull):
            self.full_disks.refused(self.logs.directory_of(partition.log).path, error)
        elif isinstance(error, StorageError):
            if is_disk_broken(error):
                self.loop.call_soon(self.sync_failed, partition.log, error)
            else:
                self.full_disks.tell(partition.log.directory, f"{partition.topic}-{partition.index}: {error}")

    async def look_after_directories(self) -> None:
        """Forgets disks that were full, and puts data directories aside that somebody removed."""
        self.full_disks.forget_old()
        for path in await self.loop.run_in_executor(self.syncers, self.logs.vanished):
            self._put_aside(
                path,
                f"{path} or its meta.properties is gone: something other than the broker removed or "
                "unmounted it. Bring it back, and restart the broker",
            )

    def storage_failed(self, one: Log, problem: StorageError) -> None:
        """Puts the data directory of a log aside: with some files renamed and some not it cannot go on."""
        self._fail_directory(one, problem, is_trusted=not is_disk_broken(problem))

    def high_watermark_of(self, key: TopicPartition) -> int | None:
        """Up to where every replica in sync has the log; None for a partition that is not served here."""
        partition = self.find(key.topic, key.partition)
        return None if partition is None or partition.failed else int(partition.high_watermark)

    def _fail(self, partition: Partition, reason: str) -> None:
        led = partition.is_leader and not partition.failed
        partition.fail(reason)
        if self.following is not None:
            self.following.leave(partition)
        if led:
            for listener in self.leadership_listeners:
                listener(partition, False)

    # The in-sync set.

    def isr_wanted(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        """Hands a change of the in-sync set on."""
        if self.change_isr is None:
            partition.isr_refused(self.clock.monotonic_ms())
        else:
            self.change_isr(partition, isr, int(partition_epoch))

    def isr_changed(self, partition: Partition, state: PartitionState) -> None:
        """The controller has written the set that was asked for."""
        if not partition.deleted:
            self._become(partition, state)

    def isr_refused(self, partition: Partition) -> None:
        """The controller has not written the set that was asked for."""
        partition.isr_refused(self.clock.monotonic_ms())

    async def drop_lagging(self) -> None:
        """Asks for those to be taken out of in-sync sets that have not caught up for too long."""
        now_ms = self.clock.monotonic_ms()
        for partition in self.all():
            if partition.is_leader and not partition.failed and partition.replication is not None:
                partition.drop_lagging(now_ms)

    def records_cut(self, partition: Partition, first: int, last: int, reason: str) -> None:
        """Logs which records a follower cuts, and why."""
        log.warning(
            "%s-%d: the records of offsets %d to %d are cut: %s",
            partition.topic,
            partition.index,
            first,
            last,
            reason,
        )

    def write_back_wanted(self, partition: Partition) -> None:
        """Writes what ``partition`` appended since the last time, in a thread."""
        self.write_back.begin(partition)

    # Upkeep.

    async def retain(self) -> None:
        """Removes what retention lets go, of some partitions at a time."""
        count = 0
        for some in slices_of(list(self.all())):
            ends = {
                TopicPartition(one.topic, int(one.index)): int(one.high_watermark)
                for one in some
                if self.find(one.topic, int(one.index)) is one
            }
            moved = self.logs.retain(self.clock.wall_ms(), ends)
            count += len(moved)
            for key in moved:
                partition = self.find(key.topic, key.partition)
                if partition is not None:
                    partition.tell_news()
                    if not partition.is_leader:
                        partition.save_start()
            await a_pause()
        if count:
            log.info("retention moved the start of %d logs", count)
            await self.checkpoints.log_starts()
        self.logs.expire_producers(self.clock.wall_ms())
        self.report_warnings()

    async def remove_due(self) -> None:
        """Removes files whose delay is over, in a thread."""
        paths = self.logs.due_removals(self.clock.wall_ms())
        if paths:
            for problem in await self.loop.run_in_executor(self.syncers, self.logs.remove_paths, paths):
                log.error("%s", problem)

    def high_watermark_moved(self, partition: Partition) -> None:
        """The next checkpoint writes it down."""
        self.checkpoints.moved[partition] = None

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Every partition's high watermark."""
        return {
            TopicPartition(partition.topic, int(partition.index)): int(partition.high_watermark)
            for partition in self.all()
        }

    def report_warnings(self) -> None:
        """Logs what the log layer met since the last report."""
        for warning in self.logs.warnings:
            log.warning("%s", warning)
        self.logs.warnings.clear()

    async def stop(self) -> None:
        """Waits for the flushes and checkpoints that are under way, and interrupts moves."""
        self.flushing.stopping = True
        self.starts.stop()
        await self.mover.stop()
        tasks = self.flushing.under_way | self.write_back.under_way | self.checkpoints.under_way
        await asyncio.gather(*tasks, return_exceptions=True)
        # The failed syncs among these tasks have begun to mark their directories.
        await asyncio.gather(*self._marking, return_exceptions=True)
