"""Apache Kafka's command-line tools, of 4.3.1 and of 3.9.2, on three Tidemill brokers on ZooKeeper."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_cluster import Brokers, start_cluster, until
from kafka_desk import Desk, compiled, desk
from kafka_peer import class_path

from tidemill.client import ConfigResource, Consumer, Producer, ResourceType
from tidemill.testing.zookeeper import ZooKeeper

TOOLS = "org.apache.kafka.tools"
TOPICS = f"{TOOLS}.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
SLOW_BYTES_S = 10_000

_numbers = itertools.count()

pytestmark = pytest.mark.skipif(
    shutil.which("javac") is None, reason="needs a JDK (apt-get install default-jdk-headless)"
)


@pytest.fixture(scope="module", params=["4.3.1", "3.9.2"])
def tool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    place = tmp_path_factory.mktemp(request.param)
    with desk(compiled(class_path(request.param), place, "Desk")) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """Three brokers; a test that kills a broker starts it again."""
    quiet = {"auto__leader__rebalance__enable": "false", "log__segment__bytes": "1048576"}
    with start_cluster(f"{zookeeper_server.address}/extra-cluster-tools", **quiet) as found:
        yield found
        for broker in found.brokers.values():
            assert "Traceback" not in broker.log, broker.log


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W+", "-", str(request.node.name)).strip("-")
    # With a number: topics of a first try would disturb a second try.
    return f"{name}-{next(_numbers)}"


def server(cluster: Brokers, *numbers: int) -> tuple[str, str]:
    known = [cluster.brokers[number] for number in numbers or cluster.brokers]
    return ("--bootstrap-server", ",".join(broker.bootstrap for broker in known))


def either(tool: Desk, name: str, first: str, second: str, *arguments: str) -> str:
    """Runs a tool that Kafka 4 moved to another package."""
    told = tool(f"{first}{name}", *arguments, code=None)
    return tool(f"{second}{name}", *arguments) if "ClassNotFoundException" in told else told


def write(cluster: Brokers, topic: str, count: int, size: int = 10, partition: int = 0) -> None:
    with Producer(cluster.bootstrap, acks="all") as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number + bytes(size), partition=partition)


def test_kafka_topics_creates_and_describes_topics(cluster: Brokers, tool: Desk, topic: str) -> None:
    tool(
        TOPICS, *server(cluster, 1), "--create", "--topic", topic, "--partitions", "4",
        "--replication-factor", "3", "--config", "retention.ms=70000",
    )  # fmt: skip
    described = tool(TOPICS, *server(cluster, 2), "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 4\s+ReplicationFactor: 3\s+Configs: .*retention.ms=70000", described)
    isrs = re.findall(r"Isr: (\S+)", described)
    assert [sorted(one.split(",")) for one in isrs] == [["1", "2", "3"]] * 4
    behind = ("--describe", "--under-replicated-partitions", "--topic", topic)
    assert tool(TOPICS, *server(cluster), *behind).split() == []
    cluster.brokers[3].kill()
    until(
        lambda: len(re.findall("Partition: ", tool(TOPICS, *server(cluster, 1), *behind))) == 4,
        "4 are behind",
    )
    assert (
        tool(TOPICS, *server(cluster, 1), "--describe", "--topic", topic, "--unavailable-partitions").split()
        == []
    )
    at_least = tool(TOPICS, *server(cluster, 2), "--describe", "--topic", topic, "--at-min-isr-partitions")
    assert len(re.findall("Partition: ", at_least)) == 4
    cluster.brokers[3].start()
    until(lambda: not tool(TOPICS, *server(cluster, 3), *behind).split(), "broker 3 is in sync")
    tool(TOPICS, *server(cluster, 3), "--alter", "--topic", topic, "--partitions", "6")
    assert "PartitionCount: 6" in tool(TOPICS, *server(cluster, 1), "--describe", "--topic", topic)
    many = tool(
        TOPICS, *server(cluster, 2), "--create", "--topic", "many", "--replication-factor", "4", code=1
    )
    assert "4 replicas need as many brokers, and 3 are live" in many
    tool(TOPICS, *server(cluster, 2), "--delete", "--topic", topic)
    for number in cluster.brokers:
        assert topic not in tool(TOPICS, *server(cluster, number), "--list").split()


def test_kafka_configs_alters_settings_at_any_broker(cluster: Brokers, tool: Desk, topic: str) -> None:
    tool(TOPICS, *server(cluster, 1), "--create", "--topic", topic, "--replication-factor", "3")
    entities = (
        (("--entity-type", "topics", "--entity-name", topic), "segment.bytes", "2000000"),
        (("--entity-type", "brokers", "--entity-name", "2"), "log.cleaner.threads", "2"),
        (("--entity-type", "brokers", "--entity-default"), "log.retention.ms", "7654321"),
    )
    for through, (entity, key, value) in enumerate(entities, 1):
        tool(CONFIGS, *server(cluster, through), *entity, "--alter", "--add-config", f"{key}={value}")
        for number in cluster.brokers:
            asked = (*server(cluster, number), *entity, "--describe")
            until(lambda a=asked, k=key, v=value: f"{k}={v}" in tool(CONFIGS, *a), f"{number} tells {key}")  # type: ignore[misc]
        other = server(cluster, through % 3 + 1)
        tool(CONFIGS, *other, *entity, "--alter", "--delete-config", key)
        asked = (*server(cluster, through), *entity, "--describe")
        until(lambda a=asked, k=key, v=value: f"{k}={v}" not in tool(CONFIGS, *a), f"{key} is gone")  # type: ignore[misc]
    wrong = ("--entity-type", "brokers", "--entity-name", "3", "--alter", "--add-config")
    assert "num.io.threads" in tool(CONFIGS, *server(cluster, 1), *wrong, "num.io.threads=some", code=1)


def test_kafka_reassign_partitions_moves_replicas_with_throttles(
    cluster: Brokers, tool: Desk, topic: str, tmp_path: Path
) -> None:
    # The tool sets throttles and starts moves at the same time: brokers apply the throttle first.
    throttled = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
    rates = {f"{side}.replication.throttled.rate": str(SLOW_BYTES_S) for side in ("leader", "follower")}
    with cluster.admin() as admin:
        admin.create_topic(topic, assignments={0: [1, 2], 1: [2, 1]}, configs=throttled)
        for number in cluster.brokers:
            admin.alter_configs(ConfigResource(ResourceType.BROKER, str(number)), rates)
        for number in cluster.brokers:
            until(
                lambda n=number: (
                    rates.items() <= {k: one.value for k, one in admin.broker_configs(n).items()}.items()
                ),  # type: ignore[misc]
                f"broker {number} knows its rates",
            )
    for partition in (0, 1):
        write(cluster, topic, 300, 10_000, partition)

    def plan(wishes: dict[int, list[int]]) -> tuple[str, str]:
        listed = [{"topic": topic, "partition": p, "replicas": replicas} for p, replicas in wishes.items()]
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"version": 1, "partitions": listed}))
        return ("--reassignment-json-file", str(path))

    def replicas() -> list[list[int]]:
        with cluster.admin() as admin:
            return [list(one.replicas) for one in admin.describe_topic(topic).partitions]

    away = plan({0: [3, 2], 1: [1, 3]})
    started = tool(REASSIGN, *server(cluster, 1), "--execute", "--throttle", str(SLOW_BYTES_S), *away)
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in started
    listed = tool(REASSIGN, *server(cluster, 2), "--list")
    assert re.search(rf"{topic}-0: replicas: 3,2,1\.\s+adding: 3\.\s+removing: 1\.", listed), listed
    assert "still in progress" in tool(
        REASSIGN, *server(cluster, 3), "--verify", "--preserve-throttles", *away
    )
    again = tool(REASSIGN, *server(cluster, 3), "--execute", *away, code=1)
    assert "existing partition assignment" in again
    cancelled = tool(REASSIGN, *server(cluster, 3), "--cancel", *away)
    assert f"Successfully cancelled partition reassignments for: {topic}-0,{topic}-1" in cancelled
    until(lambda: [sorted(one) for one in replicas()] == [[1, 2], [1, 2]], "they are where they were")
    assert "No partition reassignments found" in tool(REASSIGN, *server(cluster, 2), "--list")
    for entity in (("topics", topic), ("brokers", "1"), ("brokers", "3")):
        asked = (*server(cluster, 2), "--entity-type", entity[0], "--entity-name", entity[1], "--describe")
        until(lambda a=asked: "throttled" not in tool(CONFIGS, *a), f"{entity} is not throttled")  # type: ignore[misc]

    more = plan({0: [3, 2, 1], 1: [1, 3, 2]})
    tool(REASSIGN, *server(cluster, 2), "--execute", *more)
    until(
        lambda: tool(REASSIGN, *server(cluster, 1), "--verify", *more).count("is completed") == 2,
        "the factor is raised",
    )
    until(lambda: replicas() == [[3, 2, 1], [1, 3, 2]], "all tell of three")
    elect = ("--election-type", "preferred", "--all-topic-partitions")
    tool(f"{TOOLS}.LeaderElectionCommand", *server(cluster, 2), *elect)
    until(lambda: cluster.leaders(topic) == [3, 1], "the preferred lead")
    wish = plan({0: [3], 1: [1]})
    tool(REASSIGN, *server(cluster, 3), "--execute", *wish)
    until(lambda: replicas() == [[3], [1]], "the factor is one")


def lags(tool: Desk, where: tuple[str, str], group: str) -> list[int]:
    told = tool(GROUPS, *where, "--describe", "--group", group)
    return [int(line.split()[5]) for line in told.splitlines() if line.startswith(group)]


def test_kafka_consumer_groups_works_after_the_coordinator_was_killed(
    cluster: Brokers, tool: Desk, topic: str
) -> None:
    tool(
        TOPICS,
        *server(cluster),
        "--create",
        "--topic",
        topic,
        "--partitions",
        "1",
        "--replication-factor",
        "3",
    )
    write(cluster, topic, 10)
    group = f"group-{topic}"
    with Consumer(cluster.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        read: list[Any] = []
        until(lambda: read.extend(consumer.poll(1.0)) or len(read) >= 10, "ten are read")
        consumer.commit()
    state = tool(GROUPS, *server(cluster), "--describe", "--group", group, "--state")
    found = re.search(rf"{group}\s+\S+:\d+\s+\((\d)\)", state)
    assert found, state
    number = int(found[1])
    cluster.brokers[number].kill()
    others = server(cluster, *(one for one in cluster.brokers if one != number))
    until(lambda: lags(tool, others, group) == [0], "another coordinator knows the offsets")
    write_to = [one for one in cluster.brokers if one != number]
    with Producer(",".join(cluster.brokers[one].bootstrap for one in write_to), acks="all") as producer:
        for _ in range(5):
            producer.send(topic, b"more", partition=0)
    assert lags(tool, others, group) == [5]
    tool(GROUPS, *others, "--group", group, "--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    assert lags(tool, others, group) == [15]
    ends = tool(f"{TOOLS}.GetOffsetShell", *others, "--topic", topic, "--time", "latest")
    assert ends.strip() == f"{topic}:0:15"
    cluster.brokers[number].start()
    until(
        lambda: lags(tool, server(cluster, number), group) == [15], "the one that came back knows them, too"
    )


def test_kafka_tools_show_versions_and_log_dirs_of_all_brokers(
    cluster: Brokers, tool: Desk, topic: str
) -> None:
    tool(
        TOPICS,
        *server(cluster),
        "--create",
        "--topic",
        topic,
        "--partitions",
        "2",
        "--replication-factor",
        "3",
    )
    write(cluster, topic, 100)
    told = either(tool, "BrokerApiVersionsCommand", f"{TOOLS}.", "kafka.admin.", *server(cluster, 1))
    for number, broker in cluster.brokers.items():
        assert f"{broker.bootstrap} (id: {number} rack: null" in told
    told = tool(f"{TOOLS}.LogDirsCommand", *server(cluster, 2), "--describe", "--topic-list", topic)
    brokers = json.loads(told[told.index("{") :])["brokers"]
    sizes: dict[str, set[int]] = {}
    for broker in brokers:
        (directory,) = broker["logDirs"]
        assert directory["error"] is None
        for one in directory["partitions"]:
            assert one["offsetLag"] == 0
            sizes.setdefault(one["partition"], set()).add(one["size"])
    assert len(brokers) == 3
    assert all(len(found) == 1 for found in sizes.values()), sizes


def dumped(tool: Desk, directory: Path) -> list[str]:
    files = ",".join(str(path) for path in sorted(directory.glob("*.log")))
    asked = ("--deep-iteration", "--print-data-log", "--files", files)
    told = either(tool, "DumpLogSegments", f"{TOOLS}.", "kafka.tools.", *asked)
    assert "isvalid: false" not in told
    # Positions of batches in files may differ: a replica rolls segments by its own clock.
    return [re.sub(r"position: \d+ ", "", line) for line in told.splitlines() if line[0] in "b|"]


def test_replicas_hold_the_same_records_at_the_same_offsets(cluster: Brokers, tool: Desk, topic: str) -> None:
    with cluster.admin() as admin:
        admin.create_topic(topic, 1, 3)
    load = ("--topic", topic, "--num-records", "30000", "--record-size", "200", "--throughput", "10000")
    load += ("--producer-props", f"bootstrap.servers={cluster.bootstrap}", "acks=all")
    (leader,) = cluster.leaders(topic)
    killed: list[int] = []
    write(cluster, topic, 1000, 500)
    cluster.brokers[leader].kill()
    killed.append(leader)
    told = tool(f"{TOOLS}.ProducerPerformance", *load)
    assert "30000 records sent" in told
    assert "Exception" not in told
    cluster.brokers[leader].start()

    def in_sync() -> bool:
        with cluster.admin() as admin:
            return len(admin.describe_topic(topic).partitions[0].isr) == 3

    until(in_sync, "all are in sync")
    found = [dumped(tool, Path(broker.data_dir, f"{topic}-0")) for broker in cluster.brokers.values()]
    assert len([line for line in found[0] if line[0] == "|"]) == 31_000
    assert found[0] == found[1]
    assert found[0] == found[2]
