"""The controller of the replication simulation decides by the same data as the real controller."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from replication_cluster import ReplicationCluster

from simulation import LOOK_EVERY, TOPIC

PATIENCE_S = 20.0


class FailedDirectoryScenario(ReplicationCluster):
    """The leader of a partition has a disk that rejects writes, and stays alive."""

    async def _run(self) -> None:
        self.loop.on_step, self.loop.steps_a_look = self._look, LOOK_EVERY
        for node in self.nodes:
            node.boot()
        await self._begin_clients()
        known = self.promises.partitions[TOPIC, 0]
        await self._until(lambda: len(known.holders.isr) == len(self.nodes))
        leader = self.node(known.leader)
        leader.files.fail("append", "/data/", errno.EIO)
        await self._until(lambda: known.leader not in (-1, leader.node_id))
        assert leader.is_running
        assert leader.node_id in self.controller.image.brokers
        state = self.controller.image.topics[TOPIC].partitions[0]
        assert leader.node_id not in state.isr
        assert leader.node_id in state.offline

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_partitions_of_a_live_broker_with_a_failed_disk_get_another_leader() -> None:
    for seed in (1, 2, 3):
        FailedDirectoryScenario(seed).run()
