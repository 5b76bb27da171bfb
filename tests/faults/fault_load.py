"""Clients that write and read numbered messages, and record their operations and observations."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from fault_checker import Clients
from fault_history import History, Places
from fault_stage import Stage, States

from tidemill.client import Admin, ClientError
from tidemill.client import Consumer as OwnConsumer
from tidemill.client import Producer as OwnProducer
from tidemill.model.types import TopicPartition

PATIENCE_MS = 120_000
BURSTS = (1, 4, 2, 9)
"""How many messages a writer gives to each partition at a time: batches of several sizes come of them."""
UNDERWAY_MAX = 40
"""Messages of one writer and partition that wait for their acknowledgement."""
QUIET: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 1000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "error_cb": lambda error: None,
}
RETRIED_S = 10
DELETES_S = 2.0
DELETED_SHARE = 16
"""At most this part of a partition is deleted at a time."""
WATCHES_S = 0.2
FIRST_WATCHES_S = 0.02


class Client(threading.Thread):
    """A thread that works until it is stopped."""

    def __init__(self, name: str, history: History, places: Places) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.places = places
        self.topic = places.topic
        self.partitions = places.partitions
        self.ending = threading.Event()
        self.failure = ""

    def run(self) -> None:
        """Records the exception that ends the thread early."""
        try:
            self.work()
        except Exception as problem:  # noqa: BLE001 - whatever it is, the run tells of it
            self.failure = f"{self.name} ended: {type(problem).__name__}: {problem}"

    def work(self) -> None:
        """The work of the client."""
        raise NotImplementedError


class LogFile(logging.Handler):
    """A log file, which is closed after each line."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Appends one line."""
        with self.path.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {record.getMessage()}\n")


class Writer(Client):
    """Writes to all partitions in turn, several messages at a time; messages are numbered by partition."""

    idempotent = True
    acks = -1

    def __init__(self, name: str, history: History, places: Places, bootstrap: str, pause_s: float) -> None:
        super().__init__(name, history, places)
        self.pause_s = pause_s
        self.written = [0] * self.partitions
        self.done = [0] * self.partitions
        self.open(bootstrap)

    def open(self, bootstrap: str) -> None:
        """Creates the producer."""
        raise NotImplementedError

    def send(self, place: int, number: int, value: bytes) -> None:
        """Sends one message."""
        raise NotImplementedError

    def poll_for(self, seconds: float) -> None:
        """Waits for that time, and handles acknowledgements."""
        time.sleep(seconds)

    def work(self) -> None:
        """Writes, and waits for the messages in flight at the end."""
        for size in itertools.cycle(BURSTS):
            if self.ending.is_set():
                break
            for place in range(self.partitions):
                if self.written[place] - self.done[place] < UNDERWAY_MAX:
                    for _ in range(size):
                        self._write(place)
            self.poll_for(self.pause_s * size)
        deadline = time.monotonic() + PATIENCE_MS / 1000 + 10
        while self.done != self.written and time.monotonic() < deadline:
            self.poll_for(0.05)
        if self.done != self.written:
            self.failure = f"{self.name} never heard of {sum(self.written) - sum(self.done)} messages"

    def _write(self, place: int) -> None:
        number = self.written[place]
        self.written[place] += 1
        self.history.add("send", by=self.name, p=self.places.first + place, n=number)
        self.send(place, number, f"{self.name} {number}".encode())

    def acknowledged(self, place: int, number: int, offset: int, error: str, sure: bool = False) -> None:
        """Records an acknowledgement or a failure."""
        self.done[place] += 1
        if error:
            self.history.add(
                "fail", by=self.name, p=self.places.first + place, n=number, error=error, sure=sure
            )
        else:
            self.history.add(
                "ack", by=self.name, p=self.places.first + place, n=number, o=offset, acks=self.acks
            )


