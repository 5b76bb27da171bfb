"""Connections from broker to broker, to a real broker and to peers that misbehave."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from tidemill.net.link import FRAME_BYTES_MAX, Link, LinkBroken, LinkError, LinkRefused, LinkTimeout
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import encode_response, parse_request_header
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tidemill.wire.schema import decode

PATIENCE_S = 10.0
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def versions(correlation_id: int) -> bytes:
    keys = [ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=12)]
    return encode_response(ApiKey.API_VERSIONS, 3, correlation_id, ApiVersionsResponse(api_keys=keys))


async def peer(answer: Answer) -> asyncio.Server:
    """A server that tells its versions, and treats every other request as ``answer`` does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                header = parse_request_header(frame)
                if header.api_key == ApiKey.API_VERSIONS:
                    writer.write(versions(header.correlation_id))
                else:
                    await answer(frame, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def linked(server: asyncio.Server) -> Link:
    port = server.sockets[0].getsockname()[1]
    return await Link.open(2, "127.0.0.1", port, "test", PATIENCE_S)


def with_peer(answer: Answer, test: Callable[[Link], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await peer(answer)
        link = await linked(server)
        try:
            await asyncio.wait_for(test(link), PATIENCE_S)
        finally:
            link.close("the test is over")
            await asyncio.sleep(0)
            server.close()

    asyncio.run(run())


def test_a_real_broker_answers_many_requests_at_once(tidemill_session_broker: Broker) -> None:
    async def run() -> None:
        host, port = tidemill_session_broker.bootstrap.rsplit(":", 1)
        link = await Link.open(1, host, int(port), "test", PATIENCE_S)
        version = link.version_of(ApiKey.METADATA, 9, 13)
        asks = [link.ask(ApiKey.METADATA, version, MetadataRequest(topics=[]), PATIENCE_S) for _ in range(50)]
        for answer in await asyncio.gather(*asks):
            assert len(answer.brokers) == 1
        with pytest.raises(LinkError, match="serves versions"):
            link.version_of(ApiKey.METADATA, 99, 100)
        link.close("done")
        with pytest.raises(LinkError, match="done"):
            await link.ask(ApiKey.METADATA, version, MetadataRequest(topics=[]), PATIENCE_S)
        await asyncio.sleep(0)

    asyncio.run(run())


def test_nobody_there_is_told_from_no_answer() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
            # It takes connections, in the system's queue, and never answers.
            with pytest.raises(LinkTimeout, match=r"broker 7 at 127\.0\.0\.1"):
                await Link.open(7, "127.0.0.1", port, "test", 0.2)
        with pytest.raises(LinkRefused, match="refuses connections"):
            await Link.open(7, "127.0.0.1", port, "test", PATIENCE_S)
        with pytest.raises(LinkError, match="cannot be reached"):
            await Link.open(7, "no.such.host.invalid", 1, "test", PATIENCE_S)

    asyncio.run(run())


def test_a_peer_that_closes_fails_all_who_wait() -> None:
    async def close(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def test(link: Link) -> None:
        reasons: list[str] = []
        link.on_close = reasons.append
        asks = [link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), PATIENCE_S) for _ in range(3)]
        for result in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(result, LinkError)
        assert len(reasons) == 1
        assert link.closed == reasons[0]

    with_peer(close, test)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection as the system does for a process that was killed with bytes unread."""
    peer: socket.socket = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("ends", [asyncio.StreamWriter.close, _reset])
def test_a_link_that_its_peer_closes_or_resets_says_so(ends: Callable[[asyncio.StreamWriter], None]) -> None:
    async def close(frame: bytes, writer: asyncio.StreamWriter) -> None:
        ends(writer)

    async def test(link: Link) -> None:
        told: list[str] = []
        link.on_broken = lambda: told.append("broken")
        link.on_close = lambda reason: told.append("closed")
        with pytest.raises(LinkError):
            await link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), PATIENCE_S)
        assert told == ["broken", "closed"]

    with_peer(close, test)


def test_a_peer_that_is_slow_or_not_needed_any_more_has_broken_nothing() -> None:
    async def nothing(frame: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    async def test(link: Link) -> None:
        told: list[str] = []
        link.on_broken = lambda: told.append("broken")
        with pytest.raises(LinkTimeout):
            await link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), 0.05)
        assert link.closed
        assert told == []

    with_peer(nothing, test)


def test_a_peer_that_takes_a_connection_and_ends_it_is_no_slow_one() -> None:
    async def run() -> None:
        async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(end, "127.0.0.1", 0)
        with pytest.raises(LinkBroken):
            await linked(server)
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack(">i", 3) + b"abc", "an answer of 3 bytes"),
        (struct.pack(">i", -1), "an answer of -1 bytes"),
        (struct.pack(">i", FRAME_BYTES_MAX + 1), "an answer of"),
        (struct.pack(">ii", 4, 99), "answer|Response|ends"),
        (struct.pack(">i", 300) + b"\x00" * 300, "MetadataResponse v12"),
    ],
)
def test_garbage_ends_the_link_with_its_reason(data: bytes, text: str) -> None:
    async def garbage(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    async def test(link: Link) -> None:
        with pytest.raises(LinkError, match=text):
            await link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), PATIENCE_S)
        assert link.closed

    with_peer(garbage, test)


def test_an_answer_that_nobody_asked_for_ends_the_link() -> None:
    async def twice(frame: bytes, writer: asyncio.StreamWriter) -> None:
        correlation_id = parse_request_header(frame).correlation_id
        writer.write(versions(correlation_id) * 2)

    async def test(link: Link) -> None:
        ended = asyncio.get_running_loop().create_future()
        link.on_close = ended.set_result
        with pytest.raises(LinkError):
            await link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), PATIENCE_S)
        assert await ended

    with_peer(twice, test)


@pytest.mark.parametrize("size", [200 * 1024 * 1024, FRAME_BYTES_MAX])
def test_a_large_promise_takes_no_memory(size: int) -> None:
    """Where brokers take requests of more than 100 MiB, a follower gets batches of that size."""

    async def promise(frame: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack(">i", size) + b"\x00" * 10)
        await asyncio.sleep(PATIENCE_S)

    async def test(link: Link) -> None:
        with pytest.raises(LinkTimeout):
            await link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), 0.2)
        assert link.closed == "no answer within 0.2 s"

    with_peer(promise, test)


def test_requests_that_the_peer_does_not_read_are_kept_and_sent_later() -> None:
    go_on = asyncio.Event()
    seen: list[int] = []

    async def slow(frame: bytes, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        seen.append(len(frame))
        if len(seen) == 40:
            writer.close()

    async def test(link: Link) -> None:
        topics = [MetadataRequestTopic(name="t" * 240) for _ in range(2000)]
        asks = [
            asyncio.ensure_future(link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=topics), PATIENCE_S))
            for _ in range(40)
        ]
        await asyncio.sleep(0.05)
        go_on.set()
        results = await asyncio.gather(*asks, return_exceptions=True)
        assert all(isinstance(result, LinkError) for result in results)
        assert len(seen) == 40
        assert len(set(seen)) == 1

    with_peer(slow, test)


class Post:
    """Asks for versions without messages."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.closed = ""
        self.told = asyncio.Event()

    def on_answer(self, data: bytes, start: int, end: int) -> None:
        self.answers.append(data[start:end])
        self.told.set()

    def on_link_closed(self, reason: str) -> None:
        self.closed = reason
        self.told.set()


def test_what_is_posted_is_answered_among_what_is_asked() -> None:
    size = 300_000
    body = bytes(range(256)) * (size // 256)

    async def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
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

    async def test(link: Link) -> None:
        post = Post()
        for _ in range(3):
            link.post(ApiKey.METADATA, 9, b"body", post, PATIENCE_S)
        message = MetadataRequest(topics=[])
        assert (await link.ask(ApiKey.METADATA, 12, message, PATIENCE_S)).topics == []
        assert post.answers == [body] * 3
        link.close("enough")
        link.post(ApiKey.METADATA, 9, b"body", post, PATIENCE_S)
        assert post.closed == "enough"

    with_peer(answer, test)


def test_a_post_that_is_not_answered_in_time_ends_the_link() -> None:
    async def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    async def test(link: Link) -> None:
        post = Post()
        link.post(ApiKey.METADATA, 9, b"", post, 0.02)
        await post.told.wait()
        assert post.closed == link.closed == "no answer has come in time"

    with_peer(answer, test)


async def _metadata(frame: bytes, writer: asyncio.StreamWriter) -> None:
    header = parse_request_header(frame)
    empty = MetadataResponse(brokers=[], topics=[])
    writer.write(encode_response(ApiKey.METADATA, header.api_version, header.correlation_id, empty))


def test_a_request_that_cannot_be_encoded_leaves_the_others_their_answers() -> None:
    async def test(link: Link) -> None:
        with pytest.raises(AttributeError):
            await link.ask(ApiKey.METADATA, 12, object(), PATIENCE_S)
        answer = await link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), PATIENCE_S)
        assert answer.brokers == []

    with_peer(_metadata, test)


def _large(cut: int = 0) -> Answer:
    """Answers with as many topics as the request has; without the last ``cut`` bytes."""

    async def answer(frame: bytes, writer: asyncio.StreamWriter) -> None:
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

    return answer


NAMES = [f"t{number}" for number in range(5000)]
MANY = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES])


