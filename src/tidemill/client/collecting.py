"""Gives out what the fetcher has brought: as records, or as Arrow tables.

Chunks are given out in the order in which they came. What the user has sought away from is dropped; what
is paused waits in its place.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tidemill.client.chunks import Chunk
from tidemill.client.fetcher import Fetcher, Place
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.reader import Record

if TYPE_CHECKING:
    import pyarrow as pa


def collect(
    fetcher: Fetcher, places: dict[TopicPartition, Place], count: int
) -> dict[TopicPartition, list[Record]]:
    """Up to ``count`` records by partition, from the chunks in their order; none of those that are paused.

    A record that cannot be read raises once those before it have been given out.
    """
    result: dict[TopicPartition, list[Record]] = {}
    chunks = fetcher.chunks
    turns = len(chunks)
    while chunks and count > 0 and turns > 0:
        turns -= 1
        chunk = chunks[0]
        place = places.get(chunk.item)
        if place is None or place.offset != chunk.next_offset:
            chunks.popleft()
            continue
        if place.paused:
            chunks.rotate(-1)
            continue
        try:
            records = chunk.take(count)
        except Exception:
            if result:
                return result
            chunks.popleft()
            raise
        place.offset = chunk.next_offset
        if records:
            result.setdefault(chunk.item, []).extend(records)
            count -= len(records)
        if chunk.exhausted:
            chunks.popleft()
    if result:
        fetcher.send()
    return result


def collect_arrow(
    fetcher: Fetcher, places: dict[TopicPartition, Place], include_headers: bool, bytes_max: int
) -> pa.Table | None:
    """All records that are there, as a table of batches of up to ``bytes_max``; None without any.

    A batch that cannot be read raises once those of the chunks before it have been given out.
    """
    chunks: deque[tuple[Chunk, Place]] = deque()
    ahead: dict[TopicPartition, int] = {}
    for _ in range(len(fetcher.chunks)):
        chunk = fetcher.chunks.popleft()
        place = places.get(chunk.item)
        if place is None or place.offset != chunk.next_offset:
            continue
        if place.paused:
            fetcher.chunks.append(chunk)
            continue
        chunks.append((chunk, place))
        ahead[chunk.item] = chunk.end_offset
    if not chunks:
        return None
    fetcher.send(ahead)
    import pyarrow as pa

    tables: list[pa.RecordBatch] = []
    ends: list[tuple[Place, int]] = []
    failure: KafkaError | None = None
    while chunks and failure is None:
        chunk, place = chunks.popleft()
        try:
            tables.extend(_placed(batch, chunk.item) for batch in chunk.arrow(include_headers, bytes_max))
        except KafkaError as problem:
            failure = problem
            if tables:
                chunks.appendleft((chunk, place))  # The next call raises it, with nothing to give out before.
        ends.append((place, chunk.next_offset))
    fetcher.chunks.extendleft(chunk for chunk, _ in reversed(chunks))
    # Not before all are unpacked: what another exception takes is fetched again.
    for place, offset in ends:
        place.offset = offset
    if tables:
        return pa.Table.from_batches(tables)
    if failure is not None:
        raise failure
    return None


def _placed(batch: pa.RecordBatch, item: TopicPartition) -> pa.RecordBatch:
    """The records with two columns before them: the topic and the partition."""
    import pyarrow as pa

    columns = [
        pa.repeat(pa.scalar(item.topic, pa.string()), batch.num_rows),
        pa.repeat(pa.scalar(item.partition, pa.int32()), batch.num_rows),
        *batch.columns,
    ]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "partition", *batch.schema.names])
