"""The new segment that the cleaner writes to replace old ones, under its ``.cleaned`` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mypy_extensions import i64

from tidemill.log.cleaner_messages import CleanJob
from tidemill.log.file_names import CLEANED, SEGMENT_SUFFIXES, TRANSACTION_INDEX, offset_name
from tidemill.log.log_segment import LogSegment
from tidemill.log.transaction_index import Aborted, encode_all
from tidemill.model.errors import KafkaError
from tidemill.model.system_interfaces import Files

WRITE_BYTES: Final = 1024 * 1024
"""The number of bytes per write."""

POSITION_MAX: Final = 0x7FFFFFFF


class CleanedSegment:
    """A segment that begins at ``base_offset``; ``written`` is called with the number of written bytes."""

    def __init__(self, files: Files, job: CleanJob, base_offset: i64, written: Callable[[int], None]) -> None:
        self.size: i64 = 0
        self._files = files
        self._directory: str = job.directory
        self._base: i64 = base_offset
        self._written = written
        self._write_bytes: i64 = max(job.chunk_bytes, WRITE_BYTES)
        self._buffers: list[bytes] = []
        self._buffered: i64 = 0
        self.discard()
        segment = LogSegment(files, job.directory, base_offset, 0, job.index_bytes_max, job.interval_bytes)
        segment.path += CLEANED
        segment.index.path += CLEANED
        segment.time_index.path += CLEANED
        self._segment = segment
        segment.create(job.now_ms)

    def add(self, data: bytes, base_offset: i64, last_offset: i64, max_timestamp: i64) -> None:
        """Adds a batch, or an entry of an older format."""
        count: i64 = len(data)
        if self.size + count > POSITION_MAX:
            raise KafkaError(
                f"{self._segment.path} would become larger than 2 GiB: lower segment.bytes of the topic"
            )
        self._segment.index_batch(self.size, count, base_offset, last_offset, max_timestamp)
        self.size += count
        self._segment.size = self.size
        self._buffers.append(data)
        self._buffered += count
        if self._buffered >= self._write_bytes:
            self._write()

    def _write(self) -> None:
        count: i64 = self._buffered
        if count == 0:
            return
        self._segment.file().append([b"".join(self._buffers)])
        self._buffers = []
        self._buffered = 0
        self._written(int(count))

    def finish(self, aborted: Sequence[Aborted], modified_ms: int) -> None:
        """Completes the files, sets the modification time of the last old segment, and syncs them."""
        segment = self._segment
        self._write()
        segment.close_indexes()
        segment.file().sync()
        segment.index.sync()
        segment.time_index.sync()
        if aborted:
            path = f"{self._directory}/{offset_name(self._base, TRANSACTION_INDEX)}{CLEANED}"
            with self._files.open(path, create=True) as file:
                file.append([encode_all(aborted)])
                file.sync()
        segment.close_handlers()
        self._files.set_modified(segment.path, modified_ms)

    def discard(self) -> None:
        """Removes the files of the new segment."""
        for suffix in SEGMENT_SUFFIXES:
            path = f"{self._directory}/{offset_name(self._base, suffix)}{CLEANED}"
            if self._files.exists(path):
                self._files.remove(path)
