"""Parses the value of ``sasl.jaas.config``, in the syntax of Kafka's Java clients.

The syntax is ``MODULE FLAG NAME="VALUE" ... ;`` with Java comments. Only the last part of the module's name
is compared, since distributors move the classes to other packages. Source: ``JaasConfig.java`` of Apache
Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.model.errors import ConfigError
from tidemill.model.secrets import HIDDEN

FLAGS = ("required", "requisite", "sufficient", "optional")

NAMES = (
    "username",
    "password",
    "tokenauth",
    "clientId",
    "clientSecret",
    "scope",
    "awsProfileName",
    "awsRoleArn",
)

LENGTH_MAX = 1024 * 1024

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*|/\*.*?\*/)
    | "(?P<quoted>(?:[^"\\\n]|\\.)*)"
    | '(?P<single>(?:[^'\\\n]|\\.)*)'
    | (?P<sign>[=;])
    | (?P<word>[^\s=;"']+)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[0-7]{1,2})|(.))", re.DOTALL)
_NAMES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasEntry(NamedTuple):
    """One login: the class name of its login module, without the package, and its options."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module!r}, {', '.join(f'{name}={HIDDEN}' for name in self.options)})"


def parse_jaas(text: str) -> JaasEntry:
    """Parses a ``sasl.jaas.config``. Raises ConfigError, whose text contains no option value."""
    if len(text) > LENGTH_MAX:
        raise _wrong(f"it has {len(text)} characters; allowed are {LENGTH_MAX}")
    tokens = list(_tokens(text))
    if not tokens:
        raise _wrong("it is empty")
    ends = [number for number, (kind, what) in enumerate(tokens) if kind == "sign" and what == ";"]
    if not ends:
        raise _wrong("the closing semicolon is missing")
    if ends[0] != len(tokens) - 1:
        raise _wrong("it has more than one login; a client needs exactly one")
    return _entry(tokens[:-1])


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(f"the quote that opens at character {position + 1} is not closed in its line")
        position = match.end()
        kind = match.lastgroup or ""
        if kind == "space":
            continue
        what = match[kind]
        yield ("value", _unescaped(what)) if kind in ("quoted", "single") else (kind, what)


def _entry(tokens: list[tuple[str, str]]) -> JaasEntry:
    if (
        len(tokens) < 2
        or tokens[0][0] != "word"
        or tokens[1][0] != "word"
        or tokens[1][1].lower() not in FLAGS
    ):
        raise _wrong("it must begin with the class of a login module and the word required")
    options: dict[str, str] = {}
    rest = tokens[2:]
    for at in range(0, len(rest), 3):
        triple = rest[at : at + 3]
        kind, name = triple[0]
        if kind != "word" or len(triple) < 3 or triple[1] != ("sign", "=") or triple[2][0] == "sign":
            raise _wrong(
                f'after {_last(options)} NAME="VALUE" is expected; values with blanks need the quotes'
            )
        options[name] = triple[2][1]
    return JaasEntry(tokens[0][1].rpartition(".")[2], options)


def _last(options: dict[str, str]) -> str:
    """Describes the position of an error. Only known names are shown: others may be parts of a secret."""
    known = [name for name in options if name in NAMES]
    return f"the option {known[-1]}" if known else "the word required"


def _unescaped(text: str) -> str:
    def unescaped(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 8))
        return _NAMES.get(match[2], match[2])

    return _ESCAPE.sub(unescaped, text)


def _wrong(why: str) -> ConfigError:
    return ConfigError(
        f"sasl.jaas.config cannot be read: {why}. Its form is: "
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="..." password="...";'
    )
