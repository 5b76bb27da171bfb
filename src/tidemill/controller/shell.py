"""The controller at work: takes commands one after the other, decides, writes to the store, publishes.

Every write carries a check of the controller's epoch, so that a controller that has been replaced without
knowing changes nothing. A change is published, and answered, only once the store has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from tidemill.controller.configs import (
    Alteration,
    ConfigPlan,
    ResourceType,
    plan_broker_config,
    plan_topic_config,
)
from tidemill.controller.elections import plan_takeover
from tidemill.controller.names import TakenNames
from tidemill.controller.topics import (
    Growth,
    NewTopic,
    PartitionBudget,
    Plan,
    deletion_mark,
    fence,
    plan_creation,
    plan_growth,
    unknown_topic,
)
from tidemill.coordination.encoding import encode_id, new_id
from tidemill.coordination.image import ClusterImage, Delta, TopicImage, load_brokers, load_image
from tidemill.coordination.nodes import (
    BROKER_SEQUENCE,
    CLUSTER_ID,
    CONTROLLER,
    CONTROLLER_EPOCH,
    PERSISTENT_PATHS,
    BrokerNode,
    BrokerRegistration,
    ClusterIdNode,
    ConfigNode,
    ControllerEpochNode,
    ControllerNode,
    DeleteTopicNode,
    TopicNode,
)
from tidemill.coordination.port import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
    StoreError,
    ensure_paths,
    parent_of,
    subtree,
)
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.ports import Clock

logger = logging.getLogger(__name__)

OPERATIONS_PER_TRANSACTION_MAX = 1000
"""Large writes that need not be atomic are cut in such pieces: a ZooKeeper request holds at most 1 MB."""

NO_CONTROLLER_VERSION = -1


class Outcome(NamedTuple):
    """What came of one item of a command: the topic as it then is, or an error."""

    name: str
    topic: TopicImage | None = None
    error: KafkaError | None = None


class ConfigCommand(NamedTuple):
    """A change of one resource's settings: by ``alterations``; when they are None, to ``settings``."""

    resource_type: int
    name: str
    alterations: Sequence[Alteration] | None
    settings: Sequence[tuple[str, str | None]] = ()


