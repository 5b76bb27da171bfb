"""Control records, checksums and transactional ids of the exactly-once sink."""

from __future__ import annotations

import os
import random
import re
import uuid
from typing import Any

import pytest

from tidemill.client.config import TWO_PHASE_COMMIT, ClientConfig
from tidemill.client.config_keys import PRODUCER
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.pipeline.exactly_once import task_transaction, transactional_ids
from tidemill.pipeline.exactly_once.compacted_records import CompactedRecords
from tidemill.pipeline.exactly_once.control_records import (
    Abandon,
    Batch,
    Begin,
    ControlRecord,
    ControlRecordError,
    Decision,
    Done,
    Lost,
    Place,
    RowSet,
    StoredRecord,
    Token,
    Transaction,
    Winner,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    new_record_id,
)
from tidemill.pipeline.exactly_once.row_checksum import Headers, RowChecksum
from tidemill.pipeline.missing_rights import needs
from tidemill.pipeline.process_local import ProcessLocal

BATCH, TOKEN = Batch("q ü", 7), Token("token")
WINNER = Winner(3, Transaction("id", 1 << 40, 5), RowSet(10, (1 << 64) - 1), Place("t", 2, 99))


@pytest.mark.parametrize(
    "record",
    [
        Begin(BATCH, TOKEN),
        Decision(BATCH, TOKEN, (WINNER, WINNER._replace(task=4)), 12),
        Decision(BATCH, TOKEN, ()),
        Abandon(BATCH, TOKEN),
        Lost(BATCH, TOKEN, 12, frozenset({1, 3})),
        Done(BATCH, TOKEN),
    ],
)
def test_a_record_is_decoded_as_it_was_encoded(record: ControlRecord) -> None:
    key = encode_key(BATCH.query, "id")
    assert decode_key(5, key) == (BATCH.query, "id")
    assert decode_value(5, decode_key(5, key), encode_value(record)) == record


def test_only_done_has_the_same_key_twice() -> None:
    ids = {new_record_id(Begin(BATCH, TOKEN)), new_record_id(Begin(BATCH, TOKEN))}
    assert len(ids) == 2
    assert new_record_id(Done(BATCH, TOKEN)) == new_record_id(Done(BATCH, Token("other"))) == "done-7"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"[]", b"{}"),
        (b'{"query":"q","id":"i"}', b"x"),
        (b'{"query":"q","id":"i"}', b'{"version":1,"type":"other","batch":1,"token":"t"}'),
        (b'{"query":"q","id":"i"}', b'{"version":1,"type":"lost","batch":1,"token":"t"}'),
        (b'{"query":"q","id":"i"}', b'{"version":1,"type":"decision","batch":1,"token":"t","winners":[[1]]}'),
    ],
)
def test_records_of_other_programs_are_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ControlRecordError, match="offset 4 is no record of the exactly-once sink"):
        decode_value(4, decode_key(4, key), value)


def test_a_record_of_a_later_version_is_refused() -> None:
    value = b'{"version":2,"type":"begin","batch":1,"token":"t"}'
    with pytest.raises(ControlRecordError, match="has version 2"):
        decode_value(4, decode_key(4, encode_key("q", "i")), value)


def random_log(random: random.Random) -> list[tuple[int, str, ControlRecord | None]]:
    """Returns offsets, ids and records of a query, with tombstones among them."""
    log: list[tuple[int, str, ControlRecord | None]] = []
    for offset in range(0, 60, 2):
        batch, token = Batch("q", random.randrange(3)), Token(random.choice("abc"))
        kind = random.randrange(10)
        record: ControlRecord | None
        if kind < 5:
            record = Begin(batch, token)
        elif kind < 7:
            record = Decision(batch, token, (WINNER,))
        elif kind < 8:
            record = Abandon(batch, token)
        elif kind < 9:
            record = Done(batch, token)
        else:
            record = None
        name = (
            random.choice(log)[1] if record is None and log else new_record_id(record or Begin(batch, token))
        )
        log.append((offset, name, record))
    return log


@pytest.mark.parametrize("seed", range(50))
def test_compacted_records_are_those_of_a_compacted_log(seed: int) -> None:
    log = random_log(random.Random(seed))
    for end in range(len(log) + 1):
        records = CompactedRecords()
        for one in log[:end]:
            records.add(*one)
        last = {name: offset for offset, name, _ in log[:end]}
        compacted = [
            StoredRecord(offset, name, record)
            for offset, name, record in log[:end]
            if record is not None and last[name] == offset
        ]
        assert list(records.stored) == compacted


def checksum(*rows: tuple[bytes | None, bytes | None], topic: str = "t") -> RowSet:
    made = RowChecksum()
    made.add(topic, [value for _, value in rows], [key for key, _ in rows])
    return made.row_set


