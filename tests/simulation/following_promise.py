"""The positions that leaders use, and the fetches of followers.

Promises ``follower-position``, ``follows``, ``reported-position`` and ``stops-leading``.

A leader that counts too much, or a follower with another history than its leader, does harm only if a fault
occurs at the right moment. So each decision is checked when it is made: when a fetch is recorded, when a
state of the controller is applied, when a follower fetches, receives a response, or truncates its log.
Histories are compared by leader epochs: a leader and a follower with the same epoch at an offset have the
same records up to it, as ``one-batch`` and ``epochs`` promise. A follower of a compacted log may lack the
first batches of an epoch: if such a log begins an epoch at another offset, and the batches in both logs are
of the same epochs, the excuse is ``compacted``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from log_inspection import log_directory
from log_state_promise import end_of_batches, headers_of, segments_of
from simulated_disk import SimulatedFiles

from tidemill.broker.delayed_fetch import DelayedFetch
from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.broker.fetch_reader import FetchReader
from tidemill.log.checkpoint_files import CheckpointDamaged, parse_checkpoint
from tidemill.log.file_names import LOG, LOG_STARTS, offset_of
from tidemill.log.log import Log
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FollowedPartition, ReplicaFetcher
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.store_outage import CHECK_INTERVAL_S, StoreOutage
from tidemill.wire.fetch_layout import FetchedPartition

if TYPE_CHECKING:
    from promises import PartitionKey, Promises

Find = Callable[[int, str, int], Partition | None]
"""The partition of a running broker: node, topic and index."""
Registered = Callable[[int, int], int]
"""The registration of a broker in the metadata of another: that node and the broker; -1 where it has none."""


class ReportedPosition(NamedTuple):
    """The state of a follower's log in its last recorded fetch."""

    end: int
    start: int


class Silent(NamedTuple):
    """A broker that receives nothing from the store. ``is_paused``: its process is suspended or ended."""

    silence: StoreOutage
    since_s: float
    is_paused: Callable[[], bool]


