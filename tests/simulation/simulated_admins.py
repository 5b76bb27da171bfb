"""Administrators of a simulated cluster: topics, reassignments, elections and deletions of records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from change_phases import ChangePhases
from promises import PartitionHistory
from simulated_clients import PATIENCE_S, PORT, Client, Refused, node_of

from tidemill.controller.configuration_control import AlterOperation, ResourceType
from tidemill.coordination.coordination_store import StoreError
from tidemill.model.configs import MIN_INSYNC
from tidemill.model.errors import ErrorCode
from tidemill.net.link import Link, LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tidemill.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidemill.wire.messages.unregister_broker import UnregisterBrokerRequest
from tidemill.wire.schema import Struct

CREATE_VERSION, DELETE_VERSION, MOVE_VERSION, ELECT_VERSION, DELETE_RECORDS_VERSION = 5, 4, 0, 2, 2
ALTER_CONFIGS_VERSION, DELETE_BY_ID_VERSION = 1, 6
UNREGISTERED = 0.3
"""The share of bursts of deletions in which a broker that is not registered is forgotten."""
STOPPED, STOPPED_S_MEAN = 0.3, 0.2
"""The share of moves that are stopped, and how long they go on."""
BURST_S_MEAN = 0.001
"""Within such a time of each other requests of a burst are sent."""
TIMEOUT_MS = 1000
WAIT_S_MAX = 3.0
LOOK_S = 0.02
TEMPORARY_TOPIC = "u"
"""A topic that comes and goes."""
REPLACED_TOPIC = "v"
"""A topic without records that is recreated repeatedly."""
PREFERRED, UNCLEAN = 0, 1
HIGH_WATERMARK = -1


class Admin(Client):
    """Creates the topic."""

    async def make(self, partitions: int, config: Mapping[str, str], replicas: int = 3) -> None:
        """Creates the topic; returns once its partitions have leaders."""
        while True:
            try:
                await self.create(self.topic, partitions, replicas, config)
                for partition in range(partitions):
                    await self.leader(partition)
            except (LinkError, Refused) as problem:
                self.events.add(f"{type(problem).__name__}: {problem}")
                await asyncio.sleep(0.2)
            else:
                return

    async def create(self, name: str, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        """Creates a topic, unless it exists."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=[],
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        answer = await self.ask_any(ApiKey.CREATE_TOPICS, CREATE_VERSION, request)
        check(answer.topics[0].error_code, ErrorCode.TOPIC_ALREADY_EXISTS)

    async def elect(
        self, topic: str, partitions: list[int], election_type: int, address: str | None = None
    ) -> None:
        """Requests elections from the broker at ``address``, if it is the controller."""
        request = ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=[TopicPartitions(topic=topic, partitions=partitions)],
            timeout_ms=TIMEOUT_MS,
        )
        asked = address or self.random.choice(self._bootstrap)
        answer = await self.ask(asked, ApiKey.ELECT_LEADERS, ELECT_VERSION, request)
        check(answer.error_code)