def test_what_asks_of_thousands_and_its_answer_leave_the_loop_to_others() -> None:
    async def test(link: Link) -> None:
        asking = asyncio.ensure_future(link.ask(ApiKey.METADATA, 12, MANY, PATIENCE_S))
        began = 0
        while link._correlation_id == 1 and not asking.done():  # ApiVersions was the first.
            began += 1
            await asyncio.sleep(0)
        assert began >= len(NAMES) // 1000
        # One that comes after it has its own answer.
        few = await link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), PATIENCE_S)
        assert few.topics == []
        assert [one.name for one in (await asking).topics] == NAMES

    with_peer(_large(), test)


def test_a_large_answer_that_is_cut_short_ends_the_link_with_its_reason() -> None:
    async def test(link: Link) -> None:
        with pytest.raises(LinkError, match="MetadataResponse"):
            await link.ask(ApiKey.METADATA, 12, MANY, PATIENCE_S)
        assert "MetadataResponse" in link.closed

    with_peer(_large(cut=7), test)


def test_a_fault_of_ours_in_an_answer_ends_the_link_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(link: Link) -> None:
        def fault(*arguments: object) -> None:
            raise KeyError("odd")

        monkeypatch.setattr("tidemill.net.link.decode_response", fault)
        asks = [link.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]), 10 * PATIENCE_S) for _ in range(2)]
        told = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(one) for one in told] == [LinkError, LinkError]
        assert all("KeyError('odd')" in str(one) for one in told)

    with_peer(_metadata, test)


def test_a_connection_to_itself_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

    class Bound(socket.socket):
        """Gets the port that it connects to, as any that the system chooses may once in a while."""

        def __init__(self, *arguments: int) -> None:
            super().__init__(*arguments)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", port))

    async def run() -> None:
        monkeypatch.setattr("tidemill.net.link.socket.socket", Bound)
        with pytest.raises(LinkRefused):
            await Link.open(2, "127.0.0.1", port, "test", PATIENCE_S)
        monkeypatch.undo()

    asyncio.run(run())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_a_link_does_not_wait_long_for_a_host_that_acknowledges_nothing() -> None:
    """TCP alone asks ever more rarely: after a cut of ten seconds the next packet may be as far away."""

    async def run() -> None:
        async def silent(frame: bytes, writer: asyncio.StreamWriter) -> None:
            pass

        async with await peer(silent) as server:
            link = await linked(server)
            assert link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
            assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
            link.close("the test is over")

    asyncio.run(run())
