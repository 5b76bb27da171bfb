"""The cost of a change depends on the affected partitions, not on the number of all partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.broker.dynamic_broker_config import DynamicBrokerConfig
from tidemill.broker.log_configs import changed_defaults, depends_on
from tidemill.controller import leader_election
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage, Delta
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.coordination.topic_index import TopicIndex
from tidemill.log.log_config import LogConfig
from tidemill.model.clock import SystemClock
from tidemill.model.configs import BrokerConfig
from tidemill.model.event_loop_slices import STEPS_PER_SLICE
from tidemill.server.cluster_member import ClusterMember
from unpaused import plan_broker_change, plan_shutdown

DEAD = 3
OTHERS = 200


def topic(name: str, *replicas: list[int], **settings: str) -> TopicImage:
    states = [PartitionImage(index, one[0], 1, one, list(one), 1) for index, one in enumerate(replicas)]
    config = {key.replace("_", "."): value for key, value in settings.items()}
    return TopicImage(name, name.encode().ljust(16), tuple(states), config)


def image_of(*topics: TopicImage, living: tuple[int, ...] = (1, 2, DEAD)) -> ClusterImage:
    brokers = {one: BrokerImage(BrokerRegistration(one, (), None), one) for one in living}
    return ClusterImage("c", 1, 1, brokers, {one.name: one for one in topics})


def many() -> ClusterImage:
    """One partition has a replica on the failed broker, and many have none."""
    others = [topic(f"other-{number}", [1, 2], [2, 1]) for number in range(OTHERS)]
    return image_of(*others, topic("affected", [1, 2], [1, DEAD]))


placements = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True), max_size=3)
names = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.dictionaries(names, placements | st.none(), min_size=1), max_size=8))
def test_the_topics_by_broker_follow_all_changes(
    changes: list[dict[str, list[list[int]] | None]],
) -> None:
    index = TopicIndex({})
    for change in changes:
        made = [topic(name, *replicas) for name, replicas in change.items() if replicas is not None]
        before = index
        known = {broker: list(before.by_broker.get(broker, ())) for broker in range(1, 5)}
        index = index.with_changes(made, [name for name, replicas in change.items() if replicas is None])
        for broker in range(1, 5):
            expected = {
                name
                for name, one in index.by_name.items()
                if any(broker in partition.replicas for partition in one.partitions)
            }
            assert {one.name for one in index.with_replicas_on([broker])} == expected
            assert list(before.by_broker.get(broker, ())) == known[broker], "images never change"


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics for which elections are planned."""
    found: list[str] = []
    plan = leader_election._plan_partitions_in_slices

    def noted(image: ClusterImage, one: TopicImage, *arguments: Any) -> Any:
        found.append(one.name)
        return plan(image, one, *arguments)

    monkeypatch.setattr(leader_election, "_plan_partitions_in_slices", noted)
    return found


def test_a_broker_failure_reads_only_the_topics_of_the_broker(looked_at: list[str]) -> None:
    image = many()
    after = image.with_brokers({one: had for one, had in image.brokers.items() if one != DEAD})
    (plan,) = plan_broker_change(after, [DEAD])
    assert plan.topic.partitions[1].isr == [1]
    assert looked_at == ["affected"]


def test_a_controlled_shutdown_plans_only_the_topics_of_the_broker() -> None:
    image = image_of(topic("a", [DEAD, 1]), topic("b", [1, DEAD]), topic("c", [1, 2]), topic("d", [DEAD]))
    found = plan_shutdown(image, DEAD, frozenset())
    assert [plan.topic.name for plan in found.plans] == ["a", "b"]


class Led:
    """A partition that this broker leads, with the departed followers."""

    is_leader = True

    def __init__(self) -> None:
        self.gone: list[int] = []

    def follower_gone(self, broker: int, now_ms: int) -> None:
        self.gone.append(broker)


class Partitions:
    """All partitions of this broker, created at the first look-up."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], Led] = {}

    def find(self, name: str, index: int) -> Led:
        return self.found.setdefault((name, index), Led())


def test_a_broker_failure_notifies_only_leaders_with_the_follower() -> None:
    before = many()
    after = before.with_brokers({one: had for one, had in before.brokers.items() if one != DEAD})
    partitions = Partitions()
    broker = SimpleNamespace(replica_manager=partitions, clock=SimpleNamespace(monotonic_ms=lambda: 0))
    this: Any = SimpleNamespace(_broker=broker)
    asyncio.run(ClusterMember._brokers_gone(this, Delta.between(before, after)))
    assert {key: one.gone for key, one in partitions.found.items()} == {("affected", 1): [DEAD]}


def reconfigured(before: dict[str, Any], after: dict[str, Any], *topics: TopicImage) -> list[str]:
    """Returns the topics that are reconfigured by a change of broker settings."""
    found: list[str] = []
    this = server(BrokerConfig.of(**after), topics, lambda name, config: found.append(name))
    asyncio.run(DynamicBrokerConfig._reconfigure_topics(this, BrokerConfig.of(**before)))
    return found


def server(
    config: BrokerConfig, topics: Sequence[TopicImage], reconfigure: Callable[[str, LogConfig], None]
) -> Any:
    """The part of DynamicBrokerConfig that applies changed defaults."""
    entries = {one.name.encode(): SimpleNamespace(name=one.name) for one in topics}
    partitions = SimpleNamespace(
        topics=SimpleNamespace(by_name=entries), reconfigure=reconfigure, clock=SystemClock()
    )
    metadata = SimpleNamespace(image=image_of(*topics))
    return SimpleNamespace(
        _replica_manager=partitions,
        _current_config=lambda: config,
        _metadata_cache=metadata,
    )


def test_broker_defaults_reconfigure_only_topics_that_depend_on_them() -> None:
    topics = (
        topic("plain", [1]),
        topic("own", [1], retention_ms="5"),
        topic("unreadable", [1], retention_ms="soon"),
        topic("another", [1], segment_ms="5"),
    )
    assert reconfigured({}, {"fetch_max_bytes": 2000}, *topics) == []
    assert reconfigured({}, {"log_retention_ms": 1000}, *topics) == ["plain", "unreadable", "another"]
    assert reconfigured({"log_retention_ms": 1000}, {}, *topics) == ["plain", "unreadable", "another"]


async def test_broker_defaults_are_applied_in_slices() -> None:
    names = [f"t{number}" for number in range(1000)]
    reached: list[tuple[str, int]] = []

    this = server(
        BrokerConfig.of(log_retention_ms=1000),
        [topic(name, [1]) for name in names],
        lambda name, config: reached.append((name, config.retention_ms)),
    )
    work = asyncio.create_task(DynamicBrokerConfig._reconfigure_topics(this, BrokerConfig.of()))
    last = 0
    while not work.done():
        assert len(reached) - last <= STEPS_PER_SLICE
        last = len(reached)
        if last >= 100:
            # A topic gets its own setting during the loop.
            this._metadata_cache.image = image_of(
                *(topic(name, [1], **{"retention_ms": "5"} if name == "t900" else {}) for name in names)
            )
        await asyncio.sleep(0)
    assert reached == [(name, 1000) for name in names if name != "t900"]


def test_a_limit_without_a_topic_config_applies_to_all_topics() -> None:
    before, after = BrokerConfig.of(), BrokerConfig.of(tidemill_unpacked_batch_bytes_max=1 << 20)
    changed = changed_defaults(before, after)
    assert changed
    assert depends_on(changed, {"retention.ms": "5"})
