"""One segment of a log: a ``.log`` file of batches, its offset index and its time index.

The files are opened on demand, so an unused partition needs no descriptor. A ``.log`` file is closed with the
last range that refers to it, even if the segment was deleted meanwhile.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from librt.vecs import vec
from mypy_extensions import i64

from tidemill.log.batch_scan import BatchScan
from tidemill.log.file_names import INDEX, LOG, TIME_INDEX, TRANSACTION_INDEX, offset_name
from tidemill.log.offset_index import OffsetIndex
from tidemill.log.open_files import OPEN_FILES
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.time_index import TimeIndex
from tidemill.model.errors import KafkaError
from tidemill.model.system_interfaces import Buffer, File, Files
from tidemill.records.batch import CODEC_MASK, LENGTH, LOG_OVERHEAD, MAGIC, Batch
from tidemill.records.legacy_formats import TIMESTAMP
from tidemill.records.record_cursor import open_cursor

RECENT: Final = 64
"""The number of recent appends whose positions are cached: reads at the log end need no file access."""

TIMESTAMP_NOT_READ: Final = -2
"""A timestamp that was not read from the files yet."""


class LogRange:
    """A range of bytes of a log file. ``recent``: it was just written and is in memory."""

    def __init__(self, file: File, position: i64, size: i64, recent: bool) -> None:
        self.file = file
        self.position: i64 = position
        self.size: i64 = size
        self.recent: bool = recent

    def read(self) -> bytes:
        """The bytes."""
        return self.file.read_at(self.position, self.size)


class LogSegment:
    """The batches from :attr:`base_offset` to the next segment. ``size`` is the size of the log file."""

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: i64,
        size: i64,
        index_bytes_max: i64,
        interval_bytes: i64,
    ) -> None:
        self.files = files
        self.directory = directory
        self.base_offset: i64 = base_offset
        self.size: i64 = size
        self.interval_bytes: i64 = interval_bytes
        self.path: str = f"{directory}/{offset_name(base_offset, LOG)}"
        self.index = OffsetIndex(
            files, f"{directory}/{offset_name(base_offset, INDEX)}", base_offset, index_bytes_max
        )
        self.time_index = TimeIndex(
            files, f"{directory}/{offset_name(base_offset, TIME_INDEX)}", base_offset, index_bytes_max
        )
        self.created_ms: i64 = 0
        self.first_timestamp: i64 = TIMESTAMP_NOT_READ
        self._max_timestamp: i64 = TIMESTAMP_NOT_READ
        self._max_timestamp_offset: i64 = base_offset
        self.bytes_since_index: i64 = size
        self.replaced: bool = False
        """Whether another segment takes its name: then the indexes are not rebuilt."""
        self._file: File | None = None
        self._ends_whole: bool = False
        """Whether the open file has the size of the segment, or truncates the excess itself."""
        self.touched: bool = False
        """The log file was used since the last check by :data:`OPEN_FILES`."""
        self._recent_count: i64 = 0
        self._recent_offsets: vec[i64] = vec[i64]([])
        self._recent_positions: vec[i64] = vec[i64]([])

    def create(self, now_ms: i64) -> None:
        """Creates the files, replacing existing ones. Raises OSError, and then leaves no valid files."""
        file = self.files.open(self.path, True)
        if file.size():
            file.truncate(0)
        self.index.create()
        self.time_index.create()
        self._file = file
        self._ends_whole = True
        OPEN_FILES.opened(self)
        self.size = 0
        self.bytes_since_index = 0
        self.created_ms = now_ms
        self.first_timestamp = -1
        self._max_timestamp = -1

    def create_closed(self, now_ms: i64) -> None:
        """Creates the files in a new directory. No file stays open.

        The indexes get their size with their first entry. Raises OSError.
        """
        self.files.make_file(self.path)
        self.files.make_file(self.index.path)
        self.files.make_file(self.time_index.path)
        self.index.entries = 0
        self.time_index.entries = 0
        self.created_ms = now_ms
        self.first_timestamp = -1
        self._max_timestamp = -1

    @property
    def transaction_index_path(self) -> str:
        """The path of the index of aborted transactions, which exists once a transaction was aborted."""
        return f"{self.directory}/{offset_name(self.base_offset, TRANSACTION_INDEX)}"

    def file(self) -> File:
        """The open log file."""
        file = self._file
        if file is None:
            file = self._open()
        self.touched = True
        return file

    def _open(self) -> File:
        try:
            file = self.files.open(self.path)
        except OSError as problem:
            if not OPEN_FILES.make_room(problem):
                raise
            file = self.files.open(self.path)
        self._file = file
        self._ends_whole = False
        OPEN_FILES.opened(self)
        return file

    def _file_to_append(self) -> File:
        """Same as :meth:`file`, after truncating the rest of a failed append."""
        file = self.file()
        if not self._ends_whole:
            if file.size() > self.size:
                file.truncate(self.size)
            self._ends_whole = True
        return file

    def _begin_append(self) -> File:
        """The file, ready for an append. Raises OSError."""
        if self._max_timestamp == TIMESTAMP_NOT_READ:
            # Read before the write: an error after it would leave a batch that the log does not count.
            self.max_timestamp()
        file = self._file
        if file is None or not self._ends_whole:
            file = self._file_to_append()
        self.touched = True
        return file

    def append(
        self, buffers: list[Buffer], size: i64, base_offset: i64, last_offset: i64, max_timestamp: i64
    ) -> None:
        """Appends one batch. Raises OSError, and then changes nothing."""
        position: i64 = self.size
        self._begin_append().append(buffers)
        self.size = position + size
        self.index_batch(position, size, base_offset, last_offset, max_timestamp)

    def append_run(self, view: memoryview, batches: list[Batch]) -> None:
        """Appends the consecutive batches in ``view``. Raises OSError, and then changes nothing."""
        self._begin_append().append([view])
        for batch in batches:
            position: i64 = self.size
            self.size = position + batch.size
            self.index_batch(position, batch.size, batch.base_offset, batch.last_offset, batch.max_timestamp)

    def append_entries(self, data: bytes, base_offset: i64) -> None:
        """Appends entries of format v0 or v1. The first message has ``base_offset``.

        Raises OSError, and then changes nothing.
        """
        begin: i64 = self.size
        self._begin_append().append([data])
        self.size = begin + len(data)
        at: i64 = 0
        while at < len(data):
            size: i64 = i64(read_i32_be(data, at + LENGTH)) + LOG_OVERHEAD
            offset: i64 = read_i64_be(data, at)
            timestamp: i64 = read_i64_be(data, at + TIMESTAMP) if data[at + MAGIC] > 0 else -1
            self.index_batch(begin + at, size, base_offset, offset, timestamp)
            base_offset = offset + 1
            at += size

    def index_batch(
        self, position: i64, size: i64, base_offset: i64, last_offset: i64, max_timestamp: i64
    ) -> None:
        """Updates timestamps, indexes and recent positions for a batch at ``position``."""
        if max_timestamp > self._max_timestamp:
            if self._max_timestamp == TIMESTAMP_NOT_READ:
                self.max_timestamp()
            if max_timestamp > self._max_timestamp:
                self._max_timestamp = max_timestamp
                self._max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.bytes_since_index > self.interval_bytes:
            self._add_index_entries(last_offset, position)
        self.bytes_since_index += size
        if len(self._recent_offsets) == 0:
            self._recent_offsets = vec[i64]([0] * RECENT)
            self._recent_positions = vec[i64]([0] * RECENT)
        slot: i64 = self._recent_count & (RECENT - 1)
        self._recent_offsets[slot] = base_offset
        self._recent_positions[slot] = position
        self._recent_count += 1

    def _add_index_entries(self, last_offset: i64, position: i64) -> None:
        """Adds index entries. Without space an index does not grow: lookups scan further, nothing is lost."""
        try:
            if not self.index.is_full:
                self.index.append(last_offset, position)
                self.bytes_since_index = 0
            if not self.time_index.is_full:
                self.time_index.append(self._max_timestamp, self._max_timestamp_offset)
        except OSError:
            return

    def recent_position(self, offset: i64) -> i64:
        """The position of the batch that begins with ``offset`` if it was appended recently; else -1."""
        high: i64 = self._recent_count - 1
        low: i64 = high - (RECENT - 1)
        if low < 0:
            low = 0
        # Most reads are of the newest batch.
        if high < 0 or self._recent_offsets[high & (RECENT - 1)] < offset:
            return -1
        middle: i64 = high
        while low <= high:
            slot: i64 = middle & (RECENT - 1)
            base: i64 = self._recent_offsets[slot]
            if base == offset:
                return self._recent_positions[slot]
            if base < offset:
                low = middle + 1
            else:
                high = middle - 1
            middle = (low + high) >> 1
        return -1

    def translate_offset(self, offset: i64) -> i64:
        """The position of the first batch with a last offset of at least ``offset``; the size if there is
        none.
        """
        if offset <= self.base_offset:
            return 0
        start: i64 = self.index.lookup(offset)
        position: i64 = self._scan_for(offset, start)
        if position < 0:
            # The index points to something else than a batch, or beyond the offset: it is damaged.
            start = 0
            if not self.replaced:
                self.rebuild_indexes()
                start = self.index.lookup(offset)
            position = self._scan_for(offset, start)
        return position if position >= 0 else self.size

    def _scan_for(self, offset: i64, start: i64) -> i64:
        """Same as :meth:`translate_offset`, from the indexed position ``start``; -1 if it is wrong."""
        scan = BatchScan(self.file(), start, self.size)
        first: bool = start > 0
        while scan.step():
            if first and (scan.base_offset > offset or scan.base_offset < self.base_offset):
                return -1
            first = False
            if scan.last_offset >= offset:
                return scan.position
        if scan.fault or (first and start >= self.size):
            return -1 if start > 0 else scan.position
        return self.size

    def read_size(self, position: i64, bytes_max: i64, whole_first: bool) -> i64:
        """The number of bytes from ``position`` that a read of at most ``bytes_max`` returns.

        The range ends at a batch boundary if the index has one, so that no bytes are sent twice. If the first
        batch is larger: the whole batch with ``whole_first``, else 0.
        """
        end: i64 = self.index.position_floor(position + bytes_max)
        if end > position:
            return end - position
        scan = BatchScan(self.file(), position, self.size)
        end = position
        while scan.step():
            if scan.next_position - position > bytes_max:
                break
            end = scan.next_position
        if end == position and whole_first:
            return scan.size
        return end - position

    def max_timestamp(self) -> i64:
        """The largest timestamp in ms; -1 if there is none."""
        if self._max_timestamp == TIMESTAMP_NOT_READ:
            self._max_timestamp = self.time_index.last_timestamp()
            self._max_timestamp_offset = self.time_index.last_offset()
        return self._max_timestamp

    def max_timestamp_offset(self) -> i64:
        """The last offset of the first batch that has :meth:`max_timestamp`."""
        self.max_timestamp()
        return self._max_timestamp_offset

    @property
    def knows_timestamps(self) -> bool:
        """Whether :meth:`max_timestamp` is known without file access."""
        return self._max_timestamp != TIMESTAMP_NOT_READ

    def private_copy(self) -> LogSegment:
        """A copy of this segment for lookups in another thread, which changes nothing and maps no files.

        ``close_handlers()`` it afterwards. Its files may be removed meanwhile.
        """
        copy = LogSegment(self.files, self.directory, self.base_offset, self.size, 0, self.interval_bytes)
        copy.index.make_private(self.index.entries)
        copy.time_index.make_private(self.time_index.entries)
        copy._max_timestamp = self._max_timestamp
        copy._max_timestamp_offset = self._max_timestamp_offset
        copy._file = self._file
        return copy

    def update_from(self, copy: LogSegment) -> None:
        """Copies the facts that a private copy read from the files, unless the segment changed."""
        if copy.size != self.size:
            return
        if self._max_timestamp == TIMESTAMP_NOT_READ and copy._max_timestamp != TIMESTAMP_NOT_READ:
            self._max_timestamp = copy._max_timestamp
            self._max_timestamp_offset = copy._max_timestamp_offset
        if self.index.entries < 0:
            self.index.entries = copy.index.entries
        if self.time_index.entries < 0:
            self.time_index.entries = copy.time_index.entries

    def rolling_timestamp(self) -> i64:
        """The largest timestamp of the first batch, the start of ``segment.ms``; -1 if there is none."""
        if self.first_timestamp == TIMESTAMP_NOT_READ:
            scan = BatchScan(self.file(), 0, self.size)
            self.first_timestamp = scan.max_timestamp if scan.step() else -1
        return self.first_timestamp

    def is_full(self, size: i64, last_offset: i64, segment_bytes: i64) -> bool:
        """Whether a batch of ``size`` bytes that ends with ``last_offset`` needs a new segment."""
        return (
            self.size > segment_bytes - size
            or self.index.is_full
            or self.time_index.is_full
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    def pin(self) -> None:
        """Opens all files and keeps them open: the segment stays readable when they are renamed."""
        self.replaced = True
        self.file()
        self.index.pin()
        self.time_index.pin()
        self.max_timestamp()

    def unpin(self) -> None:
        """Allows closing the files again: they keep their names."""
        self.replaced = False
        self.index.pinned = False
        self.time_index.pinned = False

    def close_indexes(self) -> None:
        """Writes the last time index entry, and truncates both index files to their entries."""
        timestamp: i64 = self.max_timestamp()
        if timestamp >= 0:
            self.time_index.append(timestamp, self._max_timestamp_offset)
        self.index.trim_to_valid_size()
        self.time_index.trim_to_valid_size()
        self._recent_count = 0
        self._recent_offsets = vec[i64]([])
        self._recent_positions = vec[i64]([])

    def rebuild_indexes(self) -> None:
        """Rebuilds both indexes from the batches, closes and syncs them.

        Unlike indexes that a roll closes, they may lie before the recovery point, where no later flush syncs
        them.
        """
        self.begin_rebuild()
        scan = BatchScan(self.file(), 0, self.size)
        while scan.step():
            relative: i64 = scan.last_offset - self.base_offset
            if relative < 0 or relative > RELATIVE_OFFSET_MAX:
                break  # The batch is damaged; an index cannot represent its offset.
            self.index_batch(scan.position, scan.size, scan.base_offset, scan.last_offset, scan.max_timestamp)
        self.close_indexes()
        self.index.sync()
        self.time_index.sync()

    def begin_rebuild(self) -> None:
        """Empties the indexes and timestamps; call :meth:`index_batch` for every batch afterwards."""
        self.index.create()
        self.time_index.create()
        self._max_timestamp = -1
        self._max_timestamp_offset = self.base_offset
        self.first_timestamp = -1
        self.bytes_since_index = 0
        self._recent_count = 0

    def truncate(self, position: i64) -> None:
        """Truncates the log file and the indexes at ``position``, where a batch begins.

        Raises OSError; it may then be repeated.
        """
        self.file().truncate(position)
        self.size = position
        self.index.truncate_to(position)
        if position == 0:
            self.first_timestamp = -1
        self._recount(self.last_offset_end(), position)

    def resume_rebuild(self, position: i64, offset: i64) -> None:
        """Same as :meth:`begin_rebuild`, but keeps the index entries of the batches before ``position``.

        A batch with base offset ``offset`` begins at ``position``.
        """
        self.index.truncate_to(position)
        self._recount(offset, position)

    def _recount(self, end_offset: i64, end: i64) -> None:
        """Truncates the time index at ``end_offset``, and computes the largest timestamp before it.

        ``end`` is the end position of the batches before ``end_offset``, at which the offset index ends.
        """
        self.bytes_since_index = end - self.index.last_position()
        self._recent_count = 0
        self.time_index.truncate_to(end_offset)
        timestamp: i64 = self.time_index.last_timestamp()
        offset: i64 = self.time_index.last_offset()
        scan = BatchScan(self.file(), self.index.lookup(offset), end)
        while scan.step():
            if scan.max_timestamp > timestamp:
                timestamp = scan.max_timestamp
                offset = scan.last_offset
        self._max_timestamp = timestamp
        self._max_timestamp_offset = offset

    def base_offset_at(self, position: i64, unpacked_bytes_max: i64) -> i64:
        """The base offset of the batch at ``position``; -1 if there is none or it is unreadable."""
        scan = BatchScan(self.file(), position, self.size)
        if not scan.step():
            return -1
        if scan.magic == 2 or scan.attributes & CODEC_MASK == 0:
            return scan.base_offset
        data, at = scan.whole()
        try:
            cursor = open_cursor(data, at, at + scan.size, True, unpacked_bytes_max)
            return cursor.offset if cursor.step() else -1
        except KafkaError:
            return -1

    def last_offset_end(self) -> i64:
        """The offset after the last batch, read from the end of the files."""
        start: i64 = self.index.last_position()
        if start >= self.size:
            start = 0
        return BatchScan(self.file(), start, self.size).step_to_end(self.base_offset)

    def close_idle(self) -> None:
        """Closes the log file until it is needed again. Ranges that are being sent keep it open."""
        if not self.replaced:
            self._file = None

    def close_handlers(self) -> None:
        """Closes all files until they are needed again."""
        self._file = None
        OPEN_FILES.closed(self)
        self.index.close_handlers()
        self.time_index.close_handlers()


def first_reaching(segments: list[LogSegment], at: i64, timestamp: i64, may_read: bool) -> i64:
    """The index, from ``at`` on, of the first segment that may have a record of ``timestamp`` or later.

    The number of segments if there is none. -1 if this requires a read that ``may_read`` does not allow. A
    loop over many segments, compiled: a step takes nanoseconds.
    """
    count: i64 = len(segments)
    while at < count:
        segment = segments[at]
        if segment.size > 0:
            if not may_read and segment._max_timestamp == TIMESTAMP_NOT_READ:
                return -1
            if segment.max_timestamp() >= timestamp:
                return at
        at += 1
    return count
