"""Copies one partition of a topic to its mirror, as the job for mirrors does."""

from __future__ import annotations

import itertools
from typing import Any, Final

from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import LEADER_EPOCH, MAGIC, Batch, whole_batch_size
from tidemill.records.mirror_end import ended_mirror
from tidemill.records.mirrored_batch import empty_batches, mirrored_batches
from tidemill.records.record_reader import iter_stored
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import delete_records, fetch, list_offsets, metadata, produce

FETCH_VERSION: Final = 12
LATEST: Final = -1
EARLIEST: Final = -2
RETRIED: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class Refused(Exception):
    """The response for the partition has an error."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(f"{ErrorCode(code).name}: {text}")
        self.code = ErrorCode(code)


class PartitionPeer:
    """Requests to the leader of one partition, each over a connection of its own."""

    def __init__(self, addresses: str, topic: str, partition: int = 0) -> None:
        self.addresses = addresses.split(",")
        self.topic = topic
        self.partition = partition

    def _call(self, address: str, key: ApiKey, request: Any, response_type: Any, version: int) -> Any:
        host, port = address.split(":")
        connection = Connection(host, int(port), ClientConfig("admin", {"bootstrap.servers": address}))
        connection.open()
        try:
            return connection.call(key, request, response_type, version=version, timeout=15)
        finally:
            connection.close()

    def leader(self) -> str:
        """Returns the address of the leader at the listener of the addresses."""
        request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=self.topic)])
        for address in self.addresses:
            try:
                found = self._call(address, ApiKey.METADATA, request, metadata.MetadataResponse, 9)
            except ClientError:
                continue
            for one in found.topics[0].partitions:
                if one.partition_index == self.partition:
                    for broker in found.brokers:
                        if broker.node_id == one.leader_id:
                            return f"{broker.host}:{broker.port}"
        raise Refused(ErrorCode.LEADER_NOT_AVAILABLE)

    def call(self, key: ApiKey, request: Any, response_type: Any, version: int) -> Any:
        """Sends a request to the leader."""
        return self._call(self.leader(), key, request, response_type, version)

    def offset(self, timestamp: int) -> int:
        """Returns the log start offset (EARLIEST) or the high watermark (LATEST)."""
        one = list_offsets.ListOffsetsPartition(partition_index=self.partition, timestamp=timestamp)
        topic = list_offsets.ListOffsetsTopic(name=self.topic, partitions=[one])
        request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic])
        response = self.call(ApiKey.LIST_OFFSETS, request, list_offsets.ListOffsetsResponse, 5)
        (found,) = response.topics[0].partitions
        if found.error_code:
            raise Refused(found.error_code)
        return int(found.offset)

    def fetched(self, offset: int, bytes_max: int = 1 << 20) -> bytes:
        """Returns committed batches from an offset on."""
        part = fetch.FetchPartition(
            partition=self.partition, fetch_offset=offset, partition_max_bytes=bytes_max
        )
        request = fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=bytes_max,
            topics=[fetch.FetchTopic(topic=self.topic, partitions=[part])],
        )
        response = self.call(ApiKey.FETCH, request, fetch.FetchResponse, FETCH_VERSION)
        (found,) = response.responses[0].partitions
        if found.error_code:
            raise Refused(found.error_code)
        return bytes(found.records or b"")

    def batches(self) -> list[bytes]:
        """Returns all committed batches, with 0 in place of their leader epochs."""
        found = []
        offset, end = self.offset(EARLIEST), self.offset(LATEST)
        while offset < end:
            data = self.fetched(offset)
            at = 0
            while (size := int(whole_batch_size(data, at, len(data)))) > 0:
                found.append(data[at : at + LEADER_EPOCH] + bytes(4) + data[at + MAGIC : at + size])
                at += size
            assert at > 0, f"no batch at {offset}"
            offset = max(int(one.last_offset) for one in iter_stored(data[:at])) + 1
        return found

    def send(self, records: bytes, acks: int = -1, version: int = 12) -> Any:
        """Sends records as they are; returns the response for the partition."""
        part = produce.PartitionProduceData(index=self.partition, records=records)
        request = produce.ProduceRequest(
            acks=acks,
            timeout_ms=10_000,
            topic_data=[produce.TopicProduceData(name=self.topic, partition_data=[part])],
        )
        response = self.call(ApiKey.PRODUCE, request, produce.ProduceResponse, version)
        return response.responses[0].partition_responses[0]

    def delete_below(self, offset: int) -> tuple[ErrorCode, int]:
        """Sends DeleteRecords; returns the error and the low watermark."""
        one = delete_records.DeleteRecordsPartition(partition_index=self.partition, offset=offset)
        topic = delete_records.DeleteRecordsTopic(name=self.topic, partitions=[one])
        request = delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=10_000)
        response = self.call(ApiKey.DELETE_RECORDS, request, delete_records.DeleteRecordsResponse, 2)
        (found,) = response.topics[0].partitions
        return ErrorCode(found.error_code), int(found.low_watermark)

    def is_promoted(self, topic_id: bytes) -> bool:
        """Whether the last committed batch is the end of this mirror."""
        end = self.offset(LATEST)
        if end == 0:
            return False
        batches = [one for one in iter_stored(self.fetched(end - 1)) if isinstance(one, Batch)]
        return bool(batches) and ended_mirror(batches[-1]) == topic_id


def copy(
    source: PartitionPeer, mirror: PartitionPeer, bytes_max: int = 1 << 20, requests_max: int = 0
) -> int:
    """Copies until the mirror has what is committed at the source. Returns the end offset of the mirror.

    Raises :class:`Refused`; a further call continues. ``requests_max``: stops after so many requests.
    """
    for count in itertools.count(1):
        start = source.offset(EARLIEST)
        if start > mirror.offset(EARLIEST):
            code, _ = mirror.delete_below(start)
            if code:
                raise Refused(code)
        end, next_offset = source.offset(LATEST), mirror.offset(LATEST)
        if next_offset >= end:
            return next_offset
        records = mirrored_batches(source.fetched(next_offset, bytes_max), next_offset)
        if not records:
            records = empty_batches(next_offset, end)
        part = mirror.send(records)
        if part.error_code:
            raise Refused(part.error_code, part.error_message)
        if count == requests_max:
            return mirror.offset(LATEST)
    raise AssertionError
