"""Requests the log ends of replicas, for elections without an in-sync or eligible replica.

A ListOffsets request with the replica id of a debugger is answered by any replica, also by Apache Kafka's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from tidemill.broker.broker import Broker
from tidemill.broker.broker_links import BrokerLinks
from tidemill.broker.handlers.list_offsets import DEBUGGING_REPLICA, LATEST
from tidemill.controller.leader_election import LogEnd
from tidemill.model.task_set import cancel_all
from tidemill.model.types import TopicPartition
from tidemill.net.link import Link, LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

logger = logging.getLogger("tidemill.controller")

VERSIONS = (4, 9)
"""From version 4 on the response contains the leader epoch."""
PARTITIONS_MAX = 1000
"""The limit for one request."""
RETRY_S = 0.1
"""A broker that has just registered must first receive LeaderAndIsr and open its replicas."""

Ends = dict[TopicPartition, dict[int, LogEnd]]


class LogEndRequests:
    """Requests log ends from the brokers with replicas, including this one."""

    def __init__(self, broker: Broker, links: BrokerLinks) -> None:
        self._broker = broker
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
                if broker == self._broker.node_id:
                    self._read_own(left, ends)
                else:
                    await self._request_from(broker, left, ends)
            except LinkError as problem:
                logger.info("requesting the log ends of broker %d failed and is retried: %s", broker, problem)
            await asyncio.sleep(RETRY_S if any(broker not in ends[key] for key in left) else 0)

    def _read_own(self, partitions: Sequence[TopicPartition], ends: Ends) -> None:
        for key in partitions:
            partition = self._broker.replica_manager.find(key.topic, key.partition)
            if partition is not None and not partition.failed:
                epoch = int(partition.log.leader_epochs.latest)
                ends[key][self._broker.node_id] = LogEnd(epoch, int(partition.log.end_offset))

    async def _request_from(self, broker: int, partitions: Sequence[TopicPartition], ends: Ends) -> None:
        link = await self._links.open(broker)
        try:
            for first in range(0, len(partitions), PARTITIONS_MAX):
                await self._request_some(link, broker, partitions[first : first + PARTITIONS_MAX], ends)
        finally:
            link.close("the log ends are known")

    async def _request_some(
        self, link: Link, broker: int, partitions: Sequence[TopicPartition], ends: Ends
    ) -> None:
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for name, number in partitions:
            wanted = ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=LATEST)
            by_topic.setdefault(name, []).append(wanted)
        request = ListOffsetsRequest(
            replica_id=DEBUGGING_REPLICA,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=name, partitions=listed) for name, listed in by_topic.items()],
        )
        version = link.version_of(ApiKey.LIST_OFFSETS, *VERSIONS)
        timeout_s = self._broker.config.seconds("request.timeout.ms")
        response = await link.request(ApiKey.LIST_OFFSETS, version, request, ListOffsetsResponse, timeout_s)
        for topic in response.topics:
            for one in topic.partitions:
                key = TopicPartition(topic.name, one.partition_index)
                if one.error_code == 0 and key in ends:
                    ends[key][broker] = LogEnd(one.leader_epoch, one.offset)
