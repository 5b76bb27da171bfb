"""A broker's configuration: where values come from, which of them holds, and what a topic gets of them.

Precedence, highest first: what was set at run time for this broker, at run time for all brokers,
``--set``, the environment, the file, the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tidemill.model.configs.keys import Key, Value
from tidemill.model.configs.listeners import Listener, advertised_listeners, parse_listeners
from tidemill.model.configs.properties import read_properties
from tidemill.model.configs.tables import BROKER_KEYS, BROKER_SYNONYMS, TOPIC_KEYS, TOPIC_SYNONYMS
from tidemill.model.configs.topic import TopicConfig
from tidemill.model.configs.values import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    STATIC_BROKER,
    Config,
    Setting,
    Synonym,
)
from tidemill.model.errors import ConfigError

ALL_DIRECTORIES = "*"
"""As the only value of ``cordoned.log.dirs``."""

STANDALONE_DEFAULTS: Mapping[str, Value] = {"group.initial.rebalance.delay.ms": 0}
"""Defaults of a broker on its own store, as in the properties that Apache Kafka ships for trying out."""


class BrokerConfig(Config):
    """All keys of one broker, checked.

    ``warnings`` are for the operator to act on (unknown keys, keys given twice); ``notes`` say of keys that
    were set that they have no effect, and why.
    """

    __slots__ = ("_broker", "_cluster", "_listener_values", "_static", "_topic_defaults", "notes", "warnings")

    def __init__(
        self,
        static: Mapping[str, Setting] | None = None,
        *,
        broker: Mapping[str, Setting] | None = None,
        cluster: Mapping[str, Setting] | None = None,
        listener_values: Mapping[str, Setting] | None = None,
        warnings: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> None:
        self._static = dict(static or {})
        self._broker = dict(broker or {})
        self._cluster = dict(cluster or {})
        self._listener_values = dict(listener_values or {})
        self._topic_defaults: dict[str, Value] | None = None
        self.warnings = warnings
        self.notes = notes

    @classmethod
    def from_sources(
        cls,
        file: str | None = None,
        sets: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        options: Iterable[tuple[str, str]] = (),
    ) -> BrokerConfig:
        """Reads file, environment and ``key=value`` sets; ConfigError at the first value that is wrong.

        A variable ``TIDEMILL_LOG_DIRS`` stands for ``log.dirs``; an empty one counts as not set. ``options``
        are sets that were given by another option, as ``("-d", "log.dirs=/some/dir")``.
        """
        from tidemill.model.configs.sources import ENVIRONMENT_PREFIX, NOT_KEYS, Gathered

        gathered = Gathered()
        if file is not None:
            for line in read_properties(file):
                gathered.add(line.key, line.value, f"{file}:{line.line}", layer=file)
        for variable, text in sorted((environment or {}).items()):
            if variable.startswith(ENVIRONMENT_PREFIX) and variable not in NOT_KEYS and text != "":
                gathered.add_variable(variable, text)
        for option, text in options:
            key, _, value = text.partition("=")
            gathered.add(key, value, option, layer="--set")
        for text in sets:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"--set {text}: it must be KEY=VALUE, as in --set log.dirs=/some/dir")
            gathered.add(key.strip(), value, f"--set {key.strip()}", layer="--set")
        gathered.check_access()
        config = cls(
            gathered.settings,
            listener_values=gathered.listener_values,
            warnings=tuple(gathered.warnings),
            notes=tuple(gathered.notes()),
        )
        config.check()
        config.check_directories()
        return config

    @classmethod
    def of(
        cls, values: Mapping[str, str] | None = None, **keywords: str | int | float | bool
    ) -> BrokerConfig:
        """A configuration for tests and embedding: ``BrokerConfig.of(log_dirs="/d", num_partitions=3)``."""
        merged = dict(values or {})
        for name, value in keywords.items():
            merged[name.replace("_", ".")] = str(value).lower() if isinstance(value, bool) else str(value)
        return cls.from_sources(sets=[f"{key}={value}" for key, value in merged.items()])

    def check(self) -> None:
        """What one key alone cannot tell; ConfigError where keys contradict one another."""
        roles = self.list("process.roles")
        if roles and "broker" not in roles:
            raise ConfigError(
                f"process.roles={','.join(roles)}: this program is a broker; it has no process for a "
                "controller alone. Leave the key out, or add broker"
            )
        parse_listeners(self)
        advertised_listeners(self)
        self.connections_per_address()
        if not self.log_dirs():
            raise ConfigError("log.dirs is empty: at least one data directory is needed")
        shortest, longest = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
        if self.int(shortest) > self.int(longest):
            raise ConfigError(
                f"{shortest}={self.int(shortest)} is above {longest}={self.int(longest)}: "
                "lower one or raise the other"
            )

    def check_directories(self) -> None:
        """ConfigError for a data directory that is named twice, and for a cordoned one that there is not.

        Source: Apache Kafka, ``LogManager.createAndValidateLogDirs`` and
        ``KafkaConfig.validateCordonedLogDirs``.
        """
        given = self.provenance("log.dirs")
        seen: dict[str, str] = {}
        for path in self.list("log.dirs"):
            place = os.path.realpath(path)
            if place in seen:
                also = "" if seen[place] == path else f" (as {seen[place]} and as {path})"
                raise ConfigError(
                    f"log.dirs names {place} twice{also}: name each data directory once ({given})"
                )
            seen[place] = path
        cordoned = self.list("cordoned.log.dirs")
        known = {os.path.abspath(path) for path in self.log_dirs()}
        given = self.provenance("cordoned.log.dirs")
        if ALL_DIRECTORIES in cordoned and len(cordoned) > 1:
            raise ConfigError(
                f"cordoned.log.dirs={','.join(cordoned)}: {ALL_DIRECTORIES} is every directory, and stands "
                f"alone ({given})"
            )
        strange = [
            path for path in cordoned if path != ALL_DIRECTORIES and os.path.abspath(path) not in known
        ]
        if strange:
            raise ConfigError(
                f"cordoned.log.dirs names {', '.join(strange)}, which is not in log.dirs="
                f"{','.join(self.log_dirs())}: name directories of log.dirs ({given})"
            )

    # Values

    def get(self, key: str) -> Value:
        """The value that holds for ``key``, its synonyms looked through (``log.retention.hours`` ...)."""
        definition = BROKER_KEYS[key]
        setting = self._setting(key)
        if setting is not None:
            return setting.value
        synonyms = BROKER_SYNONYMS.get(key, ())
        for name, factor in synonyms:
            setting = self._setting(name)
            if setting is not None and setting.value is not None:
                return _times(setting.value, factor)
        if key in STANDALONE_DEFAULTS and self.store() == "embedded":
            return STANDALONE_DEFAULTS[key]
        if definition.default is None:
            for name, factor in reversed(synonyms):
                if BROKER_KEYS[name].default is not None:
                    return _times(BROKER_KEYS[name].default, factor)
        return definition.default

    def is_set(self, key: str) -> bool:
        """Whether ``key`` itself was given, by whatever source."""
        return self._setting(key) is not None

    def provenance(self, key: str) -> str:
        """Who gave the value: ``default``, ``FILE:LINE``, ``environment NAME``, ``--set KEY`` ..."""
        for name in (key, *(name for name, _ in BROKER_SYNONYMS.get(key, ()))):
            setting = self._setting(name)
            if setting is not None:
                return setting.provenance
        return "default"

    def source(self, key: str) -> int:
        """Where the value comes from, as DescribeConfigs numbers it."""
        synonyms = self.synonyms(key)
        return synonyms[0].source if synonyms else DEFAULT

    def synonyms(self, key: str) -> list[Synonym]:
        """All places that hold a value for ``key``, the one that counts first."""
        names = (key, *(name for name, _ in BROKER_SYNONYMS.get(key, ())))
        found = []
        layers = (
            (DYNAMIC_BROKER, self._broker),
            (DYNAMIC_DEFAULT_BROKER, self._cluster),
            (STATIC_BROKER, self._static),
        )
        for source, layer in layers:
            for name in names:
                if name in layer:
                    found.append(Synonym(name, self._shown(BROKER_KEYS[name], layer[name].value), source))
        for name in names:
            default = BROKER_KEYS[name].default
            if name in STANDALONE_DEFAULTS and self.store() == "embedded":
                default = STANDALONE_DEFAULTS[name]
            if default is not None:
                found.append(Synonym(name, self._shown(BROKER_KEYS[name], default), DEFAULT))
                break
        return found

    def rendered(self, key: str) -> str | None:
        """The value that holds, as DescribeConfigs gives it; None for secrets and for what is not set."""
        return self._shown(BROKER_KEYS[key], self.get(key))

    def with_overrides(
        self, broker: Mapping[str, str] | None = None, cluster: Mapping[str, str] | None = None
    ) -> BrokerConfig:
        """The same with other run-time values (all of them: what is not in the mapping is gone).

        ``broker`` holds those of this broker, ``cluster`` those of all; None leaves them as they are.
        """
        config = BrokerConfig(
            self._static,
            broker=self._broker if broker is None else _parsed(broker, "set at run time"),
            cluster=self._cluster if cluster is None else _parsed(cluster, "set at run time for all brokers"),
            listener_values=self._listener_values,
            warnings=self.warnings,
            notes=self.notes,
        )
        config.check()
        return config

    def _setting(self, key: str) -> Setting | None:
        return self._broker.get(key) or self._cluster.get(key) or self._static.get(key)

    @staticmethod
    def _shown(key: Key, value: Value) -> str | None:
        return None if key.sensitive else key.render(value)

    # Shapes that several keys make together

    def log_dirs(self) -> tuple[str, ...]:
        """Data directories, without repetitions."""
        return tuple(dict.fromkeys(self.list("log.dirs")))

    def node_id(self) -> int | None:
        """This broker's number; None when the configuration leaves it open."""
        number = self.int("node.id")
        return None if number < 0 else number

    def store(self) -> str:
        """``embedded`` or ``zookeeper``."""
        return self.str("tidemill.store") or ("zookeeper" if self.str("zookeeper.connect") else "embedded")

    def listeners(self) -> tuple[Listener, ...]:
        """Addresses to bind. A KRaft controller's listener is left out."""
        return parse_listeners(self)

    def advertises(self) -> bool:
        """Whether somebody configured the addresses that clients are told."""
        return any(map(self.is_set, ("advertised.listeners", "advertised.host.name", "advertised.port")))

    def advertised_listeners(self) -> tuple[Listener, ...]:
        """Addresses to tell clients, one for each listener; port 0 means the port that was bound."""
        return advertised_listeners(self)

    def connections_per_address(self) -> dict[str, int]:
        """The exceptions to ``max.connections.per.ip``: count by address or host name."""
        return parse_counts("max.connections.per.ip.overrides", self.str("max.connections.per.ip.overrides"))

    def listener_value(self, listener: str, key: str) -> Value:
        """``listener.name.LISTENER.KEY`` where it is set, ``KEY`` where not."""
        setting = self._listener_values.get(f"listener.name.{listener.lower()}.{key}")
        return setting.value if setting is not None else self.get(key)

    def connections_per_listener(self) -> dict[str, int]:
        """``listener.name.LISTENER.max.connections`` of the listeners that have one of their own."""
        found = {}
        for one in self.listeners():
            setting = self._listener_values.get(f"listener.name.{one.name.lower()}.max.connections")
            if setting is not None and isinstance(setting.value, int):
                found[one.name] = setting.value
        return found

    # Topics

    def topic_defaults(self) -> dict[str, Value]:
        """Every topic key with the value that a topic without settings of its own has."""
        if self._topic_defaults is None:
            self._topic_defaults = {
                name: self.get(TOPIC_SYNONYMS[name]) if name in TOPIC_SYNONYMS else key.default
                for name, key in TOPIC_KEYS.items()
            }
        return self._topic_defaults

    def topic_config(self, overrides: Mapping[str, str] | None = None) -> TopicConfig:
        """What holds for a topic that sets ``overrides``. Keys that nobody knows are passed over."""
        return TopicConfig(self, overrides or {})


def parse_counts(key: str, text: str) -> dict[str, int]:
    """``address:count`` pairs with commas, an IPv6 address in brackets or not."""
    counts = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        address, _, count = part.rpartition(":")
        address = address.strip().strip("[]")
        if not address or not count.strip().isdigit():
            raise ConfigError(f"{key}={text}: {part!r} is no address:count pair, as in 10.0.0.1:200")
        counts[address] = int(count)
    return counts


def _parsed(settings: Mapping[str, str], provenance: str) -> dict[str, Setting]:
    return {
        name: Setting(BROKER_KEYS[name].parse(text), text, provenance)
        for name, text in settings.items()
        if name in BROKER_KEYS
    }


def _times(value: Value, factor: int) -> Value:
    if factor != 1 and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value * factor
    return value
