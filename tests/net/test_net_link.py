"""Connections between brokers, to a real broker and to misbehaving peers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tidemill.net.link import FRAME_BYTES_MAX, Link, LinkBroken, LinkError, LinkRefused, LinkTimeout
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.codec import decode
from tidemill.wire.header import encode_response, parse_request_header
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

PATIENCE_S = 10.0
Respond = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def versions(correlation_id: int) -> bytes:
    keys = [ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=12)]
    return encode_response(ApiKey.API_VERSIONS, 3, correlation_id, ApiVersionsResponse(api_keys=keys))


async def peer(respond: Respond) -> asyncio.Server:
    """A server that responds to ApiVersions, and passes other requests to ``respond``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                header = parse_request_header(frame)
                if header.api_key == ApiKey.API_VERSIONS:
                    writer.write(versions(header.correlation_id))
                else:
                    await respond(frame, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def linked(server: asyncio.Server) -> Link:
    port = server.sockets[0].getsockname()[1]
    return await Link.open(2, "127.0.0.1", port, "test", PATIENCE_S)


@asynccontextmanager
async def link_to(respond: Respond) -> AsyncIterator[Link]:
    """A link to a peer that calls ``respond`` with each frame."""
    server = await peer(respond)
    link = await linked(server)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield link
    finally:
        link.close("the test is over")
        await asyncio.sleep(0)
        server.close()


async def request_metadata(link: Link, timeout_s: float = PATIENCE_S) -> MetadataResponse:
    """Requests the metadata of no topic."""
    return await link.request(ApiKey.METADATA, 12, MetadataRequest(topics=[]), MetadataResponse, timeout_s)


async def silent(frame: bytes, writer: asyncio.StreamWriter) -> None:
    """Never responds."""


async def test_a_real_broker_responds_to_many_requests_at_once(tidemill_session_broker: Broker) -> None:
    host, port = tidemill_session_broker.bootstrap.rsplit(":", 1)
    link = await Link.open(1, host, int(port), "test", PATIENCE_S)
    version = link.version_of(ApiKey.METADATA, 9, 13)
    requests = [
        link.request(ApiKey.METADATA, version, MetadataRequest(topics=[]), MetadataResponse, PATIENCE_S)
        for _ in range(50)
    ]
    for response in await asyncio.gather(*requests):
        assert len(response.brokers) == 1
    with pytest.raises(LinkError, match="this broker supports 99 to 100"):
        link.version_of(ApiKey.METADATA, 99, 100)
    link.close("done")
    with pytest.raises(LinkError, match="done"):
        await link.request(ApiKey.METADATA, version, MetadataRequest(topics=[]), MetadataResponse, PATIENCE_S)
    await asyncio.sleep(0)


async def test_a_refused_connection_is_distinguished_from_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        # The system queues its connections, and it never responds.
        with pytest.raises(LinkTimeout, match=r"broker 7 at 127\.0\.0\.1"):
            await Link.open(7, "127.0.0.1", port, "test", 0.2)
    with pytest.raises(LinkRefused, match="refuses connections"):
        await Link.open(7, "127.0.0.1", port, "test", PATIENCE_S)
    with pytest.raises(LinkError, match="cannot be reached"):
        await Link.open(7, "no.such.host.invalid", 1, "test", PATIENCE_S)


REFUSING, UNREACHABLE, SILENT = "127.0.0.1", "no such family", "127.0.0.2"
"""Addresses of a name: no process listens; the system has no route or not the family; no reply arrives."""


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ([REFUSING, UNREACHABLE], LinkRefused),
        ([UNREACHABLE, REFUSING], LinkRefused),
        ([REFUSING, SILENT], LinkRefused),
        ([SILENT, REFUSING], LinkRefused),
        ([SILENT, UNREACHABLE], LinkTimeout),
        ([UNREACHABLE], LinkError),
    ],
)
async def test_the_error_of_several_addresses_does_not_depend_on_their_order(
    addresses: list[str], expected: type[LinkError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that refuses shows that the process has ended, although the others are unreachable."""
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def resolve(host: str, port: int, **_: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        families = {UNREACHABLE: 4711}
        return [(families.get(a, socket.AF_INET), socket.SOCK_STREAM, 0, "", (a, port)) for a in addresses]

    async def connect_or_wait(sock: socket.socket, address: tuple[str, int]) -> None:
        await (asyncio.sleep(PATIENCE_S) if address[0] == SILENT else connect(sock, address))

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    monkeypatch.setattr(loop, "sock_connect", connect_or_wait)
    monkeypatch.setattr("tidemill.net.link.CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(LinkError) as raised:
        await Link.open(7, "a.name", port, "test", 0.5)
    assert type(raised.value) is expected


async def test_an_ipv6_address_is_named_in_brackets() -> None:
    with pytest.raises(LinkError, match=r"broker 7 at \[::1\]:1 "):
        await Link.open(7, "::1", 1, "test", PATIENCE_S)


async def test_a_peer_that_closes_fails_all_pending_requests() -> None:
    async def close(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with link_to(close) as link:
        reasons: list[str] = []
        link.on_close = reasons.append
        requests = [request_metadata(link) for _ in range(3)]
        for result in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(result, LinkError)
        assert len(reasons) == 1
        assert link.close_reason == reasons[0]


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes the connection as the system does for a killed process with unread bytes."""
    peer: socket.socket = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("ends", [asyncio.StreamWriter.close, _reset])
async def test_the_error_names_a_close_or_reset_by_the_peer(
    ends: Callable[[asyncio.StreamWriter], None],
) -> None:
    async def close(frame: bytes, writer: asyncio.StreamWriter) -> None:
        ends(writer)

    async with link_to(close) as link:
        events: list[str] = []
        link.on_broken = lambda: events.append("broken")
        link.on_close = lambda reason: events.append("closed")
        with pytest.raises(LinkError):
            await request_metadata(link)
        assert events == ["broken", "closed"]


async def test_a_timeout_is_not_reported_as_a_broken_link() -> None:
    async with link_to(silent) as link:
        events: list[str] = []
        link.on_broken = lambda: events.append("broken")
        with pytest.raises(LinkTimeout):
            await request_metadata(link, 0.05)
        assert link.is_closed
        assert events == []


async def test_a_peer_that_closes_a_new_connection_is_not_a_timeout() -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    with pytest.raises(LinkBroken):
        await linked(server)
    server.close()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack(">i", 3) + b"abc", "a response of 3 bytes"),
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (struct.pack(">i", FRAME_BYTES_MAX + 1), "a response of"),
        (struct.pack(">ii", 4, 99), "Response|ends"),
        (struct.pack(">i", 300) + b"\x00" * 300, "MetadataResponse v12"),
    ],
)
async def test_invalid_bytes_close_the_link_with_a_reason(data: bytes, text: str) -> None:
    async def garbage(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    async with link_to(garbage) as link:
        with pytest.raises(LinkError, match=text):
            await request_metadata(link)
        assert link.is_closed


async def test_an_unexpected_response_closes_the_link() -> None:
    async def twice(frame: bytes, writer: asyncio.StreamWriter) -> None:
        correlation_id = parse_request_header(frame).correlation_id
        writer.write(versions(correlation_id) * 2)

    async with link_to(twice) as link:
        ended = asyncio.get_running_loop().create_future()
        link.on_close = ended.set_result
        with pytest.raises(LinkError):
            await request_metadata(link)
        assert await ended


@pytest.mark.parametrize("size", [200 * 1024 * 1024, FRAME_BYTES_MAX])
async def test_a_large_announced_size_allocates_no_memory(size: int) -> None:
    """A broker that accepts requests over 100 MiB sends batches of that size to followers."""

    async def promise(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">i", size) + b"\x00" * 10)
        await asyncio.sleep(PATIENCE_S)

    async with link_to(promise) as link:
        with pytest.raises(LinkTimeout):
            await request_metadata(link, 0.2)
        assert link.close_reason == "no response to API 3 within 0.2 s"


