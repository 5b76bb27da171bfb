"""The configuration of a topic, and the validation of run-time settings of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.model.configs.all_keys import BROKER_KEYS, BROKER_SYNONYMS, TOPIC_KEYS, TOPIC_SYNONYMS
from tidemill.model.configs.broker_config import BrokerConfig
from tidemill.model.configs.config_def import CLUSTER_WIDE, LONG_MAX, MIN_INSYNC, READ_ONLY, Value
from tidemill.model.configs.config_values import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    DYNAMIC_TOPIC,
    ParsedConfig,
    Synonym,
)
from tidemill.model.configs.message_format_versions import magic_of
from tidemill.model.errors import ConfigError

AT_RUN_TIME = (DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER)
ZSTD_MAGIC_MIN = 2
"""The first message format that supports zstd."""


WHILE_UNREADABLE: Mapping[str, Mapping[str, Value]] = {
    "cleanup.policy": {"cleanup.policy": ("delete",), "retention.ms": -1, "retention.bytes": -1},
    "delete.retention.ms": {"delete.retention.ms": LONG_MAX},
    "min.compaction.lag.ms": {"min.compaction.lag.ms": LONG_MAX},
    "retention.bytes": {"retention.bytes": -1},
    "retention.ms": {"retention.ms": -1},
}
"""Values that apply while a topic's own setting for deletion is unreadable.

