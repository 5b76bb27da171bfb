"""SCRAM by the example of RFC 7677, and with brokers that violate it."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from tidemill.client.sasl import CHALLENGE_SHOWN_MAX, Step, WrongSignature, printable
from tidemill.client.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    ScramMechanism,
)
from tidemill.model.errors import ProtocolError

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(name: str = "SCRAM-SHA-256", **more: bool) -> ScramMechanism:
    return ScramMechanism(name, "user", "pencil", nonce=NONCE, **more)


def begun() -> ScramMechanism:
    made = exchange()
    made.first()
    return made


def test_the_example_of_rfc_7677() -> None:
    made = exchange()
    assert made.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert made.respond(SERVER_FIRST) == CLIENT_FINAL
    assert made.respond(SERVER_FINAL) is None


def test_sha_512_with_a_test_server() -> None:
    made = exchange("SCRAM-SHA-512")
    bare = made.first().removeprefix(b"n,,")
    first = b"r=" + NONCE.encode() + b"more,s=" + base64.b64encode(b"salt") + b",i=5000"
    final = made.respond(first)
    assert final is not None
    without_proof, _, proof = final.partition(b",p=")
    message = b",".join((bare, first, without_proof))
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", b"salt", 5000)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    mask = hmac.digest(stored, message, "sha512")
    key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), mask, strict=True))
    assert hashlib.sha512(key).digest() == stored
    signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), message, "sha512")
    assert made.respond(b"v=" + base64.b64encode(signature)) is None


@pytest.mark.parametrize(
    ("proof", "error", "text"),
    [
        pytest.param(
            b"v=" + base64.b64encode(b"x" * 32), WrongSignature, "does not know the password", id="wrong"
        ),
        pytest.param(b"", ProtocolError, "letter=value", id="omitted"),
    ],
)
def test_a_server_without_the_password_is_refused(proof: bytes, error: type[Exception], text: str) -> None:
    made = begun()
    made.respond(SERVER_FIRST)
    with pytest.raises(error, match=text):
        made.respond(proof)


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (SERVER_FIRST.replace(b"r=rOpr", b"r=rOpx"), "does not continue"),
        (f"r={NONCE},s=QQ==,i=4096".encode(), "does not continue"),
        (SERVER_FIRST.replace(b"s=W22Z", b"s=.22Z"), "without a readable s="),
        (SERVER_FIRST.replace(b",s=W22ZaJ0SNY7soEsUEjb6gQ==", b",s="), "a SCRAM salt of 0 bytes"),
        (SERVER_FIRST.replace(b",i=4096", b""), "requires no SCRAM iterations"),
        (b"m=ext," + SERVER_FIRST, "an unknown SCRAM extension"),
        (SERVER_FIRST + b",i=4097", "each letter once"),
        (SERVER_FINAL, "does not continue"),
        *[
            (
                SERVER_FIRST.replace(b"4096", b"%d" % count),
                f"allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}",
            )
            for count in (ITERATIONS_MIN - 1, ITERATIONS_MAX + 1, 0, -1, 10**12)
        ],
        (b"\xff\xfe", "not UTF-8"),
        (b"r=" + b"x" * MESSAGE_BYTES_MAX, "allowed are 8192"),
        (b"e=other-error\nline", "ended SCRAM-SHA-256 with 'other-error line'"),
    ],
)
def test_invalid_messages_are_refused(challenge: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        begun().respond(challenge)


def test_an_exchange_cannot_be_prolonged_or_restarted() -> None:
    made = begun()
    with pytest.raises(ProtocolError, match=Step.FIRST_SENT.value):
        made.first()
    made.respond(SERVER_FIRST)
    made.respond(SERVER_FINAL)
    with pytest.raises(ProtocolError, match=Step.DONE.value):
        made.respond(SERVER_FIRST)


def test_commas_and_equals_signs_in_names_are_escaped() -> None:
    made = ScramMechanism("SCRAM-SHA-256", "a,b=c", "p", token_auth=True, nonce="n")
    assert made.first() == b"n,,n=a=2Cb=3Dc,r=n,tokenauth=true"


def test_every_exchange_has_a_new_nonce() -> None:
    assert len({ScramMechanism("SCRAM-SHA-256", "u", "p").first() for _ in range(50)}) == 50


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a reason", "a reason"),
        ("two\nlines \0 and\tmore", "two lines and more"),
        ("x" * CHALLENGE_SHOWN_MAX, "x" * CHALLENGE_SHOWN_MAX),
        ("x" * (CHALLENGE_SHOWN_MAX + 1), "x" * (CHALLENGE_SHOWN_MAX - 1) + "…"),
        ("x" * 1_000_000, "x" * (CHALLENGE_SHOWN_MAX - 1) + "…"),
    ],
)
def test_the_text_of_a_broker_is_shown_as_one_bounded_line(text: str, shown: str) -> None:
    assert printable(text) == shown
