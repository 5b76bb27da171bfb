"""A broker's place in the cluster after its session with the store was lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidemill.broker.broker import Broker
from tidemill.broker.carrying_out import CarryingOut
from tidemill.broker.metadata import MetadataCache
from tidemill.controller.failover import Failover
from tidemill.controller.shell import Controller
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import ClusterImage, Delta
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.coordination.nodes import BrokerNode, BrokerRegistration
from tidemill.coordination.port import Create, SessionState, SetData, StoreUnavailable
from tidemill.log.manager import LogManager
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.replication.manager import ReplicaManager
from tidemill.server.membership import Events, Membership
from tidemill.testing.files import FaultyFiles


class Cluster(Events):
    """Store and controller as far as they are asked; ``faults`` are what the next calls meet."""

    session_timeout_s = 1.0
    session_id = 1
    broker_id = 1

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.activated = asyncio.Event()
        self.met = asyncio.Event()
        """The last of the faults was met."""
        self.tries = 0
        """How often it was to become the controller."""
        self.is_active = False
        self.tell: Any = None
        self.registered_as: BrokerRegistration | None = None
        self.epoch = 1
        """Of the next registration."""
        self.register_faults: list[Exception] = []
        """What the next registrations meet after they were written."""
        self.write_faults: list[Exception] = []
        """The same of the next changes of a registration."""

        self.is_silent = False
        """What the events say of the store."""

    def store_silent(self) -> None:
        self.is_silent = True

    def store_back(self) -> None:
        self.is_silent = False

    def on_session(self, listener: Any) -> None:
        self.tell = listener

    def end_session(self) -> None:
        """Ends the session; the next one begins at once."""
        self.tell(SessionState.EXPIRED)
        self.tell(SessionState.CONNECTED)

    @property
    def registered_losses(self) -> LostReplicas:
        """The losses that the registration in the store reports."""
        assert self.registered_as is not None
        return self.registered_as.lost

    async def watch(self, path: str, watcher: Any) -> None:
        pass

    async def get(self, path: str) -> None:
        return None

    async def load(self) -> None:
        if self.faults:
            fault = self.faults.pop(0)
            if not self.faults:
                self.met.set()
            raise fault

    async def register(self, registration: BrokerRegistration) -> int:
        self.registered_as = registration
        if self.register_faults:
            raise self.register_faults.pop(0)
        return self.epoch

    async def transact(self, operations: list[SetData]) -> None:
        (one,) = operations
        self.registered_as = BrokerNode.decode(1, one.data)
        if self.write_faults:
            raise self.write_faults.pop(0)

    async def activate(self, dead: int | None = None) -> bool:
        self.tries += 1
        self.activated.set()
        return True

    def resign(self) -> None:
        self.is_active = False


async def joined(cluster: Any, lost: LostReplicas = NOTHING_LOST) -> Membership:
    one = Membership(cluster, cluster, cluster)
    await one.join(BrokerRegistration(1, (), lost=lost))
    cluster.activated.clear()
    return one


async def joined_with_an_unanswered_removal(cluster: Cluster) -> Membership:
    """Returns a member that wrote the removal of its losses, but received no answer from the store."""
    one = await joined(cluster, LostReplicas(missing=True))
    cluster.write_faults = [StoreUnavailable("the connection was lost")]
    with pytest.raises(StoreUnavailable):
        await one.clear_loss()
    return one


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_loss_that_was_heeded_does_not_come_back_with_the_next_registration(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """Else no replica of the broker would get in sync before its next start."""
    monkeypatch.setattr("tidemill.server.membership.RETRY_S", 0.0)

    async def run() -> None:
        cluster = Cluster()
        one = await joined(cluster, LostReplicas(missing=True))
        if not is_answered:
            cluster.register_faults = [StoreUnavailable("the connection was lost")]
        cluster.end_session()
        await asyncio.sleep(0)
        await one.clear_loss()
        await asyncio.wait_for(cluster.activated.wait(), 10)
        assert cluster.registered_losses.is_none
        await one.leave()

    asyncio.run(run())


def test_a_loss_whose_removal_was_not_answered_does_not_come_back_with_the_next_registration() -> None:
    """The broker may have got in sync, and lead, since the store had it removed."""

    async def run() -> None:
        cluster = Cluster()
        one = await joined_with_an_unanswered_removal(cluster)
        cluster.end_session()
        await asyncio.wait_for(cluster.activated.wait(), 10)
        assert cluster.registered_losses.is_none
        await one.leave()

    asyncio.run(run())


def test_a_removal_of_losses_that_the_store_has_not_taken_is_written_again() -> None:
    async def run() -> None:
        cluster = Cluster()
        one = await joined_with_an_unanswered_removal(cluster)
        cluster.registered_as = None
        for _ in range(2):
            await one.clear_loss()
        assert cluster.registered_losses.is_none
        cluster.registered_as = None
        await one.clear_loss()
        assert cluster.registered_as is None, "nothing is left to remove"
        await one.leave()

    asyncio.run(run())


def test_a_loss_that_is_reported_again_names_the_registration_in_which_it_was_first() -> None:
    """Topics that were made meanwhile lack nothing, and the broker may be alone in sync."""

    async def run() -> None:
        cluster = Cluster()
        one = await joined(cluster, LostReplicas(missing=True))
        for epoch in (5, 9):
            cluster.activated.clear()
            cluster.epoch = epoch
            cluster.end_session()
            await asyncio.wait_for(cluster.activated.wait(), 10)
            assert cluster.registered_losses == LostReplicas(missing=True, first_epoch=1)
        await one.leave()

    asyncio.run(run())


def test_whatever_a_return_meets_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidemill.server.membership.RETRY_S", 0.0)

    async def run() -> None:
        cluster = Cluster(KafkaError("not now"), KeyError("odd"))
        one = await joined(cluster)
        cluster.end_session()
        await asyncio.wait_for(cluster.activated.wait(), 10)
        await one.leave()

    asyncio.run(run())
    assert any("tried again in 0 s: not now" in record.getMessage() for record in caplog.records)
    faults = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert KeyError in faults


def test_a_store_that_is_away_again_is_asked_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.server.membership.RETRY_S", 0.0)

    async def run() -> None:
        cluster = Cluster(StoreUnavailable("away"), StoreUnavailable("still"))
        one = await joined(cluster)
        cluster.tell(SessionState.EXPIRED)
        assert not cluster.activated.is_set()
        cluster.tell(SessionState.CONNECTED)
        await asyncio.wait_for(cluster.met.wait(), 10)
        await asyncio.wait_for(cluster.activated.wait(), 10)
        await one.leave()

    asyncio.run(run())


def test_a_store_that_was_silent_before_the_broker_had_registered_again_is_known_to_be_back() -> None:
    """Else the broker would stop leading what its session lets it lead."""

    async def run() -> None:
        cluster = Cluster()
        one = await joined(cluster)
        for state in (SessionState.EXPIRED, SessionState.CONNECTED, SessionState.SUSPENDED):
            cluster.tell(state)
        assert cluster.is_silent
        cluster.tell(SessionState.CONNECTED)
        assert not cluster.is_silent
        await asyncio.wait_for(cluster.activated.wait(), 10)
        await one.leave()

    asyncio.run(run())


def test_an_office_that_others_doubt_is_contested_anew_where_nobody_else_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.server.membership.RETRY_S", 0.0)

    async def run() -> None:
        cluster = Cluster()
        one = await joined(cluster)
        cluster.is_active = True
        one.office_doubted()
        assert not cluster.is_active
        await asyncio.wait_for(cluster.activated.wait(), 10)
        await one.leave()

    asyncio.run(run())


def test_a_broker_that_has_seen_later_controllers_than_the_store_knows_leads_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was put back to a former state while the broker ran."""
    monkeypatch.setattr("tidemill.server.membership.RETRY_S", 0.0)

    async def nothing() -> None:
        pass

    async def run() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        broker = Broker()
        broker.node_id, broker.clock, broker.metadata = 1, SystemClock(), MetadataCache()
        broker.config, broker.logs = BrokerConfig.of(), LogManager(FaultyFiles(), ["/d"])
        with ThreadPoolExecutor(1) as pool:
            loop = asyncio.get_running_loop()
            broker.partitions = ReplicaManager(1, broker.logs, broker.clock, loop, pool, pool)
            commands = CarryingOut(broker, nothing)
            commands.controller_epoch = 3
            controller = Controller(store, 1, BrokerConfig.of, commands.carry_out, broker.clock)
            await controller.load()
            one = Membership(store, controller, Events())
            commands.office_lost = one.office_doubted
            try:
                await one.join(BrokerRegistration(1, ()))
                await asyncio.wait_for(commands.heard.wait(), 10)
                assert broker.metadata.image.controller_epoch == 3
            finally:
                await one.leave()
                await store.close()

    asyncio.run(run())


