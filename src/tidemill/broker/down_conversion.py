"""Fetch 0 to 3 for consumers that know only message formats v0 and v1: stored records are converted for them.

Records that need no conversion are sent from the file. Of the others, the first batches of each partition are
converted before the head of the response is written, which holds the sizes. The rest is converted in pieces
while the response is sent. A slow reader therefore costs one piece of memory, whatever it requested.

The size of a partition in the response is that of the stored bytes, or that of the first piece if this is
larger. If the converted records are smaller, the response ends with the beginning of a message that never
becomes complete: consumers of those versions ignore it. If they are larger, the last message is cut.

Source: KIP-283; Apache Kafka, ``LazyDownConversionRecords.java``, ``LazyDownConversionRecordsSend.java``,
``KafkaApis.scala``. Kafka converts on its network threads.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time

from tidemill import _build_mode
from tidemill.broker.conversion_jobs import DownConversionJob
from tidemill.broker.conversion_workers import ConversionWorkers
from tidemill.broker.delayed_fetch import DelayedFetch
from tidemill.broker.fetch_handler import DownConverter
from tidemill.broker.fetch_partition_data import FetchPartitionData
from tidemill.log.batch_scan import BatchScan
from tidemill.log.errors import storage_error
from tidemill.log.log_segment import LogRange
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.system_interfaces import File
from tidemill.model.task_set import TaskSet
from tidemill.net.send_queue import FileRange, ResponsePart
from tidemill.records.batch import LOG_OVERHEAD, MAGIC, RECORDS, size_of_batch
from tidemill.records.format_conversion import Converted, unpacked_bytes_max
from tidemill.replication.partition import Partition

SOURCE_BYTES = 256 * 1024
"""Stored bytes that are read for one conversion. A larger batch is read as a whole."""
LARGE_BATCH_FACTOR = 3
"""A larger batch is converted at once, as long as the result has at most this multiple of its size."""
PIECE_BYTES = 256 * 1024
"""Converted bytes of a response in one piece."""
FIRST_BYTES = 512 * 1024
"""Converted bytes of all partitions before the head of a response, not counting one batch of each
partition."""
FIRST_BYTES_MAX = 16 * 1024 * 1024
"""If large batches exceed this, the remaining partitions are left for the next request."""
INLINE_BYTES = 32 * 1024 if _build_mode.compiled else 2 * 1024
"""Unpacked bytes that a thread converts itself, in less time than the messages to a process would take."""
SCAN_BYTES = 64 * 1024

CUT_MESSAGE = struct.Struct(">qi")
"""Offset -1 and a size that exceeds the rest: fills the announced size of a partition, as Kafka does."""


def magic_for(version: int) -> int:
    """Returns the newest message format that a client with this version of Fetch knows."""
    return 0 if version <= 1 else 1 if version <= 3 else 2


class DownRange(File):
    """A range of a log as old consumers read it: a file that is converted while it is sent.

    The sender reads each piece first (:meth:`read_at`), in a thread of :attr:`executor`, and sends it then.
    """

    def __init__(
        self,
        conversions: ConversionWorkers,
        found: LogRange,
        magic: int,
        first_offset: int,
        partition: Partition,
    ) -> None:
        self.conversions = conversions
        self.executor = conversions.executor
        self.file = found.file
        self.path = found.file.path
        self.next = int(found.position)
        self.end = int(found.position + found.size)
        self.stored = int(found.size)
        self.magic = magic
        self.first_offset = first_offset
        self.partition = partition
        self.unpacked_bytes_max = int(partition.validation_limits.unpacked_bytes_max)
        self.count = 0
        """The size of the range in the response, after :meth:`begin`."""
        self.seconds = 0.0
        self._chunks: list[bytes] = []
        """The converted bytes in memory, each of whole entries: from :attr:`_held_at` to :attr:`_held_to`."""
        self._held_at = 0
        self._held_to = 0
        self._is_done = False

    @property
    def held(self) -> int:
        """The converted bytes that are not sent yet."""
        return self._held_to - self._held_at

    def begin(self, bytes_max: int) -> bool:
        """Converts the first batches, at least one and up to ``bytes_max``. Sets the size of the range.

        Returns False if the client knows the format of all batches. Raises UNSUPPORTED_VERSION if the topic
        disables down-conversion, and UNSUPPORTED_COMPRESSION_TYPE if the first batch is compressed with zstd.
        """
        if not self._needs_conversion():
            return False
        if not self.partition.log.config.message_downconversion_enable:
            raise KafkaError(
                f"{self.partition.topic} has records in a newer message format than v{self.magic}, and has "
                "message.downconversion.enable=false: upgrade the consumer, or enable the conversion",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        self._hold(self._convert(bytes_max))
        self.count = self.held if self._is_done else max(self.stored, self.held)
        return True

    def _needs_conversion(self) -> bool:
        """Whether any batch of the range has a format that the client does not know.

        The range may end within its first batch, which is larger than the client's limit. It is converted as
        a whole.
        """
        head = self.file.read_at(self.next, MAGIC + 1)
        if len(head) > MAGIC and head[MAGIC] > self.magic:
            self.end = max(self.end, self.next + int(size_of_batch(head)))
            return True
        scan = BatchScan(self.file, self.next, self.end, SCAN_BYTES)
        while scan.step():
            if scan.magic > self.magic:
                return True
        return False

    # -- converted bytes

    def _hold(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._held_to += len(chunk)

    def is_cached(self, position: int, count: int) -> bool:
        """Whether the beginning of that part is converted."""
        return self._held_at <= position < self._held_to

    def read_at(self, position: int, count: int) -> bytes:
        """Converts records until the part is there; returns its beginning. Runs in a thread."""
        while not self._is_done and self._held_to < position + count:
            self._hold(self._convert(min(PIECE_BYTES, self.count - self._held_to)))
        missing = position + count - self._held_to
        if missing > 0:
            cut = CUT_MESSAGE.pack(-1, max(self.count - self._held_to + 1, RECORDS))
            self._hold(cut[:missing].ljust(missing, b"\0"))
        chunk, begin = self._chunk_at(position)
        return chunk[begin : begin + count]

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        """Sends converted bytes from ``position`` on. Raises BlockingIOError if the socket buffer is full."""
        while self._held_at + len(self._chunks[0]) <= position:
            self._held_at += len(self._chunks.pop(0))
        chunk, begin = self._chunk_at(position)
        with memoryview(chunk) as view:
            return os.write(descriptor, view[begin : begin + count])

    def _chunk_at(self, position: int) -> tuple[bytes, int]:
        """Returns the chunk that contains ``position``, and the position in the chunk."""
        begin = position - self._held_at
        for chunk in self._chunks:
            if begin < len(chunk):
                return chunk, begin
            begin -= len(chunk)
        raise ValueError(f"byte {position} of a converted range is not in memory")

    # -- the conversion

    def _convert(self, bytes_max: int) -> bytes:
        """Converts the next records, at least one.

        Sets ``_is_done`` at the end of the range, or at a zstd batch.
        """
        began = time.perf_counter()
        try:
            data = self.file.read_at(self.next, min(SOURCE_BYTES, self.end - self.next))
            if len(data) >= LOG_OVERHEAD:
                first = int(size_of_batch(data))
                if len(data) < first <= self.end - self.next:
                    data = self.file.read_at(self.next, first)
                    # Otherwise each piece would search the batch from its beginning.
                    bytes_max = max(bytes_max, LARGE_BATCH_FACTOR * first)
            made = self._down(data, bytes_max)
            self.next += made.next_position
            if made.next_offset >= 0:
                self.first_offset = made.next_offset
            self._is_done = made.next_offset < 0 or self.next >= self.end
            self.partition.fetch_conversions += made.record_count
        except KafkaError as error:
            is_first = not self.held and not self._held_at
            if error.code != ErrorCode.UNSUPPORTED_COMPRESSION_TYPE or is_first:
                raise
            self._is_done = True
            return b""
        finally:
            self.seconds += time.perf_counter() - began
        return made.data

    def _down(self, data: bytes, bytes_max: int) -> Converted:
        job = DownConversionJob(
            data=data,
            magic=self.magic,
            first_offset=self.first_offset,
            bytes_max=bytes_max,
            unpacked_bytes_max=self.unpacked_bytes_max,
        )
        is_small = unpacked_bytes_max(data, INLINE_BYTES) <= INLINE_BYTES
        return job.run() if is_small else self.conversions.call(job)


class DownConversion(DownConverter):
    """Converts the results of fetches of old versions, before their responses are built."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conversions: ConversionWorkers) -> None:
        self.loop = loop
        self.conversions = conversions
        self.tasks = TaskSet(loop)
        self.turn = 0
        """Rotates the partition with which a response begins that cannot begin with all of them."""

    def convert(self, fetch: DelayedFetch) -> bool:
        """Starts the conversion of the results of ``fetch``. Returns False if there are no records."""
        found = [
            one for one in fetch.results.partitions if one.log_range is not None and one.log_range.size > 0
        ]
        if not found:
            return False
        if fetch.reply is None:
            fetch.reply = fetch.connection.respond_later()
        self.tasks.start(self.run(fetch, found))
        return True

    async def run(self, fetch: DelayedFetch, parts: list[FetchPartitionData]) -> None:
        """Converts the results of one fetch, and has its response sent."""
        connection = fetch.connection
        magic = magic_for(int(fetch.request.version))
        seconds = 0.0
        held = 0
        share = max(FIRST_BYTES // len(parts), 1)
        self.turn += 1
        begin = self.turn % len(parts)
        try:
            for part in (*parts[begin:], *parts[:begin]):
                found = part.log_range
                if found is None or connection.closed:
                    continue
                if held > FIRST_BYTES_MAX:
                    part.log_range = None
                    continue
                made = await self.begin(part, found, magic, share)
                if made is not None:
                    seconds += made.seconds
                    held += made.held
            if seconds:
                self.conversions.record_time("Fetch", seconds)
            if connection.closed:
                fetch.drop()
            else:
                fetch.completion.send_results(fetch)
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            connection.crash(problem)

    async def begin(
        self, part: FetchPartitionData, found: LogRange, magic: int, share: int
    ) -> DownRange | None:
        """Replaces the range of one partition by the converted one. Returns None without a conversion."""
        partition = part.partition
        if partition is None:
            raise RuntimeError("a range of a log was found without its partition")
        made = DownRange(self.conversions, found, magic, int(part.requested.offset), partition)
        try:
            if not await self.loop.run_in_executor(self.conversions.executor, made.begin, share):
                return None
        except KafkaError as error:
            part.fail(error.code)
            return None
        except OSError as problem:
            part.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            partition.events.on_storage_error(partition, storage_error("read", made.path, problem))
            return None
        part.log_range = LogRange(made, 0, made.count, False) if made.count > 0 else None
        return made

    def in_pieces(self, response: list[ResponsePart]) -> list[ResponsePart]:
        """Splits the converted ranges of a response into pieces. Each is converted when it is sent."""
        pieces: list[ResponsePart] = []
        for one in response:
            if isinstance(one, FileRange) and isinstance(one.file, DownRange):
                position, left = one.position, one.count
                while left > 0:
                    count = min(left, PIECE_BYTES)
                    pieces.append(FileRange(one.file, position, count, True, one.owner))
                    position += count
                    left -= count
            else:
                pieces.append(one)
        return pieces

    async def stop(self) -> None:
        """Cancels running conversions."""
        await self.tasks.cancel()
