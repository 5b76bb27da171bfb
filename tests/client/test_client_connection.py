"""Connections to peers that send wrong data, stall, close or use another protocol: real sockets, scripted
servers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tidemill.client import Admin
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import COMMON
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import BrokerUnreachable, ClientClosed, ClientError, RequestTimeout
from tidemill.client.network_client import NetworkClient
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import API, ApiKey, response_class
from tidemill.wire.header import decode_request, encode_response, parse_request_header
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidemill.wire.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from tidemill.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidemill.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.schema import Struct, UnsupportedByVersion

Handler = Callable[["Peer", bytes], None]


class Peer:
    """A server that sends the responses of its script."""

    def __init__(self, script: Handler) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.requests: list[tuple[int, int]] = []
        self.client: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self.client, _ = self._listener.accept()
            except OSError:
                return
            with self.client, contextlib.suppress(OSError):
                while (size := self._take(4)) and (frame := self._take(int.from_bytes(size, "big"))):
                    self._script(self, frame)

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            assert self.client is not None
            try:
                piece = self.client.recv(count - len(data))
            except OSError:
                return b""
            if not piece:
                return b""
            data += piece
        return data

    def send(self, data: bytes) -> None:
        assert self.client is not None
        self.client.sendall(data)

    def hang_up(self) -> None:
        assert self.client is not None
        self.client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def versions(frame: bytes, known: dict[int, tuple[int, int]] | None = None, at_most: int = 4) -> bytes | None:
    """Returns the response to ApiVersions; None for other requests."""
    header = parse_request_header(frame)
    if header.api_key != ApiKey.API_VERSIONS:
        return None
    ranges = known or {key: (spec.version_min, spec.version_max) for key, spec in API.items()}
    keys = [ApiVersion(api_key=k, min_version=a, max_version=b) for k, (a, b) in ranges.items()]
    if header.api_version > at_most:
        refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
        return encode_response(ApiKey.API_VERSIONS, 0, int(header.correlation_id), refusal)
    answer = ApiVersionsResponse(api_keys=keys)
    return encode_response(ApiKey.API_VERSIONS, int(header.api_version), int(header.correlation_id), answer)


def after_versions(script: Handler) -> Handler:
    """Returns a script that answers ApiVersions, then runs ``script``."""

    def run(peer: Peer, frame: bytes) -> None:
        answer = versions(frame)
        if answer is not None:
            peer.send(answer)
        else:
            script(peer, frame)

    return run


def metadata(frame: bytes, cluster_id: str = "c") -> bytes:
    header = parse_request_header(frame)
    decode_request(header, frame)
    message = MetadataResponse(cluster_id=cluster_id)
    return encode_response(ApiKey.METADATA, int(header.api_version), int(header.correlation_id), message)


@pytest.fixture
def serve() -> Iterator[Callable[..., Connection]]:
    peers: list[Peer] = []
    connections: list[Connection] = []

    def start(script: Handler, **config: object) -> Connection:
        peer = Peer(script)
        peers.append(peer)
        settings = ClientConfig(COMMON, {"bootstrap.servers": "unused:1"}, **config)
        connections.append(Connection("127.0.0.1", peer.port, settings))
        return connections[-1]

    yield start
    for connection in connections:
        connection.close()
    for peer in peers:
        peer.close()


def ask(connection: Connection) -> MetadataResponse:
    return connection.call(ApiKey.METADATA, MetadataRequest(topics=None), MetadataResponse)


def test_the_highest_common_version_is_chosen(serve: Callable[..., Connection]) -> None:
    known = {18: (0, 4), 3: (1, 5), 1: (90, 99)}

    def script(peer: Peer, frame: bytes) -> None:
        peer.send(versions(frame, known) or metadata(frame))

    connection = serve(script)
    connection.open()
    assert connection.version(ApiKey.METADATA) == 5
    assert connection.version(ApiKey.METADATA, 3) == 3
    assert ask(connection).cluster_id == "c"
    assert not connection.supports(ApiKey.FETCH)
    with pytest.raises(ClientError, match=r"offers versions 90 to 99, this client supports 0 to 18"):
        connection.version(ApiKey.FETCH)


@pytest.mark.parametrize(
    ("offered", "version", "common"),
    [
        ((1, 5), 0, True),
        ((1, 5), 5, True),
        ((1, 5), 6, False),
        ((0, 0), 0, True),
        ((0, 0), 1, False),
        ((90, 99), 0, False),
    ],
)
def test_supports_needs_a_common_version_at_or_above_the_requested(
    serve: Callable[..., Connection], offered: tuple[int, int], version: int, common: bool
) -> None:
    known = {18: (0, 4), 3: offered}
    connection = serve(lambda peer, frame: peer.send(versions(frame, known) or b""))
    connection.open()
    assert connection.supports(ApiKey.METADATA, version) == common


def answering_later(serve: Callable[..., Connection]) -> tuple[Connection, threading.Event]:
    """An open connection whose peer answers Metadata once the event is set."""
    go = threading.Event()

    def script(peer: Peer, frame: bytes) -> None:
        go.wait(10)
        peer.send(metadata(frame))

    connection = serve(after_versions(script))
    connection.open()
    return connection, go


def test_the_oldest_request_is_unanswered_until_its_response_begins(serve: Callable[..., Connection]) -> None:
    connection, go = answering_later(serve)
    assert connection.oldest_unanswered() is None
    first, second = (connection.send(ApiKey.METADATA, MetadataRequest(topics=None)) for _ in range(2))
    assert connection.oldest_unanswered() is first
    go.set()
    assert connection.wait(second, 10)
    assert connection.oldest_unanswered() is None


def test_api_versions_is_repeated_in_a_version_of_the_broker(serve: Callable[..., Connection]) -> None:
    asked: list[int] = []

    def script(peer: Peer, frame: bytes) -> None:
        asked.append(int(parse_request_header(frame).api_version))
        peer.send(versions(frame, {18: (0, 2), 3: (0, 1)}, at_most=2) or b"")

    connection = serve(script)
    connection.open()
    assert asked == [4, 2]
    assert connection.version(ApiKey.METADATA) == 1


def test_any_thread_receives_the_responses_in_order(serve: Callable[..., Connection]) -> None:
    connection = serve(after_versions(lambda peer, frame: peer.send(metadata(frame, str(len(frame))))))
    connection.open()
    first, second = (connection.send(ApiKey.METADATA, MetadataRequest(topics=None)) for _ in range(2))
    results: list[object] = []

    def wait() -> None:
        connection.wait(second, 5)
        results.append(second.response(MetadataResponse))

    thread = threading.Thread(target=wait)
    thread.start()
    assert connection.wait(first, 5)
    thread.join()
    assert first.response(MetadataResponse) == second.response(MetadataResponse) == results[0]
    assert connection.in_flight == 0


def test_a_response_read_by_another_thread_is_available_at_once(serve: Callable[..., Connection]) -> None:
    frames: list[bytes] = []

    def script(peer: Peer, frame: bytes) -> None:
        frames.append(frame)
        if len(frames) % 2 == 0:
            time.sleep(0.1)
            peer.send(metadata(frames[-2]))
            time.sleep(0.7)
            peer.send(metadata(frames[-1]))

    connection = serve(after_versions(script))
    connection.open()
    for _ in range(8):  # Either thread may continue first after a response.
        first, second = (connection.send(ApiKey.METADATA, MetadataRequest(topics=None)) for _ in range(2))
        reader = threading.Thread(target=connection.wait, args=(second, 10))
        reader.start()
        time.sleep(0.05)  # This thread reads both responses.
        assert connection.wait(first, 10)
        assert not second.done
        reader.join()
        assert second.done


@pytest.mark.parametrize("size", [-1, 0, 3, 2**30, 2**31 - 1])
def test_a_false_length_closes_the_connection_and_allocates_nothing(
    serve: Callable[..., Connection], size: int
) -> None:
    def script(peer: Peer, frame: bytes) -> None:
        peer.send(size.to_bytes(4, "big", signed=True) + b"x" * 100)

    connection = serve(after_versions(script))
    connection.open()
    tracemalloc.start()
    with pytest.raises(BrokerUnreachable, match=r"check host, port and security.protocol"):
        ask(connection)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert connection.closed
    assert peak < 10_000_000


def test_a_response_to_another_request_closes_the_connection(serve: Callable[..., Connection]) -> None:
    connection = serve(after_versions(lambda peer, frame: peer.send(b"\0\0\0\x08" + b"\x7f" * 8)))
    connection.open()
    with pytest.raises(BrokerUnreachable, match=r"correlation id"):
        ask(connection)


def test_a_server_of_another_protocol_is_reported(serve: Callable[..., Connection]) -> None:
    connection = serve(lambda peer, frame: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with pytest.raises(BrokerUnreachable, match=r"check host, port"):
        connection.open()


def test_an_invalid_response_closes_the_connection(serve: Callable[..., Connection]) -> None:
    def script(peer: Peer, frame: bytes) -> None:
        whole = metadata(frame)
        peer.send((len(whole) - 6).to_bytes(4, "big") + whole[4:-2])

    connection = serve(after_versions(script))
    connection.open()
    with pytest.raises(BrokerUnreachable, match=r"sent an invalid response \(MetadataResponse.*check host"):
        ask(connection)
    assert connection.closed


def test_closing_during_a_response_ends_its_request_once(
    serve: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = serve(after_versions(lambda peer, frame: peer.send(metadata(frame))))
    connection.open()
    take = connection._next_frame

    def take_and_close() -> bytes | None:
        frame = take()
        if frame is not None:
            connection.close()
        return frame

    monkeypatch.setattr(connection, "_next_frame", take_and_close)
    with pytest.raises(ClientClosed, match=r"was closed"):
        ask(connection)


def test_an_unsupported_filter_is_refused_and_not_omitted(
    serve: Callable[..., Connection],
) -> None:
    def script(peer: Peer, frame: bytes) -> None:
        peer.send(versions(frame, {18: (0, 4), ApiKey.LIST_GROUPS: (0, 3)}) or b"")

    connection = serve(script)
    connection.open()
    with pytest.raises(UnsupportedByVersion, match=r"states_filter"):
        connection.call(ApiKey.LIST_GROUPS, ListGroupsRequest(states_filter=["Empty"]), ListGroupsResponse)
    assert connection.in_flight == 0


def test_a_closed_connection_ends_all_requests(serve: Callable[..., Connection]) -> None:
    connection = serve(after_versions(lambda peer, frame: peer.hang_up()))
    connection.open()
    requests = [connection.send(ApiKey.METADATA, MetadataRequest(topics=None)) for _ in range(2)]
    for request in requests:
        assert connection.wait(request, 5)
        with pytest.raises(BrokerUnreachable, match=r"reopened when needed"):
            request.response(MetadataResponse)


def test_a_silent_broker_is_disconnected_after_the_timeout(serve: Callable[..., Connection]) -> None:
    connection = serve(after_versions(lambda peer, frame: None), request_timeout_ms=300)
    connection.open()
    began = time.monotonic()
    with pytest.raises(RequestTimeout, match=r"has not answered Metadata within \d+\.\d s; is it overloaded"):
        ask(connection)
    assert time.monotonic() - began < 5
    assert connection.closed


def test_a_wait_shorter_than_the_request_timeout_keeps_the_connection(
    serve: Callable[..., Connection],
) -> None:
    connection, go = answering_later(serve)
    request = connection.send(ApiKey.METADATA, MetadataRequest(topics=None))
    assert not connection.wait(request, 0.05)
    go.set()
    assert connection.wait(request, 5)
    assert request.response(MetadataResponse).cluster_id == "c"


def test_a_response_in_small_pieces_is_assembled(serve: Callable[..., Connection]) -> None:
    def script(peer: Peer, frame: bytes) -> None:
        for byte in metadata(frame):
            peer.send(bytes([byte]))

    connection = serve(after_versions(script))
    connection.open()
    assert ask(connection).cluster_id == "c"


def answering_in_two_parts(serve: Callable[..., Connection]) -> tuple[Connection, threading.Event]:
    """An open connection whose peer sends one byte less than each response, and the rest after the event."""
    go = threading.Event()

    def script(peer: Peer, frame: bytes) -> None:
        whole = metadata(frame)
        peer.send(whole[:-1])
        go.wait(10)
        peer.send(whole[-1:])

    connection = serve(after_versions(script))
    connection.open()
    return connection, go


def test_receive_returns_while_a_response_is_incomplete(serve: Callable[..., Connection]) -> None:
    connection, go = answering_in_two_parts(serve)
    request = connection.send(ApiKey.METADATA, MetadataRequest(topics=None))
    assert not connection.wait(request, 0.1)
    began = time.monotonic()
    connection.receive()
    assert time.monotonic() - began < 0.5
    assert not request.done
    go.set()
    assert connection.wait(request, 5)
    assert request.response(MetadataResponse).cluster_id == "c"


def test_an_incomplete_response_expires(serve: Callable[..., Connection]) -> None:
    def script(peer: Peer, frame: bytes) -> None:
        for byte in metadata(frame)[:-1]:
            peer.send(bytes([byte]))
            time.sleep(0.05)

    connection = serve(after_versions(script), request_timeout_ms=300)
    connection.open()
    with pytest.raises(RequestTimeout, match=r"has not answered Metadata within \d+\.\d s"):
        ask(connection)
    assert connection.closed


def test_a_response_that_waits_to_be_read_does_not_expire(serve: Callable[..., Connection]) -> None:
    connection = serve(after_versions(lambda peer, frame: peer.send(metadata(frame))), request_timeout_ms=300)
    connection.open()
    request = connection.send(ApiKey.METADATA, MetadataRequest(topics=None))
    time.sleep(0.5)
    assert not connection.expire(time.monotonic())
    assert request.response(MetadataResponse).cluster_id == "c"


def test_an_incomplete_response_that_does_not_proceed_expires(serve: Callable[..., Connection]) -> None:
    connection, go = answering_in_two_parts(serve)
    request = connection.send(ApiKey.METADATA, MetadataRequest(topics=None), timeout=0.2)
    assert not connection.wait(request, 0.1)
    time.sleep(0.2)
    assert connection.expire(time.monotonic())
    go.set()
    with pytest.raises(RequestTimeout, match=r"has not answered Metadata"):
        request.response(MetadataResponse)


class Interrupted:
    """Passes the calls to a socket; raises KeyboardInterrupt in ``recv``, before or after its n-th piece."""

    def __init__(self, opened: socket.socket, at: int, *, has_received: bool) -> None:
        self._opened = opened
        self._left = at
        self._has_received = has_received

    def recv(self, *arguments: int) -> bytes:
        if self._left == 1 and not self._has_received:
            raise KeyboardInterrupt
        data = self._opened.recv(*arguments)
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._opened, name)


@pytest.mark.parametrize("has_received", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_leaves_no_connection_in_the_middle_of_a_response(
    serve: Callable[..., Connection], at: int, has_received: bool
) -> None:
    connection, go = answering_in_two_parts(serve)
    request = connection.send(ApiKey.METADATA, MetadataRequest(topics=None))
    connection._socket = Interrupted(connection._socket, at, has_received=has_received)
    threading.Timer(0.2, go.set).start()
    with pytest.raises(KeyboardInterrupt):
        connection.wait(request, 5)
    assert connection.wait(request, 5)
    with pytest.raises(BrokerUnreachable, match=r"interrupted.*reopened when needed"):
        request.response(MetadataResponse)
    assert connection.closed


def test_an_interrupt_leaves_no_connection_in_the_middle_of_a_request(
    serve: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = threading.Event()
    connection = serve(after_versions(lambda peer, frame: blocked.wait(10)))
    connection.open()
    earlier = connection.send(ApiKey.METADATA, MetadataRequest(topics=None))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidemill.client.connection._wait_until_writable", interrupt)
    with pytest.raises(KeyboardInterrupt):
        connection.send(ApiKey.PRODUCE, bytes(20_000_000))
    blocked.set()
    assert connection.closed
    with pytest.raises(BrokerUnreachable, match=r"writing to broker .* interrupted.*reopened when needed"):
        earlier.response(MetadataResponse)


class ClosedMeanwhile(deque[InFlightRequest]):
    """The requests in flight of a connection that another thread closes after the n-th look at them."""

    def __init__(self, connection: Connection, looks: int) -> None:
        super().__init__()
        self._connection = connection
        self._looks = looks

    def _looked(self) -> None:
        self._looks -= 1
        if self._looks == 0:
            self._connection._fail(BrokerUnreachable("another thread could not send"))

    def __bool__(self) -> bool:
        found = len(self) > 0
        self._looked()
        return found

    def __getitem__(self, index: object) -> InFlightRequest:
        found = super().__getitem__(index)
        self._looked()
        return found


@pytest.mark.parametrize("looks", range(1, 6))
@pytest.mark.parametrize("wait", ["wait", "expire"])
def test_a_connection_that_another_thread_closes_ends_its_requests(
    serve: Callable[..., Connection], looks: int, wait: str
) -> None:
    connection = serve(after_versions(lambda peer, frame: peer.send(metadata(frame))))
    connection.open()
    connection._pending = ClosedMeanwhile(connection, looks)
    request = connection.send(ApiKey.METADATA, MetadataRequest(topics=None))
    if wait == "wait":
        connection.wait(request, 5)
    else:
        time.sleep(0.2)
        connection.expire(request.expires_s)
    connection._fail(BrokerUnreachable("another thread could not send"))
    assert request.done
    assert connection.in_flight == 0
    with contextlib.suppress(BrokerUnreachable):
        assert request.response(MetadataResponse).cluster_id == "c"


@pytest.mark.parametrize(
    ("without", "call"),
    [
        (ApiKey.FIND_COORDINATOR, lambda admin: admin.group_offsets("g", timeout=0.3)),
        (ApiKey.OFFSET_FETCH, lambda admin: admin.group_offsets("g", timeout=0.3)),
        (ApiKey.DESCRIBE_GROUPS, lambda admin: admin.describe_group("g", timeout=0.3)),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, lambda admin: admin.describe_group("g", timeout=0.3)),
        (ApiKey.DESCRIBE_CONFIGS, lambda admin: admin.broker_configs(0, timeout=0.3)),
    ],
)
def test_a_response_without_the_requested_result_is_invalid(
    without: ApiKey, call: Callable[[Admin], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: dict[ApiKey, Struct] = {
        ApiKey.FIND_COORDINATOR: FindCoordinatorResponse(coordinators=[Coordinator(key="g")]),
        ApiKey.DESCRIBE_GROUPS: DescribeGroupsResponse(groups=[DescribedGroup(group_state="Dead")]),
    }
    connection = Connection("127.0.0.1", 1, ClientConfig(COMMON, {"bootstrap.servers": "unused:1"}))

    def respond(key: ApiKey, *_: object, **__: object) -> Struct:
        return results[key] if key != without else response_class(key)()

    monkeypatch.setattr(connection, "call", respond)
    monkeypatch.setattr(connection, "supports", lambda key: True)
    monkeypatch.setattr(connection, "version", lambda key, at_most=99: min(API[key].version_max, at_most))
    monkeypatch.setattr(NetworkClient, "any_connection", lambda *_: connection)
    monkeypatch.setattr(NetworkClient, "connection", lambda *_: connection)
    monkeypatch.setattr(NetworkClient, "refresh", lambda *_: None)
    with (
        Admin("unused:1") as admin,
        pytest.raises(BrokerUnreachable, match=rf"invalid response \(no result of {API[without].name}\)"),
    ):
        call(admin)
    assert connection.closed


def test_the_setup_timeout_limits_the_lookup_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver of the system may take half a minute. Its thread does not delay the end of the process."""
    threads: list[threading.Thread] = []
    answered = threading.Event()

    def resolve(*_: object, **__: object) -> list[object]:
        threads.append(threading.current_thread())
        answered.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    config = ClientConfig(
        COMMON, {"bootstrap.servers": "unused:1", "socket.connection.setup.timeout.ms": 200}
    )
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"cannot be resolved: no name server has answered in time"):
        Connection("a.name", 9092, config).open()
    assert time.monotonic() - began < 5
    answered.set()
    assert all(thread.daemon for thread in threads)
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_refused_connection_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    config = ClientConfig(COMMON, {"bootstrap.servers": "unused:1"})
    with pytest.raises(BrokerUnreachable, match=r"is it running, and reachable from here"):
        Connection("127.0.0.1", port, config).open()


