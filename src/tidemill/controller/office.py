"""Controller election and fenced writes.

Every write carries a check of the controller's epoch, so that a controller that has been replaced without
knowing changes nothing. A change is announced only once the store has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from random import Random
from typing import TypeVar

from tidemill.controller.broker_changes import log_former_controller
from tidemill.controller.election_report import ElectionReport
from tidemill.controller.election_settings import (
    UNCLEAN,
    ElectionPolicies,
    fix_min_insync,
    plan_default_min_insync_change,
    plan_min_insync_change,
    settings_that_count,
)
from tidemill.controller.elections import (
    NO_LOG_ENDS,
    NO_LOSSES,
    LogEnds,
    Losses,
    plan_takeover,
)
from tidemill.controller.leaderless_report import LeaderlessReport
from tidemill.controller.lost_replica_reports import reported_losses
from tidemill.controller.reassignment import finding_ended
from tidemill.controller.stored_min_insync_replicas import read_other_min_insync
from tidemill.controller.topics import Plan, fence
from tidemill.coordination.encoding import NodeFormatError, encode_id, new_id
from tidemill.coordination.image import (
    GROUP_SETTINGS,
    REGISTRATION,
    SETTINGS,
    TOPIC,
    ClusterImage,
    Delta,
    Entity,
    TopicImage,
)
from tidemill.coordination.loading import load_image, read_settings
from tidemill.coordination.nodes import (
    CLUSTER_ID,
    CONTROLLER,
    CONTROLLER_EPOCH,
    DEFAULT_ENTITY,
    PERSISTENT_PATHS,
    BrokerNode,
    BrokerRegistration,
    ClusterIdNode,
    ConfigNode,
    ControllerEpochNode,
    ControllerNode,
    DeleteTopicNode,
)
from tidemill.coordination.pieces import in_groups, in_pieces
from tidemill.coordination.port import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    OperationError,
    SetData,
    Store,
    StoreError,
    StoreUnavailable,
    ensure_paths,
    parent_of,
)
from tidemill.model.configs import MIN_INSYNC, BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.log_lines import in_lines
from tidemill.model.ports import Clock
from tidemill.model.slices import AT_ONCE_MAX, a_pause, in_one_go, with_pauses
from tidemill.model.types import ZERO_ID

logger = logging.getLogger(__name__)
admin_log = logging.getLogger("tidemill.admin")
"""What administrators do; see :mod:`tidemill.broker.admin_log`."""

NO_CONTROLLER_VERSION = -1

OTHERS_S = 2.0
"""How long a command waits for the other brokers to carry it out; they do so later all the same."""

ATTEMPTS = 5
"""Of a change that somebody else's writes come in the way of."""

Result = TypeVar("Result")
Announce = Callable[[Delta], Awaitable[None]]


