"""Simulated scenarios: a broker that lost its disk returns while others still rely on its former records.

The broker had caught up, and was about to join the ISR. Now its disk is empty, and either its last fetch
arrives at the leader, or the leader's request based on that fetch arrives at the controller. Or it was in
sync, and the controller has not noticed its absence. As soon as the store has it in sync, both other brokers
fail: the acknowledged records must still exist.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from full_cluster import BrokerProcess, FullCluster
from promises import ALL
from simulated_admins import RecordDeleter
from simulated_network import NetworkDelays

from simulation import LOOK_EVERY, TOPIC, Node
from tidemill.broker.broker import Broker
from tidemill.coordination.nodes import BrokerNode, PartitionStateNode
from tidemill.replication.partition import Partition

PATIENCE_S = 30.0
ALONE_S = 4.0
"""The session of a broker that was killed is over by then, and others lead what it led."""
ARRIVES_S = 1.0
"""What was on its way is there by then, and has been answered."""
SOON_S = 0.05
FETCH, WISH, NOTHING = "fetch", "wish", "nothing"
"""What is on its way: what a follower fetched, or the ISR that its leader wants."""


class EmptyDiskScenario(FullCluster):
    """Three whole brokers, one of which returns without records."""

    def __init__(self, seed: int, on_its_way: str) -> None:
        super().__init__(seed, 0)
        self.on_its_way = on_its_way
        self.partition_count = 3
        self.topic_config = {"min.insync.replicas": "1"}
        self.compacted.is_compacted = False
        self.network.weather = NetworkDelays(slow=0.0)
        self.session_s = 2.0
        self.committers, self.position_readers, self.members = [], [], []
        self.admins, self.temporary_clients = [], []
        self.topic_replacers = []
        self.brokers: dict[str, BrokerProcess] = {}
        self.index = 0
        """the partition under test."""
        self.leader = self.follower = self.controller = self.nodes[0]
        self.joined: asyncio.Future[None] | None = None
        """Done when the store has the follower in sync."""
        self.events_until_answered = ""
        """What had happened when all that was on its way had been answered."""
        self._moments: list[tuple[Callable[[], bool], Callable[[], None], asyncio.Future[None]]] = []

    # -- what is there

    def _make_deleters(self) -> list[RecordDeleter]:
        return []

    def make_server(self, node: Node) -> BrokerProcess:
        self.brokers[node.name] = made = super().make_server(node)
        return made

    def broker(self, node: Node) -> Broker:
        """The broker of the last process on ``node``, once it has started."""
        return self.brokers[node.name].server.broker

    def replica(self, node: Node) -> Partition | None:
        """The partition's replica on ``node``."""
        partitions = getattr(self.broker(node), "replica_manager", None)
        return None if partitions is None else partitions.find(TOPIC, self.index)

    def led(self) -> Partition:
        """The leader's replica."""
        found = self.replica(self.leader)
        assert found is not None
        return found

    def pending(self) -> tuple[int, ...]:
        """The ISR that the leader has requested."""
        pending = self.led().isr_state.pending
        return () if pending is None else pending.isr

    def epoch(self) -> int | None:
        """The epoch of the follower's registration, as the controller knows it."""
        known = self.broker(self.controller).controller.image.brokers.get(self.follower.node_id)
        return None if known is None else known.epoch

    def is_in_sync(self) -> bool:
        """Whether the leader has the follower in the ISR."""
        return self.follower.node_id in self.led().isr

    # -- what happens

    async def at(self, condition: Callable[[], bool], action: Callable[[], None] = lambda: None) -> None:
        """Calls a function as soon as a condition holds."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._moments.append((condition, action, future))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await future
        except TimeoutError:
            self.events.violate("the scenario does not proceed")
            self._check_stopped()

    def _look(self) -> None:
        if self.loop.steps % LOOK_EVERY == 0:
            super()._look()
        for moment in list(self._moments):
            condition, action, future = moment
            if condition():
                self._moments.remove(moment)
                action()
                future.set_result(None)

    def _written(self, path: str, data: bytes) -> None:
        super()._written(path, data)
        if path == PartitionStateNode.path(TOPIC, self.index) and self.joined is not None:
            isr = PartitionStateNode.decode(TOPIC, self.index, data).isr
            if self.follower.node_id in isr and not self.joined.done():
                self.joined.set_result(None)

    def kill(self, node: Node) -> None:
        """Ends the process."""
        self.events.add(f"*** {node.name} is killed", "the world")
        node.stop()
        node.files.kill()
        self.network.process_ended(node.machine)

    def wipe(self, node: Node) -> None:
        """Replaces the disk by an empty one."""
        self.events.add(f"*** {node.name} gets another disk", "the world")
        node.put_in_disk()
        # Both others have all its records: no record may be lost.

    def cut(self, one: Node, other: Node) -> None:
        """Delays packets from ``one`` to ``other`` until the connection is restored."""
        self.events.add(f"*** nothing arrives from {one.name} at {other.name}", "the world")
        self.network.cut_off(one.name, other.name)

    async def _run(self) -> None:
        self.loop.on_step = self._look
        for node in self.nodes:
            node.boot()
        await self._begin_clients()
        for producer in self.producers:
            producer.acks = ALL
        await self.at(lambda: all(self._serves(node) for node in self.nodes))
        self._cast()
        # First without any fault: from then on the leader has a connection to the controller.
        await self._dies()
        await self._returns(lambda: None, self.is_in_sync)
        if self.on_its_way == NOTHING:
            await self._writers_rest()
            await self._is_not_missed()
        else:
            await self._dies()
            await self._writers_rest()
            await self._loses_its_disk()
            await self._is_counted_on()
        await self._is_alone()
        self._mend()
        await self._wait_until_settled()
        self._check_logs()

    def _serves(self, node: Node) -> bool:
        parts = [one for one in node.partitions if one.topic == TOPIC]
        return len(parts) == self.partition_count and all(len(one.isr) == len(self.nodes) for one in parts)

    def _cast(self) -> None:
        """Chooses the brokers: the leader of the partition is not the controller, nor is the follower."""
        (self.controller,) = [node for node in self.nodes if self.broker(node).controller.is_active]
        others = [node for node in self.nodes if node is not self.controller]
        for index, leader in itertools.product(range(self.partition_count), others):
            self.index, self.leader = index, leader
            if self.led().is_leader:
                (self.follower,) = [node for node in others if node is not leader]
                return
        raise AssertionError("the controller leads it all")

    async def _dies(self) -> None:
        """The follower is killed, and removed from the ISR."""
        self.kill(self.follower)
        await self.at(lambda: self.epoch() is None and not self.is_in_sync())
        await asyncio.sleep(1.0)

    async def _returns(self, action: Callable[[], None], condition: Callable[[], bool]) -> None:
        self.follower.boot()
        await self.at(condition, action)

    async def _writers_rest(self) -> None:
        """The writers stop: the acknowledged records are complete."""
        for producer in self.producers:
            producer.ended = True
        await self.at(lambda: all(producer.is_settled for producer in self.producers))
        await self.at(lambda: self.led().high_watermark == self.led().log.end_offset > 0)

    async def _loses_its_disk(self) -> None:
        """The follower catches up, is about to join the ISR, and loses its disk."""
        leader, follower, controller = self.leader, self.follower, self.controller
        if self.on_its_way == WISH:
            self.cut(leader, controller)
            await self._returns(
                lambda: self.cut(follower, leader), lambda: follower.node_id in self.pending()
            )
        else:
            await self._returns(lambda: self.cut(follower, leader), self._has_all_records)
        former = self.epoch()
        self.kill(follower)
        self.wipe(follower)
        await self.at(lambda: self.epoch() is None)
        follower.boot()
        await self.at(lambda: self.epoch() not in (None, former))
        assert not self.is_in_sync()

    def _has_all_records(self) -> bool:
        mine = self.replica(self.follower)
        return mine is not None and mine.log.end_offset == self.led().log.end_offset

    async def _is_counted_on(self) -> None:
        """All packets arrive; once the follower is in sync, both other brokers fail."""
        self.joined = self.loop.create_future()
        self.events.add("*** all arrives, before the follower does anything more", "the world")
        self.follower.process.paused = True
        self.network.mend()
        await asyncio.wait([self.joined], timeout=ARRIVES_S)
        self.events_until_answered = self.events.last_lines()
        self.loop.resume(self.follower.process)
        async with asyncio.timeout(PATIENCE_S):
            await self.joined
        mine = self.replica(self.follower)
        there = 0 if mine is None else mine.log.end_offset
        self.events.add(f"in sync with {there} of {self.led().log.end_offset} records", self.follower.name)

    async def _is_not_missed(self) -> None:
        """The controller learns that the follower had failed when it has already returned."""
        former = self.epoch()
        store = self.store.machine.name
        session = self.broker(self.follower).store.session_id
        self.network.cut_off(store, self.controller.name)
        self.kill(self.follower)
        self.store.end(session, "is ended")
        self.wipe(self.follower)
        self.follower.boot()
        path = BrokerNode.path(self.follower.node_id)
        await self.at(lambda: self.store.tree.get(path) is not None)
        self.follower.process.paused = True
        assert self.epoch() == former
        self.network.mend()
        await self.at(lambda: self.epoch() not in (None, former))
        await asyncio.sleep(SOON_S)
        self.loop.resume(self.follower.process)

    async def _is_alone(self) -> None:
        """The other brokers are stopped for a while."""
        for node in (self.leader, self.controller):
            self.kill(node)
        await asyncio.sleep(ALONE_S)
