"""Groups with Tidemill members, with librdkafka members, and with both."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka
import pytest

from tidemill.client import Admin, Consumer, Producer, TopicPartition
from tidemill.client.consumer_coordinator import LOST, STABLE
from tidemill.client.errors import BrokerUnreachable, ClientError, CommitFailed
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey

QUICK = {"heartbeat.interval.ms": 100, "session.timeout.ms": 6000, "auto.offset.reset": "earliest"}


@pytest.fixture
def topic(broker_address: str, new_topic: Callable[..., str]) -> str:
    """A topic with one partition and ten messages."""
    name = new_topic(1)
    fill(broker_address, name, 10, 1)
    return name


def until(condition: Callable[[], bool], *work: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        for step in work:
            step()


def fill(address: str, topic: str, count: int = 60, partitions: int = 6) -> None:
    with Producer(address) as producer:
        producer.send_batch(
            topic, [b"%d" % i for i in range(count)], partitions=[i % partitions for i in range(count)]
        ).result(10)


class LibrdkafkaMember:
    """A member of librdkafka that a separate thread polls, as programs do."""

    def __init__(self, address: str, group: str, topic: str, strategy: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6000,
            }
        )
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self.partitions: set[int] = set()
        self.values: list[bytes] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(message.value() or b"")
            self.partitions = {item.partition for item in self._consumer.assignment()}
        self._consumer.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def numbers(consumer: Consumer) -> set[int]:
    return {item.partition for item in consumer.assignment()}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_the_remaining_member_gets_all(
    broker_address: str, new_topic: Callable[..., str], group: str, strategy: str
) -> None:
    topic = new_topic(6)
    settings = {**QUICK, "group.id": group, "partition.assignment.strategy": strategy}
    with Consumer(broker_address, settings) as first:
        first.subscribe([topic])
        until(lambda: len(numbers(first)) == 6, lambda: first.poll(0.05))
        with Consumer(broker_address, settings) as second:
            second.subscribe([topic])
            until(
                lambda: len(numbers(first)) == 3 and len(numbers(second)) == 3,
                lambda: first.poll(0.05),
                lambda: second.poll(0.05),
            )
            assert numbers(first) | numbers(second) == set(range(6))
        until(lambda: len(numbers(first)) == 6, lambda: first.poll(0.05))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_tidemill_member_and_a_librdkafka_member_share_a_group(
    broker_address: str, new_topic: Callable[..., str], group: str, strategy: str, ours_first: bool
) -> None:
    topic = new_topic(6)
    fill(broker_address, topic)
    settings = {**QUICK, "group.id": group, "partition.assignment.strategy": strategy}
    ours = Consumer(broker_address, settings)
    ours.subscribe([topic])
    seen: list[bytes] = []

    def poll() -> None:
        seen.extend(record.value or b"" for record in ours.poll(0.05))

    if ours_first:
        until(lambda: len(numbers(ours)) == 6, poll)
    theirs = LibrdkafkaMember(broker_address, group, topic, strategy)
    try:
        if not ours_first:
            until(lambda: len(theirs.partitions) == 6, lambda: time.sleep(0.05))
        until(lambda: len(numbers(ours)) == 3 and len(theirs.partitions) == 3, poll)
        assert numbers(ours) | theirs.partitions == set(range(6))
        until(lambda: {*seen, *theirs.values} == {b"%d" % i for i in range(60)}, poll)
    finally:
        theirs.close()
    until(lambda: len(numbers(ours)) == 6, poll)
    ours.close()


def test_cooperative_members_keep_reading_unmoved_partitions(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(6)
    settings = {**QUICK, "group.id": group, "partition.assignment.strategy": "cooperative-sticky"}
    events: list[tuple[str, set[int]]] = []

    class Listener:
        def on_assigned(self, partitions: Any) -> None:
            events.append(("assigned", {item.partition for item in partitions}))

        def on_revoked(self, partitions: Any) -> None:
            events.append(("revoked", {item.partition for item in partitions}))

        def on_lost(self, partitions: Any) -> None:
            events.append(("lost", {item.partition for item in partitions}))

    with Consumer(broker_address, settings) as first, Consumer(broker_address, settings) as second:
        first.subscribe([topic], listener=Listener())
        until(lambda: len(numbers(first)) == 6, lambda: first.poll(0.05))
        second.subscribe([topic])
        until(lambda: len(numbers(second)) == 3, lambda: first.poll(0.05), lambda: second.poll(0.05))
        revoked = [items for kind, items in events if kind == "revoked"]
        assert events[0] == ("assigned", set(range(6)))
        assert revoked == [numbers(second)]


def test_another_member_continues_at_the_committed_offsets(
    broker_address: str, topic: str, group: str
) -> None:
    settings = {**QUICK, "group.id": group, "enable.auto.commit": False}
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic])
        got: list[int] = []
        until(lambda: len(got) >= 4, lambda: got.extend(r.offset for r in consumer.poll(1, max_records=4)))
        consumer.commit()
        answers: list[Any] = []
        consumer.commit_async(on_commit=answers.append)
        until(lambda: bool(answers), lambda: consumer.poll(0.05, max_records=1))
        assert answers == [None]
        assert consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 4
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic])
        records = consumer.poll(10)
        assert next(iter(records)).offset == 4


def test_auto_commit_covers_the_returned_records(
    broker_address: str, topic: str, group: str, admin: Admin
) -> None:
    with Consumer(broker_address, {**QUICK, "group.id": group, "auto.commit.interval.ms": 50}) as consumer:
        consumer.subscribe([topic])
        assert len(consumer.poll(10)) == 10
        # A commit before the records were returned has the position 0.
        until(
            lambda: [one.offset for one in admin.group_offsets(group).values()] == [10],
            lambda: consumer.poll(0.05),
        )


def test_later_metadata_is_read_in_the_background(
    broker_address: str, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(broker_address, {**QUICK, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        assert len(consumer.poll(10)) == 10
        waited_for: list[float] = []
        monkeypatch.setattr(consumer, "_first_metadata", waited_for.append)
        read = consumer._network_client.metadata_version
        consumer._network_client.request_refresh()
        until(lambda: consumer._network_client.metadata_version > read, lambda: consumer.poll(0.05))
        assert waited_for == []


def test_closing_commits_the_returned_records(
    broker_address: str, topic: str, group: str, admin: Admin
) -> None:
    with Consumer(broker_address, {**QUICK, "group.id": group}) as consumer:
        consumer.subscribe([topic])
        assert len(consumer.poll(10, max_records=7)) == 7
    assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 7
    assert [row.lag for row in admin.group_lag(group)] == [3]


def test_closing_commits_no_records_after_the_last_iterated(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    topic = new_topic(2)
    fill(broker_address, topic, 20, 2)
    places = [TopicPartition(topic, partition) for partition in range(2)]
    seen: list[tuple[int, int]] = []
    for count in (3, 14, 3):
        with Consumer(broker_address, {**QUICK, "group.id": group}) as consumer:
            consumer.subscribe([topic])
            for record in consumer:
                seen.append((record.partition, record.offset))
                count -= 1
                if count == 0:
                    break
        committed = admin.group_offsets(group)
        given_out = [sum(partition == place.partition for partition, _ in seen) for place in places]
        assert [committed[place].offset for place in places if place in committed] == [
            count for place, count in zip(places, given_out, strict=True) if place in committed
        ]
    assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(10)]


def test_records_after_an_ended_iteration_are_returned_by_the_next_call(
    broker_address: str, topic: str
) -> None:
    place = TopicPartition(topic, 0)
    with Consumer(broker_address, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        seen = [next(iter(consumer)).offset for _ in range(3)]
        assert consumer.position(place) == 3
        seen += [record.offset for record in consumer.poll(10, max_records=2)]
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 6:
                consumer.seek(place, 8)
            if record.offset == 9:
                break
    assert seen == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def work_and_fail(consumer: Consumer, how: str) -> None:
    """Processes some of four records, or all of them, and raises at the last of these."""
    if how == "loop":
        for record in consumer:
            if record.offset == 6:
                break
    elif how == "poll_arrow":
        assert consumer.poll_arrow(10).num_rows == 4
    else:
        assert len(consumer.poll(10)) == 4
    if how == "commit":
        consumer.commit()
    raise ZeroDivisionError


@pytest.mark.parametrize(("how", "committed"), [("poll", 4), ("poll_arrow", 4), ("loop", 6), ("commit", 8)])
def test_an_exception_of_the_user_commits_no_unprocessed_records(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin, how: str, committed: int
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 4, 1)
    settings = {**QUICK, "group.id": group, "auto.commit.interval.ms": 60_000}
    with contextlib.suppress(ZeroDivisionError), Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic])
        assert len(consumer.poll(10)) == 4
        fill(broker_address, topic, 4, 1)
        work_and_fail(consumer, how)
    assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == committed


def test_groups_are_listed_by_state(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    with Consumer(broker_address, {**QUICK, "group.id": group}) as consumer:
        consumer.subscribe([new_topic(1)])
        until(lambda: len(numbers(consumer)) == 1, lambda: consumer.poll(0.05))
        assert group in [one.group_id for one in admin.list_groups(states=["Stable"], types=["classic"])]
        assert group not in [one.group_id for one in admin.list_groups(states=["Empty"])]
    until(lambda: group in [one.group_id for one in admin.list_groups(states=["Empty"])])


class Committing:
    """Commits the next offsets of the revoked partitions, as users do; may then raise."""

    def __init__(self, consumer: Consumer, problem: Exception | None = None) -> None:
        self._consumer = consumer
        self._problem = problem
        self.revoked: list[TopicPartition] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        pass

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked += partitions
        self._consumer.commit(dict.fromkeys(partitions, 3))
        if self._problem is not None:
            raise self._problem

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        pass


def test_a_listener_may_commit_while_the_consumer_is_closed(
    broker_address: str, topic: str, group: str, admin: Admin
) -> None:
    consumer = Consumer(broker_address, {**QUICK, "group.id": group, "enable.auto.commit": False})
    listener = Committing(consumer)
    consumer.subscribe([topic], listener=listener)
    until(lambda: len(numbers(consumer)) == 1, lambda: consumer.poll(0.05))
    consumer.close()
    assert listener.revoked == [TopicPartition(topic, 0)]
    assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 3
    assert admin.describe_group(group).members == []


def test_a_consumer_with_a_failing_listener_leaves_its_group(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    topic = new_topic(1)
    consumer = Consumer(broker_address, {**QUICK, "group.id": group})
    consumer.subscribe([topic], listener=Committing(consumer, ZeroDivisionError("of the user")))
    until(lambda: len(numbers(consumer)) == 1, lambda: consumer.poll(0.05))
    with pytest.raises(ZeroDivisionError, match="of the user"):
        consumer.close()
    consumer.close()
    assert admin.describe_group(group).members == []
    assert not [one for one in threading.enumerate() if one.name == f"tidemill-heartbeat-{group}"]


class FailsOnce:
    """A listener whose first revocation callback raises."""

    def __init__(self) -> None:
        self.failed = False

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        pass

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        if not self.failed:
            self.failed = True
            raise ZeroDivisionError

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        pass


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_partitions_are_revoked_although_the_listener_fails(
    broker_address: str, new_topic: Callable[..., str], group: str, strategy: str
) -> None:
    topic = new_topic(4)
    settings = {**QUICK, "group.id": group, "partition.assignment.strategy": strategy}
    listener = FailsOnce()
    with Consumer(broker_address, settings) as one, Consumer(broker_address, settings) as two:

        def poll() -> None:
            with contextlib.suppress(ZeroDivisionError):
                one.poll(0.1)

        one.subscribe([topic], listener=listener)
        until(lambda: len(numbers(one)) == 4, poll)
        two.subscribe([topic])
        until(lambda: len(numbers(one)) == len(numbers(two)) == 2, poll, lambda: two.poll(0.1), seconds=15)
        assert listener.failed
        assert not numbers(one) & numbers(two)


def test_a_member_that_does_not_poll_loses_its_partitions_and_cannot_commit(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    settings = {**QUICK, "group.id": group, "enable.auto.commit": False}
    with Consumer(broker_address, {**settings, "max.poll.interval.ms": 600}) as slow:
        slow.subscribe([topic])
        until(lambda: len(numbers(slow)) == 2, lambda: slow.poll(0.05))
        with Consumer(broker_address, settings) as other:
            other.subscribe([topic])
            until(lambda: len(numbers(other)) == 2, lambda: other.poll(0.05))
            with pytest.raises(CommitFailed, match=r"another member may have the partitions"):
                slow.commit({TopicPartition(topic, 0): 1})


def test_a_removed_member_does_not_overwrite_later_commits(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    """The other members have left: the coordinator accepts commits from outside for an empty group."""
    topic = new_topic(1)
    place = TopicPartition(topic, 0)
    fill(broker_address, topic, 10, 1)
    settings = {**QUICK, "group.id": group, "auto.commit.interval.ms": 100}
    with Consumer(broker_address, {**settings, "max.poll.interval.ms": 600}) as slow:
        slow.subscribe([topic])
        assert len(slow.poll(10, max_records=3)) == 3
        until(lambda: not admin.describe_group(group).members, lambda: time.sleep(0.1))
        with Consumer(broker_address, settings) as other:
            other.subscribe([topic])
            seen: list[int] = []
            until(lambda: 9 in seen, lambda: seen.extend(record.offset for record in other.poll(0.1)))
        assert admin.group_offsets(group)[place].offset == 10
        with pytest.raises(CommitFailed, match=r"rebalanced without"):
            slow.commit()
        assert admin.group_offsets(group)[place].offset == 10
        again: list[int] = []
        deadline = time.monotonic() + 2
        until(
            lambda: time.monotonic() > deadline,
            lambda: again.extend(record.offset for record in slow.poll(0.1)),
        )
        assert again == []


def test_a_late_commit_response_does_not_reset_a_new_membership(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    """The commit was sent by the former member, which the group removed when it was to rejoin."""
    topic = new_topic(1)
    settings = {**QUICK, "heartbeat.interval.ms": 2000, "group.id": group, "enable.auto.commit": False}
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic])
        until(lambda: len(consumer.assignment()) == 1, lambda: consumer.poll(0.1))
        (member,) = admin.describe_group(group).members
        admin.remove_member(group, member_id=member.member_id)
        assert consumer._coordinator is not None
        consumer._coordinator.request_rejoin("the group rebalances")  # as a heartbeat does
        consumer.commit_async({TopicPartition(topic, 0): 0})
        assert not consumer.poll(0.5)
        (new,) = admin.describe_group(group).members
        assert new.member_id != member.member_id
        assert not consumer.poll(0.5)
        assert [one.member_id for one in admin.describe_group(group).members] == [new.member_id]
        assert consumer.assignment() == {TopicPartition(topic, 0)}


def test_a_wakeup_ends_a_poll_that_waits_for_the_group(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    settings = {**QUICK, "group.id": group}
    with Consumer(broker_address, settings) as idle, Consumer(broker_address, settings) as waiting:
        idle.subscribe([topic])
        until(lambda: bool(idle.assignment()), lambda: idle.poll(0.2))
        waiting.subscribe([topic])  # Joins once the idle member has rejoined, in a poll.
        timer = threading.Timer(1.0, waiting.wakeup)
        timer.start()
        began = time.monotonic()
        assert not waiting.poll(20)
        assert time.monotonic() - began < 10
        timer.join()
        assert not waiting.assignment()
        until(lambda: bool(waiting.assignment()), lambda: idle.poll(0.2), lambda: waiting.poll(0.2))


class BlockedCall:
    """A method of a consumer's NetworkClient that does not return before :meth:`release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, consumer: Consumer, name: str) -> None:
        self._plain = getattr(consumer._network_client, name)
        self.entered, self._released = threading.Event(), threading.Event()
        monkeypatch.setattr(consumer._network_client, name, self._call)

    def _call(self, *given: Any, **options: Any) -> Any:
        self.entered.set()
        self._released.wait(15)
        return self._plain(*given, **options)

    def release(self) -> None:
        self._released.set()


