"""The log of one partition: append, read, truncate. Compiled.

A log owns its segments (:mod:`tidemill.log.segment_list`), its durability (:mod:`tidemill.log.durability`),
its leader epochs and its producer state. :mod:`tidemill.log.log_loader` opens a log,
:mod:`tidemill.log.retention` selects the segments to delete, :mod:`tidemill.log.timestamp_lookup` finds
offsets by time.

A follower truncates the records that its leader does not have. Other records get their offsets later, so
indexes, producer state and leader epochs are truncated with the file. At the start of the log, only
:attr:`Log.start_offset` advances, and whole segments before it are removed.

A truncation that fails half way (disk full, no descriptors) is completed later. The state in memory is
truncated at once, by steps that cannot fail; then the files, by steps that can be repeated. Until that is
done, nothing is written: appends, flushes and further truncations first complete it, and fail if it fails.

This module reads no clock and knows no replicas: callers pass ``now_ms``, and the offset up to which a reader
may read as ``limit_offset``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, mypyc_attr

from tidemill.log.delayed_file_removal import DelayedFileRemoval
from tidemill.log.durability import Durability
from tidemill.log.errors import OffsetOutOfRange, StorageErrors, storage_error
from tidemill.log.flush_job import FlushJob
from tidemill.log.leader_epoch_file_cache import LeaderEpochFileCache
from tidemill.log.log_config import LogConfig
from tidemill.log.log_segment import LogRange, LogSegment
from tidemill.log.producer_snapshots import ProducerSnapshots
from tidemill.log.producer_state_loader import load_producers, recall_batches
from tidemill.log.producer_state_manager import KeptBatch, ProducerEntry, ProducerStateManager
from tidemill.log.segment_list import SegmentList
from tidemill.log.segment_swap import SegmentSwap
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.timestamp_lookup import first_at, largest, starts
from tidemill.log.transaction_index import append_entry, truncate_entries
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError, StorageError
from tidemill.model.system_interfaces import Buffer, Files
from tidemill.model.types import NO_LEADER_EPOCH, TopicPartition
from tidemill.records.batch import (
    BASE_OFFSET_MAX,
    CONTROL_FLAG,
    COPIED_BYTES_MAX,
    CURRENT_MAGIC,
    LEADER_EPOCH,
    LOG_OVERHEAD,
    MAGIC,
    NO_COMPRESSION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Batch,
    check_crc,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.builder import assemble, build_end_marker, stamp_append_time
from tidemill.records.end_transaction_marker import EndTransactionMarker, read_marker
from tidemill.records.legacy_formats import Entry, parse_entry
from tidemill.records.message_set import MessageSet
from tidemill.records.mirror_end import build_mirror_end, ended_mirror
from tidemill.records.mirrored_batch import NOT_MIRRORED, gap_before

PREFIX_BYTES: Final = MAGIC
"""Base offset, length and leader epoch, which the leader sets and the checksum does not cover."""

RUN_MS_MAX: Final = 1000
"""A follower writes batches together only if each is at most this much later than the one before, so that
segments roll on time.
"""


@mypyc_attr(acyclic=True, free_list_len=1)
class AppendResult:
    """The position of a produced batch. ``append_time_ms`` is -1 unless the topic stores the append time."""

    def __init__(
        self, base_offset: i64, last_offset: i64, append_time_ms: i64, start_offset: i64, duplicate: bool
    ) -> None:
        self.base_offset: i64 = base_offset
        self.last_offset: i64 = last_offset
        self.append_time_ms: i64 = append_time_ms
        self.start_offset: i64 = start_offset
        self.duplicate: bool = duplicate


class PendingTruncation:
    """A truncation that was applied in memory but not to all files."""

    def __init__(self, gone: list[LogSegment], is_whole: bool, now_ms: i64) -> None:
        self.gone = gone
        """The segments to remove, in this order."""
        self.is_whole: bool = is_whole
        """All records were removed: the active segment has to be created."""
        self.now_ms: i64 = now_ms
        """The time of the truncation."""


class Log:
    """The records of one partition from :attr:`start_offset` to before :attr:`end_offset`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        topic_partition: TopicPartition,
        *,
        topic_id: bytes,
        config: LogConfig,
        segments: list[LogSegment],
        start_offset: i64,
        end_offset: i64,
        recovery_point: i64,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochFileCache,
        removals: DelayedFileRemoval,
        now_ms: i64,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.start_offset: i64 = start_offset
        self.end_offset: i64 = end_offset
        self.segment_list = SegmentList(files, directory, segments, config, removals)
        self.producer_state = producers
        self.leader_epochs = leader_epochs
        self.snapshots = ProducerSnapshots(self.segment_list)
        self.durability = Durability(
            self.segment_list, leader_epochs, self.snapshots, recovery_point, end_offset, now_ms
        )
        self.closed: bool = False
        self.aborts_recorded: i64 = 0
        """Counts the entries that were added to indexes of aborted transactions."""
        self.cleaning: bool = False
        """Whether a cleaner reads the log: its segments are kept meanwhile."""
        self.clean_end: i64 = -1
        """The end offset of the last compaction; -1: none."""
        self.on_offset_change: Callable[[TopicPartition], None] | None = None
        """Called when an offset changes that a checkpoint holds. Set by the data directory."""
        self._truncation: PendingTruncation | None = None
        self._rejected_end: i64 = -1
        """The end offset at which a batch with an earlier epoch than the last one was rejected."""
        self._leader_epoch: i64 = leader_epochs.latest
        """The epoch of the last batch, or :data:`NO_LEADER_EPOCH`: the next batch has the epochs written."""
        self.set_config(config)

    def set_config(self, config: LogConfig) -> None:
        """Applies changed settings; those of indexes apply from the next segment on."""
        self.config = config
        self.segment_list.set_config(config)
        self._flush_messages: i64 = config.flush_messages
        self._append_time: bool = config.message_timestamp_type == "LogAppendTime"

    @property
    def directory(self) -> str:
        """The directory of the files."""
        return self.segment_list.directory

    @property
    def segments(self) -> list[LogSegment]:
        """All segments in order."""
        return self.segment_list.all

    @property
    def active(self) -> LogSegment:
        """The last segment, to which batches are appended."""
        return self.segment_list.active

    @property
    def size_bytes(self) -> i64:
        """Bytes of all log files."""
        return self.segment_list.size_bytes

    @property
    def recovery_point(self) -> i64:
        """The offset below which everything is on disk."""
        return self.durability.recovery_point

    @property
    def truncations(self) -> i64:
        """Counts the truncations of the log."""
        return self.durability.truncations

    # Appending

    def append(self, batch: Batch, leader_epoch: i64, now_ms: i64) -> AppendResult:
        """Appends a validated batch of a producer and assigns its offsets.

        Raises KafkaError for a fenced producer, for an out-of-order sequence and for a batch larger than a
        segment, and StorageError if the disk fails. No record of the failed batch is stored; a roll or a
        leader epoch may remain.
        """
        if self._truncation is not None:
            self.finish_truncation()
        if batch.producer_id >= 0 and batch.attributes & CONTROL_FLAG == 0:
            kept = self._check_producer(batch)
            if kept is not None:
                return self._duplicate_result(kept)
        base_offset: i64 = self.end_offset
        last_offset: i64 = base_offset + batch.last_offset_delta
        data = batch.data
        position: i64 = batch.position
        timestamp: i64 = batch.max_timestamp
        append_time: i64 = NO_TIMESTAMP
        if self._append_time:
            data = stamp_append_time(batch, now_ms)
            position = 0
            timestamp = now_ms
            append_time = now_ms
        size: i64 = batch.size
        segment = self._segment_for(size, last_offset, timestamp, now_ms)
        if leader_epoch != self._leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        marker: EndTransactionMarker | None = None
        if batch.attributes & CONTROL_FLAG != 0:
            marker = self._record_abort(segment, batch, base_offset)
        prefix = BytesWriter()
        write_i64_be(prefix, base_offset)
        write_i32_be(prefix, i32(size - LOG_OVERHEAD))
        write_i32_be(prefix, i32(leader_epoch))
        buffers: list[Buffer]
        if size <= COPIED_BYTES_MAX:
            prefix.write(data[position + PREFIX_BYTES : position + size])
            buffers = [prefix.getvalue()]
        else:
            buffers = [prefix.getvalue(), memoryview(data)[position + PREFIX_BYTES : position + size]]
        try:
            segment.append(buffers, size, base_offset, last_offset, timestamp)
        except OSError as problem:
            if marker is not None:
                self._undo_abort(segment, base_offset)
            raise storage_error("append to", segment.path, problem) from problem
        self._set_end(last_offset + 1)
        if batch.producer_id >= 0:
            self.producer_state.apply(batch, marker, base_offset, timestamp, now_ms)
        elif batch.attributes & CONTROL_FLAG != 0:
            self._apply_mirror_end(batch)
        return AppendResult(base_offset, last_offset, append_time, self.start_offset, False)

    def append_marker(
        self,
        is_commit: bool,
        producer_id: i64,
        producer_epoch: i64,
        coordinator_epoch: i64,
        has_new_epoch: bool,
        leader_epoch: i64,
        now_ms: i64,
    ) -> AppendResult:
        """Appends the marker that ends a producer's transaction.

        ``has_new_epoch``: whether the marker has the epoch after that of its transaction (KIP-890). Raises
        the errors of :meth:`ProducerStateManager.check_marker` and of :meth:`append`.
        """
        if self._truncation is not None:
            self.finish_truncation()
        self.producer_state.check_marker(producer_id, producer_epoch, coordinator_epoch, has_new_epoch)
        data = build_end_marker(is_commit, now_ms, producer_id, producer_epoch, coordinator_epoch)
        return self.append(parse_batch(data, 0, len(data)), leader_epoch, now_ms)

    def _set_end(self, offset: i64) -> None:
        """Sets the log end offset, up to which the producer state is then applied."""
        self.end_offset = offset
        self.producer_state.end_offset = offset

    def append_messages(self, messages: MessageSet, leader_epoch: i64, now_ms: i64) -> AppendResult:
        """Appends a validated message set of format v0 or v1 and assigns its offsets.

        Like in Kafka, the result has the append time even for format v0, which does not store it. Raises
        KafkaError for a set larger than a segment, and StorageError if the disk fails. No record of the
        failed set is stored; a roll or a leader epoch may remain.
        """
        self.finish_truncation()
        base_offset: i64 = self.end_offset
        last_offset: i64 = base_offset + messages.record_count - 1
        append_time: i64 = now_ms if self._append_time else NO_TIMESTAMP
        timestamp: i64 = messages.max_timestamp
        if messages.magic > 0 and self._append_time:
            timestamp = append_time
        data = messages.stored(base_offset, append_time)
        segment = self._segment_for(len(data), last_offset, timestamp, now_ms)
        if leader_epoch != self._leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        try:
            segment.append_entries(data, base_offset)
        except OSError as problem:
            raise storage_error("append to", segment.path, problem) from problem
        self._set_end(last_offset + 1)
        return AppendResult(base_offset, last_offset, append_time, self.start_offset, False)

    def append_mirrored(
        self, data: bytes, position: i64, end: i64, leader_epoch: i64, now_ms: i64
    ) -> tuple[AppendResult, i64]:
        """Appends batches from another cluster as the leader, with the offsets that they have.

        Returns the result, and the number of appended records, where an entry of format v0 or v1 counts as
        one.

        The batches are ``data[position:end]``, in the format of :mod:`tidemill.records.mirrored_batch`. The
        leader epoch is set in those of format v2. Batches below the log end offset are skipped: the result is
        a duplicate if all are. The first batch of an empty log may begin before the log start offset: the
        source's log starts within that batch.

        Raises KafkaError, and stores nothing: POLICY_VIOLATION for batches of ordinary producers,
        CorruptMessage for damaged or incomplete ones, OFFSET_OUT_OF_RANGE for a batch that does not follow
        the log end offset, or the batch before it, with its gap. Raises StorageError if the disk fails;
        earlier batches may be stored.
        """
        self.finish_truncation()
        base_offset: i64 = -1
        next_offset: i64 = self.end_offset
        record_count: i64 = 0
        stamped = BytesWriter()
        while position < end:
            size: i64 = whole_batch_size(data, position, end)
            if size == 0:
                raise CorruptMessage(f"{self.topic_partition}: a mirrored batch is incomplete")
            is_old = data[position + MAGIC] < CURRENT_MAGIC
            if is_old:
                entry = parse_entry(data, position, end)
                first: i64 = entry.offset
                last: i64 = entry.offset
                count: i64 = 1
                gap: i64 = max(first - next_offset, 0)
            else:
                batch = parse_batch(data, position, end)
                check_crc(batch)
                first = batch.base_offset
                last = batch.last_offset
                count = batch.record_count
                gap = gap_before(batch)
                if gap == NOT_MIRRORED:
                    raise self._ordinary_batch(batch)
            if base_offset < 0:
                base_offset = first
            if first < 0 or first > BASE_OFFSET_MAX:
                raise self._not_following(first, last, gap, next_offset)
            if last >= self.end_offset:
                is_first_of_log = len(stamped) == 0 and self.start_offset == self.end_offset
                if first - gap > next_offset or (first < next_offset and not is_first_of_log):
                    raise self._not_following(first, last, gap, next_offset)
                next_offset = last + 1
                record_count += count
                if is_old:
                    stamped.write(data[position : position + size])
                else:
                    stamped.write(data[position : position + LEADER_EPOCH])
                    write_i32_be(stamped, i32(leader_epoch))
                    stamped.write(data[position + MAGIC : position + size])
            position += size
        is_duplicate = len(stamped) == 0
        if not is_duplicate:
            if leader_epoch != self._leader_epoch:
                # Entries of formats v0 and v1 do not have it.
                self._begin_epoch(leader_epoch, self.end_offset)
            self.append_as_follower(stamped.getvalue(), 0, len(stamped), leader_epoch, now_ms)
        result = AppendResult(base_offset, next_offset - 1, NO_TIMESTAMP, self.start_offset, is_duplicate)
        return result, record_count

    def _ordinary_batch(self, batch: Batch) -> KafkaError:
        return KafkaError(
            f"{self.topic_partition} is a mirror of a topic of another cluster, and a batch with the leader"
            f" epoch {batch.leader_epoch} is no batch of its source: the topic accepts other messages once it"
            " is promoted (tidemill topic promote)",
            ErrorCode.POLICY_VIOLATION,
        )

    def _not_following(self, first: i64, last: i64, gap: i64, next_offset: i64) -> CorruptMessage:
        return CorruptMessage(
            f"{self.topic_partition}: a mirrored batch has the offsets {first} to {last} after a gap of"
            f" {gap}, and offset {next_offset} is expected: read the log end offset again, and send the"
            " batches of the source from there on",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )

    def append_mirror_end(self, leader_epoch: i64, now_ms: i64) -> i64:
        """Ends the mirror: later batches are of producers of this cluster. Returns the appended bytes.

        Raises the errors of :meth:`append`.
        """
        data = build_mirror_end(self.topic_id, now_ms)
        self.append(parse_batch(data, 0, len(data)), leader_epoch, now_ms)
        return len(data)

    @property
    def mirror_has_ended(self) -> bool:
        """Whether the end of the mirror was appended, or read at the start.

        False also if the state was read from a later snapshot. A copy of the end of another mirror, which
        the source of this one has, does not count.
        """
        return self.producer_state.ended_mirror == self.topic_id

    def _apply_mirror_end(self, batch: Batch) -> None:
        """Forgets all producers if ``batch``, a control batch without a producer, ends a mirror."""
        topic_id = ended_mirror(batch)
        if topic_id is not None:
            self.producer_state.end_mirror(topic_id)

    def append_copied(self, data: bytes, now_ms: i64) -> i64:
        """Same as :meth:`append_as_follower`, for batches of a log of the same partition on this broker."""
        return self.append_as_follower(data, 0, len(data), NO_LEADER_EPOCH, now_ms)

    def append_as_follower(self, data: bytes, position: i64, end: i64, leader_epoch: i64, now_ms: i64) -> i64:
        """Appends batches from a leader with their offsets and epochs. Returns the new log end offset.

        The batches are ``data[position:end]``. An incomplete batch at the end is ignored. The first batch of
        an empty log may begin before the log start offset: the leader's log starts within that batch.
        ``leader_epoch`` is the leader epoch of the leader, or :data:`NO_LEADER_EPOCH` if no leader sent the
        batches. Raises CorruptMessage if a batch is damaged, does not follow the log end, or may come from a
        later leader. Earlier batches are then stored.
        """
        self.finish_truncation()
        while whole_batch_size(data, position, end) > 0:
            if data[position + MAGIC] < CURRENT_MAGIC:
                position += self._append_entry_as_follower(parse_entry(data, position, end), now_ms)
                continue
            batch = parse_batch(data, position, end)
            check_crc(batch)
            if leader_epoch != NO_LEADER_EPOCH:
                self._check_epoch(batch.leader_epoch, leader_epoch)
            if batch.base_offset < self.end_offset:
                if self.start_offset < self.end_offset or batch.last_offset < self.end_offset:
                    raise self._unexpected_offset(batch.base_offset)
                self.begin_at_batch(batch.base_offset, now_ms)
            position += self._append_run_as_follower(batch, end, now_ms)
        return self.end_offset

    def _append_run_as_follower(self, first: Batch, end: i64, now_ms: i64) -> i64:
        """Appends a validated batch and those after it that fit into the same write. Returns their size.

        A leader epoch begins at the log end offset before its first batch. Offsets that the leader skipped in
        between were compacted. Replicas without this epoch truncate to its start.
        """
        begin: i64 = min(first.base_offset, self.end_offset)
        if first.last_offset - self.segment_list.active.base_offset > RELATIVE_OFFSET_MAX:
            self.roll_over_gap(first.base_offset, now_ms)
        segment = self._segment_for(first.size, first.last_offset, first.max_timestamp, now_ms, True)
        if first.leader_epoch != self._leader_epoch:
            self._begin_epoch(first.leader_epoch, begin)
        marker: EndTransactionMarker | None = None
        run = [first]
        size: i64 = first.size
        if first.attributes & CONTROL_FLAG != 0:
            marker = self._record_abort(segment, first, first.base_offset)
        else:
            last = first
            while first.position + size < end:
                following = self._next_in_run(last, segment, size, end)
                if following is None:
                    break
                run.append(following)
                size += following.size
                last = following
        view = memoryview(first.data)[first.position : first.position + size]
        try:
            segment.append_run(view, run)
        except OSError as problem:
            if marker is not None:
                self._undo_abort(segment, first.base_offset)
            raise storage_error("append to", segment.path, problem) from problem
        self._set_end(run[len(run) - 1].next_offset)
        for batch in run:
            if batch.producer_id >= 0:
                self.producer_state.apply(batch, marker, batch.base_offset, batch.max_timestamp, now_ms)
            elif batch.attributes & CONTROL_FLAG != 0:
                self._apply_mirror_end(batch)
        return size

    def _next_in_run(self, last: Batch, segment: LogSegment, size: i64, end: i64) -> Batch | None:
        """The batch after ``last``, if it can be written in a run of ``size`` bytes that ends with ``last``.

        None also for a damaged batch: it is validated again after the run is stored.
        """
        data = last.data
        position: i64 = last.position + last.size
        try:
            if whole_batch_size(data, position, end) == 0 or data[position + MAGIC] != CURRENT_MAGIC:
                return None
            batch = parse_batch(data, position, end)
            if (
                batch.attributes & CONTROL_FLAG != 0
                or batch.leader_epoch != self._leader_epoch
                or batch.base_offset <= last.last_offset
                or batch.max_timestamp > last.max_timestamp + RUN_MS_MAX
                or segment.is_full(size + batch.size, batch.last_offset, self.segment_list.segment_bytes)
            ):
                return None
            check_crc(batch)
        except CorruptMessage:
            return None
        return batch

    def _append_entry_as_follower(self, entry: Entry, now_ms: i64) -> i64:
        """Appends an entry of format v0 or v1, which has no leader epoch. Returns its size."""
        if entry.offset < self.end_offset:
            raise self._unexpected_offset(entry.offset)
        if entry.offset - self.segment_list.active.base_offset > RELATIVE_OFFSET_MAX:
            # The first message of a wrapper may have a lower offset, which the entry does not show.
            self.roll_over_gap(max(self.end_offset, entry.offset - RELATIVE_OFFSET_MAX), now_ms)
        segment = self._segment_for(entry.size, entry.offset, entry.timestamp, now_ms, True)
        try:
            segment.append_entries(
                entry.data[entry.position : entry.position + entry.size],
                self.end_offset if entry.codec != NO_COMPRESSION else entry.offset,
            )
        except OSError as problem:
            raise storage_error("append to", segment.path, problem) from problem
        self._set_end(entry.offset + 1)
        return entry.size

    def _check_epoch(self, epoch: i64, leader_epoch: i64) -> None:
        """Raises CorruptMessage for a batch that the leader with epoch ``leader_epoch`` may not have sent.

        Records go from the leader's file to the network without a copy. A leader that is replaced meanwhile
        truncates them, and then has those of the next leader in their place: with a later epoch, or with one
        before those that it had sent. They do not follow the batches here. A log may still contain such an
        earlier epoch: its leader sends the batch again, and it is then accepted.

        Source: Apache Kafka, ``UnifiedLog.hasHigherPartitionLeaderEpoch``.
        """
        if epoch <= leader_epoch:
            if epoch < 0 or epoch >= self._leader_epoch:
                return
            if self._rejected_end == self.end_offset:
                self._rejected_end = -1
                return
            self._rejected_end = self.end_offset
        raise CorruptMessage(
            f"{self.topic_partition}: a batch of leader epoch {epoch} for offset {self.end_offset} came from "
            f"the leader of epoch {leader_epoch}, after one of epoch {self._leader_epoch}: it may come from "
            "the next leader"
        )

    def _unexpected_offset(self, offset: i64) -> CorruptMessage:
        return CorruptMessage(
            f"{self.topic_partition}: the leader sent offset {offset}, but the log ends at {self.end_offset}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )

    def _check_producer(self, batch: Batch) -> KeptBatch | None:
        """The batch that this one duplicates, or None. Raises KafkaError for an out-of-order sequence."""
        state = self.producer_state
        try:
            return state.check(batch)
        except KafkaError as error:
            if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            # A snapshot has only the last batch of a producer. Earlier ones are still in the log.
            if not self._reload_batches(batch.producer_id):
                raise
            return state.check(batch)

    def _reload_batches(self, producer_id: i64) -> bool:
        with StorageErrors("read", self.directory):
            return recall_batches(self.segment_list.all, self.producer_state, producer_id)

    def _record_abort(self, segment: LogSegment, batch: Batch, offset: i64) -> EndTransactionMarker | None:
        """Returns the marker in a control batch to be appended at ``offset``, and records an abort in the
        index.

        Raises StorageError on failure: without its index entry the marker must not be readable.
        """
        marker = read_marker(batch)
        if marker is None or batch.producer_id < 0:
            return None
        aborted = self.producer_state.aborted_by(batch.producer_id, marker, offset)
        if aborted is not None:
            path = segment.transaction_index_path
            with StorageErrors("append to", path):
                append_entry(self.segment_list.files, path, aborted)
            self.aborts_recorded += 1
            self.segment_list.has_aborts = True
            self.segment_list.names_changed += 1
        return marker

    def _undo_abort(self, segment: LogSegment, offset: i64) -> None:
        """Removes the index entry of the marker at ``offset``, which could not be appended."""
        with contextlib.suppress(OSError):
            truncate_entries(self.segment_list.files, segment.transaction_index_path, int(offset))

    def _duplicate_result(self, kept: KeptBatch) -> AppendResult:
        append_time: i64 = kept.timestamp if self._append_time else NO_TIMESTAMP
        return AppendResult(kept.first_offset, kept.last_offset, append_time, self.start_offset, True)

    def begin_leader_epoch(self, leader_epoch: i64) -> None:
        """Begins a leader epoch at the log end offset, so that followers can ask for it before its first
        record.

        The file gets it with the first append: an epoch without records need not survive a crash.
        """
        if leader_epoch != self._leader_epoch:
            self.leader_epochs.assign(int(leader_epoch), int(self.end_offset))

    def set_epoch_before_start(self, leader_epoch: i64) -> None:
        """Sets the epoch of the record before the start of an empty log, as known from the leader.

        Raises StorageError.
        """
        if self.lacks_epoch:
            self._begin_epoch(leader_epoch, self.start_offset - 1)

    @property
    def lacks_epoch(self) -> bool:
        """Whether the log is empty but had records, and the epoch of the last one is unknown."""
        return 0 < self.start_offset == self.end_offset and self.leader_epochs.latest < 0

    def _begin_epoch(self, leader_epoch: i64, offset: i64) -> None:
        self.leader_epochs.assign(int(leader_epoch), int(offset))
        self._save_epochs()
        self._leader_epoch = leader_epoch

    def _save_epochs(self) -> None:
        with StorageErrors("write", self.leader_epochs.path):
            self.leader_epochs.save_changed()

    # Rolling

    def roll(self, now_ms: i64) -> None:
        """Rolls to a new segment at the log end offset, unless the active segment is empty and begins there.

        Raises StorageError, and then keeps the active segment.
        """
        segments = self.segment_list
        old = segments.active
        if old.base_offset == self.end_offset:
            if old.size == 0:
                with StorageErrors("empty the indexes of", old.path):
                    old.index.create()
                    old.time_index.create()
                return
            raise KafkaError(
                f"{self.topic_partition}: segment {old.path} holds records but ends at its base offset"
            )
        segment = segments.new_segment(self.end_offset)
        try:
            # First: after a kill, a start assumes that the indexes of a segment with a successor are
            # complete.
            old.close_indexes()
            segment.create(now_ms)
            self.snapshots.write(self.producer_state)
        except OSError as problem:
            segments.undo_roll(segment)
            raise storage_error("roll to", segment.path, problem) from problem
        segments.add(segment)

    def roll_over_gap(self, offset: i64, now_ms: i64) -> None:
        """Sets the log end offset to ``offset`` and rolls: compaction removed all records before it.

        Without the roll, the active segment could not represent later offsets: they reach up to 2^31. Raises
        StorageError, and then changes nothing.
        """
        end: i64 = self.end_offset
        self._set_end(offset)
        try:
            self.roll(now_ms)
        except StorageError:
            self._set_end(end)
            raise

    def _segment_for(
        self, size: i64, last_offset: i64, timestamp: i64, now_ms: i64, is_stored: bool = False
    ) -> LogSegment:
        """The segment for the next batch. Raises StorageError if its files cannot be opened.

        ``is_stored``: the batch is in the leader's log. If ``segment.bytes`` was lowered since, the batch
        gets its own segment.
        """
        segments = self.segment_list
        try:
            if segments.has_room(size, last_offset, timestamp, now_ms):
                return segments.active
            if size > segments.segment_bytes:
                if is_stored and segments.active.size == 0:
                    return segments.active
                if not is_stored:
                    raise KafkaError(
                        f"{self.topic_partition}: a batch of {size} bytes exceeds the segment size "
                        f"(segment.bytes={segments.segment_bytes})",
                        ErrorCode.RECORD_LIST_TOO_LARGE,
                    )
            self.roll(now_ms)
        except OSError as problem:
            raise storage_error("open", segments.active.path, problem) from problem
        return segments.active

    # Reading

    def last_stable_offset(self, high_watermark: i64) -> i64:
        """The last stable offset, up to which read_committed consumers read; others read to
        ``high_watermark``.
        """
        transactions = self.producer_state.transactions
        if transactions.are_none:
            return high_watermark
        first: i64 = transactions.first_unstable(high_watermark)
        if first < 0 or first >= high_watermark:
            return high_watermark
        return first if first > self.start_offset else self.start_offset

    def read(self, offset: i64, bytes_max: i64, limit_offset: i64, whole_first: bool) -> LogRange | None:
        """The range of a log file with the batches from ``offset`` on, before ``limit_offset``.

        It begins with the batch that contains ``offset`` and has at most ``bytes_max`` bytes; with
        ``whole_first`` the first batch may be larger. Returns None if there are no records yet, and a size of
        0 if the first batch does not fit. Reads no records. Raises OffsetOutOfRange and StorageError.
        """
        if offset > self.end_offset or offset < self.start_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition} holds offsets {self.start_offset} to {self.end_offset}, not {offset}"
            )
        if offset >= limit_offset or offset >= self.end_offset:
            return None
        segments = self.segment_list
        try:
            return segments.read(offset, bytes_max, limit_offset, self.end_offset, whole_first)
        except OSError as problem:
            # The failed file may be that of another segment, or an index.
            named = problem.filename
            path = named if isinstance(named, str) else segments.active.path
            raise storage_error("read", path, problem) from problem

    def producers(self) -> list[ProducerEntry]:
        """The state of each producer."""
        return list(self.producer_state.entries.values())

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record at or after ``timestamp``; None if there is none."""
        with StorageErrors("read", self.directory):
            return first_at(
                self.segment_list.all, timestamp, int(self.start_offset), self.config.unpacked_bytes_max
            )

    def segment_starts(self, now_ms: int) -> list[tuple[int, int]]:
        """(first offset, last write in ms) of every segment. The log end offset follows as a segment that is
        written now, unless the active segment is empty.
        """
        with StorageErrors("read", self.directory):
            return starts(self.segment_list.all, int(self.start_offset), int(self.end_offset), now_ms)

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record with the largest timestamp; None without records."""
        with StorageErrors("read", self.directory):
            return largest(self.segment_list.all, int(self.start_offset), self.config.unpacked_bytes_max)

    # Truncation and deletion

    def truncate_to(self, offset: i64, now_ms: i64) -> bool:
        """Truncates the log to ``offset``. Returns False if there is nothing to truncate.

        Raises StorageError. The log is then unchanged, or only its files still have to be truncated.
        """
        self.finish_truncation()
        if offset >= self.end_offset:
            self._forget_empty_epochs()
            return False
        self._complete_swap()
        if offset < self.segment_list.all[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        with StorageErrors("truncate", self.directory):
            self._begin_truncation(offset, now_ms)
        self.finish_truncation()
        return True

    def _begin_truncation(self, offset: i64, now_ms: i64) -> None:
        """Truncates the state in memory. Raises OSError, and then changes nothing."""
        segments = self.segment_list
        count: i64 = segments.at(offset) + 1
        segment = segments.all[count - 1]
        position: i64 = segment.translate_offset(offset)
        # A batch across the offset is removed as a whole: the log ends at its base offset.
        batch_offset: i64 = segment.base_offset_at(position, self.config.unpacked_bytes_max)
        self._truncation = PendingTruncation(segments.truncate(count, position), False, now_ms)
        self._set_end(offset if batch_offset < 0 or batch_offset > offset else batch_offset)
        self.start_offset = min(self.start_offset, self.end_offset)
        self.clean_end = min(self.clean_end, self.end_offset)
        self.durability.truncate(self.end_offset, segment.base_offset, position)
        self.note_offset_change()
        self.leader_epochs.truncate_from_end(int(self.end_offset))
        self._leader_epoch = self.leader_epochs.latest

    def finish_truncation(self) -> None:
        """Completes the files of the last truncation if that failed. Raises StorageError.

        Must precede any other write: otherwise the remaining bytes would be read as records after it.
        """
        pending = self._truncation
        if pending is None or self.closed:
            return
        self._complete_swap()
        with StorageErrors("truncate", self.directory):
            self.segment_list.remove_files(pending.gone, pending.now_ms)
            if pending.is_whole:
                self.snapshots.remove_after(-1, self.producer_state)
                self.segment_list.active.create(pending.now_ms)
                # A full disk does not prevent emptying the log. Until the file is written, a start assumes
                # that its last epoch begins at the log end offset.
                with contextlib.suppress(OSError):
                    self.leader_epochs.save_changed()
            else:
                self._truncate_files(pending)
        self.segment_list.names_changed += 1
        self._truncation = None

    def _truncate_files(self, pending: PendingTruncation) -> None:
        if pending.gone and self.durability.is_flushing:
            # The flush may bring the truncation to disk, but not the names: see FlushJob.is_truncated.
            self.segment_list.files.sync_directory(self.directory)
        segment = self.segment_list.active
        segment.truncate(segment.size)
        truncate_entries(self.segment_list.files, segment.transaction_index_path, int(self.end_offset))
        self.leader_epochs.save_changed()
        self.snapshots.remove_after(self.end_offset, self.producer_state)
        producers = ProducerStateManager(self.producer_state.name)
        load_producers(
            self.segment_list.files,
            self.directory,
            self.segment_list.all,
            producers,
            self.start_offset,
            self.end_offset,
            pending.now_ms,
        )
        self.producer_state = producers

    def _forget_empty_epochs(self) -> None:
        """Removes epochs that this broker led without records: the current leader does not know them."""
        self._leader_epoch = NO_LEADER_EPOCH
        self.leader_epochs.truncate_from_end(int(self.end_offset))
        self._save_epochs()
        self._leader_epoch = self.leader_epochs.latest

    def truncate_fully_and_start_at(self, offset: i64, now_ms: i64) -> None:
        """Removes all records; the log continues at ``offset``. Raises StorageError.

        The log is then unchanged, or it is empty and only its files still have to be removed.
        """
        self._empty(offset, offset, now_ms, -1)

    def _empty(self, base_offset: i64, start_offset: i64, now_ms: i64, epochs_end: i64) -> None:
        """Removes all records; epochs that begin before ``epochs_end`` are kept."""
        self.finish_truncation()
        self._complete_swap()
        self._truncation = PendingTruncation(self.segment_list.all, True, now_ms)
        self.segment_list.begin_empty(base_offset)
        self.durability.begin_empty(base_offset)
        self.start_offset = start_offset
        self.producer_state = ProducerStateManager(self.producer_state.name)
        self._set_end(start_offset)
        self.clean_end = min(self.clean_end, start_offset)
        self.note_offset_change()
        self.leader_epochs.truncate_from_end(int(epochs_end))
        self._leader_epoch = self.leader_epochs.latest
        self.finish_truncation()

    def begin_at_batch(self, base_offset: i64, now_ms: i64) -> None:
        """Prepares an empty log for a batch that begins at ``base_offset``, before the log start offset.

        A segment is named by its first offset. Log start and end offset stay: earlier records of the batch
        are deleted. Raises StorageError.
        """
        self._empty(base_offset, self.start_offset, now_ms, self.start_offset)

    def skip_to(self, offset: i64, now_ms: i64) -> None:
        """Continues at ``offset``, so that no lower offset is assigned again. Raises StorageError.

        For a log that has lost records: the remaining ones are kept, followed by batches without records, as
        compaction leaves them. A gap would keep new replicas from the log end until further appends.
        """
        if offset <= self.end_offset:
            return
        self.finish_truncation()
        if self.start_offset == self.end_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return
        while self.end_offset < offset:
            self.roll(now_ms)
            self._append_empty(min(offset - self.end_offset, RELATIVE_OFFSET_MAX))

    def _append_empty(self, count: i64) -> None:
        """Appends a batch without records that occupies ``count`` offsets. Raises StorageError."""
        begin: i64 = self.end_offset
        epoch: i64 = self.leader_epochs.latest
        data = assemble(
            b"",
            begin,
            epoch,
            0,
            count - 1,
            NO_TIMESTAMP,
            NO_TIMESTAMP,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            0,
        )
        with StorageErrors("append to", self.segment_list.active.path):
            self.segment_list.active.append([data], len(data), begin, begin + count - 1, NO_TIMESTAMP)
        self._set_end(begin + count)

    def advance_start(self, offset: i64) -> bool:
        """Advances the log start offset to ``offset``. Returns False if it is already there.

        Records before it are not readable any more. Retention removes their segments.
        """
        if offset > self.end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition} ends at offset {self.end_offset}: its start cannot be moved to "
                f"{offset}"
            )
        if offset <= self.start_offset:
            return False
        self.start_offset = offset
        self.note_offset_change()
        self.leader_epochs.truncate_from_start(int(offset))
        return True

    def delete_old_segments(self, count: i64, now_ms: i64) -> None:
        """Removes the ``count`` oldest segments. If these are all, rolls to a new one.

        Raises StorageError; segments that were removed before the error stay removed.
        """
        if count <= 0:
            return
        self.finish_truncation()
        self._complete_swap()
        is_all: bool = count >= len(self.segment_list.all)
        # The active segment stays until there is another. That needs space, which the others may have to
        # free.
        self._remove_oldest(i64(len(self.segment_list.all)) - 1 if is_all else count, now_ms)
        if is_all:
            self.roll(now_ms)
            self._remove_oldest(i64(len(self.segment_list.all)) - 1, now_ms)

    def _remove_oldest(self, count: i64, now_ms: i64) -> None:
        """Renames first, which needs no space. After a crash in between, the first existing segment is the
        start.

        Segments that could not be renamed stay in the list for the next attempt.
        """
        gone: i64 = 0
        try:
            while gone < count:
                self.segment_list.remove_files([self.segment_list.all[gone]], now_ms)
                gone += 1
        except OSError as problem:
            if not self.segment_list.files.exists(self.segment_list.all[gone].path):
                gone += 1  # The next start removes its remaining files.
            raise storage_error("remove segments of", self.directory, problem) from problem
        finally:
            if gone > 0:
                self.segment_list.remove_oldest(gone)
                self.start_offset = max(self.start_offset, self.segment_list.all[0].base_offset)
                self.note_offset_change()
                self.leader_epochs.truncate_from_start(int(self.start_offset))

    # Flushing and closing

    @property
    def has_unfinished_truncation(self) -> bool:
        """Whether a truncation failed half way: the next write completes it first."""
        return self._truncation is not None

    @property
    def needs_flush(self) -> bool:
        """Whether ``flush.messages`` requires a flush before the append is acknowledged."""
        return self.end_offset - self.durability.recovery_point >= self._flush_messages

    def is_flush_due_at(self, now_ms: i64) -> bool:
        """Whether ``flush.ms`` requires a flush now."""
        return self.durability.is_flush_due(self.end_offset, now_ms, self.config.flush_ms)

    @property
    def unsynced_bytes(self) -> i64:
        """The bytes that a recovery would have to read now."""
        return self.durability.unsynced_bytes(self.end_offset)

    def begin_flush(self, whole: bool = True) -> FlushJob:
        """Collects the files to sync for all records (``whole``), or for those before the active segment.

        Call ``job.run()`` in any thread, then ``finish_flush(job)`` here. First completes a truncation that
        failed half way. Raises StorageError if a file cannot be opened.
        """
        return self._begin_flush(whole, not whole)

    def _begin_flush(self, whole: bool, is_safe_point: bool) -> FlushJob:
        self.finish_truncation()
        try:
            return self.durability.begin_flush(self.end_offset, self.producer_state, whole, is_safe_point)
        except OSError as problem:
            raise storage_error("open for a sync", problem.filename or self.directory, problem) from problem

    def begin_safe_point(self) -> FlushJob:
        """Same as :meth:`begin_flush`, but also syncs the current indexes and a snapshot of the producer
        state.
        """
        self.finish_truncation()
        with StorageErrors("write the producer snapshot of", self.directory):
            self.snapshots.write(self.producer_state)
        job = self._begin_flush(True, True)
        self._add_active_indexes(job)
        return job

    def _add_active_indexes(self, job: FlushJob) -> None:
        active = self.segment_list.active
        job.add_path(active.index.path)
        job.add_path(active.time_index.path)

    def finish_flush(self, job: FlushJob, now_ms: i64) -> None:
        """Applies a successful flush: recovery begins after it. Not to be called for a failed one."""
        if self.durability.finish_flush(job, now_ms):
            self.note_offset_change()

    def flush(self, now_ms: i64) -> None:
        """Flushes the log and waits. Raises StorageError."""
        job = self.begin_flush()
        job.run()
        self.finish_flush(job, now_ms)

    def note_offset_change(self) -> None:
        """Reports that the start offset, the recovery point or the clean end differs from its checkpoint."""
        if self.on_offset_change is not None:
            self.on_offset_change(self.topic_partition)

    def close(self, now_ms: i64) -> None:
        """Syncs and closes the files: the next start needs no recovery. Raises StorageError."""
        job = self.begin_close()
        if job is not None:
            job.run()
        self.finish_close(job, now_ms)

    def begin_close(self) -> FlushJob | None:
        """Writes the files; returns the job that syncs them, in any thread, or None if no sync is needed.

        Call ``finish_close(job)`` afterwards. Raises StorageError.
        """
        self.finish_truncation()
        self._complete_swap()
        if self.closed or self.durability.is_synced(self.end_offset):
            return None
        active = self.segment_list.active
        with StorageErrors("close", self.directory):
            if self.durability.truncations > 0 and self._end_on_disk() < self.end_offset:
                # The batches that compaction left before the truncation end earlier: the name of a new
                # segment keeps the log end offset.
                self.roll(self.durability.last_flush_ms)
                active = self.segment_list.active
            self.snapshots.write(self.producer_state)
            active.close_indexes()
        if self._is_untouched():
            return None
        job = self.begin_flush()
        self._add_active_indexes(job)
        return job

    def _end_on_disk(self) -> i64:
        """The log end offset that a start would find."""
        active = self.segment_list.active
        return active.base_offset if active.size == 0 else active.last_offset_end()

    def _is_untouched(self) -> bool:
        """Whether nothing was ever stored here, so that a power failure cannot lose anything."""
        return self.end_offset == 0 and self.durability.truncations == 0 and self.leader_epochs.changes == 0

    def finish_close(self, job: FlushJob | None, now_ms: i64) -> None:
        """Releases the files after ``job`` has succeeded. Not to be called for a failed one."""
        if self.closed:
            return
        if job is not None:
            self.finish_flush(job, now_ms)
        self.close_handlers()
        self.closed = True

    def mark_synced(self) -> None:
        """Records that the log was opened after a clean shutdown: everything is synced until it changes."""
        self.durability.mark_synced(self.end_offset)

    def close_handlers(self) -> None:
        """Closes all files until they are needed again."""
        self._complete_swap()
        self.segment_list.close_handlers()

    # Compaction

    def begin_swap(self, old: list[int], size: i64) -> SegmentSwap | None:
        """Same as :meth:`SegmentList.begin_swap`; None also if the log is closed."""
        return None if self.closed else self.segment_list.begin_swap(old, size)

    def finish_swap(self, swap: SegmentSwap, now_ms: i64) -> bool:
        """Same as :meth:`SegmentList.finish_swap`."""
        return self.segment_list.finish_swap(swap, now_ms)

    def _complete_swap(self) -> None:
        self.segment_list.complete_swap(self.durability.last_flush_ms)
