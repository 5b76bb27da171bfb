"""The control topic of the exactly-once sink on the target cluster.

It is compacted and replicated, and created when the first query needs it. All records of a query are in one
of its partitions, chosen by the query's name.

A process reads the whole partition once, and then continues at the last record that it has read. That record
must be there with the same key and value: the tokens in the values are unique, so that a topic that was
deleted and created again, or a log that an unclean election has cut, is read from its start.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemill.client.errors import ClientError, DataLoss
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.client_pool import pooled_admin, pooled_cluster, pooled_producer, repeated
from tidemill.pipeline.exactly_once.batch_state import BatchState
from tidemill.pipeline.exactly_once.compacted_records import CompactedRecords
from tidemill.pipeline.exactly_once.control_records import (
    Batch,
    ControlRecord,
    StoredRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    new_record_id,
)
from tidemill.pipeline.missing_rights import needs
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

if TYPE_CHECKING:
    from tidemill.client.admin import Admin
    from tidemill.client.admin_types import TopicDescription
    from tidemill.client.range_reader import RangeReader

PARTITIONS: Final = 16
"""A query's partition is chosen among these, also if the topic has more."""
REPLICAS_MAX: Final = 3
CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": "600000",
    "delete.retention.ms": "600000",
}
"""Small segments, because each new process reads the whole partition."""
PRODUCER_CONFIG: Final = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "0",
    "allow.auto.create.topics": "false",
    "compression.type": "gzip",
    "max.request.size": str(16 << 20),
}
"""A ``decision`` has about 130 bytes for each task, 35 of them compressed: within ``max.message.bytes`` of
the topic, by default 1 MiB, it has room for about 25,000 tasks.
"""
APPEND_TIMEOUT_S: Final = 60.0
METADATA_TIMEOUT_S: Final = 10.0
"""For so long a client waits until its broker knows a new control topic."""
ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 4 << 20
QUERIES_MAX: Final = 16
"""The maximum number of queries whose records a process keeps."""


class RawRecord(NamedTuple):
    """A record of the control partition, of any query."""

    offset: int
    key: bytes | None
    value: bytes | None


class ReadUpTo(NamedTuple):
    """What a process has read of a control partition for a query."""

    records: CompactedRecords
    last: RawRecord
    """The last record that was read."""


_read: dict[tuple[str, str, str], ReadUpTo] = {}
"""By bootstrap servers, control topic and query: what this process has read, the last used query last."""


