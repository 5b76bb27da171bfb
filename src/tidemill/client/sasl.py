"""The SASL mechanisms, as state machines without I/O.

A mechanism returns its first message, and for every challenge of the broker the next message, or None once
the exchange is complete. The steps of each are a table: an unexpected challenge raises
:class:`ProtocolError`, so that a broker can neither end an exchange early nor prolong it.

=============  =============================  ===================================================
mechanism      messages of the client         source
=============  =============================  ===================================================
PLAIN          user and password              RFC 4616
SCRAM-SHA-*    nonce; proof                   RFC 5802, RFC 7677, see :mod:`tidemill.client.scram`
OAUTHBEARER    token and extensions; (abort)  RFC 7628, KIP-255, KIP-342
=============  =============================  ===================================================
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from typing import Protocol

from tidemill.model.errors import ConfigError, ProtocolError

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"

CHALLENGE_SHOWN_MAX = 200
"""Maximum characters of a broker's text in an error message."""

_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_ABORT = b"\x01"


class WrongSignature(ProtocolError):
    """The server did not prove that it knows the password: it may be an impostor."""


class Mechanism(Protocol):
    """One login exchange with one broker."""

    name: str

    def first(self) -> bytes:
        """Returns the client's first message."""
        ...

    def respond(self, challenge: bytes) -> bytes | None:
        """Returns the response; None once the broker's proof is complete. Raises ProtocolError."""
        ...

    def refusal(self) -> str | None:
        """Returns the broker's reason for a refusal, if it sent one before it ended the exchange."""
        return None


class Step(enum.Enum):
    """The state of an exchange."""

    INITIAL = "nothing was sent"
    FIRST_SENT = "the first message was sent"
    PROOF_SENT = "the proof was sent"
    ABORTING = "the broker refused"
    DONE = "the exchange has ended"


FIRST_MESSAGE: Mapping[Step, Step] = {Step.INITIAL: Step.FIRST_SENT}
"""The first transition of every mechanism; the tables of the mechanisms have the transitions of responses."""


def advance(name: str, table: Mapping[Step, Step], step: Step) -> Step:
    """Returns the step after ``step``; raises ProtocolError if the table has none."""
    after = table.get(step)
    if after is None:
        raise ProtocolError(f"unexpected message of {name}: {step.value}")
    return after


class PlainMechanism(Mechanism):
    """User and password in plain text: for connections that TLS protects."""

    name = PLAIN
    TABLE: Mapping[Step, Step] = {Step.FIRST_SENT: Step.DONE}

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password
        self._step = Step.INITIAL

    def first(self) -> bytes:
        self._step = advance(self.name, FIRST_MESSAGE, self._step)
        return f"\0{self._username}\0{self._password}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        self._step = advance(self.name, self.TABLE, self._step)
        if challenge:
            raise ProtocolError("unexpected challenge after user and password of PLAIN")
        return None


class OAuthBearerMechanism(Mechanism):
    """A token that the broker checks. A refusal is a JSON challenge, to which the client must respond."""

    name = OAUTHBEARER
    TABLE: Mapping[Step, Step] = {Step.FIRST_SENT: Step.DONE}
    REFUSED: Mapping[Step, Step] = {Step.FIRST_SENT: Step.ABORTING}

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self._token = token
        self._extensions = extensions
        self._step = Step.INITIAL
        self._refusal: str | None = None

    def first(self) -> bytes:
        self._step = advance(self.name, FIRST_MESSAGE, self._step)
        pairs = [("auth", f"Bearer {self._token}"), *self._extensions.items()]
        return b"n,,\x01" + b"".join(f"{name}={value}\x01".encode() for name, value in pairs) + b"\x01"

    def respond(self, challenge: bytes) -> bytes | None:
        if not challenge:
            self._step = advance(self.name, self.TABLE, self._step)
            return None
        self._step = advance(self.name, self.REFUSED, self._step)
        self._refusal = refusal_text(challenge.decode(errors="replace"))
        return _ABORT

    def refusal(self) -> str | None:
        return self._refusal


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raises ConfigError for names and values that RFC 7628 does not allow."""
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name.lower() == "auth":
            raise ConfigError(f"SASL extension {name!r}: a name has letters only, and must not be auth")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(f"SASL extension {name}: its value must be printable ASCII, and not empty")


def refusal_text(text: str) -> str:
    """Returns a broker's reason as one bounded line; for OAUTHBEARER's JSON refusal, its status."""
    text = text[: 16 * CHALLENGE_SHOWN_MAX]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("status"), str):
        text = found["status"]
    return printable(text)


def printable(text: str) -> str:
    """Returns a broker's text as one bounded line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * CHALLENGE_SHOWN_MAX]).split())
    return line if len(line) <= CHALLENGE_SHOWN_MAX else line[: CHALLENGE_SHOWN_MAX - 1] + "…"
