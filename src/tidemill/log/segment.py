"""One segment of a log: a ``.log`` file of batches, its offset index and its time index.

The files are opened when they are needed, so that a partition nobody uses costs no descriptor. A ``.log``
file is closed when the last range that refers to it is gone, also when the segment was deleted meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

from librt.strings import read_i32_be, read_i64_be
from librt.vecs import vec
from mypy_extensions import i64

from tidemill.log.names import INDEX, LOG, TIME_INDEX, offset_name
from tidemill.log.offset_index import OffsetIndex
from tidemill.log.open_files import OPEN_FILES
from tidemill.log.scan import BatchScan
from tidemill.log.sparse_index import RELATIVE_OFFSET_MAX
from tidemill.log.time_index import TimeIndex
from tidemill.model.errors import KafkaError
from tidemill.model.ports import File, Files
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import CODEC_MASK, LENGTH, LOG_OVERHEAD, MAGIC, Batch
from tidemill.records.cursor import open_cursor
from tidemill.records.legacy import TIMESTAMP

RECENT: Final = 64
"""Appends whose positions are remembered: a reader that keeps up is answered without a look at the files."""

UNKNOWN: Final = -2
"""A timestamp that has not been read from the files yet."""


class Slice:
    """A range of bytes of a log file. ``recent`` says that it was written a moment ago: it is in memory."""

    def __init__(self, file: File, position: i64, size: i64, recent: bool) -> None:
        self.file = file
        self.position: i64 = position
        self.size: i64 = size
        self.recent: bool = recent

    def read(self) -> bytes:
        """The bytes."""
        return self.file.read_at(self.position, self.size)


class Segment:
    """The batches from :attr:`base_offset` to the next segment's. ``size`` is the bytes of its log file."""

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
        self.first_timestamp: i64 = UNKNOWN
        self._max_timestamp: i64 = UNKNOWN
        self._max_timestamp_offset: i64 = base_offset
        self.bytes_since_index: i64 = size
        self.replaced: bool = False
        """Whether another segment takes its name: the indexes are not made anew then."""
        self._file: File | None = None
        self._ends_whole: bool = False
        """Whether the open file ends where the segment does, or cuts off what is behind that by itself."""
        self.touched: bool = False
        """The log file was used since :data:`OPEN_FILES` looked last."""
        self._recent_count: i64 = 0
        self._recent_offsets: vec[i64] = vec[i64]([])
        self._recent_positions: vec[i64] = vec[i64]([])

    def create(self, now_ms: i64) -> None:
        """Makes the files, over what lay there. Raises OSError, leaving none behind that counts."""
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
        """Makes the files where none are: in a directory that was just made. None stays open.

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

    def file(self) -> File:
        """The log file, open."""
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
        """As :meth:`file`, without what a failed append left when it could not be cut off at once."""
        file = self.file()
        if not self._ends_whole:
            if file.size() > self.size:
                file.truncate(self.size)
            self._ends_whole = True
        return file

    def append(
        self, buffers: list[Any], size: i64, base_offset: i64, last_offset: i64, max_timestamp: i64
    ) -> None:
        """Writes one batch at the end. Raises OSError, and is as before then."""
        if self._max_timestamp == UNKNOWN:
            # Read before the write: what fails after it would leave a batch that the log does not know of.
            self.max_timestamp()
        position: i64 = self.size
        file = self._file
        if file is None or not self._ends_whole:
            file = self._file_to_append()
        self.touched = True
        file.append(buffers)
        self.size = position + size
        self.note(position, size, base_offset, last_offset, max_timestamp)

    def append_run(self, view: memoryview, batches: list[Batch]) -> None:
        """Writes batches that lie one after the other in ``view``. Raises OSError, and is as before then."""
        if self._max_timestamp == UNKNOWN:
            self.max_timestamp()
        file = self._file
        if file is None or not self._ends_whole:
            file = self._file_to_append()
        self.touched = True
        file.append([view])
        for batch in batches:
            position: i64 = self.size
            self.size = position + batch.size
            self.note(position, batch.size, batch.base_offset, batch.last_offset, batch.max_timestamp)

    def append_entries(self, data: bytes, base_offset: i64) -> None:
        """Writes entries of format v0 or v1 at the end, the first message of which has ``base_offset``.

        Raises OSError, and is as before then.
        """
        if self._max_timestamp == UNKNOWN:
            self.max_timestamp()
        begin: i64 = self.size
        file = self._file
        if file is None or not self._ends_whole:
            file = self._file_to_append()
        self.touched = True
        file.append([data])
        self.size = begin + len(data)
        at: i64 = 0
        while at < len(data):
            size: i64 = i64(read_i32_be(data, at + LENGTH)) + LOG_OVERHEAD
            offset: i64 = read_i64_be(data, at)
            timestamp: i64 = read_i64_be(data, at + TIMESTAMP) if data[at + MAGIC] > 0 else -1
            self.note(begin + at, size, base_offset, offset, timestamp)
            base_offset = offset + 1
            at += size

    def note(self, position: i64, size: i64, base_offset: i64, last_offset: i64, max_timestamp: i64) -> None:
        """Takes in a batch that lies at ``position`` now: timestamps, indexes, recent positions."""
        if max_timestamp > self._max_timestamp:
            if self._max_timestamp == UNKNOWN:
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
        """An index without room or on a full disk does not grow: lookups scan further, nothing is lost."""
        try:
            if not self.index.is_full:
                self.index.append(last_offset, position)
                self.bytes_since_index = 0
            if not self.time_index.is_full:
                self.time_index.append(self._max_timestamp, self._max_timestamp_offset)
        except OSError:
            return

    def recent_position(self, offset: i64) -> i64:
        """Where the batch that begins with ``offset`` lies, when it was appended a moment ago; else -1."""
        count: i64 = self._recent_count
        lowest: i64 = count - RECENT
        if lowest < 0:
            lowest = 0
        while count > lowest:
            count -= 1
            base: i64 = self._recent_offsets[count & (RECENT - 1)]
            if base <= offset:
                return self._recent_positions[count & (RECENT - 1)] if base == offset else -1
        return -1

    def position_of(self, offset: i64) -> i64:
        """Where the first batch lies whose last offset is at least ``offset``; the size when none is here."""
        if offset <= self.base_offset:
            return 0
        start: i64 = self.index.lookup(offset)
        position: i64 = self._scan_for(offset, start)
        if position < 0:
            # The index pointed to something that is no batch, or beyond the offset: it is damaged.
            start = 0
            if not self.replaced:
                self.rebuild_indexes()
                start = self.index.lookup(offset)
            position = self._scan_for(offset, start)
        return position if position >= 0 else self.size

    def _scan_for(self, offset: i64, start: i64) -> i64:
        """As :meth:`position_of`, from the indexed position ``start``; -1 when that cannot be right."""
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

    def cut(self, position: i64, bytes_max: i64, whole_first: bool) -> i64:
        """How many bytes from ``position`` a reader gets who wants at most ``bytes_max``.

        They end with a whole batch where the index knows one, so that no bytes are sent twice. When even
        the first batch is larger: all of it with ``whole_first``, else 0.
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
        """The largest timestamp in ms; -1 when there is none."""
        if self._max_timestamp == UNKNOWN:
            self._max_timestamp = self.time_index.last_timestamp()
            self._max_timestamp_offset = self.time_index.last_offset()
        return self._max_timestamp

    def max_timestamp_offset(self) -> i64:
        """The last offset of the first batch that has :meth:`max_timestamp`."""
        self.max_timestamp()
        return self._max_timestamp_offset

    @property
    def knows_timestamps(self) -> bool:
        """Whether :meth:`max_timestamp` is known without a look at the files."""
        return self._max_timestamp != UNKNOWN

    def private_copy(self) -> Segment:
        """This segment as it is now, for look-ups in another thread: it changes nothing, and maps nothing.

        ``release()`` it afterwards. The files may be gone when they are looked for.
        """
        copy = Segment(self.files, self.directory, self.base_offset, self.size, 0, self.interval_bytes)
        copy.index.make_private(self.index.entries)
        copy.time_index.make_private(self.time_index.entries)
        copy._max_timestamp = self._max_timestamp
        copy._max_timestamp_offset = self._max_timestamp_offset
        copy._file = self._file
        return copy

    def learn(self, copy: Segment) -> None:
        """Takes over what a private copy found in the files, unless the segment changed."""
        if copy.size != self.size:
            return
        if self._max_timestamp == UNKNOWN and copy._max_timestamp != UNKNOWN:
            self._max_timestamp = copy._max_timestamp
            self._max_timestamp_offset = copy._max_timestamp_offset
        if self.index.entries < 0:
            self.index.entries = copy.index.entries
        if self.time_index.entries < 0:
            self.time_index.entries = copy.time_index.entries

    def rolling_timestamp(self) -> i64:
        """The first batch's largest timestamp, from which ``segment.ms`` counts; -1 when there is none."""
        if self.first_timestamp == UNKNOWN:
            scan = BatchScan(self.file(), 0, self.size)
            self.first_timestamp = scan.max_timestamp if scan.step() else -1
        return self.first_timestamp

    def is_full(self, size: i64, last_offset: i64, segment_bytes: i64) -> bool:
        """Whether a batch of ``size`` bytes that ends with ``last_offset`` belongs into a new segment."""
        return (
            self.size > segment_bytes - size
            or self.index.is_full
            or self.time_index.is_full
            or last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        )

    def pin(self) -> None:
        """Opens all files, and keeps them: the segment can be read on when they lose their names."""
        self.replaced = True
        self.file()
        self.index.pin()
        self.time_index.pin()
        self.max_timestamp()

    def unpin(self) -> None:
        """The files keep their names after all."""
        self.replaced = False
        self.index.pinned = False
        self.time_index.pinned = False

    def close_indexes(self) -> None:
        """Ends the indexes: the largest timestamp is noted, the files are cut to what is used."""
        timestamp: i64 = self.max_timestamp()
        if timestamp >= 0:
            self.time_index.append(timestamp, self._max_timestamp_offset)
        self.index.trim()
        self.time_index.trim()
        self._recent_count = 0
        self._recent_offsets = vec[i64]([])
        self._recent_positions = vec[i64]([])

    def rebuild_indexes(self) -> None:
        """Makes both indexes anew from the batches, closes them, and waits for the disk.

        Unlike those that a roll closes they may lie before the recovery point, where no later sync looks.
        """
        self.begin_rebuild()
        scan = BatchScan(self.file(), 0, self.size)
        while scan.step():
            relative: i64 = scan.last_offset - self.base_offset
            if relative < 0 or relative > RELATIVE_OFFSET_MAX:
                break  # It is damaged, and no index can name it.
            self.note(scan.position, scan.size, scan.base_offset, scan.last_offset, scan.max_timestamp)
        self.close_indexes()
        self.index.sync()
        self.time_index.sync()

    def begin_rebuild(self) -> None:
        """Empties the indexes and what is known of the timestamps; :meth:`note` every batch after this."""
        self.index.create()
        self.time_index.create()
        self._max_timestamp = -1
        self._max_timestamp_offset = self.base_offset
        self.first_timestamp = -1
        self.bytes_since_index = 0
        self._recent_count = 0

    def truncate(self, position: i64) -> None:
        """Cuts the log file at ``position``, where a batch begins, and the indexes with it.

        Raises OSError; it may be repeated then.
        """
        file = self.file()
        file.truncate(position)
        self.size = position
        self.index.truncate_to(position)
        self._recent_count = 0
        if position == 0:
            self.first_timestamp = -1
        last_position: i64 = self.index.last_position()
        self.bytes_since_index = position - last_position
        scan = BatchScan(self.file(), last_position, position)
        end: i64 = self.base_offset
        while scan.step():
            end = scan.last_offset + 1
        self._recount_timestamps(end, position)

    def resume_rebuild(self, position: i64, offset: i64) -> None:
        """As :meth:`begin_rebuild`, but what the indexes know of the batches before ``position`` stays.

        A batch begins at ``position``, and ``offset`` is its base offset.
        """
        self.index.truncate_to(position)
        self.bytes_since_index = position - self.index.last_position()
        self._recount_timestamps(offset, position)
        self._recent_count = 0

    def _recount_timestamps(self, end_offset: i64, end: i64) -> None:
        """The time index without what comes from ``end_offset`` on, and the largest timestamp before that.

        ``end`` is where the batches before ``end_offset`` end.
        """
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

    def base_offset_at(self, position: i64, unpacked_bytes_max: i64 = UNPACKED_BYTES_MAX) -> i64:
        """The base offset of the batch at ``position``; -1 when there is none, or none that can be read."""
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
        scan = BatchScan(self.file(), start, self.size)
        end: i64 = self.base_offset
        while scan.step():
            end = scan.last_offset + 1
        return end

    def let_go(self) -> None:
        """Closes the log file until it is needed again. Ranges that are being sent keep theirs."""
        if not self.replaced:
            self._file = None

    def release(self) -> None:
        """Closes all files until they are needed again, in the same way."""
        self._file = None
        OPEN_FILES.closed(self)
        self.index.release()
        self.time_index.release()


def first_reaching(segments: list[Segment], at: i64, timestamp: i64, may_read: bool) -> i64:
    """The place, from ``at`` on, of the first segment that may hold a record of ``timestamp`` or later.

    The number of segments: there is none. -1: that would have to be read from the files, and may not be
    (``may_read``). A log of many segments is walked here, where a step costs nanoseconds.
    """
    count: i64 = len(segments)
    while at < count:
        segment = segments[at]
        if segment.size > 0:
            if not may_read and segment._max_timestamp == UNKNOWN:
                return -1
            if segment.max_timestamp() >= timestamp:
                return at
        at += 1
    return count