class ControlTopic:
    """The control records of one query."""

    def __init__(self, client: Mapping[str, str], name: str, query: str) -> None:
        self._client = client
        self._name = name
        self._query = query
        self._partition = TopicPartition(name, zlib.crc32(query.encode()) % PARTITIONS)

    def append(self, record: ControlRecord) -> int:
        """Appends a record; returns its offset. After an error it may still arrive."""
        return self._append([(new_record_id(record), encode_value(record))])

    def delete(self, stored: Iterable[StoredRecord]) -> None:
        """Appends tombstones for records."""
        names = [one.record_id for one in stored]
        if names:
            self._append([(name, None) for name in names])

    def _append(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        topic, partition = self._partition
        with (
            needs("Write", topic=topic),
            pooled_producer({**self._client, **PRODUCER_CONFIG}) as producer,
        ):
            repeated(lambda: producer.partitions_for(topic), METADATA_TIMEOUT_S)
            sent = producer.send_batch(
                topic,
                [value for _, value in records],
                [encode_key(self._query, name) for name, _ in records],
                partitions=[partition] * len(records),
            )
            sent.result(APPEND_TIMEOUT_S)
            offset = sent.sample().offset
        if offset < 0:
            # A log that was read up to it would be empty, whatever was decided.
            raise ClientError(f"the broker has returned no offset of the records for {topic}-{partition}")
        return offset

    def read(self, batch: Batch, up_to: int | None = None) -> BatchState:
        """Reads the records up to an offset (inclusive), or to the end of the log."""
        with needs("Read", topic=self._name), pooled_cluster(self._client) as cluster:
            if up_to is None:
                end = cluster.list_offsets({self._partition: LATEST})[self._partition]
            else:
                end = up_to + 1
            return BatchState(batch, self._stored(cluster, end))

    def _stored(self, cluster: RangeReader, end: int) -> list[StoredRecord]:
        """Returns the records of the query before an offset."""
        place = (self._client["bootstrap.servers"], self._name, self._query)
        # Another thread reads the whole partition meanwhile; after an error, the next call does.
        before = _read.pop(place, None)
        after = None if before is None else self._continued(cluster, before, end)
        if after is None:
            records = CompactedRecords()
            start = cluster.list_offsets({self._partition: EARLIEST})[self._partition]
            last = self._add(records, self._raw(cluster, start, end))
            if last is None:
                return []
            after = ReadUpTo(records, last)
        stored = list(after.records.stored)
        _read[place] = after
        if len(_read) > QUERIES_MAX:
            _read.pop(next(iter(_read)))
        return stored

    def _continued(self, cluster: RangeReader, before: ReadUpTo, end: int) -> ReadUpTo | None:
        """Continues to read; returns None unless the log still has the last record before ``end``."""
        raw = self._raw(cluster, before.last.offset, end)
        try:
            if next(raw, None) != before.last:
                return None
        except DataLoss:
            return None
        return ReadUpTo(before.records, self._add(before.records, raw) or before.last)

    def _add(self, records: CompactedRecords, raw: Iterable[RawRecord]) -> RawRecord | None:
        """Adds the records of the query; returns the last record of any query."""
        last = None
        for last in raw:
            offset, key, value = last
            names = decode_key(offset, key)
            if names.query == self._query:
                record = None if value is None else decode_value(offset, names, value)
                records.add(offset, names.record_id, record)
        return last

    def _raw(self, cluster: RangeReader, start: int, end: int) -> Iterator[RawRecord]:
        topic, partition = self._partition
        for batch in cluster.read(topic, partition, start, end, rows_max=ROWS_MAX, bytes_max=BYTES_MAX):
            columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
            yield from map(RawRecord._make, zip(*columns, strict=True))


def ensure_control_topic(client: Mapping[str, str], name: str) -> None:
    """Creates the control topic if it does not exist. Raises ConfigError if it is not compacted."""
    with pooled_admin(client) as admin:
        try:
            described = _described(admin, name)
        except ClientError as problem:
            if problem.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            if _is_created(admin, name):
                return
            # Another driver has created it, and the broker of this client may not know it yet.
            described = repeated(lambda: _described(admin, name), METADATA_TIMEOUT_S)
        _check_partitions(name, len(described.partitions))
        with needs("DescribeConfigs", topic=name):
            configs = admin.topic_configs(name)
        _check_compacted(name, configs)


def _described(admin: Admin, name: str) -> TopicDescription:
    with needs("Describe", topic=name):
        return admin.describe_topics([name])[name]


def _is_created(admin: Admin, name: str) -> bool:
    """Creates the topic; returns False if it exists already."""
    replicas = max(1, min(REPLICAS_MAX, len(admin.describe_cluster().brokers)))
    config = {**CONFIG, "min.insync.replicas": str(max(1, replicas - 1))}
    try:
        with needs("Create", topic=name):
            admin.create_topic(name, PARTITIONS, replicas, configs=config)
    except ClientError as problem:
        if problem.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def _check_partitions(name: str, count: int) -> None:
    if count < PARTITIONS:
        raise ConfigError(
            f"option controlTopic={name}: the topic has {count} partitions, and {PARTITIONS} are needed: set"
            " controlTopic to a topic that does not exist yet, and it is created. If queries have used this"
            " topic, add partitions instead: another topic does not have their records"
        )


def _check_compacted(name: str, config: Mapping[str, Any]) -> None:
    policy = config["cleanup.policy"].value if "cleanup.policy" in config else "compact"
    if policy != "compact":
        raise ConfigError(
            f"option controlTopic={name}: the topic has cleanup.policy={policy}, which deletes records that"
            f" the next driver needs: set it to compact (tidemill topic alter {name} --config"
            " cleanup.policy=compact)"
        )