class ClusterAdmin(Admin):
    """Changes the cluster continuously, and leaves a stable cluster at the end."""

    def __init__(
        self,
        *client: Any,
        phases: ChangePhases,
        partitions: int,
        brokers: list[int],
        temporary_config: Mapping[str, str],
        pause_s: float,
        only_moves: bool = False,
    ) -> None:
        super().__init__(*client)
        self.phases = phases
        self.only_moves = only_moves
        self.partitions = partitions
        self.brokers = brokers
        self.temporary_config = temporary_config
        self.pause_s = pause_s
        self.changes = 0

    async def work(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
        if self.ended:
            return
        luck = self.random.random()
        if luck < 0.35 or self.only_moves:
            partition = self.random.randrange(self.partitions)
            count = self.random.choice((1, 2, 2, 3, 3))
            await self._move(partition, self.random.sample(self.brokers, count))
            if self.random.random() < STOPPED:
                await asyncio.sleep(self.random.expovariate(1 / STOPPED_S_MEAN))
                await self._move(partition, None)
        elif luck < 0.5:
            await self._change(
                "election asked", self.elect(self.topic, list(range(self.partitions)), PREFERRED)
            )
        elif luck < 0.75:
            self.events.add(f"makes {TEMPORARY_TOPIC}")
            creation = self.create(
                TEMPORARY_TOPIC,
                self.random.choice((1, 2)),
                self.random.choice((1, 2, 3)),
                self.temporary_config,
            )
            await self._change("topic creation asked", creation)
        else:
            await self._change("topic deletion asked", self._delete())

    async def _change(self, phase: str, change: Any) -> None:
        self.phases.begin(phase)
        try:
            await change
        finally:
            self.phases.end(phase)
        self.changes += 1
        self.events.count(phase.replace(" asked", " done"))

    async def _move(self, partition: int, replicas: list[int] | None) -> None:
        """Reassigns a partition, or cancels its reassignment (None)."""
        self.events.add(f"moves {self.topic}-{partition} to {replicas}")
        tp = self.topic, partition
        self.promises.reassignments.requested(tp, replicas)
        topic = ReassignableTopic(
            name=self.topic,
            partitions=[ReassignablePartition(partition_index=partition, replicas=replicas)],
        )
        await self._change("move asked", self._reassign(topic))
        self.promises.reassignments.accepted(tp, replicas)

    async def _reassign(self, topic: ReassignableTopic) -> None:
        request = AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=[topic])
        answer = await self.ask_any(ApiKey.ALTER_PARTITION_REASSIGNMENTS, MOVE_VERSION, request)
        check(answer.error_code)
        check(answer.responses[0].partitions[0].error_code)

    async def _delete(self) -> None:
        self.events.add(f"deletes {TEMPORARY_TOPIC}")
        self.promises.deletions.by_name(TEMPORARY_TOPIC)
        request = DeleteTopicsRequest(topic_names=[TEMPORARY_TOPIC], timeout_ms=TIMEOUT_MS)
        answer = await self.ask_any(ApiKey.DELETE_TOPICS, DELETE_VERSION, request)
        check(answer.responses[0].error_code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class TopicReplacer(Admin):
    """Deletes a topic in several ways, and creates another of the same name at the same time.

    Sometimes it unregisters a dead broker, for which a deletion may wait.
    """

    def __init__(
        self,
        *client: Any,
        mark: Callable[[str], Awaitable[None]],
        gone: Callable[[], list[int]],
        pause_s: float,
    ) -> None:
        """``mark`` marks a topic for deletion in the store. ``gone``: the brokers that are not registered."""
        super().__init__(*client)
        self.mark = mark
        self.gone = gone
        self.pause_s = pause_s

    async def work(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
        if self.ended:
            return
        topic_id = self.promises.topic_id_of(self.topic)
        self.events.add(f"replaces {self.topic} {topic_id.hex()}")
        changes = [self._make() for _ in range(self.random.choice((1, 2, 3)))]
        if topic_id:
            self.promises.deletions.by_id(topic_id)
            changes += [self._delete(topic_id) for _ in range(self.random.choice((1, 2, 3)))]
            if self.random.random() < 0.6:
                changes.append(self.mark(self.topic))
            self.events.count("bursts of deletions")
        gone = self.gone()
        if gone and self.random.random() < UNREGISTERED:
            changes.append(self._unregister(self.random.choice(gone)))
        self.random.shuffle(changes)
        outcomes = await asyncio.gather(*map(self._soon, changes), return_exceptions=True)
        for problem in outcomes:
            if isinstance(problem, LinkError | Refused | StoreError | TimeoutError):
                self.events.add(f"{type(problem).__name__}: {problem}")
            elif problem is not None:
                raise problem

    async def ask_any(self, key: int, version: int, request: Any) -> Any:
        """Sends a request over a new connection: a broker answers the requests of one connection in order."""
        link = await Link.open(0, self.random.choice(self._bootstrap), PORT, self.name, PATIENCE_S)
        try:
            return await link.request(key, version, request, Struct, PATIENCE_S)
        finally:
            link.close("the response has arrived, or no request waits for it")

    async def _soon(self, change: Awaitable[None]) -> None:
        await asyncio.sleep(self.random.expovariate(1 / BURST_S_MEAN))
        await change

    async def _unregister(self, broker: int) -> None:
        """Unregisters an absent broker, so that deletions continue. The broker may return nevertheless."""
        answer = await self.ask_any(ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=broker))
        check(answer.error_code)
        self.events.add(f"unregisters broker {broker}")
        self.events.count("brokers unregistered")

    async def _make(self) -> None:
        await self.create(self.topic, 1, self.random.choice((1, 1, 1, 2)), {})

    async def _delete(self, topic_id: bytes) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=TIMEOUT_MS
        )
        answer = await self.ask_any(ApiKey.DELETE_TOPICS, DELETE_BY_ID_VERSION, request)
        check(answer.responses[0].error_code, ErrorCode.UNKNOWN_TOPIC_ID)


