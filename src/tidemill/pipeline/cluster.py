"""What the source needs from a cluster, as a small port, and the client behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.client.ranges import TopicView


class Cluster(Protocol):
    """Metadata, offsets, records and group commits of a cluster. Calls block, and raise ClientError."""

    def topic_names(self) -> list[str]:
        """Names of all topics but the internal ones."""
        ...

    def describe(self, topics: Sequence[str]) -> dict[str, TopicView]:
        """The topics that there are; those that are not there are left out. Creates none."""
        ...

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets for EARLIEST, LATEST or milliseconds since 1970; -1 where no record is that late."""
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
        """The records from ``start`` up to, and without, ``end``, as columns. Raises DataLoss."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None) -> None:
        """Notes offsets for a group that has no members; ``timeout`` is in seconds."""
        ...

    def close(self) -> None:
        """Gives the connections back."""
        ...
