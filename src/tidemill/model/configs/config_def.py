"""Defines configuration keys, and parses and checks their values, as ``ConfigDef`` of Apache Kafka.

Brokers, topics, groups and clients each have a :class:`ConfigDef`, a table of :class:`Key`. Values are
Kafka's: plain numbers (bytes, milliseconds), ``true`` and ``false``, lists with commas. ``-1`` means "no
limit" only for keys that say so. Clients also accept Python values: numbers, booleans and sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from tidemill.model.configs.key_support import YES
from tidemill.model.errors import ConfigError
from tidemill.model.similar_names import did_you_mean

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A parsed value. Lists are tuples; None means "not set"."""

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)
"""Types, with their numbers in DescribeConfigs."""

TYPE_NAMES = ("", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")
INT_MAX, LONG_MAX, DOUBLE_MAX = 2**31 - 1, 2**63 - 1, 1.7976931348623157e308
_BITS = {INT: 31, SHORT: 15, LONG: 63}

READ_ONLY, PER_BROKER, CLUSTER_WIDE = "read-only", "per-broker", "cluster-wide"
"""When a key of a broker may change: at a restart, on one broker at run time, or on all at once."""

MIN_INSYNC = "min.insync.replicas"
"""The key whose value must be the same on all brokers of a cluster (KIP-966)."""


class Validator(NamedTuple):
    """Allowed values that neither ranges nor choices describe. ``is_valid`` gets the parsed value."""

    is_valid: Callable[[Any], bool]
    text: str


Row: TypeAlias = tuple[str, int, Value, str | Validator, str, str, str]
"""Name, type, default, allowed values, when it may change, effect, description."""


class Key:
    """One configuration key.

    ``allowed`` is a :class:`Validator`, or a text with a small syntax. Numbers: ranges and single values,
    separated by commas (``1..``, ``0..1``, ``-1,1..9``). Texts and list members: choices separated by bars
    (``compact|delete``); a leading ``~`` makes the choices case-insensitive.

    ``spellings`` has other spellings of values, by their lower case, with the value of each.
    ``convert`` replaces the type for values that are Python objects: it receives name and value, and
    returns the parsed value or raises ConfigError.
    """

    __slots__ = (
        "allowed",
        "convert",
        "default",
        "doc",
        "dynamic",
        "effect",
        "former_default",
        "name",
        "scope",
        "spellings",
        "type",
    )

    def __init__(
        self,
        row: Row,
        scope: str,
        former_default: str = "",
        spellings: Mapping[str, str] | None = None,
        convert: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self.name, self.type, self.default, self.allowed, self.dynamic, self.effect, self.doc = row
        self.scope = scope
        self.former_default = former_default
        self.spellings = spellings or {}
        self.convert = convert

    def __repr__(self) -> str:
        return f"Key({self.scope} {self.name})"

    @property
    def takes_effect(self) -> bool:
        """Whether the key has an effect."""
        return self.effect == YES

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret, which is never shown."""
        return self.type == PASSWORD

    def parse(self, value: Any, provenance: str = "") -> Value:
        """Parses a value. Raises ConfigError with key, value, allowed values and ``provenance``, its source.

        A text without restrictions keeps its white space.
        """
        try:
            return self._parsed(value)
        except ConfigError as problem:
            if not provenance:
                raise
            raise ConfigError(f"{problem} ({provenance})") from None

    def render(self, value: Value) -> str | None:
        """Formats ``value`` as in a properties file; None when it is not set."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def allowed_text(self) -> str:
        """Returns a description of the allowed values."""
        if isinstance(self.allowed, Validator):
            return self.allowed.text
        if self.type == BOOLEAN:
            return "true or false"
        if self.type in _BITS or self.type == DOUBLE:
            what = "a number" if self.type == DOUBLE else "a whole number"
            return f"{what}, {_ranges_text(self.allowed)}" if self.allowed else what
        if not self.allowed:
            return "a list with commas" if self.type == LIST else "a text"
        choices = self.allowed.lstrip("~").split("|")
        text = ", ".join(choices[:-1]) + " or " + choices[-1] if len(choices) > 1 else choices[0]
        return f"a list of {text}" if self.type == LIST else text

    def _parsed(self, value: Any) -> Value:
        if self.convert is not None:
            converted: Value = self.convert(self.name, value)
            return converted
        is_text = self.type in (STRING, CLASS, PASSWORD) and not self.allowed
        if value is None and (is_text or self.default is None):
            return None
        if is_text:
            if not isinstance(value, str) and self.type != CLASS:
                raise ConfigError(f"{self._bad(value)}, not {type(value).__name__}")
            text: str = value
            return text
        if isinstance(value, float) and value.is_integer() and self.type in _BITS:
            value = int(value)
        text = str(value).strip()
        text = self.spellings.get(text.lower(), text)
        parsed = self._from_text(text)
        if not self._allows(parsed):
            raise self._bad(text)
        # As Kafka since 4.2: duplicates in a list of choices count once.
        if isinstance(parsed, tuple) and isinstance(self.allowed, str) and self.allowed:
            return tuple(dict.fromkeys(parsed))
        return parsed

    def _from_text(self, text: str) -> Value:
        """Returns the value of the type; raises ConfigError where the text has none."""
        if self.type in _BITS:
            return self._whole(text)
        if self.type == LIST:
            return tuple(filter(None, map(str.strip, text.split(","))))
        if self.type == BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._bad(text)
            return text.lower() == "true"
        if self.type == DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise self._bad(text) from None
        return text

    def _whole(self, text: str) -> int:
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 30:
            raise self._bad(text)
        number = int(text)
        limit = 1 << _BITS[self.type]
        if not -limit <= number < limit:
            bound = f"at most {limit - 1}" if number > 0 else f"at least {-limit}"
            raise ConfigError(f"{self._bad(text)}, and {bound} ({_BITS[self.type] + 1} bits)")
        return number

    def _allows(self, value: Value) -> bool:
        allowed = self.allowed
        if isinstance(allowed, Validator):
            return allowed.is_valid(value)
        if not allowed or isinstance(value, bool):
            return True
        if isinstance(value, int | float):
            return any(_contains(part, value) for part in allowed.split(","))
        members = value if isinstance(value, tuple) else (value,)
        if allowed.startswith("~"):
            members = tuple(str(member).lower() for member in members)
        choices = allowed[1:].lower() if allowed.startswith("~") else allowed
        return set(members) <= set(choices.split("|"))

    def _bad(self, value: Any) -> ConfigError:
        shown = "(hidden)" if self.sensitive else value
        return ConfigError(f"{self.name}={shown}: allowed is {self.allowed_text()}")


class ConfigDef(dict[str, Key]):
    """The keys of one kind of resource, by name. ``kind`` names it in errors."""

    def __init__(self, kind: str, keys: Iterable[Key]) -> None:
        super().__init__((key.name, key) for key in keys)
        self.kind = kind

    def find(self, name: str) -> Key:
        """Returns a key. Raises ConfigError, with the most similar key, when there is none of this name."""
        if name not in self:
            raise ConfigError(f"Unknown {self.kind} config name: {name}{did_you_mean(name, self)}")
        return self[name]

    def parse(self, name: str, text: str | None) -> Value:
        """Parses one setting. Raises ConfigError for an unknown key, an invalid value, and no value."""
        key = self.find(name)
        if text is None:
            raise ConfigError(f"{name} has no value: allowed is {key.allowed_text()}")
        return key.parse(text)

    def parse_stored(self, settings: Mapping[str, str]) -> tuple[dict[str, Value], dict[str, str]]:
        """Parses settings of the store; returns the values, and the errors of invalid ones, by key.

        Ignores unknown keys: another program, or a later version of this one, wrote them.
        """
        values: dict[str, Value] = {}
        errors: dict[str, str] = {}
        for name, text in settings.items():
            if name in self:
                try:
                    values[name] = self[name].parse(text)
                except ConfigError as problem:
                    errors[name] = str(problem)
        return values, errors


def _contains(part: str, number: int | float) -> bool:
    low, dots, high = part.partition("..")
    if not dots:
        return number == float(low)
    return (not low or number >= float(low)) and (not high or number <= float(high))


def _ranges_text(allowed: str) -> str:
    parts = []
    for part in allowed.split(","):
        low, dots, high = part.partition("..")
        if not dots:
            parts.append(low)
        elif not high:
            parts.append(f"{low} or more")
        else:
            parts.append(f"{low} to {high}")
    return " or ".join(parts)
