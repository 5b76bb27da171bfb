"""The login of one connection: SaslHandshake agrees on the mechanism, SaslAuthenticate carries its messages.

A broker may limit how long a login holds (KIP-368); the client then logs in again on the same connection,
between two of its other requests. Source: KIP-152, KIP-368.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.client.errors import AuthenticationFailed, ClientError, error_for
from tidemill.client.sasl import WrongSignature, printable, refusal_text
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from tidemill.wire.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from tidemill.client.config import ClientConfig
    from tidemill.client.login import Login
    from tidemill.client.sasl import Mechanism

HANDSHAKE_VERSION = 1
"""From here on the mechanism's messages are requests (Kafka 1.0); before, they were bare bytes."""

RENEW_FROM, RENEW_TO = 0.85, 0.95
"""The part of a session after which the client logs in again; at random between both, as Kafka's clients."""

Ask = Callable[[ApiKey, Any, int | None], Any]
"""Sends a request, in the given version or the newest, and gives its answer."""


RENEW_AGAIN_SECONDS = 1.5
"""After a broker has passed over a new login: Kafka takes one a second."""


class NoLoginDue(AuthenticationFailed):
    """The broker takes no login on this connection now. One that was logged in stays so."""


class Session(NamedTuple):
    """How long a login holds, as moments of the monotonic clock; infinite where the broker sets no limit."""

    renew_at: float
    ends_at: float


UNLIMITED = Session(float("inf"), float("inf"))


class Security:
    """What the connections of one client share: TLS settings, and the login with its token."""

    def __init__(self, config: ClientConfig) -> None:
        protocol = config.text("security.protocol")
        self.login: Login | None = None
        self.tls: Any = None
        if protocol.startswith("sasl"):
            from tidemill.client.login import login_of

            self.login = login_of(config)
        if protocol.endswith("ssl"):
            from tidemill.client.tls import TlsSettings

            self.tls = TlsSettings(config)


def authenticate(ask: Ask, login: Login, mechanism: Mechanism, address: str) -> Session:
    """Logs in by ``mechanism``, which was begun for this. AuthenticationFailed when one end refuses."""
    began = time.monotonic()
    handshake = ask(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest(mechanism=mechanism.name), HANDSHAKE_VERSION)
    if handshake.error_code:
        raise _no_handshake(handshake, mechanism.name, address)
    try:
        message: bytes | None = mechanism.first()
        while message is not None:
            answer = ask(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest(auth_bytes=message), None)
            if answer.error_code:
                raise _refused(answer, login, mechanism, address)
            message = mechanism.answer(answer.auth_bytes)
    except WrongSignature as problem:
        raise AuthenticationFailed(
            f"{address} is not the broker that it claims to be, or has another password: {problem}; check "
            "bootstrap.servers, and what listens there",
            broker=address,
        ) from problem
    except ProtocolError as problem:
        raise AuthenticationFailed(
            f"broker {address} does not keep to {mechanism.name}: {problem}; check what listens there",
            broker=address,
        ) from problem
    return session_of(answer.session_lifetime_ms, began, random.uniform(RENEW_FROM, RENEW_TO))


def session_of(lifetime_ms: int, began: float, part: float) -> Session:
    """The session of a login that began at ``began``; ``part`` of its life is used."""
    if lifetime_ms <= 0:
        return UNLIMITED
    life = lifetime_ms / 1000
    return Session(began + life * part, began + life)


def _no_handshake(answer: Any, mechanism: str, address: str) -> ClientError:
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = printable(", ".join(answer.mechanisms)) or "none"
        text = (
            f"broker {address} does not take {mechanism} at this port, but {offered}; set sasl.mechanism "
            "to that"
        )
    elif answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        return NoLoginDue(
            f"broker {address} asks for no login at this port; set security.protocol to ssl or plaintext, "
            "or use the port of its SASL listener",
            broker=address,
        )
    else:
        return error_for(answer.error_code, f"log in by {mechanism}", broker=address)
    return AuthenticationFailed(text, broker=address)


def _refused(answer: Any, login: Login, mechanism: Mechanism, address: str) -> ClientError:
    if answer.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
        return error_for(
            answer.error_code,
            f"log in by {mechanism.name}",
            detail=printable(answer.error_message or ""),
            broker=address,
        )
    reasons = [mechanism.refusal(), refusal_text(answer.error_message or "")]
    why = ": ".join(dict.fromkeys(reason for reason in reasons if reason))
    return AuthenticationFailed(
        f"broker {address} refuses the login by {mechanism.name}{f' ({why})' if why else ''}; "
        f"{login.refused()}",
        broker=address,
    )
