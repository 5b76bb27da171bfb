"""Copies a range of offsets to a mirror: the batches as they are stored, with their offsets.

The copy continues at the log end of the target, so that a repeated task, or two tasks at once, append each
batch once. A few requests are in flight; the leader refuses a batch after one that it has not stored. Entries
of message formats v0 and v1 do not have the gap before them: they are sent once no request is in flight.
Where the source has no batch up to its end, batches without records fill the mirror.

The last batch of the target is compared with the source's before the copy, and again where the leader epoch
of the source's batches grows: another leader may have lost records that were copied already.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidemill.client.connection import InFlightRequest
from tidemill.client.errors import ClientError, DataLoss
from tidemill.client.mirror_appender import MirrorAppender
from tidemill.client.range_reader import RangeReader
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.records.batch import (
    ATTRIBUTES,
    CONTROL_FLAG,
    CURRENT_MAGIC,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    parse_batch,
    whole_batch_size,
)
from tidemill.records.mirrored_batch import as_mirrored, empty_batches, mirrored_batches
from tidemill.records.record_reader import read_records

IN_FLIGHT_MAX: Final = 3
"""Requests in flight: while the target replicates one, the next is sent and another one is read."""
STALLED_S: Final = 20.0
"""How long a copy tries without progress. It ends then, and the next micro-batch continues."""
PAUSE_S: Final = 0.2
NO_EPOCH: Final = -1
REFUSED: Final = (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_RECORD)
"""Errors of a topic of the target that was promoted: it refuses batches of another cluster, and entries of
message formats v0 and v1, which do not show that they are of one. From a mirror they are final."""
LEFT_TO_PLANNING: Final = (
    *REFUSED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_TXN_STATE,
)
"""Errors of a topic of the target that was deleted or promoted: an ordinary topic also refuses batches of
transactions of another cluster."""

_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


class SourceDiverged(DataLoss):
    """The source has other records at the offsets of its mirror."""


@dataclass(frozen=True)
class CopyRange:
    """A range to copy: the batches of a source's partition up to ``end`` (exclusive)."""

    topic: str
    target_topic: str
    partition: int
    end: int
    topic_id: bytes | None = None
    is_compacted: bool = False
    """Whether compaction removes records of the source."""


@dataclass
class Copied:
    """The result of a copy. ``end`` is the log end of the target; ``problem`` the reason if it is too low,
    and ``code`` its error code.
    """

    end: int = -1
    records: int = 0
    bytes: int = 0
    timestamp_ms: int = -1
    """The largest timestamp of the last batch."""
    problem: str = ""
    code: int = 0


class BatchCounts(NamedTuple):
    """Batches of a response: the offset after them, their records, and the last one's largest timestamp."""

    next_offset: int
    records: int
    timestamp_ms: int
    first_epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    """The leader epochs of the first and the last batch of format v2, at the source."""
    has_old: bool = False
    """Whether there are entries of message format v0 or v1."""


def count_batches(data: bytes, start: int, end: int, expected: int) -> BatchCounts:
    """Counts the whole batches in ``data[start:end]`` that end at ``expected`` or above.

    An entry of message format v0 or v1 counts as one record; control batches have none.
    """
    records, timestamp_ms, has_old = 0, -1, False
    first_epoch = last_epoch = NO_EPOCH
    while end - start > MAGIC:
        size = _I32.unpack_from(data, start + LENGTH)[0] + LOG_OVERHEAD
        if size > end - start:
            break
        last = _I64.unpack_from(data, start)[0]
        is_old = data[start + MAGIC] < CURRENT_MAGIC
        if not is_old:
            last += _I32.unpack_from(data, start + LAST_OFFSET_DELTA)[0]
        if last >= expected:
            expected = last + 1
            if is_old:
                records += 1
                has_old = True
            else:
                last_epoch = _I32.unpack_from(data, start + LEADER_EPOCH)[0]
                first_epoch = last_epoch if first_epoch == NO_EPOCH else first_epoch
                timestamp_ms = _I64.unpack_from(data, start + MAX_TIMESTAMP)[0]
                if not _I16.unpack_from(data, start + ATTRIBUTES)[0] & CONTROL_FLAG:
                    records += _I32.unpack_from(data, start + RECORD_COUNT)[0]
        start += size
    return BatchCounts(expected, records, timestamp_ms, first_epoch, last_epoch, has_old)


