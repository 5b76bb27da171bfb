"""Clients of every age write and read topics of every message format, alongside each other."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_peers import PATIENCE_S, Message, write_confluent
from old_peers import OLD_CODECS, READERS, WRITERS, librdkafka, write_kafka_python

from tidemill.testing import Broker

FORMATS = {"0.9.0": 0, "0.10.2": 1, "3.0": 2}
NUMBERS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
NewTopic = Callable[..., str]


def some_messages(writer: str) -> list[Message]:
    """Returns messages of every kind that formats v0 and v1 support."""
    now_ms = int(time.time() * 1000)
    shapes = [
        Message(b"key", writer.encode(), (), now_ms),
        Message(None, b"no key", (), now_ms - 86_400_000),
        Message(b"deleted", None, (), now_ms + 1),
        Message(b"", b"", (), now_ms),
        Message(bytes(range(256)), b"abcdefgh" * 1000, (), now_ms - 1),
    ]
    return shapes + [Message(b"%d" % n, b"row %d" % n * 20, (), now_ms + n) for n in range(20)]


def stored(broker: Broker, topic: str, partition: int = 0) -> list[tuple[int, int]]:
    """Returns format and attributes of the batches in the log."""
    log = Path(broker.data_dir) / f"{topic}-{partition}" / "00000000000000000000.log"
    data, found, position = log.read_bytes(), [], 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position + 8)
        magic = data[position + 16]
        found.append((magic, data[position + (22 if magic == 2 else 17)]))
        position += 12 + size
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("version", FORMATS)
def test_clients_of_any_age_read_the_messages_of_all_others(
    client_broker: Broker, new_topic: NewTopic, version: str
) -> None:
    bootstrap, topic = (
        client_broker.bootstrap,
        new_topic(len(OLD_CODECS), **{"message.format.version": version}),
    )
    magic = FORMATS[version]
    written: dict[int, list[Message]] = {partition: [] for partition in range(len(OLD_CODECS))}
    for name, writer in WRITERS.items():
        for partition, codec in enumerate(OLD_CODECS):
            if codec not in writer.codecs:
                continue
            messages = some_messages(name)
            writer.write(bootstrap, topic, partition, codec, messages)
            kept = min(writer.magic, magic) > 0
            written[partition] += [one if kept else one._replace(timestamp_ms=0) for one in messages]
    for partition, codec in enumerate(OLD_CODECS):
        held = stored(client_broker, topic, partition)
        assert {one for one, _ in held} == {magic}
        assert {attributes & 7 for _, attributes in held} == {OLD_CODECS.index(codec)}
    counts = {partition: len(messages) for partition, messages in written.items()}
    for name, reader in READERS.items():
        wanted = dict(counts)
        if magic == 0 and not reader.lz4_of_v0:
            del wanted[OLD_CODECS.index("lz4")]
        found = reader.read(bootstrap, topic, wanted)
        for partition in wanted:
            messages = written[partition]
            timeless = [one._replace(timestamp_ms=0) for one in messages]
            expected = list(enumerate(messages if reader.magic > 0 else timeless))
            assert found[partition] == expected, (name, OLD_CODECS[partition])


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_stored_with_the_compression_of_the_topic(
    client_broker: Broker, new_topic: NewTopic, version: str, codec: str
) -> None:
    if codec == "zstd" and FORMATS[version] < 2:
        pytest.skip("formats v0 and v1 have no zstd")
    bootstrap = client_broker.bootstrap
    topic = new_topic(**{"message.format.version": version, "compression.type": codec})
    written: list[Message] = []
    for used in ("none", "gzip", "lz4"):
        messages = some_messages(used)
        write_kafka_python((0, 9), bootstrap, topic, 0, used, messages)
        WRITERS["librdkafka"].write(bootstrap, topic, 0, used, messages)
        written += messages * 2
    held = stored(client_broker, topic)
    assert {(magic, attributes & 7) for magic, attributes in held} == {(FORMATS[version], NUMBERS[codec])}
    for name in ("librdkafka", "kafka-python 0.9"):
        if codec == "zstd" and name != "librdkafka":
            continue
        (found,) = READERS[name].read(bootstrap, topic, {0: len(written)}).values()
        assert [one[:2] for _, one in found] == [one[:2] for one in written]


def test_old_clients_get_an_error_for_zstd(bootstrap: str, new_topic: NewTopic) -> None:
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka import KafkaError as ClientError

    topic = new_topic()
    write_confluent(bootstrap, topic, 0, "zstd", some_messages("new"))
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "old", **librdkafka("0.9.0")}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    told = consumer.poll(PATIENCE_S)
    assert told is not None
    assert told.error().code() == ClientError.UNSUPPORTED_COMPRESSION_TYPE
    consumer.close()


def test_the_error_of_a_topic_without_conversion(bootstrap: str, new_topic: NewTopic) -> None:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError as ClientError

    topic = new_topic(**{"message.downconversion.enable": "false"})
    write_kafka_python((0, 9), bootstrap, topic, 0, "none", some_messages("old"))
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, api_version=(0, 9), group_id=None, auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning(TopicPartition(topic, 0))
    with pytest.raises(ClientError):
        consumer.poll(PATIENCE_S * 1000)
    consumer.close()


def test_a_changed_format_applies_to_later_messages(
    client_broker: Broker, admin: Any, new_topic: NewTopic
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    bootstrap, topic = client_broker.bootstrap, new_topic(**{"message.format.version": "0.9.0"})
    written: list[Message] = []
    for version in ("0.9.0", "3.0", "0.10.2"):
        entry = ConfigEntry("message.format.version", version, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        for codec in ("none", "lz4"):
            messages = some_messages(version)
            WRITERS["librdkafka"].write(bootstrap, topic, 0, codec, messages)
            written += messages
    magics = [magic for magic, _ in stored(client_broker, topic)]
    assert list(dict.fromkeys(magics)) == [0, 2, 1]
    for name, reader in READERS.items():
        if not reader.lz4_of_v0:
            continue
        (found,) = reader.read(bootstrap, topic, {0: len(written)}).values()
        assert [(one.key, one.value) for _, one in found] == [(one.key, one.value) for one in written], name
        assert [offset for offset, _ in found] == list(range(len(written))), name


def test_a_message_larger_than_a_fetch_is_reported(bootstrap: str, new_topic: NewTopic) -> None:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.consumer.fetcher import RecordTooLargeError

    topic = new_topic(**{"message.format.version": "0.9.0"})
    write_kafka_python((0, 9), bootstrap, topic, 0, "none", [Message(b"large", bytes(5000))])
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, api_version=(0, 9), group_id=None, max_partition_fetch_bytes=4000
    )
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning(TopicPartition(topic, 0))
    with pytest.raises(RecordTooLargeError):
        consumer.poll(PATIENCE_S * 1000)
    consumer.close()
