"""Reads a cluster's metadata from KRaft's directory ``__cluster_metadata-0``.

=====================================  ==============================================================
name                                   content
=====================================  ==============================================================
``<20 digits>.log``                    batches of metadata records (:mod:`.metadata_records`)
``<offset>-<epoch>.checkpoint``        the state up to that offset, as the same records; 20 and 10 digits
``quorum-state``                       the elected controller: not needed here
=====================================  ==============================================================

The reader loads the newest snapshot, then the log from its offset to the end of the last valid batch. On a
single controller all records are committed; of several controllers, the last active one has to be read.

Source: Apache Kafka, ``Snapshots.java``, ``MetadataImage.java``, ``PartitionRegistration.java``; KIP-630.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tidemill.interchange import metadata_records as records
from tidemill.interchange.cluster import (
    ClusterMetadata,
    PartitionEntry,
    TopicEntry,
)
from tidemill.log.batch_scan import BatchScan
from tidemill.log.file_names import DANGLING, LOG, OFFSET_DIGITS, offset_of
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.system_interfaces import Files
from tidemill.model.transaction_types import TRANSACTION_VERSION
from tidemill.records.batch import parse_batch
from tidemill.records.end_transaction_marker import decode_control_record
from tidemill.records.record_reader import read_stored
from tidemill.wire.schema import Struct

CHECKPOINT: Final = ".checkpoint"
EPOCH_DIGITS: Final = 10
SNAPSHOT_FOOTER: Final = 4
WINDOW_BYTES: Final = 1024 * 1024
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
OTHER_SOURCES: Final = (
    "name the metadata directory of another controller (--metadata DIR), or import the topics of the "
    "directories (--without-settings)"
)
"""The next step if the metadata in a directory is not reliable."""
GROUP_RESOURCE: Final = 32
RESOURCES: Final = {16: "settings of client metrics"}


def snapshot_offset(name: str) -> int:
    """Returns the end offset in the name of a snapshot; -1 if it is not a snapshot."""
    body = name.removesuffix(CHECKPOINT)
    offset, _, epoch = body.partition("-")
    if body == name or len(offset) != OFFSET_DIGITS or len(epoch) != EPOCH_DIGITS:
        return -1
    return int(offset) if offset.isdecimal() and epoch.isdecimal() else -1


def read_kraft(files: Files, directory: str, *, unpacked_bytes_max: int) -> ClusterMetadata:
    """Reads the metadata in ``directory``. Raises StorageError if it is incomplete or damaged."""
    try:
        names = files.list(directory)
    except FileNotFoundError:
        raise StorageError(f"{directory} is {DANGLING}; {OTHER_SOURCES}") from None
    replay = _Replay(ClusterMetadata(f"KRaft's metadata in {directory}"))
    snapshots = sorted(name for name in names if snapshot_offset(name) >= 0)
    bases = sorted(base for base in (offset_of(name, LOG) for name in names) if base >= 0)
    if not bases and not snapshots:
        raise StorageError(
            f"{directory} holds neither a log nor a snapshot of KRaft's metadata; {OTHER_SOURCES}"
        )
    snapshot = f"{directory}/{snapshots[-1]}" if snapshots else ""
    offset = snapshot_offset(snapshots[-1]) if snapshots else 0
    if not bases:
        raise StorageError(_stale(snapshot, offset, f"and there is no log ({LOG}) beside it"))
    if bases[0] > offset:
        raise StorageError(
            f"{directory}: the log starts at offset {bases[0]}, the newest snapshot ends at {offset}: the "
            f"records between are missing; {OTHER_SOURCES}"
        )
    if snapshot:
        _read_snapshot(files, snapshot, replay, unpacked_bytes_max)
    end = _read_segments(files, directory, bases, offset, replay, unpacked_bytes_max)
    if end < offset:
        raise StorageError(_stale(snapshot, offset, f"and the log beside it ends at {end}"))
    replay.finish()
    return replay.metadata


def _stale(snapshot: str, offset: int, why: str) -> str:
    return (
        f"{snapshot} is the metadata as of offset {offset}, {why}: later topics, offsets and settings "
        f"would be lost; restore the log, or {OTHER_SOURCES}"
    )


def _read_segments(
    files: Files, directory: str, bases: list[int], offset: int, replay: _Replay, unpacked_bytes_max: int
) -> int:
    """Replays the log from ``offset`` on; returns the end offset of its last valid batch."""
    end = bases[0]
    for base in bases:
        path = f"{directory}/{base:0{OFFSET_DIGITS}d}{LOG}"
        if base != end:
            raise StorageError(
                f"{path} starts at offset {base}, the file before it ends at {end}: a file between them is "
                f"missing, or one is truncated; {OTHER_SOURCES}"
            )

        def on_record(at: int, value: bytes | None, _: int) -> None:
            nonlocal end
            end = at + 1
            if at >= offset:
                replay.apply(value)

        fault = _read_log(files, path, on_record, unpacked_bytes_max)
        if fault:
            if base != bases[-1]:
                raise StorageError(f"{path}: {fault}; {OTHER_SOURCES}")
            replay.metadata.notes.append(f"{path}: {fault}; the bytes after it were never committed")
    return end


def _read_snapshot(files: Files, path: str, replay: _Replay, unpacked_bytes_max: int) -> None:
    last_control = -1

    def on_record(offset: int, value: bytes | None, control: int) -> None:
        nonlocal last_control
        last_control = control
        replay.apply(value)

    fault = _read_log(files, path, on_record, unpacked_bytes_max)
    if fault or last_control != SNAPSHOT_FOOTER:
        raise StorageError(f"{path} is damaged ({fault or 'its end is missing'}): {OTHER_SOURCES}")


def _read_log(
    files: Files, path: str, on_record: Callable[[int, bytes | None, int], Any], unpacked_bytes_max: int
) -> str:
    """Passes every record to ``on_record``: offset, value, type of a control record (-1: none).

    Returns the damage that ended the read, or an empty text. Errors that ``on_record`` raises are not caught.
    """
    with files.open(path, read_only=True) as file:
        scan = BatchScan(file, 0, file.size(), WINDOW_BYTES)
        while scan.step():
            try:
                whole = list(_records(scan, unpacked_bytes_max))
            except KafkaError as problem:
                return str(problem)
            for offset, value, control in whole:
                on_record(offset, value, control)
    return scan.fault


def _records(scan: BatchScan, unpacked_bytes_max: int) -> Iterator[tuple[int, bytes | None, int]]:
    data, at = scan.whole()
    batch = parse_batch(data, at, at + scan.size)
    for record in read_stored(batch, True, unpacked_bytes_max):
        if batch.is_control:
            yield record.offset, None, int(decode_control_record(record.key, record.value).control_type)
        else:
            yield record.offset, record.value, -1


class _Replay:
    """The metadata that results from applying the records in order."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self.metadata = metadata
        # A level without a record is 0.
        self.metadata.transaction_version = 0
        self._topics: dict[bytes, TopicEntry] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._others: dict[str, set[Any]] = {}
        self._transaction: list[Struct] | None = None
        self._handlers: dict[type[Struct], Callable[[Any], None]] = {
            records.TopicRecord: self._topic,
            records.PartitionRecord: self._partition,
            records.PartitionChangeRecord: self._partition_change,
            records.RemoveTopicRecord: self._remove_topic,
            records.ConfigRecord: self._config,
            records.ProducerIdsRecord: self._producer_ids,
            records.FeatureLevelRecord: self._feature_level,
            records.AccessControlEntryRecord: lambda r: self._other("access rules", r.id, True),
            records.RemoveAccessControlEntryRecord: lambda r: self._other("access rules", r.id, False),
            records.UserScramCredentialRecord: lambda r: self._other(
                "users' credentials", (r.name, r.mechanism), True
            ),
            records.RemoveUserScramCredentialRecord: lambda r: self._other(
                "users' credentials", (r.name, r.mechanism), False
            ),
            records.DelegationTokenRecord: lambda r: self._other("delegation tokens", r.token_id, True),
            records.RemoveDelegationTokenRecord: lambda r: self._other(
                "delegation tokens", r.token_id, False
            ),
            records.ClientQuotaRecord: lambda r: self._other("quotas", (repr(r.entity), r.key), not r.remove),
        }

    def apply(self, value: bytes | None) -> None:
        """Applies a record; records of an open transaction wait for its end. Raises ProtocolError."""
        if value is None:
            return
        record, _ = records.decode_metadata(value)
        if isinstance(record, records.BeginTransactionRecord):
            self._transaction = []
        elif isinstance(record, records.AbortTransactionRecord):
            self._transaction = None
        elif isinstance(record, records.EndTransactionRecord):
            waiting, self._transaction = self._transaction or [], None
            for record in waiting:
                self._replay(record)
        elif self._transaction is not None:
            self._transaction.append(record)
        else:
            self._replay(record)

    def _replay(self, record: Struct) -> None:
        handler = self._handlers.get(type(record))
        if handler is not None:
            handler(record)

    def _topic(self, record: records.TopicRecord) -> None:
        self._topics[record.topic_id] = TopicEntry(record.name, record.topic_id)

    def _find(self, topic_id: bytes) -> TopicEntry:
        topic = self._topics.get(topic_id)
        if topic is None:
            raise StorageError(
                f"the metadata refers to a topic with id {topic_id.hex()}, which it never created"
            )
        return topic

    def _partition(self, record: records.PartitionRecord) -> None:
        entry = PartitionEntry(tuple(record.replicas), record.leader, record.leader_epoch, tuple(record.isr))
        self._find(record.topic_id).partitions[record.partition_id] = entry

    def _partition_change(self, record: records.PartitionChangeRecord) -> None:
        partitions = self._find(record.topic_id).partitions
        entry = partitions.get(record.partition_id)
        if entry is None:
            raise StorageError(
                f"the metadata changes partition {record.partition_id}, which it never created"
            )
        if record.leader != records.NO_LEADER_CHANGE:
            entry = entry._replace(leader=record.leader, leader_epoch=entry.leader_epoch + 1)
        if record.isr is not None:
            entry = entry._replace(isr=tuple(record.isr))
        if record.replicas is not None:
            entry = entry._replace(replicas=tuple(record.replicas))
        partitions[record.partition_id] = entry

    def _remove_topic(self, record: records.RemoveTopicRecord) -> None:
        topic = self._find(record.topic_id)
        del self._topics[record.topic_id]
        self._configs.pop((TOPIC_RESOURCE, topic.name), None)

    def _config(self, record: records.ConfigRecord) -> None:
        config = self._configs.setdefault((record.resource_type, record.resource_name), {})
        if record.value is None:
            config.pop(record.name, None)
        else:
            config[record.name] = record.value

    def _producer_ids(self, record: records.ProducerIdsRecord) -> None:
        self.metadata.next_producer_id = max(self.metadata.next_producer_id, record.next_producer_id)

    def _feature_level(self, record: records.FeatureLevelRecord) -> None:
        if record.name == TRANSACTION_VERSION:
            self.metadata.transaction_version = record.feature_level

    def _other(self, kind: str, key: Any, there: bool) -> None:
        kept = self._others.setdefault(kind, set())
        if there:
            kept.add(key)
        else:
            kept.discard(key)

    def finish(self) -> None:
        """Completes the metadata from the applied records."""
        metadata = self.metadata
        for topic in self._topics.values():
            topic.config = self._configs.get((TOPIC_RESOURCE, topic.name), {})
            metadata.topics[topic.name] = topic
        for (kind, name), config in self._configs.items():
            if kind == BROKER_RESOURCE and config:
                metadata.broker_configs[name] = config
            elif kind == GROUP_RESOURCE and config:
                metadata.group_configs[name] = config
            elif kind in RESOURCES and config:
                metadata.omitted[RESOURCES[kind]] += 1
        for kind_name, kept in self._others.items():
            if kept:
                metadata.omitted[kind_name] += len(kept)
        if self._transaction:
            metadata.notes.append(
                f"{len(self._transaction)} metadata records of an unfinished transaction are ignored"
            )
