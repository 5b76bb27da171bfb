"""Carrying out what a controller decides: logs are made, led, followed, and let go, one change at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.broker.broker import Broker
from tidemill.broker.context import RequestContext
from tidemill.broker.log_configs import log_config
from tidemill.broker.metadata import Delta, PartitionImage, TopicImage, effective_config
from tidemill.coordination.image import TOPIC
from tidemill.log.errors import failure_of
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.model.ports import Clock
from tidemill.model.slices import ITEMS_A_PAUSE, a_pause, slices_of, with_pauses
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.replication.partition_state import PartitionState

log = logging.getLogger("tidemill.broker")

LOGS_A_TURN = 50
"""Logs that are made, or partitions that are led or followed, before the loop does its other work."""
TURN_S = 0.004
"""The same, where the disk is slow: making a log takes several files."""
OTHERS_FIRST_S = 0.25
"""How long logs of new followers wait until the other brokers are told of the change that brings them."""


Placements = Iterable[tuple[str, Iterable[tuple[int, Sequence[int]]]]]
"""Names of topics, each with the numbers and the replicas of its partitions."""


class Taking(NamedTuple):
    """Replicas of one topic to lead or to follow."""

    name: str
    topic_id: bytes
    internal: bool
    settings: Mapping[str, str]
    states: Sequence[PartitionState]
    fresh: Container[int]
    """The partitions that this broker had no replica of before."""


class CarryingOut:
    """Carries out what the controller of this process decides."""

    def __init__(
        self, broker: Broker, removed: Callable[[], Awaitable[None]], listener: str | None = None
    ) -> None:
        """``removed`` is awaited after logs were deleted, before that is confirmed.

        ``listener`` is the one through which brokers reach each other; None: there are no others.
        """
        self.listener = listener
        self.controller_epoch = 0
        self.broker_epoch = -1
        """Of this broker's registration; -1 as long as it is not registered."""
        self.heard = asyncio.Event()
        """Set once the first command for this registration was carried out."""
        self.replicas_failed: Callable[[Sequence[tuple[bytes, int]]], None] = lambda partitions: None
        """Called with partitions (by topic id) that a change brings here, and that cannot be had."""
        self.replicas_served: Callable[[Sequence[tuple[bytes, int]]], None] = lambda partitions: None
        """Called with partitions (by topic id) that the controller has as offline, and that are served."""
        self.deletion_refused: Callable[[TopicImage], None] = lambda topic: None
        """Called with a topic that cannot be deleted here now: its disk is full, for instance."""
        self.let_go_refused: Callable[[TopicImage, int], None] = lambda topic, index: None
        """Called with a partition that has no replica here any more, and cannot be deleted here now."""
        self.office_lost: Callable[[], None] = lambda: None
        """Called where the controller of this process decides although a later one has sent commands."""
        self._broker = broker
        self._next_config: BrokerConfig | None = None
        """The configuration that a change brings, while its partitions are taken over."""
        self._removed = removed
        self._one_at_a_time = asyncio.Lock()

    def are_open_to(self, context: RequestContext) -> bool:
        """Whether a request among brokers may come as this one came: others than brokers could send it."""
        return self.listener is not None and context.listener.name == self.listener

    # The controller of this process

    async def carry_out(self, delta: Delta, told: asyncio.Future[None] | None = None) -> None:
        """Carries out a change that this process's controller has decided, and makes its image current.

        ``told`` is done when the image is current, and this broker leads what it shall lead: the logs of new
        replicas that only follow are made after that, as no client notices them. What fails then is told to
        :attr:`late_failed`.
        """
        async with self._one_at_a_time:
            if delta.image.controller_epoch < self.controller_epoch:
                log.warning("a later controller has sent commands: this one's are not carried out")
                self.office_lost()
                return
            self.controller_epoch = delta.image.controller_epoch
            if not delta.before.brokers:
                await self._keep_assigned(
                    (topic.name, ((one.partition, one.replicas) for one in topic.partitions))
                    for topic in delta.image.topics.values()
                )
            turn = Turn(self._broker.clock)
            await self._remove(delta, turn)
            failed: list[tuple[bytes, int]] = []
            if delta.broker_configs_changed:
                # Before partitions are led: by a lower min.insync.replicas than the controller has read they
                # would commit what no other replica has.
                config = self._broker.config
                self._next_config = effective_config(config, delta.image, self._broker.node_id)
            try:
                late = [await self._put(delta, one, one.partitions, turn, failed) for one in delta.created]
                for old, topic in delta.changed:
                    late.append(await self._put(delta, topic, changed_partitions(old, topic), turn, failed))
                    await self._let_go(delta, old, topic, turn)
            finally:
                self._next_config = None
            if not delta.before.brokers:
                await self._warn_of_strays({*delta.image.deleting, *delta.image.unreadable_of(TOPIC)})
            await self._broker.metadata.publish(delta)
            self.heard.set()
            if told is not None and not told.done():
                told.set_result(None)
            if failed:
                self.replicas_failed(failed)
            late = [one for one in late if one.states]
            if late and delta.others:
                # What the others are told, and clients wait for, is made by this thread, too.
                await asyncio.wait(delta.others, timeout=OTHERS_FIRST_S)
            await self._take_late(delta, late, turn)

    async def _take_late(self, delta: Delta, late: Sequence[Taking], turn: Turn) -> None:
        failed: list[tuple[bytes, int]] = []
        for one in late:
            await self._take_what_can_be_had(delta, one, turn, failed)
        if failed:
            self.replicas_failed(failed)

    async def _take_what_can_be_had(
        self, delta: Delta, taking: Taking, turn: Turn, failed: list[tuple[bytes, int]]
    ) -> None:
        """Adds partitions that cannot be opened to ``failed``, unless the controller has them as offline.

        Those that it has as offline, and that are served here, are reported at once.
        """
        served: list[tuple[bytes, int]] = []
        try:
            await self._take(taking, turn)
        except KafkaError as problem:
            delta.fail(taking.name, problem)
        image = delta.image.topics.get(taking.name)
        for state in taking.states:
            await turn.next()
            known = image.partition(state.partition) if image is not None else None
            is_offline = known is not None and self._broker.node_id in known.offline
            if self._serves(taking.name, state.partition):
                if is_offline:
                    served.append((taking.topic_id, state.partition))
            elif not is_offline:
                failed.append((taking.topic_id, state.partition))
        if served:
            self.replicas_served(served)

    def _serves(self, topic: str, index: int) -> bool:
        partition = self._broker.partitions.find(topic, index)
        return partition is not None and not partition.failed

    async def _keep_assigned(self, topics: Placements) -> None:
        """Stops leading and following what a full state does not assign to this broker. The logs stay.

        The controller before may have moved it to others without reaching this broker.
        """
        assigned = await with_pauses(_assigned_to(self._broker.node_id, topics))
        partitions = self._broker.partitions
        for some in slices_of(list(partitions.all()), LOGS_A_TURN):
            for partition in partitions.keep_replicas(list(some), assigned):
                log.warning(
                    "%s-%d is led here no longer: the controller's state has no replica of it on this "
                    "broker. What was acknowledged here since it was moved away is in %s only",
                    partition.topic,
                    partition.index,
                    partition.log.directory,
                )
            await a_pause()

    async def _warn_of_strays(self, others: Container[str] = ()) -> None:
        """Warns of logs of partitions that this broker has no replica of, once it knows all its replicas.

        It keeps them, as Apache Kafka's brokers on ZooKeeper do: what somebody removed by mistake is there.
        """
        partitions = self._broker.partitions
        strays = []
        for some in slices_of(list(self._broker.logs.logs.items()), ITEMS_A_PAUSE):
            strays += [
                one.directory
                for key, one in some
                if key.topic not in others and partitions.find(key.topic, key.partition) is None
            ]
            await a_pause()
        if strays:
            log.warning(
                "directories of partitions of which this broker has no replica: %d, %s for instance. They "
                "were moved away or deleted while it was away, or the controller cannot read their topic's "
                "nodes, which it logs. They stay until somebody removes the directories",
                len(strays),
                strays[0],
            )

    async def _remove(self, delta: Delta, turn: Turn) -> None:
        partitions = self._broker.partitions
        for topic in delta.deleted:
            try:
                for _ in partitions.removing(topic.name, topic.topic_id, len(topic.partitions)):
                    await turn.next()
            except KafkaError as problem:
                log.error("%s: %s", topic.name, problem)
                delta.fail(topic.name, problem)
                self.deletion_refused(topic)
        if delta.deleted:
            await self._removed()

    async def delete_again(self, topic: TopicImage) -> None:
        """Deletes what this broker has of a topic whose deletion was refused before. Raises StorageError."""
        async with self._one_at_a_time:
            partitions = self._broker.partitions
            known = partitions.topics.by_name.get(topic.name.encode())
            if known is not None and known.topic_id != topic.topic_id:
                return  # Another controller has ended the deletion, and the name was used again.
            turn = Turn(self._broker.clock)
            for _ in partitions.removing(topic.name, topic.topic_id, len(topic.partitions)):
                await turn.next()
            await self._removed()

    async def let_go_again(self, topic: TopicImage, index: int) -> None:
        """Deletes a replica that was moved away, unless it is back. Raises StorageError."""
        async with self._one_at_a_time:
            partitions = self._broker.partitions
            known = self._broker.metadata.image.topics.get(topic.name)
            if known is None or known.topic_id != topic.topic_id:
                return  # Whoever deleted the topic has deleted this as well.
            image = known.partition(index)
            is_assigned = image is not None and self._broker.node_id in image.replicas
            # Another controller may have given it back, and tell of the metadata next.
            if not is_assigned and partitions.find(topic.name, index) is None:
                partitions.stop_replica(topic.name, index, delete=True)
                await self._removed()

    async def _put(
        self,
        delta: Delta,
        topic: TopicImage,
        changed: Iterable[PartitionImage],
        turn: Turn,
        failed: list[tuple[bytes, int]],
    ) -> Taking:
        """Takes over what concerns clients, and returns what comes after that."""
        node = self._broker.node_id
        fresh: set[int] = set()
        now: list[PartitionState] = []
        late: list[PartitionState] = []
        for one in changed:
            await turn.next()
            if node not in one.replicas:
                continue
            if not self._had(topic.name, one.partition, topic.topic_id):
                fresh.add(one.partition)
            (late if one.leader != node and one.partition in fresh else now).append(state_of(one))
        taking = Taking(topic.name, topic.topic_id, topic.internal, topic.config, now, fresh)
        await self._take_what_can_be_had(delta, taking, turn, failed)
        return taking._replace(states=late)

    async def _let_go(self, delta: Delta, old: TopicImage, new: TopicImage, turn: Turn) -> None:
        node = self._broker.node_id
        gone = [
            before.partition
            for before, after in zip(old.partitions, new.partitions, strict=False)
            if before is not after and node in before.replicas and node not in after.replicas
        ]
        for index in gone:
            await turn.next()
            try:
                self._broker.partitions.stop_replica(new.name, index, delete=True)
            except KafkaError as problem:
                log.error("%s-%d: %s", new.name, index, problem)
                delta.fail(new.name, problem)
                self.let_go_refused(new, index)
        if gone:
            await self._removed()

    async def _take(self, taking: Taking, turn: Turn) -> None:
        """Makes the logs that are missing, and takes the states over. Raises what it could not, in one."""
        broker = self._broker
        name, topic_id = taking.name, taking.topic_id
        states = [state for state in taking.states if broker.node_id in state.replicas]
        if not states:
            return
        config = log_config(self._next_config or broker.config, name, taking.settings)
        failures: dict[int, KafkaError] = {}
        failure: KafkaError | None = None
        for state in states:
            await turn.next()
            if broker.partitions.find(name, state.partition) is None:
                try:
                    key = TopicPartition(name, state.partition)
                    is_new = state.partition in taking.fresh
                    broker.logs.create(key, topic_id, config, broker.clock.wall_ms(), is_new=is_new)
                except KafkaError as problem:
                    log.error("%s-%d: %s", name, state.partition, problem)
                    failures[state.partition] = problem
        for start in range(0, len(states), LOGS_A_TURN):
            try:
                piece = states[start : start + LOGS_A_TURN]
                broker.partitions.put_topic(name, topic_id, taking.internal, piece, config)
            except KafkaError as problem:
                log.error("%s: %s", name, problem)
                failure = failure or problem
            if start + LOGS_A_TURN < len(states):
                await asyncio.sleep(0)
        if failures:
            raise failure_of(name, failures)
        if failure is not None:
            raise failure

    def _had(self, name: str, index: int, topic_id: bytes) -> bool:
        """Whether this broker had the partition before: it may lie on a disk that is missing now.

        A controller that begins tells of all partitions as if they were new, and gives ids to topics of older
        versions of Kafka.
        """
        known = self._broker.metadata.image.topics.get(name)
        if known is None or known.topic_id not in (topic_id, ZERO_ID) or index >= len(known.partitions):
            return False
        return self._broker.node_id in known.partitions[index].replicas

    async def take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        """Takes settings (by kind and name) over that somebody wrote to the store."""
        # In one go: this broker may take the office meanwhile, and then has read later ones.
        async with self._one_at_a_time:
            await self._take_settings(settings)

    def topics_without_metadata(self) -> list[str]:
        """The topics whose settings this broker has read while their metadata has not arrived yet."""
        return []

    async def _take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        metadata = self._broker.metadata
        image = metadata.image.with_settings(settings)
        if image is not metadata.image:
            await metadata.publish(Delta.between(metadata.image, image))


