"""A broker for the command line, and a fixture that runs commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidemill.cli.main import run
from tidemill.testing import Broker

Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def cli(broker: Broker, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command line; returns its output. ``code`` is the expected exit code."""
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", broker.bootstrap)

    def call(*arguments: str, code: int = 0) -> str:
        capfdbinary.readouterr()
        outcome = run(arguments)
        out, err = capfdbinary.readouterr()
        assert outcome == code, (out, err)
        if code == 1:
            assert err.count(b"\n") == 1, err
            assert err.startswith(b"tidemill: ")
        return (out if code == 0 else out + err).decode("utf-8", "surrogateescape")

    return call


@pytest.fixture
def topic(request: pytest.FixtureRequest, cli: Run) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
    cli("topic", "create", name, "-p", "3")
    return name