async def test_unread_requests_are_buffered_and_sent_later() -> None:
    go_on = asyncio.Event()
    seen: list[int] = []

    async def slow(frame: bytes, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        seen.append(len(frame))
        if len(seen) == 40:
            writer.close()

    async with link_to(slow) as link:
        topics = [MetadataRequestTopic(name="t" * 240) for _ in range(2000)]
        requests = [
            asyncio.ensure_future(
                link.request(
                    ApiKey.METADATA, 12, MetadataRequest(topics=topics), MetadataResponse, PATIENCE_S
                )
            )
            for _ in range(40)
        ]
        await asyncio.sleep(0.05)
        go_on.set()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(result, LinkError) for result in results)
        assert len(seen) == 40
        assert len(set(seen)) == 1


class Responses:
    """Records the responses to the requests of ``Link.send``."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.closed = ""
        self.done = asyncio.Event()

    def on_response(self, data: bytes, start: int, end: int) -> None:
        self.bodies.append(data[start:end])
        self.done.set()

    def on_link_closed(self, reason: str) -> None:
        self.closed = reason
        self.done.set()


async def test_undecoded_and_decoded_responses_share_a_link() -> None:
    size = 300_000
    body = bytes(range(256)) * (size // 256)

    async def respond(frame: bytes, writer: asyncio.StreamWriter) -> None:
        header = parse_request_header(frame)
        if header.api_version == 12:
            response = encode_response(ApiKey.METADATA, 12, header.correlation_id, MetadataResponse())
            writer.write(response)
            return
        assert frame[header.body_position :] == b"body"
        data = struct.pack(">iib", 5 + len(body), header.correlation_id, 0) + body
        for at in range(0, len(data), 70_000):
            writer.write(data[at : at + 70_000])
            await writer.drain()

    async with link_to(respond) as link:
        responses = Responses()
        for _ in range(3):
            link.send(ApiKey.METADATA, 9, b"body", responses, PATIENCE_S)
        assert (await request_metadata(link)).topics == []
        assert responses.bodies == [body] * 3
        link.close("enough")
        link.send(ApiKey.METADATA, 9, b"body", responses, PATIENCE_S)
        assert responses.closed == "enough"


async def test_a_sent_request_that_times_out_closes_the_link() -> None:
    async with link_to(silent) as link:
        responses = Responses()
        link.send(ApiKey.METADATA, 9, b"", responses, 0.02)
        await responses.done.wait()
        assert responses.closed == link.close_reason == "no response to API 3 within 0.02 s"


async def test_a_link_closed_with_an_empty_reason_sends_no_request() -> None:
    async with link_to(silent) as link:
        link.close("")
        with pytest.raises(LinkError):
            await request_metadata(link)
        responses = Responses()
        link.send(ApiKey.METADATA, 9, b"", responses, PATIENCE_S)
        assert responses.done.is_set()


async def _metadata(frame: bytes, writer: asyncio.StreamWriter) -> None:
    header = parse_request_header(frame)
    empty = MetadataResponse(brokers=[], topics=[])
    writer.write(encode_response(ApiKey.METADATA, header.api_version, header.correlation_id, empty))


async def test_an_encoding_error_does_not_affect_other_requests() -> None:
    async with link_to(_metadata) as link:
        with pytest.raises(AttributeError):
            await link.request(ApiKey.METADATA, 12, object(), MetadataResponse, PATIENCE_S)
        response = await request_metadata(link)
        assert response.brokers == []


def _large(cut: int = 0) -> Respond:
    """Responds with as many topics as requested, without the last ``cut`` bytes."""

    async def respond(frame: bytes, writer: asyncio.StreamWriter) -> None:
        header = parse_request_header(frame)
        request = decode(MetadataRequest, header.api_version, frame, header.body_position, len(frame))
        topics = [
            MetadataResponseTopic(error_code=0, name=one.name, partitions=[]) for one in request.topics or ()
        ]
        whole = encode_response(
            ApiKey.METADATA,
            header.api_version,
            header.correlation_id,
            MetadataResponse(brokers=[], topics=topics),
        )
        body = whole[4 : len(whole) - cut]
        writer.write(struct.pack(">i", len(body)) + body)

    return respond


NAMES = [f"t{number}" for number in range(5000)]
MANY = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES])


async def test_large_requests_and_responses_do_not_block_the_event_loop() -> None:
    async with link_to(_large()) as link:
        requesting = asyncio.ensure_future(
            link.request(ApiKey.METADATA, 12, MANY, MetadataResponse, PATIENCE_S)
        )
        began = 0
        while link._correlation_id == 1 and not requesting.done():  # The first request was ApiVersions.
            began += 1
            await asyncio.sleep(0)
        assert began >= len(NAMES) // 1000
        # A later request gets its own response.
        few = await request_metadata(link)
        assert few.topics == []
        assert [one.name for one in (await requesting).topics] == NAMES


async def test_a_truncated_large_response_closes_the_link_with_a_reason() -> None:
    async with link_to(_large(cut=7)) as link:
        with pytest.raises(LinkError, match="MetadataResponse"):
            await link.request(ApiKey.METADATA, 12, MANY, MetadataResponse, PATIENCE_S)
        assert "MetadataResponse" in (link.close_reason or "")


async def test_an_internal_error_in_a_response_fails_all_pending_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with link_to(_metadata) as link:

        def fault(*arguments: object) -> None:
            raise KeyError("odd")

        monkeypatch.setattr("tidemill.net.link.decode_response", fault)
        requests = [request_metadata(link, 10 * PATIENCE_S) for _ in range(2)]
        errors = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(one) for one in errors] == [LinkError, LinkError]
        assert all("KeyError('odd')" in str(one) for one in errors)


async def test_a_connection_to_itself_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

    class Bound(socket.socket):
        """The client port equals the server port, which the system may choose at times."""

        def __init__(self, *arguments: int) -> None:
            super().__init__(*arguments)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", port))

    monkeypatch.setattr("tidemill.net.link.socket.socket", Bound)
    with pytest.raises(LinkRefused):
        await Link.open(2, "127.0.0.1", port, "test", PATIENCE_S)
    monkeypatch.undo()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
async def test_a_link_gives_up_on_a_host_that_acknowledges_no_bytes() -> None:
    """TCP retransmits at growing intervals.

    After ten seconds without network the next packet may take as long.
    """

    async with link_to(silent) as link:
        assert link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
