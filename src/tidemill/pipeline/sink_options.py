"""Options of the Spark sink: those of Spark's own Kafka connector, and those of its deliveries.

An invalid option raises a ``ConfigError`` with the option, its value, and the allowed values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import KEYS, PRODUCER
from tidemill.model.errors import ConfigError
from tidemill.pipeline.options import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    SINK_OPTIONS,
    GivenOptions,
    checked_client_options,
)

EXACTLY_ONCE_ONLY = ("writeId", "batchId", "controlTopic", "transactionalIdPrefix", "skipLostRows")
BATCH_WRITE_ONLY = ("writeId", "batchId")
CONTROL_TOPIC = "_tidemill_sink"
TRANSACTIONAL_ID_PREFIX = "tidemill-sink"
ID_PARTS_BYTES_MAX = 32_000
"""Strings of the protocol have at most 32,767 bytes, and a transactional id has more parts."""


class ExactlyOnce(NamedTuple):
    """The options of the delivery ``exactly-once``."""

    control_topic: str
    id_prefix: str
    """The transactional ids begin with it."""
    skip_lost_rows: bool
    """Whether a batch is complete without rows whose transactions were aborted."""
    write_id: str | None
    batch_id: int | None
    """Both identify a batch that is no micro-batch of a streaming query."""


class SinkOptions(NamedTuple):
    """The options of a writer."""

    client: Mapping[str, str]
    topic: str | None
    create_topics: bool
    exactly_once: ExactlyOnce | None
    """None for the delivery ``at-least-once``."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers, as the user wrote them."""
        return self.client["bootstrap.servers"]


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Validates and converts the options of a write; raises ConfigError."""
    given = GivenOptions(options, SINK_OPTIONS, "writing")
    topic = given.text("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty: set a topic's name, or add a column named topic")
    client = checked_client_options(given, PRODUCER)
    _refuse_transactional_keys(client)
    return SinkOptions(
        client=client,
        topic=topic.strip() if topic else None,
        create_topics=given.value("createTopics"),
        exactly_once=_exactly_once(given, client, streaming),
    )


def _refuse_transactional_keys(client: Mapping[str, str]) -> None:
    if "transactional.id" in client:
        raise ConfigError(
            f"option kafka.transactional.id={client['transactional.id']!r}: each task has an id of its own;"
            f" set delivery={EXACTLY_ONCE} and, for a common beginning of the ids, transactionalIdPrefix"
        )


def _exactly_once(given: GivenOptions, client: Mapping[str, str], streaming: bool) -> ExactlyOnce | None:
    if given.value("delivery") == AT_LEAST_ONCE:
        for name in EXACTLY_ONCE_ONLY:
            if name in given:
                raise ConfigError(
                    f"option {name}={given.text(name)!r} has no effect for delivery={AT_LEAST_ONCE}: set"
                    f" delivery={EXACTLY_ONCE}"
                )
        return None
    for key, needed in (("acks", "all"), ("enable.idempotence", "true")):
        if key in client and KEYS[key].parse(client[key]) != KEYS[key].parse(needed):
            raise ConfigError(
                f"option kafka.{key}={client[key]!r}: delivery={EXACTLY_ONCE} needs {needed}; leave the"
                " option out"
            )
    try:
        ClientConfig(PRODUCER, {**client, "transactional.id": TRANSACTIONAL_ID_PREFIX})
    except ConfigError as problem:
        raise ConfigError(f"options kafka.* for delivery={EXACTLY_ONCE}: {problem}") from None
    write_id, batch_id = given.text("writeId"), given.value("batchId")
    if streaming:
        for name in BATCH_WRITE_ONLY:
            if name in given:
                raise ConfigError(
                    f"option {name}={given.text(name)!r} has no effect for a stream: its query id and the"
                    " numbers of its micro-batches identify what is written"
                )
    elif not (write_id or "").strip() or batch_id is None:
        raise ConfigError(
            f"delivery={EXACTLY_ONCE} needs the options writeId and batchId, which identify what is written:"
            " a write with the same two is done once. In foreachBatch set writeId to the name of the query"
            " and batchId to the id of the batch"
        )
    id_prefix = _name(given, "transactionalIdPrefix", TRANSACTIONAL_ID_PREFIX)
    _check_length(id_prefix, write_id or "")
    return ExactlyOnce(
        control_topic=_name(given, "controlTopic", CONTROL_TOPIC),
        id_prefix=id_prefix,
        skip_lost_rows=given.value("skipLostRows"),
        write_id=write_id,
        batch_id=batch_id,
    )


def _check_length(id_prefix: str, write_id: str) -> None:
    """Raises ConfigError for names that are too long for a transactional id."""
    size = len(id_prefix.encode()) + len(write_id.encode())
    if size > ID_PARTS_BYTES_MAX:
        raise ConfigError(
            f"options transactionalIdPrefix and writeId have {size} bytes together, and a transactional id"
            f" has room for {ID_PARTS_BYTES_MAX}: shorten them"
        )


def _name(given: GivenOptions, option: str, default: str) -> str:
    text = given.text(option)
    if text is not None and not text.strip():
        raise ConfigError(f"option {option} is empty: set a name, or leave it out for {default}")
    return default if text is None else text.strip()
