"""Typed reading of resolved values, and where a value comes from."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.configs.keys import Value
from tidemill.model.errors import ConfigError

DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT = 1, 2, 3, 4, 5
DYNAMIC_GROUP = 8
"""Where a value comes from, with the numbers that DescribeConfigs gives them."""


class Setting(NamedTuple):
    """A value that was set: parsed, as it was written, and by what."""

    value: Value
    text: str
    provenance: str


class Synonym(NamedTuple):
    """One of the places that a value could come from, as DescribeConfigs lists them."""

    name: str
    value: str | None
    source: int


class Config:
    """Typed reading of resolved values by Kafka's names. Immutable."""

    __slots__ = ()

    def get(self, key: str) -> Value:
        """The value that holds for ``key``; KeyError for a key that is not in the table."""
        raise NotImplementedError

    def int(self, key: str) -> int:
        """A whole number; an unset one is a ConfigError."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{key} is {value!r}: a whole number is needed")
        return value

    def float(self, key: str) -> float:
        """A number; an unset one is a ConfigError."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, (float, int)):
            raise ConfigError(f"{key} is {value!r}: a number is needed")
        return value

    def bool(self, key: str) -> bool:
        """A flag."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {value!r}: true or false is needed")
        return value

    def list(self, key: str) -> tuple[str, ...]:
        """A list; empty when it is not set."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, tuple):
            raise ConfigError(f"{key} is {value!r}: a list is needed")
        return value

    def str(self, key: str) -> str:
        """A text; empty when it is not set."""
        value = self.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise ConfigError(f"{key} is {value!r}: a text is needed")
        return value
