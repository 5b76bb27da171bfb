"""The table of keys against the keys of Apache Kafka 4.3.1, and its consistency."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.model.configs import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS, BrokerConfig, Key
from tidemill.model.configs.all_keys import BROKER_SYNONYMS, FORMER_DEFAULTS, TOPIC_SYNONYMS
from tidemill.model.configs.config_def import BOOLEAN, DOUBLE, LIST, TYPE_NAMES
from tidemill.model.errors import ConfigError

TABLES = {"broker": BROKER_KEYS, "topic": TOPIC_KEYS, "group": GROUP_KEYS}
ALL_KEYS = [key for table in TABLES.values() for key in table.values()]

OTHER_DEFAULTS = {
    "log.dir",  # a directory of ours: Kafka's is below /tmp
    "socket.send.buffer.bytes",  # the system sizes it as it is needed: batches leave in one piece
    "socket.listen.backlog.size",  # thousands may connect at once after a restart
    "node.id",  # Kafka demands it; here the data directory knows
    "process.roles",
    "controller.listener.names",
    "group.coordinator.rebalance.protocols",  # the classic protocol is what is served
}


def kafka_keys() -> list[tuple[str, str, str, str]]:
    lines = Path(__file__).with_name("kafka_4_3_1_keys.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [(row[0], row[1], row[2], row[3]) for row in rows]


@pytest.mark.parametrize(("scope", "name", "kind", "default"), kafka_keys(), ids=lambda text: text)
def test_every_key_of_kafka_is_known_with_its_type_and_default(
    scope: str, name: str, kind: str, default: str
) -> None:
    key = TABLES[scope].get(name)
    assert key is not None
    assert TYPE_NAMES[key.type] == kind
    if name in OTHER_DEFAULTS:
        return
    expected: object = None if default in ("null", "REQUIRED") else default
    if expected is not None:
        if key.type == LIST:
            expected = key.parse(default.strip("[]"))
        elif key.type == DOUBLE:
            expected = float(default)
        elif key.type == BOOLEAN:
            expected = default == "true"
        else:
            expected = key.parse(default) if default else ""
    assert key.default == expected


DOCUMENTED = """
broker.id log.dir min.insync.replicas log.dirs port zookeeper.connect message.max.bytes num.network.threads
num.io.threads background.threads queued.max.requests host.name advertised.host.name advertised.port
socket.send.buffer.bytes socket.receive.buffer.bytes socket.request.max.bytes num.partitions
log.segment.bytes log.roll.ms log.roll.hours log.cleanup.policy log.retention.ms log.retention.minutes
log.retention.hours log.retention.bytes log.retention.check.interval.ms log.cleaner.enable
log.cleaner.threads log.cleaner.io.max.bytes.per.second log.cleaner.dedupe.buffer.size
log.cleaner.io.buffer.size log.cleaner.io.buffer.load.factor log.cleaner.backoff.ms
log.cleaner.min.cleanable.ratio log.cleaner.delete.retention.ms log.index.size.max.bytes
log.index.interval.bytes log.flush.interval.messages log.flush.scheduler.interval.ms log.flush.interval.ms
log.delete.delay.ms log.flush.offset.checkpoint.interval.ms log.segment.delete.delay.ms
auto.create.topics.enable controller.socket.timeout.ms controller.message.queue.size
default.replication.factor replica.lag.time.max.ms replica.lag.max.messages replica.socket.timeout.ms
replica.socket.receive.buffer.bytes replica.fetch.max.bytes replica.fetch.wait.max.ms
replica.fetch.min.bytes num.replica.fetchers replica.high.watermark.checkpoint.interval.ms
fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
zookeeper.session.timeout.ms zookeeper.connection.timeout.ms zookeeper.sync.time.ms
controlled.shutdown.enable controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms
auto.leader.rebalance.enable leader.imbalance.per.broker.percentage leader.imbalance.check.interval.seconds
offset.metadata.max.bytes max.connections.per.ip max.connections.per.ip.overrides connections.max.idle.ms
log.roll.jitter.ms log.roll.jitter.hours num.recovery.threads.per.data.dir unclean.leader.election.enable
delete.topic.enable offsets.topic.num.partitions offsets.topic.retention.minutes
offsets.retention.check.interval.ms offsets.topic.replication.factor offsets.topic.segment.bytes
offsets.load.buffer.size offsets.commit.required.acks offsets.commit.timeout.ms
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_key_of_the_0_8_documents_is_known(name: str) -> None:
    assert name in BROKER_KEYS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unclean.leader.election.enable", False),
        ("delete.topic.enable", True),
        ("log.cleaner.enable", True),
        ("offsets.retention.minutes", 10080),
        ("replica.lag.time.max.ms", 30000),
        ("message.max.bytes", 1048588),
        ("zookeeper.session.timeout.ms", 18000),
        ("num.recovery.threads.per.data.dir", 2),
        ("log.cleaner.dedupe.buffer.size", 128 * 1024 * 1024),
    ],
)
def test_a_default_that_kafka_changed_is_the_newer_and_is_listed(name: str, value: object) -> None:
    assert BROKER_KEYS[name].default == value
    assert BROKER_KEYS[name].former_default


