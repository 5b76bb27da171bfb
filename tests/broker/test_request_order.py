"""The order of the requests of a connection, closed connections, and a stop, on a broker in this process."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from record_builders import build_batch
from tidemill.broker.delayed_fetch import DelayedFetch
from tidemill.controller.topics import NewTopic
from tidemill.model.configs import BrokerConfig
from tidemill.records.batch import GZIP
from tidemill.replication.partition import Partition
from tidemill.server.broker_server import BrokerServer, running
from tidemill.wire import fetch_layout
from tidemill.wire.apis import ApiKey
from tidemill.wire.fetch_layout import RequestedPartition
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE_VERSION = 8
FETCH_VERSION = 11
TOPIC = "events"
NOW = 1_700_000_000_000
SMALL = build_batch([(NOW, b"k", b"v", None)])
COSTLY = build_batch([(NOW, None, bytes([at % 251]) * at, None) for at in range(1, 2000)], codec=GZIP)
"""Gzip of more than 8 KB, which is validated outside of the event loop."""


class Peer:
    """A client on the event loop of the broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, server: BrokerServer) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", server.listeners[0][2]))

    def send(self, key: int, version: int, request: Any) -> None:
        self.writer.write(encode_request(key, version, 7, "test", request))

    def produce(self, records: bytes, acks: int = -1) -> None:
        part = PartitionProduceData(index=0, records=records)
        topic = TopicProduceData(name=TOPIC, partition_data=[part])
        self.send(
            ApiKey.PRODUCE, PRODUCE_VERSION, ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[topic])
        )

    def fetch(self, wait_ms: int, offset: int = 0) -> None:
        part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            session_epoch=-1,
            topics=[FetchTopic(topic=TOPIC, partitions=[part])],
        )
        self.send(ApiKey.FETCH, FETCH_VERSION, request)

    async def answer(self, key: int, version: int) -> Any:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return decode_response(key, version, await self.reader.readexactly(size))[1]

    async def produced(self) -> Any:
        return (await self.answer(ApiKey.PRODUCE, PRODUCE_VERSION)).responses[0].partition_responses[0]

    async def fetched(self) -> Any:
        return (await self.answer(ApiKey.FETCH, FETCH_VERSION)).responses[0].partitions[0]

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def served(tmp_path: Path, *settings: str) -> AsyncIterator[tuple[BrokerServer, Partition]]:
    """A broker in this process, and the partition of its only topic."""
    sets = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path / 'data'}", *settings]
    async with asyncio.timeout(60), running(BrokerConfig.from_sources(None, sets, {})) as server:
        await server.broker.controller.admin_manager.create_topics([NewTopic(TOPIC, 1, 1)])
        yield server, server.broker.partition(TOPIC, 0)
    gc.collect()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - the condition is a state without an event
            await asyncio.sleep(0.005)


class HeldUp:
    """Blocks the thread that decompresses, so that costly batches wait."""

    def __init__(self, server: BrokerServer) -> None:
        self.release = threading.Event()
        server.produce_validation.workers.submit(self.release.wait, 30)


async def test_a_produce_is_handled_after_a_delayed_fetch_of_its_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        peer.fetch(wait_ms=200)
        peer.produce(SMALL)
        assert (await peer.fetched()).records in (None, b"")
        assert (await peer.produced()).base_offset == 0
        # Later requests may overlap again.
        peer.produce(COSTLY)
        peer.produce(SMALL)
        assert (await peer.produced()).base_offset == 1
        assert (await peer.produced()).base_offset == 2000
        await peer.close()


async def test_produces_of_a_connection_stay_in_order_behind_a_costly_one(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        held = HeldUp(server)
        peer = await Peer.of(server)
        peer.produce(COSTLY)
        peer.produce(SMALL)
        other = await Peer.of(server)
        other.produce(SMALL)
        assert (await other.produced()).base_offset == 0
        held.release.set()
        assert (await peer.produced()).base_offset == 1
        assert (await peer.produced()).base_offset == 2000
        await peer.close()
        await other.close()


async def test_a_costly_batch_with_acks_0_is_stored_after_the_connection_is_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, partition):
        held = HeldUp(server)
        peer = await Peer.of(server)
        peer.produce(COSTLY, acks=0)
        await until(lambda: len(server.produce_validation.tasks) == 1)
        await peer.close()
        await until(lambda: all(one.ended for one in server.socket_server.connections))
        held.release.set()
        await until(lambda: partition.log.end_offset > 0 and not server.produce_validation.tasks)
        assert (partition.log.end_offset, partition.high_watermark) == (1999, 1999)


async def test_the_deletion_of_a_partition_fails_its_costly_batch(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        held = HeldUp(server)
        peer = await Peer.of(server)
        peer.produce(COSTLY)
        await until(lambda: len(server.produce_validation.tasks) == 1)
        controller = server.broker.controller
        await controller.admin_manager.delete_topics([TOPIC])
        await controller.admin_manager.create_topics([NewTopic(TOPIC, 1, 1)])
        held.release.set()
        assert (await peer.produced()).error_code != 0
        assert server.broker.partition(TOPIC, 0).log.end_offset == 0
        await peer.close()


async def test_an_unexpected_error_in_a_validation_closes_only_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as (server, _):

        async def broken(*arguments: object) -> None:
            raise MemoryError

        server.produce_validation.check = broken  # type: ignore[method-assign,assignment]
        peer, other = await Peer.of(server), await Peer.of(server)
        peer.produce(COSTLY)
        with pytest.raises(asyncio.IncompleteReadError):
            await peer.produced()
        other.produce(SMALL)
        assert (await other.produced()).base_offset == 0
        await peer.close()
        await other.close()
    assert [record.exc_info for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_unexpected_error_in_a_fetch_does_not_affect_other_fetches(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, partition):
        peers = [await Peer.of(server) for _ in range(3)]
        peers[0].fetch(wait_ms=20_000)
        peers[1].fetch(wait_ms=20_000)
        await until(lambda: len(partition.delayed.fetches) == 2)
        (first,) = [
            connection
            for connection in server.socket_server.connections
            if connection.peer.port == peers[0].writer.get_extra_info("sockname")[1]
        ]
        break_fetch(server.kafka_apis.fetches.delayed[first])
        peers[2].produce(SMALL)
        assert (await peers[2].produced()).error_code == 0
        assert (await asyncio.wait_for(peers[1].fetched(), 10)).records
        with pytest.raises(asyncio.IncompleteReadError):
            await peers[0].fetched()
        for peer in peers:
            await peer.close()


def break_fetch(fetch: DelayedFetch) -> None:
    """Puts an invalid value into a delayed fetch, so that its response fails."""
    name = b"x" * 40_000  # too long for a string of this version
    fetch.request = fetch_layout.FetchRequest(
        version=FETCH_VERSION, partitions=(RequestedPartition(key=name, index=0),)
    )


async def test_a_stop_cancels_requests_in_progress_without_error_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[threading.Event] = []

    async with served(tmp_path) as (server, partition):
        held = HeldUp(server)
        events.append(held.release)
        peers = [await Peer.of(server) for _ in range(3)]
        peers[0].produce(COSTLY)
        peers[1].fetch(wait_ms=20_000)
        peers[2].produce(COSTLY, acks=0)
        await until(lambda: len(server.produce_validation.tasks) == 2 and len(partition.delayed.fetches) == 1)
        asyncio.get_running_loop().call_later(0.2, held.release.set)
        await server.stop()
        for peer in peers:
            assert await peer.reader.read() == b""
            await peer.close()
        assert partition.log.closed
        assert partition.log.end_offset == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
