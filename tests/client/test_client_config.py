from __future__ import annotations

import pickle

import pytest

from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import (
    ALIASES,
    COMMON,
    CONSUMER,
    KEYS,
    PRODUCER,
    check_setting,
    parse_address,
)
from tidemill.model.errors import ConfigError


def producer(**keys: object) -> ClientConfig:
    return ClientConfig(PRODUCER, {"bootstrap.servers": "a:1"}, **keys)


def test_defaults_are_those_of_current_kafka() -> None:
    config = producer()
    assert config["acks"] == -1
    assert config["enable.idempotence"] is True
    assert config.int("linger.ms") == 5
    assert config.int("reconnect.backoff.ms") == 50
    consumer = ClientConfig(CONSUMER, {"bootstrap.servers": "a:1"})
    assert consumer.int("fetch.max.wait.ms") == 500
    assert consumer.int("auto.commit.interval.ms") == 5000
    assert consumer["auto.offset.reset"] == "latest"


INT, LONG = 2**31 - 1, 2**63 - 1
NUMBERS = {
    "request.timeout.ms": (30_000, 0, LONG),
    "socket.connection.setup.timeout.ms": (10_000, 0, LONG),
    "reconnect.backoff.ms": (50, 0, LONG),
    "reconnect.backoff.max.ms": (1_000, 0, LONG),
    "retry.backoff.ms": (100, 0, LONG),
    "retry.backoff.max.ms": (1_000, 0, LONG),
    "metadata.max.age.ms": (300_000, 0, LONG),
    "send.buffer.bytes": (128 * 1024, -1, INT),
    "receive.buffer.bytes": (-1, -1, INT),
    "connections.max.idle.ms": (540_000, -1, LONG),
    "response.bytes.max": (256 * 1024 * 1024, 0, INT),
    "batch.size": (128 * 1024, 0, INT),
    "linger.ms": (5, 0, LONG),
    "buffer.memory": (64 * 1024 * 1024, 1, LONG),
    "max.block.ms": (60_000, -1, LONG),
    "max.request.size": (1024 * 1024, 0, INT),
    "delivery.timeout.ms": (120_000, 0, INT),
    "retries": (INT, 0, INT),
    "max.in.flight.requests.per.connection": (5, 1, INT),
    "auto.commit.interval.ms": (5_000, 0, LONG),
    "fetch.min.bytes": (1, 0, INT),
    "fetch.max.wait.ms": (500, 0, INT),
    "transaction.timeout.ms": (60_000, 1, INT),
    "fetch.max.bytes": (50 * 1024 * 1024, 0, INT),
    "max.partition.fetch.bytes": (1024 * 1024, 0, INT),
    "tidemill.unpacked.batch.bytes.max": (64 * 1024 * 1024, 0, INT),
    "max.poll.records": (500, 1, INT),
    "max.poll.interval.ms": (300_000, 0, INT),
    "session.timeout.ms": (45_000, 0, INT),
    "heartbeat.interval.ms": (3_000, 0, INT),
    "default.api.timeout.ms": (60_000, 0, INT),
    "sasl.login.read.timeout.ms": (10_000, 0, LONG),
    "sasl.login.refresh.min.period.seconds": (60, 0, 900),
    "sasl.login.refresh.buffer.seconds": (300, 0, 3600),
}
"""The numbers among the keys: default, least, most."""


def test_every_number_among_the_keys_has_its_default_and_its_bounds() -> None:
    found = {name for name, key in KEYS.items() if type(key.default) is int}
    assert found - {"acks"} == set(NUMBERS)
    for name, (default, least, most) in NUMBERS.items():
        key = KEYS[name]
        assert (name, key.default) == (name, default)
        assert (key.parse(least), key.parse(str(most))) == (least, most)
        allowed = f"{least} or more" if most in (INT, LONG) else f"{least} to {most}"
        for value in (least - 1, most + 1):
            with pytest.raises(
                ConfigError, match=f"^{name}={value}: allowed is a whole number, {allowed}"
            ) as caught:
                key.parse(value)
            assert (f"and at most {most} (" in str(caught.value)) == (value > INT and most in (INT, LONG))