class MinInsyncAdmin(Client):
    """Changes ``min.insync.replicas`` sometimes: the topic's value, or the default without one."""

    def __init__(
        self,
        *client: Any,
        phases: ChangePhases,
        write: Callable[[str | None], Awaitable[None]],
        has_unapplied_writes: Callable[[], bool],
        pause_s: float,
    ) -> None:
        """``write`` writes the topic's value directly to the store.

        ``has_unapplied_writes``: no controller has applied the last direct write yet. Of two such changes a
        controller would read only the last (``docs/decisions/eligible-leader-replicas.md``).
        """
        super().__init__(*client)
        self.phases = phases
        self.write = write
        self.has_unapplied_writes = has_unapplied_writes
        self.pause_s = pause_s

    async def work(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
        luck = self.random.random()
        if self.promises.min_insync.of(self.topic) > 1 and luck < 0.6:
            await self._wait_until(self._has_eligible)
        elif luck < 0.3:
            await self._wait_until(self._is_out_of_sync)
        if self.ended or self.has_unapplied_writes():
            return
        setting, luck = self.promises.min_insync, self.random.random()
        if luck < 0.2:
            change = self._write_past_brokers(str(3 - setting.of(self.topic)))
        elif luck < 0.35:
            change = self._alter(ResourceType.TOPIC, self.topic, str(3 - setting.of(self.topic)))
        elif luck < 0.5 or setting.has_own(self.topic):
            change = self._alter(ResourceType.TOPIC, self.topic, None)
        else:
            change = self._alter(ResourceType.BROKER, "", str(3 - setting.default))
        self.phases.begin("min.insync.replicas change asked")
        try:
            await change
        finally:
            self.phases.end("min.insync.replicas change asked")

    async def _wait_until(self, is_so: Callable[[PartitionHistory], bool]) -> None:
        """Waits until a condition holds for some partition of the topic, or for a while."""
        until_s = self.now + WAIT_S_MAX
        while self.now < until_s and not self.ended:
            if any(is_so(one) for tp, one in self.promises.partitions.items() if tp[0] == self.topic):
                return
            await asyncio.sleep(LOOK_S)

    @staticmethod
    def _is_out_of_sync(known: PartitionHistory) -> bool:
        return set(known.holders.isr) != set(known.replicas)

    @staticmethod
    def _has_eligible(known: PartitionHistory) -> bool:
        return bool(known.holders.eligible) and known.leader >= 0

    async def _write_past_brokers(self, value: str | None) -> None:
        self.events.add(f"writes {MIN_INSYNC} of {self.topic} to the store: {value or 'the default'}")
        try:
            await self.write(value)
        except StoreError as problem:
            self.events.add(f"{type(problem).__name__}: {problem}")

    async def _alter(self, kind: ResourceType, name: str, value: str | None) -> None:
        self.events.add(f"sets {MIN_INSYNC} of {name or 'the cluster'} to {value or 'the default'}")
        operation = AlterOperation.DELETE if value is None else AlterOperation.SET
        config = AlterableConfig(name=MIN_INSYNC, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        code: int = ErrorCode.NOT_CONTROLLER
        for address in self.random.sample(self._bootstrap, len(self._bootstrap)):
            answer = await self.ask(address, ApiKey.INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS_VERSION, request)
            code = answer.responses[0].error_code
            if code != ErrorCode.NOT_CONTROLLER:
                break
        check(code)


class RecordDeleter(Client):
    """Deletes the first records of a partition sometimes."""

    def __init__(self, *client: Any, phases: ChangePhases, partitions: int, pause_s: float) -> None:
        super().__init__(*client)
        self.phases = phases
        self.partitions = partitions
        self.pause_s = pause_s

    async def work(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
        if self.ended:
            return
        tp = (self.topic, self.random.randrange(self.partitions))
        address = await self.leader(tp[1])
        log = self.promises.logs[*tp, self.topic_id]
        seen = max(log.read, default=-1) + 1
        if self.random.random() < 0.4:
            offset = HIGH_WATERMARK
        else:
            offset = self.random.randint(min(log.deleted_to, seen), seen)
        self.phases.begin("DeleteRecords asked")
        try:
            await self._delete(tp, address, offset)
        finally:
            self.phases.end("DeleteRecords asked")

    async def _delete(self, tp: tuple[str, int], address: str, offset: int) -> None:
        self.events.add(f"deletes the records of {tp} below {offset} at {address}")
        self.promises.delete_tried(tp, self.topic_id, offset)
        wanted = DeleteRecordsPartition(partition_index=tp[1], offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=self.topic, partitions=[wanted])], timeout_ms=TIMEOUT_MS
        )
        answer = await self.ask(address, ApiKey.DELETE_RECORDS, DELETE_RECORDS_VERSION, request)
        one = answer.topics[0].partitions[0]
        check(one.error_code)
        self.events.add(f"{tp} starts at {one.low_watermark} now")
        start = max(offset, one.low_watermark)
        self.promises.delete_answered(tp, self.topic_id, start, node_of(address))
        self.phases.moment("DeleteRecords answered")


def check(code: int, *accepted: int) -> None:
    """Raises Refused for an error that is not in ``accepted``."""
    if code and code not in accepted:
        raise Refused(code)
