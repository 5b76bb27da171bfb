"""A controller that never fails, for simulations of replication alone.

It decides with the same pure functions as the real controller, outside of any broker. Its requests arrive in
order, or not at all when the network is cut; then they are repeated. It detects failed brokers late, and may
treat a live broker as dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from promises import Promises
from simulated_loop import PROCESS, Process
from simulated_network import Network

from tidemill.controller.alter_partition import AlterPartitionItem, plan_isr_change
from tidemill.controller.leader_election import (
    ElectionPolicy,
    LogEnd,
    plan_broker_change_in_slices,
    plan_reported_replicas_in_slices,
    plan_topic_elections,
)
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.coordination.nodes import BrokerRegistration, Endpoint
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from replication_broker import ReplicationBroker

MACHINE = "controller"
AGAIN_S = 0.1
CLUSTER_ID = "c" * 22


class ReliableController:
    """Has the image of the cluster, and records its changes."""

    def __init__(
        self, network: Network, promises: Promises, timeout_s: float, node_ids: list[int], topic: TopicImage
    ) -> None:
        self.network = network
        self.loop = network.loop
        self.machine = network.machine(MACHINE)
        self.promises = promises
        self.state_written = promises.state_written
        """Called with each state that is written."""
        self.timeout_s = timeout_s
        self.node_ids = node_ids
        self.image = ClusterImage(CLUSTER_ID, 0, 1, {}, {topic.name: topic})
        self._brokers: dict[int, tuple[Process, ReplicationBroker, float]] = {}
        """The registered brokers: process and time of the last heartbeat."""
        self._sent_numbers: dict[int, int] = {}
        """The number of the image that each broker has."""
        self._number = 0
        self._epoch = 0
        self._next_producer_id = 1000
        self._look()

    # -- brokers come and go

    def _look(self) -> None:
        """Detects brokers that were silent for too long."""
        now = self.loop.time()
        gone = []
        for node_id, (process, _, heard_s) in list(self._brokers.items()):
            machine = self.network.machine(process.name)
            is_heard = process.alive and not process.paused and self.network.is_open(machine, self.machine)
            if is_heard:
                self._brokers[node_id] = (process, self._brokers[node_id][1], now)
            elif now - heard_s > self.timeout_s:
                gone.append(node_id)
        if gone:
            self.promises.events.add(f"the controller takes {gone} for dead")
            brokers = {node: one for node, one in self.image.brokers.items() if node not in gone}
            for node_id in gone:
                del self._brokers[node_id]
                self._sent_numbers.pop(node_id, None)
            self._change_brokers(brokers, gone=gone)
        self.network.world_timer(now + AGAIN_S, self._look)

    def register(self, broker: ReplicationBroker, port: int, lost: LostReplicas) -> None:
        """A broker has started, or has returned after it was treated as dead."""
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process registers, not the world")

        def arrive() -> None:
            if not process.alive:
                return
            broker.is_registering = False
            self._epoch += 1
            self.promises.registered(broker.node_id, lost)
            self.promises.loss_read(broker.node_id, lost)
            registration = BrokerRegistration(
                broker.node_id,
                (Endpoint("PLAINTEXT", "PLAINTEXT", process.name, port),),
                lost=lost,
            )
            self._brokers[broker.node_id] = (process, broker, self.loop.time())
            self._sent_numbers.pop(broker.node_id, None)
            brokers = {**self.image.brokers, broker.node_id: BrokerImage(registration, self._epoch)}
            losses = {} if lost.is_none else {broker.node_id: lost}
            self._change_brokers(brokers, came=[broker.node_id], losses=losses)

        self._ask(process, arrive)

    def is_registered(self, broker: ReplicationBroker) -> bool:
        """Whether the broker is not treated as dead."""
        known = self._brokers.get(broker.node_id)
        return known is not None and known[1] is broker

    def _clear_losses(self, broker: ReplicationBroker) -> None:
        """A broker learns that its losses were handled, and removes them from its registration."""
        known = self.image.brokers.get(broker.node_id)
        if known is not None and not known.lost.is_none and self.is_registered(broker):
            registration = BrokerRegistration(broker.node_id, tuple(known.endpoints.values()))
            cleared = BrokerImage(registration, known.epoch)
            self.image = self.image.with_brokers({**self.image.brokers, broker.node_id: cleared})
            self._recover()

    def _change_brokers(
        self,
        brokers: dict[int, BrokerImage],
        gone: list[int] | None = None,
        came: list[int] | None = None,
        losses: dict[int, LostReplicas] | None = None,
    ) -> None:
        image = self.image.with_brokers(brokers)
        is_new = any(p.partition_epoch < 0 for topic in image.topics.values() for p in topic.partitions)
        if is_new and len(brokers) < len(self.node_ids):
            plans = []  # Partitions are created once all their brokers are registered.
        elif is_new:
            plans = plan_topic_elections(image, policy_of=policy_of)
        else:
            plans = run_at_once(
                plan_broker_change_in_slices(image, gone or (), came or (), losses or {}, policy_of)
            )
        self._publish(image.with_topics(plan.topic for plan in plans))
        self._recover()

    def replicas_failed(self, broker: ReplicationBroker, failed: list[TopicPartition]) -> None:
        """A live broker cannot read or write these replicas until it is restarted."""
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process tells, not the world")

        def arrive() -> None:
            topics = self.image.topics
            by_topic = {
                topic.topic_id: [one.partition for one in failed if one.topic == topic.name]
                for topic in topics.values()
            }
            if self.is_registered(broker):
                plans = run_at_once(
                    plan_reported_replicas_in_slices(
                        self.image, broker.node_id, by_topic, policy_of, is_offline=True
                    )
                )
                if plans:
                    self._publish(self.image.with_topics(plan.topic for plan in plans))
                    self._recover()

        self._ask(process, arrive)

    def elect_unclean(self) -> None:
        """An operator requests elections of all partitions."""
        self._recover(is_unclean=True)

    def _recover(self, is_unclean: bool = False) -> None:
        """Elects by log ends if no replica is in sync or eligible; the controller reads them at once."""
        ends: dict[TopicPartition, dict[int, LogEnd]] = {}
        for node_id, (process, broker, _) in self._brokers.items():
            if process.alive and not process.paused:
                for partition in broker.partitions.all():
                    key = TopicPartition(partition.topic, int(partition.index))
                    end = LogEnd(int(partition.log.leader_epochs.latest), int(partition.log.end_offset))
                    ends.setdefault(key, {})[node_id] = end

        def policy(topic: TopicImage) -> ElectionPolicy:
            return policy_of(topic)._replace(unclean=is_unclean)

        plans = plan_topic_elections(self.image, policy_of=policy, ends=ends)
        if plans:
            self._publish(self.image.with_topics(plan.topic for plan in plans))

    def _publish(self, image: ClusterImage) -> None:
        for topic in image.topics.values():
            for partition in topic.partitions:
                before = self.image.topics[topic.name].partitions[partition.partition]
                if partition.partition_epoch != before.partition_epoch:
                    self.promises.events.add(f"the controller writes {topic.name}-{partition}", "the world")
                    tp = (topic.name, partition.partition)
                    self.state_written(tp, partition.leader, partition.leader_epoch, tuple(partition.isr))
        self.image = image
        self._number += 1
        for node_id in list(self._brokers):
            self._tell(node_id)

    def _tell(self, node_id: int) -> None:
        """Sends a broker the newest image repeatedly until it arrives."""
        known = self._brokers.get(node_id)
        if known is None or self._sent_numbers.get(node_id) == self._number:
            return
        process, broker, _ = known
        image, number = self.image, self._number
        machine = self.network.machine(process.name)

        def arrive() -> None:
            if not self.network.is_open(self.machine, machine) or not self.is_registered(broker):
                return
            if number > self._sent_numbers.get(node_id, 0):
                self._sent_numbers[node_id] = number
                broker.take(image)
                self._ask(process, lambda: self._clear_losses(broker))

        self.loop.call_at(self.network.arrival_s(), arrive, context=process.context)
        self.network.world_timer(self.loop.time() + AGAIN_S, lambda: self._tell(node_id))

    # -- what brokers ask

    def _ask(self, process: Process, do: Callable[[], None]) -> None:
        """Calls ``do`` here once the broker's request arrives."""
        machine = self.network.machine(process.name)

        def arrive() -> None:
            if self.network.is_open(machine, self.machine):
                do()
            elif process.alive:
                self._ask(process, do)

        self.network.world_timer(self.network.arrival_s() + AGAIN_S * self._is_cut(process), arrive)

    def _is_cut(self, process: Process) -> bool:
        return not self.network.is_open(self.network.machine(process.name), self.machine)

    def alter_isr(
        self,
        topic: str,
        partition: int,
        change: AlterPartitionItem,
        answer: Callable[[PartitionImage | None], None],
    ) -> None:
        """A leader requests another ISR; ``answer`` gets the resulting state, or None if it is refused."""
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a process asks, not the world")

        def arrive() -> None:
            found = self.image.topics[topic]
            state: PartitionImage | None = None
            registered = self._brokers.get(change.leader)
            if registered is None or registered[0] is not process:
                self.promises.events.add(f"{change} is of a process that is gone", "the world")
                return
            try:
                old = found.partitions[partition]
                state = plan_isr_change(self.image, topic, old, change, policy_of(found))
            except KafkaError as problem:
                self.promises.events.add(f"the controller refuses {change}: {problem}", "the world")
                if problem.code in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST):
                    self.promises.events.count("ISR requests rejected")
            if state is not None and state is not old:
                partitions = list(found.partitions)
                partitions[partition] = state
                self._publish(self.image.with_topics([found.with_partitions(partitions)]))
            self.loop.call_at(self.network.arrival_s(), answer, state, context=process.context)

        self._ask(process, arrive)

    async def next_producer_ids(self) -> tuple[int, int]:
        """Allocates a block of producer ids."""
        self._next_producer_id += 1000
        return self._next_producer_id, 1000


def policy_of(topic: TopicImage) -> ElectionPolicy:
    """The policy of topics that must not lose records."""
    return ElectionPolicy(min_insync_replicas=int(topic.config["min.insync.replicas"]))


def new_topic(
    name: str, topic_id: bytes, partitions: int, replicas: list[int], config: dict[str, str]
) -> TopicImage:
    """Creates a topic whose partitions have no state yet."""
    return TopicImage(
        name,
        topic_id,
        tuple(
            PartitionImage(
                index, -1, 0, replicas[index % len(replicas) :] + replicas[: index % len(replicas)], [], -1
            )
            for index in range(partitions)
        ),
        config,
    )
