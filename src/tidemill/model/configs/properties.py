"""Java's properties syntax, in which Kafka's ``server.properties`` is written.

    line      = blank | comment | key separator value
    comment   = "#" or "!" as the first character that is not white space
    separator = "=" or ":" with white space around it, or white space alone
    A backslash at the end of a line goes on with the next line, without its leading white space.
    Escapes: \\t \\n \\r \\f \\uXXXX; before any other character the backslash is dropped.

Source: the documentation of java.util.Properties.load. The file is read as UTF-8, and as ISO-8859-1
where that fails, which is what Java reads.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.errors import ConfigError

_WHITE = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One setting of a file: its key, its value, and the line (from 1) that it begins on."""

    key: str
    value: str
    line: int


def parse_properties(text: str, name: str = "properties") -> list[Property]:
    """All settings of ``text`` in order; a key that comes twice is there twice.

    ``name`` is the file's, for the ConfigError that a broken ``\\u`` escape raises.
    """
    found = []
    for number, line in _logical_lines(text):
        key, value = _split(line)
        where = f"{name}:{number}"
        found.append(Property(_unescape(key, where), _unescape(value, where), number))
    return found


def read_properties(path: str) -> list[Property]:
    """The settings of the file at ``path``; ConfigError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as problem:
        from tidemill.model.faults import fault_of

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
        if _goes_on(line):
            pending += line[:-1]
            continue
        lines.append((start, pending + line))
        pending = None
    if pending is not None:
        lines.append((start, pending))
    return lines


def _goes_on(line: str) -> bool:
    """Whether the line ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Key and value, both still escaped."""
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
                f"{where}: \\u{digits} is no escape; \\u needs four hexadecimal digits"
            ) from None
        position += 4
    # Two \u escapes may be the halves of one character beyond 16 bits.
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
