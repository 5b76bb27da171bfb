"""A broker's configuration: the sources of its values, their precedence, and the defaults of topics.

Precedence, highest first: set at run time for this broker, set at run time for all brokers, ``--set``, the
environment, the file, the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tidemill.model.configs.access_control import check_access
from tidemill.model.configs.all_keys import BROKER_KEYS, BROKER_SYNONYMS, TOPIC_KEYS, TOPIC_SYNONYMS
from tidemill.model.configs.config_def import Key, Value
from tidemill.model.configs.config_loader import ENVIRONMENT_PREFIX, NOT_KEYS, Gathered
from tidemill.model.configs.config_values import (
    DEFAULT,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    STATIC_BROKER,
    Setting,
    SourcedConfig,
    Synonym,
)
from tidemill.model.configs.listeners import Listener, advertised_listeners, parse_listeners
from tidemill.model.configs.properties import read_properties
from tidemill.model.errors import ConfigError

ALL_DIRECTORIES = "*"
"""Denotes all directories, as the only value of ``cordoned.log.dirs``."""

STANDALONE_DEFAULTS: Mapping[str, Value] = {"group.initial.rebalance.delay.ms": 0}
"""Defaults of a broker on its own store, as in the properties that Apache Kafka ships for a first try."""


class BrokerConfig(SourcedConfig):
    """All keys of one broker, validated.

    ``warnings`` need the operator's attention (unknown keys, keys given twice, quotas); ``notes`` list other
    keys that were set but have no effect, with the reason.
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
        """Reads file, environment and ``key=value`` sets. Raises ConfigError at the first invalid value.

        The variable ``TIDEMILL_LOG_DIRS`` sets ``log.dirs``; an empty variable counts as not set. ``options``
        are the sets of other options, as ``("-d", "log.dirs=/some/dir")``.
        """
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
        check_access(gathered.settings, gathered.authorizer_options)
        config = cls(
            gathered.settings,
            listener_values=gathered.listener_values,
            warnings=(*gathered.warnings, *gathered.quota_warnings()),
            notes=tuple(gathered.notes()),
        )
        config.check()
        config.check_directories()
        return config

    @classmethod
    def of(
        cls, values: Mapping[str, str] | None = None, **keywords: str | int | float | bool
    ) -> BrokerConfig:
        """Returns a configuration for tests and embedding: ``BrokerConfig.of(num_partitions=3)``."""
        merged = dict(values or {})
        for name, value in keywords.items():
            merged[name.replace("_", ".")] = str(value).lower() if isinstance(value, bool) else str(value)
        return cls.from_sources(sets=[f"{key}={value}" for key, value in merged.items()])

    def check(self) -> None:
        """Checks keys against each other. Raises ConfigError where they contradict each other."""
        roles = self.list("process.roles")
        if roles and "broker" not in roles:
            raise ConfigError(
                f"process.roles={','.join(roles)}: this program is a broker, and cannot run as a controller "
                "alone. Leave the key out, or add broker"
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
        """Raises ConfigError for a duplicate data directory, and for a cordoned one that is not in log.dirs.

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
                f"cordoned.log.dirs={','.join(cordoned)}: {ALL_DIRECTORIES} means every directory, and must "
                f"be the only value ({given})"
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
        """Returns the effective value of ``key`` or of its synonyms (``log.retention.hours`` ...)."""
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
        """Returns whether ``key`` itself was set, by any source."""
        return self._setting(key) is not None

    def provenance(self, key: str) -> str:
        """Returns the value's source: ``default``, ``FILE:LINE``, ``environment NAME``, ``--set KEY`` ..."""
        for name in (key, *(name for name, _ in BROKER_SYNONYMS.get(key, ()))):
            setting = self._setting(name)
            if setting is not None:
                return setting.provenance
        return "default"

    def synonyms(self, key: str) -> list[Synonym]:
        """Returns all sources that have a value for ``key``, the effective one first."""
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
        """Returns the effective value as in DescribeConfigs; None for secrets and for unset keys."""
        return self._shown(BROKER_KEYS[key], self.get(key))

    def with_overrides(
        self, broker: Mapping[str, str] | None = None, cluster: Mapping[str, str] | None = None
    ) -> BrokerConfig:
        """Returns a copy with other run-time values, which replace all former ones.

        ``broker`` has the values of this broker, ``cluster`` those of all brokers; None keeps the former
        ones.
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

    # Values derived from several keys

    def log_dirs(self) -> tuple[str, ...]:
        """Returns the data directories, without duplicates."""
        return tuple(dict.fromkeys(self.list("log.dirs")))

    def node_id(self) -> int | None:
        """Returns the broker id; None when the configuration does not set it."""
        number = self.int("node.id")
        return None if number < 0 else number

    def store(self) -> str:
        """Returns ``embedded`` or ``zookeeper``."""
        return self.str("tidemill.store") or ("zookeeper" if self.str("zookeeper.connect") else "embedded")

    def listeners(self) -> tuple[Listener, ...]:
        """Returns the addresses to bind, without the listeners of a KRaft controller."""
        return parse_listeners(self)

    def advertises(self) -> bool:
        """Returns whether the addresses for clients are configured."""
        return any(map(self.is_set, ("advertised.listeners", "advertised.host.name", "advertised.port")))

    def advertised_listeners(self) -> tuple[Listener, ...]:
        """Returns the addresses for clients, one per listener; port 0 means the port that was bound."""
        return advertised_listeners(self)

    def connections_per_address(self) -> dict[str, int]:
        """Returns the exceptions to ``max.connections.per.ip``: counts by address or host name."""
        return parse_counts("max.connections.per.ip.overrides", self.str("max.connections.per.ip.overrides"))

    def connections_per_listener(self) -> dict[str, int]:
        """Returns ``listener.name.LISTENER.max.connections`` of the listeners that set it."""
        found = {}
        for listener in self.listeners():
            setting = self._listener_values.get(f"listener.name.{listener.name.lower()}.max.connections")
            if setting is not None and isinstance(setting.value, int):
                found[listener.name] = setting.value
        return found

    # Topics

    def topic_defaults(self) -> dict[str, Value]:
        """Returns every topic key with its value for a topic without its own settings."""
        if self._topic_defaults is None:
            self._topic_defaults = {
                name: self.get(TOPIC_SYNONYMS[name]) if name in TOPIC_SYNONYMS else key.default
                for name, key in TOPIC_KEYS.items()
            }
        return self._topic_defaults


def parse_counts(key: str, text: str) -> dict[str, int]:
    """Parses ``address:count`` pairs separated by commas, with IPv6 addresses in brackets or not."""
    counts = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        address, _, count = part.rpartition(":")
        address = address.strip().strip("[]")
        if not address or not count.strip().isdigit():
            raise ConfigError(f"{key}={text}: {part!r} is not an address:count pair, as in 10.0.0.1:200")
        counts[address] = int(count)
    return counts


def _parsed(settings: Mapping[str, str], provenance: str) -> dict[str, Setting]:
    return {
        name: Setting(BROKER_KEYS[name].parse(text.strip(), provenance), text, provenance)
        for name, text in settings.items()
        if name in BROKER_KEYS
    }


def _times(value: Value, factor: int) -> Value:
    if factor != 1 and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value * factor
    return value
