"""Registration and controller election after an expired session with the store."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faulty_files import FaultyFiles

from broker_listeners import IgnoringReplicaManagerListener, RecordingLeaderAndIsrListener
from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.broker import Broker
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.controller.controller_context import ControllerContext
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.coordination_store import Create, SessionState, SetData, StoreUnavailable
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas
from tidemill.coordination.nodes import BrokerNode, BrokerRegistration
from tidemill.coordination.registration_listener import RegistrationListener
from tidemill.log.log_manager import LogManager
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.broker_registration import BrokerRegistrationManager
from unwatched_controller import announce_to, new_controller


class Cluster(RegistrationListener):
    """A stub of the store and the controller. ``faults`` are raised by the next calls."""

    session_timeout_s = 1.0
    session_id = 1
    broker_id = 1

    def __init__(self, *faults: Exception) -> None:
        self.context = self.election = self
        """The stub is also the context and the election of the controller."""
        self.faults = list(faults)
        self.activated = asyncio.Event()
        self.met = asyncio.Event()
        """Set when the last fault was raised."""
        self.tries = 0
        """The number of attempts to become the controller."""
        self.is_active = False
        self.tell: Any = None
        self.registered_as: BrokerRegistration | None = None
        self.epoch = 1
        """The broker epoch of the next registration."""
        self.register_faults: list[Exception] = []
        """Faults of the next registrations, raised after the write."""
        self.write_faults: list[Exception] = []
        """Faults of the next updates of the registration, raised after the write."""

        self.is_silent = False
        """The last events of the store."""

    def store_disconnected(self) -> None:
        self.is_silent = True

    def store_reconnected(self) -> None:
        self.is_silent = False

    def on_session(self, listener: Any) -> None:
        self.tell = listener

    def end_session(self) -> None:
        """Expires the session, and starts the next one at once."""
        self.tell(SessionState.EXPIRED)
        self.tell(SessionState.CONNECTED)

    @property
    def registered_lost_replicas(self) -> LostReplicas:
        """The lost replicas in the stored registration."""
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


async def joined(cluster: Any, lost: LostReplicas = NOTHING_LOST) -> BrokerRegistrationManager:
    one = BrokerRegistrationManager(cluster, cluster, [cluster])
    await one.join(BrokerRegistration(1, (), lost=lost))
    cluster.activated.clear()
    return one


async def joined_with_a_lost_response(cluster: Cluster) -> BrokerRegistrationManager:
    """Returns a member that removed its lost replicas, but received no response from the store."""
    one = await joined(cluster, LostReplicas(missing=True))
    cluster.write_faults = [StoreUnavailable("the connection was lost")]
    with pytest.raises(StoreUnavailable):
        await one.clear_lost_replicas()
    return one


@pytest.mark.parametrize("is_answered", [True, False])
async def test_cleared_lost_replicas_are_not_registered_again(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    """Otherwise no replica of the broker would join the ISR before its next start."""
    monkeypatch.setattr("tidemill.server.broker_registration.RETRY_S", 0.0)

    cluster = Cluster()
    one = await joined(cluster, LostReplicas(missing=True))
    if not is_answered:
        cluster.register_faults = [StoreUnavailable("the connection was lost")]
    cluster.end_session()
    await asyncio.sleep(0)
    await one.clear_lost_replicas()
    await asyncio.wait_for(cluster.activated.wait(), 10)
    assert cluster.registered_lost_replicas.is_none
    await one.leave()


async def test_lost_replicas_are_not_registered_again_after_a_lost_response() -> None:
    """The replicas may have joined the ISR and lead since the store removed the report."""

    cluster = Cluster()
    one = await joined_with_a_lost_response(cluster)
    cluster.end_session()
    await asyncio.wait_for(cluster.activated.wait(), 10)
    assert cluster.registered_lost_replicas.is_none
    await one.leave()


async def test_retries_a_failed_removal_of_lost_replicas() -> None:
    cluster = Cluster()
    one = await joined_with_a_lost_response(cluster)
    cluster.registered_as = None
    for _ in range(2):
        await one.clear_lost_replicas()
    assert cluster.registered_lost_replicas.is_none
    cluster.registered_as = None
    await one.clear_lost_replicas()
    assert cluster.registered_as is None, "nothing is left to remove"
    await one.leave()


async def test_repeated_lost_replicas_have_the_epoch_of_the_first_report() -> None:
    """Topics created later lack no records, and this broker may be their only in-sync replica."""

    cluster = Cluster()
    one = await joined(cluster, LostReplicas(missing=True))
    for epoch in (5, 9):
        cluster.activated.clear()
        cluster.epoch = epoch
        cluster.end_session()
        await asyncio.wait_for(cluster.activated.wait(), 10)
        assert cluster.registered_lost_replicas == LostReplicas(missing=True, first_epoch=1)
    await one.leave()


async def test_retries_a_failed_reregistration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidemill.server.broker_registration.RETRY_S", 0.0)

    cluster = Cluster(KafkaError("not now"), KeyError("odd"))
    one = await joined(cluster)
    cluster.end_session()
    await asyncio.wait_for(cluster.activated.wait(), 10)
    await one.leave()
    assert any("retried in 0 s: not now" in record.getMessage() for record in caplog.records)
    faults = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert KeyError in faults


async def test_retries_until_the_store_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.server.broker_registration.RETRY_S", 0.0)

    cluster = Cluster(StoreUnavailable("away"), StoreUnavailable("still"))
    one = await joined(cluster)
    cluster.tell(SessionState.EXPIRED)
    assert not cluster.activated.is_set()
    cluster.tell(SessionState.CONNECTED)
    await asyncio.wait_for(cluster.met.wait(), 10)
    await asyncio.wait_for(cluster.activated.wait(), 10)
    await one.leave()


async def test_reports_a_reconnect_after_an_outage_during_the_reregistration() -> None:
    """Otherwise the broker would give up its leaderships although its session is valid."""

    cluster = Cluster()
    one = await joined(cluster)
    for state in (SessionState.EXPIRED, SessionState.CONNECTED, SessionState.SUSPENDED):
        cluster.tell(state)
    assert cluster.is_silent
    cluster.tell(SessionState.CONNECTED)
    assert not cluster.is_silent
    await asyncio.wait_for(cluster.activated.wait(), 10)
    await one.leave()


async def test_a_fenced_controller_is_elected_again_without_another_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.server.broker_registration.RETRY_S", 0.0)

    cluster = Cluster()
    one = await joined(cluster)
    cluster.is_active = True
    one.controller_moved()
    assert not cluster.is_active
    await asyncio.wait_for(cluster.activated.wait(), 10)
    await one.leave()


async def test_the_controller_epoch_exceeds_that_of_brokers_after_a_store_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was restored from a backup while the broker was running."""
    monkeypatch.setattr("tidemill.server.broker_registration.RETRY_S", 0.0)

    async def nothing() -> None:
        pass

    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    broker = Broker()
    broker.node_id, broker.clock, broker.metadata_cache = 1, SystemClock(), MetadataCache()
    broker.config, broker.log_manager = BrokerConfig.of(), LogManager(FaultyFiles(), ["/d"])
    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()
        broker.replica_manager = ReplicaManager(
            1, broker.log_manager, broker.clock, loop, pool, pool, IgnoringReplicaManagerListener()
        )
        listener: Any = RecordingLeaderAndIsrListener()
        applier = LeaderAndIsrApplier(
            1,
            lambda: broker.config,
            broker.clock,
            broker.log_manager,
            broker.replica_manager,
            broker.metadata_cache,
            removed=nothing,
            listener=listener,
        )
        applier.controller_epoch = 3
        controller = new_controller(store, 1, BrokerConfig.of, announce_to(applier), broker.clock)
        await controller.context.load()
        one = BrokerRegistrationManager(store, controller, [])
        listener.controller_moved = one.controller_moved
        try:
            await one.join(BrokerRegistration(1, ()))
            await asyncio.wait_for(applier.first_change_applied.wait(), 10)
            assert broker.metadata_cache.image.controller_epoch == 3
        finally:
            await one.leave()
            await store.close()


