"""Returns the fetched records to the user, as records or as Arrow tables.

Fetches are returned in the order of their arrival. Those of a partition whose position the user changed are
dropped; those of a paused partition are kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tidemill.client.completed_fetch import CompletedFetch
from tidemill.client.fetcher import Fetcher
from tidemill.client.subscription_state import PartitionPosition
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.record_reader import Record

if TYPE_CHECKING:
    import pyarrow as pa


def collect(
    fetcher: Fetcher, positions: dict[TopicPartition, PartitionPosition], count: int
) -> dict[TopicPartition, list[Record]]:
    """Returns up to ``count`` records by partition, in the order of the fetches; none of paused partitions.

    A record that cannot be read raises after the records before it were returned.
    """
    result: dict[TopicPartition, list[Record]] = {}
    completed_fetches = fetcher.completed_fetches
    turns = len(completed_fetches)
    while completed_fetches and count > 0 and turns > 0:
        turns -= 1
        fetch = completed_fetches[0]
        position = positions.get(fetch.topic_partition)
        if position is None or position.offset != fetch.next_offset:
            completed_fetches.popleft()
            continue
        if position.paused:
            completed_fetches.rotate(-1)
            continue
        try:
            records = fetch.fetch_records(count)
        except Exception:
            if result:
                return result
            completed_fetches.popleft()
            raise
        position.offset = fetch.next_offset
        if records:
            result.setdefault(fetch.topic_partition, []).extend(records)
            count -= len(records)
        if fetch.is_consumed:
            completed_fetches.popleft()
    if result:
        fetcher.send_fetches()
    return result


def collect_arrow(
    fetcher: Fetcher,
    positions: dict[TopicPartition, PartitionPosition],
    include_headers: bool,
    bytes_max: int,
) -> pa.Table | None:
    """Returns all available records, as a table of batches of up to ``bytes_max``; None if there are none.

    A batch that cannot be read raises after the records of the completed fetches before it were returned.
    """
    readable: deque[tuple[CompletedFetch, PartitionPosition]] = deque()
    ahead: dict[TopicPartition, int] = {}
    for _ in range(len(fetcher.completed_fetches)):
        fetch = fetcher.completed_fetches.popleft()
        position = positions.get(fetch.topic_partition)
        if position is None or position.offset != fetch.next_offset:
            continue
        if position.paused:
            fetcher.completed_fetches.append(fetch)
            continue
        readable.append((fetch, position))
        ahead[fetch.topic_partition] = fetch.end_offset
    if not readable:
        return None
    fetcher.send_fetches(ahead)
    import pyarrow as pa

    tables: list[pa.RecordBatch] = []
    ends: list[tuple[PartitionPosition, int]] = []
    failure: KafkaError | None = None
    while readable and failure is None:
        fetch, position = readable.popleft()
        try:
            tables.extend(
                _with_partition(batch, fetch.topic_partition)
                for batch in fetch.fetch_arrow(include_headers, bytes_max)
            )
        except KafkaError as problem:
            failure = problem
            if tables:
                # The next call raises the error, without records before it.
                readable.appendleft((fetch, position))
        ends.append((position, fetch.next_offset))
    fetcher.completed_fetches.extendleft(fetch for fetch, _ in reversed(readable))
    # The positions move only after all are decoded: after another exception, they are fetched again.
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