class Office:
    """This broker's way to the office, over its session with the store."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        config: Callable[[], BrokerConfig],
        announce: Announce,
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        """``config`` gives the broker's configuration as it is now; ``announce`` has a change carried out.

        ``announce`` returns when this broker has carried it out; the others are in :attr:`Delta.others`.
        """
        self.store = store
        self.broker_id = broker_id
        self.config = config
        self.policies = ElectionPolicies(lambda: self.config(), lambda: self._image)
        self._announce = announce
        self._clock = clock
        self.random = random if random is not None else Random()
        self.office_listeners: list[Callable[[bool], None]] = []
        """Called with True when the office was taken, with False when it is lost."""
        self._image = ClusterImage()
        self._epoch_version = NO_CONTROLLER_VERSION
        self._epoch = 0
        """Of the office that this broker took last."""
        self._writing = asyncio.Lock()
        self._stopping: dict[int, int] = {}
        """Brokers that are about to stop, and the epochs of their registrations."""
        self.report = ElectionReport()
        """Leaders that this controller chose since the start, and those of them that were not in sync."""
        self.leaderless_report = LeaderlessReport(lambda: self._image, self.policies.of, self.stopping)
        self._told: dict[Entity, str] = {}
        """What cannot be read in the store, as it was logged."""
        self.view: Callable[[], ClusterImage] = lambda: self._image
        """The cluster as this broker knows it while another is the controller."""
        self._ids_aside: dict[str, bytes] = {}
        """Ids of topics that could be read before."""
        self.leaderless: Callable[[], None] = lambda: None
        """Called after a change where partitions have no leader, and one may have to be recovered."""
        self.look_again: Callable[[], None] = lambda: None
        """Has the brokers looked at soon: a move could not be ended, or a write failed or was broken off (the
        next change reads what the store holds)."""
        self.look_at_brokers: Callable[[], Awaitable[None]] = _nothing
        """Takes note, within :meth:`changing`, of the brokers that came or went."""
        self._is_stale = False
        """A write failed or was broken off: what the store holds may be something else than the image."""
        self._is_look_due = False
        """Brokers have registered anew, as this controller has read, and the image has the former ones."""
        self._offline_in: ClusterImage | None = None
        """The image that has the reports of failed replicas which the image misses, as a write failed."""

    @property
    def image(self) -> ClusterImage:
        """The cluster as this controller last wrote or read it."""
        return self._image

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._epoch_version != NO_CONTROLLER_VERSION

    @property
    def is_changing(self) -> bool:
        """Whether a change is under way."""
        return self._writing.locked()

    # Start and end

    async def load(self, known_cluster_id: str | None = None) -> ClusterImage:
        """Makes sure that the tree is there, and reads it; nothing is registered or announced yet.

        A store without a cluster id gets ``known_cluster_id`` (that of the data directories), or a new one.
        In office the image stays: what differs from it was not announced.
        """
        await ensure_paths(self.store, PERSISTENT_PATHS)
        if await self.store.get(CLUSTER_ID) is None:
            cluster_id = known_cluster_id or encode_id(new_id())
            await ensure_paths(self.store, ["/cluster"])
            # Where another broker of the new cluster is faster, its id holds.
            with contextlib.suppress(NodeExists):
                await self.store.transact([Create(CLUSTER_ID, ClusterIdNode.encode(cluster_id))])
        async with self._writing:
            # Once in office only announced changes come into the image.
            if not self.is_active:
                self._image = await load_image(self.store)
                self.tell_unreadable()
        return self._image

    def tell_unreadable(self) -> None:
        """Names what the image had to leave out, each once as long as it stays as it is."""
        told = {entity: str(problem) for entity, problem in self._image.unreadable.items()}
        for entity, text in told.items():
            if self._told.get(entity) != text:
                logger.error("%s %s", text, _set_aside(*entity))
        for kind, name in sorted(self._told.keys() - told.keys()):
            logger.info("/%s/%s can be read again, or is gone", *(_PLACES[kind], name))
        self._told = told

    def known_ids(self, names: Iterable[str], image: ClusterImage | None = None) -> dict[str, bytes]:
        """The ids that topics had, in ``image`` (the present one) or before they could not be read."""
        topics = (image if image is not None else self._image).topics
        ids = {name: topics[name].topic_id if name in topics else self._ids_aside.get(name) for name in names}
        return {name: topic_id for name, topic_id in ids.items() if topic_id not in (None, ZERO_ID)}

    def note_unreadable(self, kind: str, found: Mapping[str, NodeFormatError]) -> None:
        """Takes note of what cannot be read of a kind. To be called within :meth:`changing`."""
        if found or self._image.unreadable:
            self._image = self._image.with_unreadable(kind, found)
            self.tell_unreadable()

    async def register(self, registration: BrokerRegistration) -> int:
        """Registers this broker; the epoch of its registration.

        Raises KafkaError (DUPLICATE_BROKER_REGISTRATION) when a broker of this id lives.
        """
        path = BrokerNode.path(registration.broker_id)
        data = BrokerNode.encode(registration)
        try:
            await self.store.transact([Create(path, data, ephemeral=True)])
        except NodeExists as error:
            known = await self.store.get(path)
            if known is None or known.owner != self.store.session_id:
                raise KafkaError(
                    f"{error}: another broker holds it. Give each broker of a cluster a broker.id of its "
                    "own; if this one was just stopped, wait for its session to end.",
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                ) from None
            # It was made by a call of this session whose answer was lost.
            await self.store.transact([SetData(path, data)])
        node = await self.store.get(path)
        return node.creation_id if node is not None else 0

    async def activate(self, *, dead: int | None = None) -> bool:
        """Takes the office, puts right what is not, and announces it all. False: another broker has it.

        ``dead``: a broker that is known to be dead although its node may live on; where it is the holder, the
        node goes first. Should it live after all, its writes are fenced, and its watch tells it.
        """
        async with self._writing:
            if not await self._take(dead):
                return False
            try:
                await self._begin()
            except BaseException as problem:
                was_replaced = not self.is_active
                self.resign()
                if was_replaced and isinstance(problem, KafkaError | BadVersion):
                    return False
                raise
        return True

    async def _take(self, dead: int | None) -> bool:
        # The epoch first: should the holder change after that, the transaction fails.
        node = await self.store.get(CONTROLLER_EPOCH)
        holder = await self.store.get(CONTROLLER)
        if holder is not None:
            is_dead = dead is not None and ControllerNode.decode(holder.data) == dead
            if not is_dead and holder.owner != self.store.session_id:
                return False
        epoch = ControllerEpochNode.decode(node.data) + 1 if node is not None else 1
        operations: list[Operation] = [Delete(CONTROLLER)] if holder is not None else []
        operations.append(
            Create(CONTROLLER, ControllerNode.encode(self.broker_id, self._clock.wall_ms()), ephemeral=True)
        )
        data = ControllerEpochNode.encode(epoch)
        if node is None:
            operations.append(Create(CONTROLLER_EPOCH, data))
        else:
            operations.append(SetData(CONTROLLER_EPOCH, data, node.version))
        try:
            results = await self.store.transact(operations)
        except (NodeExists, NoNode, BadVersion):
            return False  # Another broker was faster.
        self._epoch_version = results[-1].version
        self._epoch = epoch
        return True

    async def _begin(self) -> None:
        known = self.view()
        # Read only now: nobody else writes any more.
        image = await self._read()
        # A deletion that has begun hides the topic from a broker that was there.
        self._image = await self._refuse_deletions(
            image, lambda name: bool(known.brokers) and name not in known.topics
        )
        log_former_controller(known.brokers, self._image.brokers)
        self.tell_unreadable()
        self._is_stale, self._is_look_due, self._offline_in = False, False, None
        await self._fix_min_insync()
        # A leader may have read newer settings, committed by them, and died before the brokers were read.
        eligible = self._image.topic_index.eligible
        if eligible:
            others = await read_other_min_insync(self.store, self._image, eligible)
            self._image = self._image.with_settings(others)
        losses = await reported_losses(self.store, self._image, self._image.brokers)
        known_ids = self.known_ids(known.topics, known)
        before = self._image
        # It may have held the office before, and know of brokers that announced their stop to it.
        stopping = self.stopping()
        await self.write(plan_takeover(before, losses, self.policies.of, stopping, known_ids))
        self.check_active()  # Without a write nothing has checked yet that the session lives.
        in_one_go(self._reporting(Delta.between(before, self._image), losses))
        for listener in self.office_listeners:
            listener(True)
        delta = Delta.between(ClusterImage(), self._image)
        delta.broker_configs_changed = True
        await self._announce(delta)
        self.check_active()
        self.leaderless_report.begin(is_cluster_start=not known.brokers)
        await self.finish_moves()
        await self.finish_deletions()

    async def finish_deletions(self) -> None:
        """Goes on with the deletions that were begun before."""

    def resign(self) -> None:
        """Gives the office up, or takes note that it is lost."""
        if self.is_active:
            self._epoch_version = NO_CONTROLLER_VERSION
            self.leaderless_report.end()
            logger.info("broker %d is not the controller any more", self.broker_id)
            for listener in self.office_listeners:
                listener(False)

    async def finish_moves(self) -> None:
        """Ends the moves whose new replicas are in sync. To be called within :meth:`changing`."""

    def note_stopping(self, broker_id: int) -> None:
        """A broker is about to stop, and leads nothing anew, until it registers again."""
        self._stopping[broker_id] = self._image.brokers[broker_id].epoch

    def is_stopping(self, broker_id: int, epoch: int) -> bool:
        """Whether a broker announced its stop in the registration with ``epoch``, even if gone."""
        return self._stopping.get(broker_id) == epoch

    def stopping(self, image: ClusterImage | None = None) -> frozenset[int]:
        """Those that live in ``image`` (the present one), and are about to stop."""
        brokers = (image if image is not None else self._image).brokers
        return frozenset(
            broker
            for broker, epoch in self._stopping.items()
            if broker in brokers and brokers[broker].epoch == epoch
        )

    # Changes

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """One change at a time.

        Raises NOT_CONTROLLER, also where a write in it finds another controller, and StoreUnavailable where
        what failed before cannot be finished yet.
        """
        async with self._writing:
            self.check_active()
            try:
                if self._is_stale:
                    await self._catch_up()
                    self.check_active()  # The office may be lost meanwhile.
                if self._is_look_due:
                    await self.look_at_brokers()
                    self.check_active()
                    self._is_look_due = False
            except OperationError as problem:
                self.check_active()
                raise StoreUnavailable(f"somebody else has written at the same time: {problem}") from problem
            try:
                yield
            except BadVersion as problem:
                if problem.path == CONTROLLER_EPOCH:
                    raise _other_controller() from problem
                raise

    async def _catch_up(self) -> None:
        """After a write that failed: reads what the store holds, finishes what was written half way."""
        before = self._image
        image = await self._refuse_deletions(await self._read(), before.deleting.__contains__)
        try:
            # The store does not tell which replicas cannot be read, and who lives is decided elsewhere.
            self._image = image.with_brokers(before.brokers).with_offline_of(self._offline_in or before)
            self._is_stale = False
            self.tell_unreadable()
            known_ids = self.known_ids(before.topics, before)
            self._ids_aside |= {
                name: known_ids[name] for name in image.unreadable_of(TOPIC) if name in known_ids
            }
            # A broker with a new registration may have lost data. Its report is handled before it leads, and
            # before another change counts on what the former registration has.
            renewed = {
                broker
                for broker, known in before.brokers.items()
                if broker not in image.brokers or image.brokers[broker].epoch != known.epoch
            }
            self._is_look_due = self._is_look_due or bool(renewed)
            plans = plan_takeover(
                self._image,
                policy_of=self.policies.of,
                stopping=self.stopping() | renewed,
                known_ids=known_ids,
                recovers=False,  # One that has come meanwhile, or is renewed, may have the longest log.
            )
            await self.write(plans)
            await self._fix_min_insync()
            delta = Delta.between(before, self._image)
            delta.deleted = tuple(filter(self._is_deleted, delta.deleted))
            await self._announce(delta)
            await self.finish_deletions()
        except BaseException:
            # Some brokers have not received the whole change.
            self._image, self._is_stale = before, True
            raise
        self._offline_in = None
        await self._report(delta)

    def _is_deleted(self, topic: TopicImage) -> bool:
        """Whether a topic that was there is to be deleted: is marked so, or was made anew.

        The brokers keep the records of one whose nodes were removed without that, as Apache Kafka's do.
        """
        if (TOPIC, topic.name) in self._image.unreadable:
            return False
        is_deleted = topic.name in self._image.deleting or topic.name in self._image.topics
        if not is_deleted:
            logger.error(
                "%s is not in the store any more, and nobody has deleted it: its records stay where they "
                "are. Bring its nodes back, or remove its directories",
                topic.name,
            )
        return is_deleted

    async def _refuse_deletions(self, image: ClusterImage, has_begun: Callable[[str], bool]) -> ClusterImage:
        """Removes the marks of deletions that others want although ``delete.topic.enable`` is false.

        Those that a controller has begun, as ``has_begun`` tells by the topic's name, go on.
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
        """What the store holds. Raises NOT_CONTROLLER where another controller has come since.

        Its epoch would be the one under which this broker announced what it read.
        """
        image = await load_image(self.store, self._image.brokers)
        if image.controller_epoch != self._epoch:
            self.resign()
            self.check_active()
        return image

    async def decided(self, once: Callable[[], Awaitable[Result]]) -> Result:
        """What ``once`` returns: it decides and writes, within :meth:`changing`.

        Where somebody else has written what it wanted to, it is asked again, about what he wrote.
        """
        for attempts_left in reversed(range(ATTEMPTS)):
            async with self.changing():
                try:
                    return await once()
                except BadVersion as problem:
                    self.check_active()
                    if not attempts_left:
                        raise
                    logger.info("a change is decided again: %s", problem)
        raise AssertionError("the last attempt returns or raises")

    def check_active(self) -> None:
        """Raises NOT_CONTROLLER unless this broker is the controller, as far as it knows."""
        if not self.is_active:
            raise KafkaError("this broker is not the controller", ErrorCode.NOT_CONTROLLER)

    async def change(
        self,
        plans: Sequence[Plan],
        image: ClusterImage | None = None,
        *,
        losses: Losses = NO_LOSSES,
        ends: LogEnds = NO_LOG_ENDS,
        written: Callable[[], None] = lambda: None,
    ) -> Delta | None:
        """Writes ``plans``, makes them part of ``image`` (the present one), and announces what is different.

        ``losses`` and ``ends`` are those by which leaders were elected. ``written`` logs the change, before
        what it brought about is logged. None when nothing is different. To be called within
        :meth:`changing`. Raises StoreError.
        """
        before = self._image
        if image is not None:
            self._image = image
        try:
            await self.write(plans)
        except BaseException:
            self._image = before  # Some may be written: it is read again before the next change.
            raise
        if self._image is before:
            written()
            return None
        delta = Delta.between(before, self._image)
        await self._announce(delta)
        written()
        await self._report(delta, losses, ends)
        return delta

    async def _report(self, delta: Delta, losses: Losses = NO_LOSSES, ends: LogEnds = NO_LOG_ENDS) -> None:
        """Logs what a change brought about, and begins the recovery of partitions that need one."""
        await with_pauses(self._reporting(delta, losses, ends))
        await with_pauses(self.leaderless_report.noting(delta))
        if self._image.topic_index.leaderless:
            self.leaderless()

    async def change_offline(self, plans: Sequence[Plan]) -> None:
        """:meth:`change` for ``plans`` with replicas that a broker has reported as failed.

        They are offline whether the store answers or not: none of them is to lead what others wrote, or what
        was written half way.
        """
        before = self._image
        try:
            await self.change(plans)
        except BaseException:
            if self._image is before:
                self._offline_in = before.with_topics(plan.topic for plan in plans)
                self._is_stale = True  # The next change begins with them.
            raise

    def _reporting(
        self, delta: Delta, losses: Losses, ends: LogEnds = NO_LOG_ENDS
    ) -> Generator[None, None, None]:
        yield from self.report.noting(delta, losses, ends)
        for line in in_lines((yield from finding_ended(delta))):
            admin_log.info("reassignments done: %s", line)

    async def take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        """Takes settings (by kind and name) over that somebody wrote to the store. Raises NOT_CONTROLLER."""
        async with self.changing():
            try:
                others = self._image.other_settings(settings)
                # They were read before this change: since then this controller may have written others.
                delta = await self._take_settings(await read_settings(self.store, others))
                if delta is not None:
                    await self.elect_leaderless(delta)
            except StoreError:
                self.leaderless()  # A retry finds the settings unchanged, and would elect no leader.
                raise

    async def _take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> Delta | None:
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
                settings_that_count(before, old.config),
                settings_that_count(self._image, new.config),
            )
        if delta.broker_configs_changed:
            plans += plan_default_min_insync_change(
                self._image, before.default_broker_config(), self._image.default_broker_config()
            )
        await self.change(plans)
        before = self._image
        await self._fix_min_insync()  # Somebody may have removed it.
        if self._image is not before:
            await self._announce(Delta.between(before, self._image))
        return delta

    async def take_other_min_insync(self, topics: Iterable[str]) -> bool:
        """Takes over a ``min.insync.replicas`` of ``topics`` that somebody else wrote; whether there was one.

        To be called within :meth:`changing`, before the eligible leader replicas of these topics count.
        Raises StoreError.
        """
        names = [name for name in topics if name in self._image.topic_index.eligible]
        settings = await read_other_min_insync(self.store, self._image, names) if names else {}
        self.check_active()
        if not settings:
            return False
        try:
            await self._take_settings(settings)
        finally:
            self.leaderless()  # Other settings may have changed with it, and allow an election now.
        return True

    async def elect_leaderless(self, delta: Delta) -> None:
        """Elects leaders of leaderless partitions if ``delta`` changed settings that elections depend on.

        To be called within :meth:`changing`, once the change is carried out. Raises StoreError.
        """
        reconfigured = delta.reconfigured
        names = [new.name for old, new in reconfigured if old.config.get(UNCLEAN) != new.config.get(UNCLEAN)]
        if names or delta.broker_configs_changed:
            await self.look_at_brokers()
            touched = [self._image.topics[name] for name in names if name in self._image.topics]
            leaderless = [self._image.topics[name] for name in self._image.topic_index.leaderless]
            topics = leaderless if delta.broker_configs_changed else touched
            plans = plan_takeover(
                self._image, policy_of=self.policies.of, stopping=self.stopping(), topics=topics
            )
            if await self.change(plans) is None and leaderless:
                self.leaderless()

    async def _fix_min_insync(self) -> None:
        """Gives the cluster one ``min.insync.replicas``, as long as it has none: that of this broker."""
        if self.store.session_timeout_s and MIN_INSYNC not in self._image.default_broker_config():
            exists = await self.store.exists(ConfigNode.path("brokers", DEFAULT_ENTITY))
            value = self.policies.with_settings(self.config(), self._image).int(MIN_INSYNC)
            change = fix_min_insync(self._image, value, exists=exists)
            if change is not None:
                await self.write_operations(change.operations)
                self._image = self._image.with_broker_config(DEFAULT_ENTITY, change.settings)

    async def write(self, plans: Iterable[Plan]) -> None:
        """Writes ``plans``, in pieces, and makes them part of the image. Raises StoreError."""
        plans = list(plans)
        operations = [operation for plan in plans for operation in plan.operations]
        parents = await self._missing_parents(operations)
        for piece in in_pieces([*parents, *operations]):
            await self.write_operations(piece)
        if plans:
            self._image = self._image.with_topics(plan.topic for plan in plans)

    async def _missing_parents(self, operations: Iterable[Operation]) -> list[Operation]:
        """Makes what is missing between a topic's node and the states that ``operations`` create.

        An administrator who writes a topic's node leaves those below it to the controller. The topic's own
        node is not made: where it is gone, the topic was deleted meanwhile.
        """
        states = [operation.path for operation in operations if isinstance(operation, Create)]
        if not states:
            return []
        above = map(parent_of, states)
        paths = list(dict.fromkeys(path for parent in above for path in (parent_of(parent), parent)))
        nodes = await self.store.get_many(paths)
        return [Create(path) for path, node in zip(paths, nodes, strict=True) if node is None]

    async def write_operations(self, operations: Sequence[Operation]) -> None:
        """Writes as the controller, all or nothing. Raises StoreError."""
        try:
            if len(operations) > AT_ONCE_MAX:
                await a_pause()  # To make them took a while, as to carry them out will.
            if not self.is_active:
                # The office was lost since the change began. A check of that epoch would be of any version.
                raise BadVersion(CONTROLLER_EPOCH, 0, "this broker is not the controller any more")
            await self.store.transact([fence(self._epoch_version), *operations])
        except BaseException as error:
            # Nor is it known of a cancelled write whether the store has it.
            self._is_stale = True
            if isinstance(error, BadVersion) and error.path == CONTROLLER_EPOCH:
                self.resign()
            self.look_again()
            raise

    async def attempt_all(self, changes: Sequence[Sequence[Operation]]) -> list[KafkaError | None]:
        """As :meth:`attempt` for each of ``changes``, which are independent; many in one transaction."""
        groups = list(in_groups(changes))
        outcomes = await asyncio.gather(*(self._attempt_group(group) for group in groups))
        return [outcome for group in outcomes for outcome in group]

    async def _attempt_group(self, group: Sequence[Sequence[Operation]]) -> list[KafkaError | None]:
        if len(group) > 1:
            try:
                await self.write_operations([one for operations in group for one in operations])
            except (OperationError, ValueError):
                # One of them cannot be done, and none was: each has its own answer.
                if not self.is_active:
                    return [_other_controller()] * len(group)
            except StoreError as problem:
                return [_refused(problem)] * len(group)
            else:
                return [None] * len(group)
        return list(await asyncio.gather(*map(self.attempt, group)))

    async def attempt(self, operations: Iterable[Operation]) -> KafkaError | None:
        """Writes as the controller, in pieces, and says what went wrong in the protocol's terms."""
        return await self._attempt_each(in_pieces(operations))

    async def attempt_in_one(self, operations: Sequence[Operation]) -> KafkaError | None:
        """As :meth:`attempt`, in one transaction: all or nothing."""
        return await self._attempt_each([operations])

    async def _attempt_each(self, transactions: Iterable[Sequence[Operation]]) -> KafkaError | None:
        try:
            for operations in transactions:
                await self.write_operations(operations)
        except (StoreError, ValueError) as error:
            return refusal_of(error)
        return None


