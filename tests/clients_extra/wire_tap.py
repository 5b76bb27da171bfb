"""A proxy between a client and a broker that records the requests."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Any, NamedTuple

from tidemill.testing import Broker
from tidemill.wire.header import decode_request, parse_request_header


class Asked(NamedTuple):
    """A recorded request."""

    api_key: int
    version: int
    request: Any


class WireTap:
    """Listens on its own port; :meth:`to` sets the broker behind it.

    The broker has to advertise :attr:`bootstrap`; otherwise its clients bypass the proxy after their first
    request.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.target: tuple[str, int] | None = None
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.bootstrap = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.sockets: list[socket.socket] = [self.listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def to(self, broker: Broker) -> None:
        """Forwards to ``broker`` from now on."""
        self.target = (broker.host, broker.port)

    def of(self, api_key: int) -> list[Asked]:
        """Returns the requests of one API, in order."""
        return [one for one in self.asked if one.api_key == api_key]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                assert self.target is not None
                broker = socket.create_connection(self.target)
                self.sockets += [client, broker]
                threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._responses, args=(broker, client), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">i", head)[0])
                header = parse_request_header(frame)
                # In the order of the wire: each connection has one recording thread.
                self.asked.append(Asked(header.api_key, header.api_version, decode_request(header, frame)))
                broker.sendall(head + frame)
        with contextlib.suppress(OSError):
            broker.shutdown(socket.SHUT_WR)

    def _responses(self, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := broker.recv(65536):
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)

    def __enter__(self) -> WireTap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
