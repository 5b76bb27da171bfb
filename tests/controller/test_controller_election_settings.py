"""The settings that a controller uses in elections while its broker's configuration is behind the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_stage import Setting, create, place, with_controller

from tidemill.broker.dynamic_broker_config import effective_config
from tidemill.coordination.coordination_store import Create
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    ConfigNode,
    LeaderIsrAndControllerEpoch,
    TopicAssignment,
)
from tidemill.coordination.topic_image import PartitionImage


def after_a_new_controller(
    directory: Path, state: LeaderIsrAndControllerEpoch, stored: dict[str, str], **config: int | bool
) -> PartitionImage:
    """Returns the state of t-0 after controller failover. Replicas are 0, 8 and 9, and only 0 is alive.

    ``stored`` are the cluster settings in the store; ``config`` are the settings that the broker has read.
    """

    async def story(setting: Setting) -> PartitionImage:
        assert await create(setting, "t") is None
        settings = Create(ConfigNode.path("brokers", DEFAULT_ENTITY), ConfigNode.encode(stored))
        await place(setting, TopicAssignment(None, {0: [0, 8, 9]}), state, settings)
        new = Setting(setting.store, **config)
        new.controller.context.policies.with_settings = lambda config, image: effective_config(
            config, image, 0
        )
        assert await new.controller.context.activate()
        return new.controller.image.topics["t"].partitions[0]

    return with_controller(directory, story)


@pytest.mark.parametrize(("stored", "known", "eligible"), [(2, 1, [8, 9]), (1, 2, [])])
def test_a_new_controller_keeps_the_elr_by_the_stored_min_insync_replicas(
    tmp_path: Path, stored: int, known: int, eligible: list[int]
) -> None:
    state = LeaderIsrAndControllerEpoch(0, 1, [0, 8, 9], 1)
    found = after_a_new_controller(
        tmp_path, state, {"min.insync.replicas": str(stored)}, min_insync_replicas=known
    )
    assert (found.leader, found.isr, list(found.elr)) == (0, [0], eligible)


@pytest.mark.parametrize(("stored", "leader"), [(False, -1), (True, 0)])
def test_a_new_controller_elects_unclean_leaders_by_the_stored_setting(
    tmp_path: Path, stored: bool, leader: int
) -> None:
    found = after_a_new_controller(
        tmp_path,
        LeaderIsrAndControllerEpoch(-1, 1, [9], 1),
        {"unclean.leader.election.enable": str(stored).lower()},
        unclean_leader_election_enable=not stored,
    )
    assert found.leader == leader
