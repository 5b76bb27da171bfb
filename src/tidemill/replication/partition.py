"""One partition as its leader sees it: the log, what of it is committed, and who waits for more.

Three ends of a log are told apart. Its *end offset* is where the next record goes. The *high watermark* is
how far the in-sync set has it: consumers read up to there. The *last stable offset* is how far no
transaction is open: consumers with ``read_committed`` read up to there. It equals the high watermark as
long as no transaction is open, and no marker lies above the high watermark.

Who waits for one of them: :mod:`tidemill.replication.waiting`; who may read how far:
:mod:`tidemill.replication.readable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i32, i64, mypyc_attr

from tidemill.log.log import AppendResult, Log
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import Batch
from tidemill.records.message_set import MessageSet
from tidemill.records.validate import Limits
from tidemill.replication.readable import Readable
from tidemill.replication.replicas import UNKNOWN, Replicas
from tidemill.replication.storage import Storage


@mypyc_attr(allow_interpreted_subclasses=True)
class PartitionEvents:
    """What a partition asks of the broker around it."""

    def write_back_wanted(self, partition: Partition) -> None:
        """Much was appended: begin to write it to the disk elsewhere."""

    def storage_trouble(self, partition: Partition, error: KafkaError) -> None:
        """An append or a read was answered with KAFKA_STORAGE_ERROR."""

    def high_watermark_moved(self, partition: Partition) -> None:
        """The high watermark differs from the checkpoint. Called once until ``has_moved`` is reset."""

    def start_moved(self, partition: Partition) -> None:
        """The start of the log has followed the leader's: write it down, then call ``start_saved``."""
        partition.start_saved(partition.log.start_offset)

    def is_alive(self, broker: i32) -> bool:
        """Whether a broker is registered: DeleteRecords waits for it."""
        return True

    def flush_wanted(self, partition: Partition) -> None:
        """Appends wait for a flush (``flush.messages``): sync the log elsewhere, then call ``flushed``."""
        raise NotImplementedError

    def records_cut(self, partition: Partition, first: i64, last: i64, reason: str) -> None:
        """The records of offsets ``first`` to ``last`` were cut from the log of a follower."""

    def isr_wanted(self, partition: Partition, isr: tuple[int, ...], partition_epoch: i64) -> None:
        """Have the controller write another in-sync set over the state of ``partition_epoch``.

        ``become`` with the new state, or ``isr_refused``, ends the change.
        """
        raise NotImplementedError


DIVERGED: Final = "the leader has others in their place, or none"
WHOLE: Final[i64] = -1
"""As an end: that of the data."""
NO_EPOCH: Final[i64] = -1
"""Of a follower that tells no epoch of its registration (Fetch before version 15)."""
WRITE_BACK_BYTES: Final = 16 * 1024 * 1024
"""So much is appended to a partition before its writing to the disk is begun."""


