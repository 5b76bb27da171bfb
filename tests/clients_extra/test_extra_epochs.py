"""Apache Kafka's classes read the registration epochs that Tidemill brokers write, and Tidemill reads
Kafka's.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from faulty_files import FaultyFiles
from kafka_desk import compiled
from kafka_peer import java

from default_limits import RecordLimits
from partition_events import IgnoredEvents
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchLimits, ReplicaFetcher
from tidemill.wire.codec import encode
from tidemill.wire.fetch_layout import read_request
from tidemill.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)

LEADER, FOLLOWER = 1, 2
LEADER_EPOCH, EPOCH = 0x1_0000_0007, 0x5_0000_0009
FETCH_VERSIONS = range(15, 19)
ALTER_PARTITION_VERSION = 3
TOPIC_ID = bytes(range(16))


def followed() -> Partition:
    """A partition that follows its leader."""
    logs = LogManager(FaultyFiles(), ["/d"])
    logs.dirs.lock()
    logs.dirs.claim("c" * 22, FOLLOWER)
    logs.load(0, lambda topic: LogConfig())
    log = logs.create(TopicPartition("t", 0), TOPIC_ID, LogConfig(), 0)
    partition = Partition("t", 0, log, RecordLimits(), FOLLOWER, IgnoredEvents())
    partition.apply_state(LEADER, 3, (LEADER, FOLLOWER), (LEADER, FOLLOWER), partition_epoch=-1, now_ms=0)
    return partition


def fetch(version: int) -> bytes:
    """Returns the fetch of a follower."""
    fetcher = ReplicaFetcher(FOLLOWER, FetchLimits(), node_epoch=EPOCH)
    partition = followed()
    fetcher.add_partition(TOPIC_ID, partition, 0, 0)
    body = fetcher.build_request(0, version)
    assert body is not None
    return body


def alter_partition() -> bytes:
    """Returns the AlterPartition request of a leader."""
    members = [BrokerState(broker_id=LEADER, broker_epoch=LEADER_EPOCH), BrokerState(broker_id=FOLLOWER)]
    members += [BrokerState(broker_id=3, broker_epoch=EPOCH)]
    part = AlterPartitionRequestPartitionData(
        partition_index=0, leader_epoch=3, new_isr_with_epochs=members, partition_epoch=5
    )
    topic = AlterPartitionRequestTopicData(topic_id=TOPIC_ID, partitions=[part])
    request = AlterPartitionRequest(broker_id=LEADER, broker_epoch=LEADER_EPOCH, topics=[topic])
    return encode(request, ALTER_PARTITION_VERSION)


@pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)
def test_kafkas_classes_and_tidemill_have_the_same_epochs(java_jars: str, tmp_path: Path) -> None:
    asked = [f"fetch {version} {fetch(version).hex()}" for version in FETCH_VERSIONS]
    asked += [f"write {version} {FOLLOWER} {EPOCH}" for version in FETCH_VERSIONS]
    asked += [f"alter {ALTER_PARTITION_VERSION} {alter_partition().hex()}"]
    command = java(compiled(java_jars, tmp_path, "Epochs"), "Epochs", heap="128m")
    done = subprocess.run(command, input="\n".join(asked) + "\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    count = len(FETCH_VERSIONS)
    assert lines[:count] == [f"{FOLLOWER}:{EPOCH} 0"] * count
    assert lines[-1] == f"{LEADER}:{LEADER_EPOCH} {LEADER}:{LEADER_EPOCH} {FOLLOWER}:-1 3:{EPOCH} 0"
    for version, line in zip(FETCH_VERSIONS, lines[count:-1], strict=True):
        data = bytes.fromhex(line)
        fields = read_request(version, 1, data, 0, len(data))
        assert (fields.replica_id, fields.replica_epoch) == (FOLLOWER, EPOCH)
        ((index, offset),) = [(part.index, part.offset) for part in fields.partitions]
        assert (index, offset) == (3, 4)
