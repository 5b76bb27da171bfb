"""Fetch 0 to 3 for consumers that know only message formats v0 and v1: stored records are converted for them.

What needs no conversion goes as it is, by ``sendfile``. Of the rest, the first batches of each partition are
converted before the reply's head is written, as it holds the sizes; what follows is converted in pieces
while the reply is being sent. So a slow reader costs few pieces of memory, whatever it asked for. What comes
after a reply, as much as that reply had, is converted while the reader is busy with it: mostly the next fetch
asks for it.

A partition's size in the reply is then that of the stored bytes, or that of the first piece when this is
larger. Where the converted records end earlier, the rest is the beginning of a message that would be longer
than what is left: consumers of those versions leave a cut message out. Where they do not end in time, the
last one is cut.

Source: KIP-283; Apache Kafka, ``LazyDownConversionRecords.java``, ``LazyDownConversionRecordsSend.java``,
``KafkaApis.scala``. Kafka converts on its network threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
import time
from typing import Any

from tidemill import _mode
from tidemill.broker.conversion import Conversions
from tidemill.broker.fetch import FetchPath, FetchRequest
from tidemill.broker.fetch_sessions import FetchPart
from tidemill.log.errors import storage_error
from tidemill.log.scan import BatchScan
from tidemill.log.segment import Slice
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.ports import File
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.net.sending import FileRange
from tidemill.records.batch import GZIP, LENGTH, LOG_OVERHEAD, MAGIC, NONE, RECORDS
from tidemill.records.compression import unpacked_bytes_bound
from tidemill.records.convert import down, whole_entries
from tidemill.replication.waiting import CONSUMER

SOURCE_BYTES = 256 * 1024
"""Stored bytes that are read for one conversion; a larger batch is read whole."""
LARGE_BATCH_FACTOR = 3
"""A larger one is converted in one go, where that makes it at most so many times as large."""
PIECE_BYTES = 256 * 1024
"""Converted bytes of a reply that are held at a time."""
AHEAD_BYTES = PIECE_BYTES + PIECE_BYTES // 2
"""With more ready than these, no piece is converted ahead of the sending."""
KEPT_BYTES = 1024 * 1024
"""With more ready than these, no piece is converted for the next fetch."""
FIRST_BYTES = 512 * 1024
"""Converted bytes of all partitions that a reply begins with, but for one batch of each."""
FIRST_BYTES_MAX = 16 * 1024 * 1024
"""With so many in large batches, the partitions that are left wait for the next request."""
INLINE_BYTES = 32 * 1024 if _mode.compiled else 2 * 1024
"""Unpacked bytes that are converted at once, in less time than a process would take to be told."""
SCAN_BYTES = 64 * 1024

CUT_MESSAGE = struct.Struct(">qi")
"""Offset -1 and a size beyond what is left: Kafka's filling of what a reply promised."""


def magic_for(version: int) -> int:
    """The newest message format that a client knows which asks with this version of Fetch."""
    return 0 if version <= 1 else 1 if version <= 3 else 2


