"""What clients ask of the controller: it decides, writes to the store, and announces, one after the other.

A change is answered only once the store has it and this broker carries it out; the others get a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from tidemill.controller.command_parts import Outcome, in_parts
from tidemill.controller.configs import (
    Alteration,
    ConfigPlan,
    ResourceType,
    plan_broker_config,
    plan_group_config,
    plan_topic_config,
)
from tidemill.controller.deletions import Deletions, planning_without
from tidemill.controller.election_settings import (
    plan_default_min_insync_change,
    plan_min_insync_change,
    settings_that_count,
)
from tidemill.controller.leading import Leading
from tidemill.controller.moving import Moves
from tidemill.controller.names import TakenNames
from tidemill.controller.office import ATTEMPTS, Announce, Office, refusal_of
from tidemill.controller.topics import (
    Growth,
    NewTopic,
    PartitionBudget,
    Plan,
    Planning,
    deletion_check,
    deletion_mark,
    find_topic,
    is_creation,
    over_old_settings,
    planning_creation,
    planning_growth,
    removal,
)
from tidemill.controller.unclean_recovery import UncleanRecovery
from tidemill.coordination.encoding import new_id
from tidemill.coordination.image import SETTINGS, Delta, TopicImage
from tidemill.coordination.nodes import (
    BROKER_SEQUENCE,
    DEFAULT_ENTITY,
    BrokerNode,
    ConfigChangeNode,
    ConfigNode,
    DeleteTopicNode,
    TopicNode,
)
from tidemill.coordination.pieces import in_pieces
from tidemill.coordination.port import (
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    Operation,
    SetData,
    Store,
    StoreError,
    ensure_paths,
    subtree,
)
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError, TidemillError
from tidemill.model.ports import Clock
from tidemill.model.slices import with_pauses

logger = logging.getLogger(__name__)

Wish = TypeVar("Wish", NewTopic, Growth)
NO_IDS: Mapping[str, bytes] = MappingProxyType({})


class ConfigCommand(NamedTuple):
    """A change of one resource's settings: by ``alterations``; when they are None, to ``settings``."""

    resource_type: int
    name: str
    alterations: Sequence[Alteration] | None
    settings: Sequence[tuple[str, str | None]] = ()


