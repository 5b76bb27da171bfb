"""The records of KRaft's metadata, in which Apache Kafka without ZooKeeper stores the state of a cluster.

The log ``__cluster_metadata-0`` and its snapshots contain them, without keys. The format of a value is:

=================  ================  ==================================================
field              type              notes
=================  ================  ==================================================
frame version      UNSIGNED_VARINT   1
type               UNSIGNED_VARINT   the type of the record, :data:`RECORDS`
version            UNSIGNED_VARINT   the version of the record's schema
record             ...               the fields below, all flexible
=================  ================  ==================================================

Records between the begin and the end of a transaction are applied at the end record; after an abort they are
ignored.

Source: Apache Kafka 4.3, the schemas below ``metadata/src/main/resources/common/metadata``, and
``MetadataRecordSerde.java``; KIP-631, KIP-868 (transactions), KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from typing import Final

from tidemill.model.errors import ProtocolError
from tidemill.wire.codec import decode
from tidemill.wire.messages.broker_registration import Feature, Listener
from tidemill.wire.messages.describe_client_quotas import EntityData
from tidemill.wire.primitives import read_uvarint
from tidemill.wire.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    Struct,
    contains,
    field,
)

FRAME_VERSION: Final = 1
NO_LEADER_CHANGE: Final = -2


class RegisterBrokerRecord(Struct, versions="0-4", flexible="0+"):
    """Registers a broker."""

    broker_id: int = field(INT32)
    is_migrating_zk_broker: bool = field(BOOL, "2+")
    incarnation_id: bytes = field(UUID)
    broker_epoch: int = field(INT64)
    end_points: list[Listener] = field([Listener])
    features: list[Feature] = field([Feature])
    rack: str | None = field(STRING, nullable="0+")
    fenced: bool = field(BOOL, default=True)
    in_controlled_shutdown: bool = field(BOOL, "1+")
    log_dirs: list[bytes] = field([UUID], "3+", tag=0)
    cordoned_log_dirs: list[bytes] | None = field([UUID], "4+", tag=1, nullable="4+", default=None)


class UnregisterBrokerRecord(Struct, versions="0", flexible="0+"):
    """Unregisters a broker."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64)


class TopicRecord(Struct, versions="0", flexible="0+"):
    """Creates a topic."""

    name: str = field(STRING)
    topic_id: bytes = field(UUID)


class PartitionRecord(Struct, versions="0-2", flexible="0+"):
    """Creates a partition with its state."""

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
    """A setting of a topic (2), a broker (4, an empty name for all), a group or client metrics."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


class PartitionChangeRecord(Struct, versions="0-2", flexible="0+"):
    """Changes a partition; a null field (-2 for the leader) is unchanged."""

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
    """Fences a broker, which no longer answers."""

    id: int = field(INT32)
    epoch: int = field(INT64)


class UnfenceBrokerRecord(Struct, versions="0", flexible="0+"):
    """Unfences a broker, which answers again."""

    id: int = field(INT32)
    epoch: int = field(INT64)


class RemoveTopicRecord(Struct, versions="0", flexible="0+"):
    """Removes a topic with its partitions and settings."""

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
    """A user's SCRAM credential."""

    name: str = field(STRING)
    mechanism: int = field(INT8)
    salt: bytes = field(BYTES, secret=True)
    stored_key: bytes = field(BYTES, secret=True)
    server_key: bytes = field(BYTES, secret=True)
    iterations: int = field(INT32)


class FeatureLevelRecord(Struct, versions="0", flexible="0+"):
    """The level of a feature in the cluster, such as ``metadata.version``."""

    name: str = field(STRING)
    feature_level: int = field(INT16)


class ClientQuotaRecord(Struct, versions="0", flexible="0+"):
    """A quota of a user, a client or an address."""

    entity: list[EntityData] = field([EntityData])
    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


class ProducerIdsRecord(Struct, versions="0", flexible="0+"):
    """Allocates a block of producer ids to a broker; the next block starts at ``next_producer_id``."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    next_producer_id: int = field(INT64)


class BrokerRegistrationChangeRecord(Struct, versions="0-3", flexible="0+"):
    """Changes the registration of a broker."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64)
    fenced: int = field(INT8, tag=0)
    in_controlled_shutdown: int = field(INT8, "1+", tag=1)
    log_dirs: list[bytes] = field([UUID], "2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = field([UUID], "3+", tag=3, nullable="3+", default=None)


class AccessControlEntryRecord(Struct, versions="0", flexible="0+"):
    """An access control entry."""

    id: bytes = field(UUID)
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


class RemoveAccessControlEntryRecord(Struct, versions="0", flexible="0+"):
    """Removes an access control entry."""

    id: bytes = field(UUID)


class NoOpRecord(Struct, versions="0", flexible="0+"):
    """No operation: advances the log."""


class ZkMigrationStateRecord(Struct, versions="0", flexible="0+"):
    """The state of a migration from ZooKeeper."""

    zk_migration_state: int = field(INT8)


class RemoveUserScramCredentialRecord(Struct, versions="0", flexible="0+"):
    """Removes a user's SCRAM credential."""

    name: str = field(STRING)
    mechanism: int = field(INT8)


class BeginTransactionRecord(Struct, versions="0", flexible="0+"):
    """Begins a transaction: the records after it are applied at its end record."""

    name: str | None = field(STRING, tag=0, nullable="0+", default=None)


class EndTransactionRecord(Struct, versions="0", flexible="0+"):
    """Ends a transaction: its records are applied."""


class AbortTransactionRecord(Struct, versions="0", flexible="0+"):
    """Aborts a transaction: its records are ignored."""

    reason: str | None = field(STRING, tag=0, nullable="0+", default=None)


class RemoveDelegationTokenRecord(Struct, versions="0", flexible="0+"):
    """Removes a delegation token."""

    token_id: str = field(STRING)


class RegisterControllerRecord(Struct, versions="0", flexible="0+"):
    """Registers a controller."""

    controller_id: int = field(INT32)
    incarnation_id: bytes = field(UUID)
    zk_migration_ready: bool = field(BOOL)
    end_points: list[Listener] = field([Listener])
    features: list[Feature] = field([Feature])


class ClearElrRecord(Struct, versions="0", flexible="0+"):
    """Clears the eligible leader replicas of a topic's partitions; with an empty name, of all partitions."""

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
"""The record classes by type number."""


def decode_metadata(value: bytes) -> tuple[Struct, int]:
    """Decodes a record; returns it and its version. Raises ProtocolError for unknown or invalid bytes."""
    frame, position = read_uvarint(value, 0, len(value))
    if frame != FRAME_VERSION:
        raise ProtocolError(f"a metadata record has frame version {frame}, only {FRAME_VERSION} is supported")
    number, position = read_uvarint(value, position, len(value))
    version, position = read_uvarint(value, position, len(value))
    record = RECORDS.get(int(number))
    if record is None:
        raise ProtocolError(f"a metadata record has the unknown type {number}: is it from a later Kafka?")
    if not contains(record.versions_, int(version)):
        raise ProtocolError(f"a {record.__name__} has version {version}; {record.versions_} are supported")
    return decode(record, int(version), value, int(position)), int(version)
