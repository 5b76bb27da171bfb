"""WriteTxnMarkers (key 27): a transaction coordinator requests markers in partitions."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT8, INT16, INT32, INT64, STRING, Struct, field


class WritableTxnMarkerTopic(Struct):
    """One topic's partitions."""

    name: str = field(STRING)
    partition_indexes: list[int] = field([INT32])


class WritableTxnMarker(Struct):
    """The end of one transaction, for the partitions that this broker leads."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    transaction_result: bool = field(BOOL)  # true: commit, false: abort
    topics: list[WritableTxnMarkerTopic] = field([WritableTxnMarkerTopic])
    coordinator_epoch: int = field(INT32)
    transaction_version: int = field(INT8, "2+", ignorable=True)


class WriteTxnMarkersRequest(Struct, versions="0-2", flexible="1+"):
    """A coordinator's markers for one broker."""

    markers: list[WritableTxnMarker] = field([WritableTxnMarker])


class WritableTxnMarkerPartitionResult(Struct):
    """Whether the marker was written to one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class WritableTxnMarkerTopicResult(Struct):
    """One topic's results."""

    name: str = field(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = field([WritableTxnMarkerPartitionResult])


class WritableTxnMarkerResult(Struct):
    """One transaction's results."""

    producer_id: int = field(INT64)
    topics: list[WritableTxnMarkerTopicResult] = field([WritableTxnMarkerTopicResult])


class WriteTxnMarkersResponse(Struct, versions="0-2", flexible="1+"):
    """The result of each marker."""

    markers: list[WritableTxnMarkerResult] = field([WritableTxnMarkerResult])
