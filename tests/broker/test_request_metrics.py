"""Request metrics: times of Produce and Fetch, and the page that lists every metric."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from test_request_order import COSTLY, SMALL, Peer, served, until

from tidemill.broker.kafka_apis import FETCH, PRODUCE, TIMED_EVERY
from tidemill.controller.topics import NewTopic
from tidemill.records.batch import parse_batch
from tidemill.server.broker_metrics import PARTITIONS_A_TURN, families
from tidemill.server.broker_server import BrokerServer
from tidemill.server.metrics import ProcessMetrics, render

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


async def test_some_produces_and_fetches_are_timed(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, partition):
        requests = server.kafka_apis
        peer = await Peer.of(server)
        for _ in range(TIMED_EVERY + 1):
            peer.produce(SMALL)
            assert (await peer.produced()).error_code == 0
        assert sum(requests.local_times[PRODUCE].counts) == 2
        assert sum(requests.total_times[PRODUCE].counts) == 2
        for _ in range(TIMED_EVERY):
            peer.fetch(wait_ms=0)
            assert (await peer.fetched()).error_code == 0
        assert sum(requests.local_times[FETCH].counts) == 1
        assert sum(requests.total_times[FETCH].counts) == 1
        peer.fetch(wait_ms=20_000, offset=TIMED_EVERY + 1)
        await until(lambda: len(partition.delayed.fetches) == 1)
        assert sum(requests.local_times[FETCH].counts) == 2
        assert sum(requests.total_times[FETCH].counts) == 1
        other = await Peer.of(server)
        other.produce(COSTLY)
        assert (await peer.fetched()).records
        assert sum(requests.total_times[FETCH].counts) == 2
        assert requests.total_times[FETCH].sum > requests.local_times[FETCH].sum > 0
        assert (await other.produced()).error_code == 0
        page = render(families(server))[1].decode()
        for name in ("tidemill_request_seconds_count", "tidemill_request_local_seconds_count"):
            assert f'{name}{{api="Produce"}} 2.0' in page
            assert f'{name}{{api="Fetch"}} 2.0' in page
        await peer.close()
        await other.close()


@pytest.mark.parametrize(
    ("key", "is_counted"), [(-1, False), (99, True), (127, True), (128, False), (0x7FFF, False)]
)
async def test_an_unknown_api_closes_the_connection_and_is_counted_below_128(
    tmp_path: Path, key: int, is_counted: bool
) -> None:
    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        body = struct.pack(">hhih", key, 0, 7, -1)
        peer.writer.write(struct.pack(">i", len(body)) + body)
        assert await peer.reader.read() == b""
        await peer.close()
        text = render(families(server))[1].decode()
        assert re.findall(r'^tidemill_requests_total\{api="unknown-(.+)"\} 1', text, re.MULTILINE) == (
            [str(key)] if is_counted else []
        )


async def test_the_time_of_a_request_includes_its_delay(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        peer = await Peer.of(server)
        peer.fetch(wait_ms=150)
        await peer.fetched()
        assert server.kafka_apis.total_times[FETCH].sum >= 0.149
        assert server.kafka_apis.local_times[FETCH].sum < 0.149
        await peer.close()


async def test_metrics_of_many_partitions_are_collected_in_several_turns(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, partition):
        entry = server.broker.replica_manager.topics.by_name[partition.topic.encode()]
        before = sum(one is None for one in families(server))
        entry.partitions.extend([partition] * (3 * PARTITIONS_A_TURN))
        try:
            found = list(families(server))
        finally:
            del entry.partitions[-3 * PARTITIONS_A_TURN :]
        assert found.count(None) - before == 3
        (partitions,) = [one for one in found if one is not None and one.name == "tidemill_partition_count"]
        ((_, count),) = partitions.samples
        assert count == sum(1 for _ in server.broker.replica_manager.all()) + 3 * PARTITIONS_A_TURN


def samples(server: BrokerServer, name: str) -> dict[str, float]:
    """Returns the samples of a metric by topic, with an empty topic for samples without one."""
    (family,) = [one for one in families(server) if one is not None and one.name == name]
    return {
        labels.get("topic", ""): value for labels, value in family.samples if isinstance(value, (int, float))
    }


async def test_the_counters_of_a_topic_do_not_decrease_with_a_moved_partition(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        await server.broker.controller.admin_manager.create_topics([NewTopic("pair", 2, 1)])
        batch = parse_batch(SMALL, 0, len(SMALL))
        for index in range(2):
            server.broker.partition("pair", index).append(batch, 1, 0)
        assert samples(server, "tidemill_topic_messages_in")["pair"] == 2
        server.broker.replica_manager.stop_replica("pair", 0, delete=True)
        assert samples(server, "tidemill_topic_messages_in")["pair"] == 2
        assert samples(server, "tidemill_topic_bytes_in")["pair"] == 2 * len(SMALL)
        assert samples(server, "tidemill_topic_log_size_bytes")["pair"] == len(SMALL)
        server.broker.replica_manager.stop_replica("pair", 1, delete=True)
        assert "pair" not in samples(server, "tidemill_topic_messages_in"), "no series is left behind"


async def test_a_partition_without_leader_or_disk_counts_once_as_offline(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, partition):
        metadata = server.broker.metadata_cache
        assert samples(server, "tidemill_offline_partitions") == {"": 0}
        partition.mark_offline("its disk is broken")
        assert samples(server, "tidemill_offline_partitions") == {"": 1}
        topic = metadata.topics[partition.topic]
        nobody = [one.replaced(leader=-1, leader_epoch=one.leader_epoch + 1) for one in topic.partitions]
        metadata.image = metadata.image.with_topics([topic.with_partitions(nobody)])
        assert samples(server, "tidemill_offline_partitions") == {"": 1}


async def test_the_operations_page_lists_every_metric(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, _):
        made = [one for one in (*families(server), *ProcessMetrics().families()) if one is not None]
        names = {one.name + ("_total" if one.kind == "counter" else "") for one in made}
        page = OPERATIONS.read_text(encoding="utf-8")
        table = page[page.index("| metric |") : page.index("Lag of a group")]
        assert set(re.findall(r"`((?:tidemill|process)_[a-z_]+)`", table)) == names