def test_the_office_is_followed_also_where_the_session_ended_while_the_broker_joined() -> None:
    class Interrupted(Cluster):
        async def watch(self, path: str, watcher: Any) -> None:
            self.end_session()

    async def run() -> None:
        cluster = Interrupted()
        one = await joined(cluster)
        await asyncio.wait_for(cluster.activated.wait(), 10)
        cluster.activated.clear()
        one.controller_dead(2)
        await asyncio.wait_for(cluster.activated.wait(), 10)
        assert cluster.tries >= 3  # at its start, after the session, and after the controller
        await one.leave()

    asyncio.run(run())


def test_the_office_is_followed_also_where_the_session_ended_before_the_broker_joined() -> None:
    """The logs are loaded before: that may take long."""

    async def run() -> None:
        cluster = Cluster()
        one = Membership(cluster, cluster, cluster)  # type: ignore[arg-type]
        cluster.end_session()
        await one.join(BrokerRegistration(1, ()))
        tries = cluster.tries
        cluster.activated.clear()
        one.controller_dead(2)
        await asyncio.wait_for(cluster.activated.wait(), 10)
        assert cluster.tries > tries
        await one.leave()

    asyncio.run(run())


def test_a_broker_that_has_left_does_not_come_back_with_another_session() -> None:
    async def run() -> None:
        cluster = Cluster()
        one = await joined(cluster)
        tries, cluster.registered_as = cluster.tries, None
        await one.leave()
        cluster.end_session()
        assert not one._tasks
        assert cluster.registered_as is None
        assert cluster.tries == tries

    asyncio.run(run())


