"""SCRAM-SHA-256 and SCRAM-SHA-512: both ends prove that they know the password without sending it.

=======  ==========================================================  ==========================
message  text                                                        proves
=======  ==========================================================  ==========================
client   ``n,,n=USER,r=NONCE[,tokenauth=true]``
server   ``r=NONCE+MORE,s=SALT,i=ITERATIONS``
client   ``c=biws,r=NONCE+MORE,p=PROOF``                              the client has the password
server   ``v=SIGNATURE`` or ``e=ERROR``                               the server has it too
=======  ==========================================================  ==========================

``PROOF = ClientKey XOR HMAC(H(ClientKey), AuthMessage)``, and ``AuthMessage`` is the three texts before it.
Source: RFC 5802 (section 3), RFC 7677; KIP-48 for ``tokenauth``. As in Kafka, the password is encoded as
UTF-8 without the preparation of RFC 4013, and there is no channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from tidemill.client.sasl import FIRST_MESSAGE, Mechanism, Step, WrongSignature, advance, printable
from tidemill.model.errors import ProtocolError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

ITERATIONS_MIN = 4096
"""From RFC 7677. Kafka's clients refuse fewer: guessing from a recorded exchange would be cheap."""

ITERATIONS_MAX = 500_000
"""Thirty times Kafka's limit for operators, half a second of processor time; brokers may not request more."""

SALT_BYTES_MAX = 1024
NONCE_LENGTH_MAX = 1024
MESSAGE_BYTES_MAX = 8192

NO_CHANNEL_BINDING = "n,,"


class ScramMechanism(Mechanism):
    """One exchange. ``nonce`` is random unless a test sets it."""

    TABLE: Mapping[Step, Step] = {
        Step.FIRST_SENT: Step.PROOF_SENT,
        Step.PROOF_SENT: Step.DONE,
    }

    def __init__(
        self,
        name: str,
        username: str,
        password: str,
        *,
        token_auth: bool = False,
        nonce: str | None = None,
    ) -> None:
        self.name = name
        self._hash = HASHES[name]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        user = username.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={user},r={self._nonce}" + (",tokenauth=true" if token_auth else "")
        self._signature = b""
        self._step = Step.INITIAL

    def first(self) -> bytes:
        self._step = advance(self.name, FIRST_MESSAGE, self._step)
        return (NO_CHANNEL_BINDING + self._first).encode()

    def respond(self, challenge: bytes) -> bytes | None:
        before, self._step = self._step, advance(self.name, self.TABLE, self._step)
        fields = _fields(challenge)
        if "e" in fields:
            raise ProtocolError(f"the broker ended {self.name} with {printable(fields['e'])!r}")
        if before is Step.FIRST_SENT:
            return self._proof(challenge, fields)
        self._verify(fields)
        return None

    def _proof(self, challenge: bytes, fields: Mapping[str, str]) -> bytes:
        nonce, salt, iterations = _server_first(fields, self._nonce)
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        binding = base64.b64encode(NO_CHANNEL_BINDING.encode()).decode()
        final = f"c={binding},r={nonce}"
        message = b",".join((self._first.encode(), challenge, final.encode()))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        mask = self._hmac(stored_key, message)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, fields: Mapping[str, str]) -> None:
        if not hmac.compare_digest(_decoded(fields, "v"), self._signature):
            raise WrongSignature(
                f"the broker's signature of {self.name} is wrong: it does not know the password"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _fields(challenge: bytes) -> dict[str, str]:
    """Parses ``a=1,b=2`` by letter; raises ProtocolError for anything else, and for a repeated letter."""
    if len(challenge) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a SCRAM message of {len(challenge)} bytes; allowed are {MESSAGE_BYTES_MAX}")
    try:
        parts = [part.partition("=") for part in challenge.decode().split(",")]
    except UnicodeDecodeError:
        raise ProtocolError("a SCRAM message that is not UTF-8") from None
    fields = {name: value for name, equals, value in parts if equals and len(name) == 1}
    if len(fields) != len(parts):
        raise ProtocolError("a SCRAM message that does not consist of letter=value, each letter once")
    if "m" in fields:
        raise ProtocolError("the broker requires an unknown SCRAM extension")
    return fields


def _server_first(fields: Mapping[str, str], own: str) -> tuple[str, bytes, int]:
    """Returns nonce, salt and iterations; raises ProtocolError if one is out of bounds."""
    nonce = fields.get("r", "")
    if not nonce.startswith(own) or not len(own) < len(nonce) <= NONCE_LENGTH_MAX:
        raise ProtocolError("the broker's SCRAM nonce does not continue the client's")
    salt = _decoded(fields, "s")
    if not 0 < len(salt) <= SALT_BYTES_MAX:
        raise ProtocolError(f"a SCRAM salt of {len(salt)} bytes; allowed are 1 to {SALT_BYTES_MAX}")
    text = fields.get("i", "")
    iterations = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ProtocolError(
            f"the broker requires {printable(text) or 'no'} SCRAM iterations; allowed are "
            f"{ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    return nonce, salt, iterations


def _decoded(fields: Mapping[str, str], letter: str) -> bytes:
    try:
        return base64.b64decode(fields[letter], validate=True)
    except (KeyError, ValueError, binascii.Error):
        raise ProtocolError(f"a SCRAM message without a readable {letter}=") from None
