"""Returns the fetched records to the user, as records or as Arrow tables.

Fetches are returned in the order of their arrival. Those of a partition whose position the user changed are
dropped; those of a paused partition are kept. The positions move only after all records are decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.client.completed_fetch import CompletedFetch
from tidemill.client.fetcher import Fetcher
from tidemill.client.subscription_state import PartitionPosition, SubscriptionState
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.records.record_reader import Record

if TYPE_CHECKING:
    import pyarrow as pa


def collect(
    fetcher: Fetcher, subscriptions: SubscriptionState, count: int
) -> dict[TopicPartition, list[Record]]:
    """Returns up to ``count`` records by partition, in the order of the fetches; none of paused partitions.

    A record that cannot be read raises after the records before it were returned.
    """
    result: dict[TopicPartition, list[Record]] = {}
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    failure: KafkaError | None = None
    readable = _take_readable(fetcher.completed_fetches, subscriptions.positions)
    while count > 0 and failure is None and (fetch := next(readable, None)) is not None:
        item = fetch.topic_partition
        starts[item] = fetch.next_offset
        try:
            if records := fetch.fetch_records(count):
                result[item] = records
                count -= len(records)
        except KafkaError as problem:
            failure = problem
        ends[item] = fetch.next_offset
        if result and not fetch.is_consumed:
            # The next call returns its other records, or raises its error.
            fetcher.completed_fetches.appendleft(fetch)
    if result:
        fetcher.send_fetches(ends)
    subscriptions.move_positions(starts, ends)
    if failure is not None and not result:
        raise failure
    return result


def collect_arrow(
    fetcher: Fetcher, subscriptions: SubscriptionState, include_headers: bool, bytes_max: int
) -> pa.Table | None:
    """Returns all available records, as a table of batches of up to ``bytes_max``; None if there are none.

    A batch that cannot be read raises after the records of the completed fetches before it were returned.
    """
    readable = deque(_take_readable(fetcher.completed_fetches, subscriptions.positions))
    if not readable:
        return None
    starts = {fetch.topic_partition: fetch.next_offset for fetch in readable}
    fetcher.send_fetches({fetch.topic_partition: fetch.end_offset for fetch in readable})
    import pyarrow as pa

    tables: list[pa.RecordBatch] = []
    ends: dict[TopicPartition, int] = {}
    failure: KafkaError | None = None
    while readable and failure is None:
        fetch = readable.popleft()
        try:
            tables.extend(
                _with_partition(batch, fetch.topic_partition)
                for batch in fetch.fetch_arrow(include_headers, bytes_max)
            )
        except KafkaError as problem:
            failure = problem
            if tables:
                # The next call raises the error, without records before it.
                readable.appendleft(fetch)
        ends[fetch.topic_partition] = fetch.next_offset
    fetcher.completed_fetches.extendleft(reversed(readable))
    subscriptions.move_positions(starts, ends)
    if tables:
        return pa.Table.from_batches(tables)
    if failure is not None:
        raise failure
    return None


def _take_readable(
    fetches: deque[CompletedFetch], positions: dict[TopicPartition, PartitionPosition]
) -> Iterator[CompletedFetch]:
    """Takes the fetches to decode out of ``fetches``. Leaves those of paused partitions.

    A fetch whose decoding is interrupted, as by Ctrl-C, is thus dropped, and its records are fetched again.
    """
    for _ in range(len(fetches)):
        fetch = fetches.popleft()
        position = positions.get(fetch.topic_partition)
        if position is None or position.offset != fetch.next_offset:
            continue
        if position.paused:
            fetches.append(fetch)
        else:
            yield fetch


def _with_partition(batch: pa.RecordBatch, item: TopicPartition) -> pa.RecordBatch:
    """Prepends two columns to the records: the topic and the partition."""
    import pyarrow as pa

    columns = [
        pa.repeat(pa.scalar(item.topic, pa.string()), batch.num_rows),
        pa.repeat(pa.scalar(item.partition, pa.int32()), batch.num_rows),
        *batch.columns,
    ]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "partition", *batch.schema.names])
