"""Who may connect how often: addresses as they are configured, and as connections bring them."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from tidemill.server.listeners import addresses_of


def test_host_names_and_long_addresses_count_as_the_addresses_that_connections_come_from(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(name: str, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        if name != "loader.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, 1, 6, "", ("10.0.0.9", 0)),
            (socket.AF_INET6, 1, 6, "", ("fd00::9", 0, 0, 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with caplog.at_level(logging.WARNING, "tidemill.server"):
        found = addresses_of({"10.0.0.1": 5, "0:0:0:0:0:0:0:1": 7, "loader.example": 9, "gone.example": 2})
    assert found == {"10.0.0.1": 5, "::1": 7, "10.0.0.9": 9, "fd00::9": 9}
    assert "gone.example cannot be resolved" in caplog.text
