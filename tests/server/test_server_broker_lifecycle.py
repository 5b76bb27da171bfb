"""The lifecycle manager: changes that are applied after their request has ended, background tasks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.broker import Broker
from tidemill.broker.delayed_metadata import DelayedMetadata
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.errors import StorageError
from tidemill.model.task_set import TaskSet
from tidemill.server import broker_lifecycle
from tidemill.server.broker_lifecycle import BrokerLifecycleManager
from tidemill.server.cluster_member import ClusterMember
from tidemill.server.cluster_services import ClusterServices, StandaloneServices


def lifecycle_with(applier: Any, others: ClusterServices | None = None) -> BrokerLifecycleManager:
    """A lifecycle manager with an applier and without a broker."""
    place = BrokerLifecycleManager.__new__(BrokerLifecycleManager)
    place.applier = applier
    place._changes = TaskSet()
    nothing: Any = None
    place.services = others or StandaloneServices(Broker(), nothing, nothing)
    return place


async def test_a_change_is_applied_completely_after_its_caller_was_cancelled() -> None:
    going, done = asyncio.Event(), asyncio.Event()
    carried_out: list[Delta] = []

    async def apply_delta(announcement: Announcement, notified: asyncio.Future[None]) -> None:
        await going.wait()
        carried_out.append(announcement.delta)
        done.set()

    applier: Any = SimpleNamespace(apply_delta=apply_delta)
    place = lifecycle_with(applier)
    delta = Delta(ClusterImage(), ClusterImage())
    decided = asyncio.get_running_loop().create_task(place.announce(delta))
    await asyncio.sleep(0)
    decided.cancel()
    await asyncio.gather(decided, return_exceptions=True)
    assert decided.cancelled()
    going.set()
    await asyncio.wait_for(done.wait(), 10)
    assert carried_out == [delta]


async def test_announce_returns_when_brokers_are_notified_and_fails_only_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    late = asyncio.Event()

    async def apply_delta(announcement: Announcement, notified: asyncio.Future[None]) -> None:
        if announcement.delta.deleted:
            raise ValueError("before")
        notified.set_result(None)
        await late.wait()
        raise ValueError("after")

    applier: Any = SimpleNamespace(apply_delta=apply_delta)
    place = lifecycle_with(applier)
    image = ClusterImage()
    await place.announce(Delta(image, image))
    (change,) = place._changes
    late.set()
    await asyncio.wait([change])
    with pytest.raises(ValueError, match="before"):
        await place.announce(Delta(image, image, deleted=[TopicImage("t", b"1" * 16, (), {})]))
    assert not place._changes
    (logged,) = [record for record in caplog.records if record.exc_info]
    assert "after" in str(logged.exc_info)


class UnwritableDirectory(BrokerLifecycleManager):
    """A broker that cannot write ``meta.properties`` of a new data directory ``refused`` times."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.tasks = TaskSet()
        self.cleared = asyncio.Event()
        dirs = SimpleNamespace(write_new_meta_properties=self.accept, mark_losses_handled=lambda: None)
        logs: Any = SimpleNamespace(missed=0, dirs=dirs)
        self._broker = Broker()
        self._broker.log_manager = logs
        applier: Any = SimpleNamespace(first_change_applied=asyncio.Event())
        self.applier = applier
        saving: Any = SimpleNamespace(save_with_retries=self.saved)
        self.distrusted = self.starts = saving
        membership: Any = SimpleNamespace(clear_lost_replicas=self.clear_lost_replicas)
        self.membership = membership

    def accept(self) -> None:
        self.refused -= 1
        if self.refused >= 0:
            raise StorageError("cannot write /d/meta.properties: No space left on device")

    async def saved(self) -> None:
        pass

    async def clear_lost_replicas(self) -> None:
        assert self.refused < 0
        self.cleared.set()


@pytest.mark.parametrize("is_late", [False, True])
async def test_clears_lost_replicas_when_a_full_disk_has_space_again(
    is_late: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_lifecycle, "RETRY_S", 0.001)
    monkeypatch.setattr(broker_lifecycle, "FIRST_LEADER_AND_ISR_S", 0.01)

    place = UnwritableDirectory(3)
    if not is_late:
        place.applier.first_change_applied.set()
    await place.wait_for_leader_and_isr()
    place.applier.first_change_applied.set()
    await asyncio.wait_for(place.cleared.wait(), 10)
    assert sum("No space left" in one for one in caplog.messages) == 3


async def test_logs_a_failed_background_task(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError("a fault of this program")

    tasks = TaskSet(on_failure=broker_lifecycle.log_failure)
    tasks.start(work())
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert not tasks
    (logged,) = [record for record in caplog.records if record.name == "tidemill.server" and record.exc_info]
    assert "a fault of this program" in str(logged.exc_info)


async def test_a_change_applied_after_the_stop_starts_no_fetchers() -> None:
    """The logs are closed by then, and appended records would not be synced."""

    async def ends() -> None:
        pass

    cluster = ClusterMember.__new__(ClusterMember)
    broker = cluster._broker = Broker()
    followed: list[Any] = []

    async def stop_fetchers() -> None:
        followed.append(partitions.replica_fetcher_manager)

    following: Any = SimpleNamespace(stop=stop_fetchers)
    partitions: Any = SimpleNamespace(replica_fetcher_manager=following)
    part: Any = SimpleNamespace(stop=lambda: None)
    left: Any = SimpleNamespace(stop=ends, leave=ends, election=SimpleNamespace(resign=lambda: None))
    broker.replica_manager = partitions
    broker.controller = cluster._dynamic_config = left
    cluster._isr_changes = cluster._controller_channel = cluster._store_outage = part
    cluster._delayed_metadata = DelayedMetadata()
    cluster._fetchers = following
    place = lifecycle_with(SimpleNamespace(), cluster)
    place._broker, place.membership, place.tasks = broker, left, TaskSet()

    async def change() -> None:
        await asyncio.sleep(0)
        assert not followed

    place._changes.add(asyncio.create_task(change()))
    await place.stop()
    assert followed == [None]
    assert partitions.replica_fetcher_manager is None
