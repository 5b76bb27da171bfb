"""Half-closed connections: received requests are handled and answered."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest
from test_request_order import (
    COSTLY,
    SMALL,
    HeldUp,
    Peer,
    served,
    until,
)

from tidemill.server.broker_server import BrokerServer
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.metadata import MetadataRequest


def ended(server: BrokerServer) -> bool:
    return bool(server.socket_server.connections) and all(
        one.ended for one in server.socket_server.connections
    )


async def disconnected(server: BrokerServer) -> None:
    await until(lambda: not server.socket_server.connections)


async def test_requests_behind_a_slow_request_are_handled_in_order_after_the_end_of_the_stream(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (server, partition):
        held = HeldUp(server)
        peer = await Peer.of(server)
        peer.produce(COSTLY)
        peer.produce(SMALL)
        peer.produce(SMALL, acks=0)
        peer.produce(COSTLY, acks=0)
        peer.produce(SMALL)
        peer.send(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
        peer.writer.write(encode_request(ApiKey.API_VERSIONS, 0, 1, None, ApiVersionsRequest())[:-1])
        peer.writer.write_eof()
        await until(lambda: ended(server))
        held.release.set()
        assert (await peer.produced()).base_offset == 0
        assert (await peer.produced()).base_offset == 1999
        assert (await peer.produced()).base_offset == 2001 + 1999
        assert (await peer.answer(ApiKey.METADATA, 12)).brokers
        assert await peer.reader.read() == b""  # The incomplete frame is dropped.
        await disconnected(server)
        assert partition.log.end_offset == 2001 + 1999 + 1
        await peer.close()


@pytest.mark.parametrize(
    ("all_acks", "is_reset"),
    [
        pytest.param((0, 1, 0, -1, 0), False, id="the client closes"),
        pytest.param((1, 0, 0), True, id="the client resets the connection"),
    ],
)
async def test_requests_received_before_the_connection_ends_are_handled(
    tmp_path: Path, all_acks: tuple[int, ...], is_reset: bool
) -> None:
    async with served(tmp_path) as (server, partition):
        held = HeldUp(server)
        peer = await Peer.of(server)
        for acks in all_acks:
            peer.produce(COSTLY, acks)
        await until(lambda: len(server.produce_validation.tasks) == 1)
        if is_reset:
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await peer.close()
        await until(lambda: ended(server))
        held.release.set()
        await disconnected(server)
        assert partition.log.end_offset == len(all_acks) * 1999
        assert server.memory.total == 0


async def test_a_delayed_fetch_is_answered_when_the_client_half_closes(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, partition):
        peer = await Peer.of(server)
        peer.fetch(wait_ms=0x7FFFFFFF)
        peer.produce(SMALL, acks=0)
        peer.fetch(wait_ms=0x7FFFFFFF, offset=1)
        await until(lambda: len(partition.delayed.fetches) == 1)
        peer.writer.write_eof()
        assert (await peer.fetched()).records in (None, b"")
        assert (await peer.fetched()).high_watermark == 1
        assert await peer.reader.read() == b""
        await disconnected(server)
        assert server.fetch_handler.waiting == 0
        await peer.close()


async def test_a_half_closed_connection_that_reads_nothing_is_closed_when_idle(tmp_path: Path) -> None:
    async with served(tmp_path, "socket.send.buffer.bytes=102400") as (server, _):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", server.listeners[0][2]))
        frame = encode_request(ApiKey.API_VERSIONS, 3, 1, None, HELLO)
        await loop.sock_sendall(raw, frame * 3000)
        raw.shutdown(socket.SHUT_WR)
        await until(lambda: ended(server))
        (one,) = server.socket_server.connections
        assert one.account.unsent_bytes > 0
        sweeps = 0
        while server.socket_server.connections:
            await asyncio.sleep(0.05)
            server.socket_server.close_idle()
            sweeps += 1
            assert sweeps < 100
        raw.close()


HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")
