"""Decodes records to text for ``tidemill log dump``, in the format of ``kafka-dump-log``'s decoders."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from tidemill.groups.offset_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidemill.interchange.json_text import compact, plain
from tidemill.interchange.metadata_records import decode_metadata
from tidemill.log_tools.dump import UTF8, Decoder, text_decoder
from tidemill.log_tools.java_text import java_text
from tidemill.model.errors import ConfigError, ProtocolError
from tidemill.records.record_reader import Record
from tidemill.transactions.transaction_log import TransactionLogKey, TransactionLogValue
from tidemill.wire.codec import decode, decode_prefix, version_of
from tidemill.wire.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidemill.wire.schema import INT16, INT32, INT64, UUID, Struct, field, parse_versions

DELETED: Final = "<DELETE>"
Texts = tuple[str | None, str | None]


class SnapshotHeaderRecord(Struct, versions="0", flexible="0+"):
    """The first record of a metadata snapshot."""

    version: int = field(INT16)
    last_contained_log_timestamp: int = field(INT64)


class SnapshotFooterRecord(Struct, versions="0", flexible="0+"):
    """The last record of a metadata snapshot."""

    version: int = field(INT16)


class KRaftVersionRecord(Struct, versions="0", flexible="0+"):
    """The version of the KRaft protocol."""

    version: int = field(INT16)
    k_raft_version: int = field(INT16)


class RaftVoter(Struct):
    """A voter of the controller quorum."""

    voter_id: int = field(INT32)
    voter_directory_id: bytes = field(UUID, "1+")


class LeaderChangeMessage(Struct, versions="0-1", flexible="0+"):
    """The election of a controller."""

    version: int = field(INT16)
    leader_id: int = field(INT32)
    voters: list[RaftVoter] = field([RaftVoter])
    granting_voters: list[RaftVoter] = field([RaftVoter])


_CONTROLS: Final[dict[int, tuple[str, type[Struct]]]] = {
    2: ("LeaderChange:", LeaderChangeMessage),
    3: ("SnapshotHeader", SnapshotHeaderRecord),
    4: ("SnapshotFooter", SnapshotFooterRecord),
    5: ("KRaftVersion", KRaftVersionRecord),
}


def control_text(control_type: int, value: bytes | None) -> str | None:
    """Returns the text of a control record of KRaft's log; None for an unknown or invalid one."""
    known = _CONTROLS.get(control_type)
    if known is None or value is None:
        return None
    name, kind = known
    try:
        version = version_of(value)  # these records start with their version
        message = decode(kind, version, value)
    except ProtocolError:
        return None
    return f"{name} {compact(plain(message, version))}"


def metadata(record: Record) -> Texts:
    """``--cluster-metadata-decoder``."""
    try:
        message, version = decode_metadata(record.value or b"")
    except ProtocolError as problem:
        return None, f"Error at {record.offset}, skipping. {problem}"
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(message).__name__).upper()
    return None, compact({"type": name, "version": version, "data": plain(message, version)})


def transactions(record: Record) -> Texts:
    """``--transaction-log-decoder``."""
    return _texts(record, {0: (TransactionLogKey, TransactionLogValue)})


def offsets(record: Record) -> Texts:
    """``--offsets-decoder``."""
    return _texts(
        record,
        {
            0: (OffsetCommitKey, OffsetCommitValue),
            1: (OffsetCommitKey, OffsetCommitValue),
            2: (GroupMetadataKey, GroupMetadataValue),
        },
    )


def _texts(record: Record, kinds: dict[int, tuple[type[Struct], type[Struct]]]) -> Texts:
    key, value, offset = record.key, record.value, record.offset
    try:
        version = version_of(key)
        if version not in kinds:
            return f"Unknown record type {version} at offset {offset}, skipping.", None
        key_kind, value_kind = kinds[version]
        name = decode(key_kind, version, key or b"", 2)
        key_text = compact({"type": str(version), "data": plain(name, version)})
        if value is None:
            return key_text, DELETED
        version = version_of(value)
        message = decode(value_kind, version, value, 2)
        shown = plain(message, version)
    except ProtocolError as problem:
        return f"Error at offset {offset}, skipping. {problem}", None
    if isinstance(message, GroupMetadataValue) and message.protocol_type == "consumer":
        for member, member_shown in zip(message.members, shown["members"], strict=True):
            member_shown["subscription"] = _embedded(
                ConsumerProtocolSubscription, member.subscription, member_shown["subscription"]
            )
            member_shown["assignment"] = _embedded(
                ConsumerProtocolAssignment, member.assignment, member_shown["assignment"]
            )
    return key_text, compact({"version": str(version), "data": shown})


def _embedded(kind: type[Struct], data: bytes, otherwise: Any) -> Any:
    """Decodes a message of the consumer protocol; returns ``otherwise`` if that fails."""
    try:
        version = version_of(data)
        if version > parse_versions(kind.versions_)[1] or version < 0:
            return otherwise
        message, _ = decode_prefix(kind, version, data, 2, len(data))
        return plain(message, version)
    except ProtocolError:
        return otherwise


def _number(size: int, data: bytes) -> str:
    if len(data) != size:
        raise ConfigError(f"a record has {len(data)} bytes, but a number has {size}: choose another decoder")
    return str(int.from_bytes(data, "big", signed=True))


CLASSES: Final[dict[str, Callable[[bytes], str]]] = {
    "StringDecoder": java_text,
    "IntegerDecoder": lambda data: _number(4, data),
    "LongDecoder": lambda data: _number(8, data),
    "DefaultDecoder": lambda data: data.hex(),
}
"""Decoders by Kafka's class name. Kafka's ``DefaultDecoder`` prints an address in memory; here, the bytes."""


def by_class(key_class: str | None, value_class: str | None) -> Decoder:
    """Returns the decoder of ``--key-decoder-class`` and ``--value-decoder-class``. Raises ConfigError."""
    found = []
    for name in (key_class, value_class):
        decoder = CLASSES.get((name or "StringDecoder").rpartition(".")[2])
        if decoder is None:
            known = ", ".join(CLASSES)
            raise ConfigError(f"the decoder {name} is an unknown Java class; {known} are supported")
        found.append(decoder)
    return UTF8 if found == [CLASSES["StringDecoder"]] * 2 else text_decoder(*found)
