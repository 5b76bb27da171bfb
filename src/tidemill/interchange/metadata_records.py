"""The records of KRaft's metadata: what Apache Kafka keeps of a cluster since it does without ZooKeeper.

They lie in the log ``__cluster_metadata-0`` and in its snapshots, without keys. A value is:

=================  ================  ==================================================
field              type              notes
=================  ================  ==================================================
frame version      UNSIGNED_VARINT   1
type               UNSIGNED_VARINT   which record this is, :data:`RECORDS`
version            UNSIGNED_VARINT   of that record's description
record             ...               the fields below, all flexible
=================  ================  ==================================================

Records between a begin and an end of a transaction count once the end is there, and not at all after an
abort.

Source: Apache Kafka 4.3, the descriptions below ``metadata/src/main/resources/common/metadata``, and
``MetadataRecordSerde.java``; KIP-631, KIP-868 (transactions), KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from typing import Final

from tidemill.model.errors import ProtocolError
from tidemill.wire.primitives import encode_uvarint, read_uvarint
from tidemill.wire.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Struct,
    decode,
    encode,
    field,
    parse_versions,
)

FRAME_VERSION: Final = 1
NO_LEADER_CHANGE: Final = -2


class RecordEndpoint(Struct):
    """Where a broker or controller listens."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)
    security_protocol: int = field(INT16)


class RecordFeature(Struct):
    """A feature that a broker or controller knows, with its range of levels."""

    name: str = field(STRING)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class RegisterBrokerRecord(Struct, versions="0-4", flexible="0+"):
    """A broker has come."""

    broker_id: int = field(INT32)
    is_migrating_zk_broker: bool = field(BOOL, "2+")
    incarnation_id: bytes = field(UUID)
    broker_epoch: int = field(INT64)
    end_points: list[RecordEndpoint] = field([RecordEndpoint])
    features: list[RecordFeature] = field([RecordFeature])
    rack: str | None = field(STRING, nullable="0+")
    fenced: bool = field(BOOL, default=True)
    in_controlled_shutdown: bool = field(BOOL, "1+")
    log_dirs: list[bytes] = field([UUID], "3+", tag=0)
    cordoned_log_dirs: list[bytes] | None = field([UUID], "4+", tag=1, nullable="4+", default=None)


class UnregisterBrokerRecord(Struct, versions="0", flexible="0+"):
    """A broker is gone for good."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64)


class TopicRecord(Struct, versions="0", flexible="0+"):
    """A topic is there."""

    name: str = field(STRING)
    topic_id: bytes = field(UUID)


class PartitionRecord(Struct, versions="0-2", flexible="0+"):
    """A partition is there, and this is its state."""

    partition_id: int = field(INT32, default=-1)
    topic_id: bytes = field(UUID)
    replicas: list[int] = field([INT32])
    isr: list[int] = field([INT32])
    removing_replicas: list[int] = field([INT32])
    adding_replicas: list[int] = field([INT32])
    leader: int = field(INT32, default=-1)
    leader_recovery_state: int = field(INT8, tag=0)
    leader_epoch: int = field(INT32, default=-1)
    partition_epoch: int = field(INT32, default=-1)
    directories: list[bytes] = field([UUID], "1+")
    eligible_leader_replicas: list[int] | None = field([INT32], "2+", tag=1, nullable="2+", default=None)
    last_known_elr: list[int] | None = field([INT32], "2+", tag=2, nullable="2+", default=None)


class ConfigRecord(Struct, versions="0", flexible="0+"):
    """A setting: of a topic (2), a broker (4, its name empty for all), a group or client metrics."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class PartitionChangeRecord(Struct, versions="0-2", flexible="0+"):
    """What changed of a partition; a field that is null (the leader: -2) did not."""

    partition_id: int = field(INT32, default=-1)
    topic_id: bytes = field(UUID)
    isr: list[int] | None = field([INT32], tag=0, nullable="0+", default=None)
    leader: int = field(INT32, tag=1, default=NO_LEADER_CHANGE)
    replicas: list[int] | None = field([INT32], tag=2, nullable="0+", default=None)
    removing_replicas: list[int] | None = field([INT32], tag=3, nullable="0+", default=None)
    adding_replicas: list[int] | None = field([INT32], tag=4, nullable="0+", default=None)
    leader_recovery_state: int = field(INT8, tag=5, default=-1)
    directories: list[bytes] | None = field([UUID], "1+", tag=8, nullable="1+", default=None)
    eligible_leader_replicas: list[int] | None = field([INT32], "2+", tag=6, nullable="2+", default=None)
    last_known_elr: list[int] | None = field([INT32], "2+", tag=7, nullable="2+", default=None)


class FenceBrokerRecord(Struct, versions="0", flexible="0+"):
    """A broker does not answer any more."""

    id: int = field(INT32)
    epoch: int = field(INT64)


class UnfenceBrokerRecord(Struct, versions="0", flexible="0+"):
    """A broker answers again."""

    id: int = field(INT32)
    epoch: int = field(INT64)


class RemoveTopicRecord(Struct, versions="0", flexible="0+"):
    """A topic is gone, with its partitions and settings."""

    topic_id: bytes = field(UUID)