class DownRange(File):
    """A range of a log as old consumers read it: a file that comes into being while it is sent.

    Whoever sends it reads it ahead in :attr:`executor`'s threads (:meth:`read_at`), piece by piece. While one
    is sent, the next is converted: so much is ready at most. Only those threads add to the end of what is
    held (:attr:`_held_to`), and only the one that sends takes away from its beginning (:attr:`_held_at`).
    """

    def __init__(
        self, conversions: Conversions, found: Slice, magic: int, first_offset: int, part: FetchPart
    ) -> None:
        self.conversions = conversions
        self.executor = conversions.executor
        self.file = found.file
        self.path: str = getattr(found.file, "path", "")
        self.begins_at = int(found.position)
        self.next = self.begins_at
        self.end = int(found.position + found.size)
        self.further_end = self.end
        """Where what is committed ends in the file, or an earlier position: how far may be gone on."""
        self.stored = int(found.size)
        self.magic = magic
        self.first_offset = first_offset
        self.partition = part.partition
        self.unpacked_bytes_max = UNPACKED_BYTES_MAX
        if part.partition is not None:
            self.unpacked_bytes_max = int(part.partition.limits.max_unpacked_bytes)
        self.leader_epoch = -1 if part.partition is None else int(part.partition.leader_epoch)
        self.count = 0
        """Bytes of the whole, once :meth:`begin` was called."""
        self.seconds = 0.0
        self._chunks: list[bytes] = []
        """What is converted and held, each of whole entries: from :attr:`_held_at` to :attr:`_held_to`."""
        self._held_at = 0
        self._held_to = 0
        self._lock = threading.Lock()
        self._is_done = False
        self._is_cut = False
        """Whether it ends with the beginning of a message that there is not."""
        self._is_going_ahead = False
        self._ahead_bytes = AHEAD_BYTES
        self._goes_on = False
        """The reply is sent: what follows its range may be converted, too."""

    @property
    def held(self) -> int:
        """Bytes that are converted and held."""
        return self._held_to - self._held_at

    def begin(self, bytes_max: int) -> bool:
        """Converts the first batches, up to ``bytes_max`` but one, and decides how large the whole is.

        False where no batch of the range is of a format that the reader does not know. Raises
        UNSUPPORTED_VERSION where the topic's records are not converted, and UNSUPPORTED_COMPRESSION_TYPE
        where the first batch is of zstd.
        """
        with self._lock:
            if not self._go_on_from_kept():
                if not self._needs_conversion():
                    return False
                self._check_may_convert()
                self._hold(self._convert(bytes_max))
            count = max(self.stored, len(self._chunks[0]) if self._chunks else 0)
            self.count = min(self.held, count) if self._is_done else count
        self._go_ahead(0)
        return True

    def _needs_conversion(self) -> bool:
        """Whether any batch of the range is of a format that the reader does not know.

        The first may be cut: the reader's limit does not know it. It is converted whole then.
        """
        head = self.file.read_at(self.next, MAGIC + 1)
        if len(head) > MAGIC and head[MAGIC] > self.magic:
            first = LOG_OVERHEAD + int.from_bytes(head[LENGTH : LENGTH + 4], "big", signed=True)
            self.end = max(self.end, self.next + first)
            return True
        scan = BatchScan(self.file, self.next, self.end, SCAN_BYTES)
        while scan.step():
            if scan.magic > self.magic:
                return True
        return False

    def _check_may_convert(self) -> None:
        partition = self.partition
        if partition is not None and not partition.log.config.message_downconversion_enable:
            raise KafkaError("records of this topic are not converted", ErrorCode.UNSUPPORTED_VERSION)

    # -- what is held

    def _hold(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._held_to += len(chunk)

    def is_cached(self, position: int, count: int) -> bool:
        """Whether the beginning of that part was converted."""
        return self._held_at <= position < self._held_to

    def read_at(self, position: int, count: int) -> bytes:
        """Converts on until the part is there; its beginning. Runs in a thread."""
        with self._lock:
            while not self._is_done and self._held_to < position + count:
                self._hold(self._convert(PIECE_BYTES))
            missing = position + count - self._held_to
            if missing > 0:
                self._is_cut = True
                cut = CUT_MESSAGE.pack(-1, max(self.count - self._held_to + 1, RECORDS))
                self._hold(cut[:missing].ljust(missing, b"\0"))
        chunk, begin = self._chunk_at(position)
        return chunk[begin : begin + count]

    def send_to(self, descriptor: int, position: int, count: int) -> int:
        """Sends converted bytes from there on. BlockingIOError when the socket takes none."""
        while self._held_at + len(self._chunks[0]) <= position:
            self._held_at += len(self._chunks.pop(0))
        self._go_ahead(position)
        chunk, begin = self._chunk_at(position)
        with memoryview(chunk) as view:
            sent = os.write(descriptor, view[begin : begin + count])
        if position + sent == self.count:
            self._keep()
        return sent

    def _chunk_at(self, position: int) -> tuple[bytes, int]:
        """The held bytes that hold ``position``, and where in them it is."""
        begin = position - self._held_at
        for chunk in self._chunks:
            if begin < len(chunk):
                return chunk, begin
            begin -= len(chunk)
        raise ValueError(f"byte {position} of a converted range is not held")

    def _go_ahead(self, position: int) -> None:
        """Lets the next piece be converted when little follows ``position``, unless the broker stops."""
        is_done = self._is_done and not self._goes_on
        if is_done or self._is_going_ahead or self._held_to - position > self._ahead_bytes:
            return
        self._is_going_ahead = True
        with contextlib.suppress(RuntimeError):
            self.executor.submit(self._prepare)

    def _prepare(self) -> None:
        """Converts the next pieces. What goes wrong goes wrong again when it is read."""
        try:
            with contextlib.suppress(KafkaError, OSError):
                while self._prepare_piece():
                    pass
        finally:
            self._is_going_ahead = False

    def _prepare_piece(self) -> bool:
        with self._lock:
            if self._goes_on:
                self._goes_on = False
                self.end = max(self.end, self.further_end)
                self._is_done = self.next >= self.end
            if self._is_done or self.held > self._ahead_bytes:
                return False
            self._hold(self._convert(PIECE_BYTES))
            return True

    # -- what follows the range

    def _keep(self) -> None:
        """Keeps what was converted beyond the end of the reply, and goes on, for the next fetch."""
        if self.partition is None or self._is_cut:
            return
        chunk, begin = self._chunk_at(self.count - 1)
        whole, next_offset = whole_entries(chunk, begin + 1)
        self._chunks[0] = chunk[whole:]
        self._held_at += whole
        if next_offset < 0 or self.held > KEPT_BYTES + PIECE_BYTES:
            return
        if self._is_done and not self.held and self.next >= self.further_end:
            return
        self._ahead_bytes = min(self.count, KEPT_BYTES)
        self._goes_on = True
        self.conversions.keep((self.partition, self.magic, next_offset), self)
        self._go_ahead(self._held_at)

    def _go_on_from_kept(self) -> bool:
        """Takes over what the reply before went on to convert."""
        before = self.conversions.take_kept((self.partition, self.magic, self.first_offset))
        if before is None:
            return False
        with before._lock:
            before._is_done = True
            before._goes_on = False
            if (
                before.file is not self.file
                or before.leader_epoch != self.leader_epoch
                or not self.begins_at <= before.next <= self.further_end
                or not before.held
            ):
                return False
            self._check_may_convert()
            self._chunks = [one for one in before._chunks if one]
            self._held_to = before.held
            self.next = before.next
            self.first_offset = before.first_offset
            self.end = max(self.end, self.next)
            self._is_done = self.next >= self.end
            return True

    # -- the conversion

    def _convert(self, bytes_max: int) -> bytes:
        """The next records converted, one at least. Nothing more to convert, or zstd, is the end."""
        began = time.perf_counter()
        try:
            data = self.file.read_at(self.next, min(SOURCE_BYTES, self.end - self.next))
            if len(data) >= LOG_OVERHEAD:
                first = LOG_OVERHEAD + int.from_bytes(data[LENGTH : LENGTH + 4], "big", signed=True)
                if len(data) < first <= self.end - self.next:
                    data = self.file.read_at(self.next, first)
                    # Else each piece would be searched for in the batch from its beginning.
                    bytes_max = max(bytes_max, LARGE_BATCH_FACTOR * first)
            made, next_offset, taken, count = self._down(data, bytes_max)
            self.next += taken
            if next_offset >= 0:
                self.first_offset = next_offset
            self._is_done = next_offset < 0 or self.next >= self.end
            if self.partition is not None:
                self.partition.fetch_conversions += count
        except KafkaError as error:
            is_first = not self.held and not self._held_at
            if error.code != ErrorCode.UNSUPPORTED_COMPRESSION_TYPE or is_first:
                raise
            self._is_done = True
            return b""
        finally:
            self.seconds += time.perf_counter() - began
        return made

    def _down(self, data: bytes, bytes_max: int) -> tuple[bytes, int, int, int]:
        if unpacked_bound(data) <= INLINE_BYTES:
            made = down(data, 0, len(data), self.magic, self.first_offset, bytes_max, self.unpacked_bytes_max)
            return made.data, int(made.next_offset), int(made.next_position), int(made.record_count)
        result: tuple[bytes, int, int, int] = self.conversions.call(
            "down", len(data), data, self.magic, self.first_offset, bytes_max, self.unpacked_bytes_max
        )
        return result


def unpacked_bound(data: bytes) -> int:
    """A size that the whole batches in ``data`` cannot exceed when they are unpacked."""
    total = 0
    position = 0
    while position + RECORDS <= len(data):
        size = LOG_OVERHEAD + int.from_bytes(data[position + LENGTH : position + LENGTH + 4], "big")
        magic = data[position + 16]
        codec = data[position + 22] & 7 if magic == 2 else data[position + 17] & 7
        end = position + size
        total += size
        if end > len(data) or total > INLINE_BYTES:
            break
        if codec != NONE and magic == 2:
            try:
                total += int(unpacked_bytes_bound(codec, data, position + RECORDS, end))
            except KafkaError:
                break
        elif codec != NONE:
            total += size * (1032 if codec == GZIP else 255)
        position = end
    return total


def further_end(part: FetchPart, found: Slice) -> int:
    """Where in its file a range ends that goes on behind ``found``, for as much again."""
    end = int(found.position + found.size)
    partition = part.partition
    if partition is None:
        return end
    with contextlib.suppress(KafkaError):
        further = partition.read(part.offset, 2 * found.size, partition.limit_offset(CONSUMER, 0), False)
        if further is not None and further.file is found.file:
            return max(end, int(further.position + further.size))
    return end


class DownConversion:
    """Takes over fetches of old versions from the compiled way, and gives them back with what to send."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conversions: Conversions) -> None:
        self.loop = loop
        self.conversions = conversions
        self.tasks: set[asyncio.Task[None]] = set()
        self.turn = 0
        """Where a reply that cannot begin with all of its partitions begins."""

    def __call__(self, path: FetchPath, request: FetchRequest) -> bool:
        """Whether ``request`` is answered later; False when what was found can be sent as it is."""
        parts = [one for one in request.parts if one.slice is not None and one.slice.size > 0]
        if not parts:
            return False
        if request.reply is None:
            request.reply = request.connection.reply_later()
        task = self.loop.create_task(self.run(path, request, parts))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return True

    async def run(self, path: FetchPath, request: FetchRequest, parts: list[FetchPart]) -> None:
        """One request, from what was found to its answer."""
        connection = request.connection
        magic = magic_for(int(request.version))
        seconds = 0.0
        held = 0
        share = max(FIRST_BYTES // len(parts), 1)
        self.turn += 1
        begin = self.turn % len(parts)
        try:
            for part in (*parts[begin:], *parts[:begin]):
                found = part.slice
                if found is None or connection.closed:
                    continue
                if held > FIRST_BYTES_MAX:
                    part.slice = None
                    continue
                made = await self.begin(part, found, magic, share)
                if made is not None:
                    seconds += made.seconds
                    held += made.held
            if seconds:
                self.conversions.note("Fetch", seconds)
            if connection.closed:
                request.let_go()
            else:
                path.finish(request)
        except Exception as problem:  # noqa: BLE001 - reported, and only this connection ends
            connection.crash(problem)

    async def begin(self, part: FetchPart, found: Slice, magic: int, share: int) -> DownRange | None:
        """Puts the converted range of one partition in the place of the stored one, where that is needed."""
        made = DownRange(self.conversions, found, magic, int(part.offset), part)
        made.further_end = further_end(part, found)
        try:
            if not await self.loop.run_in_executor(self.conversions.executor, made.begin, share):
                return None
        except KafkaError as error:
            part.fail(error.code)
            return None
        except OSError as problem:
            part.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            if part.partition is not None:
                failure = storage_error("read", made.path, problem)
                part.partition.events.storage_trouble(part.partition, failure)
            return None
        part.slice = Slice(made, 0, made.count, False) if made.count > 0 else None
        return made

    def in_pieces(self, reply: list[Any]) -> list[Any]:
        """The reply with its converted ranges cut: no more than a piece is made ahead of its sending."""
        pieces: list[Any] = []
        for one in reply:
            if isinstance(one, FileRange) and isinstance(one.file, DownRange):
                position, left = one.position, one.count
                while left > 0:
                    count = min(left, PIECE_BYTES)
                    pieces.append(FileRange(one.file, position, count, True))
                    position += count
                    left -= count
            else:
                pieces.append(one)
        return pieces

    async def stop(self) -> None:
        """Gives up what is under way."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
