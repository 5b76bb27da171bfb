"""This broker's place among the brokers of its cluster, as far as one alone needs it.

The controller's changes are carried out here; for a broker on its own store that is all there is. What
brokers need that have others beside them is in :mod:`tidemill.server.cluster`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.carrying_out import CarryingOut
from tidemill.broker.commands import Key
from tidemill.broker.metadata import effective_config
from tidemill.broker.store_connectivity import StoreConnectivity
from tidemill.controller.failover import Failover
from tidemill.controller.shell import Controller
from tidemill.coordination.image import Delta, TopicImage
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.port import StoreError
from tidemill.model.errors import KafkaError, StorageError
from tidemill.server.directory_starts import DirectoryStarts
from tidemill.server.failed_sync_store import DistrustedDirectories
from tidemill.server.membership import Events, Membership

log = logging.getLogger("tidemill.server")

FIRST_COMMAND_S = 10.0
"""How long the start waits for the controller to say what this broker leads."""
AGAIN_S, AGAIN_S_MAX = 1.0, 30.0
"""The first and the longest pause before something is tried again that a disk has refused."""


class Seat(Events):
    """A broker that has no others; made before it registers."""

    def __init__(self, broker: Broker, commands: CarryingOut) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: set[asyncio.Task[None]] = set()
        """Those that are being carried out."""
        self._deleting: set[Key] = set()
        """Topics that this broker could not delete at first."""
        commands.deletion_refused = self._deletion_refused
        self._letting_go: set[tuple[bytes, int]] = set()
        """Partitions (by topic id) whose replicas this broker could not delete at first."""
        commands.let_go_refused = self._let_go_refused
        self.commands = broker.commands = commands
        self.distrusted = DistrustedDirectories(broker.store, broker.node_id, broker.logs)
        self.starts = DirectoryStarts(broker.store, broker.node_id, broker.logs)
        broker.controller = Controller(
            broker.store, broker.node_id, lambda: broker.config, self.announce, broker.clock
        )
        broker.controller.view = lambda: broker.metadata.image
        broker.controller.policies.with_settings = lambda config, image: effective_config(
            config, image, broker.node_id
        )
        broker.failover = Failover(broker.controller)
        broker.store_connectivity = StoreConnectivity(broker.clock)
        self.membership = Membership(broker.store, broker.controller, self)

    def join_partitions(self) -> None:
        """Has the partitions follow leaders, and ask for in-sync sets; to be called once they are loaded."""
        self._broker.partitions.directory_distrusted = lambda: self.begin(self.distrusted.save_for_sure())

    async def register(self, registration: BrokerRegistration) -> None:
        """Takes this broker's place. Raises KafkaError when its id is taken, StoreError."""
        await self.membership.join(registration)

    async def wait_told(self) -> None:
        """Waits a while until the controller has told this broker what it leads."""
        try:
            async with asyncio.timeout(FIRST_COMMAND_S):
                await self.commands.heard.wait()
        except TimeoutError:
            log.warning("no controller has sent a command within %g s; it is waited for", FIRST_COMMAND_S)
            self.begin(self._accept_when_told())
            return
        await self._accept()

    async def _accept_when_told(self) -> None:
        await self.commands.heard.wait()
        await self._accept()

    async def _accept(self) -> None:
        """Signs new data directories, and has the replicas count again that were reported as lost."""
        if self._sign():
            await self._end_loss()
        else:
            self.begin(self._accept_later())

    async def _accept_later(self) -> None:
        pause_s = AGAIN_S
        while True:
            await asyncio.sleep(pause_s)
            if self._sign():
                break
            pause_s = min(2 * pause_s, AGAIN_S_MAX)
        await self._end_loss()

    def _sign(self) -> bool:
        try:
            if not self._broker.logs.missed:
                self._broker.logs.accept()
        except StorageError as problem:
            log.warning(
                "replicas that were reported as lost do not get in sync before the data directories can be "
                "signed, which is tried again: %s",
                problem,
            )
            return False
        return True

    async def _end_loss(self) -> None:
        broker = self._broker
        try:
            broker.logs.loss_heeded()
        except StorageError as problem:
            log.warning("the next start reports lost replicas again: %s", problem)
        self.begin(self.distrusted.save_for_sure())
        self.begin(self.starts.save_for_sure())
        try:
            await self.membership.clear_loss()
        except StoreError as problem:
            log.warning("the registration could not be renewed, it is tried again: %s", problem)
            self.begin(self.membership.clear_loss_later())

    async def loss_cleared(self) -> None:
        """Has the controller elect here: a broker that has no others watches no registrations."""
        if self._broker.controller.is_active:
            await self._broker.failover.brokers_changed()

    # Deletions

    def _deletion_refused(self, topic: TopicImage) -> None:
        key = (topic.name, topic.topic_id)
        if key not in self._deleting:
            self._deleting.add(key)
            self.begin(self._delete_again(topic))

    async def _delete_again(self, topic: TopicImage) -> None:
        """Deletes a topic once the disk lets it, as long as this broker is the controller."""
        key = (topic.name, topic.topic_id)
        controller = self._broker.controller
        pause_s = AGAIN_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)
                known = controller.image.deleting.get(topic.name)
                if not controller.is_active or known is None or known.topic_id != topic.topic_id:
                    return  # A later controller tells this broker of it.
                try:
                    await self.commands.delete_again(topic)
                except StorageError as problem:
                    log.error("%s cannot be deleted, which is tried again: %s", topic.name, problem)
                else:
                    break
        finally:
            self._deleting.discard(key)
        await self._confirm(self._broker.node_id, [key])

    def _let_go_refused(self, topic: TopicImage, index: int) -> None:
        key = (topic.topic_id, index)
        if key not in self._letting_go:
            self._letting_go.add(key)
            self.begin(self._let_go_again(topic, index))

    async def _let_go_again(self, topic: TopicImage, index: int) -> None:
        """Deletes a replica that was moved away, once the disk lets it: nobody else tells this broker to."""
        pause_s = AGAIN_S
        try:
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)
                try:
                    await self.commands.let_go_again(topic, index)
                except StorageError as problem:
                    log.error("%s-%d cannot be deleted, which is tried again: %s", topic.name, index, problem)
                else:
                    return
        finally:
            self._letting_go.discard((topic.topic_id, index))

    async def _confirm(self, broker_id: int, topics: Sequence[Key]) -> None:
        try:
            await self._broker.controller.replicas_deleted(broker_id, topics)
        except (KafkaError, StoreError) as problem:
            log.warning("the deletion of %s goes on later: %s", ", ".join(one[0] for one in topics), problem)

    async def hand_over(self) -> None:
        """Has others lead what this broker leads, as far as they can."""

    async def stop(self) -> None:
        """Leaves the cluster; the nodes go with the session."""
        await self.membership.leave()
        self._broker.controller.resign()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._changes, return_exceptions=True)

    async def announce(self, delta: Delta) -> None:
        """Has a change carried out that this process's controller has decided."""
        # Whoever wanted it may be broken off, when the office is lost for instance; half of a change would be
        # carried out, and the rest never be told again.
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        task = loop.create_task(self.commands.carry_out(delta, told))
        self._changes.add(task)
        task.add_done_callback(lambda ended: self._change_ended(ended, told.done()))
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()

    def _change_ended(self, task: asyncio.Task[None], was_told: bool) -> None:
        self._changes.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None and was_told:  # Nobody else hears of it.
            log.error("a change could not be carried out to its end here", exc_info=problem)

    def registered(self, epoch: int) -> None:
        """Commands for another epoch are not for this process."""
        self.commands.broker_epoch = epoch

    def session_lost(self) -> None:
        """Notes that the session has ended."""
        self._broker.store_connectivity.expired()

    def store_silent(self) -> None:
        """Notes since when the store does not answer."""
        self._broker.store_connectivity.silent()

    def store_back(self) -> None:
        """Notes that the store answers again."""
        self._broker.store_connectivity.back()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts something that ends by itself, or with the stop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            log.error("a background task of this broker has failed, and is not repeated", exc_info=problem)


def take_seat(broker: Broker, removed: Callable[[], Awaitable[None]]) -> Seat:
    """The place of a broker as its configuration wants it; ``removed`` is awaited after logs were deleted."""
    if broker.config.store() == "embedded":
        return Seat(broker, CarryingOut(broker, removed))
    # Imported here: a broker without others needs nothing of it.
    from tidemill.server.cluster import Cluster

    return Cluster(broker, removed)
