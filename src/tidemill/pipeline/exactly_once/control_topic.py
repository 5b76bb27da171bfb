"""The control topic of the exactly-once sink on the target cluster.

It is compacted and replicated, and created when the first query needs it. All records of a query are in one
of its partitions, chosen by the query's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.connect import pooled_admin, pooled_cluster, pooled_producer, repeated
from tidemill.pipeline.exactly_once.batch_log import BatchLog
from tidemill.pipeline.exactly_once.control_records import (
    Batch,
    ControlRecord,
    StoredRecord,
    decode,
    encode_key,
    encode_value,
    new_record_id,
    query_of,
)
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

if TYPE_CHECKING:
    from tidemill.client.admin import Admin

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
"""Small segments, because a driver reads the whole partition for each batch."""
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
        with pooled_producer({**self._client, **PRODUCER_CONFIG}) as producer:
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

    def read(self, batch: Batch, up_to: int | None = None) -> BatchLog:
        """Reads the records up to an offset (inclusive), or to the end of the log."""
        with pooled_cluster(self._client) as cluster:
            start = cluster.list_offsets({self._partition: EARLIEST})[self._partition]
            if up_to is None:
                end = cluster.list_offsets({self._partition: LATEST})[self._partition]
            else:
                end = up_to + 1
            topic, partition = self._partition
            rows = cluster.read(topic, partition, start, end, rows_max=ROWS_MAX, bytes_max=BYTES_MAX)
            return BatchLog(batch, list(self._decoded(rows)))

    def _decoded(self, batches: Iterable[Any]) -> Iterable[StoredRecord]:
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value")]
            for offset, key, value in zip(*columns, strict=True):
                if value is not None and query_of(offset, key) == self._query:
                    yield decode(offset, key, value)


def ensure_control_topic(client: Mapping[str, str], name: str) -> None:
    """Creates the control topic if it does not exist. Raises ConfigError if it is not compacted."""
    with pooled_admin(client) as admin:
        try:
            described = admin.describe_topics([name])[name]
        except ClientError as problem:
            if problem.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            if _is_created(admin, name):
                return
            # Another driver has created it, and the broker of this client may not know it yet.
            described = repeated(lambda: admin.describe_topics([name])[name], METADATA_TIMEOUT_S)
        _check_partitions(name, len(described.partitions))
        _check_compacted(name, admin.topic_configs(name))


def _is_created(admin: Admin, name: str) -> bool:
    """Creates the topic; returns False if it exists already."""
    replicas = max(1, min(REPLICAS_MAX, len(admin.describe_cluster().brokers)))
    config = {**CONFIG, "min.insync.replicas": str(max(1, replicas - 1))}
    try:
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