@pytest.mark.parametrize("subscribed", [True, False])
@pytest.mark.parametrize("name", ["refresh", "find_coordinator", "connection"])
def test_a_wakeup_ends_a_poll_that_waits_for_the_network(
    monkeypatch: pytest.MonkeyPatch, broker_address: str, topic: str, group: str, name: str, subscribed: bool
) -> None:
    with Consumer(broker_address, {**QUICK, "group.id": group}) as consumer:
        blocked = BlockedCall(monkeypatch, consumer, name)
        if subscribed:
            consumer.subscribe([topic])
        else:
            consumer.assign([(topic, 0)])

        def wake() -> None:
            assert blocked.entered.wait(10)
            consumer.wakeup()

        for _ in range(2):  # The second poll finds the call that the first poll has left.
            waker = threading.Thread(target=wake)
            waker.start()
            began = time.monotonic()
            assert not consumer.poll(20)
            assert time.monotonic() - began < 8
            waker.join()
        began = time.monotonic()
        assert not consumer.poll(0.2)
        assert time.monotonic() - began < 8
        blocked.release()
        values: list[bytes | None] = []
        until(lambda: len(values) == 10, lambda: values.extend(r.value for r in consumer.poll(1.0)))


def test_a_poll_raises_the_error_of_a_call_that_it_waits_for() -> None:
    with Consumer("127.0.0.1:1", {**QUICK, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(BrokerUnreachable, match="no broker can be reached"):
            consumer.poll(0.1)


class Revocations:
    """A listener that records the revoked partitions."""

    def __init__(self) -> None:
        self.revoked: list[TopicPartition] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        pass

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked += partitions

    on_lost = on_revoked


def test_unsubscribe_commits_revokes_and_leaves_the_group(
    broker_address: str, topic: str, group: str
) -> None:
    item = TopicPartition(topic, 0)
    listener = Revocations()
    read: list[int] = []
    with Consumer(broker_address, {**QUICK, "group.id": group}) as consumer, Admin(broker_address) as admin:
        consumer.subscribe([topic], listener=listener)
        until(lambda: len(read) == 10, lambda: read.extend(record.offset for record in consumer.poll(0.2)))
        consumer.unsubscribe()
        assert listener.revoked == [item]
        assert not consumer.assignment()
        assert not consumer.subscription()
        assert not admin.describe_group(group).members
        with pytest.raises(ValueError, match=r"nothing to read"):
            consumer.poll(0)
        assert consumer.committed([item])[item].offset == 10
        consumer.assign([item])
        consumer.unsubscribe()
        assert not consumer.assignment()
        consumer.subscribe([topic])
        until(lambda: consumer.assignment() == {item}, lambda: consumer.poll(0.2))


def test_a_static_member_returns_without_a_rebalance(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    topic = new_topic(4)
    settings = {**QUICK, "group.id": group}
    with Consumer(broker_address, {**settings, "group.instance.id": "a"}) as keeper:
        keeper.subscribe([topic])
        until(lambda: len(numbers(keeper)) == 4, lambda: keeper.poll(0.05))
        with Consumer(broker_address, {**settings, "group.instance.id": "b"}) as leaver:
            leaver.subscribe([topic])
            until(lambda: len(numbers(leaver)) == 2, lambda: leaver.poll(0.05), lambda: keeper.poll(0.05))
            had = numbers(leaver)
        assert {m.instance_id for m in admin.describe_group(group).members} == {"a", "b"}
        generation = keeper._coordinator.generation if keeper._coordinator else -1
        with Consumer(broker_address, {**settings, "group.instance.id": "b"}) as back:
            back.subscribe([topic])
            until(lambda: len(numbers(back)) == 2, lambda: back.poll(0.05), lambda: keeper.poll(0.05))
            assert numbers(back) == had
        assert keeper._coordinator is not None
        assert keeper._coordinator.generation == generation
    admin.remove_member(group, instance_id="a")
    admin.remove_member(group, instance_id="b")


@pytest.mark.parametrize(("join_version", "sync_version", "instance_id"), [(5, 3, "a"), (4, 2, None)])
def test_a_member_is_static_if_its_broker_supports_it(
    broker_address: str,
    new_topic: Callable[..., str],
    group: str,
    admin: Admin,
    limit_versions: Callable[[Mapping[ApiKey, int]], None],
    join_version: int,
    sync_version: int,
    instance_id: str | None,
) -> None:
    limit_versions({ApiKey.JOIN_GROUP: join_version, ApiKey.SYNC_GROUP: sync_version})
    topic = new_topic(1)
    with Consumer(broker_address, {**QUICK, "group.id": group, "group.instance.id": "a"}) as consumer:
        consumer.subscribe([topic])
        until(lambda: numbers(consumer) == {0}, lambda: consumer.poll(0.05))
        (member,) = admin.describe_group(group).members
        assert member.instance_id == instance_id
    if instance_id is not None:
        admin.remove_member(group, instance_id=instance_id)


def test_a_static_member_that_does_not_poll_keeps_its_place(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    settings = {**QUICK, "group.id": group, "group.instance.id": "a", "max.poll.interval.ms": 1500}
    topic = new_topic(1)
    listener = Revocations()
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic], listener=listener)
        until(lambda: numbers(consumer) == {0}, lambda: consumer.poll(0.05))
        coordinator = consumer._coordinator
        assert coordinator is not None
        generation = coordinator.generation
        until(lambda: coordinator.state == LOST, lambda: time.sleep(0.1))
        assert [member.instance_id for member in admin.describe_group(group).members] == ["a"]
        until(lambda: coordinator.state == STABLE, lambda: consumer.poll(0.05))
        assert listener.revoked == [TopicPartition(topic, 0)]
        assert (numbers(consumer), coordinator.generation) == ({0}, generation)
    admin.remove_member(group, instance_id="a")


def test_a_pattern_includes_topics_created_later(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    first = new_topic(1)
    prefix = first[:10]
    settings = {**QUICK, "group.id": group, "metadata.max.age.ms": 200}
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe(pattern=prefix + ".*")
        until(lambda: first in {i.topic for i in consumer.assignment()}, lambda: consumer.poll(0.05))
        with Admin(broker_address) as admin:
            later = f"{prefix}-later-{group}"
            admin.create_topic(later, 1, 1)
            until(lambda: later in {i.topic for i in consumer.assignment()}, lambda: consumer.poll(0.05))
            admin.delete_topic(later)


def test_added_partitions_are_assigned(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    topic = new_topic(1)
    settings = {**QUICK, "group.id": group, "metadata.max.age.ms": 200}
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic])
        until(lambda: numbers(consumer) == {0}, lambda: consumer.poll(0.05))
        admin.create_partitions(topic, 3)
        until(lambda: numbers(consumer) == {0, 1, 2}, lambda: consumer.poll(0.05))


def test_added_partitions_are_assigned_although_another_topic_was_deleted(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    topic, deleted = new_topic(1), f"deleted-{group}"
    admin.create_topic(deleted, 1, 1)
    settings = {**QUICK, "group.id": group, "metadata.max.age.ms": 200, "allow.auto.create.topics": False}
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic, deleted])
        until(lambda: len(consumer.assignment()) == 2, lambda: consumer.poll(0.05))
        admin.delete_topic(deleted)
        until(lambda: deleted in consumer._network_client.topic_errors, lambda: consumer.poll(0.05))
        admin.create_partitions(topic, 3)
        until(lambda: numbers(consumer) == {0, 1, 2}, lambda: consumer.poll(0.05))


@pytest.mark.parametrize("with_another", [True, False])
def test_a_topic_created_after_the_join_is_assigned(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin, with_another: bool
) -> None:
    subscribed = [new_topic(1)] if with_another else []
    later = f"later-{group}"
    settings = {**QUICK, "group.id": group, "metadata.max.age.ms": 200, "allow.auto.create.topics": False}
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([*subscribed, later])
        coordinator = consumer._coordinator
        assert coordinator is not None
        until(lambda: coordinator.state == STABLE, lambda: consumer.poll(0.05))
        admin.create_topic(later, 1, 1)
        until(lambda: TopicPartition(later, 0) in consumer.assignment(), lambda: consumer.poll(0.05))
    admin.delete_topic(later)


def test_a_returning_static_leader_assigns_added_partitions(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    topic = new_topic(1)
    settings = {**QUICK, "group.id": group, "group.instance.id": "a", "metadata.max.age.ms": 200}
    with Consumer(broker_address, settings) as former:
        former.subscribe([topic])
        until(lambda: numbers(former) == {0}, lambda: former.poll(0.05))
    with Consumer(broker_address, settings) as consumer:
        consumer.subscribe([topic])
        until(lambda: numbers(consumer) == {0}, lambda: consumer.poll(0.05))
        admin.create_partitions(topic, 3)
        until(lambda: numbers(consumer) == {0, 1, 2}, lambda: consumer.poll(0.05))
    admin.remove_member(group, instance_id="a")


def test_the_group_leader_refreshes_the_topics_of_other_members(
    broker_address: str, new_topic: Callable[..., str], group: str, admin: Admin
) -> None:
    settings = {**QUICK, "group.id": group, "metadata.max.age.ms": 1000}
    topic, of_the_other = new_topic(1), new_topic(1)
    with Consumer(broker_address, settings) as leader, Consumer(broker_address, settings) as other:
        leader.subscribe([topic])
        until(lambda: numbers(leader) == {0}, lambda: leader.poll(0.05))
        assert of_the_other in leader.topics()
        other.subscribe([of_the_other])
        until(lambda: numbers(other) == {0}, lambda: leader.poll(0.05), lambda: other.poll(0.05))
        admin.create_partitions(of_the_other, 2)
        until(lambda: numbers(other) == {0, 1}, lambda: leader.poll(0.05), lambda: other.poll(0.05))


def test_an_invalid_topic_name_is_reported_at_once(
    broker_address: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    fill(broker_address, topic, 3, 1)
    with Consumer(broker_address, QUICK, group_id=group) as consumer:
        consumer.subscribe([topic, "bad name"])
        with pytest.raises(ClientError, match=r"cannot read 'bad name': INVALID_TOPIC_EXCEPTION") as caught:
            consumer.poll(10)
        assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        values: list[bytes | None] = []
        told = 0

        def poll() -> None:
            nonlocal told
            try:
                values.extend(record.value for record in consumer.poll(0.2))
            except ClientError:
                told += 1

        # As in Java, the error is raised once for each metadata refresh; the other topics can be read.
        until(lambda: len(values) == 3, poll)
        assert told < 5
    with Consumer(broker_address) as consumer:
        consumer.assign([TopicPartition("bad name", 0)])
        with pytest.raises(ClientError, match=r"'bad name': INVALID_TOPIC_EXCEPTION"):
            consumer.poll(10)
