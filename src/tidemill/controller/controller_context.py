"""The controller's image of the cluster, and its fenced writes to the store.

Every write checks the controller epoch, so a controller that was replaced without notice changes nothing. A
change is announced only after the store has committed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from random import Random
from typing import TypeVar

from tidemill.controller.broker_change_log import log_former_controller
from tidemill.controller.controller_election import ControllerElection
from tidemill.controller.election_report import ElectionReport
from tidemill.controller.election_settings import (
    UNCLEAN,
    ElectionPolicies,
    effective_settings,
    ensure_min_insync,
    plan_default_min_insync_change,
    plan_min_insync_change,
)
from tidemill.controller.leader_election import (
    NO_LOG_ENDS,
    NO_LOSSES,
    LogEnds,
    Losses,
    plan_topic_elections,
)
from tidemill.controller.leaderless_report import LeaderlessReport
from tidemill.controller.lost_replica_reports import reported_losses
from tidemill.controller.reassignment import find_completed_in_slices
from tidemill.controller.stored_min_insync_replicas import read_stored_min_insync
from tidemill.controller.topics import Plan
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import (
    GROUP_SETTINGS,
    REGISTRATION,
    SETTINGS,
    TOPIC,
    ClusterImage,
    Delta,
    Entity,
)
from tidemill.coordination.cluster_image_loader import load_image, read_settings
from tidemill.coordination.coordination_store import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    Operation,
    OperationError,
    Store,
    StoreError,
    StoreUnavailable,
    ensure_paths,
    parent_of,
)
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    CLUSTER_ID,
    CONTROLLER_EPOCH,
    DEFAULT_ENTITY,
    PERSISTENT_PATHS,
    ClusterIdNode,
    ConfigNode,
    ConfigResource,
    DeleteTopicNode,
)
from tidemill.coordination.store_error_codes import TOPIC_CODES, controller_replaced, wire_error
from tidemill.coordination.topic_image import TopicImage
from tidemill.coordination.write_batches import in_groups, in_pieces
from tidemill.model.configs import MIN_INSYNC, BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.event_loop_slices import ITEMS_AT_ONCE_MAX, run_at_once, run_in_slices, yield_to_loop
from tidemill.model.ids import encode_id, new_id
from tidemill.model.log_lines import in_lines
from tidemill.model.types import ZERO_ID

logger = logging.getLogger(__name__)
admin_log = logging.getLogger("tidemill.admin")
"""Logs the actions of administrators; see :mod:`tidemill.broker.admin_log`."""

OTHERS_S = 2.0
"""The time that a command waits for the other brokers to apply a change. Afterwards they still apply it."""

ATTEMPTS = 5
"""The attempts of a change that conflicts with writes of other clients."""

Result = TypeVar("Result")
Announce = Callable[[Delta], Awaitable[Announcement]]


class ControllerParts(ABC):
    """The operations of the controller's parts that a change requires of each other.

    All but :meth:`on_leaderless` are called within :meth:`ControllerContext.change_lock`.
    """

    @abstractmethod
    def on_leaderless(self) -> None:
        """A change left partitions without a leader, which recovery may have to elect."""

    @abstractmethod
    async def refresh_brokers(self) -> None:
        """Applies the registrations that were added, changed or removed."""

    @abstractmethod
    async def complete_reassignments(self) -> None:
        """Completes the reassignments whose new replicas are in sync."""

    @abstractmethod
    async def finish_deletions(self) -> None:
        """Continues the topic deletions that a controller began."""


class ControllerContext:
    """The controller's image of the cluster, and its fenced writes to the store."""

    def __init__(
        self,
        store: Store,
        parts: ControllerParts,
        election: ControllerElection,
        config: Callable[[], BrokerConfig],
        announce: Announce,
        random: Random | None = None,
        *,
        known_image: Callable[[], ClusterImage],
        with_settings: Callable[[BrokerConfig, ClusterImage], BrokerConfig],
        schedule_broker_refresh: Callable[[], None],
    ) -> None:
        """``config`` returns the current configuration; ``announce`` sends a change to the brokers.

        ``announce`` returns when this broker has applied the change. :attr:`Announcement.others` tracks the
        other brokers. ``known_image`` returns the image of this broker while another broker is the
        controller. ``with_settings`` adds the dynamic settings of an image to a configuration.

        ``schedule_broker_refresh`` schedules a read of the registrations. It is called when a reassignment
        could not be completed, or a write failed or was cancelled: the next change reads the store first.
        """
        self.store = store
        self.parts = parts
        self.election = election
        self.config = config
        self.policies = ElectionPolicies(lambda: self.config(), lambda: self._image, with_settings)
        self._announce = announce
        self.random = random if random is not None else Random()
        self._image = ClusterImage()
        self._change_lock = asyncio.Lock()
        self._stopping: dict[int, int] = {}
        """Brokers in controlled shutdown, with the epochs of their registrations."""
        self.election_report = ElectionReport()
        """Counts the elections by this controller since the start, and its unclean elections."""
        self.leaderless_report = LeaderlessReport(lambda: self._image, self.policies.of, self.stopping)
        self._logged_unreadable: dict[Entity, str] = {}
        """The logged error of each unreadable entity in the store."""
        self.known_image = known_image
        self.schedule_broker_refresh = schedule_broker_refresh
        self._former_ids: dict[str, bytes] = {}
        """Ids of unreadable topics, as known before."""
        self._is_stale = False
        """A write failed or was cancelled: the store may differ from the image."""
        self._is_refresh_due = False
        """The controller has read new registrations that the image does not have yet."""
        self._offline_in: ClusterImage | None = None
        """The image with the reported offline replicas that :attr:`image` lacks because a write failed."""
        election.controller_change_listeners.append(self._controller_changed)

    def _controller_changed(self, is_ours: bool) -> None:
        if not is_ours:
            self.leaderless_report.end()

    @property
    def image(self) -> ClusterImage:
        """The cluster as this controller last wrote or read it."""
        return self._image

    @property
    def is_changing(self) -> bool:
        """Whether a change is in progress."""
        return self._change_lock.locked()

    # Beginning of a controller epoch

    async def load(self, known_cluster_id: str | None = None) -> ClusterImage:
        """Creates the missing persistent nodes and reads the store. Registers and announces nothing.

        A store without a cluster id gets ``known_cluster_id``, that of the data directories, or a new one.
        The image of an active controller stays: its differences from the store were not announced.
        """
        await ensure_paths(self.store, PERSISTENT_PATHS)
        if await self.store.get(CLUSTER_ID) is None:
            cluster_id = known_cluster_id or encode_id(new_id())
            await ensure_paths(self.store, ["/cluster"])
            # If another broker of a new cluster is faster, its cluster id is used.
            with contextlib.suppress(NodeExists):
                await self.store.transact([Create(CLUSTER_ID, ClusterIdNode.encode(cluster_id))])
        async with self._change_lock:
            # The image of an active controller has only announced changes.
            if not self.election.is_active:
                self._image = await load_image(self.store)
                self.log_unreadable()
        return self._image

    def log_unreadable(self) -> None:
        """Logs each entity that could not be read into the image, once per error."""
        logged = {entity: str(problem) for entity, problem in self._image.unreadable.items()}
        for entity, text in logged.items():
            if self._logged_unreadable.get(entity) != text:
                logger.error("%s %s", text, _consequence_text(*entity))
        for kind, name in sorted(self._logged_unreadable.keys() - logged.keys()):
            logger.info("/%s/%s is readable again, or was removed", *(_PLACES[kind], name))
        self._logged_unreadable = logged

    def known_ids(self, names: Iterable[str], image: ClusterImage | None = None) -> dict[str, bytes]:
        """The topic ids in ``image`` (default: the current one), or from before topics became unreadable."""
        topics = (image if image is not None else self._image).topics
        ids = {
            name: topics[name].topic_id if name in topics else self._former_ids.get(name) for name in names
        }
        return {name: topic_id for name, topic_id in ids.items() if topic_id not in (None, ZERO_ID)}

    def note_unreadable(self, kind: str, found: Mapping[str, NodeFormatError]) -> None:
        """Records the unreadable entities of a kind. To be called within :meth:`change_lock`."""
        if found or self._image.unreadable:
            self._image = self._image.with_unreadable(kind, found)
            self.log_unreadable()

    async def activate(self, *, dead: int | None = None) -> bool:
        """Elects this broker as the controller, repairs the store and announces the image.

        Returns False if another broker is the controller. ``dead``: the id of a broker known to be dead
        although its node may still exist; if it is the controller, its node is removed first. If it is alive
        after all, its writes are fenced, and its watch notifies it.
        """
        async with self._change_lock:
            if not await self.election.elect(dead):
                return False
            try:
                await self._initialize()
            except BaseException as problem:
                was_replaced = not self.election.is_active
                self.election.resign()
                if was_replaced and isinstance(problem, KafkaError | BadVersion):
                    return False
                raise
        return True

    async def _initialize(self) -> None:
        known = self.known_image()
        # Only now: no other controller writes any more.
        image = await self._read()
        # A topic whose deletion has begun was unknown to a broker that was running.
        self._image = await self._refuse_deletions(
            image, lambda name: bool(known.brokers) and name not in known.topics
        )
        log_former_controller(known.brokers, self._image.brokers)
        self.log_unreadable()
        self._is_stale, self._is_refresh_due, self._offline_in = False, False, None
        await self._ensure_min_insync()
        # A leader may have applied newer settings, committed by them, and failed before the registrations
        # were read.
        eligible = self._image.topic_index.eligible
        if eligible:
            others = await read_stored_min_insync(self.store, self._image, eligible)
            self._image = self._image.with_settings(others)
        losses = await reported_losses(self.store, self._image, self._image.brokers)
        known_ids = self.known_ids(known.topics, known)
        before = self._image
        # If this broker was the controller before, it knows brokers in controlled shutdown.
        stopping = self.stopping()
        await self.write(plan_topic_elections(before, losses, self.policies.of, stopping, known_ids))
        self.election.check_active()  # Without a write, the session is unverified so far.
        run_at_once(self._log_effects_in_slices(Delta.between(before, self._image), losses))
        self.election.notify_elected()
        delta = Delta.between(ClusterImage(), self._image)
        await self._announce(delta._replace(broker_configs_changed=True))
        self.election.check_active()
        self.leaderless_report.begin(is_cluster_start=not known.brokers)
        await self.parts.complete_reassignments()
        await self.parts.finish_deletions()

    def note_stopping(self, broker_id: int) -> None:
        """Marks a broker as shutting down. It is elected for nothing until it registers again."""
        self._stopping[broker_id] = self._image.brokers[broker_id].epoch

    def is_stopping(self, broker_id: int, *, broker_epoch: int) -> bool:
        """Whether a broker announced its shutdown in the registration with ``broker_epoch``.

        It may be gone by now.
        """
        return self._stopping.get(broker_id) == broker_epoch

    def stopping(self, image: ClusterImage | None = None) -> frozenset[int]:
        """The live brokers of ``image`` (default: the current one) that are shutting down."""
        brokers = (image if image is not None else self._image).brokers
        return frozenset(
            broker
            for broker, epoch in self._stopping.items()
            if broker in brokers and brokers[broker].epoch == epoch
        )

    # Changes

    @contextlib.asynccontextmanager
    async def change_lock(self) -> AsyncIterator[None]:
        """Runs one change at a time.

        Raises NOT_CONTROLLER, also if a write within it finds another controller, and StoreUnavailable if an
        earlier failed change cannot be completed yet.
        """
        async with self._change_lock:
            self.election.check_active()
            try:
                if self._is_stale:
                    await self._reload()
                    self.election.check_active()  # This broker may have been replaced meanwhile.
                if self._is_refresh_due:
                    await self.parts.refresh_brokers()
                    self.election.check_active()
                    self._is_refresh_due = False
            except OperationError as problem:
                self.election.check_active()
                raise StoreUnavailable(f"conflicting write by another client: {problem}") from problem
            try:
                yield
            except BadVersion as problem:
                if problem.path == CONTROLLER_EPOCH:
                    raise controller_replaced() from problem
                raise

    async def _reload(self) -> None:
        """Reads the store after a failed write, and completes the change that was partly written."""
        before = self._image
        image = await self._refuse_deletions(await self._read(), before.deleting.__contains__)
        try:
            # The store does not record offline replicas. Live brokers are determined by :class:`Failover`.
            self._image = image.with_brokers(before.brokers).with_offline_of(self._offline_in or before)
            self._is_stale = False
            self.log_unreadable()
            known_ids = self.known_ids(before.topics, before)
            self._former_ids |= {
                name: known_ids[name] for name in image.unreadable_of(TOPIC) if name in known_ids
            }
            # A broker with a new registration may have lost data. Its report is applied before it is elected,
            # and before another change relies on its former registration.
            renewed = {
                broker
                for broker, known in before.brokers.items()
                if broker not in image.brokers or image.brokers[broker].epoch != known.epoch
            }
            self._is_refresh_due = self._is_refresh_due or bool(renewed)
            plans = plan_topic_elections(
                self._image,
                policy_of=self.policies.of,
                stopping=self.stopping() | renewed,
                known_ids=known_ids,
                recovers=False,  # A broker that has just registered may have the longest log.
            )
            await self.write(plans)
            await self._ensure_min_insync()
            delta = Delta.between(before, self._image)
            delta = delta._replace(deleted=tuple(filter(self._is_deleted, delta.deleted)))
            await self._announce(delta)
            await self.parts.finish_deletions()
        except BaseException:
            # Some brokers have not received the whole change.
            self._image, self._is_stale = before, True
            raise
        self._offline_in = None
        await self._log_and_recover(delta)

    def _is_deleted(self, topic: TopicImage) -> bool:
        """Whether a topic that is not in the store any more is deleted: it has a deletion mark or was
        recreated.

        If only its nodes were removed, the brokers keep its records, like those of Apache Kafka.
        """
        if (TOPIC, topic.name) in self._image.unreadable:
            return False
        is_deleted = topic.name in self._image.deleting or topic.name in self._image.topics
        if not is_deleted:
            logger.error(
                "the nodes of topic %s were removed from the store without a deletion: its records are "
                "kept. Restore its nodes, or remove its directories",
                topic.name,
            )
        return is_deleted

    async def _refuse_deletions(self, image: ClusterImage, has_begun: Callable[[str], bool]) -> ClusterImage:
        """Removes the deletion marks of other clients if ``delete.topic.enable`` is false.

        Deletions that a controller has begun continue: ``has_begun`` is called with the topic's name.
        """
        if not self.store.session_timeout_s or self.config().bool("delete.topic.enable"):
            return image
        refused = {
            name: topic for name, topic in image.deleting.items() if topic.partitions and not has_begun(name)
        }
        if not refused:
            return image
        for piece in in_pieces(Delete(DeleteTopicNode.path(name)) for name in refused):
            await self.write_operations(piece)
        log_refused_deletions(refused)
        left = {name: topic for name, topic in image.deleting.items() if name not in refused}
        return image.with_topics(refused.values(), deleting=left)

    async def _read(self) -> ClusterImage:
        """Reads the store. Raises NOT_CONTROLLER if another controller was elected.

        Otherwise this broker would announce the new image under the epoch of the other controller.
        """
        image = await load_image(self.store, self._image.brokers)
        if image.controller_epoch != self.election.epoch:
            self.election.resign()
            self.election.check_active()
        return image

    async def retry_on_conflict(self, once: Callable[[], Awaitable[Result]]) -> Result:
        """Calls ``once``, which plans and writes a change within :meth:`change_lock`, and returns its result.

        If another client has changed the same nodes, calls ``once`` again to plan with their new content.
        """
        attempts_left = ATTEMPTS
        while True:
            attempts_left -= 1
            async with self.change_lock():
                try:
                    return await once()
                except BadVersion as problem:
                    self.election.check_active()
                    if not attempts_left:
                        raise
                    logger.info("a change is planned again: %s", problem)

    async def write_and_announce(
        self,
        plans: Sequence[Plan],
        image: ClusterImage | None = None,
        *,
        losses: Losses = NO_LOSSES,
        ends: LogEnds = NO_LOG_ENDS,
        written: Callable[[], None] | None = None,
    ) -> Announcement | None:
        """Writes ``plans``, applies them to ``image`` (default: the current one) and announces the
        difference.

        ``losses`` and ``ends`` are the reported losses and log ends by which leaders were elected.
        ``written`` logs the change; the effects are logged afterwards. Returns None if nothing changed. To be
        called within :meth:`change_lock`. Raises StoreError.
        """
        before = self._image
        if image is not None:
            self._image = image
        try:
            await self.write(plans)
        except BaseException:
            self._image = before  # Some may be written: the store is read again before the next change.
            raise
        announcement = None
        if self._image is not before:
            announcement = await self._announce(Delta.between(before, self._image))
        if written is not None:
            written()
        if announcement is not None:
            await self._log_and_recover(announcement.delta, losses, ends)
        return announcement

    async def _log_and_recover(
        self, delta: Delta, losses: Losses = NO_LOSSES, ends: LogEnds = NO_LOG_ENDS
    ) -> None:
        """Logs the effects of a change, and starts the recovery of partitions that need it."""
        await run_in_slices(self._log_effects_in_slices(delta, losses, ends))
        await run_in_slices(self.leaderless_report.record_in_slices(delta))
        if self._image.topic_index.leaderless:
            self.parts.on_leaderless()

    async def apply_delta(self, delta: Delta) -> Announcement:
        """Replaces the image with ``delta.image``, which the store has, and announces the difference.

        To be called within :meth:`change_lock`.
        """
        self._image = delta.image
        return await self._announce(delta)

    def mark_stale(self) -> None:
        """Records that the store may differ from the image: the next change reads it first."""
        self._is_stale = True

    async def write_failed_replicas(self, plans: Sequence[Plan]) -> None:
        """:meth:`write_and_announce` for ``plans`` with replicas that a broker has reported as failed.

        The replicas are offline even if the store is unavailable: none of them may be elected in a change
        that another client wrote or that was partly written.
        """
        before = self._image
        try:
            await self.write_and_announce(plans)
        except BaseException:
            if self._image is before:
                self._offline_in = before.with_topics(plan.topic for plan in plans)
                self._is_stale = True  # The next change applies them first.
            raise

    def _log_effects_in_slices(
        self, delta: Delta, losses: Losses, ends: LogEnds = NO_LOG_ENDS
    ) -> Generator[None, None, None]:
        yield from self.election_report.record_in_slices(delta, losses, ends)
        for line in in_lines((yield from find_completed_in_slices(delta))):
            admin_log.info("reassignments done: %s", line)

    async def apply_stored_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Applies settings that another client wrote. Raises NOT_CONTROLLER."""
        async with self.change_lock():
            try:
                others = self._image.other_settings(settings)
                # The settings were read before this change. Since then this controller may have written
                # others.
                delta = await self._apply_settings(await read_settings(self.store, others))
                if delta is not None:
                    await self.elect_leaderless(delta)
            except StoreError:
                self.parts.on_leaderless()  # A retry finds the settings unchanged, and would elect no leader.
                raise

    async def _apply_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> Delta | None:
        before = self._image
        self._image = before.with_settings(settings)
        if self._image is before:
            return None
        delta = Delta.between(before, self._image)
        for line in in_lines(f"{kind} {name}" for kind, name in settings):
            admin_log.info("settings were written to the store: %s", line)
        await self._announce(delta)
        plans = []
        for old, new in delta.reconfigured:
            plans += plan_min_insync_change(
                self._image,
                [new],
                effective_settings(before, old.config),
                effective_settings(self._image, new.config),
            )
        if delta.broker_configs_changed:
            plans += plan_default_min_insync_change(
                self._image, before.default_broker_config(), self._image.default_broker_config()
            )
        await self.write_and_announce(plans)
        before = self._image
        await self._ensure_min_insync()  # Another client may have removed it.
        if self._image is not before:
            await self._announce(Delta.between(before, self._image))
        return delta

    async def apply_stored_min_insync(self, topics: Iterable[str]) -> bool:
        """Applies a ``min.insync.replicas`` of ``topics`` that another client wrote. Returns whether there
        was one.

        To be called within :meth:`change_lock`, before the eligible leader replicas of these topics are used.
        Raises StoreError.
        """
        names = [name for name in topics if name in self._image.topic_index.eligible]
        settings = await read_stored_min_insync(self.store, self._image, names) if names else {}
        self.election.check_active()
        if not settings:
            return False
        try:
            await self._apply_settings(settings)
        finally:
            # Other settings may have changed at the same time, and allow an election.
            self.parts.on_leaderless()
        return True

    async def elect_leaderless(self, delta: Delta) -> None:
        """Elects leaders of leaderless partitions if ``delta`` changed settings that elections depend on.

        To be called within :meth:`change_lock`, after the change is applied. Raises StoreError.
        """
        reconfigured = delta.reconfigured
        names = [new.name for old, new in reconfigured if old.config.get(UNCLEAN) != new.config.get(UNCLEAN)]
        if names or delta.broker_configs_changed:
            await self.parts.refresh_brokers()
            touched = [self._image.topics[name] for name in names if name in self._image.topics]
            leaderless = [self._image.topics[name] for name in self._image.topic_index.leaderless]
            topics = leaderless if delta.broker_configs_changed else touched
            plans = plan_topic_elections(
                self._image, policy_of=self.policies.of, stopping=self.stopping(), topics=topics
            )
            if await self.write_and_announce(plans) is None and leaderless:
                self.parts.on_leaderless()

    async def _ensure_min_insync(self) -> None:
        """Sets the cluster's ``min.insync.replicas`` to the value of this broker, if the cluster has none."""
        if self.store.session_timeout_s and MIN_INSYNC not in self._image.default_broker_config():
            exists = await self.store.exists(ConfigNode.path("brokers", DEFAULT_ENTITY))
            value = self.policies.with_settings(self.config(), self._image).int(MIN_INSYNC)
            change = ensure_min_insync(self._image, value, exists=exists)
            if change is not None:
                await self.write_operations(change.operations)
                self._image = self._image.with_broker_config(DEFAULT_ENTITY, change.settings)

    async def write(self, plans: Iterable[Plan]) -> None:
        """Writes ``plans`` in several transactions and applies them to the image. Raises StoreError."""
        plans = list(plans)
        operations = [operation for plan in plans for operation in plan.operations]
        parents = await self._missing_parents(operations)
        for piece in in_pieces([*parents, *operations]):
            await self.write_operations(piece)
        if plans:
            self._image = self._image.with_topics(plan.topic for plan in plans)

    async def _missing_parents(self, operations: Iterable[Operation]) -> list[Operation]:
        """The missing parent nodes of the states that ``operations`` create.

        An administrator who writes a topic node leaves its child nodes to the controller. The topic node
        itself is not created: if it is missing, the topic was deleted meanwhile.
        """
        states = [operation.path for operation in operations if isinstance(operation, Create)]
        if not states:
            return []
        above = map(parent_of, states)
        paths = list(dict.fromkeys(path for parent in above for path in (parent_of(parent), parent)))
        nodes = await self.store.get_many(paths)
        return [Create(path) for path, node in zip(paths, nodes, strict=True) if node is None]

    async def write_operations(self, operations: Sequence[Operation]) -> None:
        """Writes all operations or none, fenced by the controller epoch. Raises StoreError."""
        try:
            if len(operations) > ITEMS_AT_ONCE_MAX:
                await yield_to_loop()  # Creating them took a while, and so will applying them.
            await self.store.transact([self.election.fence(), *operations])
        except BaseException as error:
            # The store may have committed a cancelled write.
            self._is_stale = True
            if isinstance(error, BadVersion) and error.path == CONTROLLER_EPOCH:
                self.election.resign()
            self.schedule_broker_refresh()
            raise

    async def write_all_or_errors(self, changes: Sequence[Sequence[Operation]]) -> list[KafkaError | None]:
        """Same as :meth:`write_or_error` for each of ``changes``, which are independent.

        Writes many of them in one transaction.
        """
        groups = list(in_groups(changes))
        outcomes = await asyncio.gather(*(self._write_group(group) for group in groups))
        return [outcome for group in outcomes for outcome in group]

    async def _write_group(self, group: Sequence[Sequence[Operation]]) -> list[KafkaError | None]:
        if len(group) > 1:
            try:
                await self.write_operations([operation for operations in group for operation in operations])
            except (OperationError, ValueError):
                # One of them failed, and none was written: each gets its own result.
                if not self.election.is_active:
                    return [controller_replaced()] * len(group)
            except StoreError as problem:
                return [refusal_of(problem)] * len(group)
            else:
                return [None] * len(group)
        return list(await asyncio.gather(*(self.write_or_error(in_pieces(one)) for one in group)))

    async def write_or_error(self, transactions: Iterable[Sequence[Operation]]) -> KafkaError | None:
        """Writes transactions, fenced by the controller epoch. Returns an error for the client."""
        try:
            for operations in transactions:
                await self.write_operations(operations)
        except (StoreError, ValueError) as error:
            return refusal_of(error)
        return None