def test_a_broker_that_advertises_no_host_name_is_named() -> None:
    config = ClientConfig(COMMON, {"bootstrap.servers": "unused:1"})
    with pytest.raises(BrokerUnreachable, match=r"broker a\.\.b:9092 cannot be resolved: it is not a host"):
        Connection("a..b", 9092, config).open()


@pytest.mark.parametrize("first", ["takes no connection", "of a family that this machine does not have"])
def test_the_second_address_of_a_name_is_tried_in_time(
    serve: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    script = after_versions(lambda peer, frame: peer.send(metadata(frame)))
    connection = serve(script, socket_connection_setup_timeout_ms=4000)
    with socket.socket() as full, contextlib.ExitStack() as fill:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):  # The system accepts no more connections, and drops further attempts.
            one = fill.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        family = socket.AF_INET if first == "takes no connection" else 4711
        addresses = [
            (family, socket.SOCK_STREAM, 0, "", full.getsockname()),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", connection.port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        began = time.monotonic()
        connection.open()
        assert time.monotonic() - began < 3.5
    assert ask(connection).cluster_id == "c"


def test_a_connection_uses_ipv6(serve: Callable[..., Connection]) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")

    def run() -> None:
        client, _ = listener.accept()
        with client:
            size = int.from_bytes(client.recv(4), "big")
            client.sendall(versions(client.recv(size)) or b"")
            client.recv(1)

    thread = threading.Thread(target=run)
    thread.start()
    connection = Connection(
        "::1", listener.getsockname()[1], ClientConfig(COMMON, {"bootstrap.servers": "unused:1"})
    )
    connection.open()
    assert connection.address.startswith("[::1]:")
    connection.close()
    thread.join()
    listener.close()
