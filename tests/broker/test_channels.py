"""The controller's channel to a broker, over connections that break at any request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tidemill.broker import channels
from tidemill.broker.channels import Channel, Channels, Hears
from tidemill.broker.commanding import Command, Key, commands_for, requests_of
from tidemill.broker.reaching import REFUSED_TIMES, RETRY_S, reach
from tidemill.coordination.image import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.model.errors import ErrorCode
from tidemill.net.link import Link, LinkBroken, LinkError, LinkRefused
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from tidemill.wire.messages.stop_replica import StopReplicaPartitionError, StopReplicaResponse
from tidemill.wire.messages.update_metadata import UpdateMetadataResponse

OWN, OTHER = 1, 2
BROKERS = {one: BrokerImage(BrokerRegistration(one, ()), 100 + one) for one in (OWN, OTHER)}
ANSWERS: dict[int, Any] = {
    ApiKey.STOP_REPLICA: StopReplicaResponse(error_code=0, partition_errors=[]),
    ApiKey.LEADER_AND_ISR: LeaderAndIsrResponse(error_code=0, partition_errors=[], topics=[]),
    ApiKey.UPDATE_METADATA: UpdateMetadataResponse(error_code=0),
}


def topic(identifier: bytes) -> TopicImage:
    return TopicImage("t", identifier * 16, (PartitionImage(0, OTHER, 0, [OTHER], [OTHER]),), {})


def image(*topics: TopicImage) -> ClusterImage:
    return ClusterImage("c", OWN, 5, BROKERS, {one.name: one for one in topics})


def test_brokers_are_told_which_replicas_come_and_go() -> None:
    moving = PartitionImage(0, OTHER, 3, [OTHER, 3, OWN], [OTHER, OWN], 5, [3], [OWN])
    command = told(Delta(image(), image(), created=[TopicImage("t", b"1" * 16, (moving,), {})]))
    (request,) = [
        message
        for key, message in requests_of(command, BROKERS[OTHER], "PLAINTEXT")
        if key == ApiKey.LEADER_AND_ISR
    ]
    (state,) = request.topic_states[0].partition_states
    assert state.replicas == [OTHER, 3, OWN]
    assert (state.adding_replicas, state.removing_replicas) == ([3], [OWN])


class Heard(Hears):
    """Notes which deletions are confirmed."""

    def __init__(self) -> None:
        self.deleted: list[Key] = []
        self.served: list[tuple[bytes, int]] = []
        self.lives: list[bool] = []
        self.stopping: set[int] = set()
        """Epochs of registrations of brokers that announced their stop."""

    def is_stopping(self, broker_id: int, epoch: int) -> bool:
        return epoch in self.stopping

    def broker_dead(self, broker_id: int, epoch: int) -> None:
        self.lives.append(False)

    def broker_reached(self, broker_id: int) -> None:
        self.lives.append(True)

    def replicas_deleted(self, broker_id: int, topics: Sequence[Key]) -> None:
        self.deleted += topics

    def replicas_served(self, broker_id: int, epoch: int, partitions: Sequence[tuple[bytes, int]]) -> None:
        self.served += partitions


class Peer:
    """A broker that notes what it was asked, and breaks the connection instead of some answers."""

    def __init__(self, *breaks: int) -> None:
        self.breaks = list(breaks)
        """Numbers of the requests that are not answered."""
        self.asked: list[ApiKey] = []
        self.connections = 0
        self.refuses = 0
        """So many connections are refused before."""
        self.strangers = 0
        """So many of the first connections end at another broker, which has the address now."""
        self.last: ApiKey | None = None
        """With the answer to such a request the connection ends."""
        self.link: Any = None

    async def connect(self, to: BrokerImage) -> Link:
        if self.refuses:
            self.refuses -= 1
            raise LinkRefused("nobody listens")
        self.connections += 1
        link: Any = Connection(self)
        self.link = link
        return link

    def answer(self, key: int, request: Any) -> Any:
        return ANSWERS[key]

    async def connected(self, times: int) -> None:
        while self.connections < times:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


class Connection:
    """What stands for a link."""

    name = "broker 2"

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.closed = ""
        self.on_close: Callable[[str], None] | None = None

    def version_of(self, key: int, lowest: int, highest: int) -> int:
        return highest

    def close(self, reason: str) -> None:
        self.closed = reason
        if self.on_close is not None:
            self.on_close(reason)

    async def ask(self, key: int, version: int, request: Any, timeout_s: float) -> Any:
        if self.closed:
            raise LinkError(self.closed)
        self.peer.asked.append(ApiKey(key))
        if len(self.peer.asked) - 1 in self.peer.breaks:
            self.closed = "it broke"
            raise LinkError(self.closed)
        if key == self.peer.last:
            self.close("an answer came that nobody asked for")
        if self.peer.connections <= self.peer.strangers:
            return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, partition_errors=[])
        return self.peer.answer(key, request)


def told(delta: Delta) -> Command:
    command = commands_for(delta, OTHER, whole=False)
    assert command is not None
    return command


def channelled(peer: Peer, test: Callable[[Channel, Heard], Awaitable[None]]) -> None:
    async def run() -> None:
        heard = Heard()
        channel = Channel(BROKERS[OTHER], "PLAINTEXT", peer.connect, heard, 10.0)
        try:
            async with asyncio.timeout(10):
                await test(channel, heard)
        finally:
            channel.stop()

    asyncio.run(run())


def test_what_took_a_topic_away_is_not_told_again_where_one_of_its_name_was_made() -> None:
    first, second = topic(b"1"), topic(b"2")
    peer = Peer(2)

    async def story(channel: Channel, heard: Heard) -> None:
        command = told(Delta(image(first), image(), deleted=[first]))
        command.add(told(Delta(image(), image(second), created=[second])))
        await channel.tell(command)
        assert heard.deleted == [("t", b"1" * 16)]

    channelled(peer, story)
    stop, lead, update = ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA
    # The connection broke at UpdateMetadata: by then records may have been written to the new topic.
    assert peer.asked == [stop, lead, update, lead, update]


def test_what_another_broker_at_the_address_refuses_is_kept_for_the_one_that_it_is_for() -> None:
    first = topic(b"1")
    peer = Peer()
    peer.strangers = 1

    async def story(channel: Channel, heard: Heard) -> None:
        await channel.tell(told(Delta(image(first), image(), deleted=[first])))
        assert heard.deleted == [("t", b"1" * 16)]

    channelled(peer, story)
    assert peer.connections == 2
    assert peer.asked == [ApiKey.STOP_REPLICA, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA]


def test_another_broker_at_the_address_brings_no_dead_one_back() -> None:
    peer = Peer()
    peer.refuses, peer.strangers = REFUSED_TIMES, 2

    async def story(channel: Channel, heard: Heard) -> None:
        made = topic(b"2")
        await channel.tell(told(Delta(image(), image(made), created=[made])))
        assert heard.lives == [False, True]

    channelled(peer, story)
    stop = ApiKey.STOP_REPLICA  # It stops nothing, and tells whose process it is.
    assert peer.asked == [stop, stop, stop, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]


def test_a_channel_that_ends_while_it_asks_who_listens_leaves_no_connection_open() -> None:
    async def story() -> None:
        peer = Peer()
        peer.refuses = REFUSED_TIMES
        asked = asyncio.Event()

        async def connect(to: BrokerImage) -> Link:
            link = await peer.connect(to)

            async def ask(*request: Any) -> Any:
                asked.set()
                await asyncio.Event().wait()

            link.ask = ask  # type: ignore[method-assign]
            return link

        channel = Channel(BROKERS[OTHER], "PLAINTEXT", connect, Heard(), 10.0)
        async with asyncio.timeout(10):
            await asked.wait()
            channel.stop()
            await asyncio.wait([channel._task])
        assert peer.link.closed

    asyncio.run(story())


def test_a_deletion_whose_answer_was_lost_is_told_again() -> None:
    first = topic(b"1")
    peer = Peer(0)

    async def story(channel: Channel, heard: Heard) -> None:
        await channel.tell(told(Delta(image(first), image(), deleted=[first])))
        assert heard.deleted == [("t", b"1" * 16)]

    channelled(peer, story)
    assert peer.asked == [ApiKey.STOP_REPLICA, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA]


class Refusing(Peer):
    """A broker that cannot let replicas of ``t`` go, so many times."""

    def __init__(self, times: int, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        super().__init__()
        self.times = times
        self.code = code
        self.stopped: list[dict[int, bool]] = []
        """Of each StopReplica, the partitions, and whether they are deleted."""

    def answer(self, key: int, request: Any) -> Any:
        if key != ApiKey.STOP_REPLICA:
            return ANSWERS[key]
        (asked,) = request.topic_states
        self.stopped.append({one.partition_index: one.delete_partition for one in asked.partition_states})
        self.times -= 1
        code = self.code if self.times >= 0 else ErrorCode.NONE
        # The first partition can always be let go.
        errors = [
            StopReplicaPartitionError(topic_name="t", partition_index=index, error_code=code if index else 0)
            for index in self.stopped[-1]
        ]
        return StopReplicaResponse(error_code=0, partition_errors=errors)


class Serving(Peer):
    """A broker that can read the first partition of what it is to follow or to lead, and no other."""

    def answer(self, key: int, request: Any) -> Any:
        if key != ApiKey.LEADER_AND_ISR:
            return ANSWERS[key]
        (asked,) = request.topic_states
        errors = [
            LeaderAndIsrPartitionError(
                topic_name="t",
                partition_index=one.partition_index,
                error_code=ErrorCode.KAFKA_STORAGE_ERROR if one.partition_index else ErrorCode.NONE,
            )
            for one in asked.partition_states
        ]
        topics = [LeaderAndIsrTopicError(topic_id=asked.topic_id, partition_errors=errors)]
        return LeaderAndIsrResponse(error_code=0, partition_errors=[], topics=topics)


def test_replicas_that_were_offline_and_are_served_are_reported() -> None:
    online = TopicImage("t", b"1" * 16, TWO, {})
    offline = TopicImage("t", b"1" * 16, tuple(one.with_offline(frozenset({OTHER})) for one in TWO), {})

    async def story(channel: Channel, heard: Heard) -> None:
        await channel.tell(told(Delta(image(), image(online), created=[online])))
        assert heard.served == []
        await channel.tell(told(Delta(image(online), image(offline), changed=[(online, offline)])))
        assert heard.served == [(b"1" * 16, 0)]

    channelled(Serving(), story)


TWO = (PartitionImage(0, OTHER, 0, [OTHER], [OTHER]), PartitionImage(1, OTHER, 0, [OTHER], [OTHER]))


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)


def test_a_topic_that_a_broker_cannot_delete_at_first_is_deleted_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "STOP_AGAIN_S", 0.001)
    first = TopicImage("t", b"1" * 16, TWO, {})
    peer = Refusing(2)

    async def story(channel: Channel, heard: Heard) -> None:
        await channel.tell(told(Delta(image(first), image(), deleted=[first])))
        assert heard.deleted == []
        await until(lambda: heard.deleted)
        assert heard.deleted == [("t", b"1" * 16)]

    channelled(peer, story)
    assert peer.stopped == [{0: True, 1: True}, {1: True}, {1: True}]


def test_a_replica_that_comes_back_is_not_deleted_as_it_was_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "STOP_AGAIN_S", 0.02)
    here = TopicImage("t", b"1" * 16, TWO, {})
    moved = [one.replaced(replicas=[OWN], isr=[OWN], leader=OWN, leader_epoch=1) for one in TWO]
    away = TopicImage("t", b"1" * 16, tuple(moved), {})
    peer = Refusing(100)

    async def story(channel: Channel, heard: Heard) -> None:
        leaves = told(Delta(image(here), image(away), changed=[(here, away)]))
        comes = told(Delta(image(away), image(here), changed=[(away, here)]))
        await channel.tell(leaves)
        await until(lambda: len(peer.stopped) == 2)
        # What came back before that could be told again, and what comes back in the same breath.
        await channel.tell(comes)
        await asyncio.sleep(0.1)
        leaves.add(comes)
        await channel.tell(leaves)
        await asyncio.sleep(0.1)

    channelled(peer, story)
    assert peer.stopped == [{0: True, 1: True}, {1: True}, {0: True, 1: True}]


def test_a_topic_made_anew_is_not_deleted_as_the_former_one_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "STOP_AGAIN_S", 0.02)
    first, second = TopicImage("t", b"1" * 16, TWO, {}), TopicImage("t", b"2" * 16, TWO, {})
    peer = Refusing(100)

    async def story(channel: Channel, heard: Heard) -> None:
        await channel.tell(told(Delta(image(first), image(), deleted=[first])))
        await channel.tell(told(Delta(image(), image(second), created=[second])))
        await asyncio.sleep(0.1)

    channelled(peer, story)
    assert len(peer.stopped) == 1


def test_a_replica_that_a_broker_has_in_a_later_epoch_is_not_stopped_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "STOP_AGAIN_S", 0.001)
    first = TopicImage("t", b"1" * 16, TWO, {})
    peer = Refusing(100, ErrorCode.FENCED_LEADER_EPOCH)

    async def story(channel: Channel, heard: Heard) -> None:
        await channel.tell(told(Delta(image(first), image(), deleted=[first])))
        await asyncio.sleep(0.05)

    channelled(peer, story)
    assert len(peer.stopped) == 1


def test_a_broker_that_cannot_delete_for_long_is_asked_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channels, "STOP_AGAIN_S", 0.001)
    monkeypatch.setattr(channels, "STOP_AGAIN_S_MAX", 0.004)
    first = TopicImage("t", b"1" * 16, TWO, {})
    peer = Refusing(4)

    async def story(channel: Channel, heard: Heard) -> None:
        await channel.tell(told(Delta(image(first), image(), deleted=[first])))
        await until(lambda: heard.deleted)

    channelled(peer, story)
    pauses = [one.rpartition(" in ")[2] for one in caplog.messages]
    assert pauses == ["0.001 s", "0.002 s", "0.004 s", "0.004 s"]


def test_what_happens_while_a_broker_does_not_answer_is_told_in_one_and_waited_for_as_one() -> None:
    peer = Peer(0)

    async def story(channel: Channel, heard: Heard) -> None:
        second = topic(b"2")
        news = [told(Delta(image(), image(second), created=[second])) for _ in range(1000)]
        waiting = {channel.tell(one) for one in news}
        assert len(waiting) == 1
        await asyncio.wait(waiting)
        assert await channel.tell(news[0]) is None

    channelled(peer, story)
    lead, update = ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA
    assert peer.asked == [lead, lead, update, lead, update]


def test_a_controller_that_died_is_found_dead_at_the_first_refusal_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def first_look(ago_s: float | None) -> tuple[list[bool], int]:
        """What is heard of the broker after one refusal, and how many more are left of a thousand."""
        peer, heard = Peer(), Heard()
        peer.refuses = 1000
        loop = asyncio.get_running_loop()
        told = Channels(OWN, "PLAINTEXT", peer.connect, heard)
        if ago_s is not None:
            told.refuses(OTHER)
            monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + ago_s)
        told.start()
        told.tell(Delta(ClusterImage(), image()))
        await asyncio.sleep(0)
        told.stop()
        monkeypatch.undo()
        return heard.lives, peer.refuses

    assert asyncio.run(first_look(0.0)) == ([False], 999)
    assert asyncio.run(first_look(None)) == ([], 999)
    assert asyncio.run(first_look(channels.REFUSALS_COUNT_S)) == ([], 999)


def test_a_process_that_is_ending_is_tried_again_as_soon_as_one_that_refuses() -> None:
    """Its listening socket outlives its connections for a moment, in which it takes and resets one more."""

    async def story() -> float:
        answers: list[Exception] = [LinkBroken("reset"), *[LinkRefused("nobody listens")] * 10]
        loop = asyncio.get_running_loop()
        found = asyncio.Event()

        async def connect() -> Link:
            raise answers.pop(0)

        began = loop.time()
        trying = loop.create_task(reach(connect, found.set))
        await found.wait()
        trying.cancel()
        return loop.time() - began

    assert asyncio.run(story()) < RETRY_S


def test_a_broker_that_ends_every_connection_is_left_some_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.extend([seconds] if seconds else [])
        await sleep(0)

    monkeypatch.setattr(channels.asyncio, "sleep", rest)
    peer = Peer(0, 1, 2)

    async def story(channel: Channel, heard: Heard) -> None:
        second = topic(b"2")
        await channel.tell(told(Delta(image(), image(second), created=[second])))

    channelled(peer, story)
    # The first is tried again at once: a connection may just have been too old.
    assert rests == [RETRY_S] * 2
    assert peer.connections == 4


def test_what_is_told_in_the_moment_in_which_the_connection_ends_goes_over_the_next_one() -> None:
    peer = Peer()

    async def story(channel: Channel, heard: Heard) -> None:
        second = topic(b"2")
        command = told(Delta(image(), image(second), created=[second]))
        await channel.tell(command)
        peer.link.close("it was idle")
        await channel.tell(command)

    channelled(peer, story)
    assert peer.connections == 2
    assert peer.asked == [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA] * 2


def test_nothing_is_told_where_a_connection_ends_with_the_last_answer() -> None:
    peer = Peer()
    peer.last = ApiKey.UPDATE_METADATA

    async def story(channel: Channel, heard: Heard) -> None:
        second = topic(b"2")
        await channel.tell(told(Delta(image(), image(second), created=[second])))
        await peer.connected(2)
        for _ in range(10):
            await asyncio.sleep(0)

    channelled(peer, story)
    # An empty command would be refused as one of a controller that was replaced long ago.
    assert peer.asked == [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]


def test_who_waits_is_told_when_a_channel_ends_with_a_request_under_way() -> None:
    async def story() -> None:
        peer = Peer()
        channel = Channel(BROKERS[OTHER], "PLAINTEXT", peer.connect, Heard(), 10.0)
        second = topic(b"2")
        under_way = asyncio.Event()

        async def ask(*request: Any) -> Any:
            under_way.set()
            await asyncio.Event().wait()

        await peer.connected(1)
        peer.link.ask = ask
        waiting = channel.tell(told(Delta(image(), image(second), created=[second])))
        async with asyncio.timeout(10):
            await under_way.wait()
            channel.stop()
            await asyncio.wait([waiting])
        assert waiting.cancelled()

    asyncio.run(story())


@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_connection_that_a_broker_closes_as_it_stops_is_no_warning(
    caplog: pytest.LogCaptureFixture, is_stopping: bool
) -> None:
    caplog.set_level(logging.INFO)
    peer = Peer()

    async def story(channel: Channel, heard: Heard) -> None:
        if is_stopping:
            heard.stopping = {BROKERS[OTHER].epoch}
        second = topic(b"2")
        command = told(Delta(image(), image(second), created=[second]))
        await channel.tell(command)
        for _ in range(10):  # Until it waits for the next command.
            await asyncio.sleep(0)
        peer.link.close("the peer closed the connection")
        await channel.tell(command)

    channelled(peer, story)
    (line,) = [one for one in caplog.records if "the peer closed the connection" in one.getMessage()]
    assert line.levelno == (logging.INFO if is_stopping else logging.WARNING)


def test_a_whole_command_takes_nothing_of_what_was_pending_for_a_broker_that_was_away() -> None:
    """It was taken for dead, and a partition was moved away from it meanwhile; it only did not listen."""
    led = PartitionImage(0, OTHER, 5, [OTHER, OWN], [OTHER, OWN])
    old = TopicImage("t", b"1" * 16, (led,), {})
    away = TopicImage("t", b"1" * 16, (PartitionImage(0, OWN, 7, [OWN], [OWN], 2),), {})
    command = told(Delta(image(), image(old), created=[old]))
    whole = commands_for(Delta(image(), image(away)), OTHER, whole=True)
    assert whole is not None
    command.add(whole)
    requests = dict(requests_of(command, BROKERS[OTHER], "PLAINTEXT"))
    assert requests[ApiKey.LEADER_AND_ISR].topic_states == []
    (metadata,) = requests[ApiKey.UPDATE_METADATA].topic_states
    assert [(one.leader, one.leader_epoch) for one in metadata.partition_states] == [(OWN, 7)]


def test_a_topic_keeps_its_replicas_though_one_of_its_name_was_deleted_as_an_office_ended() -> None:
    """The office was lost while the deletion was written; another controller made the topic anew."""
    first, second = topic(b"1"), topic(b"2")
    peer = Peer()
    peer.refuses = 1

    async def story() -> None:
        channels_to_others = Channels(OWN, "PLAINTEXT", peer.connect, Heard())
        channels_to_others.start()
        channels_to_others.stop()
        late = channels_to_others.tell(Delta(image(first), image(), deleted=[first]))
        await asyncio.sleep(0)
        channels_to_others.start()
        now = channels_to_others.tell(Delta(ClusterImage(), image(second), created=[second]))
        try:
            await asyncio.wait_for(asyncio.gather(*late, *now), 10)
        finally:
            channels_to_others.stop()

    asyncio.run(story())
    assert peer.asked == [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]
