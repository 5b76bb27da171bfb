"""Values that their fields do not represent completely are detected, with the reason. No Spark is needed."""

from __future__ import annotations

import json

import pytest

from tidemill.model.errors import ConfigError
from tidemill.pipeline.demo.flights import FLIGHTS, SCHEMAS, WEATHER, messages
from tidemill.pipeline.jobs.round_trip import REASONS, round_trip_check
from tidemill.pipeline.jobs.schema import Array, Decimal, Map, Plain, Struct, ddl_of, parse_schema

SCHEMA = (
    "n int, big bigint, tiny tinyint, d double, f float, m decimal(5,2), s string, t timestamp, b boolean, "
    "z timestamp_ntz, day date, o struct<x: int>, l array<int>, k map<string,int>, raw binary"
)


def reason(value: bytes | None, schema: str = SCHEMA) -> str | None:
    return round_trip_check(parse_schema(schema))(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"{}",
        b' {"n": 1}\n',
        b'{"s": null, "n": null}',
        b'{"big": 9223372036854775807, "tiny": -128}',
        b'{"d": 1.50, "f": 0.1, "m": 1.20}',
        b'{"d": 5, "f": 16777216, "m": 999.99}',
        b'{"d": 100000000000000000000000000000000000}',
        b'{"d": 1e300, "f": 1e38}',
        '{"s": "é \U0001f600"}'.encode(),
        b'{"s": {"a": [1, 1.5, "x", null, true]}}',
        b'{"t": "2013-01-01T10:00:00.123456Z", "z": "2013-01-01T10:00:00", "day": "2013-01-01"}',
        b'{"t": "2013-01-01T10:00:00.1234560000Z"}',
        b'{"b": true, "o": {"x": 1}, "l": [1, null], "k": {"any": 1}, "raw": "YQ=="}',
    ],
)
def test_values_that_their_fields_represent_completely(value: bytes | None) -> None:
    assert reason(value) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'\xff{"n":1}', "not_utf8: byte 0 (0xff) is not UTF-8"),
        (b"{", "not_json: character 2"),
        (b"{'n':1}", "not_json: character 2"),
        (b'{"d":NaN}', "not_json: NaN"),
        (b'\xef\xbb\xbf{"n":1}', "not_json: character 1"),
        (b"[" * 100_000, "not_json: it is nested too deeply"),
        (b'{"n":' + b"9" * 5000 + b"}", "not_json: a number has too many digits"),
        (b'{"n":1}garbage', "trailing_data: character 8"),
        (b'{"n":1}{"n":2}', "trailing_data: character 8"),
        (b'{"n":1}\n{"n":2}', "trailing_data: character 9"),
        (b'[{"n":1}]', "not_an_object"),
        (b"null", "not_an_object"),
        (b'{"N":1}', "unknown_field: N (the schema has n)"),
        (b'{"n":1,"x":2}', "unknown_field: x"),
        (b'{"o":{"y":1}}', "unknown_field: o: y"),
        (b'{"n":1,"n":2}', "duplicate_key: n"),
        (b'{"o":{"x":1,"x":1}}', "duplicate_key: x"),
        (b'{"n":3000000000}', "out_of_range: n: 3000000000 as int"),
        (b'{"tiny":128}', "out_of_range: tiny: 128 as tinyint"),
        (b'{"big":9223372036854775808}', "out_of_range: big: 9223372036854775808 as bigint"),
        (b'{"d":1e999}', "out_of_range: d: 1e999 as double"),
        (b'{"f":1e39}', "out_of_range: f: 1e39 as float"),
        (b'{"m":1000}', "out_of_range: m: 1000 as decimal(5,2)"),
        (b'{"d":9007199254740993}', "not_exact: d: 9007199254740993 as double"),
        (b'{"d":0.12345678901234567890}', "not_exact: d: 0.12345678901234567890 as double"),
        (b'{"d":1e-400}', "not_exact: d: 1e-400 as double"),
        (b'{"f":16777217}', "not_exact: f: 16777217 as float"),
        (b'{"m":1.239}', "not_exact: m: 1.239 as decimal(5,2)"),
        (b'{"t":"2013-01-01T00:00:00.1234567Z"}', "not_exact: t: 2013-01-01T00:00:00.1234567Z as timestamp"),
        (b'{"z":"2013-01-01T00:00:00Z"}', "not_exact: z: 2013-01-01T00:00:00Z as timestamp_ntz"),
        (b'{"day":"2013-01-01T10:00"}', "not_exact: day: 2013-01-01T10:00 as date"),
        (b'{"s":"\\ud800"}', "not_exact: s: character 1 is a lone surrogate"),
        (b'{"s":{"a":0.12345678901234567890}}', "not_exact: s: 0.12345678901234567890 as double"),
        (b'{"raw":"YQ"}', "not_exact: raw: no base64, as binary"),
        (b'{"n":1.0}', "wrong_type: n: 1.0 as int"),
        (b'{"n":"1"}', "wrong_type: n: a string as int"),
        (b'{"s":12}', "wrong_type: s: a number as string"),
        (b'{"b":1}', "wrong_type: b: a number as boolean"),
        (b'{"t":1357035300000}', "wrong_type: t: a number as timestamp"),
        (b'{"l":[1,"x"]}', "wrong_type: l: a string as int"),
        (b'{"k":{"any":true}}', "wrong_type: k: any: a boolean as int"),
        (b'{"o":[1]}', "wrong_type: o: an array as struct"),
    ],
)
def test_other_values_have_a_reason(value: bytes, told: str) -> None:
    assert reason(value) == told
    assert told.partition(":")[0] in REASONS


