"""The login of a connection, with brokers that follow the protocol and brokers that violate it."""

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
from tidemill.client.authentication import UNLIMITED, LoginNotExpected, Session, authenticate, session_of
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import COMMON
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable, ClientError
from tidemill.client.login import PasswordLogin
from tidemill.client.network_client import CONTROL, NetworkClient, Node
from tidemill.client.scram import ScramMechanism
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import API, ApiKey, ResponseT
from tidemill.wire.header import decode_request, encode_response, parse_request_header
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from tidemill.wire.messages.sasl_handshake import SaslHandshakeResponse
from tidemill.wire.schema import Struct

LOGIN = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "p4ssword",
}


class LoginBroker:
    """A broker that requires a login. It sends ``handshakes`` and ``answers`` first, then the usual
    responses.
    """

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
def login_broker() -> LoginBroker:
    return LoginBroker()


@pytest.fixture
def port(login_broker: LoginBroker) -> Iterator[int]:
    peer = Peer(login_broker)
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


def ask(connection: Connection) -> MetadataResponse:
    return connection.call(ApiKey.METADATA, MetadataRequest(topics=None), MetadataResponse)


VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA = (
    int(key)
    for key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA)
)


def test_the_login_precedes_all_other_requests(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    connection = connect()
    connection.open()
    ask(connection)
    assert login_broker.seen == [VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA]
    assert login_broker.said == [b"\0alice\0p4ssword"]


@pytest.mark.parametrize(("setup_ms", "request_ms"), [(60_000, 40_000), (40_000, 60_000)])
def test_a_login_message_has_the_request_timeout_or_the_rest_of_the_setup_timeout(
    connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch, setup_ms: int, request_ms: int
) -> None:
    times: dict[int, float] = {}
    write = Connection._write_request

    def noted(self: Connection, request: InFlightRequest, *more: Any) -> None:
        times[int(request.api_key)] = request.expires_s - request.sent_s
        write(self, request, *more)

    monkeypatch.setattr(Connection, "_write_request", noted)
    keys = {"socket.connection.setup.timeout.ms": setup_ms, "request.timeout.ms": request_ms}
    connect(**keys).open()
    assert set(times) == {VERSIONS, HANDSHAKE, AUTHENTICATE}
    assert all(20 < seconds <= 40 for seconds in times.values())


def test_a_refusal_names_the_user_and_the_settings_and_not_the_password(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    refusal = SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="no\nway"
    )
    login_broker.answers = [refusal]
    connection = connect()
    with pytest.raises(
        AuthenticationFailed,
        match=r"refuses the login by PLAIN \(no way\); check user 'alice' and its password, in sasl.username",
    ) as caught:
        connection.open()
    assert "p4ssword" not in str(caught.value)
    assert not caught.value.retriable
    assert connection.closed


def test_a_refused_login_is_not_retried(login_broker: LoginBroker, port: int) -> None:
    login_broker.answers = [
        SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED) for _ in range(100)
    ]
    began = time.monotonic()
    with Admin(f"127.0.0.1:{port}", LOGIN) as admin, pytest.raises(AuthenticationFailed):
        admin.list_topics()
    assert time.monotonic() - began < 10
    assert login_broker.connections == 1


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        pytest.param(
            "handshakes",
            [
                SaslHandshakeResponse(
                    error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["SCRAM-SHA-512", "GSSAPI"]
                )
            ],
            r"does not accept PLAIN at this port, but SCRAM-SHA-512, GSSAPI",
            id="an unsupported mechanism",
        ),
        pytest.param(
            "handshakes",
            [SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)],
            r"accepts no login at this port; set security.protocol to ssl",
            id="a port without a login",
        ),
        pytest.param(
            "known",
            {key: (spec.version_min, spec.version_max) for key, spec in API.items() if key != AUTHENTICATE},
            r"does not support login by PLAIN: it is older than Kafka 1.0, or has no",
            id="a broker without SASL",
        ),
    ],
)
def test_a_login_that_the_broker_does_not_support_is_reported(
    login_broker: LoginBroker, connect: Callable[..., Connection], attribute: str, value: Any, text: str
) -> None:
    setattr(login_broker, attribute, value)
    with pytest.raises(AuthenticationFailed, match=text):
        connect().open()


