"""Clients of a simulated cluster: producers and consumers that report their requests and responses.

They speak the protocol over the links that brokers use among each other, and handle errors as Apache Kafka's
clients do: they refresh the metadata, and retry.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any

from promises import NONE, Message, PartitionKey, Promises, Sent
from simulated_loop import wall_ms_at

from tidemill.model.errors import ErrorCode
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.net.link import Link, LinkError
from tidemill.records.builder import BatchBuilder
from tidemill.records.record_reader import iter_records, iter_stored
from tidemill.wire.apis import ApiKey
from tidemill.wire.header import encode_request
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.schema import Struct

PATIENCE_S = 1.5
"""A request that is not answered for so long has failed."""
REST_S = 0.03
PORT = 9092
LATEST, EARLIEST = -1, -2
METADATA_VERSION, LIST_VERSION, INIT_VERSION = 12, 7, 4
PRODUCE_VERSIONS = (9, 13)
FETCH_VERSIONS = (7, 10, 12, 13)
"""Up to 10 only leaders answer, from 9 on a leader epoch goes along."""
BY_TOPIC_ID = 13
"""From this version on Produce and Fetch name a topic by its id."""
FETCH_WAIT_MS = 200
NAMES = {int(one): one.name for one in ErrorCode}
"""The names of error codes."""


class Refused(Exception):
    """An error response; the client retries."""

    def __init__(self, code: int) -> None:
        super().__init__(name_of(code))
        self.code = code


def name_of(code: int) -> str:
    """Returns the name of an error code."""
    return NAMES.get(code, str(code))


class Client:
    """The common part of all clients: links to brokers, and metadata."""

    def __init__(
        self, name: str, addresses: list[str], topic: str, promises: Promises, random: Random
    ) -> None:
        self.name = name
        self.topic = topic
        self.promises = promises
        self.events = promises.events
        self.random = random
        self.ended = False
        self.topic_id = b""
        self._bootstrap = addresses
        self._links: dict[str, Link] = {}
        self._leaders: dict[int, str] = {}
        """The address of each partition's leader."""
        self._epochs: dict[int, int] = {}

    def know_only(self, address: str) -> None:
        """Uses only this broker for metadata from now on."""
        self._bootstrap = [address]
        self._leaders.clear()

    async def run(self) -> None:
        """Works until :attr:`ended`, and waits for the results of all its requests."""
        while not (self.ended and self.is_settled):
            try:
                await self.work()
            except (LinkError, Refused, TimeoutError) as problem:
                self.events.add(f"{type(problem).__name__}: {problem}")
                self._leaders.clear()
                await asyncio.sleep(self.random.random() * 2 * REST_S)
            except Exception as problem:  # noqa: BLE001 - it is reported
                # The response was unusable.
                self.events.add(traceback.format_exc())
                self.promises.broken("no-error", f"{self.name} broke: {problem!r}")
                return

    @property
    def is_settled(self) -> bool:
        """Whether the client knows the results of all its requests."""
        return True

    async def work(self) -> None:
        """An operation of the client. Raises LinkError and Refused."""
        raise NotImplementedError

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self.promises.now()

    async def link(self, address: str) -> Link:
        """Returns an open link."""
        link = self._links.get(address)
        if link is None or link.is_closed:
            link = self._links[address] = await Link.open(0, address, PORT, self.name, PATIENCE_S)
        return link

    async def ask(self, address: str, key: int, version: int, request: Any) -> Any:
        """Sends a request to a broker."""
        link = await self.link(address)
        return await link.request(key, version, request, Struct, PATIENCE_S)

    def answered_s(self, address: str) -> float:
        """Returns when the broker at ``address`` sent its last response."""
        socket: Any = self._links[address]._socket
        sent_s: float = socket.received_sent_s
        return sent_s

    async def ask_any(self, key: int, version: int, request: Any) -> Any:
        """Sends a request to some broker, which forwards requests for the controller."""
        return await self.ask(self.random.choice(self._bootstrap), key, version, request)

    async def leader(self, partition: int) -> str:
        """Returns the address of a partition's leader. Raises Refused without a leader."""
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
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise Refused(topic.error_code)
            if topic.topic_id != self.topic_id:
                self._another_topic(topic.topic_id)
            for one in topic.partitions:
                # An outdated broker returns an older leader epoch than the known one.
                if one.leader_id in hosts and one.leader_epoch >= self._epochs.get(one.partition_index, -1):
                    self._leaders[one.partition_index] = hosts[one.leader_id]
                    self._epochs[one.partition_index] = one.leader_epoch

    def _another_topic(self, topic_id: bytes) -> None:
        """The topic was recreated."""
        self.topic_id = topic_id
        self._epochs.clear()
        self._leaders.clear()


