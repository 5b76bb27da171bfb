"""Fetch sessions (KIP-227) over a connection: full and incremental responses, epochs, limits, ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import IDS, Bench, Client, batch, bench_in, parts_of, values_of

from tidemill.broker import fetch_session
from tidemill.broker.fetch_session import EVICT_AFTER_MS
from tidemill.model.errors import ErrorCode

VERSIONS = range(7, 19)
LONG_MS = 60_000
ALL: dict[Any, Any] = {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}


@pytest.fixture(params=[False, True], ids=["at-once", "in-slices"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Two topics, and the handlers for them."""
    with bench_in(tmp_path, in_slices=request.param) as one:
        yield one


def begin(client: Client, version: int = 11, parts: Any = None) -> int:
    """Creates a session with all partitions. Returns its id."""
    client.fetch(version, ALL if parts is None else parts, session_epoch=0)
    response = client.fetched(version)
    assert response.error_code == 0
    assert list(parts_of(response)) == list(ALL if parts is None else parts)
    session: int = response.session_id
    return session


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_sends_all_partitions_first_and_changes_afterwards(bench: Bench, version: int) -> None:
    client, writer = bench.client(), bench.client()
    writer.append(b"a")
    session = begin(client, version)
    assert session > 0
    bench.clock.now_ms += 1000
    # Without changes the response has neither partitions nor topics.
    client.fetch(version, {("t", 0): 1}, session_id=session, session_epoch=1)
    response = client.fetched(version)
    assert (response.error_code, response.session_id, response.responses) == (0, session, [])
    writer.append(b"b", index=1)
    client.fetch(version, {}, session_id=session, session_epoch=2)
    found = parts_of(client.fetched(version))
    assert list(found) == [("t", 1)]
    assert values_of(found["t", 1]) == [b"b"]
    # The fetch offset has not advanced: the response has the same records again.
    client.fetch(version, {}, session_id=session, session_epoch=3)
    assert list(parts_of(client.fetched(version))) == [("t", 1)]
    client.fetch(version, {("t", 1): 1}, session_id=session, session_epoch=4)
    assert parts_of(client.fetched(version)) == {}


