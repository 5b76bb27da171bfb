"""Encodes Fetch responses as bytes and ranges of log files. Compiled.

The layout is in :mod:`tidemill.wire.fetch_layout`. The encoder does not read records.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be
from mypy_extensions import i16, i32, i64

from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.log.log_segment import LogRange
from tidemill.net.send_queue import FileRange, ResponsePart
from tidemill.replication.partition import Partition
from tidemill.replication.read_limits import READ_COMMITTED
from tidemill.wire.fetch_layout import (
    BY_ID,
    FLEXIBLE,
    FetchRequest,
    write_fetched,
    write_fetched_tags,
    write_response_head,
)
from tidemill.wire.header import FRAME_BYTES_MAX
from tidemill.wire.hot_path_codec import known_error, set_i32, write_count, write_topic_key

STORAGE_ERROR_FROM: Final = 6
NO_ABORTED_TRANSACTIONS: Final[list[tuple[int, int]]] = []


def encode_head(request: FetchRequest, error: i16, session_id: i32) -> BytesWriter:
    """Writes the header and the fields before the topics. :func:`with_size` sets the size at the end."""
    out = BytesWriter()
    write_i32_be(out, 0)
    write_i32_be(out, request.correlation_id)
    if request.version >= FLEXIBLE:
        out.append(0)
    write_response_head(out, request.version, error, session_id)
    return out


def encode_error(request: FetchRequest, error: i16) -> bytes:
    """Returns a response with an error of the session and no topics."""
    out = encode_head(request, error, 0)
    flexible = request.version >= FLEXIBLE
    write_count(out, 0, flexible)
    if flexible:
        out.append(0)
    set_i32(out, 0, len(out) - 4)
    return out.getvalue()


def count_topics(partitions: list[FetchPartitionData]) -> i64:
    """Returns the number of runs of partitions with the same topic."""
    count: i64 = 0
    key = b""
    for data in partitions:
        if count == 0 or data.requested.key != key:
            key = data.requested.key
            count += 1
    return count


class FetchEncoder:
    """Encodes a response, some partitions at a time, as an alternation of bytes and file ranges."""

    def __init__(self, request: FetchRequest, session_id: i32, partitions: list[FetchPartitionData]) -> None:
        self.request = request
        self.partitions = partitions
        self.flexible = request.version >= FLEXIBLE
        self.pieces: list[ResponsePart] = []
        """The response, once :meth:`run` has returned True."""
        self.out = encode_head(request, 0, session_id)
        write_count(self.out, count_topics(partitions), self.flexible)
        self.size: i64 = 0
        """The bytes of ``pieces``."""
        self.index: i64 = 0
        self.run_end: i64 = 0
        """The index after the last partition of the current topic."""

    def run(self, count: i64) -> bool:
        """Encodes the next ``count`` partitions. Returns whether the response is complete."""
        request, partitions, flexible = self.request, self.partitions, self.flexible
        version = request.version
        out = self.out
        index = self.index
        run = self.run_end
        total: i64 = len(partitions)
        end = total if total - index <= count else index + count
        while index < end:
            if index == run:
                key = partitions[index].requested.key
                while run < total and partitions[run].requested.key == key:
                    run += 1
                write_topic_key(out, key, flexible, version >= BY_ID)
                write_count(out, run - index, flexible)
            data = partitions[index]
            encode_partition(out, data, request)
            log_range = data.log_range
            if log_range is not None and log_range.size > 0:
                self.pieces.append(out.getvalue())
                self.size += len(out) + log_range.size
                out = BytesWriter()
                self.pieces.append(file_range(data.partition, log_range))
            if flexible:
                write_fetched_tags(out, data.diverging_epoch)
            index += 1
            if index == run and flexible:
                out.append(0)
        self.out = out
        self.index = index
        self.run_end = run
        if index < total:
            return False
        if flexible:
            out.append(0)
        self.pieces.append(out.getvalue())
        self.size += len(out)
        with_size(self.pieces, self.size - 4)
        return True


def encode_partition(out: BytesWriter, data: FetchPartitionData, request: FetchRequest) -> None:
    """Writes one partition up to its records. The aborted transactions are null unless READ_COMMITTED."""
    version = request.version
    aborted = data.aborted
    if aborted is None and request.isolation == READ_COMMITTED:
        aborted = NO_ABORTED_TRANSACTIONS
    log_range = data.log_range
    write_fetched(
        out,
        version,
        data.requested.index,
        known_error(data.error, version, STORAGE_ERROR_FROM),
        data.high_watermark,
        data.last_stable_offset,
        data.log_start_offset,
        aborted,
        data.preferred_replica,
        0 if log_range is None else log_range.size,
    )


def with_size(pieces: list[ResponsePart], size: i64) -> list[ResponsePart]:
    """Sets the size at the start of the response. Raises RuntimeError if it exceeds the limit of a frame."""
    if size > FRAME_BYTES_MAX:
        raise RuntimeError(f"a fetch response of {size} bytes is larger than a frame")
    first = pieces[0]
    if not isinstance(first, bytes):
        raise RuntimeError("a fetch response begins with a range of a file")
    head = BytesWriter()
    write_i32_be(head, i32(size))
    head.write(first[4:])
    pieces[0] = head.getvalue()
    return pieces


def file_range(partition: Partition | None, found: LogRange) -> FileRange:
    """Returns the range to send. It is cold unless its records were appended recently."""
    if partition is not None:
        partition.bytes_out += found.size
    return FileRange(found.file, found.position, found.size, not found.recent, partition)
