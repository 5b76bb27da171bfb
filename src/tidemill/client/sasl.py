"""The mechanisms of SASL, as state machines without input or output.

A mechanism gives its first message, and for every challenge of the broker the next one, or None once it is
content. The steps of each are a table: a challenge that is not due raises :class:`ProtocolError`, so that a
broker can neither end an exchange early nor draw it out.

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
"""Characters of a broker's own words that go into an error text."""

_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_ABORT = b"\x01"


class WrongSignature(ProtocolError):
    """The server did not prove that it knows the password: it may be another one."""


class Mechanism(Protocol):
    """One exchange of messages with one broker."""

    name: str

    def first(self) -> bytes:
        """What the client says first."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """The next message; None when the broker has proved what it must. Raises ProtocolError."""
        ...

    def refusal(self) -> str | None:
        """Why the broker refuses, where it said so before it ended the exchange."""
        ...


class Step(enum.Enum):
    """Where an exchange is."""

    BEGINNING = "nothing was sent"
    FIRST_SENT = "the first message was sent"
    PROOF_SENT = "the proof was sent"
    ABORTING = "the broker refused"
    DONE = "the exchange has ended"


BEGIN: Mapping[Step, Step] = {Step.BEGINNING: Step.FIRST_SENT}
"""The step of the first message, of every mechanism; their own tables have those of the answers."""


def advance(name: str, table: Mapping[Step, Step], step: Step) -> Step:
    """The step after ``step``; ProtocolError where the table has none."""
    after = table.get(step)
    if after is None:
        raise ProtocolError(f"a message of {name} that is not due: {step.value}")
    return after


class PlainMechanism(Mechanism):
    """User and password in the clear: for connections that TLS protects."""

    name = PLAIN
    TABLE: Mapping[Step, Step] = {Step.FIRST_SENT: Step.DONE}

    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password
        self._step = Step.BEGINNING

    def first(self) -> bytes:
        self._step = advance(self.name, BEGIN, self._step)
        return f"\0{self._username}\0{self._password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        self._step = advance(self.name, self.TABLE, self._step)
        if challenge:
            raise ProtocolError("a challenge after user and password of PLAIN, where none is due")
        return None

    def refusal(self) -> str | None:
        return None


class OAuthBearerMechanism(Mechanism):
    """A token that the broker checks. Its refusal comes as JSON, which has to be answered."""

    name = OAUTHBEARER
    TABLE: Mapping[Step, Step] = {Step.FIRST_SENT: Step.DONE}
    REFUSED: Mapping[Step, Step] = {Step.FIRST_SENT: Step.ABORTING}

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self._token = token
        self._extensions = extensions
        self._step = Step.BEGINNING
        self._refusal: str | None = None

    def first(self) -> bytes:
        self._step = advance(self.name, BEGIN, self._step)
        pairs = [("auth", f"Bearer {self._token}"), *self._extensions.items()]
        return b"n,,\x01" + b"".join(f"{name}={value}\x01".encode() for name, value in pairs) + b"\x01"

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            self._step = advance(self.name, self.TABLE, self._step)
            return None
        self._step = advance(self.name, self.REFUSED, self._step)
        self._refusal = refusal_text(challenge.decode(errors="replace"))
        return _ABORT

    def refusal(self) -> str | None:
        return self._refusal


def check_extensions(extensions: Mapping[str, str]) -> None:
    """ConfigError for names and values that RFC 7628 does not allow."""
    for name, value in extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name.lower() == "auth":
            raise ConfigError(f"SASL extension {name!r}: a name has letters only, and is not auth")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(f"SASL extension {name}: its value must be printable ASCII, and not empty")


def refusal_text(text: str) -> str:
    """A broker's reason in one bounded line: of a refusal of OAUTHBEARER, which is JSON, its status."""
    text = text[: 16 * CHALLENGE_SHOWN_MAX]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("status"), str):
        text = found["status"]
    return printable(text)


def printable(text: str) -> str:
    """A broker's text in one bounded line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * CHALLENGE_SHOWN_MAX]).split())
    return line if len(line) <= CHALLENGE_SHOWN_MAX else line[: CHALLENGE_SHOWN_MAX - 1] + "…"