def refusal_of(error: StoreError | ValueError) -> KafkaError:
    """What a client is answered when a change could not be written."""
    match error:
        case BadVersion(path=path) if path == CONTROLLER_EPOCH:
            return _other_controller()
        case BadVersion():
            return KafkaError(f"{error}. Try again.", ErrorCode.UNKNOWN_SERVER_ERROR)
        case NodeExists():
            return KafkaError(str(error), ErrorCode.TOPIC_ALREADY_EXISTS)
        case NoNode():
            return KafkaError(str(error), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        case StoreError():
            return _refused(error)
    return KafkaError(str(error), ErrorCode.INVALID_REQUEST)


def log_refused_deletions(topics: Iterable[str]) -> None:
    """Logs for administrators that deletion marks in the store were removed."""
    for line in in_lines(topics):
        logger.error(
            "topics are not deleted, and their marks in the store are removed, as delete.topic.enable is "
            "false: %s",
            line,
        )


async def _nothing() -> None:
    pass


def _other_controller() -> KafkaError:
    return KafkaError("another broker has become the controller", ErrorCode.NOT_CONTROLLER)


def _refused(error: StoreError) -> KafkaError:
    logger.error("The coordination store refused a write: %s", error)
    return KafkaError(str(error), ErrorCode.KAFKA_STORAGE_ERROR)


_PLACES = {
    TOPIC: "brokers/topics",
    REGISTRATION: "brokers/ids",
    SETTINGS: SETTINGS,
    GROUP_SETTINGS: GROUP_SETTINGS,
}


def _set_aside(kind: str, name: str) -> str:
    """What becomes of something of which a node cannot be read."""
    if kind == TOPIC:
        return (
            f"Until then topic {name} is set aside: nobody can use, change or delete it, and its "
            "records stay where they are."
        )
    if kind == REGISTRATION:
        return f"Until then broker {name} is taken for one that does not live, unless it was known before."
    if kind == GROUP_SETTINGS:
        return f"Until then group {name} has the settings of the brokers."
    return (
        f"Until then defaults hold for the settings of brokers ({name}), and nothing is deleted by its age."
    )


async def wait_for(delta: Delta | None) -> None:
    """Waits a while until the other brokers have carried out a change."""
    if delta is not None:
        await wait_for_others(delta.others)


async def wait_for_all(deltas: Iterable[Delta | None]) -> None:
    """The same for the changes of one command."""
    await wait_for_others([one for delta in deltas if delta is not None for one in delta.others])


async def wait_for_others(others: Sequence[asyncio.Future[None]]) -> None:
    """Waits a while until these are done, each of which is a broker's."""
    if others:
        await asyncio.wait(others, timeout=OTHERS_S)
