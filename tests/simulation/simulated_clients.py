"""Clients of a simulated cluster: producers and consumers that tell what they were told.

They speak the protocol over the links that brokers use among each other, one request at a time, and do what
clients do when something goes wrong: they ask who leads now, and try again.
"""

from __future__ import annotations

import asyncio
import traceback
from random import Random
from typing import Any

from promises import Message, Place, Promises
from simulated_loop import WALL_MS

from tidemill.model.errors import ErrorCode
from tidemill.net.link import Link, LinkError
from tidemill.records.builder import BatchBuilder
from tidemill.records.reader import iter_records
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PATIENCE_S = 1.5
"""A request that is not answered for so long has failed."""
REST_S = 0.03
PORT = 9092
ALL, LEADER = -1, 1
LATEST = -1
METADATA_VERSION, PRODUCE_VERSION, LIST_VERSION, INIT_VERSION = 9, 9, 7, 4
FETCH_VERSIONS = (7, 10, 12)
"""Up to 10 only leaders answer, from 9 on a leader epoch goes along."""
FETCH_WAIT_MS = 200


class Refused(Exception):
    """An answer with an error; the client tries again."""

    def __init__(self, code: int) -> None:
        names = {int(one): one.name for one in ErrorCode}
        super().__init__(names.get(code, str(code)))
        self.code = code


class Client:
    """What all clients have: links to brokers, and who leads what."""

    def __init__(
        self, name: str, addresses: list[str], topic: str, promises: Promises, random: Random
    ) -> None:
        self.name = name
        self.topic = topic
        self.promises = promises
        self.events = promises.events
        self.random = random
        self.ended = False
        self._bootstrap = addresses
        self._links: dict[str, Link] = {}
        self._leaders: dict[int, str] = {}
        """The address of each partition's leader."""
        self._epochs: dict[int, int] = {}

    async def run(self) -> None:
        """Works until :attr:`ended`, and knows then what became of what it did."""
        while not (self.ended and self.is_settled):
            try:
                await self.work()
            except (LinkError, Refused, TimeoutError) as problem:
                self.events.add(f"{type(problem).__name__}: {problem}")
                self._leaders.clear()
                await asyncio.sleep(self.random.random() * 2 * REST_S)
            except Exception as problem:  # noqa: BLE001 - it is told
                # The answer was none that a client can make sense of.
                self.events.add(traceback.format_exc())
                self.events.violate(f"{self.name} broke: {problem!r}")
                return

    @property
    def is_settled(self) -> bool:
        """Whether it knows of all that it did what became of it."""
        return True

    async def work(self) -> None:
        """Something that clients do. Raises LinkError and Refused."""
        raise NotImplementedError

    async def link(self, address: str) -> Link:
        """An open link."""
        link = self._links.get(address)
        if link is None or link.closed:
            link = self._links[address] = await Link.open(0, address, PORT, self.name, PATIENCE_S)
        return link

    async def ask(self, address: str, key: int, version: int, request: Any) -> Any:
        """Asks a broker."""
        link = await self.link(address)
        return await link.ask(key, version, request, PATIENCE_S)

    async def ask_any(self, key: int, version: int, request: Any) -> Any:
        """Asks some broker, which passes on what is not for it."""
        return await self.ask(self.random.choice(self._bootstrap), key, version, request)

    async def leader(self, partition: int) -> str:
        """The address of a partition's leader. Raises Refused when there is none."""
        known = self._leaders.get(partition)
        if known is None:
            await self._learn()
            known = self._leaders.get(partition)
        if known is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE)
        return known

    async def _learn(self) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False
        )
        address = self.random.choice(self._bootstrap)
        answer = await self.ask(address, ApiKey.METADATA, METADATA_VERSION, request)
        hosts = {broker.node_id: broker.host for broker in answer.brokers}
        for topic in answer.topics:
            for one in topic.partitions:
                # A leader epoch that is older than a known one is told by a broker that lags behind.
                if one.leader_id in hosts and one.leader_epoch >= self._epochs.get(one.partition_index, -1):
                    self._leaders[one.partition_index] = hosts[one.leader_id]
                    self._epochs[one.partition_index] = one.leader_epoch


