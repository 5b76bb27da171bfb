from __future__ import annotations

import pickle

import pytest

from tidemill.client.config import COMMON, CONSUMER, KEYS, PRODUCER, ClientConfig, parse_address
from tidemill.model.errors import ConfigError


def producer(**keys: object) -> ClientConfig:
    return ClientConfig(PRODUCER, {"bootstrap.servers": "a:1"}, **keys)


def test_defaults_are_todays() -> None:
    config = producer()
    assert config["acks"] == -1
    assert config["enable.idempotence"] is True
    assert config.int("linger.ms") == 5
    assert config.int("reconnect.backoff.ms") == 50
    consumer = ClientConfig(CONSUMER, {"bootstrap.servers": "a:1"})
    assert consumer.int("fetch.max.wait.ms") == 500
    assert consumer.int("auto.commit.interval.ms") == 5000
    assert consumer["auto.offset.reset"] == "latest"


def test_keywords_are_keys_with_underscores() -> None:
    assert producer(linger_ms=7, compression_type="zstd").int("linger.ms") == 7


@pytest.mark.parametrize(
    ("old", "value", "key", "expected"),
    [
        ("metadata.broker.list", "h:1,i:2", "bootstrap.servers", (("h", 1), ("i", 2))),
        ("request.required.acks", "1", "acks", 1),
        ("compression.codec", "2", "compression.type", "snappy"),
        ("queue.buffering.max.ms", "100", "linger.ms", 100),
        ("message.send.max.retries", 3, "retries", 3),
        ("topic.metadata.refresh.interval.ms", 1000, "metadata.max.age.ms", 1000),
    ],
)
def test_names_of_the_old_documents_mean_todays(old: str, value: object, key: str, expected: object) -> None:
    given = {"bootstrap.servers": "a:1", old: value}
    if key == "bootstrap.servers":
        del given["bootstrap.servers"]
    assert ClientConfig(PRODUCER, given)[key] == expected


def test_smallest_and_largest_are_earliest_and_latest() -> None:
    config = ClientConfig(CONSUMER, {"bootstrap.servers": "a:1", "auto.offset.reset": "smallest"})
    assert config["auto.offset.reset"] == "earliest"


def test_an_unknown_key_names_its_neighbour() -> None:
    with pytest.raises(ConfigError, match=r"linger.mss is no key of a producer; did you mean linger.ms\?"):
        ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", "linger.mss": 1})


def test_a_key_without_meaning_here_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"give bootstrap.servers"):
        ClientConfig(CONSUMER, {"zookeeper.connect": "z:2181"})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("linger.ms", "soon", "allowed are 0 to"),
        ("linger.ms", -1, "out of range"),
        ("batch.size", 1.5, "no integer"),
        ("acks", "2", "use 0, 1 or all"),
        ("compression.type", "brotli", "none, gzip, snappy, lz4, zstd"),
        ("enable.idempotence", "perhaps", "neither true nor false"),
        ("bootstrap.servers", "", "names no server"),
        ("bootstrap.servers", "host", "no host:port"),
        ("bootstrap.servers", "host:99999", "no host:port"),
    ],
)
def test_a_value_that_cannot_be_used_names_key_value_and_what_is_allowed(
    key: str, value: object, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", key: value})
    assert key in str(caught.value)


def test_no_server_at_all_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap.servers is missing"):
        ClientConfig(COMMON, {})


def test_idempotence_goes_off_by_itself_but_not_against_the_users_word() -> None:
    assert producer(acks=1)["enable.idempotence"] is False
    with pytest.raises(ConfigError, match=r"needs acks=all"):
        producer(acks=1, enable_idempotence=True)
    with pytest.raises(ConfigError, match=r"at most 5"):
        ClientConfig(
            PRODUCER,
            {
                "bootstrap.servers": "a:1",
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 6,
            },
        )


def test_a_delivery_timeout_under_one_request_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be at least linger.ms"):
        producer(delivery_timeout_ms=1000)
    assert producer(delivery_timeout_ms=1000, request_timeout_ms=900).int("delivery.timeout.ms") == 1000


def test_keys_of_the_other_clients_are_let_pass_so_that_files_can_be_shared() -> None:
    assert ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", "group.id": "g"})["acks"] == -1


def test_a_configuration_can_be_pickled() -> None:
    config = ClientConfig(CONSUMER, {"bootstrap.servers": "[::1]:9092,b:2", "group.id": "g"})
    again = pickle.loads(pickle.dumps(config))
    assert again["bootstrap.servers"] == (("::1", 9092), ("b", 2))
    assert all(again[key] == config[key] for key in KEYS if KEYS[key].role in (COMMON, CONSUMER))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h:1", ("h", 1)), ("[::1]:9092", ("::1", 9092)), ("PLAINTEXT://h:2", ("h", 2))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
