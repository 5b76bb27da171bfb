"""Checks, without Spark, whether the fields of a schema represent a JSON message completely.

Spark's ``from_json`` reads the first JSON value of a text. It ignores the rest, fields that the schema does
not have, and the first of two equal keys. It rounds numbers, and reads an empty text as no fields. A row
*round-trips* if its fields, written as JSON again, equal the message: all keys, each value once, of the same
JSON type, each number equal. These may differ: white space, the order of keys, a missing field and null, the
notation of a number (1.50 and 1.5) and of a timestamp.

Spark keeps objects and arrays in a field of type string as JSON text. They are unchanged if no number in them
changes, since Spark rewrites the numbers.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable
from decimal import Context, Inexact
from decimal import Decimal as Number
from functools import lru_cache
from typing import Any, Final, TypeAlias

from tidemill.model.os_error_texts import fault_of
from tidemill.pipeline.jobs.schema import Array, Decimal, Kind, Map, Plain, Struct, type_text

NOT_UTF8: Final = "not_utf8"
EMPTY: Final = "empty"
NOT_JSON: Final = "not_json"
TRAILING_DATA: Final = "trailing_data"
NOT_AN_OBJECT: Final = "not_an_object"
DUPLICATE_KEY: Final = "duplicate_key"
UNKNOWN_FIELD: Final = "unknown_field"
WRONG_TYPE: Final = "wrong_type"
OUT_OF_RANGE: Final = "out_of_range"
NOT_EXACT: Final = "not_exact"
NOT_READ: Final = "not_read"

REASONS: Final = {
    NOT_UTF8: "the value is not UTF-8",
    EMPTY: "the value is empty",
    NOT_JSON: "the value is not JSON",
    TRAILING_DATA: "there is data after the JSON value",
    NOT_AN_OBJECT: "the value is JSON, but not an object",
    DUPLICATE_KEY: "an object has a key twice",
    UNKNOWN_FIELD: "the schema does not have a field, or has it in another letter case",
    WRONG_TYPE: "a value has another JSON type than its field",
    OUT_OF_RANGE: "a number is beyond the range of its field",
    NOT_EXACT: "a value is more precise than its field: digits, or a part of a timestamp, are lost",
    NOT_READ: "Spark cannot read a value as the type of its field",
}
"""The reasons to keep a raw value: the code at the start of ``raw_reason``, and its meaning."""

WITHOUT_FIELDS: Final = (NOT_UTF8, EMPTY, NOT_JSON, TRAILING_DATA, NOT_AN_OBJECT)
"""For these reasons all fields of a row are null: the intended value is unknown."""

INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
EXACT_CHARACTERS: Final = 16
"""A decimal number of this length has at most 15 digits, which a double represents exactly."""
DATE = re.compile(r"[+-]?\d{4,7}-\d{1,2}-\d{1,2}")
FINER_THAN_MICROSECONDS = re.compile(r"\.\d{6}\d*[1-9]")
ZONE = re.compile(r"\d{1,2}:\d{2}.*(Z|UTC|GMT|[+-]\d{1,2}(:?\d{2})?)$", re.IGNORECASE)
EXACT = Context(prec=1000, traps=[Inexact])

Check: TypeAlias = Callable[[Any], str | None]
"""Returns the reason why a non-null value is not kept: ``code`` or ``code: detail``; None if it is."""


class _Literal(str):
    """A number with a point or an exponent, as written."""

    __slots__ = ()


class _Refused(ValueError):
    """Aborts the parse of a text; the argument is the reason."""


@lru_cache(maxsize=8)
def round_trip_check(schema: Struct) -> Callable[[bytes | None], str | None]:
    """Returns a function from a message value to the reason for keeping its raw value, or None.

    A reason is a code of :data:`REASONS`, usually with a detail after a colon. A null value (a tombstone) has
    no fields, and therefore no reason.
    """
    check = _struct(schema)
    decoder = json.JSONDecoder(
        object_pairs_hook=_object, parse_float=_Literal, parse_constant=_refuse_constant
    )

    def reason_of(value: bytes | None) -> str | None:
        if value is None:
            return None
        try:
            text = bytes(value).decode()
        except UnicodeDecodeError as problem:
            return f"{NOT_UTF8}: {fault_of(problem)}"
        if not text.strip():
            return EMPTY
        try:
            found = decoder.decode(text)
        except _Refused as problem:
            return str(problem)
        except json.JSONDecodeError as problem:
            code = TRAILING_DATA if problem.msg == "Extra data" else NOT_JSON
            return f"{code}: character {problem.pos + 1}"
        except (ValueError, RecursionError) as problem:
            return f"{NOT_JSON}: {fault_of(problem)}"
        if type(found) is not dict:
            return NOT_AN_OBJECT
        return check(found)

    return reason_of


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Refused(f"{DUPLICATE_KEY}: {_shown(name)}")
            seen.add(name)
    return found


def _refuse_constant(name: str) -> Any:
    raise _Refused(f"{NOT_JSON}: {name}")


def _check_of(kind: Kind) -> Check:
    match kind:
        case Struct():
            return _struct(kind)
        case Array():
            return _array(kind)
        case Map():
            return _map(kind)
        case Decimal():
            return _decimal(kind)
        case Plain():
            return _plain(kind)


def _struct(kind: Struct) -> Check:
    checks = {name: _check_of(part) for name, part in kind.fields}
    by_lower = {name.lower(): name for name, _ in kind.fields}

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return _wrong(value, "struct")
        for name, part in value.items():
            check_part = checks.get(name)
            if check_part is None:
                near = by_lower.get(name.lower())
                return f"{UNKNOWN_FIELD}: {_shown(name)}" + (f" (the schema has {near})" if near else "")
            if part is not None and (problem := check_part(part)) is not None:
                return _inside(name, problem)
        return None

    return check


def _array(kind: Array) -> Check:
    check_part = _check_of(kind.element)

    def check(value: Any) -> str | None:
        if type(value) is not list:
            return _wrong(value, "array")
        for part in value:
            if part is not None and (problem := check_part(part)) is not None:
                return problem
        return None

    return check


def _map(kind: Map) -> Check:
    check_part = _check_of(kind.value)

    def check(value: Any) -> str | None:
        if type(value) is not dict:
            return _wrong(value, "map")
        for name, part in value.items():
            if part is not None and (problem := check_part(part)) is not None:
                return _inside(name, problem)
        return None

    return check


def _plain(kind: Plain) -> Check:
    if kind.name in INTEGERS:
        return _integer(kind.name, INTEGERS[kind.name])
    checks: dict[str, Check] = {
        "string": _string,
        "boolean": lambda value: None if type(value) is bool else _wrong(value, "boolean"),
        "double": lambda value: _floating(value, "double", float),
        "float": lambda value: _floating(value, "float", _as_float32),
        "date": _date,
        "timestamp": _timestamp,
        "timestamp_ntz": _timestamp_without_zone,
        "binary": _binary,
        "void": lambda value: _wrong(value, "void"),
    }
    return checks.get(kind.name, lambda value: None)


def _string(value: Any) -> str | None:
    if type(value) is str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as problem:
                return f"{NOT_EXACT}: {fault_of(problem)}"
        return None
    return _as_text(value) if type(value) in (dict, list) else _wrong(value, "string")


def _as_text(value: Any) -> str | None:
    """Checks Spark's JSON text of a value, in which Spark rewrites numbers with a point as doubles."""
    parts = value.values() if type(value) is dict else value if type(value) is list else ()
    for part in parts:
        if (problem := _as_text(part)) is not None:
            return problem
    if type(value) is _Literal:
        return _floating(value, "double", float)
    return _string(value) if type(value) is str else None


