"""Transactions in every state, written by clients to a broker, and finished by the same and by other clients
after the data has moved to another one at the same address.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_peer import OFFSETS_TOPIC, read_all

from tidemill.client import Admin
from tidemill.client import Producer as ClientProducer
from tidemill.client.admin_types import TransactionDescription
from tidemill.client.errors import ClientError
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from kafka import KafkaProducer

TOPIC = "states"
STUCK = "stuck"
"""The topic whose markers are missing in prepared transactions."""
PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
TIMEOUT_S = 60
TIMEOUT_MS = 600_000
SHORT_TIMEOUT_MS = 2_000

COMMITTED = "CompleteCommit"
ABORTED = "CompleteAbort"
BEFORE = {
    "empty": "Empty",
    "committed": COMMITTED,
    "aborted": ABORTED,
    "fenced": "Empty",
    "to commit": "Ongoing",
    "to abort": "Ongoing",
    "to commit by kafka-python": "Ongoing",
    "to commit by tidemill": "Ongoing",
    "offsets to commit": "Ongoing",
    "offsets to abort": "Ongoing",
    "offsets only": "Ongoing",
    "abandoned": "Ongoing",
    "timed out": "Ongoing",
    "prepared commit": "PrepareCommit",
    "prepared abort": "PrepareAbort",
}
"""The state of each transactional id when the broker stops. All have written their name as a value."""
PREPARED = {"prepared commit", "prepared abort"}
AFTER = {
    "to commit": COMMITTED,
    "to abort": ABORTED,
    "to commit by kafka-python": COMMITTED,
    "to commit by tidemill": COMMITTED,
    "offsets to commit": COMMITTED,
    "offsets to abort": ABORTED,
    "offsets only": COMMITTED,
    "timed out": ABORTED,
    "prepared commit": COMMITTED,
    "prepared abort": ABORTED,
}
"""The state of those whose transaction has ended, before new ones begin."""
GROUPS = {"offsets to commit": 3, "offsets to abort": 1, "offsets only": 3}
"""The offset of each group in the end. It is 1 before the transaction, which commits 3."""


def until(description: str, is_done: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < deadline, f"after {timeout_s} s: {description}"
        time.sleep(0.1)


def producer_of(bootstrap: str, name: str, timeout_ms: int = TIMEOUT_MS) -> Producer:
    """Returns a producer with a new epoch."""
    config = {
        "bootstrap.servers": bootstrap,
        "transactional.id": name,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": min(timeout_ms, TIMEOUT_MS // 2),
        "linger.ms": 0,
        "log_level": 0,  # The brokers stop and start again.
    }
    producer = Producer(config)
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, value: str, *topics: str) -> None:
    """Writes a value to both partitions of ``states``, and to partition 0 of ``topics``."""
    for partition in PARTITIONS:
        producer.produce(partition.topic, value.encode(), partition=partition.partition)
    for topic in topics:
        producer.produce(topic, value.encode(), partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def begin(bootstrap: str, name: str, *topics: str, timeout_ms: int = TIMEOUT_MS) -> Producer:
    """Begins a transaction, and writes its name."""
    producer = producer_of(bootstrap, name, timeout_ms)
    producer.begin_transaction()
    write(producer, name, *topics)
    return producer


def create_topic(bootstrap: str, topic: NewTopic) -> None:
    """Creates a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([topic])[topic.topic].result(TIMEOUT_S)


def write_expired(bootstrap: str) -> None:
    """Uses a transactional id, and waits until the broker removes it."""
    create_topic(bootstrap, NewTopic(TOPIC, len(PARTITIONS), 1))
    producer = producer_of(bootstrap, "expired")
    producer.begin_transaction()
    write(producer, "expired")
    producer.commit_transaction(TIMEOUT_S)
    with Admin(bootstrap) as admin:
        until("the id does not expire", lambda: "expired" not in listed(admin))


def listed(admin: Admin) -> set[str]:
    """Returns all transactional ids."""
    return {one.transactional_id for one in admin.list_transactions()}