def test_changed_partitions_are_in_the_order_of_the_session(bench: Bench) -> None:
    client, writer = bench.client(), bench.client()
    session = begin(client)
    for topic, index in reversed(ALL):
        writer.append(b"a", topic=topic, index=index)
    client.fetch(11, {}, session_id=session, session_epoch=1)
    assert list(parts_of(client.fetched(11))) == list(ALL)


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_are_added_to_and_forgotten_by_a_session(bench: Bench, version: int) -> None:
    client, writer = bench.client(), bench.client()
    session = begin(client, version, {("t", 0): 0})
    client.fetch(version, {("t", 1): 0, ("t", 2): 0}, session_id=session, session_epoch=1)
    assert list(parts_of(client.fetched(version))) == [("t", 1), ("t", 2)]
    for index in range(3):
        writer.append(b"a", index=index)
    client.fetch(version, {}, forgotten=[("t", 1), ("u", 0)], session_id=session, session_epoch=2)
    assert sorted(parts_of(client.fetched(version))) == [("t", 0), ("t", 2)]
    assert bench.sessions.partition_count == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wrong_epoch_and_an_unknown_session_are_errors(bench: Bench, version: int) -> None:
    client = bench.client()
    session = begin(client, version)
    for session_id, epoch, code in (
        (session, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session, 0x7FFFFFFF, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session, -2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session ^ 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (-1, 5, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ):
        client.fetch(version, {}, session_id=session_id, session_epoch=epoch, max_wait_ms=LONG_MS)
        response = client.fetched(version)
        assert (response.error_code, response.session_id, response.responses) == (code, 0, [])
    client.fetch(version, {}, session_id=session, session_epoch=1)
    assert client.fetched(version).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_ends_on_request_and_with_a_new_one(bench: Bench, version: int) -> None:
    client = bench.client()
    session = begin(client, version)
    client.fetch(version, {("t", 0): 0}, session_id=session, session_epoch=-1)
    response = client.fetched(version)
    assert (response.error_code, response.session_id) == (0, 0)
    assert list(parts_of(response)) == [("t", 0)]
    assert bench.sessions.sessions == {}
    session = begin(client, version)
    client.fetch(version, ALL, session_id=session, session_epoch=0)
    again = client.fetched(version)
    assert again.session_id not in (0, session)
    assert list(bench.sessions.sessions) == [again.session_id]
    assert bench.sessions.partition_count == len(ALL)


def test_errors_are_in_every_response(bench: Bench) -> None:
    client = bench.client()
    session = begin(client, 11, {("t", 0): 0, ("nowhere", 0): 0})
    for epoch in (1, 2):
        client.fetch(11, {}, session_id=session, session_epoch=epoch, max_wait_ms=LONG_MS)
        found = parts_of(client.fetched(11))
        assert list(found) == [("nowhere", 0)]
        assert found["nowhere", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_created_later_is_found(bench: Bench) -> None:
    client = bench.client()
    session = begin(client, 11, {("nowhere", 0): 0})
    bench.put("nowhere", 1)
    client.fetch(11, {}, session_id=session, session_epoch=1)
    assert parts_of(client.fetched(11))["nowhere", 0].error_code == 0
    client.append(b"a", topic="nowhere")
    client.fetch(11, {}, session_id=session, session_epoch=2)
    assert values_of(parts_of(client.fetched(11))["nowhere", 0]) == [b"a"]


@pytest.mark.parametrize("version", [11, 17])
def test_a_deleted_topic_is_an_error_and_a_recreated_one_is_found_by_name(bench: Bench, version: int) -> None:
    client = bench.client()
    session = begin(client, version, {("t", 0): 0})
    list(bench.manager.deleting("t", IDS["t"]))
    client.fetch(version, {}, session_id=session, session_epoch=1)
    code = parts_of(client.fetched(version))["t", 0].error_code
    assert code == (ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    bench.put("t", 1)
    client.append(b"a")
    client.fetch(version, {}, session_id=session, session_epoch=2)
    assert values_of(parts_of(client.fetched(version))["t", 0]) == [b"a"]


def test_a_changed_log_start_or_high_watermark_is_sent(bench: Bench) -> None:
    client, writer = bench.client(), bench.client()
    writer.append(b"a", b"b")
    session = begin(client, 11, {("t", 0): 2})
    bench.partition().advance_start(1)
    client.fetch(11, {}, session_id=session, session_epoch=1)
    assert parts_of(client.fetched(11))["t", 0].log_start_offset == 1
    client.fetch(11, {}, session_id=session, session_epoch=2)
    assert parts_of(client.fetched(11)) == {}


def test_partitions_with_records_move_to_the_end(bench: Bench) -> None:
    client, writer = bench.client(), bench.client()
    for index in range(3):
        for _ in range(3):
            writer.append(b"x" * 1000, index=index)
    session = begin(client, 11, {("t", index): 0 for index in range(3)})
    offsets = [0, 0, 0]
    served = []
    for epoch in range(1, 10):
        # Each response has room for one batch: in a fixed order the last partition would starve.
        client.fetch(11, {}, session_id=session, session_epoch=epoch, max_bytes=1)
        (key,) = [key for key, part in parts_of(client.fetched(11)).items() if part.records]
        served.append(key[1])
        offsets[key[1]] += 1
    assert sorted(served) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(set(served[:3])) == 3


def test_an_incremental_fetch_waits_for_all_partitions_of_the_session(bench: Bench) -> None:
    client = bench.client()
    session = begin(client)
    client.fetch(11, {}, session_id=session, session_epoch=1, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    bench.client().append(b"a", topic="u")
    assert values_of(parts_of(client.fetched(11))["u", 0]) == [b"a"]
    client.fetch(11, {("u", 0): 1}, session_id=session, session_epoch=2, max_wait_ms=30)
    assert parts_of(client.fetched(11)) == {}


def test_a_session_outlives_its_connection(bench: Bench) -> None:
    client = bench.client()
    session = begin(client)
    client.fetch(11, {}, session_id=session, session_epoch=1, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    client.close()
    bench.until(lambda: bench.fetches.waiting == 0)
    other = bench.client()
    other.append(b"a")
    other.fetch(11, {}, session_id=session, session_epoch=2)
    assert values_of(parts_of(other.fetched(11))["t", 0]) == [b"a"]


def test_a_full_cache_creates_no_session_until_one_may_be_evicted(tmp_path: Path) -> None:
    with bench_in(tmp_path, sessions_max=2) as bench:
        client = bench.client()
        first, second = begin(client), begin(client)
        assert first
        assert second
        bench.clock.now_ms += EVICT_AFTER_MS - 1
        assert begin(client) == 0
        client.fetch(11, {}, session_id=first, session_epoch=1)
        assert client.fetched(11).error_code == 0
        bench.clock.now_ms += 1
        third = begin(client)
        assert set(bench.sessions.sessions) == {first, third}
        client.fetch(11, {}, session_id=second, session_epoch=1)
        assert client.fetched(11).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert bench.sessions.partition_count == 2 * len(ALL)


def test_the_session_cache_may_be_disabled(tmp_path: Path) -> None:
    with bench_in(tmp_path, sessions_max=0) as bench:
        assert begin(bench.client()) == 0


def test_the_partitions_of_all_sessions_are_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(fetch_session, "__file__") and not fetch_session.__file__.endswith(".py"):
        pytest.skip("a constant of a compiled module cannot be changed")
    monkeypatch.setattr(fetch_session, "PARTITIONS_MAX", 4)
    client = bench.client()
    session = begin(client)
    assert begin(client) == 0
    client.fetch(11, {("t", 2): 0}, session_id=session, session_epoch=1)
    assert client.fetched(11).error_code == 0
    client.fetch(11, {("nowhere", 2): 0}, session_id=session, session_epoch=2)
    assert client.fetched(11).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (bench.sessions.sessions, bench.sessions.partition_count) == ({}, 0)


def test_a_session_by_name_rejects_requests_by_id(bench: Bench) -> None:
    client = bench.client()
    for first, second in ((12, 13), (17, 11)):
        session = begin(client, first)
        client.fetch(second, {}, session_id=session, session_epoch=1)
        response = client.fetched(second)
        assert (response.error_code, response.session_id) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0)
        client.fetch(first, {}, session_id=session, session_epoch=1)
        assert client.fetched(first).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_wraps_around_to_1(bench: Bench) -> None:
    client = bench.client()
    session = begin(client)
    bench.sessions.sessions[session].epoch = 0x7FFFFFFF
    for epoch in (0x7FFFFFFF, 1, 2):
        client.fetch(11, {}, session_id=session, session_epoch=epoch)
        assert client.fetched(11).error_code == 0


def test_a_fetch_with_the_wrong_session_epoch_is_refused(bench: Bench) -> None:
    client = bench.client()
    session = begin(client)
    client.fetch(11, {}, session_id=session, session_epoch=2)
    assert client.fetched(11).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_two_connections_may_share_a_session(bench: Bench) -> None:
    first, second = bench.client(), bench.client()
    session = begin(first)
    first.fetch(11, {}, session_id=session, session_epoch=1, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    second.fetch(11, {}, session_id=session, session_epoch=2, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 2)
    writer = bench.client()
    writer.produce(9, {("t", 0): batch(b"a")})
    assert writer.produced(9)[0].error_code == 0
    for client in (first, second):
        assert values_of(parts_of(client.fetched(11))["t", 0]) == [b"a"]
    assert bench.fetches.waiting == 0
