"""WriteTxnMarkers (key 27)."""

from __future__ import annotations

from tidemill.wire.schema import BOOL, INT16, INT32, INT64, INT8, STRING, Struct, field


class WritableTxnMarkerTopic(Struct):
    """Writable Txn Marker Topic."""

    name: str = field(STRING)
    partition_indexes: list[int] = field([INT32])


class WritableTxnMarker(Struct):
    """Writable Txn Marker."""

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    transaction_result: bool = field(BOOL)
    topics: list[WritableTxnMarkerTopic] = field([WritableTxnMarkerTopic])
    coordinator_epoch: int = field(INT32)
    transaction_version: int = field(INT8, "2+", ignorable=True)


class WriteTxnMarkersRequest(Struct, versions="0-2", flexible="1+"):
    """Write Txn Markers Request."""

    markers: list[WritableTxnMarker] = field([WritableTxnMarker])


class WritableTxnMarkerPartitionResult(Struct):
    """Writable Txn Marker Partition Result."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class WritableTxnMarkerTopicResult(Struct):
    """Writable Txn Marker Topic Result."""

    name: str = field(STRING)
    partitions: list[WritableTxnMarkerPartitionResult] = field([WritableTxnMarkerPartitionResult])


class WritableTxnMarkerResult(Struct):
    """Writable Txn Marker Result."""

    producer_id: int = field(INT64)
    topics: list[WritableTxnMarkerTopicResult] = field([WritableTxnMarkerTopicResult])


class WriteTxnMarkersResponse(Struct, versions="0-2", flexible="1+"):
    """Write Txn Markers Response."""

    markers: list[WritableTxnMarkerResult] = field([WritableTxnMarkerResult])