class Producer(Client):
    """Writes messages, which are numbered, to one partition after the other."""

    def __init__(self, *client: Any, partitions: int, acks: int, is_idempotent: bool, pause_s: float) -> None:
        super().__init__(*client)
        self.partitions = partitions
        self.acks = acks
        self.is_idempotent = is_idempotent
        self.pause_s = pause_s
        self._id: tuple[int, int] = (-1, -1)
        self._sequences: dict[int, int] = {}
        self._number = 0
        self._unsettled: tuple[int, list[Message]] | None = None
        """What was sent, and may be there or not: partition and messages."""

    @property
    def is_settled(self) -> bool:
        return self._unsettled is None

    async def work(self) -> None:
        if self.is_idempotent and self._id[0] < 0:
            await self._get_id()
        if self._unsettled is None:
            await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
            if self.ended:
                return
            messages = []
            for _ in range(self.random.choice((1, 1, 2, 5))):
                self._number += 1
                messages.append(Message(self.name, self._number))
            self._unsettled = (self.random.randrange(self.partitions), messages)
        await self._produce(*self._unsettled)

    async def _get_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        address = self.random.choice(self._bootstrap)
        answer = await self.ask(address, ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        self._id = (answer.producer_id, answer.producer_epoch)

    async def _produce(self, partition: int, messages: list[Message]) -> None:
        builder = BatchBuilder()
        for message in messages:
            builder.append(WALL_MS, None, message.encode())
        if self.is_idempotent:
            sequence = self._sequences.get(partition, 0)
            records = builder.build(*self._id, sequence)
        else:
            records = builder.build()
        data = PartitionProduceData(index=partition, records=records)
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=int(PATIENCE_S * 500),
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )
        address = await self.leader(partition)
        self.events.add(lambda: f"sends {messages} to {self.topic}-{partition} at {address}")
        answer = await self.ask(address, ApiKey.PRODUCE, PRODUCE_VERSION, request)
        ((one,),) = [topic.partition_responses for topic in answer.responses]
        if one.error_code not in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._refused(one.error_code, partition)
        self.events.add(lambda: f"{messages} are at {self.topic}-{partition} offset {one.base_offset}")
        self._unsettled = None
        self._sequences[partition] = self._sequences.get(partition, 0) + len(messages)
        if self.acks == ALL and one.error_code == 0 and one.base_offset >= 0:
            self.promises.acknowledged((self.topic, partition), one.base_offset, messages)

    def _refused(self, code: int, partition: int) -> None:
        place: Place = (self.topic, partition)
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            if place not in self.promises.excused and self.acks == ALL:
                self.events.violate(f"{self.name} is refused: {Refused(code)}, and all was acknowledged")
            # It begins anew, as if it were another producer.
            self._id = (-1, -1)
            self._sequences.clear()
        raise Refused(code)


class Consumer(Client):
    """Reads one partition from its begin, and now and then asks where it ends, or begins again."""

    def __init__(self, *client: Any, partition: int, again: float) -> None:
        super().__init__(*client)
        self.partition = partition
        self.place: Place = (self.topic, partition)
        self.position = 0
        self.again = again
        """How often it begins again."""

    async def work(self) -> None:
        luck = self.random.random()
        if luck < 0.1:
            await self._ask_end()
        elif luck < 0.1 + self.again:
            self.position = 0
        await self._fetch()

    async def _ask_end(self) -> None:
        wanted = ListOffsetsPartition(partition_index=self.partition, timestamp=LATEST)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=self.topic, partitions=[wanted])]
        )
        address = await self.leader(self.partition)
        answer = await self.ask(address, ApiKey.LIST_OFFSETS, LIST_VERSION, request)
        ((one,),) = [topic.partitions for topic in answer.topics]
        if one.error_code:
            raise Refused(one.error_code)
        self.events.add(f"is told that {self.place} ends at {one.offset}")
        self.promises.end_told(self.name, self.place, one.offset, "ListOffsets")

    async def _fetch(self) -> None:
        address = await self.leader(self.partition)
        version = self.random.choice(FETCH_VERSIONS)
        wanted = FetchPartition(
            partition=self.partition,
            current_leader_epoch=self._epochs[self.partition],
            fetch_offset=self.position,
            partition_max_bytes=self.random.choice((200, 1000, 1 << 20)),
        )
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            topics=[FetchTopic(topic=self.topic, partitions=[wanted])],
        )
        answer = await self.ask(address, ApiKey.FETCH, version, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        ((one,),) = [topic.partitions for topic in answer.responses]
        if one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.promises.out_of_range(self.name, self.place, self.position)
            self.position = 0
        if one.error_code:
            raise Refused(one.error_code)
        if one.high_watermark >= 0:
            self.promises.end_told(self.name, self.place, one.high_watermark, "Fetch")
        self._take(one.records or b"")

    def _take(self, records: bytes) -> None:
        for record in iter_records(records, self.position):
            if record.offset != self.position:
                self.promises.skipped(self.name, self.place, self.position, record.offset)
            message = Message.decode(record.value or b"")
            if record.offset not in self.promises.visible.get(self.place, ()):
                self.events.add(f"sees {message} at {record.offset}")
            self.promises.saw(self.place, record.offset, message)
            self.position = record.offset + 1
