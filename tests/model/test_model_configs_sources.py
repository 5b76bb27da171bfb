"""Sources of values and their precedence: properties, environment, --set, dynamic values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.configs import (
    BrokerConfig,
    TopicConfig,
    check_broker_settings,
    check_topic_settings,
    topic_synonyms,
)
from tidemill.model.configs.config_values import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    DYNAMIC_TOPIC,
    STATIC_BROKER,
    Synonym,
)
from tidemill.model.configs.properties import parse_properties
from tidemill.model.errors import ConfigError


def pairs(text: str) -> list[tuple[str, str]]:
    return [(found.key, found.value) for found in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b")]),
        ("a = b ", [("a", "b ")]),
        ("a : b", [("a", "b")]),
        ("a b c", [("a", "b c")]),
        ("a\t=\tb", [("a", "b")]),
        ("a==b", [("a", "=b")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("# a=b\n  ! c=d\n\n \t\ne=f", [("e", "f")]),
        ("a=1,\\\n   2,\\\n   3\nb=4", [("a", "1,2,3"), ("b", "4")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("a=1\\\n# not a comment", [("a", "1# not a comment")]),
        ("a\\ b=c", [("a b", "c")]),
        ("a\\=b\\:c=d", [("a=b:c", "d")]),
        ("a=\\u00e4\\t\\n\\x", [("a", "ä\t\nx")]),
        ("a=\\ud83d\\ude00", [("a", "😀")]),
        ("a=b\r\nc=d\re=f", [("a", "b"), ("c", "d"), ("e", "f")]),
        ("a=b\\", [("a", "b")]),
        ("a=C:\\\\temp", [("a", "C:\\temp")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("a=ü # no comment", [("a", "ü # no comment")]),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_a_setting_has_the_number_of_its_first_line() -> None:
    assert [found.line for found in parse_properties("# x\na=1\\\n2\n\nb=3")] == [2, 5]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz"])
def test_a_broken_unicode_escape_names_file_and_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.properties:2"):
        parse_properties("\n" + text, "server.properties")


def escaped(text: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf16(text))


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2)]


WORDS = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=20)


@given(WORDS, WORDS)
def test_escaped_text_is_read_unchanged(key: str, value: str) -> None:
    assert pairs(f"{escaped(key)}={escaped(value)}") == [(key, value)]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    lines = len(re.split("\r\n|\r|\n", text))
    try:
        found, refusal = parse_properties(text, "name"), ""
    except ConfigError as problem:
        found, refusal = [], str(problem)
    numbers = [one.line for one in found]
    assert numbers == sorted(set(numbers))
    assert all(1 <= number <= lines for number in numbers)
    assert refusal == "" or re.match(r"name:\d+: ", refusal)


def test_set_precedes_environment_file_and_default(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.index.interval.bytes=8\nmessage.max.bytes=9\n")
    environment = {"TIDEMILL_NUM_PARTITIONS": "3", "TIDEMILL_LOG_INDEX_INTERVAL_BYTES": "16", "HOME": "/"}
    config = BrokerConfig.from_sources(str(file), ["num.partitions=4"], environment)
    assert config.int("num.partitions") == 4
    assert config.int("log.index.interval.bytes") == 16
    assert config.int("message.max.bytes") == 9
    assert config.int("socket.request.max.bytes") == 104857600
    assert config.provenance("num.partitions") == "--set num.partitions"
    assert config.provenance("log.index.interval.bytes") == "environment TIDEMILL_LOG_INDEX_INTERVAL_BYTES"
    assert config.provenance("message.max.bytes") == f"{file}:3"
    assert config.provenance("socket.request.max.bytes") == "default"
    assert config.warnings == ()


def test_the_initial_rebalance_delay_is_zero_by_default_with_the_embedded_store() -> None:
    key = "group.initial.rebalance.delay.ms"
    alone, one_of_several = BrokerConfig.of(), BrokerConfig.of(zookeeper_connect="127.0.0.1:2181")
    assert [alone.int(key), one_of_several.int(key)] == [0, 3000]
    assert [alone.synonyms(key), one_of_several.synonyms(key)] == [
        [Synonym(key, "0", DEFAULT)],
        [Synonym(key, "3000", DEFAULT)],
    ]
    assert BrokerConfig.of({key: "3000"}).int(key) == 3000


def test_environment_variables_of_tidemill_keys_need_no_second_prefix() -> None:
    config = BrokerConfig.from_sources(environment={"TIDEMILL_METRICS_PORT": "9404"})
    assert config.int("tidemill.metrics.port") == 9404


def test_an_empty_variable_is_ignored() -> None:
    assert BrokerConfig.from_sources(environment={"TIDEMILL_NUM_PARTITIONS": ""}).int("num.partitions") == 1


def test_unknown_keys_are_reported_with_the_closest_key() -> None:
    config = BrokerConfig.from_sources(
        sets=["log.retention.hour=3", "zzz=1", "retention.ms=5"], environment={"TIDEMILL_LOG_DIR_S": "x"}
    )
    warnings = "\n".join(config.warnings)
    assert "log.retention.hour is not a broker key, and has no effect" in warnings
    assert "did you mean log.retention.hours?" in warnings
    assert "zzz is not a broker key, and has no effect (--set zzz)" in warnings
    assert (
        "retention.ms is a topic key, not a broker key; its broker key for all topics is log.retention.ms"
        in warnings
    )
    assert "environment TIDEMILL_LOG_DIR_S" in warnings


def test_a_repeated_key_is_reported_and_its_last_value_applies(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("num.partitions=2\nnum.partitions=5\n")
    config = BrokerConfig.from_sources(str(file))
    assert config.int("num.partitions") == 5
    assert config.warnings == (f"num.partitions is given twice ({file}:1, {file}:2): the last value applies",)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("num.partitions=x", r"num\.partitions=x: .*whole number.*--set num\.partitions"),
        ("num.partitions", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        (" =3", "KEY=VALUE"),
    ],
)
def test_the_error_of_an_invalid_set_has_the_next_step(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        BrokerConfig.from_sources(sets=[text])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"nothing\.properties: the configuration cannot be read: no such file"
    ):
        BrokerConfig.from_sources(str(tmp_path / "nothing.properties"))


def test_a_quota_that_is_not_enforced_causes_a_warning() -> None:
    config = BrokerConfig.from_sources(sets=["quota.producer.default=1000", "max.connection.creation.rate=5"])
    assert config.warnings == (
        "quota.producer.default=1000 is not enforced: quotas come with a later version (--set "
        "quota.producer.default)",
        "max.connection.creation.rate=5 is not enforced: quotas come with a later version (--set "
        "max.connection.creation.rate)",
    )
    assert config.notes == ()


def test_the_kraft_file_of_kafka_is_accepted_with_notes(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL\n"
        "num.network.threads=3\nnum.io.threads=8\nsocket.send.buffer.bytes=102400\n"
        "socket.receive.buffer.bytes=102400\nsocket.request.max.bytes=104857600\nlog.dirs=/tmp/kraft\n"
        "num.partitions=1\nnum.recovery.threads.per.data.dir=2\noffsets.topic.replication.factor=1\n"
        "share.coordinator.state.topic.replication.factor=1\nshare.coordinator.state.topic.min.isr=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "log.retention.hours=168\nlog.segment.bytes=1073741824\nlog.retention.check.interval.ms=300000\n"
    )
    config = BrokerConfig.from_sources(str(file))
    assert config.warnings == ()
    assert [str(listener) for listener in config.listeners()] == ["PLAINTEXT://:9092"]
    assert [str(listener) for listener in config.advertised_listeners()] == ["PLAINTEXT://localhost:9092"]
    assert config.node_id() == 1
    assert any(note.startswith("process.roles is accepted; no effect") for note in config.notes)
    assert any("controller.quorum.bootstrap.servers" in note for note in config.notes)


def test_a_file_for_a_controller_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"process\.roles=controller"):
        BrokerConfig.of({"process.roles": "controller"})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 7 * 24 * 3_600_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, 300_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "5", "log.retention.ms": "7"}, 7),
        ({"log.retention.minutes": "-1"}, -1),
        ({"log.retention.ms": "-1", "log.retention.hours": "1"}, -1),
    ],
)
def test_milliseconds_precede_minutes_and_hours(settings: dict[str, str], expected: int) -> None:
    config = BrokerConfig.of(settings)
    assert config.int("log.retention.ms") == expected
    assert TopicConfig(config, {}).int("retention.ms") == expected


def test_synonyms_apply_to_keys_that_are_not_set() -> None:
    config = BrokerConfig.of(
        {
            "log.dir": "/a",
            "log.roll.hours": "2",
            "log.roll.jitter.hours": "1",
            "log.delete.delay.ms": "5",
            "offsets.topic.retention.minutes": "9",
            "broker.id": "7",
            "log.message.timestamp.difference.max.ms": "11",
        }
    )
    assert config.log_dirs() == ("/a",)
    assert config.int("log.roll.ms") == 7_200_000
    assert config.int("log.roll.jitter.ms") == 3_600_000
    assert config.int("log.segment.delete.delay.ms") == 5
    assert config.int("offsets.retention.minutes") == 9
    assert config.node_id() == 7
    assert config.int("log.message.timestamp.before.max.ms") == 11
    assert config.provenance("log.roll.ms") == "--set log.roll.hours"
    assert config.int("log.flush.interval.ms") == 2**63 - 1
    assert BrokerConfig.of({"node.id": "3", "broker.id": "7"}).node_id() == 3
    assert BrokerConfig.of().node_id() is None


def test_the_store_is_zookeeper_only_with_zookeeper_connect() -> None:
    assert BrokerConfig.of().store() == "embedded"
    assert BrokerConfig.of({"zookeeper.connect": "z:2181/x"}).store() == "zookeeper"
    assert (
        BrokerConfig.of({"zookeeper.connect": "z:2181", "tidemill.store": "embedded"}).store() == "embedded"
    )


def listeners(**settings: str) -> list[str]:
    config = BrokerConfig.of({name.replace("_", "."): text for name, text in settings.items()})
    return [str(listener) for listener in config.listeners()]


def advertised(**settings: str) -> list[str]:
    config = BrokerConfig.of({name.replace("_", "."): text for name, text in settings.items()})
    return [str(listener) for listener in config.advertised_listeners()]


def test_listeners_and_advertised_listeners_follow_from_old_keys() -> None:
    assert listeners() == ["PLAINTEXT://:9092"]
    assert advertised() == ["PLAINTEXT://localhost:9092"]
    assert listeners(port="9", host_name="1.2.3.4") == ["PLAINTEXT://1.2.3.4:9"]
    assert advertised(port="9", host_name="1.2.3.4") == ["PLAINTEXT://1.2.3.4:9"]
    assert advertised(advertised_host_name="example.org") == ["PLAINTEXT://example.org:9092"]
    assert advertised(advertised_port="7") == ["PLAINTEXT://localhost:7"]
    assert listeners(listeners="PLAINTEXT://[::1]:9092") == ["PLAINTEXT://[::1]:9092"]
    two = {
        "listeners": "IN://0.0.0.0:9092,out://:9093",
        "listener_security_protocol_map": "IN:PLAINTEXT,OUT:PLAINTEXT",
    }
    assert listeners(**two) == ["IN://0.0.0.0:9092", "OUT://:9093"]
    assert advertised(**two, advertised_listeners="OUT://example.org:9093") == [
        "IN://localhost:9092",
        "OUT://example.org:9093",
    ]
    assert listeners(listeners="PLAINTEXT://:1", port="2") == ["PLAINTEXT://:1"]


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"listeners": "9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://localhost"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://localhost:99999"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://localhost:9092/x"}, "NAME://host:port"),
        ({"listeners": "IN://localhost:9092"}, "listener.security.protocol.map"),
        ({"listeners": "SSL://localhost:9092"}, "comes with a later version"),
        ({"listeners": ""}, "at least one"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "is listed twice"),
        (
            {"listeners": "PLAINTEXT://:1,B://:1", "listener.security.protocol.map": "B:PLAINTEXT"},
            "its own port",
        ),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "clients cannot connect to 0.0.0.0"),
        ({"advertised.listeners": "PLAINTEXT://:9092"}, "an empty host"),
        ({"advertised.listeners": "OTHER://x:1"}, "has no protocol"),
        ({"advertised.listeners": "SSL://x:1"}, "is not among the listeners"),
        ({"advertised.listeners": "PLAINTEXT://x:1,PLAINTEXT://y:1"}, "is listed twice"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:TLS"}, "NAME:PROTOCOL"),
        ({"log.dirs": ","}, "at least one data directory"),
        ({"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"}, "lower one"),
    ],
)
def test_invalid_or_contradictory_keys_are_refused(settings: dict[str, str], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.of(settings)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}, ""),
        ({"super.users": "User:admin"}, ""),
        ({"allow.everyone.if.no.acl.found": "False"}, ""),
        ({"security.inter.broker.protocol": "SASL_SSL"}, ""),
        (
            {"listeners": "SASL_SSL://:9092", "sasl.enabled.mechanisms": "PLAIN"},
            "sasl.enabled.mechanisms=PLAIN",
        ),
        ({"listeners": "PLAINTEXT://:9092,SSL://:9093"}, ""),
        (
            {"listeners": "IN://:9092", "listener.security.protocol.map": "IN:SASL_PLAINTEXT"},
            "listener.security.protocol.map=IN:SASL_PLAINTEXT",
        ),
    ],
)
def test_a_configuration_that_requires_access_control_is_refused(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.of(settings)
    text = str(caught.value)
    name, value = next(iter(settings.items()))
    assert f"{name}={value}" in text
    assert key in text
    assert f"(--set {name})" in text
    assert "on a network that you trust" in text


def test_effective_values_decide_whether_access_control_is_required(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("authorizer.class.name=kafka.security.authorizer.AclAuthorizer\nsuper.users=User:a\n")
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name=kafka.*server\.properties:1"):
        BrokerConfig.from_sources(str(file))
    open_again = ("authorizer.class.name=", "super.users=")
    assert BrokerConfig.from_sources(str(file), open_again).warnings == ()
    with pytest.raises(ConfigError, match=r"super\.users=User:b.*environment TIDEMILL_SUPER_USERS"):
        BrokerConfig.from_sources(environment={"TIDEMILL_SUPER_USERS": "User:b"})


def test_access_keys_that_require_no_access_control_are_accepted() -> None:
    config = BrokerConfig.of(
        {
            "allow.everyone.if.no.acl.found": "true",
            "security.inter.broker.protocol": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
        }
    )
    assert config.warnings == ()
    assert any(note.startswith("allow.everyone.if.no.acl.found is accepted") for note in config.notes)


def test_a_listener_can_override_values() -> None:
    config = BrokerConfig.of({"listener.name.Plaintext.max.connections": "5", "max.connections": "9"})
    assert config.connections_per_listener() == {"PLAINTEXT": 5}
    assert config.int("max.connections") == 9
    assert config.warnings == ()
    odd = BrokerConfig.of({"listener.name.a.max.conections": "5"})
    assert "did you mean max.connections?" in odd.warnings[0]


def test_connections_per_address_are_pairs() -> None:
    config = BrokerConfig.of({"max.connections.per.ip.overrides": "10.0.0.1:5, host:6,[::1]:7"})
    assert config.connections_per_address() == {"10.0.0.1": 5, "host": 6, "::1": 7}
    with pytest.raises(ConfigError, match="address:count"):
        BrokerConfig.of({"max.connections.per.ip.overrides": "10.0.0.1"})


def test_dynamic_values_precede_static_values_until_they_are_removed() -> None:
    config = BrokerConfig.of({"log.retention.hours": "1"})
    changed = config.with_overrides(cluster={"log.retention.ms": "50"})
    assert changed.int("log.retention.ms") == 50
    assert config.int("log.retention.ms") == 3_600_000
    own = changed.with_overrides(broker={"log.retention.ms": "60"})
    assert own.int("log.retention.ms") == 60
    assert own.synonyms("log.retention.ms") == [
        Synonym("log.retention.ms", "60", DYNAMIC_BROKER),
        Synonym("log.retention.ms", "50", DYNAMIC_DEFAULT_BROKER),
        Synonym("log.retention.hours", "1", STATIC_BROKER),
        Synonym("log.retention.hours", "168", DEFAULT),
    ]
    assert own.with_overrides(broker={}, cluster={}).int("log.retention.ms") == 3_600_000
    assert TopicConfig(changed, {}).int("retention.ms") == 50


def test_min_insync_replicas_of_a_topic_has_the_source_of_the_cluster() -> None:
    """As in Apache Kafka 4.3.1: the source is never only the file of one broker."""
    key = "min.insync.replicas"
    plain = BrokerConfig.of()
    assert [(one.value, one.source) for one in TopicConfig(plain, {}).synonyms(key)] == [
        ("1", DYNAMIC_DEFAULT_BROKER),
        ("1", DEFAULT),
    ]
    filed = BrokerConfig.of({key: "2"})
    assert [(one.value, one.source) for one in TopicConfig(filed, {}).synonyms(key)] == [
        ("2", DYNAMIC_DEFAULT_BROKER),
        ("2", STATIC_BROKER),
        ("1", DEFAULT),
    ]
    shared = TopicConfig(filed.with_overrides(cluster={key: "3"}), {})
    assert [(one.value, one.source) for one in shared.synonyms(key)][:2] == [
        ("3", DYNAMIC_DEFAULT_BROKER),
        ("2", STATIC_BROKER),
    ]
    own = TopicConfig(filed, {key: "1"})
    assert (own.source(key), own.synonyms(key)[1].source) == (DYNAMIC_TOPIC, DYNAMIC_DEFAULT_BROKER)


def test_topic_values_precede_broker_values() -> None:
    config = BrokerConfig.of({"log.segment.bytes": "2000000"})
    topic = TopicConfig(config, {"retention.ms": "-1", "cleanup.policy": "compact,delete", "gone.key": "1"})
    assert topic.int("retention.ms") == -1
    assert topic.int("segment.bytes") == 2_000_000
    assert topic.list("cleanup.policy") == ("compact", "delete")
    assert topic.source("retention.ms") == DYNAMIC_TOPIC
    assert topic.source("segment.bytes") == STATIC_BROKER
    assert topic.source("preallocate") == DEFAULT
    assert topic.rendered("preallocate") == "false"
    assert topic.synonyms("retention.ms") == [
        Synonym("retention.ms", "-1", DYNAMIC_TOPIC),
        Synonym("log.retention.hours", "168", DEFAULT),
    ]
    assert topic.synonyms("remote.storage.enable") == [Synonym("remote.storage.enable", "false", DEFAULT)]
    assert set(topic.overrides) == {"retention.ms", "cleanup.policy"}


def test_invalid_topic_values_are_reported_and_broker_values_apply() -> None:
    topic = TopicConfig(
        BrokerConfig.of({"log.segment.bytes": "2000000"}),
        {"segment.bytes": "many", "compression.type": "brotli", "max.message.bytes": "7"},
    )
    assert topic.int("segment.bytes") == 2_000_000
    assert topic.str("compression.type") == "producer"
    assert topic.int("max.message.bytes") == 7
    assert topic.source("segment.bytes") == STATIC_BROKER
    assert topic.overrides == {"max.message.bytes": "7"}
    assert topic.unreadable.keys() == {"segment.bytes", "compression.type"}
    assert topic.unreadable["segment.bytes"].startswith("segment.bytes=many: allowed is a whole number")


@pytest.mark.parametrize(
    ("key", "held"),
    [
        ("cleanup.policy", {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}),
        ("delete.retention.ms", {"delete.retention.ms": str(2**63 - 1)}),
        ("min.compaction.lag.ms", {"min.compaction.lag.ms": str(2**63 - 1)}),
        ("retention.bytes", {"retention.bytes": "-1", "retention.ms": "5"}),
        ("retention.ms", {"retention.ms": "-1", "cleanup.policy": "compact"}),
    ],
)
def test_no_record_is_deleted_by_a_default_while_the_topic_value_is_invalid(
    key: str, held: dict[str, str]
) -> None:
    config = BrokerConfig.of({"log.retention.bytes": "10", "log.retention.ms": "10"})
    own = {"retention.ms": "5", "retention.bytes": "5", "cleanup.policy": "compact"}
    topic = TopicConfig(config, {**own, key: "for ever"})
    assert {name: topic.rendered(name) for name in held} == held


def test_the_deprecated_timestamp_bound_sets_both_current_bounds() -> None:
    topic = TopicConfig(
        BrokerConfig.of(), {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "6"}
    )
    assert topic.int("message.timestamp.before.max.ms") == 5
    assert topic.int("message.timestamp.after.max.ms") == 6


def test_synonyms_of_topic_keys_in_order() -> None:
    assert topic_synonyms("retention.ms") == (
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
    )
    assert topic_synonyms("remote.storage.enable") == ()


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"retention.hours": "1"}, "Unknown topic config name: retention.hours; did you mean"),
        ({"retention.ms": "x"}, "retention.ms=x: allowed is"),
        ({"retention.ms": None}, "retention.ms has no value"),
    ],
)
def test_invalid_topic_settings_are_refused(settings: dict[str, str | None], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_topic_settings(settings)
    assert hint in str(caught.value)


def test_only_dynamic_broker_settings_can_be_changed() -> None:
    check_broker_settings({"log.retention.ms": "5"}, all_brokers=True)
    check_broker_settings({"log.retention.ms": "5"}, all_brokers=False)
    for settings, hint in (
        ({"num.partitions": "3"}, "cannot be changed while the broker runs"),
        ({"log.retention.m": "3"}, "did you mean log.retention.ms?"),
        ({"log.retention.ms": "0"}, "allowed is"),
        ({"ssl.keystore.location": "/x"}, "for one broker only"),
    ):
        with pytest.raises(ConfigError, match=hint.replace("?", r"\?")):
            check_broker_settings(settings, all_brokers=True)


def test_warnings_name_the_option_that_sets_a_key() -> None:
    config = BrokerConfig.from_sources(
        sets=["log.dirs=/b", "listeners=PLAINTEXT://:2"],
        options=[("-d/--data", "log.dirs=/a"), ("-p/--port", "listeners=PLAINTEXT://:1")],
    )
    assert config.warnings == (
        "log.dirs is given twice (-d/--data, --set log.dirs): the last value applies",
        "listeners is given twice (-p/--port, --set listeners): the last value applies",
    )
    assert config.log_dirs() == ("/b",)


def test_a_repeated_data_directory_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "a").mkdir()
    link.symlink_to(tmp_path / "a")
    for names, text in {
        f"{tmp_path}/a,{tmp_path}/a": f"log.dirs names {tmp_path}/a twice: name each data directory once",
        f"{tmp_path}/a,{link}": f"log.dirs names {tmp_path}/a twice (as {tmp_path}/a and as {link})",
    }.items():
        with pytest.raises(ConfigError) as refused:
            BrokerConfig.of(log_dirs=names)
        assert text in str(refused.value)
        assert "(--set log.dirs)" in str(refused.value)


def test_a_cordoned_directory_must_be_a_data_directory() -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.of(log_dirs="/a,/b", cordoned_log_dirs="/b,/nowhere")
    assert str(refused.value) == (
        "cordoned.log.dirs names /nowhere, which is not in log.dirs=/a,/b: name directories of log.dirs "
        "(--set cordoned.log.dirs)"
    )
    with pytest.raises(ConfigError, match="means every directory, and must be the only value"):
        BrokerConfig.of(log_dirs="/a,/b", cordoned_log_dirs="*,/b")
    for names in ("*", "/a", "/a,/b/../b", ""):
        assert BrokerConfig.of(log_dirs="/a,/b", cordoned_log_dirs=names)
