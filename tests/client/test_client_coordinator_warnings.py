"""The heartbeats of a member, and the warnings while the coordinator of a group is unavailable."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import CONSUMER
from tidemill.client.consumer_coordinator import (
    COMPLETING_REBALANCE,
    LOST,
    PREPARING_REBALANCE,
    STABLE,
    ConsumerCoordinator,
)
from tidemill.client.coordinator_warnings import WARN_AFTER_S, WARN_AGAIN_S, CoordinatorWarnings
from tidemill.client.errors import BrokerUnreachable, ClientClosed, ClientError, error_for
from tidemill.client.network_client import GROUP, SLOW_S, NetworkClient
from tidemill.client.wait_reasons import Kind
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.heartbeat import HeartbeatResponse


def test_an_unavailable_coordinator_is_a_warning_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    trouble = CoordinatorWarnings(lambda: now)
    problem = error_for(ErrorCode.NOT_COORDINATOR, "join group 'g'", broker="localhost:9092")
    lines: list[tuple[float, str]] = []
    for second in range(2 * int(WARN_AGAIN_S)):
        now = float(second)
        trouble.failed("g", problem)
        lines += [(now, line) for line in caplog.messages]
        caplog.clear()
    assert [when for when, _ in lines] == [WARN_AFTER_S, WARN_AFTER_S + WARN_AGAIN_S]
    assert lines[0][1] == (
        "group g waits for its coordinator for 3 s: cannot join group 'g': NOT_COORDINATOR, broker "
        "localhost:9092; wait for an election; if it stays, start the brokers of its partition of "
        "__consumer_offsets (of a transactional id: __transaction_state), which 'tidemill topic describe' "
        "shows, or check their logs"
    )
    caplog.set_level(logging.WARNING)
    trouble.ended("g")
    trouble.ended("g")
    assert caplog.messages == ["the coordinator of group g answers again"]


def test_a_producer_names_its_transactional_id(caplog: pytest.LogCaptureFixture) -> None:
    times = [0.0, WARN_AFTER_S]
    trouble = CoordinatorWarnings(lambda: times.pop(0))
    for _ in range(2):
        trouble.failed("loader", error_for(ErrorCode.NOT_COORDINATOR, "begin"), Kind.TRANSACTIONAL_ID)
    assert trouble.current is not None
    assert trouble.current[:2] == (Kind.TRANSACTIONAL_ID, "loader")
    trouble.ended("loader", Kind.TRANSACTIONAL_ID)
    assert trouble.current is None
    assert "transactional id loader waits for its coordinator for 3 s" in caplog.messages[0]
    assert caplog.messages[1] == "the coordinator of transactional id loader answers again"


def test_a_moved_coordinator_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    trouble = CoordinatorWarnings(lambda: now)
    for _ in range(20):
        trouble.failed("g", error_for(ErrorCode.NOT_COORDINATOR, "join group 'g'"))
        now += WARN_AFTER_S - 0.1
        trouble.ended("g")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("problem", "reason"), [(BrokerUnreachable("away"), "away"), (ClientClosed("closed"), None)]
)
def test_a_failed_heartbeat_is_reported_unless_the_client_is_closed(
    monkeypatch: pytest.MonkeyPatch, problem: ClientError, reason: str | None
) -> None:
    settings = {"bootstrap.servers": "unused:1", "group.id": "g", "heartbeat.interval.ms": 1}
    cluster = NetworkClient(ClientConfig(CONSUMER, settings))
    nothing: Any = SimpleNamespace()
    member: Any = ConsumerCoordinator(cluster, [], nothing, nothing)
    member.state = STABLE
    tries: list[float] = []

    def fail(deadline: float) -> Any:
        tries.append(deadline)
        if len(tries) == 2:  # The thread has handled the first failure. It ends after the second.
            member._stopped.set()
        raise problem

    monkeypatch.setattr(member, "connection", fail)
    member._run_heartbeats()
    assert len(tries) == 2
    current = cluster.coordinator_warnings.current
    assert (current[1:3] if current is not None else None) == (("g", reason) if reason else None)
    cluster.close()


def test_a_lost_membership_waits_for_the_response_to_a_join() -> None:
    settings = {"bootstrap.servers": "unused:1", "group.id": "g"}
    cluster = NetworkClient(ClientConfig(CONSUMER, settings))
    nothing: Any = SimpleNamespace()
    member: Any = ConsumerCoordinator(cluster, [], nothing, nothing)
    for state, after in (
        (PREPARING_REBALANCE, PREPARING_REBALANCE),
        (COMPLETING_REBALANCE, LOST),
        (STABLE, LOST),
    ):
        member.state, member.member_id, member.generation = state, "m", 3
        member.membership_lost()
        assert member.state == after
        assert (member.member_id, member.generation) == (("", -1) if after == LOST else ("m", 3))
    cluster.close()


class HeartbeatResponses:
    """A coordinator that responds to heartbeats with these error codes, in order."""

    address = "localhost:9092"

    def __init__(self, *codes: ErrorCode) -> None:
        self._codes = list(codes)

    def version(self, key: ApiKey) -> int:
        return 4

    def call(self, *given: Any, **options: Any) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=self._codes.pop(0))


def stable_member(*codes: ErrorCode) -> Any:
    """A member whose heartbeats get these error codes."""
    network_client = NetworkClient(ClientConfig(CONSUMER, {"bootstrap.servers": "unused:1", "group.id": "g"}))
    nothing: Any = SimpleNamespace(wake=lambda: None)
    member: Any = ConsumerCoordinator(network_client, [], nothing, nothing)
    member.state, member.member_id, member.generation = STABLE, "m", 1
    responses = HeartbeatResponses(*codes)
    member.connection = lambda deadline: responses
    return member


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_the_error_of_a_heartbeat_is_raised_once(code: ErrorCode) -> None:
    member = stable_member(code, ErrorCode.NONE, code)
    member._send_heartbeat()
    with pytest.raises(ClientError, match="cannot stay in group 'g'"):
        member.poll(0)
    assert member.poll(0)
    member._send_heartbeat()
    assert member.poll(0)
    member._send_heartbeat()
    with pytest.raises(ClientError, match="cannot stay in group 'g'"):
        member.poll(0)
    member._network_client.close()


def test_a_successful_heartbeat_ends_the_error_of_the_former_heartbeat() -> None:
    member = stable_member(ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE)
    member._send_heartbeat()
    member._send_heartbeat()
    assert member.poll(0)
    member._network_client.close()


def test_a_fenced_member_is_reported_and_has_lost_its_membership() -> None:
    member = stable_member(ErrorCode.FENCED_INSTANCE_ID)
    member._send_heartbeat()
    assert (member.state, member.member_id, member.generation) == (LOST, "", -1)
    with pytest.raises(ClientError, match="stop one of them") as caught:
        member.poll(0)
    assert caught.value.code == ErrorCode.FENCED_INSTANCE_ID
    member._network_client.close()


@pytest.mark.parametrize(
    ("is_closed", "api", "seconds", "is_reported"),
    [
        (False, ApiKey.HEARTBEAT, SLOW_S + 1, True),
        (False, ApiKey.HEARTBEAT, SLOW_S - 0.5, False),
        (False, ApiKey.JOIN_GROUP, SLOW_S + 1, False),
        (True, ApiKey.HEARTBEAT, SLOW_S + 1, False),
    ],
)
def test_an_unanswered_request_of_an_open_connection_is_a_reason(
    is_closed: bool, api: ApiKey, seconds: float, is_reported: bool
) -> None:
    cluster = NetworkClient(ClientConfig(CONSUMER, {"bootstrap.servers": "unused:1"}))
    sent_s = time.monotonic() - seconds
    connection: Any = SimpleNamespace(closed=is_closed, address="there:1", close=lambda *reason: None)
    connection.oldest_unanswered = lambda: SimpleNamespace(api_key=api, sent_s=sent_s, connection=connection)
    cluster._connections[1, GROUP] = connection
    found = cluster.unresponsive_reason(1, GROUP)
    assert (found is not None) == is_reported
    if found is not None:
        assert found[0] == sent_s
        assert "broker there:1 has not answered Heartbeat" in found[1]
    cluster._connections.clear()
    cluster.close()
