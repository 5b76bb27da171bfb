"""How many messages were sent, acknowledged or read, at ctrl-C and at errors; topics that are not there."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_process import LONG_S, Command, commands

from tidemill.cli.consume import Format, _telling
from tidemill.cli.output import counted
from tidemill.cli.waiting import Watch
from tidemill.client import Admin, Consumer, Producer
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker

Run = Callable[..., str]


@pytest.fixture
def own(tmp_path: Path) -> Broker:
    """A broker of this test alone, not started."""
    return Broker(data_dir=tmp_path / "data")


def acknowledged(command: Command, broker: Broker, topic: str, count: int) -> None:
    with Admin(broker.bootstrap) as admin:
        deadline = time.monotonic() + LONG_S
        while admin.list_offsets({(topic, 0): "latest"})[topic, 0].offset < count:  # type: ignore[index]
            assert time.monotonic() < deadline, command.err
            time.sleep(0.05)


def test_ctrl_c_says_how_many_were_sent_and_acknowledged(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "ended")
    with commands(
        ["produce", "ended", "-b", broker.bootstrap],
        ["consume", "ended", "--from-beginning", "-b", broker.bootstrap],
        ["consume", "ended", "--from-beginning", "-g", "enders", "-b", broker.bootstrap],
    ) as (produce, *readers):
        produce.write("one\ntwo\nthree\n")
        for reader in readers:
            reader.said("^three$", where="out")
        acknowledged(produce, broker, "ended", 3)
        for command, said in (
            (produce, "interrupted: 3 messages sent, all acknowledged"),
            *((reader, "interrupted: 3 messages read") for reader in readers),
        ):
            assert command.interrupt() == 130
            assert command.errors()[-1] == said


def test_ctrl_c_tells_the_figures_of_a_measurement_so_far(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "measured")
    with commands(
        ["perf", "produce", "measured", "-n", "1000000", "--rate", "1000", "-b", broker.bootstrap]
    ) as (perf,):
        acknowledged(perf, broker, "measured", 500)
        assert perf.interrupt() == 130
        said = perf.errors()[-1]
    count = re.fullmatch(r"interrupted: ([\d,]+) messages in [\d.]+ s, [\d,]+ messages/s, [\d.]+ k?B/s", said)
    assert count, said
    assert int(count[1].replace(",", "")) >= 400


def test_an_offset_that_a_partition_does_not_have_is_said(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "short", "-p", "3")
    arguments = ["consume", "short", "--offset", "5", "--timeout", "1s", "-b", broker.bootstrap]
    with commands(arguments, [*arguments, "-p", "2"]) as (all_of_them, one):
        assert (all_of_them.wait(), one.wait()) == (0, 0)
        assert all_of_them.errors() == [
            "tidemill: offset 5 is not in short-0, which has 0 to 0: reading begins at 0; 2 other partitions "
            "too"
        ]
        assert one.errors() == ["tidemill: offset 5 is not in short-2, which has 0 to 0: reading begins at 0"]


def test_a_key_that_is_not_there_has_a_name_near_it(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.cli.config.on_terminal", lambda: True)
    assert "'retentoin.ms' in its name; did you mean retention.ms?" in cli("config", "keys", "retentoin.ms")


@pytest.mark.parametrize(("number", "text"), [(0, "0 batches"), (1, "1 batch"), (2000, "2,000 batches")])
def test_a_plural_that_has_more_than_an_s(number: int, text: str) -> None:
    assert counted(number, "batch", "batches") == text


def test_a_topic_that_is_not_there_has_a_name_near_it(cli: Run) -> None:
    cli("topic", "create", "departures")
    assert "; did you mean departures?" in cli("topic", "describe", "departure", code=1)


def test_ctrl_c_says_of_how_many_nobody_knows(own: Broker) -> None:
    with own:
        with Admin(own.bootstrap) as admin:
            admin.create_topic("ended")
        with commands(["produce", "ended", "-b", own.bootstrap]) as (produce,):
            produce.write("one\n")
            acknowledged(produce, own, "ended", 1)
            os.kill(own.pid, signal.SIGSTOP)
            try:
                produce.write("two\nthree\n")
                produce.said("^warning: 2 messages for ended-0 not acknowledged")
                began = time.monotonic()
                assert produce.interrupt() == 130
                assert time.monotonic() - began < 20
            finally:
                os.kill(own.pid, signal.SIGCONT)
            assert produce.errors()[-1] == (
                "interrupted: 3 messages sent, 1 acknowledged; of the other 2 it is not known whether the "
                "topic has them"
            )


def test_an_error_says_how_many_were_sent_and_acknowledged_or_read(own: Broker) -> None:
    with own:
        with Admin(own.bootstrap) as admin:
            admin.create_topic("ended")
        brief = ("-X", "delivery.timeout.ms=4000", "-X", "request.timeout.ms=2000")
        where = ("-b", own.bootstrap)
        with commands(
            ["produce", "ended", *where, *brief],
            ["consume", "ended", "--from-beginning", "-n", "9", "--timeout", "8s", *where],
        ) as (produce, consume):
            produce.write("one\n")
            consume.said("^one$", where="out")
            own.kill()
            produce.write("two\nthree\n")
            produce.end_input()
            assert produce.wait() == 1
            assert produce.errors()[-1].startswith("tidemill: 2 messages for ended-0 ")
            fate = (
                "3 messages sent, 1 acknowledged; of the other 2 it is not known whether the topic has them"
            )
            assert produce.errors()[-1].endswith(f" ({fate})")
            assert consume.wait() == 1
            assert consume.errors()[-1].startswith("tidemill: 1 of 9 messages came, and then none within 8 s")


def test_a_topic_that_is_not_there_is_created_when_that_is_asked_for_only(
    broker: Broker, cli: Run, tmp_path: Path
) -> None:
    cli("topic", "create", "orders")
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    said = cli("produce", "ordres", "-f", str(lines), code=1)
    assert said == (
        "tidemill: topic 'ordres' is not there: 'tidemill topic create ordres' creates it, or --create of "
        "this command; did you mean orders?\n"
    )
    assert "ordres" not in cli("topic", "list")
    cli("produce", "returns", "-f", str(lines), "--create")
    cli("produce", "returns", "-f", str(lines), "--create")
    assert cli("consume", "returns", "--from-beginning", "-n", "4", "--timeout", "20s").count("one\n") == 2
    with Consumer(broker.bootstrap) as consumer, pytest.raises(ClientError, match="UNKNOWN_TOPIC"):
        consumer.partitions_for("ordres")


def test_an_error_says_how_many_were_read() -> None:
    shown = Format("plain", set(), "", lambda line: len(line), False)
    shown.count = 2
    with pytest.raises(ClientError) as caught, _telling(shown):
        raise ClientError("refused", ErrorCode.OFFSET_OUT_OF_RANGE)
    assert caught.value.__notes__ == ["2 messages read"]


def test_of_messages_without_acknowledgements_it_is_said_that_nobody_knows(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "unasked")
    with commands(["produce", "unasked", "-a", "0", "-b", broker.bootstrap]) as (produce,):
        produce.write("one\n")
        acknowledged(produce, broker, "unasked", 1)
        assert produce.interrupt() == 130
        said = "interrupted: 1 message sent; with acks=0 nobody says which of them have arrived"
        assert produce.errors()[-1] == said


@pytest.mark.parametrize("group", [(), ("-g", "fleet-readers")])
def test_a_topic_that_is_not_there_cannot_be_read_and_is_not_created(
    cli: Run, group: tuple[str, ...]
) -> None:
    cli("topic", "create", "fleets", "--if-not-exists")
    said = cli("consume", "fleet", "-e", *group, code=1)
    assert said == (
        "tidemill: topic 'fleet' is not there: 'tidemill topic create fleet' creates it, 'tidemill topic "
        "list' shows what there is; did you mean fleets?\n"
    )
    assert "fleet " not in cli("topic", "list").replace("\t", " ")


def on_a_terminal(broker: Broker, answer: str, topic: str) -> tuple[int, str]:
    """``echo line | tidemill produce TOPIC`` on a terminal, where ``answer`` is typed: exit code, screen."""
    return typed(answer, f"echo a line | {sys.executable} -m tidemill produce {topic} -b {broker.bootstrap}")


def typed(answer: str, command: str) -> tuple[int, str]:
    """A line of shell on a terminal, where ``answer`` is typed to its question: exit code, screen."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    screen = b""
    try:
        while piece := os.read(descriptor, 4096):
            screen += piece
            if answer and b"[y/N]" in screen:
                os.write(descriptor, answer.encode())
                answer = ""
    except OSError:
        pass
    finally:
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, screen.decode()


