"""Transactions on the command line: produce, consume, and ``tidemill transaction``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.client import Producer, ProducerFenced
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


def test_an_abort_at_another_offset_names_find_hanging(cli: Run, topic: str) -> None:
    where = ("--topic", topic, "--partition", "0", "--first-offset", "7")
    assert "find-hanging" in cli("transaction", "abort", *where, "-y", code=1)