class LibrdkafkaWriter(Writer):
    """confluent-kafka; ``config`` has the settings of the producer."""

    def __init__(self, *arguments: Any, config: dict[str, Any]) -> None:
        self._config = config
        self.idempotent = bool(config.get("enable.idempotence"))
        self.acks = config.get("acks", -1)
        super().__init__(*arguments)

    def open(self, bootstrap: str) -> None:
        """Creates the producer."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 2,
                "request.timeout.ms": RETRIED_S * 1000,
                "message.timeout.ms": PATIENCE_MS,
                **QUIET,
                "log_level": 7,
                "debug": "eos",
                **self._config,
            },
            logger=self._client_logger(),
        )

    def _client_logger(self) -> logging.Logger:
        """Writes the client's messages about sequences and epochs to a file beside the history."""
        logger = logging.Logger(self.name)
        logger.propagate = False
        logger.addHandler(LogFile(self.history.path.with_name(f"{self.name}.log")))
        return logger

    def send(self, place: int, number: int, value: bytes) -> None:
        """Sends one message."""

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offset = message.offset()  # None if the broker already had the message.
                self.acknowledged(place, number, -1 if offset is None else offset, "")
            else:
                self.acknowledged(place, number, -1, str(error))

        self._producer.produce(self.topic, value, partition=place, on_delivery=delivered)

    def poll_for(self, seconds: float) -> None:
        """Serves callbacks."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._producer.poll(left)


class OwnWriter(Writer):
    """Tidemill's producer with its defaults: idempotent."""

    def open(self, bootstrap: str) -> None:
        """Creates the producer."""
        self._producer = OwnProducer(
            bootstrap,
            {
                "linger.ms": 2,
                "request.timeout.ms": RETRIED_S * 1000,
                "delivery.timeout.ms": PATIENCE_MS,
                "max.block.ms": PATIENCE_MS,
                "retry.backoff.ms": 20,
            },
        )

    def send(self, place: int, number: int, value: bytes) -> None:
        """Sends one message."""

        def delivered(metadata: Any, error: Any) -> None:
            offset = metadata.offset if metadata is not None else -1
            self.acknowledged(place, number, offset, "" if error is None else str(error))

        self._producer.send(self.topic, value, partition=place, on_delivery=delivered)

    def work(self) -> None:
        """Writes, and closes."""
        super().work()
        self._producer.close(5)


class Polling(Client):
    """Reads, and records the received messages and positions. ``consumer`` creates the consumer."""

    def __init__(self, name: str, history: History, places: Places, bootstrap: str) -> None:
        super().__init__(name, history, places)
        self.position = [0] * self.partitions
        self._consumer = self.consumer(bootstrap)

    def consumer(self, bootstrap: str) -> Any:
        """Creates a consumer of confluent-kafka or Tidemill."""
        raise NotImplementedError

    def note(self, records: list[list[Any]]) -> None:
        """Records the result of a poll: partition, offset and value of each message."""
        if records:
            first = self.places.first
            acknowledged = [[first + place, offset, value] for place, offset, value in records]
            self.history.add("poll", by=self.name, m=acknowledged)
        for place, offset, _ in records:
            self.position[place] = max(self.position[place], offset + 1)


class Reader(Polling):
    """A thread of confluent-kafka that reads all partitions from their starts."""

    out_of_range = "error"

    def consumer(self, bootstrap: str) -> Consumer:
        """Creates a consumer without a group."""
        return Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{self.topic}-alone",
                "enable.auto.commit": False,
                "auto.offset.reset": self.out_of_range,
                "fetch.wait.max.ms": 100,
                **QUIET,
            }
        )

    def work(self) -> None:
        """Polls."""
        self._consumer.assign([ClientPartition(self.topic, place, 0) for place in range(self.partitions)])
        while not self.ending.is_set():
            messages = self._consumer.consume(200, 0.1)
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    place = self.places.first + message.partition()
                    self.history.add("reset", by=self.name, p=place, error=str(error))
            self.note(records_of(messages))
        self._consumer.close()


class PatientReader(Reader):
    """A reader that continues at the log start offset when its position was deleted."""

    out_of_range = "earliest"


class Member(Polling):
    """A member of the group, which commits the recorded messages. ``committed`` has the offset of each
    partition.
    """

    def __init__(self, name: str, history: History, places: Places, bootstrap: str) -> None:
        super().__init__(name, history, places, bootstrap)
        self.committed = [0] * self.partitions

    def consumer(self, bootstrap: str) -> Consumer:
        """Creates a consumer in the group."""
        return Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{self.topic}-group",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                **QUIET,
            }
        )

    def work(self) -> None:
        """Polls and commits."""
        self._consumer.subscribe([self.topic], on_assign=self._assigned)
        while not self.ending.is_set():
            records = records_of(self._consumer.consume(200, 0.2))
            self.note(records)
            if records:
                self._commit(records)
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        numbers = [self.places.first + one.partition for one in partitions]
        self.history.add("place", by=self.name, p=numbers)

    def _commit(self, records: list[list[Any]]) -> None:
        ends = {place: offset + 1 for place, offset, _ in records}
        wanted = [ClientPartition(self.topic, place, offset) for place, offset in ends.items()]
        try:
            done = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # Another member has some of the partitions by now, or its broker has failed.
        for one in done or []:
            if one.error is None:
                self.committed[one.partition] = max(self.committed[one.partition], one.offset)
                place = self.places.first + one.partition
                self.history.add("commit", by=self.name, p=place, o=one.offset)


