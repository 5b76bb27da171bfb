"""Any sequence of decisions about one partition: committed records are never lost."""

from __future__ import annotations

from controller_images import cluster, living
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from alter_partition_items import isr_change
from tidemill.controller.alter_partition import plan_isr_change
from tidemill.controller.election_report import may_lack_records
from tidemill.controller.leader_election import (
    ElectionPolicy,
    LogEnd,
    plan_policy_change,
    plan_topic_elections,
)
from tidemill.controller.preferred_leader_election import ElectionType, plan_elections
from tidemill.controller.reassignment import plan_completions, plan_reassignment
from tidemill.controller.topics import Plan
from tidemill.coordination.cluster_image import BrokerImage
from tidemill.coordination.coordination_store import SetData
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.coordination.nodes import TopicNode
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.types import TopicPartition
from unpaused import plan_broker_change, plan_shutdown

ALL = range(4)
BROKERS = st.sampled_from(ALL)
THE_ONE = TopicPartition("t", 0)


class History(RuleBasedStateMachine):
    """Brokers with their copies of one log, and the store's nodes of the partition."""

    def __init__(self) -> None:
        super().__init__()
        topic = TopicImage("t", b"t" * 16, (PartitionImage(0, 0, 0, [0, 1], [0, 1]),), {})
        self.image = cluster(tuple(ALL), topic)
        self.logs: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        """Records with the leader epochs in which they were written."""
        self.committed: list[tuple[int, int]] = []
        self.written = 0
        self.synced: dict[int, int] = {}
        """How much of its log each broker would have after a power cut."""
        self.lost: dict[int, LostReplicas] = {}
        """What brokers that are down will report."""
        self.min_insync = 1
        self.stopping: frozenset[int] = frozenset()
        self.versions = {"/brokers/topics/t": 0, "/brokers/topics/t/partitions/0/state": 0}

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics["t"].partitions[0]

    @property
    def led(self) -> bool:
        return self.partition.leader in self.image.brokers

    def apply_plans(self, plans: list[Plan]) -> None:
        """Writes to the store and drops the logs of unassigned replicas."""
        for plan in plans:
            (after,) = plan.topic.partitions
            if may_lack_records("t", self.partition, after, self.losses):
                # It is reported once: the log of the new leader is the reference from here.
                self.committed = self.committed[: self.common(after.leader)]
            for operation in plan.operations:
                assert isinstance(operation, SetData)
                assert operation.version == self.versions[operation.path], operation.path
                self.versions[operation.path] += 1
                if operation.path == "/brokers/topics/t":
                    assert TopicNode.decode("t", operation.data) == plan.topic.assignment()
            self.image = self.image.with_topics([plan.topic])
        self.logs = {one: self.logs.get(one, []) for one in self.partition.replicas}

    losses: dict[int, LostReplicas] = {}  # noqa: RUF012  replaced, never changed

    def common(self, broker: int) -> int:
        """Returns the number of committed records that a broker has."""
        log = self.logs.get(broker, [])
        same = [one == two for one, two in zip(self.committed, log, strict=False)]
        return same.index(False) if False in same else len(same)

    def policy(self, topic: TopicImage) -> ElectionPolicy:
        return ElectionPolicy(min_insync_replicas=self.min_insync)

    def go_on(self) -> None:
        self.apply_plans(plan_completions(self.image, stopping=self.stopping, policy_of=self.policy))

    def live(self, brokers: dict[int, BrokerImage], gone: list[int], came: list[int]) -> None:
        self.image = self.image.with_brokers(brokers)
        self.losses = {one: self.lost.pop(one) for one in came if one in self.lost}
        self.apply_plans(
            plan_broker_change(self.image, gone, came, self.losses, self.policy, stopping=self.stopping)
        )
        self.losses = {}
        self.recover()
        self.go_on()

    def recover(self) -> None:
        """Reads the log end offsets of all live replicas, as the controller does."""
        ends = {
            one: LogEnd(log[-1][0] if log else -1, len(log))
            for one, log in self.logs.items()
            if one in self.image.brokers
        }
        self.apply_plans(
            plan_topic_elections(self.image, {}, self.policy, self.stopping, ends={THE_ONE: ends})
        )

    # Actions of clients and replicas

    @precondition(lambda self: self.led)
    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        for _ in range(count):
            self.logs[self.partition.leader].append((self.partition.leader_epoch, self.written))
            self.written += 1

    @precondition(lambda self: self.led)
    @rule(broker=BROKERS, joins=st.booleans())
    def fetch(self, broker: int, joins: bool) -> None:
        one = self.partition
        if broker not in self.image.brokers or broker not in one.replicas or broker == one.leader:
            return
        self.logs[broker] = list(self.logs[one.leader])
        if joins and broker not in one.isr and broker not in self.stopping:
            self.change_isr([*one.isr, broker])

    @precondition(lambda self: self.led)
    @rule()
    def commit(self) -> None:
        """The leader gets the offsets of its in-sync replicas. With too few of them nothing is committed."""
        if len(self.partition.isr) < self.partition.effective_min_isr(self.min_insync):
            return
        mine = self.logs[self.partition.leader]
        reached = len(mine)
        for broker in self.partition.isr:
            same = [one == two for one, two in zip(mine, self.logs[broker], strict=False)]
            reached = min(reached, same.index(False) if False in same else len(same))
        self.committed = mine[: max(reached, len(self.committed))]

    @precondition(lambda self: self.led)
    @rule()
    def drop_all_out(self) -> None:
        """No follower keeps up with the leader."""
        if len(self.partition.isr) > 1:
            self.change_isr([self.partition.leader])

    @precondition(lambda self: self.led)
    @rule(broker=BROKERS)
    def drop_out(self, broker: int) -> None:
        one = self.partition
        if broker in one.isr and broker != one.leader:
            self.change_isr([member for member in one.isr if member != broker])

    def change_isr(self, isr: list[int]) -> None:
        one = self.partition
        change = isr_change(one.leader, one.leader_epoch, one.partition_epoch, [(b, -1) for b in isr])
        changed = plan_isr_change(
            self.image, "t", one, change, self.policy(self.image.topics["t"]), self.stopping
        )
        assert changed.leader_epoch == one.leader_epoch
        self.versions["/brokers/topics/t/partitions/0/state"] += 1
        self.image = self.image.with_topics([self.image.topics["t"].with_partitions([changed])])
        self.go_on()

    # Broker failures

    @rule(broker=BROKERS, in_order=st.booleans())
    def end(self, broker: int, in_order: bool) -> None:
        if broker not in self.image.brokers:
            return
        if in_order:
            self.stopping |= {broker}
            self.apply_plans(plan_shutdown(self.image, broker, self.stopping, self.policy).plans)
        left = {one: found for one, found in self.image.brokers.items() if one != broker}
        self.live(left, [broker], [])

    @rule(broker=BROKERS)
    def sync(self, broker: int) -> None:
        self.synced[broker] = len(self.logs.get(broker, []))

    @rule(broker=BROKERS, is_disk=st.booleans())
    def lose(self, broker: int, is_disk: bool) -> None:
        """A power cut, or a new disk for a stopped broker."""
        self.end(broker, False)
        if broker in self.logs:
            self.logs[broker] = [] if is_disk else self.logs[broker][: self.synced.get(broker, 0)]
        was_missing = self.lost.get(broker, NOTHING_LOST).missing
        self.lost[broker] = LostReplicas(unsynced=True, missing=is_disk or was_missing)

    @rule(value=st.integers(1, 3))
    def set_min_insync(self, value: int) -> None:
        if value != self.min_insync:
            self.min_insync = value
            self.apply_plans([plan_policy_change(self.image, self.image.topics["t"])])

    @rule(broker=BROKERS)
    def start(self, broker: int) -> None:
        if broker not in self.image.brokers:
            self.stopping -= {broker}
            self.live(self.image.brokers | living(broker), [], [broker])

    # Requests of administrators

    @precondition(lambda self: self.partition.is_reassigning)
    @rule()
    def cancel(self) -> None:
        self.request_replicas(None)

    @rule(replicas=st.lists(BROKERS, min_size=1, max_size=3, unique=True), again=st.booleans())
    def reassign(self, replicas: list[int], again: bool) -> None:
        if again or not self.partition.is_reassigning:
            self.request_replicas(replicas)

    def request_replicas(self, replicas: list[int] | None) -> None:
        decisions = plan_reassignment(
            self.image, {THE_ONE: replicas}, policy_of=self.policy, stopping=self.stopping
        )
        assert bool(decisions.errors) + len(decisions.plans) <= 1
        self.apply_plans(decisions.plans)

    @rule()
    def elect(self) -> None:
        decisions = plan_elections(self.image, [THE_ONE], ElectionType.PREFERRED, self.stopping, self.policy)
        self.apply_plans(decisions.plans)

    # Invariants

    @invariant()
    def eligible_replicas_have_what_was_committed(self) -> None:
        for broker in {*self.partition.isr, *self.partition.elr}.difference(self.lost):
            assert self.common(broker) == len(self.committed), broker

    @invariant()
    def the_leader_has_what_was_committed(self) -> None:
        if self.led:
            assert self.logs[self.partition.leader][: len(self.committed)] == self.committed

    @invariant()
    def the_partition_makes_sense(self) -> None:
        one = self.partition
        assert one.leader == -1 or one.isr
        assert set(one.isr).isdisjoint(one.elr)
        assert set(one.isr) <= set(one.replicas)
        assert len(set(one.replicas)) == len(one.replicas)
        assert one.leader == -1 or one.leader in one.isr
        assert one.target
        assert one.origin
        assert set(one.target) | set(one.origin) == set(one.replicas)
        able = {*one.isr, *one.elr} & set(self.image.brokers) - self.stopping
        assert self.led or not able, "a live eligible replica leads"

    def teardown(self) -> None:
        """When all brokers are alive and caught up, every reassignment completes without record loss."""
        for broker in ALL:
            self.start(broker)
        if not self.led:
            return
        for broker in list(self.partition.replicas):
            self.fetch(broker, True)
        self.commit()
        assert not self.partition.is_reassigning
        assert set(self.partition.isr) == set(self.partition.replicas) == set(self.logs)
        assert all(log == self.logs[self.partition.leader] for log in self.logs.values())


TestHistories = History.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