class ReturningController(Controller):
    """Reads the cluster, and whatever happens just before."""

    before_load: Any = None

    async def load(self, known_cluster_id: str | None = None) -> ClusterImage:
        """As the real one."""
        if self.before_load is not None:
            await self.before_load()
        return await super().load(known_cluster_id)


def test_a_broker_that_comes_while_the_controller_returns_is_announced_to_the_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else it would be counted as known, and never be told what it leads."""
    monkeypatch.setattr("tidemill.server.membership.RETRY_S", 0.2)
    faults: list[Exception] = []
    announced: list[Delta] = []

    async def announce(delta: Delta) -> None:
        if faults:
            raise faults.pop()
        announced.append(delta)

    async def run() -> None:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        config = BrokerConfig.of()
        controller = ReturningController(store, 1, lambda: config, announce, SystemClock())
        failover, other = Failover(controller), store.join()
        one = Membership(store, controller, Events())
        await controller.load()
        await one.join(BrokerRegistration(1, ()))

        async def register_other() -> None:
            if controller.is_active:
                data = BrokerNode.encode(BrokerRegistration(2, ()))
                await other.transact([Create(BrokerNode.path(2), data, ephemeral=True)])
                controller.before_load = None

        controller.before_load = register_other
        faults.append(StoreUnavailable("away for a moment, as the office is taken"))
        # As ZooKeeper tells it: the session's end first, then that of the office.
        one._has_expired = True
        await store.expire()
        assert one._returning is not None
        await asyncio.wait_for(one._returning, 10)
        await failover.brokers_changed()
        assert any(2 in delta.image.brokers for delta in announced)
        await one.leave()
        await other.close()
        await store.close()

    asyncio.run(run())
