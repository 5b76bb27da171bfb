"""The records of the control topic, in which the exactly-once sink orders the steps of its batches.

All records of a query are in one partition. Key and value are JSON objects in UTF-8, without spaces:

    key     {"query":QUERY,"id":ID}
    value   {"version":1,"type":TYPE,"batch":BATCH,"token":TOKEN, …}

==========  =========================================  =======================================================
type        further fields                             meaning
==========  =========================================  =======================================================
begin                                                  an attempt with this token writes the batch
decision    winners: [[task, transactional id,         these transactions are the batch, and are committed
            producer id, epoch, rows, checksum,
            topic, partition, offset], …]
            replaces: offset of the decision
            before, or -1
abandon                                                a later decision of this token is not valid
lost        decision: offset, tasks: [task, …]         transactions of a decision that were aborted
done                                                   all rows of the batch are committed
==========  =========================================  =======================================================

Each record has an id of its own, so that compaction removes none and never changes their order. Only ``done``
has the same id whoever appends it: ``done-BATCH``. With one id for all batches, a former driver that appends
its ``done`` late would replace that of a later batch. After ``done`` the records of the batch and of batches
before are deleted with tombstones, but not that ``done`` itself.

Not promised: that a reader finds the records of a batch that is done.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NewType

from tidemill.model.errors import TidemillError

VERSION: Final = 1
NO_DECISION: Final = -1
"""Instead of the offset of a decision: there is none."""

Token = NewType("Token", str)
"""Identifies an attempt to write a batch: one run of Spark's tasks, with its retried tasks."""


class Batch(NamedTuple):
    """A batch of a query. The batches of a query are written one after the other."""

    query: str
    number: int


class Transaction(NamedTuple):
    """An open transaction, or one that has ended."""

    transactional_id: str
    producer_id: int
    epoch: int


class Place(NamedTuple):
    """The place of a record in a log."""

    topic: str
    partition: int
    offset: int


class RowSet(NamedTuple):
    """Row count and checksum of the rows of a task, in any order."""

    rows: int
    checksum: int


class Winner(NamedTuple):
    """The transaction with the rows of a task."""

    task: int
    transaction: Transaction
    rows: RowSet
    sample: Place
    """One of its records: whether that is visible tells whether the transaction was committed."""


@dataclass(frozen=True, slots=True)
class Begin:
    """An attempt begins to write the batch."""

    batch: Batch
    token: Token


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions that form the batch."""

    batch: Batch
    token: Token
    winners: tuple[Winner, ...]
    replaces: int = NO_DECISION
    """The offset of the decision whose lost winners it replaces."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """An attempt has failed: its decision, if that arrives later, is not valid."""

    batch: Batch
    token: Token


@dataclass(frozen=True, slots=True)
class Lost:
    """Winners of a decision whose transactions were aborted, because they timed out."""

    batch: Batch
    token: Token
    decision: int
    """The offset of the decision."""
    tasks: frozenset[int]


@dataclass(frozen=True, slots=True)
class Done:
    """All transactions of the batch were committed."""

    batch: Batch
    token: Token


ControlRecord = Begin | Decision | Abandon | Lost | Done


class StoredRecord(NamedTuple):
    """A record in the control topic."""

    offset: int
    record_id: str
    """Of its key."""
    record: ControlRecord


_TYPES: Final[Mapping[str, type[ControlRecord]]] = {
    "begin": Begin,
    "decision": Decision,
    "abandon": Abandon,
    "lost": Lost,
    "done": Done,
}
_NAMES: Final = {one: name for name, one in _TYPES.items()}


def new_record_id(record: ControlRecord) -> str:
    """Returns the id of a record that is to be appended."""
    return f"done-{record.batch.number}" if isinstance(record, Done) else uuid.uuid4().hex


def encode_key(query: str, record_id: str) -> bytes:
    """Returns the key of a record."""
    return _dump({"query": query, "id": record_id})


def encode_value(record: ControlRecord) -> bytes:
    """Returns the value of a record."""
    fields: dict[str, Any] = {
        "version": VERSION,
        "type": _NAMES[type(record)],
        "batch": record.batch.number,
        "token": record.token,
    }
    if isinstance(record, Decision):
        fields["winners"] = [[one.task, *one.transaction, *one.rows, *one.sample] for one in record.winners]
        fields["replaces"] = record.replaces
    elif isinstance(record, Lost):
        fields["decision"], fields["tasks"] = record.decision, sorted(record.tasks)
    return _dump(fields)


class RecordKey(NamedTuple):
    """The key of a record, or of the tombstone that deletes it."""

    query: str
    record_id: str


def decode_key(offset: int, key: bytes | None) -> RecordKey:
    """Decodes the key of a record. Raises ControlRecordError."""
    try:
        names = json.loads(key or b"")
        return RecordKey(str(names["query"]), str(names["id"]))
    except (ValueError, KeyError, TypeError) as problem:
        raise _not_ours(offset, problem) from problem


def decode_value(offset: int, key: RecordKey, value: bytes) -> ControlRecord:
    """Decodes the value of a record. Raises ControlRecordError."""
    try:
        fields = json.loads(value)
        if fields["version"] != VERSION:
            raise ControlRecordError(
                f"the record at offset {offset} has version {fields['version']}, and {VERSION} is known: a"
                " later version of Tidemill has written it; use that version"
            )
        batch, token = Batch(key.query, int(fields["batch"])), Token(fields["token"])
        return _record(fields, batch, token)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise _not_ours(offset, problem) from problem


def _not_ours(offset: int, problem: Exception) -> ControlRecordError:
    return ControlRecordError(
        f"the record at offset {offset} is no record of the exactly-once sink ({problem!r}): does another"
        " program write to this topic? set controlTopic to a topic that nothing else uses"
    )


def _record(fields: Mapping[str, Any], batch: Batch, token: Token) -> ControlRecord:
    kind = _TYPES[fields["type"]]
    if kind is Decision:
        winners = tuple(_winner(one) for one in fields["winners"])
        return Decision(batch, token, winners, int(fields["replaces"]))
    if kind is Lost:
        return Lost(batch, token, int(fields["decision"]), frozenset(map(int, fields["tasks"])))
    return kind(batch, token)  # type: ignore[call-arg]


def _winner(fields: list[Any]) -> Winner:
    task, transactional_id, producer_id, epoch, rows, checksum, topic, partition, offset = fields
    return Winner(
        int(task),
        Transaction(str(transactional_id), int(producer_id), int(epoch)),
        RowSet(int(rows), int(checksum)),
        Place(str(topic), int(partition), int(offset)),
    )


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


class ControlRecordError(TidemillError):
    """A record of the control topic that cannot be decoded."""