def node_of(address: str) -> int:
    """Returns the broker at an address."""
    return int(address.rpartition("-")[2])


@dataclass(slots=True)
class Batch:
    """Records that are sent together."""

    messages: list[Message]
    sequence: int
    topic_id: bytes
    first_sent_s: float
    answered_s: float = 0.0
    is_in_doubt: bool = False
    """Whether an attempt may have stored it without an answer that says so."""
    is_overtaken: bool = False
    """Whether a later batch was acknowledged before."""


class Producer(Client):
    """Writes numbered records, several batches at a time, to one partition after the other."""

    def __init__(
        self,
        *client: Any,
        partitions: int,
        acks: int,
        is_idempotent: bool,
        pause_s: float,
        in_flight: int,
        versions: tuple[int, ...] = PRODUCE_VERSIONS,
    ) -> None:
        super().__init__(*client)
        self.partitions = partitions
        self.acks = acks
        self.is_idempotent = is_idempotent
        self.pause_s = pause_s
        self.in_flight = in_flight
        self.version = self.random.choice(versions)
        """Of its Produce requests: clients settle on a version with each broker, and here all are alike."""
        self.last_acknowledged_s = 0.0
        self._id: tuple[int, int] = (-1, -1)
        self._session = 0
        self._sequences: dict[int, int] = {}
        self._number = 0
        self._unsettled: dict[int, deque[Batch]] = {index: deque() for index in range(partitions)}
        self._overtaken: set[int] = set()
        """The partitions with an overtaken batch that was in doubt. If it was stored, and then deleted
        with all others, it is stored again, and the leader then expects the batch that has overtaken it.
        """
        """What was sent, and may be there or not."""

    @property
    def is_settled(self) -> bool:
        return not any(self._unsettled.values())

    async def work(self) -> None:
        if self.is_idempotent and self._id[0] < 0:
            await self._get_id()
        if not self.ended:
            await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
        waiting = [index for index, batches in self._unsettled.items() if batches]
        if self.ended and not waiting:
            return
        partition = self.random.choice(waiting if self.ended else range(self.partitions))
        address = await self.leader(partition)
        if self.is_idempotent and self._id[0] < 0:
            return  # The topic was recreated: another session began, which needs a new id.
        if not self.ended:
            self._gather(partition)
        await self._send_some(partition, address)

    def _gather(self, partition: int) -> None:
        """Creates new batches."""
        unsettled = self._unsettled[partition]
        for _ in range(self.random.randint(1, self.in_flight) - len(unsettled)):
            messages = []
            for _ in range(self.random.choice((1, 1, 2, 5))):
                self._number += 1
                messages.append(Message(self.name, self._number))
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence + len(messages)
            unsettled.append(Batch(messages, sequence, self.topic_id, self.now))

    async def _get_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer = await self.ask_any(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        self.promises.producer_id_given(f"{self.name}, session {self._session}", answer.producer_id)
        self._id = (answer.producer_id, answer.producer_epoch)

    async def _send_some(self, partition: int, address: str) -> None:
        """Sends all unsettled batches, and handles the responses in order."""
        link = await self.link(address)
        unsettled = self._unsettled[partition]
        batches = list(unsettled)
        if self.acks == NONE:
            for batch in batches:
                data = encode_request(
                    ApiKey.PRODUCE, self.version, 1, self.name, self._request(partition, batch)
                )
                self._report_sending(partition, batch)
                link._send_bytes(data)
            unsettled.clear()
            self.events.count("batches sent with acks=0", len(batches))
            return
        answers = await asyncio.gather(
            *(self._ask(link, partition, batch, address) for batch in batches), return_exceptions=True
        )
        problem: BaseException | None = None
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, BaseException):
                problem = problem or answer
                batch.is_in_doubt = True
                continue
            self.promises.answered(batch.messages)
            if batch not in unsettled:
                continue  # The batch was dropped.
            batch.answered_s, one = answer
            refused = self._settle(partition, batch, one, address, is_first=problem is None)
            problem = problem or refused
        if problem is not None:
            raise problem

    async def _ask(self, link: Link, partition: int, batch: Batch, address: str) -> tuple[float, Any]:
        request = self._request(partition, batch)
        self._report_sending(partition, batch)
        self.events.add(lambda: f"sends {batch.messages} to {self.topic}-{partition} at {address}")
        answer = await link.request(ApiKey.PRODUCE, self.version, request, ProduceResponse, PATIENCE_S)
        ((one,),) = [topic.partition_responses for topic in answer.responses]
        return self.answered_s(address), one

    def _request(self, partition: int, batch: Batch) -> ProduceRequest:
        builder = BatchBuilder()
        now_ms = wall_ms_at(self.now)
        is_keyed = self.promises.settings_of(self.topic).compacts
        for message in batch.messages:
            builder.append(now_ms, *message.record(is_keyed))
        records = builder.build(*self._id, batch.sequence) if self.is_idempotent else builder.build()
        data = PartitionProduceData(index=partition, records=records)
        topic = TopicProduceData(name=self.topic, topic_id=batch.topic_id, partition_data=[data])
        return ProduceRequest(acks=self.acks, timeout_ms=int(PATIENCE_S * 500), topic_data=[topic])

    def _report_sending(self, partition: int, batch: Batch) -> None:
        for tp, message in enumerate(batch.messages):
            sent = Sent(
                tp=(self.topic, partition),
                acks=self.acks,
                session=self._session if self.is_idempotent else -1,
                sequence=batch.sequence + tp,
                topic_id=batch.topic_id if self.version >= BY_TOPIC_ID else b"",
            )
            self.promises.sending(message, sent)

    def _settle(
        self, partition: int, batch: Batch, answer: Any, address: str, *, is_first: bool
    ) -> Refused | None:
        code = answer.error_code
        tp: PartitionKey = (self.topic, partition)
        if code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self.events.add(lambda: f"{batch.messages} are at {tp} offset {answer.base_offset}")
            self._note_order(partition, batch)
            self._unsettled[partition].remove(batch)
            self.last_acknowledged_s = self.now
            offset = answer.base_offset if code == 0 else -1
            if batch.is_in_doubt:
                self.events.count("retries acknowledged")
            self.promises.acknowledged(
                tp,
                self._log_id(batch),
                offset,
                batch.messages,
                sent_s=batch.first_sent_s,
                answered_s=batch.answered_s,
                broker=node_of(address),
            )
            return None
        self.events.add(lambda: f"{batch.messages} are refused: {name_of(code)}")
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            self.events.count("sequences refused")
            if is_first:
                refusal = f"{self.name} is refused by {tp}: {name_of(code)}"
                in_doubt = batch.is_in_doubt or partition in self._overtaken
                self.promises.refused_sequence(tp, self.topic_id, refusal, in_doubt=in_doubt)
                self._begin_session()
        elif code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            # A leader returns it as well if it has appended the batch, and stops leading before all replicas
            # have it.
            batch.is_in_doubt = True
            self._topic_unknown(batch)
        elif code != ErrorCode.NOT_ENOUGH_REPLICAS:
            batch.is_in_doubt = True
        return Refused(code)

    def _note_order(self, partition: int, batch: Batch) -> None:
        """A batch was acknowledged."""
        for earlier in self._unsettled[partition]:
            if earlier is batch:
                break
            earlier.is_overtaken = True
        if batch.is_overtaken and batch.is_in_doubt:
            self._overtaken.add(partition)

    def _log_id(self, batch: Batch) -> bytes:
        return batch.topic_id

    def _begin_session(self) -> None:
        """Starts a new session as another producer; drops unsettled batches."""
        self._id = (-1, -1)
        self._session += 1
        self._sequences.clear()
        self._overtaken.clear()
        for batches in self._unsettled.values():
            batches.clear()

    def _topic_unknown(self, batch: Batch) -> None:
        """The topic may have been deleted."""


