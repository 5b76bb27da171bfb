"""The channels of the controller to other brokers, over connections that break at any request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemill.broker import controller_channel_manager
from tidemill.broker.connect_retries import REFUSALS_OF_ENDED_BROKER, RETRY_S, connect_with_retries
from tidemill.broker.controller_channel_manager import (
    BrokerStateListener,
    ControllerChannel,
    ControllerChannelManager,
)
from tidemill.broker.controller_request_batch import ControllerRequestBatch, batch_for
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage, Delta
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.topic_image import PartitionImage, TopicImage, TopicKey
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
from unpaused import requests_in

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


def test_leader_and_isr_contains_adding_and_removing_replicas() -> None:
    moving = PartitionImage(0, OTHER, 3, [OTHER, 3, OWN], [OTHER, OWN], 5, [3], [OWN])
    batch = batch_of(Delta(image(), image(), created=[TopicImage("t", b"1" * 16, (moving,), {})]))
    (request,) = [
        message
        for key, message in requests_in(batch, BROKERS[OTHER], "PLAINTEXT")
        if key == ApiKey.LEADER_AND_ISR
    ]
    (state,) = request.topic_states[0].partition_states
    assert state.replicas == [OTHER, 3, OWN]
    assert (state.adding_replicas, state.removing_replicas) == ([3], [OWN])


class RecordingListener(BrokerStateListener):
    """Records the notifications of channels."""

    def __init__(self) -> None:
        self.deleted: list[TopicKey] = []
        self.served: list[tuple[bytes, int]] = []
        self.lives: list[bool] = []
        self.stopping: set[int] = set()
        """The epochs of brokers that have announced their stop."""

    def is_stopping(self, broker_id: int, *, broker_epoch: int) -> bool:
        return broker_epoch in self.stopping

    def broker_dead(self, broker_id: int, *, broker_epoch: int) -> None:
        self.lives.append(False)

    def broker_connected(self, broker_id: int) -> None:
        self.lives.append(True)

    def replicas_deleted(self, broker_id: int, topics: Sequence[TopicKey]) -> None:
        self.deleted += topics

    def replicas_failed(
        self, broker_id: int, partitions: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        pass

    def replicas_served(
        self, broker_id: int, partitions: Sequence[tuple[bytes, int]], *, broker_epoch: int
    ) -> None:
        self.served += partitions

    def controller_moved(self) -> None:
        pass


class Peer:
    """A broker that records its requests, and breaks the connection instead of some responses."""

    def __init__(self, *breaks: int) -> None:
        self.breaks = list(breaks)
        """The numbers of the requests without a response."""
        self.requests: list[ApiKey] = []
        self.connections = 0
        self.refuses = 0
        """The number of connections that are refused first."""
        self.strangers = 0
        """The number of first connections that another broker accepts, which has the address now."""
        self.last: ApiKey | None = None
        """The connection ends with the response to a request of this key."""
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
        while self.connections < times:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)


class Connection:
    """A fake link."""

    name = "broker 2"

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.close_reason: str | None = None
        self.on_close: Callable[[str], None] | None = None

    @property
    def is_closed(self) -> bool:
        return self.close_reason is not None

    def version_of(self, key: int, lowest: int, highest: int) -> int:
        return highest

    def close(self, reason: str) -> None:
        self.close_reason = reason
        if self.on_close is not None:
            self.on_close(reason)

    async def request(
        self, key: int, version: int, request: Any, response_type: type, timeout_s: float
    ) -> Any:
        if self.is_closed:
            raise LinkError(str(self.close_reason))
        self.peer.requests.append(ApiKey(key))
        if len(self.peer.requests) - 1 in self.peer.breaks:
            self.close_reason = "it broke"
            raise LinkError(str(self.close_reason))
        if key == self.peer.last:
            self.close("a response without a request")
        if self.peer.connections <= self.peer.strangers:
            return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, partition_errors=[])
        return self.peer.answer(key, request)


def batch_of(delta: Delta) -> ControllerRequestBatch:
    batch = batch_for(delta, OTHER, is_full=False)
    assert batch is not None
    return batch


@asynccontextmanager
async def channel_to(peer: Peer) -> AsyncIterator[tuple[ControllerChannel, RecordingListener]]:
    listener = RecordingListener()
    channel = ControllerChannel(BROKERS[OTHER], "PLAINTEXT", peer.connect, listener, 10.0)
    try:
        async with asyncio.timeout(10):
            yield channel, listener
    finally:
        channel.stop()


async def test_acknowledged_stops_are_not_repeated_for_a_recreated_topic() -> None:
    first, second = topic(b"1"), topic(b"2")
    peer = Peer(2)

    async with channel_to(peer) as (channel, listener):
        batch = batch_of(Delta(image(first), image(), deleted=[first]))
        batch.add(batch_of(Delta(image(), image(second), created=[second])))
        await channel.enqueue(batch)
        assert listener.deleted == [("t", b"1" * 16)]
    stop, lead, update = ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA
    # The connection broke at UpdateMetadata, when the new topic may have had records already.
    assert peer.requests == [stop, lead, update, lead, update]


async def test_requests_refused_by_another_broker_at_the_address_are_sent_again() -> None:
    first = topic(b"1")
    peer = Peer()
    peer.strangers = 1

    async with channel_to(peer) as (channel, listener):
        await channel.enqueue(batch_of(Delta(image(first), image(), deleted=[first])))
        assert listener.deleted == [("t", b"1" * 16)]
    assert peer.connections == 2
    assert peer.requests == [ApiKey.STOP_REPLICA, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA]


async def test_another_broker_at_the_address_does_not_make_a_dead_broker_alive() -> None:
    peer = Peer()
    peer.refuses, peer.strangers = REFUSALS_OF_ENDED_BROKER, 2

    async with channel_to(peer) as (channel, listener):
        made = topic(b"2")
        await channel.enqueue(batch_of(Delta(image(), image(made), created=[made])))
        assert listener.lives == [False, True]
    stop = ApiKey.STOP_REPLICA  # Without replicas: the response shows the registration of the broker.
    assert peer.requests == [stop, stop, stop, ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]


async def test_a_channel_that_ends_during_the_check_of_the_registration_closes_its_connection() -> None:
    peer = Peer()
    peer.refuses = REFUSALS_OF_ENDED_BROKER
    asked = asyncio.Event()

    async def connect(to: BrokerImage) -> Link:
        link = await peer.connect(to)

        async def request(*request: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        link.request = request  # type: ignore[method-assign]
        return link

    channel = ControllerChannel(BROKERS[OTHER], "PLAINTEXT", connect, RecordingListener(), 10.0)
    async with asyncio.timeout(10):
        await asked.wait()
        channel.stop()
        await asyncio.wait([channel._task])
    assert peer.link.is_closed


async def test_a_deletion_with_a_lost_response_is_sent_again() -> None:
    first = topic(b"1")
    peer = Peer(0)

    async with channel_to(peer) as (channel, listener):
        await channel.enqueue(batch_of(Delta(image(first), image(), deleted=[first])))
        assert listener.deleted == [("t", b"1" * 16)]
    assert peer.requests == [ApiKey.STOP_REPLICA, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA]


class Refusing(Peer):
    """A broker that fails to stop replicas of ``t`` a number of times."""

    def __init__(self, times: int, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        super().__init__()
        self.times = times
        self.code = code
        self.stopped: list[dict[int, bool]] = []
        """The partitions of each StopReplica, and whether they are deleted."""

    def answer(self, key: int, request: Any) -> Any:
        if key != ApiKey.STOP_REPLICA:
            return ANSWERS[key]
        (asked,) = request.topic_states
        self.stopped.append({one.partition_index: one.delete_partition for one in asked.partition_states})
        self.times -= 1
        code = self.code if self.times >= 0 else ErrorCode.NONE
        # The first partition never fails.
        errors = [
            StopReplicaPartitionError(topic_name="t", partition_index=index, error_code=code if index else 0)
            for index in self.stopped[-1]
        ]
        return StopReplicaResponse(error_code=0, partition_errors=errors)


class Serving(Peer):
    """A broker that can open only the first partition of a topic."""

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


async def test_served_replicas_that_were_offline_are_reported() -> None:
    online = TopicImage("t", b"1" * 16, TWO, {})
    offline = TopicImage("t", b"1" * 16, tuple(one.with_offline(frozenset({OTHER})) for one in TWO), {})

    async with channel_to(Serving()) as (channel, listener):
        await channel.enqueue(batch_of(Delta(image(), image(online), created=[online])))
        assert listener.served == []
        await channel.enqueue(batch_of(Delta(image(online), image(offline), changed=[(online, offline)])))
        assert listener.served == [(b"1" * 16, 0)]


TWO = (PartitionImage(0, OTHER, 0, [OTHER], [OTHER]), PartitionImage(1, OTHER, 0, [OTHER], [OTHER]))


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.001)


async def test_a_failed_topic_deletion_is_retried_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_channel_manager, "STOP_RETRY_S", 0.001)
    first = TopicImage("t", b"1" * 16, TWO, {})
    peer = Refusing(2)

    async with channel_to(peer) as (channel, listener):
        await channel.enqueue(batch_of(Delta(image(first), image(), deleted=[first])))
        assert listener.deleted == []
        await until(lambda: listener.deleted)
        assert listener.deleted == [("t", b"1" * 16)]
    assert peer.stopped == [{0: True, 1: True}, {1: True}, {1: True}]


async def test_a_failed_deletion_is_not_retried_for_a_replica_that_is_assigned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_channel_manager, "STOP_RETRY_S", 0.02)
    here = TopicImage("t", b"1" * 16, TWO, {})
    moved = [one.replaced(replicas=[OWN], isr=[OWN], leader=OWN, leader_epoch=1) for one in TWO]
    away = TopicImage("t", b"1" * 16, tuple(moved), {})
    peer = Refusing(100)

    async with channel_to(peer) as (channel, _):
        leaves = batch_of(Delta(image(here), image(away), changed=[(here, away)]))
        comes = batch_of(Delta(image(away), image(here), changed=[(away, here)]))
        await channel.enqueue(leaves)
        await until(lambda: len(peer.stopped) == 2)
        # The replica is assigned again before the retry, and in the same batch as the stop.
        await channel.enqueue(comes)
        await asyncio.sleep(0.1)
        leaves.add(comes)
        await channel.enqueue(leaves)
        await asyncio.sleep(0.1)
    assert peer.stopped == [{0: True, 1: True}, {1: True}, {0: True, 1: True}]


async def test_a_failed_deletion_is_not_retried_for_a_recreated_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_channel_manager, "STOP_RETRY_S", 0.02)
    first, second = TopicImage("t", b"1" * 16, TWO, {}), TopicImage("t", b"2" * 16, TWO, {})
    peer = Refusing(100)

    async with channel_to(peer) as (channel, _):
        await channel.enqueue(batch_of(Delta(image(first), image(), deleted=[first])))
        await channel.enqueue(batch_of(Delta(image(), image(second), created=[second])))
        await asyncio.sleep(0.1)
    assert len(peer.stopped) == 1


async def test_a_stop_with_a_fenced_leader_epoch_is_not_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_channel_manager, "STOP_RETRY_S", 0.001)
    first = TopicImage("t", b"1" * 16, TWO, {})
    peer = Refusing(100, ErrorCode.FENCED_LEADER_EPOCH)

    async with channel_to(peer) as (channel, _):
        await channel.enqueue(batch_of(Delta(image(first), image(), deleted=[first])))
        await asyncio.sleep(0.05)
    assert len(peer.stopped) == 1


async def test_the_pause_between_retries_of_a_deletion_grows_to_its_maximum(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller_channel_manager, "STOP_RETRY_S", 0.001)
    monkeypatch.setattr(controller_channel_manager, "STOP_RETRY_S_MAX", 0.004)
    first = TopicImage("t", b"1" * 16, TWO, {})
    peer = Refusing(4)

    async with channel_to(peer) as (channel, listener):
        await channel.enqueue(batch_of(Delta(image(first), image(), deleted=[first])))
        await until(lambda: listener.deleted)
    pauses = [one.rpartition(" in ")[2] for one in caplog.messages]
    assert pauses == ["0.001 s", "0.002 s", "0.004 s", "0.004 s"]


async def test_changes_while_a_broker_does_not_respond_are_one_batch_with_one_future() -> None:
    peer = Peer(0)

    async with channel_to(peer) as (channel, _):
        second = topic(b"2")
        changes = [batch_of(Delta(image(), image(second), created=[second])) for _ in range(1000)]
        waiting = {channel.enqueue(one) for one in changes}
        assert len(waiting) == 1
        await asyncio.wait(waiting)
        assert await channel.enqueue(changes[0]) is None
    lead, update = ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA
    assert peer.requests == [lead, lead, update, lead, update]


def test_the_next_controller_declares_the_former_one_dead_at_the_first_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def first_look(ago_s: float | None) -> tuple[list[bool], int]:
        """Returns the notifications after one refusal, and the number of refusals that are left."""
        peer, listener = Peer(), RecordingListener()
        peer.refuses = 1000
        loop = asyncio.get_running_loop()
        manager = ControllerChannelManager(OWN, "PLAINTEXT", peer.connect, listener)
        if ago_s is not None:
            manager.connection_refused(OTHER)
            monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + ago_s)
        manager.start()
        manager.send_changes(Delta(ClusterImage(), image()))
        await asyncio.sleep(0)
        manager.stop()
        monkeypatch.undo()
        return listener.lives, peer.refuses

    assert asyncio.run(first_look(0.0)) == ([False], 999)
    assert asyncio.run(first_look(None)) == ([], 999)
    assert asyncio.run(first_look(controller_channel_manager.EARLIER_REFUSALS_VALID_S)) == ([], 999)


async def test_a_channel_ends_with_the_registration_of_its_broker() -> None:
    def cluster(epoch: int | None) -> ClusterImage:
        brokers = {OWN: BROKERS[OWN]}
        if epoch is not None:
            brokers[OTHER] = BrokerImage(BrokerRegistration(OTHER, ()), epoch)
        return ClusterImage("c", OWN, 5, brokers, {"t": topic(b"1")})

    peer = Peer()
    manager = ControllerChannelManager(OWN, "PLAINTEXT", peer.connect, RecordingListener())
    manager.start()
    try:
        async with asyncio.timeout(10):
            await asyncio.gather(*manager.send_changes(Delta(ClusterImage(), cluster(102))))
            former = peer.link
            await asyncio.gather(*manager.send_changes(Delta(cluster(102), cluster(103))))
            await until(lambda: former.is_closed)
            assert not peer.link.is_closed
            assert manager.send_changes(Delta(cluster(103), cluster(None))) == []
            await until(lambda: peer.link.is_closed)
    finally:
        manager.stop()
    state = [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]
    assert peer.requests == state * 2, "the new process receives the full state"


def test_a_reset_connection_of_an_ending_process_is_retried_as_soon_as_a_refused_one() -> None:
    """Its listening socket is closed after its connections, and may accept and reset one more."""

    async def story() -> float:
        answers: list[Exception] = [LinkBroken("reset"), *[LinkRefused("nobody listens")] * 10]
        loop = asyncio.get_running_loop()
        found = asyncio.Event()

        async def connect() -> Link:
            raise answers.pop(0)

        began = loop.time()
        trying = loop.create_task(connect_with_retries(connect, found.set, lambda: False))
        await found.wait()
        trying.cancel()
        return loop.time() - began

    assert asyncio.run(story()) < RETRY_S


async def test_a_channel_pauses_if_a_broker_closes_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.extend([seconds] if seconds else [])
        await sleep(0)

    monkeypatch.setattr(controller_channel_manager.asyncio, "sleep", pause)
    peer = Peer(0, 1, 2)

    async with channel_to(peer) as (channel, _):
        second = topic(b"2")
        await channel.enqueue(batch_of(Delta(image(), image(second), created=[second])))
    # The first retry is immediate: the connection may have expired.
    assert pauses == [RETRY_S] * 2
    assert peer.connections == 4


async def test_a_change_queued_as_the_connection_ends_is_sent_over_the_next_one() -> None:
    peer = Peer()

    async with channel_to(peer) as (channel, _):
        second = topic(b"2")
        batch = batch_of(Delta(image(), image(second), created=[second]))
        await channel.enqueue(batch)
        peer.link.close("it was idle")
        await channel.enqueue(batch)
    assert peer.connections == 2
    assert peer.requests == [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA] * 2


async def test_no_empty_batch_is_sent_after_a_connection_has_ended() -> None:
    peer = Peer()
    peer.last = ApiKey.UPDATE_METADATA

    async with channel_to(peer) as (channel, _):
        second = topic(b"2")
        await channel.enqueue(batch_of(Delta(image(), image(second), created=[second])))
        await peer.connected(2)
        for _ in range(10):
            await asyncio.sleep(0)
    # A broker would refuse an empty batch, which has no controller epoch.
    assert peer.requests == [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]


async def test_futures_are_cancelled_when_a_channel_ends_during_a_request() -> None:
    peer = Peer()
    channel = ControllerChannel(BROKERS[OTHER], "PLAINTEXT", peer.connect, RecordingListener(), 10.0)
    second = topic(b"2")
    under_way = asyncio.Event()

    async def request(*request: Any) -> Any:
        under_way.set()
        await asyncio.Event().wait()

    await peer.connected(1)
    peer.link.request = request
    waiting = channel.enqueue(batch_of(Delta(image(), image(second), created=[second])))
    async with asyncio.timeout(10):
        await under_way.wait()
        channel.stop()
        await asyncio.wait([waiting])
    assert waiting.cancelled()


@pytest.mark.parametrize("is_stopping", [True, False])
async def test_a_connection_closed_by_a_stopping_broker_is_logged_at_info(
    caplog: pytest.LogCaptureFixture, is_stopping: bool
) -> None:
    caplog.set_level(logging.INFO)
    peer = Peer()

    async with channel_to(peer) as (channel, listener):
        if is_stopping:
            listener.stopping = {BROKERS[OTHER].epoch}
        second = topic(b"2")
        batch = batch_of(Delta(image(), image(second), created=[second]))
        await channel.enqueue(batch)
        for _ in range(10):  # Until the channel waits for the next batch.
            await asyncio.sleep(0)
        peer.link.close("the peer closed the connection")
        await channel.enqueue(batch)
    (line,) = [one for one in caplog.records if "the peer closed the connection" in one.getMessage()]
    assert line.levelno == (logging.INFO if is_stopping else logging.WARNING)


def test_a_full_batch_replaces_the_pending_states_of_a_broker() -> None:
    """A partition was reassigned while the broker refused connections and was dead for the controller."""
    led = PartitionImage(0, OTHER, 5, [OTHER, OWN], [OTHER, OWN])
    old = TopicImage("t", b"1" * 16, (led,), {})
    away = TopicImage("t", b"1" * 16, (PartitionImage(0, OWN, 7, [OWN], [OWN], 2),), {})
    batch = batch_of(Delta(image(), image(old), created=[old]))
    full = batch_for(Delta(image(), image(away)), OTHER, is_full=True)
    assert full is not None
    batch.add(full)
    requests = dict(requests_in(batch, BROKERS[OTHER], "PLAINTEXT"))
    assert requests[ApiKey.LEADER_AND_ISR].topic_states == []
    (metadata,) = requests[ApiKey.UPDATE_METADATA].topic_states
    assert [(one.leader, one.leader_epoch) for one in metadata.partition_states] == [(OWN, 7)]


async def test_a_change_after_the_controller_has_resigned_is_not_sent_by_its_next_term() -> None:
    """This controller resigned during the write of a deletion; another one recreated the topic."""
    first, second = topic(b"1"), topic(b"2")
    peer = Peer()
    peer.refuses = 1

    manager = ControllerChannelManager(OWN, "PLAINTEXT", peer.connect, RecordingListener())
    manager.start()
    manager.stop()
    late = manager.send_changes(Delta(image(first), image(), deleted=[first]))
    await asyncio.sleep(0)
    manager.start()
    now = manager.send_changes(Delta(ClusterImage(), image(second), created=[second]))
    try:
        await asyncio.wait_for(asyncio.gather(*late, *now), 10)
    finally:
        manager.stop()
    assert peer.requests == [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]