def test_a_broker_cannot_prolong_a_login(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    login_broker.answers = [SaslAuthenticateResponse(auth_bytes=b"more") for _ in range(100)]
    with pytest.raises(AuthenticationFailed, match=r"violates PLAIN"):
        connect().open()
    assert len(login_broker.said) == 1


def test_a_connection_to_a_broker_without_a_proof_is_closed(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    with pytest.raises(AuthenticationFailed, match=r"violates SCRAM-SHA-256"):
        connect(**{"sasl.mechanism": "SCRAM-SHA-256"}).open()
    assert not [said for said in login_broker.said if b"p4ssword" in said]


def test_a_broker_without_the_password_is_reported_as_an_impostor() -> None:
    salted = b"r=abcdef,s=QSXCR+Q6sek8bf92,i=4096"
    answers = iter([b"", salted, b"v=" + base64.b64encode(bytes(32))])

    def ask(key: ApiKey, message: Struct, response_type: type[ResponseT], version: int | None) -> Any:
        return SimpleNamespace(error_code=0, auth_bytes=next(answers), session_lifetime_ms=0)

    login = PasswordLogin("SCRAM-SHA-256", "u", "p4ssword", False)
    mechanism = ScramMechanism("SCRAM-SHA-256", "u", "p4ssword", nonce="abc")
    with pytest.raises(
        AuthenticationFailed, match=r"broker:1 is not the broker .*; check bootstrap.servers"
    ) as caught:
        authenticate(ask, login, mechanism, "broker:1")
    assert "p4ssword" not in str(caught.value)


def test_a_connection_lost_during_the_login_is_retriable(port: int) -> None:
    def script(peer: Peer, frame: bytes) -> None:
        answer = versions(frame)
        if answer is None:
            peer.hang_up()
        else:
            peer.send(answer)

    peer = Peer(script)
    config = ClientConfig(COMMON, {"bootstrap.servers": f"127.0.0.1:{peer.port}", **LOGIN})
    with pytest.raises(BrokerUnreachable, match=r"is security.protocol the protocol of that listener"):
        Connection("127.0.0.1", peer.port, config).open()
    peer.close()


def test_msk_receives_a_signed_request_as_a_token(
    login_broker: LoginBroker, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-example")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    line = "software.amazon.msk.auth.iam.IAMLoginModule required;"
    connect(**{"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": line}).open()
    assert login_broker.mechanisms == ["OAUTHBEARER"]
    token = login_broker.said[0].removeprefix(b"n,,\x01auth=Bearer ").removesuffix(b"\x01\x01")
    signed = base64.urlsafe_b64decode(token + b"=" * (-len(token) % 4))
    assert b"X-Amz-Credential=AKIDEXAMPLE%2F" in signed
    assert b"X-Amz-Signature=" in signed


# -- repeated logins (KIP-368) ----------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_session_is_renewed_on_the_same_connection_during_other_requests(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    login_broker.lifetime_ms = 400
    connection = connect()
    connection.open()
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        ask(connection)
    wait_for(lambda: not connection._is_reauthenticating)
    logins = [key for key in login_broker.seen if key in (HANDSHAKE, AUTHENTICATE)]
    assert logins == [HANDSHAKE, AUTHENTICATE] * (len(logins) // 2)
    assert 3 <= len(logins) // 2 <= 8
    first = login_broker.seen.index(METADATA)
    for at, key in enumerate(login_broker.seen[first:], first):
        if key == HANDSHAKE:
            assert login_broker.seen[at + 1] == AUTHENTICATE  # No request is sent in between.
    assert login_broker.connections == 1


def test_many_threads_renew_a_session_once(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    login_broker.lifetime_ms = 300
    connection = connect()
    connection.open()
    time.sleep(0.29)
    login_broker.lifetime_ms = 60_000

    def run() -> None:
        for _ in range(50):
            ask(connection)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: not connection._is_reauthenticating)
    assert login_broker.seen.count(HANDSHAKE) == 2
    assert not connection.closed


def test_after_the_end_of_a_session_the_login_precedes_the_next_request(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    login_broker.lifetime_ms = 50
    connection = connect()
    connection.open()
    time.sleep(0.1)
    login_broker.lifetime_ms = 60_000
    ask(connection)
    assert login_broker.seen[3:] == [HANDSHAKE, AUTHENTICATE, METADATA]


def test_a_broker_that_ignores_a_new_login_keeps_the_connection(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    login_broker.lifetime_ms = 50
    connection = connect()
    connection.open()
    login_broker.handshakes = [SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)]
    time.sleep(0.1)
    ask(connection)
    ask(connection)
    assert not connection.closed
    assert login_broker.seen.count(HANDSHAKE) == 2


def test_a_refused_new_login_ends_the_waiting_requests(
    login_broker: LoginBroker, connect: Callable[..., Connection]
) -> None:
    login_broker.lifetime_ms = 50
    connection = connect()
    connection.open()
    login_broker.answers = [SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)]
    time.sleep(0.1)
    with pytest.raises(ClientError):
        ask(connection)
    assert connection.closed


def test_an_idle_connection_whose_session_is_over_is_replaced(login_broker: LoginBroker, port: int) -> None:
    login_broker.lifetime_ms = 50
    cluster = NetworkClient(ClientConfig(COMMON, {"bootstrap.servers": f"127.0.0.1:{port}", **LOGIN}))
    cluster.nodes = {1: Node(1, "127.0.0.1", port)}
    first = cluster.connection(1, CONTROL, time.monotonic() + 5)
    assert cluster.ready_connection(1, CONTROL) is first
    time.sleep(0.1)
    assert cluster.ready_connection(1, CONTROL) is None
    assert first.closed
    cluster.close()


def test_a_session_is_renewed_within_its_last_part() -> None:
    assert session_of(0, 100.0, 0.9) == UNLIMITED
    assert session_of(-1, 100.0, 0.9) == UNLIMITED
    assert session_of(10_000, 100.0, 0.9) == Session(109.0, 110.0)


def test_a_refusal_in_a_helper_thread_is_raised_in_the_caller(login_broker: LoginBroker, port: int) -> None:
    login_broker.answers = [SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)]
    cluster = NetworkClient(ClientConfig(COMMON, {"bootstrap.servers": f"127.0.0.1:{port}", **LOGIN}))
    cluster.nodes = {1: Node(1, "127.0.0.1", port)}
    opened = threading.Event()
    cluster.open_in_background(1, CONTROL, opened.set)
    assert opened.wait(20)
    with pytest.raises(AuthenticationFailed, match=r"refuses the login"):
        cluster.raise_authentication_error()
    cluster.raise_authentication_error()  # once
    cluster.close()


def test_an_unexpected_login_is_an_authentication_failure_at_once() -> None:
    assert issubclass(LoginNotExpected, AuthenticationFailed)


# -- listeners of another kind ----------------------------------------------------------------------------


def plain(port: int) -> Connection:
    return Connection("127.0.0.1", port, ClientConfig(COMMON, {"bootstrap.servers": "unused:1"}))


def test_a_tls_listener_is_distinguished_from_a_failed_broker() -> None:
    peer = Peer(lambda peer, frame: peer.send(bytes.fromhex("15030300020246")))
    with pytest.raises(BrokerUnreachable, match=r"a TLS alert: set security.protocol=ssl, or sasl_ssl"):
        plain(peer.port).open()
    peer.close()


def test_the_error_hints_at_a_listener_that_requires_a_login() -> None:
    def script(peer: Peer, frame: bytes) -> None:
        answer = versions(frame)
        with contextlib.suppress(OSError):
            peer.hang_up() if answer is None else peer.send(answer)

    peer = Peer(script)
    connection = plain(peer.port)
    connection.open()
    with pytest.raises(
        BrokerUnreachable, match=r"requires a login, set security.protocol=sasl_ssl or sasl_plain"
    ):
        ask(connection)
    peer.close()