def _integer(name: str, bits: int) -> Check:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def check(value: Any) -> str | None:
        if type(value) is not int:
            return _wrong(value, name)
        return None if low <= value <= high else f"{OUT_OF_RANGE}: {_shown(value)} as {name}"

    return check


def _floating(value: Any, name: str, rounded: Callable[[str], float]) -> str | None:
    if type(value) is int:
        if -(1 << 24) <= value <= 1 << 24:
            return None
    elif type(value) is not _Literal:
        return _wrong(value, name)
    elif name == "double" and len(value) <= EXACT_CHARACTERS and "e" not in value and "E" not in value:
        return None
    text = str(value)
    try:
        kept = rounded(text)
    except OverflowError:
        kept = float("inf")
    if kept in (float("inf"), float("-inf")):
        return f"{OUT_OF_RANGE}: {_shown(value)} as {name}"
    shortest = repr(kept) if name == "double" else _shortest_float32(kept)
    return None if Number(shortest) == Number(text) else f"{NOT_EXACT}: {_shown(value)} as {name}"


def _as_float32(text: str) -> float:
    return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])


def _shortest_float32(value: float) -> str:
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if _as_float32(text) == value:
            return text
    return repr(value)


def _decimal(kind: Decimal) -> Check:
    name = type_text(kind)
    step = Number(1).scaleb(-kind.scale)
    limit = Number(1).scaleb(kind.digits - kind.scale)

    def check(value: Any) -> str | None:
        if type(value) is not int and type(value) is not _Literal:
            return _wrong(value, name)
        try:
            number = Number(value)
            if abs(number) >= limit:
                return f"{OUT_OF_RANGE}: {_shown(value)} as {name}"
            number.quantize(step, context=EXACT)
        except ArithmeticError:
            return f"{NOT_EXACT}: {_shown(value)} as {name}"
        return None

    return check


def _date(value: Any) -> str | None:
    if type(value) is not str:
        return _wrong(value, "date")
    return None if DATE.fullmatch(value) else f"{NOT_EXACT}: {_shown(value)} as date"


def _timestamp(value: Any) -> str | None:
    if type(value) is not str:
        return _wrong(value, "timestamp")
    return f"{NOT_EXACT}: {_shown(value)} as timestamp" if FINER_THAN_MICROSECONDS.search(value) else None


def _timestamp_without_zone(value: Any) -> str | None:
    if type(value) is str and ZONE.search(value):
        return f"{NOT_EXACT}: {_shown(value)} as timestamp_ntz"
    return _timestamp(value)


def _binary(value: Any) -> str | None:
    if type(value) is not str:
        return _wrong(value, "binary")
    try:
        same = base64.b64encode(base64.b64decode(value, validate=True)).decode() == value
    except (binascii.Error, ValueError):
        same = False
    return None if same else f"{NOT_EXACT}: no base64, as binary"


NAMES: Final = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    _Literal: "a number",
}


def _wrong(value: Any, wanted: str) -> str:
    if type(value) is _Literal and wanted in INTEGERS:
        return f"{WRONG_TYPE}: {_shown(value)} as {wanted}"
    return f"{WRONG_TYPE}: {NAMES[type(value)]} as {wanted}"


def _inside(name: str, problem: str) -> str:
    """Inserts the name of a field before the detail: "wrong_type: a.b: a string as int"."""
    code, _, detail = problem.partition(": ")
    return f"{code}: {_shown(name)}: {detail}"


def _shown(value: Any) -> str:
    """Formats an untrusted value for a message: short, printable and without lone surrogates."""
    text = str(value) if not isinstance(value, int) or abs(value) < 1 << 200 else "a number of many digits"
    clean = "".join(character if character.isprintable() else "\ufffd" for character in text[:61])
    return clean if len(text) <= 60 else clean[:60] + "…"