class TemporaryProducer(Producer):
    """Writes to a topic that is deleted and recreated; its batches are for one topic id."""

    def _another_topic(self, topic_id: bytes) -> None:
        super()._another_topic(topic_id)
        self._begin_session()

    def _topic_unknown(self, batch: Batch) -> None:
        self._leaders.clear()

    @property
    def is_settled(self) -> bool:
        return True


class Consumer(Client):
    """Reads one partition from its start, requests start and end offsets, and reads parts of it again."""

    def __init__(
        self, *client: Any, partition: int, again: float, versions: tuple[int, ...] = FETCH_VERSIONS
    ) -> None:
        super().__init__(*client)
        self.partition = partition
        self.tp: PartitionKey = (self.topic, partition)
        self.position = 0
        self.again = again
        """How often it reads again from an offset below its position."""
        self.versions = versions

    def _another_topic(self, topic_id: bytes) -> None:
        super()._another_topic(topic_id)
        self.position = 0

    async def work(self) -> None:
        luck = self.random.random()
        address = await self.leader(self.partition)
        if luck < 0.1:
            asked_s = self.now
            end = await self._ask_offset(address, LATEST)
            self.promises.end_told(self.name, self.tp, self.topic_id, end, "ListOffsets")
            if luck < 0.05:
                start = await self._ask_offset(address, EARLIEST)
                self.promises.log_start_returned(self.tp, self.topic_id, start, asked_s, node_of(address))
        elif luck < 0.1 + self.again:
            self.position = self.random.randrange(self.position + 1)
        await self._fetch(address)

    async def _ask_offset(self, address: str, timestamp: int) -> int:
        wanted = ListOffsetsPartition(
            partition_index=self.partition,
            current_leader_epoch=self._epochs.get(self.partition, -1),
            timestamp=timestamp,
        )
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=self.topic, partitions=[wanted])]
        )
        answer = await self.ask(address, ApiKey.LIST_OFFSETS, LIST_VERSION, request)
        ((one,),) = [topic.partitions for topic in answer.topics]
        if one.error_code:
            raise Refused(one.error_code)
        known = self.promises.partitions.get(self.tp)
        if known is not None and known.topic_id != self.topic_id:
            # ListOffsets has no topic id: the response may be for the recreated topic.
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        self.events.add(lambda: f"offset {timestamp} of {self.tp} is {one.offset}")
        return int(one.offset)

    async def _fetch(self, address: str) -> None:
        version = self.random.choice(self.versions)
        wanted = FetchPartition(
            partition=self.partition,
            current_leader_epoch=self._epochs.get(self.partition, -1),
            fetch_offset=self.position,
            partition_max_bytes=self.random.choice((200, 1000, 1 << 20)),
        )
        topic = FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=FETCH_WAIT_MS, min_bytes=1, topics=[topic])
        asked_s, topic_id = self.now, self.topic_id
        answer = await self.ask(address, ApiKey.FETCH, version, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        ((one,),) = [topic.partitions for topic in answer.responses]
        if one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range(address, topic_id)
        if one.error_code:
            raise Refused(one.error_code)
        if one.high_watermark >= 0:
            self.promises.end_told(self.name, self.tp, topic_id, one.high_watermark, "Fetch")
        if version > 4 and one.log_start_offset >= 0:
            self.promises.log_start_returned(
                self.tp, topic_id, one.log_start_offset, asked_s, node_of(address)
            )
        self._take(one.records or b"", topic_id, asked_s, address)

    async def _out_of_range(self, address: str, topic_id: bytes) -> None:
        """The start or the end of the log has moved beyond the position."""
        self.events.count("positions out of range")
        asked_s = self.now
        start = await self._ask_offset(address, EARLIEST)
        end = await self._ask_offset(address, LATEST)
        if topic_id == self.topic_id:
            self.promises.log_start_returned(self.tp, topic_id, start, asked_s, node_of(address))
            self.promises.out_of_range(self.name, self.tp, topic_id, self.position, start, end)
            self.position = start

    def _take(self, records: bytes, topic_id: bytes, asked_s: float, address: str) -> None:
        answered_s = self.answered_s(address)
        for record in iter_records(records, UNPACKED_BYTES_MAX, self.position):
            if record.offset != self.position:
                self.promises.skipped(self.name, self.tp, topic_id, self.position, record.offset)
            message = Message.of(record)
            if record.offset not in self.promises.logs[*self.tp, topic_id].read:
                self.events.add(f"sees {message} at {record.offset}")
            self.promises.saw(
                self.tp, topic_id, record.offset, message, asked_s, answered_s, node_of(address)
            )
            self.position = record.offset + 1
        # A compacted log has batches without records, and batches without their last records.
        last = max((int(batch.last_offset) for batch in iter_stored(records)), default=-1)
        if last >= self.position:
            self.promises.skipped(self.name, self.tp, topic_id, self.position, last + 1)
            self.position = last + 1
