"""Consumer groups of real clients: joins, leaves, failures, static members, mixed clients, commits."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest
from client_peers import KCAT, KCAT_MISSING
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from group_members import (
    KAFKA_PYTHON_POLL_MS,
    MEMBERS,
    ConfluentMember,
    Member,
    wait_for_shares,
    wait_until,
)

PARTITIONS = 6
MESSAGES = 120

NewTopic = Callable[..., str]
NewName = Callable[[str], str]

EVERY_STRATEGY = [
    pytest.param(client, strategy, id=f"{client}-{strategy}")
    for client, kind in MEMBERS.items()
    for strategy in kind.strategies  # type: ignore[attr-defined]
]


def write(bootstrap: str, topic: str, count: int = MESSAGES) -> None:
    """Writes messages to all partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, value=b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def committed(admin: AdminClient, group: str, topic: str) -> int:
    """Returns the sum of all committed offsets of a topic."""
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result(20)
    return sum(one.offset for one in found.topic_partitions if one.topic == topic)


def all_read(*members: Member) -> Counter[tuple[str, int, int]]:
    return Counter(one for member in members for one in member.read)


def wait_until_read(count: int, *members: Member) -> None:
    wait_until(lambda: len(all_read(*members)) == count, f"{count} messages read", *members)


@pytest.mark.parametrize(("client", "strategy"), EVERY_STRATEGY)
def test_partitions_are_rebalanced_when_members_join_and_leave(
    bootstrap: str, admin: AdminClient, new_topic: NewTopic, new_name: NewName, client: str, strategy: str
) -> None:
    topic, group = new_topic(PARTITIONS), new_name("group")
    with contextlib.ExitStack() as stack:

        def join() -> Member:
            return stack.enter_context(MEMBERS[client](bootstrap, group, [topic], strategy))

        first = join()
        wait_for_shares([first], topic, PARTITIONS)
        second, third = join(), join()
        wait_for_shares([first, second, third], topic, PARTITIONS)
        write(bootstrap, topic)
        wait_until_read(MESSAGES, first, second, third)
        first.stop()
        wait_for_shares([second, third], topic, PARTITIONS)
        write(bootstrap, topic)
        wait_until_read(2 * MESSAGES, first, second, third)
        second.stop()
        # No member commits while the others rejoin, and librdkafka does not retry the commit at close.
        wait_for_shares([third], topic, PARTITIONS)
        third.stop()
        assert set(all_read(first, second, third).values()) == {1}
        assert committed(admin, group, topic) == 2 * MESSAGES
    state = admin.describe_consumer_groups([group])[group].result(20)
    assert (state.state.name, state.members) == ("EMPTY", [])


def test_members_of_different_clients_share_a_group(
    bootstrap: str, admin: AdminClient, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(PARTITIONS), new_name("group")
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(kind(bootstrap, group, [topic], "range")) for kind in MEMBERS.values()]
        wait_for_shares(members, topic, PARTITIONS)
        described = admin.describe_consumer_groups([group])[group].result(20)
        assert described.partition_assignor == "range"
        assert sorted(len(one.assignment.topic_partitions) for one in described.members) == [2, 2, 2]
        write(bootstrap, topic)
        wait_until_read(MESSAGES, *members)
        members.pop(0).stop()
        wait_for_shares(members, topic, PARTITIONS)


@pytest.mark.parametrize("client", MEMBERS)
def test_a_static_member_returns_to_its_partitions(
    bootstrap: str, admin: AdminClient, new_topic: NewTopic, new_name: NewName, client: str
) -> None:
    topic, group = new_topic(PARTITIONS), new_name("group")
    kind = MEMBERS[client]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(kind(bootstrap, group, [topic], "range", "one"))
        second = stack.enter_context(kind(bootstrap, group, [topic], "range", "two"))
        wait_for_shares([first, second], topic, PARTITIONS)
        had, others = set(first.assigned), set(second.assigned)
        members = admin.describe_consumer_groups([group])[group].result(20).members
        assert sorted(one.group_instance_id for one in members) == ["one", "two"]
        first.stop()
        again = stack.enter_context(kind(bootstrap, group, [topic], "range", "one"))
        wait_until(lambda: again.assigned == had, "the old partitions back", again, second)
        assert second.assigned == others