def test_booleans_have_their_defaults() -> None:
    states = {name: key.default for name, key in KEYS.items() if isinstance(key.default, bool)}
    on = ("enable.auto.commit", "check.crcs", "allow.auto.create.topics", "exclude.internal.topics")
    off = ("sasl.oauthbearer.header.urlencode", "transaction.two.phase.commit.enable")
    assert states == {**dict.fromkeys(on, True), **dict.fromkeys(off, False)}


@pytest.mark.parametrize(
    ("text", "port"),
    [("h:0", None), ("h:1", 1), ("h:65535", 65535), ("h:65536", None), ("h:" + "9" * 5000, None)],
)
def test_a_port_has_sixteen_bits_and_is_not_0(text: str, port: int | None) -> None:
    if port is not None:
        assert parse_address(text) == ("h", port)
        return
    with pytest.raises(ConfigError, match="whose port is not between 1 and 65535"):
        parse_address(text)


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
        ("ssl.ca.pem", "PEM", "ssl.truststore.certificates", "PEM"),
        ("ssl.certificate.pem", "PEM", "ssl.keystore.certificate.chain", "PEM"),
        ("ssl.password", "s3cret", "ssl.key.password", "s3cret"),
    ],
)
def test_old_names_are_aliases_of_current_keys(old: str, value: object, key: str, expected: object) -> None:
    given = {"bootstrap.servers": "a:1", old: value}
    if key == "bootstrap.servers":
        del given["bootstrap.servers"]
    assert ClientConfig(PRODUCER, given)[key] == expected


def test_smallest_and_largest_are_earliest_and_latest() -> None:
    config = ClientConfig(CONSUMER, {"bootstrap.servers": "a:1", "auto.offset.reset": "smallest"})
    assert config["auto.offset.reset"] == "earliest"