def test_on_a_terminal_it_asks_whether_to_create_a_topic(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "flights")
    code, screen = on_a_terminal(broker, "n\n", "fligths")
    assert code == 1
    assert "topic 'fligths' is not there; did you mean flights? Create 'fligths'? [y/N]" in screen
    assert "fligths" not in cli("topic", "list")
    code, screen = on_a_terminal(broker, "y\n", "landings")
    assert "topic 'landings' is not there. Create 'landings'? [y/N]" in screen
    assert code == 0, screen
    assert cli("consume", "landings", "--from-beginning", "-n", "1", "--timeout", "20s") == "a line\n"


def test_a_no_is_a_failure_in_words_and_nothing_is_done(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "kept")
    delete = f"{sys.executable} -m tidemill topic delete kept -b {broker.bootstrap}"
    code, screen = typed("n\n", delete)
    assert (code, "tidemill: nothing was done: the answer was no" in screen) == (1, True)
    assert "kept\t" in cli("topic", "list")
    assert typed("y\n", delete)[0] == 0
    assert "kept\t" not in cli("topic", "list")


def test_what_ends_because_messages_were_given_up_is_no_good_news(own: Broker) -> None:
    with own:
        with Admin(own.bootstrap) as admin:
            admin.create_topic("ended", 2)
        brief = {"delivery.timeout.ms": 5000, "request.timeout.ms": 2000}
        with Producer(own.bootstrap, brief) as producer:
            producer.send("ended", b"one", partition=0).result(30)
            own.kill()
            lines: list[str] = []
            watch = Watch(lines.append)
            deliveries = [producer.send("ended", b"two", partition=number) for number in (0, 1)]
            deadline = time.monotonic() + LONG_S
            while not all(one.done() for one in deliveries) and time.monotonic() < deadline:
                watch.look(producer.waits(), time.monotonic())
                time.sleep(0.1)
            for after in (0.0, 1.0, 2.0):
                watch.look(producer.waits(), time.monotonic() + after)
            assert [line for line in lines if "not acknowledged" in line]
            assert not [line for line in lines if "again" in line and "warning" not in line]
            assert producer.counts() == (3, 1, 2)
            own.start()
            producer.send("ended", b"three", partition=0).result(30)
            assert [wait.subject for wait in producer.waits()] == ["ended-1"]
