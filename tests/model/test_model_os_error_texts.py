"""The texts of exceptions for users, without Python's own wording."""

from __future__ import annotations

import errno
import json
import os
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.model.os_error_texts import fault_of


def unpacked() -> None:
    _first, _second = ["one"]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda: b"ok\xff".decode(), "byte 2 (0xff) is not UTF-8"),
        (lambda: "a\ud800".encode(), "character 2 is a lone surrogate"),
        (lambda: json.loads('{"a": no}'), "character 7 is not allowed there"),
        (lambda: json.loads("[" * 100_000), "it is nested too deeply"),
        (lambda: json.loads("9" * 5_000), "a number has too many digits"),
        (lambda: int("x1"), "'x1' is not a whole number"),
        (lambda: {"a": 1}["version"], "version is missing"),
        (lambda: [][1], "it ends too early"),
        (unpacked, "fields are missing or have the wrong type"),
    ],
)
def test_error_texts_are_plain_english(read: Callable[[], Any], text: str) -> None:
    with pytest.raises(Exception) as met:
        read()
    assert fault_of(met.value) == text


def test_file_errors_have_the_text_of_the_system() -> None:
    assert fault_of(OSError(errno.ENOENT, os.strerror(errno.ENOENT), "x")) == "no such file or directory"
    unread = ssl.SSLCertVerificationError(1, "[SSL: X] y (_ssl.c:1)")
    unread.reason, unread.verify_message = "CERTIFICATE_VERIFY_FAILED", "self-signed certificate"
    assert fault_of(unread) == "certificate verify failed (self-signed certificate)"
    assert fault_of(ValueError("it is too long")) == "it is too long"