class FollowingPromise:
    """Checks the decisions of leaders and followers."""

    def __init__(
        self, promises: Promises, find: Find, registered: Registered = lambda node, broker: -1
    ) -> None:
        self._promises = promises
        self._find = find
        self._registered = registered
        self._reported: dict[Partition, dict[int, ReportedPosition]] = {}
        """By led partition: the last valid positions of its followers."""
        self._epochs: dict[Partition, dict[int, int]] = {}
        """By led partition: the broker epochs of the last fetches in this leader epoch."""
        self._registrations: dict[int, int] = {}
        """The latest broker epoch with which each broker has fetched."""
        self._asked: set[Partition] = set()
        """The replicas that have reported a position to their leaders."""
        self._has_led: set[Partition] = set()
        """The replicas that their processes have led."""
        self._truncations: dict[Log, int] = {}
        """The number of truncations of a log at the last check of its disk."""
        self._unflushed_truncations: dict[Log, set[str]] = {}
        """Segments longer on the disk than in the log at its open: a killed process had truncated them."""
        self._starts: dict[Log, int] = {}
        self._silent: dict[StoreOutage, Silent] = {}
        self._deserted_s: dict[Partition, float] = {}

    def _broken(self, promise: str, partition: Partition, text: str) -> None:
        self._promises.broken(
            promise, f"broker {partition.node_id}, {partition.topic}-{partition.index}: {text}"
        )

    # -- leaders

    def became(self, partition: Partition, led_in: int, isr: tuple[int, ...]) -> None:
        """A state was applied; before it ``partition`` was led in the epoch ``led_in`` (-1: not at all)."""
        if partition.is_offline:
            return
        if not partition.is_leader:
            self._reported.pop(partition, None)
            self._epochs.pop(partition, None)
            waiting = [
                *partition.delayed.appends,
                *partition.delayed.syncs,
                *partition.delayed.delete_records,
            ]
            if led_in >= 0 and waiting:
                self._broken(
                    "stops-leading",
                    partition,
                    f"{partition.leader} leads now, and {len(waiting)} requests still wait for commits",
                )
            return
        self._has_led.add(partition)
        if led_in != partition.leader_epoch:
            self._reported[partition] = {}
            self._epochs[partition] = {}
        else:
            for broker in set(isr).difference(partition.isr):
                self._reported.get(partition, {}).pop(broker, None)
        self._check_counted(partition)
        self.check_synced(partition)

    def fetched(
        self, partition: Partition, broker: int, offset: int, start: int, now_ms: int, epoch: int
    ) -> None:
        """A leader has recorded the fetch of a follower."""
        if partition.replication is None:
            return
        epochs = self._epochs.setdefault(partition, {})
        if 0 <= epoch < epochs.get(broker, -1):
            self._broken(
                "follower-position",
                partition,
                f"a fetch of registration {epoch} of {broker} counts after one of {epochs[broker]}",
            )
        epochs[broker] = epoch
        self._reported.setdefault(partition, {})[broker] = ReportedPosition(offset, start)
        self._check_has(partition, broker, offset, epoch)
        self._check_counted(partition)
        caught_up_ms = partition.replication.followers[broker].caught_up_ms
        is_caught_up = caught_up_ms >= 0 and now_ms - caught_up_ms <= partition.events.lag_ms_max
        if partition._alone and broker not in partition.isr and is_caught_up:
            self._broken(
                "follower-position",
                partition,
                f"the leader commits alone, and {broker} was caught up: it could never rejoin",
            )

    def _check_counted(self, partition: Partition) -> None:
        """A leader uses only the last fetch of a follower."""
        replication = partition.replication
        if replication is None:
            return
        reported = self._reported.get(partition, {})
        for broker, follower in replication.followers.items():
            if follower.end_offset >= 0 and reported.get(broker) != (
                follower.end_offset,
                follower.start_offset,
            ):
                self._broken(
                    "follower-position",
                    partition,
                    f"{broker} has position {follower.end_offset}, and reported {reported.get(broker)} since"
                    " it left the ISR, or since the leader epoch began",
                )
        pending = partition.isr_state.pending
        if partition._alone and pending is not None:
            self._broken(
                "follower-position",
                partition,
                f"the leader commits alone, and requests the ISR {pending.isr}",
            )

    def _check_has(self, partition: Partition, broker: int, offset: int, epoch: int) -> None:
        """The follower has the records that its leader counts, and they are the leader's."""
        there = self._find(broker, partition.topic, int(partition.index))
        if there is None or there.is_offline or there.log.topic_id != partition.log.topic_id:
            return
        if (there.leader, there.leader_epoch) != (partition.node_id, partition.leader_epoch):
            return
        if there.log.end_offset < offset:
            fault = f"it counts up to {offset}, and ends at {there.log.end_offset}"
        else:
            fault = self._difference(there, partition, offset)
        if fault and not self._may_be_late(there, partition, epoch):
            self._broken("follower-position", there, fault)

    def _may_be_late(self, there: Partition, leader: Partition, epoch: int) -> bool:
        """Whether a fetch is of an ended process, and its leader cannot know that."""
        broker, node = int(there.node_id), int(leader.node_id)
        is_gone = there not in self._asked or 0 <= epoch < self._registrations.get(broker, -1)
        is_known = 0 <= epoch < self._registered(node, broker)
        return is_gone and not is_known and self._promises.excused("late-fetch")

    def committing(self, partition: Partition, offset: int) -> None:
        """The high watermark of a replica advances."""
        if partition.is_leader and partition.replication is not None:
            pending = partition.isr_state.pending
            requested = () if pending is None else pending.isr
            for broker, follower in partition.replication.followers.items():
                if broker in requested and follower.end_offset < offset:
                    self._broken(
                        "committed",
                        partition,
                        f"it is committed up to {offset}; {broker}, of the requested ISR, reported"
                        f" {follower.end_offset}",
                    )
        if partition.is_leader and partition.log.needs_flush and offset > partition._flushed_end:
            self._broken(
                "committed",
                partition,
                f"it is committed up to {offset} with flush.messages, and its leader has flushed no more"
                f" than {partition._flushed_end}",
            )
        if partition.is_leader and self._flushes_each(partition) and not self._is_synced(partition, offset):
            self._broken(
                "committed",
                partition,
                f"it is committed up to {offset} with flush.messages=1, and on the disk of its leader to"
                f" {self._synced_end(partition)}",
            )

    def answering(self, partition: Partition, end: int) -> None:
        """A produce with acks=1 is acknowledged."""
        if self._flushes_each(partition) and not self._is_synced(partition, end):
            self._broken(
                "flush",
                partition,
                f"a produce request up to {end} is acknowledged, and the disk has"
                f" {self._synced_end(partition)}",
            )

    def check_synced(self, partition: Partition) -> None:
        """The records that a broker counts as synced are on its disk."""
        log, end = partition.log, int(partition._flushed_end)
        if log.closed or end <= log.recovery_point:
            return
        self._promises.log_state.check_synced(f"broker-{partition.node_id}", log, end, "its flushed offset")

    def _flushes_each(self, partition: Partition) -> bool:
        return self._promises.settings_of(partition.topic).flush_each

    def _is_synced(self, partition: Partition, end: int) -> bool:
        log = partition.log
        # Another promise covers the records below the recovery point.
        if log.recovery_point >= end or end <= log.start_offset:
            return True
        synced = self._synced_end(partition)
        return synced >= end or (bool(log.config.compact) and synced >= end_of_batches(log, end))

    def _synced_end(self, partition: Partition) -> int:
        tp: PartitionKey = (partition.topic, int(partition.index))
        return self._promises.synced_end(tp, int(partition.node_id))

    def looked_up(self, data: FetchPartitionData) -> None:
        """A fetch was looked up: a partition without error is returned, or waits."""
        partition, epoch = data.partition, int(data.requested.leader_epoch)
        if partition is None or data.error != 0 or epoch < 0:
            return
        if epoch != partition.leader_epoch:
            self._broken(
                "follower-position",
                partition,
                f"a fetch in leader epoch {epoch} is served in {partition.leader_epoch}",
            )

    # -- followers

    def asked(self, fetcher: ReplicaFetcher, followed: list[FollowedPartition]) -> None:
        """A follower fetches these partitions from its leader."""
        broker = int(fetcher.node_id)
        self._registrations[broker] = max(self._registrations.get(broker, -1), int(fetcher.node_epoch))
        for one in followed:
            partition, log = one.partition, one.partition.log
            self.has_asked(partition)
            if log.closed or partition.is_offline:
                continue
            events: Any = partition.events
            if isinstance(events, ReplicaManager) and log.topic_partition in events.unsynced_logs:
                self._broken(
                    "reported-position",
                    partition,
                    "unflushed records were not truncated after a power failure",
                )
            end, start = int(one.fetch_offset), int(one.log_start_offset)
            if self._flushes_each(partition) and not self._is_synced(partition, end):
                self._broken(
                    "reported-position",
                    partition,
                    f"it reported {end}, and the disk has {self._synced_end(partition)}",
                )
            if self._starts.get(log) != start:
                self._starts[log] = start
                self._check_start(partition, start)

    def has_asked(self, partition: Partition) -> None:
        """A replica reports its log to its leader."""
        self._asked.add(partition)

    def _check_start(self, partition: Partition, start: int) -> None:
        log = partition.log
        files = log.segment_list.files
        if start <= 0 or not isinstance(files, SimulatedFiles) or not files.exists(log.directory):
            return
        written = _start_on_disk(files, log)
        if start > written:
            self._broken(
                "reported-position",
                partition,
                f"it reported log start offset {start}; the disk has {written}",
            )

    def takes(self, partition: Partition, followed: FollowedPartition) -> None:
        """A follower processes a response of its leader."""
        asked = (int(followed.fetch_offset), int(followed.leader_epoch))
        now = (int(partition.log.end_offset), int(partition.leader_epoch))
        if asked != now:
            self._broken("follows", partition, f"a response to a fetch at {asked} is accepted at {now}")

    def cut(self, partition: Partition, common: int, found: FetchedPartition | None) -> None:
        """A follower had this common end with its leader (-1: unknown), and may have truncated its log.

        ``found`` is the response of the leader with the divergence.
        """
        log = partition.log
        is_less = log.end_offset < common and log.end_offset > log.start_offset
        if is_less and not (log.config.compact and self._promises.excused("compacted")):
            self._broken(
                "follows", partition, f"it is truncated to {log.end_offset}, and its leader has {common}"
            )
        diverging = None if found is None else found.diverging_epoch
        if diverging is None or log.end_offset <= log.start_offset:
            return
        latest, end = int(log.leader_epochs.epoch_of(log.end_offset - 1)), int(log.end_offset)
        if latest > diverging.epoch or (latest == diverging.epoch and end > diverging.end_offset):
            self._broken(
                "follows",
                partition,
                f"its leader has epoch {diverging.epoch} up to {diverging.end_offset}, and it is"
                f" truncated to {end} of epoch {latest}",
            )

    def cut_doubtful(self, partition: Partition, end: int) -> None:
        """A follower has truncated records that the machine may not have synced; its log ended at ``end``
        before.

        Once its process has led, the others follow its log unchanged: only differing records are truncated.
        """
        if partition in self._has_led:
            self._broken(
                "follows",
                partition,
                f"it is truncated from {end} to {partition.log.end_offset} as after a power failure, and its"
                " process has led since",
            )

    def begins(self, partition: Partition, offset: int) -> None:
        """A follower discards its log, and starts at ``offset``."""
        leader = self._leader_of(partition)
        if int(partition.node_id) in partition.isr and offset < partition.high_watermark:
            self._broken("follows", partition, f"it is in sync {partition.isr}, and begins at {offset}")
        if leader is not None and offset > leader.log.start_offset:
            self._broken(
                "follows",
                partition,
                f"it restarts at {offset}, and its leader starts at {leader.log.start_offset}",
            )

    def appended(self, partition: Partition) -> None:
        """A follower has appended the records of its leader."""
        leader = self._leader_of(partition)
        if leader is None:
            return
        fault = self._difference(partition, leader, int(partition.log.end_offset))
        if fault:
            self._broken("follows", partition, fault)

    def appends(self, partition: Partition) -> None:
        """Records are about to be appended: the truncation before is on the disk."""
        log = partition.log
        truncations = int(log.truncations)
        if self._truncations.get(log, 0) == truncations:
            return
        self._truncations[log] = truncations
        files = log.segment_list.files
        if not isinstance(files, SimulatedFiles) or not files.exists(log.directory):
            return
        name = _name(log)
        if log_directory(files.durable_names, name) != log.directory:
            return
        left = _cut_off(files, log, _on_disk(files, log))
        before = left & self._unflushed_truncations.get(log, set())
        if before:
            self._promises.excused("unflushed-truncation")
        if left - before:
            self._broken(
                "follows", partition, f"it was truncated, and the disk has more of {min(left - before)}"
            )

    def opened(self, log: Log) -> None:
        """A process has opened a log: a killed process may have truncated it without a sync."""
        files = log.segment_list.files
        if isinstance(files, SimulatedFiles) and files.exists(log.directory):
            # A sync of the directory makes file names durable, but not truncations.
            unnamed = {name: files.written(f"{log.directory}/{name}") for name in _segment_names(files, log)}
            self._unflushed_truncations[log] = _cut_off(files, log, _on_disk(files, log)) | _cut_off(
                files, log, unnamed
            )

    def common_end(self, partition: Partition) -> int:
        """Returns the common end of a follower and its leader; -1 if there is none or it is unknown."""
        leader = self._leader_of(partition)
        if leader is None:
            return -1
        own, other = partition.log, leader.log
        start = max(int(own.start_offset), int(other.start_offset))
        end = min(int(own.end_offset), int(other.end_offset))
        if start >= end:
            return -1
        for mine, its in zip(_runs(own, start, end), _runs(other, start, end), strict=False):
            if mine[:2] != its[:2]:
                common = min(mine[1], its[1])
                return common if common > start else -1
            if mine != its:
                return min(mine[2], its[2])
        return end

    def _leader_of(self, partition: Partition) -> Partition | None:
        leader = self._find(int(partition.leader), partition.topic, int(partition.index))
        if leader is None or leader.is_offline or not leader.is_leader or leader is partition:
            return None
        if leader.leader_epoch != partition.leader_epoch or leader.log.topic_id != partition.log.topic_id:
            return None
        return leader

    def _difference(self, follower: Partition, leader: Partition, end: int) -> str:
        """Returns the difference of the epochs of a follower's and its leader's log up to ``end``; empty
        without one.
        """
        own, other = follower.log, leader.log
        start = max(int(own.start_offset), int(other.start_offset))
        end = min(end, int(own.end_offset))
        if end <= start:
            return ""
        if end > other.end_offset:
            return f"it has {end} offsets, and its leader {other.end_offset}"
        mine, its = list(_runs(own, start, end)), list(_runs(other, start, end))
        if mine == its:
            return ""
        if own.config.compact and _agree(own, other, start, end) and self._promises.excused("compacted"):
            return ""
        return f"from {start} to {end} it has {mine} (epoch, first offset, end), and its leader {its}"

    # -- brokers that nobody is heard of by

    def session_lost(self, partitions: ReplicaManager) -> None:
        """The session has ended, and the broker knows."""
        for partition in partitions.all():
            if len(partition.replicas) > 1 and partition.is_leader and not partition.is_offline:
                self._broken("stops-leading", partition, "its leader leads without a session")

    def silence_begins(self, silence: StoreOutage, is_paused: Callable[[], bool]) -> None:
        """A broker receives nothing from the store from now on."""
        self._silent[silence] = Silent(silence, self._promises.now(), is_paused)

    def silence_ends(self, silence: StoreOutage) -> None:
        """A broker receives events of the store again, or has stopped."""
        self._silent.pop(silence, None)

    def look(self) -> None:
        """Checks brokers that receive nothing from the store."""
        if not self._silent:
            self._deserted_s.clear()
            return
        now = self._promises.now()
        session_s = self._promises.deposed.session_s
        for silent in self._silent.values():
            silence = silent.silence
            since_ms = int(silence._clock.monotonic_ms()) - int(session_s * 1000)
            for partition in silence._isolation._partitions.all():
                is_alone = now - silent.since_s >= session_s and _is_deserted(partition, since_ms)
                if not is_alone or silent.is_paused():
                    self._deserted_s.pop(partition, None)
                elif now - self._deserted_s.setdefault(partition, now) > 2 * CHECK_INTERVAL_S:
                    self._broken(
                        "stops-leading",
                        partition,
                        f"its leader reaches neither the store nor an in-sync replica of {partition.isr}",
                    )

    # -- where it is looked

    def watch(self, stack: ExitStack, is_paused: Callable[[], Callable[[], bool]]) -> None:
        """Checks all decisions until ``stack`` ends. ``is_paused``: for the running process.

        Compiled classes call their own methods directly: these calls are not observed.
        """
        for owner, name, wrapped in (
            (Partition, "apply_state", self._applying_state),
            (Partition, "fetched_by", self._fetching),
            (Partition, "must_delay_response", self._delaying_response),
            (Partition, "flushed", self._flushing),
            (Partition, "append", self._appending),
            (Partition, "append_from_leader", self._appending_as_follower),
            (Partition, "restart_at", self._beginning),
            (Partition, "_advance", self._advancing),
            (FetchReader, "read_partition", self._looking_up),
            (ReplicaFetcher, "build_request", self._asking),
            (ReplicaFetcher, "add_partition", self._following),
            (ReplicaFetcher, "_process_partition_data", self._taking),
            (ReplicaManager, "step_down", self._stepping_down),
        ):
            stack.enter_context(mock.patch.object(owner, name, wrapped(getattr(owner, name))))
        begins, stop = StoreOutage.store_disconnected, StoreOutage.stop

        def silence_begins(silence: StoreOutage) -> None:
            begins(silence)
            self.silence_begins(silence, is_paused())

        def silence_stops(silence: StoreOutage) -> None:
            stop(silence)
            self.silence_ends(silence)

        stack.enter_context(mock.patch.object(StoreOutage, "store_disconnected", silence_begins))
        stack.enter_context(mock.patch.object(StoreOutage, "stop", silence_stops))

    def _applying_state(self, apply_state: Any) -> Any:
        def wrapped(partition: Partition, *state: Any, **versions: Any) -> None:
            led_in, isr = int(partition.leader_epoch) if partition.is_leader else -1, partition.isr
            apply_state(partition, *state, **versions)
            self.became(partition, led_in, isr)

        return wrapped

    def _fetching(self, fetched_by: Any) -> Any:
        def wrapped(
            partition: Partition, broker: int, offset: int, start: int, now_ms: int, epoch: int = -1
        ) -> bool:
            is_noted = bool(fetched_by(partition, broker, offset, start, now_ms, epoch))
            if is_noted:
                self.fetched(partition, int(broker), int(offset), int(start), int(now_ms), int(epoch))
            return is_noted

        return wrapped

    def _delaying_response(self, must_delay: Any) -> Any:
        def wrapped(partition: Partition, acks: int, end: int) -> bool:
            is_delayed = bool(must_delay(partition, acks, end))
            if not is_delayed and acks == 1:
                self.answering(partition, int(end))
            return is_delayed

        return wrapped

    def _flushing(self, flushed: Any) -> Any:
        def wrapped(partition: Partition, *of: Any) -> None:
            flushed(partition, *of)
            self.check_synced(partition)

        return wrapped

    def _appending(self, append: Any) -> Any:
        def wrapped(partition: Partition, *of: Any) -> Any:
            cut = self._truncations.get(partition.log, 0)
            if (
                cut != partition.log.truncations
                and partition.is_leader
                and not partition._truncation_unsynced
            ):
                self.appends(partition)
            return append(partition, *of)

        return wrapped

    def _appending_as_follower(self, append: Any) -> Any:
        def wrapped(partition: Partition, *of: Any) -> None:
            end = int(partition.log.end_offset)
            self.appends(partition)
            try:
                append(partition, *of)
            finally:
                if partition.log.end_offset > end:
                    self.appended(partition)

        return wrapped

    def _beginning(self, restart_at: Any) -> Any:
        def wrapped(partition: Partition, offset: int, *of: Any) -> None:
            self.begins(partition, int(offset))
            restart_at(partition, offset, *of)

        return wrapped

    def _advancing(self, advance: Any) -> Any:
        def wrapped(partition: Partition, offset: int, added_bytes: int) -> None:
            if offset > partition.high_watermark:
                self.committing(partition, int(offset))
            advance(partition, offset, added_bytes)

        return wrapped

    def _looking_up(self, read_partition: Any) -> Any:
        def wrapped(reader: FetchReader, fetch: DelayedFetch, data: FetchPartitionData, *of: Any) -> None:
            read_partition(reader, fetch, data, *of)
            self.looked_up(data)

        return wrapped

    def _asking(self, request: Any) -> Any:
        def wrapped(fetcher: ReplicaFetcher, *of: Any) -> Any:
            body = request(fetcher, *of)
            if body is not None:
                number = fetcher._number
                reported = [one for one in fetcher._partitions.values() if one.last_request_number == number]
                self.asked(fetcher, reported)
            return body

        return wrapped

    def _following(self, follow: Any) -> Any:
        def wrapped(fetcher: ReplicaFetcher, topic_id: bytes, partition: Partition, *of: Any) -> None:
            has_epochs = partition.log.leader_epochs.latest >= 0
            common = self.common_end(partition) if has_epochs else -1
            follow(fetcher, topic_id, partition, *of)
            self.cut(partition, common, None)

        return wrapped

    def _taking(self, take: Any) -> Any:
        def wrapped(
            fetcher: ReplicaFetcher, followed: FollowedPartition, found: FetchedPartition, *of: Any
        ) -> Any:
            partition = followed.partition
            self.takes(partition, followed)
            if found.diverging_epoch is None:
                return take(fetcher, followed, found, *of)
            common = self.common_end(partition)
            failure = take(fetcher, followed, found, *of)
            if failure is None:
                self.cut(partition, common, found)
            return failure

        return wrapped

    def _stepping_down(self, step_down: Any) -> Any:
        def wrapped(partitions: ReplicaManager) -> None:
            step_down(partitions)
            self.session_lost(partitions)

        return wrapped


