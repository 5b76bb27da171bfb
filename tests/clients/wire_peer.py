"""A connection that uses any version of any API with the codecs of tidemill.wire, one request at a time."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from tidemill.wire.header import decode_response, encode_request


class WirePeer:
    """``peer.ask(key, version, request)`` returns the decoded response."""

    def __init__(self, bootstrap: str, client_id: str = "peer") -> None:
        host, _, port = bootstrap.rpartition(":")
        self.client_id = client_id
        self.correlation_id = 0
        self.socket = socket.create_connection((host, int(port)), timeout=20)

    def ask(self, key: int, version: int, request: Any) -> Any:
        """Sends ``request`` and returns its response."""
        self.correlation_id += 1
        self.socket.sendall(encode_request(key, version, self.correlation_id, self.client_id, request))
        return self.receive(key, version)

    def receive(self, key: int, version: int) -> Any:
        """Receives the response to the last request."""
        correlation_id, response = decode_response(key, version, self.receive_frame())
        assert correlation_id == self.correlation_id
        return response

    def receive_frame(self) -> bytes:
        """Receives the next frame, without its size. Raises ConnectionError if the broker has closed the
        connection.
        """
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data

    def __enter__(self) -> WirePeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
