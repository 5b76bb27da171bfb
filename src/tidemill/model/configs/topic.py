"""What holds for one topic, and what may be set for topics and brokers at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidemill.model.configs.formats import magic_of
from tidemill.model.configs.keys import CLUSTER_WIDE, LONG_MAX, MIN_INSYNC, READ_ONLY, Value
from tidemill.model.configs.tables import BROKER_KEYS, BROKER_SYNONYMS, TOPIC_KEYS, TOPIC_SYNONYMS
from tidemill.model.configs.values import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    DYNAMIC_TOPIC,
    Config,
    Synonym,
)
from tidemill.model.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.model.configs.broker import BrokerConfig


AT_RUN_TIME = (DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER)
ZSTD_MAGIC_MIN = 2
"""The message format in which zstd exists."""


WHILE_UNREADABLE: Mapping[str, Mapping[str, Value]] = {
    "cleanup.policy": {"cleanup.policy": ("delete",), "retention.ms": -1, "retention.bytes": -1},
    "delete.retention.ms": {"delete.retention.ms": LONG_MAX},
    "min.compaction.lag.ms": {"min.compaction.lag.ms": LONG_MAX},
    "retention.bytes": {"retention.bytes": -1},
    "retention.ms": {"retention.ms": -1},
}
"""What holds while nobody can tell what a topic wanted of its deletion: nothing goes by a default that may be
shorter than what was asked for."""


class TopicConfig(Config):
    """What holds for one topic: its own settings over the broker's. ``overrides`` are its own, as written.

    ``unreadable`` says by key what is wrong with settings of its own that make no sense: another program, or
    a later version of this one, wrote them. The broker's defaults hold in their place, but for
    :data:`WHILE_UNREADABLE`.
    """

    __slots__ = ("_values", "broker", "overrides", "unreadable")

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        self.broker = broker
        self.overrides: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self._values = broker.topic_defaults()
        own: dict[str, Value] = {}
        for name, text in overrides.items():
            if name in TOPIC_KEYS:
                try:
                    own[name] = TOPIC_KEYS[name].parse(text)
                    self.overrides[name] = text
                except ConfigError as problem:
                    self.unreadable[name] = str(problem)
        for name in self.unreadable:
            own |= WHILE_UNREADABLE.get(name, {})
        if own:
            self._values = {**self._values, **own}
            both = self._values["message.timestamp.difference.max.ms"]
            for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
                if both is not None and name not in self.overrides:
                    self._values[name] = both

    def get(self, key: str) -> Value:
        """The value that holds for the topic key."""
        return self._values[key]

    def values(self) -> Mapping[str, Value]:
        """All topic keys with the values that hold."""
        return self._values

    def rendered(self, key: str) -> str | None:
        """The value that holds, as DescribeConfigs gives it."""
        return TOPIC_KEYS[key].render(self._values[key])

    def source(self, key: str) -> int:
        """Where the value comes from, as DescribeConfigs numbers it."""
        synonyms = self.synonyms(key)
        return synonyms[0].source if synonyms else DEFAULT

    def synonyms(self, key: str) -> list[Synonym]:
        """All places that hold a value for the topic key, the one that counts first."""
        found = []
        if key in self.overrides:
            found.append(Synonym(key, self.rendered(key), DYNAMIC_TOPIC))
        if key in TOPIC_SYNONYMS:
            found.extend(self._inherited(key))
        elif TOPIC_KEYS[key].default is not None:
            found.append(Synonym(key, TOPIC_KEYS[key].render(TOPIC_KEYS[key].default), DEFAULT))
        return found

    def _inherited(self, key: str) -> list[Synonym]:
        """The places in the broker's settings that hold a value for the topic key.

        ``min.insync.replicas`` is one value for the cluster (KIP-966). Where the store has none, the cluster
        is this broker alone, and its configuration says what is the cluster's. Apache Kafka 4.3.1 tells the
        same of a topic.
        """
        found = self.broker.synonyms(TOPIC_SYNONYMS[key])
        if key == MIN_INSYNC and not any(one.source in AT_RUN_TIME for one in found):
            found.insert(0, Synonym(key, self.broker.rendered(key), DYNAMIC_DEFAULT_BROKER))
        return found


def while_unreadable(name: str) -> dict[str, str]:
    """:data:`WHILE_UNREADABLE` of one key, as settings are written."""
    return {key: TOPIC_KEYS[key].render(value) or "" for key, value in WHILE_UNREADABLE.get(name, {}).items()}


def brokers_while_unreadable(name: str) -> dict[str, str]:
    """The same for a setting of brokers that all topics have which set nothing."""
    return {
        TOPIC_SYNONYMS[key]: TOPIC_KEYS[key].render(value) or ""
        for topic_key, held in WHILE_UNREADABLE.items()
        if name in topic_synonyms(topic_key)
        for key, value in held.items()
    }


def all_unreadable() -> dict[str, str]:
    """What a topic is given while none of its settings can be read."""
    settings: dict[str, str] = {}
    for name in WHILE_UNREADABLE:
        settings |= while_unreadable(name)
    return settings


def all_brokers_unreadable() -> dict[str, str]:
    """The same for the settings of a broker, or of all."""
    return {TOPIC_SYNONYMS[key]: text for key, text in all_unreadable().items()}


def topic_synonyms(key: str) -> tuple[str, ...]:
    """The broker keys that hold for a topic key where the topic sets nothing, in order of precedence."""
    if key not in TOPIC_SYNONYMS:
        return ()
    broker_key = TOPIC_SYNONYMS[key]
    return (broker_key, *(name for name, _ in BROKER_SYNONYMS.get(broker_key, ())))


def check_topic_settings(settings: Mapping[str, str | None]) -> None:
    """Raises ConfigError when a topic may not have these settings; None as a value is an error, too."""
    for name, text in settings.items():
        key = TOPIC_KEYS.get(name)
        if key is None:
            raise ConfigError(f"Unknown topic config name: {name}{near(name, TOPIC_KEYS)}")
        if text is None:
            raise ConfigError(f"{name} has no value: allowed is {key.allowed_text()}")
        key.parse(text)
    check_settings_together(settings)


def check_settings_together(settings: Mapping[str, str | None]) -> None:
    """Raises ConfigError for settings that contradict each other, each good by itself.

    A format without the codec of the messages: Apache Kafka takes such a topic, and refuses whatever is sent
    to it. Records that stay uncompacted for longer at least than at most: it refuses those, too
    (``LogConfig.validateValues``).
    """
    least, most = (_number_of(settings, f"{name}.compaction.lag.ms") for name in ("min", "max"))
    if least > most:
        raise ConfigError(
            f"min.compaction.lag.ms={least} and max.compaction.lag.ms={most} do not go together: records "
            "cannot stay uncompacted for longer at least than at most"
        )
    version = settings.get("message.format.version")
    if version and settings.get("compression.type") == "zstd" and magic_of(version) < ZSTD_MAGIC_MIN:
        raise ConfigError(
            f"message.format.version={version} and compression.type=zstd do not go together: messages of "
            "that format cannot be compressed with zstd; use gzip, snappy or lz4, or a format from 0.11.0 on"
        )


def _number_of(settings: Mapping[str, str | None], name: str) -> int:
    """What a topic with these settings has for a whole number, the key's own default where it sets none."""
    text = settings.get(name)
    value = TOPIC_KEYS[name].default if text is None else TOPIC_KEYS[name].parse(text)
    return value if isinstance(value, int) else 0