async def test_watches_the_controller_after_the_session_expired_during_the_join() -> None:
    class Interrupted(Cluster):
        async def watch(self, path: str, watcher: Any) -> None:
            self.end_session()

    cluster = Interrupted()
    one = await joined(cluster)
    await asyncio.wait_for(cluster.activated.wait(), 10)
    cluster.activated.clear()
    one.controller_failed(2)
    await asyncio.wait_for(cluster.activated.wait(), 10)
    assert cluster.tries >= 3  # at the start, after the session, and after the controller change
    await one.leave()


async def test_watches_the_controller_after_the_session_expired_before_the_join() -> None:
    """The logs are loaded before the join, which may take a long time."""

    cluster = Cluster()
    one = BrokerRegistrationManager(cluster, cluster, [cluster])  # type: ignore[arg-type]
    cluster.end_session()
    await one.join(BrokerRegistration(1, ()))
    tries = cluster.tries
    cluster.activated.clear()
    one.controller_failed(2)
    await asyncio.wait_for(cluster.activated.wait(), 10)
    assert cluster.tries > tries
    await one.leave()


async def test_a_broker_that_left_does_not_register_in_a_new_session() -> None:
    cluster = Cluster()
    one = await joined(cluster)
    tries, cluster.registered_as = cluster.tries, None
    await one.leave()
    cluster.end_session()
    assert not one._tasks
    assert cluster.registered_as is None
    assert cluster.tries == tries


class ReturningContext(ControllerContext):
    """Runs a callback before it loads the image."""

    before_load: Any = None

    async def load(self, known_cluster_id: str | None = None) -> ClusterImage:
        """Runs the callback, and loads the image."""
        if self.before_load is not None:
            await self.before_load()
        return await super().load(known_cluster_id)


async def test_a_broker_that_registers_during_the_controllers_reregistration_is_announced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the controller would consider it known, and send it no LeaderAndIsr request."""
    monkeypatch.setattr("tidemill.server.broker_registration.RETRY_S", 0.2)
    monkeypatch.setattr("tidemill.controller.controller.ControllerContext", ReturningContext)
    faults: list[Exception] = []
    announced: list[Delta] = []

    async def announce(delta: Delta) -> Announcement:
        if faults:
            raise faults.pop()
        announced.append(delta)
        return Announcement(delta)

    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    config = BrokerConfig.of()
    controller = new_controller(store, 1, lambda: config, announce, SystemClock())
    context: Any = controller.context
    failover, other = controller.failover, store.join()
    one = BrokerRegistrationManager(store, controller, [])
    await controller.context.load()
    await one.join(BrokerRegistration(1, ()))

    async def register_other() -> None:
        if controller.is_active:
            data = BrokerNode.encode(BrokerRegistration(2, ()))
            await other.transact([Create(BrokerNode.path(2), data, ephemeral=True)])
            context.before_load = None

    context.before_load = register_other
    faults.append(StoreUnavailable("away for a moment, as the controller is elected"))
    # In ZooKeeper's order: the expired session first, then the deleted /controller.
    one._has_expired = True
    await store.expire()
    assert one._reregistration is not None
    await asyncio.wait_for(one._reregistration, 10)
    await failover.brokers_changed()
    assert any(2 in delta.image.brokers for delta in announced)
    await one.leave()
    await other.close()
    await store.close()