@pytest.mark.parametrize("key", ALL_KEYS, ids=repr)
def test_every_default_is_valid(key: Key) -> None:
    text = key.render(key.default)
    if text is not None and text != "":
        assert key.parse(text) == key.default


@pytest.mark.parametrize("key", ALL_KEYS, ids=repr)
def test_every_key_has_a_description_of_one_sentence(key: Key) -> None:
    assert key.doc[0].isupper()
    assert key.doc.endswith(".")
    assert not key.effect or key.effect.startswith(("no effect: ", "comes with a later version: "))


def test_tables_of_keys_have_known_keys_only() -> None:
    names = set(BROKER_KEYS) | set(TOPIC_KEYS)
    assert set(FORMER_DEFAULTS) <= names
    assert set(TOPIC_SYNONYMS) <= set(TOPIC_KEYS)
    assert set(TOPIC_SYNONYMS.values()) <= set(BROKER_KEYS)
    assert set(BROKER_SYNONYMS) <= set(BROKER_KEYS)
    assert {name for found in BROKER_SYNONYMS.values() for name, _ in found} <= set(BROKER_KEYS)


def test_a_topic_key_and_its_broker_synonym_agree_in_type_and_default() -> None:
    config = BrokerConfig.of()
    for name, synonym in TOPIC_SYNONYMS.items():
        assert TOPIC_KEYS[name].type == BROKER_KEYS[synonym].type, name
        assert config.get(synonym) == TOPIC_KEYS[name].default, name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log.segment.bytes", " 1048576 ", 1048576),
        ("log.segment.bytes", "+1048576", 1048576),
        ("log.retention.ms", "-1", -1),
        ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
        ("log.cleaner.io.max.bytes.per.second", "1e6", 1e6),
        ("auto.create.topics.enable", "TRUE", True),
        ("log.cleanup.policy", "compact, delete", ("compact", "delete")),
        ("log.cleanup.policy", "delete,delete,compact,delete", ("delete", "compact")),
        ("log.dirs", "/a,,/b ", ("/a", "/b")),
        ("log.dirs", "", ()),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "9", 9),
        ("group.consumer.migration.policy", "BIDIRECTIONAL", "BIDIRECTIONAL"),
        ("group.consumer.migration.policy", "Upgrade", "Upgrade"),
    ],
)
def test_values_parse_as_kafka_writes_them(name: str, text: str, value: object) -> None:
    assert BROKER_KEYS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("log.segment.bytes", "1G", "a whole number, 14 or more"),
        ("log.segment.bytes", "1_000_000", "a whole number"),
        ("log.segment.bytes", "", "a whole number"),
        ("log.segment.bytes", "13", "14 or more"),
        ("log.segment.bytes", "2147483648", "a whole number"),
        ("log.segment.bytes", "9" * 5000, "a whole number"),
        ("log.segment.bytes", "٣٣٣٣٣٣٣٣", "a whole number"),
        ("log.retention.ms", "0", "-1 or 1 or more"),
        ("compression.gzip.level", "0", "-1 or 1 to 9"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "0 to 1"),
        ("log.cleaner.min.cleanable.ratio", "nan", "0 to 1"),
        ("auto.create.topics.enable", "yes", "true or false"),
        ("log.cleanup.policy", "compact,shred", "a list of compact or delete"),
        ("compression.type", "brotli", "uncompressed, zstd, lz4, snappy, gzip or producer"),
        ("port", "65536", "0 to 65535"),
    ],
)
def test_the_error_of_an_invalid_value_has_key_value_and_allowed_values(
    name: str, text: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        BROKER_KEYS[name].parse(text)
    assert str(caught.value).startswith(f"{name}={text}: allowed is ")
    assert hint in str(caught.value)


def test_secrets_are_not_shown() -> None:
    config = BrokerConfig.of({"ssl.key.password": "geheim"})
    assert config.rendered("ssl.key.password") is None
    assert all(synonym.value is None for synonym in config.synonyms("ssl.key.password"))


def test_the_tables_are_cheap_to_import() -> None:
    code = (
        "import sys, tidemill.model.errors, typing, collections.abc; before = set(sys.modules)\n"
        "import tidemill.model.configs\n"
        "print(*sorted(m for m in set(sys.modules) - before if not m.startswith('tidemill.model.configs')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Constants, which the records' layer has as well, and one function.
    assert found.stdout.split() == ["tidemill.model.similar_names", "tidemill.model.unpacked_limit"]
