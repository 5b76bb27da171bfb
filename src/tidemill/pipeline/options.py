"""Options of the Spark source and sink, with the names of Spark's own Kafka connector.

Source of the names and their meaning: Spark's "Structured Streaming + Kafka Integration Guide". Names are
case-insensitive. ``kafka.*`` is passed to the client without the prefix. An invalid option raises a
``ConfigError`` with the option, its value, and the allowed values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import CONSUMER
from tidemill.model.configs.config_def import (
    BOOLEAN,
    INT_MAX,
    LONG,
    LONG_MAX,
    READ_ONLY,
    STRING,
    ConfigDef,
    Key,
    Validator,
    Value,
)
from tidemill.model.configs.key_support import YES
from tidemill.model.errors import ConfigError
from tidemill.model.os_error_texts import fault_of
from tidemill.model.secrets import Settings, shown
from tidemill.model.similar_names import did_you_mean
from tidemill.model.types import TopicPartition
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

BATCH_ROWS = 131_072
BATCH_BYTES = 16 * 1024 * 1024
"""Rows and bytes of an Arrow batch: large enough to hide the cost per batch, small compared to 2 GiB."""

BATCH_BYTES_MAX = 1024 * 1024 * 1024
"""Spark's binary columns have 32-bit positions, so a batch stays well under 2 GiB."""

SOURCE_OPTIONS = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "commitOffsets",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "batchRows",
    "batchBytes",
)

SINK_OPTIONS = (
    "topic",
    "createTopics",
    "checkpointLocation",
    "delivery",
    "writeId",
    "batchId",
    "controlTopic",
    "transactionalIdPrefix",
    "skipLostRows",
)

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
"""The values of the option ``delivery``."""

BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")

STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitOffsets")

REFUSED_CLIENT_KEYS = {
    "auto.offset.reset": "startingOffsets sets the start",
    "enable.auto.commit": "the checkpoint holds the offsets; commitOffsets=true shows them to lag tools as "
    "well",
    "interceptor.classes": "interceptors are Java classes",
    "key.deserializer": "keys are read as binary; cast the column instead",
    "value.deserializer": "values are read as binary; cast the column instead",
    "key.serializer": "keys are written as binary or string; cast the column instead",
    "value.serializer": "values are written as binary or string; cast the column instead",
}


def _option(name: str, option_type: int, default: Value, allowed: str | Validator = "") -> Key:
    return Key((name, option_type, default, allowed, READ_ONLY, YES, ""), "option")


def _choice(name: str, default: str, *choices: str) -> Key:
    """An option with one of these values, in any case."""
    allowed = Validator(choices.__contains__, f"one of {', '.join(choices)}")
    row = (name, STRING, default, allowed, READ_ONLY, YES, "")
    return Key(row, "option", spellings={one.lower(): one for one in choices})


def _at_least(least: int, most: int = LONG_MAX) -> Validator:
    text = f"a whole number, at least {least}, at most {most}"
    return Validator(lambda number: least <= number <= most, text)


TYPED_OPTIONS = ConfigDef(
    "option",
    (
        _option("startingTimestamp", LONG, None, _at_least(0)),
        _option("endingTimestamp", LONG, None, _at_least(0)),
        _choice("startingOffsetsByTimestampStrategy", "error", "error", "latest"),
        _option("maxOffsetsPerTrigger", LONG, None, _at_least(1)),
        _option("minOffsetsPerTrigger", LONG, None, _at_least(1)),
        _option("minPartitions", LONG, None, _at_least(1)),
        _option("maxRecordsPerPartition", LONG, None, _at_least(1)),
        _option("failOnDataLoss", BOOLEAN, True),
        _option("includeHeaders", BOOLEAN, False),
        _option("commitOffsets", BOOLEAN, False),
        _option("fetchOffset.numRetries", LONG, 3, _at_least(0)),
        _option("fetchOffset.retryIntervalMs", LONG, 100, _at_least(0)),
        _option("kafkaConsumer.pollTimeoutMs", LONG, None, _at_least(1, INT_MAX)),
        _option("batchRows", LONG, BATCH_ROWS, _at_least(1)),
        _option("batchBytes", LONG, BATCH_BYTES, _at_least(1, BATCH_BYTES_MAX)),
        _option("createTopics", BOOLEAN, False),
        _choice("delivery", AT_LEAST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE),
        _option("batchId", LONG, None, _at_least(0)),
        _option("skipLostRows", BOOLEAN, False),
    ),
)
"""The options with a type; the other values are texts, JSON and durations."""


