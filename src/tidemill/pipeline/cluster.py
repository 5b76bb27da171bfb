"""The interface through which the data source accesses a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.client.range_reader import TopicView


class Cluster(Protocol):
    """Metadata, offsets, records and group commits of a cluster. Calls block, and raise ClientError."""

    def topic_names(self) -> list[str]:
        """Returns the names of all topics except internal ones."""
        ...

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        """Returns the existing topics among ``topics``. Creates none."""
        ...

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns offsets for EARLIEST, LATEST or ms since 1970; -1 if no record is that late."""
        ...

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        topic_id: bytes | None,
        include_headers: bool,
        rows_max: int,
        bytes_max: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the records from ``start`` to ``end`` (exclusive), as columns. Raises DataLoss."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None) -> None:
        """Commits offsets for a group without members; ``timeout`` is in seconds."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...