class Controller(Office):
    """This broker's controller."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        config: Callable[[], BrokerConfig],
        announce: Announce,
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        super().__init__(store, broker_id, config, announce, clock, random)
        self.moves = Moves(self)
        self.recovery = UncleanRecovery(self)
        self.leading = Leading(self, self.recovery)
        self._deletions = Deletions()

    # Commands

    async def create_topics(
        self, wanted: Iterable[NewTopic], *, validate_only: bool = False
    ) -> list[Outcome]:
        """Makes topics, or (``validate_only``) says whether it would; one outcome each, in order.

        It returns when this broker's partitions of them are ready, and the others' if they do not take long.
        """
        budget = PartitionBudget()
        taken: TakenNames | None = None

        def planner() -> Callable[[NewTopic], Planning]:
            nonlocal taken
            taken = names = TakenNames(self._image.topics, taken)
            config = self.config()
            return lambda topic: planning_creation(
                self._image, topic, config, new_id(), self.random, names, budget, self._deletions.awaited
            )

        def weight_of(topic: NewTopic) -> int:
            return max(topic.partition_count, len(topic.assignments), 1)

        return await self._make(list(wanted), planner, weight_of, validate_only)

    async def create_partitions(
        self, growths: Iterable[Growth], *, validate_only: bool = False
    ) -> list[Outcome]:
        """Adds partitions to topics; one outcome each, in order. As :meth:`create_topics` otherwise."""
        budget = PartitionBudget()

        def planner() -> Callable[[Growth], Planning]:
            return lambda growth: planning_growth(self._image, growth, self.random, budget)

        return await self._make(
            list(growths), planner, lambda one: max(one.partition_count, 1), validate_only
        )

    async def _make(
        self,
        wanted: Sequence[Wish],
        planner: Callable[[], Callable[[Wish], Planning]],
        weight_of: Callable[[Wish], int],
        validate_only: bool,
    ) -> list[Outcome]:
        """Carries out what is planned for each; ``planner`` is asked once nothing else is changed."""

        async def some(part: Sequence[Wish]) -> tuple[list[Outcome], list[asyncio.Future[None]]]:
            names = [one.name for one in part]
            async with self.changing():
                plan = planner()
                decided: list[Plan | KafkaError] = []
                for one in part:
                    try:
                        decided.append(await with_pauses(plan(one)))
                    except KafkaError as error:
                        decided.append(error.as_result())
                if validate_only:
                    return [_decided_only(name, item) for name, item in zip(names, decided, strict=True)], []
                return await self._carry_out(names, decided)

        return await in_parts(wanted, weight_of, lambda one: one.name, some)

    async def delete_topics(
        self, names: Iterable[str], *, ids: Mapping[str, bytes] = NO_IDS, are_marked: bool = False
    ) -> list[Outcome]:
        """Deletes topics; one outcome each, in order. The topics are gone for everybody when it returns.

        ``ids``: the ids of those that no other topic of the name is to be deleted for. ``are_marked``:
        somebody has marked them in the store, and they are deleted while the mark is there.
        """

        def weight_of(name: str) -> int:
            topic = self._image.topics.get(name)
            return max(len(topic.partitions), 1) if topic is not None else 1

        async def some(part: Sequence[str]) -> tuple[list[Outcome], list[asyncio.Future[None]]]:
            async with self.changing():
                return await self._delete_topics(part, ids, are_marked)

        return await in_parts(list(names), weight_of, str, some)

    async def _delete_topics(
        self, names: Sequence[str], ids: Mapping[str, bytes], are_marked: bool
    ) -> tuple[list[Outcome], list[asyncio.Future[None]]]:
        if not self.config().bool("delete.topic.enable"):
            raise KafkaError(
                "topics cannot be deleted here: delete.topic.enable is false",
                ErrorCode.TOPIC_DELETION_DISABLED,
            )
        before = self._image
        found = [find_topic(before, name, ids.get(name)) for name in names]
        mark = deletion_check if are_marked else deletion_mark
        errors = await self.attempt_all([mark(one) for one in found if isinstance(one, TopicImage)])
        # A mark that exists is as good as one that was made now: an administrator may have made it.
        remaining = iter(None if _is_there(error) else error for error in errors)
        outcomes = [
            Outcome(name, one, next(remaining)) if isinstance(one, TopicImage) else Outcome(name, error=one)
            for name, one in zip(names, found, strict=True)
        ]
        gone = [outcome.topic for outcome in outcomes if outcome.error is None and outcome.topic is not None]
        if not gone:
            return outcomes, []
        deleting = {**before.deleting, **{topic.name: topic for topic in gone}}
        self._image = before.with_topics(removed=[topic.name for topic in gone], deleting=deleting)
        delta = await self._delete(Delta(before, self._image, deleted=gone))
        await self.moves.tidy()
        return [_with_failure(outcome, delta) for outcome in outcomes], delta.others

    async def finish_moves(self) -> None:
        """Ends the moves whose new replicas are in sync."""
        await self.moves.finish()

    async def finish_deletions(self) -> None:
        """Goes on with the deletions that were begun before: once by another controller, say."""
        topics = list(self._image.deleting.values())
        if topics:
            await self._delete(Delta(self._image, self._image, deleted=topics))

    async def _delete(self, delta: Delta) -> Delta:
        for topic in delta.deleted:
            self._deletions.begin(topic)
        await self._announce(delta)
        done = [(topic.name, topic.topic_id) for topic in delta.deleted if topic.name not in delta.failures]
        await self._confirm_deletion(self.broker_id, done)
        self._deletions.log_waits([topic.name for topic in delta.deleted], self._image.brokers)
        return delta

    async def replicas_deleted(self, broker_id: int, topics: Iterable[tuple[str, bytes]]) -> None:
        """Notes that a broker has no replicas of these topics (by name and id) any more.

        With the last one their nodes go. What is told late of a topic that had the name before says nothing
        of the one that has it now.
        """
        async with self.changing():
            await self._confirm_deletion(broker_id, topics)

    async def _confirm_deletion(self, broker_id: int, topics: Iterable[tuple[str, bytes]]) -> None:
        done = []
        for name, topic_id in topics:
            topic = self._image.deleting.get(name)
            if topic is None or topic.topic_id != topic_id:
                continue
            if self._deletions.confirmed(name, broker_id):
                done.append(topic)
        if done:
            await self._remove_nodes(done)

    async def unregister_broker(self, broker_id: int) -> None:
        """Ends the wait of topic deletions for a dead broker that does not return.

        What it wrote holds for later controllers, too. Raises INVALID_REQUEST for a broker that is live,
        still registered, or registered again before the write; NOT_CONTROLLER, StoreError.
        """
        async with self.changing():
            await self.look_at_brokers()
            if broker_id in self._image.brokers:
                raise KafkaError(f"broker {broker_id} is live. Stop it first.", ErrorCode.INVALID_REQUEST)
            if await self.store.exists(BrokerNode.path(broker_id)):
                raise _still_registered(broker_id)
            before = self._image
            deleting = dict(before.deleting)
            unregistered = []
            error = None
            for name in self._deletions.waiting_for(broker_id):
                if name not in deleting:
                    continue
                renewed, operation = await with_pauses(
                    planning_without(deleting[name], broker_id, self.broker_id)
                )
                error = await self.attempt_in_one([*_absence_check(broker_id), operation])
                if error is not None:
                    break
                deleting[name] = renewed
                unregistered.append((name, renewed.topic_id))
            self._image = before.with_topics(deleting=deleting)
            await self._announce(Delta(before, self._image))
            await self._confirm_deletion(broker_id, unregistered)
            self._deletions.log_waits([name for name, _ in unregistered], self._image.brokers)
            if error is not None:
                raise _still_registered(broker_id) if _is_there(error) else error

    async def alter_configs(
        self, commands: Iterable[ConfigCommand], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Changes the settings of topics and brokers; the error of each, or None, in order."""
        errors: list[KafkaError | None] = []
        for command in commands:
            try:
                await self.decided(partial(self._alter_config, command, validate_only))
            except KafkaError as error:
                errors.append(error.as_result())
            except StoreError as problem:
                errors.append(KafkaError(str(problem), ErrorCode.KAFKA_STORAGE_ERROR))
            else:
                errors.append(None)
        return errors

    async def _alter_config(self, command: ConfigCommand, validate_only: bool) -> None:
        """Changes settings. A lower minimum that somebody else wrote counts first: commits were made by it.

        Raises BadVersion when that is written meanwhile.
        """
        if validate_only:
            self._plan_config(command)
            return
        is_topic = command.resource_type == ResourceType.TOPIC
        # Group settings do not affect eligible replicas.
        is_group = command.resource_type == ResourceType.GROUP
        eligible = () if is_group else self._image.topic_index.eligible
        checks: list[Operation] = []
        if command.name in eligible if is_topic else eligible:
            paths = [ConfigNode.path("brokers", DEFAULT_ENTITY)]
            if is_topic:
                paths.append(ConfigNode.path("topics", command.name))
            nodes = await self.store.get_many(paths)
            checks += [
                Check(path, node.version) for path, node in zip(paths, nodes, strict=True) if node is not None
            ]
            await self.take_other_min_insync([command.name] if is_topic else eligible)
        # Of groups the image has only those that have settings; others may have left a node without any.
        has_node = is_group and bool(command.name)
        if has_node:
            has_node = await self.store.exists(ConfigNode.path("groups", command.name))
        await self._carry_out_config(self._plan_config(command, has_node=has_node), checks)

    def _plan_config(self, command: ConfigCommand, *, has_node: bool = False) -> ConfigPlan:
        config = self.config()
        if command.resource_type == ResourceType.TOPIC:
            return plan_topic_config(self._image, command.name, config, command.alterations, command.settings)
        if command.resource_type == ResourceType.BROKER:
            problem = self._image.unreadable.get((SETTINGS, command.name or DEFAULT_ENTITY))
            if problem is not None:
                raise KafkaError(str(problem), ErrorCode.INVALID_CONFIG)
            return plan_broker_config(
                self._image, command.name, self.broker_id, config, command.alterations, command.settings
            )
        if command.resource_type == ResourceType.GROUP:
            return plan_group_config(
                self._image, command.name, config, command.alterations, command.settings, has_node=has_node
            )
        raise KafkaError(
            f"settings of resource type {command.resource_type} cannot be changed: topics "
            f"({ResourceType.TOPIC:d}), brokers ({ResourceType.BROKER:d}) and groups "
            f"({ResourceType.GROUP:d}) have some",
            ErrorCode.INVALID_REQUEST,
        )

    async def _carry_out_config(self, plan: ConfigPlan, checks: Sequence[Operation]) -> None:
        # First of all: where this is cut short, the ELR is empty and the setting as before, which is safe.
        emptied = self._emptied_by(plan)
        operations = [*checks, *(one for part in emptied for one in part.operations), *plan.operations]
        if self.store.session_timeout_s:  # Others share it, and have to hear of the change.
            note = ConfigChangeNode.encode(*plan.entity)
            operations.append(Create(ConfigChangeNode.prefix, note, sequential=True))
        try:
            for piece in in_pieces(operations):
                await self.write_operations(piece)
        except BadVersion:
            raise  # Somebody else has written meanwhile: it is decided again.
        except (StoreError, ValueError) as problem:
            raise refusal_of(problem) from None
        before = self._image
        topics = {part.topic.name: part.topic for part in emptied}
        if plan.topic is not None:
            topic = topics.get(plan.topic.name, plan.topic)
            topics[topic.name] = plan.topic.with_partitions(topic.partitions)
        self._image = before.with_topics(topics.values())
        if plan.broker is not None:
            self._image = self._image.with_broker_config(plan.broker, plan.settings)
        if plan.group is not None:
            self._image = self._image.with_group_config(plan.group, plan.settings)
        delta = Delta.between(before, self._image)
        await self._announce(delta)
        try:
            await self.elect_leaderless(delta)
        except StoreError as problem:
            logger.warning("leaderless partitions are elected later than the settings change: %s", problem)
            self.leaderless()
        for failure in delta.failures.values():
            raise failure

    def _emptied_by(self, plan: ConfigPlan) -> list[Plan]:
        """The plans that empty the ELR of partitions, where ``plan`` changes ``min.insync.replicas``."""
        image = self._image
        if plan.topic is not None:
            topic = image.topics[plan.topic.name]
            before = settings_that_count(image, topic.config)
            return plan_min_insync_change(image, [topic], before, settings_that_count(image, plan.settings))
        if plan.broker == DEFAULT_ENTITY:
            return plan_default_min_insync_change(image, image.default_broker_config(), plan.settings)
        return []

    async def _carry_out(
        self, names: list[str], decided: list[Plan | KafkaError]
    ) -> tuple[list[Outcome], list[asyncio.Future[None]]]:
        plans = [item for item in decided if isinstance(item, Plan)]
        written = iter(await self._written(plans))
        outcomes = []
        for name, item in zip(names, decided, strict=True):
            if isinstance(item, KafkaError):
                outcomes.append(Outcome(name, error=item))
            else:
                error = next(written)
                outcomes.append(Outcome(name, item.topic if error is None else None, error))
        done = [outcome.topic for outcome in outcomes if outcome.topic is not None]
        if not done:
            return outcomes, []
        before = self._image
        self._image = before.with_topics(done)
        delta = Delta.between(before, self._image)
        await self._announce(delta)
        return [_with_failure(outcome, delta) for outcome in outcomes], delta.others

    async def _written(self, plans: Sequence[Plan]) -> list[KafkaError | None]:
        """What came of writing each of ``plans``."""
        errors = await self.attempt_all([plan.operations for plan in plans])
        # Hardly ever are there settings under the name of a new topic: they are looked for where it matters.
        there = [
            place for place, error in enumerate(errors) if _is_there(error) and is_creation(plans[place])
        ]
        old = await self._old_settings([plans[place].topic.name for place in there]) if there else []
        again = [place for place, node in zip(there, old, strict=True) if node is not None]
        outcomes = await self.attempt_all([over_old_settings(plans[place]).operations for place in again])
        for place, outcome in zip(again, outcomes, strict=True):
            errors[place] = outcome
        return errors

    async def _old_settings(self, topics: Sequence[str]) -> Sequence[Node | None]:
        try:
            return await self.store.get_many(list(map(_config_path, topics)))
        except StoreError as problem:
            logger.error("The settings that are in the way of new topics cannot be read: %s", problem)
            return [None] * len(topics)

    async def _remove_nodes(self, topics: list[TopicImage]) -> None:
        """Removes what the store has of topics without replicas; what fails comes before the next change."""
        deleting = dict(self._image.deleting)
        if len(topics) == 1:  # It may have many partitions.
            errors = [await self.attempt(removal(topics[0]))]
        else:
            errors = await self.attempt_all([list(removal(topic)) for topic in topics])
        for topic, refused in zip(topics, errors, strict=True):
            error: TidemillError | None = refused
            if error is not None and self.is_active:
                error = await self._remove_whatever(topic)
            if error is None:
                del deleting[topic.name]
                self._deletions.end(topic.name)
            else:
                logger.error("The deletion of %s goes on with the next change: %s", topic.name, error)
        before = self._image
        self._image = before.with_topics(deleting=deleting)
        await self._announce(Delta(before, self._image))

    async def _remove_whatever(self, topic: TopicImage) -> TidemillError | None:
        """Removes the nodes of a topic that are there, also those that somebody else has put there.

        An administrator may have taken the mark of the deletion away, when the logs were deleted already.
        """
        error: KafkaError | None = None
        for _ in range(ATTEMPTS):
            try:
                mark = DeleteTopicNode.path(topic.name)
                doomed = [mark] if await self.store.exists(mark) else []
                doomed += await subtree(self.store, TopicNode.path(topic.name))
                doomed += await subtree(self.store, _config_path(topic.name))
            except StoreError as problem:
                self._is_stale = True
                return problem
            error = await self.attempt([Delete(path) for path in reversed(doomed)])
            if not _is_missing(error):
                break
        return error


def _config_path(topic: str) -> str:
    return ConfigNode.path("topics", topic)


def _is_there(error: KafkaError | None) -> bool:
    return error is not None and error.code == ErrorCode.TOPIC_ALREADY_EXISTS


def _is_missing(error: KafkaError | None) -> bool:
    return error is not None and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _absence_check(broker_id: int) -> list[Operation]:
    """Operations that change nothing, and that fail their transaction if the broker is registered.

    ZooKeeper has a check for nodes that exist only.
    """
    path = BrokerNode.path(broker_id)
    return [Create(path), Delete(path)]


def _still_registered(broker_id: int) -> KafkaError:
    """The refusal to unregister a broker whose process may run: the deletions would never be sent to it."""
    return KafkaError(
        f"broker {broker_id} cannot be reached, and is still registered. Stop it if it runs, and "
        "try again once its session has ended (zookeeper.session.timeout.ms).",
        ErrorCode.INVALID_REQUEST,
    )


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