def test_untrusted_values_are_shown_short_and_printable() -> None:
    told = reason(json.dumps({"x\x1b[31m\ud800" + "y" * 500: 1}).encode())
    assert told is not None
    assert told.isprintable()
    assert len(told) < 90
    told.encode()


@pytest.mark.parametrize("topic", [FLIGHTS, WEATHER])
def test_the_fields_of_the_demo_represent_its_messages_completely(topic: str) -> None:
    check = round_trip_check(parse_schema(SCHEMAS[topic]))
    assert {check(one.value) for number, one in enumerate(messages(topic)) if number % 37 == 0} == {None}


def test_schemas_are_read_as_spark_reads_them() -> None:
    text = (
        "a int not null, `b c`: array<struct<x: dec(5,2), y map<string, double>>> comment 'it, too', "
        "e numeric, c varchar(3), i interval day to second, u string collate utf8_lcase, l LONG"
    )
    schema = parse_schema(text)
    assert schema.fields[:3] == (
        ("a", Plain("int", "int")),
        ("b c", Array(Struct((("x", Decimal(5, 2)), ("y", Map(_plain("string"), _plain("double"))))))),
        ("e", Decimal(10, 0)),
    )
    assert ddl_of(schema) == (
        "`a` int, `b c` array<struct<`x`: decimal(5,2), `y`: map<string,double>>>, `e` decimal(10,0), "
        "`c` varchar(3), `i` interval day to second, `u` string collate utf8_lcase, `l` bigint"
    )
    assert parse_schema(ddl_of(schema)) == schema


def _plain(name: str) -> Plain:
    return Plain(name, name)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it ends where the name of a field is expected"),
        ("carrier", "it ends where a type is expected"),
        ("carrier strng", "strng is not a type; did you mean string?"),
        ("a int,", "it ends where the name of a field is expected"),
        ("a int b int", "b at character 7, where a comma and another field, or the end is expected"),
        ("a array<int", "it ends where > is expected"),
        ("a-b int", "- at character 2, where a type is expected; a name with other characters needs"),
        ("a int, A string", "the field A exists twice"),
        ("a decimal(40,2)", "1 to 38 digits are allowed"),
        ("a struct<b>", "> at character 11, where a type is expected"),
    ],
)
def test_the_error_of_an_invalid_schema_has_position_and_next_step(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schema(text)
    assert str(caught.value).startswith(f"schema {text!r} cannot be read (")
    assert fault in str(caught.value)
    assert str(caught.value).endswith('set names and types, such as "carrier string, dep_delay double"')