def test_the_order_and_the_slices_of_rows_do_not_count() -> None:
    rows = [(str(number % 7).encode(), str(number).encode()) for number in range(100)]
    shuffled = random.Random(1).sample(rows, len(rows))
    sliced = RowChecksum()
    for start in range(0, len(shuffled), 9):
        part = shuffled[start : start + 9]
        sliced.add("t", [value for _, value in part], [key for key, _ in part])
    assert checksum(*rows) == sliced.row_set
    assert sliced.row_set.rows == 100


def test_different_rows_have_different_checksums() -> None:
    sets = [
        checksum((b"a", b"b"), (b"c", b"d")),
        checksum((b"a", b"d"), (b"c", b"b")),
        checksum((b"b", b"a"), (b"c", b"d")),
        checksum((b"a", b"b"), (b"c", b"d"), topic="u"),
        checksum((b"ab", b""), (b"c", b"d")),
        checksum((b"", b"ab"), (b"c", b"d")),
        checksum((None, b"ab"), (b"c", b"d")),
        checksum((b"a", None), (b"c", b"d")),
        checksum((b"a", b"b"), (b"a", b"b")),
    ]
    assert len(set(sets)) == len(sets)


def test_times_headers_and_partitions_count() -> None:
    def one(timestamp: int | None, headers: Headers | None, partition: int) -> RowSet:
        made = RowChecksum()
        made.add("t", [b"v"], None, [timestamp], [headers], [partition])
        return made.row_set

    sets = [
        one(1, None, 0),
        one(2, None, 0),
        one(None, None, 0),
        one(1, [("h", b"1")], 0),
        one(1, [("h", None)], 0),
        one(1, [("h", b"1"), ("h", b"1")], 0),
        one(1, None, 1),
    ]
    assert len(set(sets)) == len(sets)


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, "true"),
        ({TWO_PHASE_COMMIT: " TRUE"}, "true"),
        ({TWO_PHASE_COMMIT: "yes"}, "true"),
        ({TWO_PHASE_COMMIT: "False"}, "false"),
        ({TWO_PHASE_COMMIT: "no"}, "false"),
    ],
)
def test_two_phase_commit_is_tried_unless_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], first: str
) -> None:
    opened = []
    monkeypatch.setattr(task_transaction, "_opened", lambda *arguments: opened.append(arguments[2]))
    task_transaction._begun({"bootstrap.servers": "h:1", **given}, "id")
    assert [one[TWO_PHASE_COMMIT] for one in opened] == [first]


@pytest.mark.parametrize(
    ("code", "added"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, " needs the operation Write on the topic t"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, " on the transactional ids that begin with p"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
    ],
)
def test_authorization_errors_name_the_missing_right(code: ErrorCode, added: str) -> None:
    with pytest.raises(ClientError) as caught, needs("Write", topic="t", id_prefix="p"):
        raise ClientError("refused", code)
    assert caught.value.code is code
    assert str(caught.value).startswith("refused")
    assert str(caught.value).endswith(added)
    assert (str(caught.value) != "refused") is bool(added)


def test_a_two_phase_commit_is_tried_without_the_timeout_of_other_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def opened(*arguments: Any) -> None:
        made.append(ClientConfig(PRODUCER, {**arguments[0], "transactional.id": "id", **arguments[2]}))
        raise ClientError("refused", task_transaction.NO_TWO_PHASE_COMMIT[0])

    monkeypatch.setattr(task_transaction, "_opened", opened)
    given = {"bootstrap.servers": f"{uuid.uuid4()}:1", "transaction.timeout.ms": "60000"}
    with pytest.raises(ClientError):
        task_transaction._begun(given, "id")
    tried = [(one.bool(TWO_PHASE_COMMIT), one.int("transaction.timeout.ms")) for one in made]
    assert [tried[0][0], tried[1]] == [True, (False, 60_000)]


def test_an_id_is_used_again_for_a_later_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_ids, "_worker", ProcessLocal(transactional_ids.Worker))
    first = transactional_ids.unused_id("p", "q", 1)
    second = transactional_ids.unused_id("p", "q", 1)
    assert first != second
    assert {transactional_ids.unused_id("p", "q", 2) for _ in range(2)} == {first, second}
    assert transactional_ids.unused_id("p", "q", 2) not in (first, second)
    assert transactional_ids.unused_id("p", "other", 3).startswith("p-other-")


@pytest.mark.parametrize("longer", ["write-a-b", "write-a-0123456789abcdef-0", "write-a-"])
def test_the_pattern_of_a_query_does_not_match_ids_of_a_query_with_a_longer_name(longer: str) -> None:
    pattern = transactional_ids.pattern_of("p", "write-a")
    assert re.fullmatch(pattern, transactional_ids.unused_id("p", "write-a", 1))
    assert not re.fullmatch(pattern, transactional_ids.unused_id("p", longer, 1))


def test_a_forked_worker_uses_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    own = transactional_ids.unused_id("p", "forked", 1)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert transactional_ids.unused_id("p", "forked", 2) != own