def test_the_error_of_an_unknown_key_suggests_the_closest_key() -> None:
    with pytest.raises(ConfigError, match=r"linger.mss is not a key of a producer; did you mean linger.ms\?"):
        ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", "linger.mss": 1})


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("zookeeper.connect", "give bootstrap.servers"),
        ("ssl.key.pem", "as ssl.keystore.key"),
        ("sasl.oauthbearer.method", "leave it out; sasl.oauthbearer.token.endpoint.url"),
        ("sasl.oauthbearer.config", "give sasl.oauthbearer.token.endpoint.url"),
        ("enable.ssl.certificate.verification", "name their authority: ssl.ca.location"),
        ("ssl.check.hostname", "ssl.endpoint.identification.algorithm"),
        ("ssl.context", "give ssl.ca.location"),
    ],
)
def test_the_error_of_a_meaningless_key_has_the_alternative(key: str, step: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} has no meaning for this client: .*{step}") as caught:
        ClientConfig(CONSUMER, {"bootstrap.servers": "h:1", key: "s3cret"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("linger.ms", "soon", "linger.ms=soon: allowed is a whole number, 0 or more"),
        ("linger.ms", -1, "linger.ms=-1: allowed is a whole number, 0 or more"),
        ("batch.size", 1.5, "batch.size=1.5: allowed is a whole number"),
        ("acks", "2", "acks=2: allowed is 0, 1 or all"),
        ("compression.type", "brotli", "allowed is none, gzip, snappy, lz4 or zstd"),
        ("enable.idempotence", "perhaps", "enable.idempotence=perhaps: allowed is true or false"),
        ("bootstrap.servers", "", "names no server"),
        ("bootstrap.servers", "host", "not host:port"),
        ("bootstrap.servers", "host:99999", "between 1 and 65535"),
        ("bootstrap.servers", "a..b:9092", "whose host is invalid"),
        ("bootstrap.servers", f"{'a' * 64}:9092", "whose host is invalid"),
    ],
)
def test_the_error_of_an_invalid_value_has_key_value_and_allowed_values(
    key: str, value: object, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", key: value})
    assert key in str(caught.value)


def test_missing_bootstrap_servers_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap.servers is missing"):
        ClientConfig(COMMON, {})


def test_idempotence_is_disabled_implicitly_but_not_if_it_is_set() -> None:
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


def test_keys_of_other_clients_are_ignored_in_shared_files() -> None:
    assert ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", "group.id": "g"})["acks"] == -1


def test_a_configuration_can_be_pickled() -> None:
    config = ClientConfig(CONSUMER, {"bootstrap.servers": "[::1]:9092,b:2", "group.id": "g"})
    again = pickle.loads(pickle.dumps(config))
    assert again["bootstrap.servers"] == (("::1", 9092), ("b", 2))
    assert all(again[key] == config[key] for key in KEYS if KEYS[key].scope in (COMMON, CONSUMER))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h:1", ("h", 1)), ("[::1]:9092", ("::1", 9092)), ("PLAINTEXT://h:2", ("h", 2))],
)
def test_addresses_are_parsed(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(("name", "value"), [("linger.ms", "5"), ("fetch.wait.max.ms", 100), ("acks", "all")])
def test_a_setting_of_some_client_is_valid(name: str, value: object) -> None:
    assert KEYS[ALIASES.get(name, name)].parse(value) in (5, 100, -1)
    check_setting(name, value)
    check_setting("client.dns.lookup", "whatever")  # keys of other clients, without effect here


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("linger.ms", "soon", "linger.ms=soon: allowed is a whole number"),
        ("linger.mss", "5", "linger.mss is not a key of a client; did you mean linger.ms"),
        ("zookeeper.connect", "h:1", "zookeeper.connect has no meaning for this client"),
    ],
)
def test_a_setting_of_no_client_is_refused(name: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_setting(name, value)


def test_a_transactional_id_is_no_longer_than_the_protocol_allows() -> None:
    name = "é" * 16_383
    assert producer(transactional_id=name + "x")["transactional.id"] == name + "x"
    with pytest.raises(ConfigError, match=r"transactional\.id has 32768 bytes: at most 32767 are possible"):
        producer(transactional_id=name + "é")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"acks": 1}, "transactional.id needs acks=all, but acks=1"),
        ({"acks": "0"}, "transactional.id needs acks=all, but acks=0"),
        ({"retries": 0}, "transactional.id needs retries of at least 1, but retries=0"),
        ({"enable_idempotence": False}, "transactional.id needs enable.idempotence=true, but it is false"),
        (
            {"max_in_flight_requests_per_connection": 6},
            "transactional.id needs max.in.flight.requests.per.connection of at most 5, but it is 6",
        ),
    ],
)
def test_the_setting_that_prevents_transactions_is_named(keys: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        producer(transactional_id="name", **keys)
    assert str(caught.value) == text


def test_settings_of_transactions_without_transactional_id_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys: dict[str, object] = {"transaction.timeout.ms": 1000, "transaction.two.phase.commit.enable": False}
    ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", "transactional.id": "name", **keys})
    assert not caplog.records
    ClientConfig(PRODUCER, {"bootstrap.servers": "a:1", **keys})
    assert [record.getMessage() for record in caplog.records] == [
        f"{name} has no effect without transactional.id" for name in keys
    ]


def test_two_phase_commits_have_no_timeout() -> None:
    two_phase = {"transactional_id": "name", "transaction_two_phase_commit_enable": True}
    with pytest.raises(
        ConfigError, match=r"transaction\.timeout\.ms=60000 cannot be combined with transaction\.two"
    ):
        producer(**two_phase, transaction_timeout_ms=60_000)
    assert producer(**two_phase).bool("transaction.two.phase.commit.enable")
