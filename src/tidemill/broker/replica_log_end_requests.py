"""Requests the log ends of replicas, for elections without an in-sync or eligible replica.

A ListOffsets request with the replica id of a debugger is answered by any replica, also by Apache Kafka's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from tidemill.broker.broker_links import BrokerLinks
from tidemill.broker.list_offsets_requests import ANY_LEADER_EPOCH, list_offsets_in_parts
from tidemill.controller.leader_election import LogEnd
from tidemill.model.configs import BrokerConfig
from tidemill.model.task_set import cancel_all
from tidemill.model.types import TopicPartition
from tidemill.net.link import LinkError
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.wire.list_offset_timestamps import DEBUGGING_REPLICA, LATEST

logger = logging.getLogger("tidemill.controller")

RETRY_S = 0.1
"""A broker that has just registered must first receive LeaderAndIsr and open its replicas."""

Ends = dict[TopicPartition, dict[int, LogEnd]]


class ReplicaLogEndRequests:
    """Requests log ends from the brokers with replicas, including this one."""

    def __init__(
        self,
        node_id: int,
        config: Callable[[], BrokerConfig],
        replica_manager: ReplicaManager,
        links: BrokerLinks,
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._replica_manager = replica_manager
        self._links = links

    async def request(self, wanted: Mapping[int, Sequence[TopicPartition]], timeout_s: float) -> Ends:
        """Returns the log ends of these replicas, by broker, that arrive within ``timeout_s`` seconds."""
        ends: Ends = {key: {} for partitions in wanted.values() for key in partitions}
        requests = [
            asyncio.ensure_future(self._request_until_known(broker, partitions, ends))
            for broker, partitions in wanted.items()
        ]
        try:
            _, late = await asyncio.wait(requests, timeout=timeout_s)
        finally:
            await cancel_all(requests)
        if late:
            silent = sorted(
                broker
                for broker, partitions in wanted.items()
                if any(broker not in ends[key] for key in partitions)
            )
            logger.warning("brokers %s did not return their log ends within %g s", silent, timeout_s)
        return ends

    async def _request_until_known(
        self, broker: int, partitions: Sequence[TopicPartition], ends: Ends
    ) -> None:
        while left := [key for key in partitions if broker not in ends[key]]:
            try:
                if broker == self._node_id:
                    self._read_own(left, ends)
                else:
                    await self._request_from(broker, left, ends)
            except LinkError as problem:
                logger.info("requesting the log ends of broker %d failed and is retried: %s", broker, problem)
            await asyncio.sleep(RETRY_S if any(broker not in ends[key] for key in left) else 0)

    def _read_own(self, partitions: Sequence[TopicPartition], ends: Ends) -> None:
        for key in partitions:
            partition = self._replica_manager.find(key.topic, key.partition)
            if partition is not None and not partition.is_offline:
                epoch = int(partition.log.leader_epochs.latest)
                ends[key][self._node_id] = LogEnd(epoch, int(partition.log.end_offset))

    async def _request_from(self, broker: int, partitions: Sequence[TopicPartition], ends: Ends) -> None:
        link = await self._links.open(broker)
        try:
            async for offsets in list_offsets_in_parts(
                link,
                dict.fromkeys(partitions, ANY_LEADER_EPOCH),
                replica_id=DEBUGGING_REPLICA,
                timestamp=LATEST,
                timeout_s=self._config().seconds("request.timeout.ms"),
            ):
                for key, one in offsets.items():
                    if key in ends:
                        ends[key][broker] = LogEnd(one.leader_epoch, one.offset)
        finally:
            link.close("the log ends are known")
