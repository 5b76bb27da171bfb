"""New followers, whose logs are created after the metadata is published."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from faulty_files import FaultyFiles
from test_controller_channel_manager import BROKERS, OTHER, OWN, Peer, batch_of, channel_to, image
from test_controller_requests import FIRST, NODE, broker_stage

from tidemill.broker.controller_request_batch import batch_for
from tidemill.coordination.announcement import Announcement
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_and_isr import LeaderAndIsrRequest
from unpaused import requests_in

STOP, LEAD, UPDATE = ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA
BOTH = [OWN, OTHER]


def topic_led_by(*leaders: int, epoch: int = 0) -> TopicImage:
    """A topic with replicas on both brokers and these leaders of its partitions."""
    partitions = [
        PartitionImage(index, leader, epoch, BOTH, BOTH, epoch) for index, leader in enumerate(leaders)
    ]
    return TopicImage("t", FIRST, tuple(partitions), {})


def requests_for(delta: Delta, *, is_full: bool = False) -> list[tuple[ApiKey, dict[int, bool]]]:
    """The requests to broker 2: their keys, and the partitions of LeaderAndIsr with ``is_new``."""
    batch = batch_for(delta, OTHER, is_full=is_full)
    assert batch is not None
    found = []
    for key, request in requests_in(batch, BROKERS[OTHER], "PLAINTEXT"):
        states: dict[int, bool] = {}
        if isinstance(request, LeaderAndIsrRequest):
            states = {
                one.partition_index: one.is_new
                for topic in request.topic_states
                for one in topic.partition_states
            }
        found.append((key, states))
    return found


def test_leaders_are_sent_before_the_metadata_and_new_followers_after_it() -> None:
    topic = topic_led_by(OTHER, OWN, OTHER, OWN)
    requests = requests_for(Delta(image(), image(topic), created=[topic]))
    assert requests == [(LEAD, {0: True, 2: True}), (UPDATE, {}), (LEAD, {1: True, 3: True})]


def test_a_leader_that_becomes_a_follower_is_sent_before_the_metadata() -> None:
    before, after = topic_led_by(OTHER, OTHER), topic_led_by(OWN, OTHER, OWN, epoch=1)
    requests = requests_for(Delta(image(before), image(after), changed=[(before, after)]))
    assert requests == [(LEAD, {0: False, 1: False}), (UPDATE, {}), (LEAD, {2: True})]


def test_a_full_batch_has_all_replicas_in_one_leader_and_isr() -> None:
    topic = topic_led_by(OTHER, OWN)
    delta = Delta(image(), image(topic), created=[topic])
    assert requests_for(delta, is_full=True) == [(LEAD, {0: False, 1: False}), (UPDATE, {})]
    batch = batch_of(delta)
    whole = batch_for(delta, OTHER, is_full=True)
    assert whole is not None
    batch.add(whole)
    assert [key for key, _ in requests_in(batch, BROKERS[OTHER], "PLAINTEXT")] == [LEAD, UPDATE]


def test_a_topic_deleted_before_it_was_sent_has_no_new_followers() -> None:
    topic = topic_led_by(OTHER, OWN)
    batch = batch_of(Delta(image(), image(topic), created=[topic]))
    batch.add(batch_of(Delta(image(topic), image(), deleted=[topic])))
    assert [key for key, _ in requests_in(batch, BROKERS[OTHER], "PLAINTEXT")] == [STOP, UPDATE]


@pytest.mark.parametrize("broken", [1, 2])
async def test_unacknowledged_new_followers_are_sent_again(broken: int) -> None:
    topic = topic_led_by(OTHER, OWN)
    peer = Peer(broken)

    async with channel_to(peer) as (channel, _):
        batch = batch_of(Delta(image(), image(topic), created=[topic]))
        await channel.enqueue(batch)
        assert peer.requests[-1] in (UPDATE, LEAD)
        # The next batch has its own future, although the former one is not completely acknowledged.
        later = topic_led_by(OTHER, OTHER, epoch=1)
        await channel.enqueue(batch_of(Delta(image(topic), image(later), changed=[(topic, later)])))
    if broken == 1:
        assert peer.requests == [LEAD, UPDATE, LEAD, UPDATE, LEAD, LEAD, UPDATE]
    else:
        assert peer.requests[:3] == [LEAD, UPDATE, LEAD]
        assert peer.requests[3:] in ([LEAD, UPDATE], [LEAD, UPDATE, LEAD, LEAD, UPDATE])


def delta_of(topic: TopicImage) -> Delta:
    return Delta(ClusterImage(), ClusterImage(topics={topic.name: topic}), created=[topic])


async def test_the_controllers_broker_creates_leaders_before_it_publishes_and_new_followers_after() -> None:
    async with broker_stage() as stage:
        published = asyncio.get_running_loop().create_future()
        there: list[list[int]] = []

        async def look(_: object) -> None:
            there.append(sorted(key.partition for key in stage.broker.log_manager.logs))

        stage.broker.metadata_cache.on_change(look)
        topic = topic_led_by(*[NODE, 2] * 60)
        task = asyncio.get_running_loop().create_task(
            stage.applier.apply_delta(Announcement(delta_of(topic)), published)
        )
        await published
        assert there == [list(range(0, 120, 2))]
        assert not task.done()
        await task
        await look(None)
        assert there[1] == list(range(120))
        follows = stage.broker.replica_manager.find("t", 1)
        assert follows is not None
        assert (follows.leader, follows.is_leader) == (2, False)


async def test_a_new_follower_that_cannot_be_created_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker_stage() as stage:
        failed = stage.listener.failed
        files = stage.broker.log_manager.files
        assert isinstance(files, FaultyFiles)
        files.fail("make_directory", "/d/t-1", times=9)
        delta = delta_of(topic_led_by(NODE, 2, 2))
        await stage.applier.apply_delta(Announcement(delta))
        assert failed == [(FIRST, 1)]
        assert stage.broker.metadata_cache.topics.keys() == {"t"}
        led, failing, follows = (stage.broker.replica_manager.find("t", index) for index in range(3))
        assert led is not None
        assert not led.is_offline
        assert failing is not None
        assert failing.is_offline
        assert follows is not None
        assert not follows.is_offline


async def test_a_leader_that_the_controllers_broker_cannot_create_is_reported() -> None:
    async with broker_stage() as stage:
        failed: list[tuple[bytes, int]] = []

        def note(partitions: Sequence[tuple[bytes, int]]) -> None:
            assert "t" in stage.broker.metadata_cache.topics, "the election uses the published image"
            failed.extend(partitions)

        listener: Any = stage.listener
        listener.own_replicas_failed = note
        files = stage.broker.log_manager.files
        assert isinstance(files, FaultyFiles)
        files.fail("make_directory", "/d/t-0", times=9)
        topic = topic_led_by(NODE, NODE)
        await stage.applier.apply_delta(Announcement(delta_of(topic)))
        assert failed == [(FIRST, 0)]


async def test_an_added_partition_that_the_controllers_broker_cannot_create_is_reported_once() -> None:
    async with broker_stage() as stage:
        failed = stage.listener.failed
        files = stage.broker.log_manager.files
        assert isinstance(files, FaultyFiles)
        files.fail("make_directory", "/d/t-1", times=9)
        before, grown = topic_led_by(NODE), topic_led_by(NODE, NODE)
        await stage.applier.apply_delta(Announcement(delta_of(before)))
        await stage.applier.apply_delta(
            Announcement(Delta(image(before), image(grown), changed=[(before, grown)]))
        )
        assert failed == [(FIRST, 1)]
        # The controller knows the offline replica now.
        relieved = grown.partitions[1].replaced(leader=2, leader_epoch=1, offline=frozenset({NODE}))
        after = TopicImage("t", FIRST, (grown.partitions[0], relieved), {})
        await stage.applier.apply_delta(
            Announcement(Delta(image(grown), image(after), changed=[(grown, after)]))
        )
        assert failed == [(FIRST, 1)]


async def test_an_offline_replica_of_the_controllers_broker_is_reported_when_it_is_served() -> None:
    async with broker_stage() as stage:
        served = stage.listener.served
        topic = topic_led_by(NODE, NODE)
        await stage.applier.apply_delta(Announcement(delta_of(topic)))
        assert served == []
        offline = topic.partitions[1].with_offline(frozenset({NODE}))
        after = TopicImage("t", FIRST, (topic.partitions[0], offline), {})
        await stage.applier.apply_delta(
            Announcement(Delta(image(topic), image(after), changed=[(topic, after)]))
        )
        assert served == [(FIRST, 1)]


async def test_a_replica_marked_as_new_is_created_after_a_directory_has_failed() -> None:
    async with broker_stage("/d", "/e") as stage:
        broker = stage.broker
        broker.log_manager.dirs.fail_directory("/d", "its disk broke")
        await stage.update_metadata(("t", FIRST, [0, 1]), leader=2)
        # A former replica may be in the failed directory. A replica marked as new is not.
        await stage.lead("t", FIRST, 0, leader=2, fails=True)
        await stage.lead("t", FIRST, 1, leader=2, is_new=True)
        assert list(broker.log_manager.logs) == [TopicPartition("t", 1)]
