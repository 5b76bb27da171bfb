"""Three brokers start at once with topics without ids, as of older versions of Kafka."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from broker_cluster import Brokers, produce, start_cluster, until, zookeeper_client
from confluent_kafka import Consumer, TopicPartition
from wire_peer import WirePeer

from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

CHROOT = "/test-without-ids"
GROUPS = [f"group-{number}" for number in range(12)]
WITH_RETENTION = 2
"""A version of OffsetCommit whose records contain no topic id."""


def committed(cluster: Brokers, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition("t", 0)], timeout=20)[0].offset)
    finally:
        consumer.close()


def commits(broker: Broker, group: str) -> bool:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=10**10,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    peer = WirePeer(broker.bootstrap)
    with closing(peer.socket):
        answer = peer.ask(ApiKey.OFFSET_COMMIT, WITH_RETENTION, request)
    return bool(answer.topics[0].partitions[0].error_code == 0)


def remove_ids(cluster: Brokers) -> None:
    with zookeeper_client(cluster.address) as client:
        for name in client.get_children("/brokers/topics"):
            path = f"/brokers/topics/{name}"
            content = json.loads(client.get(path)[0])
            del content["topic_id"]
            client.set(path, json.dumps({**content, "version": 2}).encode())
    for broker in cluster.brokers.values():
        for file in Path(broker.data_dir).rglob("partition.metadata"):
            file.unlink()


def test_groups_keep_their_offsets_when_topics_receive_ids(zookeeper_server: ZooKeeper) -> None:
    """A broker that reads the store before the controller writes the ids knows the topics without ids."""
    settings = {"offsets__topic__num__partitions": "6", "offsets__topic__replication__factor": "1"}
    with start_cluster(f"{zookeeper_server.address}{CHROOT}", **settings) as cluster:
        with cluster.admin() as admin:
            admin.create_topic("t", partitions=1, replication_factor=3)
        produce(cluster, "t", range(10))
        for group in GROUPS:
            assert committed(cluster, group) < 0  # Creates the offsets topic.
            until(lambda group=group: any(commits(one, group) for one in cluster.brokers.values()), group)
        for broker in cluster.brokers.values():
            broker.stop()
        remove_ids(cluster)
        with ThreadPoolExecutor(len(cluster.brokers)) as pool:
            list(pool.map(Broker.start, cluster.brokers.values()))
        cluster.until_in_sync("t", [1, 2, 3])
        assert {committed(cluster, group) for group in GROUPS} == {7}
