"""Measures the cost of a broker failure, cluster-wide settings and checkpoints with many partitions.

    python bench/many_partitions.py [--partitions 1000,10000] [--affected 10]

Each change affects only ``affected`` partitions; the others exist. Times are processor time of the thread
that responds to clients, the minimum of several, in milliseconds.

death        the controller's plan for a dead broker with that many replicas
             (``plan_broker_change_in_slices``), and the change of the image for the other brokers
told         a broker that leads all partitions applies the failure of this broker
settings     a change of a cluster-wide setting on which no topic depends
one default  a change of a topic default that all but that many topics override
watermarks   the checkpoint of that many moved high watermarks
points       the checkpoint of that many moved recovery points
starts       the checkpoint of that many moved log start offsets
quiet        all three checkpoints without changes
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.metadata_cache import (
    BrokerImage,
    ClusterImage,
    Delta,
    MetadataCache,
    PartitionImage,
    TopicImage,
)
from tidemill.controller.leader_election import plan_broker_change_in_slices
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.system_files import SystemFiles
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.event_loop_slices import run_at_once
from tidemill.replication.partition_state import PartitionState
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.broker_server import BrokerServer
from tidemill.server.cluster_member import ClusterMember

LEADER, FOLLOWER, DEAD = 1, 2, 3
PARTITIONS_A_TOPIC = 10
ROUNDS = 5


def image_of(partitions: int, affected: int, brokers: tuple[int, ...]) -> ClusterImage:
    """Creates topics led by one broker; the dead broker has replicas of ``affected`` partitions."""
    topics = {}
    for first in range(0, partitions, PARTITIONS_A_TOPIC):
        states = []
        for index in range(PARTITIONS_A_TOPIC):
            third = [DEAD] if first + index < affected else []
            replicas = [LEADER, FOLLOWER, *third]
            states.append(PartitionImage(index, LEADER, 1, replicas, list(replicas), 1))
        name = f"topic-{first}"
        settings = {"retention.ms": "1000"} if first >= affected else {}
        topics[name] = TopicImage(name, b"%16d" % first, tuple(states), settings)
    living = {one: BrokerImage(BrokerRegistration(one, (), None), one) for one in brokers}
    return ClusterImage("c", LEADER, 1, living, topics)


async def timed(do: Callable[[], Any], prepare: Callable[[], None] = lambda: None) -> float:
    """Returns the minimum time of several calls."""
    best = float("inf")
    for _ in range(ROUNDS):
        prepare()
        began = time.thread_time()
        result = do()
        if isinstance(result, Awaitable):
            await result
        best = min(best, time.thread_time() - began)
    return best * 1000


class Stage:
    """A broker that leads all of these partitions."""

    def __init__(self, directory: str, partitions: int, affected: int, pool: ThreadPoolExecutor) -> None:
        self.image = image_of(partitions, affected, (LEADER, FOLLOWER, DEAD))
        self.affected = affected
        broker = self.broker = Broker()
        broker.node_id = LEADER
        broker.clock = SystemClock()
        broker.config = BrokerConfig.of()
        broker.metadata_cache = MetadataCache(self.image)
        broker.log_manager = LogManager(SystemFiles(), [directory])
        broker.log_manager.dirs.lock()
        broker.log_manager.dirs.claim("c" * 22, LEADER)
        broker.log_manager.load(0, lambda topic: LogConfig())
        loop = asyncio.get_running_loop()
        no_listener: Any = None  # No partition requests another ISR.
        broker.replica_manager = ReplicaManager(
            LEADER, broker.log_manager, broker.clock, loop, pool, pool, no_listener
        )
        for topic in self.image.topics.values():
            states = [
                PartitionState(one.partition, LEADER, 1, tuple(one.replicas), tuple(one.isr), 1)
                for one in topic.partitions
            ]
            broker.replica_manager.put_topic(topic.name, topic.topic_id, False, states, LogConfig())
        self.all = list(broker.replica_manager.all())

    def dead(self) -> list[Any]:
        """Plans the elections after a broker failure, and the changes for other brokers."""
        before = self.image
        after = before.with_brokers({one: had for one, had in before.brokers.items() if one != DEAD})
        plans = run_at_once(plan_broker_change_in_slices(after, [DEAD]))
        assert sum(len(plan.operations) for plan in plans) == self.affected
        image = after.with_topics(plan.topic for plan in plans)
        delta = Delta.between(before, image)
        assert delta.changed
        self.delta = delta
        return plans

    def told(self) -> Awaitable[None]:
        """A broker applies the failure."""
        this: Any = SimpleNamespace(_broker=self.broker)
        return ClusterMember._brokers_gone(this, self.delta)

    def settings(self, **changed: str) -> Awaitable[None]:
        """Cluster-wide settings have changed."""
        broker = self.broker
        names = {key.replace("_", "."): value for key, value in changed.items()}
        image = self.image.with_broker_config("<default>", names)
        this: Any = SimpleNamespace(
            broker=broker,
            static_config=BrokerConfig.of(),
            fetch_handler=SimpleNamespace(reader=SimpleNamespace()),
            socket_server=SimpleNamespace(limits=None),
            loop=asyncio.get_running_loop(),
            log_cleaner=SimpleNamespace(reconfigured=lambda: None),
        )
        broker.replica_manager.mover.set_bytes_per_second(0)
        this._reconfigure_topics = lambda before: BrokerServer._reconfigure_topics(this, before)
        return BrokerServer._apply(this, Delta.between(self.image, image))

    def moved(self) -> None:
        """The high watermarks of some partitions have moved."""
        for partition in self.all[: self.affected]:
            partition._advance(partition.high_watermark + 1, 0)

    def appended(self) -> None:
        """Some logs have grown, and were synced."""
        for partition in self.all[: self.affected]:
            partition.log.skip_to(partition.log.end_offset + 1, 0)
            partition.log.flush(0)

    def deleted(self) -> None:
        """The start offsets of some logs have moved."""
        for partition in self.all[: self.affected]:
            partition.log.skip_to(partition.log.end_offset + 1, 0)

    async def checkpoint(self) -> None:
        """Writes the checkpoints."""
        checkpoints = self.broker.replica_manager.checkpoints
        await checkpoints.high_watermarks()
        await checkpoints.recovery_points()
        await checkpoints.log_starts()


async def measure(partitions: int, affected: int) -> dict[str, float]:
    """Measures all cases with that many partitions."""
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as pool:
        stage = Stage(directory, partitions, affected, pool)
        await stage.checkpoint()
        checkpoints = stage.broker.replica_manager.checkpoints
        numbers = iter(range(1000, 2000))
        return {
            "death": await timed(stage.dead),
            "told": await timed(stage.told),
            "settings": await timed(lambda: stage.settings(fetch_max_bytes=str(2000 + next(numbers)))),
            "one default": await timed(lambda: stage.settings(log_retention_ms=str(next(numbers)))),
            "watermarks": await timed(checkpoints.high_watermarks, stage.moved),
            "points": await timed(checkpoints.recovery_points, stage.appended),
            "starts": await timed(checkpoints.log_starts, stage.deleted),
            "quiet": await timed(stage.checkpoint),
        }


def main() -> None:
    """Prints a line for each number of partitions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", default="1000,10000")
    parser.add_argument("--affected", type=int, default=10)
    options = parser.parse_args()
    cases = ("death", "told", "settings", "default", "marks", "points", "starts", "quiet")
    print(f"{'partitions':>10} " + " ".join(f"{one:>9}" for one in cases) + "  ms")
    for count in map(int, options.partitions.split(",")):
        found = asyncio.run(measure(count, options.affected))
        print(f"{count:10} " + " ".join(f"{one:9.3f}" for one in found.values()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
