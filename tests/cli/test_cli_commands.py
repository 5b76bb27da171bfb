"""The command line with a real broker: its output, and the exit codes for scripts."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_process import commands

from tidemill.cli import perf
from tidemill.cli import topic as topics
from tidemill.client import connection as requests
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey

Run = Callable[..., str]


def send(cli: Run, topic: str, text: str | bytes, tmp_path: Path, *arguments: str, code: int = 0) -> str:
    file = tmp_path / "input"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return cli("produce", topic, "-f", str(file), *arguments, code=code)


def as_objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics_are_created_expanded_altered_and_deleted(cli: Run) -> None:
    assert cli("topic", "create", "a1", "a2", "-p", "2", "--set", "retention.ms=-1") == (
        "created a1 with 2 partitions\ncreated a2 with 2 partitions\n"
    )
    assert "a1\t2\t1\n" in cli("topic", "list")
    assert "exists" in cli("topic", "create", "a1", code=1)
    assert cli("topic", "create", "a1", "--if-not-exists") == "a1 exists already\n"
    cli("topic", "alter", "a1", "-p", "4", "--set", "segment.bytes=2000000", "--unset", "retention.ms")
    (found,) = json.loads(cli("topic", "describe", "a1", "--json"))
    assert len(found["partitions"]) == 4
    assert found["configs"]["segment.bytes"]["value"] == "2000000"
    assert "retention.ms" not in found["configs"]
    assert found["partitions"][0]["state"] == "ok"
    assert "cannot be reduced" in cli("topic", "alter", "a1", "-p", "3", code=1)
    assert "retention.mss" in cli("topic", "alter", "a1", "--set", "retention.mss=1", code=1)
    assert "did you mean retention.ms?" in cli("topic", "alter", "a1", "--unset", "retention.mss", code=1)
    twice = cli("topic", "alter", "a1", "--set", "retention.ms=1", "--unset", "retention.ms", code=2)
    assert "--set and --unset both name retention.ms" in twice
    assert "at most 2147483647" in cli(
        "topic", "alter", "a1", "--set", "max.message.bytes=9999999999", code=1
    )
    assert cli("topic", "delete", "a1", "a2") == "deleted a1\ndeleted a2\n"
    assert "the list of topics has all names" in cli("topic", "delete", "a1", code=1)
    assert cli("topic", "delete", "a1", "--if-exists") == "a1 does not exist\n"
    assert "a1" in cli("topic", "describe", "a1", code=1)


def test_a_dry_run_creates_nothing(cli: Run) -> None:
    assert cli("topic", "create", "dry", "--dry-run") == "dry: could be created\n"
    assert "dry\t" not in cli("topic", "list")


def test_lines_are_produced_and_consumed(cli: Run, topic: str, tmp_path: Path) -> None:
    send(cli, topic, "one\ntwo\n\nfour", tmp_path, "-p", "1")
    assert cli("consume", topic, "--from-beginning", "-e") == "one\ntwo\n\nfour\n"
    assert cli("consume", topic, "--offset", "-2", "-e") == "\nfour\n"
    assert cli("consume", topic, "--offset", "1", "-n", "1") == "two\n"
    assert cli("consume", topic, "-e") == ""
    assert cli("consume", topic, "-p", "2", "--from-beginning", "-e") == ""


def test_binary_values_are_printed_unchanged(cli: Run, topic: str, tmp_path: Path) -> None:
    send(cli, topic, b"\xff\x00\xc3\n", tmp_path)
    assert (
        cli("consume", topic, "--from-beginning", "-e").encode("utf-8", "surrogateescape")
        == b"\xff\x00\xc3\n"
    )
    assert cli("consume", topic, "--from-beginning", "-e", "-o", "hex") == "ff 00 c3\n"
    (found,) = as_objects(cli("consume", topic, "--from-beginning", "-e", "--json"))
    assert found["value_base64"] == "/wDD"


def test_keys_headers_and_tombstones_are_produced_and_consumed(cli: Run, topic: str, tmp_path: Path) -> None:
    send(cli, topic, "k1::v1\nk1::\n", tmp_path, "-K", "::", "-H", "h=x", "-H", "empty=", "-Z", "")
    send(cli, topic, "plain\n", tmp_path)
    found = as_objects(cli("consume", topic, "--from-beginning", "-e", "--json"))
    assert {(record.get("key"), record["value"]) for record in found} == {
        ("k1", "v1"),
        ("k1", None),
        (None, "plain"),
    }
    assert {"key": "empty", "value": ""} in next(r for r in found if r.get("key"))["headers"]
    shown = cli("consume", topic, "--from-beginning", "-e", "--show", "headers,key", "--separator", "|")
    assert "h=x,empty=|k1|v1\n" in shown
    assert "h=x,empty=|k1|null\n" in shown


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_produce_accepts_the_json_of_consume(cli: Run, topic: str, tmp_path: Path, codec: str) -> None:
    lines = "".join(f"key{n % 7}\tvalue {n} ü\n" for n in range(500))
    send(cli, topic, lines, tmp_path, "-K", "\\t", "-z", codec, "-H", "n=1")
    first = cli("consume", topic, "--from-beginning", "-e", "--json")
    copy = f"{topic}-copy"
    cli("topic", "create", copy, "-p", "3")
    send(cli, copy, first, tmp_path, "--json", "--keep-place")
    second = cli("consume", copy, "--from-beginning", "-e", "--json")
    assert sorted(first.replace(topic, "t").splitlines()) == sorted(second.replace(copy, "t").splitlines())


def test_an_invalid_line_is_named(cli: Run, topic: str, tmp_path: Path) -> None:
    message = send(cli, topic, '{"value": 1}\nno\n{"value": 2}\n', tmp_path, "--json", code=1)
    assert "line 2: not JSON" in message
    assert "(1 message before it sent, nothing after it)" in message
    message = send(cli, topic, '{"value": 1, "headers": [1]}\n', tmp_path, "--json", code=1)
    assert "headers are a list" in message
    assert "line 2: it has no ':'" in send(cli, topic, "k:v\nplain\n", tmp_path, "-K", ":", code=1)
    placed = '{"value": 1, "partition": 0}\n{"value": 1}\n'
    assert "line 2: some lines have" in send(cli, topic, placed, tmp_path, "--json", "--keep-place", code=1)
    found = as_objects(cli("consume", topic, "--from-beginning", "-e", "--json"))
    assert sorted((r["key"] or "", r["value"]) for r in found) == [("", "1"), ("", "1"), ("k", "v")]


def test_too_few_messages_are_reported_with_exit_code_1(cli: Run, topic: str, tmp_path: Path) -> None:
    send(cli, topic, "one\n", tmp_path)
    message = cli("consume", topic, "--from-beginning", "-n", "2", "--timeout", "100ms", code=1)
    assert message == "one\ntidemill: 1 of 2 messages came, and then none within 0.1 s\n"
    assert "and the end was reached" in cli("consume", topic, "-n", "2", "-e", code=1)
    assert "1 of 5 messages came, there are 1" in cli("perf", "consume", topic, "-n", "5", code=1)
    assert "there is 0 to 2" in cli("consume", topic, "-p", "9", code=1)


def test_a_too_large_message_is_refused_with_the_next_step(cli: Run, topic: str, tmp_path: Path) -> None:
    message = send(cli, topic, b"a\n" + b"x" * 2_000_000, tmp_path, code=1)
    assert "line 2: a message of about 2000024 bytes" in message
    assert "max.request.size" in message
    raised = ("-X", "max.request.size=3000000")
    assert "MESSAGE_TOO_LARGE" in send(cli, topic, b"x" * 2_000_000, tmp_path, *raised, code=1)


def test_since_starts_at_a_time(cli: Run, topic: str, tmp_path: Path) -> None:
    records = "".join(
        json.dumps({"value": f"v{n}", "partition": 0, "timestamp": 1_700_000_000_000 + n}) + "\n"
        for n in range(5)
    )
    send(cli, topic, records, tmp_path, "--json", "--keep-place")
    assert cli("consume", topic, "--since", "1700000000003", "-e") == "v3\nv4\n"
    assert cli("consume", topic, "--since", "1m", "-e") == ""


def test_consume_reads_topics_that_match_a_pattern(cli: Run, topic: str, tmp_path: Path) -> None:
    send(cli, topic, "x\n", tmp_path)
    assert cli("consume", "--pattern", f"{topic[:-3]}.*", "--from-beginning", "-e") == "x\n"
    assert "no topic matches" in cli("consume", "--pattern", "zzz.*", "-e", code=1)


def test_groups_are_described_reset_and_deleted(cli: Run, topic: str, tmp_path: Path) -> None:
    send(cli, topic, "".join(f"{n}\n" for n in range(10)), tmp_path, "-p", "0")
    assert cli("consume", topic, "-g", topic, "--from-beginning", "-n", "4") == "0\n1\n2\n3\n"
    (found,) = json.loads(cli("group", "describe", topic, "--json"))
    assert (found["state"], found["lag"]) == ("Empty", 6)
    assert f"{topic}\tEmpty\tconsumer" in cli("group", "list")
    assert f"{topic}\t{topic}\t0\t4\t0\t10\t6\t-\t-\n" in cli("group", "describe", topic)
    planned = cli("group", "reset", topic, "--to", "latest", "-t", topic, "--dry-run")
    assert f"{topic}\t0\t4\t10\n" in planned
    assert cli("consume", topic, "-g", topic, "-n", "1") == "4\n"
    cli("group", "reset", topic, "--shift-by", "-2", "-t", f"{topic}:0")
    assert cli("consume", topic, "-g", topic, "-e") == "".join(f"{n}\n" for n in range(3, 10))
    cli("group", "reset", topic, "--to-offset", "9", "-t", f"{topic}:0")
    assert cli("consume", topic, "-g", topic, "-e") == "9\n"
    assert cli("group", "delete", topic) == f"deleted {topic}\n"
    assert "GROUP_ID_NOT_FOUND" in cli("group", "describe", topic, code=1)


def test_perf_prints_rates_and_percentiles(cli: Run) -> None:
    produced = json.loads(cli("perf", "produce", "perf", "-n", "3000", "--size", "50", "--json"))
    assert produced["messages"] == 3000
    assert produced["bytes"] == 150_000
    assert 0 < produced["latency_ms"]["p50"] <= produced["latency_ms"]["p99"] <= produced["latency_ms"]["max"]
    consumed = json.loads(cli("perf", "consume", "perf", "--json"))
    assert (consumed["messages"], consumed["bytes"]) == (3000, 150_000)
    arrow = json.loads(cli("perf", "consume", "perf", "--arrow", "--json"))
    assert (arrow["messages"], arrow["bytes"]) == (3000, 150_000)
    latency = json.loads(cli("perf", "latency", "perf", "-n", "20", "--json"))
    assert latency["end_to_end_ms"]["p50"] >= latency["latency_ms"]["p50"] > 0
    steady = json.loads(cli("perf", "produce", "perf", "-n", "100", "--rate", "500", "--json"))
    assert 0.15 < steady["seconds"] < 5


def test_perf_fails_when_a_timed_message_is_refused(cli: Run) -> None:
    cli("topic", "create", "perf-small", "--set", "max.message.bytes=500")
    arguments = ("perf-small", "-n", "3", "--size", "2000")
    assert "MESSAGE_TOO_LARGE" in cli("perf", "produce", *arguments, "--rate", "1000", code=1)
    assert "MESSAGE_TOO_LARGE" in cli("perf", "produce", *arguments, code=1)


def test_perf_reports_a_message_that_is_not_read_back(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "READ_BACK_S", 0.0)
    message = cli("perf", "latency", "perf-latency-late", "-n", "1", code=1)
    assert "message 0 of perf-latency-late-0 was acknowledged, and not read within 0 s" in message


def test_log_dump_shows_a_partitions_files(cli: Run, broker: Broker, topic: str, tmp_path: Path) -> None:
    send(cli, topic, "a\nb\n", tmp_path, "-p", "0", "-k", "key")
    directory = os.path.join(broker.data_dir, f"{topic}-0")
    text = cli("log", "dump", directory, "--payload")
    assert "baseOffset: 0 lastOffset: 1 count: 2" in text
    assert "key: key payload: b" in text
    found = as_objects(cli("log", "dump", directory, "--records", "--json"))
    assert [(entry["key"], entry["value"]) for entry in found if entry["kind"] == "record"] == [
        ("key", "a"),
        ("key", "b"),
    ]
    damaged = tmp_path / "00000000000000000000.log"
    data = bytearray(Path(directory, "00000000000000000000.log").read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    assert "the checksum of the batch at position 0 is wrong" in cli("log", "dump", str(damaged), code=1)
    assert "directory of one partition" in cli("log", "dump", broker.data_dir, code=1)


def test_an_unreachable_broker_is_reported_at_once(cli: Run) -> None:
    assert "tidemill serve" in cli("topic", "list", "-b", "127.0.0.1:1", code=1)
    assert "not host:port" in cli("topic", "list", "-b", "nonsense", code=2)


def test_brokers_of_the_client_keys_are_the_default(
    cli: Run, topic: str, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    serializer = "org.apache.kafka.common.serialization.StringSerializer"  # As Java's clients have it.
    file.write_text(f"bootstrap.servers={broker.bootstrap}\nkey.serializer={serializer}\n")
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP")
    monkeypatch.chdir(tmp_path)  # no cluster in a directory of this machine
    assert topic in cli("topic", "list", "--command-config", str(file))
    assert topic in cli("topic", "list", "-X", f"bootstrap.servers={broker.bootstrap}")
    assert broker.bootstrap in cli("cluster", "status", "--command-config", str(file))
    nobody = "127.0.0.1:1"
    assert nobody in cli("topic", "list", "--command-config", str(file), "-b", nobody, code=1)
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", nobody)
    assert nobody in cli("topic", "list", "--command-config", str(file), code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("topic",),
        ("topic", "create"),
        ("consume",),
        ("consume", "t", "--from-beginning", "--offset", "1"),
        ("consume", "t", "--show", "nonsense"),
        ("consume", "t", "--since", "nonsense"),
        ("consume", "t", "-g", "g", "-p", "0"),
        ("consume", "--pattern", "["),
        ("consume", "--pattern", "a{99999999999999999999}"),
        ("produce", "t", "--json", "-k", "x"),
        ("produce", "t", "-k", "k", "-K", ":"),
        ("produce", "t", "-K", ""),
        ("produce", "t", "--keep-place"),
        ("produce", "t", "-H", "foo"),
        ("produce", "t", "-X", "nonsense"),
        ("group", "reset", "g"),
        ("group", "reset", "g", "--to", "latest", "--shift-by", "1"),
        ("group", "reset", "g", "--to", "latest", "-t", "t:x"),
        ("topic", "alter", "t"),
        ("completion", "tcsh"),
        ("group", "list", "--state", "Foo"),
        ("perf", "produce", "t", "-z", "foo"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_exit_code_2(cli: Run, arguments: tuple[str, ...]) -> None:
    cli(*arguments, code=2)


def test_the_error_of_an_unknown_key_suggests_a_similar_key(
    cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.cli.config.on_terminal", lambda: True)
    assert "'retentoin.ms' in its name; did you mean retention.ms?" in cli("config", "keys", "retentoin.ms")


def test_an_offset_out_of_range_is_reported(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "short", "-p", "3")
    arguments = ["consume", "short", "--offset", "5", "--timeout", "1s", "-b", broker.bootstrap]
    with commands(arguments, [*arguments, "-p", "2"]) as (all_of_them, one):
        assert (all_of_them.wait(), one.wait()) == (0, 0)
        assert all_of_them.errors() == [
            "tidemill: offset 5 is out of range in short-0, which has 0 to 0: reading starts at 0; 2 other "
            "partitions too"
        ]
        assert one.errors() == [
            "tidemill: offset 5 is out of range in short-2, which has 0 to 0: reading starts at 0"
        ]


def test_the_error_of_an_unknown_client_key_suggests_the_closest_key(cli: Run, topic: str) -> None:
    assert "linger.ms" in cli("produce", topic, "-f", os.devnull, "-X", "linger.m=1", code=2)
    assert "linger.ms=x: allowed is a whole number" in cli("topic", "list", "-X", "linger.ms=x", code=2)


def test_a_closed_output_pipe_is_no_error(broker: Broker, cli: Run, topic: str, tmp_path: Path) -> None:
    send(cli, topic, "".join(f"{n}\n" for n in range(50_000)), tmp_path)
    consume = f"{sys.executable} -m tidemill consume {topic} -b {broker.bootstrap} --from-beginning -e"
    outcome = subprocess.run(
        ["bash", "-c", f"{consume} | head -1; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60
    )
    assert outcome.returncode == 141
    assert outcome.stdout.count(b"\n") == 1
    assert outcome.stderr == b""


def test_standard_input_is_sent_as_it_arrives(broker: Broker, cli: Run, topic: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill", "produce", topic, "-p", "0", "-b", broker.bootstrap],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert cli("consume", topic, "--from-beginning", "-n", "1", "--timeout", "20s") == "first\n"
    _, errors = process.communicate(b"last", timeout=30)
    assert (process.returncode, errors) == (0, b"")
    assert cli("consume", topic, "--from-beginning", "-n", "2", "--timeout", "20s").split() == [
        "first",
        "last",
    ]


def test_an_error_of_one_item_does_not_hide_the_others(cli: Run, topic: str) -> None:
    shown = cli("topic", "describe", topic, "nope", "--json", code=1)
    assert json.loads(shown[: shown.index("tidemill: ")])[0]["name"] == topic
    assert "nope" in shown[shown.index("tidemill: ") :]
    assert f"{topic}\t" in cli("topic", "describe", "nope", topic, code=1)


def test_an_unreadable_partition_does_not_prevent_the_counts(
    cli: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("topic", "create", f"{topic}-bad", "-p", "2")
    send(cli, topic, "a\nb\n", tmp_path)
    send(cli, f"{topic}-bad", "a\n", tmp_path, "-p", "0")
    plain = requests.decode_response

    def decode(key: ApiKey, version: int, frame: bytes) -> Any:
        answer = plain(key, version, frame)
        if key == ApiKey.LIST_OFFSETS:
            for found in answer[1].topics:
                for entry in found.partitions:
                    if (found.name, entry.partition_index) == (f"{topic}-bad", 1):
                        entry.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
        return answer

    monkeypatch.setattr(requests, "decode_response", decode)
    monkeypatch.setattr(topics, "ENDS_TIMEOUT_S", 0.3)
    listed = cli("topic", "list", "--counts", code=1)
    assert f"{topic}\t3\t1\t2\n" in listed
    assert f"{topic}-bad\t2\t1\t?\n" in listed
    assert f"cannot look up an offset of {topic}-bad-1: KAFKA_STORAGE_ERROR" in listed
    described = cli("topic", "describe", f"{topic}-bad", code=1)
    assert "\tok\n" in described
    assert "\tkafka storage error\n" in described


def test_internal_topics_are_not_deleted_without_force(cli: Run, topic: str) -> None:
    message = cli("topic", "delete", "--yes", topic, "__consumer_offsets", code=1)
    assert "committed offsets of every group" in message
    assert "--force" in message
    assert topic in cli("topic", "list")


def test_a_full_device_is_reported_in_one_line(broker: Broker, topic: str) -> None:
    with open("/dev/full", "wb") as full:
        outcome = subprocess.run(
            [sys.executable, "-m", "tidemill", "topic", "list", "-b", broker.bootstrap],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    message = b"tidemill: standard output cannot be written: No space left on device\n"
    assert (outcome.returncode, outcome.stderr) == (1, message)


def test_a_closed_standard_stream_is_reported_in_one_line(broker: Broker, topic: str, tmp_path: Path) -> None:
    def outcome(arguments: str, redirection: str) -> tuple[int, str]:
        line = f"{sys.executable} -m tidemill {arguments} -b {broker.bootstrap} {redirection}"
        ended = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60)
        return ended.returncode, ended.stderr

    (tmp_path / "lines").write_text("one\ntwo\n")
    lost = "tidemill: standard output cannot be written: Bad file descriptor\n"
    assert outcome("topic list", ">&-") == (1, lost)
    assert outcome(f"produce {topic} -f {tmp_path}/lines", ">&-") == (0, "")
    assert outcome(f"consume {topic} --from-beginning -e", ">&-") == (1, lost)
    code, message = outcome(f"produce {topic}", "<&-")
    assert (code, "bad file descriptor" in message, len(message.splitlines())) == (1, True, 1)
    assert outcome(f"topic describe {topic}-none", "2>&-") == (1, "")


def test_consume_ends_with_its_reader_without_further_messages(
    broker: Broker, cli: Run, topic: str, tmp_path: Path
) -> None:
    send(cli, topic, "only\n", tmp_path)
    consume = f"{sys.executable} -m tidemill consume {topic} -b {broker.bootstrap} --from-beginning"
    outcome = subprocess.run(
        ["bash", "-c", f"{consume} | head -1; exit ${{PIPESTATUS[0]}}"], capture_output=True, timeout=60
    )
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (141, b"only\n", b"")


def test_a_shell_completes_topics_and_groups(
    cli: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cli, topic, "x\n", tmp_path)
    cli("consume", topic, "-g", topic, "--from-beginning", "-n", "1")
    monkeypatch.setenv("_TIDEMILL_COMPLETE", "bash_complete")

    def offered(words: str) -> list[str]:
        variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        outcome = subprocess.run(
            [sys.executable, "-m", "tidemill"],
            capture_output=True,
            text=True,
            env={**os.environ, **variables},
        )
        assert outcome.stderr == ""
        return [line.partition(",")[2] for line in outcome.stdout.splitlines()]

    assert offered(f"tidemill topic describe {topic[:-2]}") == [topic]
    assert offered(f"tidemill consume {topic[:-2]}") == [topic]
    assert offered(f"tidemill group describe {topic[:-2]}") == [topic]


def test_a_port_without_a_broker_is_reported(cli: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        message = cli("topic", "list", "-b", address, "-X", "default.api.timeout.ms=200", code=1)
        listener.shutdown(socket.SHUT_RDWR)
    assert "is it the port of a Kafka broker" in message


def test_the_jq_examples_of_the_help_work(cli: Run, topic: str, broker: Broker, tmp_path: Path) -> None:
    send(cli, topic, "x\n", tmp_path, "-p", "0")
    cli("consume", topic, "-g", topic, "--from-beginning", "-n", "1")
    assert "jq '.[].lag'" in cli("group", "describe", "--help")
    assert [found["lag"] for found in json.loads(cli("group", "describe", topic, "--json"))] == [0]
    assert """jq 'select(.kind == "record").offset'""" in cli("log", "dump", "--help")
    entries = as_objects(cli("log", "dump", f"{broker.data_dir}/{topic}-0", "--json", "--records"))
    assert [entry["offset"] for entry in entries if entry["kind"] == "record"] == [0]


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("tidemill.mirror.state=active", "POLICY_VIOLATION"),
        ("message.format.version=0.9.0", "UNSUPPORTED_FOR_MESSAGE_FORMAT"),
    ],
)
def test_messages_that_the_broker_refuses_are_not_stored(
    cli: Run, topic: str, tmp_path: Path, setting: str, code: str
) -> None:
    cli("topic", "create", "refuses-" + code, "-p", "1", "--set", setting)
    (tmp_path / "input").write_text("one\ntwo\n")
    told = cli("produce", "refuses-" + code, "-f", str(tmp_path / "input"), code=1)
    assert code in told
    assert "(2 messages sent, 0 acknowledged; 2 refused and not stored)" in told