def test_a_second_member_of_the_same_static_name_fences_the_first(
    bootstrap: str, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(PARTITIONS), new_name("group")
    with ConfluentMember(bootstrap, group, [topic], "range", "one") as first:
        wait_for_shares([first], topic, PARTITIONS)
        with ConfluentMember(bootstrap, group, [topic], "range", "one") as second:
            wait_until(lambda: first.failure is not None, "fenced", second)
            assert "FENCED_INSTANCE_ID" in str(first.failure) or "fenced" in str(first.failure)
            wait_for_shares([second], topic, PARTITIONS)


@pytest.mark.skipif(KCAT is None, reason=KCAT_MISSING)
def test_a_failed_member_is_removed_after_its_session_timeout(
    bootstrap: str, admin: AdminClient, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(PARTITIONS), new_name("group")
    options = ["-X", "session.timeout.ms=1500", "-X", "heartbeat.interval.ms=300"]
    assert KCAT is not None
    with subprocess.Popen(
        [KCAT, "-b", bootstrap, *options, "-q", "-G", group, topic],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as dying:
        try:
            with ConfluentMember(bootstrap, group, [topic], "range") as survivor:
                wait_until(
                    lambda: len(survivor.assigned) == PARTITIONS // 2, "half of the partitions", survivor
                )
                dying.send_signal(signal.SIGKILL)
                wait_for_shares([survivor], topic, PARTITIONS)
        finally:
            dying.kill()


def test_a_group_follows_a_topic_that_grows(
    bootstrap: str, admin: AdminClient, new_topic: NewTopic, new_name: NewName
) -> None:
    from confluent_kafka.admin import NewPartitions

    topic, group = new_topic(2), new_name("group")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 300,
            "heartbeat.interval.ms": 200,
        }
    )
    consumer.subscribe([topic])
    try:
        wait_until(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2, "2 partitions")
        admin.create_partitions([NewPartitions(topic, 5)])[topic].result(20)
        wait_until(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 5, "5 partitions")
    finally:
        consumer.close()


def test_a_late_commit_is_refused(bootstrap: str, new_topic: NewTopic, new_name: NewName) -> None:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition
    from kafka.errors import CommitFailedError
    from kafka.structs import OffsetAndMetadata

    topic, group = new_topic(PARTITIONS), new_name("group")
    late = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        session_timeout_ms=1500,
        heartbeat_interval_ms=500,
        max_poll_interval_ms=1600,
    )
    try:
        wait_until(
            lambda: not late.poll(timeout_ms=KAFKA_PYTHON_POLL_MS) and bool(late.assignment()), "assigned"
        )
        with ConfluentMember(bootstrap, group, [topic], "range") as other:
            # The member does not poll: its heartbeats end, and the group removes it.
            wait_for_shares([other], topic, PARTITIONS)
            with pytest.raises(CommitFailedError):
                late.commit({Partition(topic, 0): OffsetAndMetadata(1, "", -1)})
    finally:
        late.close(autocommit=False)


def test_confluent_kafka_commits_are_read_by_a_later_consumer(
    bootstrap: str, admin: AdminClient, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(2), new_name("group")
    write_to = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        write_to.produce(topic, b"%d" % number, partition=number % 2)
    assert write_to.flush(20) == 0
    told: list[int] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "on_commit": lambda error, partitions: told.extend(one.offset for one in partitions),
        }
    )
    consumer.subscribe([topic])
    messages = []
    while len(messages) < 20:
        messages += consumer.consume(20, 0.5)
    last = max((one for one in messages if one.partition() == 0), key=lambda one: one.offset())
    done = consumer.commit(message=last, asynchronous=False)
    assert [(one.partition, one.offset) for one in done] == [(0, 10)]
    with_note = TopicPartition(topic, 1, 4, metadata="half way")
    consumer.commit(offsets=[with_note], asynchronous=True)
    wait_until(lambda: consumer.poll(0.05) is None and 4 in told, "told of the commit")
    found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=20)
    assert [(one.offset, one.metadata or "") for one in found] == [(10, ""), (4, "half way")]
    consumer.close()
    assert committed(admin, group, topic) == 14
