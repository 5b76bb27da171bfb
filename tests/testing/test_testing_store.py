"""The store for tests against ZooKeeper: the same client sends the same requests to both."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import WatchedEvent

from tidemill.testing import StoreServer
from tidemill.testing.store_frames import Op
from tidemill.testing.zookeeper import ZooKeeper

WAIT_S = 20.0
SET_WATCHES_XID = -8


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    with StoreServer() as server:
        yield server


@contextlib.contextmanager
def client(address: str, timeout_s: float = 10.0) -> Iterator[KazooClient]:
    one = KazooClient(address, timeout=timeout_s)
    one.start(timeout=WAIT_S)
    try:
        yield one
    finally:
        one.stop()
        one.close()


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"not true in time: {what}")


class Recording:
    """The operations and results of a client, without ids and times, which differ between servers."""

    def __init__(self, one: KazooClient) -> None:
        self.one = one
        self.lines: list[Any] = []
        self._told: list[WatchedEvent] = []
        self._lock = threading.Lock()

    def watch(self, event: WatchedEvent) -> None:
        with self._lock:
            self._told.append(event)

    def do(self, name: str, *arguments: Any, **keywords: Any) -> None:
        try:
            result = getattr(self.one, name)(*arguments, **keywords)
        except KazooException as problem:
            result = type(problem).__name__
        self.lines.append((name, arguments, _plain(result)))
        self.one.sync("/")  # Events arrive before its response.
        time.sleep(0.05)  # kazoo calls the watchers in another thread.
        with self._lock:
            self.lines.append([(event.type, event.path) for event in self._told])
            self._told.clear()

    def transaction(self, *operations: tuple[Any, ...]) -> None:
        transaction = self.one.transaction()
        for name, *arguments in operations:
            getattr(transaction, name)(*arguments)
        results = transaction.commit()
        self.lines.append([_plain(one) for one in results])


def _plain(result: Any) -> Any:
    if isinstance(result, Exception):
        return type(result).__name__
    if isinstance(result, list):
        return sorted(map(_plain, result))
    if isinstance(result, tuple) and not hasattr(result, "czxid"):
        return tuple(map(_plain, result))
    if hasattr(result, "czxid"):
        counted = (result.version, result.cversion, result.dataLength, result.numChildren)
        return (
            *counted,
            result.ephemeralOwner != 0,
            result.mzxid > result.czxid,
            result.pzxid >= result.czxid,
        )
    return result


def recording_of(address: str) -> list[Any]:
    """Executes all operations of brokers and tools. Returns the results."""
    with client(address) as one, client(address) as other:
        story = Recording(one)
        watch = story.watch
        story.do("exists", "/a", watch=watch)
        story.do("create", "/a", b"1")
        story.do("create", "/a", b"1")
        story.do("create", "/missing/child", b"")
        story.do("get", "/a", watch=watch)
        story.do("get_children", "/a", watch=watch)
        story.do("set", "/a", b"22")
        story.do("set", "/a", b"333", 0)
        story.do("set", "/a", b"333", 1)
        story.do("create", "/a/b", b"", ephemeral=True)
        story.do("create", "/a/b/c", b"")
        story.do("create", "/a/s-", b"x", sequence=True)
        story.do("create", "/a/s-", b"x", sequence=True, ephemeral=True)
        story.do("create", "/a/with-stat", b"", include_data=True)
        story.do("get_children", "/a", include_data=True)
        story.do("delete", "/a")
        story.do("exists", "/a/b")
        story.do("get", "/none")
        story.do("get_children", "/none")
        story.do("delete", "/none")
        story.do("create", "/a//b", b"")
        story.do("ensure_path", "/deep/er/path")
        story.transaction(
            ("create", "/t", b"1"), ("set_data", "/t", b"2"), ("check", "/t", 1), ("delete", "/t")
        )
        story.transaction(("create", "/t", b"1"), ("check", "/a", 99), ("delete", "/a/b"))
        story.do("exists", "/t")
        story.do("get", "/a/b", watch=watch)
        story.do("get_children", "/a", watch=watch)
        other.create("/a/by-another", b"")
        story.do("exists", "/a/by-another")
        story.do("delete", "/a/b")
        story.do("get_acls", "/a")
        other.create("/a/of-another", b"", ephemeral=True)
        story.do("get", "/a/of-another", watch=watch)
        other.stop()
        until(lambda: one.exists("/a/of-another") is None, "the node of a closed session goes")
        story.do("get", "/a")
        one.delete("/a", recursive=True)
        one.delete("/deep", recursive=True)
        return story.lines


def test_kazoo_has_the_same_results_with_zookeeper_and_with_the_store(
    store: StoreServer, zookeeper_server: ZooKeeper
) -> None:
    with client(zookeeper_server.address) as one:
        one.ensure_path("/story")
    with client(store.address) as one:
        one.ensure_path("/story")
    expected = recording_of(f"{zookeeper_server.address}/story")
    found = recording_of(f"{store.address}/story")
    for wanted, got in zip(expected, found, strict=True):
        assert got == wanted


def test_nodes_and_sessions_survive_a_kill() -> None:
    with StoreServer() as store, client(store.address) as one:
        one.create("/stays", b"data")
        one.create("/of-the-session", b"", ephemeral=True)
        session = one.client_id[0]
        store.kill()
        store.start()
        until(lambda: one.connected and one.exists("/of-the-session") is not None, "it is connected again")
        assert one.client_id[0] == session
        assert one.get("/stays")[0] == b"data"
        assert one.create("/later", b"") == "/later"


def test_watches_set_again_report_earlier_events(store: StoreServer, zookeeper_server: ZooKeeper) -> None:
    stories = []
    for address in (zookeeper_server.address, store.address):
        with client(address) as one, socket.create_connection(_address_of(address), 5) as raw:
            for path in ("/again", "/again/same", "/again/changed", "/again/gone"):
                one.create(path, b"")
            _connect(raw, 5000)
            since = one.get("/again/gone")[1].mzxid
            one.set("/again/changed", b"x")
            one.delete("/again/gone")
            one.create("/again/new", b"")
            paths = ["/again/same", "/again/changed", "/again/gone"]
            raw.sendall(_set_watches(since, paths, ["/again/new", "/again/never"], ["/again", "/again/same"]))
            found = []
            while True:
                xid, _, error = struct.unpack_from(">iqi", frame := _frame(raw))
                if xid == SET_WATCHES_XID:
                    assert error == 0
                    break
                (kind,) = struct.unpack_from(">i", frame, 16)
                found.append((xid, kind, frame[28:]))
            stories.append(sorted(found))
            one.delete("/again", recursive=True)
    assert stories[0] == stories[1]
    assert [(xid, kind, path.decode()) for xid, kind, path in stories[1]] == [
        (-1, 1, "/again/new"),
        (-1, 2, "/again/gone"),
        (-1, 3, "/again/changed"),
        (-1, 4, "/again"),
    ]


def test_a_silent_session_expires_and_its_nodes_are_deleted(store: StoreServer) -> None:
    with client(store.address) as one:
        with socket.create_connection(("127.0.0.1", store.port), 5) as raw:
            session_id = _connect(raw, 600)
            _create_ephemeral(raw, "/silent")
            assert one.get("/silent")[1].ephemeralOwner == session_id
        began = time.monotonic()
        until(lambda: one.exists("/silent") is None, "the node goes")
        assert time.monotonic() - began > 0.2


def test_a_client_of_an_expired_session_is_notified_when_it_reconnects(store: StoreServer) -> None:
    with client(store.address) as one:
        one.create("/mine", b"", ephemeral=True)
        session = one.client_id[0]
        assert session in store.expire([session])
        until(lambda: one.connected and one.client_id[0] != session, "there is a new session")
        assert one.exists("/mine") is None


def test_a_pause_of_the_store_expires_no_session(store: StoreServer) -> None:
    with client(store.address, timeout_s=1.0) as one:
        one.create("/kept", b"", ephemeral=True)
        session = one.client_id[0]
        store.pause()
        time.sleep(2.5)
        store.resume()
        until(lambda: one.connected and one.exists("/kept") is not None, "the client is connected again")
        assert one.client_id[0] == session


def test_a_pause_does_not_count_towards_the_timeout_of_a_disconnected_session(store: StoreServer) -> None:
    with socket.create_connection(("127.0.0.1", store.port), 5) as raw:
        session_id = _connect(raw, 2000)
    store.pause()
    time.sleep(3.0)
    store.resume()
    time.sleep(0.3)
    with socket.create_connection(("127.0.0.1", store.port), 5) as raw:
        assert _connect(raw, 2000, session_id) == session_id


@pytest.mark.parametrize(
    "data",
    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x04abcd", b"\0\0\0\x2c" + bytes(44) + b"\0\0\0\x01x"],
)
def test_an_invalid_request_closes_only_its_connection(store: StoreServer, data: bytes) -> None:
    with client(store.address) as one:
        with socket.create_connection(("127.0.0.1", store.port), 5) as raw:
            raw.sendall(data)
            with contextlib.suppress(ConnectionError):
                while raw.recv(4096):
                    pass
        assert one.exists("/") is not None


def test_a_truncated_request_does_not_prevent_the_next_start() -> None:
    with StoreServer() as store:
        with client(store.address) as one:
            one.create("/kept", b"")
        with socket.create_connection(("127.0.0.1", store.port), 5) as raw:
            _connect(raw, 5000)
            raw.sendall(struct.pack(">iii", 8, 1, Op.CREATE))
            assert raw.recv(1) == b""
        store.kill()
        store.start()
        with client(store.address) as one:
            assert one.exists("/kept") is not None


def test_responds_to_four_letter_commands(store: StoreServer) -> None:
    for word, answer in ((b"ruok", b"imok"), (b"srvr", b"Mode: standalone")):
        with socket.create_connection(("127.0.0.1", store.port), 5) as raw:
            raw.sendall(word)
            assert answer in raw.recv(4096)


def test_responds_with_unimplemented_to_unsupported_requests(store: StoreServer) -> None:
    with client(store.address) as one:
        one.ensure_path("/plain")
        with pytest.raises(KazooException):
            one.set_acls("/plain", one.get_acls("/plain")[0])
        with pytest.raises(KazooException):
            one.reconfig("server.1=x:1:1", None, None)


def _address_of(address: str) -> tuple[str, int]:
    host, _, port = address.partition(":")
    return host, int(port)


def _set_watches(since: int, *lists: list[str]) -> bytes:
    body = struct.pack(">iiq", SET_WATCHES_XID, 101, since)
    for paths in lists:
        body += struct.pack(">i", len(paths))
        for path in paths:
            body += struct.pack(">i", len(path)) + path.encode()
    return struct.pack(">i", len(body)) + body


def _connect(raw: socket.socket, timeout_ms: int, session_id: int = 0) -> int:
    body = struct.pack(">iqiqi", 0, 0, timeout_ms, session_id, 16) + bytes(16) + b"\0"
    raw.sendall(struct.pack(">i", len(body)) + body)
    answer = _frame(raw)
    _, agreed, session_id = struct.unpack_from(">iiq", answer)
    assert agreed == timeout_ms
    return int(session_id)


def _create_ephemeral(raw: socket.socket, path: str) -> None:
    name = path.encode()
    acl = struct.pack(">ii", 1, 31) + b"\0\0\0\x05world\0\0\0\x06anyone"
    body = struct.pack(">iii", 1, 1, len(name)) + name + struct.pack(">i", 0) + acl + struct.pack(">i", 1)
    raw.sendall(struct.pack(">i", len(body)) + body)
    _, _, error = struct.unpack_from(">iqi", _frame(raw))
    assert error == 0


def _frame(raw: socket.socket) -> bytes:
    return _exactly(raw, int.from_bytes(_exactly(raw, 4), "big"))


def _exactly(raw: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = raw.recv(count - len(data))
        assert piece, "the connection ended"
        data += piece
    return data