class Controller:
    """This broker's controller, over its session with the store."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        config: Callable[[], BrokerConfig],
        publish: Callable[[Delta], Awaitable[None]],
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        """``config`` gives the broker's configuration as it is now; ``publish`` makes an image current."""
        self._store = store
        self._broker_id = broker_id
        self._config = config
        self._publish = publish
        self._clock = clock
        self._random = random if random is not None else Random()
        self._image = ClusterImage()
        self._epoch_version = NO_CONTROLLER_VERSION
        self._writing = asyncio.Lock()

    @property
    def image(self) -> ClusterImage:
        """The cluster as this controller last wrote or read it."""
        return self._image

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._epoch_version != NO_CONTROLLER_VERSION

    # Start and end

    async def load(self, known_cluster_id: str | None = None) -> ClusterImage:
        """Makes sure that the tree is there, and reads it; nothing is registered or published yet.

        A store without a cluster id gets ``known_cluster_id`` (that of the data directories), or a new one.
        """
        await ensure_paths(self._store, PERSISTENT_PATHS)
        if await self._store.get(CLUSTER_ID) is None:
            cluster_id = known_cluster_id or encode_id(new_id())
            await ensure_paths(self._store, ["/cluster"])
            # Where another broker of the new cluster is faster, its id holds.
            with contextlib.suppress(NodeExists):
                await self._store.transact([Create(CLUSTER_ID, ClusterIdNode.encode(cluster_id))])
        async with self._writing:
            # What a command writes while the nodes are read would not be in what was read.
            self._image = await load_image(self._store)
        return self._image

    async def activate(
        self, registration: BrokerRegistration, *, lost_unsynced: bool = False
    ) -> ClusterImage:
        """Registers this broker, takes the office of controller, puts right what is not, and publishes.

        ``lost_unsynced`` says that this broker stopped in a way that may have lost what was not synced (the
        machine went down): the partitions it leads get a new leader epoch. Raises KafkaError
        (DUPLICATE_BROKER_REGISTRATION) when a broker of this id lives.
        """
        async with self._writing:
            node = await self._store.get(CONTROLLER_EPOCH)
            epoch = ControllerEpochNode.decode(node.data) + 1 if node is not None else 1
            path = BrokerNode.path(registration.broker_id)
            operations: list[Operation] = [
                Create(path, BrokerNode.encode(registration), ephemeral=True),
                Create(
                    CONTROLLER, ControllerNode.encode(self._broker_id, self._clock.wall_ms()), ephemeral=True
                ),
            ]
            data = ControllerEpochNode.encode(epoch)
            if node is None:
                operations.append(Create(CONTROLLER_EPOCH, data))
            else:
                operations.append(SetData(CONTROLLER_EPOCH, data, node.version))
            try:
                results = await self._store.transact(operations)
            except NodeExists as error:
                raise KafkaError(
                    f"{error}: another broker holds it. Give each broker of a cluster a broker.id of its "
                    "own; if this one was just stopped, wait for its session to end.",
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                ) from None
            self._epoch_version = results[2].version
            before = self._image
            self._image = self._image.with_cluster(
                self._image.cluster_id, self._broker_id, epoch, await load_brokers(self._store)
            )
            await self._take_over([self._broker_id] if lost_unsynced else [])
            await self._publish(Delta(before, self._image, broker_configs_changed=True))
            await self._finish_deletions()
        return self._image

    async def _take_over(self, unclean_brokers: list[int]) -> None:
        plans = plan_takeover(self._image, unclean_brokers)
        operations = [operation for plan in plans for operation in plan.operations]
        # An administrator who writes a topic's node leaves those below it to the controller.
        made = [operation.path for operation in operations if isinstance(operation, Create)]
        await ensure_paths(self._store, map(parent_of, made))
        for start in range(0, len(operations), OPERATIONS_PER_TRANSACTION_MAX):
            await self._write(operations[start : start + OPERATIONS_PER_TRANSACTION_MAX])
        self._image = self._image.with_topics(plan.topic for plan in plans)

    async def _finish_deletions(self) -> None:
        """Ends the deletions that a stop interrupted."""
        topics = list(self._image.deleting.values())
        if topics:
            delta = Delta(self._image, self._image, deleted=topics)
            await self._publish(delta)
            await self._remove_nodes([topic for topic in topics if topic.name not in delta.failures])

    # Commands

    async def create_topics(
        self, wanted: Iterable[NewTopic], *, validate_only: bool = False
    ) -> list[Outcome]:
        """Makes topics, or (``validate_only``) says whether it would; one outcome each, in order.

        It returns when this broker's partitions of them are ready.
        """
        wanted = list(wanted)
        async with self._writing:
            self._check_active()
            taken = TakenNames(self._image.topics)
            budget = PartitionBudget()
            config = self._config()
            stale = await self._store.get_many([_config_path(topic.name) for topic in wanted])
            decided: list[Plan | KafkaError] = []
            for topic, node in zip(wanted, stale, strict=True):
                try:
                    decided.append(
                        plan_creation(
                            self._image,
                            topic,
                            config,
                            new_id(),
                            self._random,
                            taken,
                            budget,
                            node is not None,
                        )
                    )
                except KafkaError as error:
                    decided.append(error)
            names = [topic.name for topic in wanted]
            if validate_only:
                return [_decided_only(name, item) for name, item in zip(names, decided, strict=True)]
            return await self._carry_out(names, decided, are_new=True)

    async def create_internal_topic(self, name: str) -> TopicImage:
        """The internal topic of that name, made if it is missing; KafkaError when that is not possible."""
        topic = self._image.topics.get(name)
        if topic is None:
            (outcome,) = await self.create_topics([self.automatic_topic(name)])
            topic = outcome.topic if outcome.error is None else self._image.topics.get(name)
            if topic is None:
                raise outcome.error or KafkaError(f"the topic {name} could not be made")
        return topic

    def automatic_topic(self, name: str) -> NewTopic:
        """What a topic is like that is made because somebody asked for it."""
        config = self._config()
        living = max(1, len(self._image.brokers))
        if name == "__consumer_offsets":
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.int("offsets.topic.segment.bytes")),
            }
            factor = min(config.int("offsets.topic.replication.factor"), living)
            return NewTopic(name, config.int("offsets.topic.num.partitions"), factor, config=settings)
        if name == "__transaction_state":
            factor = min(config.int("transaction.state.log.replication.factor"), living)
            settings = {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(config.int("transaction.state.log.segment.bytes")),
                "min.insync.replicas": str(min(config.int("transaction.state.log.min.isr"), factor)),
                "unclean.leader.election.enable": "false",
            }
            return NewTopic(name, config.int("transaction.state.log.num.partitions"), factor, config=settings)
        return NewTopic(name)

    async def create_partitions(
        self, growths: Iterable[Growth], *, validate_only: bool = False
    ) -> list[Outcome]:
        """Adds partitions to topics; one outcome each, in order. As :meth:`create_topics` otherwise."""
        growths = list(growths)
        async with self._writing:
            self._check_active()
            budget = PartitionBudget()
            decided: list[Plan | KafkaError] = []
            for growth in growths:
                try:
                    decided.append(plan_growth(self._image, growth, self._random, budget))
                except KafkaError as error:
                    decided.append(error)
            names = [growth.name for growth in growths]
            if validate_only:
                return [_decided_only(name, item) for name, item in zip(names, decided, strict=True)]
            return await self._carry_out(names, decided, are_new=False)

    async def delete_topics(self, names: Iterable[str]) -> list[Outcome]:
        """Deletes topics; one outcome each, in order. The topics are gone for everybody when it returns."""
        names = list(names)
        async with self._writing:
            self._check_active()
            if not self._config().bool("delete.topic.enable"):
                raise KafkaError(
                    "topics cannot be deleted here: delete.topic.enable is false",
                    ErrorCode.TOPIC_DELETION_DISABLED,
                )
            topics = [self._image.topics.get(name) for name in names]
            errors = await asyncio.gather(
                *(self._attempt(deletion_mark(topic)) for topic in topics if topic is not None)
            )
            remaining = iter(errors)
            outcomes = [
                Outcome(name, topic, next(remaining) if topic is not None else unknown_topic(name))
                for name, topic in zip(names, topics, strict=True)
            ]
            gone = [
                outcome.topic for outcome in outcomes if outcome.error is None and outcome.topic is not None
            ]
            if gone:
                before = self._image
                deleting = {**before.deleting, **{topic.name: topic for topic in gone}}
                self._image = before.with_topics(removed=[topic.name for topic in gone], deleting=deleting)
                delta = Delta(before, self._image, deleted=gone)
                await self._publish(delta)
                await self._remove_nodes([topic for topic in gone if topic.name not in delta.failures])
                outcomes = [_with_failure(outcome, delta) for outcome in outcomes]
            return outcomes

    async def alter_configs(
        self, commands: Iterable[ConfigCommand], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Changes the settings of topics and brokers; the error of each, or None, in order."""
        errors: list[KafkaError | None] = []
        async with self._writing:
            self._check_active()
            for command in commands:
                try:
                    plan = self._plan_config(command)
                    if not validate_only:
                        await self._carry_out_config(plan)
                except KafkaError as error:
                    errors.append(error)
                else:
                    errors.append(None)
        return errors

    def _plan_config(self, command: ConfigCommand) -> ConfigPlan:
        config = self._config()
        if command.resource_type == ResourceType.TOPIC:
            return plan_topic_config(self._image, command.name, config, command.alterations, command.settings)
        if command.resource_type == ResourceType.BROKER:
            return plan_broker_config(
                self._image, command.name, self._broker_id, config, command.alterations, command.settings
            )
        raise KafkaError(
            f"settings of resource type {command.resource_type} cannot be changed: topics "
            f"({ResourceType.TOPIC:d}) and brokers ({ResourceType.BROKER:d}) have some",
            ErrorCode.INVALID_REQUEST,
        )

    async def _carry_out_config(self, plan: ConfigPlan) -> None:
        error = await self._attempt(plan.operations)
        if error is not None:
            raise error
        before = self._image
        if plan.topic is not None:
            self._image = before.with_topics([plan.topic])
            delta = Delta(before, self._image, reconfigured=[(before.topics[plan.topic.name], plan.topic)])
        else:
            self._image = before.with_broker_config(plan.broker or "", plan.settings)
            delta = Delta(before, self._image, broker_configs_changed=True)
        await self._publish(delta)
        for failure in delta.failures.values():
            raise failure

    # Writing

    def _check_active(self) -> None:
        if not self.is_active:
            raise KafkaError("this broker is not the controller", ErrorCode.NOT_CONTROLLER)

    async def _write(self, operations: Sequence[Operation]) -> None:
        await self._store.transact([fence(self._epoch_version), *operations])

    async def _attempt(self, operations: Sequence[Operation]) -> KafkaError | None:
        """Writes, and says what went wrong in the protocol's terms."""
        try:
            await self._write(operations)
        except BadVersion as error:
            if error.path == CONTROLLER_EPOCH:
                self._epoch_version = NO_CONTROLLER_VERSION
                return KafkaError("another broker has become the controller", ErrorCode.NOT_CONTROLLER)
            return KafkaError(f"{error}. Try again.", ErrorCode.UNKNOWN_SERVER_ERROR)
        except NodeExists as error:
            return KafkaError(str(error), ErrorCode.TOPIC_ALREADY_EXISTS)
        except NoNode as error:
            return KafkaError(str(error), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        except ValueError as error:
            return KafkaError(str(error), ErrorCode.INVALID_REQUEST)
        except StoreError as error:
            logger.error("The coordination store refused a write: %s", error)
            return KafkaError(str(error), ErrorCode.KAFKA_STORAGE_ERROR)
        return None

    async def _carry_out(
        self, names: list[str], decided: list[Plan | KafkaError], *, are_new: bool
    ) -> list[Outcome]:
        plans = [item for item in decided if isinstance(item, Plan)]
        written = iter(await asyncio.gather(*(self._attempt(plan.operations) for plan in plans)))
        outcomes = []
        for name, item in zip(names, decided, strict=True):
            if isinstance(item, KafkaError):
                outcomes.append(Outcome(name, error=item))
            else:
                error = next(written)
                outcomes.append(Outcome(name, item.topic if error is None else None, error))
        done = [outcome.topic for outcome in outcomes if outcome.topic is not None]
        if not done:
            return outcomes
        before = self._image
        self._image = before.with_topics(done)
        if are_new:
            delta = Delta(before, self._image, created=done)
        else:
            delta = Delta(before, self._image, changed=[(before.topics[topic.name], topic) for topic in done])
        await self._publish(delta)
        return [_with_failure(outcome, delta) for outcome in outcomes]

    async def _remove_nodes(self, topics: list[TopicImage]) -> None:
        """Removes what the store has of topics without replicas; what fails is done at the next start."""
        deleting = dict(self._image.deleting)
        for topic in topics:
            doomed = await subtree(self._store, TopicNode.path(topic.name))
            doomed += await subtree(self._store, _config_path(topic.name))
            operations: list[Operation] = [Delete(path) for path in reversed(doomed)]
            operations.append(Delete(DeleteTopicNode.path(topic.name)))
            error = await self._attempt(operations)
            if error is None:
                del deleting[topic.name]
            else:
                logger.error("The deletion of %s goes on at the next start: %s", topic.name, error)
        before = self._image
        self._image = before.with_topics(deleting=deleting)
        await self._publish(Delta(before, self._image))


def _config_path(topic: str) -> str:
    return ConfigNode.path("topics", topic)


def _decided_only(name: str, item: Plan | KafkaError) -> Outcome:
    return Outcome(name, error=item) if isinstance(item, KafkaError) else Outcome(name, item.topic)


def _with_failure(outcome: Outcome, delta: Delta) -> Outcome:
    failure = delta.failures.get(outcome.name)
    return outcome if failure is None or outcome.error is not None else outcome._replace(error=failure)


async def generate_broker_id(store: Store, reserved_id_max: int) -> int:
    """A broker id that was never given before, above ``reserved_id_max`` (``reserved.broker.max.id``)."""
    await ensure_paths(store, [BROKER_SEQUENCE])
    (result,) = await store.transact([SetData(BROKER_SEQUENCE, b"")])
    return reserved_id_max + result.version
