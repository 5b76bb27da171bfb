"""Mirrors of topics of Apache Kafka 4.3.1, and its consumer as a reader of a mirror."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from random import Random

import confluent_kafka
import pytest
from kafka_peer import CODECS, Kafka, class_path, java
from mirror_copy import EARLIEST, LATEST, PartitionPeer, copy
from test_mirrored_topics import ISOLATIONS, MIRROR, read, until

from tidemill.client import Admin, Producer
from tidemill.client.admin_types import ConfigResource, ResourceType
from tidemill.records.batch import parse_batch
from tidemill.records.mirrored_batch import empty_batches
from tidemill.testing import Broker

VERSION = "4.3.1"
TOPIC = "mirrored"
ROUNDS = 30

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("kafka-directories"),
]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    directory = tmp_path_factory.mktemp("source")
    kafka = Kafka(class_path(VERSION), directory, directory / "data")
    try:
        kafka.start(form=True)
        yield kafka
    finally:
        kafka.end()


def write(bootstrap: str) -> None:
    """Writes updates of a few keys with all codecs, in transactions and without; the last stays open."""
    random = Random(5)
    for number in range(ROUNDS):
        settings = {
            "bootstrap.servers": bootstrap,
            "compression.type": CODECS[number % len(CODECS)],
            "linger.ms": 20,
        }
        ending = ("plain", "commit", "abort")[number % 3] if number < ROUNDS - 1 else "open"
        if ending != "plain":
            settings["transactional.id"] = f"{TOPIC}-{number % 7}"
        producer = confluent_kafka.Producer(settings)
        if ending != "plain":
            producer.init_transactions(60)
            producer.begin_transaction()
        for key in range(5):
            value = f"{number} {key} {ending} {random.randbytes(20_000).hex()}".encode()
            producer.produce(TOPIC, value, key=f"k{(number + key) % 9}", partition=0)
        assert producer.flush(60) == 0
        if ending == "commit":
            producer.commit_transaction(60)
        elif ending == "abort":
            producer.abort_transaction(60)


def java_values(bootstrap: str, isolation: str, count: int) -> list[bytes]:
    """Returns the values that Kafka's consumer reads from the start, with as many messages."""
    arguments = [
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--from-beginning"),
        *("--isolation-level", isolation, "--max-messages", str(count), "--timeout-ms", "60000"),
    ]
    done = subprocess.run(java(class_path(VERSION), *arguments), capture_output=True, timeout=180, check=True)
    return done.stdout.splitlines()


def missing_offsets(source: PartitionPeer) -> int:
    """The number of offsets for which the source has no batch."""
    batches = [parse_batch(data, 0, len(data)) for data in source.batches()]
    return source.offset(LATEST) - sum(int(one.last_offset_delta) + 1 for one in batches)


def test_a_topic_of_kafka_is_mirrored_with_its_gaps_and_transactions(kafka: Kafka) -> None:
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(1 << 20),
        "min.cleanable.dirty.ratio": "0.01",
    }
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic(TOPIC, 1, 1, configs=configs)
    # The mirror is not compacted itself, so that the batches can be compared.
    configs_of_mirror = {**configs, **MIRROR, "min.compaction.lag.ms": "86400000"}
    source = PartitionPeer(kafka.bootstrap, TOPIC)
    write(kafka.bootstrap)
    with Broker() as target:
        with Admin(target.bootstrap) as admin:
            admin.create_topic(TOPIC, 1, 1, configs=configs_of_mirror)
        mirror = PartitionPeer(target.bootstrap, TOPIC)
        copy(source, mirror, 50_000)
        check_same(kafka, target, source, mirror)
        until(lambda: missing_offsets(source) > 30, "Kafka has compacted the topic")
        with Admin(target.bootstrap) as admin:
            admin.delete_topics([TOPIC])
            until(lambda: not admin.list_topics(), "the mirror is deleted")
            topic_id = admin.create_topic(TOPIC, 1, 1, configs=configs_of_mirror).topic_id
        copy(source, mirror, 50_000)
        check_same(kafka, target, source, mirror)
        end = mirror.offset(LATEST)
        assert mirror.send(empty_batches(end, end + 3_000_000_000)).error_code == 0
        with Admin(target.bootstrap) as admin:
            resource = ConfigResource(ResourceType.TOPIC, TOPIC)
            admin.alter_configs(resource, {"tidemill.mirror.state": "promoting"})
            until(lambda: mirror.is_promoted(topic_id), "the mirror has its end")
            admin.alter_configs(resource, remove=["tidemill.mirror.state"])
        time.sleep(1)
        with Producer(target.bootstrap) as producer:
            producer.send(TOPIC, b"ours", key=b"ours").result(20)
        for isolation in ISOLATIONS:
            expected = [value for _, value in read(target, TOPIC, isolation)]
            assert expected[-1] == b"ours"
            assert java_values(target.bootstrap, isolation, len(expected)) == expected


def check_same(kafka: Kafka, target: Broker, source: PartitionPeer, mirror: PartitionPeer) -> None:
    for timestamp in (EARLIEST, LATEST):
        assert mirror.offset(timestamp) == source.offset(timestamp)
    assert mirror.batches() == source.batches()
    for isolation in ISOLATIONS:
        assert read(target, TOPIC, isolation) == read(kafka, TOPIC, isolation)
