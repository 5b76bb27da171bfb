"""Options: names of Spark's connector, and errors with the next step."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable

import pytest
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

from tidemill.client.config_keys import KEYS
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.options import (
    BATCH_ONLY,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    GivenOptions,
    check_source_options,
    parse_source_options,
)
from tidemill.pipeline.sink_columns import checked_columns
from tidemill.pipeline.sink_options import parse_sink_options
from tidemill.pipeline.source import TidemillDataSource
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}


def batch(**more: str) -> dict[str, str]:
    return {**BASE, **more}


def test_names_are_case_insensitive_and_client_options_lose_their_prefix() -> None:
    options = parse_source_options(
        {
            "KAFKA.Bootstrap.Servers": "h:1",
            "SUBSCRIBE": "b, a,,a",
            "minpartitions": "7",
            "kafka.client.id": "me",
        },
        streaming=False,
    )
    assert options.topics == ("a", "b")
    assert options.partitions_min == 7
    assert options.client == {"bootstrap.servers": "h:1", "client.id": "me"}


SOURCE_VALUES = {
    "assign": '{"a": [0]}',
    "subscribe": "a",
    "subscribePattern": "A.*",
    "startingOffsets": "EARLIEST",
    "endingOffsets": "Latest",
    "startingTimestamp": "5",
    "endingTimestamp": "6",
    "startingOffsetsByTimestamp": '{"a": {"0": 5}}',
    "endingOffsetsByTimestamp": '{"a": {"0": 6}}',
    "startingOffsetsByTimestampStrategy": "LATEST",
    "maxOffsetsPerTrigger": "5",
    "minOffsetsPerTrigger": "4",
    "maxTriggerDelay": "5M",
    "minPartitions": "7",
    "maxRecordsPerPartition": "8",
    "failOnDataLoss": "FALSE",
    "includeHeaders": "True",
    "groupIdPrefix": "g",
    "commitOffsets": "TRUE",
    "fetchOffset.numRetries": "9",
    "fetchOffset.retryIntervalMs": "10",
    "kafkaConsumer.pollTimeoutMs": "11",
    "batchRows": "12",
    "batchBytes": "13",
}
"""A value of each option that is not its default."""
WITHOUT_EFFECT = ("endingOffsets", "groupIdPrefix")
SINK_VALUES = {
    "topic": "T",
    "createTopics": "TRUE",
    "checkpointLocation": "/p",
    "delivery": "EXACTLY-ONCE",
    "writeId": "W",
    "batchId": "3",
    "controlTopic": "C",
    "transactionalIdPrefix": "P",
    "skipLostRows": "True",
}


@pytest.mark.parametrize("name", SOURCE_OPTIONS)
@pytest.mark.parametrize("letters", [str.lower, str.upper, str.swapcase])
def test_each_option_of_the_source_may_have_other_capitals(name: str, letters: Callable[[str], str]) -> None:
    group = {"kafka.group.id": "g"} if name == "commitOffsets" else {}
    base = {"kafka.bootstrap.servers": "h:1", **group}
    if name not in ("assign", "subscribe", "subscribePattern"):
        base["subscribe"] = "a"
    streaming, value = name not in BATCH_ONLY, SOURCE_VALUES[name]
    found = parse_source_options({**base, letters(name): value}, streaming=streaming)
    assert found == parse_source_options({**base, name: value}, streaming=streaming)
    if "subscribe" in base and name not in WITHOUT_EFFECT:
        assert found != parse_source_options(base, streaming=streaming)


@pytest.mark.parametrize("name", SINK_OPTIONS)
@pytest.mark.parametrize("letters", [str.lower, str.upper, str.swapcase])
def test_each_option_of_the_sink_may_have_other_capitals(name: str, letters: Callable[[str], str]) -> None:
    base = {"kafka.bootstrap.servers": "h:1"}
    others = {**exactly_once(writeId="w", batchId="1"), **base}
    if name == "delivery":
        others.pop(name)
    found = parse_sink_options({**others, letters(name): SINK_VALUES[name]}, streaming=False)
    given = {one: value for one, value in others.items() if one != name}
    assert found == parse_sink_options({**given, name: SINK_VALUES[name]}, streaming=False)
    assert found.exactly_once is not None


def test_each_client_option_may_have_other_capitals() -> None:
    for letters in (str.upper, str.swapcase):
        given = GivenOptions({letters(f"kafka.{name}"): "Value" for name in KEYS}, (), "reading")
        assert given.client() == dict.fromkeys(KEYS, "Value")


def test_the_columns_with_headers_need_no_certain_capitals() -> None:
    for name in ("includeHeaders", "INCLUDEHEADERS"):
        assert "headers" in TidemillDataSource({**BASE, name: "TRUE"}).schema()


def test_a_batch_starts_at_the_earliest_offset_and_a_stream_at_the_latest() -> None:
    assert parse_source_options(BASE, streaming=False).starting.everywhere == EARLIEST
    assert parse_source_options(BASE, streaming=True).starting.everywhere == LATEST
    assert parse_source_options(BASE, streaming=False).ending.everywhere == LATEST


def test_offsets_of_partitions_are_read_from_json() -> None:
    text = json.dumps({"a": {"0": 23, "1": -1, "2": -2}})
    starting = parse_source_options(batch(startingOffsets=text), streaming=True).starting
    assert starting.everywhere is None
    assert starting.partitions == {
        TopicPartition("a", 0): 23,
        TopicPartition("a", 1): LATEST,
        TopicPartition("a", 2): EARLIEST,
    }


def test_a_timestamp_overrides_offsets_and_a_global_one_overrides_partitions() -> None:
    each = json.dumps({"a": {"0": 5}})
    options = parse_source_options(
        batch(startingOffsets="earliest", startingOffsetsByTimestamp=each, startingTimestamp="9"),
        streaming=False,
    )
    assert options.starting.by_time
    assert options.starting.everywhere == 9
    options = parse_source_options(
        batch(endingOffsets="latest", endingOffsetsByTimestamp=each), streaming=False
    )
    assert options.ending.partitions == {TopicPartition("a", 0): 5}


def test_assigned_partitions_are_read_from_json() -> None:
    options = parse_source_options(
        {"kafka.bootstrap.servers": "h:1", "assign": '{"b": [1], "a": [2, 0]}'}, streaming=False
    )
    assert options.assigned == (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a"}, ["kafka.bootstrap.servers", "host:port"]),
        ({"kafka.bootstrap.servers": "h:1"}, ["exactly one of", "found none"]),
        (batch(subscribePattern="a.*"), ["subscribe and subscribePattern"]),
        (batch(startingOffset="earliest"), ["startingOffset='earliest'", "did you mean startingOffsets?"]),
        (batch(qqq="1"), ["option qqq='1' is unknown. Allowed for reading are"]),
        (batch(path="/x"), ["path='/x'", "subscribe"]),
        (batch(topic="t"), ["topic='t'", "reading"]),
        (batch(startingOffsets="now"), ["startingOffsets='now'", "earliest, latest"]),
        (batch(endingOffsets="earliest"), ["endingOffsets='earliest'", "latest"]),
        (batch(endingOffsets='{"a": {"0": -2}}'), ["endingOffsets", "read nothing"]),
        (batch(startingOffsets="latest"), ["startingOffsets='latest'", "reads nothing", "spark.readStream"]),
        (batch(startingOffsets='{"a": {"0": 4, "1": -1}}'), ["-1 (latest) as the start of a-1", "-2"]),
        (
            batch(startingOffsets='{"a": {"0": 4}}', endingOffsets='{"a": {"0": 3}}'),
            ["starts a-0 at 4, after its end at 3", "endingOffsets"],
        ),
        (
            batch(startingOffsets='{"a": {"0": 4}}', endingOffsets='{"a": {"0": 4, "1": 4}}'),
            ["same partitions", "a-1 is only in one"],
        ),
        (
            batch(startingOffsetsByTimestamp='{"a": {"0": 9}}', endingOffsetsByTimestamp='{"a": {"0": 8}}'),
            ["starts a-0 at 9, after its end at 8"],
        ),
        (
            batch(startingTimestamp="9", endingTimestamp="8"),
            ["startingTimestamp=9 is after endingTimestamp=8"],
        ),
        (batch(startingOffsets='{"a": {"0": -3}}'), ["'0': -3", "at least -2"]),
        (batch(startingOffsets='{"a": {"x": 1}}'), ["'x': 1"]),
        (batch(startingOffsets="{"), ["startingOffsets='{'", "not JSON"]),
        (batch(startingOffsets="{}"), ["names no partition"]),
        (batch(startingOffsetsByTimestamp='{"a": {"0": -1}}'), ["at least 0"]),
        (batch(minPartitions="0"), ["minPartitions='0'", "at least 1"]),
        (batch(minPartitions="many"), ["minPartitions='many'", "whole number"]),
        (batch(failOnDataLoss="perhaps"), ["failOnDataLoss='perhaps'", "true or false"]),
        (batch(batchBytes=str(2**31)), ["batchBytes", "at most 1073741824"]),
        (batch(maxOffsetsPerTrigger="5"), ["maxOffsetsPerTrigger='5'", "spark.readStream"]),
        (batch(startingOffsetsByTimestampStrategy="guess"), ["'guess'", "error, latest"]),
        (
            {**BASE, "kafka.auto.offset.reset": "latest"},
            ["kafka.auto.offset.reset='latest'", "startingOffsets"],
        ),
        ({**BASE, "kafka.key.deserializer": "X"}, ["cast the column"]),
        (
            {"kafka.bootstrap.servers": "h:1", "subscribePattern": "("},
            ["subscribePattern='('", "regular expression"],
        ),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"a": 0}'}, ["assign", "list of partition numbers"]),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": " , "}, ["subscribe=' , '", "topic names"]),
        ({**BASE, "kafka.bootstrap.server": "x"}, ["bootstrap.server", "bootstrap.servers"]),
    ],
)
def test_the_error_of_an_invalid_option_has_name_value_and_allowed_values(
    options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_source_options(options, streaming=False)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "field", "least", "most", "default"),
    [
        ("minPartitions", "partitions_min", 1, None, None),
        ("maxRecordsPerPartition", "records_per_partition_max", 1, None, None),
        ("fetchOffset.numRetries", "retries", 0, None, 3),
        ("batchRows", "batch_rows", 1, None, 128 * 1024),
        ("batchBytes", "batch_bytes", 1, 1024 * 1024 * 1024, 16 * 1024 * 1024),
        ("maxOffsetsPerTrigger", "offsets_per_trigger_max", 1, None, None),
        ("minOffsetsPerTrigger", "offsets_per_trigger_min", 1, None, None),
    ],
)
def test_a_number_among_the_options_has_its_bounds(
    name: str, field: str, least: int, most: int | None, default: int | None
) -> None:
    def parsed(**more: str) -> int | None:
        found = parse_source_options(batch(**more), streaming=name.endswith("PerTrigger"))
        value = getattr(found, field)
        assert value is None or isinstance(value, int)
        return value

    assert parsed() == default
    for good in (least, most or 2**63 - 1):
        assert parsed(**{name: str(good)}) == good
    for bad in (least - 1, (most or 2**63 - 1) + 1):
        with pytest.raises(ConfigError, match=f"option {name}='{bad}'"):
            parsed(**{name: str(bad)})


def test_retry_intervals_are_in_milliseconds() -> None:
    assert parse_source_options(batch(), streaming=False).retry_interval_s == 0.1
    for text, seconds in (("0", 0.0), ("2500", 2.5)):
        more = {"fetchOffset.retryIntervalMs": text}
        assert parse_source_options(batch(**more), streaming=False).retry_interval_s == seconds
    with pytest.raises(ConfigError, match=r"fetchOffset.retryIntervalMs='-1'"):
        parse_source_options(batch(**{"fetchOffset.retryIntervalMs": "-1"}), streaming=False)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"endingOffsets": "latest"}, ["endingOffsets", "spark.read"]),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, ["minOffsetsPerTrigger=9", "=5"]),
        ({"maxTriggerDelay": "soon"}, ["maxTriggerDelay='soon'", "15m"]),
        ({"commitOffsets": "true"}, ["kafka.group.id"]),
    ],
)
def test_contradicting_options_of_streams_are_refused(more: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_source_options({**BASE, **more}, streaming=True)
    for word in words:
        assert word in str(caught.value)


def test_limits_of_a_stream_are_typed() -> None:
    options = parse_source_options(
        batch(
            maxOffsetsPerTrigger="500",
            minOffsetsPerTrigger="5",
            maxTriggerDelay="2m",
            commitOffsets="TRUE",
            **{"kafka.group.id": "g"},
        ),
        streaming=True,
    )
    assert (options.offsets_per_trigger_max, options.offsets_per_trigger_min) == (500, 5)
    assert options.trigger_delay_max_s == 120.0
    assert options.commit_group == "g"


def test_a_sink_accepts_a_topic_and_client_options() -> None:
    options = parse_sink_options(
        {"Topic": " t ", "kafka.bootstrap.servers": "h:1", "kafka.acks": "1"}, streaming=True
    )
    assert options.topic == "t"
    assert options.client["acks"] == "1"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (BASE, "subscribe='a' has no effect for writing"),
        ({"topic": "", "kafka.bootstrap.servers": "h:1"}, "topic is empty"),
        (
            {"kafka.bootstrap.servers": "h:1", "createTopics": "perhaps"},
            "createTopics='perhaps': true or false",
        ),
    ],
)
def test_a_sink_refuses_other_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_sink_options(options, streaming=True)


@pytest.mark.parametrize(
    "more",
    [
        {"endingOffsets": "latest"},
        {"startingOffsets": "latest"},
        {"maxOffsetsPerTrigger": "5"},
        {"startingOffsets": '{"a": {"0": -1}}'},
    ],
)
def test_load_accepts_options_of_a_batch_or_a_stream(more: dict[str, str]) -> None:
    assert TidemillDataSource({**BASE, **more}).schema().startswith("key binary, value binary, topic string")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0'"),
        ({"endingOffsets": "earliest"}, "option endingOffsets='earliest'"),
        ({"endingOffsets": "latest", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger='5' has no effect"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "is above maxOffsetsPerTrigger=5"),
        ({"kafka.acls": "1"}, "option kafka.acls"),
    ],
)
def test_load_refuses_options_invalid_for_both_batch_and_stream(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_source_options({**BASE, **more})
    assert words in str(caught.value)


def test_the_schema_is_returned_for_valid_options() -> None:
    """Spark requests the schema in load(), unless the read has its own schema."""
    for more in ({"startingOffset": "latest"}, {"includeHeaders": "yes"}):
        with pytest.raises(ConfigError, match=f"option {next(iter(more))}"):
            TidemillDataSource({**BASE, **more}).schema()
    with pytest.raises(ConfigError, match="exactly one of assign, subscribe and subscribePattern"):
        TidemillDataSource({"kafka.bootstrap.servers": "h:1"}).schema()


LINE = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p4ssword";'
LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": LINE,
}


def test_logins_are_options_of_source_and_sink() -> None:
    source = parse_source_options({**BASE, **LOGIN}, streaming=False)
    sink = parse_sink_options({"topic": "t", "kafka.bootstrap.servers": "h:1", **LOGIN}, streaming=True)
    for options in (source, sink, pickle.loads(pickle.dumps(source))):
        assert options.client["sasl.jaas.config"] == LINE
        assert "p4ssword" not in repr(options) + str(options.client) + f"{options.client}"
        assert "(hidden)" in repr(options)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kafka.sasl.jaas.config": LINE[:-1]}, "option kafka.sasl.jaas.config cannot be read: the closing"),
        (
            {"kafka.sasl.mechanism": "SCRAM-SHA-512"},
            "option kafka.sasl.mechanism=SCRAM-SHA-512 and the login",
        ),
        (
            {"kafka.sasl.jaas.config": LINE.replace("username", "user")},
            "options kafka.*: PLAIN needs a username: set sasl.username",
        ),
        (
            {"sasl.jaas.config": LINE},
            "option sasl.jaas.config=(hidden) is unknown; did you mean kafka.sasl.jaas",
        ),
        ({"path": "p", "password": "p4ssword"}, "option path='p'"),
        ({"password": "p4ssword"}, "option password=(hidden) is unknown"),
        (
            {
                "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----p4ssword",
                "kafka.ssl.keystore.certificate.chain": "c",
            },
            "holds a key without a password, which Spark would show in plans and event logs: encrypt it",
        ),
    ],
)
def test_errors_of_login_options_have_no_secrets(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_source_options({**BASE, **LOGIN, **more}, streaming=False)
    assert words in str(caught.value)
    assert "p4ssword" not in str(caught.value)


def test_a_key_under_a_password_may_be_an_option() -> None:
    key = {
        "kafka.ssl.keystore.key": "-----BEGIN ENCRYPTED PRIVATE KEY-----",
        "kafka.ssl.keystore.certificate.chain": "c",
        "kafka.ssl.key.password": "p4ssword",
    }
    assert (
        parse_source_options({**BASE, **LOGIN, **key}, streaming=False).client["ssl.key.password"]
        == "p4ssword"
    )


def test_jobs_are_shown_without_the_options_of_their_login() -> None:
    pytest.importorskip("pyspark")
    from tidemill.pipeline.jobs.load import LoadJob
    from tidemill.pipeline.jobs.publish import PublishJob

    load = LoadJob(source={**BASE, **LOGIN}, output="o", checkpoint="c")
    publish = PublishJob(sink={**BASE, **LOGIN}, topic="t")
    assert "p4ssword" not in repr(load) + repr(publish)


def test_spark_hides_every_secret_of_a_client_in_the_sessions_of_the_jobs() -> None:
    from tidemill.client.config_keys import ALIASES, KEYS
    from tidemill.model.secrets import is_secret
    from tidemill.pipeline.jobs.session import LOCAL_SETTINGS

    hidden = re.compile(LOCAL_SETTINGS["spark.sql.redaction.options.regex"])
    secrets = [name for name in (*KEYS, *ALIASES) if is_secret(name)]
    assert {"sasl.jaas.config", "ssl.keystore.key", "sasl.password"} <= set(secrets)
    assert [name for name in secrets if hidden.search(f"kafka.{name}") is None] == []


TO_TOPIC = {"topic": "t", "kafka.bootstrap.servers": "h:1"}
HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


def schema_of(fields: str) -> StructType:
    """Creates a schema with fields like ``value string``; ``headers`` have their type. No JVM is needed."""
    schema = StructType()
    for field in fields.split(", "):
        name, _, kind = field.partition(" ")
        schema.add(name, HEADERS if name == "headers" else kind)
    return schema


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        ("value string", ("value",)),
        ("value binary, key string", ("value", "key")),
        ("offset long, timestampType integer, value string", ("value",)),
        (
            "key binary, value binary, topic string, partition integer, timestamp timestamp, headers",
            ("key", "value", "topic", "partition", "timestamp", "headers"),
        ),
    ],
)
def test_columns_of_the_source_are_written_but_for_those_of_records(
    schema: str, columns: tuple[str, ...]
) -> None:
    assert checked_columns(parse_sink_options(TO_TOPIC, streaming=True), schema_of(schema)) == columns


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("value string, carrier string", TO_TOPIC, "column carrier (string) is not part of a message"),
        ("value integer", TO_TOPIC, "column value is int: binary or string is allowed, cast it"),
        ("value string, partition long", TO_TOPIC, "column partition is bigint: int is allowed"),
        ("key string", TO_TOPIC, "there is no column value, only key"),
        ("value string", {"kafka.bootstrap.servers": "h:1"}, "set the option topic, or add a column topic"),
    ],
)
def test_columns_that_do_not_belong_to_a_message_are_refused(
    schema: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        checked_columns(parse_sink_options(options, streaming=True), schema_of(schema))


def exactly_once(**options: str) -> dict[str, str]:
    return {"topic": "t", "kafka.bootstrap.servers": "h:1", "delivery": "exactly-once", **options}


def test_exactly_once_has_defaults() -> None:
    found = parse_sink_options(exactly_once(), streaming=True).exactly_once
    assert found is not None
    assert (found.control_topic, found.id_prefix) == ("_tidemill_sink", "tidemill-sink")
    assert parse_sink_options({**TO_TOPIC}, streaming=True).exactly_once is None


@pytest.mark.parametrize(
    ("name", "values"), [("acks", ["ALL", " all ", "-1"]), ("enable.idempotence", ["TRUE", " true", "yes"])]
)
def test_exactly_once_needs_values_of_the_client_in_any_spelling(name: str, values: list[str]) -> None:
    for value in values:
        options = exactly_once(**{f"kafka.{name}": value})
        assert parse_sink_options(options, streaming=True).client[name] == value


def test_a_batch_write_names_what_it_writes() -> None:
    found = parse_sink_options(exactly_once(writeId="w", batchId="3"), streaming=False).exactly_once
    assert found is not None
    assert (found.write_id, found.batch_id) == ("w", 3)


@pytest.mark.parametrize(
    ("options", "streaming", "problem"),
    [
        (exactly_once(), False, "needs the options writeId and batchId"),
        (exactly_once(writeId=" ", batchId="1"), False, "needs the options writeId and batchId"),
        (exactly_once(writeId="w", batchId="-1"), False, "option batchId='-1'"),
        (
            exactly_once(writeId="w", batchId=str(2**63)),
            False,
            f"option batchId='{2**63}': a whole number, at least 0, at most 9223372036854775807 is allowed",
        ),
        (
            exactly_once(writeId="w", batchId="9" * 40),
            False,
            f"batchId='{'9' * 40}': .* at most {2**63 - 1} ",
        ),
        (
            exactly_once(writeId="ü" * 16_000, batchId="1"),
            False,
            "transactionalIdPrefix and writeId have 32013 bytes together, .* room for 32000: shorten",
        ),
        (exactly_once(writeId="w"), True, "option writeId='w' has no effect for a stream"),
        (exactly_once(controlTopic=""), True, "option controlTopic is empty"),
        (exactly_once(**{"kafka.acks": "1"}), True, "option kafka.acks='1': delivery=exactly-once needs all"),
        (exactly_once(**{"kafka.enable.idempotence": "false"}), True, "needs true"),
        (exactly_once(**{"kafka.retries": "0"}), True, "for delivery=exactly-once: .* retries of at least 1"),
        (exactly_once(**{"kafka.max.in.flight.requests.per.connection": "6"}), True, "but it is 6"),
        (exactly_once(**{"kafka.transactional.id": "x"}), True, "each task has an id of its own"),
        ({**exactly_once(), "delivery": "once"}, True, "option delivery='once'"),
        (
            {**exactly_once(writeId="w"), "delivery": "at-least-once"},
            False,
            "option writeId='w' has no effect for delivery=at-least-once",
        ),
    ],
)
def test_options_of_a_delivery_are_checked(options: dict[str, str], streaming: bool, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_sink_options(options, streaming=streaming)
