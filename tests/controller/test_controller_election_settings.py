"""The settings by which a controller elects, where this broker's configuration is behind the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_office import Setting, in_office

from tidemill.broker.metadata import effective_config
from tidemill.controller.topics import NewTopic
from tidemill.coordination.image import PartitionImage
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    ConfigNode,
    PartitionState,
    PartitionStateNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.coordination.port import Create, SetData


def after_a_new_controller(
    directory: Path, state: PartitionState, stored: dict[str, str], **config: int | bool
) -> PartitionImage:
    """What a controller makes of t-0 on brokers 0, 8 and 9, of which 0 lives, as it takes office.

    ``stored`` are the cluster's settings, ``config`` is what its broker had read of them.
    """

    async def story(setting: Setting) -> PartitionImage:
        await setting.controller.create_topics([NewTopic("t")])
        await setting.store.transact(
            [
                SetData(TopicNode.path("t"), TopicNode.encode(TopicAssignment(None, {0: [0, 8, 9]}))),
                SetData(PartitionStateNode.path("t", 0), PartitionStateNode.encode(state)),
                Create(ConfigNode.path("brokers", DEFAULT_ENTITY), ConfigNode.encode(stored)),
            ]
        )
        new = Setting(setting.store, **config)
        new.controller.policies.with_settings = lambda config, image: effective_config(config, image, 0)
        assert await new.controller.activate()
        return new.controller.image.topics["t"].partitions[0]

    return in_office(directory, story)


@pytest.mark.parametrize(("stored", "known", "eligible"), [(2, 1, [8, 9]), (1, 2, [])])
def test_a_new_controller_keeps_eligible_leaders_by_the_stored_minimum(
    tmp_path: Path, stored: int, known: int, eligible: list[int]
) -> None:
    state = PartitionState(0, 1, [0, 8, 9], 1)
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
        PartitionState(-1, 1, [9], 1),
        {"unclean.leader.election.enable": str(stored).lower()},
        unclean_leader_election_enable=not stored,
    )
    assert found.leader == leader
