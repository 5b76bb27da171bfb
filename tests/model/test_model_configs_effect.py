"""Every key that the table lists with an effect is read by the program."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidemill
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import ALIASES, GONE, IDLE_CLIENT_KEYS, KEYS
from tidemill.model.configs import BROKER_KEYS, TOPIC_KEYS
from tidemill.model.configs.all_keys import BROKER_SYNONYMS, TOPIC_SYNONYMS
from tidemill.model.errors import ConfigError

SOURCE = Path(tidemill.__file__).parent
READERS = ("model/configs/broker_config.py", "model/configs/listeners.py", "model/configs/topic_config.py")
"""Of the configuration itself, only what makes something of values counts as reading them."""
OTHER_PROGRAMS = ("client", "cli", "pipeline", "testing")


def broker_source() -> str:
    texts = []
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name.partition("/")[0] in OTHER_PROGRAMS:
            continue
        if name.startswith("model/configs/") and name not in READERS:
            continue
        texts.append(path.read_text())
    return "\n".join(texts)


def test_every_key_that_claims_an_effect_is_read() -> None:
    source = broker_source()
    through_topics = {
        broker_key for topic_key, broker_key in TOPIC_SYNONYMS.items() if TOPIC_KEYS[topic_key].takes_effect
    }
    as_synonym = {name for found in BROKER_SYNONYMS.values() for name, _ in found}
    unread = [
        f"{key.scope} {key.name}"
        for table in (BROKER_KEYS, TOPIC_KEYS)
        for key in table.values()
        if key.takes_effect and f'"{key.name}"' not in source
        if not (key.scope == "broker" and key.name in through_topics | as_synonym)
    ]
    assert unread == []


def test_a_topic_key_and_its_broker_synonym_agree_on_having_an_effect() -> None:
    odd = [
        name
        for name, synonym in TOPIC_SYNONYMS.items()
        if TOPIC_KEYS[name].effect != BROKER_KEYS[synonym].effect
    ]
    assert odd == []


CLIENT_KEYS_OF_THE_0_8_DOCUMENTS = """
group.id zookeeper.connect consumer.id socket.timeout.ms socket.receive.buffer.bytes fetch.message.max.bytes
auto.commit.enable auto.commit.interval.ms queued.max.message.chunks rebalance.max.retries fetch.min.bytes
fetch.wait.max.ms rebalance.backoff.ms refresh.leader.backoff.ms auto.offset.reset consumer.timeout.ms
exclude.internal.topics partition.assignment.strategy client.id offsets.storage offsets.channel.backoff.ms
offsets.channel.socket.timeout.ms offsets.commit.max.retries dual.commit.enabled zookeeper.session.timeout.ms
zookeeper.connection.timeout.ms zookeeper.sync.time.ms metadata.broker.list request.required.acks
request.timeout.ms producer.type serializer.class key.serializer.class partitioner.class compression.codec
compressed.topics message.send.max.retries retry.backoff.ms topic.metadata.refresh.interval.ms
queue.buffering.max.ms queue.buffering.max.messages queue.enqueue.timeout.ms batch.num.messages
send.buffer.bytes bootstrap.servers acks buffer.memory compression.type retries batch.size linger.ms
max.request.size receive.buffer.bytes timeout.ms block.on.buffer.full metadata.fetch.timeout.ms
metadata.max.age.ms metric.reporters metrics.num.samples metrics.sample.window.ms reconnect.backoff.ms
""".split()  # noqa: SIM905


def test_every_client_key_of_the_0_8_documents_is_known_once() -> None:
    tables = (KEYS, ALIASES, GONE, IDLE_CLIENT_KEYS)
    for name in CLIENT_KEYS_OF_THE_0_8_DOCUMENTS:
        assert sum(name in table for table in tables) == 1, name


def test_client_keys_without_effect_are_ignored_and_unknown_keys_are_not() -> None:
    config = ClientConfig("consumer", {"bootstrap.servers": "x:1", "offsets.storage": "kafka"})
    assert "offsets.storage" not in config.plain_given()
    with pytest.raises(ConfigError, match="offsets"):
        ClientConfig("consumer", {"bootstrap.servers": "x:1", "offsets.storag": "kafka"})
