"""The log of one partition: segments in order, the last of them written to.

This module is the data path: append and read. How segments begin and are synced is in
:mod:`tidemill.log.store`, how they are cut and go in :mod:`tidemill.log.cutting`, which of them go when in
:mod:`tidemill.log.retention`, how a log is opened in :mod:`tidemill.log.recovery`, how offsets are found by
time in :mod:`tidemill.log.lookup`.

Nothing here reads a clock or knows of replicas: times come in as ``now_ms``, and how far a reader may see
as ``limit_offset``.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64, mypyc_attr

from tidemill.log.cutting import CutStore
from tidemill.log.errors import OffsetOutOfRange, storage_error
from tidemill.log.lookup import first_at, largest, starts
from tidemill.log.producer_loading import recall_batches
from tidemill.log.producer_state import KeptBatch, ProducerEntry
from tidemill.log.segment import Segment, Slice
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.transaction_index import append_entry, cut_entries
from tidemill.log.transactions import Marker, marker_of
from tidemill.model.errors import CorruptMessage, ErrorCode, KafkaError
from tidemill.records.batch import (
    CONTROL_FLAG,
    COPIED_BYTES_MAX,
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    MAGIC,
    NONE,
    TRANSACTIONAL_FLAG,
    Batch,
    check_crc,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.builder import stamp_append_time
from tidemill.records.legacy import Entry, parse_entry
from tidemill.records.message_set import MessageSet

PREFIX_BYTES: Final = MAGIC
"""Base offset, length and leader epoch: what the leader writes into a batch, outside of its checksum."""

NO_TIMESTAMP: Final = -1
RUN_MS_MAX: Final = 1000
"""A follower writes batches together only when none is later than the one before by more: segments begin on
time."""


@mypyc_attr(acyclic=True, free_list_len=1)
class AppendResult:
    """Where a produced batch lies. ``append_time_ms`` is -1 unless the topic stores append time."""

    def __init__(
        self, base_offset: i64, last_offset: i64, append_time_ms: i64, start_offset: i64, duplicate: bool
    ) -> None:
        self.base_offset: i64 = base_offset
        self.last_offset: i64 = last_offset
        self.append_time_ms: i64 = append_time_ms
        self.start_offset: i64 = start_offset
        self.duplicate: bool = duplicate


class Log(CutStore):
    """The records of one partition from :attr:`start_offset` to before :attr:`end_offset`."""

    # -- writing

    def append(self, batches: list[Batch], leader_epoch: i64, now_ms: i64) -> AppendResult:
        """Appends validated batches of a producer, and gives them their offsets.

        Raises KafkaError for a producer out of order or fenced and for a batch larger than a segment, and
        StorageError when the disk does not take it; the log is as before then.
        """
        if len(batches) != 1:
            return self._append_all(batches, leader_epoch, now_ms)
        if self._cut is not None:
            self.finish_cut()
        batch = batches[0]
        if batch.producer_id >= 0 and batch.attributes & CONTROL_FLAG == 0:
            kept = self._check_producer(batch)
            if kept is not None:
                return self._answer_duplicate(kept)
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
        marker: Marker | None = None
        if batch.attributes & CONTROL_FLAG != 0:
            marker = self._note_abort(segment, batch, base_offset)
        prefix = BytesWriter()
        write_i64_be(prefix, base_offset)
        write_i32_be(prefix, i32(size - LOG_OVERHEAD))
        write_i32_be(prefix, i32(leader_epoch))
        buffers: list[Any]
        if size <= COPIED_BYTES_MAX:
            prefix.write(data[position + PREFIX_BYTES : position + size])
            buffers = [prefix.getvalue()]
        else:
            buffers = [prefix.getvalue(), memoryview(data)[position + PREFIX_BYTES : position + size]]
        try:
            segment.append(buffers, size, base_offset, last_offset, timestamp)
        except OSError as problem:
            if marker is not None:
                self._forget_abort(segment, base_offset)
            raise storage_error("append to", segment.path, problem) from problem
        self.end_offset = last_offset + 1
        if batch.producer_id >= 0:
            self._note_producer(batch, marker, last_offset, timestamp, now_ms)
        self.producer_state.end_offset = last_offset + 1
        return AppendResult(base_offset, last_offset, append_time, self.start_offset, False)

    def _append_all(self, batches: list[Batch], leader_epoch: i64, now_ms: i64) -> AppendResult:
        """Several batches of one call, one after the other; a duplicate among them answers for all."""
        if len(batches) == 0:
            raise ValueError("append needs at least one batch")
        first = self.append(batches[:1], leader_epoch, now_ms)
        last = first
        for at in range(1, len(batches)):
            last = self.append(batches[at : at + 1], leader_epoch, now_ms)
        return AppendResult(
            first.base_offset, last.last_offset, last.append_time_ms, self.start_offset, first.duplicate
        )

    def append_messages(self, messages: MessageSet, leader_epoch: i64, now_ms: i64) -> AppendResult:
        """Appends a checked message set of format v0 or v1, and gives it its offsets.

        The result tells the append time for format v0 too, which does not store it, as Kafka's does. Raises
        KafkaError for a set larger than a segment, and StorageError when the disk does not take it; the log
        is as before then.
        """
        self.finish_cut()
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
        self.end_offset = last_offset + 1
        self.producer_state.end_offset = last_offset + 1
        return AppendResult(base_offset, last_offset, append_time, self.start_offset, False)

    def append_as_follower(
        self, data: bytes, now_ms: i64, position: i64 = 0, end: i64 = -1, sent_in: i64 = -1
    ) -> i64:
        """Appends batches as a leader sent them, offsets and epochs included; the new end offset.

        They are ``data[position:end]``; -1 is the end of the data. An incomplete batch at the end is left
        out. The first batch of an empty log may begin before the log's start: the leader's log starts within
        that batch. ``sent_in`` is the epoch of the leader; -1: there is none. Raises CorruptMessage when a
        batch is damaged, does not come after the log's end, or may be of a later leader; what came before it
        is stored.
        """
        if end < 0:
            end = len(data)
        self.finish_cut()
        while whole_batch_size(data, position, end) > 0:
            if data[position + MAGIC] < CURRENT_MAGIC:
                position += self._append_entry_as_follower(parse_entry(data, position, end), now_ms)
                continue
            batch = parse_batch(data, position, end)
            check_crc(batch)
            if sent_in >= 0:
                self._check_epoch(batch.leader_epoch, sent_in)
            if batch.base_offset < self.end_offset:
                if self.start_offset < self.end_offset or batch.last_offset < self.end_offset:
                    raise self._behind_end(batch.base_offset)
                self.begin_within(batch.base_offset, now_ms)
            position += self._append_run_as_follower(batch, end, now_ms)
        return self.end_offset

    def _append_run_as_follower(self, first: Batch, end: i64, now_ms: i64) -> i64:
        """Appends a checked batch, in one write with those after it that need nothing else; their size.

        A leader epoch begins where the log ended before its first batch. What the leader had in between was
        compacted: replicas that do not have this epoch are sent back to before that.
        """
        begin: i64 = min(first.base_offset, self.end_offset)
        if first.last_offset - self.active.base_offset > RELATIVE_OFFSET_MAX:
            self.roll_over_gap(first.base_offset, now_ms)
        segment = self._segment_for(first.size, first.last_offset, first.max_timestamp, now_ms, True)
        if first.leader_epoch != self._leader_epoch:
            self._begin_epoch(first.leader_epoch, begin)
        marker: Marker | None = None
        run = [first]
        size: i64 = first.size
        if first.attributes & CONTROL_FLAG != 0:
            marker = self._note_abort(segment, first, first.base_offset)
        else:
            last = first
            while first.position + size < end:
                following = self._joins(last, segment, size, end)
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
                self._forget_abort(segment, first.base_offset)
            raise storage_error("append to", segment.path, problem) from problem
        for batch in run:
            last_offset: i64 = batch.last_offset
            self.end_offset = last_offset + 1
            if batch.producer_id >= 0:
                self._note_producer(batch, marker, last_offset, batch.max_timestamp, now_ms)
            self.producer_state.end_offset = last_offset + 1
        return size

    def _joins(self, last: Batch, segment: Segment, size: i64, end: i64) -> Batch | None:
        """The batch after ``last``, when it may be written with a run of ``size`` bytes that ends there.

        None for what is damaged, too: it is looked at once more when the run is stored.
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
                or segment.is_full(size + batch.size, batch.last_offset, self._segment_bytes)
            ):
                return None
            check_crc(batch)
        except CorruptMessage:
            return None
        return batch

    def _append_entry_as_follower(self, entry: Entry, now_ms: i64) -> i64:
        """Appends an entry of format v0 or v1, which knows no epoch; its size."""
        if entry.offset < self.end_offset:
            raise self._behind_end(entry.offset)
        if entry.offset - self.active.base_offset > RELATIVE_OFFSET_MAX:
            # The first message of a wrapper may have a lower offset, which the entry does not tell.
            self.roll_over_gap(max(self.end_offset, entry.offset - RELATIVE_OFFSET_MAX), now_ms)
        segment = self._segment_for(entry.size, entry.offset, entry.timestamp, now_ms, True)
        try:
            segment.append_entries(
                entry.data[entry.position : entry.position + entry.size],
                self.end_offset if entry.codec != NONE else entry.offset,
            )
        except OSError as problem:
            raise storage_error("append to", segment.path, problem) from problem
        self.end_offset = entry.offset + 1
        self.producer_state.end_offset = entry.offset + 1
        return entry.size

    def _check_epoch(self, epoch: i64, sent_in: i64) -> None:
        """Raises CorruptMessage for a batch that the leader of epoch ``sent_in`` may not have sent.

        Records go from the leader's file to the network, and the system takes its pages without a copy. A
        leader that is deposed meanwhile cuts them, and has those of the next leader in their place: of a
        later epoch, or of one before those that it had sent. They do not follow what is here. A log may have
        such an earlier epoch all the same: its leader sends the batch again, and it is taken then.

        Source: Apache Kafka, ``UnifiedLog.hasHigherPartitionLeaderEpoch``.
        """
        if epoch <= sent_in:
            if epoch < 0 or epoch >= self._leader_epoch:
                return
            if self._doubted_end == self.end_offset:
                self._doubted_end = -1
                return
            self._doubted_end = self.end_offset
        raise CorruptMessage(
            f"{self.topic_partition}: a batch of leader epoch {epoch} came for offset {self.end_offset} from "
            f"the leader of epoch {sent_in}, after one of epoch {self._leader_epoch}: it may be of the next "
            "leader"
        )

    def _behind_end(self, offset: i64) -> CorruptMessage:
        return CorruptMessage(
            f"{self.topic_partition}: the leader sent offset {offset}, "
            f"the log here ends at {self.end_offset}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )

    def _check_producer(self, batch: Batch) -> KeptBatch | None:
        """The batch that this one repeats, or None. Raises KafkaError when it is out of order."""
        state = self.producer_state
        try:
            return state.check(batch)
        except KafkaError as error:
            if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            # A snapshot knows only the last batch of a producer: the others are still in the log.
            if not self._recall(batch.producer_id):
                raise
            return state.check(batch)

    def _recall(self, producer_id: i64) -> bool:
        try:
            return recall_batches(self.segments, self.producer_state, producer_id)
        except OSError as problem:
            raise storage_error("read", self.directory, problem) from problem

    def _note_producer(
        self, batch: Batch, marker: Marker | None, last_offset: i64, timestamp: i64, now_ms: i64
    ) -> None:
        state = self.producer_state
        if batch.attributes & CONTROL_FLAG != 0:
            if marker is not None:
                offset: i64 = last_offset - batch.last_offset_delta
                state.end_transaction(batch.producer_id, batch.producer_epoch, marker, offset, timestamp)
            return
        state.note(
            batch.producer_id,
            batch.producer_epoch,
            batch.last_sequence,
            last_offset,
            batch.last_offset_delta,
            timestamp,
            now_ms,
        )
        if batch.attributes & TRANSACTIONAL_FLAG != 0:
            state.begin_transaction(batch.producer_id, last_offset - batch.last_offset_delta)

    def _note_abort(self, segment: Segment, batch: Batch, offset: i64) -> Marker | None:
        """The marker in a control batch that is about to be appended at ``offset``; an abort is noted.

        Raises StorageError when it cannot be: without its entry the marker must not be readable.
        """
        marker = marker_of(batch)
        if marker is None or batch.producer_id < 0:
            return None
        aborted = self.producer_state.aborted_by(batch.producer_id, marker, offset)
        if aborted is not None:
            path = self._transaction_index(segment)
            try:
                append_entry(self.files, path, aborted)
            except OSError as problem:
                raise storage_error("append to", path, problem) from problem
            self.aborts_noted += 1
            self.has_aborts = True
            self.names_changed += 1
        return marker

    def _forget_abort(self, segment: Segment, offset: i64) -> None:
        """The marker at ``offset`` was noted, but could not be appended."""
        with contextlib.suppress(OSError):
            cut_entries(self.files, self._transaction_index(segment), int(offset))

    def _answer_duplicate(self, kept: KeptBatch) -> AppendResult:
        append_time: i64 = kept.timestamp if self._append_time else NO_TIMESTAMP
        return AppendResult(kept.first_offset, kept.last_offset, append_time, self.start_offset, True)

    def lead(self, leader_epoch: i64) -> None:
        """Begins an epoch at the end of the log: who asks where it began is told so before its first record.

        The file has it with the first append: an epoch without records need not survive a crash.
        """
        if leader_epoch != self._leader_epoch:
            self.leader_epochs.assign(int(leader_epoch), int(self.end_offset), save=False)

    def begin_after(self, leader_epoch: i64) -> None:
        """Notes the epoch of the record before the start of an empty log, which its leader knows.

        Raises StorageError.
        """
        if self.lacks_epoch:
            self._begin_epoch(leader_epoch, self.start_offset - 1)

    @property
    def lacks_epoch(self) -> bool:
        """Whether it has no records, but had some, and the epoch of the last one is not known."""
        return 0 < self.start_offset == self.end_offset and self.leader_epochs.latest < 0

    def _begin_epoch(self, leader_epoch: i64, offset: i64) -> None:
        try:
            self.leader_epochs.assign(int(leader_epoch), int(offset))
        except OSError as problem:
            raise storage_error("write", self.leader_epochs.path, problem) from problem
        self._leader_epoch = leader_epoch

    # -- reading

    def last_stable_offset(self, high_watermark: i64) -> i64:
        """Up to where readers of committed records may read; others read up to ``high_watermark``."""
        transactions = self.producer_state.transactions
        if transactions.are_none:
            return high_watermark
        first: i64 = transactions.first_unstable(high_watermark)
        if first < 0 or first >= high_watermark:
            return high_watermark
        return first if first > self.start_offset else self.start_offset

    def read(self, offset: i64, bytes_max: i64, limit_offset: i64, whole_first: bool) -> Slice | None:
        """The range of a log file that holds ``offset`` and what follows it, before ``limit_offset``.

        It begins with the batch that contains ``offset`` and has at most ``bytes_max`` bytes; with
        ``whole_first`` the first batch may be larger. None when there is nothing (yet); a size of 0 when the
        first batch does not fit. No record is read. Raises OffsetOutOfRange, and StorageError.
        """
        if offset > self.end_offset or offset < self.start_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition} holds offsets {self.start_offset} to {self.end_offset}, not {offset}"
            )
        if offset >= limit_offset or offset >= self.end_offset:
            return None
        segment = self.active
        try:
            if offset >= segment.base_offset:
                position: i64 = segment.recent_position(offset)
                if position >= 0:
                    return self._slice(segment, position, bytes_max, limit_offset, whole_first, True)
            return self._read_at(offset, bytes_max, limit_offset, whole_first)
        except OSError as problem:
            # It may be the file of another segment, or an index.
            named = problem.filename
            path = named if isinstance(named, str) else segment.path
            raise storage_error("read", path, problem) from problem

    def _read_at(self, offset: i64, bytes_max: i64, limit_offset: i64, whole_first: bool) -> Slice | None:
        at: i64 = self.segment_at(offset)
        count: i64 = len(self.segments)
        while at < count:
            segment = self.segments[at]
            position: i64 = segment.position_of(offset)
            if position < segment.size:
                return self._slice(segment, position, bytes_max, limit_offset, whole_first, False)
            at += 1
        return None

    def _slice(
        self,
        segment: Segment,
        position: i64,
        bytes_max: i64,
        limit_offset: i64,
        whole_first: bool,
        recent: bool,
    ) -> Slice | None:
        end: i64 = segment.size
        if limit_offset < self.end_offset:
            end = self._limit_in(segment, limit_offset)
        size: i64 = end - position
        if size <= 0:
            return None
        if size > bytes_max:
            size = segment.cut(position, bytes_max, whole_first)
            if size > end - position:
                size = end - position
        return Slice(segment.file(), position, size, recent)

    def _limit_in(self, segment: Segment, limit_offset: i64) -> i64:
        """Where the batches before ``limit_offset`` end in this segment."""
        if limit_offset == self._limit_offset and segment.base_offset == self._limit_base:
            return self._limit_position
        if limit_offset <= segment.base_offset:
            return 0
        if segment is not self.active and self.segments[self.segment_at(limit_offset)] is not segment:
            return segment.size  # the limit lies in a later one
        position: i64 = segment.recent_position(limit_offset)
        if position < 0:
            position = segment.position_of(limit_offset)
        if segment is not self.active or position < segment.size:
            self._limit_offset = limit_offset
            self._limit_base = segment.base_offset
            self._limit_position = position
        return position

    def producers(self) -> list[ProducerEntry]:
        """What is known of each producer."""
        return list(self.producer_state.entries.values())

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record at or after ``timestamp``; None without one."""
        try:
            return first_at(self.segments, timestamp, int(self.start_offset), self.config.unpacked_bytes_max)
        except OSError as problem:
            raise storage_error("read", self.directory, problem) from problem

    def segment_starts(self, now_ms: int) -> list[tuple[int, int]]:
        """(first offset, ms when it was last written) of every segment; the end of the log comes as another
        one that is written now, unless the active segment is empty."""
        try:
            return starts(self.segments, int(self.start_offset), int(self.end_offset), now_ms)
        except OSError as problem:
            raise storage_error("read", self.directory, problem) from problem

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record with the largest timestamp; None without records."""
        try:
            return largest(self.segments, int(self.start_offset), self.config.unpacked_bytes_max)
        except OSError as problem:
            raise storage_error("read", self.directory, problem) from problem