class Partition(Readable):
    """The state of a partition that this broker leads or follows."""

    def __init__(
        self,
        topic: str,
        index: i32,
        log: Log,
        limits: Limits,
        node_id: i32,
        events: PartitionEvents,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(topic, index, log, node_id)
        self.limits = limits
        self.storage: Storage = Storage() if storage is None else storage
        self.events = events
        self.partition_epoch: i64 = -1
        """The version of the state that the controller told last; it grows within a leader epoch, too."""
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        """Those of the replicas that a move to other brokers brings in."""
        self.min_insync_replicas: i32 = 1
        self.messages_in: i64 = 0
        self.bytes_in: i64 = 0
        self.bytes_out: i64 = 0
        self.produce_conversions: i64 = 0
        """Records that were converted between formats on their way in."""
        self.fetch_conversions: i64 = 0
        """Records that were converted for readers of older formats."""
        self.reserved = False
        """The log's end is given to a set that is being made for it: other produces wait."""
        self.replication: Replicas | None = None
        """What the leader knows of its followers; None for one that has none, and on followers."""
        self.lag_ms_max: i64 = 30_000
        """A follower that was not caught up for so long leaves the in-sync set."""
        self.epoch_start: i64 = 0
        """Where the log ended when this broker began to lead."""
        self.on_flushed: Callable[[], None] | None = None
        """Called when a flush, or the checkpoint of the log start, has ended that following waits for."""
        self._left: Replicas | None = None
        """What the leader knew of its followers when it stopped to lead in the present state."""
        self._known_ends: dict[int, int] = {}
        """How far replicas had the log when they were last known to be in sync, or told."""
        self._alone = False
        self._flushing = False
        self._cut_unsynced = False
        self._start_unsaved = False
        # A process that was killed leaves records that only the system holds.
        self._flushed_end: i64 = min(log.recovery_point, log.end_offset)
        self._unflushed_bytes: i64 = 0
        self._unwritten_bytes: i64 = 0

    @property
    def flush_under_way(self) -> bool:
        """Whether a sync that appends wait for was asked for, and has not ended."""
        return self._flushing

    @property
    def is_settling(self) -> bool:
        """Whether a sync or a checkpoint is pending that the leader must not count on yet.

        That is a sync that appends wait for, or the start of the log: a leader answers DeleteRecords when its
        followers tell of the new one, and it must hold when one of them leads after a crash.
        """
        return self._flushing or self._start_unsaved

    @property
    def is_unsettled(self) -> bool:
        """Whether this broker leads anew, and does not know yet how far the leader before had committed.

        It had at least as much as consumers were told then. The only replica has to sync it again after it
        was killed, where ``flush.messages`` asks for that.
        """
        return self.is_leader and self.high_watermark < self.epoch_start

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads, and fewer are in sync than have been replicas before they are moved.

        Source: Apache Kafka, ``Partition.isUnderReplicated``.
        """
        return self.is_leader and len(self.isr) < len(self.replicas) - len(self.adding)

    @property
    def lag_max(self) -> i64:
        """The records that the follower lacks which is farthest behind, as far as the leader knows."""
        replication = self.replication
        if replication is None:
            return 0
        return replication.lag_max(self.log.start_offset, self.log.end_offset)

    def become(
        self,
        leader: i32,
        leader_epoch: i64,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        partition_epoch: i64 = -1,
        now_ms: i64 = 0,
    ) -> None:
        """Takes the state that the controller decided."""
        is_new = leader != self.leader or leader_epoch != self.leader_epoch
        if is_new or self.replication is None:
            self._known_ends = self._ends_known_of(replicas)
        if leader_epoch != self.leader_epoch or partition_epoch != self.partition_epoch:
            self._left = None
        elif self.replication is not None:
            self._left = self.replication
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.replicas = replicas
        self.isr = isr
        self._alone = self._is_alone()
        self.flush_if_due()
        if self.is_leader:
            self._lead(is_new, partition_epoch, now_ms)
            self._wake_deletions()
        elif not is_new:
            self.tell_news()
        else:
            self.replication = None
            self._fail_waiters(
                KafkaError(
                    f"{self.topic}-{self.index} is led by broker {leader} now",
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                )
            )

    def set_min_insync(self, min_insync_replicas: i32, now_ms: i64) -> None:
        """Takes ``min.insync.replicas`` over; what waited for more replicas may be committed by that."""
        if min_insync_replicas == self.min_insync_replicas:
            return
        self.min_insync_replicas = min_insync_replicas
        if self.is_leader and not self.failed:
            self._settle_alone(now_ms)
            self._wake_deletions()

    @property
    def min_insync(self) -> i32:
        """How many replicas in sync a commit takes: ``min.insync.replicas``, or all if there are fewer.

        The controller counts in the same way (``PartitionImage.min_insync``).
        """
        count: i32 = len(self.replicas) - len(self.adding)
        return count if 0 < count < self.min_insync_replicas else self.min_insync_replicas

    @property
    def is_under_min_isr(self) -> bool:
        """Whether fewer replicas are in sync than a commit takes: then the high watermark does not move."""
        return len(self.isr) < self.min_insync

    def _is_alone(self) -> bool:
        """Whether this broker leads, and commits what it has without any other."""
        return self.is_leader and len(self.isr) == 1 and not self.is_under_min_isr

    def _settle_alone(self, now_ms: i64) -> None:
        """Commits what may be committed, after the in-sync set or ``min.insync.replicas`` has changed."""
        self._alone = self._is_alone() and (self.replication is None or not self.replication.pending)
        if not self._alone:
            self._commit(now_ms)
        else:
            self._advance(self._own_end(), 0)

    def _own_end(self) -> i64:
        """How far this broker counts for a commit: with ``flush.messages`` as far as it has synced."""
        return self._flushed_end if self._flushing or self.log.needs_flush else self.log.end_offset

    def _ends_known_of(self, replicas: tuple[int, ...]) -> dict[int, int]:
        """How far each of ``replicas`` has the log at least, where that is known."""
        known: dict[int, int] = {}
        for broker in replicas:
            end: i64 = UNKNOWN
            follower = None if self.replication is None else self.replication.followers.get(broker)
            if follower is not None:
                end = follower.last_end()
            elif broker in self.isr:
                end = self.high_watermark
            elif broker in self._known_ends:
                end = self._known_ends[broker]
            if end >= 0:
                known[broker] = min(end, self.log.end_offset)
        return known

    def _lead(self, is_new: bool, partition_epoch: i64, now_ms: i64) -> None:
        if is_new:
            self.epoch_start = self.log.end_offset
            self.log.lead(self.leader_epoch)
        known = self.replication
        if len(self.replicas) < 2:
            self.replication = None
        elif known is None or is_new:
            self.replication = Replicas(
                self.node_id, self.replicas, self.isr, partition_epoch, now_ms, self.lag_ms_max
            )
            self.replication.remember(self._known_ends, self.high_watermark)
            self._resume(self.replication)
        else:
            known.change(self.replicas, self.isr, partition_epoch)
        if self._alone:
            self._advance(self._own_end(), 0)
        else:
            self._commit(now_ms)
        if is_new:
            self._wake_readers()
        else:
            self.tell_news()

    def _resume(self, replication: Replicas) -> None:
        """Leads again in the state in which it stopped: asks again for the in-sync set that it had asked for.

        The controller may have written that set, and may elect its new members.
        """
        left, self._left = self._left, None
        if left is not None:
            replication.resume(left)
            if left.pending:
                self._want_isr(replication, left.pending)

    # Writing.

    def append(self, batches: list[Batch], acks: i32, now_ms: i64) -> AppendResult:
        """Appends validated batches as the leader.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR and what the log finds
        wrong with an idempotent producer's sequence.
        """
        self._check_appendable(acks)
        result = self.log.append(batches, self.leader_epoch, now_ms)
        if result.duplicate:
            return result
        size: i64 = 0
        for batch in batches:
            size += batch.size
            self.messages_in += batch.record_count
        self._appended(size)
        return result

    def append_messages(self, messages: MessageSet, acks: i32, now_ms: i64) -> AppendResult:
        """Appends a checked message set of format v0 or v1 as the leader; raises as :meth:`append`."""
        self._check_appendable(acks)
        segment = self.log.active
        before: i64 = segment.size
        result = self.log.append_messages(messages, self.leader_epoch, now_ms)
        size: i64 = self.log.active.size
        if self.log.active is segment:
            size -= before
        self.messages_in += messages.record_count
        self._appended(size)
        return result

    def _check_appendable(self, acks: i32) -> None:
        self.check_leader(-1)
        if self._cut_unsynced:
            # A power cut could leave the cut, a later segment of what comes now, and none before it.
            raise KafkaError(
                f"{self.topic}-{self.index} was cut to {self.log.end_offset}, and the disk does not have that"
                " yet: try again",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )
        if acks == -1 and self.is_under_min_isr:
            raise KafkaError(
                f"{self.topic}-{self.index} has {len(self.isr)} in-sync replicas,"
                f" min.insync.replicas is {self.min_insync}",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    def commit_error(self) -> KafkaError | None:
        """NOT_ENOUGH_REPLICAS_AFTER_APPEND when the in-sync set has shrunk too far since the append."""
        if not self.is_under_min_isr:
            return None
        return KafkaError(
            f"{self.topic}-{self.index} has it, but only {len(self.isr)} in-sync replicas are left,"
            f" min.insync.replicas is {self.min_insync}",
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        )

    def _appended(self, size: i64) -> None:
        """Counts what was appended, and commits it where this broker is the only one in sync."""
        self.bytes_in += size
        self._unwritten_bytes += size
        if self._unwritten_bytes >= WRITE_BACK_BYTES:
            self._unwritten_bytes = 0
            self.events.write_back_wanted(self)
        if self.log.needs_flush:
            self._unflushed_bytes += size
            self._want_flush()
        elif self._alone and not self._flushing:
            self._advance(self.log.end_offset, size)
        else:
            self._unflushed_bytes += size
        self._wake_followers(size)

    def holds_back(self, acks: i32, end_offset: i64) -> bool:
        """Whether the reply to a produce with ``acks`` has to wait for everything below ``end_offset``.

        With ``acks=1`` only a sync of the leader's own log can be the reason, as ``flush.messages`` asks for
        one: no other replica is waited for.
        """
        if self.high_watermark >= end_offset:
            return False
        return acks == -1 or (acks == 1 and self._flushing and self._flushed_end < end_offset)

    def flush_if_due(self) -> None:
        """Has the log synced if ``flush.messages`` asks for it, as it is now, and the log as it is."""
        if self.log.needs_flush and not self.failed:
            self._want_flush()

    def _want_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.events.flush_wanted(self)

    def flushed(self, end_offset: i64, now_ms: i64) -> None:
        """The log is on the disk up to ``end_offset``; what came meanwhile wants the next flush."""
        self._flushing = False
        self._cut_unsynced = False
        self._flushed_end = end_offset
        if self._alone:
            added = self._unflushed_bytes
            self._unflushed_bytes = 0
            self._advance(end_offset, added)
        else:
            self._commit(now_ms)
        self.flush_if_due()
        # What came meanwhile, and wants no sync, waits no longer either.
        end = self._own_end()
        if self._alone and self.high_watermark < end:
            self._advance(end, 0)
        self._wake_synced(end)
        if self.on_flushed is not None:
            self.on_flushed()

    def fail(self, reason: str) -> None:
        """The log's directory failed: nothing is read or written any more."""
        self.failed = reason
        self._fail_waiters(KafkaError(reason, ErrorCode.KAFKA_STORAGE_ERROR))

    def delete(self) -> None:
        """The partition is gone; who waits is told."""
        self.deleted = True
        self._fail_waiters(
            KafkaError(f"{self.topic}-{self.index} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        )

    # Followers.

    def fetched_by(
        self, broker: i32, offset: i64, start_offset: i64, now_ms: i64, epoch: i64 = NO_EPOCH
    ) -> bool:
        """A follower, registered with ``epoch``, asks for what comes at ``offset``, so it has the rest.

        False: it has no replica here, or has registered anew since it asked.
        """
        replication = self.replication
        if replication is None or not replication.fetched(
            broker, offset, start_offset, self.log.end_offset, now_ms, epoch
        ):
            return False
        if (
            self._alone
            and int(broker) not in self.isr
            and replication.comes_back(broker, self.log.end_offset, now_ms)
        ):
            # What is appended from here on would be committed before its next fetch, and keep it out.
            self._alone = False
        if not self._alone:
            self._commit(now_ms)
        self._wake_deletions()
        if int(broker) not in self.isr and replication.may_join(
            broker, self.high_watermark, self.epoch_start, self.log.start_offset
        ):
            self._want_isr(replication, replication.with_joined(broker))
        return True

    def asked_again(self, broker: i32, now_ms: i64, epoch: i64 = NO_EPOCH) -> None:
        """A follower that had everything asked from the same offset again, last at ``now_ms``."""
        replication = self.replication
        if replication is not None:
            replication.asked_again(broker, now_ms, epoch)

    def follower_gone(self, broker: i32, now_ms: i64) -> None:
        """A broker has ended: had it been about to come into the in-sync set, it is not waited for."""
        replication = self.replication
        if replication is not None and replication.gone(broker) and not self._alone:
            self._settle_alone(now_ms)
        self._wake_deletions()

    def is_in_sync(self, broker: i32, offset: i64) -> bool:
        """Whether a follower is in the in-sync set, and known to have the log up to ``offset``."""
        replication = self.replication
        if replication is None or int(broker) not in self.isr:
            return False
        follower = replication.followers.get(int(broker))
        return follower is not None and follower.end_offset == offset

    def awaits(self, broker: i32, now_ms: i64) -> bool:
        """Whether commits wait for a follower: it is in sync, or about to come back."""
        replication = self.replication
        return int(broker) in self.isr or (
            replication is not None and replication.comes_back(broker, self.log.end_offset, now_ms)
        )

    def is_deserted(self, since_ms: i64) -> bool:
        """Whether records wait for followers of which none has fetched since then.

        Fetches are noted one by one as long as something is not committed. A leader that commits alone is
        never deserted: no other replica can be elected. One with too few in sync is, as the controller may
        elect an eligible leader replica.
        """
        replication = self.replication
        if replication is None or self.high_watermark >= self.log.end_offset:
            return False
        if self._is_alone() and not replication.pending:
            return False
        return not replication.heard_since(since_ms)

    def drop_lagging(self, now_ms: i64) -> None:
        """Asks for those to be taken out of the in-sync set that were not caught up for too long."""
        replication = self.replication
        if replication is not None:
            isr = replication.without_lagging(self.log.end_offset, now_ms)
            if len(isr) < len(self.isr):
                self._want_isr(replication, isr)
            elif not self._alone and self._is_alone():
                # A follower that was about to come back may have stopped: its next fetch counts again.
                self._settle_alone(now_ms)

    def _want_isr(self, replication: Replicas, isr: tuple[int, ...]) -> None:
        replication.pending = isr
        # The controller may have written a larger set before this leader learns of it: from now on nothing
        # counts as committed that its new member does not have.
        self._alone = False
        self.events.isr_wanted(self, isr, replication.partition_epoch)

    def isr_refused(self, now_ms: i64) -> None:
        """The controller did not write the set that was asked for: the one before holds."""
        if self.replication is not None:
            self.replication.pending = ()
            self._settle_alone(now_ms)
            # Who asked for its place in the set asks again with its next fetch.
            self.tell_news()

    def _commit(self, now_ms: i64) -> None:
        """Moves the high watermark to where all replicas in sync have the log.

        Below ``min.insync.replicas`` it does not move, for every ``acks``: an eligible leader replica would
        lack records that consumers have read. Source: KIP-966.
        """
        replication = self.replication
        if replication is None or self.is_under_min_isr:
            return
        end: i64 = self.log.end_offset
        offset: i64 = replication.high_watermark(self._own_end(), now_ms)
        if offset > self.high_watermark:
            # Bytes are not known by offset: the share of the offsets stands for them.
            added: i64 = self._unflushed_bytes * (offset - self.high_watermark) // (end - self.high_watermark)
            self._unflushed_bytes -= added
            self._advance(offset, added)

    # Following.

    def append_from_leader(
        self,
        data: bytes,
        high_watermark: i64,
        start_offset: i64,
        now_ms: i64,
        position: i64 = 0,
        position_end: i64 = WHOLE,
    ) -> None:
        """Appends what the leader sent, and takes over how far it is committed and where it starts.

        The records are ``data[position:position_end]``. Raises CorruptMessage for batches that are damaged or
        may be of a later leader (what came before them is kept), and StorageError.
        """
        if position_end == WHOLE:
            position_end = len(data)
        size: i64 = position_end - position
        end: i64 = self.log.end_offset
        if size > 0:
            if self.log.start_offset < end <= start_offset:
                # What is here was deleted. The leader's log may start within a batch, which then comes whole.
                self._advance(high_watermark if high_watermark < end else end, 0)
                self._follow_start(end)
            try:
                end = self.log.append_as_follower(data, now_ms, position, position_end, self.leader_epoch)
            finally:
                # Some of it may be stored although the rest is refused; the next fetch tells of it.
                self.flush_if_due()
        self._unwritten_bytes += size
        if self._unwritten_bytes >= WRITE_BACK_BYTES:
            self._unwritten_bytes = 0
            self.events.write_back_wanted(self)
        self._advance(high_watermark if high_watermark < end else end, size)
        self._follow_start(start_offset if start_offset < end else end)

    def _follow_start(self, offset: i64) -> None:
        """Moves the log start to the leader's, which learns of it once it is in the checkpoint."""
        if offset > self.log.start_offset:
            self.advance_start(offset)
            self.save_start()

    def save_start(self) -> None:
        """Has the log start written to its checkpoint; fetches name it after that."""
        self._start_unsaved = True
        self.events.start_moved(self)

    def truncate_to(self, offset: i64, now_ms: i64, reason: str = DIVERGED) -> None:
        """Cuts what the leader does not have, for ``reason``. Raises StorageError.

        A log that is cut but for its files then is synced all the same, which finishes that.
        """
        start: i64 = self.log.start_offset
        end: i64 = self.log.end_offset
        size: i64 = self.log.size_bytes if offset < end else 0
        truncations: i64 = self.log.truncations
        try:
            self.log.truncate_to(offset, now_ms)
        finally:
            self._report_cut(start, end, size, reason)
            self.high_watermark = min(self.high_watermark, self.log.end_offset)
            self.note_move()
            self._flushed_end = min(self._flushed_end, self.log.end_offset)
            self.tell_news()
            if self.log.truncations != truncations:
                # Before it is on the disk, a power cut could leave what was cut among what is appended next.
                self._cut_unsynced = True
                self._want_flush()

    def follow_end(self, end: i64, leader_start: i64, now_ms: i64, reason: str) -> None:
        """Cuts from ``end`` on what the leader does not have, whose log starts at ``leader_start``.

        Everything is cut, to be fetched anew from the leader's start, where what would be left may lack
        records that the leader has. Raises StorageError.
        """
        log = self.log
        if log.start_offset < end <= leader_start:
            # What is left would lie before the leader's start. Nobody knows whether it is what was there: its
            # producers must not be answered that their batches are known.
            self.begin_at(leader_start, now_ms)
        elif self._may_lack_before(end):
            self.begin_at(
                leader_start,
                now_ms,
                f"{reason}; older ones that it has may have been compacted or deleted here because of those"
                " that are cut, and all are fetched again",
            )
        else:
            self.truncate_to(end, now_ms, reason)

    def _may_lack_before(self, end: i64) -> bool:
        """Whether this log may lack records before ``end`` that a leader has whose log ends there.

        Compaction and retention remove records that are committed, and because of committed ones. Only a
        leader that was elected although it may lack such records has a log that ends before them, and then no
        other replica is in sync. What a follower fetched from a leader that compacts has the same gaps.
        """
        log = self.log
        if end >= log.end_offset or int(self.node_id) in self.isr:
            return False
        return (
            end < log.start_offset
            or end < log.clean_end
            or (log.config.compact and end < self.high_watermark)
        )

    def begin_at(self, offset: i64, now_ms: i64, reason: str = "") -> None:
        """Forgets everything, and begins at ``offset``, where the leader's log starts. Raises StorageError.

        ``reason``: why, unless the leader's log begins behind the end of this one.
        """
        start: i64 = self.log.start_offset
        end: i64 = self.log.end_offset
        size: i64 = self.log.size_bytes
        truncations: i64 = self.log.truncations
        try:
            self.log.truncate_fully(offset, now_ms)
        finally:
            if self.log.truncations != truncations:
                self._report_cut(start, end, size, reason or f"the leader's log starts at offset {offset}")
                self.high_watermark = self._flushed_end = offset
                self.note_move()
                self.tell_news()
                self._cut_unsynced = True
                self._want_flush()
                # The leader's log may start within a batch, which then names the file.
                self.save_start()

    def _report_cut(self, start: i64, end: i64, size: i64, reason: str) -> None:
        """Reports what a cut took of a log that reached from ``start`` to ``end``, with ``size`` bytes."""
        first: i64 = start
        if start < self.log.end_offset < end:
            first = self.log.end_offset
        if first < end and self.log.size_bytes < size:
            self.events.records_cut(self, first, end - 1, reason)

    def advance_start(self, offset: i64) -> None:
        """Moves the log's start up to ``offset``, unless it is there already."""
        if self.log.advance_start(offset):
            self.tell_news()
            # The fetches of followers that wait are answered at once: DeleteRecords waits for them.
            self._wake_followers(0)

    def note_move(self) -> None:
        """The high watermark is another than was written down."""
        if not self.has_moved:
            self.has_moved = True
            self.events.high_watermark_moved(self)

    def start_saved(self, offset: i64) -> None:
        """A start of the log at ``offset`` holds after a crash."""
        if not self._start_unsaved:
            return
        if offset < self.log.start_offset:
            # Retention has moved it on meanwhile.
            self.events.start_moved(self)
        else:
            self._start_unsaved = False
            if self.on_flushed is not None:
                self.on_flushed()

    def low_watermark(self) -> i64:
        """The least log start of all live replicas; -1 while that of a live one is not known."""
        replication = self.replication
        own: i64 = self.log.start_offset
        return own if replication is None else replication.start_offset(own, self.events.is_alive)
