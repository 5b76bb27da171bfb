"""Parser for Java's properties syntax, which Kafka's ``server.properties`` uses.

    line      = blank | comment | key separator value
    comment   = "#" or "!" as the first character that is not white space
    separator = "=" or ":" with white space around it, or white space alone
    A backslash at the end of a line continues it on the next line, without its leading white space.
    Escapes: \\t \\n \\r \\f \\uXXXX; before any other character the backslash is dropped.

Source: the documentation of java.util.Properties.load. The file is read as UTF-8, and as ISO-8859-1
where that fails, as Java reads it.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.errors import ConfigError

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One setting of a file: key, value, and the number (from 1) of its first line."""

    key: str
    value: str
    line: int


def parse_properties(text: str, name: str = "properties") -> list[Property]:
    """Returns all settings of ``text`` in order; a key that is set twice is returned twice.

    ``name`` is the file's name, for the ConfigError of an invalid ``\\u`` escape.
    """
    found = []
    for number, line in _logical_lines(text):
        key, value = _split(line)
        where = f"{name}:{number}"
        found.append(Property(_unescape(key, where), _unescape(value, where), number))
    return found


def read_properties(path: str) -> list[Property]:
    """Returns the settings of the file at ``path``. Raises ConfigError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as problem:
        from tidemill.model.os_error_texts import fault_of

        raise ConfigError(f"{path}: the configuration cannot be read: {fault_of(problem)}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    return parse_properties(text, path)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines = []
    pending: str | None = None
    start = 0
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw in enumerate(natural, 1):
        line = raw.lstrip(_WHITE)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            pending, start = "", number
        if _is_continued(line):
            pending += line[:-1]
            continue
        lines.append((start, pending + line))
        pending = None
    if pending is not None:
        lines.append((start, pending))
    return lines


def _is_continued(line: str) -> bool:
    """Returns whether the line ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Returns key and value, both still escaped."""
    end = 0
    while end < len(line):
        letter = line[end]
        if letter == "\\":
            end += 2
            continue
        if letter in "=:" or letter in _WHITE:
            break
        end += 1
    rest = line[end:].lstrip(_WHITE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_WHITE)
    return line[:end], rest


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    pieces = []
    position = 0
    while position < len(text):
        letter = text[position]
        if letter != "\\":
            pieces.append(letter)
            position += 1
            continue
        escaped = text[position + 1 : position + 2]
        position += 2
        if escaped != "u":
            pieces.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        try:
            if len(digits) != 4:
                raise ValueError(digits)
            pieces.append(chr(int(digits, 16)))
        except ValueError:
            raise ConfigError(
                f"{where}: \\u{digits} is not a valid escape; \\u needs four hexadecimal digits"
            ) from None
        position += 4
    # Two \u escapes may be the halves of a surrogate pair.
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
