"""The command line without a broker: help, version, completion, configuration, and the cost of imports."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tidemill.cli import cluster_status, output, produce
from tidemill.cli.config_page import page
from tidemill.cli.consume import Format
from tidemill.cli.kafka_options import EQUIVALENTS
from tidemill.cli.main import COMMANDS, command, run
from tidemill.cli.options import parse_duration, parse_moment, unescape
from tidemill.cli.perf import percentiles
from tidemill.cli.record_text import BadInput, for_terminal, from_json
from tidemill.client.completed_fetch import ConsumerRecord
from tidemill.model.errors import ConfigError
from tidemill.records.record_reader import Record

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments: str, **variables: str) -> Any:
    return CliRunner(env=variables).invoke(command, list(arguments), prog_name="tidemill")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    outcome = invoke(name, "--help")
    assert outcome.exit_code == 0
    assert outcome.output.startswith(f"Usage: tidemill {name}")
    assert max(map(len, outcome.output.splitlines())) <= 100


def test_the_help_names_every_command_without_importing_it() -> None:
    code = (
        "import sys\nfrom tidemill.cli.main import run\nrun(['--help'])\n"
        "print([m for m in sys.modules if m.startswith('tidemill.cli.') and m != 'tidemill.cli.main'])"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in outcome.stdout for name in COMMANDS)
    assert outcome.stdout.endswith("[]\n")


def test_serve_imports_no_large_package() -> None:
    code = (
        "import sys\nfrom tidemill.cli.main import run\n"
        "run(['serve', '--until-eof', '--set', 'listeners=PLAINTEXT://127.0.0.1:0', '-d', sys.argv[1]])\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    directory = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    outcome = subprocess.run(
        [sys.executable, "-c", code, directory], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert outcome.returncode == 0, outcome.stderr
    heavy = {"rich", "prometheus_client", "pyarrow", "pyspark", "pandas", "numpy", "matplotlib", "kazoo"}
    assert heavy.isdisjoint(outcome.stdout.split())


def test_the_version_reports_compiled_or_plain() -> None:
    assert (
        "plain Python data path: TIDEMILL_PLAIN is set"
        in subprocess.run(
            [sys.executable, "-m", "tidemill", "--version"],
            capture_output=True,
            text=True,
            env={**os.environ, "TIDEMILL_PLAIN": "1"},
        ).stdout
    )
    assert "data path" in invoke("--version").output


def test_the_error_of_an_unknown_command_suggests_a_similar_command() -> None:
    outcome = invoke("serv")
    assert outcome.exit_code == 2
    assert "Did you mean 'serve'?" in outcome.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_command(shell: str) -> None:
    outcome = invoke("completion", shell)
    assert outcome.exit_code == 0
    assert "_TIDEMILL_COMPLETE" in outcome.output


def test_completion_offers_commands_and_subcommands() -> None:
    def offered(words: str, position: int) -> list[str]:
        outcome = subprocess.run(
            [sys.executable, "-m", "tidemill"],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "_TIDEMILL_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(position),
            },
        )
        return [line.partition(",")[2] for line in outcome.stdout.splitlines()]

    assert offered("tidemill pr", 1) == ["produce"]
    assert offered("tidemill topic de", 2) == ["delete", "describe"]
    assert offered("tidemill topic alter x --unset retention.m", 5) == ["retention.ms"]
    assert offered("tidemill topic create x --set retention.m", 5) == ["retention.ms="]
    assert offered("tidemill serve --set num.part", 3) == ["num.partitions="]
    assert offered("tidemill consume -b 127.0.0.1:1 x", 4) == [""]


def test_the_configuration_page_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == page(), (
        "run: tidemill config keys --markdown > docs/configuration.md"
    )


def test_configuration_keys_are_listed() -> None:
    found = json.loads(invoke("config", "keys", "--json").output)
    by_name = {(key["scope"], key["name"]): key for key in found}
    assert by_name["broker", "num.partitions"]["default"] == "1"
    assert by_name["broker", "num.io.threads"]["takes_effect"] is False
    assert "one event loop" in by_name["broker", "num.io.threads"]["reason"]
    assert "log.retention.hours\tbroker\tint\t168" in invoke("config", "keys", "retention").output


def test_a_configuration_is_checked_without_a_start(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nnum.partitons=4\nssl.key.password=geheim\n")
    outcome = invoke("config", "check", "-c", str(file), "--json")
    found = json.loads(outcome.stdout)
    assert found["set"]["num.partitions"] == {"value": "3", "by": f"{file}:1"}
    assert found["set"]["ssl.key.password"]["value"] is None
    assert "did you mean num.partitions?" in found["warnings"][0]
    assert "geheim" not in invoke("config", "check", "-c", str(file)).output


def test_a_wrong_log_level_names_the_option() -> None:
    refused = invoke("serve", "--log-level", "net=loud")
    assert refused.exit_code == 2
    assert "--log-level=net=loud: allowed is one of trace, debug" in refused.output


def test_a_configuration_is_checked_as_serve_does(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\n=novalue\n")
    outcome = invoke("config", "check", "--json", TIDEMILL_CONFIG=str(file))
    assert json.loads(outcome.stdout)["set"]["num.partitions"]["by"] == f"{file}:1"
    assert json.loads(outcome.stdout)["warnings"] == [
        f"{file}:2: the key is missing; a line must be KEY=VALUE"
    ]
    for setting in (
        "zookeeper.connect=host:port",
        "tidemill.store=zookeeper",
        "tidemill.log.level=loud",
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found=false",
        "listeners=SASL_PLAINTEXT://:0",
    ):
        checked = subprocess.run(
            [sys.executable, "-m", "tidemill", "config", "check", "--set", setting],
            capture_output=True,
            text=True,
        )
        refused = subprocess.run(
            [
                sys.executable,
                "-m",
                "tidemill",
                "serve",
                "--until-eof",
                "--set",
                setting,
                "-d",
                tmp_path / "d",
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert (checked.returncode, checked.stderr) == (1, refused.stderr)
        assert refused.returncode == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--set", "foo"), "--set foo: it must be KEY=VALUE"),
        (("config", "check", "--set", "foo"), "--set foo: it must be KEY=VALUE"),
        (("serve", "--port", "abc"), "'abc' is not a whole number"),
        (("serve", "--ready-fd", "9999"), "descriptor 9999 is not open; a shell opens it with 9999>FILE"),
        (("serve", "--ready-fd", "99999999999"), "is not open"),
        (("serve", "--ready-file", "/nonexist/x"), "/nonexist is not a directory: create it first"),
        (("serve", "--ready-file", "/"), "/ is a directory"),
    ],
)
def test_serve_refuses_wrong_usage_before_it_starts(arguments: tuple[str, ...], message: str) -> None:
    outcome = invoke(*arguments)
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.output.split())


def test_a_descriptor_opened_for_reading_is_refused(tmp_path: Path) -> None:
    with open(os.devnull) as file:
        outcome = invoke("serve", "--ready-fd", str(file.fileno()))
    assert outcome.exit_code == 2
    assert "open for reading only" in outcome.output


def test_the_ready_file_of_an_earlier_start_is_removed_even_when_the_start_fails(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.write_text("{}")
    outcome = subprocess.run(
        [
            *(sys.executable, "-m", "tidemill", "serve", "--ready-file", ready, "-d", tmp_path / "d"),
            *("--set", "num.partitions=many"),
        ],
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 1
    assert not ready.exists()


def test_tables_and_colours_are_for_terminals_only() -> None:
    arguments = [sys.executable, "-m", "tidemill", "config", "keys", "num.partitions"]
    piped = subprocess.run(arguments, capture_output=True, text=True).stdout
    assert "\x1b" not in piped
    assert piped.startswith("key\tscope\t")
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, arguments)
    shown = b""
    try:
        while piece := os.read(descriptor, 4096):
            shown += piece
    except OSError:
        pass
    finally:
        os.close(descriptor)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"\x1b[1mnum.partitions" in shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90", 90), ("1.5m", 90), ("2h", 7200), ("7 d", 604_800), ("1w", 604_800)],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5s", "5 years"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration(text)


def test_points_in_time_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    assert parse_moment("1700000000000") == 1_700_000_000_000
    assert parse_moment("10m") == 400_000
    assert parse_moment("2026-03-01T12:00+00:00") == 1_772_366_400_000
    assert parse_moment("2026-03-01T12:00Z") == 1_772_366_400_000
    with pytest.raises(ConfigError, match="not a point in time"):
        parse_moment("yesterday")


def test_separators_can_be_written_as_escapes() -> None:
    assert unescape(r"\t|\n|\x01|\\t|\q") == "\t|\n|\x01|\\t|\\q"


def test_messages_cannot_control_the_terminal() -> None:
    assert for_terminal("a\x1b[2Jb\rc\td\u202e") == "a\\x1b[2Jb\\rc\td\\u202e"


def test_cells_and_header_names_cannot_add_lines_or_control_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.print_table(["client", "host"], [["a\tb\r\nc", "/h"]])
    assert capsys.readouterr().out == "client\thost\na b  c\t/h\n"
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    output.print_table(["client"], [["a\x1b[31m\nc"]])
    assert "a\\x1b[31m\\nc" in capsys.readouterr().out
    written: list[bytes] = []
    shown = Format("plain", {"headers"}, " ", written.append, terminal=True)
    shown.print(ConsumerRecord("t", 0, Record(0, 0, 0, None, b"v", [("\x1b[2J", b"x")])))
    assert b"\x1b[2J" not in written[0]
    assert b"\\x1b[2J=x" in written[0]


def test_lines_are_split_regardless_of_chunk_boundaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"ab\ncdefghijkl\n\nx\ny")
    monkeypatch.setattr(produce, "CHUNK_BYTES", 4)
    with file.open("rb") as opened:
        found = [
            (number + i, line) for number, part in produce._lines_of(opened) for i, line in enumerate(part)
        ]
    assert found == [(1, b"ab"), (2, b"cdefghijkl"), (3, b""), (4, b"x"), (5, b"y")]
    monkeypatch.setattr(produce, "LINE_BYTES_MAX", 6)
    with file.open("rb") as opened, pytest.raises(BadInput, match="line 2 is longer than 6 bytes"):
        list(produce._lines_of(opened))


def test_every_cluster_command_reads_its_address_from_the_environment() -> None:
    for arguments in (("topic", "list"), ("pipeline", "load"), ("pipeline", "publish"), ("perf", "consume")):
        assert "TIDEMILL_BOOTSTRAP" in invoke(*arguments, "--help").output


def test_percentiles_are_times_that_occurred() -> None:
    found = percentiles([value / 1000 for value in range(1, 101)])
    assert (found["p50"], found["p99"], found["p99.9"], found["max"]) == (50, 99, 100, 100)
    assert percentiles([]) == {}
    assert percentiles([0.002])["p50"] == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"no", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "a JSON record is an object"),
        (b"{}", "needs a value"),
        (b'{"valu": "x"}', "'valu' is not a field of a record; did you mean value?"),
        (b'{"value": 1, "zzz": 1}', "the fields of a record are key, "),
        (b'{"value": 1, "value_base64": "eA=="}', "both given"),
        (b'{"value": 1, "headers": [{"key": 1}]}', "headers are a list"),
        (b'{"value": 1, "headers": {}}', "headers are a list"),
        (b'{"value": 1, "headers": [{"key": "h"}]}', "the header 'h' needs a value"),
        (b'{"value": 1, "headers": [{"key": "h", "vale": 1}]}', "not a field of a header"),
        (b'{"value": 1, "key_base64": "%"}', "not base64"),
    ],
)
def test_invalid_json_records_are_refused(text: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=re.escape(reason)):
        from_json(text)


def test_a_partition_must_be_a_number() -> None:
    with pytest.raises(BadInput, match="partition is 'x'"):
        from_json(b'{"value": 1, "partition": "x"}', keep_place=True)


def test_json_values_are_sent_as_their_json() -> None:
    assert from_json(b'{"value": {"a": [1, 2]}, "key": 5}').value == b'{"a":[1,2]}'
    assert from_json(b'{"value": null}').value is None


@pytest.mark.parametrize("what", ["verify", "recover"])
def test_a_directory_that_holds_no_logs_is_no_data_directory(tmp_path: Path, what: str) -> None:
    (tmp_path / "some-7").mkdir()
    (tmp_path / "some-7" / "notes.txt").write_text("x")
    done = CliRunner().invoke(command, ["log", what, str(tmp_path)])
    assert done.exit_code == 2
    assert "data directory" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["some-7"]


def test_the_status_of_a_cluster_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rack = {"rack": "rack-1", "living": True, "preferred": 2000, "leads": 2000, "in_sync": 2000}
    one = {"id": 1, "host": "127.0.0.1", "port": 19092, "replicas": 2000, "pid": 1234567, **rack}
    found = {"brokers": [{**one, "controller": True}], "partitions": 2000, "topics": 1, "moving": 0}
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setattr(cluster_status, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    cluster_status._print({**found, "under_replicated": [], "offline": []})
    lines = capsys.readouterr().out.splitlines()
    cells = ["1", "127.0.0.1:19092", "rack-1", "controller", "2000/2000", "2000/2000", "1234567"]
    assert cells in [line.split() for line in lines], lines


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("topic create t --config retention.ms=1", "Use --set KEY=VALUE."),
        ("topic alter t --add-config a=b", "Use --set KEY=VALUE."),
        ("topic alter t --delete-config a", "Use --unset KEY."),
        ("topic create --topic t", "It is a plain argument: tidemill topic create NAMES..."),
        ("produce t --producer-property linger.ms=1", "Use -X KEY=VALUE."),
        ("produce t --broker-list h:1", "Use --bootstrap-server HOST:PORT."),
        ("consume t --whitelist t", "Use --pattern REGEX."),
        ("serve --override a=b", "Use --set KEY=VALUE."),
        ("perf produce t --record-size 7", "Use --size BYTES."),
        # Without an equivalent in the command, a similarly written option is suggested.
        ("topic list --config f", "Use --command-config FILE."),
        ("topic create t --partition 3", "Did you mean '--partitions'?"),
    ],
)
def test_the_error_of_an_option_of_kafkas_tools_has_the_equivalent(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_every_equivalent_of_an_option_of_kafka_exists() -> None:
    def options(group: click.Command, context: click.Context) -> set[str]:
        found = {name for one in group.params for name in (*one.opts, *one.secondary_opts)}
        if isinstance(group, click.Group):
            for name in group.list_commands(context):
                command = group.get_command(context, name)
                assert command is not None
                found |= options(command, context)
        return found

    known = options(command, click.Context(command))
    for option, equivalents in EQUIVALENTS.items():
        for equivalent in equivalents:
            assert equivalent.partition(" ")[0] in known, option


@pytest.mark.parametrize("name", ["tidemill.client", "tidemill.testing", "tidemill.pipeline"])
def test_public_names_are_listed_for_completion(name: str) -> None:
    code = f"import {name} as m; print([n for n in dir(m) if not n.startswith('__')] == sorted(m.__all__))"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout == "True\n"


@pytest.mark.parametrize(("number", "text"), [(0, "0 batches"), (1, "1 batch"), (2000, "2,000 batches")])
def test_an_irregular_plural_is_used_except_for_one(number: int, text: str) -> None:
    assert output.counted(number, "batch", "batches") == text


@pytest.mark.parametrize(
    "name",
    [
        "cluster down",
        "group delete",
        "reassign cancel",
        "topic delete",
        "topic promote",
        "transaction abort",
    ],
)
def test_the_help_of_yes_says_where_confirmation_is_asked(name: str) -> None:
    shown = " ".join(invoke(*name.split(), "--help").output.split())
    assert "-y, --yes Do not ask for confirmation. It is asked only on a terminal." in shown


@pytest.mark.parametrize(
    "name", ["cluster decommission", "cluster rebalance", "cluster elect", "topic elect"]
)
def test_the_help_of_yes_says_where_it_is_required(name: str) -> None:
    shown = " ".join(invoke(*name.split(), "--help").output.split())
    assert re.search(r"-y, --yes.*Do not ask for confirmation[^.]*\. Required without a terminal\.", shown)
