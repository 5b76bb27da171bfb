"""Handles client requests to the controller that change topics, partitions, settings and brokers.

The manager plans a change, writes it to the store and announces it, one change after another. A change is
acknowledged once it is written and this broker has applied it. The other brokers get two seconds to apply it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from tidemill.controller.configuration_control import (
    Alteration,
    ConfigPlan,
    ResourceType,
    plan_broker_config,
    plan_group_config,
    plan_topic_config,
)
from tidemill.controller.controller_context import ATTEMPTS, ControllerContext, refusal_of
from tidemill.controller.election_settings import (
    effective_settings,
    plan_default_min_insync_change,
    plan_min_insync_change,
)
from tidemill.controller.reassignment_requests import ReassignmentRequests
from tidemill.controller.topic_batches import Outcome, Part, run_in_parts
from tidemill.controller.topic_deletion import TopicDeletions, plan_without_broker_in_slices
from tidemill.controller.topic_name_validator import UsedTopicNames
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
    plan_creation_in_slices,
    plan_growth_in_slices,
    removal,
    replacing_old_settings,
)
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import SETTINGS, Delta
from tidemill.coordination.coordination_store import (
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
from tidemill.coordination.nodes import (
    BROKER_SEQUENCE,
    DEFAULT_ENTITY,
    BrokerNode,
    ConfigChangeNode,
    ConfigNode,
    DeleteTopicNode,
    TopicNode,
)
from tidemill.coordination.store_error_codes import wire_error
from tidemill.coordination.topic_image import TopicImage
from tidemill.coordination.write_batches import in_pieces
from tidemill.model.errors import ErrorCode, KafkaError, TidemillError
from tidemill.model.event_loop_slices import run_in_slices
from tidemill.model.ids import new_id

logger = logging.getLogger(__name__)

Creation = TypeVar("Creation", NewTopic, Growth)
NO_IDS: Mapping[str, bytes] = MappingProxyType({})


class ConfigCommand(NamedTuple):
    """A change of the settings of one resource: ``alterations``, or if that is None, all ``settings``."""

    resource_type: int
    name: str
    alterations: Sequence[Alteration] | None
    settings: Sequence[tuple[str, str | None]] = ()


class AdminManager:
    """Creates, expands and deletes topics and changes settings, as clients request."""

    def __init__(self, context: ControllerContext, reassignments: ReassignmentRequests) -> None:
        self.context = context
        self._reassignments = reassignments
        self._deletions = TopicDeletions()

    async def create_topics(
        self, requested: Iterable[NewTopic], *, validate_only: bool = False
    ) -> list[Outcome]:
        """Creates topics. With ``validate_only``, checks only. Returns one outcome per topic, in order.

        Returns when the partitions on this broker are ready. Waits up to two seconds for the other brokers.
        """
        budget = PartitionBudget()
        used_names: UsedTopicNames | None = None

        def planner() -> Callable[[NewTopic], Planning]:
            nonlocal used_names
            used_names = names = UsedTopicNames(self.context.image.topics, used_names)
            config = self.context.config()
            return lambda topic: plan_creation_in_slices(
                self.context.image,
                topic,
                config,
                new_id(),
                self.context.random,
                names,
                budget,
                self._deletions.awaited,
            )

        def weight_of(topic: NewTopic) -> int:
            return max(topic.partition_count, len(topic.assignments), 1)

        return await self._plan_and_write(list(requested), planner, weight_of, validate_only)

    async def create_partitions(
        self, growths: Iterable[Growth], *, validate_only: bool = False
    ) -> list[Outcome]:
        """Adds partitions to topics. Returns one outcome per topic, in order. See :meth:`create_topics`."""
        budget = PartitionBudget()

        def planner() -> Callable[[Growth], Planning]:
            return lambda growth: plan_growth_in_slices(
                self.context.image, growth, self.context.random, budget
            )

        return await self._plan_and_write(
            list(growths), planner, lambda growth: max(growth.partition_count, 1), validate_only
        )

    async def _plan_and_write(
        self,
        requested: Sequence[Creation],
        planner: Callable[[], Callable[[Creation], Planning]],
        weight_of: Callable[[Creation], int],
        validate_only: bool,
    ) -> list[Outcome]:
        """Applies one plan per item. ``planner`` is called while no other change is in progress."""

        async def some(part: Sequence[Creation]) -> Part:
            names = [item.name for item in part]
            async with self.context.change_lock():
                plan = planner()
                decided: list[Plan | KafkaError] = []
                for item in part:
                    try:
                        decided.append(await run_in_slices(plan(item)))
                    except KafkaError as error:
                        decided.append(error.as_result())
                if validate_only:
                    return [_validated(name, item) for name, item in zip(names, decided, strict=True)], []
                return await self._write_plans(names, decided)

        return await run_in_parts(requested, weight_of, lambda item: item.name, some)

    async def delete_topics(
        self, names: Iterable[str], *, ids: Mapping[str, bytes] = NO_IDS, are_marked: bool = False
    ) -> list[Outcome]:
        """Deletes topics. Returns one outcome per topic, in order. No broker serves the topics afterwards.

        ``ids``: topic ids by name; a topic with another id is not deleted. ``are_marked``: the topics have
        deletion marks in the store, and are deleted only while these marks exist.
        """

        def weight_of(name: str) -> int:
            topic = self.context.image.topics.get(name)
            return max(len(topic.partitions), 1) if topic is not None else 1

        async def some(part: Sequence[str]) -> Part:
            async with self.context.change_lock():
                return await self._delete_topics(part, ids, are_marked)

        return await run_in_parts(list(names), weight_of, str, some)

    async def _delete_topics(self, names: Sequence[str], ids: Mapping[str, bytes], are_marked: bool) -> Part:
        if not self.context.config().bool("delete.topic.enable"):
            raise KafkaError(
                "topics cannot be deleted: delete.topic.enable is false",
                ErrorCode.TOPIC_DELETION_DISABLED,
            )
        before = self.context.image
        found = [find_topic(before, name, ids.get(name)) for name in names]
        mark = deletion_check if are_marked else deletion_mark
        errors = await self.context.write_all_or_errors(
            [mark(topic) for topic in found if isinstance(topic, TopicImage)]
        )
        # An existing mark counts as success: an administrator may have created it.
        remaining = iter(None if _is_existing(error) else error for error in errors)
        outcomes = [
            Outcome(name, topic, next(remaining))
            if isinstance(topic, TopicImage)
            else Outcome(name, error=topic)
            for name, topic in zip(names, found, strict=True)
        ]
        gone = [outcome.topic for outcome in outcomes if outcome.error is None and outcome.topic is not None]
        if not gone:
            return outcomes, []
        deleting = {**before.deleting, **{topic.name: topic for topic in gone}}
        image = before.with_topics(removed=[topic.name for topic in gone], deleting=deleting)
        announcement = await self._delete(Delta(before, image, deleted=gone))
        await self._reassignments.clean_up_node()
        return [_with_failure(outcome, announcement) for outcome in outcomes], announcement.others

    async def finish_deletions(self) -> None:
        """Continues deletions that are in progress, for example those of a former controller."""
        topics = list(self.context.image.deleting.values())
        if topics:
            await self._delete(Delta(self.context.image, self.context.image, deleted=topics))

    async def _delete(self, delta: Delta) -> Announcement:
        for topic in delta.deleted:
            self._deletions.begin(topic)
        announcement = await self.context.apply_delta(delta)
        failures = announcement.failures
        done = [(topic.name, topic.topic_id) for topic in delta.deleted if topic.name not in failures]
        await self._confirm_deletion(self.context.election.broker_id, done)
        self._deletions.log_waits([topic.name for topic in delta.deleted], self.context.image.brokers)
        return announcement

    async def replicas_deleted(self, broker_id: int, topics: Iterable[tuple[str, bytes]]) -> None:
        """Records that a broker has deleted its replicas of these topics, given by name and id.

        After the last broker has done so, the nodes of the topic are removed. A late report for a former
        topic of the same name is ignored: its topic id differs.
        """
        async with self.context.change_lock():
            await self._confirm_deletion(broker_id, topics)

    async def _confirm_deletion(self, broker_id: int, topics: Iterable[tuple[str, bytes]]) -> None:
        done = []
        for name, topic_id in topics:
            topic = self.context.image.deleting.get(name)
            if topic is None or topic.topic_id != topic_id:
                continue
            if self._deletions.confirmed(name, broker_id):
                done.append(topic)
        if done:
            await self._remove_nodes(done)

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes a dead broker that does not return from the brokers that topic deletions wait for.

        Later controllers read this from the store. Raises INVALID_REQUEST if the broker is live, is still
        registered, or registers again before the write; NOT_CONTROLLER; StoreError.
        """
        async with self.context.change_lock():
            await self.context.parts.refresh_brokers()
            if broker_id in self.context.image.brokers:
                raise KafkaError(f"broker {broker_id} is live. Stop it first.", ErrorCode.INVALID_REQUEST)
            if await self.context.store.exists(BrokerNode.path(broker_id)):
                raise _still_registered(broker_id)
            before = self.context.image
            deleting = dict(before.deleting)
            unregistered = []
            error = None
            for name in self._deletions.waiting_for(broker_id):
                if name not in deleting:
                    continue
                renewed, operation = await run_in_slices(
                    plan_without_broker_in_slices(deleting[name], broker_id, self.context.election.broker_id)
                )
                error = await self.context.write_or_error([[*_absence_check(broker_id), operation]])
                if error is not None:
                    break
                deleting[name] = renewed
                unregistered.append((name, renewed.topic_id))
            await self.context.apply_delta(Delta(before, before.with_topics(deleting=deleting)))
            await self._confirm_deletion(broker_id, unregistered)
            self._deletions.log_waits([name for name, _ in unregistered], self.context.image.brokers)
            if error is not None:
                raise _still_registered(broker_id) if _is_existing(error) else error

    async def alter_configs(
        self, commands: Iterable[ConfigCommand], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Changes the settings of topics, brokers and groups. Returns an error or None for each, in order."""
        errors: list[KafkaError | None] = []
        for command in commands:
            try:
                await self.context.retry_on_conflict(partial(self._alter_config, command, validate_only))
            except (KafkaError, StoreError) as problem:
                errors.append(wire_error(problem).as_result())
            else:
                errors.append(None)
        return errors

    async def _alter_config(self, command: ConfigCommand, validate_only: bool) -> None:
        """Changes settings. First applies a lower stored ``min.insync.replicas``: leaders may use it already.

        Raises BadVersion when that setting is written at the same time.
        """
        if validate_only:
            self._plan_config(command)
            return
        is_topic = command.resource_type == ResourceType.TOPIC
        # Group settings do not affect eligible replicas.
        is_group = command.resource_type == ResourceType.GROUP
        eligible = () if is_group else self.context.image.topic_index.eligible
        checks: list[Operation] = []
        if command.name in eligible if is_topic else eligible:
            paths = [ConfigNode.path("brokers", DEFAULT_ENTITY)]
            if is_topic:
                paths.append(ConfigNode.path("topics", command.name))
            nodes = await self.context.store.get_many(paths)
            checks += [
                Check(path, node.version) for path, node in zip(paths, nodes, strict=True) if node is not None
            ]
            await self.context.apply_stored_min_insync([command.name] if is_topic else eligible)
        # The image has only the groups with settings. The node of another group may exist and be empty.
        has_node = is_group and bool(command.name)
        if has_node:
            has_node = await self.context.store.exists(ConfigNode.path("groups", command.name))
        await self._write_config_plan(self._plan_config(command, has_node=has_node), checks)

    def _plan_config(self, command: ConfigCommand, *, has_node: bool = False) -> ConfigPlan:
        config = self.context.config()
        if command.resource_type == ResourceType.TOPIC:
            return plan_topic_config(
                self.context.image, command.name, config, command.alterations, command.settings
            )
        if command.resource_type == ResourceType.BROKER:
            problem = self.context.image.unreadable.get((SETTINGS, command.name or DEFAULT_ENTITY))
            if problem is not None:
                raise KafkaError(str(problem), ErrorCode.INVALID_CONFIG)
            return plan_broker_config(
                self.context.image,
                command.name,
                self.context.election.broker_id,
                config,
                command.alterations,
                command.settings,
            )
        if command.resource_type == ResourceType.GROUP:
            return plan_group_config(
                self.context.image,
                command.name,
                config,
                command.alterations,
                command.settings,
                has_node=has_node,
            )
        raise KafkaError(
            f"settings of resource type {command.resource_type} cannot be changed. Only topics "
            f"({ResourceType.TOPIC:d}), brokers ({ResourceType.BROKER:d}) and groups "
            f"({ResourceType.GROUP:d}) have settings",
            ErrorCode.INVALID_REQUEST,
        )

    async def _write_config_plan(self, plan: ConfigPlan, checks: Sequence[Operation]) -> None:
        # The ELR is emptied first: if the write fails in between, the ELR is empty and the setting is
        # unchanged, which is safe.
        emptied = self._elr_changes(plan)
        operations = [
            *checks,
            *(operation for part in emptied for operation in part.operations),
            *plan.operations,
        ]
        if self.context.store.session_timeout_s:  # Notifies the other brokers of the change.
            note = ConfigChangeNode.encode(*plan.resource)
            operations.append(Create(ConfigChangeNode.prefix, note, sequential=True))
        try:
            for piece in in_pieces(operations):
                await self.context.write_operations(piece)
        except BadVersion:
            raise  # Another client has written in between: the change is planned again.
        except (StoreError, ValueError) as problem:
            raise refusal_of(problem) from None
        before = self.context.image
        topics = {part.topic.name: part.topic for part in emptied}
        if plan.topic is not None:
            topic = topics.get(plan.topic.name, plan.topic)
            topics[topic.name] = plan.topic.with_partitions(topic.partitions)
        image = before.with_topics(topics.values())
        if plan.broker is not None:
            image = image.with_broker_config(plan.broker, plan.settings)
        if plan.group is not None:
            image = image.with_group_config(plan.group, plan.settings)
        delta = Delta.between(before, image)
        announcement = await self.context.apply_delta(delta)
        try:
            await self.context.elect_leaderless(delta)
        except StoreError as problem:
            logger.warning("could not elect leaders after a settings change, will retry: %s", problem)
            self.context.parts.on_leaderless()
        for failure in announcement.failures.values():
            raise failure

    def _elr_changes(self, plan: ConfigPlan) -> list[Plan]:
        """The plans that empty the ELR of partitions if ``plan`` changes ``min.insync.replicas``."""
        image = self.context.image
        if plan.topic is not None:
            topic = image.topics[plan.topic.name]
            before = effective_settings(image, topic.config)
            return plan_min_insync_change(image, [topic], before, effective_settings(image, plan.settings))
        if plan.broker == DEFAULT_ENTITY:
            return plan_default_min_insync_change(image, image.default_broker_config(), plan.settings)
        return []

    async def _write_plans(self, names: list[str], decided: list[Plan | KafkaError]) -> Part:
        plans = [item for item in decided if isinstance(item, Plan)]
        written = iter(await self._write_each(plans))
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
        before = self.context.image
        announcement = await self.context.apply_delta(Delta.between(before, before.with_topics(done)))
        return [_with_failure(outcome, announcement) for outcome in outcomes], announcement.others

    async def _write_each(self, plans: Sequence[Plan]) -> list[KafkaError | None]:
        """Writes each of ``plans``. Returns an error or None for each."""
        errors = await self.context.write_all_or_errors([plan.operations for plan in plans])
        # Settings rarely exist under the name of a new topic, so they are only read after a failure.
        there = [
            place for place, error in enumerate(errors) if _is_existing(error) and is_creation(plans[place])
        ]
        old = await self._old_settings([plans[place].topic.name for place in there]) if there else []
        again = [place for place, node in zip(there, old, strict=True) if node is not None]
        outcomes = await self.context.write_all_or_errors(
            [replacing_old_settings(plans[place]).operations for place in again]
        )
        for place, outcome in zip(again, outcomes, strict=True):
            errors[place] = outcome
        return errors

    async def _old_settings(self, topics: Sequence[str]) -> Sequence[Node | None]:
        try:
            return await self.context.store.get_many(list(map(_config_path, topics)))
        except StoreError as problem:
            logger.error("existing settings of new topics cannot be read: %s", problem)
            return [None] * len(topics)

    async def _remove_nodes(self, topics: list[TopicImage]) -> None:
        """Removes the nodes of topics without replicas. Failed removals are retried with the next change."""
        deleting = dict(self.context.image.deleting)
        if len(topics) == 1:  # The topic may have many partitions.
            errors = [await self.context.write_or_error(in_pieces(removal(topics[0])))]
        else:
            errors = await self.context.write_all_or_errors([list(removal(topic)) for topic in topics])
        for topic, refused in zip(topics, errors, strict=True):
            error: TidemillError | None = refused
            if error is not None and self.context.election.is_active:
                error = await self._remove_all_nodes(topic)
            if error is None:
                del deleting[topic.name]
                self._deletions.end(topic.name)
            else:
                logger.error("the deletion of %s continues with the next change: %s", topic.name, error)
        before = self.context.image
        await self.context.apply_delta(Delta(before, before.with_topics(deleting=deleting)))

    async def _remove_all_nodes(self, topic: TopicImage) -> TidemillError | None:
        """Removes all existing nodes of a topic, including nodes that administrators have created.

        An administrator may have removed the deletion mark after the logs were deleted.
        """
        error: KafkaError | None = None
        for _ in range(ATTEMPTS):
            try:
                mark = DeleteTopicNode.path(topic.name)
                doomed = [mark] if await self.context.store.exists(mark) else []
                doomed += await subtree(self.context.store, TopicNode.path(topic.name))
                doomed += await subtree(self.context.store, _config_path(topic.name))
            except StoreError as problem:
                self.context.mark_stale()
                return problem
            error = await self.context.write_or_error(in_pieces(Delete(path) for path in reversed(doomed)))
            if error is None or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                break
        return error


def _config_path(topic: str) -> str:
    return ConfigNode.path("topics", topic)


def _is_existing(error: KafkaError | None) -> bool:
    return error is not None and error.code == ErrorCode.TOPIC_ALREADY_EXISTS


def _absence_check(broker_id: int) -> list[Operation]:
    """Operations without effect that fail their transaction if the broker is registered.

    ZooKeeper can only check that a node exists, not that it is absent.
    """
    path = BrokerNode.path(broker_id)
    return [Create(path), Delete(path)]


def _still_registered(broker_id: int) -> KafkaError:
    """The error for a broker that may still be running: the deletions would never be sent to it."""
    return KafkaError(
        f"broker {broker_id} is unreachable and is still registered. Stop it if it is running, and "
        "try again after its session has expired (zookeeper.session.timeout.ms).",
        ErrorCode.INVALID_REQUEST,
    )


def _validated(name: str, item: Plan | KafkaError) -> Outcome:
    return Outcome(name, error=item) if isinstance(item, KafkaError) else Outcome(name, item.topic)


def _with_failure(outcome: Outcome, announcement: Announcement) -> Outcome:
    failure = announcement.failures.get(outcome.name)
    return outcome if failure is None or outcome.error is not None else outcome._replace(error=failure)


async def generate_broker_id(store: Store, reserved_id_max: int) -> int:
    """Generates a broker id that was never used, above ``reserved_id_max`` (``reserved.broker.max.id``)."""
    await ensure_paths(store, [BROKER_SEQUENCE])
    (result,) = await store.transact([SetData(BROKER_SEQUENCE, b"")])
    return reserved_id_max + result.version
