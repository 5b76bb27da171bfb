"""Tables in a terminal of 80 columns: no word is broken, and nothing is truncated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tidemill.cli import broker as broker_command
from tidemill.cli import config, group, log_dirs, output, topic
from tidemill.cli.table_layout import wrap
from tidemill.client.admin_types import ConfigEntry, GroupDescription, GroupMember, PartitionLag
from tidemill.model.configs import BROKER_KEYS

WIDTH = 80
PATH = "/var/lib/tidemill/some-directory-with-a-name/and-another-one/data"
MEMBER = "tidemill-cli-3271fdf9-5aab-4f85-94c6-79d9be4be66"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, also for the modules of the commands."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for module in (output, topic, log_dirs, group, broker_command, config):
        monkeypatch.setattr(module, "on_terminal", lambda: True)


def check(shown: str, *words: str) -> list[str]:
    """Checks that no line is too long, except for a long word, and that each word is whole in one line."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    for line in lines:
        assert len(line.rstrip()) <= WIDTH or len(max(line.split(), key=len)) > WIDTH - 30, line
    for word in words:
        assert any(word in re.split(r"[\s,=]+", line) for line in lines), (word, lines)
    return lines


def table(columns: Sequence[str], *rows: Sequence[Any], **options: Any) -> None:
    output.print_table(columns, rows, **options)


@pytest.mark.usefixtures("terminal")
def test_long_paths_of_data_directories_are_shown_completely(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["broker", "directory", "partitions", "size", "free", "total", "arriving", "state"]
    table(columns, [1, PATH, 1200, "12.3 GB", "100.3 GB", "270.6 GB", "", "offline (KAFKA_STORAGE_ERROR)"])
    lines = check(capsys.readouterr().out, PATH, "partitions", "1200", "(KAFKA_STORAGE_ERROR)")
    assert lines[1] == f"directory   {PATH}"
    assert not any(line.startswith("arriving") for line in lines), "nothing is said of what is empty"


@pytest.mark.usefixtures("terminal")
def test_many_replicas_and_large_offsets_are_shown_completely(capsys: pytest.CaptureFixture[str]) -> None:
    partition = {
        "partition": 100,
        "leader": 12,
        "replicas": [12, 13, 14, 15, 16],
        "isr": [12, 13],
        "start_offset": 12_345_678,
        "end_offset": 22_345_678,
        "size_bytes": 123_456_789_012,
        "state": "under-replicated",
    }
    key = "leader.replication.throttled.replicas"
    value = {"value": ",".join(f"{n}:{n}" for n in range(40)), "source": "topic", "set_by": "topic"}
    found = {"name": "orders", "topic_id": "A" * 22, "partitions": [partition], "configs": {key: value}}
    topic._print_topic(found)
    shown = capsys.readouterr().out
    lines = check(shown, "12345678", "22345678", "under-replicated", key, "39:39")
    heads = ["partition", "leader", "replicas", "sync", "start", "end", "size", "state"]
    assert lines[2].split() == heads, "without the offsets, which start and end tell"


@pytest.mark.usefixtures("terminal")
def test_settings_of_a_broker_with_long_keys_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    def entry(key: str, value: str, source: str, documentation: str | None = None) -> ConfigEntry:
        return ConfigEntry(key, value, source, False, True, False, [], documentation)

    long = "transaction.state.log.replication.factor"
    found = {
        "1": {
            long: entry(long, "3", "configuration file", f"Doc. [set by {PATH}/server.properties:12]"),
            "log.dirs": entry("log.dirs", PATH, "configuration file", "Doc. [set by --set log.dirs]"),
        }
    }
    broker_command._print_settings(found)
    lines = check(capsys.readouterr().out, long, PATH)
    assert lines[:3] == [f"{long}=3", "    set by", f"    {PATH}/server.properties:12"]
    assert lines[-2:] == [f"log.dirs={PATH}", "    set by --set log.dirs; changes at a restart"]


@pytest.mark.usefixtures("terminal")
def test_long_names_of_group_members_are_shown_completely(capsys: pytest.CaptureFixture[str]) -> None:
    members = [GroupMember(MEMBER + end, None, "tidemill-cli", "/127.0.0.1", []) for end in "ab"]
    lags = [
        PartitionLag("orders", 0, 100, 0, 100, 0, MEMBER + "b", "tidemill-cli", "/127.0.0.1"),
        PartitionLag("orders", 1, None, 0, 100, None, "", "", ""),
    ]
    group._print_group(GroupDescription("g", "Stable", "consumer", "range", 1, members), lags, False)
    lines = check(capsys.readouterr().out, MEMBER + "b")
    assert [line.split() for line in lines[3:5]] == [
        ["orders", "0", "100", "0", "100", "0", "1"],
        ["orders", "1", "-", "0", "100", "-", "-"],
    ]
    assert lines[-1].split() == ["1", MEMBER + "b", "/127.0.0.1"]


@pytest.mark.usefixtures("terminal")
def test_the_descriptions_of_all_keys_are_shown_completely(capsys: pytest.CaptureFixture[str]) -> None:
    for key in BROKER_KEYS.values():
        config._print_key(key, WIDTH)
        lines = check(capsys.readouterr().out)
        message = " ".join(line.strip() for line in lines)
        assert " ".join(key.doc.split()) in message
        if not key.takes_effect:
            assert " ".join(key.effect.split()) in message


@pytest.mark.usefixtures("terminal")
def test_a_table_that_fits_is_as_narrow_as_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    table(["id", "host", "replicas"], [1, "a", "1,2,3"], [10, "日本", "1"], right=["id"])
    lines = check(capsys.readouterr().out)
    assert [line.rstrip() for line in lines] == [
        "id  host  replicas",
        "──────────────────",
        " 1  a     1,2,3",
        "10  日本  1",
    ]
    # Lines break at spaces and after commas.
    table(["what", "numbers"], ["x" * 30, ",".join(map(str, range(100, 130)))])
    assert [line.split()[-1] for line in check(capsys.readouterr().out)[2:]] == [
        ",".join(map(str, range(100, 112))) + ",",
        ",".join(map(str, range(112, 124))) + ",",
        ",".join(map(str, range(124, 130))),
    ]


def test_a_word_that_is_too_long_stays_whole() -> None:
    assert wrap("a " + "b" * 30 + " c d", 10) == ["a", "b" * 30, "c d"]
    assert wrap("", 10) == [""]
    assert wrap("one two,three", 8) == ["one two,", "three"]
