"""Gives out what the fetcher has brought: as records, or as Arrow tables.

Chunks are given out in the order in which they came. What the user has sought away from is dropped; what
is paused waits in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.client.fetcher import Fetcher, Place
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
    """All records that are there, as a table of batches of up to ``bytes_max``; None without any."""
    chunks = []
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

    tables = []
    for chunk, place in chunks:
        for batch in chunk.arrow(include_headers, bytes_max):
            count = batch.num_rows
            columns = [
                pa.repeat(pa.scalar(chunk.item.topic, pa.string()), count),
                pa.repeat(pa.scalar(chunk.item.partition, pa.int32()), count),
                *batch.columns,
            ]
            tables.append(
                pa.RecordBatch.from_arrays(columns, names=["topic", "partition", *batch.schema.names])
            )
        place.offset = chunk.next_offset
    return pa.Table.from_batches(tables) if tables else None
