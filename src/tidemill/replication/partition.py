"""A partition on its leader or a follower. Compiled.

A partition owns its log, the limits for its readers (:mod:`tidemill.replication.read_limits`), its delayed
operations (:mod:`tidemill.replication.delayed_operations`) and, on the leader, the state of its followers
(:mod:`tidemill.replication.follower_replicas`). Consumers read committed records from the leader or a
follower; followers read from the leader, up to its log end offset. Requests with another leader epoch than
the current one are rejected first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i32, i64, mypyc_attr

from tidemill.log.errors import OffsetOutOfRange, storage_error
from tidemill.log.log import AppendResult, Log
from tidemill.log.log_segment import LogRange
from tidemill.model.effective_min_isr import effective_min_isr
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.mirror_state import ACTIVE, PROMOTING
from tidemill.model.system_interfaces import File
from tidemill.model.types import NO_OFFSET
from tidemill.records.batch import Batch
from tidemill.records.batch_validation import RecordLimits
from tidemill.records.end_transaction_marker import MARKER_BATCH_BYTES
from tidemill.records.message_set import MessageSet
from tidemill.replication.delayed_operations import DelayedOperations, OffsetWaiter, WatchedPartition
from tidemill.replication.follower_replicas import NO_BROKER_EPOCH, FollowerReplicas
from tidemill.replication.isr_state import IsrState, PendingIsr
from tidemill.replication.message_format import TopicMessageFormat
from tidemill.replication.read_limits import ReadLimits
from tidemill.replication.replication_quota import ReplicationQuota


@mypyc_attr(allow_interpreted_subclasses=True)
class PartitionEvents:
    """The requests of a partition to its broker, which has to implement all of them."""

    lag_ms_max: i64 = 30_000
    """``replica.lag.time.max.ms``: a follower that has not caught up for this time leaves the ISR."""

    def write_back_requested(self, partition: Partition) -> None:
        """Many bytes were appended: start to write them to disk in the background."""
        raise NotImplementedError

    def on_storage_error(self, partition: Partition, error: KafkaError) -> None:
        """An append or a read failed with KAFKA_STORAGE_ERROR."""
        raise NotImplementedError

    def high_watermark_moved(self, partition: Partition) -> None:
        """The high watermark differs from the checkpoint. Called once until
        ``read_limits.is_unsaved`` is reset.
        """
        raise NotImplementedError

    def log_start_offset_moved(self, partition: Partition) -> None:
        """The log start offset has followed the leader's.

        The receiver writes the checkpoint, and then calls ``log_start_offset_saved``.
        """
        raise NotImplementedError

    def is_alive(self, broker: i32) -> bool:
        """Whether a broker is live, so that DeleteRecords waits for it."""
        raise NotImplementedError

    def flush_requested(self, partition: Partition) -> None:
        """Appends wait for a flush (``flush.messages``): sync the log in the background, then call
        ``flushed``.
        """
        raise NotImplementedError

    def records_truncated(self, partition: Partition, first: i64, last: i64, reason: str) -> None:
        """Records with offsets ``first`` to ``last`` were truncated from the log of a follower."""
        raise NotImplementedError

    def isr_requested(self, partition: Partition, isr: tuple[int, ...], partition_epoch: i64) -> None:
        """Request another ISR from the controller, over the state of ``partition_epoch``.

        ``apply_state`` with the new state, or ``isr_refused``, completes the change.
        """
        raise NotImplementedError


DIVERGED: Final = "the leader has other records at these offsets, or none"
END_OF_DATA: Final[i64] = -1
"""A value of ``position_end``."""
PROMOTED_AT_ONCE: Final = 50
"""Transactions of the source of a mirror that are aborted in one turn of the event loop."""
WRITE_BACK_BYTES: Final = 16 * 1024 * 1024
"""The number of appended bytes after which their write-back is started."""


class Partition(WatchedPartition):
    """A partition that this broker leads or follows."""

    def __init__(
        self,
        topic: str,
        index: i32,
        log: Log,
        validation_limits: RecordLimits,
        node_id: i32,
        events: PartitionEvents,
        message_format: TopicMessageFormat | None = None,
    ) -> None:
        self.topic = topic
        self.index: i32 = index
        self.log = log
        self.node_id: i32 = node_id
        self.read_limits = ReadLimits(log)
        self.delayed = DelayedOperations(self)
        self.leader: i32 = -1
        self.leader_epoch: i64 = -1
        self.deleted = False
        self.offline_reason = ""
        """Why the log is offline; empty while it is online."""
        self.validation_limits = validation_limits
        self.is_mirror = False
        """Whether the topic is a mirror: it accepts no batches but those of its source."""
        self.is_promoting = False
        """Whether the mirror ends: it accepts nothing."""
        self.message_format = TopicMessageFormat() if message_format is None else message_format
        self.events = events
        self.isr_state = IsrState()
        """The ISR of the state that the controller sent last, and the pending one while this broker leads."""
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        """The replicas that a reassignment adds."""
        self.min_insync_replicas: i32 = 1
        self.effective_min_isr: i32 = 1
        """The number of in-sync replicas for a commit: ``min.insync.replicas``, or all if there are fewer."""
        self.messages_in: i64 = 0
        self.bytes_in: i64 = 0
        self.bytes_out: i64 = 0
        self.produce_conversions: i64 = 0
        """Records that were converted between formats when produced."""
        self.fetch_conversions: i64 = 0
        """Records that were converted for readers of older formats."""
        self.reserved = False
        """The log end offset is assigned to a message set that is being converted: other produces wait."""
        self.replication: FollowerReplicas | None = None
        """The state of the followers on the leader; None without followers, and on followers."""
        self.epoch_start: i64 = 0
        """The log end offset when this broker became the leader."""
        self.on_flushed: Callable[[], None] | None = None
        """Called after a flush or a checkpoint of the log start offset that fetching waits for."""
        self._left: tuple[FollowerReplicas, PendingIsr | None] | None = None
        """The followers and the pending ISR when this broker stopped leading in the current state."""
        self._known_ends: dict[int, int] = {}
        """The last known log end offsets of replicas."""
        self._alone = False
        """Appends are committed at once: no other replica is in the ISR, is requested for it, or is about to
        join it.
        """
        self._flushing = False
        """A sync was requested, and has not ended."""
        self._truncation_unsynced = False
        """A truncation is not synced."""
        self._start_unsaved = False
        """The log start offset is not in the checkpoint."""
        # A killed process leaves records that only the page cache has.
        self._flushed_end: i64 = min(log.recovery_point, log.end_offset)
        self._unflushed_bytes: i64 = 0
        self._unwritten_bytes: i64 = 0

    def replace_log(self, log: Log) -> None:
        """Replaces the log by its copy in another directory. Readers and delayed operations stay."""
        self.log = log
        self.read_limits.log = log

    def on_read_failed(self, file: File, problem: OSError) -> None:
        """Reports that a segment could not be read while it was sent. Ignores files of a former log."""
        if not self.deleted and file.path.startswith(f"{self.log.directory}/"):
            self.events.on_storage_error(self, storage_error("read", file.path, problem))

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.leader == self.node_id and not self.deleted

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as the controller has written them."""
        return self.isr_state.committed.isr

    @property
    def partition_epoch(self) -> i64:
        """The version of the state that the controller sent last; it also grows within a leader epoch."""
        return self.isr_state.committed.partition_epoch

    @property
    def high_watermark(self) -> i64:
        """The offset below which all in-sync replicas have the records."""
        return self.read_limits.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: i64) -> None:
        self.read_limits.high_watermark = offset

    def has_transactions(self) -> bool:
        """Whether consumers with ``read_committed`` may have a lower limit than others."""
        return not self.log.producer_state.transactions.are_none

    def is_committed(self, end_offset: i64) -> bool:
        """Whether everything below ``end_offset`` is committed."""
        return self.read_limits.high_watermark >= end_offset

    @property
    def is_offline(self) -> bool:
        """Whether the log cannot be used, because its directory failed."""
        return self.offline_reason != ""

    def check_readable(self, current_epoch: i64) -> None:
        """Raises an error unless consumers may read here, with the client's leader epoch (-1: none).

        A follower serves them as well as the leader (KIP-392).
        """
        self.check_here()
        if self.leader < 0:
            # This broker may have led until now, and have shown consumers more than it knows to be committed.
            raise self._not_leader_error()
        self._check_epoch(current_epoch)

    def check_here(self) -> None:
        """Raises an error unless this broker has the log, as leader or follower."""
        if self.offline_reason:
            raise KafkaError(self.offline_reason, ErrorCode.KAFKA_STORAGE_ERROR)
        if self.deleted:
            raise self._not_leader_error()

    def check_leader(self, current_epoch: i64) -> None:
        """Raises an error unless this broker leads, with the client's leader epoch (-1: none)."""
        self.check_here()
        if self.leader != self.node_id:
            raise self._not_leader_error()
        self._check_epoch(current_epoch)

    def _not_leader_error(self) -> KafkaError:
        return KafkaError(
            f"{self.topic}-{self.index} {self._leader_text()}", ErrorCode.NOT_LEADER_OR_FOLLOWER
        )

    def _leader_text(self) -> str:
        if self.deleted:
            return "was deleted"
        return f"is led by broker {self.leader}" if self.leader >= 0 else "has no leader"

    def _check_epoch(self, current_epoch: i64) -> None:
        if current_epoch >= 0 and current_epoch != self.leader_epoch:
            if current_epoch < self.leader_epoch:
                raise KafkaError(
                    f"leader epoch {current_epoch} is outdated, the current one is {self.leader_epoch}",
                    ErrorCode.FENCED_LEADER_EPOCH,
                )
            raise KafkaError(
                f"leader epoch {current_epoch} is unknown, the current one is {self.leader_epoch}",
                ErrorCode.UNKNOWN_LEADER_EPOCH,
            )

    def read(self, offset: i64, bytes_max: i64, limit_offset: i64, whole_first: bool) -> LogRange | None:
        """The range with the records from ``offset`` on, up to ``limit_offset``; None if there are none yet.

        Raises OFFSET_OUT_OF_RANGE for an offset outside the log; on a follower NOT_LEADER_OR_FOLLOWER.

        Above the high watermark a consumer waits: after a leader change, and on a follower, the consumer may
        know a higher high watermark than this broker. A follower may first have to fetch records that the
        consumer has read elsewhere. It refers the consumer to the leader: without a leader epoch a consumer
        resets its position after OFFSET_OUT_OF_RANGE, which Apache Kafka also returns here (KAFKA-14255).
        """
        try:
            return self.log.read(offset, bytes_max, limit_offset, whole_first)
        except OffsetOutOfRange as problem:
            if self.leader == self.node_id:
                raise
            text = f"{problem}; the partition {self._leader_text()}"
            raise KafkaError(text, ErrorCode.NOT_LEADER_OR_FOLLOWER) from problem

    def check_range(self, offset: i64) -> None:
        """Raises the errors of :meth:`read` for an offset outside the log. Reads nothing."""
        self.read(offset, 0, offset, False)

    @property
    def flush_under_way(self) -> bool:
        """Whether a sync that appends wait for is in progress."""
        return self._flushing

    @property
    def has_pending_sync(self) -> bool:
        """Whether a pending sync or checkpoint must complete before fetches may report it to the leader.

        This is a sync that appends wait for, or the log start offset: a leader answers DeleteRecords when its
        followers report the new one, which must survive a crash of the next leader.
        """
        return self._flushing or self._start_unsaved

    @property
    def awaits_high_watermark(self) -> bool:
        """Whether this broker became the leader and does not know the former leader's high watermark yet.

        The former high watermark was at least as high as consumers have seen. The only replica has to sync
        the records again after it was killed, if ``flush.messages`` requires that.
        """
        return self.is_leader and self.high_watermark < self.epoch_start

    @property
    def is_under_replicated(self) -> bool:
        """Whether this broker leads, and the ISR is smaller than the replicas without added ones.

        Source: Apache Kafka, ``Partition.isUnderReplicated``.
        """
        return self.is_leader and len(self.isr) < len(self.replicas) - len(self.adding)

    @property
    def lag_max(self) -> i64:
        """The largest number of records that a follower lacks, as far as the leader knows."""
        replication = self.replication
        if replication is None:
            return 0
        return replication.lag_max(self.log.start_offset, self.log.end_offset)

    def apply_state(
        self,
        leader: i32,
        leader_epoch: i64,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        *,
        partition_epoch: i64,
        now_ms: i64,
        adding: tuple[int, ...] = (),
    ) -> None:
        """Applies a state from the controller."""
        is_new = leader != self.leader or leader_epoch != self.leader_epoch
        if is_new or self.replication is None:
            self._known_ends = self._known_log_ends(replicas)
        if leader_epoch != self.leader_epoch or partition_epoch != self.partition_epoch:
            self._left = None
        elif self.replication is not None:
            self._left = self.replication, self.isr_state.pending
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.adding = adding
        former_isr = self.isr
        self.isr_state.commit(isr, partition_epoch)
        self._update_effective_min_isr()
        self._update_alone()
        self.flush_if_due()
        if self.is_leader:
            self._lead(is_new, former_isr, now_ms)
            self._complete_delete_records()
        elif not is_new:
            self.delayed.record_change()
        else:
            self.replication = None
            self.delayed.fail(self._not_leader_error())

    def set_min_insync_replicas(self, min_insync_replicas: i32, now_ms: i64) -> None:
        """Applies ``min.insync.replicas``; a lower value may commit records."""
        if min_insync_replicas == self.min_insync_replicas:
            return
        self.min_insync_replicas = min_insync_replicas
        self._update_effective_min_isr()
        if self.is_leader and not self.offline_reason:
            self._update_high_watermark(now_ms)
            self._complete_delete_records()

    def _update_effective_min_isr(self) -> None:
        replicas, adding = len(self.replicas), len(self.adding)
        self.effective_min_isr = effective_min_isr(int(self.min_insync_replicas), replicas, adding)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the ISR is too small for commits: then the high watermark does not advance."""
        return len(self.isr) < self.effective_min_isr

    def _is_alone(self) -> bool:
        """Whether this broker leads, and no other replica is in the ISR or requested for it."""
        return (
            self.is_leader
            and self.isr_state.pending is None
            and len(self.isr) == 1
            and not self.is_under_min_isr
        )

    def _update_alone(self, is_rejoining: bool = False) -> None:
        """``is_rejoining``: a follower is about to join the ISR."""
        self._alone = self._is_alone() and not is_rejoining

    def _update_high_watermark(self, now_ms: i64) -> None:
        """Advances the high watermark after a change of the ISR or of ``min.insync.replicas``."""
        self._update_alone()
        if not self._alone:
            self._commit(now_ms)
        else:
            self._advance(self._own_end(), 0)

    def _own_end(self) -> i64:
        """The offset that this broker has for a commit: with ``flush.messages`` its synced end."""
        return self._flushed_end if self._flushing or self.log.needs_flush else self.log.end_offset

    def _known_log_ends(self, replicas: tuple[int, ...]) -> dict[int, int]:
        """The last known log end offset of each of ``replicas``."""
        known: dict[int, int] = {}
        for broker in replicas:
            end: i64 = NO_OFFSET
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

    def _lead(self, is_new: bool, former_isr: tuple[int, ...], now_ms: i64) -> None:
        if is_new:
            self.epoch_start = self.log.end_offset
            self.log.begin_leader_epoch(self.leader_epoch)
        known = self.replication
        if len(self.replicas) < 2:
            self.replication = None
        elif known is None or is_new:
            self.replication = FollowerReplicas(
                self.node_id, self.replicas, self.isr_state, now_ms, self.events.lag_ms_max
            )
            self.replication.set_known_ends(self._known_ends, self.high_watermark)
            self._resume(self.replication)
        else:
            known.change(self.replicas, former_isr)
        if self._alone:
            self._advance(self._own_end(), 0)
        else:
            self._commit(now_ms)
        if is_new:
            self.delayed.wake_readers()
        else:
            self.delayed.record_change()

    def _resume(self, replication: FollowerReplicas) -> None:
        """Leads again in the state in which it stopped, and requests the pending ISR again.

        The controller may have written that ISR, and may elect its new members.
        """
        left, self._left = self._left, None
        if left is not None:
            followers, pending = left
            replication.resume(followers)
            if pending is not None:
                self._request_isr(pending.isr)

    # Appends

    def append(self, batch: Batch, acks: i32, now_ms: i64) -> AppendResult:
        """Appends a validated batch as the leader.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, KAFKA_STORAGE_ERROR, and the log's errors about
        the sequence of an idempotent producer.
        """
        self._check_appendable(acks)
        result = self.log.append(batch, self.leader_epoch, now_ms)
        if not result.duplicate:
            self.messages_in += batch.record_count
            self._appended(batch.size)
        return result

    def append_messages(self, messages: MessageSet, acks: i32, now_ms: i64) -> AppendResult:
        """Appends a validated message set of format v0 or v1 as the leader; raises the errors of
        :meth:`append`.
        """
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

    def append_mirrored(self, data: bytes, position: i64, end: i64, acks: i32, now_ms: i64) -> AppendResult:
        """Appends batches of the source of a mirror as the leader, with the offsets that they have.

        The batches are ``data[position:end]``. Raises the errors of :meth:`append` without those of
        sequences, those of :meth:`Log.append_mirrored`, and POLICY_VIOLATION once the mirror ends: the
        request may have waited.
        """
        self._check_appendable(acks)
        if not self.is_mirror or self.is_promoting or self.log.mirror_has_ended:
            raise self.mirror_error()
        before: i64 = self.log.end_offset
        try:
            result, count = self.log.append_mirrored(data, position, end, self.leader_epoch, now_ms)
            self.messages_in += count
        finally:
            # After an error of the disk, some of the batches may be stored.
            if self.log.end_offset > before:
                self._appended(end - position)
        return result

    def set_mirror_state(self, mirror_state: str) -> None:
        """Sets ``tidemill.mirror.state`` of the topic."""
        self.is_promoting = mirror_state == PROMOTING
        self.is_mirror = self.is_promoting or mirror_state == ACTIVE

    def mirror_error(self) -> KafkaError:
        """Returns the error of records that a mirror does not accept."""
        return KafkaError(
            f"{self.topic}-{self.index} is a mirror of a topic of another cluster: it accepts messages of"
            " producers once its promotion has ended (tidemill topic promote), and until then batches of its"
            " source at the inter-broker listener",
            ErrorCode.POLICY_VIOLATION,
        )

    def promote(self, now_ms: i64) -> bool:
        """Ends the mirror as the leader: aborts open transactions of the source, and then appends the end.

        Returns False if transactions are left. Raises the errors of :meth:`append`.
        """
        log = self.log
        if log.mirror_has_ended or not self.is_promoting:
            return True
        left = [entry for entry in log.producers() if entry.transaction_first_offset >= 0]
        for entry in left[:PROMOTED_AT_ONCE]:
            coordinator_epoch: i64 = max(entry.coordinator_epoch, 0)
            self.append_marker(False, entry.producer_id, entry.epoch, coordinator_epoch, False, now_ms)
        if len(left) > PROMOTED_AT_ONCE:
            return False
        self._check_appendable(-1)
        size: i64 = log.append_mirror_end(self.leader_epoch, now_ms)
        self._appended(size)
        return True

    def append_marker(
        self,
        is_commit: bool,
        producer_id: i64,
        producer_epoch: i64,
        coordinator_epoch: i64,
        has_new_epoch: bool,
        now_ms: i64,
    ) -> AppendResult:
        """Appends the marker of a transaction as the leader, with ``acks=all``.

        Raises the errors of :meth:`append` and of :meth:`Log.append_marker`.
        """
        self._check_appendable(-1)
        result = self.log.append_marker(
            is_commit,
            producer_id,
            producer_epoch,
            coordinator_epoch,
            has_new_epoch,
            self.leader_epoch,
            now_ms,
        )
        self._appended(MARKER_BATCH_BYTES)
        return result

    def _check_appendable(self, acks: i32) -> None:
        self.check_leader(-1)
        if self._truncation_unsynced:
            # A power failure could preserve the truncation and a later segment with new records, but none
            # before it.
            raise KafkaError(
                f"{self.topic}-{self.index} was truncated to {self.log.end_offset}, which is not synced"
                " yet. Try again",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )
        if acks == -1 and self.is_under_min_isr:
            raise KafkaError(
                f"{self.topic}-{self.index} has {len(self.isr)} in-sync replicas,"
                f" min.insync.replicas is {self.effective_min_isr}",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    def commit_error(self) -> KafkaError | None:
        """NOT_ENOUGH_REPLICAS_AFTER_APPEND if the ISR has shrunk below the minimum since the append."""
        if not self.is_under_min_isr:
            return None
        return KafkaError(
            f"{self.topic}-{self.index} has the records, but only {len(self.isr)} in-sync replicas remain,"
            f" min.insync.replicas is {self.effective_min_isr}",
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        )

    def _appended(self, size: i64) -> None:
        """Counts appended bytes, and commits them if this broker is the only in-sync replica."""
        self.bytes_in += size
        self._unwritten_bytes += size
        if self._unwritten_bytes >= WRITE_BACK_BYTES:
            self._unwritten_bytes = 0
            self.events.write_back_requested(self)
        if self.log.needs_flush:
            self._unflushed_bytes += size
            self._request_flush()
        elif self._alone and not self._flushing:
            self._advance(self.log.end_offset, size)
        else:
            self._unflushed_bytes += size
        self.delayed.wake_followers(size)

    def must_delay_response(self, acks: i32, end_offset: i64) -> bool:
        """Whether the response to a produce with ``acks`` is delayed until ``end_offset`` is reached.

        With ``acks=1`` it waits only for a sync of the leader's log that ``flush.messages`` requires.
        """
        if self.high_watermark >= end_offset:
            return False
        return acks == -1 or (acks == 1 and self._flushing and self._flushed_end < end_offset)

    def flush_if_due(self) -> None:
        """Starts a flush if the current ``flush.messages`` requires one."""
        if self.log.needs_flush and not self.offline_reason:
            self._request_flush()

    def _request_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.events.flush_requested(self)

    def flushed(self, end_offset: i64, now_ms: i64) -> None:
        """The log is synced up to ``end_offset``; later records need the next flush."""
        self._flushing = False
        self._truncation_unsynced = False
        self._flushed_end = end_offset
        if self._alone:
            added = self._unflushed_bytes
            self._unflushed_bytes = 0
            self._advance(end_offset, added)
        else:
            self._commit(now_ms)
        self.flush_if_due()
        # Later records that need no sync are committed, too.
        end = self._own_end()
        if self._alone and self.high_watermark < end:
            self._advance(end, 0)
        self.delayed.complete_syncs(end)
        if self.on_flushed is not None:
            self.on_flushed()

    def mark_offline(self, reason: str) -> None:
        """Takes the partition offline: its log directory failed."""
        self.offline_reason = reason
        self.delayed.fail(KafkaError(reason, ErrorCode.KAFKA_STORAGE_ERROR))

    def delete(self) -> None:
        """Marks the partition as deleted, and completes its delayed operations."""
        self.deleted = True
        self.delayed.fail(
            KafkaError(f"{self.topic}-{self.index} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        )

    # Followers

    def fetched_by(
        self, broker: i32, offset: i64, start_offset: i64, now_ms: i64, epoch: i64 = NO_BROKER_EPOCH
    ) -> bool:
        """Records a fetch of a follower with broker epoch ``epoch`` at ``offset``: it has all earlier
        records.

        Returns False if the broker has no replica, or has registered again since the fetch.
        """
        replication = self.replication
        if replication is None or not replication.fetched(
            broker, offset, start_offset, self.log.end_offset, now_ms, epoch
        ):
            return False
        if (
            self._alone
            and int(broker) not in self.isr
            and replication.is_rejoining(broker, self.log.end_offset, now_ms)
        ):
            # Otherwise later appends would be committed before its next fetch, and keep it out of the ISR.
            self._update_alone(is_rejoining=True)
        if not self._alone:
            self._commit(now_ms)
        self._complete_delete_records()
        if int(broker) not in self.isr and replication.can_join_isr(
            broker, self.high_watermark, self.epoch_start, self.log.start_offset
        ):
            self._request_isr((*self.isr, int(broker)))
        return True

    def fetch_repeated(self, broker: i32, now_ms: i64, epoch: i64 = NO_BROKER_EPOCH) -> None:
        """Records that a caught-up follower repeated its fetch, last at ``now_ms``."""
        replication = self.replication
        if replication is not None:
            replication.fetch_repeated(broker, now_ms, epoch)

    def follower_gone(self, broker: i32, now_ms: i64) -> None:
        """Records the failure of a broker: if it was about to join the ISR, commits do not wait for it."""
        replication = self.replication
        if replication is not None and replication.broker_failed(broker) and not self._alone:
            self._update_high_watermark(now_ms)
        self._complete_delete_records()

    def is_in_sync(self, broker: i32, offset: i64) -> bool:
        """Whether a follower is in the ISR, and has the log up to ``offset``."""
        replication = self.replication
        if replication is None or int(broker) not in self.isr:
            return False
        follower = replication.followers.get(int(broker))
        return follower is not None and follower.end_offset == offset

    def commits_wait_for(self, broker: i32, now_ms: i64) -> bool:
        """Whether commits wait for a follower: it is in sync, or about to join the ISR."""
        replication = self.replication
        return int(broker) in self.isr or (
            replication is not None and replication.is_rejoining(broker, self.log.end_offset, now_ms)
        )

    def is_throttled(self, quota: ReplicationQuota, broker: i32, now_ms: i64, quota_now_s: float) -> bool:
        """Whether ``quota`` withholds the records from a follower for which no commit waits."""
        in_sync = self.commits_wait_for(broker, now_ms)
        return quota.is_throttled(self.topic, int(self.index), quota_now_s, in_sync=in_sync)

    def is_isolated(self, since_ms: i64) -> bool:
        """Whether uncommitted records wait for followers none of which has fetched since then.

        Fetches are recorded one by one while records are uncommitted. A leader that commits alone is never
        isolated: no other replica can be elected. A leader with too few in-sync replicas may be, because the
        controller may elect an eligible leader replica.
        """
        replication = self.replication
        if replication is None or self.high_watermark >= self.log.end_offset:
            return False
        if self._is_alone():
            return False
        return not replication.has_fetched_since(since_ms)

    def maybe_shrink_isr(self, now_ms: i64) -> None:
        """Requests the removal of followers from the ISR that have not caught up for too long."""
        replication = self.replication
        if replication is not None:
            isr = replication.without_lagging(self.log.end_offset, now_ms)
            if len(isr) < len(self.isr):
                self._request_isr(isr)
            elif not self._alone and len(self.isr) == 1:
                # A follower that was about to join the ISR may have stopped: its next fetch counts again.
                self._update_high_watermark(now_ms)

    def _request_isr(self, isr: tuple[int, ...]) -> None:
        self.isr_state.request(isr)
        # The controller may write a larger ISR before this leader is notified: from now on, nothing is
        # committed that the new member lacks.
        self._update_alone()
        self.events.isr_requested(self, isr, self.partition_epoch)

    def isr_refused(self, now_ms: i64) -> None:
        """The controller rejected the requested ISR: the former one stays."""
        if self.replication is not None:
            self.isr_state.withdraw()
            self._update_high_watermark(now_ms)
            # The follower that was to join the ISR requests it again with its next fetch.
            self.delayed.record_change()

    def _commit(self, now_ms: i64) -> None:
        """Advances the high watermark to the lowest log end offset of the in-sync replicas.

        Below ``min.insync.replicas`` it does not advance, whatever ``acks`` is: an eligible leader replica
        would lack records that consumers have read. Source: KIP-966.
        """
        replication = self.replication
        if replication is None or self.is_under_min_isr:
            return
        end: i64 = self.log.end_offset
        offset: i64 = replication.high_watermark(self._own_end(), now_ms)
        if offset > self.high_watermark:
            # The share of bytes is estimated by the share of offsets.
            added: i64 = self._unflushed_bytes * (offset - self.high_watermark) // (end - self.high_watermark)
            self._unflushed_bytes -= added
            self._advance(offset, added)

    # Fetching

    def append_from_leader(
        self,
        data: bytes,
        high_watermark: i64,
        start_offset: i64,
        now_ms: i64,
        position: i64 = 0,
        position_end: i64 = END_OF_DATA,
    ) -> None:
        """Appends records from the leader, and takes over its high watermark and log start offset.

        The records are ``data[position:position_end]``. Raises CorruptMessage for batches that are damaged or
        may come from a later leader (earlier batches are stored), and StorageError.
        """
        if position_end == END_OF_DATA:
            position_end = len(data)
        size: i64 = position_end - position
        end: i64 = self.log.end_offset
        if size > 0:
            if self.log.start_offset < end <= start_offset:
                # All records here were deleted. The leader's log may start within a batch, which is sent
                # whole.
                self._advance(high_watermark if high_watermark < end else end, 0)
                self._follow_log_start(end)
            try:
                end = self.log.append_as_follower(data, position, position_end, self.leader_epoch, now_ms)
            finally:
                # Some batches may be stored although others were rejected; the next fetch reports them.
                self.flush_if_due()
        self._unwritten_bytes += size
        if self._unwritten_bytes >= WRITE_BACK_BYTES:
            self._unwritten_bytes = 0
            self.events.write_back_requested(self)
        self._advance(high_watermark if high_watermark < end else end, size)
        self._follow_log_start(start_offset if start_offset < end else end)

    def _follow_log_start(self, offset: i64) -> None:
        """Advances the log start offset to the leader's. Fetches report it once it is checkpointed."""
        if offset > self.log.start_offset:
            self.advance_start(offset)
            self.save_log_start_offset()

    def save_log_start_offset(self) -> None:
        """Requests a checkpoint of the log start offset; fetches report it afterwards."""
        self._start_unsaved = True
        self.events.log_start_offset_moved(self)

    def truncate_to(self, offset: i64, now_ms: i64, reason: str = DIVERGED) -> None:
        """Truncates records that the leader does not have, for ``reason``. Raises StorageError.

        A log whose files are not truncated yet is synced anyway, which completes the truncation.
        """
        start: i64 = self.log.start_offset
        end: i64 = self.log.end_offset
        size: i64 = self.log.size_bytes if offset < end else 0
        truncations: i64 = self.log.truncations
        try:
            self.log.truncate_to(offset, now_ms)
        finally:
            self._report_truncation(start, end, size, reason)
            self.high_watermark = min(self.high_watermark, self.log.end_offset)
            self.note_offset_change()
            self._flushed_end = min(self._flushed_end, self.log.end_offset)
            self.delayed.record_change()
            if self.log.truncations != truncations:
                # Before it is synced, a power failure could leave truncated records among later ones.
                self._truncation_unsynced = True
                self._request_flush()

    def truncate_to_leader(self, end: i64, leader_start: i64, now_ms: i64, reason: str) -> None:
        """Truncates records from ``end`` on that the leader lacks; its log starts at ``leader_start``.

        Truncates the log completely, to fetch it again from the leader's start, if the remaining part may
        lack records of the leader. Raises StorageError.
        """
        log = self.log
        if log.start_offset < end <= leader_start:
            # The remaining part would lie before the leader's log start offset. Whether it has the same
            # records is unknown: batches of its producers must not be treated as duplicates.
            self.restart_at(leader_start, now_ms)
        elif self._may_lack_before(end):
            self.restart_at(
                leader_start,
                now_ms,
                f"{reason}; older records may have been compacted or deleted here because of those"
                " that are truncated: all records are fetched again",
            )
        else:
            self.truncate_to(end, now_ms, reason)

    def _may_lack_before(self, end: i64) -> bool:
        """Whether this log may lack records before ``end`` that a leader with that log end offset has.

        Compaction and retention remove committed records because of later committed records. Only an
        uncleanly elected leader can have a log that ends before these, and then no other replica is in sync.
        Records fetched from a compacting leader have the same gaps.
        """
        log = self.log
        if end >= log.end_offset or int(self.node_id) in self.isr:
            return False
        return (
            end < log.start_offset
            or end < log.clean_end
            or (log.config.compact and end < self.high_watermark)
        )

    def restart_at(self, offset: i64, now_ms: i64, reason: str = "") -> None:
        """Removes all records, and continues at ``offset``, the leader's log start offset. Raises
        StorageError.

        ``reason``: the reason, unless the leader's log starts after the end of this one.
        """
        start: i64 = self.log.start_offset
        end: i64 = self.log.end_offset
        size: i64 = self.log.size_bytes
        truncations: i64 = self.log.truncations
        try:
            self.log.truncate_fully_and_start_at(offset, now_ms)
        finally:
            if self.log.truncations != truncations:
                self._report_truncation(
                    start, end, size, reason or f"the leader's log starts at offset {offset}"
                )
                self.high_watermark = self._flushed_end = offset
                self.note_offset_change()
                self.delayed.record_change()
                self._truncation_unsynced = True
                self._request_flush()
                # The leader's log may start within a batch, which then names the file.
                self.save_log_start_offset()

    def restart_mirror_at(self, offset: i64, now_ms: i64) -> None:
        """Removes all records of a mirror as the leader, and continues at ``offset``, above the log end.

        The log of the source starts there. Followers restart at the log start of their leader. Raises
        StorageError.
        """
        reason = f"the log of the mirror's source starts at offset {offset}"
        try:
            self.restart_at(offset, now_ms, reason)
        finally:
            self.log.begin_leader_epoch(self.leader_epoch)
            self._unflushed_bytes = 0
            self.delayed.advanced(self.high_watermark, 0)

    def _report_truncation(self, start: i64, end: i64, size: i64, reason: str) -> None:
        """Reports records removed from a log that reached from ``start`` to ``end``, with ``size`` bytes."""
        first: i64 = start
        if start < self.log.end_offset < end:
            first = self.log.end_offset
        if first < end and self.log.size_bytes < size:
            self.events.records_truncated(self, first, end - 1, reason)

    def advance_start(self, offset: i64) -> None:
        """Advances the log start offset to ``offset``, unless it is already there."""
        if self.log.advance_start(offset):
            self.delayed.record_change()
            # Delayed fetches of followers are completed at once: DeleteRecords waits for them.
            self.delayed.wake_followers(0)

    def note_offset_change(self) -> None:
        """The high watermark differs from the checkpoint."""
        if not self.read_limits.is_unsaved:
            self.read_limits.is_unsaved = True
            self.events.high_watermark_moved(self)

    def log_start_offset_saved(self, offset: i64) -> None:
        """A log start offset of ``offset`` is in the checkpoint."""
        if not self._start_unsaved:
            return
        if offset < self.log.start_offset:
            # Retention has advanced it meanwhile.
            self.events.log_start_offset_moved(self)
        else:
            self._start_unsaved = False
            if self.on_flushed is not None:
                self.on_flushed()

    def _advance(self, offset: i64, added_bytes: i64) -> None:
        """Advances the high watermark, and completes delayed operations."""
        limits = self.read_limits
        if offset <= limits.high_watermark:
            return
        limits.high_watermark = offset
        if not limits.is_unsaved:
            self.note_offset_change()
        self.delayed.advanced(offset, added_bytes)

    def wait_deleted(self, start_offset: i64, waiter: OffsetWaiter) -> None:
        """Calls ``waiter`` once the log start offset of every live replica is at least ``start_offset``.

        Like a commit this requires ``min.insync.replicas`` in-sync replicas: below that, a failed replica is
        eligible as leader and would restore the records.
        """
        self.delayed.wait_deleted(start_offset, waiter)
        self._complete_delete_records()

    def _complete_delete_records(self) -> None:
        if self.delayed.delete_records and self.commit_error() is None:
            self.delayed.complete_delete_records(self.low_watermark())

    def low_watermark(self) -> i64:
        """The lowest log start offset of all live replicas; -1 while one is unknown."""
        replication = self.replication
        own: i64 = self.log.start_offset
        return own if replication is None else replication.start_offset(own, self.events.is_alive)