class Bound(NamedTuple):
    """The start or the end of a read.

    ``everywhere`` applies to each partition that is not in ``partitions``. Numbers are offsets (including
    ``EARLIEST`` and ``LATEST``), or milliseconds since 1970 if ``by_time`` is set.
    """

    everywhere: int | None
    partitions: Mapping[TopicPartition, int]
    by_time: bool
    option: str

    @property
    def text(self) -> str:
        """The bound as the user wrote it, for messages."""
        if self.everywhere is None:
            return self.option
        if not self.by_time and self.everywhere in (EARLIEST, LATEST):
            return "earliest" if self.everywhere == EARLIEST else "latest"
        return f"{self.option}={self.everywhere}"


class SourceOptions(NamedTuple):
    """The options of a reader; picklable, since Spark sends them to executors with the reader."""

    client: Mapping[str, str]
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    starting: Bound
    ending: Bound
    latest_without_match: bool
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_max_s: float
    partitions_min: int | None
    records_per_partition_max: int | None
    fail_on_data_loss: bool
    include_headers: bool
    commit_group: str | None
    retries: int
    retry_interval_s: float
    batch_rows: int
    batch_bytes: int

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers, as the user wrote them."""
        return self.client["bootstrap.servers"]


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Validates and converts the options of a read.

    Raises ConfigError for an unknown option, a value out of range, or contradicting options.
    """
    given = GivenOptions(options, SOURCE_OPTIONS, "reading")
    _refuse_out_of_place(given, streaming)
    client = checked_client_options(given, CONSUMER)
    if "kafkaConsumer.pollTimeoutMs" in given:
        timeout_ms = given.value("kafkaConsumer.pollTimeoutMs")
        client.setdefault("default.api.timeout.ms", str(timeout_ms))
    topics, pattern, assigned = _selection(given)
    starting = _bound(given, "starting", LATEST if streaming else EARLIEST)
    ending = _bound(given, "ending", LATEST)
    if not streaming:
        _refuse_start_at_end(starting, given)
        _refuse_start_after_end(starting, ending)
    return SourceOptions(
        client=client,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending,
        latest_without_match=given.value("startingOffsetsByTimestampStrategy") == "latest",
        offsets_per_trigger_max=given.value("maxOffsetsPerTrigger"),
        offsets_per_trigger_min=_offsets_min(given),
        trigger_delay_max_s=given.seconds("maxTriggerDelay", 15 * 60.0),
        partitions_min=given.value("minPartitions"),
        records_per_partition_max=given.value("maxRecordsPerPartition"),
        fail_on_data_loss=given.value("failOnDataLoss"),
        include_headers=given.value("includeHeaders"),
        commit_group=_commit_group(given, client),
        retries=given.value("fetchOffset.numRetries"),
        retry_interval_s=given.value("fetchOffset.retryIntervalMs") / 1000,
        batch_rows=given.value("batchRows"),
        batch_bytes=given.value("batchBytes"),
    )


def check_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Checks the options of a read when Spark has not announced a batch or a stream yet (in ``load()``).

    Returns them as those of a stream, or of a batch if they are not valid for a stream. Raises ConfigError
    for options that are valid for neither.
    """
    try:
        return parse_source_options(options, streaming=True)
    except ConfigError as of_stream:
        try:
            return parse_source_options(options, streaming=False)
        except ConfigError as of_batch:
            names = {name.lower() for name in options}
            only_batch = any(name.lower() in names for name in BATCH_ONLY)
            raise (of_batch if only_batch else of_stream) from None


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the validated client options (``kafka.*``) of a read; raises ConfigError."""
    kept = {name: value for name, value in options.items() if name.lower().startswith("kafka.")}
    return checked_client_options(GivenOptions(kept, (), "reading"), CONSUMER)


class GivenOptions:
    """The given options, by case-insensitive name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], operation: str) -> None:
        self._values = {str(name).lower(): str(value) for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name, value in options.items():
            if name.lower() in names or name.lower().startswith("kafka."):
                continue
            raise ConfigError(_unknown(name, value, known, operation))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """Returns the value as it was given; None without one."""
        return self._values.get(name.lower())

    def client(self) -> dict[str, str]:
        """Returns the client options (``kafka.*``), without the prefix."""
        return {
            name.removeprefix("kafka."): value
            for name, value in self._values.items()
            if name.startswith("kafka.")
        }

    def value(self, name: str) -> Any:
        """Returns the value of one of :data:`TYPED_OPTIONS`, or its default."""
        text = self.text(name)
        key = TYPED_OPTIONS[name]
        if text is None:
            return key.default
        try:
            return key.parse(text)
        except ConfigError:
            raise ConfigError(f"option {name}={text!r}: {key.allowed_text()} is allowed") from None

    def seconds(self, name: str, default: float) -> float:
        """Returns a duration in seconds."""
        text = self.text(name)
        return default if text is None else parse_duration(name, text)


DURATION_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def parse_duration(name: str, text: str) -> float:
    """Parses Spark's durations (``15m``, ``30s``, ``250ms``; a number alone is in ms) to seconds."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match.group(2) not in DURATION_UNITS:
        raise ConfigError(f"option {name}={text!r}: a number with one of us, ms, s, m, h, d is allowed (15m)")
    return int(match.group(1)) * DURATION_UNITS[match.group(2)]


