"""Delayed responses that name a suspected leader: over real sockets, to a broker in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_request_order import TOPIC, Peer, served, until

from tidemill.broker import delayed_metadata
from tidemill.broker.delayed_metadata import COMPLETED_PER_TURN, DELAY_S_MAX, DelayedMetadata
from tidemill.broker.large_requests import RequestSlices
from tidemill.coordination.cluster_image import BrokerImage, ClusterImage, Delta
from tidemill.coordination.nodes import BrokerRegistration, Endpoint
from tidemill.coordination.topic_image import OFFSETS_TOPIC, PartitionImage, TopicImage
from tidemill.server.broker_server import BrokerServer
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.describe_cluster import DescribeClusterRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

OTHER, NEXT = 12, 13
LED, LED_ID = "led-elsewhere", b"\x07" * 16
AT_ONCE_S = DELAY_S_MAX * 0.6
"""A response that is not delayed arrives within this time, also on a loaded machine."""


def other_broker(broker_id: int) -> BrokerImage:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"host-{broker_id}", 9092)
    return BrokerImage(BrokerRegistration(broker_id, (endpoint,)), 5)


def led_by(leader: int, name: str = LED, topic_id: bytes = LED_ID) -> TopicImage:
    state = PartitionImage(0, leader, leader, [OTHER, NEXT], [OTHER, NEXT], leader)
    return TopicImage(name, topic_id, (state,), {})


TOPICS = (led_by(OTHER),)


class Stage:
    """A broker in this process with two others in its metadata."""

    def __init__(self, server: BrokerServer) -> None:
        self.server = server
        self.metadata = server.broker.metadata_cache
        self.delayed = DelayedMetadata()
        cluster: Any = SimpleNamespace(delayed_metadata=self.delayed, inter_broker_listener="")
        server.broker.cluster = cluster
        self.metadata.on_change(self.delayed.image_changed)

    async def publish(self, *topics: TopicImage, others: tuple[int, ...] = (OTHER, NEXT)) -> None:
        own = self.server.broker.node_id
        brokers = {own: self.metadata.image.brokers[own], **{one: other_broker(one) for one in others}}
        await self.publish_image(self.metadata.image.with_brokers(brokers).with_topics(topics))

    async def publish_image(self, image: ClusterImage) -> None:
        await self.metadata.publish(Delta.between(self.metadata.image, image))

    async def metadata_of(self, *topics: str, version: int = 12) -> Any:
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        return await self.send(ApiKey.METADATA, version, MetadataRequest(topics=wanted))

    async def send(self, key: ApiKey, version: int, request: Any) -> Any:
        peer = await Peer.of(self.server)
        peer.send(key, version, request)
        try:
            return await peer.answer(key, version)
        finally:
            await peer.close()


@asynccontextmanager
async def staged(tmp_path: Path, *settings: str, topics: Any = TOPICS) -> AsyncIterator[Stage]:
    async with served(tmp_path, *settings) as (server, _):
        stage = Stage(server)
        await stage.publish(*topics)
        yield stage
        assert server.memory.reserved == 0
        assert stage.delayed.delayed_bytes == 0


def leader_in(response: Any) -> int:
    leader: int = response.topics[0].partitions[0].leader_id
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
async def test_metadata_is_delayed_until_the_next_leader_is_known(
    tmp_path: Path, request_: MetadataRequest
) -> None:
    async with staged(tmp_path) as stage:
        stage.delayed.disconnected(OTHER)
        request_task = asyncio.create_task(stage.send(ApiKey.METADATA, 12, request_))
        await until(lambda: len(stage.delayed._waiting) == 1)
        await stage.publish()  # A change of something else.
        await until(lambda: len(stage.delayed._waiting) == 1)
        assert not request_task.done()
        await stage.publish(led_by(NEXT), others=(NEXT,))
        response, took_s = await timed(request_task)
        assert took_s < AT_ONCE_S
        assert [one.partitions[0].leader_id for one in response.topics if one.name == LED] == [NEXT]
        assert stage.delayed.total == 1
        assert OTHER in [one.node_id for one in response.brokers]


async def test_the_delay_ends_after_half_a_second_and_is_not_repeated(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.delayed.disconnected(OTHER)
        response, took_s = await timed(stage.metadata_of(LED))
        assert leader_in(response) == OTHER
        assert DELAY_S_MAX * 0.8 < took_s < DELAY_S_MAX * 3
        # The broker still refuses connections, and is still the leader.
        stage.delayed.disconnected(OTHER)
        response, took_s = await timed(stage.metadata_of(LED))
        assert leader_in(response) == OTHER
        assert took_s < AT_ONCE_S


async def test_a_broker_is_suspected_again_after_it_has_left_the_image(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.delayed.disconnected(OTHER)
        await stage.publish(led_by(NEXT), others=(NEXT,))
        stage.delayed.disconnected(OTHER)  # It has left the image.
        assert not stage.delayed.suspected
        await stage.publish(led_by(OTHER))
        stage.delayed.connected(OTHER)
        stage.delayed.disconnected(OTHER)
        assert stage.delayed.suspected == {OTHER}


async def test_a_live_broker_that_breaks_connections_is_not_suspected_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        stage.delayed.disconnected(OTHER)
        request_task = asyncio.create_task(stage.metadata_of(LED))
        await until(lambda: len(stage.delayed._waiting) == 1)
        stage.delayed.connected(OTHER)
        response, took_s = await timed(request_task)
        assert leader_in(response) == OTHER
        assert took_s < AT_ONCE_S
        stage.delayed.disconnected(OTHER)
        assert not stage.delayed.suspected
        monkeypatch.setattr(delayed_metadata, "RESUSPECT_AFTER_S", 0.0)
        stage.delayed.disconnected(OTHER)
        assert stage.delayed.suspected == {OTHER}


async def test_responses_without_the_suspected_broker_are_not_delayed(tmp_path: Path) -> None:
    async with staged(tmp_path, topics=(led_by(OTHER), led_by(NEXT, "led-by-next", b"\x08" * 16))) as stage:
        stage.delayed.disconnected(OTHER)
        for topics in ((), (TOPIC,), ("led-by-next",)):
            response, took_s = await timed(stage.metadata_of(*topics))
            assert len(response.topics) == len(topics)
            assert took_s < AT_ONCE_S
        assert stage.delayed.total == 0


@pytest.mark.parametrize(
    ("version", "request_"),
    [(3, FindCoordinatorRequest(key="g")), (4, FindCoordinatorRequest(coordinator_keys=["g"]))],
)
async def test_find_coordinator_is_delayed_until_the_next_coordinator_is_known(
    tmp_path: Path, version: int, request_: FindCoordinatorRequest
) -> None:
    async with staged(tmp_path, topics=(led_by(OTHER, OFFSETS_TOPIC),)) as stage:
        stage.delayed.disconnected(OTHER)
        request_task = asyncio.create_task(stage.send(ApiKey.FIND_COORDINATOR, version, request_))
        await until(lambda: len(stage.delayed._waiting) == 1)
        await stage.publish(led_by(NEXT, OFFSETS_TOPIC), others=(NEXT,))
        response, took_s = await timed(request_task)
        assert took_s < AT_ONCE_S
        assert (response.coordinators[0] if version > 3 else response).node_id == NEXT


async def test_find_coordinator_is_delayed_for_half_a_second_without_a_successor(tmp_path: Path) -> None:
    async with staged(tmp_path, topics=(led_by(OTHER, OFFSETS_TOPIC),)) as stage:
        stage.delayed.disconnected(OTHER)
        request = FindCoordinatorRequest(coordinator_keys=["g", "h"])
        response, took_s = await timed(stage.send(ApiKey.FIND_COORDINATOR, 4, request))
        assert [one.node_id for one in response.coordinators] == [OTHER, OTHER]
        assert DELAY_S_MAX * 0.8 < took_s < DELAY_S_MAX * 3


async def test_the_number_of_delayed_responses_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_metadata, "DELAYED_RESPONSES_MAX", 2)

    async with staged(tmp_path) as stage:
        stage.delayed.disconnected(OTHER)
        waiting = [asyncio.create_task(stage.metadata_of(LED)) for _ in range(2)]
        await until(lambda: len(stage.delayed._waiting) == 2)
        response, took_s = await timed(stage.metadata_of(LED))
        assert leader_in(response) == OTHER
        assert took_s < AT_ONCE_S
        await asyncio.gather(*waiting)


async def test_delayed_requests_count_in_the_memory_pool(tmp_path: Path) -> None:
    async with staged(tmp_path, "auto.create.topics.enable=false") as stage:
        memory = stage.server.memory
        stage.delayed.disconnected(OTHER)
        waiting = asyncio.create_task(stage.metadata_of(LED, *(f"missing-{at}" for at in range(100))))
        await until(lambda: len(stage.delayed._waiting) == 1)
        assert memory.reserved == stage.delayed.delayed_bytes > 100 * delayed_metadata.ITEM_BYTES
        memory.reserve(memory.bytes_max >> 1)
        response, took_s = await timed(stage.metadata_of(LED))
        memory.release(memory.bytes_max >> 1)
        assert leader_in(response) == OTHER
        assert took_s < AT_ONCE_S
        await waiting


async def test_a_request_above_the_limit_of_bytes_is_not_delayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_metadata, "DELAYED_BYTES_MAX", 100 * delayed_metadata.ITEM_BYTES)

    async with staged(tmp_path, "auto.create.topics.enable=false") as stage:
        stage.delayed.disconnected(OTHER)
        await stage.metadata_of(LED, *(f"missing-{at}" for at in range(100)))
        assert stage.delayed.total == 0


def test_delayed_requests_are_completed_some_in_each_turn() -> None:
    async def test() -> None:
        delayed = DelayedMetadata()
        image = ClusterImage(brokers={one: other_broker(one) for one in (OTHER, NEXT)})
        await delayed.image_changed(Delta(image, image))

        async def one() -> None:
            context: Any = SimpleNamespace(queue=None, slices=RequestSlices())
            assert await delayed.wait_for_change(context, 1, delayed.change_count)

        async def delay_for(broker: int, count: int) -> None:
            delayed.disconnected(broker)
            requests = [asyncio.create_task(one()) for _ in range(count)]
            await until(lambda: len(delayed._waiting) == count)
            delayed.connected(broker)
            done = 0
            while done < count:
                await asyncio.sleep(0)
                now = sum(request.done() for request in requests)
                assert now - done <= COMPLETED_PER_TURN
                done = now

        await delay_for(OTHER, 10 * COMPLETED_PER_TURN)
        await delay_for(NEXT, 10 * COMPLETED_PER_TURN)
        assert delayed.total == 20 * COMPLETED_PER_TURN

    asyncio.run(asyncio.wait_for(test(), 20))


async def test_close_completes_delayed_requests(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.delayed.disconnected(OTHER)
        request_task = asyncio.create_task(stage.metadata_of(LED))
        await until(lambda: len(stage.delayed._waiting) == 1)
        stage.delayed.close()
        _, took_s = await timed(request_task)
        assert took_s < AT_ONCE_S
        stage.delayed.disconnected(NEXT)
        assert not stage.delayed.suspected


async def test_a_departed_broker_is_in_metadata_and_not_in_describe_cluster(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.publish(led_by(NEXT), others=(NEXT,))
        response = await stage.metadata_of(LED)
        own = stage.server.broker.node_id
        hosts = {one.node_id: one.host for one in response.brokers}
        assert list(hosts) == sorted([own, OTHER, NEXT])
        assert hosts[OTHER] == f"host-{OTHER}"
        assert response.topics[0].partitions[0].offline_replicas == [OTHER]
        described = await stage.send(ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest())
        assert sorted(one.broker_id for one in described.brokers) == sorted([own, NEXT])
        await stage.publish()
        assert not stage.metadata.departed
