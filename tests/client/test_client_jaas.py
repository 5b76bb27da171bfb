from __future__ import annotations

import pytest

from tidemill.client.jaas import parse_jaas
from tidemill.model.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            f'{PLAIN} required username="alice" password="a b;c=d";',
            {"username": "alice", "password": "a b;c=d"},
        ),
        (f"{PLAIN} required\n   username=alice\n   password='x' ;  ", {"username": "alice", "password": "x"}),
        (f'{PLAIN} REQUIRED password="q\\"\\\\\\n\\101";', {"password": 'q"\\\nA'}),
        (f'{PLAIN} required // a word\n /* more ; */ username="//no comment";', {"username": "//no comment"}),
        (
            f"{PLAIN} required scope = https://example.org/.default ;",
            {"scope": "https://example.org/.default"},
        ),
        (f"{PLAIN} required;", {}),
    ],
)
def test_entries_that_java_accepts_are_parsed(text: str, options: dict[str, str]) -> None:
    entry = parse_jaas(text)
    assert (entry.module, entry.options) == ("PlainLoginModule", options)


def test_the_package_of_a_module_is_ignored() -> None:
    shaded = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule required;"
    assert parse_jaas(shaded).module == "ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("  ", "it is empty"),
        (f'{PLAIN} required username="a"', "closing semicolon is missing"),
        (f'{PLAIN} required username="a"; {PLAIN} required;', "more than one login"),
        (f'{PLAIN} username="a";', "the word required"),
        (f'{PLAIN} required password="open;', "is not closed"),
        (f"{PLAIN} required password=s3cret-word and-more;", 'option password NAME="VALUE" is expected'),
        (f"{PLAIN} required password s3cret-word;", 'after the word required NAME="VALUE" is expected'),
        (f"{PLAIN} required password=;", "after the word required"),
        ("x" * 2_000_000, "it has 2000000 characters"),
    ],
)
def test_errors_contain_no_option_value(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_jaas(text)
    assert "s3cret" not in str(caught.value)
    assert "and-more" not in str(caught.value)
    assert "PlainLoginModule required username=" in str(caught.value)  # the expected form


def test_an_entry_is_shown_without_its_values() -> None:
    shown = repr(parse_jaas(f'{PLAIN} required username="alice" password="s3cret";'))
    assert "s3cret" not in shown
    assert "password=(hidden)" in shown