def _unknown(name: str, value: str, known: tuple[str, ...], operation: str) -> str:
    given = f"option {name}={shown(name, value)}"
    if name.lower() == "path":
        wanted = "subscribe, subscribePattern or assign" if operation == "reading" else "topic"
        return f"{given}: tidemill has topics, not paths; set the option {wanted}"
    if name.lower() in {other.lower() for other in SOURCE_OPTIONS + SINK_OPTIONS}:
        return f"{given} has no effect for {operation}; allowed are {', '.join(known)} and kafka.*"
    if name.lower().startswith(("sasl.", "ssl.", "security.")):
        return f"{given} is unknown; did you mean kafka.{name.lower()}?"
    hint = did_you_mean(name, known) or "."
    return f"{given} is unknown{hint} Allowed for {operation} are {', '.join(known)} and kafka.*"


def _refuse_out_of_place(given: GivenOptions, streaming: bool) -> None:
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name in given:
            kind, other = ("a stream", "spark.read") if streaming else ("a batch", "spark.readStream")
            raise ConfigError(
                f"option {name}={given.text(name)!r} has no effect for {kind}: it is for {other}"
            )


def checked_client_options(given: GivenOptions, role: str) -> dict[str, str]:
    """Returns the client options of a role of the client. Raises ConfigError for an invalid one."""
    client = given.client()
    for name, why in REFUSED_CLIENT_KEYS.items():
        if name in client:
            raise ConfigError(f"option kafka.{name}={client[name]!r} is not allowed: {why}")
    if not client.get("bootstrap.servers", "").strip():
        raise ConfigError(
            "option kafka.bootstrap.servers is missing: set host:port,host:port of some brokers"
        )
    key = client.get("ssl.keystore.key")
    if key is not None and "ENCRYPTED" not in key:
        raise ConfigError(
            "option kafka.ssl.keystore.key holds a key without a password, which Spark would show in plans "
            "and event logs: encrypt it (openssl pkcs8 -topk8) and set kafka.ssl.key.password, which Spark "
            "hides, or set a file in kafka.ssl.keystore.location"
        )
    try:
        ClientConfig(role, client)
    except ConfigError as problem:
        text = str(problem)
        first = re.split(r"[ =]", text, maxsplit=1)[0]
        names_a_key = "." in first or text.startswith((f"{first}=", f"{first} is not a key"))
        raise ConfigError(f"option kafka.{text}" if names_a_key else f"options kafka.*: {text}") from None
    return Settings(client)


