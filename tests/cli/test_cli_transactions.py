"""Transactions on the command line: produce, consume, and ``tidemill transaction``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tidemill.client import Producer, ProducerFenced
from tidemill.client.mirror_appender import MirrorAppender
from tidemill.client.range_reader import RangeReader
from tidemill.model.types import TopicPartition
from tidemill.records.mirrored_batch import mirrored_batches
from tidemill.testing import Broker

Run = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.two.phase.commit.enable": "true"}) as running:
        yield running


def committed(cli: Run, topic: str) -> str:
    return cli("consume", topic, "--from-beginning", "-e", "--isolation-level", "read_committed")


def fields(text: str) -> dict[str, str]:
    """The fields and values of a description."""
    return dict(line.split("\t") for line in text.splitlines() if "\t" in line)


def test_the_input_of_produce_is_one_transaction(cli: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text('{"value": "one"}\n{"value": "two"}\n')
    arguments = ("produce", topic, "-f", str(file), "--json", "--transactional-id", "loader")
    cli(*arguments)
    assert committed(cli, topic) == "one\ntwo\n"
    assert "loader" in cli("transaction", "list", "--state", "CompleteCommit")
    file.write_text('{"value": "three"}\nno object\n')
    cli(*arguments, code=1)
    assert committed(cli, topic) == "one\ntwo\n", "an error aborts the transaction"


def test_an_open_transaction_is_listed_described_and_aborted(broker: Broker, cli: Run, topic: str) -> None:
    with Producer(broker.bootstrap, {"transactional.id": "open-1"}) as producer:
        producer.begin()
        producer.send(topic, b"value", partition=2)
        producer.flush()
        (listed,) = json.loads(cli("transaction", "list", "--pattern", "open-.*", "--json"))
        assert (listed["transactional_id"], listed["state"]) == ("open-1", "Ongoing")
        assert cli("transaction", "list", "--pattern", "other", "--json") == "[]\n"
        described = fields(cli("transaction", "describe", "open-1"))
        assert (described["state"], described["partitions"]) == ("Ongoing", f"{topic}-2")
        assert described["timeout, s"] == "60"
        assert "aborted" in cli("transaction", "abort", "--force", "open-1", "-y")
        with pytest.raises(ProducerFenced):
            producer.commit()
    assert fields(cli("transaction", "describe", "open-1"))["state"] == "Empty"
    assert committed(cli, topic) == ""


def test_a_two_phase_commit_has_no_timeout(broker: Broker, cli: Run, topic: str) -> None:
    config = {"transactional.id": "prepared", "transaction.two.phase.commit.enable": True}
    with Producer(broker.bootstrap, config) as producer, producer.transaction():
        producer.send(topic, b"value")
    assert fields(cli("transaction", "describe", "prepared"))["timeout, s"] == "none"


def test_a_transactional_id_that_does_not_exist_is_reported(cli: Run) -> None:
    assert "TRANSACTIONAL_ID_NOT_FOUND" in cli("transaction", "describe", "absent", code=1)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--force",), ("name",), ("--topic", "t"), ("--force", "name", "--topic", "t")],
    ids=" ".join,
)
def test_an_abort_of_no_transaction_is_wrong_usage(cli: Run, arguments: tuple[str, ...]) -> None:
    assert "--force" in cli("transaction", "abort", *arguments, code=2)


def test_only_an_open_transaction_is_aborted(cli: Run, topic: str, tmp_path: Path) -> None:
    assert "TRANSACTIONAL_ID_NOT_FOUND" in cli("transaction", "abort", "--force", "misspelt", "-y", code=1)
    assert cli("transaction", "list", "--pattern", "misspelt", "--json") == "[]\n"
    file = tmp_path / "input"
    file.write_text("one\n")
    cli("produce", topic, "-f", str(file), "--transactional-id", "ended")
    refused = cli("transaction", "abort", "--force", "ended", "-y", code=1)
    assert "no transaction of ended is open: its state is CompleteCommit" in refused


def test_the_end_of_an_aborted_produce_says_that_nothing_is_visible(
    cli: Run, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_text('{"value": "one"}\nno object\n')
    arguments = ("produce", topic, "-f", str(file), "--json")
    told = cli(*arguments, "--transactional-id", "bad-input", code=1)
    assert "1 message before it aborted with the transaction, nothing after it" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("produce", "t", "--transactional-id", ""), "--transactional-id is empty"),
        (
            ("produce", "t", "--transactional-id", "a", "-X", "transactional.id=b"),
            "--transactional-id a and transactional.id=b: give only one",
        ),
        (("transaction", "list", "--producer-id", str(1 << 63)), "it must be 0 to 9223372036854775807"),
        (("transaction", "list", "--running-for", "9" * 20 + "d"), "is too long"),
        (
            ("transaction", "list", "--pattern", "("),
            "--pattern (: no valid regular expression (missing ), unterminated subpattern at position 0)",
        ),
    ],
)
def test_wrong_options_are_named(cli: Run, arguments: tuple[str, ...], told: str) -> None:
    assert told in cli(*arguments, code=2)


def test_a_transactional_id_among_the_settings_makes_a_transaction(
    cli: Run, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_text("one\n")
    cli("produce", topic, "-f", str(file), "-X", "transactional.id=from-settings")
    assert committed(cli, topic) == "one\n"
    assert "from-settings" in cli("transaction", "list", "--state", "CompleteCommit")


def test_a_timeout_above_that_of_the_brokers_is_named(cli: Run, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("one\n")
    arguments = ("produce", topic, "-f", str(file), "--transactional-id", "long")
    told = cli(*arguments, "-X", "transaction.timeout.ms=900001", code=1)
    assert "transaction.timeout.ms=900001 is above the brokers' transaction.max.timeout.ms" in told


def test_a_transaction_that_its_coordinator_ends_is_not_aborted_in_one_partition(
    broker: Broker, cli: Run, topic: str
) -> None:
    with Producer(broker.bootstrap, {"transactional.id": "healthy"}) as producer, producer.transaction():
        producer.send(topic, b"value", partition=0).result(10)
        where = ("--topic", topic, "--partition", "0", "--first-offset", "0")
        refused = cli("transaction", "abort", *where, "-y", code=1)
        assert "tidemill transaction abort --force healthy" in refused
    assert committed(cli, topic) == "value\n"


def test_an_open_transaction_in_a_mirror_is_ended_by_its_source_or_a_promotion(
    broker: Broker, cli: Run, topic: str
) -> None:
    cli("topic", "create", "mirrored", "-p", "1", "--set", "tidemill.mirror.state=active")
    source, mirror = TopicPartition(topic, 0), TopicPartition("mirrored", 0)
    where = ("--topic", "mirrored", "--partition", "0", "--first-offset", "0")
    with Producer(broker.bootstrap, {"transactional.id": "at-the-source"}) as producer:
        producer.begin()
        producer.send(topic, b"value", partition=0).result(10)
        with RangeReader(broker.bootstrap) as reader, closing(MirrorAppender(broker.bootstrap)) as appender:
            (response,) = reader.fetch(*source, 0, 1)
            copied = mirrored_batches(bytes(response.data[response.start : response.end]), 0)
            appender.wait(mirror, appender.send(mirror, copied))
        refused = cli("transaction", "abort", *where, "-y", code=1)
        assert "was copied from the source of this mirror: the marker of the source ends it" in refused
        assert "'tidemill topic promote mirrored' ends the mirror, and aborts it" in refused
        assert "coordinator" not in refused
    cli("topic", "promote", "mirrored")
    assert committed(cli, "mirrored") == ""
    assert "no transaction that began at offset 0 is open" in cli(
        "transaction", "abort", *where, "-y", code=1
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--isolation-level", "read_uncommitted", "--read-committed"), "--isolation-level read_uncommitted"),
        (("--read-committed", "--isolation-level", "read_uncommitted"), "--isolation-level read_uncommitted"),
        (("--read-committed", "-X", "isolation.level=read_uncommitted"), "isolation.level=read_uncommitted"),
        (
            ("--isolation-level", "read_uncommitted", "-X", "isolation.level=read_committed"),
            "isolation.level=read_committed",
        ),
    ],
)
def test_contradicting_isolation_levels_are_wrong_usage(
    cli: Run, arguments: tuple[str, ...], told: str
) -> None:
    error = cli("consume", "t", *arguments, code=2)
    assert "contradict each other: give one" in error
    assert told in error


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ((), "value\n"),
        (("--isolation-level", "read_uncommitted"), "value\n"),
        (("--read-committed",), ""),
        (("-X", "isolation.level=read_committed"), ""),
        (
            (
                "--read-committed",
                "--isolation-level",
                "read_committed",
                "-X",
                "isolation.level=read_committed",
            ),
            "",
        ),
    ],
)
def test_each_way_to_name_the_isolation_level_takes_effect(
    broker: Broker, cli: Run, topic: str, arguments: tuple[str, ...], messages: str
) -> None:
    with Producer(broker.bootstrap, {"transactional.id": topic}) as producer:
        producer.begin()
        producer.send(topic, b"value", partition=0).result(10)
        assert cli("consume", topic, "--from-beginning", "-e", *arguments) == messages
        producer.abort()


def test_an_abort_at_another_offset_names_find_hanging(cli: Run, topic: str) -> None:
    where = ("--topic", topic, "--partition", "0", "--first-offset", "7")
    assert "find-hanging" in cli("transaction", "abort", *where, "-y", code=1)
