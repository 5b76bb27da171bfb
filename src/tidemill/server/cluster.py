"""This broker as one of a cluster: how the parts are joined that brokers talk to each other with."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from tidemill.broker.broker import Broker
from tidemill.broker.channels import Channels, Hears
from tidemill.broker.commands import Commands, Key
from tidemill.broker.controller_link import ControllerLink
from tidemill.broker.following import Following
from tidemill.broker.handing_over import hand_over
from tidemill.broker.held_answers import HeldAnswers
from tidemill.broker.isr_changes import IsrChanges
from tidemill.broker.links import Links
from tidemill.broker.log_ends import LogEndRequests
from tidemill.broker.settings_watch import SettingsWatch
from tidemill.broker.throttling import Throttling
from tidemill.controller.administering import Administering
from tidemill.controller.registrations import Registrations
from tidemill.controller.watching import Watching
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import BrokerImage, Delta
from tidemill.coordination.nodes import (
    BROKER_IDS,
    DELETE_TOPICS,
    LOG_DIR_EVENTS,
    PREFERRED_REPLICA_ELECTION,
    REASSIGN_PARTITIONS,
    TOPICS,
    BrokerNode,
    BrokerRegistration,
    LogDirEventNode,
)
from tidemill.coordination.port import Create, Delete, NoNode, StoreError
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError, StorageError
from tidemill.replication.fetcher import FetchLimits
from tidemill.replication.partition import Partition
from tidemill.server.seat import Seat
from tidemill.server.silence import Silence

log = logging.getLogger("tidemill.server")

TELL_AGAIN_S = 1.0
LISTED_S = 3.0
"""A broker that is gone is listed for clients for so long, and for as long as its registration is there."""
LOOK_FOR_NODE_S = 1.0


class Cluster(Seat, Hears):
    """Joins controller, channels, commands and following."""

    def __init__(self, broker: Broker, removed: Callable[[], Awaitable[None]]) -> None:
        """``removed`` is awaited after logs were deleted."""
        self._held = broker.held_answers = HeldAnswers()
        # Notified first: clients wait for its answers.
        broker.metadata.on_change(self._held.image_changed)
        self._links = Links(broker, self._held)
        commands = Commands(broker, removed, self._links.listener)
        super().__init__(broker, commands)
        config = broker.config
        self._channels = Channels(
            broker.node_id,
            self._links.listener,
            self._links.open_to,
            self,
            config.int("controller.socket.timeout.ms") / 1000,
        )
        broker.failover.registered_listeners.append(self._channels.registered)
        self._administering = Administering(broker.controller, lambda path: self._watching.want([path]))
        self._registrations = Registrations(
            broker.store, lambda path: self._watching.want([path]), broker.failover.brokers_changed
        )
        self._watching = Watching(
            broker.store,
            {
                BROKER_IDS: self._registrations.brokers_changed,
                TOPICS: self._administering.topics_changed,
                DELETE_TOPICS: self._administering.deletions_wanted,
                REASSIGN_PARTITIONS: broker.controller.moves.take_wishes,
                PREFERRED_REPLICA_ELECTION: broker.controller.leading.take_elections,
                LOG_DIR_EVENTS: self._directories_failed,
            },
        )
        broker.controller.office_listeners.append(self._office_changed)
        # The store may have applied a failed write. A look at the brokers reads and announces its state.
        broker.controller.look_again = lambda: self._watching.want([BROKER_IDS])
        self._link = broker.controller_link = ControllerLink(
            broker.node_id,
            self._links.open,
            self._controller_dead,
            config.int("request.timeout.ms") / 1000,
        )
        self._isr_changes = IsrChanges(
            broker, self._link, broker.failover, lambda: self.commands.broker_epoch
        )
        self._settings = SettingsWatch(broker)
        self._log_ends = LogEndRequests(broker, self._links)
        broker.controller.recovery.ask = self._log_ends.ask
        commands.replicas_failed = self._own_replicas_failed
        commands.replicas_served = self._own_replicas_served
        commands.office_lost = self.office_lost
        commands.settings_unreadable = self._settings.unreadable
        self._unlisting: dict[int, BrokerImage] = {}
        """Brokers that are gone and listed, each with a task that ends that."""
        self._following: Following | None = None
        self._silence: Silence | None = None

    def join_partitions(self) -> None:
        """Has the partitions follow leaders, and ask for in-sync sets; to be called once they are loaded."""
        super().join_partitions()
        broker = self._broker
        config = broker.config
        broker.throttling = Throttling(broker)
        self._following = Following(
            broker.node_id,
            self.commands.broker_epoch,
            fetch_limits(config),
            self._links.open,
            broker.clock,
            self._storage_failed,
            broker.throttling.follower,
        )
        self._silence = Silence(broker)
        broker.partitions.following = self._following
        broker.partitions.lag_ms_max = config.int("replica.lag.time.max.ms")
        broker.partitions.change_isr = self._isr_changes.want
        broker.partitions.is_registered = lambda one: one in broker.metadata.brokers
        broker.partitions.directory_failed = lambda: self.begin(self._tell_failed())
        broker.metadata.on_change(self._brokers_gone)
        broker.metadata.on_change(self._unlist_departed)

    def _unlist_departed(self, delta: Delta) -> None:
        """Ends the listing of brokers that are gone, after a while, once they are not registered."""
        for broker_id, known in self._broker.metadata.departed.items():
            if self._unlisting.get(broker_id) is not known:
                self._unlisting[broker_id] = known
                self.begin(self._unlist(broker_id, known))

    async def _unlist(self, broker_id: int, known: BrokerImage) -> None:
        departed = self._broker.metadata.departed
        await asyncio.sleep(LISTED_S)
        while departed.get(broker_id) is known:
            with contextlib.suppress(StoreError):
                if not await self._broker.store.exists(BrokerNode.path(broker_id)):
                    break
            await asyncio.sleep(LOOK_FOR_NODE_S)
        if departed.get(broker_id) is known:
            del departed[broker_id]
        if self._unlisting.get(broker_id) is known:
            del self._unlisting[broker_id]

    async def _brokers_gone(self, delta: Delta) -> None:
        """Has leaders wait no more for followers whose brokers have ended."""
        gone = {one for one in delta.before.brokers if one not in delta.image.brokers}
        now_ms = self._broker.clock.monotonic_ms()
        for topic in delta.image.topic_index.with_replicas_on(sorted(gone)):
            for image in topic.partitions:
                replicas = gone.intersection(image.replicas)
                partition = self._broker.partitions.find(topic.name, image.partition) if replicas else None
                if partition is not None and partition.is_leader:
                    for one in replicas:
                        partition.follower_gone(one, now_ms)

    async def register(self, registration: BrokerRegistration) -> None:
        """Takes this broker's place. Raises KafkaError when its id is taken, StoreError."""
        await super().register(registration)
        self._settings.start()

    async def loss_cleared(self) -> None:
        """The controller watches registrations, and elects by itself."""

    async def hand_over(self) -> None:
        """Has others lead what this broker leads, as far as they can."""
        await hand_over(self._broker, lambda: self.commands.broker_epoch, self._follow_nobody)

    async def _follow_nobody(self) -> None:
        self._broker.partitions.following = None
        if self._following is not None:
            await self._following.stop()

    async def stop(self) -> None:
        """Leaves the cluster; the nodes go with the session."""
        await self._settings.stop()
        await super().stop()
        self._isr_changes.stop()
        if self._silence is not None:
            self._silence.stop()
        self._link.stop()
        self._held.close()
        # Commands that are still carried out follow nobody either: the logs are closed next.
        await self._follow_nobody()

    # Of the controller

    async def announce(self, delta: Delta) -> None:
        """Tells the others, too."""
        delta.others = self._channels.tell(delta)
        await super().announce(delta)

    def _office_changed(self, is_ours: bool) -> None:
        if is_ours:
            self._channels.start()
            self._watching.start()
        else:
            self._watching.stop()
            self._administering.stop()
            self._registrations.stop()
            self._channels.stop()

    def controller_is(self, broker_id: int) -> None:
        """Goes where the controller is."""
        self._link.set_controller(broker_id)
        failed = self._own_failed() if broker_id == self._broker.node_id else []
        if failed:
            self._own_replicas_failed(failed)

    def _controller_dead(self, broker_id: int) -> None:
        """Contests the office; the next controller need not find the dead one dead once more."""
        self._channels.refuses(broker_id)
        self.membership.controller_dead(broker_id)

    # Of this broker's registration

    def registered(self, epoch: int) -> None:
        """Commands for another epoch are not for this process."""
        super().registered(epoch)
        if self._following is not None:
            self._following.registered(epoch)
        self._settings.read_all()

    def session_lost(self) -> None:
        """Leads nothing any more that others may lead by now."""
        super().session_lost()
        if self._silence is not None:
            self._silence.ends(is_lost=True)
        self._link.stop()
        self._broker.partitions.step_down()

    def store_silent(self) -> None:
        """Looks from now on whether the other brokers are silent as well."""
        super().store_silent()
        if self._silence is not None:
            self._silence.begins()

    def store_back(self) -> None:
        """Leads again what was left meanwhile."""
        super().store_back()
        if self._silence is not None:
            self._silence.ends(is_lost=False)

    async def _tell_failed(self) -> None:
        """Has the controller ask which replicas are left here."""
        data = LogDirEventNode.encode(self._broker.node_id)
        while True:
            try:
                await self._broker.store.transact([Create(LogDirEventNode.prefix, data, sequential=True)])
                return
            except StoreError as problem:
                log.warning("the controller cannot be notified of the failed data directory yet: %s", problem)
                await asyncio.sleep(TELL_AGAIN_S)

    def _own_failed(self) -> list[tuple[bytes, int]]:
        return [
            (partition.log.topic_id, int(partition.index))
            for partition in self._broker.partitions.all()
            if partition.failed
        ]

    def _storage_failed(self, partition: Partition, problem: StorageError) -> None:
        self._broker.partitions.storage_trouble(partition, problem)

    # Of the channels

    def is_stopping(self, broker_id: int, epoch: int) -> bool:
        """Whether the controller has moved its leaderships away, as it announced its stop."""
        return self._broker.controller.is_stopping(broker_id, epoch)

    def broker_dead(self, broker_id: int, epoch: int) -> None:
        """Takes its leaderships away."""
        if self.is_stopping(broker_id, epoch):
            log.info("broker %d has shut down: it refuses connections", broker_id)
        else:
            log.warning("broker %d refuses connections: its process has ended", broker_id)
        self._broker.failover.found_dead(broker_id, epoch)
        self._watching.want([BROKER_IDS])

    def broker_reached(self, broker_id: int) -> None:
        """Takes it back, if it was taken for dead."""
        if self._broker.failover.found_alive(broker_id):
            log.info("broker %d listens again", broker_id)
            self._watching.want([BROKER_IDS])

    def replicas_deleted(self, broker_id: int, topics: Sequence[Key]) -> None:
        """Ends the deletion of topics that nobody has any more."""
        self.begin(self._confirm(broker_id, topics))

    def replicas_failed(self, broker_id: int, epoch: int, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Has others lead them."""
        log.error("broker %d cannot read or write %d of its partitions", broker_id, len(partitions))
        self.begin(
            _until_written(
                lambda: self._broker.failover.replicas_failed(broker_id, epoch, partitions),
                f"partitions that broker {broker_id} cannot serve",
            )
        )

    def replicas_served(self, broker_id: int, epoch: int, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Lets them lead and be in sync again."""
        self.begin(
            _until_written(
                lambda: self._broker.failover.replicas_served(broker_id, epoch, partitions),
                f"partitions that broker {broker_id} serves again",
            )
        )

    def _own_replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        self.replicas_failed(self._broker.node_id, self.commands.broker_epoch, partitions)

    def _own_replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        self.replicas_served(self._broker.node_id, self.commands.broker_epoch, partitions)

    async def _directories_failed(self) -> None:
        """Finds out which replicas brokers have lost that told of a failed data directory."""
        store = self._broker.store
        paths = [f"{LOG_DIR_EVENTS}/{name}" for name in await store.children(LOG_DIR_EVENTS)]
        nodes = await store.get_many(paths)
        told = set()
        for node in nodes:
            try:
                told |= {LogDirEventNode.decode(node.data)} if node is not None else set()
            except NodeFormatError as problem:
                log.error("%s It goes with the others.", problem)
        for broker_id in told:
            if broker_id == self._broker.node_id:
                epoch = self.commands.broker_epoch
                await self._broker.failover.replicas_failed(broker_id, epoch, self._own_failed())
            else:
                self._channels.repeat(self._broker.controller.image, broker_id)
        controller = self._broker.controller
        async with controller.changing():
            for path in paths:
                # Fenced: a controller that was replaced leaves them to the next one.
                with contextlib.suppress(NoNode):
                    await controller.write_operations([Delete(path)])

    def office_lost(self) -> None:
        """A later controller is at work."""
        self.membership.office_doubted()


def fetch_limits(config: BrokerConfig) -> FetchLimits:
    """The ``replica.*`` keys."""
    return FetchLimits(
        wait_ms=config.int("replica.fetch.wait.max.ms"),
        bytes_min=config.int("replica.fetch.min.bytes"),
        bytes_max=config.int("replica.fetch.response.max.bytes"),
        partition_bytes_max=config.int("replica.fetch.max.bytes"),
        backoff_ms=config.int("replica.fetch.backoff.ms"),
        patience_ms=config.int("replica.socket.timeout.ms"),
    )


async def _until_written(change: Callable[[], Awaitable[None]], what: str) -> None:
    """Makes a change for replicas once the store answers. ``what`` names them."""
    while True:
        try:
            await change()
        except StoreError as problem:
            log.error("the change for %s is tried again in %g s: %s", what, TELL_AGAIN_S, problem)
            await asyncio.sleep(TELL_AGAIN_S)
        except KafkaError as problem:
            # Another controller asks brokers for it when it begins.
            log.info("%s are left to another controller: %s", what, problem)
            return
        else:
            return