def _selection(given: GivenOptions) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if name in given]
    if len(ways) != 1:
        found = "none" if not ways else " and ".join(ways)
        raise ConfigError(f"exactly one of assign, subscribe and subscribePattern is allowed, found {found}")
    text = given.text(ways[0]) or ""
    if ways[0] == "subscribe":
        topics = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
        if not topics:
            raise ConfigError(f"option subscribe={text!r}: topic names are expected, separated by commas")
        return topics, None, ()
    if ways[0] == "subscribePattern":
        return (), _pattern(text.strip()), ()
    return (), None, _assignment(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ConfigError(
            f"option subscribePattern={text!r} is not a regular expression: {problem}"
        ) from None
    if not text:
        raise ConfigError("option subscribePattern is empty: set a regular expression for whole topic names")
    return text


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    form = '{"topic": [0, 1]}'
    table = _json_object("assign", text, form)
    assigned: set[TopicPartition] = set()
    for topic, numbers in table.items():
        if not isinstance(numbers, list) or not all(_is_count(number) for number in numbers):
            raise ConfigError(
                f"option assign={text!r}: {topic!r} needs a list of partition numbers, as {form}"
            )
        assigned.update(TopicPartition(topic, number) for number in numbers)
    if not assigned:
        raise ConfigError(f"option assign={text!r} names no partition: {form} is the form")
    return tuple(sorted(assigned))


def _bound(given: GivenOptions, side: str, default: int) -> Bound:
    """Timestamps override offsets, one timestamp for all overrides one for each: as in Spark's connector."""
    if f"{side}Timestamp" in given:
        option = f"{side}Timestamp"
        return Bound(given.value(option), {}, True, option)
    if f"{side}OffsetsByTimestamp" in given:
        option = f"{side}OffsetsByTimestamp"
        return Bound(None, _per_partition(option, given.text(option) or "", at_least=0), True, option)
    option = f"{side}Offsets"
    text = (given.text(option) or "").strip()
    if option not in given:
        return Bound(default, {}, False, option)
    if text.lower() == "latest":
        return Bound(LATEST, {}, False, option)
    if text.lower() == "earliest" and side == "starting":
        return Bound(EARLIEST, {}, False, option)
    if not text.startswith("{"):
        words = "earliest, latest" if side == "starting" else "latest"
        raise ConfigError(f'option {option}={text!r}: {words} or JSON as {{"topic": {{"0": 23}}}} is allowed')
    partitions = _per_partition(option, text, at_least=EARLIEST)
    if side == "ending" and EARLIEST in partitions.values():
        raise ConfigError(
            f"option endingOffsets={text!r}: an end of {EARLIEST} (earliest) would read nothing"
        )
    return Bound(None, partitions, False, option)


def _refuse_start_at_end(starting: Bound, given: GivenOptions) -> None:
    """Raises ConfigError for a batch that starts at the latest offset, which would be empty."""
    if starting.by_time:
        return
    text = given.text(starting.option)
    if starting.everywhere == LATEST:
        raise ConfigError(
            f"option {starting.option}={text!r}: a batch that starts at the latest offset reads nothing; "
            "start it at earliest, at offsets or at a time, or use spark.readStream for future records"
        )
    for partition, number in starting.partitions.items():
        if number == LATEST:
            raise ConfigError(
                f"option {starting.option}={text!r}: {LATEST} (latest) as the start of {partition} would "
                f"read nothing in a batch; set an offset, or {EARLIEST} for earliest"
            )


def _refuse_start_after_end(starting: Bound, ending: Bound) -> None:
    """Checks the bounds that are comparable without the cluster: of the same partition and kind."""
    if starting.by_time != ending.by_time:
        return
    if starting.everywhere is not None and ending.everywhere is not None:
        if 0 <= ending.everywhere < starting.everywhere:
            raise ConfigError(
                f"option {starting.option}={starting.everywhere} is after "
                f"{ending.option}={ending.everywhere}: the end must not be before the start"
            )
        return
    if starting.everywhere is None and ending.everywhere is None:
        other = sorted(starting.partitions.keys() ^ ending.partitions.keys())
        if other:
            raise ConfigError(
                f"options {starting.option} and {ending.option} must name the same partitions: {other[0]} is "
                "only in one of them"
            )
        for partition, first in starting.partitions.items():
            if 0 <= ending.partitions[partition] < first:
                raise ConfigError(
                    f"option {starting.option} starts {partition} at {first}, after its end at "
                    f"{ending.partitions[partition]} in {ending.option}: the end must not be before the start"
                )


def _per_partition(option: str, text: str, *, at_least: int) -> dict[TopicPartition, int]:
    form = '{"topic": {"0": 23, "1": -1}}'
    numbers: dict[TopicPartition, int] = {}
    for topic, table in _json_object(option, text, form).items():
        if not isinstance(table, dict):
            raise ConfigError(f"option {option}={text!r}: {topic!r} needs an object of partitions, as {form}")
        for partition, number in table.items():
            if not partition.isdecimal() or not _is_count(number, at_least):
                raise ConfigError(
                    f"option {option}={text!r}: {topic!r} has {partition!r}: {number!r}, where a partition's "
                    f"number and a whole number of at least {at_least} are allowed, as {form}"
                )
            numbers[TopicPartition(topic, int(partition))] = number
    if not numbers:
        raise ConfigError(f"option {option}={text!r} names no partition: {form} is the form")
    return numbers


def _json_object(option: str, text: str, form: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError as problem:
        raise ConfigError(
            f"option {option}={text!r} is not JSON ({fault_of(problem)}): {form} is the form"
        ) from None
    if not isinstance(table, dict):
        raise ConfigError(f"option {option}={text!r}: {form} is the form")
    return table


def _is_count(value: object, at_least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _offsets_min(given: GivenOptions) -> int | None:
    least: int | None = given.value("minOffsetsPerTrigger")
    most: int | None = given.value("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
    return least


def _commit_group(given: GivenOptions, client: Mapping[str, str]) -> str | None:
    if not given.value("commitOffsets"):
        return None
    group = client.get("group.id", "").strip()
    if not group:
        raise ConfigError(
            "option commitOffsets=true needs kafka.group.id, the group of the committed offsets"
        )
    return group
