"""Parses schemas in Spark's DDL ("carrier string, delay double") without Spark, which starts slowly.

::

    schema  := field ("," field)*
    field   := name ":"? type ("NOT" "NULL")? ("COMMENT" text)?
    name    := letters, digits and "_", or any characters between backticks
    type    := a word of PLAIN | decimal ("(" digits ("," digits)? ")")? | char (n) | varchar (n)
             | array "<" type ">" | map "<" type "," type ">" | struct "<" field ("," field)* ">"

Source: Spark's grammar (``SqlBaseParser.g4``: ``colTypeList``, ``dataType``). Units of intervals and
collations of strings are not validated. A start of Spark takes half a minute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from tidemill.model.errors import ConfigError
from tidemill.model.similar_names import did_you_mean

PLAIN = {
    "boolean": "boolean",
    "byte": "tinyint",
    "tinyint": "tinyint",
    "short": "smallint",
    "smallint": "smallint",
    "int": "int",
    "integer": "int",
    "long": "bigint",
    "bigint": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
    "variant": "variant",
    "void": "void",
}
"""The names of types in DDL, and Spark's canonical name of each."""
DECIMALS = ("decimal", "dec", "numeric")
WORDS = (*PLAIN, *DECIMALS, "char", "varchar", "array", "map", "struct", "interval")
UNITS = frozenset({"year", "month", "day", "hour", "minute", "second", "to"})
DIGITS_MAX = 38

EXAMPLE = '"carrier string, dep_delay double"'
TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:]|\S)")


@dataclass(frozen=True, slots=True)
class Plain:
    """A type without parts, by Spark's name ("bigint"); ``text`` is its DDL with parameters.

    Types of one name are equal: a collation is no other type of a Parquet column.
    """

    name: str
    text: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal type with ``digits`` digits, ``scale`` of them after the point."""

    digits: int
    scale: int


@dataclass(frozen=True, slots=True)
class Array:
    """An array of values of one type."""

    element: Kind


@dataclass(frozen=True, slots=True)
class Map:
    """A map from keys to values."""

    key: Kind
    value: Kind


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of named fields, in order."""

    fields: tuple[tuple[str, Kind], ...]


Kind: TypeAlias = Plain | Decimal | Array | Map | Struct


def parse_schema(text: str) -> Struct:
    """Parses a DDL text. Raises ConfigError with the position and the expected token."""
    return _Parser(text).parse()


def ddl_of(schema: Struct) -> str:
    """Returns a schema as DDL for Spark, with names in backticks."""
    return ", ".join(f"{quoted(name)} {type_text(kind)}" for name, kind in schema.fields)


def type_text(kind: Kind) -> str:
    """Returns the DDL of a type."""
    match kind:
        case Plain():
            return kind.text
        case Decimal():
            return f"decimal({kind.digits},{kind.scale})"
        case Array():
            return f"array<{type_text(kind.element)}>"
        case Map():
            return f"map<{type_text(kind.key)},{type_text(kind.value)}>"
        case Struct():
            inner = ", ".join(f"{quoted(name)}: {type_text(part)}" for name, part in kind.fields)
            return f"struct<{inner}>"


def quoted(name: str) -> str:
    """Quotes a column's name for Spark: an unquoted dot would select a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


class _Parser:
    """A recursive-descent parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [(found.group(1), found.start(1)) for found in TOKEN.finditer(text)]
        self._at = 0

    def parse(self) -> Struct:
        """Parses the whole text."""
        fields = self._fields("")
        if self._at < len(self._tokens):
            self._wrong("a comma and another field, or the end")
        return fields

    def _fields(self, end: str) -> Struct:
        found: list[tuple[str, Kind]] = []
        while True:
            name = self._name()
            self._skip(":")
            kind = self._type()
            self._constraints()
            same = [other for other, _ in found if other.lower() == name.lower()]
            if same:
                self._fail(f"the field {name} exists twice ({same[0]}, {name}); names are case-insensitive")
            found.append((name, kind))
            if not self._skip(","):
                break
        if end:
            self._need(end)
        return Struct(tuple(found))

    def _constraints(self) -> None:
        if self._skip("not") and not self._skip("null"):
            self._wrong("NULL after NOT")
        if self._skip("comment"):
            if not self._token().startswith(("'", '"')):
                self._wrong("a text in quotes after COMMENT")
            self._at += 1

    def _name(self) -> str:
        token = self._token()
        if token.startswith("`") and len(token) > 2:
            self._at += 1
            return token[1:-1].replace("``", "`")
        if re.fullmatch(r"\w+", token) is None:
            self._wrong("the name of a field")
        self._at += 1
        return token

    def _type(self) -> Kind:
        word = self._word()
        if word == "interval":
            return self._interval()
        if word not in WORDS and word != "character":
            return self._unknown_type()
        self._at += 1
        if word in PLAIN:
            return self._collated(PLAIN[word])
        if word in DECIMALS:
            return self._decimal()
        if word in ("array", "map", "struct"):
            self._need("<")
            return self._composed(word)
        self._need("(")
        length = self._number()
        self._need(")")
        return Plain("string", f"{word}({length})")

    def _collated(self, name: str) -> Plain:
        if name == "string" and self._skip("collate"):
            return Plain(name, f"{name} collate {self._name()}")
        return Plain(name, name)

    def _composed(self, word: str) -> Kind:
        if word == "struct":
            return self._fields(">")
        first = self._type()
        if word == "array":
            self._need(">")
            return Array(first)
        self._need(",")
        second = self._type()
        self._need(">")
        return Map(first, second)

    def _decimal(self) -> Decimal:
        digits, scale = 10, 0
        if self._skip("("):
            digits = self._number()
            if self._skip(","):
                scale = self._number()
            self._need(")")
        if not 1 <= digits <= DIGITS_MAX or scale > digits:
            self._fail(
                f"decimal({digits},{scale}): 1 to {DIGITS_MAX} digits are allowed, and no more after the "
                "point"
            )
        return Decimal(digits, scale)

    def _interval(self) -> Plain:
        words: list[str] = []
        while self._word() == "interval" or (words and self._word() in UNITS):
            words.append(self._word())
            self._at += 1
        return Plain(" ".join(words), " ".join(words))

    def _unknown_type(self) -> NoReturn:
        word = self._word()
        if re.fullmatch(r"\w+", word) is None:
            self._wrong("a type")
        hint = did_you_mean(word, WORDS) or "; string, bigint, double, boolean, timestamp are types"
        self._fail(f"{self._token()} is not a type{hint}")

    def _number(self) -> int:
        token = self._token()
        if not (token.isascii() and token.isdigit()):
            self._wrong("a number")
        self._at += 1
        return int(token[:9])

    def _token(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _word(self) -> str:
        return self._token().lower()

    def _skip(self, word: str) -> bool:
        """Skips a word, in any letter case, or a sign; returns False if the next token is another one."""
        if self._word() != word:
            return False
        self._at += 1
        return True

    def _need(self, token: str) -> None:
        if not self._skip(token):
            self._wrong(token)

    def _wrong(self, wanted: str) -> NoReturn:
        if self._at >= len(self._tokens):
            self._fail(f"it ends where {wanted} is expected")
        token, position = self._tokens[self._at]
        hint = "; a name with other characters needs backticks" if token in ("-", ".", "@", "/") else ""
        self._fail(f"{token} at character {position + 1}, where {wanted} is expected{hint}")

    def _fail(self, fault: str) -> NoReturn:
        raise ConfigError(
            f"schema {self._text!r} cannot be read ({fault}): set names and types, such as {EXAMPLE}"
        )