@dataclass(frozen=True)
class SentBatches:
    """Batches in a request that is in flight."""

    request: InFlightRequest
    size: int
    counts: BatchCounts


def batch_before(reader: RangeReader, item: TopicPartition, end: int) -> bytes | None:
    """Returns the batch with the record before ``end``.

    None if the log has no such batch: its records were deleted or compacted, or the offset is in a gap.
    """
    try:
        for response in reader.fetch(item.topic, item.partition, end - 1, end, bytes_max=1):
            data, at = response.data, response.start
            size = whole_batch_size(data, at, response.end)
            if size == 0 or _I64.unpack_from(data, at)[0] >= end:
                return None
            if data[at + MAGIC] == CURRENT_MAGIC and _I32.unpack_from(data, at + RECORD_COUNT)[0] == 0:
                return None
            return data[at : at + size]
    except DataLoss:
        pass
    return None


def may_be_same(here: bytes, there: bytes, *, is_compacted: bool) -> bool:
    """Whether two stored batches at the same offsets can be copies of one batch.

    Their leader epochs differ. Compaction removes records, at both clusters independently, and keeps the
    offsets and the producer: the records that both have must be the same.
    """
    if here[:LEADER_EPOCH] + here[MAGIC:] == there[:LEADER_EPOCH] + there[MAGIC:]:
        return True
    if min(here[MAGIC], there[MAGIC]) < CURRENT_MAGIC:
        return is_compacted
    batches = [parse_batch(data, 0, len(data)) for data in (here, there)]
    first, second = (
        (one.base_offset, one.last_offset, one.producer_id, one.producer_epoch, one.base_sequence)
        for one in batches
    )
    if first != second:
        return False
    try:
        records, others = (
            {one.offset: (one.key, one.value, one.headers) for one in read_records(batch, UNPACKED_BYTES_MAX)}
            for batch in batches
        )
    except KafkaError:
        return is_compacted
    common = records.keys() & others.keys()
    return all(records[offset] == others[offset] for offset in common) and (bool(common) or is_compacted)