@dataclass
class Live:
    """The producers that continue after the move."""

    confluent: dict[str, Producer]
    python: KafkaProducer
    tidemill: ClientProducer

    def close(self) -> None:
        """Closes the producers, and lets the sockets go that kafka-python left open when brokers stopped."""
        self.python.close(timeout=5)
        self.tidemill.close(5)
        del self.python
        gc.collect()


def write_states(bootstrap: str) -> Live:
    """Writes transactions in all states, except those that are prepared."""
    from kafka import KafkaProducer

    live: dict[str, Producer] = {}
    live["empty"] = producer_of(bootstrap, "empty")
    for name, end in (("committed", Producer.commit_transaction), ("aborted", Producer.abort_transaction)):
        live[name] = begin(bootstrap, name)
        end(live[name], TIMEOUT_S)
    live["fenced"] = producer_of(bootstrap, "fenced")
    producer_of(bootstrap, "fenced")
    for name in ("to commit", "to abort", "offsets to commit", "offsets to abort"):
        live[name] = begin(bootstrap, name)
    live["offsets only"] = producer_of(bootstrap, "offsets only")
    live["offsets only"].begin_transaction()
    for group in GROUPS:
        send_offset(bootstrap, live[group], group)
    begin(bootstrap, "abandoned")
    begin(bootstrap, "timed out", timeout_ms=SHORT_TIMEOUT_MS)
    name = "to commit by kafka-python"
    python = KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TIMEOUT_MS
    )
    python.init_transactions()
    python.begin_transaction()
    for partition in PARTITIONS:
        python.send(partition.topic, name.encode(), partition=partition.partition).get(TIMEOUT_S)
    name = "to commit by tidemill"
    config = {"transactional.id": name, "transaction.timeout.ms": TIMEOUT_MS}
    tidemill = ClientProducer(bootstrap, config)
    tidemill.begin()
    for partition in PARTITIONS:
        tidemill.send(partition.topic, name.encode(), partition=partition.partition)
    tidemill.flush(TIMEOUT_S)
    return Live(live, python, tidemill)


def send_offset(bootstrap: str, producer: Producer, group: str) -> None:
    """Commits offset 1 of a group, and then offset 3 in the open transaction."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[ConfluentPartition(TOPIC, 0, 1)], asynchronous=False)
    moved = [ConfluentPartition(TOPIC, 0, 3)]
    producer.send_offsets_to_transaction(moved, consumer.consumer_group_metadata(), TIMEOUT_S)
    consumer.close()


def wait_prepared(bootstrap: str) -> None:
    """Waits until only the marker in the partition without enough replicas is missing."""
    with Admin(bootstrap) as admin:

        def is_done() -> bool:
            ids = {admin.describe_transaction(f"prepared {end}").producer_id for end in ("commit", "abort")}
            return ids.isdisjoint(one.producer_id for one in admin.open_transactions(PARTITIONS))

        until("the markers in the other partitions are missing", is_done)
        (left, also_left) = admin.open_transactions([TopicPartition(STUCK, 0)])
        assert left.producer_id != also_left.producer_id


def describe(bootstrap: str) -> dict[str, TransactionDescription]:
    """Returns the description of each transactional id, without its coordinator."""
    with Admin(bootstrap) as admin:
        until("some coordinators load their ids", lambda: is_loaded(admin))
        found = {name: admin.describe_transaction(name, TIMEOUT_S) for name in sorted(listed(admin))}
    return {
        name: one._replace(coordinator=-1, partitions=sorted(one.partitions)) for name, one in found.items()
    }


def is_loaded(admin: Admin) -> bool:
    """Whether every coordinator has loaded its transactional ids."""
    try:
        return BEFORE.keys() - PREPARED <= listed(admin)
    except ClientError:
        return False


def committed_offset(bootstrap: str, group: str) -> int:
    """Returns the committed offset of a group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = ConsumerGroupTopicPartitions(group, [ConfluentPartition(TOPIC, 0)])
    told = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    return int(told.topic_partitions[0].offset)


