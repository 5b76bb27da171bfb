"""The command line while the coordinator of a group is unavailable, with broker processes."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_cluster import Brokers, produce, start_cluster, until

from tidemill.client import Admin
from tidemill.coordinator_runtime.coordinator_partition import partition_for
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper

_numbers = itertools.count()


@pytest.fixture
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Two brokers. The only replica of the offsets topic is on a broker that is down."""
    address = f"{zookeeper_server.address}/test-offsets-offline-{next(_numbers)}"
    settings = {
        "offsets__topic__replication__factor": "1",
        "offsets__topic__num__partitions": "1",
        "min__insync__replicas": "1",
    }
    with start_cluster(address, 2, **settings) as found:
        with found.admin() as admin:
            admin.create_topic("t", 1, 2)
        produce(found, "t", range(5))
        assert tidemill(found, "consume", "t", "-g", "g", "--from-beginning", "-n", "5").returncode == 0
        holder = found.described("__consumer_offsets").leader
        found.brokers[holder].kill()
        until(lambda: found.described("__consumer_offsets").leader < 0, "the offsets topic has no leader")
        until(lambda: found.described("t").leader > 0, "the topic is led")
        yield found


def tidemill(cluster: Brokers, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line with the running brokers as bootstrap servers."""
    living = [broker.bootstrap for broker in cluster.brokers.values() if broker.running]
    return subprocess.run(
        [sys.executable, "-m", "tidemill", *arguments, "-b", ",".join(living)],
        capture_output=True,
        text=True,
        timeout=60,
    )


STEP = "start the brokers of its partition of __consumer_offsets"


def test_a_consumer_reports_a_missing_coordinator_and_continues_when_it_returns(
    cluster: Brokers,
) -> None:
    living = next(broker for broker in cluster.brokers.values() if broker.running)
    dead = next(broker for broker in cluster.brokers.values() if not broker.running)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tidemill", "consume", "t", "-g", "g2", "--from-beginning", "-n", "5"),
            *("-b", living.bootstrap),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as consumer:
        began = time.monotonic()
        assert consumer.stderr is not None
        said = consumer.stderr.readline()
        assert re.search(r"group g2 waits for its coordinator for \d s, retried: ", said)
        assert "__consumer_offsets-0 has no leader" in said
        assert STEP in said
        assert time.monotonic() - began < 10
        dead.start()
        out, _ = consumer.communicate(timeout=60)
        assert sorted(map(int, out.split())) == [0, 1, 2, 3, 4]
        assert consumer.returncode == 0


def test_group_describe_without_a_coordinator_fails_with_the_next_step(
    cluster: Brokers,
) -> None:
    outcome = tidemill(cluster, "group", "describe", "g")
    assert outcome.returncode == 1
    waiting, failed = outcome.stderr.splitlines()
    assert re.match(r"warning: group g waits for its coordinator for \d s, retried: ", waiting)
    assert failed.startswith("tidemill: cannot find the coordinator of group 'g': COORDINATOR_NOT_AVAILABLE")
    assert STEP in failed


def test_a_coordinator_with_a_missing_disk_is_named_with_the_next_step(tmp_path: Path) -> None:
    first, away = tmp_path / "first", tmp_path / "away"
    config = {"log.dirs": f"{first},{away}", "offsets.topic.num.partitions": "4"}
    with Broker(config, data_dir=tmp_path / "broker") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
            admin.alter_group_offsets("g", {TopicPartition("t", 0): 0})
        number = int(next(away.glob("__consumer_offsets-*")).name.rpartition("-")[2])
        group = next(f"g{count}" for count in range(100) if partition_for(f"g{count}", 4) == number)
        broker.stop()
        away.rename(tmp_path / "aside")
        away.write_text("no directory")
        broker.start()
        command = [sys.executable, "-m", "tidemill", "consume", "t", "-g", group, "-b", broker.bootstrap]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as consumer:
            with pytest.raises(subprocess.TimeoutExpired):
                consumer.communicate(timeout=8)  # It is waiting.
            consumer.kill()
            _, said = consumer.communicate()
    assert re.search(rf"group {group} waits for its coordinator for \d s, retried: ", said)
    assert "NOT_COORDINATOR" in said
    assert STEP in said
