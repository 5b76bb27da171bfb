"""Makes a controller without the broker around it: its broker knows the controller's own image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.controller.controller import KafkaController
from tidemill.controller.controller_context import Announce
from tidemill.controller.leader_election import LogEnd
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.coordination_store import Store
from tidemill.model.configs import BrokerConfig
from tidemill.model.system_interfaces import Clock
from tidemill.model.types import TopicPartition


async def no_log_ends(
    requested: Mapping[int, Sequence[TopicPartition]], timeout_s: float
) -> dict[TopicPartition, dict[int, LogEnd]]:
    """No broker returns its log ends."""
    return {}


def announce_to(applier: LeaderAndIsrApplier) -> Announce:
    """Returns a function that announces changes to the broker of ``applier`` only."""

    async def announce(delta: Delta) -> Announcement:
        announcement = Announcement(delta)
        await applier.apply_delta(announcement)
        return announcement

    return announce


def new_controller(
    store: Store,
    broker_id: int,
    config: Callable[[], BrokerConfig],
    announce: Announce,
    clock: Clock,
    random: Random | None = None,
) -> KafkaController:
    """Returns a controller that nothing notifies; ``config`` has no settings of the store."""
    controller = KafkaController(
        store,
        broker_id,
        config,
        announce,
        clock,
        random,
        known_image=lambda: controller.image,
        with_settings=lambda config, image: config,
        schedule_broker_refresh=lambda: None,
        request_log_ends=no_log_ends,
    )
    return controller