def records_of(messages: list[Message]) -> list[list[Any]]:
    """Returns partition, offset and value of each message without an error."""
    return [
        [message.partition(), message.offset(), (message.value() or b"").decode()]
        for message in messages
        if message.error() is None
    ]


class OwnReader(Polling):
    """Tidemill's consumer, from the starts of all partitions."""

    def consumer(self, bootstrap: str) -> OwnConsumer:
        """Creates a consumer without a group."""
        return OwnConsumer(
            bootstrap,
            {"auto.offset.reset": "none", "fetch.max.wait.ms": 100, "reconnect.backoff.max.ms": 200},
        )

    def work(self) -> None:
        """Polls."""
        self._consumer.assign([(self.topic, place) for place in range(self.partitions)])
        for place in range(self.partitions):
            self._consumer.seek(TopicPartition(self.topic, place), 0)
        while not self.ending.is_set():
            try:
                found = self._consumer.poll(0.2, max_records=200)
            except ClientError as problem:
                if "OUT_OF_RANGE" in str(problem) or "out of range" in str(problem):
                    self.history.add("reset", by=self.name, p=-1, error=str(problem))
                    raise
                continue
            self.note([[one.partition, one.offset, (one.value or b"").decode()] for one in found])
        self._consumer.close()


class Deleter(Client):
    """Deletes records that all clients have read, up to any offset: mostly one inside a batch."""

    def __init__(
        self, name: str, history: History, places: Places, bootstrap: str, read_to: Callable[[int], int]
    ) -> None:
        """``read_to`` returns the offset up to which all clients have read a partition."""
        super().__init__(name, history, places)
        self._read_to = read_to
        self._random = Random(name)
        self._begins = [0] * self.partitions
        self._admin = Admin(bootstrap, {"default.api.timeout.ms": 5000, "request.timeout.ms": 3000})

    def work(self) -> None:
        """Deletes a part of the log."""
        while not self.ending.wait(DELETES_S):
            place = self._random.randrange(self.partitions)
            begin, end = self._begins[place], self._read_to(place)
            if end <= begin:
                continue
            # Most records stay: only readers check the deleted ones.
            offset = self._random.randint(begin + 1, begin + 1 + (end - begin - 1) // DELETED_SHARE)
            partition = TopicPartition(self.topic, place)
            self.history.add("deleting", p=self.places.first + place, o=offset)
            try:
                found = self._admin.delete_records({partition: offset})
            except ClientError as problem:
                self.history.add("undecided", p=self.places.first + place, o=offset, error=str(problem))
                continue
            self._begins[place] = found[partition]
            self.history.add("deleted", p=self.places.first + place, o=found[partition])
        self._admin.close()


class Watcher(Client):
    """Records each partition state in the store that it observes."""

    def __init__(self, history: History, places: Places, place: Stage) -> None:
        super().__init__(f"watcher-{places.topic}", history, places)
        self._stage = place
        self.has_looked = threading.Event()
        """Whether it has noted a state, with which the later ones are compared."""

    def work(self) -> None:
        """Reads the states repeatedly, also while the store does not respond."""
        known: States = {}
        since = self.history.now
        while not self.ending.wait(WATCHES_S if known else FIRST_WATCHES_S):
            now = self.history.now
            found = self._stage.states([self.topic])
            for key, state in found.items():
                if known.get(key) != state:
                    self.history.add(
                        "state",
                        p=self.places.first + key.partition,
                        leader=state.leader,
                        epoch=state.leader_epoch,
                        isr=state.isr,
                        elr=state.elr,
                        since=round(since, 4),
                    )
            if found:
                known, since = found, now
                self.has_looked.set()


class Load:
    """All clients of a run.

    ``synced`` is a topic that never loses committed records; ``loose`` may lose unsynced records when all its
    replicas lose their power.
    """

    def __init__(
        self,
        history: History,
        place: Stage,
        synced: Places,
        loose: Places | None = None,
        pause_s: float = 0.05,
    ) -> None:
        self.history = history
        self.synced = synced
        bootstrap = place.bootstrap
        common = (history, synced, bootstrap)
        self.writers: list[Writer] = [
            LibrdkafkaWriter("idempotent", *common, pause_s, config={"enable.idempotence": True}),
            LibrdkafkaWriter("plain", *common, pause_s, config={"acks": -1, "max.in.flight": 1}),
            LibrdkafkaWriter("one", *common, pause_s, config={"acks": 1}),
            OwnWriter("own", *common, pause_s),
        ]
        self.readers: list[Polling] = [Reader("reader", *common), OwnReader("own-reader", *common)]
        self.members = [Member("member-1", *common), Member("member-2", *common)]
        self.others: list[Client] = [
            Deleter("deleter", *common, self._read_to),
            Watcher(history, synced, place),
        ]
        if loose is not None:
            common = (history, loose, bootstrap)
            self.writers += [
                LibrdkafkaWriter("loose-all", *common, pause_s, config={"acks": -1}),
                LibrdkafkaWriter("loose-one", *common, pause_s, config={"acks": 1}),
            ]
            reader = PatientReader("loose-reader", *common)
            self.others += [
                reader,
                Deleter("loose-deleter", *common, lambda place: reader.position[place]),
                Watcher(history, loose, place),
            ]

    def committed(self, place: int) -> int:
        """Returns the committed offset of the group in a partition."""
        return max(member.committed[place] for member in self.members)

    def _read_to(self, place: int) -> int:
        """Returns the offset that all readers of a partition have reached, and the group has committed."""
        return min(self.committed(place), *(reader.position[place] for reader in self.readers))

    @property
    def clients(self) -> list[Client]:
        """Returns all clients."""
        return [*self.writers, *self.readers, *self.members, *self.others]

    @property
    def known(self) -> Clients:
        """Returns the facts for the checker."""
        return Clients(
            idempotent=frozenset(one.name for one in self.writers if one.idempotent),
            to_end=frozenset(one.name for one in self.readers),
            group=frozenset(one.name for one in self.members),
            patient=frozenset(one.name for one in self.others if isinstance(one, PatientReader)),
        )

    @property
    def epoch_changes(self) -> int:
        """Returns how often librdkafka has bumped its epoch: each bump may duplicate messages."""
        notes = [self.history.path.with_name(f"{one.name}.log") for one in self.writers]
        return sum(path.read_text().count("bumped epoch") for path in notes if path.exists())

    def start(self) -> None:
        """Starts all clients: the watcher first, otherwise it would not recognise the first leader change."""
        watchers = [one for one in self.others if isinstance(one, Watcher)]
        for watcher in watchers:
            watcher.start()
        for watcher in watchers:
            if not watcher.has_looked.wait(PATIENCE_MS / 1000):
                raise RuntimeError(f"no state of {watcher.topic} is in the store")
        for one in self.clients:
            if one not in watchers:
                one.start()

    def failures(self) -> list[str]:
        """Returns the errors of clients that ended early, or received nothing."""
        return [one.failure for one in self.clients if one.failure]

    def end_writers(self) -> None:
        """Stops the writers after the acknowledgement of all their messages; stops deletions."""
        ending = [*self.writers, *(one for one in self.others if isinstance(one, Deleter))]
        for one in ending:
            one.ending.set()
        for one in ending:
            one.join(PATIENCE_MS / 1000 + 20)

    def end_readers(self, held: list[range], patience_s: float = 40.0) -> None:
        """Stops the readers once they and the group have read all messages, or after the timeout."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            group = [max(found) for found in zip(*(one.position for one in self.members), strict=True)]
            positions = [group, *(one.position for one in self.readers)]
            if all(place >= one.stop for found in positions for place, one in zip(found, held, strict=True)):
                break
            time.sleep(0.05)
        readers = (*self.readers, *self.members, *self.others)
        for one in readers:
            one.ending.set()
        for one in readers:
            one.join(20)


def read_all(bootstrap: str, places: Places, history: History) -> list[range]:
    """Records the content of all partitions; returns their offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "all",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    parts = [TopicPartition(places.topic, place) for place in range(places.partitions)]
    with Admin(bootstrap) as admin:
        found = admin.list_offsets(dict.fromkeys(parts, "earliest"))
    begins = [found[part].offset for part in parts]
    consumer.assign([ClientPartition(*part, begin) for part, begin in zip(parts, begins, strict=True)])
    held: dict[int, list[list[Any]]] = {place: [] for place in range(places.partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < places.partitions and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                held[message.partition()].append([message.offset(), (message.value() or b"").decode()])
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    if len(ended) < places.partitions:
        raise RuntimeError(f"only partitions {sorted(ended)} could be read to their end")
    for place, records in held.items():
        history.add("final", p=places.first + place, s=begins[place], m=records)
    return [
        range(begins[place], max((offset for offset, _ in records), default=begins[place] - 1) + 1)
        for place, records in held.items()
    ]
