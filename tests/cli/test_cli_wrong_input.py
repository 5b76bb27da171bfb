"""Wrong input to every command: the exit code distinguishes wrong usage from failures, and the text is
readable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.cli.options import parse_moment
from tidemill.client import Consumer
from tidemill.model.errors import ConfigError, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.testing import Broker

Run = Callable[..., str]

PYTHONS_WORDS = re.compile(
    r"Traceback|\[Errno|codec can't|invalid literal|Expecting |object has no attribute|is no INT|Error\("
)
FAILED, USAGE = 1, 2


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a command line: a text file, a binary file, a directory, a link."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_text("one\ntwo\n")
    (tmp_path / "bytes").write_bytes(b"ab\xff\xfe=\x00")
    (tmp_path / "bad.properties").write_text("client.id=me\nno.such.key=1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/gone")
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("topic list -b [::1", USAGE, "which is not host:port"),
        ("topic list -b localhost:99999", USAGE, "whose port is not between 1 and 65535"),
        ("topic list -b a..b:9092", USAGE, "whose host is invalid"),
        ("cluster up -d new --zookeeper a..b:2181", FAILED, "be reached (a..b:2181: not a host name)"),
        ("topic list --command-config missing", USAGE, "missing does not exist: name a properties file"),
        ("topic list --command-config folder", USAGE, "folder is a directory: name a properties file"),
        (
            "topic list --command-config bad.properties",
            USAGE,
            "bad.properties:2: no.such.key is not a key of a client",
        ),
        ("topic list -X sasl.password:p4ssword", USAGE, "-X (hidden): it must be KEY=VALUE"),
        (
            "topic list -X sasl.mechanism=KERBEROS",
            USAGE,
            "-X: sasl.mechanism=KERBEROS: allowed is PLAIN, ",
        ),
        (
            "topic list -X security.protocol=sasl_ssl",
            USAGE,
            "sasl.mechanism is missing, which security.protocol",
        ),
        ("topic create x -p 99999999999", USAGE, "99999999999 is out of range: it must be 1 to 2147483647"),
        ("topic create x -p 0", USAGE, "0 is out of range: it must be 1 to 2147483647"),
        ("topic create x -p many", USAGE, "'many' is not a whole number"),
        ("topic create x -r 99999", USAGE, "it must be 1 to 32767"),
        ("topic create a/b", FAILED, "is not legal"),
        ("topic alter x -p 99999999999", USAGE, "is out of range"),
        ("topic delete no-such-topic", FAILED, "does not exist"),
        ("group reset g --to-time 9999999999999999999999 -t x", USAGE, "is not a point in time"),
        ("group delete no-such-group", FAILED, "GROUP_ID_NOT_FOUND"),
        ("produce x -f lines -f missing", USAGE, "missing does not exist: name a file of messages"),
        ("produce x -f link", USAGE, "link is a link to a missing file: name a file of messages"),
        ("produce x -f folder", USAGE, "folder is a directory: name a file of messages"),
        (
            "produce x -f bytes --json --create",
            FAILED,
            "bytes, line 1: not JSON: byte 2 (0xff) is not UTF-8",
        ),
        (
            "produce x -f lines --json --create",
            FAILED,
            "lines, line 1: not JSON: character 1 is not allowed there",
        ),
        ("produce x -f lines -X delivery.timeout.ms=1", USAGE, "must be at least linger.ms"),
        ("produce x -f lines -X enable.idempotence=true -a 0", USAGE, "needs acks=all"),
        ("consume x --group= -e", USAGE, "--group is empty"),
        ("consume x --since 99999999999999999999999 -e", USAGE, "is not a point in time"),
        ("consume x -X session.timeout.ms=1 -g g -e", USAGE, "must be less than session.timeout.ms"),
        ("perf produce x -n 10 --size 99999999999", USAGE, "is out of range"),
        ("perf produce x -n 10 --size 3000000", FAILED, "is larger than max.request.size"),
        ("log dump missing", USAGE, "missing does not exist: name files of a log, or the directory of one"),
        ("log dump link", USAGE, "link is a link to a missing file: name files of a log"),
        ("log dump --files lines,missing", USAGE, "missing does not exist: name files of a log"),
        ("log dump folder", FAILED, "folder contains no log files"),
        ("log dump lines", FAILED, "lines is not a file of a log"),
        ("log dump lines --value-decoder-class Mine", USAGE, "the decoder Mine is an unknown Java class"),
        ("log verify missing", USAGE, "missing does not exist: name a data directory"),
        ("log verify lines", USAGE, "lines is not a directory: name a data directory"),
        ("log recover folder", USAGE, "is not a data directory of a broker"),
        ("log import missing", USAGE, "missing does not exist: name a data directory"),
        ("log import folder --nodes missing", USAGE, "missing does not exist: name a JSON file"),
        ("log import folder --metadata lines", USAGE, "lines is not a directory"),
        ("log import folder", FAILED, "is not a data directory of a broker"),
        ("log export missing --in-place --nodes n", USAGE, "missing does not exist: name a data directory"),
        ("config check --config missing", USAGE, "missing does not exist: name a properties file"),
        ("config check -s num.partitions=x", FAILED, "num.partitions=x: allowed is a whole number"),
        ("serve --config folder", USAGE, "folder is a directory: name a properties file"),
        ("serve -p 70000", USAGE, "70000 is out of range: it must be 0 to 65535"),
        ("pipeline load -t x -o out --option nonsense", USAGE, "it must be KEY=VALUE"),
        ("pipeline load -t x -o out --option nonsense=1", USAGE, "option nonsense='1' is unknown"),
        ("pipeline load -t x -o out --trigger soon", USAGE, "trigger 'soon'"),
        ("pipeline publish missing -t x", USAGE, "there is no file missing"),
        ("pipeline mirror --target t:1 --checkpoint c", USAGE, "no source is given: set --source HOST:PORT"),
        ("pipeline mirror --source s:1 --checkpoint c", USAGE, "no target is given: set --target HOST:PORT"),
        ("pipeline mirror --source s:1 --target t:1", USAGE, "Missing option '--checkpoint'"),
        ("pipeline mirror --source a=s:1 --target a=t:1 --checkpoint c", USAGE, "alias a is given twice"),
        ("pipeline mirror --source a/b=s:1 --target t:1 --checkpoint c", USAGE, "the alias 'a/b' must be"),
        (
            "pipeline mirror --source s:1 --target t:1 --checkpoint c --allow a(b",
            USAGE,
            "the allow list 'a(b' is not a regular expression",
        ),
        (
            "pipeline mirror --consumer.config missing --target t:1 --checkpoint c",
            USAGE,
            "missing: the configuration cannot be read",
        ),
        (
            "pipeline mirror --source s:1 --target t:1 --checkpoint lines",
            USAGE,
            "the checkpoint lines is a file",
        ),
        ("topic promote no-such-topic", FAILED, "no-such-topic"),
        ("topic promote x --timeout soon", USAGE, "'soon' is not a duration"),
        ("completion csh", USAGE, "'csh' is not one of"),
    ],
)
def test_wrong_input_is_reported_without_python_errors(
    cli: Run, files: Path, line: str, code: int, message: str
) -> None:
    out = cli(*line.split(), code=code)
    assert message in out
    assert not PYTHONS_WORDS.search(out), out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"node.id=x\nversion=1\n", "is damaged ('x' is not a whole number)"),
        (b"node.id=1\n", "is damaged (version is missing)"),
        (b"\\u00zz=1\n", "is damaged ('00zz' is not a whole number)"),
        (b"\xff", "is damaged (byte 0 (0xff) is not UTF-8)"),
    ],
)
def test_unreadable_meta_properties_are_reported(cli: Run, files: Path, content: bytes, message: str) -> None:
    (files / "data" / "meta.properties").write_bytes(content)
    assert message in cli("log", "import", "data", "--without-settings", code=FAILED)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "it is not a JSON object"),
        ("{", "character 2 is not allowed there"),
        (
            '{"/cluster/id": "x"}',
            "/cluster/id holds 'x', which cannot be read: character 1 is not allowed there",
        ),
    ],
)
def test_unreadable_nodes_are_reported(cli: Run, files: Path, content: str, message: str) -> None:
    (files / "data" / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=x\n")
    (files / "nodes").write_text(content)
    assert message in cli("log", "import", "data", "--nodes", "nodes", code=FAILED)


@pytest.mark.parametrize("text", ["9" * 20, "9" * 30 + "w", "9" * 400 + "w", "0001-01-01T00:00:00+14:00"])
def test_points_in_time_out_of_range_are_refused(text: str) -> None:
    try:
        assert 0 <= parse_moment(text) < 2**63
    except ConfigError as problem:
        assert "is not a point in time" in str(problem)  # noqa: PT017


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"value": 1, "timestamp": 99999999999999999999}',
            "it must be a non-negative integer of at most 64 bits",
        ),
        ('{"value": [1, NaN]}', "contains a number that JSON does not allow"),
        ('{"value": 1e400}', "contains a number that JSON does not allow"),
        ('{"value": 1, "headers": [{"key": "\\ud800", "value": "x"}]}', "contains half of a surrogate pair"),
    ],
)
def test_values_out_of_range_are_reported(cli: Run, files: Path, line: str, message: str) -> None:
    (files / "lines").write_text(line)
    cli("topic", "create", "held", "--if-not-exists")
    assert message in cli("produce", "held", "-f", "lines", "--json", "--keep-place", code=FAILED)


def test_a_message_without_a_key_is_refused_with_its_cause_once(cli: Run, files: Path) -> None:
    cli("topic", "create", "compacted", "--set", "cleanup.policy=compact")
    message = cli("produce", "compacted", "-f", "lines", code=FAILED)
    assert message.count("a record needs a key") == 1
    assert message.count("compacted:") == 1


def test_damage_is_reported_with_its_position(cli: Run, files: Path, broker: Broker) -> None:
    cli("topic", "create", "hurt")
    for _ in range(3):
        cli("produce", "hurt", "-f", "lines")
    path = Path(broker.data_dir) / "hurt-0" / "00000000000000000000.log"
    data = path.read_bytes()
    third = len(data) // 3
    path.write_bytes(data[: 2 * third - 1] + bytes([data[2 * third - 1] ^ 1]) + data[2 * third :])
    message = cli("consume", "hurt", "--from-beginning", "-e", code=FAILED)
    assert message.startswith("one\ntwo\ntidemill: hurt-0 cannot be read at offsets 2 to 3: ")
    assert message.endswith("to skip them, read from offset 4 on (2 messages read)\n")
    assert cli("consume", "hurt", "--offset", "4", "-e") == "one\ntwo\n"
    group = cli("consume", "hurt", "-g", "hurt-readers", "--offset", "2", "-e", code=FAILED)
    assert group.startswith("tidemill: hurt-0 cannot be read at offsets 2 to 3: ")
    with Consumer(broker.bootstrap, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition("hurt", 0)])
        consumer.seek(TopicPartition("hurt", 0), 2)
        with pytest.raises(KafkaError, match="hurt-0 cannot be read from offset 2 on: "):
            consumer.poll_arrow(10)
