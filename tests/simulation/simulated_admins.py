"""Administrators of a simulated cluster: they make topics, move replicas, elect leaders, delete topics."""

from __future__ import annotations

import asyncio
from typing import Any

from simulated_clients import Client, Refused

from tidemill.model.errors import ErrorCode
from tidemill.net.link import LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest
from tidemill.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

CREATE_VERSION, DELETE_VERSION, MOVE_VERSION, ELECT_VERSION = 5, 4, 0, 2
TIMEOUT_MS = 1000
OTHER_TOPIC = "u"
"""A topic that comes and goes."""
PAUSE_S_MEAN = 0.5
PREFERRED = 0


class Admin(Client):
    """Makes the topic."""

    async def make(self, partitions: int, min_isr: int) -> None:
        """Returns once its partitions have leaders."""
        while True:
            try:
                await self.create(self.topic, partitions, min_isr)
                for partition in range(partitions):
                    await self.leader(partition)
            except (LinkError, Refused) as problem:
                self.events.add(f"{type(problem).__name__}: {problem}")
                await asyncio.sleep(0.2)
            else:
                return

    async def create(self, name: str, partitions: int, min_isr: int) -> None:
        """Makes a topic, unless it is there."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=3,
            assignments=[],
            configs=[CreatableTopicConfig(name="min.insync.replicas", value=str(min_isr))],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        answer = await self.ask_any(ApiKey.CREATE_TOPICS, CREATE_VERSION, request)
        check(answer.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS)


class Restless(Admin):
    """Changes the cluster all the time; in the end every broker has a replica of every partition again."""

    def __init__(self, *client: Any, partitions: int, brokers: list[int]) -> None:
        super().__init__(*client)
        self.partitions = partitions
        self.brokers = brokers
        self._moved = 0
        """How many partitions were given all brokers in the end."""

    @property
    def is_settled(self) -> bool:
        return self._moved == self.partitions

    async def work(self) -> None:
        if self.ended:
            await self._move(self._moved, self.brokers)
            self._moved += 1
        else:
            await asyncio.sleep(self.random.expovariate(1 / PAUSE_S_MEAN))
            await self._change()

    async def _change(self) -> None:
        if self.ended:
            return
        luck = self.random.random()
        if luck < 0.5:
            count = self.random.choice((1, 2, 3, 3))
            replicas = self.random.sample(self.brokers, count)
            await self._move(self.random.randrange(self.partitions), replicas)
        elif luck < 0.7:
            await self._elect()
        elif luck < 0.85:
            self.events.add(f"makes {OTHER_TOPIC}")
            await self.create(OTHER_TOPIC, self.random.choice((1, 2)), 1)
        else:
            await self._delete()

    async def _move(self, partition: int, replicas: list[int]) -> None:
        self.events.add(f"moves {self.topic}-{partition} to {replicas}")
        topic = ReassignableTopic(
            name=self.topic,
            partitions=[ReassignablePartition(partition_index=partition, replicas=replicas)],
        )
        request = AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=[topic])
        answer = await self.ask_any(ApiKey.ALTER_PARTITION_REASSIGNMENTS, MOVE_VERSION, request)
        check(answer.error_code)
        check(answer.responses[0].partitions[0].error_code)
        self.events.count("moves")

    async def _elect(self) -> None:
        partitions = list(range(self.partitions))
        request = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(topic=self.topic, partitions=partitions)],
            timeout_ms=TIMEOUT_MS,
        )
        answer = await self.ask_any(ApiKey.ELECT_LEADERS, ELECT_VERSION, request)
        check(answer.error_code)
        self.events.count("elections")

    async def _delete(self) -> None:
        self.events.add(f"deletes {OTHER_TOPIC}")
        request = DeleteTopicsRequest(topic_names=[OTHER_TOPIC], timeout_ms=TIMEOUT_MS)
        answer = await self.ask_any(ApiKey.DELETE_TOPICS, DELETE_VERSION, request)
        check(answer.responses[0].error_code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.events.count("deletions")


def check(code: int, *accepted: int) -> None:
    """Raises Refused for an error that is none of ``accepted``."""
    if code and code not in accepted:
        raise Refused(code)