def _name(log: Log) -> str:
    return str(log.directory.rpartition("/")[2])


def _runs(log: Log, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Returns the epochs of a log between two offsets: each with its first offset, and its end."""
    known = log.leader_epochs
    ends = [*known.starts[1:], int(log.end_offset)]
    for epoch, first, last in zip(known.epochs, known.starts, ends, strict=False):
        if (begin := max(first, start)) < (until := min(last, end)):
            yield epoch, begin, until


def _agree(own: Log, other: Log, start: int, end: int) -> bool:
    """Whether the batches that two logs have between two offsets are of the same epochs."""
    mine, its = (
        {
            batch.base: batch.epoch
            for _, data in segments_of(log.segment_list.files, log.directory)
            for batch in headers_of(data)
            if start <= batch.base < end
        }
        for log in (own, other)
        if isinstance(log.segment_list.files, SimulatedFiles)
    )
    return all(mine[base] == its[base] for base in mine.keys() & its.keys())


def _start_on_disk(files: SimulatedFiles, log: Log) -> int:
    """Returns the log start offset after a power failure."""
    parent = log.directory.rpartition("/")[0]
    written = 0
    if LOG_STARTS in files.durable_names(parent):
        path = f"{parent}/{LOG_STARTS}"
        try:
            entries = list(parse_checkpoint(files.durable(path), 3, path))
        except CheckpointDamaged:
            entries = []
        key = log.topic_partition
        written = max((int(at) for topic, index, at in entries if (topic, int(index)) == key), default=0)
    bases = [offset_of(name, LOG) for name in files.durable_names(log.directory)]
    first = min((base for base in bases if base >= 0), default=0)
    return max(written, first)


def _is_deserted(partition: Partition, since_ms: int) -> bool:
    """Whether a leader has uncommitted records, and no in-sync replica has fetched since then."""
    replication = partition.replication
    if not partition.is_leader or partition.is_offline or replication is None:
        return False
    if partition.high_watermark >= partition.log.end_offset:
        return False
    if len(partition.isr) == 1 and not partition.is_under_min_isr and partition.isr_state.pending is None:
        return False
    members = [follower for broker, follower in replication.followers.items() if broker in partition.isr]
    return all(max(one._fetched_ms, one.caught_up_ms) < since_ms for one in members)


def _segment_names(files: SimulatedFiles, log: Log) -> list[str]:
    return files.stored_names(log.directory, lambda name: offset_of(name, LOG) >= 0)


def _on_disk(files: SimulatedFiles, log: Log) -> dict[str, bytes]:
    """Returns the segments of a log that survive a power failure."""
    names = files.durable_names(log.directory)
    return {name: files.durable(f"{log.directory}/{name}") for name in names if offset_of(name, LOG) >= 0}


def _cut_off(files: SimulatedFiles, log: Log, on_disk: Mapping[str, bytes]) -> set[str]:
    """Returns the segments of a log with more bytes on the disk than a process reads.

    Compaction replaces segments: of a compacted log, those with batches after its end.
    """
    if log.config.compact:
        end = int(log.end_offset)
        return {
            name for name, data in on_disk.items() if any(batch.last >= end for batch in headers_of(data))
        }
    there = dict(segments_of(files, log.directory))
    return {
        name
        for name, data in on_disk.items()
        if offset_of(name, LOG) >= int(log.start_offset) and not there.get(name, b"").startswith(data)
    }