class RangeCopy:
    """The copy of one range. ``mirror`` reads the target, to compare its last batch with the source's."""

    def __init__(
        self, source: RangeReader, mirror: RangeReader, target: MirrorAppender, span: CopyRange
    ) -> None:
        self._source = source
        self._mirror = mirror
        self._target = target
        self._span = span
        self._item = TopicPartition(span.target_topic, span.partition)
        self._in_flight: deque[SentBatches] = deque()
        self.result = Copied()

    def run(self, stalled_s: float = STALLED_S) -> Copied:
        """Copies the range, or as much as is possible. Raises ClientError for an error that would stay."""
        deadline = time.monotonic() + stalled_s
        while True:
            try:
                position = self._target.log_end(self._item)
                if position >= self._span.end:
                    self.result.end, self.result.problem, self.result.code = position, "", 0
                    return self.result
                if position > self.result.end:
                    self.result.end, deadline = position, time.monotonic() + stalled_s
                elif time.monotonic() >= deadline:
                    return self.result
                else:
                    time.sleep(PAUSE_S)
                self._copy_from(position, self._compare_last(position))
            except ClientError as problem:
                self._in_flight.clear()
                self.result.problem, self.result.code = self._text_of(problem), int(problem.code)
                if not self._may_continue(problem):
                    return self.result
                if time.monotonic() >= deadline:
                    return self.result
                time.sleep(PAUSE_S)

    def _text_of(self, problem: ClientError) -> str:
        """Returns the text of an error; with the offset and the next step if the target refuses batches."""
        if problem.code != ErrorCode.INVALID_RECORD:
            return str(problem)
        span = self._span
        offset = max(0, self.result.end)
        return (
            f"{problem}. The target refuses what {span.topic}-{span.partition} of the source has from offset "
            f"{offset} on, or a little later, for its mirror {self._item}. Read it at the source ('tidemill "
            f"consume {span.topic} -p {span.partition} --offset {offset} -n 1'): if it is damaged, deny the "
            "topic, or delete the mirror in the target and copy the records with --offsets new"
        )

    def _may_continue(self, problem: ClientError) -> bool:
        """Whether another attempt may succeed at once. Raises an error that would stay.

        The next plan handles a log start or log end of the source that has changed, and a topic of the
        target that was deleted or promoted.
        """
        if isinstance(problem, SourceDiverged):
            raise problem
        if isinstance(problem, DataLoss) or problem.code in LEFT_TO_PLANNING:
            return False
        if problem.retriable or problem.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return True
        raise problem

    def _compare_last(self, position: int) -> int:
        """Raises SourceDiverged if the source has another batch at the end of the mirror, while it is one.

        Returns the leader epoch of the source's batch, or NO_EPOCH.
        """
        if position == 0:
            return NO_EPOCH
        item = TopicPartition(self._span.topic, self._span.partition)
        here = batch_before(self._source, item, position)
        if here is None:
            return NO_EPOCH
        there = batch_before(self._mirror, self._item, position)
        if there is not None and not may_be_same(here, there, is_compacted=self._span.is_compacted):
            self._refuse_promoted(there)
            raise SourceDiverged(
                f"the source {item} has another batch before offset {position} than its mirror {self._item}: "
                "the source has lost records and got others (an unclean election, or a disk that was "
                "restored), or is another topic. Promote the mirror to keep what it has, or delete it in the "
                "target to copy the source anew",
                topic=item.topic,
                partition=item.partition,
            )
        return NO_EPOCH if here[MAGIC] < CURRENT_MAGIC else int(_I32.unpack_from(here, LEADER_EPOCH)[0])

    def _refuse_promoted(self, last: bytes) -> None:
        """Raises an error of LEFT_TO_PLANNING for a mirror that is promoted, which has records of its own.

        A mirror skips the batch that it has; a topic that is none, or that is promoted, refuses it.
        """
        if last[MAGIC] == CURRENT_MAGIC:
            self._target.wait(self._item, self._target.send(self._item, as_mirrored(last, 0)))

    def _copy_from(self, position: int, epoch: int) -> None:
        """Copies from ``position`` on. ``epoch`` is the source's leader epoch of the batch before it."""
        span = self._span
        for response in self._source.fetch(
            span.topic, span.partition, position, span.end, topic_id=span.topic_id
        ):
            counts = count_batches(response.data, response.start, response.end, position)
            if counts.first_epoch > epoch >= 0:
                self._wait_for_all()
                self._compare_last(position)
            batches = mirrored_batches(response.records(), position)
            position, epoch = counts.next_offset, max(epoch, counts.last_epoch)
            if not batches:
                continue
            if counts.has_old:
                self._wait_for_all()
            self._in_flight.append(SentBatches(self._target.send(self._item, batches), len(batches), counts))
            if counts.has_old:
                self._wait_for_all()
            while len(self._in_flight) >= IN_FLIGHT_MAX:
                self._wait_for_first()
        self._wait_for_all()
        if position < span.end:
            # The source has no batch up to its end: compaction has removed the last one.
            filled = empty_batches(position, span.end)
            self._target.wait(self._item, self._target.send(self._item, filled))

    def _wait_for_all(self) -> None:
        while self._in_flight:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        sent = self._in_flight.popleft()
        self._target.wait(self._item, sent.request)
        self.result.records += sent.counts.records
        self.result.bytes += sent.size
        self.result.timestamp_ms = sent.counts.timestamp_ms
