"""Logs in on a connection: SaslHandshake selects the mechanism, SaslAuthenticate carries its messages.

A broker may limit the lifetime of a session (KIP-368). The client then logs in again on the same connection,
between two other requests. Source: KIP-152, KIP-368.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidemill.client.errors import AuthenticationFailed, ClientError, error_for
from tidemill.client.sasl import WrongSignature, printable, refusal_text
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.wire.apis import ApiKey, ResponseT
from tidemill.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidemill.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidemill.wire.schema import Struct

if TYPE_CHECKING:
    from tidemill.client.config import ClientConfig
    from tidemill.client.login import Login
    from tidemill.client.sasl import Mechanism
    from tidemill.client.tls import TlsSettings

HANDSHAKE_VERSION = 1
"""From this version (Kafka 1.0) the mechanism's messages are requests; before, they were raw bytes."""

RENEW_FROM, RENEW_TO = 0.85, 0.95
"""The fraction of a session after which the client logs in again: random between both, as in Kafka."""

RENEW_AGAIN_SECONDS = 1.5
"""Pause after a broker ignored a new login: Kafka accepts one per second."""


class SendRequest(Protocol):
    """Sends a request of a login."""

    def __call__(
        self, key: ApiKey, message: Struct, response_type: type[ResponseT], version: int | None
    ) -> ResponseT:
        """Sends a request, in ``version`` or the newest, and returns its response."""


class LoginNotExpected(AuthenticationFailed):
    """The broker accepts no login on this connection now. An existing session remains valid."""


class Session(NamedTuple):
    """The lifetime of a login, as times of the monotonic clock; infinite if the broker sets no limit."""

    renew_at: float
    ends_at: float


UNLIMITED = Session(float("inf"), float("inf"))


class Security:
    """The TLS settings and the login, with its token, that the connections of one client share."""

    def __init__(self, config: ClientConfig) -> None:
        protocol = config.str("security.protocol")
        self.login: Login | None = None
        self.tls: TlsSettings | None = None
        if protocol.startswith("sasl"):
            from tidemill.client.login import login_of

            self.login = login_of(config)
        if protocol.endswith("ssl"):
            from tidemill.client.tls import TlsSettings

            self.tls = TlsSettings(config)


def authenticate(send_request: SendRequest, login: Login, mechanism: Mechanism, address: str) -> Session:
    """Logs in by ``mechanism``, a new exchange. Raises AuthenticationFailed if either end refuses."""
    began = time.monotonic()
    handshake = send_request(
        ApiKey.SASL_HANDSHAKE,
        SaslHandshakeRequest(mechanism=mechanism.name),
        SaslHandshakeResponse,
        HANDSHAKE_VERSION,
    )
    if handshake.error_code:
        raise _handshake_error(handshake, mechanism.name, address)
    try:
        message: bytes | None = mechanism.first()
        while message is not None:
            request = SaslAuthenticateRequest(auth_bytes=message)
            response = send_request(ApiKey.SASL_AUTHENTICATE, request, SaslAuthenticateResponse, None)
            if response.error_code:
                raise _login_error(response, login, mechanism, address)
            message = mechanism.respond(response.auth_bytes)
    except WrongSignature as problem:
        raise AuthenticationFailed(
            f"{address} is not the broker that it claims to be, or has another password: {problem}; check "
            "bootstrap.servers, and which server listens there",
            broker=address,
        ) from problem
    except ProtocolError as problem:
        raise AuthenticationFailed(
            f"broker {address} violates {mechanism.name}: {problem}; check which server listens there",
            broker=address,
        ) from problem
    return session_of(response.session_lifetime_ms, began, random.uniform(RENEW_FROM, RENEW_TO))


def session_of(lifetime_ms: int, began: float, fraction: float) -> Session:
    """Returns the session of a login at ``began``, to be renewed after ``fraction`` of its lifetime."""
    if lifetime_ms <= 0:
        return UNLIMITED
    life = lifetime_ms / 1000
    return Session(began + life * fraction, began + life)


def _handshake_error(response: SaslHandshakeResponse, mechanism: str, address: str) -> ClientError:
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = printable(", ".join(response.mechanisms)) or "none"
        text = (
            f"broker {address} does not accept {mechanism} at this port, but {offered}; set sasl.mechanism "
            "accordingly"
        )
    elif response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        return LoginNotExpected(
            f"broker {address} accepts no login at this port; set security.protocol to ssl or plaintext, "
            "or use the port of its SASL listener",
            broker=address,
        )
    else:
        return error_for(response.error_code, f"log in by {mechanism}", broker=address)
    return AuthenticationFailed(text, broker=address)


def _login_error(
    response: SaslAuthenticateResponse, login: Login, mechanism: Mechanism, address: str
) -> ClientError:
    if response.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
        return error_for(
            response.error_code,
            f"log in by {mechanism.name}",
            detail=printable(response.error_message or ""),
            broker=address,
        )
    reasons = [mechanism.refusal(), refusal_text(response.error_message or "")]
    why = ": ".join(dict.fromkeys(reason for reason in reasons if reason))
    return AuthenticationFailed(
        f"broker {address} refuses the login by {mechanism.name}{f' ({why})' if why else ''}; "
        f"{login.refusal_step()}",
        broker=address,
    )
