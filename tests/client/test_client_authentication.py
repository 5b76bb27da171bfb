"""The login of a connection, against peers that keep to it and peers that do not."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from test_client_connection import Peer, metadata, versions

from tidemill.client import Admin
from tidemill.client.authentication import UNLIMITED, NoLoginDue, Session, authenticate, session_of
from tidemill.client.cluster import CONTROL, Cluster, Node
from tidemill.client.config import COMMON, ClientConfig
from tidemill.client.connection import Connection
from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable, ClientError
from tidemill.client.login import PasswordLogin
from tidemill.client.request import Request
from tidemill.client.scram import ScramMechanism
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import API, ApiKey
from tidemill.wire.header import decode_request, encode_response, parse_request_header
from tidemill.wire.messages.metadata import MetadataRequest
from tidemill.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from tidemill.wire.messages.sasl_handshake import SaslHandshakeResponse

LOGIN = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "p4ssword",
}


class Door:
    """A broker that asks for a login. It gives ``handshakes`` and ``answers`` first, then the usual ones."""

    def __init__(self) -> None:
        self.handshakes: list[SaslHandshakeResponse] = []
        self.answers: list[SaslAuthenticateResponse] = []
        self.lifetime_ms = 0
        self.seen: list[int] = []
        self.said: list[bytes] = []
        self.mechanisms: list[str] = []
        self.known: dict[int, tuple[int, int]] | None = None
        self.connections = 0

    def __call__(self, peer: Peer, frame: bytes) -> None:
        header = parse_request_header(frame)
        key = int(header.api_key)
        self.seen.append(key)
        answer: Any
        if key == ApiKey.API_VERSIONS:
            self.connections += 1
            peer.send(versions(frame, self.known) or b"")
            return
        if key == ApiKey.METADATA:
            peer.send(metadata(frame))
            return
        if key == ApiKey.SASL_HANDSHAKE:
            self.mechanisms.append(decode_request(header, frame).mechanism)
            usual = SaslHandshakeResponse(mechanisms=["PLAIN", "SCRAM-SHA-256"])
            answer = self.handshakes.pop(0) if self.handshakes else usual
        else:
            self.said.append(decode_request(header, frame).auth_bytes)
            usual_answer = SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)
            answer = self.answers.pop(0) if self.answers else usual_answer
        version, correlation = int(header.api_version), int(header.correlation_id)
        peer.send(encode_response(ApiKey(key), version, correlation, answer))


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def port(door: Door) -> Iterator[int]:
    peer = Peer(door)
    yield peer.port
    peer.close()


@pytest.fixture
def connect(port: int) -> Iterator[Callable[..., Connection]]:
    made: list[Connection] = []

    def connection(**settings: object) -> Connection:
        config = ClientConfig(COMMON, {"bootstrap.servers": f"127.0.0.1:{port}", **LOGIN, **settings})
        made.append(Connection("127.0.0.1", port, config))
        return made[-1]

    yield connection
    for one in made:
        one.close()


def ask(connection: Connection) -> Any:
    return connection.call(ApiKey.METADATA, MetadataRequest(topics=None))


VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA = (
    int(key)
    for key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA)
)


def test_the_login_comes_before_anything_else(door: Door, connect: Callable[..., Connection]) -> None:
    connection = connect()
    connection.open()
    ask(connection)
    assert door.seen == [VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA]
    assert door.said == [b"\0alice\0p4ssword"]


@pytest.mark.parametrize(("setup_ms", "request_ms"), [(60_000, 40_000), (40_000, 60_000)])
def test_each_message_of_a_login_has_the_time_of_a_request_or_what_is_left_of_the_setup(
    connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch, setup_ms: int, request_ms: int
) -> None:
    times: dict[int, float] = {}
    post = Connection._post

    def noted(self: Connection, request: Request, *more: Any) -> None:
        times[int(request.api_key)] = request.expires - request.sent
        post(self, request, *more)

    monkeypatch.setattr(Connection, "_post", noted)
    keys = {"socket.connection.setup.timeout.ms": setup_ms, "request.timeout.ms": request_ms}
    connect(**keys).open()
    assert set(times) == {VERSIONS, HANDSHAKE, AUTHENTICATE}
    assert all(20 < seconds <= 40 for seconds in times.values())


def test_a_refusal_names_the_user_and_the_settings_and_not_the_password(
    door: Door, connect: Callable[..., Connection]
) -> None:
    refusal = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="no\nway"
    )
    door.answers = [refusal]
    connection = connect()
    with pytest.raises(
        AuthenticationFailed,
        match=r"refuses the login by PLAIN \(no way\); check user 'alice' and its password, in sasl.username",
    ) as caught:
        connection.open()
    assert "p4ssword" not in str(caught.value)
    assert not caught.value.retriable
    assert connection.closed


def test_a_refused_login_is_not_tried_again_and_again(door: Door, port: int) -> None:
    door.answers = [
        SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED) for _ in range(100)
    ]
    began = time.monotonic()
    with Admin(f"127.0.0.1:{port}", LOGIN) as admin, pytest.raises(AuthenticationFailed):
        admin.list_topics()
    assert time.monotonic() - began < 10
    assert door.connections == 1


def test_a_mechanism_that_the_broker_does_not_have_is_said_with_those_that_it_has(
    door: Door, connect: Callable[..., Connection]
) -> None:
    door.handshakes = [
        SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-512", "GSSAPI"]
        )
    ]
    with pytest.raises(
        AuthenticationFailed, match=r"does not take PLAIN at this port, but SCRAM-SHA-512, GSSAPI"
    ):
        connect().open()


def test_a_port_that_asks_for_no_login_is_said(door: Door, connect: Callable[..., Connection]) -> None:
    door.handshakes = [SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)]
    with pytest.raises(
        AuthenticationFailed, match=r"asks for no login at this port; set security.protocol to ssl"
    ):
        connect().open()


def test_a_broker_without_sasl_is_said(door: Door, connect: Callable[..., Connection]) -> None:
    door.known = {
        key: (spec.version_min, spec.version_max) for key, spec in API.items() if key != AUTHENTICATE
    }
    with pytest.raises(
        AuthenticationFailed, match=r"has no login by PLAIN: it is older than Kafka 1.0, or has no"
    ):
        connect().open()


def test_a_broker_cannot_draw_a_login_out(door: Door, connect: Callable[..., Connection]) -> None:
    door.answers = [SaslAuthenticateResponse(auth_bytes=b"more") for _ in range(100)]
    with pytest.raises(AuthenticationFailed, match=r"does not keep to PLAIN"):
        connect().open()
    assert len(door.said) == 1


def test_a_broker_that_does_not_prove_itself_is_left(door: Door, connect: Callable[..., Connection]) -> None:
    with pytest.raises(AuthenticationFailed, match=r"does not keep to SCRAM-SHA-256"):
        connect(**{"sasl.mechanism": "SCRAM-SHA-256"}).open()
    assert not [said for said in door.said if b"p4ssword" in said]


def test_a_broker_that_does_not_know_the_password_is_said_to_be_another_one() -> None:
    salted = b"r=abcdef,s=QSXCR+Q6sek8bf92,i=4096"
    answers = iter([b"", salted, b"v=" + base64.b64encode(bytes(32))])

    def ask(*_: Any) -> Any:
        return SimpleNamespace(error_code=0, auth_bytes=next(answers), session_lifetime_ms=0)

    login = PasswordLogin("SCRAM-SHA-256", "u", "p4ssword", False)
    mechanism = ScramMechanism("SCRAM-SHA-256", "u", "p4ssword", nonce="abc")
    with pytest.raises(
        AuthenticationFailed, match=r"broker:1 is not the broker .*; check bootstrap.servers"
    ) as caught:
        authenticate(ask, login, mechanism, "broker:1")
    assert "p4ssword" not in str(caught.value)


def test_a_connection_that_ends_in_the_middle_of_a_login_can_be_tried_again(port: int) -> None:
    def script(peer: Peer, frame: bytes) -> None:
        answer = versions(frame)
        if answer is None:
            peer.hang_up()
        else:
            peer.send(answer)

    peer = Peer(script)
    config = ClientConfig(COMMON, {"bootstrap.servers": f"127.0.0.1:{peer.port}", **LOGIN})
    with pytest.raises(BrokerUnreachable, match=r"is security.protocol what that listener speaks"):
        Connection("127.0.0.1", peer.port, config).open()
    peer.close()


def test_msk_is_told_a_signed_request_as_a_token(
    door: Door, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-example")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    line = "software.amazon.msk.auth.iam.IAMLoginModule required;"
    connect(**{"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": line}).open()
    assert door.mechanisms == ["OAUTHBEARER"]
    token = door.said[0].removeprefix(b"n,,\x01auth=Bearer ").removesuffix(b"\x01\x01")
    signed = base64.urlsafe_b64decode(token + b"=" * (-len(token) % 4))
    assert b"X-Amz-Credential=AKIDEXAMPLE%2F" in signed
    assert b"X-Amz-Signature=" in signed


# -- logging in again (KIP-368) ---------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_session_is_renewed_on_the_same_connection_beside_other_requests(
    door: Door, connect: Callable[..., Connection]
) -> None:
    door.lifetime_ms = 400
    connection = connect()
    connection.open()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        ask(connection)
    wait_for(lambda: not connection._renewing)
    logins = [key for key in door.seen if key in (HANDSHAKE, AUTHENTICATE)]
    assert logins == [HANDSHAKE, AUTHENTICATE] * (len(logins) // 2)
    assert 3 <= len(logins) // 2 <= 8
    first = door.seen.index(METADATA)
    for at, key in enumerate(door.seen[first:], first):
        if key == HANDSHAKE:
            assert door.seen[at + 1] == AUTHENTICATE  # Nothing comes between.
    assert door.connections == 1


def test_many_threads_renew_a_session_once(door: Door, connect: Callable[..., Connection]) -> None:
    door.lifetime_ms = 300
    connection = connect()
    connection.open()
    time.sleep(0.29)
    door.lifetime_ms = 60_000

    def run() -> None:
        for _ in range(50):
            ask(connection)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: not connection._renewing)
    assert door.seen.count(HANDSHAKE) == 2
    assert not connection.closed


def test_after_the_end_of_a_session_the_login_goes_before_the_next_request(
    door: Door, connect: Callable[..., Connection]
) -> None:
    door.lifetime_ms = 50
    connection = connect()
    connection.open()
    time.sleep(0.1)
    door.lifetime_ms = 60_000
    ask(connection)
    assert door.seen[3:] == [HANDSHAKE, AUTHENTICATE, METADATA]


def test_a_broker_that_takes_no_new_login_keeps_the_connection(
    door: Door, connect: Callable[..., Connection]
) -> None:
    door.lifetime_ms = 50
    connection = connect()
    connection.open()
    door.handshakes = [SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)]
    time.sleep(0.1)
    ask(connection)
    ask(connection)
    assert not connection.closed
    assert door.seen.count(HANDSHAKE) == 2


def test_a_new_login_that_is_refused_ends_what_waits(door: Door, connect: Callable[..., Connection]) -> None:
    door.lifetime_ms = 50
    connection = connect()
    connection.open()
    door.answers = [SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)]
    time.sleep(0.1)
    with pytest.raises(ClientError):
        ask(connection)
    assert connection.closed


def test_an_idle_connection_whose_session_is_over_is_replaced(door: Door, port: int) -> None:
    door.lifetime_ms = 50
    cluster = Cluster(ClientConfig(COMMON, {"bootstrap.servers": f"127.0.0.1:{port}", **LOGIN}))
    cluster.nodes = {1: Node(1, "127.0.0.1", port)}
    first = cluster.connection(1, CONTROL, time.monotonic() + 5)
    assert cluster.opened(1, CONTROL) is first
    time.sleep(0.1)
    assert cluster.opened(1, CONTROL) is None
    assert first.closed
    cluster.close()


def test_a_session_is_renewed_within_its_last_part() -> None:
    assert session_of(0, 100.0, 0.9) == UNLIMITED
    assert session_of(-1, 100.0, 0.9) == UNLIMITED
    assert session_of(10_000, 100.0, 0.9) == Session(109.0, 110.0)


def test_a_refusal_that_a_helper_thread_meets_is_raised_to_who_calls(door: Door, port: int) -> None:
    door.answers = [SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)]
    cluster = Cluster(ClientConfig(COMMON, {"bootstrap.servers": f"127.0.0.1:{port}", **LOGIN}))
    cluster.nodes = {1: Node(1, "127.0.0.1", port)}
    opened = threading.Event()
    cluster.open_soon(1, CONTROL, opened.set)
    assert opened.wait(20)
    with pytest.raises(AuthenticationFailed, match=r"refuses the login"):
        cluster.raise_refusal()
    cluster.raise_refusal()  # once
    cluster.close()


def test_no_login_due_is_an_authentication_that_failed_at_the_first_time() -> None:
    assert issubclass(NoLoginDue, AuthenticationFailed)


# -- listeners of another kind ----------------------------------------------------------------------------


def plain(port: int) -> Connection:
    return Connection("127.0.0.1", port, ClientConfig(COMMON, {"bootstrap.servers": "unused:1"}))


def test_a_listener_that_speaks_tls_is_told_from_a_broker_that_is_broken() -> None:
    peer = Peer(lambda peer, frame: peer.send(bytes.fromhex("15030300020246")))
    with pytest.raises(BrokerUnreachable, match=r"an alert of TLS: set security.protocol=ssl, or sasl_ssl"):
        plain(peer.port).open()
    peer.close()


def test_a_listener_that_wants_a_login_first_is_hinted_at() -> None:
    def script(peer: Peer, frame: bytes) -> None:
        answer = versions(frame)
        with contextlib.suppress(OSError):
            peer.hang_up() if answer is None else peer.send(answer)

    peer = Peer(script)
    connection = plain(peer.port)
    connection.open()
    with pytest.raises(
        BrokerUnreachable, match=r"asks for a login, set security.protocol=sasl_ssl or sasl_plain"
    ):
        ask(connection)
    peer.close()
