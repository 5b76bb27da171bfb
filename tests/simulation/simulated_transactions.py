"""Transactional clients of a simulated cluster: producers with one transactional id, and consumers.

Two clients may share a transactional id: whoever begins fences the other, which goes on as a zombie until a
request is refused. Producers stand still, abandon transactions, and send late batches of ended transactions
again. Both transaction versions are spoken: with version 1 a producer adds partitions itself, with version 2
each transaction has its own epoch (KIP-890).

Some transactional ids use a two-phase commit (KIP-939): a producer notes that it has prepared its
transaction, and may end before the commit. Its successor keeps the transaction, and commits it if that is
noted.

After the end of a transaction some producers send a request of it once more: for its other end, or an offset.
If the response is lost, a producer of version 1 continues with another epoch: the request could otherwise
arrive in its next transaction, which has the same epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from change_phases import ChangePhases
from promises import ALL, Message, Sent
from simulated_clients import BY_TOPIC_ID, PATIENCE_S, PORT, Client, Consumer, Refused, name_of, node_of
from simulated_groups import OFFSETS
from simulated_loop import wall_ms_at
from transactions_promise import GroupPartition, Instance, Record, Transaction, TransactionHistory

from tidemill.model.errors import ErrorCode
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.net.link import Link, LinkError
from tidemill.records.batch import Batch
from tidemill.records.builder import BatchBuilder
from tidemill.records.end_transaction_marker import ABORT, decode_control_record
from tidemill.records.record_reader import iter_stored, read_stored
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tidemill.wire.messages.end_txn import EndTxnRequest
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

TRANSACTIONAL_TOPIC = "x"
GROUP_KEY, TRANSACTION_KEY = 0, 1
FIND_VERSION, INIT_VERSION, ADD_VERSION, ADD_OFFSETS_VERSION = 3, 5, 3, 3
TWO_PHASE_INIT_VERSION = 6
PRODUCE_VERSIONS = {1: (9, 11), 2: (12, 13)}
OFFSETS_VERSION = {1: 4, 2: 5}
END_VERSION = {1: 4, 2: 5}
OFFSET_FETCH_VERSION = 9
FETCH_VERSIONS = (11, 13)
FETCH_WAIT_MS = 300
RETRY_S_MEAN = 0.03
TIMEOUTS_MS = (600, 1200, 2500)
STALL_S_MEAN = 0.8
PAUSE_S_MEAN = 0.3
"""How long a fenced producer waits until it begins again."""
LATE_S_MEANS = (0.002, 0.02, 0.4)
LATE = 0.3
"""The share of ended transactions of which a batch is sent again."""
STALLS = 0.15
"""The share of pauses within transactions that may last beyond the timeout."""
OFFSETS_FOUND = 0.3
"""The share of ended transactions after which the offset is requested, before its marker may be written."""
GOES_ON = 0.4
"""The share of fenced producers that try to go on."""
HELD = 0.08
"""The share of transactions with a batch that the network holds until their end."""
AHEAD_S_MEANS = (0.002, 0.01, 0.05)
"""How long before the end of the transaction such a batch is sent."""
ASKED_AHEAD_S = 0.3
"""The same at most for a batch whose leader asks the coordinator: until the network holds the answer."""
OTHER_END = 0.15
"""The share of aborted transactions whose commit is requested after that."""
AFTER_END_S_MEAN = 0.1
LATE_OFFSETS = 0.3
"""The share of transactions with an offset that arrives once more after their end."""
ENDS_PREPARED = 0.4
"""The share of prepared transactions whose producer ends before their commit."""
SYSTEM_AWAY, AWAY_S = 0.2, 0.5
"""The share of those with which the system that knows of them is away, for longer than their timeout."""
ENOUGH_S = 3.0
"""A producer aborts when an operation takes longer."""
READ_COMMITTED, READ_UNCOMMITTED = 1, 0
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
"""Another instance has begun, the transaction has timed out, or the transactional id has expired."""
ABORTABLE = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)


class Fenced(Exception):
    """The producer cannot go on."""


class MustAbort(Exception):
    """The transaction cannot be committed."""


class Producing(NamedTuple):
    """The id and epoch of a producer."""

    producer_id: int
    epoch: int


class Fetched(NamedTuple):
    """The records of a partition that a consumer with this isolation level gets, and its next position."""

    records: tuple[tuple[int, Message], ...]
    position: int
    high_watermark: int
    stable: int


@dataclass(slots=True)
class SentBatch:
    """A batch of a transaction, which may be sent again."""

    partition: int
    messages: list[Message]
    producer: Producing
    session: int
    sequence: int
    is_in_doubt: bool = False
    is_acknowledged: bool = False
    first_sent_s: float = 0.0


@dataclass(slots=True)
class OpenTransaction:
    """What a producer has sent in its transaction."""

    history: Transaction
    producer: Producing | None = None
    """The one that has requested the end."""
    partitions: set[int] = field(default_factory=set)
    """Added with transaction version 1."""
    batches: list[SentBatch] = field(default_factory=list)


class Prepared(dict[Producing, OpenTransaction | None]):
    """What another system knows of the transactions of a two-phase commit: those that are prepared, and those
    that a later producer aborts (None).
    """

    away_until_s = 0.0
    """Until then the other system is away, and no producer begins."""


async def fetch(client: Client, partition: int, position: int, version: int, isolation: int) -> Fetched:
    """Fetches from the leader of a partition. Raises LinkError and Refused."""
    address = await client.leader(partition)
    wanted = FetchPartition(
        partition=partition,
        current_leader_epoch=client._epochs.get(partition, -1),
        fetch_offset=position,
        partition_max_bytes=client.random.choice((300, 2000, 1 << 20)),
    )
    topic = FetchTopic(topic=client.topic, topic_id=client.topic_id, partitions=[wanted])
    request = FetchRequest(max_wait_ms=FETCH_WAIT_MS, min_bytes=1, isolation_level=isolation, topics=[topic])
    answer = await client.ask(address, ApiKey.FETCH, version, request)
    if answer.error_code:
        raise Refused(answer.error_code)
    ((one,),) = [topic.partitions for topic in answer.responses]
    if one.error_code:
        raise Refused(one.error_code)
    return filtered(one, position, isolation)


def filtered(one: Any, position: int, isolation: int) -> Fetched:
    """Removes what a consumer does not show: markers, and, for read_committed, aborted records."""
    starting = sorted((each.first_offset, each.producer_id) for each in one.aborted_transactions or ())
    aborted: set[int] = set()
    records = []
    for batch in iter_stored(one.records or b""):
        if not isinstance(batch, Batch):
            raise TypeError("a batch of an old format")
        while starting and starting[0][0] <= batch.last_offset:
            aborted.add(starting.pop(0)[1])
        held = read_stored(batch, True, UNPACKED_BYTES_MAX)
        last = int(batch.last_offset)
        if batch.is_control:
            if held and decode_control_record(held[0].key, held[0].value).control_type == ABORT:
                aborted.discard(int(batch.producer_id))
        elif not (isolation == READ_COMMITTED and batch.is_transactional and batch.producer_id in aborted):
            records += [(each.offset, Message.of(each)) for each in held if each.offset >= position]
        position = max(position, last + 1)
    return Fetched(tuple(records), position, one.high_watermark, one.last_stable_offset)


class TransactionalConsumer(Consumer):
    """Reads one partition from its start, with one isolation level."""

    def __init__(self, *client: Any, partition: int, isolation: int, history: TransactionHistory) -> None:
        super().__init__(*client, partition=partition, again=0.0)
        self.isolation = isolation
        self.history = history
        self.passes = 0
        """How often it has begun again."""

    async def work(self) -> None:
        reader = f"{self.name}, pass {self.passes}"
        version = self.random.choice(FETCH_VERSIONS)
        asked_s = self.now
        found = await fetch(self, self.partition, self.position, version, self.isolation)
        address = self._leaders.get(self.partition) or self.addresses[0]
        if found.high_watermark >= 0:
            self.promises.end_told(self.name, self.tp, self.topic_id, found.high_watermark, "Fetch")
        if self.isolation == READ_COMMITTED and found.stable >= 0:
            self.history.stable_told(reader, self.tp, found.stable, found.high_watermark)
            if found.position > max(found.stable, self.position):
                text = f"{self.name} receives {self.tp} up to {found.position}, stable up to {found.stable}"
                self.promises.broken("last-stable", text)
        for offset, message in found.records:
            self.events.add(lambda offset=offset, message=message: f"sees {message} at {self.tp} {offset}")
            self.promises.saw(self.tp, self.topic_id, offset, message, asked_s, self.now, node_of(address))
            if self.isolation == READ_COMMITTED:
                self.history.saw(reader, self.tp, Record(offset, str(message)))
        self.position = max(self.position, found.position)
        if self.isolation == READ_COMMITTED:
            self.history.position_of(reader, self.tp, self.position)

    @property
    def addresses(self) -> list[str]:
        """The addresses of all brokers."""
        return self._bootstrap


class RepeatingConsumer(TransactionalConsumer):
    """Reads a compacted partition from its start again and again, and once more at the end of the run."""

    def __init__(self, *client: Any, again: float, **options: Any) -> None:
        super().__init__(*client, **options)
        self.again = again
        self._is_last = False

    async def work(self) -> None:
        is_last = not self.again
        if self.random.random() < self.again or (is_last and not self._is_last):
            self.passes += 1
            self.position = 0
        self._is_last = is_last
        await super().work()


class TransactionalProducer(Client):
    """Begins transactions one after the other, and commits most of them."""

    def __init__(
        self,
        *client: Any,
        transactional_id: str,
        version: int,
        partitions: int,
        history: TransactionHistory,
        phases: ChangePhases,
        hold_answer: Callable[[str], asyncio.Event],
        prepared: Prepared | None,
        pause_s: float,
    ) -> None:
        super().__init__(*client)
        self._hold_answer = hold_answer
        """The next question about partitions of a transactional id gets its answer late."""
        self._prepared = prepared
        """None without a two-phase commit; shared by the producers of a transactional id."""
        self.transactional_id = transactional_id
        self.group = f"group of {transactional_id}"
        self.version = version
        """Its transaction version."""
        self.partitions = partitions
        self.history = history
        self.phases = phases
        self.pause_s = pause_s
        self.timeout_ms = self.random.choice(TIMEOUTS_MS)
        self._producer: Producing | None = None
        self._instance: Instance | None = None
        self._keeps = False
        """Whether its first transaction was that of a former producer, and no other one has ended."""
        self.is_ending = False
        """Whether it waits for the response to an EndTxn."""
        self._session = 0
        self._sequences: dict[int, int] = {}
        self._coordinators: dict[tuple[int, str], str] = {}
        self._number = 0
        self._positions: dict[int, int] = {}
        self._has_checked_offset = False
        self._late: list[asyncio.Task[None]] = []

    @property
    def is_settled(self) -> bool:
        return self._has_checked_offset and not any(not one.done() for one in self._late)

    async def work(self) -> None:
        if self.ended and self._has_checked_offset:
            await asyncio.sleep(RETRY_S_MEAN)
            return
        if self.ended:
            if self._prepared is not None:
                await self._restart()
            await self._find_offset()
            self._has_checked_offset = True
            return
        await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
        if self.ended:
            return
        try:
            if self._producer is None:
                if self._prepared is not None:
                    await asyncio.sleep(max(0.0, self._prepared.away_until_s - self.now))
                await self._begin_instance()
                await self._find_offset()
            await self._transact()
        except Fenced as problem:
            self.events.add(f"cannot go on: {problem}")
            self.events.count("transactional producers fenced")
            goes_on = self._prepared is None and self.random.random() < GOES_ON
            if goes_on and await self._may_go_on():
                return
            self._producer = self._instance = None
            await asyncio.sleep(self.random.expovariate(1 / PAUSE_S_MEAN))

    async def _may_go_on(self) -> bool:
        """A fenced producer tries to go on with its id: a transaction may have timed out (KIP-360)."""
        try:
            await self._begin_instance(goes_on=True)
        except Fenced as problem:
            self.events.add(f"cannot go on: {problem}")
            return False
        return True

    # -- the producer

    async def _begin_instance(self, goes_on: bool = False) -> None:
        """Gets an id and an epoch. A producer that goes on after an error names its own."""
        known = self._producer if goes_on else None
        asked_s = self.now
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=-1 if known is None else known.producer_id,
            producer_epoch=-1 if known is None else known.epoch,
            enable2_pc=self._prepared is not None,
            keep_prepared_txn=self._prepared is not None,
        )
        version = INIT_VERSION if self._prepared is None else TWO_PHASE_INIT_VERSION
        answer = await self._until_answered(
            lambda: self._ask_coordinator(ApiKey.INIT_PRODUCER_ID, version, request),
            lambda one: one.error_code,
        )
        if answer.error_code:
            raise Fenced(f"InitProducerId: {name_of(answer.error_code)}")
        self.promises.producer_id_given(f"transactional id {self.transactional_id}", answer.producer_id)
        self._use(Producing(answer.producer_id, answer.producer_epoch))
        # After an id has expired, any producer begins anew with it.
        has_expired = (
            self.history.ids_expire and known is not None and known.producer_id != answer.producer_id
        )
        if known is None or self._instance is None or has_expired:
            self._keeps = self._prepared is not None and answer.ongoing_txn_producer_id >= 0
            self._instance = self.history.instance_began(
                self.transactional_id, self.name, asked_s, keeps=self._keeps
            )
            self.events.count("transactional producers begun")
        else:
            self.history.accepted(self._instance, "goes on", asked_s)
            self.events.count("transactional producers that went on")
        self.events.add(f"is {self._producer} of {self.transactional_id}")
        if self._prepared is not None and answer.ongoing_txn_producer_id >= 0:
            kept = Producing(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
            await self._end_kept(kept, self._prepared.setdefault(kept, None))

    async def _restart(self) -> None:
        """A two-phase commit goes on until no transaction is open: nothing else ends them."""
        while True:
            try:
                await self._begin_instance()
            except Fenced as problem:
                self.events.add(f"cannot go on: {problem}")
                await asyncio.sleep(self.random.expovariate(1 / PAUSE_S_MEAN))
            else:
                return

    async def _end_kept(self, kept: Producing, one: OpenTransaction | None) -> None:
        """Ends the transaction of a former producer: commits it if that producer has prepared it."""
        instance, producer = self._instance, self._producer
        if instance is None or producer is None:
            return
        what = "abort" if one is None else "commit"
        self.events.add(f"requests the {what} of {kept}, as {producer}")
        request = self._end_request(producer, is_commit=one is not None)
        sent_s = self.now
        if one is not None:
            one.history.instance = instance
            one.history.commit_sent_s = min(one.history.commit_sent_s, sent_s)

        async def send() -> Any:
            nonlocal sent_s
            sent_s = self.now
            return await self._ask_coordinator(ApiKey.END_TXN, END_VERSION[self.version], request)

        answer = await self._until_answered(send, lambda each: each.error_code)
        if answer.error_code and answer.error_code not in FENCED and one is not None:
            self.history.prepared_refused(one.history, name_of(answer.error_code))
        if answer.error_code:
            raise Fenced(f"EndTxn: {name_of(answer.error_code)}")
        self.events.count(f"transactions of former producers ended by {what}")
        if one is not None:
            self.history.commit_answered(one.history, sent_s)
        self._use(Producing(answer.producer_id, answer.producer_epoch))

    def _use(self, producer: Producing) -> None:
        """Uses another id or epoch, which begins with sequence 0."""
        self._producer = producer
        self._session += 1
        self._sequences.clear()

    async def _ask_coordinator(
        self, key: int, version: int, request: Any, kind: int = TRANSACTION_KEY
    ) -> Any:
        name = self.transactional_id if kind == TRANSACTION_KEY else self.group
        address = self._coordinators.get((kind, name))
        try:
            if address is None:
                answer = await self.ask_any(
                    ApiKey.FIND_COORDINATOR, FIND_VERSION, FindCoordinatorRequest(key=name, key_type=kind)
                )
                if answer.error_code:
                    raise Refused(answer.error_code)
                address = self._coordinators[kind, name] = answer.host
            return await self.ask(address, key, version, request)
        except BaseException:
            self._coordinators.pop((kind, name), None)
            raise

    async def _until_answered(
        self,
        send: Callable[[], Awaitable[Any]],
        error_of: Callable[[Any], int],
        until_s: float | None = None,
    ) -> Any:
        """Repeats a request until it succeeds, or fails with an error that clients do not repeat."""
        while True:
            try:
                answer = await send()
                code = error_of(answer)
                if not code or code in FENCED or code in ABORTABLE:
                    return answer
                self.events.add(f"is refused: {name_of(code)}")
                if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    self._coordinators.clear()
            except (LinkError, TimeoutError) as problem:
                self.events.add(f"{type(problem).__name__}: {problem}")
            except Refused as problem:
                self.events.add(f"is refused: {problem}")
            self._leaders.clear()
            if until_s is not None and self.now > until_s:
                raise MustAbort("an operation takes too long")
            await asyncio.sleep(self.random.expovariate(1 / RETRY_S_MEAN))

    # -- transactions

    async def _transact(self) -> None:
        if self._instance is None:
            return
        one = OpenTransaction(self.history.began(self._instance))
        self.events.add(f"begins {one.history}")
        self.phases.begin("transaction open")
        luck = self.random.random()
        try:
            await self._work_in(one)
            if luck < 0.1:
                self.events.count("transactional producers that stand still")
                await asyncio.sleep(self.random.expovariate(1 / STALL_S_MEAN))
            # At the end of the run nobody begins again with the id: only its timeout ends the transaction.
            if luck > 0.93 or self.ended:
                self.events.add("abandons its transaction")
                self.events.count("transactions abandoned")
                self._send_late(one)
                raise Fenced("the transaction was abandoned")
            if luck < 0.78:
                await self._prepare(one)
            await self._end(one, is_commit=luck < 0.78)
            await self._send_after_end(one, is_commit=luck < 0.78)
            if self.random.random() < OFFSETS_FOUND:
                await self._find_offset()
        except MustAbort as problem:
            self.events.add(f"must abort: {problem}")
            await self._end(one, is_commit=False)
        finally:
            self.phases.end("transaction open")

    async def _prepare(self, one: OpenTransaction) -> None:
        """The first phase of a two-phase commit: the producer may end after it."""
        if self._prepared is None or self._producer is None:
            return
        if self._prepared.setdefault(self._producer, one) is not one:
            raise Fenced("a later producer aborts the transaction")
        one.history.is_prepared = True
        self.events.add(f"has prepared {one.history}")
        if self.random.random() < ENDS_PREPARED:
            self.events.count("two-phase producers that end after they have prepared")
            if self.random.random() < SYSTEM_AWAY:
                self._prepared.away_until_s = self.now + self.timeout_ms / 1000 + AWAY_S
            await asyncio.sleep(self.random.choice((0.0, self.random.expovariate(1 / STALL_S_MEAN))))
            raise Fenced("the producer has ended")

    async def _work_in(self, one: OpenTransaction) -> None:
        random = self.random
        if random.random() < 0.5:
            await self._read(one)
        if random.random() < HELD:
            await self._send_ahead(one)
            raise MustAbort("a batch is on its way")
        steps = random.choice((1, 1, 2, 3))
        for step in range(steps):
            chosen = random.sample(range(self.partitions), random.randint(1, self.partitions))
            if step and random.random() < STALLS:
                self.events.count("transactional producers that stand still between writes")
                await asyncio.sleep(random.expovariate(1 / STALL_S_MEAN))
            if self.version == 1:
                await self._add_partitions(one, chosen)
            results = await asyncio.gather(
                *(self._write(one, partition) for partition in chosen), return_exceptions=True
            )
            for problem in results:
                if isinstance(problem, BaseException):
                    raise problem
            if step == 0 and random.random() < 0.5:
                await self._send_offset(one)
        if random.random() < HELD:
            await self._send_ahead(one)
            raise MustAbort("another batch is on its way")

    async def _send_ahead(self, one: OpenTransaction) -> None:
        """Sends a batch, and does not wait for its response; preferably the first one of its partition, so
        that the leader asks the coordinator.
        """
        written = {batch.partition for batch in one.batches}
        others = [each for each in range(self.partitions) if each not in written]
        partition = self.random.choice(others or sorted(written))
        if self.version == 1:
            await self._add_partitions(one, [partition])
        held = self._hold_answer(self.transactional_id) if others else None
        batch = self._new_batch(one, partition)
        self.events.count("batches held by the network")
        if self.topic_id:
            late = self._arrive_late(one.history, batch, 0.0)
            self._late.append(asyncio.get_running_loop().create_task(late))
        if held is None:
            await asyncio.sleep(self.random.expovariate(1 / self.random.choice(AHEAD_S_MEANS)))
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(held.wait(), ASKED_AHEAD_S)

    async def _read(self, one: OpenTransaction) -> None:
        """Reads on in a partition, as read_committed."""
        partition = self.random.randrange(self.partitions)
        position = self._positions.get(partition, 0)
        try:
            found = await fetch(self, partition, position, FETCH_VERSIONS[-1], READ_COMMITTED)
        except (LinkError, Refused, TimeoutError) as problem:
            self.events.add(f"{type(problem).__name__}: {problem}")
            self._leaders.clear()
            return
        for offset, message in found.records:
            self.history.read(one.history, Record(offset, str(message)), (self.topic, partition))
        self._positions[partition] = found.position

    async def _add_partitions(self, one: OpenTransaction, partitions: Sequence[int]) -> None:
        missing = [each for each in partitions if each not in one.partitions]
        if not missing or self._producer is None or self._instance is None:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer.producer_id,
            v3_and_below_producer_epoch=self._producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=missing)],
        )
        sent_s = self.now

        async def send() -> Any:
            nonlocal sent_s
            sent_s = self.now
            return await self._ask_coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, request)

        answer = await self._until_answered(send, _error_of_added, sent_s + ENOUGH_S)
        self._check(_error_of_added(answer), "AddPartitionsToTxn")
        self.history.accepted(self._instance, f"adds {missing} to {one.history}", sent_s)
        one.partitions.update(missing)

    def _check(self, code: int, what: str) -> None:
        if code in FENCED:
            raise Fenced(f"{what}: {name_of(code)}")
        if code:
            raise MustAbort(f"{what}: {name_of(code)}")

    async def _write(self, one: OpenTransaction, partition: int) -> None:
        """Writes a batch, and waits for its acknowledgement."""
        batch = self._new_batch(one, partition)
        answer = await self._until_answered(
            lambda: self._send(one.history, batch), lambda each: each.error_code, self.now + ENOUGH_S
        )
        code = answer.error_code
        is_gap = code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
        if is_gap and not self.history.has_lost_state():
            refusal = f"{self.name} is refused by {self.topic}-{partition}: {name_of(code)}"
            tp = (self.topic, partition)
            self.promises.refused_sequence(tp, self.topic_id, refusal, in_doubt=batch.is_in_doubt)
        self._check(code, f"Produce to {partition}")
        self._sequences[partition] = batch.sequence + len(batch.messages)

    def _new_batch(self, one: OpenTransaction, partition: int) -> SentBatch:
        if self._producer is None:
            raise MustAbort("the producer has ended")
        messages = []
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self._number += 1
            messages.append(Message(self.name, self._number))
        sequence = self._sequences.get(partition, 0)
        batch = SentBatch(partition, messages, self._producer, self._session, sequence)
        one.batches.append(batch)
        return batch

    async def _send(self, one: Transaction, batch: SentBatch) -> Any:
        """Sends a batch to the leader; returns the result of the partition."""
        address = await self.leader(batch.partition)
        link = await self.link(address)
        version = self.random.choice(PRODUCE_VERSIONS[self.version])
        request = self._produce_request(batch)
        tp = (self.topic, batch.partition)
        sent_s = self._report_sending(one, batch, version)
        was_in_doubt, batch.is_in_doubt = batch.is_in_doubt, True
        answer = await link.request(ApiKey.PRODUCE, version, request, ProduceResponse, PATIENCE_S)
        self.promises.answered(batch.messages)
        ((result,),) = [topic.partition_responses for topic in answer.responses]
        if result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS:
            batch.is_in_doubt = was_in_doubt
        if result.error_code:
            return result
        self.events.add(lambda: f"{batch.messages} are at {tp} offset {result.base_offset}")
        batch.is_acknowledged = True
        self.promises.acknowledged(
            tp,
            self.topic_id,
            -1 if self.history.has_lost_state() else result.base_offset,
            batch.messages,
            sent_s=batch.first_sent_s,
            answered_s=self.answered_s(address),
            broker=node_of(address),
        )
        self.history.acknowledged(one, tp, map(str, batch.messages), sent_s)
        return result

    def _produce_request(self, batch: SentBatch) -> ProduceRequest:
        builder = BatchBuilder()
        for message in batch.messages:
            is_keyed = self.promises.settings_of(self.topic).compacts
            builder.append(wall_ms_at(self.now), *message.record(is_keyed))
        records = builder.build(*batch.producer, batch.sequence, transactional=True)
        data = PartitionProduceData(index=batch.partition, records=records)
        topic = TopicProduceData(name=self.topic, topic_id=self.topic_id, partition_data=[data])
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=ALL,
            timeout_ms=int(PATIENCE_S * 500),
            topic_data=[topic],
        )

    def _report_sending(self, one: Transaction, batch: SentBatch, version: int) -> float:
        tp = (self.topic, batch.partition)
        self.events.add(lambda: f"sends {batch.messages} of {batch.producer} to {tp}")
        self.history.sending(one, tp, map(str, batch.messages))
        for number, message in enumerate(batch.messages):
            sent = Sent(
                tp=tp,
                acks=ALL,
                session=batch.session,
                sequence=batch.sequence + number,
                topic_id=self.topic_id if version >= BY_TOPIC_ID else b"",
            )
            self.promises.sending(message, sent)
        batch.first_sent_s = batch.first_sent_s or self.now
        return self.now

    async def _send_offset(self, one: OpenTransaction) -> None:
        """Commits an offset of the group in the transaction."""
        instance, producer = self._instance, self._producer
        if instance is None or producer is None:
            return
        if self.version == 1:
            added = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=self.group,
            )
            answer = await self._until_answered(
                lambda: self._ask_coordinator(ApiKey.ADD_OFFSETS_TO_TXN, ADD_OFFSETS_VERSION, added),
                lambda each: each.error_code,
                self.now + ENOUGH_S,
            )
            self._check(answer.error_code, "AddOffsetsToTxn")
        offset = self.history.next_offset()
        request = self._offset_request(producer, offset)
        one.history.offsets[self._offset_key] = offset
        sent_s = self.now

        async def send() -> Any:
            nonlocal sent_s
            sent_s = self.now
            version = OFFSETS_VERSION[self.version]
            return await self._ask_coordinator(ApiKey.TXN_OFFSET_COMMIT, version, request, GROUP_KEY)

        self.events.add(f"sends offset {offset}")
        answer = await self._until_answered(send, _error_of_offset, self.now + ENOUGH_S)
        self._check(_error_of_offset(answer), "TxnOffsetCommit")
        self.events.add(f"offset {offset} is in the transaction")
        self.events.count("transactional offsets acknowledged")
        self.history.accepted(instance, f"writes offset {offset}", sent_s, (OFFSETS, 0))
        one.history.acknowledged_offsets[self._offset_key] = offset

    def _offset_request(self, producer: Producing, offset: int) -> TxnOffsetCommitRequest:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )

    @property
    def _offset_key(self) -> GroupPartition:
        return self.group, self.topic, 0

    def _end_request(self, producer: Producing, *, is_commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=is_commit,
        )

    async def _end(self, one: OpenTransaction, *, is_commit: bool) -> None:
        """Commits or aborts; a commit whose response is lost is repeated."""
        one.producer = producer = self._producer
        if producer is None:
            raise Fenced("the producer has ended")
        what = "commit" if is_commit else "abort"
        request = self._end_request(producer, is_commit=is_commit)
        if is_commit:
            one.history.commit_sent_s = self.now
        self.events.add(f"requests the {what} of {one.history}")
        sent_s = self.now

        async def send() -> Any:
            nonlocal sent_s
            sent_s = self.now
            return await self._ask_coordinator(ApiKey.END_TXN, END_VERSION[self.version], request)

        if not all(each.is_acknowledged for each in one.batches):
            self._send_late(one)
        self.is_ending = True
        self.phases.begin("transaction end asked")
        try:
            answer = await self._until_answered(send, lambda each: each.error_code)
        finally:
            self.is_ending = False
            self.phases.end("transaction end asked")
        if answer.error_code:
            self.events.count(f"{what}s refused: {name_of(answer.error_code)}")
            self._send_late(one)
            raise Fenced(f"EndTxn: {name_of(answer.error_code)}")
        self.events.add(f"has the {what} of {one.history}")
        self.events.count(f"transactions ended by {what}")
        self.phases.moment("transaction ended")
        if self._keeps and self._instance is not None:
            self._keeps = False
            self.history.kept_ended(self._instance)
        if is_commit:
            self.history.commit_answered(one.history, sent_s)
        else:
            self.history.accepted(one.history.instance, f"aborts {one.history}", sent_s)
        if self.version == 2:
            self._use(Producing(answer.producer_id, answer.producer_epoch))
        if self.random.random() < LATE:
            self._send_late(one)
        if self.version == 1 and not all(each.is_acknowledged for each in one.batches):
            await asyncio.sleep(self.random.choice((0.0, self.random.expovariate(1 / RETRY_S_MEAN))))
            await self._begin_instance(goes_on=True)

    async def _send_after_end(self, one: OpenTransaction, *, is_commit: bool) -> None:
        """Sends a request of the transaction once more: it has ended, and the request has no effect."""
        producer = one.producer
        if producer is None:
            return
        has_offsets = one.history.acknowledged_offsets and self.random.random() < LATE_OFFSETS
        if has_offsets or not is_commit:
            await asyncio.sleep(self.random.choice((0.0, self.random.expovariate(1 / AFTER_END_S_MEAN))))
        answers = True
        if not is_commit and self.random.random() < OTHER_END:
            answers = await self._ask_other_end(one, producer)
        if has_offsets:
            answers = await self._send_offset_again(one, producer) and answers
        if self.version == 1 and not answers:
            await self._begin_instance(goes_on=True)

    async def _ask_other_end(self, one: OpenTransaction, producer: Producing) -> bool:
        """Requests the commit of an aborted transaction. Returns whether there is a response."""
        request = self._end_request(producer, is_commit=True)
        try:
            answer = await self._ask_coordinator(ApiKey.END_TXN, END_VERSION[self.version], request)
        except (LinkError, Refused, TimeoutError) as problem:
            self.events.add(f"{type(problem).__name__}: {problem}")
            return False
        self.events.count("commits requested of aborted transactions")
        if not answer.error_code:
            self.history.other_end_confirmed(one.history)
        return True

    async def _send_offset_again(self, one: OpenTransaction, producer: Producing) -> bool:
        """Sends the offset of the transaction once more. Returns whether there is a response.

        Its leader accepts it until it has the marker, which then ends it as well.
        """
        request = self._offset_request(producer, one.history.acknowledged_offsets[self._offset_key])
        version = OFFSETS_VERSION[self.version]
        try:
            answer = await self._ask_coordinator(ApiKey.TXN_OFFSET_COMMIT, version, request, GROUP_KEY)
        except (LinkError, Refused, TimeoutError) as problem:
            self.events.add(f"{type(problem).__name__}: {problem}")
            return False
        self.events.count(f"late offsets: {name_of(_error_of_offset(answer))}")
        return True

    def _send_late(self, one: OpenTransaction) -> None:
        """A batch of the transaction arrives once more, later, over another connection."""
        doubtful = [each for each in one.batches if not each.is_acknowledged]
        chosen = doubtful or one.batches
        if chosen and self.topic_id and not self.ended:
            self._late = [each for each in self._late if not each.done()]
            batch = self.random.choice(chosen)
            delay_s = self.random.expovariate(1 / self.random.choice(LATE_S_MEANS))
            late = self._arrive_late(one.history, batch, delay_s)
            self._late.append(asyncio.get_running_loop().create_task(late))

    async def _arrive_late(self, one: Transaction, batch: SentBatch, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        address = self._leaders.get(batch.partition, self.random.choice(self._bootstrap))
        version = self.random.choice(PRODUCE_VERSIONS[self.version])
        try:
            link = await Link.open(0, address, PORT, self.name, PATIENCE_S)
            sent_s = self._report_sending(one, batch, version)
            request = self._produce_request(batch)
            answer = await link.request(ApiKey.PRODUCE, version, request, ProduceResponse, PATIENCE_S)
        except (LinkError, TimeoutError):
            return
        self.promises.answered(batch.messages)
        ((result,),) = [topic.partition_responses for topic in answer.responses]
        self.events.add(lambda: f"late {batch.messages}: {name_of(result.error_code)}")
        self.events.count("late batches answered")
        # A batch that is in the log already may be acknowledged again.
        if not result.error_code and not batch.is_acknowledged:
            self.events.count("late batches stored")
            what = f"writes late {batch.messages} of {one}"
            self.history.accepted(one.instance, what, sent_s, (self.topic, batch.partition))

    # -- offsets

    async def _find_offset(self) -> None:
        """Requests the offset of the group, which waits for the end of open transactions."""
        group = OffsetFetchRequestGroup(
            group_id=self.group,
            topics=[OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0])],
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        asked_s = self.now
        asked = ""

        async def send() -> Any:
            nonlocal asked_s, asked
            asked_s = self.now
            answer = await self._ask_coordinator(
                ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, request, GROUP_KEY
            )
            asked = self._coordinators.get((GROUP_KEY, self.group), "")
            return answer

        answer = await self._until_answered(send, _error_of_found)
        found = answer.groups[0].topics[0].partitions[0].committed_offset
        self.events.add(f"finds offset {found} at {asked}")
        known = self.promises.partitions.get((OFFSETS, 0))
        if known is None or not asked or known.leader != node_of(asked):
            self.promises.excused("former-coordinator")
            return
        self.events.count("transactional offsets found")
        self.history.offset_found(self._offset_key, found, asked_s)


def _error_of_added(answer: Any) -> int:
    codes = [
        one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    codes = [code for code in codes if code != ErrorCode.OPERATION_NOT_ATTEMPTED] or codes
    return max(codes, default=0)


def _error_of_offset(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _error_of_found(answer: Any) -> int:
    group = answer.groups[0]
    return int(group.error_code or group.topics[0].partitions[0].error_code)
