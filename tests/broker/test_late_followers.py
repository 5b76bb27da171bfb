"""New replicas that only follow are made once clients are told: what is promised of them all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from test_channels import BROKERS, OTHER, OWN, Peer, channelled, image, told
from test_commands import FIRST, NODE, Commanded, commanded

from tidemill.broker.channels import Channel, Hears
from tidemill.broker.commanding import commands_for, requests_of
from tidemill.coordination.image import ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.log.config import LogConfig
from tidemill.log.manager import LogManager
from tidemill.model.types import TopicPartition
from tidemill.testing.files import FaultyFiles
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_and_isr import LeaderAndIsrRequest

STOP, LEAD, UPDATE = ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA
BOTH = [OWN, OTHER]


def made_of(*leaders: int, epoch: int = 0) -> TopicImage:
    """A topic on both brokers, whose partitions are led so."""
    partitions = [
        PartitionImage(index, leader, epoch, BOTH, BOTH, epoch) for index, leader in enumerate(leaders)
    ]
    return TopicImage("t", FIRST, tuple(partitions), {})


def asked_of(delta: Delta, *, whole: bool = False) -> list[tuple[ApiKey, dict[int, bool]]]:
    """What broker 2 is asked: the keys, and of LeaderAndIsr the partitions, and whether they are new."""
    command = commands_for(delta, OTHER, whole=whole)
    assert command is not None
    found = []
    for key, request in requests_of(command, BROKERS[OTHER], "PLAINTEXT"):
        states: dict[int, bool] = {}
        if isinstance(request, LeaderAndIsrRequest):
            states = {
                one.partition_index: one.is_new
                for topic in request.topic_states
                for one in topic.partition_states
            }
        found.append((key, states))
    return found


def test_what_a_broker_leads_comes_before_the_metadata_and_what_it_newly_follows_after() -> None:
    made = made_of(OTHER, OWN, OTHER, OWN)
    asked = asked_of(Delta(image(), image(made), created=[made]))
    assert asked == [(LEAD, {0: True, 2: True}), (UPDATE, {}), (LEAD, {1: True, 3: True})]


def test_a_broker_that_follows_from_now_on_what_it_led_is_told_so_before_the_metadata() -> None:
    before, after = made_of(OTHER, OTHER), made_of(OWN, OTHER, OWN, epoch=1)
    asked = asked_of(Delta(image(before), image(after), changed=[(before, after)]))
    assert asked == [(LEAD, {0: False, 1: False}), (UPDATE, {}), (LEAD, {2: True})]


def test_a_broker_that_knows_nothing_is_told_of_all_replicas_at_once() -> None:
    made = made_of(OTHER, OWN)
    delta = Delta(image(), image(made), created=[made])
    assert asked_of(delta, whole=True) == [(LEAD, {0: False, 1: False}), (UPDATE, {})]
    command = told(delta)
    whole = commands_for(delta, OTHER, whole=True)
    assert whole is not None
    command.add(whole)
    assert [key for key, _ in requests_of(command, BROKERS[OTHER], "PLAINTEXT")] == [LEAD, UPDATE]


def test_a_topic_that_is_deleted_before_it_was_told_of_leaves_no_follower_behind() -> None:
    made = made_of(OTHER, OWN)
    command = told(Delta(image(), image(made), created=[made]))
    command.add(told(Delta(image(made), image(), deleted=[made])))
    assert [key for key, _ in requests_of(command, BROKERS[OTHER], "PLAINTEXT")] == [STOP, UPDATE]


@pytest.mark.parametrize("broken", [1, 2])
def test_followers_that_were_not_answered_for_are_told_of_again(broken: int) -> None:
    made = made_of(OTHER, OWN)
    peer = Peer(broken)

    async def story(channel: Channel, heard: Hears) -> None:
        command = told(Delta(image(), image(made), created=[made]))
        await channel.tell(command)
        assert peer.asked[-1] in (UPDATE, LEAD)
        # What comes next has an answer of its own, though the command before is not at its end.
        later = made_of(OTHER, OTHER, epoch=1)
        await channel.tell(told(Delta(image(made), image(later), changed=[(made, later)])))

    channelled(peer, story)
    if broken == 1:
        assert peer.asked == [LEAD, UPDATE, LEAD, UPDATE, LEAD, LEAD, UPDATE]
    else:
        assert peer.asked[:3] == [LEAD, UPDATE, LEAD]
        assert peer.asked[3:] in ([LEAD, UPDATE], [LEAD, UPDATE, LEAD, LEAD, UPDATE])


def delta_of(topic: TopicImage) -> Delta:
    return Delta(ClusterImage(), ClusterImage(topics={topic.name: topic}), created=[topic])


def test_a_controllers_own_broker_makes_what_it_leads_before_it_tells_and_the_rest_right_after() -> None:
    async def story(one: Commanded) -> None:
        told = asyncio.get_running_loop().create_future()
        there: list[list[int]] = []

        def look(_: object) -> None:
            there.append(sorted(key.partition for key in one.broker.logs.logs))

        one.broker.metadata.on_change(look)
        made = made_of(*[NODE, 2] * 60)
        carried = asyncio.get_running_loop().create_task(one.commands.carry_out(delta_of(made), told))
        await told
        assert there == [list(range(0, 120, 2))]
        assert not carried.done()
        await carried
        look(None)
        assert there[1] == list(range(120))
        follows = one.broker.partitions.find("t", 1)
        assert follows is not None
        assert (follows.leader, follows.is_leader) == (2, False)

    commanded(story)


def test_a_follower_that_cannot_be_made_is_told_of_though_nobody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(one: Commanded) -> None:
        failed: list[tuple[bytes, int]] = []

        def note(partitions: Sequence[tuple[bytes, int]]) -> None:
            failed.extend(partitions)

        one.commands.replicas_failed = note
        files = one.broker.logs.files
        assert isinstance(files, FaultyFiles)
        files.fail("make_directory", "/d/t-1", times=9)
        delta = delta_of(made_of(NODE, 2, 2))
        await one.commands.carry_out(delta)
        assert failed == [(FIRST, 1)]
        assert one.broker.metadata.topics.keys() == {"t"}
        led, failing, follows = (one.broker.partitions.find("t", index) for index in range(3))
        assert led is not None
        assert not led.failed
        assert failing is not None
        assert failing.failed
        assert follows is not None
        assert not follows.failed

    commanded(story)


def test_what_the_controllers_own_broker_shall_lead_and_cannot_make_is_led_by_others() -> None:
    async def story(one: Commanded) -> None:
        failed: list[tuple[bytes, int]] = []

        def note(partitions: Sequence[tuple[bytes, int]]) -> None:
            assert "t" in one.broker.metadata.topics, "it is to be elected over what is decided by then"
            failed.extend(partitions)

        one.commands.replicas_failed = note
        files = one.broker.logs.files
        assert isinstance(files, FaultyFiles)
        files.fail("make_directory", "/d/t-0", times=9)
        made = made_of(NODE, NODE)
        await one.commands.carry_out(delta_of(made))
        assert failed == [(FIRST, 0)]

    commanded(story)


def test_added_partitions_that_the_controllers_own_broker_cannot_make_are_led_by_others() -> None:
    async def story(one: Commanded) -> None:
        failed: list[tuple[bytes, int]] = []
        one.commands.replicas_failed = failed.extend
        files = one.broker.logs.files
        assert isinstance(files, FaultyFiles)
        files.fail("make_directory", "/d/t-1", times=9)
        before, grown = made_of(NODE), made_of(NODE, NODE)
        await one.commands.carry_out(delta_of(before))
        await one.commands.carry_out(Delta(image(before), image(grown), changed=[(before, grown)]))
        assert failed == [(FIRST, 1)]
        # The controller knows by then.
        relieved = grown.partitions[1].replaced(leader=2, leader_epoch=1, offline=frozenset({NODE}))
        after = TopicImage("t", FIRST, (grown.partitions[0], relieved), {})
        await one.commands.carry_out(Delta(image(grown), image(after), changed=[(grown, after)]))
        assert failed == [(FIRST, 1)]

    commanded(story)


def test_the_controllers_own_replica_is_reported_when_it_is_served_again() -> None:
    async def story(one: Commanded) -> None:
        served: list[tuple[bytes, int]] = []
        one.commands.replicas_served = served.extend
        made = made_of(NODE, NODE)
        await one.commands.carry_out(delta_of(made))
        assert served == []
        offline = made.partitions[1].with_offline(frozenset({NODE}))
        after = TopicImage("t", FIRST, (made.partitions[0], offline), {})
        await one.commands.carry_out(Delta(image(made), image(after), changed=[(made, after)]))
        assert served == [(FIRST, 1)]

    commanded(story)


def test_a_new_replica_is_made_though_the_metadata_has_it_and_a_directory_has_failed() -> None:
    async def story(one: Commanded) -> None:
        broker = one.broker
        broker.logs = LogManager(FaultyFiles(), ["/d", "/e"])
        broker.logs.lock()
        broker.logs.claim("c" * 22, NODE)
        broker.logs.load(0, lambda topic: LogConfig())
        broker.partitions.logs = broker.logs
        broker.logs.fail_directory("/d", "its disk broke")
        await one.tell(("t", FIRST, [0, 1]), leader=2)
        # What this broker had may lie on the disk that failed; what is said to be new does not.
        await one.lead("t", FIRST, 0, leader=2, fails=True)
        await one.lead("t", FIRST, 1, leader=2, is_new=True)
        assert list(broker.logs.logs) == [TopicPartition("t", 1)]

    commanded(story)