def values(bootstrap: str, topic: str = TOPIC, isolation: str = "read_committed") -> dict[int, list[str]]:
    """Returns the values in each partition that readers of committed records get."""
    count = len(PARTITIONS) if topic == TOPIC else 1
    records, _ = read_all(bootstrap, [(topic, number) for number in range(count)], isolation)
    return {number: [record[3].decode() for record in records[topic, number]] for number in range(count)}


def check_continued(bootstrap: str, before: dict[str, TransactionDescription]) -> None:
    """Checks that the coordinator has loaded what the former broker had stored."""
    found = describe(bootstrap)
    assert found.keys() == before.keys()
    for name in BEFORE.keys() - PREPARED - {"timed out"}:
        assert found[name] == before[name], (found[name], before[name])
    with Admin(bootstrap) as admin:
        ids = {before[name].producer_id for name in ("to commit", "offsets to commit", "to abort")}
        opened = {one.producer_id for one in admin.open_transactions(PARTITIONS)}
    assert opened >= ids
    assert {group: committed_offset(bootstrap, group) for group in GROUPS} == dict.fromkeys(GROUPS, 1)


def finish(bootstrap: str, live: Live) -> None:
    """Ends all transactions, and checks their states, their records and their offsets."""
    confluent = live.confluent
    for name in ("to commit", "offsets to commit", "offsets only"):
        confluent[name].commit_transaction(TIMEOUT_S)
    for name in ("to abort", "offsets to abort"):
        confluent[name].abort_transaction(TIMEOUT_S)
    live.python.commit_transaction()
    live.tidemill.commit(TIMEOUT_S)
    with Admin(bootstrap) as admin:
        for name, state in AFTER.items():
            until(
                f"{name} is {admin.describe_transaction(name, TIMEOUT_S).state}",
                lambda name=name, state=state: admin.describe_transaction(name, TIMEOUT_S).state == state,
            )
    producer_of(bootstrap, "abandoned")
    for name in ("empty", "committed", "aborted", "to commit", "to abort", "offsets only"):
        confluent[name].begin_transaction()
        write(confluent[name], f"{name}, again")
        confluent[name].commit_transaction(TIMEOUT_S)
    with live.tidemill.transaction(TIMEOUT_S):
        for partition in PARTITIONS:
            live.tidemill.send(partition.topic, b"tidemill, again", partition=partition.partition)
    with pytest.raises(KafkaException):
        zombie(confluent["fenced"])
    with Admin(bootstrap) as admin:
        until("transactions are open", lambda: not admin.open_transactions(open_in(admin)))
        assert admin.list_transactions(states=["Ongoing", "PrepareCommit", "PrepareAbort"]) == []
    visible = {name for name, state in (BEFORE | AFTER).items() if state == COMMITTED}
    visible |= {f"{name}, again" for name in ("empty", "committed", "aborted", "to commit", "to abort")}
    visible |= {"offsets only, again", "tidemill, again", "expired"}
    visible.remove("offsets only")
    for number, found in values(bootstrap).items():
        assert sorted(found) == sorted(visible), number
    assert values(bootstrap, STUCK) == {0: ["prepared commit"]}
    assert {group: committed_offset(bootstrap, group) for group in GROUPS} == GROUPS


def zombie(producer: Producer) -> None:
    """Runs a transaction of a producer that another one has fenced."""
    producer.begin_transaction()
    write(producer, "zombie")
    producer.commit_transaction(TIMEOUT_S)


def open_in(admin: Admin) -> Iterator[TopicPartition]:
    """Returns the partitions that may have open transactions."""
    offsets = admin.describe_topic(OFFSETS_TOPIC).partitions
    return iter(
        [*PARTITIONS, TopicPartition(STUCK, 0)]
        + [TopicPartition(OFFSETS_TOPIC, one.partition) for one in offsets]
    )