def refusal_of(error: StoreError | ValueError) -> KafkaError:
    """Returns the error that a client gets for a refused write. Logs failures of the store."""
    refusal = wire_error(error, TOPIC_CODES)
    if refusal.code == ErrorCode.KAFKA_STORAGE_ERROR:
        logger.error("the coordination store rejected a write: %s", error)
    return refusal


def log_refused_deletions(topics: Iterable[str]) -> None:
    """Logs for administrators that deletion marks in the store were removed."""
    for line in in_lines(topics):
        logger.error(
            "topics are not deleted and their deletion marks are removed, because delete.topic.enable is "
            "false: %s",
            line,
        )


_PLACES = {
    TOPIC: "brokers/topics",
    REGISTRATION: "brokers/ids",
    SETTINGS: SETTINGS,
    GROUP_SETTINGS: GROUP_SETTINGS,
}


def _consequence_text(kind: str, name: str) -> str:
    """Describes the consequences of an unreadable node."""
    if kind == TOPIC:
        return f"Until then topic {name} is set aside: it cannot be used, and its records are kept."
    if kind == REGISTRATION:
        return f"Until then broker {name} counts as not live, unless it was registered before."
    if kind == GROUP_SETTINGS:
        return f"Until then group {name} has the settings of the brokers."
    return f"Until then broker settings ({name}) have their defaults, and no segment is deleted by age."


async def wait_for_all(announcements: Iterable[Announcement | None]) -> None:
    """Waits for the other brokers to apply the changes of one command, at most :data:`OTHERS_S`."""
    await wait_for_others([other for one in announcements if one is not None for other in one.others])


async def wait_for_others(others: Sequence[asyncio.Future[None]]) -> None:
    """Waits for ``others``, one per broker, at most :data:`OTHERS_S`."""
    if others:
        await asyncio.wait(others, timeout=OTHERS_S)