def check_broker_settings(settings: Mapping[str, str | None], *, all_brokers: bool) -> None:
    """Raises ConfigError when these broker keys may not be changed to these values at run time."""
    for name, text in settings.items():
        key = BROKER_KEYS.get(name)
        if key is None:
            raise ConfigError(f"Unknown broker config name: {name}{near(name, BROKER_KEYS)}")
        if key.dynamic == READ_ONLY:
            raise ConfigError(
                f"{name} cannot be changed while the broker runs: set it in the file and restart"
            )
        if all_brokers and key.dynamic != CLUSTER_WIDE:
            raise ConfigError(f"{name} can be changed for one broker only: name the broker")
        if text is None:
            raise ConfigError(f"{name} has no value: allowed is {key.allowed_text()}")
        if key.parse(text) == 0 and name == "log.cleaner.threads":
            # As Apache Kafka, which takes a 0 from the file only (LogCleaner.validateReconfiguration).
            raise ConfigError(
                f"{name}=0: allowed is 1 or more while the broker runs; log.cleaner.enable=false in the file "
                "switches compaction off"
            )


def near(name: str, known: Iterable[str]) -> str:
    """``"; did you mean X?"`` for the known name that comes nearest, or nothing."""
    import difflib

    found = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {found[0]}?" if found else ""