The default could be shorter than the requested value, and must not delete records.
"""


class TopicConfig(ParsedConfig):
    """The effective settings of a topic: ``overrides`` are its own settings, as written, over the broker's.

    ``unreadable`` has the error, by key, of own settings that are invalid: another program, or a later
    version of this one, wrote them. The broker's defaults apply instead, except for :data:`WHILE_UNREADABLE`.
    """

    __slots__ = ("broker", "overrides", "unreadable")

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        self.broker = broker
        own, self.unreadable = TOPIC_KEYS.parse_stored(overrides)
        self.overrides = {name: overrides[name] for name in own}
        for name in self.unreadable:
            own |= WHILE_UNREADABLE.get(name, {})
        values = broker.topic_defaults()
        if own:
            values = {**values, **own}
            both = values["message.timestamp.difference.max.ms"]
            for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
                if both is not None and name not in self.overrides:
                    values[name] = both
        super().__init__(values)

    def rendered(self, key: str) -> str | None:
        """Returns the effective value as in DescribeConfigs."""
        return TOPIC_KEYS[key].render(self._values[key])

    def source(self, key: str) -> int:
        """Returns the source of the value, as the number in DescribeConfigs."""
        synonyms = self.synonyms(key)
        return synonyms[0].source if synonyms else DEFAULT

    def synonyms(self, key: str) -> list[Synonym]:
        """Returns all sources that have a value for the topic key, the effective one first."""
        found = []
        if key in self.overrides:
            found.append(Synonym(key, self.rendered(key), DYNAMIC_TOPIC))
        if key in TOPIC_SYNONYMS:
            found.extend(self._inherited(key))
        elif TOPIC_KEYS[key].default is not None:
            found.append(Synonym(key, TOPIC_KEYS[key].render(TOPIC_KEYS[key].default), DEFAULT))
        return found

    def _inherited(self, key: str) -> list[Synonym]:
        """Returns the sources in the broker's settings that have a value for the topic key.

        ``min.insync.replicas`` has one value in the cluster (KIP-966). Where the store has none, the cluster
        is this broker alone, and its configuration has the value of the cluster. Apache Kafka 4.3.1 returns
        the same for a topic.
        """
        found = self.broker.synonyms(TOPIC_SYNONYMS[key])
        if key == MIN_INSYNC and not any(synonym.source in AT_RUN_TIME for synonym in found):
            found.insert(0, Synonym(key, self.broker.rendered(key), DYNAMIC_DEFAULT_BROKER))
        return found


def while_unreadable(name: str) -> dict[str, str]:
    """Returns :data:`WHILE_UNREADABLE` of one key, as setting texts."""
    return {key: TOPIC_KEYS[key].render(value) or "" for key, value in WHILE_UNREADABLE.get(name, {}).items()}


def brokers_while_unreadable(name: str) -> dict[str, str]:
    """Returns the same for a broker setting that applies to all topics without their own."""
    return {
        TOPIC_SYNONYMS[key]: TOPIC_KEYS[key].render(value) or ""
        for topic_key, held in WHILE_UNREADABLE.items()
        if name in topic_synonyms(topic_key)
        for key, value in held.items()
    }


def all_unreadable() -> dict[str, str]:
    """Returns the settings of a topic while none of its own can be read."""
    settings: dict[str, str] = {}
    for name in WHILE_UNREADABLE:
        settings |= while_unreadable(name)
    return settings


def all_brokers_unreadable() -> dict[str, str]:
    """Returns the same for the settings of a broker, or of all brokers."""
    return {TOPIC_SYNONYMS[key]: text for key, text in all_unreadable().items()}


def topic_synonyms(key: str) -> tuple[str, ...]:
    """Returns the broker keys for a topic key that the topic does not set, in order of precedence."""
    if key not in TOPIC_SYNONYMS:
        return ()
    broker_key = TOPIC_SYNONYMS[key]
    return (broker_key, *(name for name, _ in BROKER_SYNONYMS.get(broker_key, ())))


def check_topic_settings(settings: Mapping[str, str | None]) -> None:
    """Raises ConfigError when a topic may not have these settings; None as a value is an error, too."""
    for name, text in settings.items():
        TOPIC_KEYS.parse(name, text)
    check_settings_together(settings)


def check_settings_together(settings: Mapping[str, str | None]) -> None:
    """Raises ConfigError for settings that are valid alone, but contradict each other.

    A message format without the codec: Apache Kafka accepts such a topic, and refuses all messages to it. A
    minimum compaction lag above the maximum: Apache Kafka refuses that, too (``LogConfig.validateValues``).
    """
    least, most = (_number_of(settings, f"{name}.compaction.lag.ms") for name in ("min", "max"))
    if least > most:
        raise ConfigError(
            f"min.compaction.lag.ms={least} and max.compaction.lag.ms={most} do not go together: the minimum "
            "time that records stay uncompacted is above the maximum"
        )
    version = settings.get("message.format.version")
    if version and settings.get("compression.type") == "zstd" and magic_of(version) < ZSTD_MAGIC_MIN:
        raise ConfigError(
            f"message.format.version={version} and compression.type=zstd do not go together: messages of "
            "that format cannot be compressed with zstd; use gzip, snappy or lz4, or a format from 0.11.0 on"
        )


def _number_of(settings: Mapping[str, str | None], name: str) -> int:
    """Returns the integer that these settings have for a key, or else the default of the key."""
    text = settings.get(name)
    value = TOPIC_KEYS[name].default if text is None else TOPIC_KEYS[name].parse(text)
    return value if isinstance(value, int) else 0


def check_broker_settings(settings: Mapping[str, str | None], *, all_brokers: bool) -> None:
    """Raises ConfigError when these broker keys may not be changed to these values at run time."""
    for name, text in settings.items():
        key = BROKER_KEYS.find(name)
        if key.dynamic == READ_ONLY:
            raise ConfigError(
                f"{name} cannot be changed while the broker runs: set it in the file and restart"
            )
        if all_brokers and key.dynamic != CLUSTER_WIDE:
            raise ConfigError(f"{name} can be changed for one broker only: name the broker")
        if BROKER_KEYS.parse(name, text) == 0 and name == "log.cleaner.threads":
            # As Apache Kafka, which takes a 0 from the file only (LogCleaner.validateReconfiguration).
            raise ConfigError(
                f"{name}=0: allowed is 1 or more while the broker runs; log.cleaner.enable=false in the file "
                "switches compaction off"
            )
