"""Answers that name a leader whose connection just broke: over real sockets, to a broker in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_request_order import TOPIC, Peer, served, until

from tidemill.broker import held_answers
from tidemill.broker.held_answers import HOLD_S, RELEASED_A_TURN, HeldAnswers
from tidemill.broker.request_slices import Turns
from tidemill.coordination.image import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.coordination.nodes import BrokerRegistration, Endpoint
from tidemill.groups.ports import OFFSETS_TOPIC
from tidemill.replication.partition import Partition
from tidemill.server.app import BrokerServer
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

OTHER, NEXT = 12, 13
LED, LED_ID = "led-elsewhere", b"\x07" * 16
AT_ONCE_S = HOLD_S * 0.6
"""What is not held is answered within this time, on a loaded machine, too."""


def other_broker(broker_id: int) -> BrokerImage:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"host-{broker_id}", 9092)
    return BrokerImage(BrokerRegistration(broker_id, (endpoint,)), 5)


def led_by(leader: int, name: str = LED, topic_id: bytes = LED_ID) -> TopicImage:
    state = PartitionImage(0, leader, leader, [OTHER, NEXT], [OTHER, NEXT], leader)
    return TopicImage(name, topic_id, (state,), {})


TOPICS = (led_by(OTHER),)


class Stage:
    """A broker in this process that knows of two others."""

    def __init__(self, server: BrokerServer) -> None:
        self.server = server
        self.metadata = server.broker.metadata
        self.held = server.broker.held_answers = HeldAnswers()
        self.metadata.on_change(self.held.image_changed)

    async def publish(self, *topics: TopicImage, others: tuple[int, ...] = (OTHER, NEXT)) -> None:
        own = self.server.broker.node_id
        brokers = {own: self.metadata.image.brokers[own], **{one: other_broker(one) for one in others}}
        await self.publish_image(self.metadata.image.with_brokers(brokers).with_topics(topics))

    async def publish_image(self, image: ClusterImage) -> None:
        await self.metadata.publish(Delta.between(self.metadata.image, image))

    async def metadata_of(self, *topics: str, version: int = 12) -> Any:
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        return await self.asked(ApiKey.METADATA, version, MetadataRequest(topics=wanted))

    async def asked(self, key: ApiKey, version: int, request: Any) -> Any:
        peer = await Peer.of(self.server)
        peer.send(key, version, request)
        try:
            return await peer.answer(key, version)
        finally:
            await peer.close()


def staged(
    test: Callable[[Stage], Awaitable[None]], tmp_path: Path, *settings: str, topics: Any = TOPICS
) -> None:
    async def run(server: BrokerServer, _: Partition) -> None:
        stage = Stage(server)
        await stage.publish(*topics)
        await test(stage)
        assert server.memory.taken == 0
        assert stage.held.held_bytes == 0

    served(run, tmp_path, *settings)


def leader_in(answer: Any) -> int:
    leader: int = answer.topics[0].partitions[0].leader_id
    return leader


async def timed(work: Awaitable[Any]) -> tuple[Any, float]:
    began = time.monotonic()
    return await work, time.monotonic() - began


@pytest.mark.parametrize(
    "request_",
    [
        MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC), MetadataRequestTopic(name=LED)]),
        MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=LED_ID)]),
        MetadataRequest(topics=None),
        MetadataRequest(topics=[MetadataRequestTopic(name=LED)], allow_auto_topic_creation=False),
    ],
    ids=["by name", "by id", "all", "creating none"],
)
def test_who_asks_after_a_leader_died_is_told_the_next_leader_first(
    tmp_path: Path, request_: MetadataRequest
) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        asking = asyncio.create_task(stage.asked(ApiKey.METADATA, 12, request_))
        await until(lambda: len(stage.held) == 1)
        await stage.publish()  # A change of something else.
        await until(lambda: len(stage.held) == 1)
        assert not asking.done()
        await stage.publish(led_by(NEXT), others=(NEXT,))
        answer, took_s = await timed(asking)
        assert took_s < AT_ONCE_S
        assert [one.partitions[0].leader_id for one in answer.topics if one.name == LED] == [NEXT]
        assert stage.held.total == 1
        assert OTHER in [one.node_id for one in answer.brokers]

    staged(test, tmp_path)


def test_the_answer_comes_after_half_a_second_and_the_next_ones_at_once(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        answer, took_s = await timed(stage.metadata_of(LED))
        assert leader_in(answer) == OTHER
        assert HOLD_S * 0.8 < took_s < HOLD_S * 3
        # It refuses connections ever since, and is the leader still: nothing has changed.
        stage.held.broken(OTHER)
        answer, took_s = await timed(stage.metadata_of(LED))
        assert leader_in(answer) == OTHER
        assert took_s < AT_ONCE_S

    staged(test, tmp_path)


def test_a_broker_that_died_again_is_waited_for_again(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        await stage.publish(led_by(NEXT), others=(NEXT,))
        stage.held.broken(OTHER)  # Whoever tries it on is refused; it is known to be gone.
        assert not stage.held.doubted
        await stage.publish(led_by(OTHER))
        stage.held.reached(OTHER)
        stage.held.broken(OTHER)
        assert stage.held.doubted == {OTHER}

    staged(test, tmp_path)


def test_a_broker_that_breaks_connections_and_lives_is_not_waited_for_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        asking = asyncio.create_task(stage.metadata_of(LED))
        await until(lambda: len(stage.held) == 1)
        stage.held.reached(OTHER)
        answer, took_s = await timed(asking)
        assert leader_in(answer) == OTHER
        assert took_s < AT_ONCE_S
        stage.held.broken(OTHER)
        assert not stage.held.doubted
        monkeypatch.setattr(held_answers, "STEADY_S", 0.0)
        stage.held.broken(OTHER)
        assert stage.held.doubted == {OTHER}

    staged(test, tmp_path)


def test_what_does_not_name_the_broker_is_answered_at_once(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        for topics in ((), (TOPIC,), ("led-by-next",)):
            answer, took_s = await timed(stage.metadata_of(*topics))
            assert len(answer.topics) == len(topics)
            assert took_s < AT_ONCE_S
        assert stage.held.total == 0

    staged(test, tmp_path, topics=(led_by(OTHER), led_by(NEXT, "led-by-next", b"\x08" * 16)))


@pytest.mark.parametrize(
    ("version", "request_"),
    [(3, FindCoordinatorRequest(key="g")), (4, FindCoordinatorRequest(coordinator_keys=["g"]))],
)
def test_who_looks_for_a_coordinator_that_died_is_told_the_next_one_first(
    tmp_path: Path, version: int, request_: FindCoordinatorRequest
) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        asking = asyncio.create_task(stage.asked(ApiKey.FIND_COORDINATOR, version, request_))
        await until(lambda: len(stage.held) == 1)
        await stage.publish(led_by(NEXT, OFFSETS_TOPIC), others=(NEXT,))
        answer, took_s = await timed(asking)
        assert took_s < AT_ONCE_S
        assert (answer.coordinators[0] if version > 3 else answer).node_id == NEXT

    staged(test, tmp_path, topics=(led_by(OTHER, OFFSETS_TOPIC),))


def test_a_coordinator_that_stays_is_told_after_half_a_second(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        request = FindCoordinatorRequest(coordinator_keys=["g", "h"])
        answer, took_s = await timed(stage.asked(ApiKey.FIND_COORDINATOR, 4, request))
        assert [one.node_id for one in answer.coordinators] == [OTHER, OTHER]
        assert HOLD_S * 0.8 < took_s < HOLD_S * 3

    staged(test, tmp_path, topics=(led_by(OTHER, OFFSETS_TOPIC),))


def test_no_more_answers_are_held_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_answers, "HELD_MAX", 2)

    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        waiting = [asyncio.create_task(stage.metadata_of(LED)) for _ in range(2)]
        await until(lambda: len(stage.held) == 2)
        answer, took_s = await timed(stage.metadata_of(LED))
        assert leader_in(answer) == OTHER
        assert took_s < AT_ONCE_S
        await asyncio.gather(*waiting)

    staged(test, tmp_path)


def test_what_held_answers_take_counts_in_the_bound_of_all_memory(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        memory = stage.server.memory
        stage.held.broken(OTHER)
        waiting = asyncio.create_task(stage.metadata_of(LED, *(f"missing-{at}" for at in range(100))))
        await until(lambda: len(stage.held) == 1)
        assert memory.taken == stage.held.held_bytes > 100 * held_answers.ITEM_BYTES
        memory.take(memory.bytes_max >> 1)
        answer, took_s = await timed(stage.metadata_of(LED))
        memory.release(memory.bytes_max >> 1)
        assert leader_in(answer) == OTHER
        assert took_s < AT_ONCE_S
        await waiting

    staged(test, tmp_path, "auto.create.topics.enable=false")


def test_a_request_for_more_topics_than_may_wait_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_answers, "HELD_BYTES_MAX", 100 * held_answers.ITEM_BYTES)

    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        await stage.metadata_of(LED, *(f"missing-{at}" for at in range(100)))
        assert stage.held.total == 0

    staged(test, tmp_path, "auto.create.topics.enable=false")


def test_many_held_answers_go_on_some_in_each_turn_of_the_loop_whoever_was_waited_for_before() -> None:
    async def test() -> None:
        held = HeldAnswers()
        image = ClusterImage(brokers={one: other_broker(one) for one in (OTHER, NEXT)})
        held.image_changed(Delta(image, image))

        async def one() -> None:
            context: Any = SimpleNamespace(lane=None, turns=Turns())
            assert await held.hold(context, 1, held.edition)

        async def held_up_by(broker: int, count: int) -> None:
            held.broken(broker)
            asks = [asyncio.create_task(one()) for _ in range(count)]
            await until(lambda: len(held) == count)
            held.reached(broker)
            done = 0
            while done < count:
                await asyncio.sleep(0)
                now = sum(ask.done() for ask in asks)
                assert now - done <= RELEASED_A_TURN
                done = now

        await held_up_by(OTHER, 10 * RELEASED_A_TURN)
        await held_up_by(NEXT, 10 * RELEASED_A_TURN)
        assert held.total == 20 * RELEASED_A_TURN

    asyncio.run(asyncio.wait_for(test(), 20))


def test_a_stop_lets_the_held_answers_go(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        stage.held.broken(OTHER)
        asking = asyncio.create_task(stage.metadata_of(LED))
        await until(lambda: len(stage.held) == 1)
        stage.held.close()
        _, took_s = await timed(asking)
        assert took_s < AT_ONCE_S
        stage.held.broken(NEXT)
        assert not stage.held.doubted

    staged(test, tmp_path)


def test_a_broker_that_is_gone_is_listed_for_clients_and_not_for_administrators(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        await stage.publish(led_by(NEXT), others=(NEXT,))
        answer = await stage.metadata_of(LED)
        own = stage.server.broker.node_id
        hosts = {one.node_id: one.host for one in answer.brokers}
        assert list(hosts) == sorted([own, OTHER, NEXT])
        assert hosts[OTHER] == f"host-{OTHER}"
        assert answer.topics[0].partitions[0].offline_replicas == [OTHER]
        described = await stage.asked(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
        assert sorted(one.broker_id for one in described.brokers) == sorted([own, NEXT])
        await stage.publish()
        assert not stage.metadata.departed

    staged(test, tmp_path)
