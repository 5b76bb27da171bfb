"""Apache Kafka's Java client and command-line tools, unmodified, with this broker and its files."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from wire_tap import WireTap

from tidemill.client import Admin, Consumer, Producer
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey

TOOLS = "org.apache.kafka.tools"
ZERO_ID = bytes(16)
TIMEOUT_S = 90

_numbers = itertools.count(1)


class Outcome(NamedTuple):
    """The result of a tool."""

    code: int
    out: str
    err: str


Tool = Callable[..., Outcome]


@pytest.fixture
def tool(java_jars: str) -> Tool:
    """Runs the class of a tool with arguments; fails unless it ends with the expected exit code."""

    def run(name: str, *arguments: str, data: str = "", code: int | None = 0) -> Outcome:
        command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", java_jars, name, *arguments]
        done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=TIMEOUT_S)
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        if code is not None:
            assert outcome.code == code, f"{name} {arguments}:\n{outcome.out}\n{outcome.err}"
        return outcome

    return run


@pytest.fixture
def server(extra_broker: Broker) -> tuple[str, str]:
    return ("--bootstrap-server", extra_broker.bootstrap)


@pytest.fixture
def new_topic(tool: Tool, server: tuple[str, str]) -> Callable[..., str]:
    def make(partitions: int = 1, **config: str) -> str:
        name = f"java-{next(_numbers)}"
        options = [part for key, value in config.items() for part in ("--config", f"{key}={value}")]
        options += ["--partitions", str(partitions)]
        tool(f"{TOOLS}.TopicCommand", *server, "--create", "--topic", name, *options)
        return name

    return make


def write(tool: Tool, server: tuple[str, str], topic: str, lines: str, codec: str = "none") -> None:
    keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tool(
        f"{TOOLS}.ConsoleProducer", *server, "--topic", topic, *keys, "--compression-codec", codec, data=lines
    )


def test_kafka_topics_manages_topics(
    tool: Tool, server: tuple[str, str], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3, **{"retention.ms": "70000"})
    command = f"{TOOLS}.TopicCommand"
    described = tool(command, *server, "--describe", "--topic", topic).out
    assert re.search(rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 3", described)
    assert re.search(r"Configs: (\S+,)?retention.ms=70000\b", described)
    assert len(re.findall(r"Leader: \d+", described)) == 3
    again = tool(command, *server, "--create", "--topic", topic, code=1)
    assert "TopicExistsException" in again.err
    tool(command, *server, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tool(command, *server, "--describe", "--topic", topic).out
    tool(command, *server, "--delete", "--topic", topic)
    assert topic not in tool(command, *server, "--list").out.split()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafka_console_producer_and_consumer(
    tool: Tool, server: tuple[str, str], new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic()
    write(tool, server, topic, "a:1\nb:2\nc:3\n", codec)
    show = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")
    read = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *(*server, "--topic", topic, "--from-beginning", "--max-messages", "3", *show),
    )
    assert read.out.splitlines() == ["Offset:0\ta\t1", "Offset:1\tb\t2", "Offset:2\tc\t3"]


def test_kafka_consumer_groups_manages_groups(
    tool: Tool, server: tuple[str, str], new_topic: Callable[..., str]
) -> None:
    topic, group = new_topic(2), f"group-{next(_numbers)}"
    write(tool, server, topic, "a:1\nb:2\nc:3\n")
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    reading = (*server, "--topic", topic, "--group", group, "--from-beginning", "--max-messages")
    assert len(tool(consumer, *reading, "3").out.split()) == 3

    command = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    assert re.search(rf"{group}\s+Empty", tool(command, *server, "--list", "--state").out)

    def lags() -> list[int]:
        told = tool(command, *server, "--describe", "--group", group).out
        return [int(line.split()[5]) for line in told.splitlines() if line.startswith(group)]

    assert lags() == [0, 0]
    tool(
        command, *server, "--group", group, "--reset-offsets", "--to-earliest", "--topic", topic, "--execute"
    )
    assert sum(lags()) == 3
    assert len(tool(consumer, *reading, "3").out.split()) == 3
    deleted = tool(command, *server, "--group", group, "--delete-offsets", "--topic", f"{topic}:0").out
    assert "Successful" in deleted
    assert "was successful" in tool(command, *server, "--delete", "--group", group).out
    assert group not in tool(command, *server, "--list").out.split()


def test_kafka_configs_alters_and_describes_settings(
    tool: Tool, server: tuple[str, str], new_topic: Callable[..., str]
) -> None:
    topic, command = new_topic(), "kafka.admin.ConfigCommand"
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tool(
        command,
        *server,
        *of_topic,
        "--alter",
        "--add-config",
        "segment.bytes=2000000,cleanup.policy=[compact,delete]",
    )
    told = tool(command, *server, *of_topic, "--describe").out
    assert "cleanup.policy=compact,delete sensitive=false" in told
    assert "segment.bytes=2000000" in told
    tool(command, *server, *of_topic, "--alter", "--delete-config", "segment.bytes")
    assert "segment.bytes" not in tool(command, *server, *of_topic, "--describe").out
    wrong = tool(command, *server, *of_topic, "--alter", "--add-config", "retention.ms=soon", code=1)
    assert "retention.ms" in wrong.out + wrong.err

    for_all = ("--entity-type", "brokers", "--entity-default")
    tool(command, *server, *for_all, "--alter", "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in tool(command, *server, *for_all, "--describe").out
    tool(command, *server, *for_all, "--alter", "--delete-config", "log.cleaner.threads")


def test_kafka_log_dirs_offsets_and_delete_records(
    tool: Tool, server: tuple[str, str], extra_broker: Broker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    write(tool, server, topic, "a:1\nb:2\nc:3\n")
    told = tool(f"{TOOLS}.LogDirsCommand", *server, "--describe", "--topic-list", topic).out
    (broker,) = json.loads(told.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert directory["logDir"] == extra_broker.data_dir
    assert [one["partition"] for one in directory["partitions"]] == [f"{topic}-0"]
    assert directory["partitions"][0]["size"] > 60

    def offset(time: str) -> str:
        return tool(f"{TOOLS}.GetOffsetShell", *server, "--topic", topic, "--time", time).out.strip()

    assert offset("latest") == f"{topic}:0:3"
    assert offset("earliest") == f"{topic}:0:0"
    assert offset("0") == f"{topic}:0:0"
    assert re.fullmatch(rf"{topic}:0:[012]", offset("max-timestamp"))

    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 2}]}
    (tmp_path / "delete.json").write_text(json.dumps(wanted))
    deleted = tool(
        f"{TOOLS}.DeleteRecordsCommand", *server, "--offset-json-file", str(tmp_path / "delete.json")
    )
    assert "low_watermark: 2" in deleted.out
    assert offset("earliest") == f"{topic}:0:2"


def test_kafka_performance_tools_produce_and_consume(
    tool: Tool, server: tuple[str, str], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    produced = tool(
        f"{TOOLS}.ProducerPerformance",
        *("--bootstrap-server", server[1], "--topic", topic, "--num-records", "50000"),
        *("--record-size", "100", "--throughput", "-1"),
    )
    assert produced.out.splitlines()[-1].startswith("50000 records sent")
    assert "Exception" not in produced.err
    consumed = tool(f"{TOOLS}.ConsumerPerformance", *server, "--topic", topic, "--num-records", "50000")
    assert consumed.out.splitlines()[-1].split(", ")[4] == "50000"


def test_kafka_verifiable_producer_and_consumer(
    tool: Tool, server: tuple[str, str], new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    sent = tool(
        f"{TOOLS}.VerifiableProducer", *server, "--topic", topic, "--max-messages", "500", "--acks", "-1"
    )
    told = [json.loads(line) for line in sent.out.splitlines()]
    assert [one["acked"] for one in told if one["name"] == "tool_data"] == [500]
    read = tool(
        f"{TOOLS}.VerifiableConsumer",
        *(*server, "--topic", topic, "--group-id", f"group-{next(_numbers)}"),
        *("--max-messages", "500", "--reset-policy", "earliest"),
    )
    events = [json.loads(line) for line in read.out.splitlines()]
    assert sum(one["count"] for one in events if one["name"] == "records_consumed") == 500
    committed = [one for one in events if one["name"] == "offsets_committed"]
    assert committed
    assert all(one["success"] for one in committed)


def test_kafka_configs_alters_and_describes_settings_of_groups(tool: Tool, server: tuple[str, str]) -> None:
    """Apache Kafka's own tool sets, reads, lists and resets settings; values beyond the broker's bounds are
    refused.
    """
    group = f"configured-{next(_numbers)}"
    key = "consumer.session.timeout.ms"
    of_group = (*server, "--entity-type", "groups", "--entity-name", group)
    configs = "kafka.admin.ConfigCommand"
    tool(configs, *of_group, "--alter", "--add-config", f"{key}=50000")
    told = tool(configs, *of_group, "--describe").out
    assert f"{key}=50000 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{key}=50000" in told
    refused = tool(configs, *of_group, "--alter", "--add-config", f"{key}=1000", code=1)
    assert "at least group.consumer.min.session.timeout.ms, which is 45000" in refused.out + refused.err
    everyone = tool(configs, *server, "--entity-type", "groups", "--describe").out
    assert f"for group {group} are" in everyone  # The tool requests their names with ListConfigResources.
    tool(configs, *of_group, "--alter", "--delete-config", key)
    assert "DYNAMIC_GROUP_CONFIG" not in tool(configs, *of_group, "--describe").out


def test_kafka_tools_of_features_quorum_and_metrics(tool: Tool, server: tuple[str, str]) -> None:
    metrics = tool(f"{TOOLS}.ClientMetricsCommand", *server, "--list")
    assert metrics.out.strip() == ""
    for kind in ("users", "clients", "client-metrics"):  # Quotas, credentials, subscriptions: there are none.
        described = tool("kafka.admin.ConfigCommand", *server, "--describe", "--entity-type", kind)
        assert (described.out.strip(), described.err.strip()) == ("", "")
    gone = tool(f"{TOOLS}.ClusterTool", "unregister", *server, "--id", "99")
    assert gone.out.strip() == "Broker 99 is no longer registered."
    features = f"{TOOLS}.FeatureCommand"
    for change, level in (("downgrade", 1), ("upgrade", 2)):
        tool(features, *server, change, "--feature", f"transaction.version={level}")
        described = tool(features, *server, "describe")
        supported = r"transaction.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 2"
        assert re.search(rf"{supported}\s+FinalizedVersionLevel: {level}", described.out), described.out
    refused = tool(features, *server, "upgrade", "--feature", "transaction.version=3", code=1)
    assert "transaction.version cannot have the level 3" in refused.out + refused.err
    quorum = tool(f"{TOOLS}.MetadataQuorumCommand", *server, "describe", "--status", code=1)
    assert "does not support DESCRIBE_QUORUM" in quorum.out + quorum.err


def test_missing_features_have_clear_errors(
    tool: Tool, server: tuple[str, str], new_topic: Callable[..., str]
) -> None:
    rules = tool(f"{TOOLS}.AclCommand", *server, "--list", code=1)
    assert "SecurityDisabledException: This broker has no authorizer" in rules.out + rules.err
    topic = new_topic()
    newer = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *(*server, "--topic", topic, "--timeout-ms", "20000"),
        *("--command-property", "group.protocol=consumer"),
        code=None,
    )
    assert "UnsupportedVersionException" in newer.out + newer.err


def test_the_consumer_uses_sessions_and_topic_ids(tool: Tool) -> None:
    with WireTap() as tap, Broker({"advertised.listeners": f"PLAINTEXT://{tap.bootstrap}"}) as broker:
        tap.to(broker)
        server = ("--bootstrap-server", tap.bootstrap)
        tool(f"{TOOLS}.TopicCommand", *server, "--create", "--topic", "tapped", "--partitions", "3")
        for number in range(3):
            write(tool, server, "tapped", "".join(f"{key}:{number}\n" for key in "abcdef"))
        read = tool(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *(*server, "--topic", "tapped", "--from-beginning", "--max-messages", "18"),
            *("--command-property", "max.partition.fetch.bytes=80"),
        )
        assert len(read.out.split()) == 18
    fetches = tap.of(ApiKey.FETCH)
    assert {one.version for one in fetches} == {18}
    first, *rest = [one.request for one in fetches]
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert all(topic.topic_id != ZERO_ID for topic in first.topics)
    in_session = [one for one in rest if one.session_epoch > 0]
    assert [one.session_epoch for one in in_session] == list(range(1, len(in_session) + 1))
    assert len({one.session_id for one in in_session}) == 1
    assert min(sum(len(topic.partitions) for topic in one.topics) for one in in_session) < 3
    produces = tap.of(ApiKey.PRODUCE)
    assert {one.version for one in produces} == {13}
    assert all(topic.topic_id != ZERO_ID for one in produces for topic in one.request.topic_data)


def test_dump_log_segments_reads_the_files_of_tidemill(tool: Tool, tmp_path: Path) -> None:
    config = {"log.segment.bytes": 1_048_576, "log.index.interval.bytes": 4096}
    with Broker(config, data_dir=tmp_path / "data") as broker:
        server = ("--bootstrap-server", broker.bootstrap)
        tool(f"{TOOLS}.TopicCommand", *server, "--create", "--topic", "dumped", "--partitions", "1")
        tool(
            f"{TOOLS}.ProducerPerformance",
            *("--bootstrap-server", server[1], "--topic", "dumped", "--num-records", "20000"),
            *("--record-size", "200", "--throughput", "-1"),
        )
        tool(
            f"{TOOLS}.consumer.ConsoleConsumer",
            *(*server, "--topic", "dumped", "--group", "dumpers", "--from-beginning", "--max-messages", "10"),
        )
        assert broker.stop() == 0
    directory = tmp_path / "data" / "dumped-0"
    segments = sorted(directory.glob("*.log"))
    assert len(segments) >= 3
    files = [
        str(path.with_suffix(suffix)) for path in segments for suffix in (".log", ".index", ".timeindex")
    ]
    files += [str(path) for path in directory.glob("*.snapshot")]
    dumped = tool(f"{TOOLS}.DumpLogSegments", "--deep-iteration", "--files", ",".join(files)).out
    counts = [
        int(count) for count in re.findall(r"^baseOffset: \d+ lastOffset: \d+ count: (\d+)", dumped, re.M)
    ]
    assert sum(counts) == 20000
    assert "isvalid: false" not in dumped
    assert "Mismatch" not in dumped
    assert "not found" not in dumped.lower()
    assert len(re.findall(r"^offset: \d+ position: \d+", dumped, re.M)) > len(segments)
    assert re.search(r"^producerId: \d+ producerEpoch: 0", dumped, re.M)

    offsets = [
        str(path) for path in (tmp_path / "data").glob("__consumer_offsets-*/*.log") if path.stat().st_size
    ]
    told = tool(f"{TOOLS}.DumpLogSegments", "--offsets-decoder", "--files", ",".join(offsets)).out
    assert '"group":"dumpers","topic":"dumped","partition":0' in told
    assert '"protocolType":"consumer"' in told


def test_kafka_transactions_shows_and_ends_transactions(tool: Tool, tmp_path: Path) -> None:
    command, topic = f"{TOOLS}.TransactionsCommand", "java-hanging"
    an_hour_ago = int((time.time() - 3600) * 1000)
    with Broker(data_dir=tmp_path) as broker:
        server = ("--bootstrap-server", broker.bootstrap)
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(topic, 1, 1)
        producer = Producer(broker.bootstrap, {"transactional.id": "buyer"})
        producer.begin()
        producer.send(topic, b"hanging", timestamp_ms=an_hour_ago).result(10)
        assert re.search(r"^buyer\s+1\s+0\s+Ongoing", tool(command, *server, "list").out, re.MULTILINE)
        described = tool(command, *server, "describe", "--transactional-id", "buyer").out
        assert re.search(rf"buyer\s+0\s+0\s+Ongoing\s+60000\s.*{topic}-0", described)
        where = ("--topic", topic, "--partition", "0")
        assert str(an_hour_ago) in tool(command, *server, "describe-producers", *where).out
        hanging = tool(command, *server, "find-hanging", "--broker-id", "1").out
        assert topic not in hanging, "its coordinator has it"
        broker.kill()
        producer.close()
    for partition in tmp_path.glob("__transaction_state-*"):
        shutil.rmtree(partition)
    with Broker(data_dir=tmp_path) as broker:
        server = ("--bootstrap-server", broker.bootstrap)
        for found_by in (("--broker-id", "1"), ("--topic", topic)):
            hanging = tool(command, *server, "find-hanging", *found_by).out
            assert re.search(rf"^{topic}\s+0\s+0\s+0\s", hanging, re.MULTILINE), found_by
        tool(command, *server, "abort", *where, "--start-offset", "0")
        assert topic not in tool(command, *server, "find-hanging", "--broker-id", "1").out
        with Producer(broker.bootstrap, {"transactional.id": "forced"}) as producer:
            producer.begin()
            producer.send(topic, b"open").result(10)
            tool(command, *server, "forceTerminateTransaction", "--transactionalId", "forced")
        with Producer(broker.bootstrap) as plain:
            plain.send(topic, b"visible").result(10)
        config = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        with Consumer(broker.bootstrap, config) as consumer:
            consumer.assign([(topic, 0)])
            assert [record.value for record in consumer.poll(30)] == [b"visible"]
        assert "Traceback" not in broker.log
