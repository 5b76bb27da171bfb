"""Typed access to effective values, and the sources of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidemill.model.configs.config_def import Value
from tidemill.model.errors import ConfigError

DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT = 1, 2, 3, 4, 5
DYNAMIC_GROUP = 8
"""Sources of values, with their numbers in DescribeConfigs."""


class Setting(NamedTuple):
    """A value that was set: parsed, as text, and its source."""

    value: Value
    text: str
    provenance: str


class Synonym(NamedTuple):
    """One of the sources of a value, as in DescribeConfigs."""

    name: str
    value: str | None
    source: int


class Config:
    """Typed access to effective values by Kafka's key names. Immutable."""

    __slots__ = ()

    def get(self, key: str) -> Value:
        """Returns the effective value of ``key``. Raises KeyError for a key that is not in the table."""
        raise NotImplementedError

    def seconds(self, key: str) -> float:
        """Returns a value in milliseconds, as seconds. Raises ConfigError when it is not set."""
        return self.int(key) / 1000

    def int(self, key: str) -> int:
        """Returns an integer. Raises ConfigError when it is not set."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{key} is {value!r}: it must be a whole number")
        return value

    def float(self, key: str) -> float:
        """Returns a number. Raises ConfigError when it is not set."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, (float, int)):
            raise ConfigError(f"{key} is {value!r}: it must be a number")
        return value

    def bool(self, key: str) -> bool:
        """Returns a boolean."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {value!r}: it must be true or false")
        return value

    def list(self, key: str) -> tuple[str, ...]:
        """Returns a list; empty when it is not set."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, tuple):
            raise ConfigError(f"{key} is {value!r}: it must be a list")
        return value

    def str(self, key: str) -> str:
        """Returns a text; empty when it is not set."""
        value = self.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise ConfigError(f"{key} is {value!r}: it must be a text")
        return value


class SourcedConfig(Config):
    """Values that several sources may set."""

    __slots__ = ()

    def is_set(self, key: str) -> bool:
        """Returns whether ``key`` itself was set, by any source."""
        raise NotImplementedError

    def provenance(self, key: str) -> str:
        """Returns the value's source: ``default``, ``FILE:LINE``, ``environment NAME``, ``--set KEY`` ..."""
        raise NotImplementedError


class ParsedConfig(Config):
    """Values of all keys of a table, parsed or default."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, key: str) -> Value:
        """Returns the effective value of ``key``. Raises KeyError for a key that is not in the table."""
        value: Value = self._values[key]
        return value

    def __getitem__(self, key: str) -> Any:
        return self._values[key]
