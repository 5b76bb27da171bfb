"""Appends of a coordinator, or for one: markers, errors of the disk, and the wait for the commit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.log.errors import StorageErrors
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.replication.delayed_operations import OffsetCallback
from tidemill.transactions.transaction_metadata import EPOCH_BUMP_VERSION

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.replication.partition import Partition


@contextlib.contextmanager
def reporting_storage_errors(partition: Partition, operation: str) -> Iterator[None]:
    """Reports storage errors, as Produce and Fetch do, so that other brokers become leaders.

    ``operation``: the operation on the directory of the log, for the text of the KafkaError.
    """
    try:
        with StorageErrors(operation, partition.log.directory):
            yield
    except KafkaError as error:
        if error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            partition.events.on_storage_error(partition, error)
        raise


def append_marker(broker: Broker, partition: Partition, marker: MarkerToWrite) -> None:
    """Appends a marker to a partition. Raises KafkaError."""
    with reporting_storage_errors(partition, "append to"):
        partition.append_marker(
            marker.is_commit,
            marker.producer.producer_id,
            marker.producer.epoch,
            marker.coordinator_epoch,
            marker.version >= EPOCH_BUMP_VERSION,
            broker.clock.wall_ms(),
        )


def wait_committed(partition: Partition, end_offset: int) -> asyncio.Future[None] | None:
    """Returns the wait for the commit of all records below ``end_offset``; None if all are committed.

    It raises KafkaError if this broker loses the leadership, or if its disk fails, before that.
    """
    if partition.is_committed(end_offset):
        return None
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete(error: KafkaError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    partition.delayed.wait_committed(end_offset, OffsetCallback(complete))
    return future