class Turn:
    """Lets the loop do its other work after every so many steps, or so much time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = 0
        self._began = clock.monotonic()

    async def next(self) -> None:
        """One more step."""
        self._steps += 1
        if self._steps == LOGS_A_TURN or self._clock.monotonic() - self._began > TURN_S:
            await asyncio.sleep(0)
            self._steps = 0
            self._began = self._clock.monotonic()


def _assigned_to(broker_id: int, topics: Placements) -> Generator[None, None, set[TopicPartition]]:
    """Finds the partitions with a replica on a broker. Yields after every ``ITEMS_A_PAUSE`` partitions."""
    found = set()
    number = 0
    for name, partitions in topics:
        for index, replicas in partitions:
            number += 1
            if number % ITEMS_A_PAUSE == 0:
                yield
            if broker_id in replicas:
                found.add(TopicPartition(name, index))
    return found


def state_of(image: PartitionImage) -> PartitionState:
    """A partition's state as the partition itself takes it."""
    return PartitionState(
        image.partition,
        image.leader,
        image.leader_epoch,
        tuple(image.replicas),
        tuple(image.isr),
        image.partition_epoch,
        tuple(image.adding),
    )


def changed_partitions(old: TopicImage, new: TopicImage) -> list[PartitionImage]:
    """The partitions of ``new`` that are not as they were."""
    known = old.partitions
    return [one for place, one in enumerate(new.partitions) if place >= len(known) or one is not known[place]]
