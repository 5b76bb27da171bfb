"""A whole broker in this process, on a file system that can lose unsynced data on request."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faulty_files import FaultyFiles

from default_limits import iter_records
from tidemill.model.configs import BrokerConfig
from tidemill.records.builder import BatchBuilder
from tidemill.server.broker_server import BrokerServer
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

NewMachine = Callable[..., "Machine"]
NOW = 1_700_000_000_000
PATIENCE_S = 20.0


class Machine:
    """Runs a :class:`BrokerServer` over ``files`` in a thread; the store is in ``directory``."""

    def __init__(self, directory: Path, files: FaultyFiles, **config: str) -> None:
        self.files = files
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory),
            "offsets.topic.num.partitions": "2",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        self.config = BrokerConfig.from_sources(
            None, [f"{key}={value}" for key, value in settings.items()], {}
        )
        directory.mkdir(exist_ok=True)
        self.address = ("", 0)
        self.running = False
        self.clients: list[Client] = []

    def start(self) -> Machine:
        """Starts the broker; returns when it listens."""
        self.loop = asyncio.new_event_loop()
        self.server = BrokerServer(self.config)
        self.server.broker.files = self.files
        self.loop.run_until_complete(self.server.start())
        ((_, host, port),) = self.server.listeners
        self.address = (host, port)
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.running = True
        return self

    def client(self) -> Client:
        """Opens a connection of a client."""
        self.clients.append(Client(self.address))
        return self.clients[-1]

    def close(self) -> None:
        """Stops the broker and closes all connections, after a failure as well."""
        if self.running:
            self.power_cut(None)
        for client in self.clients:
            client.close()

    def inside(self, do: Callable[[], Any]) -> Any:
        """Calls ``do`` in the thread of the broker; returns its result."""

        async def call() -> Any:
            return do()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def power_cut(self, luck: Random | None) -> None:
        """Stops everything at once; the files keep synced data, and a random part of the rest."""

        def cut() -> None:
            self.files.power_cut(luck)
            self.server.socket_server.close()
            self.loop.stop()

        self.loop.call_soon_threadsafe(cut)
        self.thread.join(PATIENCE_S)
        self._clear_away()

    def stop(self) -> None:
        """Stops the broker cleanly."""
        asyncio.run_coroutine_threadsafe(self.server.stop(), self.loop).result(PATIENCE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self._clear_away()

    def _clear_away(self) -> None:
        """Removes tasks, threads and sockets, as the end of a process does."""
        self.running = False

        async def end_tasks() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.loop.run_until_complete(end_tasks())
        self.loop.run_until_complete(self.server.broker.store.close())
        for name in ("_syncers", "_writers", "_readers", "_workers"):
            getattr(self.server, name).shutdown(wait=True)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Client:
    """A connection that sends one request after the other."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)
        self.correlation_id = 0

    def send(self, key: int, version: int, request: Any) -> int:
        """Sends a request; returns its correlation id."""
        self.correlation_id += 1
        self.socket.sendall(encode_request(key, version, self.correlation_id, "client", request))
        return self.correlation_id

    def answer(self, key: int, version: int) -> Any:
        """Returns the next response. Raises ConnectionError if the broker has stopped."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return decode_response(key, version, self._exactly(size))[1]

    def ask(self, key: int, version: int, request: Any) -> Any:
        """Sends a request; returns its response."""
        self.send(key, version, request)
        return self.answer(key, version)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            data += piece
        return data

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    # Requests

    def make_topic(self, name: str, partitions: int = 1, **config: str) -> int:
        """Creates a topic; returns the error code."""
        configs = [
            CreatableTopicConfig(name=key.replace("_", "."), value=text) for key, text in config.items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False)
        code: int = self.ask(ApiKey.CREATE_TOPICS, 5, request).topics[0].error_code
        return code

    def produce(self, topic: str, partition: int, batch: bytes, acks: int = -1) -> None:
        """Sends a batch; :meth:`produced` returns its result."""
        part = PartitionProduceData(index=partition, records=batch)
        data = TopicProduceData(name=topic, partition_data=[part])
        request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=10_000, topic_data=[data])
        self.send(ApiKey.PRODUCE, 9, request)

    def produced(self) -> tuple[int, int]:
        """Returns error code and base offset of the next response to Produce."""
        part = self.answer(ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
        return part.error_code, part.base_offset

    def producer_id(self) -> int:
        """Returns a new producer id."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answer = self.ask(ApiKey.INIT_PRODUCER_ID, 2, request)
        assert answer.error_code == 0
        number: int = answer.producer_id
        return number

    def read(self, topic: str, partition: int) -> list[bytes]:
        """Returns all values of a partition, and checks the checksums."""
        values: list[bytes] = []
        offset = 0
        while True:
            part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(
                session_epoch=-1,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 24,
                topics=[FetchTopic(topic=topic, partitions=[part])],
            )
            answer = self.ask(ApiKey.FETCH, 11, request).responses[0].partitions[0]
            assert answer.error_code == 0, answer.error_code
            records = list(iter_records(answer.records or b"", offset))
            assert [one.offset for one in records] == list(range(offset, offset + len(records)))
            values += [one.value or b"" for one in records]
            offset += len(records)
            if not records:
                assert offset == answer.high_watermark
                return values

    def has_topic(self, topic: str) -> bool:
        """Returns whether a topic exists."""
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        return bool(self.ask(ApiKey.METADATA, 8, asked).topics[0].error_code == 0)

    def coordinator(self, group: str) -> int:
        """Looks up the coordinator of a group, which creates the offsets topic; returns the error code."""
        code: int = self.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=group)).error_code
        return code

    def commit(self, group: str, topic: str, offset: int) -> int:
        """Commits an offset of partition 0; returns the error code."""
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        asked = OffsetCommitRequestTopic(name=topic, partitions=[part])
        answer = self.ask(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id=group, topics=[asked]))
        code: int = answer.topics[0].partitions[0].error_code
        return code

    def committed(self, group: str, topic: str) -> tuple[int, int]:
        """Returns error code and committed offset of partition 0."""
        asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
        answer = self.ask(ApiKey.OFFSET_FETCH, 7, OffsetFetchRequest(group_id=group, topics=[asked]))
        if answer.error_code:
            return answer.error_code, -1
        part = answer.topics[0].partitions[0]
        return part.error_code, part.committed_offset


def batch_of(*values: bytes, codec: int = 0, producer_id: int = -1, sequence: int = -1) -> bytes:
    """Returns a batch of messages without keys."""
    builder = BatchBuilder(codec)
    for value in values:
        builder.append(NOW, None, value)
    return builder.build(producer_id, 0 if producer_id >= 0 else -1, sequence)