class DelegationTokenRecord(Struct, versions="0", flexible="0+"):
    """A delegation token."""

    owner: str = field(STRING)
    requester: str = field(STRING)
    renewers: list[str] = field([STRING])
    issue_timestamp: int = field(INT64)
    max_timestamp: int = field(INT64)
    expiration_timestamp: int = field(INT64)
    token_id: str = field(STRING)


class UserScramCredentialRecord(Struct, versions="0", flexible="0+"):
    """A user's credential."""

    name: str = field(STRING)
    mechanism: int = field(INT8)
    salt: bytes = field(BYTES, secret=True)
    stored_key: bytes = field(BYTES, secret=True)
    server_key: bytes = field(BYTES, secret=True)
    iterations: int = field(INT32)


class FeatureLevelRecord(Struct, versions="0", flexible="0+"):
    """The level of a feature in the cluster; ``metadata.version`` is one."""

    name: str = field(STRING)
    feature_level: int = field(INT16)


class QuotaEntity(Struct):
    """A part of what a quota is for; the name is null for the default."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


class ClientQuotaRecord(Struct, versions="0", flexible="0+"):
    """A quota of a user, a client or an address."""

    entity: list[QuotaEntity] = field([QuotaEntity])
    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


class ProducerIdsRecord(Struct, versions="0", flexible="0+"):
    """A block of producer ids was given to a broker; the next one begins at ``next_producer_id``."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    next_producer_id: int = field(INT64)


class BrokerRegistrationChangeRecord(Struct, versions="0-3", flexible="0+"):
    """What changed of a broker."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64)
    fenced: int = field(INT8, tag=0)
    in_controlled_shutdown: int = field(INT8, "1+", tag=1)
    log_dirs: list[bytes] = field([UUID], "2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = field([UUID], "3+", tag=3, nullable="3+", default=None)


class AccessControlEntryRecord(Struct, versions="0", flexible="0+"):
    """A rule of access."""

    id: bytes = field(UUID)
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class RemoveAccessControlEntryRecord(Struct, versions="0", flexible="0+"):
    """A rule of access is gone."""

    id: bytes = field(UUID)


class NoOpRecord(Struct, versions="0", flexible="0+"):
    """Nothing: it keeps the log going."""


class ZkMigrationStateRecord(Struct, versions="0", flexible="0+"):
    """How far a migration from ZooKeeper is."""

    zk_migration_state: int = field(INT8)


class RemoveUserScramCredentialRecord(Struct, versions="0", flexible="0+"):
    """A user's credential is gone."""

    name: str = field(STRING)
    mechanism: int = field(INT8)


class BeginTransactionRecord(Struct, versions="0", flexible="0+"):
    """What follows counts once it is ended."""

    name: str | None = field(STRING, tag=0, nullable="0+", default=None)


class EndTransactionRecord(Struct, versions="0", flexible="0+"):
    """What stands since the beginning counts."""


class AbortTransactionRecord(Struct, versions="0", flexible="0+"):
    """What stands since the beginning does not count."""

    reason: str | None = field(STRING, tag=0, nullable="0+", default=None)


class RemoveDelegationTokenRecord(Struct, versions="0", flexible="0+"):
    """A delegation token is gone."""

    token_id: str = field(STRING)


class RegisterControllerRecord(Struct, versions="0", flexible="0+"):
    """A controller has come."""

    controller_id: int = field(INT32)
    incarnation_id: bytes = field(UUID)
    zk_migration_ready: bool = field(BOOL)
    end_points: list[RecordEndpoint] = field([RecordEndpoint])
    features: list[RecordFeature] = field([RecordFeature])


class ClearElrRecord(Struct, versions="0", flexible="0+"):
    """A topic's partitions have no eligible leader replicas any more; an empty name: no partition has."""

    topic_name: str = field(STRING)


RECORDS: Final[dict[int, type[Struct]]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    20: NoOpRecord,
    21: ZkMigrationStateRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
}
"""By the number that stands before a record."""

_NUMBERS: Final = {record: number for number, record in RECORDS.items()}


def decode_metadata(value: bytes) -> tuple[Struct, int]:
    """A record and its version. Raises ProtocolError when the bytes are none that is known."""
    frame, position = read_uvarint(value, 0, len(value))
    if frame != FRAME_VERSION:
        raise ProtocolError(f"a metadata record has frame version {frame}, only {FRAME_VERSION} is known")
    number, position = read_uvarint(value, position, len(value))
    version, position = read_uvarint(value, position, len(value))
    record = RECORDS.get(int(number))
    if record is None:
        raise ProtocolError(f"a metadata record has type {number}, which is not known: is Kafka a later one?")
    first, last = parse_versions(record.versions_)
    if not first <= version <= last:
        raise ProtocolError(f"a {record.__name__} has version {version}; {record.versions_} are known")
    return decode(record, int(version), value, int(position)), int(version)


def encode_metadata(record: Struct, version: int) -> bytes:
    """A record with what stands before it."""
    head = encode_uvarint(FRAME_VERSION) + encode_uvarint(_NUMBERS[type(record)]) + encode_uvarint(version)
    return bytes(head) + encode(record, version)
