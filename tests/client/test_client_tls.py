"""TLS: a real broker behind a TLS proxy, and the errors of failed handshakes."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.client import Admin, Consumer, Producer
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import parse_address
from tidemill.client.connection import Connection
from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable
from tidemill.model.errors import ConfigError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Forwards bytes until one end closes, then closes both."""
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for one in (source, sink):
            with_end(one)


def with_end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class TlsProxy:
    """Terminates the TLS of clients, and forwards the data to ``target``."""

    def __init__(self, target: tuple[str, int], directory: Path) -> None:
        self._target = target
        self.certificate = directory / "door.pem"
        key = directory / "door.key"
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=door",
        ]
        command += [
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(self.certificate),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            try:
                client = self._context.wrap_socket(plain, server_side=True)
            except OSError:
                plain.close()
                continue
            server = socket.create_connection(self._target)
            self._open += [client, server]
            for ends in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=pump, args=ends))
                self._threads[-1].start()

    def close(self) -> None:
        with_end(self._listener)
        self._listener.close()
        self._threads[0].join()
        for one in self._open:
            with_end(one)
        for thread in self._threads[1:]:
            thread.join()
        for one in self._open:
            one.close()


@pytest.fixture
def tls_proxy(broker_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsProxy]:
    """Directs every connection of the client through the proxy, regardless of the advertised address."""
    made = TlsProxy(parse_address(broker_address), tmp_path)
    plain = Connection.__init__

    def through(self: Connection, host: str, port: int, *more: Any, **named: Any) -> None:
        plain(self, "127.0.0.1", made.port, *more, **named)

    monkeypatch.setattr(Connection, "__init__", through)
    yield made
    monkeypatch.setattr(Connection, "__init__", plain)
    made.close()


def test_messages_are_sent_and_read_over_tls(tls_proxy: TlsProxy) -> None:
    config = {"security.protocol": "ssl", "ssl.ca.location": str(tls_proxy.certificate)}
    address = f"127.0.0.1:{tls_proxy.port}"
    topic = f"tls-{uuid.uuid4().hex[:12]}"
    with Admin(address, config) as admin:
        admin.create_topic(topic, 1)
    values = [b"%06d" % number * 100 for number in range(5_000)]
    with Producer(address, config) as producer:
        producer.send_batch(topic, values).result(30)
    read: list[bytes | None] = []
    with Consumer(address, {**config, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        while len(read) < len(values):
            records = consumer.poll(20.0, max_records=2_000)
            assert records
            read += [record.value for record in records]
    assert read == values


def test_an_untrusted_certificate_is_reported(tls_proxy: TlsProxy) -> None:
    config = {"security.protocol": "ssl", "default.api.timeout.ms": 200}
    with (
        Admin(f"127.0.0.1:{tls_proxy.port}", config) as admin,
        pytest.raises(
            AuthenticationFailed, match=r"TLS handshake .*certificate verify failed.*ssl.ca.location"
        ),
    ):
        admin.list_topics()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        pytest.param(
            {"default.api.timeout.ms": 200},
            BrokerUnreachable,
            r"TLS handshake .* does this port speak TLS",
            id="a port without TLS",
        ),
        pytest.param(
            {"ssl.ca.location": "none.pem"},
            ConfigError,
            r"ssl.ca.location.*no such file",
            id="a missing file of authorities",
        ),
    ],
)
def test_errors_of_tls_have_the_next_step(
    broker_address: str, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with (
        Admin(broker_address, {"security.protocol": "ssl", **settings}) as admin,
        pytest.raises(error, match=text),
    ):
        admin.list_topics()


class Session:
    """Replaces a TLS socket: waits in ``recv``, and records concurrent calls."""

    def __init__(self) -> None:
        self.receiving = threading.Event()
        self.go_on = threading.Event()
        self.overlaps = 0
        self._is_receiving = False

    def recv(self, count: int) -> bytes:
        self._is_receiving = True
        self.receiving.set()
        assert self.go_on.wait(20)
        self._is_receiving = False
        return bytes(count)

    def send(self, data: memoryview) -> int:
        self.overlaps += self._is_receiving
        return len(data)


def test_one_session_is_never_read_and_written_at_the_same_time() -> None:
    settings = ClientConfig("common", {"bootstrap.servers": "unused:1", "security.protocol": "ssl"})
    connection = Connection("unused", 1, settings)
    session = connection._socket = Session()
    deadline = time.monotonic() + 60
    reader = threading.Thread(target=connection._receive_bytes, args=(4,))
    writer = threading.Thread(target=connection._write, args=(b"request", deadline))
    reader.start()
    assert session.receiving.wait(20)
    writer.start()
    writer.join(0.2)  # Enough time for a concurrent call if no lock prevents it.
    session.go_on.set()
    reader.join()
    writer.join()
    assert session.overlaps == 0
