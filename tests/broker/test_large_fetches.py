"""Fetches with many partitions: they are handled in slices, and miss no change between these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths_bench import FETCH, Bench, batch, bench_in, fetch_request, parts_of, values_of

from tidemill.broker import large_fetches, large_requests
from tidemill.broker.large_fetches import LargeFetch
from tidemill.model.errors import ErrorCode
from tidemill.records.batch import parse_batch
from tidemill.wire.header import encode_request
from tidemill.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

MANY = 15_000
LONG_MS = 60_000


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench that handles large fetches in slices, as the server does."""
    with bench_in(tmp_path) as one:
        yield one


@pytest.fixture
def sliced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench on which every fetch is large, and each partition is a slice."""
    monkeypatch.setattr(large_fetches, "PARTITIONS_PER_SLICE", 1)
    monkeypatch.setattr(large_requests, "REQUEST_SLICE_S", -1.0)
    monkeypatch.setattr(large_requests, "CLOCK_READS_MIN", 0)
    with bench_in(tmp_path, in_slices=True) as one:
        yield one


def many(count: int = MANY) -> Any:
    """A request for the three partitions of ``t``, and ``count`` unknown ones."""
    request = fetch_request(11, {}, min_bytes=1)
    wanted = [FetchPartition(partition=one, partition_max_bytes=1 << 20) for one in range(count)]
    request.topics = [FetchTopic(topic="t", partitions=wanted)]
    return request


def waiters(bench: Bench) -> list[int]:
    """The number of waiters of each partition of ``t``."""
    return [len(bench.partition("t", one).delayed.fetches) for one in range(3)]


@pytest.mark.parametrize("epoch", [-1, 0], ids=["no session", "new session"])
def test_a_large_fetch_does_not_block_the_event_loop(bench: Bench, epoch: int) -> None:
    client = bench.client()
    client.append(b"a", index=2)
    request = many()
    request.session_epoch = epoch
    client.send_bytes(encode_request(FETCH, 11, 7, "client", request))
    passes = 0

    def count() -> None:
        nonlocal passes
        passes += 1
        bench.loop.call_soon(count)

    bench.loop.call_soon(count)
    bench.turn(0)
    while bench.tasks:
        bench.turn(0)
    response = client.answer(FETCH, 11, 7)
    assert passes > 5
    found = parts_of(response)
    assert len(found) == MANY
    assert values_of(found["t", 2]) == [b"a"]
    assert [found["t", one].error_code for one in (0, 1, 2)] == [0, 0, 0]
    assert found["t", MANY - 1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (response.session_id != 0) == (epoch == 0)
    assert bench.sessions.partition_count == (MANY if epoch == 0 else 0)


def test_a_large_session_continues_and_ends(bench: Bench) -> None:
    client = bench.client()
    request = many()
    request.session_epoch = 0
    client.send(FETCH, 11, request)
    session = client.answer(FETCH, 11).session_id
    client.append(b"a", index=1)
    # Unknown partitions are changed in every fetch, and are more than the limit for one turn.
    client.fetch(11, {}, session_id=session, session_epoch=1)
    found = parts_of(client.fetched(11))
    assert len(found) == MANY - 2
    assert values_of(found["t", 1]) == [b"a"]
    request = fetch_request(11, {("t", 1): 1}, session_id=session, session_epoch=2)
    request.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=list(range(3, MANY)))]
    client.send(FETCH, 11, request)
    assert list(parts_of(client.fetched(11))) == []
    assert bench.sessions.partition_count == 3
    client.fetch(11, {}, session_id=session, session_epoch=-1)
    client.fetched(11)
    assert waiters(bench) == [0, 0, 0]


def test_an_ended_large_session_unregisters_all_partitions(bench: Bench) -> None:
    client = bench.client()
    request = many()
    request.session_epoch = 0
    client.send(FETCH, 11, request)
    session = client.answer(FETCH, 11).session_id
    assert waiters(bench) == [1, 1, 1]
    client.fetch(11, {}, session_id=session, session_epoch=-1)
    client.fetched(11)
    bench.until(lambda: not bench.tasks)
    assert waiters(bench) == [0, 0, 0]
    assert bench.sessions.partition_count == 0


@pytest.mark.parametrize(("appended", "is_sliced"), [(5, False), (6, True), (20, True)])
def test_completing_a_fetch_with_many_changes_does_not_block_the_event_loop(
    sliced: Bench, appended: int, *, is_sliced: bool
) -> None:
    sliced.put("t", 20)
    client = sliced.client()
    client.fetch(11, {("t", index): 0 for index in range(20)}, session_epoch=0)
    session = client.fetched(11).session_id
    sliced.fetches.large_bytes = 1 << 20
    sliced.fetches.large_partitions = 5
    client.fetch(11, {}, session_id=session, session_epoch=1, max_wait_ms=LONG_MS)
    sliced.until(lambda: sliced.fetches.waiting == 1)
    data = batch(b"a")
    for index in range(appended):
        sliced.partition("t", index).append(parse_batch(data, 0, len(data)), 1, 0)
    passes = 0
    while not client.has_answer():
        sliced.turn(0)
        passes += 1
    assert (passes >= appended) == is_sliced
    assert len(parts_of(client.fetched(11))) == appended


@pytest.mark.parametrize("epoch", [-1, 0], ids=["no session", "new session"])
@pytest.mark.parametrize("appended", [0, 10, 19])
@pytest.mark.parametrize("passes", range(3, 70, 6))
def test_appends_during_the_look_up_are_in_the_response(
    sliced: Bench, epoch: int, appended: int, passes: int
) -> None:
    sliced.put("t", 20)
    client, writer = sliced.client(), sliced.client()
    wanted = {("t", index): 0 for index in range(20)}
    client.fetch(11, wanted, session_epoch=epoch, max_wait_ms=LONG_MS)
    for _ in range(passes):
        sliced.turn(0)
    writer.append(b"a", index=appended)
    assert values_of(parts_of(client.fetched(11))["t", appended]) == [b"a"]
    sliced.until(lambda: not sliced.tasks)
    assert sliced.fetches.waiting == 0
    if epoch < 0:
        assert waiters(sliced) == [0, 0, 0]


@pytest.mark.parametrize("epoch", [-1, 0], ids=["no session", "new session"])
@pytest.mark.parametrize("passes", range(0, 30, 2))
def test_closing_the_connection_during_a_large_fetch_releases_everything(
    sliced: Bench, epoch: int, passes: int
) -> None:
    client = sliced.client()
    wanted = {("t", 0): 0, ("t", 1): 0, ("t", 2): 0}
    client.fetch(11, wanted, session_epoch=epoch, max_wait_ms=LONG_MS)
    for _ in range(passes):
        sliced.turn(0)
    client.connection.close("it is gone")
    sliced.until(lambda: not sliced.tasks)
    assert sliced.fetches.waiting == 0
    if epoch < 0:
        assert waiters(sliced) == [0, 0, 0]
    for session in list(sliced.sessions.sessions.values()):
        assert session.waiters == []


@pytest.mark.parametrize("passes", range(0, 30, 2))
def test_ending_the_session_during_a_large_fetch_releases_everything(sliced: Bench, passes: int) -> None:
    client, other, writer = sliced.client(), sliced.client(), sliced.client()
    wanted = {("t", 0): 0, ("t", 1): 0, ("t", 2): 0}
    client.fetch(11, wanted, session_epoch=0)
    session = client.fetched(11).session_id
    client.fetch(11, wanted, session_id=session, session_epoch=1, max_wait_ms=LONG_MS)
    for _ in range(passes):
        sliced.turn(0)
    other.fetch(11, {}, session_id=session, session_epoch=-1)
    other.fetched(11)
    writer.append(b"a", index=1)
    response = client.fetched(11)
    if response.error_code == 0:
        assert values_of(parts_of(response)["t", 1]) in ([b"a"], [])
    else:
        assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sliced.until(lambda: not sliced.tasks)
    assert waiters(sliced) == [0, 0, 0]
    assert sliced.fetches.waiting == 0
    assert (sliced.sessions.sessions, sliced.sessions.partition_count) == ({}, 0)


@pytest.mark.parametrize("epoch", [-1, 0], ids=["no session", "new session"])
def test_an_error_in_a_large_fetch_closes_its_connection_and_unregisters_it(
    sliced: Bench, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    def break_off(*_: Any) -> bool:
        raise RuntimeError("a fault of ours")

    client = sliced.client()
    monkeypatch.setattr(LargeFetch, "_follow_state", break_off)
    wanted = {("t", 0): 0, ("t", 1): 0, ("t", 2): 0}
    client.fetch(11, wanted, session_epoch=epoch, max_wait_ms=LONG_MS)
    sliced.until(lambda: bool(client.connection.closed) and not sliced.tasks)
    assert [str(one) for one in sliced.others.crashes] == ["a fault of ours"]
    sliced.others.crashes.clear()
    assert [session.waiters for session in sliced.sessions.sessions.values()] == [[]] * (epoch + 1)
    if epoch < 0:
        assert waiters(sliced) == [0, 0, 0]


def test_a_truncated_large_fetch_closes_its_connection(sliced: Bench) -> None:
    client = sliced.client()
    frame = encode_request(FETCH, 11, 1, "client", many(100))[4:-30]
    client.send_bytes(len(frame).to_bytes(4, "big") + frame)
    sliced.until(lambda: bool(client.connection.closed))
    assert "is cut short" in sliced.others.closed[-1] or "left" in sliced.others.closed[-1]


def test_the_ranges_of_a_response_are_limited(bench: Bench) -> None:
    """The next fetch begins with the remaining partitions."""
    client = bench.client()
    bench.fetches.reader.ranges_max = 2
    for index in range(3):
        client.append(b"a", index=index)
    wanted = {("t", 0): 0, ("t", 1): 0, ("t", 2): 0}
    client.fetch(11, wanted, session_epoch=0)
    response = client.fetched(11)
    assert [len(values_of(part)) for part in parts_of(response).values()] == [1, 1, 0]
    read = {("t", 0): 1, ("t", 1): 1}
    client.fetch(11, read, session_id=response.session_id, session_epoch=1)
    assert values_of(parts_of(client.fetched(11))["t", 2]) == [b"a"]
