"""Returns the fetched records to the user, as records or as Arrow tables.

Chunks are returned in the order in which they arrived. Chunks of a partition whose position the user changed
are dropped; chunks of a paused partition are kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tidemill.client.completed_fetch import CompletedFetch
from tidemill.client.fetcher import Fetcher, PartitionPosition
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.record_reader import Record

if TYPE_CHECKING:
    import pyarrow as pa


def collect(
    fetcher: Fetcher, positions: dict[TopicPartition, PartitionPosition], count: int
) -> dict[TopicPartition, list[Record]]:
    """Returns up to ``count`` records by partition, from the chunks in order; none of paused partitions.

    A record that cannot be read raises after the records before it were returned.
    """
    result: dict[TopicPartition, list[Record]] = {}
    chunks = fetcher.chunks
    turns = len(chunks)
    while chunks and count > 0 and turns > 0:
        turns -= 1
        chunk = chunks[0]
        position = positions.get(chunk.item)
        if position is None or position.offset != chunk.next_offset:
            chunks.popleft()
            continue
        if position.paused:
            chunks.rotate(-1)
            continue
        try:
            records = chunk.fetch_records(count)
        except Exception:
            if result:
                return result
            chunks.popleft()
            raise
        position.offset = chunk.next_offset
        if records:
            result.setdefault(chunk.item, []).extend(records)
            count -= len(records)
        if chunk.exhausted:
            chunks.popleft()
    if result:
        fetcher.send()
    return result


def collect_arrow(
    fetcher: Fetcher,
    positions: dict[TopicPartition, PartitionPosition],
    include_headers: bool,
    bytes_max: int,
) -> pa.Table | None:
    """Returns all available records, as a table of batches of up to ``bytes_max``; None if there are none.

    A batch that cannot be read raises after the records of the chunks before it were returned.
    """
    chunks: deque[tuple[CompletedFetch, PartitionPosition]] = deque()
    ahead: dict[TopicPartition, int] = {}
    for _ in range(len(fetcher.chunks)):
        chunk = fetcher.chunks.popleft()
        position = positions.get(chunk.item)
        if position is None or position.offset != chunk.next_offset:
            continue
        if position.paused:
            fetcher.chunks.append(chunk)
            continue
        chunks.append((chunk, position))
        ahead[chunk.item] = chunk.end_offset
    if not chunks:
        return None
    fetcher.send(ahead)
    import pyarrow as pa

    tables: list[pa.RecordBatch] = []
    ends: list[tuple[PartitionPosition, int]] = []
    failure: KafkaError | None = None
    while chunks and failure is None:
        chunk, position = chunks.popleft()
        try:
            tables.extend(
                _with_partition(batch, chunk.item) for batch in chunk.arrow(include_headers, bytes_max)
            )
        except KafkaError as problem:
            failure = problem
            if tables:
                # The next call raises the error, without records before it.
                chunks.appendleft((chunk, position))
        ends.append((position, chunk.next_offset))
    fetcher.chunks.extendleft(chunk for chunk, _ in reversed(chunks))
    # The positions move only after all chunks are decoded: after another exception, they are fetched again.
    for position, offset in ends:
        position.offset = offset
    if tables:
        return pa.Table.from_batches(tables)
    if failure is not None:
        raise failure
    return None


def _with_partition(batch: pa.RecordBatch, item: TopicPartition) -> pa.RecordBatch:
    """Prepends two columns to the records: the topic and the partition."""
    import pyarrow as pa

    columns = [
        pa.repeat(pa.scalar(item.topic, pa.string()), batch.num_rows),
        pa.repeat(pa.scalar(item.partition, pa.int32()), batch.num_rows),
        *batch.columns,
    ]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "partition", *batch.schema.names])
